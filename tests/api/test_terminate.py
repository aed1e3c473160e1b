"""Runs that are to end and don't: they are shown, and can be ended for good."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from waiting import wait_until

from holdfast import (
    App,
    ArgumentError,
    HookNotFoundError,
    Run,
    RunCancelledError,
    RunFinishedError,
    hook,
    sleep,
    start_child_workflow,
    wait_for_event,
    wf,
)
from holdfast.testing import TestApp
from holdfast.views.details import read_details
from holdfast.views.values import PlainReader


def why(app: App, run: Run[Any]) -> dict[str, Any]:
    row = app.store.get(run.id)
    assert row is not None
    found: dict[str, Any] = read_details(app.store, row, PlainReader(app.codec))["why"]
    return found


def stubborn(app: App, done: list[str]) -> Any:
    """A workflow that can't be cancelled."""

    @app.step
    def clean_up() -> None:
        done.append("cleaned up")

    @app.workflow
    async def stubborn() -> None:
        try:
            while True:
                try:
                    await sleep("1h")
                except BaseException:
                    done.append("caught")
        finally:
            clean_up()

    return stubborn


def test_a_cancellation_that_code_has_caught_is_shown(app: App) -> None:
    done: list[str] = []
    workflow = stubborn(app, done)
    with TestApp(app, check_replay=False) as world:
        run = workflow.start()
        world.settle()
        assert "cancel" not in why(app, run)["text"]
        run.cancel("too late")
        world.advance("6s")
        found = why(app, run)
        assert done == ["caught"]
        assert run.status == "WAITING"
        assert found["text"].startswith(
            "cancel requested 6s ago (too late), but its code cleans up or has caught the cancellation: sleeping"
        )
        assert found["details"]["cancel_reason"] == "too late"
        run.terminate("over")


def test_terminate_ends_a_run_without_its_clean_up_and_records_why(app: App) -> None:
    done: list[str] = []
    workflow = stubborn(app, done)
    with TestApp(app, check_replay=False) as world:
        run = workflow.options(id="s-1").start()
        world.settle()
        run.cancel()
        world.settle()
        run.terminate("it hung for a week")
        world.settle()
        assert run.status == "CANCELLED"
        assert run.reason == "it hung for a week"
        assert run.history()[-1].kind == "RunCancelled"
        assert run.history()[-1].detail["terminated"] is True
        assert why(app, run)["text"] == "was terminated: it hung for a week"
        with pytest.raises(RunCancelledError, match="run s-1 was terminated: it hung for a week"):
            run.result()
        assert "cleaned up" not in done
        with pytest.raises(RunFinishedError):
            run.terminate("again")


def test_terminate_wants_a_reason(app: App) -> None:
    workflow = stubborn(app, [])
    with TestApp(app) as world:
        run = workflow.start()
        with pytest.raises(ArgumentError, match="reason"):
            run.terminate("")
        run.terminate("enough")
        world.settle()
        assert run.status == "CANCELLED"


@pytest.mark.parametrize("parked", [False, True])
def test_the_children_that_it_waits_for_are_terminated_too(app: App, parked: bool) -> None:
    done: list[str] = []
    grandchild = stubborn(app, done)

    @app.workflow
    async def child() -> None:
        await grandchild.options(id="grandchild").submit()

    @app.workflow
    async def alone() -> None:
        await sleep("1d")

    @app.workflow
    async def parent() -> None:
        wf.set_data("alone", (await start_child_workflow(alone, wait_for_completion=False)).id)
        await child.options(id="child").submit()

    with TestApp(app, check_replay=False) as world:
        run = parent.options(id="parent").start()
        world.settle()
        if parked:
            run.pause()
            world.settle()
        run.terminate("stop it all")
        world.settle()
        assert run.status == "CANCELLED"
        child_run = app.get_run("child")
        assert (child_run.status, child_run.reason) == ("CANCELLED", "its parent parent was terminated: stop it all")
        assert app.get_run("grandchild").status == "CANCELLED"
        assert app.get_run(run.data["alone"]).status == "WAITING"
        assert [step.state for step in run.steps if step.name == "child"] == ["CANCELLED"]
    assert "cleaned up" not in done


def test_a_parent_hears_that_its_child_was_terminated(app: App) -> None:
    child = stubborn(app, [])

    @app.workflow
    async def parent() -> str:
        try:
            await child.options(id="child").submit()
        except Exception as error:
            return str(error)
        return "not reached"

    with TestApp(app, check_replay=False) as world:
        run = parent.start()
        world.settle()
        app.get_run("child").terminate("it hung")
        assert "it hung" in run.result()


@pytest.mark.parametrize("held", ["PAUSED", "STUCK", "PENDING", "RETRY"])
def test_a_run_that_is_not_at_work_can_be_terminated(app: App, held: str) -> None:
    changed = [False]

    @app.workflow(max_retries=1, retry_delay="1h")
    async def order() -> None:
        if held == "RETRY":
            raise ValueError("no")
        wf.set_data("changed" if changed[0] else "as it was", 1)
        await sleep("1d")

    with TestApp(app, check_replay=False) as world:
        run = order.options(delay="1h" if held == "PENDING" else 0).start()
        world.settle()
        if held in ("PAUSED", "STUCK"):
            run.pause()
            world.settle()
        if held == "STUCK":
            changed[0] = True
            run.resume()
            world.settle()
        assert run.status == held
        run.terminate("not wanted")
        world.settle()
        assert (run.status, run.reason) == ("CANCELLED", "not wanted")
        changed[0] = False
        if held == "PAUSED":  # and it can be taken up again
            run.retry()
            world.settle()
            assert run.status == "WAITING"


def test_what_it_waited_for_finds_it_no_more(app: App) -> None:
    @app.workflow
    async def order() -> None:
        await asyncio.gather(hook("approval", key="k-1"), wait_for_event("Shipped"))

    with TestApp(app, check_replay=False) as world:
        run = order.start()
        world.settle()
        run.terminate("not wanted")
        world.settle()
        with pytest.raises(HookNotFoundError):
            app.send_hook(key="k-1", payload=1)
        app.emit("Shipped", {})
        world.settle()
        assert run.history()[-1].kind == "RunCancelled"


def test_a_step_under_way_is_interrupted_and_its_outcome_dropped(app: App) -> None:
    begun, over = threading.Event(), threading.Event()

    @app.step(timeout="60s")
    async def long() -> None:
        begun.set()
        try:
            await asyncio.sleep(60)
        finally:
            over.set()

    @app.workflow
    async def order() -> None:
        await long()

    with app.worker():
        run = order.start()
        assert begun.wait(30)
        run.terminate("enough")
        wait_until(lambda: run.status == "CANCELLED", 30)
        assert over.wait(30)
        assert [(step.name, step.state) for step in run.steps] in ([], [("long", "CANCELLED")])
