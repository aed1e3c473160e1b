export class Graph {
  constructor(options?: { compound?: boolean; multigraph?: boolean });
  setGraph(label: Record<string, unknown>): Graph;
  setDefaultEdgeLabel(make: () => Record<string, unknown>): Graph;
  setNode(id: string, label: Record<string, unknown>): Graph;
  setParent(id: string, parent: string): Graph;
  setEdge(source: string, target: string, label?: Record<string, unknown>): Graph;
  node(id: string): { x: number; y: number; width: number; height: number };
  edge(source: string, target: string): { points: { x: number; y: number }[] };
  graph(): { width: number; height: number };
}
export function layout(graph: Graph): void;
