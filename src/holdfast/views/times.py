"""Times as people read them. In the store they are integer microseconds since the epoch."""

from __future__ import annotations

import datetime as dt
from typing import overload

SECOND = 1_000_000
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_LAST = (dt.datetime.max.replace(tzinfo=dt.UTC) - _EPOCH) // dt.timedelta(microseconds=1)  # Python's last moment


@overload
def moment(us: int) -> dt.datetime: ...
@overload
def moment(us: int | None) -> dt.datetime | None: ...
def moment(us: int | None) -> dt.datetime | None:
    return None if us is None else _EPOCH + dt.timedelta(microseconds=min(us, _LAST))


def iso(us: int | None) -> str | None:
    return None if us is None else moment(us).isoformat()


def clock(us: int, now: int) -> str:
    """A moment as people near it say it: the hour today, the date otherwise."""
    then = dt.datetime.fromtimestamp(us / SECOND).astimezone()
    today = dt.datetime.fromtimestamp(now / SECOND).astimezone()
    if then.date() == today.date():
        return then.strftime("%H:%M:%S")
    return then.strftime("%Y-%m-%d %H:%M")


def length(us: int) -> str:
    """A length of time in two units at most."""
    if us < SECOND:
        return f"{max(us, 0) // 1_000}ms"
    if us < 60 * SECOND:
        return f"{us / SECOND:.1f}s"
    seconds = us // SECOND
    if seconds < 3_600:
        return f"{seconds // 60}m{seconds % 60:02d}s"
    if seconds < 86_400:
        return f"{seconds // 3_600}h{seconds % 3_600 // 60:02d}m"
    return f"{seconds // 86_400}d{seconds % 86_400 // 3_600:02d}h"


def ago(us: int, now: int) -> str:
    if now - us < SECOND:
        return "now"
    return f"{(now - us) // SECOND}s ago" if now - us < 60 * SECOND else f"{length(now - us)} ago"


def until(us: int, now: int) -> str:
    return f"{clock(us, now)} (in {length(us - now)})" if us > now else f"{clock(us, now)} (due)"
