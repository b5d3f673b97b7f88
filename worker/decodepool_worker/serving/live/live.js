// Draws a worker.

import { $, WINDOW_SECONDS, axis, begin, bytes, element, figure, fillLegend, fillMap, fillSlots, fillTable, lines, memoryParts, path, phase, rates, roundedUp, row, short, whole } from "./page.js";

// Lines of the last two minutes.

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
  const svg = lines(
    path("grid", `M0,2H${WINDOW_SECONDS}`),
    path("area", strokes.map(({ d, from, to }) => `${d}L${to},40L${from},40Z`).join("")),
    path("stroke", strokes.map(({ d }) => d).join("")),
  );
  const quiet = known.some((value) => value > 0) ? [] : [element("span", "quiet", "nothing ran in this time")];
  const label = quiet.length ? [] : [element("span", "top", `${whole(top)} ${unit}`)];
  $(id).replaceChildren(svg, ...label, ...quiet, axis());
}

// Memory, as planned and as used.

function memory(live) {
  const parts = memoryParts([live.memory]);
  fillMap($("map"), parts);
  fillLegend($("legend"), parts);
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
  const uses = PAGE_USES.map(([letter, label, colour]) => ({ label, colour, amount: whole(letters.split(letter).length - 1) }));
  fillLegend($("pages-legend"), uses);
}

// Sessions.

const SHOWN_SLOTS = 160;
const LARGE_SLOTS = 32;

function sessions(live) {
  const { capacity, list } = live.sessions;
  figure("session-count", whole(list.length), `of ${whole(capacity)}`);
  fillSlots($("slots"), live.sessions, SHOWN_SLOTS, LARGE_SLOTS);
  const counts = ["decoding", "prefilling", "idle"].map((state) => [list.filter((session) => session.state === state).length, state]);
  const told = [...counts, [capacity - list.length, "free"]].filter(([count]) => count > 0);
  $("slots-note").textContent = told.map(([count, state]) => `${whole(count)} ${state}`).join(", ");
  const speeds = rates(list.map((session) => [session.id, session]));
  fillTable(list.map((session, i) => row(session, speeds[i])));
}

// The page.

const shortOrNull = (value) => (value === null ? null : short(value));

const NOTICES = {
  connecting: "Waiting for the worker's first answer.",
  loading: "The worker is loading its model. The page fills by itself as soon as that is done.",
  lost: "The worker does not answer. Asking again every second.",
  failed: "The engine has failed; the worker's log says why. Its process ends, and whoever supervises it starts a new one.",
};

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
  figure("tokens", shortOrNull(last.tokens_per_second || null), "tok/s");
  figure("step", shortOrNull(last.step_ms), "ms");
  figure("rows", shortOrNull(last.rows), last.rows === 1 ? "row" : "rows");
  chart("tokens-chart", history.map((point) => point.tokens_per_second), "tok/s");
  chart("step-chart", history.map((point) => point.step_ms), "ms");
  chart("rows-chart", history.map((point) => point.rows), "rows");
  memory(live);
  pages(live.pages);
  sessions(live);
}

window.addEventListener("resize", () => pages(shownPages));
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => pages(shownPages));
begin(draw, NOTICES, ["failed"]);
