"""What there is to say about a run, as plain data: what `--json` prints, and what all else is printed from."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from holdfast.cli.output import iso, until
from holdfast.cli.plain import Reader
from holdfast.core import events as ev
from holdfast.core.views import StepView
from holdfast.engine.records import correlation_of
from holdfast.ports import FINAL, RunRow, Status, Store, WorkerRow

_COMMON = ("seq", "kind", "ts", "name", "cmd", "cause", "attempt")
_MOMENTS = ("started", "retry_at", "due", "expires", "scheduled_at")


def run_facts(row: RunRow, now: int) -> dict[str, Any]:
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


def outcome_facts(store: Store, row: RunRow, reader: Reader) -> dict[str, Any]:
    """The result or the error of a run that has ended; an empty dict for one that hasn't."""
    if row.status not in FINAL:
        return {}
    payloads = store.payloads(row.id, row.end_seq - 1)
    end = msgspec.json.decode(payloads[-1], type=dict[str, msgspec.Raw]) if payloads else {}
    if row.status == Status.SUCCESS:
        return {"result": reader.value(end.get("result"))}
    if row.status == Status.FAILURE:
        return {"error": reader.error(end.get("error"))}
    return {"reason": reader.value(end.get("reason")) or ""}


def event_facts(payload: bytes, reader: Reader) -> dict[str, Any]:
    """An event, read as JSON and not as one of the kinds known here: a store may be newer than this command."""
    raw = msgspec.json.decode(payload, type=dict[str, msgspec.Raw])
    facts: dict[str, Any] = {name: reader.value(raw[name]) for name in ("seq", "kind") if name in raw}
    facts["at"] = iso(reader.value(raw.get("ts")))
    facts |= {name: reader.value(raw[name]) for name in ("name", "cmd", "cause", "attempt") if name in raw}
    detail: dict[str, Any] = {}
    for name, value in raw.items():
        if name == "error":
            detail[name] = reader.error(value)
        elif name not in _COMMON:
            found = reader.value(value)
            detail[name] = iso(found) if name in _MOMENTS and isinstance(found, int) else found
    return facts | {"detail": detail}


def step_facts(
    view: StepView, reader: Reader, progress: dict[str, bytes], logs: list[dict[str, Any]]
) -> dict[str, Any]:
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
        "reused": view.reused,
        "undoes": view.undoes or None,
        "key": view.key or None,
        "reason": view.reason,
        "progress": None if shown is None else msgspec.json.decode(shown),
        "logs": [
            {key: kept[key] for key in ("attempt", "dropped", "lines")} for kept in logs if kept["cmd"] == view.cmd
        ],
    }


def worker_facts(worker: WorkerRow, now: int) -> dict[str, Any]:
    return {
        "id": worker.id,
        "host": worker.host,
        "pid": worker.pid,
        "build": worker.build,
        "alive": worker.lease_until >= now,
        "lease_seconds": round((worker.lease_until - now) / 1_000_000, 1),
        "started_at": iso(worker.started_at),
        "names": worker.names,
    }


def open_hooks(row: RunRow, events: Iterable[ev.Event]) -> list[dict[str, str]]:
    """The hooks that a run waits for: of those its code has asked for, the ones named in its reason."""
    asked = {(event.name, event.key) for event in events if isinstance(event, ev.HookOpened)}
    if row.status != Status.WAITING:
        return []
    return [
        {"name": name, "key": key}
        for name, key in sorted(asked)
        if f"hook {name!r}{f' key {key!r}' if key else ''}" in row.reason
    ]


def doing(row: RunRow, now: int) -> str:
    """What a run does or waits for, in words."""
    due = None if row.wake_at is None or row.wake_at <= now else until(row.wake_at, now)
    if row.status == Status.PENDING:
        return f"begins {due}" if due and row.started_at is None else "waits for a worker"
    if row.status == Status.RETRY:
        return f"next attempt {due}" if due else "next attempt as soon as a worker is free"
    if row.status == Status.WAITING:
        return waiting(row.reason.split(", "), due)
    if row.status in (Status.PAUSED, Status.STUCK):
        return row.reason
    return ""


def waiting(reasons: list[str], due: str | None) -> str:
    """Reasons as the engine gives them; `due` is when time alone brings the run on."""
    others = [reason for reason in reasons if reason not in ("sleep", "timeout", "")]
    if others:
        return f"waiting for {', '.join(others)}" + (f", until {due}" if due else "")
    return ("sleeping" if "sleep" in reasons else "waiting") + (f" until {due}" if due else "")
