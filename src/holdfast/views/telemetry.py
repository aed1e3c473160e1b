"""Telemetry events, made of what is recorded: histories, and the notes of workers on what no history says."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec

from holdfast.core import events as ev
from holdfast.core.reports import step_id
from holdfast.ports import Notes, Query, RecordedEvent, RunNote, RunRow
from holdfast.telemetry.events import in_order
from holdfast.views.values import PlainReader

SECOND = 1_000_000
STEP_KINDS = {
    "StepStarted": "started", "StepCompleted": "succeeded", "StepFailed": "failed", "StepRefused": "failed",
    "StepRetrying": "retried", "StepCancelled": "cancelled", "StepSkipped": "skipped",
}  # fmt: skip
RUN_KINDS = {
    "RunStarted": "sent", "AttemptStarted": "started", "AttemptFailed": "retried", "RunPaused": "paused",
    "RunResumed": "resumed", "RunStuck": "stuck", "RunCompleted": "succeeded", "RunFailed": "failed",
    "RunCancelled": "cancelled",
}  # fmt: skip
ENDS = ("succeeded", "failed", "cancelled")
ENDS_OF_ATTEMPTS = ("step-succeeded", "step-failed", "step-cancelled", "step-retried")
REMEMBERED = 10_000
CLIENT = "client"
"""Where a run comes from, in the order of events: histories don't tell which process has started it."""


class Begun:
    """The attempts whose start was told, so that it is told once: a report of progress tells it, and so does the event of
    a step that takes its time, before the outcome does."""

    def __init__(self) -> None:
        self._attempts: dict[tuple[str, int], None] = {}

    def is_news(self, event: Mapping[str, Any]) -> bool:
        kind, id, attempt = (event.get(name) for name in ("type", "id", "attempt"))
        if not isinstance(id, str) or not isinstance(attempt, int):
            return True  # somebody's own event
        if kind == "step-started":
            if (id, attempt) in self._attempts:
                return False
            self._attempts[id, attempt] = None
            if len(self._attempts) > REMEMBERED:
                del self._attempts[next(iter(self._attempts))]
        elif kind in ENDS_OF_ATTEMPTS:
            self._attempts.pop((id, attempt), None)
        return True


def read_notes(store: Query, notes: Notes, reader: PlainReader, begun: Begun) -> list[dict[str, Any]]:
    """What a worker's notes tell, as telemetry events in their order. What was deleted since is left out."""
    numbers = {*notes.recorded, *(note.no for note in notes.runs)}
    rows = {row.no: row for row in store.rows(sorted(numbers))} if numbers else {}
    recorded = store.recorded({no: span for no, span in notes.recorded.items() if no in rows})
    return [event for event in events_of(notes, rows, recorded, reader) if begun.is_news(event)]


def events_of(
    notes: Notes, rows: Mapping[int, RunRow], recorded: Iterable[RecordedEvent], reader: PlainReader
) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = list(notes.events)
    found += [_noted(rows[note.no], note, notes.worker) for note in notes.runs if note.no in rows]
    for record in recorded:
        if record.no in rows:
            found += history_events(rows[record.no], record, notes.worker, reader)
    return [dict(event) for event in in_order(found)]


def history_events(row: RunRow, record: RecordedEvent, worker: str, reader: PlainReader) -> Iterator[dict[str, Any]]:
    """An event of a history as telemetry events. `worker` is who has written it. A short step's start is told by its
    outcome: it comes right before, with the number that a commit leaves free for it."""
    try:
        event = ev.from_json(record.payload)
    except msgspec.DecodeError:  # a kind that only a newer version knows
        return
    if event.kind in STEP_KINDS:
        yield from _step(row, record, event, worker, reader)
    elif event.kind in RUN_KINDS:
        kind = RUN_KINDS[event.kind]
        said: dict[str, Any] = {"attempt": getattr(event, "attempt", row.attempt)}
        if isinstance(event, ev.RunStarted):
            said |= {**_call(reader.call(event.input)), "attempt": 1}
        if isinstance(event, ev.RunCompleted):
            said["result"] = reader.value(event.result)
        if isinstance(event, ev.RunFailed | ev.AttemptFailed | ev.RunStuck):
            said["exception"] = reader.error_text(event.error)
        if reason := getattr(event, "reason", ""):
            said["reason"] = reason
        if kind in ENDS and row.started_at is not None:
            said["seconds"] = max(0, record.ts - row.started_at) / SECOND
        yield _of_run(row, kind, record.ts, record.clock, CLIENT if kind == "sent" else worker) | said


def _step(row: RunRow, record: RecordedEvent, event: Any, worker: str, reader: PlainReader) -> Iterator[dict[str, Any]]:
    kind, started = STEP_KINDS[event.kind], getattr(event, "started", 0)
    by = getattr(event, "worker", "") or worker
    common: dict[str, Any] = {
        "id": step_id(row.id, event.cmd), "run_id": row.id, "name": event.name, "workflow": row.workflow,
        "parent_id": row.id, "root_id": row.root_id or row.id, "attempt": getattr(event, "attempt", 1) or 1,
        "worker": by, "origin": by,
    }  # fmt: skip
    if started and kind != "started" and by == worker:  # another worker tells it itself: its clock is not known here
        yield {"type": "step-started", "clock": record.clock - 1, "timestamp": started / SECOND, **common}
    at = started if kind == "started" and started else record.ts
    said: dict[str, Any] = {"type": f"step-{kind}", "clock": record.clock, "timestamp": at / SECOND, **common}
    if started and kind != "started":
        said["seconds"] = max(0, record.ts - started) / SECOND
    said |= _call(reader.call(event.args))
    if isinstance(event, ev.StepCompleted):
        said["result"] = reader.value(event.result)
    if isinstance(event, ev.StepFailed | ev.StepRefused | ev.StepRetrying):
        said["exception"] = reader.error_text(event.error)
    yield said


def _call(call: Any) -> dict[str, Any]:
    """The arguments of a call as two fields. What can't be read here is told as it is."""
    if not isinstance(call, dict):
        return {"args": call}
    return {"args": call.get("args", []), "kwargs": call.get("kwargs", {})}


def _of_run(row: RunRow, kind: str, ts: int, clock: int, origin: str) -> dict[str, Any]:
    said = {
        "type": f"run-{kind}", "id": row.id, "name": row.workflow, "attempt": row.attempt, "clock": clock,
        "timestamp": ts / SECOND, "origin": origin, "root_id": row.root_id or row.id,
    }  # fmt: skip
    return said | ({"parent_id": row.parent_id} if row.parent_id else {})


def _noted(row: RunRow, note: RunNote, worker: str) -> dict[str, Any]:
    said = _of_run(row, note.kind, note.ts, note.clock, worker) | {"attempt": note.attempt}
    return said | ({"reason": note.reason} if note.reason else {})
