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

function line(id, values) {
  const top = Math.max(...values.map((value) => value || 0), 1e-9);
  const step = 100 / Math.max(values.length - 1, 1);
  const points = values.map((value, i) => `${(i * step).toFixed(2)},${(30 - 28 * (value || 0) / top).toFixed(2)}`).join("L");
  const svg = $(id);
  svg.setAttribute("viewBox", "0 0 100 30");
  svg.setAttribute("preserveAspectRatio", "none");
  if (!svg.children.length)
    for (const name of ["area", "stroke"]) {
      const path = document.createElementNS("http://www.w3.org/2000/svg", "path");
      path.setAttribute("class", name);
      svg.append(path);
    }
  svg.children[0].setAttribute("d", points ? `M${points}L100,30L0,30Z` : "");
  svg.children[1].setAttribute("d", points ? `M${points}` : "");
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
$("hint").textContent = `curl ${location.origin}/v1/sessions -H 'content-type: application/json' -d '{"prompt": "Once upon a time"}'`;
refresh();
