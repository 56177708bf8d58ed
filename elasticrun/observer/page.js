// The page: keeps its copy of the state, and shows it. All text goes in as textContent, so none of it is markup.
import { drawTimeline, zoomTools } from "/timeline.js";
import { drawNodes, nodeTools } from "/nodes.js";

export const $ = (id) => document.getElementById(id);
let state = null;
let rights = { reads: false, orders: false, login: false };
let source = null;
let waiting = false; // a drawing is under way
const told = {}; // section -> what is drawn of it

/** An element with a class, text and children. */
export function el(name, kind = "", text = "", ...inside) {
  const made = document.createElement(name);
  if (kind) made.className = kind;
  if (text !== "") made.textContent = text;
  made.append(...inside);
  return made;
}
export const getState = () => state;
export const mayOrder = () => rights.orders;

export function duration(seconds) {
  if (seconds === null || seconds === undefined || !isFinite(seconds)) return "–";
  if (seconds < 10) return `${seconds.toFixed(seconds < 1 ? 2 : 1)} s`;
  if (seconds < 120) return `${Math.round(seconds)} s`;
  if (seconds < 7200) return `${Math.round(seconds / 60)} min`;
  if (seconds < 172800) return `${(seconds / 3600).toFixed(1)} h`;
  return `${(seconds / 86400).toFixed(1)} d`;
}
export function bytes(n) {
  const units = ["B", "KB", "MB", "GB", "TB", "PB"];
  let at = 0;
  while (n >= 1000 && at < units.length - 1) { n /= 1000; at += 1; }
  return `${n < 10 && at ? n.toFixed(1) : Math.round(n)} ${units[at]}`;
}
export const percent = (share) => `${(100 * share).toFixed(1)} %`;
/** The wall clock of an instant of the job's clock. */
export function clockTime(at) {
  return new Date(1000 * (state.clock.time - state.clock.at + at)).toLocaleTimeString([], { hour12: false });
}

// -- what comes in

/** Turn the state into the next one; see changes.py. */
function apply(change) {
  const next = { ...state, sequence: change.sequence };
  for (const name of ["clock", "job", "spent", "saves", "data"]) if (name in change) next[name] = change[name];
  for (const name of ["rounds", "failures", "recoveries", "decisions", "steps"]) {
    const tail = change[name];
    if (tail) next[name] = state[name].slice(tail.drop, tail.drop + tail.keep).concat(tail.add);
  }
  if (change.nodes) {
    const rows = new Map(state.nodes.map((row) => [row.name, row]));
    for (const name of change.nodes.gone) rows.delete(name);
    for (const row of change.nodes.set) rows.set(row.name, row);
    next.nodes = [...rows.values()].sort(
      (a, b) => (a.rank === null) - (b.rank === null) || a.rank - b.rank || (a.name < b.name ? -1 : a.name > b.name ? 1 : 0));
  }
  state = next;
}

function listen() {
  if (source) source.close();
  source = new EventSource("/api/events");
  source.addEventListener("state", (event) => { state = JSON.parse(event.data); linked(true); draw(); });
  source.addEventListener("change", (event) => {
    const change = JSON.parse(event.data);
    if (state && change.after === state.sequence) { apply(change); draw(); } else listen();
  });
  source.onerror = () => {
    linked(false);
    if (source.readyState === EventSource.CLOSED) setTimeout(begin, 2000);
  };
}
function linked(is) { $("link").textContent = is ? "live" : "no connection: what is shown is old"; }

/** Draw soon: many changes may come before the next frame. A hidden page draws when it is looked at. */
function draw() {
  if (waiting) return;
  waiting = true;
  requestAnimationFrame(() => { waiting = false; show(); });
}

// -- what is shown

function show() {
  if (!state) return;
  const began = performance.now();
  drawHead();
  for (const [name, parts, paint] of SECTIONS) {
    const now = parts(state);
    if (told[name] && now.every((part, at) => part === told[name][at])) continue;
    told[name] = now;
    paint(state);
  }
  const took = performance.now() - began;
  document.documentElement.dataset.took = took.toFixed(2);
  if (!document.documentElement.dataset.painted) document.documentElement.dataset.painted = performance.now().toFixed(1);
}

const SECTIONS = [
  ["numbers", (s) => [s.job, s.spent, s.nodes, s.saves, s.recoveries, s.clock], drawNumbers],
  ["spent", (s) => [s.spent], drawSpent],
  ["time", (s) => [s.rounds, s.failures, s.steps, s.clock], drawTimeline],
  ["nodes", (s) => [s.nodes], drawNodes],
  ["data", (s) => [s.data], drawData],
  ["failures", (s) => [s.failures, s.recoveries], drawFailures],
  ["decisions", (s) => [s.decisions], drawDecisions],
];

const KINDS = { running: "good", succeeded: "good", failed: "badly", hopeless: "badly", unhealthy: "badly", "timed out": "badly" };
function drawHead() {
  const { job } = state;
  const name = job.job_id && job.job_id !== "none" ? job.job_id : "elasticrun";
  setText("job", name);
  document.title = `${job.phase || "waiting"} – ${name}`;
  setText("phase", job.phase || "waiting");
  $("phase").className = `badge ${KINDS[job.phase] || "warn"}`;
  const said = job.trouble ? `The master is not heard: ${job.trouble}` : job.outcome ? job.end_reason : job.waiting_for;
  $("banner").hidden = !said;
  setText("banner", said);
  setText("foot", `master epoch ${job.epoch}${job.missed ? "; the job is older than what is shown" : ""}`);
}
function setText(id, text) { if ($(id).textContent !== text) $(id).textContent = text; }

function drawNumbers() {
  const { job, spent, nodes, saves, recoveries, clock } = state;
  const training = nodes.filter((row) => row.rank !== null).length;
  const last = recoveries[recoveries.length - 1];
  const bounds = job.max_nodes ? ` of ${job.min_nodes === job.max_nodes ? job.max_nodes : `${job.min_nodes}–${job.max_nodes}`}` : "";
  const cells = [
    [`${training || nodes.length + job.unlisted}`, `nodes${bounds}${training && nodes.length > training ? `, ${nodes.length - training} spare` : ""}`],
    [job.step < 0 ? "–" : job.step.toLocaleString("en"), "step"],
    [job.rate === null ? "–" : job.rate.toPrecision(3), "steps/s"],
    [percent(spent.goodput), "goodput (all nodes)"],
    [percent(spent.ettr), "ETTR (the job)"],
    [`${job.round}`, job.max_restarts ? `round; ${job.restarts_used} of ${job.max_restarts} restarts used` : "round"],
    [last ? duration(last.seconds) : "–", last && last.seconds === null ? "recovering" : "last recovery"],
    [duration(clock.at - clock.began), job.outcome ? "it took" : "running for"],
    ...savedCells(saves),
  ];
  $("numbers").replaceChildren(...cells.map(([value, name, kind = ""]) => el("div", kind, "", el("b", "", value), el("span", "", name))));
}
/** A place that has the same step as the one before it shares its cell. */
function savedCells(saves) {
  const cells = [];
  for (const save of saves) {
    const last = cells[cells.length - 1], step = save.step.toLocaleString("en"), place = PLACES[save.place] || save.place;
    if (last && last[0] === step) last[1] += `, ${place}`; else cells.push([step, `saved step: ${place}`, "two"]);
  }
  return cells;
}
const PLACES = { memory: "in memory", hosts: "on several hosts", storage: "in the storage" };

const COLOURS = { productive: "--good", redone: "--hang", slow: "--slow", "checkpoint stall": "--accent", start: "--start", import: "--start",
  rendezvous: "--stop", restore: "--accent", "waiting for nodes": "--wait", stopped: "--bad", hung: "--bad" };
function drawSpent() {
  const all = state.spent.nodes.reduce((sum, share) => sum + share.seconds, 0) || 1;
  const shares = [...state.spent.nodes].sort((a, b) => (b.name === "productive") - (a.name === "productive") || b.seconds - a.seconds);
  const parts = shares.map((share) => {
    const part = el("i");
    part.style.width = `${(100 * share.seconds) / all}%`;
    part.style.background = `var(${COLOURS[share.name] || "--wait"})`;
    part.title = `${share.name} ${percent(share.seconds / all)}`;
    return part;
  });
  $("split").replaceChildren(...parts);
  $("split").setAttribute("aria-label", shares.map((share) => `${share.name} ${percent(share.seconds / all)}`).join(", ") || "nothing yet");
  $("split-list").replaceChildren(...shares.filter((share) => share.seconds / all >= 0.0005).map((share) => {
    const dot = el("i");
    dot.style.background = `var(${COLOURS[share.name] || "--wait"})`;
    return el("li", "", "", dot, `${share.name} ${percent(share.seconds / all)} (${duration(share.seconds)})`);
  }));
}

function drawData() {
  $("data").hidden = !state.data.length;
  const head = ["Dataset", "Epoch", "Shards done", "", "Leased", "Failed"].map((text, at) => {
    const cell = el("th", at === 3 ? "wide" : "", text);
    if (text) cell.scope = "col"; else cell.setAttribute("aria-hidden", "true");
    return cell;
  });
  const rows = state.data.map((row) => {
    const done = el("i"), failed = el("i"), bar = el("div", "bar thin", "", done, failed), beside = el("td", "wide", "", bar);
    done.style.width = `${(100 * row.done) / (row.total || 1)}%`;
    failed.style.width = `${(100 * row.failed) / (row.total || 1)}%`;
    bar.hidden = !row.total;
    beside.setAttribute("aria-hidden", "true"); // the figures beside it say the same
    const of = row.total ? ` of ${row.total.toLocaleString("en")} (${percent(row.done / row.total)})` : "";
    return el("tr", "", "", el("td", "name", row.name), el("td", "", `${row.epoch}`), el("td", "", `${row.done.toLocaleString("en")}${of}`),
      beside, el("td", "", `${row.leased}`), el("td", row.failed ? "bad" : "", `${row.failed}`));
  });
  $("data-table").replaceChildren(el("table", "", "", el("thead", "", "", el("tr", "", "", ...head)), el("tbody", "", "", ...rows)));
}

function drawFailures() {
  const failures = state.failures.map((row) => ({ at: row.at, kind: row.how, text: `rank ${row.rank} on ${row.node}, round ${row.round}: ${row.summary}`, bad: true }));
  const others = state.recoveries.map((row) => ({ at: row.began + 1e-6, bad: false,
    kind: row.seconds === null ? "recovering" : `recovered in ${duration(row.seconds)}`, text: `to round ${row.round}: ${row.reason || row.cause}` }));
  const rows = [...failures, ...others].sort((a, b) => b.at - a.at).slice(0, 200);
  $("failures").replaceChildren(...(rows.length ? rows.map((row) => entry(row.at, row.kind, row.text, row.bad)) : [el("li", "empty", "None so far.")]));
}
function drawDecisions() {
  const rows = [...state.decisions].reverse().slice(0, 200);
  $("decisions").replaceChildren(...(rows.length ? rows.map((row) => entry(row.at, "", row.text)) : [el("li", "empty", "None so far.")]));
}
function entry(at, kind, text, bad = false) {
  const made = el("li", "", "", el("time", "", clockTime(at)));
  if (kind) made.append(el("span", bad ? "tag bad" : "tag", kind), " ");
  made.append(text);
  return made;
}

// -- login and orders

/** Ask the server; returns its answer. Throws an Error with its sentence. */
export async function ask(path, method = "GET", body = undefined) {
  const options = { method, headers: {} };
  if (body !== undefined) { options.body = JSON.stringify(body); options.headers["Content-Type"] = "application/json"; }
  const answer = await fetch(path, options);
  const said = await answer.json().catch(() => ({ error: `the server answers ${answer.status}` }));
  if (!answer.ok) throw new Error(said.error);
  return said;
}
function setRights(found) {
  rights = found;
  $("login-button").hidden = !(found.login && !found.orders);
  $("orders-button").hidden = !found.orders;
}
async function begin() {
  try {
    setRights(await ask("/api/session"));
  } catch (error) {
    linked(false);
    setTimeout(begin, 2000);
    return;
  }
  if (rights.reads) listen();
  else { $("phase").textContent = "log in to read"; if (!$("login").open) $("login").showModal(); }
}
export async function say(id, asked) {
  $(id).classList.remove("bad");
  $(id).textContent = "…";
  try { $(id).textContent = (await asked).text; } catch (error) { $(id).classList.add("bad"); $(id).textContent = error.message; }
}

for (const button of document.querySelectorAll("[data-close]")) button.onclick = () => button.closest("dialog").close();
$("login-button").onclick = () => $("login").showModal();
$("login-form").onsubmit = async (event) => {
  event.preventDefault();
  try {
    setRights(await ask("/api/session", "POST", { token: $("token").value }));
    $("token").value = ""; $("login-error").textContent = ""; $("login").close();
    listen();
  } catch (error) { $("login-error").textContent = error.message; $("token").select(); }
};
$("orders-button").onclick = () => {
  $("min").value = state ? state.job.min_nodes : 1;
  $("max").value = state ? state.job.max_nodes : 1;
  $("orders-answer").textContent = "";
  $("orders").showModal();
};
const order = (body) => say("orders-answer", ask("/api/orders", "POST", body));
$("scale-form").onsubmit = (event) => { event.preventDefault(); order({ order: "scale", min: +$("min").value, max: +$("max").value }); };
$("stacks").onclick = () => order({ order: "stacks" });
$("restart").onclick = () => { if (confirm("Stop all workers and start them again?")) order({ order: "restart" }); };
$("logout").onclick = async () => { setRights(await ask("/api/session", "DELETE")); $("orders").close(); if (!rights.reads) location.reload(); };

nodeTools();
zoomTools();
setInterval(() => { // the clock goes on between changes
  if (!state || state.job.outcome || document.hidden) return;
  state = { ...state, clock: { ...state.clock, at: state.clock.at + 1, time: state.clock.time + 1 } };
  draw();
}, 1000);
begin();
