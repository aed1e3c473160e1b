"""Standard logging in runs: records say where they were made, workflow code is heard once, what steps log is kept."""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import process_steps
import pytest
from waiting import wait_until

from holdfast import (
    App,
    Codec,
    DefinitionError,
    LogLine,
    Run,
    RunFields,
    StepLogs,
    StepTimeoutError,
    hook,
    sleep,
    this_step,
    wf,
)
from holdfast.engine.settings import Settings
from holdfast.logs import KEPT_BYTES, KEPT_LINES, KeptLogs
from holdfast.ports import Attempt
from holdfast.testing import TestApp

log = logging.getLogger("shop.orders")


class Heard(logging.Handler):
    """Keeps what it is given, with the fields that a formatter would use."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)

    @property
    def messages(self) -> list[str]:
        return [record.getMessage() for record in self.records]

    @property
    def places(self) -> list[tuple[Any, ...]]:
        return [(r.getMessage(), r.run_id, r.workflow, r.step, r.attempt) for r in self.records]  # type: ignore[attr-defined]


@pytest.fixture
def heard() -> Iterator[Heard]:
    """Everything that loggers below `shop` say, from INFO on."""
    handler, shop = Heard(), logging.getLogger("shop")
    shop.addHandler(handler)
    shop.setLevel(logging.INFO)
    yield handler
    shop.removeHandler(handler)
    shop.setLevel(logging.NOTSET)


def lines(run: Run[Any]) -> list[tuple[str, int, list[str]]]:
    return [(kept.step, kept.attempt, [line.message for line in kept.lines]) for kept in run.logs()]


# -- what records carry


def test_a_record_says_in_which_run_workflow_step_and_attempt_it_was_made(app: App, heard: Heard) -> None:
    @app.step(max_retries=1, retry_delay=0)
    def plain() -> None:
        log.info("in a plain step")
        if this_step.attempt == 1:
            raise ConnectionError

    @app.step
    async def awaited() -> None:
        log.info("in an async step")
        await asyncio.to_thread(log.info, "in a thread of it")

    @app.workflow
    async def order() -> None:
        log.info("in the workflow")
        plain()
        await awaited()

    with TestApp(app):
        order.options(id="o1").start().result()
    assert heard.places == [
        ("in the workflow", "o1", "order", "", 1),
        ("in a plain step", "o1", "order", "plain", 1),
        ("in a plain step", "o1", "order", "plain", 2),
        ("in an async step", "o1", "order", "awaited", 1),
        ("in a thread of it", "o1", "order", "awaited", 1),
    ]


def test_a_library_that_does_not_propagate_is_marked_and_kept_too(app: App) -> None:
    library, handler = logging.getLogger("some.library"), Heard()
    library.propagate = False
    library.addHandler(handler)

    @app.step
    def call() -> None:
        library.warning("retrying in %d s", 3)

    with TestApp(app):
        run = call.options(id="c1").start()
        run.result()
        assert lines(run) == [("call", 1, ["retrying in 3 s"])]
    assert handler.places == [("retrying in 3 s", "c1", "call", "call", 1)]
    library.removeHandler(handler)


def test_what_extra_says_is_left_as_it_is(app: App, heard: Heard) -> None:
    @app.step
    def call() -> None:
        log.info("mine", extra={"step": "third of five", "customer": 7})

    with TestApp(app):
        call.options(id="c1").start().result()
    [record] = heard.records
    assert (record.step, record.run_id, record.customer) == ("third of five", "c1", 7)  # type: ignore[attr-defined]


def test_a_format_that_names_the_fields_works_outside_of_runs_with_the_filter() -> None:
    handler = Heard()
    handler.addFilter(RunFields())
    handler.setFormatter(logging.Formatter("%(run_id)s|%(workflow)s|%(step)s|%(attempt)d|%(message)s"))
    record = logging.makeLogRecord({"msg": "before any worker"})
    handler.handle(record)
    assert handler.format(record) == "|||0|before any worker"


PROBE = """
import logging
hook = logging.Logger.callHandlers
from holdfast import App, RunFields, wf
app = App("shop", ":memory:")
step = app.step(len, name="len") if False else None
assert logging.Logger.callHandlers is hook
with app.worker():
    assert logging.Logger.callHandlers is not hook
"""


def test_a_program_that_runs_no_worker_keeps_its_logging_as_it_is() -> None:
    subprocess.run([sys.executable, "-c", PROBE], check=True)


# -- workflow code is heard once


def test_replay_says_nothing(app: App, heard: Heard) -> None:
    @app.step
    def work() -> int:
        return 1

    @app.workflow
    async def order() -> int:
        log.info("begin")
        work()
        log.info("worked")
        await sleep("1d")
        log.info("slept")
        return work()

    with TestApp(app) as world:
        run = order.start()
        run.result()
        assert heard.messages == ["begin", "worked", "slept"]
        world.replay(run)
        assert heard.messages == ["begin", "worked", "slept"]


def test_a_run_that_left_memory_and_came_back_goes_on_where_it_was_heard_last(app: App, heard: Heard) -> None:
    @app.workflow
    async def order() -> str:
        log.info("begin")
        try:
            await sleep("20ms")
            log.info("slept")
            answer = str(await hook("answer"))
        finally:
            log.info("leaving")  # also when it is put out of memory, but then it has not left
        log.info("got %s", answer)
        return answer

    with app.worker(settings=Settings(park_after=0.01, park_factor=0)) as engine:
        run = order.start()
        wait_until(lambda: run.status == "WAITING" and not engine.engine.runs)
    with app.worker():
        run.send("answer", "yes")
        assert run.result(timeout=10) == "yes"
    assert heard.messages == ["begin", "slept", "leaving", "got yes"]


def test_each_attempt_of_a_workflow_is_heard_and_steps_that_are_reused_are_not(app: App, heard: Heard) -> None:
    @app.step
    def work() -> None:
        log.info("working")

    @app.workflow(max_retries=1)
    async def order() -> None:
        log.info("begin")
        work()
        log.info("worked")
        if wf.attempt == 1:
            raise ConnectionError
        log.info("better now")

    with TestApp(app):
        order.options(id="o1").start().result()
    assert heard.places == [
        ("begin", "o1", "order", "", 1),
        ("working", "o1", "order", "work", 1),
        ("worked", "o1", "order", "", 1),
        ("begin", "o1", "order", "", 2),
        ("worked", "o1", "order", "", 2),
        ("better now", "o1", "order", "", 2),
    ]


def test_each_round_of_a_run_that_continues_as_new_is_heard(app: App, heard: Heard) -> None:
    @app.workflow
    async def rounds(left: int) -> None:
        log.info("%d left", left)
        await sleep("1h")
        if left:
            wf.continue_as_new(left - 1)

    with TestApp(app):
        rounds.start(2).result()
    assert heard.messages == ["2 left", "1 left", "0 left"]


def test_a_fork_is_heard_from_where_it_leaves_the_run_it_came_from(app: App, heard: Heard) -> None:
    @app.step
    def work(n: int) -> int:
        return n

    @app.workflow
    async def order() -> None:
        log.info("begin")
        log.info("first %d", work(1))
        log.info("second %d", work(2))

    with TestApp(app):
        run = order.options(id="o1").start()
        run.result()
        seen = len(heard.records)
        run.fork(at=2, id="o2").result()
    assert heard.places[seen:] == [("second 2", "o2", "order", "", 1)]


def test_a_run_that_was_paused_before_it_began_is_heard_from_its_beginning(app: App, heard: Heard) -> None:
    @app.workflow
    async def order() -> None:
        log.info("begin")

    with TestApp(app) as world:
        run = order.options(delay="1h").start()
        run.pause()
        wait_until(lambda: run.status == "PAUSED")
        world.advance("2h")
        run.resume()
        run.result()
    assert heard.messages == ["begin"]


# -- what is kept


def test_what_each_attempt_has_logged_is_kept_with_it(app: App, heard: Heard) -> None:
    @app.step(max_retries=1, retry_delay=0)
    async def charge(amount: int) -> None:
        log.debug("not even made")
        log.info("charging %d", amount)
        try:
            {}["card"]
        except KeyError:
            log.exception("no card")
        if this_step.attempt == 1:
            raise ConnectionError

    with TestApp(app):
        run = charge.start(5)
        run.result()
        first, second = run.logs()
        assert asyncio.run(run.alogs()) == [first, second]
        assert first.cmd == second.cmd == run.steps[0].cmd
    assert isinstance(first, StepLogs)
    assert (first.step, first.attempt, first.dropped, second.attempt) == ("charge", 1, 0, 2)
    line, error = first.lines
    assert (line.level, line.logger, line.message) == ("INFO", "shop.orders", "charging 5")
    assert isinstance(line, LogLine)
    assert abs(line.at.timestamp() - heard.records[0].created) < 0.001
    assert error.message.startswith("no card\nTraceback")
    assert error.message.endswith("KeyError: 'card'")


def test_the_history_holds_nothing_of_it(app: App, heard: Heard) -> None:
    @app.step
    def call() -> None:
        log.info("a secret of the log")

    with TestApp(app):
        run = call.start()
        run.result()
        assert lines(run) == [("call", 1, ["a secret of the log"])]
        assert not any(b"a secret" in payload for payload in app.store.payloads(run.id))


@pytest.mark.parametrize(
    ("level", "kept"), [("warning", ["so so"]), (logging.DEBUG, ["tiny", "fine", "so so"]), (None, None)]
)
def test_the_level_from_which_on_logs_are_kept_can_be_chosen(
    tmp_path: Path, heard: Heard, level: str | int | None, kept: list[str] | None
) -> None:
    app = App("shop", str(tmp_path / "shop.db"), keep_logs=level)
    logging.getLogger("shop").setLevel(logging.DEBUG)

    @app.step
    def call() -> None:
        log.debug("tiny")
        log.info("fine")
        log.warning("so so")

    with app.worker():
        run = call.start()
        run.result(timeout=10)
    assert heard.messages == ["tiny", "fine", "so so"]
    assert lines(run) == ([] if kept is None else [("call", 1, kept)])
    app.close()


@pytest.mark.parametrize("level", ["LOUD", 1.5, True])
def test_a_level_that_is_none_is_refused(level: Any) -> None:
    with pytest.raises(DefinitionError, match=r"keep_logs=.*give a level such as 'INFO'"):
        App("shop", keep_logs=level)


def test_the_last_lines_are_kept_and_the_others_counted(app: App, heard: Heard) -> None:
    @app.step
    def chatty() -> None:
        for n in range(KEPT_LINES + 50):
            log.info("line %d", n)

    @app.step
    def wordy() -> None:
        for n in range(30):
            log.info("%d %s", n, "x" * 5_000)
        log.info("y" * KEPT_BYTES)

    with TestApp(app):
        many, long = chatty.start(), wordy.start()
        many.result(), long.result()
        [kept] = many.logs()
        assert (kept.dropped, len(kept.lines)) == (50, KEPT_LINES)
        assert (kept.lines[0].message, kept.lines[-1].message) == ("line 50", f"line {KEPT_LINES + 49}")
        [kept] = long.logs()
        assert kept.dropped + len(kept.lines) == 31
        assert KEPT_BYTES / 2 < sum(len(line.message) for line in kept.lines) <= KEPT_BYTES
        assert "characters left out" in kept.lines[-1].message


def test_a_record_that_can_not_be_formatted_does_not_disturb_the_step(
    app: App, heard: Heard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging, "raiseExceptions", False)  # pytest's own handler raises what others print

    class Rude:
        def __str__(self) -> str:
            raise RuntimeError("no")

    @app.step
    def call() -> str:
        log.info("%d items", "many")
        log.info("%s", Rude())
        return "done"

    with TestApp(app):
        run = call.start()
        assert run.result() == "done"
        [(_, _, messages)] = lines(run)
    assert messages[0] == "'%d items' ('many',)"
    assert len(messages) == 2


def test_text_that_no_encoding_knows_is_kept_as_far_as_it_can_be() -> None:
    kept = KeptLogs()
    kept.add(logging.makeLogRecord({"msg": "half a \ud800 pair"}))
    attempt = Attempt(
        token=1, run_no=1, run_id="r1", workflow="w", root_id="r1", parent_id=None, cmd="1s0", step="s", args=b"", number=1,
        idempotency_key="", timeout=None, stall_timeout=None, pool="thread", data={},
    )  # fmt: skip
    encoded = kept.encode(attempt, Codec())
    assert encoded is not None
    assert json.loads(encoded)["lines"][0][3] == "half a \\ud800 pair"


class Rot:
    """Stands for encryption."""

    name = "rot"

    def encode(self, data: bytes) -> bytes:
        return base64.b85encode(data)

    def decode(self, data: bytes) -> bytes:
        return base64.b85decode(data)


def test_logs_are_sealed_as_values_are(tmp_path: Path, heard: Heard) -> None:
    app = App("shop", str(tmp_path / "shop.db"), codec=Codec(transforms=[Rot()]))

    @app.step
    def call() -> None:
        log.info("card 4111")

    with app.worker():
        run = call.start()
        run.result(timeout=10)
    assert lines(run) == [("call", 1, ["card 4111"])]
    assert not any(b"4111" in body for body in app.store.attributes(run.id, "logs").values())
    app.close()


def test_a_step_that_ran_out_of_time_leaves_what_it_had_logged(app: App, heard: Heard) -> None:
    late = threading.Event()

    @app.step(timeout="50ms", max_retries=0)
    def hang() -> None:
        log.info("so far so good")
        late.wait(10)
        log.info("too late")

    with app.worker():
        run = hang.start()
        with pytest.raises(StepTimeoutError):
            run.result(timeout=10)
        late.set()
        wait_until(lambda: "too late" in heard.messages)
    assert lines(run) == [("hang", 1, ["so far so good"])]


def test_an_outcome_that_takes_the_long_way_brings_its_logs(app: App, heard: Heard) -> None:
    gate = threading.Event()

    @app.step
    def work() -> str:
        log.info("working")
        gate.wait(10)
        return "done"

    @app.workflow
    async def order() -> str:
        return work()

    with app.worker() as engine:
        run = order.start()
        wait_until(lambda: heard.messages == ["working"])
        run.pause()
        wait_until(lambda: run.status == "PAUSED" and not engine.engine.runs)
        gate.set()
        wait_until(lambda: not engine.engine.inflight)
        run.resume()
        assert run.result(timeout=10) == "done"
    assert lines(run) == [("work", 1, ["working"])]


def test_a_run_without_a_history_keeps_no_logs(app: App, heard: Heard) -> None:
    @app.step
    def work() -> None:
        log.info("working")

    @app.workflow(durable=False)
    async def order() -> None:
        work()

    with TestApp(app):
        run = order.start()
        run.result()
        assert (heard.messages, run.logs()) == (["working"], [])


# -- processes


@pytest.fixture
def processes(heard: Heard) -> Iterator[App]:
    with process_steps.app.worker():
        yield process_steps.app
    process_steps.app.close()


@pytest.mark.usefixtures("processes")
def test_what_a_step_logs_in_a_process_of_its_own_is_handled_and_kept_here(heard: Heard) -> None:
    run = process_steps.call.options(id="c1").start("talks", "hello")
    pid = run.result(timeout=20)
    assert heard.places == [
        ("hello from 1", "c1", "call", "talks", 1),
        ("it went wrong", "c1", "call", "talks", 1),
    ]
    first, second = heard.records
    assert (first.process, first.order, hasattr(first, "thing")) == (pid, 17, False)  # type: ignore[attr-defined]
    assert "ZeroDivisionError" in (second.exc_text or "")
    [kept] = run.logs()
    assert [line.message.splitlines()[0] for line in kept.lines] == ["hello from 1", "it went wrong"]
    assert kept.lines[1].message.endswith("ZeroDivisionError: division by zero")


@pytest.mark.usefixtures("processes")
def test_a_step_that_takes_its_process_down_leaves_what_it_had_logged(heard: Heard) -> None:
    run = process_steps.call.start("dies_talking")
    with pytest.raises(Exception, match="took its worker down"):
        run.result(timeout=30)
    assert lines(run) == [("dies_talking", 1, ["last words"])]


def test_kept_logs_are_plain_json(app: App, heard: Heard) -> None:
    @app.step
    def call() -> None:
        log.info("hello")

    with TestApp(app):
        run = call.start()
        run.result()
        [body] = app.store.attributes(run.id, "logs").values()
    kept = json.loads(body)
    assert (kept["step"], kept["attempt"], kept["dropped"]) == ("call", 1, 0)
    at, *line = kept["lines"][0]
    assert line == ["INFO", "shop.orders", "hello"]
    assert abs(at / 1_000_000 - time.time()) < 60
