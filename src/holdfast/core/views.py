"""What a history says about a run, for people: its steps, and the statuses it went through."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
from msgspec import Raw

from holdfast.core import events as ev
from holdfast.ports import RunRow, Status, StepState


class StepView(msgspec.Struct, kw_only=True):
    """A step or child of a run, as far as it has come."""

    cmd: str
    name: str
    state: StepState
    attempts: int = 1
    child_id: str = ""
    worker: str = ""
    args: Raw = ev.NO_ARGS
    result: Raw | None = None
    error: Raw | None = None
    started_at: int | None = None
    ended_at: int | None = None
    retry_at: int | None = None
    reused: bool = False
    undoes: str = ""
    seq: int = 0


class StatusChange(msgspec.Struct):
    status: Status
    at: int
    error: Raw | None = None
    reason: str = ""


_STATES = {
    "StepStarted": StepState.STARTED, "StepRetrying": StepState.RETRY, "StepLost": StepState.PENDING,
    "StepCompleted": StepState.SUCCESS, "StepFailed": StepState.FAILURE, "StepCancelled": StepState.CANCELLED,
    "ChildStarted": StepState.STARTED, "ChildCompleted": StepState.SUCCESS, "ChildFailed": StepState.FAILURE,
    "ChildCancelled": StepState.CANCELLED, "ChildDropped": StepState.CANCELLED,
}  # fmt: skip


def steps_of(history: Iterable[ev.Event]) -> list[StepView]:
    """Steps and children in the order they became known, with what became of each."""
    steps: dict[str, StepView] = {}
    by_seq: dict[int, ev.Event] = {}
    for event in history:
        by_seq[event.seq] = event
        if isinstance(event, ev.OutcomeReused):
            source = by_seq.get(event.source)
            if isinstance(source, ev.StepCompleted | ev.ChildCompleted):
                steps[event.cmd] = StepView(
                    cmd=event.cmd, name=event.name, state=StepState.SUCCESS, args=event.args, result=source.result,
                    reused=True, started_at=event.ts, ended_at=event.ts, seq=event.seq,
                    attempts=getattr(source, "attempt", 1), child_id=getattr(source, "child_id", ""),
                )  # fmt: skip
            continue
        if not isinstance(event, ev.Commanded) or event.kind not in _STATES:
            continue
        view = steps.get(event.cmd)
        if view is None:
            view = steps[event.cmd] = StepView(
                cmd=event.cmd, name=event.name, args=event.args, state=StepState.PENDING, seq=event.seq
            )
        view.state = _STATES[event.kind]
        view.child_id = getattr(event, "child_id", "")
        if isinstance(event, ev.StepOutcome):
            view.attempts = event.attempt
            view.worker = event.worker
            view.undoes = event.undoes
            view.started_at = event.started or view.started_at or event.ts
        elif isinstance(event, ev.ChildStarted):
            view.started_at = event.ts
        view.retry_at = event.retry_at if isinstance(event, ev.StepRetrying) else None
        view.error = getattr(event, "error", None)
        view.result = getattr(event, "result", None)
        if event.delivered or event.kind in ("StepCancelled", "ChildDropped"):
            view.ended_at = event.ts
    return list(steps.values())


def statuses_of(history: Iterable[ev.Event], row: RunRow) -> list[StatusChange]:
    """The statuses a run went through, with times and causes."""
    changes: list[StatusChange] = []

    def add(status: Status, at: int, error: Raw | None = None, reason: str = "") -> None:
        changes.append(StatusChange(status, at, error, reason))

    for event in history:
        if isinstance(event, ev.RunStarted):
            add(Status.PENDING, event.ts)
            if row.started_at is not None:
                add(Status.RUNNING, row.started_at)
        elif isinstance(event, ev.AttemptFailed):
            add(Status.RETRY, event.ts, event.error)
            add(Status.PENDING, event.retry_at)
        elif isinstance(event, ev.AttemptStarted):
            if changes and changes[-1].status.is_final:
                add(Status.PENDING, event.ts)
            add(Status.RUNNING, event.ts)
        elif isinstance(event, ev.RunPaused):
            add(Status.PAUSED, event.ts, reason=event.reason)
        elif isinstance(event, ev.RunStuck):
            add(Status.STUCK, event.ts, event.error, event.reason)
        elif isinstance(event, ev.RunResumed):
            add(Status.RUNNING, event.ts)
        elif isinstance(event, ev.RunCompleted):
            add(Status.SUCCESS, event.ts)
        elif isinstance(event, ev.RunFailed):
            add(Status.FAILURE, event.ts, event.error)
        elif isinstance(event, ev.RunCancelled):
            add(Status.CANCELLED, event.ts, reason=event.reason)
    return changes
