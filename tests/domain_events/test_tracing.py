"""A process as one tree."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast import App, RunNotFoundError, TraceNode, emit, start_child_workflow
from holdfast.testing import TestApp


def shape(node: TraceNode) -> Any:
    return {f"{node.kind} {node.name}": [shape(child) for child in node.children]} if node.children else node.name


def test_a_choreographed_process_is_one_tree(app: App) -> None:
    @app.step
    async def charge(order: str) -> None:
        await emit("Paid", order)

    @app.workflow
    async def bill(order: str) -> None:
        await charge(order)

    @app.workflow
    async def place(order: str) -> None:
        await bill(order)
        await emit("Placed", order)

    @app.on("Paid")
    @app.workflow
    async def ship(order: str) -> None:
        await emit("Shipped", order)

    @app.on("Shipped")
    @app.step
    async def mail(order: str) -> None:
        await start_child_workflow(noted, wait_for_completion=False)

    @app.workflow
    def noted() -> None: ...

    with TestApp(app) as world:
        run = place.options(id="order-1").start("o-1")
        place.options(id="order-2").start("o-2")
        world.settle()
        tree = run.trace()
        assert shape(tree) == {
            "run place": [
                {
                    "run bill": [
                        {"event Paid": [{"run ship": [{"event Shipped": [{"run mail": ["noted"]}]}]}]},
                    ]
                },
                "Placed",
            ]
        }
        assert (tree.id, tree.app, tree.status) == ("order-1", "shop", "SUCCESS")
        assert run.correlation == "shop:order-1"
        assert sorted(last.correlation for last in app.runs(workflow="noted")) == ["shop:order-1", "shop:order-2"]
        for row in app.runs():
            assert shape(row.trace()) == shape(tree)


def test_a_process_that_begins_with_an_event_is_traced_by_its_id(app: App) -> None:
    @app.on("Paid")
    @app.workflow
    def ship() -> None: ...

    with TestApp(app) as world:
        event = app.emit("Paid")
        world.settle()
        (run,) = app.runs()
        assert run.correlation == event
        assert shape(app.trace(event)) == {"event Paid": ["ship"]}
        assert app.trace(event) == run.trace()


def test_a_process_goes_through_all_apps_of_the_store(app: App, other: App) -> None:
    @app.workflow
    async def place() -> None:
        await emit("Placed")

    @other.on("Placed")
    @other.workflow
    def reserve() -> None: ...

    with app.worker(), other.worker():
        run = place.options(id="o-1").start()
        run.result(timeout=20)
        until = app.store.now() + 20_000_000
        while shape(run.trace()) != {"run place": [{"event Placed": ["reserve"]}]}:
            assert app.store.now() < until
        (theirs,) = other.runs()
        assert theirs.correlation == "shop:o-1"
        assert shape(theirs.trace()) == shape(run.trace())


def test_a_process_whose_beginning_was_deleted_is_still_shown(app: App) -> None:
    @app.workflow
    async def place() -> None:
        await emit("Placed", 1)
        await emit("Placed", 2)

    @app.on("Placed")
    @app.workflow
    def reserve() -> None: ...

    with TestApp(app) as world:
        run = place.options(id="o-1").start()
        world.settle()
        left = app.runs(workflow="reserve")[0]
        run.delete()
        tree = left.trace()
        assert (tree.kind, tree.id, tree.app) == ("gone", "o-1", "shop")
        assert len(tree.children) == 2


def test_an_id_that_is_none_is_refused(app: App) -> None:
    with TestApp(app):
        with pytest.raises(RunNotFoundError, match="no run and no domain event 'evt-1'"):
            app.trace("evt-1")
