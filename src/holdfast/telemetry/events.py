"""Telemetry events as they arrive: anybody's mappings, read by rules that never fail, and their total order.

What is read is a copy of plain data within bounds, so nothing that a sender does later, or sends in bulk, can hurt.
"""

from __future__ import annotations

import functools
import hashlib
import math
from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

import msgspec

from holdfast.telemetry.clock import is_clock

Event: TypeAlias = Mapping[Any, Any]
"""A telemetry event: `type`, `id`, `clock`, `timestamp`, `origin`, `attempt`, and any other fields."""

CLIENT_CLOCK_SKEW = -1
"""Where `step-sent` and `run-sent` are placed, seen from the first event that follows. Their own clock is that of a
client, which hears from nobody; and a receiver's clock would place them elsewhere at each receiver."""

SENT = "sent"
FAMILIES = ("step", "run", "worker")
WORKER_KINDS = frozenset({"online", "heartbeat", "offline"})
ENVELOPE = frozenset({"type", "id", "clock", "timestamp", "origin", "attempt"})
LOCAL = frozenset({"received_at", "local_time"})
"""What a receiver adds. It differs from receiver to receiver, so it is no part of the event."""
APART = ENVELOPE | LOCAL

MAX_NAME = 512
MAX_TEXT = 4096
MAX_FIELDS = 64
MAX_NODES = 1000
MAX_DEPTH = 8
MAX_ATTEMPT = 2**31
MAX_TIME = 1e15


@functools.total_ordering
class Content:
    """What an event says, for those that are equal in all else. Worked out only if such are compared."""

    __slots__ = ("_digest", "_said")

    def __init__(self, said: Any) -> None:
        self._said = said
        self._digest: bytes | None = None

    @property
    def digest(self) -> bytes:
        if self._digest is None:
            text = msgspec.json.encode(self._said, order="sorted")
            self._digest = hashlib.blake2b(text, digest_size=16).digest()
        return self._digest

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Content) and self.digest == other.digest

    def __lt__(self, other: Content) -> bool:
        return self.digest < other.digest

    def __hash__(self) -> int:
        return hash(self.digest)


Key: TypeAlias = tuple[int, float, str, Content]
"""The place of an event in the order: clock, timestamp, origin, content."""


class Seen(msgspec.Struct, eq=False, frozen=True):
    """An event that was understood. `kind` is its type without the family; `attempt` is None if it doesn't say."""

    family: str
    kind: str
    id: str
    attempt: int | None
    fields: dict[str, Any]
    key: Key
    received_at: float | None = None

    @property
    def clock(self) -> int:
        return self.key[0]

    @property
    def timestamp(self) -> float:
        return self.key[1]

    @property
    def origin(self) -> str:
        return self.key[2]

    def to_event(self) -> dict[str, Any]:
        """The event again, so that reading it gives the same."""
        envelope = {
            "type": f"{self.family}-{self.kind}", "id": self.id, "clock": self.clock, "timestamp": self.timestamp,
            "origin": self.origin, "attempt": self.attempt, "received_at": self.received_at,
        }  # fmt: skip
        return self.fields | {name: value for name, value in envelope.items() if value is not None}


def read(event: object) -> Seen | None:
    """The event as it is understood, or None if it is none that says anything about a step, a run or a worker."""
    try:
        return _read(event)
    except Exception:  # a mapping may be of any class, and raise anything
        return None


def _read(event: object) -> Seen | None:
    if not isinstance(event, Mapping):
        return None
    family, kind = _split(event.get("type"))
    key = _place(event)
    subject = key[2] if family == "worker" else _name(event.get("id"))
    if not family or not subject:
        return None
    attempt = _attempt(event.get("attempt"))
    fields = _fields(event)
    content = Content([family, kind, subject, attempt, fields])
    return Seen(family, kind, subject, attempt, fields, (*key, content), _number(event.get("received_at")))


def _split(type_: object) -> tuple[str, str]:
    """Family and kind. A type of one word is a step's, or a worker's."""
    text = _name(type_)
    family, dash, kind = text.partition("-")
    if not dash:
        return ("worker" if text in WORKER_KINDS else "step" if text else ""), text
    return (family, kind) if family in FAMILIES and kind else ("", "")


def _name(value: object) -> str:
    """A text that names something; empty if this one can't."""
    return _text(value) if isinstance(value, str) and len(value) <= MAX_NAME else ""


def _place(event: Event) -> tuple[int, float, str]:
    clock = event.get("clock")
    origin = event.get("origin")
    if not isinstance(origin, str) or not origin:
        origin = event.get("hostname")
    return (
        int(clock) if is_clock(clock) else 0,
        _number(event.get("timestamp")) or 0.0,
        _text(origin[:MAX_NAME]) if isinstance(origin, str) else "",
    )


def _attempt(value: object) -> int | None:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MAX_ATTEMPT:
        return None
    return int(value)


def _number(value: object) -> float | None:
    """A point in time, as far as it can be one."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not -MAX_TIME < value < MAX_TIME:
        return None
    return float(value)


def _fields(event: Event) -> dict[str, Any]:
    names = [name for name in event if isinstance(name, str) and name not in APART and len(name) <= MAX_NAME]
    if len(names) > MAX_FIELDS:
        names = sorted(names)[:MAX_FIELDS]
    budget = [MAX_NODES]
    return {_text(name): plain(event[name], budget) for name in names}


def plain(value: Any, budget: list[int], depth: int = 0) -> Any:
    """The value as JSON has it, within bounds. What JSON doesn't have is its `repr`."""
    budget[0] -= 1
    if isinstance(value, str):
        return _clipped(value)
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return int(value) if -(2**63) <= value < 2**63 else _clipped(hex(value))
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else repr(float(value))
    if depth < MAX_DEPTH and isinstance(value, (dict, Mapping)):
        inside: dict[str, Any] = {}
        for name, item in value.items():
            if budget[0] <= 0:
                inside["…"] = "…"
                break
            inside[_clipped(name if isinstance(name, str) else _repr(name))] = plain(item, budget, depth + 1)
        return inside
    if depth < MAX_DEPTH and isinstance(value, (list, tuple)):
        items: list[Any] = []
        for item in value:
            if budget[0] <= 0:
                items.append("…")
                break
            items.append(plain(item, budget, depth + 1))
        return items
    if isinstance(value, (bytes, bytearray)):
        value = bytes(value[:MAX_TEXT])
    return _clipped(_repr(value))


def _repr(value: object) -> str:
    try:
        return repr(value)
    except Exception as error:  # somebody's class; it is only shown
        return f"<{type(value).__name__} whose repr raises {type(error).__name__}>"


def _clipped(text: str) -> str:
    return _text(text) if len(text) <= MAX_TEXT else _text(text[:MAX_TEXT]) + "…"


def _text(text: str) -> str:
    """A plain `str` that can be written as UTF-8."""
    return text if type(text) is str and text.isascii() else str.encode(text, "utf-8", "replace").decode()


# -- the order


def order_key(event: Event) -> Key:
    """The place of an event in the total order: by clock, timestamp, origin, then by what it says. Equal keys mean
    equal events. What is missing or makes no sense counts as 0, or as empty."""
    attempt = event.get("attempt")
    said = [plain(event.get("type"), [1]), plain(event.get("id"), [1]), plain(attempt, [1]), _fields(event)]
    return (*_place(event), Content(said))


def in_order(events: Iterable[object]) -> list[Event]:
    """The events in their total order, with each `step-sent` and `run-sent` just before the first event that follows from
    it. What is no mapping is left out."""
    known = [(order_key(event), read(event), event) for event in events if isinstance(event, Mapping)]
    first: dict[tuple[str, str, int | None], int] = {}  # the lowest clock that follows, by step or run and attempt
    for key, seen, _ in known:
        if seen is not None and seen.kind != SENT:
            for attempt in {seen.attempt, None}:
                about = (seen.family, seen.id, attempt)
                first[about] = min(key[0], first.get(about, key[0]))

    def place(each: tuple[Key, Seen | None, Event]) -> Key:
        key, seen, _ = each
        if seen is None or seen.kind != SENT or (about := (seen.family, seen.id, seen.attempt)) not in first:
            return key
        return (first[about] + CLIENT_CLOCK_SKEW, *key[1:])

    return [event for _, _, event in sorted(known, key=place)]
