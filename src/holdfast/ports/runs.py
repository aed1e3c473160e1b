"""Runs as a store keeps them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import StrEnum

import msgspec

from holdfast.ports.messages import InboxRow, Message


class Status(StrEnum):
    """What a run is doing."""

    PENDING = "PENDING"
    RUNNING = "RUNNING"
    WAITING = "WAITING"
    RETRY = "RETRY"
    PAUSED = "PAUSED"
    STUCK = "STUCK"
    SUCCESS = "SUCCESS"
    FAILURE = "FAILURE"
    CANCELLED = "CANCELLED"

    @property
    def is_final(self) -> bool:
        """Whether the run has ended: SUCCESS, FAILURE or CANCELLED."""
        return self in FINAL


FINAL = frozenset({Status.SUCCESS, Status.FAILURE, Status.CANCELLED})


class StepState(StrEnum):
    """What a step of a run is doing, or what became of it."""

    PENDING = "PENDING"
    RECEIVED = "RECEIVED"
    STARTED = "STARTED"
    RETRY = "RETRY"
    SUCCESS = "SUCCESS"
    FAILURE = "FAILURE"
    SKIPPED = "SKIPPED"
    CANCELLED = "CANCELLED"


class RunRow(msgspec.Struct, kw_only=True, gc=False):
    """A run without its history. `no` is the store's own number for it. `end_seq` is that of the event that ended it; of a
    run that goes on, that of the last event when its row was written, or 0. One that is `limited` may have slots."""

    no: int
    app: str
    id: str
    workflow: str
    status: str
    reason: str = ""
    stuck: str = ""
    owner: str | None = None
    wake_at: int | None = None
    attempt: int = 1
    losses: int = 0
    base_seq: int = 1
    end_seq: int = 0
    priority: int = 0
    parent_id: str | None = None
    parent_cmd: str | None = None
    root_id: str | None = None
    correlation: str | None = None
    build: str = ""
    durable: bool = True
    options: bytes = b"{}"
    fingerprint: bytes = b""
    created_at: int = 0
    started_at: int | None = None
    finished_at: int | None = None
    expires_at: int | None = None
    limited: bool = False


class Record(msgspec.Struct, gc=False):
    """An event as it is stored: columns for people and queries, the payload for the core."""

    seq: int
    kind: str
    name: str
    cmd: str
    cause: int
    attempt: int
    worker: str
    ts: int
    payload: bytes


class NewRun(msgspec.Struct, kw_only=True):
    """A run to be created, with the beginning of its history. `messages` are in its inbox from the beginning. If
    the id of a child is taken, `if_taken` is posted. The store sets `no` once it is created."""

    id: str
    workflow: str
    records: list[Record]
    wake_at: int
    created_at: int
    fingerprint: bytes
    no: int | None = None
    correlation: str | None = None
    status: str = Status.PENDING
    priority: int = 0
    parent_id: str | None = None
    parent_cmd: str | None = None
    root_id: str | None = None
    durable: bool = True
    options: bytes = b"{}"
    base_seq: int = 1
    attributes: list[tuple[str, str, bytes]] = []
    messages: list[Message] = []
    if_taken: Message | None = None


class DataSpan(msgspec.Struct, kw_only=True, frozen=True):
    """Runs whose data under `key` lies between two values, as `codec.ordering` writes them: from `low` on (`above`: not that
    one itself), to before `high` (`upto`: that one included). One of `others` is as good."""

    key: str
    low: str
    high: str
    above: bool = False
    upto: bool = False
    others: tuple[DataSpan, ...] = ()


class RunQuery(msgspec.Struct, kw_only=True):
    """A page of runs, newest first. `after` is the `no` of the last one of the page before. A `workflow` that ends in
    `*` is the beginning of a name; `since` and `until` are about when a run was created.
    Of `data` runs have published what equals these encoded values, and what lies in `spans`. Of `reasons` one at least is
    a part of what is said of why a run waits."""

    statuses: Sequence[str] = ()
    workflow: str | None = None
    parent: str | None = None
    since: int | None = None
    until: int | None = None
    data: dict[str, str] = {}
    spans: Sequence[DataSpan] = ()
    prefix: str | None = None
    owner: str | None = None
    schedule: str | None = None
    forked_from: str | None = None
    reasons: Sequence[str] = ()
    after: int | None = None
    limit: int = 100


class StreamRow(msgspec.Struct, gc=False):
    """An item that a step or workflow has streamed."""

    number: int
    cmd: str
    attempt: int
    ts: int
    item: bytes


class NewItem(msgspec.Struct, gc=False):
    """An item to be streamed. `place` is how many its execution has streamed before it; -1 if nobody counts them."""

    cmd: str
    attempt: int
    ts: int
    item: bytes
    place: int = -1


Collision = Callable[["NewRun", RunRow], None]
"""What is said of a new run whose id another one has: it raises if that must not be."""


Farewell = Callable[[RunRow, list[InboxRow]], list[Message]]
"""Who is told what of a run that is deleted, with these messages unread."""
