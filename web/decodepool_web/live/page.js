// What the live pages of a worker and of a pool have in common: elements, numbers, lines, memory, sessions, and the loop that
// asks GET /v1/live once a second, but where it needs a key and has none. Text goes in as text, never as markup.

const PERIOD_MS = 1000;
const RATE_SECONDS = 5; // what a session's rate is the mean of
export const WINDOW_SECONDS = 120; // as far back as histories go

let key = sessionStorage.getItem("decodepool-key") || "";
let notices = {}; // what to say of a phase, by its name

// Elements and numbers.

export const $ = (id) => document.getElementById(id);

export function element(tag, className, ...children) {
  const made = document.createElement(tag);
  if (className) made.className = className;
  made.append(...children);
  return made;
}

export const whole = (count) => count.toLocaleString("en");

// One digit behind the point, and none from 100 on.
export const short = (value) => (value >= 99.95 ? whole(Math.round(value)) : value.toFixed(1));

export const sum = (values) => values.reduce((total, value) => total + value, 0);

// A number of bytes as text and its unit.
export function scaled(count) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
  let power = 0;
  for (; count >= 1024 && power < 5; power++) count /= 1024;
  const digits = power === 0 || count >= 100 ? 0 : count >= 10 ? 1 : 2;
  return [count.toFixed(digits), units[power]];
}

export const bytes = (count) => scaled(count).join(" ");

// A tile's number, as text; null where nothing runs.
export function figure(id, value, unit) {
  const parts = value === null ? [element("span", "idle-word", "idle")] : [value, element("small", "", ` ${unit}`)];
  $(id).replaceChildren(...parts);
}

function duration(seconds) {
  if (seconds < 60) return `${Math.floor(seconds)} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min`;
  return seconds < 86400 ? `${Math.floor(seconds / 3600)} h` : `${Math.floor(seconds / 86400)} d`;
}

// Lines of the last two minutes.

// The next of 1, 2, 5, 10, 20, 50, ...
export function roundedUp(value) {
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 5, 10].map((digit) => digit * power).find((tick) => tick >= value);
}

export function path(className, d) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", "path");
  made.setAttribute("class", className);
  made.setAttribute("d", d);
  return made;
}

// Paths over a width of `WINDOW_SECONDS` and a height of 40, and the line below them.
export function lines(...paths) {
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  svg.setAttribute("viewBox", `0 0 ${WINDOW_SECONDS} 40`);
  svg.setAttribute("preserveAspectRatio", "none");
  svg.append(...paths, path("baseline", `M0,40H${WINDOW_SECONDS}`));
  return svg;
}

export function axis() {
  return element("div", "axis", element("span", "", `${WINDOW_SECONDS / 60} min ago`), element("span", "", "now"));
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

// The parts of one worker's memory, or of several together.
export function memoryParts(memories) {
  return PARTS.map(([name, label, colour]) => {
    const size = sum(memories.map((memory) => memory[name]));
    return { label, colour, size, amount: bytes(size) };
  });
}

// A part keeps its element, so that it grows and shrinks before one's eyes.
export function fillMap(map, parts) {
  if (map.children.length !== parts.length) map.replaceChildren(...parts.map(() => element("i")));
  parts.forEach(({ label, colour, size, amount }, i) => {
    const part = map.children[i];
    part.style.flexGrow = size;
    part.style.background = `var(${colour})`;
    part.title = `${amount} ${label}`;
  });
  return map;
}

export function fillLegend(legend, parts) {
  const items = parts.map(({ label, colour, amount }) => {
    const swatch = element("i");
    swatch.style.background = `var(${colour})`;
    return element("li", "", swatch, element("b", "", amount), element("span", "", label));
  });
  legend.replaceChildren(...items);
}

// Sessions.

// A mark for each place, taken ones first: `shown` at most, small ones where there are over `large`.
export function fillSlots(slots, { capacity, list }, shown, large) {
  const marks = Array.from({ length: Math.min(capacity, shown) }, (_, i) => element("i", list[i] ? `taken ${list[i].state}` : ""));
  slots.replaceChildren(...marks);
  slots.classList.toggle("many", capacity > large);
  return slots;
}

let seen = new Map(); // of each session, its tokens at its ages of the last seconds

// Tokens a second by the worker's own clock, of sessions that are busy: drawn, or while one prefills, evaluated. Each
// comes as a name that no other has and the session.
export function rates(named) {
  const now = new Map();
  const found = named.map(([name, session]) => {
    if (session.state !== "decoding" && session.state !== "prefilling") return null;
    const count = session.state === "decoding" ? session.length : session.evaluated;
    const points = [...(seen.get(name) || []), { state: session.state, age: session.age_seconds, count }].filter(
      ({ state, age }) => state === session.state && age > session.age_seconds - RATE_SECONDS,
    );
    now.set(name, points);
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

// One of the table's: `rate` is null where there is none to tell.
export function row(session, rate, ...cells) {
  const parent = session.parent ? [element("span", "parent", "fork of ", element("code", "", `${session.parent}…`))] : [];
  return element(
    "tr",
    session.state,
    element("td", "name", element("i", "dot"), element("code", "", `${session.id}…`), ...parent),
    ...cells,
    element("td", "state", session.state),
    element("td", "bar-cell", bar(session)),
    element("td", "number", `${whole(session.length)} / ${whole(session.context_tokens)}`),
    element("td", "number", rate === null ? "–" : `${short(rate)} tok/s`),
    element("td", "number age", duration(session.age_seconds)),
  );
}

// The table's rows, or how to open a session; `cut` says which rows there are where some are left out.
export function fillTable(rows, cut = "") {
  $("sessions").replaceChildren(...rows);
  $("table").hidden = !rows.length;
  $("no-sessions").hidden = rows.length > 0;
  $("sessions-note").textContent = rows.length ? `${cut}ids are cut short: a whole one is its session's key` : "";
}

// The page.

const UNDRAWN = "The page cannot draw what it was told: the fault is its own. The browser's console says more.";

let stale = ["lost", "locked", "undrawn"]; // phases in which what is drawn is of before

export function phase(name, text) {
  $("phase").textContent = text || name;
  $("phase").className = `pill ${name}`;
  $("notice").hidden = !(name in notices);
  $("notice").textContent = notices[name] || "";
  $("main").classList.toggle("stale", stale.includes(name));
}

function lock(locked) {
  $("key-form").hidden = !locked;
  if (!locked) return;
  phase("locked");
  $("key-note").textContent = key ? "The key that was given is not one of its keys." : "";
}

// What the server says, and its status; null where it does not answer.
async function asked() {
  try {
    const answer = await fetch("v1/live", { headers: key ? { Authorization: `Bearer ${key}` } : {}, cache: "no-store" });
    return { status: answer.status, live: answer.ok ? await answer.json() : null };
  } catch {
    return null;
  }
}

function tryToDraw(draw, live) {
  try {
    draw(live);
  } catch (fault) {
    console.error(fault);
    phase("undrawn", "not drawn");
  }
}

async function refresh(draw) {
  const answer = await asked();
  if (answer) lock(answer.status === 401);
  if (answer?.live) tryToDraw(draw, answer.live);
  else if (answer?.status !== 401) phase("lost");
  if (answer?.status === 401) await submitted();
  else await new Promise((resolve) => setTimeout(resolve, PERIOD_MS));
  refresh(draw);
}

const submitted = () => new Promise((resolve) => $("key-form").addEventListener("submit", resolve, { once: true }));

function hint() {
  const secret = key ? " -H 'authorization: Bearer KEY'" : "";
  return `curl ${location.origin}/v1/sessions${secret} -H 'content-type: application/json' -d '{"prompt": "Once upon a time"}'`;
}

// Draw what /v1/live answers, once a second from now on. `said` is what to say of a phase, by its name; `ended` are phases
// of its own in which nothing new will come.
export function begin(draw, said, ended = []) {
  notices = { undrawn: UNDRAWN, ...said };
  stale = [...stale, ...ended];
  $("key-form").addEventListener("submit", (event) => {
    event.preventDefault();
    key = $("key").value.trim();
    sessionStorage.setItem("decodepool-key", key);
    $("hint").textContent = hint();
  });
  $("hint").textContent = hint();
  phase("connecting");
  refresh(draw);
}
