"""Durations as people write them: seconds, timedelta, "100ms", "1h30m".

Everything inside Holdfast counts integer microseconds; this is the only place where other units enter.
"""

from __future__ import annotations

import datetime as dt
import math
import re

from holdfast.printing import show

type_names = "seconds as a number, a timedelta, or text such as '100ms', '30s', '1h30m', '2d'"

Duration = float | int | str | dt.timedelta

SECOND = 1_000_000
_UNITS = {
    "us": 1,
    "ms": 1_000,
    "s": SECOND,
    "m": 60 * SECOND,
    "h": 3_600 * SECOND,
    "d": 86_400 * SECOND,
    "w": 604_800 * SECOND,
}
LONGEST = 365 * 5_000 * _UNITS["d"]
"""Five thousand years: added to the time it is still a date, and still fits a column."""

_PART = re.compile(r"(\d+(?:\.\d+)?)\s*(us|ms|s|m|h|d|w)\s*")
_NUMBER = re.compile(r"\d+(?:\.\d+)?")


def to_us(value: Duration, what: str = "duration") -> int:
    """Microseconds in `value`; ValueError or TypeError say what was wrong with `what`. What is longer than anybody will
    wait is cut to LONGEST."""
    us = _signed(value, what)
    if us < 0:
        raise ValueError(f"{what}: {show(value)} is negative; give {type_names}")
    return us


def to_wait(value: Duration, what: str) -> int:
    """The same for a time to wait, which may be over already: it was counted to a moment, and whoever counts is late."""
    return max(0, _signed(value, what))


def _signed(value: Duration, what: str) -> int:
    if isinstance(value, bool) or not isinstance(value, (int, float, str, dt.timedelta)):
        raise TypeError(f"{what}: {show(value)} is not a duration; give {type_names}")
    if isinstance(value, dt.timedelta):
        us: float = value // dt.timedelta(microseconds=1)
    elif isinstance(value, str):
        us = _parse(value, what)
    elif isinstance(value, int):
        us = value * SECOND
    else:
        if not math.isfinite(value):
            raise ValueError(f"{what}: {show(value)} is not a finite duration; give {type_names}")
        us = value * SECOND
    return round(max(-LONGEST, min(us, LONGEST)))


def _parse(text: str, what: str) -> float:
    stripped = text.strip()
    if _NUMBER.fullmatch(stripped):
        return float(stripped) * SECOND
    total, position = 0.0, 0
    while position < len(stripped):
        part = _PART.match(stripped, position)
        if part is None:
            break
        total += float(part[1]) * _UNITS[part[2]]
        position = part.end()
    if not stripped or position < len(stripped):
        raise ValueError(f"{what}: cannot read {show(text)}; give {type_names}")
    return total


def in_words(us: int) -> str:
    """The shortest text that reads back as `us`: 5_400_000_000 -> '1h30m'."""
    if us == 0:
        return "0s"
    out = ""
    for unit in ("d", "h", "m", "s", "ms", "us"):
        count, us = divmod(us, _UNITS[unit])
        if count:
            out += f"{count}{unit}"
    return out
