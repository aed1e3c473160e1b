"""A text for a recorded value, such that texts compare as the values do: by it a database finds runs by their data.

The first letter tells the kind, so that a number is never between two texts: B for yes and no, N for numbers, T for times
with a zone, L for dates and times without one, S for texts, J for all else, which compares as JSON.
"""

from __future__ import annotations

import datetime as dt
from decimal import Decimal, InvalidOperation
from typing import Any

import msgspec

_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_SHIFT = 10**17  # microseconds: every year that a datetime can have is after that
_EXPONENT = 5_000
_NINES = str.maketrans("0123456789", "9876543210")

LAST_CHARACTER = "\U0010ffff"
EXACT = "BNTL"
"""Kinds whose texts are the same if and only if the values are equal."""


def order_key(data: bytes) -> str:
    """The text for a value that the codec has encoded. What a transform has sealed is not looked into."""
    try:
        return _key(msgspec.json.decode(data)) or "J" + _clean(data.decode(errors="replace"))
    except (ValueError, OverflowError, InvalidOperation, RecursionError, msgspec.MsgspecError):
        return "J" + _clean(data.decode(errors="replace"))


def next_kind(key: str) -> str:
    """What comes after all values of that kind."""
    return chr(ord(key[0]) + 1)


def _key(value: Any) -> str:
    if isinstance(value, bool):
        return f"B{int(value)}"
    if isinstance(value, int | float):
        return _number(Decimal(repr(value)))
    if isinstance(value, str):
        return "S" + _clean(value)
    if not isinstance(value, dict) or not {"$", "v"} <= value.keys():
        return ""
    kind, inside = value["$"], value["v"]
    if kind in ("int", "float", "Decimal"):
        return _number(Decimal(inside))
    if kind == "date":
        return f"L{dt.date.fromisoformat(inside).isoformat()}"
    if kind == "datetime":
        moment = dt.datetime.fromisoformat(inside)
        if moment.utcoffset() is None:
            return f"L{moment.isoformat(timespec='microseconds')}"
        return f"T{(moment - _EPOCH) // dt.timedelta(microseconds=1) + _SHIFT:019d}"
    return ""


def _number(number: Decimal) -> str:
    if number.is_nan():
        return "N9"
    if number.is_infinite():
        return "N3" if number > 0 else "N0"
    sign, digits, _ = number.as_tuple()
    text = "".join(map(str, digits)).rstrip("0")
    if not text:
        return "N1~"  # zero, between those below and above
    size = f"{min(max(number.adjusted() + _EXPONENT, 0), 9_999):04d}"
    if not sign:
        return f"N2{size}{text}"
    # The larger it is without its sign, the earlier it comes; a longer one before the one that it begins with.
    return f"N1{(size + text).translate(_NINES)}~"


def _clean(text: str) -> str:
    """As every database can hold it."""
    return text.replace("\0", "\x01").encode(errors="replace").decode()
