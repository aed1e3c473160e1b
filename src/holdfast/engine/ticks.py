"""Schedules start runs: what a tick makes of its schedule, and an engine's part in it.

Any engine that knows a schedule's workflow may take its ticks. That a run is created and that the schedule moves on is
one transaction, which is refused if another engine was faster, so each tick starts one run.
"""

from __future__ import annotations

import datetime as dt
import logging
import random
from collections.abc import Sequence
from typing import Protocol

import msgspec

from holdfast.core import events as ev
from holdfast.core.pending import FLAGS
from holdfast.core.registry import Definitions
from holdfast.durations import SECOND
from holdfast.engine.programs import is_durable
from holdfast.engine.records import RunOptions, control, fingerprint, to_record
from holdfast.engine.timetable import LIMIT, Spec, jitter, local, next_tick, ticks_to_take
from holdfast.errors import ScheduleError
from holdfast.ports import Message, NewRun, ScheduleChange, ScheduleRow, ScheduleStore, WorkerQuery

logger = logging.getLogger("holdfast.engine")
BATCH = 100
LOOK_AFTER_EVERY = 60 * SECOND
"""A worker that has moved schedules on by a clock that was ahead may be gone when the clock is set back."""


def read_spec(row: ScheduleRow) -> Spec:
    try:
        return msgspec.json.decode(row.spec, type=Spec)
    except (msgspec.DecodeError, TypeError) as error:
        raise ScheduleError(
            f"what schedule {row.name!r} does can't be read from the store ({error}); put or declare it again, or delete it",
            name=row.name,
        ) from error


def tick_run_id(name: str, tick: int, spec: Spec) -> str:
    """The run of a tick, by the time it is where the schedule lives: `nightly@2026-11-16T02:00:00+01:00`."""
    return f"{name}@{local(tick, spec).isoformat()}"


def tick_run(app: Definitions, row: ScheduleRow, tick: int, now: int) -> NewRun:
    """The run that a tick starts."""
    spec = read_spec(row)
    begin_at = max(now, tick + jitter(spec, row.name, tick))
    offset = (local(tick, spec).utcoffset() or dt.timedelta()) // dt.timedelta(seconds=1)
    started = ev.RunStarted(
        seq=1, ts=begin_at, workflow=row.workflow, input=spec.input, seed=random.getrandbits(63), flags=FLAGS,
        scheduled_at=tick, scheduled_offset=offset,
    )  # fmt: skip
    return NewRun(
        id=tick_run_id(row.name, tick, spec), workflow=row.workflow, records=[to_record(started)], wake_at=begin_at,
        created_at=now, fingerprint=fingerprint(row.workflow, bytes(spec.input)), durable=is_durable(app, row.workflow),
        options=RunOptions(schedule=row.name).to_json(), attributes=[("schedule", row.name, b"null")],
    )  # fmt: skip


def start_ticks(app: Definitions, row: ScheduleRow, ticks: Sequence[int], now: int) -> ScheduleChange:
    """The schedule with these ticks started."""
    runs = [tick_run(app, row, tick, now) for tick in ticks]
    if runs:
        row = msgspec.structs.replace(row, last_at=ticks[-1], active=runs[-1].id)
    return ScheduleChange(row=row, runs=runs)


def advance(app: Definitions, row: ScheduleRow, now: int) -> ScheduleChange:
    """What a schedule does now: start what is due, or queue it, or skip it."""
    spec = read_spec(row)
    ticks, next_at = [], row.next_at
    if next_at is not None and next_at <= now:
        ticks, next_at = ticks_to_take(spec, next_at, now), next_tick(spec, now)
    messages: list[Message] = []
    if spec.overlap == "allow":
        start, queued = row.queued + ticks, []
    elif spec.overlap == "cancel" and ticks:
        start, queued = ticks[-1:], row.queued
        messages = cancel_active(row)
    else:
        if spec.overlap == "skip" and ticks:
            ticks = _unless_active(row, ticks)
        queue = row.queued + ticks
        free = 0 if row.is_active else 1
        start, queued = queue[:free], queue[free:]
    if len(queued) > LIMIT:
        logger.warning("schedule %r: %d ticks wait for %s already, later ones are skipped", row.name, LIMIT, row.active)
        queued = queued[:LIMIT]
    change = start_ticks(app, msgspec.structs.replace(row, next_at=next_at, queued=queued), start, now)
    change.messages = messages
    return change


def cancel_active(row: ScheduleRow) -> list[Message]:
    """What the run that goes on is told when the next one takes its place."""
    if row.active is None or not row.is_active:
        return []
    return [control(row.active, "cancel", f"the next run of schedule {row.name!r} begins")]


def _unless_active(row: ScheduleRow, ticks: list[int]) -> list[int]:
    if row.is_active or row.queued:
        logger.info("schedule %r skips a tick: run %s has not ended", row.name, row.active)
        return []
    return ticks[-1:]


def declare(declared: ScheduleRow, known: ScheduleRow | None, now: int) -> ScheduleRow | None:
    """A schedule as code declares it now, with what the store knows of it; None if that is the same. It stays paused if
    it was, and ticks that were missed are still to be looked at unless it ticks at other times now."""
    if known is None:
        return msgspec.structs.replace(declared, next_at=next_tick(read_spec(declared), now))
    if known.declared and (known.workflow, known.spec) == (declared.workflow, declared.spec):
        return None
    return retimed(msgspec.structs.replace(known, workflow=declared.workflow, declared=True), declared.spec, now)


def retimed(row: ScheduleRow, spec: bytes, now: int) -> ScheduleRow:
    """A schedule with another spec. Its next tick stays the same if its times do."""
    try:
        before = read_spec(row).timing
    except ScheduleError:  # it was damaged, and no longer is
        before = None
    row = msgspec.structs.replace(row, spec=spec)
    after = read_spec(row)
    if before != after.timing and not row.paused:
        row.next_at = next_tick(after, now)
    return row


def set_back(row: ScheduleRow, now: int) -> ScheduleRow | None:
    """A schedule that a clock that was ahead has moved on past ticks that are yet to come, at its next tick again; None
    if it is there."""
    if row.next_at is None or row.next_at <= now:
        return None
    next_at = next_tick(read_spec(row), now)
    return msgspec.structs.replace(row, next_at=next_at) if next_at is not None and next_at < row.next_at else None


def _paused(row: ScheduleRow, error: Exception) -> ScheduleChange:
    """A schedule that was damaged, or made by another version, or lives in a zone that is unknown here."""
    logger.error("schedule %r can't go on", row.name, exc_info=error)
    reason = f"its next tick can't be told: {type(error).__name__}: {error}"
    return ScheduleChange(row=msgspec.structs.replace(row, paused=True, next_at=None, reason=reason))


class TickStore(ScheduleStore, WorkerQuery, Protocol):
    """Schedules, and the workers whose code declares them."""


class Ticks:
    """An engine's part: makes known what its code declares, and starts what is due. `due_at` is when to look again;
    `stale` says that a client may have changed that."""

    def __init__(self, app: Definitions, store: TickStore, names: Sequence[str], fires: bool) -> None:
        self._app = app
        self._store = store
        self._fires = fires
        self.learn(names)
        self.due_at: int | None = None
        self.stale = fires
        self._looked_at = 0
        self._looked_after_at = 0

    def learn(self, names: Sequence[str]) -> None:
        """`names` are what this engine can carry out; which schedules its code declares may have changed with them."""
        self._names = names
        self._declared = {row.name: row for row in self._app.declared_schedules()}
        self.names = sorted(self._declared)

    def look(self) -> None:
        self.stale = self._fires

    def have_come(self, now: int) -> bool:
        return self.stale or (self.due_at is not None and self.due_at <= now)

    def declare(self) -> None:
        """Let the store know the schedules that this code declares, and forget those that no live code does. What a
        clock that was wrong has moved on is set back."""
        while True:
            known = {row.name: row for row in self._store.schedules()}
            now = self._store.now()
            rows = [declare(row, known.get(row.name), now) for row in self._declared.values()]
            changes = [ScheduleChange(row=row) for row in rows if row is not None]
            for name in known.keys() - {change.row.name for change in changes}:
                changes += self._upkeep(known[name], now)
            if not changes or len(self._store.save_schedules(changes)) == len(changes):
                self._looked_after_at = now
                break
        self.look()

    def _look_after_all(self, now: int) -> None:
        """The same without what code declares: workers with older code would take back what newer code says."""
        changes = [change for row in self._store.schedules() for change in self._upkeep(row, now)]
        if changes:
            self._store.save_schedules(changes)
        self._looked_after_at = now

    def _upkeep(self, row: ScheduleRow, now: int) -> list[ScheduleChange]:
        """What is to be done about a schedule that is known, beside what code says of it."""
        if self._has_vanished(row):
            return [ScheduleChange(row=row, delete=True)]
        if row.workflow not in self._names or row.damage:
            return []
        try:
            earlier = set_back(row, now)
        except Exception as error:
            return [_paused(row, error)]
        return [] if earlier is None else [ScheduleChange(row=earlier)]

    def fire(self) -> bool:
        """Start the runs that are due now; whether there were any."""
        now, before = self._store.now(), self._looked_at
        self._looked_at = now
        if now < before:  # the clock was set back
            self.declare()
        elif now - self._looked_after_at >= LOOK_AFTER_EVERY:  # or may have been
            self._look_after_all(now)
        self.stale = False
        self.due_at = self._store.next_tick(self._names)
        if self.due_at is None or self.due_at > now:
            return False
        self.stale = True  # there may be more, and there is a next tick
        changes = [self._advance(row, now) for row in self._store.due_schedules(self._names, BATCH)]
        saved = set(self._store.save_schedules(changes)) if changes else set()
        return any(change.runs and change.row.name in saved for change in changes)

    def _advance(self, row: ScheduleRow, now: int) -> ScheduleChange:
        if self._has_vanished(row):
            logger.warning("schedule %r is deleted: the code of no live worker declares it any more", row.name)
            return ScheduleChange(row=row, delete=True)
        if row.damage:
            logger.error("schedule %r is paused: %s", row.name, row.damage)
            reason = f"{row.damage}; ticks that waited are lost, and may be made up for with a backfill; then resume it"
            return ScheduleChange(row=msgspec.structs.replace(row, paused=True, next_at=None, reason=reason))
        try:
            return advance(self._app, row, now)
        except Exception as error:
            return _paused(row, error)

    def _has_vanished(self, row: ScheduleRow) -> bool:
        """Whether it was declared by code that no longer does. Workers may know different parts of an app, and old and
        new code live side by side during a deploy: only what none of them declares is gone."""
        if not row.declared or row.name in self._declared or row.workflow not in self._names:
            return False
        return not any(row.name in worker.schedules for worker in self._store.workers())
