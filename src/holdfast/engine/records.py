"""Events as the store keeps them, and the messages that runs get from others."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Raw

from holdfast.core import events as ev
from holdfast.ports import Message, Record, RunRow, Status


def to_record(event: ev.Event) -> Record:
    get = _fields.get(type(event))
    if get is None:
        names = set(type(event).__struct_fields__)
        get = _fields[type(event)] = tuple(
            name if name in names else "" for name in ("name", "cmd", "cause", "attempt", "worker")
        )
    name, cmd, cause, attempt, worker = get
    return Record(
        event.seq,
        event.kind,
        getattr(event, name) if name else "",
        getattr(event, cmd) if cmd else "",
        getattr(event, cause) if cause else 0,
        getattr(event, attempt) if attempt else 0,
        getattr(event, worker) if worker else "",
        event.ts,
        ev.to_json(event),
    )


_fields: dict[type, tuple[str, ...]] = {}


class RunOptions(msgspec.Struct, kw_only=True, omit_defaults=True):
    """What was said about one run when it was started, beside its input."""

    timeout: int | None = None
    max_retries: int | None = None
    notify: bool = False
    queue: str = ""

    def to_json(self) -> bytes:
        return msgspec.json.encode(self)


# -- letters


class HookLetter(msgspec.Struct, kw_only=True, omit_defaults=True):
    name: str
    key: str = ""
    payload: Raw = ev.NULL
    token: str = ""


class ChildLetter(msgspec.Struct, kw_only=True, omit_defaults=True):
    cmd: str
    child_id: str
    status: str
    result: Raw = ev.NULL
    error: Raw = ev.NULL
    reason: str = ""


class OutcomeLetter(msgspec.Struct, kw_only=True, omit_defaults=True):
    cmd: str
    attempt: int
    worker: str
    started: int
    result: Raw = ev.NULL
    error: Raw | None = None
    data: dict[str, Raw] = {}


class ControlLetter(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Cancel, pause, resume, retry, watch."""

    reason: str = ""
    parent_cmd: str = ""


LETTERS: dict[str, type[Any]] = {
    "hook": HookLetter,
    "child": ChildLetter,
    "outcome": OutcomeLetter,
    "cancel": ControlLetter,
    "pause": ControlLetter,
    "resume": ControlLetter,
    "retry": ControlLetter,
    "watch": ControlLetter,
}


def control(run_id: str, kind: str, reason: str = "", *, late: bool = False, parent_cmd: str = "") -> Message:
    body = msgspec.json.encode(ControlLetter(reason=reason, parent_cmd=parent_cmd))
    return Message(run_id=run_id, kind=kind, body=body, control=True, late=late)


def child_message(row: RunRow, end: ev.Event) -> Message:
    """What a parent is told of its child's end."""
    letter = ChildLetter(cmd=row.parent_cmd or "", child_id=row.id, status=status_of(end))
    if isinstance(end, ev.RunCompleted):
        letter.result = end.result
    elif isinstance(end, ev.RunFailed):
        letter.error = end.error
    elif isinstance(end, ev.RunCancelled):
        letter.reason = end.reason
    return Message(
        run_id=row.parent_id or "",
        kind="child",
        body=msgspec.json.encode(letter),
        dedupe=f"child:{letter.cmd}:{row.id}:{end.seq}",
    )


def status_of(end: ev.Event) -> str:
    if isinstance(end, ev.RunCompleted):
        return Status.SUCCESS
    return Status.FAILURE if isinstance(end, ev.RunFailed) else Status.CANCELLED
