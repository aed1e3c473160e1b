"""What fails is heard in the worker's log, with the traceback once it is final, and can start an alert."""

from __future__ import annotations

import asyncio
import logging
import traceback
from collections.abc import Iterator
from typing import Any

import process_steps
import pytest

from holdfast import App, DefinitionError, Run, sleep, wf
from holdfast.testing import TestApp


class Heard(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.records: list[Any] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)

    @property
    def lines(self) -> list[tuple[str, str]]:
        return [(record.levelname, record.getMessage()) for record in self.records]


@pytest.fixture
def heard() -> Iterator[Heard]:
    handler, logger = Heard(), logging.getLogger("holdfast.engine")
    logger.addHandler(handler)
    yield handler
    logger.removeHandler(handler)


def outcome(run: Run[Any]) -> BaseException:
    with pytest.raises(Exception) as caught:
        run.result(timeout=30)
    return caught.value


def printed(record: logging.LogRecord) -> str:
    assert record.exc_info
    return "".join(traceback.format_exception(*record.exc_info))


def test_what_a_run_that_succeeds_has_not_waited_for_is_told_once(app: App, heard: Heard) -> None:
    @app.step
    def mail(to: int) -> None: ...

    @app.workflow
    async def pack() -> None:
        await sleep("1d")

    @app.workflow
    async def order() -> str:
        for to in range(2):
            mail.submit(to)
        pack.submit()
        pack.options(on_parent_close="abandon").submit()
        await pack.astart()
        return "done"

    with TestApp(app):
        assert order.options(id="o-1").start().result() == "done"
    assert heard.lines == [
        (
            "WARNING",
            "run o-1 of 'order' returned before step 'mail' (2 times), child 'pack' had ended, which ends with it: await what "
            ".submit() gives (in `def` code: .result()), or cancel it, before you return",
        )
    ]
    assert heard.records[0].run_id == "o-1"


def test_what_code_has_cancelled_itself_is_not_told(app: App, heard: Heard) -> None:
    @app.step
    async def fast() -> int:
        return 1

    @app.step
    async def slow() -> int:
        await asyncio.sleep(3600)
        return 2

    @app.workflow
    async def race() -> int:
        tasks = [asyncio.ensure_future(fast()), asyncio.ensure_future(slow())]
        done, losers = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for loser in losers:
            loser.cancel()
        return done.pop().result()

    @app.workflow
    async def in_time() -> int:
        try:
            async with asyncio.timeout(1):
                return await slow()
        except TimeoutError:
            return 0

    @app.workflow
    async def breaks() -> None:
        slow.submit()
        raise ValueError("no")

    with app.worker():
        assert race.start().result(timeout=30) == 1
        assert in_time.start().result(timeout=30) == 0
        outcome(breaks.start())
    assert [line for level, line in heard.lines if level == "WARNING"] == []


def test_an_attempt_that_is_tried_again_is_a_warning_and_the_last_one_an_error(app: App, heard: Heard) -> None:
    @app.step(max_retries=1, retry_delay="30s")
    def explode(n: int) -> float:
        return n / 0

    with TestApp(app):
        outcome(explode.options(id="e-1").start(3))
    assert heard.lines == [
        (
            "WARNING",
            "step 'explode' of run e-1 failed at attempt 1 of 2, again in 30s: ZeroDivisionError: division by zero",
        ),
        ("ERROR", "step 'explode' of run e-1 failed for good at attempt 2: ZeroDivisionError: division by zero"),
    ]
    warning, error = heard.records
    assert warning.exc_info is None
    assert (error.run_id, error.workflow, error.step, error.attempt) == ("e-1", "explode", "explode", 2)


def test_the_error_of_a_step_carries_the_exception_itself_with_the_users_lines_only(app: App, heard: Heard) -> None:
    @app.step(max_retries=0)
    def explode() -> None:
        raise ValueError("no more stock")

    with app.worker():
        outcome(explode.start())
    (record,) = heard.records
    kind, error, frames = record.exc_info
    assert kind is ValueError
    assert error.args == ("no more stock",)
    assert [frame.name for frame in traceback.extract_tb(frames)] == ["explode"]
    assert 'raise ValueError("no more stock")' in printed(record)


def test_a_run_that_fails_shows_the_line_of_the_workflow_and_that_of_the_step(app: App, heard: Heard) -> None:
    @app.step(max_retries=0)
    def explode() -> None:
        raise ValueError("no more stock")

    @app.workflow(max_retries=1, retry_delay="5s")
    def order() -> None:
        explode()  # in the order

    with TestApp(app):
        outcome(order.options(id="o-1").start())
    step = ("ERROR", "step 'explode' of run o-1 failed for good at attempt 1: ValueError: no more stock")
    assert heard.lines == [
        step,
        ("WARNING", "run o-1 of 'order' failed at attempt 1 of 2, again in 5s: ValueError: no more stock"),
        step,
        ("ERROR", "run o-1 of 'order' failed for good: ValueError: no more stock"),
    ]
    last = heard.records[-1]
    assert type(last.exc_info[1]) is ValueError
    assert "explode()  # in the order" in printed(last)
    assert 'raise ValueError("no more stock")' in printed(last)
    assert "/holdfast/" not in printed(last)


def test_an_error_of_workflow_code_is_told(app: App, heard: Heard) -> None:
    @app.workflow
    async def order() -> None:
        await sleep("1d")
        raise LookupError("nobody by that name")

    with TestApp(app):
        outcome(order.options(id="o-1").start())
    assert heard.lines == [("ERROR", "run o-1 of 'order' failed for good: LookupError: nobody by that name")]
    assert 'raise LookupError("nobody by that name")' in printed(heard.records[0])


def test_success_and_cancellation_are_no_failures(app: App, heard: Heard) -> None:
    @app.workflow
    async def order(days: int) -> None:
        await sleep(days)

    with TestApp(app) as world:
        order.start(0).result()
        run = order.start(86_400)
        world.settle()
        run.cancel("enough")
        world.settle()
        assert run.status == "CANCELLED"
    assert heard.lines == []


def test_a_step_in_a_process_of_its_own_is_told_with_its_traceback(heard: Heard) -> None:
    with process_steps.app.worker():
        outcome(process_steps.fails_oddly.options(id="told-odd").start())
    about = [(record.levelname, record.attempt) for record in heard.records if record.run_id == "told-odd"]
    assert about == [("WARNING", 1), ("ERROR", 2)]
    last = heard.records[-1]
    assert type(last.exc_info[1]) is process_steps.OddError
    assert 'raise OddError(this_step.attempt, hint="try harder")' in printed(last)


class Spiteful(Exception):
    """Worse than what `except Exception` catches."""

    def __str__(self) -> str:
        raise KeyboardInterrupt


def test_an_exception_that_can_not_be_printed_is_told_all_the_same(app: App, heard: Heard) -> None:
    @app.step(max_retries=0)
    def explode() -> None:
        raise Spiteful

    @app.workflow
    def order() -> str:
        try:
            explode()
        except Exception:
            return "went on"
        return "not reached"

    with app.worker():
        assert order.start().result(timeout=30) == "went on"
    (record,) = heard.records
    assert "Spiteful whose text can't be made" in record.getMessage()
    assert "in explode" in printed(record)


def test_a_log_handler_that_raises_does_not_touch_the_run(app: App, capsys: pytest.CaptureFixture[str]) -> None:
    class Broken(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            raise SystemExit("the log server is away")

    @app.step(max_retries=1, retry_delay=0)
    def explode() -> None:
        raise ValueError("no")

    broken, logger = Broken(), logging.getLogger("holdfast.engine")
    logger.addHandler(broken)
    try:
        with app.worker():
            assert type(outcome(explode.start())) is ValueError
    finally:
        logger.removeHandler(broken)
    assert "the log server is away" in capsys.readouterr().err


# -- alerts


def test_on_failure_starts_a_step_for_runs_that_fail_or_need_a_person(app: App) -> None:
    changed = [False]

    @app.workflow
    def order() -> None:
        raise ValueError("no")

    @app.workflow
    async def fickle() -> None:
        wf.set_data("changed" if changed[0] else "as it was", 1)
        await sleep("1d")

    @app.workflow
    def fine() -> None: ...

    @app.on_failure
    @app.step
    def alert(facts: dict[str, Any]) -> tuple[str, str, str]:
        return facts["run_id"], facts["status"], facts["error"][:14]

    with TestApp(app, check_replay=False) as world:
        order.options(id="o-1").start()
        fine.start()
        stuck = fickle.options(id="f-1").start()
        world.settle()
        stuck.pause()
        world.settle()
        changed[0] = True
        stuck.resume()
        world.settle()
        told = sorted(run.result() for run in app.runs(workflow="alert"))
    assert told == [("f-1", "STUCK", "Nondeterminism"), ("o-1", "FAILURE", "ValueError: no")]


def test_on_failure_is_for_one_app_and_for_the_runs_that_where_names(app: App) -> None:
    other = App("other", app.store_url)

    @other.workflow(name="order")
    def of_the_other() -> None:
        raise ValueError("elsewhere")

    @app.workflow
    def order() -> None:
        raise ValueError("no")

    @app.workflow
    def refund() -> None:
        raise ValueError("no")

    @app.on_failure(where={"workflow": "order"})
    @app.workflow
    def alert(facts: dict[str, Any]) -> str:
        return f"{facts['app']} {facts['run_id']}"

    with app.worker(), other.worker():
        outcome(of_the_other.options(id="theirs").start())
        outcome(refund.options(id="r-1").start())
        outcome(order.options(id="o-1").start())
        outcome(of_the_other.options(id="later").start())
        while len(runs := app.runs(workflow="alert", status="SUCCESS")) < 1:
            pass
        assert [run.result() for run in runs] == ["shop o-1"]
    other.close()


def test_on_failure_goes_above_a_step_or_workflow(app: App) -> None:
    with pytest.raises(DefinitionError, match=r"@app.on_failure goes above @app.workflow or @app.step, not on "):

        @app.on_failure  # type: ignore[type-var]
        def alert(facts: dict[str, Any]) -> None: ...
