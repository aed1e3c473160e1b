"""Runs, events, steps, workers and schedules as JSON data: what `--json` prints, and what all else is printed from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from holdfast.core import events as ev
from holdfast.core.definitions import DEFAULT_QUEUE
from holdfast.engine.records import correlation_of
from holdfast.engine.ticks import read_spec
from holdfast.engine.timetable import Spec, local
from holdfast.ports import FINAL, RunRow, ScheduleRow, Status, WorkerRow
from holdfast.views.steps import StepView
from holdfast.views.times import SECOND, iso
from holdfast.views.values import PlainReader, detail_of
from holdfast.views.waits import HookView
from holdfast.views.why import Why


def run_summary(row: RunRow, now: int) -> dict[str, Any]:
    end = row.finished_at or now
    return {
        "id": row.id,
        "no": row.no,
        "app": row.app,
        "workflow": row.workflow,
        "status": row.status,
        "reason": row.reason,
        "attempt": row.attempt,
        "priority": row.priority,
        "parent_id": row.parent_id,
        "root_id": row.root_id,
        "correlation": correlation_of(row),
        "worker": row.owner,
        "build": row.build,
        "created_at": iso(row.created_at),
        "started_at": iso(row.started_at),
        "finished_at": iso(row.finished_at),
        "wake_at": iso(row.wake_at),
        "seconds": None if row.started_at is None else round((end - row.started_at) / 1_000_000, 3),
    }


def outcome_summary(row: RunRow, end: ev.Event | None, reader: PlainReader) -> dict[str, Any]:
    """The result or the error of a run that has ended; an empty dict for one that hasn't. `end` is its last event."""
    if row.status not in FINAL:
        return {}
    if row.status == Status.SUCCESS:
        return {"result": reader.value(end.result) if isinstance(end, ev.RunCompleted) else None}
    if row.status == Status.FAILURE:
        return {"error": reader.error(end.error) if isinstance(end, ev.RunFailed) else None}
    return {"reason": end.reason if isinstance(end, ev.RunCancelled) else ""}


def event_summary(payload: bytes, reader: PlainReader, clocks: Mapping[int, int] | None = None) -> dict[str, Any]:
    """An event, read as JSON and not as one of the kinds known here: a store may be newer than this code. `clocks` are
    the logical clocks of its history, by number."""
    raw = msgspec.json.decode(payload, type=dict[str, msgspec.Raw])
    summary: dict[str, Any] = {name: reader.value(raw[name]) for name in ("seq", "kind") if name in raw}
    summary["at"] = iso(reader.value(raw.get("ts")))
    summary |= {name: reader.value(raw[name]) for name in ("name", "cmd", "cause", "attempt") if name in raw}
    if clocks is not None:
        summary["clock"] = clocks.get(summary.get("seq", 0), 0)
    return summary | {"detail": detail_of(raw, reader)}


def step_summary(
    view: StepView,
    reader: PlainReader,
    progress: Mapping[str, bytes],
    logs: Sequence[Mapping[str, Any]],
    child: RunRow | None = None,
) -> dict[str, Any]:
    """`child` is the run that it is, if it is one and that is there: its parent's history doesn't tell what it does."""
    shown = progress.get(view.cmd)
    return {
        "name": view.name,
        "cmd": view.cmd,
        "seq": view.seq,
        "state": str(view.state),
        "attempts": view.attempts,
        "call": reader.value(view.args),
        "result": reader.value(view.result),
        "error": reader.error(view.error),
        "started_at": iso(view.started_at),
        "ended_at": iso(view.ended_at),
        "retry_at": iso(view.retry_at),
        "worker": view.worker,
        "child_run_id": view.child_id or None,
        "child_status": None if child is None else child.status,
        "child_reason": "" if child is None else child.reason,
        "reused": view.reused,
        "undoes": view.undoes or None,
        "key": view.key or None,
        "reason": view.reason,
        "progress": reader.value(shown),
        "logs": [
            {key: kept[key] for key in ("attempt", "dropped", "lines")} for kept in logs if kept["cmd"] == view.cmd
        ],
    }


def log_summaries(recorded: Mapping[str, bytes], reader: PlainReader) -> list[dict[str, Any]]:
    """What was kept of each attempt that has logged, the earliest first."""
    found = []
    for key, body in recorded.items():
        kept = reader.value(body)
        if not isinstance(kept, dict):  # sealed, and the key is not here
            attempt, _, cmd = key.partition(":")
            kept = {"cmd": cmd, "step": "", "attempt": int(attempt), "dropped": 0, "lines": [[0, "", "", kept]]}
        found.append(kept)
    found.sort(key=lambda kept: kept["lines"][0][0])
    for kept in found:
        kept["lines"] = [
            {"at": iso(at), "level": level, "logger": logger, "message": message}
            for at, level, logger, message in kept["lines"]
        ]
    return found


def worker_summary(worker: WorkerRow, now: int) -> dict[str, Any]:
    return {
        "id": worker.id,
        "host": worker.host,
        "pid": worker.pid,
        "build": worker.build,
        "alive": worker.lease_until >= now,
        "lease_seconds": round((worker.lease_until - now) / 1_000_000, 1),
        "started_at": iso(worker.started_at),
        "clock": worker.clock,
        "kind": worker.kind,
        "names": worker.names,
        "queues": [queue or DEFAULT_QUEUE for queue in worker.queues],
        "steps": worker.steps,
    }


def schedule_summary(row: ScheduleRow, reader: PlainReader) -> dict[str, Any]:
    spec = read_spec(row)
    return {
        "name": row.name,
        "workflow": row.workflow,
        "when": spec.in_words(),
        "tz": spec.tz,
        "call": reader.value(spec.input),
        "missed": spec.missed,
        "overlap": spec.overlap,
        "jitter_seconds": spec.jitter / SECOND,
        "declared": row.declared,
        "paused": row.paused,
        "reason": row.reason,
        "next_at": tick_iso(row.next_at, spec),
        "last_at": tick_iso(row.last_at, spec),
        "last_run_id": row.active,
        "is_active": row.is_active,
        "queued": [tick_iso(tick, spec) for tick in row.queued],
    }


def tick_iso(us: int | None, spec: Spec) -> str | None:
    """A tick, in the time zone of its schedule."""
    return None if us is None else local(us, spec).isoformat()


def hook_summaries(hooks: Sequence[HookView]) -> list[dict[str, str]]:
    """Those that a person can answer, each once."""
    found = {(hook.name, hook.key) for hook in hooks if hook.where is None}
    return [{"name": name, "key": key} for name, key in sorted(found)]


def unclaimed_summaries(unclaimed: Sequence[ev.HookReceived], reader: PlainReader) -> list[dict[str, Any]]:
    """What was sent to a run, and its code has not asked for."""
    return [
        {"name": each.name, "key": each.key, "payload": reader.value(each.payload), "at": iso(each.ts)}
        for each in unclaimed
    ]


def why_summary(why: Why) -> dict[str, Any]:
    return {"kind": why.kind, "text": why.text, "since": iso(why.since), "details": why.details}
