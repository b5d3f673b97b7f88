// Draws GET /v1/live once a second. Text goes in as text, never as markup.
"use strict";

const PERIOD_MS = 1000;
const WINDOW_SECONDS = 120; // as far back as histories go
const RATE_SECONDS = 5; // what a session's rate is the mean of
const SHOWN_ROWS = 200;
const $ = (id) => document.getElementById(id);
let key = sessionStorage.getItem("decodepool-key") || "";

// Elements and numbers.

function element(tag, className, ...children) {
  const made = document.createElement(tag);
  if (className) made.className = className;
  made.append(...children);
  return made;
}

function titled(made, title) {
  made.title = title;
  return made;
}

const whole = (count) => count.toLocaleString("en");
const short = (value) => (value >= 100 ? whole(Math.round(value)) : value.toFixed(1));
const plural = (count, word) => `${whole(count)} ${word}${count === 1 ? "" : "s"}`;
const sum = (values) => values.reduce((total, value) => total + value, 0);

function bytes(count) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
  let power = 0;
  for (; count >= 1024 && power < 5; power++) count /= 1024;
  const digits = power === 0 || count >= 100 ? 0 : count >= 10 ? 1 : 2;
  return [count.toFixed(digits), units[power]];
}

function duration(seconds) {
  if (seconds < 60) return `${Math.floor(seconds)} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min`;
  return seconds < 86400 ? `${Math.floor(seconds / 3600)} h` : `${Math.floor(seconds / 86400)} d`;
}

function figure(id, value, unit) {
  $(id).replaceChildren(value, element("small", "", ` ${unit}`));
}

// Lines of the last two minutes.

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

// A line of one value a second, the last one now, 0 to `top` over a height of 40.
function line(values, top, ...others) {
  const first = WINDOW_SECONDS - values.length;
  const points = values.map((value, i) => `${first + i + 0.5},${40 - (38 * value) / top}`).join("L");
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  svg.setAttribute("viewBox", `0 0 ${WINDOW_SECONDS} 40`);
  svg.setAttribute("preserveAspectRatio", "none");
  const drawn = points ? [path("area", `M${points}L${WINDOW_SECONDS - 0.5},40L${first + 0.5},40Z`), path("stroke", `M${points}`)] : [];
  svg.append(...others, ...drawn, path("baseline", `M0,40H${WINDOW_SECONDS}`));
  return svg;
}

function chart(id, values, unit, most) {
  const top = most || roundedUp(Math.max(...values, 0) || 1);
  const label = element("span", "top", `${whole(top)} ${unit}`);
  const axis = element("div", "axis", element("span", "", `${WINDOW_SECONDS / 60} min ago`), element("span", "", "now"));
  $(id).replaceChildren(line(values, top, path("grid", `M0,2H${WINDOW_SECONDS}`)), label, axis);
}

// Several workers' histories as one: they end together, and a young one begins late.
function added(histories) {
  const length = Math.max(0, ...histories.map((history) => history.length));
  return Array.from({ length }, (_, i) => sum(histories.map((history) => history[history.length - length + i] || 0)));
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

function memoryParts(memories) {
  return PARTS.map(([name, label, colour]) => ({ label, colour, size: sum(memories.map((memory) => memory[name])) }));
}

function fillMap(map, parts) {
  map.replaceChildren(
    ...parts.map(({ label, colour, size }) => {
      const part = element("i");
      part.style.flexGrow = size;
      part.style.background = `var(${colour})`;
      part.title = `${bytes(size).join(" ")} ${label}`;
      return part;
    }),
  );
  return map;
}

function memory(workers) {
  const memories = workers.map((worker) => worker.memory);
  const parts = memoryParts(memories);
  const planned = sum(memories.map((each) => each.planned_bytes));
  const known = memories.every((each) => each.resident_bytes !== null);
  const [amount, unit] = bytes(planned);
  figure("memory", amount, `${unit} planned`);
  fillMap($("memory-map"), parts);
  $("memory-note").textContent = known ? `${bytes(sum(memories.map((each) => each.resident_bytes))).join(" ")} resident` : "";
  $("legend").replaceChildren(
    ...parts.map(({ label, colour, size }) => {
      const swatch = element("i");
      swatch.style.background = `var(${colour})`;
      return element("li", "", swatch, element("b", "", bytes(size).join(" ")), element("span", "", label));
    }),
  );
}

// Workers, one card each.

const SHOWN_SLOTS = 256;

const ABSENT = {
  unreachable: "It does not answer. Its sessions are lost if it has ended.",
  unready: "It is loading its model, and takes sessions as soon as that is done.",
  draining: "It is ending.",
};

function slots({ capacity, list }) {
  const places = Array.from({ length: Math.min(capacity, SHOWN_SLOTS) }, (_, i) => element("i", list[i] ? `taken ${list[i].state}` : ""));
  return element("div", capacity > 48 ? "slots many" : "slots", ...places);
}

function spark(values, top) {
  const svg = line(values, top);
  svg.setAttribute("class", "spark");
  svg.setAttribute("aria-hidden", "true");
  return svg;
}

function card(worker, top) {
  const name = titled(element("span", "who", worker.told), worker.name);
  const head = element("div", "top", name, element("span", `pill ${worker.state}`, worker.state));
  if (!worker.sessions) return element("div", "worker", head, element("p", "absent", ABSENT[worker.state] || ""));
  const rate = worker.tokens_per_second[worker.tokens_per_second.length - 1] || 0;
  const figures = element("span", "rate", rate ? short(rate) : "idle", element("small", "", rate ? " tok/s" : ""));
  const step = worker.step_ms === null ? "" : `${worker.step_ms.toFixed(1)} ms a step of ${plural(Math.round(worker.rows), "row")}`;
  const { capacity, active } = worker.sessions;
  return element(
    "div",
    "worker",
    head,
    element("div", "now", figures, spark(worker.tokens_per_second, top)),
    slots(worker.sessions),
    element("div", "said", element("span", "", `${whole(active)} of ${plural(capacity, "session")}`), element("span", "", step)),
    fillMap(element("div", "map"), memoryParts([worker.memory])),
  );
}

function workers(all) {
  const top = roundedUp(Math.max(1, ...all.flatMap((worker) => worker.tokens_per_second || [])));
  $("workers").replaceChildren(...all.map((worker) => card(worker, top)));
  const told = ["ready", "unready", "draining", "unreachable"].map((state) => [all.filter((worker) => worker.state === state).length, state]);
  $("workers-note").textContent = told.filter(([count]) => count).map(([count, state]) => `${whole(count)} ${state}`).join(", ");
}

// Sessions.

let seen = new Map(); // of each session, its tokens at its ages of the last seconds

// Tokens a second by the worker's own clock, of a session that is busy: drawn, or while it prefills, evaluated.
function rates(list) {
  const now = new Map();
  const found = list.map(({ worker, session }) => {
    if (session.state !== "decoding" && session.state !== "prefilling") return null;
    const name = `${worker.name}/${session.id}`;
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

function row({ worker, session }, rate) {
  const parent = session.parent ? [element("span", "parent", "fork of ", element("code", "", session.parent))] : [];
  return element(
    "tr",
    session.state,
    element("td", "name", element("i", "dot"), element("code", "", session.id), ...parent),
    titled(element("td", "host", worker.told), worker.name),
    element("td", "state", session.state),
    element("td", "bar-cell", bar(session)),
    element("td", "number", `${whole(session.length)} / ${whole(session.context_tokens)}`),
    element("td", "number", rate === null ? "–" : `${short(rate)} tok/s`),
    element("td", "number age", duration(session.age_seconds)),
  );
}

function sessions(all, history) {
  const list = all.flatMap((worker) => worker.sessions.list.map((session) => ({ worker, session })));
  list.sort((a, b) => b.session.age_seconds - a.session.age_seconds);
  const shown = list.slice(0, SHOWN_ROWS);
  const speeds = rates(shown);
  const active = sum(all.map((worker) => worker.sessions.active));
  const capacity = sum(all.map((worker) => worker.sessions.capacity));
  figure("session-count", whole(active), `of ${whole(capacity)}`);
  chart("sessions-chart", history.map((point) => Math.min(point.sessions, capacity)), "places", capacity);
  $("sessions").replaceChildren(...shown.map((each, i) => row(each, speeds[i])));
  $("table").hidden = !active;
  $("no-sessions").hidden = active > 0;
  const cut = active > shown.length ? `the oldest ${whole(shown.length)} of ${whole(active)}; ` : "";
  $("sessions-note").textContent = active ? `${cut}ids are cut short: a whole one is its session's key` : "";
}

// The page.

const NOTICES = {
  connecting: "Waiting for the gateway's first answer.",
  empty: "The pool has no worker: it is suspended or scaled to 0, or no node runs one yet. Its conditions say which: kubectl describe dpool. New sessions wait for a worker, for a while.",
  unready: "No worker takes sessions yet. The page fills by itself as soon as one has loaded its model.",
  lost: "The gateway does not answer. Asking again every second.",
};

function phase(name, text) {
  $("phase").textContent = text || name;
  $("phase").className = `pill ${name}`;
  $("notice").hidden = !(name in NOTICES);
  $("notice").textContent = NOTICES[name] || "";
  $("main").classList.toggle("stale", name === "lost" || name === "locked");
}

function common(all, name) {
  const values = new Set(all.map((worker) => worker[name]));
  return values.size === 1 ? [...values][0] : null;
}

function names(live, told) {
  document.title = `${live.pool} · decodepool`;
  $("pool").textContent = live.pool;
  if (!told.length) return;
  const [model, architecture, context] = ["model", "architecture", "context_tokens"].map((name) => common(told, name));
  const detail = [model === live.pool ? null : model, architecture, context && `${whole(context)} tokens of context`];
  $("detail").textContent = detail.filter(Boolean).join(", ");
  $("fingerprint").textContent = common(told, "system_fingerprint") || "workers differ: so may their streams";
}

// What a pool's workers are all called before what tells them apart is left out; the whole name is a title.
function toldOf(pool, name) {
  const front = `${pool}-worker-`;
  return name.startsWith(front) ? name.slice(front.length) : name;
}

function draw(live) {
  for (const worker of live.workers) worker.told = toldOf(live.pool, worker.name);
  const told = live.workers.filter((worker) => worker.sessions);
  const ready = live.workers.filter((worker) => worker.state === "ready").length;
  const words = ready ? `${ready} of ${plural(live.workers.length, "worker")} ready` : live.workers.length ? "" : "no worker";
  phase(ready ? "ready" : live.workers.length ? "unready" : "empty", words);
  names(live, told);
  $("main").hidden = !live.workers.length;
  const tokens = added(told.map((worker) => worker.tokens_per_second));
  figure("tokens", tokens.length && tokens[tokens.length - 1] ? short(tokens[tokens.length - 1]) : element("span", "idle-word", "idle"), tokens[tokens.length - 1] ? "tok/s" : "");
  chart("tokens-chart", tokens, "tok/s");
  figure("queued", whole(live.queued), live.queued === 1 ? "request" : "requests");
  chart("queued-chart", live.history.map((point) => point.queued), "waiting");
  memory(told);
  workers(live.workers);
  sessions(told, live.history);
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
$("hint").textContent = hint();
phase("connecting");
refresh();
