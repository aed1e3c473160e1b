"""Attempts that a worker elsewhere executes: how they are told to it, and how it tells their end."""

from __future__ import annotations

import msgspec
from msgspec import Raw

from holdfast.codec import Codec
from holdfast.core import events as ev
from holdfast.engine.records import OutcomeMessage, attempt_key
from holdfast.errors import FatalError
from holdfast.ports import Attempt, AttemptRow, EndedAttempt, Message


class AttemptBody(msgspec.Struct, kw_only=True, omit_defaults=True):
    """All that a worker elsewhere needs to know of an attempt, as its row has it."""

    run_no: int
    run_id: str
    app: str
    workflow: str
    root_id: str
    parent_id: str | None = None
    cmd: str
    step: str
    args: Raw
    number: int
    idempotency_key: str
    timeout: int | None = None
    stall_timeout: int | None = None
    pool: str = "thread"
    data: dict[str, Raw] = {}
    correlation: str = ""
    quiet: bool = False
    headers: dict[str, str] = {}
    checkpoint: Raw = ev.NULL
    streams_as: int = 0
    share_with: int = msgspec.field(default=0, name="company")
    at_most_once: bool = False
    trace: str = ""
    since: int = 0


_FIELDS = [field for field in AttemptBody.__struct_fields__ if field not in ("args", "checkpoint")]


def encode_attempt(attempt: Attempt) -> bytes:
    given = {name: getattr(attempt, name) for name in _FIELDS}
    checkpoint = ev.NULL if attempt.checkpoint is None else Raw(attempt.checkpoint)
    return msgspec.json.encode(AttemptBody(**given, args=Raw(attempt.args), checkpoint=checkpoint))


def decode_attempt(body: bytes, token: int) -> Attempt:
    """The attempt that a row is about; `token` is what the executor here is to know it by."""
    read = msgspec.json.decode(body, type=AttemptBody)
    given = {name: getattr(read, name) for name in _FIELDS}
    checkpoint = None if read.checkpoint == ev.NULL else bytes(read.checkpoint)
    return Attempt(token=token, **given, args=read.args, checkpoint=checkpoint)


def token_of(attempt: Attempt, chance: float) -> str:
    """What names an attempt among all of a store. A step that is tried again after its worker was lost has the same
    number, so that is not enough."""
    return f"{attempt.run_no}:{attempt.cmd}:{attempt.number}:{int(chance * 2**32):08x}"


def run_of(token: str) -> int:
    """The number of the run whose attempt it is."""
    return int(token.partition(":")[0])


def unreadable(token: str, worker: str, codec: Codec, why: Exception) -> EndedAttempt:
    """What a run is told of an attempt whose row makes no sense to the worker that has claimed it."""
    run_no, _, rest = token.partition(":")
    cmd, number, _ = rest.rsplit(":", 2)
    error = FatalError(
        f"worker {worker} can't execute attempt {token}: {why}; look whether it has the code of the engine"
    )
    body = OutcomeMessage(
        run_no=int(run_no), cmd=cmd, attempt=int(number), worker=worker, started=0, token=token,
        error=Raw(codec.encode_error(error)),
    )  # fmt: skip
    return EndedAttempt(token, _told(body))


def lost_outcome(row: AttemptRow, others: int) -> EndedAttempt:
    """What its run is told of an attempt whose worker is gone, and with it so many others."""
    body = OutcomeMessage(
        run_no=row.run_no, cmd=row.cmd, attempt=row.number, worker=row.worker or "", started=row.claimed_at or row.due,
        token=row.token, lost=True, lost_with=others, step=row.step,
    )  # fmt: skip
    return EndedAttempt(row.token, _told(body))


def _told(body: OutcomeMessage) -> Message:
    return Message(
        run_id="", run_no=body.run_no, kind="outcome", body=msgspec.json.encode(body),
        dedupe=f"outcome:{attempt_key(body.cmd, body.attempt, body.since)}",
    )  # fmt: skip
