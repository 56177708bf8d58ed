// The timeline: a lane of rounds, marks for failures, and the step rate below. Zooms by wheel, drag, keys and buttons.
import { $, clockTime, duration, getState } from "/page.js";

const NS = "http://www.w3.org/2000/svg";
const HIGH = 170, LANE = 20, TALL = 44, RATE = 88, DEEP = 56;
let range = null; // [from, to] in seconds of the job's clock; null: all, following the newest

function shape(name, kind, attributes, title = "") {
  const made = document.createElementNS(NS, name);
  if (kind) made.setAttribute("class", kind);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (title) made.dataset.tip = title;
  return made;
}
function whole(state) {
  const first = state.rounds.length ? Math.min(state.rounds[0].started, state.clock.at) : state.clock.began;
  const from = state.rounds.length >= 300 ? first : Math.min(first, state.clock.began);
  return [from, Math.max(state.clock.at, from + 1)];
}

export function drawTimeline(state) {
  const svg = $("timeline");
  const wide = svg.clientWidth || 600;
  const [from, to] = range || whole(state);
  const x = (at) => ((at - from) / (to - from)) * wide;
  svg.setAttribute("viewBox", `0 0 ${wide} ${HIGH}`);
  const made = [];
  const block = (kind, begin, end, title) => {
    if (begin === null || end === null || end < from || begin > to || end <= begin) return;
    const left = Math.max(0, x(begin)), right = Math.min(wide, x(end));
    made.push(shape("rect", kind, { x: left.toFixed(1), y: LANE, width: Math.max(0.7, right - left).toFixed(1), height: TALL }, title));
  };
  state.rounds.forEach((row, at) => {
    const next = state.rounds[at + 1];
    const end = row.stopped ?? (next ? next.started : state.clock.at);
    const halt = Math.min(row.stopping ?? end, end);
    const run = Math.min(row.first_step ?? row.running ?? halt, halt);
    const name = `round ${row.number}: ${row.nodes} nodes, ${row.workers} workers`;
    block("start", row.started, run, `${name}; started ${clockTime(row.started)}: ${row.reason}`);
    block("run", run, halt, `${name}; trained ${duration(halt - run)}${row.step >= 0 ? `, to step ${row.step}` : ""}`);
    block("stop", halt, end, `${name}; stopped: ${row.stop_reason || row.cause}`);
    const width = Math.min(wide, x(end)) - Math.max(0, x(row.started)); // of what is seen
    if (width > 26) {
      const label = shape("text", "", { x: Math.max(2, x(row.started) + 3).toFixed(1), y: LANE - 5 });
      label.textContent = row.number;
      made.push(label);
    }
  });
  made.push(...marks(state.failures.filter((row) => row.at >= from && row.at <= to), x));
  made.push(...ratePath(state, x, from, to, wide), ...axis(from, to, x, wide));
  svg.replaceChildren(...made);
  const last = state.rounds[state.rounds.length - 1];
  svg.setAttribute("aria-label", last
    ? `Timeline: ${state.rounds.length} rounds and ${state.failures.length} failures are shown; round ${last.number} is the newest. Arrow keys move, plus and minus zoom.`
    : "Timeline: no round has started yet");
}

/** One mark for each failure; those that would hide one another share one, which grows with their number. */
function marks(failures, x) {
  const groups = [];
  for (const row of failures) {
    const last = groups[groups.length - 1];
    if (last && x(row.at) - x(last[0].at) < 14) last.push(row); else groups.push([row]);
  }
  return groups.map((rows) => {
    const [first, last] = [rows[0], rows[rows.length - 1]];
    const title = rows.length === 1 ? `${clockTime(first.at)}: rank ${first.rank} on ${first.node}: ${first.summary}`
      : `${clockTime(first.at)} to ${clockTime(last.at)}: ${rows.length} failures; the first: ${first.summary}`;
    const size = Math.min(7, 3.6 + Math.log2(rows.length));
    return shape("circle", "mark", { cx: ((x(first.at) + x(last.at)) / 2).toFixed(1), cy: LANE + TALL + 8, r: size.toFixed(1) }, title);
  });
}

function ratePath(state, x, from, to, wide) {
  const rates = state.steps.filter((row) => row.rate !== null && row.at >= from && row.at <= to);
  if (rates.length < 2) {
    const label = shape("text", "", { x: 2, y: RATE + 24 });
    label.textContent = state.steps.length ? "no step rate in this span" : "no steps were reported yet";
    return [label];
  }
  const most = Math.max(...rates.map((row) => row.rate)) || 1;
  let path = "";
  rates.forEach((row, at) => {
    const gap = at === 0 || state.rounds.some((round) => round.started > rates[at - 1].at && round.started <= row.at);
    path += `${gap ? "M" : "L"}${x(row.at).toFixed(1)} ${(RATE + DEEP - (DEEP - 8) * (row.rate / most)).toFixed(1)}`;
  });
  const label = shape("text", "", { x: wide - 2, y: RATE + 4, "text-anchor": "end" });
  label.textContent = `${most.toPrecision(3)} steps/s`;
  return [shape("path", "rate", { d: path }), label];
}

function axis(from, to, x, wide) {
  const made = [shape("line", "axis", { x1: 0, x2: wide, y1: RATE + DEEP + 2, y2: RATE + DEEP + 2 })];
  const count = Math.max(2, Math.floor(wide / 130));
  for (let at = 0; at < count; at += 1) {
    const when = from + ((to - from) * (at + 0.5)) / count;
    const label = shape("text", "", { x: x(when).toFixed(1), y: HIGH - 6, "text-anchor": "middle" });
    label.textContent = clockTime(when);
    made.push(label);
  }
  return made;
}

function move(share, factor, centre = range ? 0.5 : 1) { // from all, to what is newest
  const state = getState();
  if (!state) return;
  const all = whole(state);
  const [from, to] = range || all;
  const long = Math.min((to - from) * factor, all[1] - all[0]);
  let begin = from + (to - from) * centre - long * centre + share * long;
  begin = Math.max(all[0], Math.min(begin, all[1] - long));
  range = long >= (all[1] - all[0]) * 0.999 ? null : [begin, begin + Math.max(long, 0.5)];
  drawTimeline(state);
}

export function zoomTools() {
  const svg = $("timeline");
  $("zoom-in").onclick = () => move(0, 0.5);
  $("zoom-out").onclick = () => move(0, 2);
  $("zoom-all").onclick = () => { range = null; if (getState()) drawTimeline(getState()); };
  svg.addEventListener("wheel", (event) => {
    if (!event.ctrlKey && !event.shiftKey) return; // a plain wheel scrolls the page
    event.preventDefault();
    move(0, event.deltaY < 0 ? 0.8 : 1.25, event.offsetX / svg.clientWidth);
  }, { passive: false });
  svg.addEventListener("keydown", (event) => {
    const keys = { ArrowLeft: [-0.2, 1], ArrowRight: [0.2, 1], "+": [0, 0.5], "=": [0, 0.5], "-": [0, 2], 0: [0, Infinity] };
    const found = keys[event.key];
    if (!found) return;
    event.preventDefault();
    move(...found);
  });
  let held = null;
  svg.addEventListener("pointerdown", (event) => { held = event.clientX; });
  addEventListener("pointerup", () => { held = null; });
  svg.addEventListener("pointermove", (event) => {
    if (held !== null && range) { move((held - event.clientX) / svg.clientWidth, 1); held = event.clientX; }
    const tip = event.target.dataset && event.target.dataset.tip;
    if (tip) $("tip").textContent = tip;
  });
  svg.addEventListener("click", (event) => { if (event.target.dataset.tip) $("tip").textContent = event.target.dataset.tip; });
  addEventListener("resize", () => { if (getState()) drawTimeline(getState()); });
}
