"""`app.schedules`: the schedules of an app as the store knows them, to look at, to change and to declare."""

from __future__ import annotations

import asyncio
import builtins
import datetime as dt
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, ParamSpec, overload

import msgspec
from msgspec import Raw

from holdfast.api.checks import check_number, check_text, to_epoch
from holdfast.api.functions import is_decorated
from holdfast.api.handles import Run
from holdfast.api.owner import Owner
from holdfast.api.recurrence import When, spec_of, to_schedule
from holdfast.blocking import twin
from holdfast.codec import Codec
from holdfast.engine.ticks import advance, cancel_active, read_spec, retimed, start_ticks, tick_run_id
from holdfast.engine.timetable import LIMIT, Missed, Overlap, Spec, local, next_tick, ticks_after, ticks_between
from holdfast.errors import ArgumentError, DefinitionError, ScheduleError, ScheduleNotFoundError
from holdfast.ports import ScheduleChange, ScheduleRow, Store, Topic
from holdfast.printing import show

P = ParamSpec("P")


@dataclass(frozen=True, slots=True)
class ScheduleInfo:
    """A schedule as the store knows it.

    `when` is the cron expression, or the interval, as text; `declared` tells whether it is declared in code and not made
    by `put`; `reason` says why it is `paused`. `next_at` is when it ticks next, in its time zone, None if it is paused
    or past its `end`, and `last_at` the last tick that a run was started for: `last_run_id`, and `is_active` if that run
    goes on. Ticks that wait for its end are `queued`.
    """

    name: str
    workflow: str
    when: str
    tz: str
    missed: Missed
    overlap: Overlap
    jitter: dt.timedelta
    declared: bool
    paused: bool
    reason: str
    next_at: dt.datetime | None
    last_at: dt.datetime | None
    last_run_id: str | None
    is_active: bool
    queued: builtins.list[dt.datetime]
    start: dt.datetime | None
    end: dt.datetime | None
    _spec: Spec
    _codec: Codec

    def __repr__(self) -> str:
        return (
            f"<schedule {self.name!r} of {self.workflow!r}: {self.when}, {'paused' if self.paused else self.next_at}>"
        )

    @property
    def args(self) -> tuple[Any, ...]:
        """The positional arguments of its runs."""
        return self._codec.decode_call(self._spec.input)[0]

    @property
    def kwargs(self) -> dict[str, Any]:
        """The keyword arguments of its runs."""
        return self._codec.decode_call(self._spec.input)[1]

    def upcoming(self, count: int = 5) -> builtins.list[dt.datetime]:
        """The next ticks, from `next_at` on; none if it is paused."""
        check_number("count", count)
        if self.next_at is None:
            return []
        ticks = ticks_after(self._spec, to_epoch(self.next_at) - 1)
        return [local(tick, self._spec) for tick in itertools.islice(ticks, count)]


def _info(row: ScheduleRow, codec: Codec) -> ScheduleInfo:
    spec = read_spec(row)
    times = (row.next_at, row.last_at, spec.start, spec.end)
    next_at, last_at, start, end = (None if time is None else local(time, spec) for time in times)
    return ScheduleInfo(
        row.name, row.workflow, spec.in_words(), spec.tz, spec.missed, spec.overlap,
        dt.timedelta(microseconds=spec.jitter), row.declared, row.paused, row.reason, next_at, last_at, row.active,
        row.is_active, [local(tick, spec) for tick in row.queued], start, end, spec, codec,
    )  # fmt: skip


class Schedules:
    """The schedules of an app: those that its code declares, and those made at run time. Every method that talks to
    the store has a twin for async code, with an `a` before its name."""

    def __init__(self, app: Owner) -> None:
        self._app = app

    # -- defining

    @overload
    def declare(self, schedule: When, function: Callable[P, Any], /, *args: P.args, **kwargs: P.kwargs) -> None: ...
    @overload
    def declare(self, schedule: When, function: str, /, *args: Any, **kwargs: Any) -> None: ...
    def declare(self, schedule: When, function: Any, /, *args: Any, **kwargs: Any) -> None:
        """Make a schedule part of the app's code, where the app is defined: for one that has arguments. It becomes
        known when a worker starts."""
        row = self._row(schedule, function, args, kwargs)
        self._app.definitions.declare_schedule(msgspec.structs.replace(row, declared=True))

    @overload
    def put(self, schedule: When, function: Callable[P, Any], /, *args: P.args, **kwargs: P.kwargs) -> ScheduleInfo: ...
    @overload
    def put(self, schedule: When, function: str, /, *args: Any, **kwargs: Any) -> ScheduleInfo: ...
    def put(self, schedule: When, function: Any, /, *args: Any, **kwargs: Any) -> ScheduleInfo:
        """Create a schedule, or change the one that has its name. What it was paused for, and what it has started,
        stays."""
        wanted = self._row(schedule, function, args, kwargs)

        def change(known: ScheduleRow | None, now: int) -> ScheduleChange:
            if known is None:
                row = msgspec.structs.replace(wanted, next_at=next_tick(read_spec(wanted), now))
            elif known.declared:
                raise ScheduleError(
                    f"schedule {wanted.name!r} is declared in the code of app {self._app.name!r}; change it there, or choose "
                    "another name",
                    name=wanted.name,
                )
            else:
                row = retimed(msgspec.structs.replace(known, workflow=wanted.workflow), wanted.spec, now)
            return ScheduleChange(row=row)

        self._change(wanted.name, change, must_exist=False)
        return self.get(wanted.name)

    def _row(self, schedule: When, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> ScheduleRow:
        if is_decorated(function):
            if function._app is not self._app:
                raise DefinitionError(
                    f"{function!r} is not of app {self._app.name!r}; use the schedules of its own app"
                )
            name, call = function.name, function._encode(args, kwargs)
        elif isinstance(function, str):
            name, call = function, Raw(self._app.encode_by_name(function, args, kwargs))
        else:
            raise DefinitionError(f"{show(function)}: give a workflow or a step of app {self._app.name!r}, or its name")
        chosen = to_schedule(schedule)
        return ScheduleRow(name=chosen.name or name, workflow=name, spec=msgspec.json.encode(spec_of(chosen, call)))

    # -- looking

    def list(self) -> builtins.list[ScheduleInfo]:
        """All schedules, by name."""
        return [_info(row, self._app.codec) for row in self._store.schedules()]

    def get(self, name: str) -> ScheduleInfo:
        """The schedule of that name; ScheduleNotFoundError if there is none."""
        return _info(self._find(name), self._app.codec)

    @property
    def _store(self) -> Store:
        return self._app.client.store

    def _find(self, name: str) -> ScheduleRow:
        check_text("name", name)
        found = self._store.schedules(name)
        if not found:
            raise self._not_found(name)
        return found[0]

    def _not_found(self, name: str) -> ScheduleNotFoundError:
        names = [row.name for row in self._store.schedules()]
        known = ", ".join(names) or "none; those that code declares become known when a worker starts"
        return ScheduleNotFoundError(f"no schedule named {name!r} in app {self._app.name!r}; known: {known}", name=name)

    # -- acting

    def pause(self, name: str, reason: str = "") -> None:
        """Let it start nothing by itself until `resume`, also over a restart with new code."""
        check_text("reason", reason, empty=True)

        def change(row: ScheduleRow, now: int) -> ScheduleChange:
            return ScheduleChange(row=msgspec.structs.replace(row, paused=True, reason=reason, next_at=None))

        self._change(name, change)

    def resume(self, name: str) -> None:
        """Go on after `pause`. Ticks of the time between are not made up for: `backfill` does that."""

        def change(row: ScheduleRow, now: int) -> ScheduleChange | None:
            if not row.paused:
                return None
            next_at = next_tick(read_spec(row), now)
            return ScheduleChange(row=msgspec.structs.replace(row, paused=False, reason="", next_at=next_at))

        self._change(name, change)

    def trigger(self, name: str) -> Run[Any]:
        """Start a run now, beside the ticks; ScheduleError if the last one goes on and they must not overlap."""
        client = self._app.client

        def change(row: ScheduleRow, now: int) -> ScheduleChange:
            spec = read_spec(row)
            if row.is_active and spec.overlap not in ("allow", "cancel"):
                raise ScheduleError(
                    f"run {row.active} of schedule {name!r} has not ended, and its runs must not overlap; wait for it, or "
                    "cancel it",
                    name=name,
                )
            at = now
            while client.store.get(tick_run_id(name, at, spec)) is not None:
                at += 1
            started = start_ticks(self._app.definitions, row, [at], now)
            started.messages = cancel_active(row) if spec.overlap == "cancel" else []
            return started

        saved = self._change(name, change)
        assert saved is not None
        return Run(client, saved.runs[0].id, saved.runs[0].no)

    def backfill(self, name: str, start: dt.datetime, end: dt.datetime | None = None) -> builtins.list[str]:
        """Start a run for each tick from `start` to `end` (or now), both included, that has none; their ids. They run
        one after the other, unless the schedule allows them to overlap."""
        first = to_epoch(start, "start")
        last = None if end is None else to_epoch(end, "end")
        store = self._store
        ids: builtins.list[str] = []

        def change(row: ScheduleRow, now: int) -> ScheduleChange | None:
            if row.paused:
                raise ScheduleError(f"schedule {name!r} is paused; resume it before a backfill", name=name)
            spec = read_spec(row)
            until = now if last is None else last
            if not first <= until <= now:
                raise ArgumentError(
                    f"start={start}, end={end}: give a range that begins before it ends, and ends by now"
                )
            try:
                ticks = list(itertools.islice(ticks_between(spec, first, until), LIMIT + 1))
            except OverflowError:
                raise ArgumentError(f"start={start}: no calendar goes back so far; give a later one") from None
            if len(ticks) > LIMIT:
                raise ArgumentError(f"start={start}, end={end}: more than {LIMIT} ticks; give a shorter range")
            fresh = [t for t in ticks if t not in row.queued and store.get(tick_run_id(name, t, spec)) is None]
            if spec.overlap != "allow" and len(row.queued) + len(fresh) > LIMIT:
                raise ScheduleError(
                    f"{len(row.queued)} ticks of schedule {name!r} wait already, and no more than {LIMIT} can; wait for some, "
                    "or give a shorter range",
                    name=name,
                )
            ids[:] = [tick_run_id(name, tick, spec) for tick in fresh]
            row = msgspec.structs.replace(row, queued=row.queued + fresh)
            return advance(self._app.definitions, row, now) if fresh else None

        self._change(name, change)
        return ids

    def delete(self, name: str) -> None:
        """Forget it; its runs stay. One that code declares comes back when a worker starts, so it is refused: remove it
        from the code, or pause it."""

        def change(row: ScheduleRow, now: int) -> ScheduleChange:
            here = any(declared.name == name for declared in self._app.definitions.declared_schedules())
            if here or (row.declared and any(name in worker.schedules for worker in self._store.workers())):
                raise ScheduleError(
                    f"schedule {name!r} is declared in the code of app {self._app.name!r}; remove it there and it goes when "
                    "the workers have restarted, or pause it",
                    name=name,
                )
            return ScheduleChange(row=row, delete=True)

        self._change(name, change)

    def _change(
        self, name: str, change: Callable[[Any, int], ScheduleChange | None], must_exist: bool = True
    ) -> ScheduleChange | None:
        """Change a schedule as it is; read it again if somebody else was faster."""
        check_text("name", name)
        client = self._app.client
        while True:
            found = client.store.schedules(name)
            if not found and must_exist:
                raise self._not_found(name)
            wanted = change(found[0] if found else None, client.store.now())
            if wanted is None or client.store.save_schedules([wanted]):
                client.notifier.ring(Topic.SCHEDULES)
                if wanted is not None and (wanted.runs or wanted.messages):
                    client.notifier.ring(Topic.INBOX)  # which is about runs to be claimed, too
                return wanted

    # -- the async edge

    @overload
    async def aput(
        self, schedule: When, function: Callable[P, Any], /, *args: P.args, **kwargs: P.kwargs
    ) -> ScheduleInfo: ...
    @overload
    async def aput(self, schedule: When, function: str, /, *args: Any, **kwargs: Any) -> ScheduleInfo: ...
    async def aput(self, schedule: When, function: Any, /, *args: Any, **kwargs: Any) -> ScheduleInfo:
        return await asyncio.to_thread(partial(self.put, schedule, function, *args, **kwargs))

    aget = twin(get)
    apause = twin(pause)
    aresume = twin(resume)
    atrigger = twin(trigger)
    abackfill = twin(backfill)
    adelete = twin(delete)
    alist = twin(list)
