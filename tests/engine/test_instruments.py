"""What an engine, its executor and clients tell the instruments of their app."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast import App, FatalError, RetryableError, hook, sleep, this_step
from holdfast.engine.settings import Settings
from holdfast.errors import DefinitionError
from holdfast.telemetry import EventReceiver, Instrument, in_order
from holdfast.telemetry.instruments import HOOKS

PATIENCE = 20.0


class Ear(Instrument):
    """Hears everything."""

    def __init__(self) -> None:
        self.heard: list[tuple[str, Any]] = []
        self.changed = threading.Condition()

    def names(self, *beginnings: str) -> list[str]:
        return [name for name, _ in self.heard if name.startswith(beginnings)]

    def reports(self, name: str) -> list[Any]:
        return [report for heard, report in self.heard if heard == name]

    def wait_for(self, name: str, count: int = 1) -> None:
        with self.changed:
            assert self.changed.wait_for(lambda: len(self.reports(name)) >= count, PATIENCE), (name, self.names(""))


def _hear(name: str) -> Any:
    def hear(self: Ear, report: Any) -> None:
        with self.changed:
            self.heard.append((name, report))
            self.changed.notify_all()

    return hear


for _name in HOOKS:
    setattr(Ear, _name, _hear(_name))


@pytest.fixture
def ear() -> Ear:
    return Ear()


@pytest.fixture
def app(tmp_path: Path, ear: Ear) -> Iterator[App]:
    app = App("orders", str(tmp_path / "orders.db"), instruments=[ear])
    yield app
    app.close()


def test_a_run_and_its_steps_are_told_from_beginning_to_end(app: App, ear: Ear) -> None:
    @app.step(max_retries=2, retry_delay=0)
    def charge(amount: int) -> int:
        this_step.progress(1, 2, "half")
        if this_step.attempt == 1:
            raise RetryableError("asleep")
        return amount

    @app.workflow
    def order(amount: int) -> int:
        return charge(amount)

    with app.worker():
        run = order.options(id="o1").start(7)
        assert run.result(timeout=PATIENCE) == 7
        ear.wait_for("run_finished")
    assert ear.names("run_submitted") == ["run_submitted"], "by the client, whose word may come after the worker's"
    told = [name for name in ear.names("run_", "step_") if name != "run_submitted"]
    assert told == [
        "run_started",
        "step_scheduled", "step_started", "step_entered", "step_progressed", "step_retrying",
        "step_scheduled", "step_started", "step_entered", "step_progressed", "step_finished",
        "run_finished",
    ]  # fmt: skip
    (started,), (finished,) = ear.reports("run_started"), ear.reports("run_finished")
    assert (finished.id, finished.workflow, finished.status, finished.attempt) == ("o1", "order", "SUCCESS", 1)
    assert started.waited >= 0
    assert finished.seconds >= 0
    (worker,) = ear.reports("worker_started")
    assert finished.worker == worker.id
    (retrying,) = ear.reports("step_retrying")
    assert (retrying.attempt, retrying.error, retrying.delay) == (1, "RetryableError: asleep", 0)
    (end,) = ear.reports("step_finished")
    assert (end.name, end.state, end.attempt, end.run_id, end.workflow) == ("charge", "SUCCESS", 2, "o1", "order")
    assert end.seconds >= 0
    assert end.id == retrying.id == ear.reports("step_scheduled")[0].id
    assert all(step.waited >= 0 for step in ear.reports("step_started"))
    assert ear.reports("step_progressed")[0].note == "half"
    assert sum(commit.events for commit in ear.reports("committed")) == 3, "two outcomes, and the end of the run"
    assert all(commit.seconds > 0 for commit in ear.reports("committed"))
    assert sum(claim.count for claim in ear.reports("claimed")) == 1
    assert ear.names("worker_")[0] == "worker_started"
    assert ear.names("worker_")[-1] == "worker_stopped"


def test_what_has_not_been_committed_is_not_told(app: App, ear: Ear) -> None:
    """An outcome whose commit failed may yet be another one."""

    @app.step
    def charge() -> int:
        return 1

    with app.worker() as host:
        commit, store = host.store.commit, host.store
        broken = threading.Event()

        def failing(*args: Any) -> Any:
            if any(change.records for change in args[1]) and not broken.is_set():
                broken.set()
                assert not ear.reports("step_finished")
                from holdfast.errors import StoreBusyError

                raise StoreBusyError("not now")
            return commit(*args)

        store.commit = failing  # type: ignore[method-assign]
        assert charge.start().result(timeout=PATIENCE) == 1
        ear.wait_for("run_finished")
        assert broken.is_set()
        assert ear.names("step_finished", "run_finished") == ["step_finished", "run_finished"]


def test_waits_messages_holds_retries_and_failures_are_told(app: App, ear: Ear) -> None:
    attempts = []

    @app.workflow(max_retries=1, retry_delay=0)
    async def order() -> str:
        answer = await hook("approved")
        attempts.append(answer)
        if len(attempts) == 1:
            raise RetryableError("once more")
        await sleep("1h")
        raise FatalError("never")

    settings = Settings(park_after=0.05, sweep=0.1)
    with app.worker(settings=settings):
        run = order.options(id="o1").start()
        ear.wait_for("run_parked")
        run.send("approved", "yes")
        ear.wait_for("message_received")
        ear.wait_for("run_retrying")
        ear.wait_for("run_parked", 2)
        run.pause()
        ear.wait_for("run_held")
        run.cancel()
        ear.wait_for("run_finished")
    (parked, *_), (retrying,) = ear.reports("run_parked"), ear.reports("run_retrying")
    assert (parked.id, parked.status, parked.reason) == ("o1", "WAITING", "hook 'approved'")
    assert (retrying.status, retrying.error) == ("RETRY", "RetryableError: once more")
    assert [run.attempt for run in ear.reports("run_started")] == [1, 2]
    assert ear.reports("run_held")[0].status == "PAUSED"
    assert ear.reports("run_finished")[0].status == "CANCELLED"
    assert {"hook", "pause", "cancel"} <= {message.kind for message in ear.reports("message_received")}
    assert {"hook", "pause", "cancel"} <= {message.kind for message in ear.reports("message_sent")}
    hooked = next(message for message in ear.reports("message_received") if message.kind == "hook")
    assert hooked.clock > 0
    assert hooked.waited >= 0
    assert ear.reports("run_resumed")


def test_a_run_without_a_history_is_told_too(app: App, ear: Ear) -> None:
    @app.step(max_retries=0)
    def charge() -> int:
        raise FatalError("no")

    @app.workflow(durable=False)
    def order() -> int:
        return charge()

    with app.worker():
        with pytest.raises(FatalError):
            order.start().result(timeout=PATIENCE)
        ear.wait_for("run_finished")
    assert [(step.name, step.state) for step in ear.reports("step_finished")] == [("charge", "FAILURE")]
    assert ear.reports("run_finished")[0].error == "FatalError: no"


def test_an_instrument_that_raises_hears_no_more_and_harms_nobody(
    app: App, ear: Ear, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken(Instrument):
        heard = 0

        def step_started(self, step: Any) -> None:
            self.heard += 1
            raise RuntimeError("broken")

    broken = Broken()
    app.instruments.add(broken)

    @app.step
    def charge() -> int:
        return 1

    with app.worker(), caplog.at_level(logging.ERROR, "holdfast.telemetry"):
        assert [charge.start().result(timeout=PATIENCE) for _ in range(3)] == [1, 1, 1]
        ear.wait_for("run_finished", 3)
    assert broken.heard == 1
    assert "Broken.step_started failed" in caplog.text


def test_heartbeats_tell_what_a_worker_has_under_way(app: App, ear: Ear) -> None:
    begun, end = threading.Event(), threading.Event()

    @app.step
    def wait() -> None:
        begun.set()
        end.wait(PATIENCE)

    with app.worker(settings=Settings(beat=0.05)):
        run = wait.start()
        assert begun.wait(PATIENCE)
        count = len(ear.reports("worker_beat"))
        ear.wait_for("worker_beat", count + 2)
        beat = ear.reports("worker_beat")[-1]
        assert (beat.live, beat.steps, beat.inbox) == (1, 1, 0)
        end.set()
        run.result(timeout=PATIENCE)


def test_a_step_that_is_executed_elsewhere_is_told_by_those_who_know(app: App, ear: Ear) -> None:
    @app.step(queue="gpu")
    def paint(number: int) -> int:
        for done in range(50):
            this_step.progress(done, 50)
        return number

    def heard_of(done: int) -> bool:
        return any(event.get("done") == done for event in heard)

    elsewhere = app.make_executor(["gpu"])
    elsewhere.start()
    executing = threading.Thread(target=elsewhere.run)
    executing.start()
    heard: list[Any] = []
    try:
        with app.worker():
            receiver = EventReceiver(app.telemetry)
            while sum(event["type"] == "worker-online" for event in heard) < 2:
                assert receiver.capture({"*": heard.append}, limit=1, timeout=PATIENCE)
            assert paint.options(id="p1").start(3).result(timeout=PATIENCE) == 3
            ear.wait_for("run_finished")
            while not ({"run-succeeded", "step-started"} <= {event["type"] for event in heard} and heard_of(49)):
                assert receiver.capture({"*": heard.append}, limit=1, timeout=PATIENCE)
            receiver.stop()
    finally:
        elsewhere.stop(0)
        executing.join(PATIENCE)
        elsewhere.store.close()
    told = [name for name in ear.names("step_") if name != "step_progressed"]
    assert told == ["step_scheduled", "step_received", "step_started", "step_entered", "step_finished"]
    assert ear.reports("step_scheduled")[0].queue == "gpu"
    assert ear.reports("step_finished")[0].worker == elsewhere.worker_id
    assert len(ear.reports("step_progressed")) == 50
    steps = [event for event in in_order(heard) if event["type"].startswith("step-")]
    kinds = [event["type"] for event in steps if event["type"] != "step-progress"]
    assert kinds == ["step-sent", "step-received", "step-started", "step-succeeded"]
    progress = [event["done"] for event in steps if event["type"] == "step-progress"]
    assert progress == sorted(progress)
    assert progress[-1] == 49
    clocks = [event["clock"] for event in steps]
    assert clocks == sorted(set(clocks))


def test_nothing_is_built_when_nobody_listens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise AssertionError("a report was made for nobody")

    for name in ("RunReport", "StepReport", "CommitReport", "ClaimReport", "MessageReport", "WorkerReport"):
        monkeypatch.setattr(f"holdfast.engine.reporting.{name}", refuse)
    for module in (
        "engine.reporting.attempt_report",
        "executors.surroundings.attempt_report",
        "executors.local.started_report",
    ):
        monkeypatch.setattr(f"holdfast.{module}", refuse)
    app = App("orders", str(tmp_path / "orders.db"))

    @app.step
    def charge() -> int:
        this_step.progress(1)
        return 1

    with app.worker(settings=Settings(beat=0.02)) as host:
        assert charge.start().result(timeout=PATIENCE) == 1
        (worker,) = host.store.workers()
        deadline = time.monotonic() + PATIENCE
        while host.store.workers()[0].lease_until == worker.lease_until:
            assert time.monotonic() < deadline, "a heartbeat"
    app.close()


@pytest.mark.parametrize("wrong", ["metrics", Ear, object()])
def test_what_is_no_instrument_is_refused(wrong: Any) -> None:
    with pytest.raises((DefinitionError, TypeError), match=r"no Instrument|give a list"):
        App("orders", instruments=wrong if isinstance(wrong, str) else [wrong])
