"""What becomes of runs and steps, as domain events."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast import App, emit, sleep, wait_for_event, wf
from holdfast.testing import TestApp


def heard_by(app: App, workflow: str) -> list[dict[str, Any]]:
    return [run.result() for run in reversed(app.runs(workflow=workflow))]


def events_in(app: App) -> list[str]:
    with app.store.read() as db:  # type: ignore[attr-defined]
        return [name for (name,) in db.execute("SELECT name FROM domain_events ORDER BY no")]


def test_the_failure_of_a_run_and_of_its_step_can_be_reacted_to(app: App) -> None:
    @app.step(max_retries=1, retry_delay=0)
    def explode() -> None:
        raise ValueError("no")

    @app.workflow
    def order() -> None:
        explode()

    @app.on("run.failed", where={"workflow": "order"})
    @app.workflow
    def alert(facts: dict[str, Any]) -> dict[str, Any]:
        return facts

    @app.on("step.failed")
    @app.step
    def note(facts: dict[str, Any]) -> dict[str, Any]:
        return facts

    with TestApp(app) as world:
        run = order.options(id="o-1").start()
        world.settle()
        about = {
            "run_id": "o-1",
            "workflow": "order",
            "app": "shop",
            "correlation": "shop:o-1",
            "error": "ValueError: no",
        }
        assert heard_by(app, "alert") == [about | {"status": "FAILURE", "reason": ""}]
        assert heard_by(app, "note") == [about | {"status": "FAILURE", "reason": "", "step": "explode", "attempt": 2}]
        assert run.status == "FAILURE"


def test_success_cancellation_and_a_run_that_is_stuck_can_be_reacted_to(app: App) -> None:
    @app.workflow
    def fine() -> int:
        return 1

    @app.workflow
    async def long() -> None:
        await sleep("1d")

    changed = [False]

    @app.workflow
    async def fickle() -> None:
        wf.set_data("changed" if changed[0] else "as it was", 1)
        await sleep("1d")

    @app.on("run.succeeded", where={"workflow": "fine"})
    @app.on("run.cancelled")
    @app.on("run.stuck")
    @app.workflow
    def note(facts: dict[str, Any]) -> tuple[str, str, str]:
        return facts["workflow"], facts["status"], facts["reason"][:20]

    with TestApp(app, check_replay=False) as world:
        fine.start().result()
        run = long.start()
        stuck = fickle.start()
        world.settle()
        run.cancel("enough")
        stuck.pause()
        world.settle()
        changed[0] = True
        stuck.resume()
        world.settle()
        assert stuck.status == "STUCK"
        found = sorted(heard_by(app, "note"))
        assert found[0] == ("fickle", "STUCK", found[0][2])
        assert "the code of workflow" in found[0][2]
        assert found[1:] == [("fine", "SUCCESS", ""), ("long", "CANCELLED", "enough")]


def test_nothing_is_written_if_nobody_listens(app: App) -> None:
    @app.workflow
    def fine() -> None: ...

    with TestApp(app):
        fine.start().result()
        assert events_in(app) == []


def test_a_run_that_waits_hears_of_others_from_then_on(app: App) -> None:
    @app.workflow
    def fails(n: int) -> None:
        raise ValueError(n)

    @app.workflow
    async def watcher() -> str:
        facts = await wait_for_event("run.failed")
        return str(facts["error"])

    with TestApp(app) as world:
        fails.start(1)
        world.settle()
        run = watcher.start()
        world.settle()
        fails.start(2)
        assert run.result() == "ValueError: 2"
        fails.start(3)
        world.settle()
        assert events_in(app) == ["run.failed"], "nobody listens any more"


@pytest.mark.parametrize("way", ["itself", "a child", "another event", "a child of a step"])
def test_a_handler_that_fails_is_not_handled(app: App, way: str) -> None:
    @app.workflow
    def fails() -> None:
        raise ValueError("no")

    @app.step(max_retries=0)
    def starts() -> None:
        fails.options(id="child-of-step").start()

    @app.on("run.failed")
    @app.workflow
    async def alert() -> None:
        if way == "a child":
            await fails()
        elif way == "another event":
            await emit("Alert")
        elif way == "a child of a step":
            starts()
        else:
            raise ValueError("the handler fails, too")

    @app.on("Alert")
    @app.workflow
    def on_alert() -> None:
        raise ValueError("and this one")

    with TestApp(app, check_replay=False) as world:
        fails.start()
        world.settle()
        assert len(app.runs(workflow="alert")) == 1
        assert events_in(app).count("run.failed") == 1


def test_a_run_that_is_retried_and_fails_again_is_news_again(app: App) -> None:
    @app.workflow
    def fails() -> None:
        raise ValueError("no")

    @app.on("run.failed")
    @app.workflow
    def alert() -> None: ...

    with TestApp(app) as world:
        run = fails.start()
        world.settle()
        run.retry()
        world.settle()
        assert len(app.runs(workflow="alert")) == 2


def test_an_attempt_that_is_retried_is_no_news(app: App) -> None:
    @app.workflow(max_retries=1)
    def second_try() -> int:
        if wf.attempt == 1:
            raise ValueError("no")
        return wf.attempt

    @app.on("run.failed")
    @app.workflow
    def alert() -> None: ...

    with TestApp(app) as world:
        assert second_try.start().result() == 2
        world.settle()
        assert not app.runs(workflow="alert")
