"""A run goes on with the plan that it began with, whatever becomes of the code."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from core_world import World

from holdfast import App, ArgumentError, Checkpointed, Dag, NondeterminismError, Saga
from holdfast.core import events as ev


@pytest.fixture(autouse=True)
def _no_run_is_left_in_memory() -> Iterator[None]:
    yield
    while World.alive:
        World.alive.pop().crash()


def dag_of(*names: str, handlers: dict[str, Any] | None = None) -> App:
    """A DAG that is a chain of these steps."""
    app = App("plans", ":memory:")
    dag = Dag("chain", app=app)
    for number, name in enumerate(names):
        handler = (handlers or {}).get(name, lambda ctx: 1)
        dag.add_step(name, handler, names[number - 1 : number] if number else ())
    return app


def test_a_run_goes_on_with_its_own_plan_and_a_new_one_has_the_new() -> None:
    run = World(dag_of("a", "b", "c"), "chain", {}, strict=False)
    run.complete("s:a", 1)
    run.crash()
    run.app = dag_of("a", "x", "b", "c")
    run.complete("s:b", 2)
    assert run.pending() == {"s:c": "chain.c"}
    run.complete("s:c", 3)
    assert run.result() == {"a": 1, "b": 2, "c": 3}
    assert len(run.of(ev.ArgumentsChanged)) == 1, "the change is recorded, once"
    new = World(run.app, "chain", {})
    assert list(new.pending()) == ["s:a"]
    new.complete("s:a", 1)
    assert list(new.pending()) == ["s:x"]


def test_what_new_code_needs_is_not_asked_of_a_run_that_began_before() -> None:
    run = World(dag_of("a", "b"), "chain", {}, strict=False)
    run.complete("s:a", 1)
    run.crash()
    run.app = dag_of("a", "b", "c", handlers={"c": lambda currency: currency})
    run.complete("s:b", 2)
    assert run.result() == {"a": 1, "b": 2}
    refused = World(run.app, "chain", {}).run().result()
    assert isinstance(refused, ArgumentError)
    assert "step 'c' takes 'currency'" in str(refused)


def test_a_changed_plan_is_an_error_where_changes_are_looked_for() -> None:
    run = World(dag_of("a", "b"), "chain", {})
    run.complete("s:a", 1)
    run.crash()
    run.app = dag_of("a", "c")
    with pytest.raises(NondeterminismError, match="plan 'chain'"):
        run.wake()


def test_a_step_that_is_gone_sets_the_run_aside_and_both_sides_are_shown() -> None:
    run = World(dag_of("a", "b", "c"), "chain", {}, strict=False)
    run.complete("s:a", 1)
    run.crash()
    run.app = dag_of("a", "c")
    with pytest.raises(NondeterminismError) as caught:
        run.wake()
    assert "a plan in which step 'b' runs 'chain.b'" in str(caught.value)
    assert "a dag 'chain' of a, c, and no 'chain.b' is known" in str(caught.value)
    run.app = dag_of("a", "b", "c")
    run.complete("s:b", 2)
    run.complete("s:c", 3)
    assert run.result() == {"a": 1, "b": 2, "c": 3}


def test_a_step_keeps_what_it_executes() -> None:
    def with_handler(name: str) -> App:
        app = App("plans", ":memory:")
        old, new = app.step(name="old")(lambda: 1), app.step(name="new")(lambda: 2)
        Dag("one", app=app).add_step("a", old if name == "old" else new)
        return app

    run = World(with_handler("old"), "one", {}, strict=False)
    run.wake()
    run.commit()
    run.crash()
    assert run.pending() == {"s:a": "old"}
    run.crash()
    run.app = with_handler("new")
    assert run.pending() == {"s:a": "old"}


@pytest.mark.parametrize("shape", [Saga, Checkpointed])
def test_sagas_and_lists_keep_their_plan_too(shape: Any) -> None:
    def line_of(*names: str) -> App:
        app = App("plans", ":memory:")
        if shape is Saga:
            saga = Saga("line", app=app)
            for name in names:
                saga.add_step(name, lambda ctx: 1, lambda ctx: 2)
        else:
            Checkpointed("line", [(name, lambda ctx: 1) for name in names], app=app)
        return app

    run = World(line_of("a", "b"), "line", {}, strict=False)
    run.complete("s:a", 1)
    run.crash()
    run.app = line_of("x", "a", "y", "b")
    run.complete("s:b", 2)
    assert run.result() == {"a": 1, "b": 2}


def test_a_retry_takes_the_plan_of_the_code_as_it_is_now_and_keeps_what_is_still_in_it() -> None:
    def made(*names: str) -> App:
        app = App("plans", ":memory:")
        dag = Dag("chain", app=app, max_retries=1)
        for number, name in enumerate(names):
            dag.add_step(name, lambda ctx: 1, names[number - 1 : number] if number else ())
        return app

    run = World(made("a", "b"), "chain", {}, strict=False)
    run.complete("s:a", 1)
    run.app = made("a", "c")
    run.fail("s:b", ValueError("b was a mistake"))
    assert run.pending() == {"s:c": "chain.c"}
    run.complete("s:c", 3)
    assert run.result() == {"a": 1, "c": 3}


def test_a_fork_has_the_plan_of_its_run() -> None:
    from holdfast.core.forking import fork

    run = World(dag_of("a", "b"), "chain", {}, strict=False)
    run.complete("s:a", 1)
    copy = World(run.app, "chain", {}, run_id="copy")
    copy.committed = [ev.to_json(event) for event in fork(run.history, "run", 3, {}).events]
    assert list(copy.pending()) == ["s:b"]
