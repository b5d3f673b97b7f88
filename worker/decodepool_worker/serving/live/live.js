// Draws GET /v1/live once a second. Text goes in as text, never as markup.
"use strict";

const PERIOD_MS = 1000;
const $ = (id) => document.getElementById(id);
let key = sessionStorage.getItem("decodepool-key") || "";

const PARTS = [
  ["weight_bytes", "weights", "--weights"],
  ["workspace_bytes", "workspace", "--workspace"],
  ["reserve_used_bytes", "sessions", "--used"],
  ["reserve_free_bytes", "reserved for sessions", "--reserve"],
  ["cache_used_bytes", "kept prefixes", "--cache-used"],
  ["cache_free_bytes", "cache", "--cache"],
];

function bytes(count) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let power = 0;
  for (; count >= 1024 && power < 4; power++) count /= 1024;
  return `${count >= 100 || power === 0 ? count.toFixed(0) : count.toFixed(1)} ${units[power]}`;
}

function figure(id, value, unit, digits) {
  const number = value === null ? "–" : value.toFixed(value >= 100 ? 0 : digits);
  const small = document.createElement("small");
  small.textContent = ` ${unit}`;
  $(id).replaceChildren(number, small);
}

// Seconds without a step are gaps. A rare outlier is cut off rather than flattening everything else.
function line(id, values) {
  const known = values.filter((value) => value !== null).sort((a, b) => a - b);
  const top = Math.max(1.25 * (known[Math.floor(0.97 * known.length)] || 0), 1e-9);
  const step = 100 / Math.max(values.length - 1, 1);
  const at = (value, i) => `${(i * step).toFixed(2)},${(30 - 29 * Math.min(value / top, 1)).toFixed(2)}`;
  const runs = [];
  values.forEach((value, i) => {
    if (value === null) return;
    if (i === 0 || values[i - 1] === null) runs.push([]);
    runs[runs.length - 1].push({ i, point: at(value, i) });
  });
  const svg = $(id);
  svg.setAttribute("viewBox", "0 0 100 30");
  svg.setAttribute("preserveAspectRatio", "none");
  if (!svg.children.length)
    for (const name of ["area", "stroke"]) {
      const path = document.createElementNS("http://www.w3.org/2000/svg", "path");
      path.setAttribute("class", name);
      svg.append(path);
    }
  const strokes = runs.map((run) => "M" + run.map(({ point }) => point).join("L"));
  const ends = runs.map((run) => `L${(run[run.length - 1].i * step).toFixed(2)},30L${(run[0].i * step).toFixed(2)},30Z`);
  svg.children[0].setAttribute("d", strokes.map((stroke, i) => stroke + ends[i]).join(""));
  svg.children[1].setAttribute("d", strokes.join(""));
}

function element(tag, className, text) {
  const made = document.createElement(tag);
  if (className) made.className = className;
  if (text !== undefined) made.textContent = text;
  return made;
}

function bar(session) {
  const made = element("div", "bar");
  for (const [count, className] of [[session.length, "waiting"], [session.evaluated, ""]]) {
    const part = element("i", `${className} ${session.state}`);
    part.style.width = `${(100 * count) / session.context_tokens}%`;
    made.append(part);
  }
  return made;
}

function row(session) {
  const made = element("li");
  const id = element("code", "", session.id);
  id.title = session.id;
  const length = `${session.length.toLocaleString()} / ${session.context_tokens.toLocaleString()}`;
  made.append(element("i", `dot ${session.state}`), id, element("span", "state", session.state), bar(session), element("span", "count", length));
  return made;
}

function memory(live) {
  const parts = PARTS.map(([name, label, colour]) => ({ label, colour, size: live.memory[name] }));
  $("map").replaceChildren(...parts.map(({ colour, size }) => {
    const part = element("i");
    part.style.flexGrow = size;
    part.style.background = `var(${colour})`;
    return part;
  }));
  $("legend").replaceChildren(...parts.filter(({ size }) => size > 0).map(({ label, colour, size }) => {
    const item = element("li");
    const swatch = element("i");
    swatch.style.background = `var(${colour})`;
    item.append(swatch, element("b", "", bytes(size)), element("span", "", label));
    return item;
  }));
  const measured = live.memory.resident_bytes;
  $("memory-note").textContent = measured ? `${bytes(measured)} resident in the process` : "";
}

const PAGE_USES = { h: ["held", "--used"], s: ["shared", "--shared"], k: ["kept", "--cache-used"], f: ["free", "--free"] };
const CELL = 9;

let shownPages = "";

function pages(letters) {
  shownPages = letters || "";
  $("pages-part").hidden = !letters;
  if (!letters) return;
  const canvas = $("pages");
  const columns = Math.max(1, Math.floor(canvas.parentElement.clientWidth / CELL));
  const rows = Math.ceil(letters.length / columns);
  const scale = window.devicePixelRatio || 1;
  canvas.width = columns * CELL * scale;
  canvas.height = rows * CELL * scale;
  canvas.style.height = `${rows * CELL}px`;
  canvas.style.width = `${columns * CELL}px`;
  const style = getComputedStyle(document.documentElement);
  const pen = canvas.getContext("2d");
  pen.scale(scale, scale);
  const colours = Object.fromEntries(Object.entries(PAGE_USES).map(([letter, [, name]]) => [letter, style.getPropertyValue(name)]));
  [...letters].forEach((letter, i) => {
    pen.fillStyle = colours[letter];
    pen.fillRect((i % columns) * CELL, Math.floor(i / columns) * CELL, CELL - 2, CELL - 2);
  });
  const counts = Object.entries(PAGE_USES).map(([letter, [name]]) => `${letters.split(letter).length - 1} ${name}`);
  $("pages-note").textContent = counts.join(", ");
}

function sessions(live) {
  const { capacity, list } = live.sessions;
  const small = element("small", "", ` of ${capacity}`);
  $("session-count").replaceChildren(String(list.length), small);
  $("slots").replaceChildren(...Array.from({ length: Math.min(capacity, 128) }, (_, i) => element("i", list[i] ? `${list[i].state} taken` : "")));
  for (const slot of $("slots").querySelectorAll(".taken:not(.decoding):not(.prefilling)")) slot.style.background = "var(--idle)";
  $("sessions").replaceChildren(...list.map(row));
  $("empty").hidden = list.length > 0;
  $("sessions-note").textContent = list.length ? `${live.context_tokens.toLocaleString()} tokens of context reserved for each` : "";
}

function draw(live) {
  phase(live.phase);
  if (!live.sessions) return;
  document.title = `${live.model} · decodepool`;
  $("model").textContent = live.model;
  $("detail").textContent = live.architecture;
  $("fingerprint").textContent = live.system_fingerprint;
  const history = live.history;
  const last = history[history.length - 1] || { tokens_per_second: 0, step_ms: null, rows: null };
  figure("tokens-per-second", last.tokens_per_second, "tok/s", 1);
  figure("step-ms", last.step_ms, "ms", 1);
  figure("rows", last.rows, "rows", 1);
  line("tokens-line", history.map((point) => point.tokens_per_second));
  line("step-line", history.map((point) => point.step_ms));
  line("rows-line", history.map((point) => point.rows));
  memory(live);
  pages(live.pages);
  sessions(live);
}

function phase(name) {
  $("phase").textContent = name;
  $("phase").className = `pill ${name}`;
}

async function refresh() {
  try {
    const answer = await fetch("v1/live", { headers: key ? { Authorization: `Bearer ${key}` } : {}, cache: "no-store" });
    $("key-form").hidden = answer.status !== 401;
    if (answer.ok) draw(await answer.json());
    else phase(answer.status === 401 ? "locked" : "lost");
  } catch {
    phase("lost");
  }
  setTimeout(refresh, PERIOD_MS);
}

$("key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  key = $("key").value.trim();
  sessionStorage.setItem("decodepool-key", key);
});
window.addEventListener("resize", () => pages(shownPages));
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => pages(shownPages));
$("hint").textContent = `curl ${location.origin}/v1/sessions -H 'content-type: application/json' -d '{"prompt": "Once upon a time"}'`;
refresh();
