"""When a schedule ticks: cron expressions in a time zone, or a fixed interval. Pure calculation on microseconds.

A tick that names a time of day comes once on every day it names, as Debian's cron has it: one in the hour that a clock
leaves out comes right after it, one in the hour that comes twice comes the first time. Expressions with a `*` for
the hour or the minute, and intervals, follow time as it passes.
"""

from __future__ import annotations

import datetime as dt
import itertools
import zlib
from collections.abc import Iterator
from functools import lru_cache
from typing import Literal
from zoneinfo import ZoneInfo

import msgspec
from cronsim import CronSim
from msgspec import Raw

from holdfast.core.events import NO_ARGS
from holdfast.durations import SECOND, in_words

Missed = Literal["skip", "once", "all"]
Overlap = Literal["skip", "queue", "allow", "cancel"]

ON_TIME = 60 * SECOND
"""A tick that no engine took up for longer than this was missed."""
LIMIT = 1_000
"""How many ticks at most are made up for, wait in a queue, or are backfilled at a time."""

_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_WINDOW = 3_600 * SECOND


class Spec(msgspec.Struct, kw_only=True, omit_defaults=True, frozen=True):
    """A schedule as it is stored: when it ticks, what is done about ticks, and the arguments of its runs. Either
    `cron` or `every` (microseconds, counted from the epoch plus `offset`) says when."""

    cron: str = ""
    every: int = 0
    offset: int = 0
    tz: str = "UTC"
    missed: Missed = "once"
    overlap: Overlap = "skip"
    jitter: int = 0
    start: int | None = None
    end: int | None = None
    input: Raw = NO_ARGS

    @property
    def timing(self) -> tuple[str, int, int, str, int | None, int | None]:
        return self.cron, self.every, self.offset, self.tz if self.cron else "", self.start, self.end

    def in_words(self) -> str:
        if self.cron:
            return self.cron
        return f"every {in_words(self.every)}" + (f" + {in_words(self.offset)}" if self.offset else "")


@lru_cache(maxsize=256)
def zone(name: str) -> ZoneInfo:
    return ZoneInfo(name)


def local(us: int, spec: Spec) -> dt.datetime:
    """A moment in the time zone of a schedule."""
    return (_EPOCH + dt.timedelta(microseconds=us)).astimezone(zone(spec.tz))


def ticks_after(spec: Spec, us: int) -> Iterator[int]:
    """All ticks later than a moment, in order, within the dates of the schedule."""
    if spec.start is not None:
        us = max(us, spec.start - 1)
    ticks = _all_ticks_after(spec, us)
    end = spec.end
    return ticks if end is None else itertools.takewhile(lambda tick: tick <= end, ticks)


def _all_ticks_after(spec: Spec, us: int) -> Iterator[int]:
    if spec.every:
        first = us + spec.every - (us - spec.offset) % spec.every
        yield from itertools.count(first, spec.every)
        return
    last = us
    for found in CronSim(spec.cron, local(us, spec)):
        # Two times of day that a clock leaves out are one moment; of one that comes twice, the first may be over.
        tick = (found - _EPOCH) // dt.timedelta(microseconds=1)
        if tick > last:
            last = tick
            yield tick


def next_tick(spec: Spec, after: int) -> int | None:
    """The first tick later than a moment; None if there is none in the next 50 years, or before the schedule's end."""
    return next(ticks_after(spec, after), None)


def ticks_between(spec: Spec, first: int, last: int) -> Iterator[int]:
    """The ticks from one moment to another, both included."""
    return itertools.takewhile(lambda tick: tick <= last, ticks_after(spec, first - 1))


def latest_ticks(spec: Spec, first: int, last: int, limit: int) -> list[int]:
    """The latest ticks of that range, at most `limit`. Looks back no further than it has to."""
    window = _WINDOW
    while True:
        begin = max(first, last - window)
        found = list(ticks_between(spec, begin, last))
        if begin == first or len(found) >= limit:
            return found[-limit:]
        window *= 4


def ticks_to_take(spec: Spec, first: int, now: int) -> list[int]:
    """Of the ticks that have come due since `first`, those that runs are started for. What is on time always is; of
    what was missed as much as `missed` says."""
    on_time = list(ticks_between(spec, max(first, now - ON_TIME), now))
    missed = now - ON_TIME - 1
    if first > missed or spec.missed == "skip":
        return on_time
    return latest_ticks(spec, first, missed, 1 if spec.missed == "once" else LIMIT) + on_time


def jitter(spec: Spec, name: str, tick: int) -> int:
    """How long after its tick a run begins: by chance, but always the same for a tick."""
    share = zlib.crc32(f"{name}@{tick}".encode()) / 2**32
    return round(spec.jitter * share)
