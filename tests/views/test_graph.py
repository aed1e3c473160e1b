"""Runs as graphs: compositions by their plans, canvases by their shape, all others by their causes."""

from __future__ import annotations

import pytest
from msgspec import Raw
from view_histories import NAMES, T0, golden, numbered

from holdfast import App, chain, chord, group
from holdfast.core import events as ev
from holdfast.core.plans import Plan, PlannedStep
from holdfast.views.graph import Graph, folded, graph_of
from holdfast.views.steps import steps_of


def edges_of(graph: Graph, *kinds: str) -> list[tuple[str, str]]:
    return [(edge.source, edge.target) for edge in graph.edges if not kinds or edge.kind in kinds]


def check(graph: Graph) -> None:
    ids = [node.id for node in graph.nodes]
    assert len(ids) == len(set(ids))
    assert {node.parent for node in graph.nodes if node.parent} <= set(ids)
    assert {end for edge in graph.edges for end in (edge.source, edge.target)} <= set(ids)
    assert all(edge.source != edge.target for edge in graph.edges)


@pytest.mark.parametrize("name", NAMES)
def test_every_step_of_every_prefix_is_one_node(name: str) -> None:
    history = golden(name)
    for end in range(1, len(history) + 1):
        graph = graph_of(history[:end])
        check(graph)
        check(folded(graph, most=1))
        commands = {view.cmd for view in steps_of(history[:end])}
        assert commands <= {node.id for node in graph.nodes}


def test_a_saga_has_its_compensations_as_pairs() -> None:
    graph = graph_of(golden("travel"))
    assert graph.shape == "saga"
    assert set(edges_of(graph, "undoes")) == {("c:ship.undo", "c:ship"), ("s:order.undo", "s:order")}
    assert edges_of(graph, "then") == [("s:order", "c:ship"), ("c:ship", "s:pay")]


def test_compensations_that_were_not_needed_have_not_begun() -> None:
    graph = graph_of(golden("travel")[:4])
    undo = next(node for node in graph.nodes if node.id == "s:order.undo")
    assert (undo.state, undo.label) == ("", "order.undo")


def test_a_dag_has_its_dependencies_and_the_executions_of_a_step_inside_it() -> None:
    plan = Plan(
        "dag",
        (
            PlannedStep("a", "fetch"),
            PlannedStep("b", "note", depends_on=("a",), map_over="a"),
            PlannedStep("c", "note", depends_on=("a", "b")),
        ),
    )
    history = numbered(
        ev.RunStarted(ts=T0, workflow="flow"),
        ev.Planned(ts=T0, cmd="1g0", cause=1, name="flow", args=plan.to_json()),
        ev.Planned(ts=T0, cmd="g:b", cause=1, name="b", args=Raw(b"2")),
    )
    graph = graph_of(history)
    check(graph)
    assert graph.shape == "dag"
    assert edges_of(graph) == [("s:a", "s:b"), ("s:a", "s:c"), ("s:b", "s:c")]
    assert [node.id for node in graph.nodes if node.parent == "s:b"] == ["s:b[0]", "s:b[1]"]


def test_other_workflows_show_what_led_to_what() -> None:
    history = numbered(
        ev.RunStarted(ts=T0, workflow="buy"),
        ev.StepCompleted(ts=T0, cmd="1s0", cause=1, name="reserve"),
        ev.HookOpened(ts=T0, cmd="2h0", cause=2, name="approval"),
        ev.HookReceived(ts=T0, name="approval"),
        ev.TimerFired(ts=T0, cmd="4t0", cause=4, due=T0, sleep=True),
        ev.ChildStarted(ts=T0, cmd="5c0", cause=5, name="ship", child_id="buy.ship"),
    )
    graph = graph_of(history)
    check(graph)
    assert graph.shape == "code"
    assert set(edges_of(graph, "caused")) == {("1s0", "2h0"), ("2h0", "4t0"), ("4t0", "5c0")}
    assert {node.id: node.kind for node in graph.nodes} == {
        "1s0": "step", "2h0": "hook", "4t0": "sleep", "5c0": "child",
    }  # fmt: skip


def canvas_history(members: int) -> list[ev.Event]:
    app = App("graphs", ":memory:")

    @app.step
    def charge(n: int) -> int:
        return n

    @app.step
    def total(values: list[int]) -> int:
        return sum(values)

    @app.step
    def told(value: object) -> None: ...

    canvas = chain(charge.s(0), chord(group(charge.si(i) for i in range(members)), total.s()).on_error(told.s()))
    call = Raw(b'{"args":[' + canvas._encoded((), {}) + b"]}")
    return numbered(
        ev.RunStarted(ts=T0, workflow="holdfast.chain", input=call),
        ev.StepCompleted(ts=T0, cmd="s:0.0", cause=1, name="charge"),
        ev.StepStarted(ts=T0, cmd="s:0.1.0", cause=2, name="charge"),
    )


def test_a_canvas_has_the_shape_it_was_put_together_in() -> None:
    graph = graph_of(canvas_history(2))
    check(graph)
    assert graph.shape == "canvas"
    assert [(node.id, node.kind, node.state, node.parent) for node in graph.nodes] == [
        ("0", "chain", "", ""),
        ("s:0.0", "step", "SUCCESS", "0"),
        ("0.1.chord", "chord", "", "0"),
        ("0.1", "group", "", "0.1.chord"),
        ("s:0.1.0", "step", "STARTED", "0.1"),
        ("s:0.1.1", "step", "", "0.1"),
        ("s:0.1.body", "step", "", "0.1.chord"),
        ("s:0.1.error0", "step", "", "0"),
    ]
    assert set(edges_of(graph, "then")) == {("s:0.0", "0.1.chord"), ("0.1", "s:0.1.body")}
    assert edges_of(graph, "error") == [("0.1.chord", "s:0.1.error0")]
    assert graph.nodes[3].counts == {"STARTED": 1, "": 1}


def test_a_large_fan_is_folded_with_its_states_counted() -> None:
    graph = folded(graph_of(canvas_history(500)))
    check(graph)
    (fan,) = (node for node in graph.nodes if node.kind == "fan")
    assert (fan.label, fan.counts, fan.parent) == ("charge × 500", {"STARTED": 1, "": 499}, "0.1")
    assert len(graph.nodes) < 10
