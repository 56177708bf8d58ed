// The nodes: a table while they are few, a grid of cells with a table of those to look at when they are many.
import { $, ask, bytes, clockTime, el, getState, mayOrder, say } from "/page.js";

const FEW = 40;
const GLYPHS = { running: "", starting: "…", waiting: "–", stopping: "▪", failed: "✕", away: "?", slow: "S", doubted: "!" };
const WORST = { failed: 0, away: 1, doubted: 2, slow: 3, stopping: 4, starting: 5, waiting: 6, running: 7 };
const cells = new Map(); // name -> its button
let current = ""; // the node that has the focus within the grid
let shown = ""; // the node of the dialog

export function drawNodes(state) {
  const rows = found(state.nodes);
  const many = state.nodes.length > FEW;
  drawStates(state.nodes);
  drawGrid(many ? rows : []);
  const bad = rows.filter((row) => row.state !== "running");
  const listed = many ? bad.sort((a, b) => WORST[a.state] - WORST[b.state] || b.slowness - a.slowness).slice(0, 12) : rows;
  drawTable(listed, many ? "Nodes to look at first" : "Nodes");
  if (shown && $("node").open) drawFacts();
}
function found(nodes) {
  const words = $("find").value.toLowerCase().trim();
  return words ? nodes.filter((row) => `${row.name} ${row.host} ${row.state} ${row.phase}`.toLowerCase().includes(words)) : nodes;
}

function drawStates(nodes) {
  const counts = new Map();
  for (const row of nodes) counts.set(row.state, (counts.get(row.state) || 0) + 1);
  const names = [...counts.keys()].sort((a, b) => WORST[b] - WORST[a]);
  $("states").replaceChildren(...names.map((name) => el("li", "", "", el("i", `s-${name}`), `${counts.get(name)} ${name}`)));
}

/** Cells are kept from one drawing to the next, so that a change costs what changed. */
function drawGrid(rows) {
  const names = new Set(rows.map((row) => row.name));
  for (const [name, cell] of cells) if (!names.has(name)) { cell.remove(); cells.delete(name); }
  let before = null;
  for (const row of rows) {
    let cell = cells.get(row.name);
    if (!cell) {
      cell = el("button");
      cell.type = "button";
      cell.tabIndex = -1;
      cell.dataset.name = row.name;
      cells.set(row.name, cell);
    }
    if (cell.dataset.state !== row.state || cell.dataset.rank !== `${row.rank}`) {
      cell.dataset.state = row.state;
      cell.dataset.rank = `${row.rank}`;
      cell.className = `s-${row.state}`;
      cell.textContent = GLYPHS[row.state] || "";
      const label = `${row.name}, ${row.rank === null ? "no rank" : `node ${row.rank}`}, ${row.state}`;
      cell.setAttribute("aria-label", label);
      cell.title = label;
    }
    const place = before ? before.nextSibling : $("grid").firstChild;
    if (place !== cell) $("grid").insertBefore(cell, place);
    before = cell;
  }
  if (!cells.has(current)) current = rows.length ? rows[0].name : "";
  if (current) cells.get(current).tabIndex = 0;
}

function drawTable(rows, caption) {
  const any = (name) => rows.some((row) => row.figures && row.figures[name]);
  const columns = [
    ["Node", "name", (row) => nameCell(row)],
    ["State", "", (row) => el("span", "", "", el("i", `dot s-${row.state}`), row.state)],
    ["Rank", "", (row) => row.rank === null ? "–" : `${row.rank}`],
    ["Workers", "wide", (row) => `${row.workers}`],
    ["Slowness", "wide", (row) => row.slowness > 1 ? `${row.slowness.toFixed(2)} ×` : "–"],
    ...(any("cpus") ? [["CPU", "", (row) => row.figures ? `${row.figures.cpu.toFixed(1)} / ${row.figures.cpus}` : "–"]] : []),
    ...(any("memory") ? [["Memory", "wide", (row) => row.figures ? `${bytes(row.figures.memory)} / ${bytes(row.figures.memory_limit)}` : "–"]] : []),
    ...(any("gpus") ? [["GPU", "", (row) => row.figures && row.figures.gpu_busy !== null ? `${Math.round(100 * row.figures.gpu_busy)} %` : "–"]] : []),
    ...(any("received") || any("sent") ? [["Network", "wide", (row) => row.figures ? `${bytes(row.figures.received + row.figures.sent)}/s` : "–"]] : []),
  ];
  const focused = document.activeElement && document.activeElement.closest("#table") ? document.activeElement.dataset.name : "";
  const table = el("table");
  table.setAttribute("aria-label", caption);
  const head = el("tr");
  for (const [title, kind] of columns) { const th = el("th", kind, title); th.scope = "col"; head.append(th); }
  table.append(el("thead", "", "", head));
  const body = el("tbody");
  for (const row of rows) body.append(el("tr", "", "", ...columns.map(([, kind, cell]) => el("td", kind, "", cell(row)))));
  table.append(body);
  $("table").replaceChildren(rows.length ? table : el("p", "quiet", found(getState().nodes).length ? "Every node runs." : "No node fits."));
  if (focused) { const again = [...$("table").querySelectorAll("button")].find((it) => it.dataset.name === focused); if (again) again.focus(); }
}
function nameCell(row) {
  const button = el("button", "", row.name);
  button.type = "button";
  button.dataset.name = row.name;
  return button;
}

// -- one node

function openNode(name) {
  shown = name;
  $("node-answer").textContent = "";
  $("node-text").hidden = true;
  drawFacts();
  $("node").showModal();
}
function drawFacts() {
  const row = getState().nodes.find((it) => it.name === shown);
  $("node-h").textContent = shown;
  if (!row) { $("node-facts").replaceChildren(el("dt", "", "State"), el("dd", "", "it is gone")); return; }
  const facts = [["State", row.state], ["Agent", row.phase], ["Host", row.host], ["Rank of the node", row.rank ?? "none"], ["Workers", row.workers], ["Here since", clockTime(row.since)]];
  if (row.slowness > 1) facts.push(["Takes", `${row.slowness.toFixed(2)} times as long as the others`]);
  if (row.doubt) facts.push(["Doubt", row.doubt]);
  if (row.figures) {
    const it = row.figures;
    facts.push(["CPU", `${it.cpu.toFixed(1)} of ${it.cpus} cores`], ["Memory", `${bytes(it.memory)} of ${bytes(it.memory_limit)}`],
      ["Network", `${bytes(it.received)}/s in, ${bytes(it.sent)}/s out`]);
    if (it.gpus) facts.push(["GPU", `${it.gpus}, ${it.gpu_busy === null ? "" : `${Math.round(100 * it.gpu_busy)} % busy, `}${bytes(it.gpu_memory)} of ${bytes(it.gpu_memory_limit)}`]);
  }
  $("node-facts").replaceChildren(...facts.flatMap(([name, value]) => [el("dt", "", name), el("dd", "", `${value}`)]));
  drawWorkers(row);
}
/** The global ranks of a node's workers: those of the nodes before it come first. */
function drawWorkers(row) {
  const before = getState().nodes.filter((it) => it.rank !== null && row.rank !== null && it.rank < row.rank).reduce((sum, it) => sum + it.workers, 0);
  const ranks = row.rank === null ? [] : Array.from({ length: Math.min(row.workers, 64) }, (_, at) => `${before + at}`);
  if ($("worker").dataset.ranks !== ranks.join()) {
    $("worker").dataset.ranks = ranks.join();
    $("worker").replaceChildren(...ranks.map((rank) => { const option = el("option", "", `rank ${rank}`); option.value = rank; return option; }));
  }
  for (const id of ["worker", "show-stacks", "show-log"]) $(id).disabled = !ranks.length;
}
async function showText(kind) {
  const name = shown;
  $("node-text").hidden = true;
  const asked = ask(`/api/${kind}?rank=${encodeURIComponent($("worker").value)}`);
  await say("node-answer", asked.then((answer) => {
    if (name === shown) { $("node-text").textContent = answer.text; $("node-text").hidden = false; }
    return { text: "" };
  }));
}

export function nodeTools() {
  $("find").oninput = () => { if (getState()) drawNodes(getState()); };
  for (const id of ["grid", "table"]) {
    $(id).addEventListener("click", (event) => { const hit = event.target.closest("button"); if (hit) { focusCell(hit.dataset.name, false); openNode(hit.dataset.name); } });
  }
  $("grid").addEventListener("keydown", (event) => {
    const row = Math.max(1, getComputedStyle($("grid")).gridTemplateColumns.split(" ").length);
    const steps = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: row, ArrowUp: -row, Home: -Infinity, End: Infinity };
    if (!(event.key in steps)) return;
    event.preventDefault();
    const all = [...$("grid").children];
    const at = all.findIndex((cell) => cell.dataset.name === current) + steps[event.key];
    focusCell(all[Math.max(0, Math.min(all.length - 1, at))].dataset.name, true);
  });
  $("show-stacks").onclick = () => showText("stacks");
  $("show-log").onclick = () => showText("log");
  $("drain").onclick = () => {
    if (!mayOrder()) { $("node-answer").textContent = "This needs a login with the job's token."; return; }
    if (confirm(`Let ${shown} leave the job?`)) say("node-answer", ask("/api/orders", "POST", { order: "drain", node: shown }));
  };
}
function focusCell(name, moves) {
  if (!cells.has(name)) return;
  if (cells.has(current)) cells.get(current).tabIndex = -1;
  current = name;
  cells.get(name).tabIndex = 0;
  if (moves) cells.get(name).focus();
}
