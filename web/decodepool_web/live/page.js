// What the live pages of a worker and of a pool have in common: elements, numbers, lines, sessions, and the loop that asks
// GET /v1/live once a second. Text goes in as text, never as markup.

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

export function bytes(count) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
  let power = 0;
  for (; count >= 1024 && power < 5; power++) count /= 1024;
  const digits = power === 0 || count >= 100 ? 0 : count >= 10 ? 1 : 2;
  return `${count.toFixed(digits)} ${units[power]}`;
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

export const PARTS = [
  ["process_bytes", "process", "--process"],
  ["weight_bytes", "weights", "--weights"],
  ["workspace_bytes", "workspace", "--workspace"],
  ["reserve_used_bytes", "held by sessions", "--used"],
  ["reserve_free_bytes", "free, reserved for sessions", "--reserve"],
  ["cache_used_bytes", "kept prefixes", "--cache-used"],
  ["cache_free_bytes", "free for cache", "--cache"],
];

export function legendItem(colour, amount, label) {
  const swatch = element("i");
  swatch.style.background = `var(${colour})`;
  return element("li", "", swatch, element("b", "", amount), element("span", "", label));
}

// Sessions.

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

// One of the table's: `rate` is text, or null where there is none to tell.
export function row(session, rate, ...cells) {
  const parent = session.parent ? [element("span", "parent", "fork of ", element("code", "", session.parent))] : [];
  return element(
    "tr",
    session.state,
    element("td", "name", element("i", "dot"), element("code", "", session.id), ...parent),
    ...cells,
    element("td", "state", session.state),
    element("td", "bar-cell", bar(session)),
    element("td", "number", `${whole(session.length)} / ${whole(session.context_tokens)}`),
    element("td", "number", rate === null ? "–" : `${rate} tok/s`),
    element("td", "number age", duration(session.age_seconds)),
  );
}

// The page.

const STALE = ["lost", "failed", "locked"];

export function phase(name, text) {
  $("phase").textContent = text || name;
  $("phase").className = `pill ${name}`;
  $("notice").hidden = !(name in notices);
  $("notice").textContent = notices[name] || "";
  $("main").classList.toggle("stale", STALE.includes(name));
}

function lock(locked) {
  $("key-form").hidden = !locked;
  if (!locked) return;
  phase("locked");
  $("key-note").textContent = key ? "The key that was given is not one of its keys." : "";
}

async function refresh(draw) {
  try {
    const answer = await fetch("v1/live", { headers: key ? { Authorization: `Bearer ${key}` } : {}, cache: "no-store" });
    lock(answer.status === 401);
    if (answer.ok) draw(await answer.json());
    else if (answer.status !== 401) phase("lost");
  } catch {
    phase("lost");
  }
  setTimeout(() => refresh(draw), PERIOD_MS);
}

function hint() {
  const secret = key ? " -H 'authorization: Bearer KEY'" : "";
  return `curl ${location.origin}/v1/sessions${secret} -H 'content-type: application/json' -d '{"prompt": "Once upon a time"}'`;
}

// Draw what /v1/live answers, once a second from now on.
export function begin(draw, said) {
  notices = said;
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
