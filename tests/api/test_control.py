"""Runs from the outside: ids, waiting, looking, pausing, retrying, forking, deleting, listing."""

from __future__ import annotations

import asyncio
import datetime as dt
import gc
import inspect
import logging
import threading
import time
from typing import Any

import pytest
from waiting import MovedClock, wait_until

from holdfast import (
    App,
    ArgumentError,
    DefinitionError,
    Run,
    RunCancelledError,
    RunError,
    RunExistsError,
    RunFinishedError,
    RunNotFoundError,
    Status,
    StepState,
    WaitTimeoutError,
    hook,
    sleep,
    this_step,
    wf,
)
from holdfast.api import results as results_module
from holdfast.app import SystemClock
from holdfast.engine.run import LiveRun
from holdfast.engine.settings import Settings
from holdfast.testing import TestApp

# -- ids


def test_the_same_id_again_is_the_same_run(app: App) -> None:
    @app.step
    def charge(order: str) -> str:
        return f"charged {order}"

    @app.workflow
    def fulfil(order: str) -> str:
        return charge(order)

    with TestApp(app) as world:
        one = fulfil.options(id="order-17").start("o")
        two = fulfil.options(id="order-17").start("o")
        assert one == two
        assert one.result() == two.result() == "charged o"
        three = fulfil.options(id="order-17", if_exists="return").start("o")
        assert three.result() == "charged o"
        assert len(world.calls(charge)) == 1
        assert one.id == "order-17"


@pytest.mark.parametrize("other", [{"order": "other"}, {"order": "o", "express": True}])
def test_the_same_id_with_other_arguments_is_an_error(app: App, other: dict[str, Any]) -> None:
    @app.workflow
    def fulfil(order: str, express: bool = False) -> None: ...

    with TestApp(app):
        fulfil.options(id="order-17").start("o").result()
        with pytest.raises(RunExistsError, match=r"^run 'order-17' exists with other arguments; choose") as caught:
            fulfil.options(id="order-17").start(**other)
        assert caught.value.run_id == "order-17"


def test_the_same_call_spelled_with_keywords_is_the_same_run(app: App) -> None:
    @app.workflow
    def fulfil(order: str, express: bool = False) -> None: ...

    with TestApp(app):
        fulfil.options(id="order-17").start("o")
        assert fulfil.options(id="order-17").start(order="o").id == "order-17"
        fulfil.options(id="order-18").start("o", True)
        assert fulfil.options(id="order-18").start(express=True, order="o").id == "order-18"


def test_the_same_id_with_another_workflow_is_an_error(app: App) -> None:
    @app.workflow
    def fulfil() -> None: ...

    @app.workflow
    def refund() -> None: ...

    with TestApp(app):
        fulfil.options(id="order-17").start()
        with pytest.raises(
            RunExistsError, match=r"exists of another workflow, 'fulfil' and not 'refund'; choose another id$"
        ):
            refund.options(id="order-17").start()


def test_if_exists_error_refuses_any_second_start(app: App) -> None:
    @app.workflow
    def fulfil() -> None: ...

    with TestApp(app):
        fulfil.options(id="order-17", if_exists="error").start().result()
        with pytest.raises(RunExistsError, match=r"there is a run 'order-17' already \(SUCCESS\); choose another id"):
            fulfil.options(id="order-17", if_exists="error").start()


def test_if_exists_restart_replaces_a_run_that_has_ended(app: App) -> None:
    @app.workflow
    async def fulfil(n: int) -> int:
        wf.set_data("n", n)
        if n == 3:
            await hook("never")
        return n

    with TestApp(app) as world:
        run = fulfil.options(id="order-17").start(1)
        assert run.result() == 1
        again = fulfil.options(id="order-17", if_exists="restart").start(3)
        world.settle()
        assert again.status == "WAITING"
        assert again.data == {"n": 3}
        assert len(app.runs()) == 1
        with pytest.raises(RunExistsError, match=r"only a run that has ended can be restarted; cancel it first"):
            fulfil.options(id="order-17", if_exists="restart").start(4)


def test_two_apps_on_one_store_have_ids_of_their_own(app: App) -> None:
    other = App("other", app.store_url)

    @app.workflow(name="flow")
    def ours() -> None: ...

    @other.workflow(name="flow")
    def theirs() -> None: ...

    ours.options(id="same").start()
    theirs.options(id="same").start()
    assert [len(each.runs()) for each in (app, other)] == [1, 1]
    other.close()


@pytest.mark.parametrize("bad", ["", "two words", "line\nbreak", "x" * 256, "nul\0", 5])
def test_bad_ids_are_refused(app: App, bad: Any) -> None:
    @app.workflow
    def fulfil() -> None: ...

    with pytest.raises(ArgumentError, match=r"an id is a text of 1 to 255 printable characters without spaces"):
        fulfil.options(id=bad).start()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"if_exists": "replace"}, "if_exists='replace': give 'return', 'error' or 'restart'"),
        ({"on_parent_close": "kill"}, "on_parent_close='kill': give 'cancel' or 'abandon'"),
        ({"delay": "soon"}, "delay: cannot read 'soon'"),
        ({"delay": -1}, "delay: -1 is negative"),
        ({"delay": 1, "at": dt.datetime(2030, 1, 1, tzinfo=dt.UTC)}, "delay= and at= both say when"),
        ({"at": dt.datetime(2030, 1, 1)}, "has no time zone; give e.g. datetime"),
        ({"at": "tomorrow"}, "at='tomorrow': give a datetime with a time zone"),
        ({"priority": "high"}, "priority='high': give a whole number from 0"),
        ({"priority": -1}, "priority=-1: give a whole number from 0, which is the default; higher goes first"),
        ({"timeout": 0}, "timeout=0 leaves no time at all"),
        ({"max_retries": -1}, "max_retries=-1"),
    ],
)
def test_bad_options_of_a_call_are_refused_where_they_are_written(
    app: App, options: dict[str, Any], words: str
) -> None:
    @app.workflow
    def fulfil() -> None: ...

    with pytest.raises((DefinitionError, ArgumentError), match=words):
        fulfil.options(**options)


# -- beginning later


@pytest.mark.parametrize("how", ["delay", "at", "countdown", "eta"])
def test_a_delayed_start_begins_at_its_time(app: App, how: str) -> None:
    @app.workflow
    def flow() -> dt.datetime:
        return wf.utc_now()

    with TestApp(app) as world:
        due = world.now + dt.timedelta(hours=2)
        if how == "delay":
            run = flow.options(delay="2h").start()
        elif how == "at":
            run = flow.options(at=due).start()
        elif how == "countdown":
            run = flow.apply_async(countdown=7200)
        else:
            run = flow.apply_async(eta=due)
        world.settle()
        assert run.status == "PENDING"
        world.advance("1h59m")
        assert run.status == "PENDING"
        assert run.result() == due
        assert run.started_at == due
        assert run.created_at == due - dt.timedelta(hours=2)


def test_a_time_in_the_past_begins_now(app: App) -> None:
    @app.workflow
    def flow() -> None: ...

    with TestApp(app) as world:
        begin = world.now
        run = flow.options(at=begin - dt.timedelta(days=1)).start()
        run.result()
        assert world.now == begin


def test_a_delayed_run_can_be_cancelled_before_it_begins(app: App) -> None:
    @app.workflow
    def flow() -> None: ...

    with TestApp(app) as world:
        begin = world.now
        run = flow.options(delay="1d").start()
        run.cancel("never mind")
        with pytest.raises(RunCancelledError, match="never mind"):
            run.result()
        assert world.now == begin


def test_a_message_does_not_begin_a_delayed_run_early(app: App) -> None:
    @app.workflow
    async def flow() -> list[Any]:
        return [wf.utc_now(), await hook("go")]

    with TestApp(app) as world:
        due = world.now + dt.timedelta(hours=1)
        run = flow.options(delay="1h").start()
        run.send("go", 1)
        world.settle()
        assert (run.status, run.started_at) == ("PENDING", None)
        assert run.result() == [due, 1]


def test_a_delayed_run_sleeps_from_when_it_begins(app: App) -> None:
    @app.workflow
    async def flow() -> None:
        await sleep("1h")

    with TestApp(app) as world:
        begin = world.now
        flow.options(delay="1d").start().result()
        assert world.now - begin == dt.timedelta(days=1, hours=1)


def test_a_run_that_waited_for_a_worker_sleeps_from_when_it_is_taken_up(app: App) -> None:
    """Also if it is parked and taken over: its time begins once."""

    @app.workflow
    async def flow() -> float:
        before = wf.utc_now()
        await sleep("1h")
        return (wf.utc_now() - before).total_seconds()

    run = flow.start()
    clock = app.storage.clock = _Later()
    app.close()
    for _ in range(2):
        with app.worker():
            wait_until(lambda: run.status == "WAITING" or any(e.kind == "RunTakenUp" for e in run.history()))
        clock.offset += 1_200_000_000
    assert [event.kind for event in run.history()] == ["RunStarted", "RunTakenUp", "TimeRead"]
    clock.offset += 3_600_000_000
    with app.worker():
        assert 3600 <= run.result(timeout=10) < 2 * 3600


class _Later(SystemClock):
    """A day later than it is, and more."""

    offset = 86_400_000_000

    def now(self) -> int:
        return super().now() + self.offset


def test_runs_that_sleep_leave_nothing_in_memory(app: App) -> None:
    @app.workflow
    async def flow(number: int) -> None:
        await sleep("1h")

    gc.freeze()  # what other tests have left is not counted
    with app.worker(settings=Settings(park_after=0.01)) as engine:
        flow.start_many(range(1_500))
        wait_until(lambda: not engine.engine.runs and not app.runs(status=["PENDING", "RUNNING"], limit=1), 60)
        wait_until(lambda: _count_live_runs() == 0)
        assert len(engine.engine.live_runs.due) <= 1_000


def _count_live_runs() -> int:
    gc.collect()
    return sum(isinstance(each, LiveRun) for each in gc.get_objects())


def test_a_delayed_run_that_was_paused_and_resumed_still_begins_at_its_time(app: App) -> None:
    @app.workflow
    def flow() -> dt.datetime:
        return wf.utc_now()

    with TestApp(app) as world:
        due = world.now + dt.timedelta(hours=1)
        run = flow.options(delay="1h").start()
        run.pause("not yet")
        world.settle()
        assert (run.status, run.reason) == ("PAUSED", "not yet")
        run.resume()
        world.settle()
        assert run.status == "PENDING"
        assert run.result() == due


def test_a_higher_priority_goes_first_and_never_before_its_time(app: App) -> None:
    order: list[str] = []

    @app.step
    def note(name: str) -> None:
        order.append(name)

    @app.workflow
    def flow(name: str) -> None:
        note(name)

    runs = [
        flow.start("normal"),
        flow.options(priority=1).start("higher"),
        flow.options(priority=5).start("highest"),
        flow.options(priority=5, delay="1h").start("later"),
    ]
    with app.worker(
        concurrency=1, settings=Settings(claim=1)
    ):  # one at a time: what is claimed together is sorted anyway
        for run in runs[:3]:
            run.result(timeout=10)
    assert order == ["highest", "higher", "normal"]


def test_celerys_spellings_start_runs(app: App) -> None:
    @app.workflow
    def flow(a: int, b: int = 0) -> int:
        return a + b

    with TestApp(app):
        assert flow.delay(1, b=2).result() == 3
        run = flow.apply_async((1,), {"b": 5}, task_id="t-1")
        assert (run.id, run.result()) == ("t-1", 6)
        assert flow.options(id="x").delay(1).result() == 1
        with pytest.raises(ArgumentError, match=r"apply_async\(\) has no option 'ignore_result'; known: id, delay,"):
            flow.apply_async((1,), ignore_result=5)


# -- waiting


def test_result_with_a_timeout_says_what_the_run_is_doing(app: App) -> None:
    @app.workflow
    async def flow() -> str:
        return str(await hook("approval"))

    with app.worker():
        run = flow.start()
        wait_until(lambda: run.status == "WAITING")
        with pytest.raises(WaitTimeoutError) as caught:
            run.result(timeout="200ms")
        assert caught.value.run_id == run.id
        assert str(caught.value) == (
            f"run {run.id} is WAITING (hook 'approval') after 200ms; it goes on, ask again later"
        )
        run.send("approval", "yes")
        assert run.result(timeout=10) == "yes"


def test_a_result_comes_as_its_annotation_says(app: App) -> None:
    @app.workflow
    def flow() -> dict[str, tuple[int, ...]]:
        return {"a": (1, 2)}

    with TestApp(app):
        assert flow.start().result() == {"a": (1, 2)}


def test_a_run_can_be_awaited_by_async_code(app: App) -> None:
    @app.workflow
    async def flow(n: int) -> int:
        await sleep("1h")
        return n * 2

    async def main() -> list[int]:
        async with TestApp(app):
            runs = [await flow.astart(n) for n in range(3)]
            found = list(await asyncio.gather(*runs))
            return [*found, await runs[0].aresult(timeout="1m")]

    assert asyncio.run(main()) == [0, 2, 4, 0]


def test_any_number_of_callers_may_await_runs_at_once(app: App) -> None:
    @app.workflow
    async def flow(n: int) -> int:
        return int(await hook("answer")) + n

    async def main() -> list[int]:
        async with TestApp(app):
            runs = [await flow.astart(n) for n in range(60)]

            async def answer() -> None:
                for run in runs:
                    await run.asend("answer", 100)

            *found, _ = await asyncio.gather(*runs, answer())
            return found

    assert asyncio.run(main()) == [n + 100 for n in range(60)]


def test_a_caller_that_stops_awaiting_leaves_nothing_behind(app: App) -> None:
    @app.workflow
    async def flow() -> None:
        await hook("never")

    async def main(run: Run[None]) -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await run

    with app.worker():
        run = flow.start()
        asyncio.run(main(run))
        wait_until(lambda: not any(thread.name == "holdfast-wait" for thread in threading.enumerate()))


def test_the_result_of_a_failed_run_is_its_exception_each_time_it_is_asked_for(app: App) -> None:
    @app.workflow
    def flow() -> None:
        raise ValueError("broken")

    with TestApp(app):
        run = flow.start()
        for _ in range(2):
            with pytest.raises(ValueError, match="broken"):
                run.result()


def test_without_a_worker_result_warns_with_path_and_command(
    app: App, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(results_module, "WARN_AFTER", 0.05)

    @app.workflow
    def flow() -> None: ...

    run = flow.start()
    with (
        caplog.at_level(logging.WARNING, "holdfast"),
        pytest.raises(TimeoutError, match="PENDING after 300ms; no worker of"),
    ):
        run.result(timeout=0.3)
    (record,) = [record for record in caplog.records if "no worker" in record.message]
    assert "shop.db" in record.message
    assert "worker" in record.message
    assert "holdfast -A" in record.message


def test_a_run_that_fails_with_a_timeout_is_told_from_one_that_takes_too_long(app: App) -> None:
    @app.workflow
    async def fails() -> None:
        raise TimeoutError("the bank is slow")

    @app.workflow
    async def waits() -> None:
        await hook("approval")

    @app.step(max_retries=0)
    def asks(run_id: str) -> None:
        app.get_run(run_id).result(timeout="10ms")

    with app.worker():
        with pytest.raises(TimeoutError, match="the bank is slow") as own:
            fails.start().result(timeout=10)
        assert not isinstance(own.value, WaitTimeoutError)
        slow = waits.start()
        run = asks.start(slow.id)
        with pytest.raises(WaitTimeoutError) as caught:
            run.result(timeout=10)
        assert caught.value.run_id == slow.id  # and not the run's own id
        with pytest.raises(WaitTimeoutError, match="has not published 'total'"):
            slow.wait_data("total", timeout="10ms")
        with pytest.raises(WaitTimeoutError, match="has not answered request 'total'"):
            slow.ask("total", timeout="10ms")


def test_a_timeout_says_that_no_worker_serves_the_queue_of_a_step(
    app: App, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(results_module, "WARN_AFTER", 0.05)

    @app.step(queue="gpu")
    def paint() -> None: ...

    with app.worker():
        run = paint.start()
        wait_until(lambda: run.status == "WAITING")
        with (
            caplog.at_level(logging.WARNING, "holdfast"),
            pytest.raises(WaitTimeoutError, match=r"no worker serves queue 'gpu'; start one: .*--queues gpu$"),
        ):
            run.result(timeout="1200ms")
    assert [record for record in caplog.records if f"run {run.id}: step 'paint' waits" in record.message]


def test_a_timeout_says_that_no_worker_knows_the_workflow(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(results_module, "WARN_AFTER", 0.05)

    @app.workflow
    def known() -> None: ...

    with app.worker():
        run = app.remote("unknown").start()
        with pytest.raises(WaitTimeoutError, match="no live worker knows 'unknown'; start one whose code defines it"):
            run.result(timeout="300ms")


# -- looking


def test_a_run_shows_status_times_and_workflow(app: App) -> None:
    @app.workflow
    async def flow() -> None:
        await sleep("1h")

    with TestApp(app) as world:
        begin = world.now
        run = flow.start()
        assert run.workflow == "flow"
        assert run.parent_id is None
        assert run.finished_at is None
        run.result()
        assert (run.created_at, run.started_at) == (begin, begin)
        assert run.finished_at == begin + dt.timedelta(hours=1)
        assert repr(run) == f"<run '{run.id}'>"


@pytest.mark.parametrize(
    ("wait", "reason"),
    [
        ("hook", "hook 'approval' key 'k'"),
        ("sleep", "sleep"),
        ("both", "hook 'approval', sleep"),
        ("retry", "retry of step 'flaky' (attempt 2)"),
    ],
)
def test_waiting_has_a_reason(app: App, wait: str, reason: str) -> None:
    @app.step(retry_delay="1h")
    def flaky() -> None:
        raise OSError("down")

    @app.workflow
    async def flow(wait: str) -> None:
        if wait == "hook":
            await hook("approval", key="k")
        elif wait == "sleep":
            await sleep("1h")
        elif wait == "both":
            await asyncio.gather(hook("approval"), sleep("1h"))
        else:
            flaky()

    with TestApp(app) as world:
        run = flow.start(wait)
        world.settle()
        assert (run.status, run.reason) == (Status.WAITING, reason)


def test_history_is_numbered_from_one_without_gaps_and_decoded(app: App) -> None:
    @app.step
    def add(a: int, *, b: int) -> int:
        return a + b

    @app.workflow
    async def flow(a: int) -> int:
        wf.set_data("a", a)
        found = add(a, b=2)
        await sleep("1h")
        return found

    with TestApp(app) as world:
        run = flow.start(1)
        run.result()
        events = run.history()
        assert [event.seq for event in events] == list(range(1, len(events) + 1))
        assert [event.kind for event in events] == [
            "RunStarted",
            "DataSet",
            "StepCompleted",
            "TimerFired",
            "RunCompleted",
        ]
        started, data, step, timer, end = events
        assert started.detail["input"] == (1,)
        assert (data.name, data.detail["args"]) == ("a", (1,))
        assert (step.name, step.detail["args"], step.detail["result"]) == ("add", (1, {"b": 2}), 3)
        assert step.cause == 1
        assert timer.detail["due"] == world.now
        assert end.detail["result"] == 3
        assert all(event.at.tzinfo is dt.UTC for event in events)


def test_steps_show_what_became_of_each(app: App) -> None:
    @app.step(max_retries=1)
    def flaky(n: int, *, mode: str = "ok") -> int:
        if this_step.attempt == 1:
            raise OSError("again")
        return n

    @app.step(max_retries=0)
    def broken() -> None:
        raise ValueError("broken")

    @app.workflow
    def child() -> str:
        return "child"

    @app.workflow
    def flow() -> str:
        flaky(1, mode="x")
        try:
            broken()
        except ValueError:
            return child()
        return ""

    with TestApp(app):
        run = flow.start()
        run.result()
        first, second, third = run.steps
        assert (first.name, first.state, first.attempts, first.result) == ("flaky", StepState.SUCCESS, 2, 1)
        assert (first.args, first.kwargs) == ((1,), {"mode": "x"})
        assert (second.state, str(second.error)) == (StepState.FAILURE, "broken")
        assert (third.name, third.result, third.child_run_id) == ("child", "child", run.children()[0].id)
        assert first.worker
        assert first.started_at is not None
        assert first.ended_at is not None


def test_a_step_that_takes_long_is_shown_as_started(app: App) -> None:
    go = threading.Event()

    @app.step
    def slow() -> None:
        go.wait(10)

    @app.workflow
    def flow() -> None:
        slow()

    with app.worker():
        run = flow.start()
        wait_until(lambda: bool(run.steps) and run.steps[0].state == StepState.STARTED)
        assert run.status == "RUNNING"
        go.set()
        run.result(timeout=10)
        kinds = [event.kind for event in run.history()]
        assert kinds == ["RunStarted", "StepStarted", "StepCompleted", "RunCompleted"]


def test_get_run_finds_by_id_and_an_unknown_id_is_a_clear_error(app: App) -> None:
    @app.workflow
    def flow() -> int:
        return 5

    with TestApp(app):
        run = flow.start()
        assert app.get_run(run.id).result() == 5
        assert app.get_run(run.id) == run
        with pytest.raises(RunNotFoundError, match=r"no run 'nothing' in app 'shop' on :memory:"):
            app.get_run("nothing")


# -- cancelling


def test_a_cancelled_run_says_why(app: App) -> None:
    @app.workflow
    async def flow() -> None:
        await hook("never")

    with TestApp(app) as world:
        run = flow.start()
        world.settle()
        run.cancel("customer called")
        with pytest.raises(RunCancelledError, match=rf"run {run.id} was cancelled: customer called") as caught:
            run.result()
        assert caught.value.run_id == run.id
        assert run.status == "CANCELLED"
        assert run.status_history()[-1].reason == "customer called"


def test_cancelling_twice_or_after_the_end_is_told(app: App) -> None:
    @app.workflow
    async def flow() -> None:
        await hook("never")

    with TestApp(app) as world:
        run = flow.start()
        world.settle()
        run.cancel("first")
        run.cancel("second")
        world.settle()
        assert run.status_history()[-1].reason == "first"
        with pytest.raises(RunFinishedError, match=rf"can't cancel it: run {run.id} has ended \(CANCELLED\)"):
            run.cancel()


# -- pausing


def test_a_paused_run_begins_nothing_new_and_goes_on_when_resumed(app: App) -> None:
    begun, go = threading.Event(), threading.Event()

    @app.step
    def first() -> str:
        begun.set()
        go.wait(10)
        return "first"

    @app.step
    def second() -> str:
        return "second"

    @app.workflow
    def flow() -> list[str]:
        return [first(), second()]

    with TestApp(app) as world:
        run = flow.start()
        assert begun.wait(10)
        run.pause("maintenance")
        wait_until(lambda: run.status == "PAUSED")
        assert run.reason == "maintenance"
        go.set()
        world.settle()
        assert world.calls(second) == []
        run.resume()
        assert run.result() == ["first", "second"]
        assert len(world.calls(first)) == 1, "what executed meanwhile is kept"


def test_time_passes_for_a_paused_run_and_hooks_are_kept(app: App) -> None:
    @app.workflow
    async def flow() -> Any:
        await sleep("1h")
        return await hook("approval")

    with TestApp(app) as world:
        run = flow.start()
        world.settle()
        run.pause()
        world.settle()
        run.send("approval", "while paused")
        world.advance("2h")
        assert run.status == "PAUSED"
        begin = world.now
        run.resume()
        assert run.result() == "while paused"
        assert world.now == begin


def test_the_status_history_shows_the_pause(app: App) -> None:
    @app.workflow
    async def flow() -> None:
        await hook("go")

    with TestApp(app) as world:
        run = flow.start()
        world.settle()
        run.pause("why")
        world.advance("1h")
        run.resume()
        run.send("go")
        run.result()
        entries = run.status_history()
        assert [entry.status for entry in entries] == ["PENDING", "RUNNING", "PAUSED", "RUNNING", "SUCCESS"]
        assert entries[2].reason == "why"
        assert entries[3].at - entries[2].at == dt.timedelta(hours=1)


def test_a_paused_run_can_be_cancelled(app: App) -> None:
    @app.workflow
    async def flow() -> None:
        await hook("never")

    with TestApp(app) as world:
        run = flow.start()
        run.pause()
        world.settle()
        run.cancel("enough")
        with pytest.raises(RunCancelledError, match="enough"):
            run.result()


def test_a_run_may_be_paused_before_it_begins(app: App) -> None:
    @app.step
    def work() -> str:
        return "done"

    @app.workflow
    def flow() -> str:
        return work()

    with TestApp(app) as world:
        run = flow.options(delay="1h").start()
        run.pause()
        world.advance("2h")
        assert run.status == "PAUSED"
        assert world.calls(work) == []
        run.resume()
        assert run.result() == "done"


def test_resuming_what_is_not_held_is_an_error(app: App) -> None:
    @app.workflow
    async def flow() -> None:
        await hook("go")

    with TestApp(app) as world:
        run = flow.start()
        world.settle()
        with pytest.raises(RunError, match=r"is WAITING; only PAUSED and STUCK runs can be resumed"):
            run.resume()
        with pytest.raises(RunError, match=r"is WAITING; only a run that has failed or was cancelled can be retried"):
            run.retry()
        run.send("go")
        run.result()
        with pytest.raises(RunFinishedError, match=r"can't pause it: run .* has ended \(SUCCESS\)"):
            run.pause()
        with pytest.raises(RunError, match="is SUCCESS"):
            run.retry()


# -- retrying


def test_a_failed_run_is_retried_and_keeps_what_it_had_completed(app: App) -> None:
    healthy: list[bool] = []

    @app.step
    def reserve() -> str:
        return "reserved"

    @app.step(max_retries=0)
    def charge() -> str:
        if not healthy:
            raise OSError("down")
        return "charged"

    @app.workflow
    def flow() -> list[str]:
        return [reserve(), charge()]

    with TestApp(app) as world:
        run = flow.start()
        with pytest.raises(OSError, match="down"):
            run.result()
        healthy.append(True)
        run.retry()
        assert run.result() == ["reserved", "charged"]
        assert (len(world.calls(reserve)), len(world.calls(charge))) == (1, 2)
        assert [step.reused for step in run.steps if step.name == "reserve"] == [False, True]
        statuses = [entry.status for entry in run.status_history()]
        assert statuses == ["PENDING", "RUNNING", "FAILURE", "PENDING", "RUNNING", "SUCCESS"]


def test_result_after_retry_waits_for_the_new_outcome(app: App) -> None:
    @app.step(max_retries=0)
    def charge() -> str:
        if wf.get_data("tries", 0) < 5:
            raise OSError("down")
        return "charged"

    @app.workflow
    async def flow() -> str:
        wf.set_data("tries", wf.get_data("tries", 0) + 1)
        return charge()

    with app.worker():
        run = flow.start()
        for _ in range(4):
            with pytest.raises(OSError, match="down"):
                run.result(timeout=10)
            run.retry()
        assert run.result(timeout=10) == "charged"
        assert run.data == {"tries": 5}


def test_a_cancelled_run_can_be_retried(app: App) -> None:
    @app.step
    def work() -> str:
        return "work"

    @app.workflow
    async def flow() -> list[Any]:
        return [work(), await hook("answer")]

    with TestApp(app) as world:
        run = flow.start()
        world.settle()
        run.cancel()
        with pytest.raises(RunCancelledError):
            run.result()
        run.retry()
        run.send("answer", 5)
        assert run.result() == ["work", 5]
        assert len(world.calls(work)) == 1


# -- forking


def forkable(app: App) -> tuple[Any, Any, Any]:
    @app.step
    def price(item: str) -> int:
        return len(item)

    @app.step
    def charge(amount: int) -> str:
        return f"charged {amount}"

    @app.workflow
    def flow(item: str) -> str:
        wf.set_data("item", item)
        return charge(price(item))

    return price, charge, flow


def seq_of(run: Run[Any], kind: str, name: str = "") -> int:
    return next(event.seq for event in run.history() if event.kind == kind and name in ("", event.name))


def test_a_fork_shares_the_history_before_its_point(app: App) -> None:
    price, charge, flow = forkable(app)
    with TestApp(app) as world:
        run = flow.start("lamp")
        assert run.result() == "charged 4"
        forked = run.fork(at=seq_of(run, "StepCompleted", "price"))
        assert forked.result() == "charged 4"
        assert forked.id.startswith(f"{run.id}-fork-")
        assert (len(world.calls(price)), len(world.calls(charge))) == (1, 2)
        assert forked.history()[0].detail["forked_from"] == run.id
        assert forked.data == {"item": "lamp"}
        assert run.result() == "charged 4"


def test_a_fork_can_replace_a_recorded_result(app: App) -> None:
    _, charge, flow = forkable(app)
    with TestApp(app) as world:
        run = flow.start("lamp")
        run.result()
        at = seq_of(run, "StepCompleted", "price")
        forked = run.fork(at=at, replace={at: 99}, id="corrected")
        assert forked.result() == "charged 99"
        assert forked.id == "corrected"
        assert world.calls(charge) == [(4,), (99,)]


def test_a_fork_can_replace_the_input(app: App) -> None:
    price, _, flow = forkable(app)
    with TestApp(app) as world:
        run = flow.start("lamp")
        run.result()
        assert run.fork(at=1, input=("chandelier",)).result() == "charged 10"
        assert world.calls(price) == [("lamp",), ("chandelier",)]


def test_an_input_that_does_not_fit_is_refused_before_the_fork(app: App) -> None:
    _, _, flow = forkable(app)
    with TestApp(app):
        run = flow.start("lamp")
        run.result()
        with pytest.raises(ArgumentError, match="flow"):
            run.fork(at=1, input=(["no", "text"],))
        assert len(app.runs()) == 1


def test_a_fork_that_leads_the_code_elsewhere_is_told_so(app: App) -> None:
    @app.step
    def price(item: str) -> int:
        return 4

    @app.workflow
    async def order(item: str) -> int:
        await sleep(1 if price(item) < 10 else 60)
        return price(item)

    with TestApp(app, check_replay=False) as world:
        run = order.options(id="o-1").start("lamp")
        run.result()
        at = seq_of(run, "StepCompleted", "price")
        forked = run.fork(at=seq_of(run, "TimerFired"), input=("chandelier",), replace={at: 4})
        assert forked.result() == 4  # other arguments alone are a warning

        @app.workflow(name="order2")
        async def other(go: bool) -> int:
            return price("a") if go else 0

        first = other.start(True)
        first.result()
        forked = first.fork(at=seq_of(first, "StepCompleted", "price"), input=(False,))
        world.settle()
        assert forked.status == "STUCK"
        assert f"This is a fork of run {first.id}" in forked.reason
        assert "the code asks for nothing more: it has returned" in forked.reason
        assert "wf.patched" not in forked.reason


def test_code_that_differs_from_itself_is_told_to_look_for_what_is_not_recorded(app: App) -> None:
    calls: list[int] = []

    @app.workflow
    async def order() -> None:
        calls.append(1)
        wf.set_data(f"seen {len(calls)}", 1)
        await sleep("1d")

    with TestApp(app, check_replay=False) as world:
        run = order.start()
        world.settle()
        run.pause()
        world.settle()
        run.resume()
        world.settle()
        assert run.status == "STUCK"
        assert "the history has set_data 'seen 1' 1, the code asks for set_data 'seen 2' 1" in run.reason
        assert "look for random numbers, the clock, globals" in run.reason
        assert "Deploy the code" not in run.reason
        run.resume()
        world.settle()
        assert "Deploy the code" in run.reason  # nobody knows any more who made the history


def test_a_fork_can_turn_a_failure_into_a_result(app: App) -> None:
    @app.step(max_retries=0)
    def charge() -> str:
        raise OSError("down")

    @app.workflow
    def flow() -> str:
        return charge()

    with TestApp(app):
        run = flow.start()
        with pytest.raises(OSError, match="down"):
            run.result()
        at = seq_of(run, "StepFailed")
        assert run.fork(at=at, replace={at: "paid by hand"}).result() == "paid by hand"


def test_steps_in_flight_at_the_point_run_anew_and_the_caller_is_told(
    app: App, caplog: pytest.LogCaptureFixture
) -> None:
    @app.step
    async def slow(n: int) -> int:
        return n

    @app.workflow
    async def flow() -> int:
        return sum(await asyncio.gather(slow(1), slow(2)))

    with TestApp(app) as world:
        run = flow.start()
        assert run.result() == 3
        first = seq_of(run, "StepCompleted")
        assert run.fork_reruns(at=1) == []
        with caplog.at_level(logging.WARNING, "holdfast"):
            assert run.fork(at=first).result() == 3
        assert len(world.calls(slow)) == 3


def test_bad_forks_are_refused(app: App) -> None:
    _, _, flow = forkable(app)
    with TestApp(app):
        run = flow.start("lamp")
        run.result()
        last = run.history()[-1].seq
        with pytest.raises(RunError, match=rf"has events 1 to {last}; it can't be forked at 99"):
            run.fork(at=99)
        with pytest.raises(RunError, match=r"can't be forked at 0"):
            run.fork(at=0)
        with pytest.raises(RunError, match=r"event 1 is RunStarted, which has no result to replace"):
            run.fork(at=3, replace={1: 5})
        with pytest.raises(RunError, match=r"no outcome to replace at event 50"):
            run.fork(at=3, replace={50: 5})
        with pytest.raises(RunExistsError, match=rf"there is a run '{run.id}' already; choose another id"):
            run.fork(at=1, id=run.id)
        with pytest.raises(ArgumentError, match=r"flow\(item.*too many positional arguments"):
            run.fork(at=1, input=("a", "b"))
        with pytest.raises(ArgumentError, match=r"input='lamp': give a tuple of arguments"):
            run.fork(at=1, input="lamp")  # type: ignore[arg-type]


# -- deleting


def test_delete_forgets_a_run_that_has_ended_or_is_held(app: App) -> None:
    @app.workflow
    async def flow(wait: bool) -> None:
        if wait:
            await hook("never")

    with TestApp(app) as world:
        ended = flow.start(False)
        ended.result()
        ended.delete()
        with pytest.raises(RunNotFoundError):
            _ = ended.status
        with pytest.raises(RunNotFoundError):
            ended.delete()
        waiting = flow.start(True)
        world.settle()
        with pytest.raises(RunError, match=r"is WAITING; cancel or pause it before it is deleted"):
            waiting.delete()
        waiting.pause()
        world.settle()
        waiting.delete()
        assert app.runs() == []


# -- listing


def test_runs_are_listed_newest_first_and_filtered(app: App) -> None:
    @app.workflow
    async def good(n: int) -> int:
        return n

    @app.workflow
    async def bad() -> None:
        raise ValueError("x")

    @app.workflow
    async def parent() -> int:
        return await good(7)

    with TestApp(app) as world:
        first = good.start(1)
        first.result()
        world.advance("1h")
        later = world.now
        failed = bad.start()
        with pytest.raises(ValueError, match="x"):
            failed.result()
        family = parent.start()
        family.result()
        child = family.children()[0]
        assert app.runs() == [child, family, failed, first]
        assert app.runs(status="FAILURE") == [failed]
        assert app.runs(status=Status.FAILURE) == [failed]
        assert app.runs(status=["SUCCESS", "FAILURE"], workflow="bad") == [failed]
        assert app.runs(workflow="good") == [child, first]
        assert app.runs(parent=family.id) == [child]
        assert app.runs(since=later) == [child, family, failed]
        assert app.runs(workflow="nothing") == []


def test_runs_are_found_by_their_data(app: App) -> None:
    @app.step
    def by_step(value: Any) -> None:
        wf.set_data("from_step", value)

    @app.workflow
    def flow(customer: Any, region: str) -> None:
        wf.set_data("customer", "before")
        wf.set_data("customer", customer)
        wf.set_data("region", region)
        by_step(customer)

    with TestApp(app):
        long = "x" * 300
        runs = [flow.start(customer, "eu") for customer in (42, "42", None, [1, 2], long + "a", long + "b")]
        for run in runs:
            run.result()
        for number, customer in enumerate((42, "42", None, [1, 2], long + "a", long + "b")):
            assert app.runs(data={"customer": customer}) == [runs[number]]
            assert app.runs(data={"from_step": customer, "region": "eu"}) == [runs[number]]
        assert app.runs(data={"customer": "before"}) == []
        assert app.runs(data={"customer": 42, "region": "us"}) == []
        assert len(app.runs(data={"region": "eu"})) == 6


def test_pages_follow_a_cursor_and_new_runs_do_not_shift_them(app: App) -> None:
    @app.workflow
    def flow(n: int) -> None: ...

    with TestApp(app):
        runs = [flow.start(n) for n in range(7)]
        page = app.runs(limit=3)
        assert page == runs[:3:-1]
        flow.start(99)
        second = app.runs(limit=3, after=page.cursor)
        assert second == runs[3:0:-1]
        third = app.runs(limit=3, after=second.cursor)
        assert third == [runs[0]]
        assert third.cursor is None
        exact = app.runs(limit=8)
        assert exact.cursor is None


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ({"status": "DONE"}, r"status='DONE': give one of PENDING, RUNNING"),
        ({"status": ["SUCCESS", "x"]}, "status='x'"),
        ({"since": dt.datetime(2030, 1, 1)}, r"since=.* has no time zone"),
        ({"limit": 0}, "limit=0: give a number of 1 or more"),
        ({"after": "x"}, r"after='x': give the cursor of a page"),
    ],
)
def test_bad_queries_are_refused(app: App, query: dict[str, Any], words: str) -> None:
    with pytest.raises(ArgumentError, match=words):
        app.runs(**query)


# -- retention


def test_gc_deletes_what_its_workflow_no_longer_retains(app: App) -> None:
    @app.workflow(retain="1d")
    def brief() -> None: ...

    @app.workflow
    def usual() -> None: ...

    @app.workflow(retain=None)
    def kept() -> None: ...

    @app.workflow(retain="1d")
    async def waiting() -> None:
        await hook("never")

    with TestApp(app) as world:
        runs = [workflow.start() for workflow in (brief, brief, usual, kept)]
        for run in runs:
            run.result()
        waiting.start()
        assert app.gc() == 0
        world.advance("23h")
        assert app.gc() == 0
        world.advance("2h")
        assert app.gc(batch=1) == 2
        assert {run.workflow for run in app.runs()} == {"usual", "kept", "waiting"}
        world.advance("30d")
        assert app.gc() == 1
        world.advance("1000d")
        assert app.gc() == 0
        assert {run.workflow for run in app.runs()} == {"kept", "waiting"}


def test_a_worker_deletes_as_much_as_expires_however_much_that_is(app: App) -> None:
    clock = app.storage.clock = MovedClock()

    @app.workflow(retain="1d")
    def brief() -> None: ...

    for _ in range(120):
        brief.start()
        last = app.emit("Something")
    with app.worker(settings=Settings(sweep=0.02)):
        wait_until(lambda: len(app.runs(status=Status.SUCCESS, limit=200)) == 120)
    clock.move(days=40)
    with app.worker(settings=Settings(sweep=0.02)):
        wait_until(lambda: not app.runs())
        wait_until(lambda: app.store.domain_event(last) is None)


def test_what_failed_before_it_could_run_is_collected_too(app: App) -> None:
    @app.workflow(retain="1d")
    async def flow() -> None:
        await hook("never")

    with TestApp(app) as world:
        run = flow.start()
        world.settle()
        run.cancel()
        world.advance("25h")
        assert app.gc() == 1


# -- async twins


def test_every_method_that_asks_the_store_has_an_async_twin() -> None:
    for cls in (Run, App):
        public = {name: member for name, member in vars(cls).items() if not name.startswith("_")}
        for name, member in public.items():
            twin = public.get(f"a{name}")
            if not inspect.iscoroutinefunction(twin):
                continue
            target = member.fget if isinstance(member, property) else member
            ours, theirs = inspect.signature(target), inspect.signature(twin)
            assert list(ours.parameters.values()) == list(theirs.parameters.values()), name
            assert ours.return_annotation == theirs.return_annotation, name
    asks = {"result", "status", "data", "steps", "history", "status_history", "children", "send", "cancel", "pause"}
    asks |= {"resume", "retry", "fork", "fork_reruns", "delete"}
    assert all(inspect.iscoroutinefunction(getattr(Run, f"a{name}")) for name in asks)
    assert all(
        inspect.iscoroutinefunction(getattr(App, f"a{name}"))
        for name in ("start", "get_run", "runs", "send_hook", "gc")
    )


def test_the_async_twins_do_what_their_originals_do(app: App) -> None:
    @app.step
    def work() -> str:
        wf.set_data("x", 1)
        return "work"

    @app.workflow
    async def flow() -> list[Any]:
        return [work(), await hook("go")]

    async def main() -> None:
        async with TestApp(app) as world:
            run = await flow.options(id="r").astart()
            await world.asettle()
            assert await run.astatus() == "WAITING"
            await run.apause("why")
            await world.asettle()
            assert await run.astatus() == "PAUSED"
            await run.aresume()
            await run.asend("go", 1)
            assert await run.aresult() == ["work", 1]
            assert await run.adata() == {"x": 1}
            assert [step.name for step in await run.asteps()] == ["work"]
            assert (await run.ahistory())[0].kind == "RunStarted"
            assert (await run.astatus_history())[-1].status == "SUCCESS"
            assert await run.achildren() == []
            assert await run.afork_reruns(1) == []
            forked = await run.afork(2)
            await forked.acancel()
            await world.asettle()
            await forked.aretry()
            await forked.asend("go", 2)
            assert await forked == ["work", 2]
            await forked.adelete()
            assert await app.aget_run("r") == run
            assert await app.aruns(workflow="flow") == [run]
            assert await app.agc() == 0

    asyncio.run(main())


def test_time_spent_waiting_is_not_busy(app: App) -> None:
    @app.workflow
    async def flow() -> None:
        await sleep("300ms")

    with app.worker():
        run = flow.start()
        begin = time.process_time()
        run.result(timeout=10)
        assert time.process_time() - begin < 0.25
