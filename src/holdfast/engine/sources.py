"""Where work comes from: each source knows whether there may be something new, and when there will be.

`stale` says that something may have come since it was last asked; asking is left until then.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from holdfast.core.registry import Definitions
from holdfast.engine.domain_events import EventDelivery
from holdfast.engine.limits import Lines
from holdfast.engine.settings import Settings
from holdfast.engine.ticks import Ticks
from holdfast.ports import InboxRow, RunStore, Store, Topic

LOCKED_AWHILE = 20_000
"""Microseconds until a run that others had locked is looked at again."""

BUSY_AWHILE = 20_000
"""Microseconds after which even an engine that always has something to do looks whether more can be claimed."""


class Claims:
    """Runs that nobody owns. `due_at` is when the next one can be claimed, by the store's clock."""

    def __init__(self, store: RunStore) -> None:
        self._store = store
        self.stale = True
        self.is_sure = False  # somebody has told of one, so looking for it first would be a waste
        self.due_at: int | None = None
        self.is_due_unknown = False  # somebody may have parked or created a run
        self._came_too_late = False  # what was due could not be claimed

    def look(self, names: Sequence[str]) -> bool:
        """Whether a run can be claimed now; if not, when the next one can."""
        self.is_due_unknown = self.is_sure = False
        wake = self._store.next_wake(names)
        now = self._store.now()
        if wake is not None and wake <= now and self._came_too_late:
            wake = now + LOCKED_AWHILE  # others are at it: their hints or the sweep tell when they have let go
        self._came_too_late = False
        self.stale = wake is not None and wake <= now
        self.due_at = wake
        return self.stale

    def claimed(self, asked: int, got: int, alone: bool) -> None:
        """So many were asked for, by a commit that did nothing else if `alone`."""
        self.stale, self.is_sure = got >= asked, False
        self._came_too_late = alone and not got
        self.due_at, self.is_due_unknown = self._store.now() + BUSY_AWHILE, True

    def released(self, due: int) -> None:
        """A run was parked here until then."""
        if self.due_at is None or due < self.due_at:
            self.due_at = due

    def is_due(self, now: int) -> bool:
        return self.due_at is not None and self.due_at <= now


class Inbox:
    """Messages to runs that this worker owns."""

    def __init__(self, store: RunStore) -> None:
        self._store = store
        self._told: set[int] = set()
        self._is_any_stale = False

    @property
    def stale(self) -> bool:
        return self._is_any_stale or bool(self._told)

    def look(self) -> None:
        """There may be messages to any run."""
        self._is_any_stale = True

    def told(self, runs: Iterable[int]) -> None:
        """There are messages to these."""
        self._told.update(runs)

    def poll(self, worker_id: str) -> list[InboxRow]:
        messages = self._store.inbox(worker_id, None if self._is_any_stale else sorted(self._told))
        self._is_any_stale = False
        self._told.clear()
        return messages


class Sources:
    """All that an engine has."""

    def __init__(self, app: Definitions, store: Store, names: Sequence[str], settings: Settings) -> None:
        self.claims = Claims(store)
        self.inbox = Inbox(store)
        self.events = EventDelivery(store, app.codec)
        self.ticks = Ticks(app, store, names, settings.schedules)
        self.lines = Lines(app, store)

    def look_at(self, topic: Topic) -> None:
        """There may be something new."""
        everything = topic is Topic.EVERYTHING
        if everything or topic is Topic.RUNS:
            self.claims.stale, self.claims.is_sure = True, not everything
        if everything or topic is Topic.INBOX:
            self.claims.stale = True
            self.inbox.look()
        if everything or topic is Topic.EVENTS:
            self.events.stale = True
        if everything or topic is Topic.SCHEDULES:
            self.ticks.look()
