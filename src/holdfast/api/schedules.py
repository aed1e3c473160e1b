"""Schedules: runs that the clock starts. `Schedule` and `every` say when, `app.schedules` knows and changes them."""

from __future__ import annotations

import asyncio
import builtins
import datetime as dt
import difflib
import itertools
import zoneinfo
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ParamSpec, TypeAlias, overload

import msgspec
from cronsim import CronSim, CronSimError
from msgspec import Raw

from holdfast.api.checks import check_name, check_number, check_text, duration_of, one_of, to_epoch
from holdfast.api.functions import is_decorated
from holdfast.api.handles import Run
from holdfast.api.owner import Owner
from holdfast.blocking import twin
from holdfast.codec import Codec
from holdfast.core.events import NO_ARGS
from holdfast.durations import SECOND, Duration
from holdfast.engine.ticks import advance, cancel_active, read_spec, retimed, start_ticks, tick_run_id
from holdfast.engine.timetable import LIMIT, Missed, Overlap, Spec, local, next_tick, ticks_after, ticks_between
from holdfast.errors import ArgumentError, DefinitionError, ScheduleError, ScheduleNotFoundError
from holdfast.ports import ScheduleChange, ScheduleRow, Store, Topic
from holdfast.printing import show

P = ParamSpec("P")
SHORTEST = SECOND // 10
ALIASES = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
_FORMS = (
    "give five fields, 'minute hour day-of-month month day-of-week', such as '0 2 * * *' for two o'clock each night; "
    f"or {', '.join(ALIASES)}; or every('15m')"
)


@dataclass(frozen=True, slots=True)
class Every:
    """A fixed interval, in microseconds, counted from the epoch plus an offset. Made with `every`."""

    interval: int
    offset: int = 0


def every(interval: Duration, *, offset: Duration | None = None, anchor: dt.datetime | None = None) -> Every:
    """Tick at a fixed interval of time as it passes, whatever clocks do: `every("15m")` on the quarters of the hour,
    `every("15m", offset="5m")` five minutes after each; `anchor` names one of the ticks instead."""
    us = duration_of("every", interval)
    if us < SHORTEST:
        raise DefinitionError(f"every({show(interval)}): the shortest interval is 100ms")
    if offset is not None and anchor is not None:
        raise DefinitionError("every(): offset= and anchor= both say when an interval begins; give one of them")
    begin = 0 if offset is None else duration_of("offset", offset)
    return Every(us, (begin if anchor is None else to_epoch(anchor, "anchor")) % us)


@dataclass(frozen=True, slots=True)
class Schedule:
    """When runs are started, and what is done about ticks that were missed or that overlap.

    `when` is a cron expression, read in the time zone `tz`, or `every(...)`. `name` is the workflow's if none is given.
    `missed` says what to do about ticks that came while no worker ran: "skip" them, make up for all of them "once", or
    start "all". `overlap` says what to do about a tick that comes while the last run goes on: "skip" it, "queue" it
    until that run has ended, "cancel" that run, or "allow" both. Each run begins up to `jitter` later than its tick, by
    chance. Ticks before `start` and after `end` don't count.
    """

    when: str | Every
    tz: str = "UTC"
    name: str | None = None
    missed: Missed = "once"
    overlap: Overlap = "skip"
    jitter: Duration | None = None
    start: dt.datetime | None = None
    end: dt.datetime | None = None

    def __post_init__(self) -> None:
        if self.name is not None:
            check_name("schedule", self.name)
        _check_zone(self.tz)
        one_of("missed", self.missed, ("skip", "once", "all"))
        one_of("overlap", self.overlap, ("skip", "queue", "allow", "cancel"))
        if (
            self.start is not None
            and self.end is not None
            and to_epoch(self.end, "end") < to_epoch(self.start, "start")
        ):
            raise DefinitionError(f"start={self.start}, end={self.end}: a schedule begins before it ends")
        if self.missed == "all" and self.overlap in ("skip", "cancel"):
            raise DefinitionError(
                f"missed='all' with overlap={self.overlap!r} would start one and {self.overlap} the others; add "
                "overlap='queue' to start them one after the other, or overlap='allow' for all at once"
            )
        _check_ticks(spec_of(self, NO_ARGS), self.when)


When: TypeAlias = str | Every | Schedule


def spec_of(schedule: Schedule, call: Raw) -> Spec:
    """A schedule as it is stored, with the arguments of its runs."""
    when = schedule.when
    timing = {"every": when.interval, "offset": when.offset} if isinstance(when, Every) else {"cron": _expression(when)}
    return Spec(
        **timing, tz=schedule.tz, missed=schedule.missed, overlap=schedule.overlap,
        jitter=0 if schedule.jitter is None else duration_of("jitter", schedule.jitter), input=call,
        start=None if schedule.start is None else to_epoch(schedule.start, "start"),
        end=None if schedule.end is None else to_epoch(schedule.end, "end"),
    )  # fmt: skip


def to_schedules(given: When | Sequence[When], tz: str | None) -> list[Schedule]:
    """What `schedule=` and `tz=` of a decorator say."""
    several = given if isinstance(given, list | tuple) else [given]
    if tz is not None and any(isinstance(each, Schedule) for each in several):
        raise DefinitionError(f"tz={tz!r} stands beside a Schedule(...); say it there: Schedule(..., tz={tz!r})")
    return [_to_schedule(each, "UTC" if tz is None else tz) for each in several]


def _to_schedule(given: Any, tz: str = "UTC") -> Schedule:
    return given if isinstance(given, Schedule) else Schedule(given, tz=tz)


def _expression(when: Any) -> str:
    if not isinstance(when, str):
        raise DefinitionError(f"schedule={show(when)}: {_FORMS}")
    text = " ".join(when.split())
    if text.startswith("@"):
        if text not in ALIASES:
            raise DefinitionError(f"schedule={when!r}: {_FORMS}")
        return ALIASES[text]
    if len(text.split()) == 6:
        raise DefinitionError(f"schedule={when!r} has six fields; for less than a minute there is every('10s')")
    try:
        CronSim(text, dt.datetime(2000, 1, 1))
    except CronSimError as error:
        raise DefinitionError(f"schedule={when!r}: {str(error).lower()}; {_FORMS}") from None
    return text


def _check_zone(name: Any) -> None:
    if isinstance(name, str) and name:
        try:
            zoneinfo.ZoneInfo(name)
        except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):
            pass
        else:
            return
    known = zoneinfo.available_timezones()
    if not known:
        raise DefinitionError(f"tz={show(name)}: this machine has no time zones; pip install tzdata")
    near = difflib.get_close_matches(name, known, n=1) if isinstance(name, str) else []
    hint = f"; did you mean {near[0]!r}?" if near else ""
    raise DefinitionError(f"tz={show(name)} is no time zone; give a name such as 'Europe/Berlin' or 'UTC'{hint}")


def _check_ticks(spec: Spec, when: object) -> None:
    if next_tick(spec, 0) is None:
        raise DefinitionError(
            f"schedule={when!r} never comes: no day is like that, or none between its start= and end=; {_FORMS}"
        )


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
        self._app.declare_schedule(msgspec.structs.replace(self._row(schedule, function, args, kwargs), declared=True))

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
        chosen = _to_schedule(schedule)
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
            started = start_ticks(self._app, row, [at], now)
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
            ticks = list(itertools.islice(ticks_between(spec, first, until), LIMIT + 1))
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
            return advance(self._app, row, now) if fresh else None

        self._change(name, change)
        return ids

    def delete(self, name: str) -> None:
        """Forget it; its runs stay. One that code declares comes back when a worker starts, so it is refused: remove it
        from the code, or pause it."""

        def change(row: ScheduleRow, now: int) -> ScheduleChange:
            here = any(declared.name == name for declared in self._app.declared_schedules())
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
