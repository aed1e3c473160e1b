"""What starts runs by the clock."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec

from holdfast.ports.database import Database
from holdfast.ports.messages import Message
from holdfast.ports.runs import NewRun


class ScheduleRow(msgspec.Struct, kw_only=True):
    """What starts runs of `workflow` by the clock. `active` is the run that it started last, and `is_active` whether
    that run goes on; ticks that are `queued` wait for its end. Each change makes a new `revision`. `damage` says what of
    it could not be read."""

    name: str
    workflow: str
    spec: bytes
    declared: bool = False
    paused: bool = False
    reason: str = ""
    next_at: int | None = None
    last_at: int | None = None
    active: str | None = None
    is_active: bool = False
    queued: list[int] = []
    revision: int = 0
    damage: str = ""


class ScheduleChange(msgspec.Struct, kw_only=True):
    """What to make of a schedule that was read as `row.revision` (0: there was none), the runs it starts, and what others
    are told."""

    row: ScheduleRow
    runs: list[NewRun] = []
    messages: list[Message] = []
    delete: bool = False


class ScheduleQuery(Database, Protocol):
    """What people read of schedules."""

    def schedules(self, name: str | None = None) -> list[ScheduleRow]:
        """The schedules of the app by name, or the one of that name."""


class ScheduleStore(ScheduleQuery, Protocol):
    """Schedules, by those who let them fire."""

    def due_schedules(self, names: Sequence[str], limit: int) -> list[ScheduleRow]:
        """Schedules of these workflows that are not paused and have something to do: their next tick has come, or a
        tick is queued and their last run has ended."""

    def next_tick(self, names: Sequence[str]) -> int | None:
        """When the next schedule of these workflows has something to do; 0 if one has now, from its queue."""

    def save_schedules(self, changes: Sequence[ScheduleChange]) -> list[str]:
        """Write schedules, create their runs and post their messages. A schedule that somebody else has changed since it
        was read stays as it is, none of its runs is created and no message posted; a run whose id is taken is left alone.
        The names of those that were written."""
