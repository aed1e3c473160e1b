"""`durable=False`: the same code with no history, for work that may be lost."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from waiting import wait_until

from holdfast import App, RunCancelledError, WorkerLostError, WrongContextError, hook, sleep, wf
from holdfast.testing import TestApp


def test_a_workflow_that_is_not_durable_runs_the_same_way_without_a_history(app: App) -> None:
    @app.step(max_retries=2)
    def flaky(n: int) -> int:
        if len(world.calls(flaky)) == 1:
            raise OSError("once")
        return n * 10

    @app.step
    async def double(n: int) -> int:
        return n * 2

    @app.workflow(durable=False)
    async def flow(n: int) -> list[Any]:
        wf.set_data("n", n)
        first = flaky(n)
        both = await asyncio.gather(double(1), double(2))
        await sleep("1h")
        return [first, *both, wf.get_data("n")]

    with TestApp(app) as world:
        run = flow.start(5)
        assert run.result() == [50, 2, 4, 5]
        assert world.kinds(run) == ["RunStarted", "RunCompleted"]
        assert run.status == "SUCCESS"
        assert run.steps == []


def test_its_failure_is_kept(app: App) -> None:
    @app.workflow(durable=False)
    def flow() -> None:
        raise ValueError("broken")

    with TestApp(app):
        run = flow.start()
        with pytest.raises(ValueError, match="broken"):
            run.result()
        assert run.status == "FAILURE"


def test_ids_are_idempotent_for_it_too(app: App) -> None:
    @app.step
    def work() -> str:
        return "once"

    @app.workflow(durable=False)
    def flow() -> str:
        return work()

    with TestApp(app) as world:
        assert flow.options(id="x").start().result() == "once"
        assert flow.options(id="x").start().result() == "once"
        assert len(world.calls(work)) == 1


def test_a_hook_needs_a_history(app: App) -> None:
    @app.workflow(durable=False)
    async def flow() -> None:
        await hook("approval")

    with TestApp(app):
        with pytest.raises(
            WrongContextError, match=r"hook\('approval'\) needs a history, .*durable=False.*durable=True"
        ):
            flow.start().result()


def test_continue_as_new_needs_a_history_and_says_so(app: App) -> None:
    @app.workflow(durable=False)
    def flow(n: int) -> None:
        wf.continue_as_new(n + 1)

    with TestApp(app):
        with pytest.raises(WrongContextError, match=r"continue_as_new\(\) needs a history, .*durable=False"):
            flow.start(1).result()


def test_a_durable_child_of_a_workflow_that_is_not(app: App) -> None:
    @app.workflow
    async def child(n: int) -> int:
        await sleep("1h")
        return n * 2

    @app.workflow(durable=False)
    async def flow() -> int:
        return await child(4)

    with TestApp(app) as world:
        run = flow.start()
        assert run.result() == 8
        assert "TimerFired" in world.kinds(run.children()[0])


def test_a_child_that_is_not_durable_in_a_workflow_that_is(app: App) -> None:
    @app.step
    def work(n: int) -> int:
        return n * 2

    @app.workflow(durable=False)
    def child(n: int) -> int:
        return work(n)

    @app.workflow
    async def flow() -> int:
        return child(4) + await child.submit(5)

    with TestApp(app) as world:
        run = flow.start()
        assert run.result() == 18
        assert [world.kinds(each) for each in run.children()] == [["RunStarted", "RunCompleted"]] * 2


def test_it_can_be_cancelled(app: App) -> None:
    @app.step
    def release() -> None: ...

    @app.workflow(durable=False)
    async def flow() -> None:
        try:
            await sleep("1h")
        finally:
            release()

    with TestApp(app) as world:
        run = flow.start()
        world.settle()
        run.cancel("enough")
        with pytest.raises(RunCancelledError, match="enough"):
            run.result()
        assert len(world.calls(release)) == 1


def test_a_retry_of_the_whole_workflow_begins_anew(app: App) -> None:
    @app.step
    def work() -> None: ...

    @app.workflow(durable=False, max_retries=1)
    def flow() -> int:
        work()
        if wf.attempt == 1:
            raise OSError("x")
        return wf.attempt

    with TestApp(app) as world:
        assert flow.start().result() == 2
        assert len(world.calls(work)) == 2


def test_when_its_worker_stops_it_fails_and_says_why(app: App) -> None:
    begun, go = threading.Event(), threading.Event()

    @app.step
    def work() -> None:
        begun.set()
        go.wait(10)

    @app.workflow(durable=False)
    async def flow() -> None:
        work()
        await sleep("1h")

    run = flow.start()
    with app.worker(grace=0):
        assert begun.wait(10)
    go.set()
    with app.worker():
        with pytest.raises(
            WorkerLostError, match=r"the worker of run .* was lost, and with durable=False nothing was kept"
        ):
            run.result(timeout=10)
    assert run.status == "FAILURE"


def test_when_its_worker_stops_and_it_may_be_retried_it_begins_anew(app: App) -> None:
    calls: list[int] = []

    @app.step
    def work() -> int:
        calls.append(1)
        return len(calls)

    @app.workflow(durable=False, max_retries=1)
    async def flow() -> int:
        found = work()
        if found == 1:
            await sleep("1h")
        return found

    run = flow.start()
    with app.worker():
        wait_until(lambda: run.status == "WAITING")
    with app.worker():
        assert run.result(timeout=10) == 2


def test_it_cannot_be_paused_or_forked(app: App) -> None:
    @app.workflow(durable=False)
    async def flow() -> None:
        await sleep("1h")

    with TestApp(app) as world:
        run = flow.start()
        world.settle()
        with pytest.raises(WrongContextError, match=r"can't be paused: .*durable=False"):
            run.pause()
        run.result()
        with pytest.raises(WrongContextError, match=r"can't be forked: .*durable=False"):
            run.fork(at=1)
