"""What a step knows of itself while it executes, and how a cancellation reaches it."""

from __future__ import annotations

import asyncio
import contextvars
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from waiting import wait_until

from holdfast import (
    App,
    EncodeError,
    RunCancelledError,
    StepState,
    WrongContextError,
    define_hook,
    hook,
    sleep,
    this_step,
    wf,
)
from holdfast.testing import TestApp

# -- this_step


def test_attempts_count_from_one(app: App) -> None:
    seen: list[int] = []

    @app.step(max_retries=2)
    def flaky() -> int:
        seen.append(this_step.attempt)
        if this_step.attempt < 3:
            raise OSError("again")
        return this_step.attempt

    with TestApp(app):
        assert flaky.start().result() == 3
    assert seen == [1, 2, 3]


def test_the_idempotency_key_is_the_same_for_all_attempts_and_for_no_other_step(app: App) -> None:
    keys: dict[int, list[str]] = {}

    @app.step(max_retries=2)
    def charge(n: int) -> None:
        keys.setdefault(n, []).append(this_step.idempotency_key)
        if this_step.attempt < 3:
            raise OSError("again")

    @app.workflow
    def flow() -> None:
        charge(1)
        charge(2)

    with TestApp(app):
        flow.start().result()
        flow.start().result()
    first, second = keys[1], keys[2]
    assert first[0] == first[1] == first[2]
    assert len({*first, *second}) == 4


def test_the_idempotency_key_survives_a_retry_of_the_whole_workflow(app: App) -> None:
    keys: dict[int, list[str]] = {1: [], 2: []}

    @app.step(max_retries=0)
    def charge(n: int) -> None:
        keys[n].append(this_step.idempotency_key)
        if n == 2 and len(keys[2]) < 3:
            raise OSError("again")

    @app.workflow(max_retries=2)
    def flow() -> None:
        charge(1)
        charge(2)

    with TestApp(app):
        flow.start().result()
    assert len(keys[1]) == 1
    assert len(keys[2]) == 3
    assert len(set(keys[2])) == 1
    assert set(keys[1]) != set(keys[2])


def test_a_checkpoint_is_kept_for_the_next_attempt(app: App) -> None:
    seen: list[Any] = []

    @app.step(max_retries=3)
    def crunch() -> int:
        done = this_step.last_checkpoint or {"row": 0}
        seen.append(done["row"])
        for row in range(done["row"], 10):
            if row in (3, 7) and row != done["row"]:
                raise OSError("again")
            this_step.checkpoint({"row": row + 1})
        return this_step.attempt

    with TestApp(app):
        assert crunch.start().result() == 3
    assert seen == [0, 3, 7]


def test_an_async_step_checkpoints_and_reads_its_own(app: App) -> None:
    @app.step(max_retries=1)
    async def crunch() -> list[Any]:
        before = this_step.last_checkpoint
        this_step.checkpoint((this_step.attempt, "tuple"))
        if this_step.attempt == 1:
            raise OSError("again")
        return [before, this_step.last_checkpoint]

    with TestApp(app):
        assert crunch.start().result() == [(1, "tuple"), (2, "tuple")]


def test_a_checkpoint_belongs_to_one_step(app: App) -> None:
    @app.step(max_retries=0)
    def crunch(n: int) -> Any:
        before = this_step.last_checkpoint
        this_step.checkpoint(n)
        return before

    @app.workflow
    def flow() -> list[Any]:
        return [crunch(1), crunch(2)]

    with TestApp(app):
        assert flow.start().result() == [None, None]


def test_a_checkpoint_outlives_the_worker(app: App) -> None:
    @app.step(max_retries=1, retry_delay="1s")
    def crunch() -> Any:
        before = this_step.last_checkpoint
        this_step.checkpoint("half way")
        if this_step.attempt == 1:
            raise OSError("again")
        return before

    run = crunch.start()
    with app.worker():
        wait_until(lambda: any(event.kind == "StepRetrying" for event in run.history()))
    with app.worker():
        assert run.result(timeout=10) == "half way"


def test_a_checkpoint_that_cannot_be_recorded_names_the_value(app: App) -> None:
    @app.step(max_retries=0)
    def crunch() -> None:
        this_step.checkpoint({"rows": [object()]})

    with TestApp(app):
        with pytest.raises(EncodeError, match=r"the checkpoint of step 'crunch': \$\.rows\[0\]"):
            crunch.start().result()


def test_progress_shows_while_the_step_works_and_is_gone_afterwards(app: App) -> None:
    shown, go = threading.Event(), threading.Event()

    @app.step
    def crunch() -> str:
        this_step.progress(1, 10)
        this_step.progress(5, 10, "half way")
        shown.set()
        go.wait(10)
        return "done"

    with TestApp(app) as world:
        run = crunch.start()
        assert shown.wait(10)
        wait_until(lambda: bool(run.steps) and run.steps[0].progress is not None)
        step = run.steps[0]
        assert step.state == StepState.STARTED
        assert step.progress == {"done": 5, "total": 10, "note": "half way"}
        go.set()
        assert run.result() == "done"
        assert run.steps[0].progress is None
        assert "progress" not in "".join(world.kinds(run)).lower()


def test_this_step_outside_a_run_works_for_unit_tests(app: App) -> None:
    @app.step
    def crunch() -> tuple[int, bool, Any]:
        this_step.progress(1)
        this_step.checkpoint({"n": 1})
        return this_step.attempt, bool(this_step.idempotency_key), this_step.last_checkpoint

    assert crunch() == (1, True, {"n": 1})


def test_this_step_in_workflow_code_is_refused(app: App) -> None:
    @app.workflow
    def flow(what: str) -> None:
        if what == "attempt":
            this_step.attempt
        elif what == "idempotency_key":
            this_step.idempotency_key
        elif what == "checkpoint":
            this_step.checkpoint(1)
        elif what == "last_checkpoint":
            this_step.last_checkpoint
        else:
            this_step.progress(1)

    with TestApp(app):
        for what in ("attempt", "idempotency_key", "checkpoint", "last_checkpoint", "progress"):
            with pytest.raises(
                WrongContextError, match=rf"this_step\.{what} is for the code of a step, and this is workflow"
            ):
                flow.start(what).result()


# -- what works differently in a step


def test_sleep_in_a_step_is_an_ordinary_sleep(app: App) -> None:
    @app.step
    async def nap() -> float:
        begin = time.monotonic()
        await sleep("60ms")
        return time.monotonic() - begin

    @app.step
    def plain_nap() -> float:
        begin = time.monotonic()
        wf.sleep("60ms")
        return time.monotonic() - begin

    with TestApp(app) as world:
        run = nap.start()
        assert run.result() >= 0.06
        assert plain_nap.start().result() >= 0.06
        assert "TimerFired" not in world.kinds(run)


def test_a_hook_in_a_step_is_an_error_that_says_to_move_it(app: App) -> None:
    approval = define_hook("approval_in_step", payload=dict)

    @app.step(max_retries=0)
    async def asks(how: str) -> None:
        if how == "hook":
            await hook("approval")
        elif how == "defined":
            await approval()
        else:
            wf.hook("approval")

    with TestApp(app):
        for how in ("hook", "defined", "plain"):
            with pytest.raises(
                WrongContextError, match=r"in a step: .*move the hook to the workflow and pass the payload"
            ):
                asks.start(how).result()


def test_the_store_can_be_asked_in_a_step_but_not_in_workflow_code(app: App) -> None:
    @app.step(max_retries=0)
    def count() -> int:
        return len(app.runs())

    @app.workflow
    def good() -> int:
        return count()

    @app.workflow
    def bad() -> int:
        return len(app.runs())

    with TestApp(app):
        assert good.start().result() == 1
        with pytest.raises(WrongContextError, match="in workflow code, which is replayed; ask in a step"):
            bad.start().result()


# -- cancelling


def test_cancelling_reaches_an_async_step_where_it_awaits(app: App) -> None:
    begun, ended = threading.Event(), threading.Event()

    @app.step
    async def endless() -> None:
        begun.set()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            ended.set()
            raise

    @app.workflow
    async def flow() -> None:
        await endless()

    with TestApp(app) as world:
        run = flow.start()
        assert begun.wait(10)
        run.cancel("enough")
        with pytest.raises(RunCancelledError, match="enough"):
            run.result()
        assert ended.wait(5)
        assert run.steps[0].state == StepState.CANCELLED
        assert len(world.calls(endless)) == 1


@pytest.mark.parametrize("call", ["progress", "checkpoint", "stream", "set_data"])
def test_cancelling_reaches_a_sync_step_at_its_next_sign_of_life(app: App, call: str) -> None:
    begun, ended = threading.Event(), threading.Event()

    @app.step
    def endless() -> None:
        begun.set()
        try:
            while True:
                if call == "progress":
                    this_step.progress(1)
                elif call == "checkpoint":
                    this_step.checkpoint(1)
                elif call == "stream":
                    this_step.stream(1)
                else:
                    wf.set_data("x", 1)
                time.sleep(0.005)
        except asyncio.CancelledError:
            ended.set()
            raise

    @app.workflow
    def flow() -> None:
        endless()

    with TestApp(app):
        run = flow.start()
        assert begun.wait(10)
        run.cancel()
        with pytest.raises(RunCancelledError):
            run.result()
        assert ended.wait(5)


def test_a_sync_step_that_shows_no_sign_of_life_loses_its_outcome(app: App) -> None:
    begun, go, ended = threading.Event(), threading.Event(), threading.Event()

    @app.step
    def deaf() -> str:
        begun.set()
        go.wait(10)
        ended.set()
        return "too late"

    @app.workflow
    def flow() -> str:
        return deaf()

    with TestApp(app) as world:
        run = flow.start()
        assert begun.wait(10)
        run.cancel()
        with pytest.raises(RunCancelledError):
            run.result()
        go.set()
        assert ended.wait(5)
        world.settle()
        assert world.kinds(run)[-1] == "RunCancelled"


def test_a_step_that_is_cancelled_before_its_turn_never_executes(app: App) -> None:
    begun, go = threading.Event(), threading.Event()
    executed: list[int] = []

    @app.step
    def blocks() -> None:
        begun.set()
        go.wait(10)

    @app.step
    def late() -> None:
        executed.append(1)

    @app.workflow
    def flow() -> None:
        late()

    with app.worker(concurrency=1):
        first = blocks.start()
        assert begun.wait(10)
        second = flow.start()
        wait_until(lambda: second.status == "RUNNING")
        second.cancel()
        with pytest.raises(RunCancelledError):
            second.result(timeout=10)
        go.set()
        first.result(timeout=10)
        blocks.start().result(timeout=10)
    assert executed == []


def test_a_step_waiting_for_its_retry_is_cancelled_at_once(app: App) -> None:
    @app.step(retry_delay="1d")
    def flaky() -> None:
        raise OSError("down")

    @app.workflow
    def flow() -> None:
        flaky()

    with TestApp(app) as world:
        begin = world.now
        run = flow.start()
        world.settle()
        run.cancel()
        with pytest.raises(RunCancelledError):
            run.result()
        assert world.now == begin
        assert len(world.calls(flaky)) == 1


def test_cleanup_after_a_cancellation_may_run_steps(app: App) -> None:
    @app.step
    def release(what: str) -> str:
        return what

    @app.workflow
    async def flow() -> None:
        try:
            await hook("never")
        except asyncio.CancelledError:
            release("in except")
            raise
        finally:
            release("in finally")

    with TestApp(app) as world:
        run = flow.start()
        world.settle()
        run.cancel()
        with pytest.raises(RunCancelledError):
            run.result()
        assert world.calls(release) == [("in except",), ("in finally",)]


def test_a_workflow_that_swallows_its_cancellation_succeeds(app: App) -> None:
    @app.workflow
    async def flow() -> str:
        try:
            await hook("never")
        except asyncio.CancelledError:
            return "carried on"
        return ""

    with TestApp(app) as world:
        run = flow.start()
        world.settle()
        run.cancel()
        assert run.result() == "carried on"
        assert run.status == "SUCCESS"


def test_a_step_that_raises_cancelled_error_of_its_own_fails_like_any_other(app: App) -> None:
    @app.step(max_retries=0)
    async def odd() -> None:
        raise asyncio.CancelledError("of its own")

    @app.workflow
    async def flow() -> str:
        try:
            await odd()
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        return ""

    with TestApp(app):
        assert flow.start().result() == "StepError: CancelledError: of its own"


# -- threads that a step starts itself


def on_thread(function: Callable[[], Any]) -> Any:
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(function).result()


USES: dict[str, Callable[[], Any]] = {
    "this_step.attempt": lambda: this_step.attempt,
    "this_step.idempotency_key": lambda: this_step.idempotency_key,
    "this_step.checkpoint": lambda: this_step.checkpoint(1),
    "this_step.last_checkpoint": lambda: this_step.last_checkpoint,
    "this_step.progress": lambda: this_step.progress(1),
    "this_step.hand_over": lambda: this_step.hand_over(),
    "this_step.stream": lambda: this_step.stream(1),
    "wf.set_data": lambda: wf.set_data("a", 1),
    "wf.get_data": lambda: wf.get_data("a"),
    "wf.stream": lambda: wf.stream(1),
    "wf.identity": lambda: wf.identity,
}


@pytest.mark.parametrize("use", USES)
def test_a_thread_that_does_not_know_its_step_is_refused(app: App, use: str) -> None:
    @app.step(max_retries=0)
    def starts_thread() -> Any:
        return on_thread(USES[use])

    with (
        TestApp(app),
        pytest.raises(WrongContextError, match=rf"{use}.* on thread .*contextvars\.copy_context\(\)\.run"),
    ):
        starts_thread.start().result()


def test_a_thread_with_the_context_of_its_step_knows_it(app: App) -> None:
    @app.step
    def plain() -> bool:
        context = contextvars.copy_context()
        return bool(on_thread(lambda: context.run(lambda: this_step.idempotency_key)) == this_step.idempotency_key)

    @app.step
    async def awaited() -> bool:
        return await asyncio.to_thread(lambda: this_step.idempotency_key) == this_step.idempotency_key

    with TestApp(app):
        assert plain.start().result()
        assert awaited.start().result()


def test_plain_calls_and_starts_on_other_threads_work_while_steps_execute(app: App) -> None:
    begun, go_on = threading.Event(), threading.Event()

    @app.step
    def charge(n: int) -> str:
        this_step.progress(n)
        return this_step.idempotency_key

    @app.step
    def waits() -> None:
        begun.set()
        go_on.wait(10)

    with app.worker():
        run = waits.start()
        assert begun.wait(10)
        assert this_step.attempt == 1  # the main thread belongs to no step
        assert on_thread(lambda: charge(1)) != on_thread(lambda: charge(1))
        assert on_thread(lambda: charge.start(1)).result(timeout=10)
        go_on.set()
        run.result(timeout=10)
    assert on_thread(lambda: this_step.attempt) == 1
