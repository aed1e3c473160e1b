"""A run as a graph: what its steps have to do with each other, as its plan, its canvas or its causes tell."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from typing import Literal

import msgspec
from msgspec import Raw
from msgspec.structs import replace

from holdfast.core import events as ev
from holdfast.core.canvases import CanvasNode, canvas_of, read
from holdfast.core.plans import Plan, read_plan, undo_key
from holdfast.core.registry import is_own
from holdfast.views.steps import StepView, steps_of
from holdfast.views.waits import hooks_of

NodeKind = Literal["step", "child", "hook", "event", "sleep", "chain", "group", "chord", "map", "fan"]
EdgeKind = Literal["then", "depends", "error", "undoes", "caused"]


class GraphNode(msgspec.Struct, frozen=True, kw_only=True):
    """`state` is empty for what has not begun. `parent` is the node that it is drawn in; `counts` are the states of
    what is in this one, or of the nodes that it stands for."""

    id: str
    kind: NodeKind
    name: str
    label: str = ""
    state: str = ""
    parent: str = ""
    child_id: str = ""
    counts: dict[str, int] = {}


class GraphEdge(msgspec.Struct, frozen=True):
    source: str
    target: str
    kind: EdgeKind


class Graph(msgspec.Struct, frozen=True, kw_only=True):
    """`shape` says where the edges come from: the plan of a composition, a canvas, or the causes in a history."""

    shape: Literal["dag", "saga", "checkpointed", "canvas", "code"]
    nodes: tuple[GraphNode, ...]
    edges: tuple[GraphEdge, ...]


def graph_of(history: Sequence[ev.Event]) -> Graph:
    views = steps_of(history)
    began = next((e for e in reversed(history) if isinstance(e, ev.RunStarted | ev.ContinuedAsNew)), None)
    if began is not None and is_own(began.workflow):
        return _Canvas(views).graph(canvas_of(began.input))
    plan = _plan_of(history)
    return _by_cause(history, views) if plan is None else _planned(plan, views)


def _plan_of(history: Sequence[ev.Event]) -> Plan | None:
    for event in reversed(history):
        if isinstance(event, ev.Planned) and not event.cmd.startswith("g:"):
            return read_plan(event.args)
        if isinstance(event, ev.Beginning):
            return None
    return None


def _step_node(view: StepView, parent: str = "") -> GraphNode:
    return GraphNode(
        id=view.cmd, kind="child" if view.is_child else "step", name=view.name, label=view.key or view.name,
        state=str(view.state), parent=parent, child_id=view.child_id,
    )  # fmt: skip


def _pairs(views: Iterable[StepView]) -> list[GraphEdge]:
    """From each compensation to what it undoes."""
    return [GraphEdge(view.cmd, view.undoes, "undoes") for view in views if view.undoes]


# -- a DAG, a saga, a list of steps


def _planned(plan: Plan, views: Sequence[StepView]) -> Graph:
    commands = {step.name: step.cmd for step in plan.steps}
    nodes = {view.cmd: _step_node(view, commands.get(view.part_of, "")) for view in views}
    edges = _pairs(views)
    for before, step in zip((None, *plan.steps), plan.steps, strict=False):
        if plan.shape == "dag":
            edges += [GraphEdge(commands[name], step.cmd, "depends") for name in step.depends_on]
        elif before is not None:
            edges.append(GraphEdge(before.cmd, step.cmd, "then"))
        undo = f"{'c' if step.undo_is_workflow else 's'}:{undo_key(step.name)}"
        if step.undo and undo not in nodes:
            kind: NodeKind = "child" if step.undo_is_workflow else "step"
            nodes[undo] = GraphNode(id=undo, kind=kind, name=step.undo, label=undo_key(step.name))
            edges.append(GraphEdge(undo, step.cmd, "undoes"))
    return Graph(shape=plan.shape, nodes=tuple(nodes.values()), edges=tuple(edges))


# -- a canvas


class _Canvas:
    """Its parts by their paths; a step's path is the key of its command."""

    def __init__(self, views: Sequence[StepView]) -> None:
        self._views = {view.cmd: view for view in views}
        self._nodes: list[GraphNode] = []
        self._edges: list[GraphEdge] = []

    def graph(self, canvas: Raw) -> Graph:
        self._add(read(canvas), "0", "")
        return Graph(shape="canvas", nodes=tuple(self._nodes), edges=tuple(self._edges))

    def _add(self, node: CanvasNode, path: str, parent: str) -> tuple[str, Counter[str]]:
        """The id of what stands for a part, and the states of the steps in it."""
        if node.step or node.workflow:
            found = self._leaf(node, path, parent)
        elif node.chain is not None:
            found = self._container("chain", path, parent, [read(part) for part in node.chain], in_turn=True)
        elif bytes(node.map):
            found = self._container("map", path, parent, [read(node.map)] * len(node.items), in_turn=True)
        elif node.chord is not None:
            found = self._chord(node, path, parent)
        else:
            found = self._container("group", path, parent, [read(part) for part in node.group or ()])
        beside = [(raw, f"{path}.link{i}", "then") for i, raw in enumerate(node.link)]
        beside += [(raw, f"{path}.error{i}", "error") for i, raw in enumerate(node.link_error)]
        for raw, where, kind in beside:
            self._edges.append(GraphEdge(found[0], self._add(read(raw), where, parent)[0], kind))  # type: ignore[arg-type]
        return found

    def _leaf(self, node: CanvasNode, path: str, parent: str) -> tuple[str, Counter[str]]:
        cmd = f"{'s' if node.step else 'c'}:{path}"
        name, view = node.step or node.workflow, self._views.get(cmd)
        made = GraphNode(
            id=cmd, kind="step" if node.step else "child", name=name, label=name, parent=parent,
            state="" if view is None else str(view.state), child_id="" if view is None else view.child_id,
        )  # fmt: skip
        self._nodes.append(made)
        return cmd, Counter([made.state])

    def _container(
        self, kind: NodeKind, path: str, parent: str, members: Sequence[CanvasNode], in_turn: bool = False
    ) -> tuple[str, Counter[str]]:
        at = len(self._nodes)
        counts: Counter[str] = Counter()
        before = ""
        for i, member in enumerate(members):
            id, states = self._add(member, f"{path}.{i}", path)
            counts += states
            if in_turn and before:
                self._edges.append(GraphEdge(before, id, "then"))
            before = id
        self._nodes.insert(at, GraphNode(id=path, kind=kind, name=kind, parent=parent, counts=dict(counts)))
        return path, counts

    def _chord(self, node: CanvasNode, path: str, parent: str) -> tuple[str, Counter[str]]:
        at = len(self._nodes)
        counts = self._container("group", path, f"{path}.chord", [read(part) for part in node.chord or ()])[1]
        body, states = self._add(read(node.body), f"{path}.body", f"{path}.chord")
        self._edges.append(GraphEdge(path, body, "then"))
        counts = counts + states
        whole = GraphNode(id=f"{path}.chord", kind="chord", name="chord", parent=parent, counts=dict(counts))
        self._nodes.insert(at, whole)
        return whole.id, counts


# -- any other workflow


def _by_cause(history: Sequence[ev.Event], views: Sequence[StepView]) -> Graph:
    """An edge from what happened to what the code asked for because of it."""
    nodes = {view.cmd: _step_node(view) for view in views}
    causes = {view.cmd: view.cause for view in views}
    owners: dict[int, str] = {}  # by number of event, what it is the outcome of
    for hook in hooks_of(history):
        kind: NodeKind = "hook" if hook.where is None else "event"
        state = "WAITING" if hook.closed_at is None else "SUCCESS" if hook.answer else ""
        nodes[hook.cmd] = GraphNode(id=hook.cmd, kind=kind, name=hook.name, label=hook.name, state=state)
        causes[hook.cmd] = hook.cause
        owners.setdefault(hook.answer, hook.cmd)
    for event in history:
        if isinstance(event, ev.TimerFired) and event.sleep:
            nodes[event.cmd] = GraphNode(id=event.cmd, kind="sleep", name="sleep", label="sleep", state="SUCCESS")
            causes[event.cmd] = event.cause
        if isinstance(event, ev.Commanded) and event.delivered and event.cmd in nodes:
            owners[event.seq] = event.cmd
    edges = [
        GraphEdge(owners[cause], cmd, "caused")
        for cmd, cause in causes.items()
        if cause and owners.get(cause, cmd) != cmd
    ]
    return Graph(shape="code", nodes=tuple(nodes.values()), edges=(*edges, *_pairs(views)))


# -- many as one


def folded(graph: Graph, most: int = 20, opened: Collection[str] = ()) -> Graph:
    """Where more than `most` steps of one name stand in the same place, one node stands for all of them, unless its id
    is among those `opened`."""
    inside = {node.parent for node in graph.nodes}
    alike = Counter((node.parent, node.name) for node in graph.nodes if _is_single(node, inside))
    stands_for: dict[str, str] = {}
    nodes: dict[str, GraphNode] = {}
    for node in graph.nodes:
        count = alike[node.parent, node.name] if _is_single(node, inside) else 0
        id = fan_id(node)
        if count <= most or id in opened:
            nodes[node.id] = node
            continue
        stands_for[node.id] = id
        fan = nodes.get(id) or GraphNode(
            id=id, kind="fan", name=node.name, label=f"{node.name} × {count}", parent=node.parent
        )
        nodes[id] = replace(fan, counts={**fan.counts, node.state: fan.counts.get(node.state, 0) + 1})
    edges = dict.fromkeys(
        GraphEdge(stands_for.get(edge.source, edge.source), stands_for.get(edge.target, edge.target), edge.kind)
        for edge in graph.edges
    )
    return replace(
        graph, nodes=tuple(nodes.values()), edges=tuple(edge for edge in edges if edge.source != edge.target)
    )


def fan_id(node: GraphNode) -> str:
    """Of the node that stands for all of its name in the same place."""
    return f"{node.parent}:{node.name}"


def _is_single(node: GraphNode, inside: set[str]) -> bool:
    return node.kind in ("step", "child") and node.id not in inside
