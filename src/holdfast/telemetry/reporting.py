"""An instrument that sends telemetry events of what it hears."""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.telemetry.dispatcher import EventDispatcher
from holdfast.telemetry.instruments import Instrument, RunReport, StepReport, WorkerReport

ENDS = {"SUCCESS": "succeeded", "FAILURE": "failed"}


class TelemetryInstrument(Instrument):
    """Sends what happens here as telemetry events. Commits, claims and messages are for metrics, and not sent."""

    def __init__(self, dispatcher: EventDispatcher) -> None:
        self.dispatcher = dispatcher

    def run_submitted(self, run: RunReport) -> None:
        self._run("sent", run)

    def run_started(self, run: RunReport) -> None:
        self._run("started", run)

    def run_finished(self, run: RunReport) -> None:
        self._run(ENDS.get(run.status) or run.status.lower(), run)

    def run_retrying(self, run: RunReport) -> None:
        self._run("retried", run)

    def run_parked(self, run: RunReport) -> None:
        self._run("waiting", run)

    def run_resumed(self, run: RunReport) -> None:
        self._run("resumed", run)

    def run_held(self, run: RunReport) -> None:
        self._run(run.status.lower(), run)

    def step_scheduled(self, step: StepReport) -> None:
        self._step("sent", step)

    def step_received(self, step: StepReport) -> None:
        self._step("received", step)

    def step_started(self, step: StepReport) -> None:
        self._step("started", step)

    def step_progressed(self, step: StepReport) -> None:
        self._step("progress", step)

    def step_retrying(self, step: StepReport) -> None:
        self._step("retried", step)

    def step_finished(self, step: StepReport) -> None:
        self._step(ENDS.get(step.state) or step.state.lower(), step)

    def worker_started(self, worker: WorkerReport) -> None:
        self._worker("online", worker)

    def worker_beat(self, worker: WorkerReport) -> None:
        self._worker("heartbeat", worker)

    def worker_stopped(self, worker: WorkerReport) -> None:
        self._worker("offline", worker)

    def _run(self, kind: str, run: RunReport) -> None:
        said = _said(run)
        said["name"] = said.pop("workflow")
        self.dispatcher.send(f"run-{kind}", **said)

    def _step(self, kind: str, step: StepReport) -> None:
        self.dispatcher.send(f"step-{kind}", **_said(step))

    def _worker(self, kind: str, worker: WorkerReport) -> None:
        said: dict[str, Any] = {
            "origin": worker.id, "hostname": worker.host, "pid": worker.pid, "freq": worker.beat, "build": worker.build,
        }  # fmt: skip
        said = {name: value for name, value in said.items() if value}
        self.dispatcher.send(
            f"worker-{kind}", **said, live=worker.live, parked=worker.parked, steps=worker.steps, inbox=worker.inbox
        )


def _said(report: RunReport | StepReport) -> dict[str, Any]:
    """The fields of a report as those of an event; its type says the state. `trace` is for other instruments."""
    said: dict[str, Any] = msgspec.to_builtins(report)  # without what is not said
    said["attempt"] = report.attempt
    if report.error is not None:
        said["exception"] = said.pop("error")
    for name in ("state", "status", "trace"):
        said.pop(name, None)
    return said
