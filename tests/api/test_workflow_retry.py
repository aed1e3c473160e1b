"""Retries of a whole workflow: only what failed runs anew."""

from __future__ import annotations

import asyncio
import datetime as dt
from typing import Any

import pytest
from waiting import wait_until

from holdfast import App, FatalError, RetryableError, RunCancelledError, hook, sleep, wf
from holdfast.testing import TestApp


class TransientError(Exception):
    pass


class PermanentError(Exception):
    pass


def test_the_status_history_shows_the_retry_with_times_and_the_exception(app: App) -> None:
    @app.workflow(max_retries=1, retry_delay="30s", retry_for=(TransientError,))
    async def flow() -> int:
        await sleep("1h")
        if wf.attempt == 1:
            raise TransientError("controlled failure")
        return wf.attempt

    with TestApp(app) as world:
        begin = world.now
        run = flow.start()
        assert run.result() == 2
        entries = run.status_history()
        assert [entry.status for entry in entries] == ["PENDING", "RUNNING", "RETRY", "PENDING", "RUNNING", "SUCCESS"]
        failed_at = begin + dt.timedelta(hours=1)
        assert [entry.at - begin for entry in entries[:3]] == [dt.timedelta(0), dt.timedelta(0), failed_at - begin]
        assert [entry.at for entry in entries[3:]] == [failed_at + dt.timedelta(seconds=30)] * 3
        assert isinstance(entries[2].error, TransientError)
        assert str(entries[2].error) == "controlled failure"
        assert all(entry.error is None for entry in entries if entry.status != "RETRY")


def test_completed_steps_children_sleeps_and_hooks_are_kept(app: App) -> None:
    @app.step
    def reserve(item: str) -> str:
        return f"reserved {item}"

    @app.step
    async def label() -> str:
        return "label"

    @app.workflow
    async def shipping() -> str:
        return await label()

    @app.step(max_retries=0)
    def confirm() -> str:
        if wf.get_data("attempt") == 1:
            raise TransientError("mail server down")
        return "confirmed"

    @app.workflow(max_retries=1)
    async def flow() -> list[Any]:
        wf.set_data("attempt", wf.get_data("attempt", 0) + 1)
        first = reserve("a")
        answer = await hook("approval")
        await sleep("1d")
        return [first, answer, reserve("b"), await shipping(), confirm(), wf.attempt]

    with TestApp(app) as world:
        begin = world.now
        run = flow.start()
        run.send("approval", "yes")
        assert run.result() == ["reserved a", "yes", "reserved b", "label", "confirmed", 2]
        assert world.calls(reserve) == [("a",), ("b",)]
        assert len(world.calls(label)) == 1
        assert len(world.calls(confirm)) == 2
        assert world.now - begin == dt.timedelta(days=1), "the sleep is not slept again"
        assert len(run.children()) == 1
        assert run.data == {"attempt": 2}
        reused = [step.name for step in run.steps if step.reused]
        assert reused == ["reserve", "reserve", "shipping"]
        assert world.kinds(run).count("OutcomeReused") == 5


def test_two_alike_calls_are_matched_by_occurrence(app: App) -> None:
    numbers = iter(range(100))

    @app.step
    def ticket() -> int:
        return next(numbers)

    @app.workflow(max_retries=1)
    def flow() -> list[int]:
        found = [ticket(), ticket()]
        if wf.attempt == 1:
            raise TransientError("x")
        return [*found, ticket()]

    with TestApp(app):
        assert flow.start().result() == [0, 1, 2]


def test_deterministic_values_repeat_in_order(app: App) -> None:
    seen: list[list[Any]] = []

    @app.workflow(max_retries=1, retry_delay="1h")
    def flow() -> None:
        seen.append([wf.uuid(), wf.random(), wf.utc_now(), wf.uuid()])
        if wf.attempt == 1:
            raise TransientError("x")

    with TestApp(app, check_replay=False):
        flow.start().result()
    assert seen[0] == seen[1]


def test_changed_arguments_run_anew(app: App) -> None:
    @app.step
    def work(n: int) -> int:
        return n

    @app.workflow(max_retries=1)
    def flow() -> int:
        found = work(wf.attempt)
        if wf.attempt == 1:
            raise TransientError("x")
        return found

    with TestApp(app) as world:
        assert flow.start().result() == 2
        assert world.calls(work) == [(1,), (2,)]


@pytest.mark.parametrize(
    ("options", "error", "attempts"),
    [
        ({}, TransientError, 1),
        ({"max_retries": 3}, TransientError, 4),
        ({"max_retries": 3, "retry_for": (TransientError,)}, TransientError, 4),
        ({"max_retries": 3, "retry_for": TransientError}, PermanentError, 1),
        ({"max_retries": 3}, FatalError, 1),
    ],
)
def test_max_retries_and_retry_for_decide(
    app: App, options: dict[str, Any], error: type[Exception], attempts: int
) -> None:
    made: list[int] = []

    @app.workflow(**options)
    def flow() -> None:
        made.append(wf.attempt)
        raise error("x")

    with TestApp(app, check_replay=False):
        run = flow.start()
        with pytest.raises(error, match="x"):
            run.result()
        assert run.status == "FAILURE"
    assert made == list(range(1, attempts + 1))


@pytest.mark.parametrize(
    ("delay", "seconds"),
    [
        (0, [0, 0, 0]),
        ("fixed", [1, 1, 1]),
        ("exponential", [1, 2, 4]),
        ("30s", [30, 30, 30]),
        ("linear", [1, 2, 3]),
        ([5, "1m"], [5, 60, 60]),
    ],
)
def test_retry_delays_of_workflows_are_exact_and_durable(app: App, delay: Any, seconds: list[float]) -> None:
    @app.workflow(max_retries=3, retry_delay=delay)
    def flow() -> None:
        raise TransientError("x")

    with TestApp(app):
        run = flow.start()
        with pytest.raises(TransientError):
            run.result()
        entries = run.status_history()
        waits = [
            (entries[n + 1].at - entry.at).total_seconds() for n, entry in enumerate(entries) if entry.status == "RETRY"
        ]
        assert waits == seconds


def test_a_retryable_error_sets_the_delay_of_the_workflow_too(app: App) -> None:
    @app.workflow(max_retries=1)
    def flow() -> int:
        if wf.attempt == 1:
            raise RetryableError("later", retry_after="1h")
        return wf.attempt

    with TestApp(app) as world:
        begin = world.now
        run = flow.start()
        world.settle()
        assert run.status == "RETRY"
        assert run.result() == 2
        assert world.now - begin == dt.timedelta(hours=1)


def test_a_message_between_attempts_waits_for_the_next_one(app: App) -> None:
    @app.workflow(max_retries=1, retry_delay="1h")
    async def flow() -> Any:
        if wf.attempt == 1:
            raise TransientError("x")
        return await hook("answer")

    with TestApp(app) as world:
        begin = world.now
        run = flow.start()
        world.settle()
        run.send("answer", 5)
        world.settle()
        assert run.status == "RETRY"
        assert run.result() == 5
        assert world.now - begin == dt.timedelta(hours=1)


def test_a_run_between_attempts_can_be_cancelled_at_once(app: App) -> None:
    attempts: list[int] = []

    @app.workflow(max_retries=1, retry_delay="1d")
    async def flow() -> None:
        attempts.append(wf.attempt)
        raise TransientError("x")

    with TestApp(app, check_replay=False) as world:
        begin = world.now
        run = flow.start()
        world.settle()
        run.cancel("enough")
        with pytest.raises(RunCancelledError, match="enough"):
            run.result()
        assert world.now == begin
    assert attempts == [1]


def test_options_of_one_call_change_the_number_of_retries(app: App) -> None:
    @app.workflow
    def flow() -> int:
        if wf.attempt < 3:
            raise TransientError("x")
        return wf.attempt

    with TestApp(app):
        assert flow.options(max_retries=2).start().result() == 3
        with pytest.raises(TransientError):
            flow.options(max_retries=1).start().result()


def test_a_failed_child_is_itself_retried_and_keeps_what_it_completed(app: App) -> None:
    @app.step
    def carrier() -> str:
        return "carrier"

    @app.step(max_retries=0)
    def label() -> str:
        if len(world.calls(label)) == 1:
            raise TransientError("printer on fire")
        return "label"

    @app.workflow
    def shipping() -> list[str]:
        return [carrier(), label()]

    @app.workflow(max_retries=1)
    def flow() -> list[str]:
        return shipping()

    with TestApp(app) as world:
        run = flow.start()
        assert run.result() == ["carrier", "label"]
        assert len(world.calls(carrier)) == 1
        assert len(run.children()) == 1
        statuses = [entry.status for entry in run.children()[0].status_history()]
        assert statuses == ["PENDING", "RUNNING", "FAILURE", "PENDING", "RUNNING", "SUCCESS"]


def test_parallel_branches_keep_what_they_completed(app: App) -> None:
    @app.step(max_retries=0)
    async def fetch(n: int) -> int:
        if n == 2 and len([call for call in world.calls(fetch) if call == (2,)]) == 1:
            raise TransientError("x")
        return n * 10

    @app.workflow(max_retries=1)
    async def flow() -> list[int]:
        found = await asyncio.gather(*(fetch(n) for n in range(4)), return_exceptions=True)
        for each in found:
            if isinstance(each, Exception):
                raise each
        return [each for each in found if isinstance(each, int)]

    with TestApp(app) as world:
        assert flow.start().result() == [0, 10, 20, 30]
        assert sorted(world.calls(fetch)) == [(0,), (1,), (2,), (2,), (3,)]


def test_a_retry_after_a_worker_was_lost_between_attempts(app: App) -> None:
    @app.step
    def work() -> str:
        return "kept"

    @app.workflow(max_retries=1, retry_delay="1s")
    def flow() -> list[Any]:
        found = work()
        if wf.attempt == 1:
            raise TransientError("x")
        return [found, wf.attempt]

    run = flow.start()
    with app.worker():
        wait_until(lambda: run.status == "RETRY")
    with app.worker():
        assert run.result(timeout=10) == ["kept", 2]
    assert [step.reused for step in run.steps] == [False, True]


def test_get_data_sees_what_earlier_attempts_wrote_also_in_steps(app: App) -> None:
    @app.step(max_retries=0)
    def mark() -> None:
        wf.set_data("marked", True)

    @app.step(max_retries=0)
    def look() -> Any:
        return wf.get_data("marked")

    @app.workflow(max_retries=1)
    def flow() -> Any:
        if wf.get_data("marked"):
            return look()
        mark()
        raise TransientError("x")

    with TestApp(app):
        assert flow.start().result() is True


def test_attempts_of_a_workflow_are_bounded_in_time(app: App) -> None:
    tried: list[int] = []

    @app.workflow(max_retries=None, retry_delay="20m", retry_within="1h")
    async def stubborn() -> None:
        tried.append(wf.attempt)
        raise ConnectionError("still busy")

    with TestApp(app):
        with pytest.raises(ConnectionError):
            stubborn.start().result()
        assert tried == [1, 2, 3, 4], "at 0, 20, 40 and 60 minutes"
