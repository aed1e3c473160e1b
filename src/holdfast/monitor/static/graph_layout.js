// Where the nodes of a graph are drawn. Pure: nodes and edges in, places out.
import { Graph, layout } from "./vendor/dagrejs-dagre.js";

/** @typedef {{id: string, kind: string, name: string, label: string, state: string, parent: string, child_id: string, counts: Record<string, number>}} GraphNode */
/** @typedef {{source: string, target: string, kind: string}} GraphEdge */
/** @typedef {{x: number, y: number, width: number, height: number}} Box */
/** @typedef {{node: GraphNode, box: Box, undo: GraphNode | null}} Placed */

const HEIGHT = 44;
const UNDO = 34;
const GAP = 10;

/** @param {string} text */
function widthOf(text) {
  return Math.min(260, Math.max(120, 62 + text.length * 7.2));
}

/** Nodes with their boxes, containers first, and edges as lines. A compensation stands below what it undoes.
 * @param {{nodes: GraphNode[], edges: GraphEdge[]}} graph @param {boolean} down */
export function placed(graph, down) {
  const byId = new Map(graph.nodes.map((node) => [node.id, node]));
  const undoes = new Map(graph.edges.filter((edge) => edge.kind === "undoes").map((edge) => [edge.source, edge.target]));
  const pairs = undoes.size > 0;
  const undone = new Map([...undoes].map(([undo, of]) => [of, byId.get(undo) ?? null]));
  const inside = new Set(graph.nodes.map((node) => node.parent).filter(Boolean));
  const drawing = new Graph({ compound: true, multigraph: false });
  drawing.setGraph({ rankdir: down ? "TB" : "LR", nodesep: 18, ranksep: down ? 34 : 46, edgesep: 14, marginx: 16, marginy: 16 });
  drawing.setDefaultEdgeLabel(() => ({}));
  for (const node of graph.nodes) {
    if (undoes.has(node.id) && byId.has(undoes.get(node.id) ?? "")) continue;
    const pair = undone.get(node.id);
    const width = Math.max(widthOf(node.label || node.name), pair ? widthOf(pair.label || pair.name) : 0);
    drawing.setNode(node.id, inside.has(node.id) ? {} : { width, height: pairs ? HEIGHT + GAP + UNDO : node.kind === "fan" ? HEIGHT + 16 : HEIGHT });
  }
  for (const node of graph.nodes) {
    if (node.parent && byId.has(node.parent) && !undoes.has(node.id)) drawing.setParent(node.id, node.parent);
  }
  const lines = [];
  for (const edge of graph.edges) {
    if (edge.kind === "undoes") continue;
    // An edge can't end at a container: it ends at the first or last node in it.
    const source = leaf(edge.source, graph.nodes, inside, true);
    const target = leaf(edge.target, graph.nodes, inside, false);
    if (source === target || undoes.has(source) || undoes.has(target)) continue;
    drawing.setEdge(source, target);
    lines.push({ edge, source, target });
  }
  layout(drawing);
  /** @type {Placed[]} */
  const nodes = [];
  for (const node of graph.nodes) {
    if (undoes.has(node.id) && byId.has(undoes.get(node.id) ?? "")) continue;
    const at = drawing.node(node.id);
    const box = { x: at.x - at.width / 2, y: at.y - at.height / 2, width: at.width, height: at.height };
    nodes.push({ node, box, undo: undone.get(node.id) ?? null });
  }
  nodes.sort((a, b) => Number(inside.has(b.node.id)) - Number(inside.has(a.node.id)));
  const boxes = new Map(nodes.map(({ node, box }) => [node.id, box]));
  // Lines end in the middle of a side, as eyes expect.
  /** @param {string} id @param {boolean} out */
  function end(id, out) {
    const box = /** @type {Box} */ (boxes.get(id));
    const tall = pairs ? HEIGHT : box.height;
    if (down) return { x: box.x + box.width / 2, y: out ? box.y + (pairs && undone.get(id) ? box.height : tall) : box.y };
    return { x: out ? box.x + box.width - (byId.get(id)?.kind === "fan" ? 6 : 0) : box.x, y: box.y + tall / 2 };
  }
  const size = drawing.graph();
  return {
    nodes: nodes.filter(({ node }) => !inside.has(node.id)),
    containers: nodes.filter(({ node }) => inside.has(node.id)),
    edges: lines.map(({ edge, source, target }) => ({ kind: edge.kind, points: [end(source, true), ...drawing.edge(source, target).points.slice(1, -1), end(target, false)] })),
    pairs,
    width: size.width || 1,
    height: size.height || 1,
  };
}

/** @param {string} id @param {GraphNode[]} nodes @param {Set<string>} inside @param {boolean} last @returns {string} */
function leaf(id, nodes, inside, last) {
  if (!inside.has(id)) return id;
  const members = nodes.filter((node) => node.parent === id);
  return leaf((last ? members[members.length - 1] : members[0]).id, nodes, inside, last);
}

/** A line through points, with soft corners; of two points, level at both ends. @param {{x: number, y: number}[]} points */
export function pathOf(points) {
  if (points.length < 2) return "";
  if (points.length <= 3) {
    const [a, b] = [points[0], points[points.length - 1]];
    const across = Math.abs(b.x - a.x) > Math.abs(b.y - a.y);
    const [dx, dy] = across ? [(b.x - a.x) / 2, 0] : [0, (b.y - a.y) / 2];
    return `M${a.x},${a.y} C${a.x + dx},${a.y + dy} ${b.x - dx},${b.y - dy} ${b.x},${b.y}`;
  }
  let path = `M${points[0].x},${points[0].y}`;
  for (let i = 1; i < points.length - 1; i++) {
    const next = { x: (points[i].x + points[i + 1].x) / 2, y: (points[i].y + points[i + 1].y) / 2 };
    path += ` Q${points[i].x},${points[i].y} ${next.x},${next.y}`;
  }
  const end = points[points.length - 1];
  return `${path} L${end.x},${end.y}`;
}
