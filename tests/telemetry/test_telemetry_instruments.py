"""The seam for observers: free when nobody listens, harmless when an observer fails."""

from __future__ import annotations

import inspect
import logging
import os
import typing
from typing import Any

import pytest

from holdfast.telemetry import (
    ClaimReport,
    ClusterState,
    CommitReport,
    EventDispatcher,
    EventReceiver,
    InMemoryTransport,
    Instrument,
    Instruments,
    MessageReport,
    RunReport,
    StepReport,
    TelemetryInstrument,
    WorkerReport,
)
from holdfast.telemetry.instruments import HOOKS

STEP = StepReport(id="s", run_id="r", name="charge", worker="w1")
RUN = RunReport(id="r", workflow="fulfil")


class Starts(Instrument):
    def __init__(self) -> None:
        self.heard: list[Any] = []

    def step_started(self, step: StepReport) -> None:
        self.heard.append(step)


class Failing(Instrument):
    def step_started(self, step: StepReport) -> None:
        raise RuntimeError("no disk")

    def step_finished(self, step: StepReport) -> None:
        raise AssertionError("it was removed")


def tell(instruments: Instruments, hook: str, report: Any) -> None:
    """As the engine does."""
    if (listener := getattr(instruments, hook)) is not None:
        listener(report)


@pytest.mark.parametrize("hook", HOOKS)
def test_nobody_is_called_if_nobody_listens(hook: str) -> None:
    assert getattr(Instruments(), hook) is None
    assert getattr(Instruments(Instrument()), hook) is None


def test_only_what_an_instrument_overrides_is_told() -> None:
    instrument = Starts()
    instruments = Instruments(instrument)
    assert [hook for hook in HOOKS if getattr(instruments, hook) is not None] == ["step_started"]
    tell(instruments, "step_started", STEP)
    assert instrument.heard == [STEP]


def test_all_who_listen_are_told_and_each_once() -> None:
    one, other = Starts(), Starts()
    instruments = Instruments(one, other, one)
    assert list(instruments) == [one, other]
    tell(instruments, "step_started", STEP)
    assert (one.heard, other.heard) == ([STEP], [STEP])


def test_who_was_removed_hears_nothing_more() -> None:
    instrument = Starts()
    instruments = Instruments(instrument)
    instruments.remove(instrument)
    instruments.remove(instrument)
    assert instruments.step_started is None
    assert len(instruments) == 0


def test_a_method_that_is_set_on_the_instrument_itself_counts() -> None:
    heard: list[Any] = []
    instrument = Instrument()
    instrument.committed = heard.append  # type: ignore[method-assign]
    tell(Instruments(instrument), "committed", CommitReport(events=3, seconds=0.1))
    assert [commit.events for commit in heard] == [3]


def test_an_instrument_that_fails_is_logged_once_and_removed_and_the_others_are_told(
    caplog: pytest.LogCaptureFixture,
) -> None:
    failing, other = Failing(), Starts()
    instruments = Instruments(failing, other)
    listener = instruments.step_started
    assert listener is not None
    with caplog.at_level(logging.ERROR, "holdfast.telemetry"):
        listener(STEP)
        listener(STEP)  # by a thread that had got hold of it before
        tell(instruments, "step_started", STEP)
        tell(instruments, "step_finished", STEP)
    assert list(instruments) == [other]
    assert other.heard == [STEP] * 3
    assert [record.getMessage() for record in caplog.records] == [
        "Failing.step_started failed; this instrument hears nothing more"
    ]
    assert caplog.records[0].exc_info is not None


def test_what_is_no_instrument_is_refused() -> None:
    with pytest.raises(TypeError, match="derive its class"):
        Instruments(object())  # type: ignore[arg-type]


def test_each_hook_is_declared_with_the_report_that_it_takes() -> None:
    hints = typing.get_type_hints(Instruments)
    for hook in HOOKS:
        (parameter,) = list(inspect.signature(getattr(Instrument, hook), eval_str=True).parameters.values())[1:]
        assert typing.get_args(hints[hook])[0].__args__[0] is parameter.annotation, hook


def test_a_report_can_not_be_changed_by_who_hears_it() -> None:
    with pytest.raises(AttributeError):
        STEP.name = "other"  # type: ignore[misc]


# -- telemetry as an instrument


class World:
    """Instruments that send telemetry events, and the state that these tell of."""

    def __init__(self) -> None:
        transport = InMemoryTransport()
        self.dispatcher = EventDispatcher(transport, interval=None, origin="engine:1")
        self.receiver = EventReceiver(transport)
        self.instruments = Instruments(TelemetryInstrument(self.dispatcher))
        self.types: list[str] = []
        self.state = ClusterState()

    def tell(self, hook: str, report: Any) -> None:
        tell(self.instruments, hook, report)

    def look(self) -> ClusterState:
        self.dispatcher.flush()
        self.receiver.capture(
            {"*": lambda event: (self.types.append(event["type"]), self.state.apply(event))}, timeout=0
        )
        return self.state


def test_what_happens_to_a_step_is_told() -> None:
    world = World()
    world.tell("step_scheduled", STEP)
    world.tell("step_received", STEP)
    world.tell("step_started", STEP)
    world.tell("step_progressed", StepReport(id="s", run_id="r", name="charge", done=1, total=2, worker="w1"))
    world.tell(
        "step_retrying", StepReport(id="s", run_id="r", name="charge", error="no answer", delay=1.0, worker="w1")
    )
    step = world.look().steps["s"]
    assert (step.state, step.attempt, step.name, step.run_id) == ("PENDING", 2, "charge", "r")
    assert (step.attempts[0].exception, step.attempts[0].worker) == ("no answer", "w1")
    world.tell("step_started", StepReport(id="s", run_id="r", name="charge", attempt=2, worker="w2"))
    world.tell("step_finished", StepReport(id="s", run_id="r", name="charge", attempt=2, state="SUCCESS", seconds=0.5))
    step = world.look().steps["s"]
    assert (step.state, step.attempt, step.worker, step.fields["seconds"]) == ("SUCCESS", 2, "w2", 0.5)
    assert world.types == [
        "step-sent", "step-received", "step-started", "step-progress", "step-retried", "step-started", "step-succeeded",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("state", "type_"),
    [("SUCCESS", "succeeded"), ("FAILURE", "failed"), ("CANCELLED", "cancelled"), ("SKIPPED", "skipped")],
)
def test_each_end_of_a_step_is_told(state: str, type_: str) -> None:
    world = World()
    world.tell("step_finished", StepReport(id="s", run_id="r", name="charge", state=state, error="why"))
    step = world.look().steps["s"]
    assert (world.types, step.state, step.ready, step.exception) == ([f"step-{type_}"], state, True, "why")


def test_what_happens_to_a_run_is_told() -> None:
    world = World()
    states = []
    for hook, report in [
        ("run_started", RUN),
        ("run_parked", RunReport(id="r", workflow="fulfil", reason="sleeping")),
        ("run_resumed", RUN),
        ("run_held", RunReport(id="r", workflow="fulfil", status="PAUSED")),
        ("run_held", RunReport(id="r", workflow="fulfil", status="STUCK", reason="code diverged")),
        ("run_retrying", RUN),
        ("run_started", RunReport(id="r", workflow="fulfil", attempt=2)),
        ("run_finished", RunReport(id="r", workflow="fulfil", attempt=2, status="FAILURE", error="ValueError: x")),
    ]:
        world.tell(hook, report)
        states.append(world.look().runs["r"].state)
    assert states == ["RUNNING", "WAITING", "RUNNING", "PAUSED", "STUCK", "RETRY", "RUNNING", "FAILURE"]
    run = world.state.runs["r"]
    assert (run.name, run.attempt, run.exception) == ("fulfil", 2, "ValueError: x")


def test_workers_come_beat_and_go() -> None:
    world = World()
    world.tell("worker_started", WorkerReport(id="w1", host="here", pid=7, build="b1"))
    world.tell("worker_beat", WorkerReport(id="w1", beat=2.0, live=5))
    worker = world.look().workers["w1"]
    assert worker.alive
    assert {name: worker.fields[name] for name in ("pid", "build", "freq", "live")} == {
        "pid": os.getpid(), "build": "b1", "freq": 2.0, "live": 5,
    }  # fmt: skip
    world.tell("worker_stopped", WorkerReport(id="w1"))
    assert not world.look().workers["w1"].alive


def test_commits_claims_and_messages_are_not_sent() -> None:
    world = World()
    world.tell("committed", CommitReport(events=1, seconds=0.1))
    world.tell("claimed", ClaimReport(count=1))
    world.tell("message_received", MessageReport(run_id="r", kind="hook"))
    world.look()
    assert world.types == []
