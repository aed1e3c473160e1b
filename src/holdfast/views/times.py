"""Times as people read them. In the store they are integer microseconds since the epoch."""

from __future__ import annotations

import contextlib
import datetime as dt
import re
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Literal, overload

SECOND = 1_000_000
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_LAST = (dt.datetime.max.replace(tzinfo=dt.UTC) - _EPOCH) // dt.timedelta(microseconds=1)  # Python's last moment
_marks: ContextVar[bool] = ContextVar("holdfast_marks", default=False)
_MARK = re.compile(r"⟦(until|ago|for|in) (\d{1,18})⟧")


@contextlib.contextmanager
def marking() -> Iterator[None]:
    """Within it, moments in sentences are marks such as ⟦until 1800000000000000⟧: whoever shows them does so in a zone of
    their own, and as the clock goes on."""
    token = _marks.set(True)
    try:
        yield
    finally:
        _marks.reset(token)


def unmarked(text: str, now: int) -> str:
    """A sentence with its marks in words."""
    said = {"until": until, "ago": ago, "for": lasting, "in": left}
    return _MARK.sub(lambda found: said[found[1]](int(found[2]), now), text)


def _marked(kind: Literal["until", "ago", "for", "in"], us: int) -> str:
    return f"⟦{kind} {min(max(us, 0), _LAST)}⟧" if _marks.get() else ""


@overload
def moment(us: int) -> dt.datetime: ...
@overload
def moment(us: int | None) -> dt.datetime | None: ...
def moment(us: int | None) -> dt.datetime | None:
    return None if us is None else _EPOCH + dt.timedelta(microseconds=min(us, _LAST))


def read_local(text: str, tz: dt.tzinfo | None = None) -> dt.datetime:
    """A date and time as people write it, without a zone in that one, else in the local one; ValueError if it is none, or
    no clock shows it."""
    try:
        found = dt.datetime.fromisoformat(text)
        return (found if tz is None or found.tzinfo is not None else found.replace(tzinfo=tz)).astimezone(tz)
    except OverflowError as error:
        raise ValueError(str(error)) from None


def iso(us: int | None) -> str | None:
    return None if us is None else moment(us).isoformat()


def clock(us: int, now: int) -> str:
    """A moment as people near it say it: the hour today, the date otherwise."""
    then, today = _local(us), _local(now)
    if then.date() == today.date():
        return then.strftime("%H:%M:%S")
    return then.strftime("%Y-%m-%d %H:%M")


def _local(us: int) -> dt.datetime:
    try:
        return moment(us).astimezone()
    except (OverflowError, ValueError):  # Python's last hours are past its end in the east
        return moment(us)


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


def lasting(since: int, now: int) -> str:
    """How long something goes on."""
    return _marked("for", since) or length(now - since)


def left(us: int, now: int) -> str:
    """How long it is until then."""
    return _marked("in", us) or length(us - now)


def ago(us: int, now: int) -> str:
    if mark := _marked("ago", us):
        return mark
    if now - us < SECOND:
        return "now"
    return f"{(now - us) // SECOND}s ago" if now - us < 60 * SECOND else f"{length(now - us)} ago"


def until(us: int, now: int) -> str:
    if mark := _marked("until", us):
        return mark
    return f"{clock(us, now)} (in {length(us - now)})" if us > now else f"{clock(us, now)} (due)"
