"""Events as the store keeps them, and the messages that runs get from others."""

from __future__ import annotations

import hashlib
from typing import Any

import msgspec
from msgspec import Raw

from holdfast.codec import Codec
from holdfast.codec.ordering import order_key
from holdfast.core import events as ev
from holdfast.errors import RunExistsError, RunNotFoundError
from holdfast.ports import Attempt, Message, NewItem, Outcome, Record, RunRow, Status


def to_record(event: ev.Event) -> Record:
    if isinstance(event, ev.StepOutcome):  # most are
        return Record(
            event.seq, type(event).__name__, event.name, event.cmd, event.cause, event.attempt, event.worker, event.ts,
            ev.to_json(event),
        )  # fmt: skip
    return Record(
        event.seq, event.kind, getattr(event, "name", ""), getattr(event, "cmd", ""), getattr(event, "cause", 0),
        getattr(event, "attempt", 0), getattr(event, "worker", ""), event.ts, ev.to_json(event),
    )  # fmt: skip


def data_attribute(key: str, value: bytes) -> tuple[str, str, bytes]:
    """A datum of a run as it is searched by and read."""
    return f"data.{key}", order_key(value), value


PRIORITY_HEAD_START = 60 * 1_000_000
"""Each point of priority is a head start of a minute over others that wait."""


class RunOptions(msgspec.Struct, kw_only=True, omit_defaults=True):
    """What was said about one run when it was started, beside its input."""

    timeout: int | None = None
    max_retries: int | None = None
    notify: bool = False
    queue: str = ""
    schedule: str = ""
    event: str = ""  # the domain event that started it
    trace: str = ""  # the traceparent of who started it
    quiet: bool = False  # what becomes of it is no news
    headers: dict[str, str] = {}  # what it was started with by those who wrap starts
    generations: list[int] = []  # where those that are kept of its history begin, before the one it is in
    expires: int | None = None  # it is not begun after this time

    def to_json(self) -> bytes:
        return msgspec.json.encode(self)


# -- messages


class HookMessage(msgspec.Struct, kw_only=True, omit_defaults=True):
    name: str
    key: str = ""
    payload: Raw = ev.NULL
    token: str = ""
    event: str = ""
    by: str = ""


class AskMessage(msgspec.Struct, kw_only=True, omit_defaults=True):
    name: str
    request: str
    payload: Raw = ev.NULL


class UndeliveredMessage(msgspec.Struct, kw_only=True, omit_defaults=True):
    """What the run has sent to another one could not be delivered."""

    message: str
    reason: str


class AnswerBody(msgspec.Struct, kw_only=True, omit_defaults=True):
    """What is kept for whoever has asked."""

    answer: Raw = ev.NULL
    error: Raw = ev.NULL


class ChildMessage(msgspec.Struct, kw_only=True, omit_defaults=True):
    cmd: str
    child_id: str
    status: str
    result: Raw = ev.NULL
    error: Raw = ev.NULL
    reason: str = ""


class OutcomeMessage(msgspec.Struct, kw_only=True, omit_defaults=True):
    run_no: int
    cmd: str
    attempt: int
    worker: str
    started: int
    result: Raw = ev.NULL
    error: Raw = ev.NULL
    data: dict[str, Raw] = {}
    logs: Raw = ev.NULL
    emitted: tuple[ev.Emitted, ...] = ()
    handed_over: bool = False
    token: str = ""  # of an attempt that was executed elsewhere
    retry_after: int | None = None
    lost: bool = False
    lost_with: int = msgspec.field(default=0, name="company")
    thread: str = ""
    step: str = ""  # empty if it was told by an older version
    since: int = 0  # likewise
    outside: bool = False  # told by whoever has the token of a step that was handed over


class BeatMessage(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A sign of life of a step that was handed over, with its progress if that was told."""

    run_no: int
    cmd: str
    attempt: int
    progress: Raw = ev.NULL
    since: int = 0


class StreamMessage(msgspec.Struct, kw_only=True, omit_defaults=True):
    """What a step has given to those who watch, while its run was out of memory."""

    run_no: int
    cmd: str
    attempt: int
    ts: int
    item: Raw
    place: int = -1


class SlotMessage(msgspec.Struct, kw_only=True, omit_defaults=True):
    """The command `cmd` of a run, or all of it, has got the slots it has asked for under that token, or was refused."""

    cmd: str
    token: str
    refused: str = ""


class ControlMessage(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Cancel, terminate, pause, resume, retry, watch. A parent that wants to be told of the outcome says who it is. With
    `children` those that the run waits for are paused or resumed with it."""

    reason: str = ""
    by: str = ""
    parent_id: str = ""
    parent_cmd: str = ""
    children: bool = False


MESSAGES: dict[str, type[Any]] = {
    "hook": HookMessage,
    "ask": AskMessage,
    "undelivered": UndeliveredMessage,
    "child": ChildMessage,
    "outcome": OutcomeMessage,
    "beat": BeatMessage,
    "stream": StreamMessage,
    "slot": SlotMessage,
    "cancel": ControlMessage,
    "terminate": ControlMessage,
    "pause": ControlMessage,
    "resume": ControlMessage,
    "retry": ControlMessage,
    "watch": ControlMessage,
}


def control(
    run_id: str,
    kind: str,
    reason: str = "",
    *,
    by: str = "",
    late: bool = False,
    run_no: int | None = None,
    child_of: str | None = None,
    children: bool = False,
) -> Message:
    body = msgspec.json.encode(ControlMessage(reason=reason, by=by, children=children))
    return Message(
        run_id=run_id, kind=kind, body=body, control=True, late=late, run_no=run_no, child_of=child_of
    )  # fmt: skip


def ask_child(codec: Codec, child_id: str, kind: str, parent_id: str, cmd: str) -> Message:
    """Watch a child, or retry it: its outcome is for the command `cmd` of its parent."""
    body = msgspec.json.encode(ControlMessage(parent_id=parent_id, parent_cmd=cmd))
    gone = child_gone(codec, child_id, parent_id, cmd)
    return Message(run_id=child_id, kind=kind, body=body, control=True, late=True, if_gone=gone)


def child_gone(codec: Codec, child_id: str, parent_id: str, cmd: str) -> Message:
    """What a run is told that waits for a child which was deleted: its outcome will never be known."""
    error = RunNotFoundError(
        f"child run {child_id!r} was deleted, so its result is not known; wait for children before their time of retention "
        "has passed, and cancel those that are not wanted",
        run_id=child_id,
    )
    return _failed_child(codec, child_id, parent_id, cmd, error)


def not_a_child(codec: Codec, child_id: str, parent_id: str, cmd: str) -> Message:
    """What a run is told whose child's id is taken by a run that is not its child."""
    error = RunExistsError(
        f"run {child_id!r} exists, and is not a child of run {parent_id}; choose another id, or ask for its result in a "
        f"step, with app.get_run({child_id!r})",
        run_id=child_id,
    )
    return _failed_child(codec, child_id, parent_id, cmd, error)


def _failed_child(codec: Codec, child_id: str, parent_id: str, cmd: str, error: BaseException) -> Message:
    body = ChildMessage(cmd=cmd, child_id=child_id, status=Status.FAILURE, error=Raw(codec.encode_error(error)))
    return Message(run_id=parent_id, kind="child", body=msgspec.json.encode(body))


def child_message(row: RunRow, end: ev.Event) -> Message:
    """What a parent is told of its child's end."""
    body = ChildMessage(cmd=row.parent_cmd or "", child_id=row.id, status=status_of(end))
    if isinstance(end, ev.RunCompleted):
        body.result = end.result
    elif isinstance(end, ev.RunFailed):
        body.error = end.error
    elif isinstance(end, ev.RunCancelled):
        body.reason = end.reason
    return Message(
        run_id=row.parent_id or "",
        kind="child",
        body=msgspec.json.encode(body),
        dedupe=f"child:{body.cmd}:{row.id}:{end.seq}",
    )


def sent_hook(sender: str, run_id: str, name: str, key: str, payload: Raw) -> Message:
    """What a run sends to another one. If that is gone the sender is told."""
    body = HookMessage(name=name, key=key, payload=payload)
    lost = UndeliveredMessage(message=f"hook {name!r} to run {run_id}", reason="there is no such run, or it has ended")
    back = Message(run_id=sender, kind="undelivered", body=msgspec.json.encode(lost))
    return Message(run_id=run_id, kind="hook", body=msgspec.json.encode(body), if_gone=back, or_ended=True)


def fingerprint(name: str, call: bytes) -> bytes:
    """The same for the same workflow with the same arguments."""
    return hashlib.sha256(name.encode() + b"\0" + call).digest()


def correlation_of(row: RunRow) -> str:
    """The process that a run belongs to. One that nothing caused is the beginning of its own."""
    return row.correlation or f"{row.app}:{row.root_id or row.id}"


def status_of(end: ev.Event) -> str:
    if isinstance(end, ev.RunCompleted):
        return Status.SUCCESS
    return Status.FAILURE if isinstance(end, ev.RunFailed) else Status.CANCELLED


def stream_message(attempt: Attempt, ts: int, item: bytes, place: int) -> Message:
    """What a step streams, for whoever owns its run now."""
    number = attempt.streams_as or attempt.number
    return item_message(attempt.run_id, attempt.run_no, NewItem(attempt.cmd, number, ts, item, place))


def item_message(run_id: str, run_no: int, item: NewItem) -> Message:
    body = StreamMessage(
        run_no=run_no, cmd=item.cmd, attempt=item.attempt, ts=item.ts, item=Raw(item.item), place=item.place
    )  # fmt: skip
    return Message(run_id=run_id, kind="stream", body=msgspec.json.encode(body))


def outcome_body(outcome: Outcome, worker: str, token: str = "") -> OutcomeMessage:
    """An outcome as it is told, with the `token` of an attempt that was executed elsewhere."""
    return OutcomeMessage(
        run_no=outcome.attempt.run_no, cmd=outcome.attempt.cmd, attempt=outcome.attempt.number, worker=worker,
        started=outcome.started, result=ev.NULL if outcome.result is None else Raw(outcome.result),
        error=Raw(outcome.encoded_error) if outcome.encoded_error is not None else ev.NULL, token=token,
        retry_after=outcome.retry_after, lost=outcome.lost, lost_with=outcome.lost_with,
        data={key: Raw(value) for key, value in outcome.data.items()},
        emitted=tuple(ev.Emitted(name=name, key=key, payload=Raw(payload)) for name, key, payload in outcome.emitted),
        logs=Raw(outcome.logs) if outcome.logs is not None else ev.NULL, handed_over=outcome.handed_over,
        thread=outcome.thread, step=outcome.attempt.step, since=outcome.attempt.since,
    )  # fmt: skip


def attempt_key(cmd: str, attempt: int, since: int) -> str:
    """What tells an attempt of a step from all others of its run."""
    return f"{cmd}:{attempt}:{since}" if since > 1 else f"{cmd}:{attempt}"


def outcome_message(run_id: str, outcome: Outcome, worker: str, token: str = "") -> Message:
    """An outcome for whoever owns the run now."""
    body = outcome_body(outcome, worker, token)
    return Message(
        run_id=run_id, kind="outcome", body=msgspec.json.encode(body),
        dedupe=f"outcome:{attempt_key(body.cmd, body.attempt, body.since)}", frees=body.cmd,
    )  # fmt: skip
