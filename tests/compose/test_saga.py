"""Sagas: what was done is undone, in reverse, whatever happens on the way."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import pytest
from waiting import wait_until

from holdfast import (
    App,
    ArgumentError,
    DefinitionError,
    DuplicateNameError,
    RunCancelledError,
    Saga,
    SagaFailed,
    hook,
    saga,
    sleep,
    wf,
)
from holdfast.engine.settings import Settings
from holdfast.testing import TestApp

pytestmark = pytest.mark.parametrize("app", ["sqlite"], indirect=True)


class Booking:
    """Steps that book, release and fail, and what they did, in order."""

    def __init__(self, app: App) -> None:
        self.done: list[str] = []
        note = self.done.append

        @app.step(max_retries=0)
        def book(what: str) -> str:
            note(f"book {what}")
            return f"the {what}"

        @app.step(max_retries=0)
        async def abook(what: str, seconds: float = 0) -> str:
            await asyncio.sleep(seconds)
            note(f"book {what}")
            return f"the {what}"

        @app.step(max_retries=2, retry_delay=1)
        def release(what: str, reason: str = "") -> None:
            note(f"release {what}{reason}")

        @app.step(max_retries=0)
        def fail(why: str = "no room") -> None:
            raise ValueError(why)

        @app.workflow
        async def release_slowly(what: str) -> None:
            await sleep("20s")

        self.book, self.abook, self.release, self.fail = book, abook, release, fail
        self.release_slowly = release_slowly


@pytest.fixture
def steps(app: App) -> Booking:
    return Booking(app)


def failure_of(run: Any) -> SagaFailed:
    with pytest.raises(SagaFailed) as caught:
        run.result()
    return caught.value


# -- the block


def test_completed_steps_are_compensated_in_reverse_with_their_results(app: App, steps: Booking) -> None:
    @app.workflow
    async def trip() -> None:
        async with saga() as s:
            flight = s.step(steps.book, "flight", compensate=steps.release)
            assert flight == "the flight"
            assert await s.step(steps.abook, "hotel", compensate=steps.release) == "the hotel"
            s.step(steps.book, "insurance")
            s.step(steps.fail)

    with TestApp(app):
        run = trip.start()
        error = failure_of(run)
        assert steps.done[3:] == ["release the hotel", "release the flight"]
        assert (error.step, repr(error.cause)) == ("fail", "ValueError('no room')")
        assert (error.compensated, error.not_compensated) == (["abook", "book"], {})
        assert str(error) == "saga failed at 'fail': ValueError: no room. Compensated: abook, book"
        assert isinstance(error.__cause__, ValueError)
        assert [run.steps[i].undoes for i in (4, 5)] == [run.steps[1].cmd, run.steps[0].cmd]


def test_a_block_that_ends_well_compensates_nothing(app: App, steps: Booking) -> None:
    @app.workflow
    def trip() -> str:
        with saga() as s:
            try:
                s.step(steps.fail)
            except ValueError:
                return s.step(steps.book, "train", compensate=steps.release)
        raise AssertionError

    with TestApp(app):
        assert trip.start().result() == "the train"
    assert steps.done == ["book train"]


def test_plain_workflows_have_sagas_too(app: App, steps: Booking) -> None:
    @app.workflow
    def trip() -> None:
        with saga("plain") as s:
            s.step(steps.book, "flight", compensate=partial(steps.release, reason="!"))
            wf.wait(s.step(steps.abook, "hotel", compensate=steps.release))
            raise KeyError("lost")

    with TestApp(app):
        error = failure_of(trip.start())
    assert steps.done[2:] == ["release the hotel", "release the flight!"]
    assert (error.step, error.compensated) == ("", ["abook", "book"])
    assert str(error).startswith("saga 'plain' failed: KeyError")


def test_parallel_steps_are_let_finish_and_compensated_in_the_reverse_of_their_ending(app: App, steps: Booking) -> None:
    @app.workflow
    async def trip() -> None:
        async with saga() as s:
            await asyncio.gather(
                s.step(steps.abook, "slow", 0.05, compensate=steps.release),
                s.step(steps.abook, "quick", compensate=steps.release),
                s.step(steps.abook, 3, "not a number", compensate=steps.release),
            )

    with TestApp(app):
        error = failure_of(trip.start())
    assert steps.done == ["book quick", "book slow", "release the slow", "release the quick"]
    assert error.step == "abook#3"
    assert error.compensated == ["abook", "abook#2"]


def test_a_failure_in_a_task_group_is_named(app: App, steps: Booking) -> None:
    @app.workflow
    async def trip() -> None:
        async with saga() as s, asyncio.TaskGroup() as group:
            group.create_task(s.step(steps.abook, "flight", compensate=steps.release))
            await sleep(1)
            s.step(steps.fail)

    with TestApp(app):
        error = failure_of(trip.start())
    assert (error.step, error.compensated) == ("fail", ["abook"])
    assert isinstance(error.cause, ValueError)


def test_a_compensation_is_retried_and_one_that_finally_fails_keeps_no_other_from_running(
    app: App, steps: Booking
) -> None:
    attempts: list[int] = []

    @app.step(max_retries=2, retry_delay=1)
    def stubborn(what: str) -> None:
        attempts.append(1)
        raise OSError("the desk is closed")

    @app.workflow
    async def trip() -> None:
        async with saga() as s:
            s.step(steps.book, "flight", compensate=steps.release)
            s.step(steps.book, "hotel", compensate=stubborn)
            s.step(steps.fail)

    with TestApp(app):
        run = trip.start()
        error = failure_of(run)
        assert run.steps["stubborn"].attempts == 3
        assert run.steps["stubborn"].undoes == run.steps["book#2"].cmd, "the name in the error is found"
    assert steps.done[2:] == ["release the flight"]
    assert len(attempts) == 3
    assert error.compensated == ["book"]
    assert {name: str(why) for name, why in error.not_compensated.items()} == {"book#2": "the desk is closed"}
    assert "Not compensated, to be undone by hand: book#2 (OSError: the desk is closed)" in str(error)


def test_a_cancelled_run_is_compensated_and_then_cancelled(app: App, steps: Booking) -> None:
    @app.workflow
    async def trip() -> None:
        async with saga() as s:
            s.step(steps.book, "flight", compensate=steps.release)
            await hook("never")

    with TestApp(app) as world:
        run = trip.start()
        world.settle()
        run.cancel("changed plans")
        with pytest.raises(RunCancelledError, match="changed plans"):
            run.result()
    assert steps.done == ["book flight", "release the flight"]


def test_a_cancelled_run_whose_compensation_fails_says_so(app: App, steps: Booking) -> None:
    @app.workflow
    async def trip() -> None:
        async with saga() as s:
            s.step(steps.book, "flight", compensate=partial(steps.fail))
            await hook("never")

    with TestApp(app) as world:
        run = trip.start()
        world.settle()
        run.cancel()
        assert list(failure_of(run).not_compensated) == ["book"]


def test_an_action_under_way_when_the_run_is_cancelled_is_let_finish_and_undone(app: App) -> None:
    done: list[str] = []

    @app.step
    async def pay() -> str:
        done.append("paying")
        while "cancelled" not in done:
            await asyncio.sleep(0.001)
        done.append("paid")
        return "receipt"

    @app.step
    def refund(receipt: str) -> None:
        done.append(f"refund {receipt}")

    @app.workflow
    async def trip() -> None:
        async with saga() as s:
            await s.step(pay, compensate=refund)

    with app.worker():
        run = trip.start()
        wait_until(lambda: "paying" in done)
        run.cancel()
        wait_until(lambda: any(event.kind == "CancelRequested" for event in run.history()))
        done.append("cancelled")
        with pytest.raises(RunCancelledError):
            run.result(timeout=10)
    assert done == ["paying", "cancelled", "paid", "refund receipt"]


def test_a_workflow_is_an_action_or_a_compensation_like_a_step(app: App, steps: Booking) -> None:
    @app.workflow
    async def leg(to: str) -> str:
        return steps.book(to)

    @app.workflow
    def rebate(what: str) -> None:
        steps.release(what, " by a workflow")

    @app.workflow
    async def trip() -> None:
        async with saga() as s:
            await s.step(leg, "Rome", compensate=rebate)
            s.step(steps.fail)

    with TestApp(app):
        run = trip.start()
        assert failure_of(run).compensated == ["leg"]
        assert run.steps["rebate"].undoes == run.steps["leg"].cmd
    assert steps.done == ["book Rome", "release the Rome by a workflow"]


def test_a_run_that_is_parked_inside_a_saga_compensates_nothing(app: App, steps: Booking) -> None:
    @app.workflow
    async def trip() -> str:
        async with saga() as s:
            s.step(steps.book, "flight", compensate=steps.release)
            return str(await hook("go"))

    @app.workflow
    def plain_trip() -> str:
        with saga() as s:
            s.step(steps.book, "flight", compensate=steps.release)
            return str(wf.hook("go"))

    with app.worker(settings=Settings(park_after=0.01)):
        for flow in (trip, plain_trip):
            run = flow.start()
            wait_until(lambda run=run: run.status == "WAITING")
            run.send("go", "now")
            assert run.result(timeout=10) == "now"
    assert steps.done == ["book flight", "book flight"]


def test_a_retry_reuses_nothing_that_was_undone(app: App, steps: Booking) -> None:
    broken = [True]

    @app.step(max_retries=0)
    def pay() -> str:
        if broken:
            raise ValueError("no funds")
        return "paid"

    @app.workflow
    async def trip() -> str:
        before = steps.book("visa")
        async with saga() as s:
            await s.step(steps.abook, "flight", compensate=steps.release)
            return before + " " + s.step(pay)

    with TestApp(app):
        run = trip.start()
        failure_of(run)
        broken.clear()
        run.retry()
        assert run.result() == "the visa paid"
    assert steps.done == ["book visa", "book flight", "release the flight", "book flight"]


def test_wrong_calls_are_refused_before_anything_is_done(app: App, steps: Booking) -> None:
    def plain() -> None: ...

    @app.step
    def takes_nothing() -> None: ...

    @app.workflow
    def trip(which: int) -> None:
        with saga() as s:
            if which == 0:
                s.step(plain)
            elif which == 1:
                s.step(steps.book, "flight", compensate=plain)
            elif which == 2:
                s.step(steps.book, "flight", compensate=takes_nothing)
            else:
                s.step(steps.book)

    expected = ["give a step or a workflow", "is no step or workflow", "is called with the action's result", "what"]
    with TestApp(app):
        for which, text in enumerate(expected):
            error = failure_of(trip.start(which))
            assert isinstance(error.cause, ArgumentError)
            assert text in str(error.cause)
    assert steps.done == []


def test_a_saga_works_in_plain_calls_outside_a_run(steps: Booking) -> None:
    async def trip() -> None:
        async with saga() as s:
            s.step(steps.book, "flight", compensate=steps.release)
            await s.step(steps.abook, "hotel", compensate=steps.release)
            s.step(steps.fail)

    with pytest.raises(SagaFailed, match="failed at 'fail'"):
        asyncio.run(trip())
    assert steps.done[2:] == ["release the hotel", "release the flight"]


# -- the definition


def trip_of(app: App, steps: Booking) -> Saga:
    trip = Saga("book-trip", app=app)
    trip.add_step("flight", lambda to: steps.book(f"flight to {to}"), lambda ctx: steps.release(ctx["flight"]))
    trip.add_step("hotel", lambda ctx: steps.book(f"hotel in {ctx['to']}"), lambda hotel, to: steps.release(hotel, to))

    @app.step(max_retries=0)
    async def car(flight: str, hotel: str, size: str = "small") -> str:
        if size == "none":
            raise ValueError("no car")
        return f"{size} car after {flight} and {hotel}"

    @app.step
    def take_back(result: str) -> None:
        steps.done.append(f"take back {result}")

    return trip.add_step("car", car, take_back)


def test_a_saga_gives_the_context_with_what_its_steps_gave(app: App, steps: Booking) -> None:
    trip = trip_of(app, steps)
    with TestApp(app):
        run = trip.start({"to": "Rome", "size": "big"})
        assert run.result() == {
            "to": "Rome",
            "size": "big",
            "flight": "the flight to Rome",
            "hotel": "the hotel in Rome",
            "car": "big car after the flight to Rome and the hotel in Rome",
        }
        assert run.workflow == "book-trip"
        assert [(step.key, step.name) for step in run.steps] == [
            ("flight", "book-trip.flight"),
            ("hotel", "book-trip.hotel"),
            ("car", "car"),
        ]


def test_a_saga_that_fails_is_compensated_over_the_same_context(app: App, steps: Booking) -> None:
    trip = trip_of(app, steps)
    with TestApp(app):
        run = trip.start({"to": "Rome", "size": "none"})
        error = failure_of(run)
        assert error.step == "car"
        assert error.compensated == ["hotel", "flight"]
        assert steps.done[2:] == ["release the hotel in RomeRome", "release the flight to Rome"]
        assert run.steps["flight.undo"].undoes == run.steps["flight"].cmd
        assert run.steps["car"].status == "FAILURE"


def test_steps_after_the_one_that_failed_are_skipped(app: App) -> None:
    trip = Saga("trip", app=app)
    trip.add_step("flight", lambda: 1, lambda: None)
    trip.add_step("hotel", lambda: 1 // 0, max_retries=0)
    trip.add_step("car", lambda: 1)
    with TestApp(app):
        run = trip.start()
        failure_of(run)
        assert {step.key: step.status for step in run.steps} == {
            "flight": "SUCCESS", "hotel": "FAILURE", "car": "SKIPPED", "flight.undo": "SUCCESS"
        }  # fmt: skip


def test_a_saga_outside_a_run_is_a_plain_call(app: App, steps: Booking) -> None:
    trip = trip_of(app, steps)
    assert asyncio.run(trip({"to": "Oslo"}))["car"].startswith("small car")
    with pytest.raises(SagaFailed, match="Compensated: hotel, flight"):
        asyncio.run(trip({"to": "Oslo", "size": "none"}))


def test_a_saga_is_a_child_in_a_workflow_and_a_step_of_another_saga(app: App, steps: Booking) -> None:
    trip = trip_of(app, steps)
    outer = Saga("holiday", app=app)
    outer.add_step("leave", lambda: "leave", lambda ctx: steps.done.append("no leave"))
    outer.add_step("trip", trip, lambda trip: steps.done.append(f"undo {len(trip)}"))
    outer.add_step("pack", steps.fail)

    @app.workflow
    async def weekend() -> str:
        return str((await trip({"to": "Bonn"}))["flight"])

    with TestApp(app):
        assert weekend.start().result() == "the flight to Bonn"
        assert failure_of(outer.start({"to": "Bonn", "why": "rain"})).compensated == ["trip", "leave"]
    assert steps.done[-2:] == ["undo 6", "no leave"]


def test_what_cannot_work_is_refused_when_it_is_defined_or_started(app: App, steps: Booking) -> None:
    trip = trip_of(app, steps)
    with pytest.raises(DuplicateNameError, match="has a step 'hotel' already"):
        trip.add_step("hotel", lambda: 1)
    with pytest.raises(DuplicateNameError, match="book-trip"):
        Saga("book-trip", app=app)
    with pytest.raises(ArgumentError, match="'flight' takes 'to', which is neither"):
        trip.start({})
    with pytest.raises(ArgumentError, match="as a dict"):
        trip.start(["Rome"])
    with pytest.raises(DefinitionError, match="no option 'retries'"):
        trip.add_step("more", lambda: 1, retries=3)
    with pytest.raises(DefinitionError, match="retry_for= is given where"):
        trip.add_step("more", steps.book, retry_for=ValueError)
    with pytest.raises(DefinitionError, match="leave out the /"):
        trip.add_step("odd", lambda a=1, /: a)


def test_a_retry_of_a_saga_does_again_what_was_undone(app: App, steps: Booking) -> None:
    broken = [True]
    trip = Saga("trip", app=app)
    trip.add_step("visa", lambda: steps.book("visa"))
    trip.add_step("flight", lambda: steps.book("flight"), lambda result: steps.release(result))
    trip.add_step("pay", lambda: 1 // (not broken), max_retries=0)
    with TestApp(app):
        run = trip.start({})
        failure_of(run)
        broken.clear()
        run.retry()
        assert run.result()["pay"] == 1
        assert run.steps["visa"].reused
    assert steps.done == ["book visa", "book flight", "release the flight", "book flight"]


@pytest.mark.parametrize(
    ("inner", "how", "said"),
    [(5, "sleep", "timed out"), (None, "fail", "SagaFailed"), (5, "fail", "SagaFailed"), (None, "sleep", "timed out")],
)
def test_timeouts_that_expire_during_a_roll_back_end_as_timeouts_do(
    app: App, steps: Booking, inner: int | None, how: str, said: str
) -> None:
    @app.workflow
    async def flow() -> str:
        try:
            async with asyncio.timeout(10), asyncio.timeout(inner):
                async with saga() as s:
                    s.step(steps.book, "flight", compensate=steps.release_slowly)
                    if how == "fail":
                        steps.fail()
                    await sleep("100s")
        except TimeoutError:
            await sleep("1s")  # the run goes on: no cancellation is left over
            return "timed out"
        except SagaFailed:
            await sleep("1s")
            return "SagaFailed"
        return "neither"

    with TestApp(app):
        assert flow.start().result() == said


def test_a_timeout_that_expired_during_a_roll_back_reaches_the_code_that_goes_on_inside_of_it(
    app: App, steps: Booking
) -> None:
    @app.workflow
    async def flow() -> str:
        try:
            async with asyncio.timeout(10):
                try:
                    async with saga() as s:
                        s.step(steps.book, "flight", compensate=steps.release_slowly)
                        steps.fail()
                except SagaFailed:
                    await sleep("100s")
        except TimeoutError:
            return "timed out"
        return "went on"

    with TestApp(app) as world:
        before = world.now
        assert flow.start().result() == "timed out"
        assert (world.now - before).total_seconds() < 60


def test_a_run_that_is_cancelled_during_a_roll_back_is_cancelled_after_it(app: App, steps: Booking) -> None:
    @app.workflow
    async def flow() -> str:
        try:
            async with asyncio.timeout(None), saga() as s:
                s.step(steps.book, "flight", compensate=steps.release_slowly)
                steps.fail()
        except SagaFailed:
            await sleep("1s")
        return "went on"

    with TestApp(app) as world:
        run = flow.start()
        world.advance("1s")
        run.cancel("enough")
        with pytest.raises(RunCancelledError, match="enough"):
            run.result()
