// Draws GET /v1/live once a second. Text goes in as text, never as markup.
"use strict";

const PERIOD_MS = 1000;
const WINDOW_SECONDS = 120; // as far back as the worker's history goes
const RATE_SECONDS = 5; // what a session's rate is the mean of
const $ = (id) => document.getElementById(id);
let key = sessionStorage.getItem("decodepool-key") || "";

// Elements and numbers.

function element(tag, className, ...children) {
  const made = document.createElement(tag);
  if (className) made.className = className;
  made.append(...children);
  return made;
}

const whole = (count) => count.toLocaleString("en");

function bytes(count) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let power = 0;
  for (; count >= 1024 && power < 4; power++) count /= 1024;
  const digits = power === 0 || count >= 100 ? 0 : count >= 10 ? 1 : 2;
  return `${count.toFixed(digits)} ${units[power]}`;
}

function duration(seconds) {
  if (seconds < 60) return `${Math.floor(seconds)} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min`;
  return seconds < 86400 ? `${Math.floor(seconds / 3600)} h` : `${Math.floor(seconds / 86400)} d`;
}

// Lines of the last two minutes.

function figure(id, value, unit) {
  const parts = value === null ? [element("span", "idle-word", "idle")] : [value.toFixed(value >= 100 ? 0 : 1), element("small", "", ` ${unit}`)];
  $(id).replaceChildren(...parts);
}

// The next of 1, 2, 5, 10, 20, 50, ...
function roundedUp(value) {
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 5, 10].map((digit) => digit * power).find((tick) => tick >= value);
}

function path(className, d) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", "path");
  made.setAttribute("class", className);
  made.setAttribute("d", d);
  return made;
}

// Seconds without a step are gaps.
function chart(id, values, unit) {
  const known = values.filter((value) => value !== null);
  const top = roundedUp(Math.max(...known, 0) || 1);
  const first = WINDOW_SECONDS - values.length;
  const runs = [];
  values.forEach((value, i) => {
    if (value === null) return;
    if (i === 0 || values[i - 1] === null) runs.push([]);
    runs[runs.length - 1].push([first + i + 0.5, 40 - (38 * value) / top]);
  });
  const strokes = runs.map((run) => {
    const points = run.length > 1 ? run : [[run[0][0] - 0.5, run[0][1]], [run[0][0] + 0.5, run[0][1]]];
    return { d: `M${points.map((point) => point.join(",")).join("L")}`, from: points[0][0], to: points[points.length - 1][0] };
  });
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  svg.setAttribute("viewBox", `0 0 ${WINDOW_SECONDS} 40`);
  svg.setAttribute("preserveAspectRatio", "none");
  svg.append(
    path("grid", `M0,2H${WINDOW_SECONDS}`),
    path("area", strokes.map(({ d, from, to }) => `${d}L${to},40L${from},40Z`).join("")),
    path("stroke", strokes.map(({ d }) => d).join("")),
    path("baseline", `M0,40H${WINDOW_SECONDS}`),
  );
  const quiet = known.some((value) => value > 0) ? [] : [element("span", "quiet", "nothing ran in this time")];
  const label = quiet.length ? [] : [element("span", "top", `${whole(top)} ${unit}`)];
  const axis = element("div", "axis", element("span", "", `${WINDOW_SECONDS / 60} min ago`), element("span", "", "now"));
  $(id).replaceChildren(svg, ...label, ...quiet, axis);
}

// Memory, as planned and as used.

const PARTS = [
  ["process_bytes", "process", "--process"],
  ["weight_bytes", "weights", "--weights"],
  ["workspace_bytes", "workspace", "--workspace"],
  ["reserve_used_bytes", "held by sessions", "--used"],
  ["reserve_free_bytes", "free, reserved for sessions", "--reserve"],
  ["cache_used_bytes", "kept prefixes", "--cache-used"],
  ["cache_free_bytes", "free for cache", "--cache"],
];

function legendItem(colour, amount, label) {
  const swatch = element("i");
  swatch.style.background = `var(${colour})`;
  return element("li", "", swatch, element("b", "", amount), element("span", "", label));
}

function memory(live) {
  const parts = PARTS.map(([name, label, colour]) => ({ label, colour, size: live.memory[name] }));
  if ($("map").children.length !== parts.length) $("map").replaceChildren(...parts.map(() => element("i")));
  parts.forEach(({ label, colour, size }, i) => {
    const part = $("map").children[i];
    part.style.flexGrow = size;
    part.style.background = `var(${colour})`;
    part.title = `${bytes(size)} ${label}`;
  });
  $("legend").replaceChildren(...parts.map(({ label, colour, size }) => legendItem(colour, bytes(size), label)));
  const { resident_bytes: measured, planned_bytes: planned } = live.memory;
  $("memory-note").textContent = `${measured ? `${bytes(measured)} resident of ` : ""}${bytes(planned)} planned`;
}

const PAGE_USES = [
  ["h", "held by one session", "--used"],
  ["s", "shared by several", "--shared"],
  ["k", "kept prefixes", "--cache-used"],
  ["f", "free", "--free"],
];
const CELL_SIZES = [18, 15, 12, 9];
const GRID_PIXELS = 110;

let shownPages = "";

// The largest cells with which the grid is not too high.
function gridOf(count, width) {
  const grids = CELL_SIZES.map((cell) => ({ cell, columns: Math.max(1, Math.floor((width + 2) / cell)) }));
  return grids.find(({ cell, columns }) => Math.ceil(count / columns) * cell <= GRID_PIXELS) || grids[grids.length - 1];
}

function pages(letters) {
  shownPages = letters || "";
  $("pages-part").hidden = !letters;
  if (!letters) return;
  const canvas = $("pages");
  const { cell, columns } = gridOf(letters.length, canvas.parentElement.clientWidth);
  const rows = Math.ceil(letters.length / columns);
  const scale = window.devicePixelRatio || 1;
  canvas.width = columns * cell * scale;
  canvas.height = rows * cell * scale;
  canvas.style.width = `${columns * cell}px`;
  canvas.style.height = `${rows * cell}px`;
  const style = getComputedStyle(document.documentElement);
  const colours = Object.fromEntries(PAGE_USES.map(([letter, , name]) => [letter, style.getPropertyValue(name)]));
  const pen = canvas.getContext("2d");
  pen.scale(scale, scale);
  [...letters].forEach((letter, i) => {
    pen.fillStyle = colours[letter];
    pen.beginPath();
    pen.roundRect((i % columns) * cell, Math.floor(i / columns) * cell, cell - 2, cell - 2, 2);
    pen.fill();
  });
  $("pages-note").textContent = `${whole(letters.length)} pages`;
  $("pages-legend").replaceChildren(
    ...PAGE_USES.map(([letter, label, colour]) => legendItem(colour, whole(letters.split(letter).length - 1), label)),
  );
}

// Sessions.

const SHOWN_SLOTS = 160;

let seen = new Map(); // of each session, its tokens at its ages of the last seconds

// Tokens a second by the worker's own clock, of a session that is busy: drawn, or while it prefills, evaluated.
function rates(list) {
  const now = new Map();
  const found = list.map((session) => {
    if (session.state !== "decoding" && session.state !== "prefilling") return null;
    const count = session.state === "decoding" ? session.length : session.evaluated;
    const points = [...(seen.get(session.id) || []), { state: session.state, age: session.age_seconds, count }].filter(
      ({ state, age }) => state === session.state && age > session.age_seconds - RATE_SECONDS,
    );
    now.set(session.id, points);
    const seconds = session.age_seconds - points[0].age;
    return seconds > 0 ? (count - points[0].count) / seconds : null;
  });
  seen = now;
  return found;
}

function bar(session) {
  const made = element("div", "bar");
  for (const [count, className] of [[session.length, "waiting"], [session.evaluated, ""]]) {
    const part = element("i", className);
    part.style.width = `${(100 * count) / session.context_tokens}%`;
    made.append(part);
  }
  return made;
}

function row(session, rate) {
  const parent = session.parent ? [element("span", "parent", "fork of ", element("code", "", session.parent))] : [];
  return element(
    "tr",
    session.state,
    element("td", "name", element("i", "dot"), element("code", "", session.id), ...parent),
    element("td", "state", session.state),
    element("td", "bar-cell", bar(session)),
    element("td", "number", `${whole(session.length)} / ${whole(session.context_tokens)}`),
    element("td", "number", rate === null ? "–" : `${rate.toFixed(rate >= 100 ? 0 : 1)} tok/s`),
    element("td", "number age", duration(session.age_seconds)),
  );
}

function sessions(live) {
  const { capacity, list } = live.sessions;
  $("session-count").replaceChildren(String(list.length), element("small", "", ` of ${whole(capacity)}`));
  const places = Array.from({ length: Math.min(capacity, SHOWN_SLOTS) }, (_, i) => element("i", list[i] ? `taken ${list[i].state}` : ""));
  $("slots").replaceChildren(...places);
  $("slots").classList.toggle("many", capacity > 32);
  const counts = ["decoding", "prefilling", "idle"].map((state) => [list.filter((session) => session.state === state).length, state]);
  const told = [...counts, [capacity - list.length, "free"]].filter(([count]) => count > 0);
  $("slots-note").textContent = told.map(([count, state]) => `${whole(count)} ${state}`).join(", ");
  const speeds = rates(list);
  $("sessions").replaceChildren(...list.map((session, i) => row(session, speeds[i])));
  $("table").hidden = !list.length;
  $("empty").hidden = list.length > 0;
  $("sessions-note").textContent = list.length ? "ids are cut short: a whole one is its session's key" : "";
}

// The page.

const NOTICES = {
  connecting: "Waiting for the worker's first answer.",
  loading: "The worker is loading its model. The page fills by itself as soon as that is done.",
  lost: "The worker does not answer. Asking again every second.",
  failed: "The engine has failed; the worker's log says why. Its process ends, and whoever supervises it starts a new one.",
};

function phase(name) {
  $("phase").textContent = name;
  $("phase").className = `pill ${name}`;
  $("notice").hidden = !(name in NOTICES);
  $("notice").textContent = NOTICES[name] || "";
  $("main").classList.toggle("stale", name === "lost" || name === "failed" || name === "locked");
}

function draw(live) {
  phase(live.phase);
  if (!live.sessions) return;
  $("main").hidden = false;
  document.title = `${live.model} · decodepool`;
  $("model").textContent = live.model;
  $("detail").textContent = `${live.architecture}, ${whole(live.context_tokens)} tokens of context`;
  $("fingerprint").textContent = live.system_fingerprint;
  const history = live.history;
  const last = history[history.length - 1] || { tokens_per_second: 0, step_ms: null, rows: null };
  figure("tokens", last.tokens_per_second || null, "tok/s");
  figure("step", last.step_ms, "ms");
  figure("rows", last.rows, last.rows === 1 ? "row" : "rows");
  chart("tokens-chart", history.map((point) => point.tokens_per_second), "tok/s");
  chart("step-chart", history.map((point) => point.step_ms), "ms");
  chart("rows-chart", history.map((point) => point.rows), "rows");
  memory(live);
  pages(live.pages);
  sessions(live);
}

function lock(locked) {
  $("key-form").hidden = !locked;
  if (!locked) return;
  phase("locked");
  $("key-note").textContent = key ? "The key that was given is not one of its keys." : "";
}

async function refresh() {
  try {
    const answer = await fetch("v1/live", { headers: key ? { Authorization: `Bearer ${key}` } : {}, cache: "no-store" });
    lock(answer.status === 401);
    if (answer.ok) draw(await answer.json());
    else if (answer.status !== 401) phase("lost");
  } catch {
    phase("lost");
  }
  setTimeout(refresh, PERIOD_MS);
}

function hint() {
  const secret = key ? " -H 'authorization: Bearer KEY'" : "";
  return `curl ${location.origin}/v1/sessions${secret} -H 'content-type: application/json' -d '{"prompt": "Once upon a time"}'`;
}

$("key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  key = $("key").value.trim();
  sessionStorage.setItem("decodepool-key", key);
  $("hint").textContent = hint();
});
window.addEventListener("resize", () => pages(shownPages));
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => pages(shownPages));
$("hint").textContent = hint();
phase("connecting");
refresh();
