"""What workers tell those who watch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import msgspec

from holdfast.ports.database import Database
from holdfast.ports.runs import RunRow


class RunNote(msgspec.Struct, array_like=True, gc=False):
    """Something about a run that its history doesn't say: it was claimed, or let go."""

    no: int
    kind: str
    ts: int
    clock: int
    attempt: int
    reason: str = ""


class Notes(msgspec.Struct, gc=False):
    """What one worker tells those who watch, at one time: events that it has committed, from number to number by run,
    and what no history says."""

    worker: str
    recorded: dict[int, tuple[int, int]] = {}
    runs: list[RunNote] = []
    events: list[dict[str, Any]] = []

    def size(self) -> int:
        return len(self.recorded) + len(self.runs) + len(self.events)


class RecordedEvent(msgspec.Struct, gc=False):
    """An event as it is stored, for those who watch."""

    no: int
    seq: int
    worker: str
    ts: int
    clock: int
    payload: bytes


class Backlog(msgspec.Struct, kw_only=True, gc=False):
    """What waits, counted up to a bound: runs outside of memory, runs that are due and nobody has claimed, since when
    the first of them is, and messages in inboxes."""

    parked: int = 0
    due: int = 0
    due_since: int | None = None
    inbox: int = 0


class TelemetryQuery(Database, Protocol):
    """What was told, and what waits."""

    def is_watched(self) -> bool:
        """Whether anybody wants to be told what the workers of this app do."""

    def newest_notes(self) -> int:
        """The number of the last notes that were published."""

    def notes(self, after: int, limit: int) -> list[tuple[int, Notes]]:
        """What was published after that number, with its numbers; those of other apps, and what can't be read, are empty."""

    def rows(self, numbers: Sequence[int]) -> list[RunRow]:
        """Runs of the app by their numbers."""

    def recorded(self, ranges: Mapping[int, tuple[int, int]]) -> list[RecordedEvent]:
        """The events of runs, from number to number."""

    def backlog(self, most: int) -> Backlog:
        """What waits, each counted up to `most`."""

    def saved_views(self) -> dict[str, str]:
        """Filters of runs that somebody has given a name, for all who look, by name."""


class TelemetryStore(TelemetryQuery, Protocol):
    """Telling it."""

    def watch(self, watcher: str, until: int) -> None:
        """Say that somebody wants to be told what the workers of this app do, until then; or no more, if that is now."""

    def publish(self, notes: Notes) -> None:
        """Tell those who watch. It is kept for a moment, and may be lost."""

    def save_view(self, name: str, filter: str | None) -> None:
        """Keep a filter under a name, whatever was kept there; None forgets it."""
