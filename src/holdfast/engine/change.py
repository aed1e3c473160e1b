"""What the next commit will write for one run."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from holdfast.core import events as ev
from holdfast.engine.records import data_attribute, to_record
from holdfast.ports import (
    Answer,
    Ask,
    Change,
    Emission,
    Message,
    NewAttempt,
    NewItem,
    NewRun,
    Record,
    Signal,
)

_RARE = (
    "consumed", "children", "messages", "attributes", "dropped_attributes", "streamed", "signals", "news", "answers",
    "attempts", "dropped_attempts", "withdrawn_attempts", "asks", "gives_back",
)  # fmt: skip


class PendingChange:
    """Gathers it. `last_committed` is the number of the last event that is known to be in the store."""

    __slots__ = (
        "answers", "asks", "attempts", "attributes", "children", "columns", "consumed", "dropped_attempts",
        "dropped_attributes", "forget_before", "gives_back", "keeps", "last_committed", "messages", "news", "no", "records",
        "signals", "streamed", "withdrawn_attempts",
    )  # fmt: skip

    def __init__(self, no: int, last_committed: int) -> None:
        self.no = no
        self.last_committed = last_committed
        self.clear()

    def clear(self) -> None:
        """Take back all that is not committed."""
        self.records: list[Record] = []
        self.columns: dict[str, Any] = {}
        self.consumed: list[int] = []
        self.children: list[NewRun] = []
        self.messages: list[Message] = []
        self.attributes: list[tuple[str, str, bytes]] = []
        self.dropped_attributes: list[tuple[str, str]] = []
        self.streamed: list[NewItem] = []
        self.signals: list[Signal] = []
        self.news: list[Emission] = []
        self.attempts: list[NewAttempt] = []
        self.dropped_attempts: list[str] = []
        self.withdrawn_attempts: list[str] = []
        self.answers: list[Answer] = []
        self.forget_before = 0
        self.asks: list[Ask] = []
        self.gives_back: list[str] = []
        self.keeps: list[str] | None = None

    def __bool__(self) -> bool:
        return bool(self.records or self.columns) or self._has_rare()

    def _has_rare(self) -> bool:
        return bool(
            self.consumed or self.messages or self.attributes or self.children or self.dropped_attributes
            or self.streamed or self.signals or self.news or self.answers or self.forget_before or self.attempts
            or self.dropped_attempts or self.withdrawn_attempts or self.asks or self.gives_back
        ) or self.keeps is not None  # fmt: skip

    def take(self) -> Change:
        """What there is, and begin anew."""
        change = Change(no=self.no, records=self.records, columns=self.columns)
        self.records, self.columns = [], {}
        if not self._has_rare():
            change.is_plain = True
            return change
        for name in _RARE:
            if gathered := getattr(self, name):
                setattr(change, name, gathered)
                setattr(self, name, [])
        if self.forget_before:
            change.forget_before, self.forget_before = self.forget_before, 0
        if self.keeps is not None:
            change.keeps, self.keeps = self.keeps, None
        return change

    def put_back(self, change: Change) -> None:
        """Whether it was committed is not known."""
        self.records, self.columns = list(change.records), dict(change.columns)
        for name in _RARE:
            setattr(self, name, list(getattr(change, name)))
        self.forget_before = change.forget_before
        self.keeps = None if change.keeps is None else list(change.keeps)

    def append(self, event: ev.Event) -> None:
        """Append to the history, behind all that is to be committed."""
        event.seq = (self.records[-1].seq if self.records else self.last_committed) + 1
        self.records.append(to_record(event))

    # -- what is kept beside the history

    def set_attribute(self, kind: str, value: str, body: bytes) -> None:
        self._forget(kind, value)
        self.attributes.append((kind, value, body))

    def drop_attribute(self, kind: str, value: str) -> None:
        self._forget(kind, value)
        self.dropped_attributes.append((kind, value))

    def _forget(self, kind: str, value: str) -> None:
        if self.attributes:
            self.attributes = [each for each in self.attributes if each[:2] != (kind, value)]

    def publish(self, key: str, value: bytes) -> None:
        """Make a datum of the run searchable."""
        published = data_attribute(key, value)
        self.attributes = [each for each in self.attributes if each[0] != published[0]]
        self.attributes.append(published)

    def publish_hook_key(self, key: str, names: Iterable[str]) -> None:
        """Let the run be found by the key of hooks that it waits for, as long as it waits for any."""
        waiting = sorted(set(names))
        if waiting:
            self.set_attribute("hook", key, msgspec.json.encode(waiting))
        else:
            self.drop_attribute("hook", key)
