"""Durations as people write them: seconds, timedelta, "100ms", "1h30m".

Everything inside Holdfast counts integer microseconds; this is the only place where other units enter.
"""

from __future__ import annotations

import datetime as dt
import math
import re

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
_PART = re.compile(r"(\d+(?:\.\d+)?)\s*(us|ms|s|m|h|d|w)\s*")
_NUMBER = re.compile(r"\d+(?:\.\d+)?")


def to_us(value: Duration, what: str = "duration") -> int:
    """Microseconds in `value`; ValueError or TypeError say what was wrong with `what`."""
    if isinstance(value, bool) or not isinstance(value, (int, float, str, dt.timedelta)):
        raise TypeError(f"{what}: {value!r} is not a duration; give {type_names}")
    if isinstance(value, dt.timedelta):
        us = value // dt.timedelta(microseconds=1)
    elif isinstance(value, str):
        us = _parse(value, what)
    else:
        if not math.isfinite(value):
            raise ValueError(f"{what}: {value!r} is not a finite duration; give {type_names}")
        us = round(value * SECOND)
    if us < 0:
        raise ValueError(f"{what}: {value!r} is negative; give {type_names}")
    return us


def _parse(text: str, what: str) -> int:
    stripped = text.strip()
    if _NUMBER.fullmatch(stripped):
        return round(float(stripped) * SECOND)
    total, position = 0.0, 0
    while position < len(stripped):
        part = _PART.match(stripped, position)
        if part is None:
            break
        total += float(part[1]) * _UNITS[part[2]]
        position = part.end()
    if not stripped or position < len(stripped):
        raise ValueError(f"{what}: cannot read {text!r}; give {type_names}")
    return round(total)


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
