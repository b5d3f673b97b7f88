// Draws a pool.

import { $, WINDOW_SECONDS, axis, begin, bytes, element, figure, fillLegend, fillMap, fillSlots, fillTable, lines, memoryParts, path, phase, rates, roundedUp, row, scaled, short, sum, whole } from "./page.js";

const SHOWN_ROWS = 200;

function titled(made, title) {
  made.title = title;
  return made;
}

const plural = (count, word) => `${whole(count)} ${word}${count === 1 ? "" : "s"}`;

// A line of one value a second, the last one now, 0 to `top`.
function line(values, top, ...others) {
  const first = WINDOW_SECONDS - values.length;
  const points = values.map((value, i) => `${first + i + 0.5},${40 - (38 * value) / top}`).join("L");
  const drawn = points ? [path("area", `M${points}L${WINDOW_SECONDS - 0.5},40L${first + 0.5},40Z`), path("stroke", `M${points}`)] : [];
  return lines(...others, ...drawn);
}

function chart(id, values, unit, most) {
  const top = most || roundedUp(Math.max(...values, 0) || 1);
  const label = element("span", "top", `${whole(top)} ${unit}`);
  $(id).replaceChildren(line(values, top, path("grid", `M0,2H${WINDOW_SECONDS}`)), label, axis());
}

// Several workers' histories as one: they end together, and a young one begins late.
function added(histories) {
  const length = Math.max(0, ...histories.map((history) => history.length));
  return Array.from({ length }, (_, i) => sum(histories.map((history) => history[history.length - length + i] || 0)));
}

// Memory, as planned and as used.

function memory(workers) {
  const memories = workers.map((worker) => worker.memory);
  const parts = memoryParts(memories);
  const planned = sum(memories.map((each) => each.planned_bytes));
  const known = memories.every((each) => each.resident_bytes !== null);
  const [amount, unit] = scaled(planned);
  figure("memory", amount, `${unit} planned`);
  fillMap($("memory-map"), parts);
  $("memory-note").textContent = known ? `${bytes(sum(memories.map((each) => each.resident_bytes)))} resident` : "";
  fillLegend($("legend"), parts);
}

// Workers, one card each.

const SHOWN_SLOTS = 256;
const LARGE_SLOTS = 48;

const ABSENT = {
  unreachable: "It does not answer. Its sessions are lost if it has ended.",
  unready: "It is loading its model, and takes sessions as soon as that is done.",
  draining: "It is ending.",
};

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
    fillSlots(element("div", "slots"), worker.sessions, SHOWN_SLOTS, LARGE_SLOTS),
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

function hostedRow({ worker, session }, rate) {
  return row(session, rate, titled(element("td", "host", worker.told), worker.name));
}

function sessions(all, history) {
  const list = all.flatMap((worker) => worker.sessions.list.map((session) => ({ worker, session })));
  list.sort((a, b) => b.session.age_seconds - a.session.age_seconds);
  const shown = list.slice(0, SHOWN_ROWS);
  const speeds = rates(shown.map(({ worker, session }) => [`${worker.name}/${session.id}`, session]));
  const active = sum(all.map((worker) => worker.sessions.active));
  const capacity = sum(all.map((worker) => worker.sessions.capacity));
  figure("session-count", whole(active), `of ${whole(capacity)}`);
  chart("sessions-chart", history.map((point) => Math.min(point.sessions, capacity)), "places", capacity);
  const cut = active > shown.length ? `the oldest ${whole(shown.length)} of ${whole(active)}; ` : "";
  fillTable(shown.map((each, i) => hostedRow(each, speeds[i])), cut);
}

// The page.

const NOTICES = {
  connecting: "Waiting for the gateway's first answer.",
  empty: "The pool has no worker: it is suspended or scaled to 0, or no node runs one yet. Its conditions say which: kubectl describe dpool. New sessions wait for a worker, for a while.",
  unready: "No worker takes sessions yet. The page fills by itself as soon as one has loaded its model.",
  lost: "The gateway does not answer. Asking again every second.",
};

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
  const rate = tokens[tokens.length - 1];
  figure("tokens", rate ? short(rate) : null, "tok/s");
  chart("tokens-chart", tokens, "tok/s");
  figure("queued", whole(live.queued), live.queued === 1 ? "request" : "requests");
  chart("queued-chart", live.history.map((point) => point.queued), "waiting");
  memory(told);
  workers(live.workers);
  sessions(told, live.history);
}

begin(draw, NOTICES);
