"""Retries, delays, timeouts and pools of steps."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import itertools
import os
import re
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import process_steps
import pydantic
import pytest
from waiting import wait_until

from holdfast import (
    App,
    DefinitionError,
    EncodeError,
    FatalError,
    NeverAwaitedError,
    RetryableError,
    Run,
    StepState,
    StepTimeoutError,
    UnknownNameError,
    sleep,
    this_step,
    wf,
)
from holdfast.api.others_words import WORDS
from holdfast.core.context import current_step
from holdfast.core.definitions import StepOptions, WorkflowOptions
from holdfast.durations import in_words, to_us
from holdfast.testing import TestApp


class DeclinedError(Exception):
    pass


class CardDeclinedError(DeclinedError):
    pass


class NoSuchUserError(FatalError):
    pass


def delays_of(run: Run[Any]) -> list[float]:
    """Seconds from each failed attempt to the next, as they are recorded."""
    retries = [event for event in run.history() if event.kind == "StepRetrying"]
    return [(event.detail["retry_at"] - event.at).total_seconds() for event in retries]


def delays_when(app: App, error: Callable[[], Exception] = lambda: OSError("down"), **options: Any) -> list[float]:
    """Seconds between the attempts of a step that fails until its retries are used up."""
    times: list[dt.datetime] = []

    @app.step(**options)
    def flaky() -> None:
        times.append(world.now)
        raise error()

    @app.workflow
    def flow() -> str:
        try:
            flaky()
        except Exception as raised:
            return type(raised).__name__
        return "no error"

    with TestApp(app) as world:
        begin = world.now
        run = flow.start()
        assert run.result() == type(error()).__name__
        assert times[0] == begin
        delays = [(after - before).total_seconds() for before, after in itertools.pairwise(times)]
        assert delays_of(run) == delays, "what is recorded is when it is tried"
    return delays


# -- delays


@pytest.mark.parametrize(
    ("options", "delays"),
    [
        ({}, [1, 1, 1]),
        ({"max_retries": 2, "retry_delay": "fixed"}, [1, 1]),
        ({"max_retries": 0}, []),
        ({"max_retries": 5, "retry_delay": "exponential"}, [1, 2, 4, 8, 16]),
        ({"retry_delay": "30s"}, [30, 30, 30]),
        ({"retry_delay": 2.5}, [2.5, 2.5, 2.5]),
        ({"retry_delay": dt.timedelta(minutes=1)}, [60, 60, 60]),
        ({"retry_delay": "1h30m", "max_retries": 2}, [5400, 5400]),
        ({"retry_delay": 0}, [0, 0, 0]),
        ({"retry_delay": ["1s", 10, dt.timedelta(hours=1)], "max_retries": 5}, [1, 10, 3600, 3600, 3600]),
        ({"retry_delay": "exponential", "retry_max_delay": "5s", "max_retries": 5}, [1, 2, 4, 5, 5]),
        ({"retry_delay": "30s", "retry_max_delay": 20}, [20, 20, 20]),
        ({"retry_delay": "linear", "max_retries": 4}, [1, 2, 3, 4]),
        ({"retry_delay": "linear", "retry_max_delay": "2s"}, [1, 2, 2]),
        ({"retry_delay": "20s", "retry_within": "1m", "max_retries": None}, [20, 20, 20]),
        ({"retry_delay": "20s", "retry_within": "59s"}, [20, 20]),
        ({"retry_delay": "20s", "retry_within": "1h", "max_retries": 1}, [20]),
        ({"retry_delay": "exponential", "retry_within": "10s", "max_retries": None}, [1, 2, 4]),
    ],
)
def test_each_strategy_waits_exactly_as_long_as_it_says(app: App, options: dict[str, Any], delays: list[float]) -> None:
    assert delays_when(app, **options) == delays  # type: ignore[attr-defined]


def test_without_end_is_without_end(app: App) -> None:
    tries: list[int] = []

    @app.step(max_retries=None, retry_delay="1h")
    def flaky() -> int:
        tries.append(this_step.attempt)
        if len(tries) < 200:
            raise ConnectionError("down")
        return len(tries)

    @app.workflow(max_retries=None)
    def flow() -> int:
        if wf.attempt < 50:
            raise ConnectionError("down")
        return wf.attempt

    with TestApp(app):
        assert flaky.start().result() == 200
        assert flow.start().result() == 50
    assert tries == list(range(1, 201))


def test_the_time_within_which_a_step_is_tried_outlives_the_worker(app: App) -> None:
    @app.step(max_retries=None, retry_delay="20s", retry_within="1m")
    def flaky() -> None:
        raise ConnectionError("down")

    with TestApp(app) as world:
        run = flaky.start()
        for _ in range(3):
            world.settle()
            run.pause()  # out of memory: what is known then is what is recorded
            world.settle()
            run.resume()
            world.advance("20s")
        with pytest.raises(ConnectionError):
            run.result()
        assert delays_of(run) == [20, 20, 20]


def test_an_exponential_delay_does_not_overflow_after_a_hundred_retries(app: App) -> None:
    delays = delays_when(app, max_retries=100, retry_delay="exponential", retry_max_delay="1d")
    assert delays[-1] == 86_400


def test_jitter_shortens_each_delay_by_up_to_its_share(app: App) -> None:
    delays = delays_when(app, max_retries=40, retry_delay=["100s"], retry_jitter=0.2)
    assert all(80 <= delay <= 100 for delay in delays)
    assert len(set(delays)) > 30
    assert max(delays) - min(delays) > 5


def test_jitter_true_is_half(app: App) -> None:
    delays = delays_when(app, max_retries=40, retry_delay=["100s"], retry_jitter=True)
    assert all(50 <= delay <= 100 for delay in delays)
    assert min(delays) < 75


def test_a_retryable_error_sets_its_own_delay(app: App) -> None:
    waits: Iterator[Any] = iter(["60s", None, 5, dt.timedelta(minutes=2), None])

    def error() -> Exception:
        return RetryableError("rate limited", retry_after=next(waits, None))

    assert delays_when(app, error, max_retries=4, retry_delay="10s") == [60, 10, 5, 120]


@pytest.mark.parametrize(
    ("given", "us", "words"),
    [
        (1, 1_000_000, "1s"),
        (0.5, 500_000, "500ms"),
        ("90", 90_000_000, "1m30s"),
        ("100ms", 100_000, "100ms"),
        ("1h30m", 5_400_000_000, "1h30m"),
        ("2d", 172_800_000_000, "2d"),
        ("1w", 604_800_000_000, "7d"),
        ("1.5s", 1_500_000, "1s500ms"),
        (" 1h 5s ", 3_605_000_000, "1h5s"),
        ("250us", 250, "250us"),
        (dt.timedelta(days=1, microseconds=1), 86_400_000_001, "1d1us"),
        (0, 0, "0s"),
    ],
)
def test_durations_read_as_people_write_them(given: Any, us: int, words: str) -> None:
    assert to_us(given) == us
    assert in_words(us) == words
    assert to_us(words) == us


@pytest.mark.parametrize("given", ["", "soon", "1x", "5 minutes", "-1s", -1, "1h-5m", float("nan"), dt.timedelta(-1)])
def test_bad_durations_are_refused_with_examples(given: Any) -> None:
    with pytest.raises(ValueError, match=r"timeout: .*'1h30m'"):
        to_us(given, "timeout")


@pytest.mark.parametrize("given", [None, True, [], object()])
def test_what_is_no_duration_is_a_type_error(given: Any) -> None:
    with pytest.raises(TypeError, match=r"is not a duration; give seconds as a number, a timedelta, or text"):
        to_us(given)


# -- which errors are retried


def test_a_fatal_error_fails_at_once(app: App) -> None:
    assert delays_when(app, lambda: FatalError("no use"), max_retries=5) == []


def test_a_subclass_of_fatal_error_fails_at_once_too(app: App) -> None:
    assert delays_when(app, lambda: NoSuchUserError("x")) == []  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("options", "error", "retries"),
    [
        ({"retry_for": [ConnectionError]}, ConnectionResetError("x"), 3),
        ({"retry_for": [ConnectionError]}, ValueError("x"), 0),
        ({"retry_for": ConnectionError}, ConnectionError("x"), 3),
        ({"retry_for": [ConnectionError]}, RetryableError("asks for it"), 3),
        ({"retry_for": [ConnectionError]}, TimeoutError("of the step's own, not ours"), 0),
        ({"no_retry_for": [DeclinedError]}, CardDeclinedError("x"), 0),
        ({"no_retry_for": DeclinedError}, ValueError("x"), 3),
        ({"no_retry_for": [CardDeclinedError], "retry_for": [DeclinedError]}, CardDeclinedError("x"), 0),
        ({"no_retry_for": [CardDeclinedError], "retry_for": [DeclinedError]}, DeclinedError("x"), 3),
    ],
)
def test_retry_for_and_no_retry_for_choose_by_class(
    app: App, options: dict[str, Any], error: Exception, retries: int
) -> None:
    assert len(delays_when(app, lambda: error, **options)) == retries


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, GeneratorExit])
def test_what_is_no_exception_fails_the_step_at_once_and_never_the_worker(app: App, error: type[BaseException]) -> None:
    @app.step
    def quits() -> None:
        raise error("stop")

    @app.step
    async def quits_too() -> None:
        raise error("stop")

    @app.workflow
    async def flow(which: str) -> None:
        quits() if which == "sync" else await quits_too()

    with TestApp(app) as world:
        for which in ("sync", "async"):
            run = flow.start(which)
            with pytest.raises(Exception, match="stop") as caught:
                run.result()
            assert getattr(caught.value, "type_name", "") == f"builtins:{error.__name__}"
            assert run.steps[0].attempts == 1
        assert len(world.calls(quits)) == 1


def test_the_steps_own_exception_reaches_the_workflow_with_message_and_traceback(app: App) -> None:
    seen: list[BaseException] = []

    @app.step(max_retries=1)
    def charge() -> None:
        try:
            {}["card"]  # type: ignore[index]
        except KeyError as error:
            raise CardDeclinedError("card 42", 42) from error

    @app.workflow
    def flow() -> str:
        try:
            charge()
        except DeclinedError as error:
            seen.append(error)
            return "caught"
        return "nothing"

    with TestApp(app):
        assert flow.start().result() == "caught"
    error = seen[0]
    assert type(error) is CardDeclinedError
    assert error.args == ("card 42", 42)
    text = "".join(traceback.format_exception(error))
    assert 'raise CardDeclinedError("card 42", 42)' in text
    assert "KeyError: 'card'" in text


def test_a_step_that_is_not_caught_fails_the_run_with_its_own_exception(app: App) -> None:
    @app.step(max_retries=1)
    async def charge() -> None:
        raise CardDeclinedError("card 42")

    @app.workflow
    async def flow() -> None:
        await charge()

    with TestApp(app):
        run = flow.start()
        with pytest.raises(CardDeclinedError, match="card 42"):
            run.result()
        assert run.status == "FAILURE"
        step = run.steps[0]
        assert (step.state, step.attempts) == (StepState.FAILURE, 2)
        assert isinstance(step.error, CardDeclinedError)


def test_a_success_after_failures_shows_them_in_the_history(app: App) -> None:
    @app.step(max_retries=5, retry_delay="10s")
    def flaky() -> int:
        if this_step.attempt < 3:
            raise OSError(f"attempt {this_step.attempt}")
        return this_step.attempt

    @app.workflow
    def flow() -> int:
        return flaky()

    with TestApp(app) as world:
        run = flow.start()
        assert run.result() == 3
        assert world.kinds(run) == ["RunStarted", "StepRetrying", "StepRetrying", "StepCompleted", "RunCompleted"]
        retries = run.history()[1:3]
        assert [str(event.detail["error"]) for event in retries] == ["attempt 1", "attempt 2"]
        assert [event.attempt for event in run.history()[1:4]] == [1, 2, 3]


def test_a_step_that_waits_for_its_retry_says_so(app: App) -> None:
    @app.step(retry_delay="1h")
    def flaky() -> None:
        if this_step.attempt == 1:
            raise OSError("down")

    @app.workflow
    def flow() -> None:
        flaky()

    with TestApp(app) as world:
        run = flow.start()
        world.settle()
        assert run.status == "WAITING"
        assert run.reason == "retry of step 'flaky' (attempt 2)"
        step = run.steps[0]
        assert step.state == StepState.RETRY
        assert step.retry_at == world.now + dt.timedelta(hours=1)
        world.advance("59m59s")
        assert run.status == "WAITING"
        world.advance("1s")
        assert run.status == "SUCCESS"


def test_a_retry_delay_outlives_the_worker(app: App, tmp_path: Path) -> None:
    calls = tmp_path / "calls"

    @app.step(retry_delay=1)
    def flaky() -> str:
        with calls.open("a") as file:
            file.write(f"{time.time()} ")
        if this_step.attempt == 1:
            raise OSError("down")
        return f"attempt {this_step.attempt}"

    @app.workflow
    def flow() -> str:
        return flaky()

    run = flow.start()
    with app.worker():
        wait_until(lambda: any(event.kind == "StepRetrying" for event in run.history()))
    assert run.status != "SUCCESS"
    with app.worker():
        assert run.result(timeout=10) == "attempt 2"
    first, second = map(float, calls.read_text().split())
    assert 1 <= second - first < 10


def test_options_of_one_call_override_those_of_the_step(app: App) -> None:
    @app.step(max_retries=5)
    def flaky(n: int) -> int:
        raise OSError(str(n))

    @app.workflow
    async def flow() -> list[str]:
        out = []
        for retries in (0, 2):
            try:
                await flaky.options(max_retries=retries).submit(retries)
            except OSError as error:
                out.append(str(error))
        return out

    with TestApp(app) as world:
        assert flow.start().result() == ["0", "2"]
        assert world.calls(flaky) == [(0,), (2,), (2,), (2,)]


def test_options_are_called_as_the_function_is(app: App) -> None:
    @app.step(max_retries=5)
    def plain(n: int) -> int:
        if n == 0:
            raise OSError("down")
        return n + 1

    @app.step
    async def awaited(n: int) -> int:
        return n * 10

    @app.workflow
    def child(n: int) -> int:
        return n + 100

    @app.workflow
    async def async_child(n: int) -> int:
        return n + 1000

    @app.workflow
    async def flow(n: int) -> list[int]:
        a, b = plain.options(timeout="1m")(n), await awaited.options(max_retries=0)(n)
        c, d = child.options(id="c-1")(n), await async_child.options(id="c-2")(n)
        try:
            plain.options(max_retries=1)(0)
        except OSError:
            return [a, b, c, d]
        return []

    @app.workflow
    async def forgets() -> None:
        awaited.options(max_retries=0)(1)

    assert plain.options(timeout="1m")(1) == 2
    assert asyncio.run(awaited.options(timeout="1m")(1)) == 10
    assert asyncio.run(flow(1)) == [2, 10, 101, 1001]
    with TestApp(app) as world:
        assert flow.start(1).result() == [2, 10, 101, 1001]
        assert world.calls(plain) == [(1,), (0,), (0,)]
        assert (app.get_run("c-1").result(), app.get_run("c-2").result()) == (101, 1001)
        with pytest.raises(NeverAwaitedError, match="step 'awaited'"):
            forgets.start().result()


def test_a_run_of_a_single_step_keeps_the_steps_options(app: App) -> None:
    @app.step(max_retries=2, retry_delay="30s")
    def flaky() -> int:
        if this_step.attempt < 3:
            raise OSError("down")
        return this_step.attempt

    with TestApp(app) as world:
        run = flaky.start()
        begin = world.now
        assert run.result() == 3
        assert (world.now - begin).total_seconds() == 60
        with pytest.raises(OSError, match="down"):
            flaky.options(max_retries=0).start().result()


def test_a_force_local_step_is_recorded_and_retried_like_any_other(app: App) -> None:
    @app.step(force_local=True, max_retries=1)
    async def merge(a: int, b: int) -> int:
        if this_step.attempt == 1:
            raise OSError("once")
        return a + b

    @app.workflow
    async def flow() -> int:
        return await merge(1, 2)

    with TestApp(app) as world:
        run = flow.start()
        assert run.result() == 3
        assert world.kinds(run) == ["RunStarted", "StepRetrying", "StepCompleted", "RunCompleted"]


# -- timeouts, in real time


def test_an_async_step_times_out_with_an_error_of_its_own(app: App) -> None:
    ended = threading.Event()

    @app.step(timeout="100ms", max_retries=0)
    async def slow() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            ended.set()

    @app.workflow
    async def flow() -> None:
        await slow()

    with TestApp(app):
        run = flow.start()
        with pytest.raises(StepTimeoutError) as caught:
            run.result()
        assert str(caught.value) == (
            f"step 'slow' of run {run.id} took longer than its timeout of 100ms (attempt 1); make it faster, "
            "or raise timeout="
        )
        assert ended.wait(5)


def test_a_timeout_is_retried_even_when_retry_for_does_not_name_it(app: App) -> None:
    @app.step(timeout="50ms", max_retries=1, retry_for=[ConnectionError])
    async def slow() -> int:
        if this_step.attempt == 1:
            await asyncio.sleep(60)
        return this_step.attempt

    @app.workflow
    async def flow() -> int:
        return await slow()

    with TestApp(app) as world:
        run = flow.start()
        assert run.result() == 2
        assert isinstance(run.history()[1].detail["error"], StepTimeoutError)
        assert world.kinds(run)[1] == "StepRetrying"


def test_a_timeout_error_of_the_steps_own_is_not_taken_for_ours(app: App) -> None:
    @app.step(timeout="30s", max_retries=0)
    async def asks() -> None:
        async with asyncio.timeout(0.01):
            await asyncio.sleep(5)

    @app.workflow
    async def flow() -> str:
        try:
            await asks()
        except TimeoutError as error:
            return type(error).__name__
        return ""

    with TestApp(app):
        assert flow.start().result() == "TimeoutError"


def test_a_step_on_a_thread_that_times_out_loses_its_result(app: App) -> None:
    release = threading.Event()
    outcomes: list[int] = []

    @app.step(timeout="100ms", max_retries=1, retry_delay=0)
    def slow() -> int:
        if this_step.attempt == 1:
            release.wait(10)
            outcomes.append(1)
            return 1
        return 2

    @app.workflow
    def flow() -> int:
        return slow()

    with TestApp(app) as world:
        run = flow.start()
        assert run.result() == 2
        release.set()
        wait_until(lambda: outcomes == [1])
        world.settle()
        kinds = [kind for kind in world.kinds(run) if kind != "StepStarted"]  # shown if it outlives the flush
        assert kinds == ["RunStarted", "StepRetrying", "StepCompleted", "RunCompleted"]
        assert run.steps[0].result == 2


def test_the_slot_of_a_timed_out_thread_stays_taken_until_it_ends(app: App) -> None:
    release = threading.Event()
    begun = threading.Semaphore(0)

    @app.step(timeout="80ms", max_retries=0)
    def blocks() -> None:
        begun.release()
        release.wait(10)

    @app.step(max_retries=0)
    def quick() -> str:
        return "done"

    @app.workflow
    def hog() -> None:
        with contextlib.suppress(TimeoutError):
            blocks()

    @app.workflow
    def modest() -> str:
        return quick()

    with app.worker(concurrency=1):
        first = hog.start()
        assert begun.acquire(timeout=5)
        assert first.result(timeout=5) is None
        second = modest.start()
        with pytest.raises(TimeoutError, match="goes on, ask again later"):
            second.result(timeout=0.2)
        release.set()
        assert second.result(timeout=5) == "done"


def test_a_step_that_shows_no_progress_stalls(app: App) -> None:
    @app.step(stall_timeout="100ms", timeout=None, max_retries=0)
    async def silent() -> None:
        await asyncio.sleep(60)

    @app.step(stall_timeout="400ms", timeout=None, max_retries=0)
    async def alive() -> str:
        for n in range(12):
            this_step.progress(n, 12)
            await asyncio.sleep(0.05)
        return "done"

    @app.workflow
    async def flow() -> str:
        try:
            await silent()
        except StepTimeoutError as error:
            return await alive() + ": " + str(error)
        return ""

    with TestApp(app):
        assert flow.start().result() == (
            "done: step 'silent' made no progress for 100ms (stall_timeout); call this_step.progress() while it works, "
            "or raise the limit"
        )


def test_a_thread_step_that_stalls_fails_too_and_a_checkpoint_is_a_sign_of_life(app: App) -> None:
    release = threading.Event()

    @app.step(stall_timeout="400ms", max_retries=0)
    def silent() -> None:
        for n in range(12):
            this_step.checkpoint(n)
            time.sleep(0.05)
        release.wait(10)

    @app.workflow
    def flow() -> None:
        silent()

    with TestApp(app):
        begin = time.monotonic()
        with pytest.raises(StepTimeoutError, match="no progress for 400ms"):
            flow.start().result()
        assert time.monotonic() - begin > 0.9
        release.set()


def test_without_a_timeout_a_step_takes_its_time(app: App) -> None:
    @app.step(timeout=None)
    async def slow() -> int | None:
        await asyncio.sleep(0.05)
        context = current_step.get()
        assert context is not None
        return context.attempt.timeout

    with TestApp(app):
        assert slow.start().result() is None, "the default is a minute, for which nobody waits here"


# -- pools


def test_sync_steps_run_on_threads_and_async_steps_on_one_loop(app: App) -> None:
    @app.step
    def on_thread() -> str:
        return threading.current_thread().name

    @app.step
    async def on_loop() -> str:
        return threading.current_thread().name

    @app.workflow
    async def flow() -> tuple[str, set[str]]:
        return on_thread(), set(await asyncio.gather(*(on_loop() for _ in range(3))))

    with TestApp(app):
        thread, loops = flow.start().result()
        assert thread.startswith("holdfast-step")
        assert len(loops) == 1
        assert loops != {thread}


def test_async_steps_overlap_on_their_loop(app: App) -> None:
    both = []

    @app.step
    async def meet(barrier: int) -> None:
        both.append(barrier)
        while len(both) < 2:
            await asyncio.sleep(0.001)

    @app.workflow
    async def flow() -> None:
        await asyncio.gather(meet(1), meet(2))

    with TestApp(app):
        flow.start().result()
        assert sorted(both) == [1, 2]


def test_steps_on_threads_overlap_too(app: App) -> None:
    barrier = threading.Barrier(3)

    @app.step(max_retries=0)
    def meet(n: int) -> int:
        barrier.wait(5)
        return n

    @app.workflow
    async def flow() -> list[int]:
        return [await future for future in [meet.submit(n) for n in range(3)]]

    with TestApp(app):
        assert flow.start().result() == [0, 1, 2]


@pytest.fixture(scope="module")
def processes() -> Iterator[App]:
    with process_steps.app.worker():
        yield process_steps.app
    process_steps.app.close()


def test_a_process_step_runs_in_a_process_of_its_own(processes: App) -> None:
    pid = process_steps.call.start("pid_of").result(timeout=20)
    assert pid not in (os.getpid(), None)
    assert process_steps.call.start("async_pid_of").result(timeout=20) != os.getpid()


def test_a_process_that_is_idle_serves_the_next_step(processes: App) -> None:
    first = process_steps.call.start("pid_of").result(timeout=20)
    assert process_steps.call.start("pid_of").result(timeout=20) == first


def test_a_process_step_that_times_out_is_killed(processes: App, tmp_path: Path) -> None:
    mark = tmp_path / "pid"
    with pytest.raises(StepTimeoutError, match="timeout of 300ms"):
        process_steps.call.start("hang", str(mark)).result(timeout=20)
    pid = int(mark.read_text())
    wait_until(lambda: not alive(pid))


def test_a_process_step_that_stalls_is_killed_and_progress_counts(processes: App) -> None:
    run = process_steps.call.start("stall", 12)
    with pytest.raises(StepTimeoutError, match="no progress for 400ms"):
        run.result(timeout=20)
    step = run.steps[0]
    assert step.ended_at is not None
    assert step.started_at is not None
    assert (step.ended_at - step.started_at).total_seconds() > 0.9


def test_a_cancelled_process_step_is_killed(processes: App, tmp_path: Path) -> None:
    mark = tmp_path / "pid"
    run = process_steps.call.start("hang", str(mark))
    wait_until(lambda: mark.exists() and mark.read_text() != "")
    run.cancel()
    wait_until(lambda: run.status == "CANCELLED")
    wait_until(lambda: not alive(int(mark.read_text())))


def test_errors_of_process_steps_keep_type_and_fields_and_are_retried(processes: App) -> None:
    run = process_steps.call.start("fails_oddly")
    with pytest.raises(process_steps.OddError) as caught:
        run.result(timeout=20)
    assert (caught.value.code, caught.value.hint, str(caught.value)) == (2, "try harder", "odd 2")
    assert process_steps.call.start("rate_limited").result(timeout=20) == 2
    with pytest.raises(FatalError, match="no use"):
        process_steps.call.start("fatal").result(timeout=20)


def test_checkpoints_data_and_identity_work_in_a_process(processes: App) -> None:
    run = process_steps.call.start("remembers")
    before, given, key, workflow_id = run.result(timeout=20)  # type: ignore[misc]
    assert before == {"seen": 1}
    assert given == "by the workflow"
    assert key.startswith(run.id)
    assert workflow_id == run.id
    assert run.data == {"given": "by the workflow", "from_process": 2}


def test_an_unserialisable_result_of_a_process_names_its_path(processes: App) -> None:
    with pytest.raises(EncodeError, match=r"the result of step 'unserialisable': \$\.rows\[1\]"):
        process_steps.call.start("unserialisable").result(timeout=20)


def test_a_process_that_cannot_find_the_step_says_why(app: App) -> None:
    @app.step(pool="process", max_retries=0)
    def local() -> None: ...

    with app.worker():
        with pytest.raises(FatalError, match=r"made no app 'shop'; define app and steps at the top of a module"):
            local.start().result(timeout=20)


def test_a_process_that_lacks_the_step_names_what_it_imported(processes: App, monkeypatch: pytest.MonkeyPatch) -> None:
    @processes.step(pool="process", max_retries=0)
    def only_here() -> None: ...

    monkeypatch.setitem(process_steps.STEPS, "only_here", only_here)
    monkeypatch.delitem(processes.definitions.steps, "only_here")
    monkeypatch.setitem(processes.definitions.steps, "only_here", only_here._definition)
    with pytest.raises(UnknownNameError, match=r"'only_here' has imported .*process_steps.*top of a module"):
        process_steps.call.start("only_here").result(timeout=20)


def test_in_a_test_app_process_steps_run_in_this_process(app: App) -> None:
    @app.step(pool="process")
    def here() -> int:
        return os.getpid()

    @app.workflow
    def flow() -> int:
        wf.set_data("x", 1)
        return here()

    with TestApp(app) as world:
        assert flow.start().result() == os.getpid()
        world.mock(here, 5)
        assert flow.start().result() == 5


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_a_step_that_fails_to_validate_is_caught_as_that_also_on_replay(app: App) -> None:
    class Priced(pydantic.BaseModel):
        price: int

    @app.step(max_retries=0)
    def read(text: str) -> int:
        return Priced(price=text).price  # type: ignore[arg-type]

    @app.workflow
    async def order() -> str:
        try:
            read("a lot")
        except pydantic.ValidationError as error:
            await sleep("1d")
            return str(error.errors()[0]["loc"][0])
        return "not reached"

    with TestApp(app):
        assert order.start().result() == "price"


def test_arguments_that_do_not_fit_name_the_step(app: App) -> None:
    @app.step(max_retries=0)
    def need_int(n: int) -> int:
        return n

    @app.workflow
    def order() -> None:
        need_int("three")  # type: ignore[arg-type]

    with TestApp(app), pytest.raises(ValueError, match="the arguments of step 'need_int': n: "):
        order.start().result()


@pytest.mark.parametrize(
    ("word", "hint"),
    [
        ("retries", "here that is max_retries"),
        ("start_to_close_timeout", "here that is timeout"),
        ("bind", "here that is this_step, which tells a step of itself; raise RetryableError in place of self.retry"),
        ("retry_for_", "did you mean 'retry_for'?"),
        ("colour", "known: at_most_once, burst, "),
    ],
)
def test_an_option_of_another_system_is_told_by_its_name_here(app: App, word: str, hint: str) -> None:
    options: Any = {word: 1}
    with pytest.raises(DefinitionError, match=re.escape(f"there is no option {word!r}; {hint}")):
        app.step(**options)
    if hint.startswith("here that is max"):
        with pytest.raises(DefinitionError, match=re.escape(hint)):
            app.workflow(**options)


def test_every_word_of_others_is_told_with_options_that_there_are() -> None:
    known = {*StepOptions.__dataclass_fields__, *WorkflowOptions.__dataclass_fields__, "retry_delay", "schedule"}
    known |= {"retry_jitter", "retry_max_delay", "this_step", "nothing", "timeout", "queue"}
    for word, ours in WORDS.items():
        assert word not in known
        assert re.split(r"[ ,:=]", ours)[0] in known, word
