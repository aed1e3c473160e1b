"""When the clock starts runs: `Schedule` and `every`, read and checked where they are written."""

from __future__ import annotations

import datetime as dt
import difflib
import zoneinfo
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from cronsim import CronSim, CronSimError
from msgspec import Raw

from holdfast.api.checks import check_name, duration_of, one_of, to_epoch
from holdfast.core.events import NO_ARGS
from holdfast.durations import SECOND, Duration
from holdfast.engine.timetable import Missed, Overlap, Spec, next_tick
from holdfast.errors import DefinitionError
from holdfast.printing import show

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
    return [to_schedule(each, "UTC" if tz is None else tz) for each in several]


def to_schedule(given: Any, tz: str = "UTC") -> Schedule:
    return given if isinstance(given, Schedule) else Schedule(given, tz=tz)


def _expression(when: Any) -> str:
    if not isinstance(when, str):
        raise DefinitionError(f"schedule={show(when)}: {_FORMS}")
    when = str.__str__(when)  # of whatever class it is
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
