"""The statuses that a run went through."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
from msgspec import Raw

from holdfast.core import events as ev
from holdfast.ports import RunRow, Status


class StatusChange(msgspec.Struct, frozen=True):
    status: Status
    at: int
    error: Raw | None = None
    reason: str = ""
    by: str = ""


def statuses_of(history: Iterable[ev.Event], row: RunRow) -> list[StatusChange]:
    """With times and causes."""
    changes: list[StatusChange] = []
    asked = ""
    for event in history:
        if isinstance(event, ev.Commanded):  # nearly all of a long history, and nothing here
            continue
        if isinstance(event, ev.CancelRequested):
            asked = event.by
        if isinstance(event, ev.RunStarted):
            changes.append(StatusChange(Status.PENDING, event.ts, by=event.by))
            if row.started_at is not None:
                changes.append(StatusChange(Status.RUNNING, row.started_at))
        elif isinstance(event, ev.ContinuedAsNew) and not changes:
            # Of a run that lives for long, earlier generations of the history may be gone.
            changes.append(StatusChange(Status.PENDING, row.created_at))
            changes.append(StatusChange(Status.RUNNING, row.started_at or event.ts))
        elif isinstance(event, ev.AttemptFailed):
            changes.append(StatusChange(Status.RETRY, event.ts, event.error))
            changes.append(StatusChange(Status.PENDING, event.retry_at))
        elif isinstance(event, ev.AttemptStarted):
            if changes and changes[-1].status.is_final:
                changes.append(StatusChange(Status.PENDING, event.ts, by=event.by))
            changes.append(StatusChange(Status.RUNNING, event.ts))
        elif isinstance(event, ev.RunPaused):
            changes.append(StatusChange(Status.PAUSED, event.ts, reason=event.reason, by=event.by))
        elif isinstance(event, ev.RunStuck):
            changes.append(StatusChange(Status.STUCK, event.ts, event.error, event.reason))
        elif isinstance(event, ev.RunResumed):
            changes.append(StatusChange(Status.RUNNING, event.ts, by=event.by))
        elif isinstance(event, ev.RunCompleted):
            changes.append(StatusChange(Status.SUCCESS, event.ts))
        elif isinstance(event, ev.RunFailed):
            changes.append(StatusChange(Status.FAILURE, event.ts, event.error))
        elif isinstance(event, ev.RunCancelled):
            changes.append(StatusChange(Status.CANCELLED, event.ts, reason=event.reason, by=event.by or asked))
    if row.status == Status.STUCK and changes and changes[-1].status != Status.STUCK:
        # Nobody knew its code, so nobody could write to its history. It has been so since it was due.
        changes.append(StatusChange(Status.STUCK, max(changes[-1].at, row.wake_at or 0), reason=row.reason))
    return changes
