// The graph of a run: steps, what led to them, groups, fans that open, and compensations beside what they undo.
import { html, useEffect, useMemo, useState } from "./html.js";
import { get, runPage } from "./api.js";
import { cut } from "./format.js";
import { countsText } from "./layout.js";
import { pathOf, placed } from "./graph_layout.js";
import { Empty, Loading, STATES, Trouble } from "./parts.js";
import { go } from "./router.js";

/** @typedef {import("./graph_layout.js").GraphNode} GraphNode */
/** @typedef {import("./graph_layout.js").Box} Box */

const KINDS = /** @type {Record<string, string>} */ ({ child: "child run", hook: "waits for a hook", event: "waits for an event", sleep: "sleep", step: "step" });
const SHAPES = /** @type {Record<string, string>} */ ({ dag: "A DAG, as it was planned.", saga: "A saga: each step with what undoes it.", checkpointed: "A list of steps.", canvas: "A canvas.", code: "What the code asked for, and what led to it." });

/** @param {{run: any, chosen: string, choose: (cmd: string) => void, given?: any}} props */
export function RunGraph({ run, chosen, choose, given }) {
  const [graph, setGraph] = useState(/** @type {any} */ (given ?? null));
  const [error, setError] = useState(/** @type {any} */ (null));
  const [opened, setOpened] = useState(/** @type {string[]} */ ([]));
  const [down, setDown] = useState(innerWidth < 760);
  const [zoom, setZoom] = useState(1);
  useEffect(() => {
    if (given) return undefined;
    let over = false;
    get("run/graph", { id: run.id, open: opened }).then((found) => { if (!over) { setGraph(found); setError(null); } }, (failure) => !over && setError(failure));
    return () => { over = true; };
  }, [run.version, opened.join("\n")]);
  const drawn = useMemo(() => (graph && graph.nodes.length ? placed(graph, down) : null), [graph, down]);
  if (!graph) return html`<${Trouble} error=${error} />${!error && html`<${Loading} rows=${4} />`}`;
  if (!drawn) return html`<div class="card"><${Empty} title="Nothing to draw yet">The run has asked for no steps so far.<//></div>`;
  return html`<${Trouble} error=${error} /><div class="graph card">
    <div class="legend"><span>${SHAPES[graph.shape] ?? ""}</span>${graph.left_out > 0 && html`<span class="faint">${graph.left_out} more nodes are not drawn.</span>`}<span class="spacer"></span>
      ${opened.length > 0 && html`<button class="plain small" onClick=${() => setOpened([])}>Fold all</button>`}
      <button class="plain small" onClick=${() => setDown(!down)}>${down ? "Left to right" : "Top to bottom"}</button>
      <button class="plain small" aria-label="Smaller" onClick=${() => setZoom(Math.max(0.3, zoom / 1.25))}>−</button>
      <button class="plain small" aria-label="Larger" onClick=${() => setZoom(Math.min(2.5, zoom * 1.25))}>+</button></div>
    <div class="canvas" tabindex="0" role="group" aria-label="Graph of the run">
      <svg width=${drawn.width * zoom} height=${drawn.height * zoom} viewBox=${`0 0 ${drawn.width} ${drawn.height}`}>
        <defs><marker id="arrow" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto-start-reverse"><path d="M0 0L8 4L0 8z" class="arrow" /></marker></defs>
        ${drawn.containers.map(({ node, box }) => html`<g key=${node.id} class="container"><rect x=${box.x} y=${box.y} width=${box.width} height=${box.height} rx="12" />
          <text x=${box.x + 10} y=${box.y + 14}>${node.name} <tspan class="counts-text">${countsText(node.counts)}</tspan></text></g>`)}
        ${drawn.edges.map((edge, i) => html`<path key=${i} class=${`edge ${edge.kind}`} d=${pathOf(edge.points)} marker-end="url(#arrow)" />`)}
        ${drawn.nodes.map(({ node, box, undo }) => html`<${Node} key=${node.id} node=${node} box=${drawn.pairs ? { ...box, height: 44 } : box} chosen=${chosen === node.id} press=${() => press(node)} />
          ${undo && html`<path key=${`${undo.id}-`} class="edge undoes" d=${`M${box.x + 22},${box.y + 54} V${box.y + 45}`} marker-end="url(#arrow)" />
            <${Node} key=${undo.id} node=${undo} box=${{ ...box, y: box.y + 54, height: 34 }} chosen=${chosen === undo.id} press=${() => press(undo)} undoes />`}`)}
      </svg>
    </div>
  </div>`;

  /** @param {GraphNode} node */
  function press(node) {
    if (node.kind === "fan") setOpened([...opened, node.id]);
    else if (node.kind === "child" && node.child_id) go(runPage(node.child_id));
    else choose(node.id);
  }
}

/** @param {{node: GraphNode, box: Box, chosen: boolean, press: () => void, undoes?: boolean}} props */
function Node({ node, box, chosen, press, undoes }) {
  const look = STATES[node.state] ?? { word: node.kind === "fan" ? "" : "not begun", tone: "calm", path: "" };
  const fan = node.kind === "fan";
  const counts = fan ? countsText(node.counts) : "";
  const tone = fan ? (node.counts.FAILURE ? "bad" : node.counts.STARTED || node.counts.RETRY ? "busy" : node.counts.SUCCESS ? "good" : "calm") : look.tone;
  const room = Math.floor((box.width - 50) / 7);
  const said = [node.label || node.name, fan ? `${counts}; opens` : `${undoes ? "compensation, " : ""}${KINDS[node.kind] ?? node.kind}, ${look.word}`].join(", ");
  /** @param {KeyboardEvent} event */
  function key(event) {
    if (event.key !== "Enter" && event.key !== " ") return;
    event.preventDefault();
    press();
  }
  const middle = box.y + box.height / 2;
  return html`<g class=${`node ${tone} ${node.kind} ${chosen ? "chosen" : ""} ${node.state === "" && !fan ? "ahead" : ""} ${undoes ? "undo" : ""}`} role="button" tabindex="0" aria-label=${said} onClick=${press} onKeyDown=${key}>
    <title>${said}</title>
    ${fan && html`<rect class="behind" x=${box.x + 6} y=${box.y + 6} width=${box.width - 4} height=${box.height - 4} rx="10" />`}
    <rect class="body" x=${box.x} y=${box.y} width=${box.width - (fan ? 6 : 0)} height=${box.height - (fan ? 6 : 0)} rx="10" />
    <rect class="edge-bar" x=${box.x} y=${box.y + 8} width="3.5" height=${box.height - (fan ? 22 : 16)} rx="1.5" />
    ${fan ? html`<text class="name" x=${box.x + 16} y=${middle - 6}>${cut(node.label, room + 3)}</text><text class="under" x=${box.x + 16} y=${middle + 11}>${cut(counts, room + 8)}</text>`
    : html`<svg x=${box.x + 12} y=${middle - 8} width="16" height="16" viewBox="0 0 16 16" class="mark"><circle cx="8" cy="8" r="6.6" class="ring" /><path d=${undoes && !node.state ? "M10.9 6.4A3.3 3.3 0 1 0 11.2 9M11 4.6v2h-2" : look.path} /></svg>
      <text class="name" x=${box.x + 36} y=${middle + 4}>${undoes ? "↩ " : ""}${cut(node.label || node.name, room)}</text>`}
  </g>`;
}
