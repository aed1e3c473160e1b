"""The grammar of filters: `status:failed workflow:order* data.customer=42 started:<1h`, as text and as a query.

Terms are joined by "and"; a word alone is the beginning of a run's id. What holds a space stands in double quotes.
"""

from __future__ import annotations

import datetime as dt
import json
import re
from collections.abc import Callable
from typing import Any

from holdfast.durations import to_us
from holdfast.errors import ArgumentError
from holdfast.ports import RunQuery, Status
from holdfast.printing import show
from holdfast.views.times import SECOND

_TERM = re.compile(r'(?:[^\s"]|"(?:[^"\\]|\\.)*")+')
_NAMES = {"workflow": "workflow", "parent": "parent", "worker": "owner", "schedule": "schedule", "id": "prefix"}
_SAID = {"failed": Status.FAILURE, "succeeded": Status.SUCCESS, "done": Status.SUCCESS, "sleeping": Status.WAITING}
KNOWN = "status:, workflow:, started:, data.KEY=, id:, parent:, worker:, schedule:"


def parse_filter(text: str, now: int, encode: Callable[[Any], bytes]) -> RunQuery:
    """What a filter asks for. `encode` writes a value as the app's codec does; ArgumentError says what can't be read."""
    found: dict[str, Any] = {}
    data: dict[str, str] = {}
    for term in terms_of(text):
        if term.startswith("data.") and "=" in term:
            key, _, value = term.removeprefix("data.").partition("=")
            data[key] = encode(_value(value)).decode(errors="replace")
            continue
        name, colon, value = term.partition(":")
        value = unquoted(value)
        if not colon or term.startswith('"'):
            name, value = "id", unquoted(term)
        if not value:
            raise ArgumentError(f"filter {show(term)}: nothing comes after {name}:; give a value, or leave it out")
        if name == "status":
            found["statuses"] = [*found.get("statuses", ()), *map(_status, value.split(","))]
        elif name == "started":
            found |= _times(term, value, now)
        elif name in _NAMES:
            found[_NAMES[name]] = value
        else:
            raise ArgumentError(f"filter {show(term)}: there is no {name}:; known: {KNOWN}")
    if "*" in (found.get("workflow") or "")[:-1]:
        raise ArgumentError(f"filter workflow:{found['workflow']}: a * stands at the end of a name only")
    return RunQuery(**found, data=data)


def terms_of(text: str) -> list[str]:
    if _TERM.sub("", text).strip():
        raise ArgumentError(f'filter {show(text)}: a " is open; close it')
    return _TERM.findall(text)


def _status(word: str) -> Status:
    known = {status.lower(): status for status in Status} | _SAID
    status = known.get(word.lower())
    if status is None:
        raise ArgumentError(f"filter status:{word}: no such status; known: {', '.join(known)}")
    return status


def _times(term: str, value: str, now: int) -> dict[str, int]:
    """Of a length of time `<` is less than so long ago; of a date it is before it."""
    sign, when = (value[0], value[1:]) if value[0] in "<>" else ("", value)
    try:
        moment = now - to_us(when)
        return {"until": moment} if sign == ">" else {"since": moment}
    except ValueError:
        pass
    try:
        moment = round(dt.datetime.fromisoformat(when).astimezone().timestamp() * SECOND)
    except (ValueError, OverflowError):
        raise ArgumentError(
            f"filter {show(term)}: give how long ago (started:<1h, started:>2d), or a date (started:>2026-01-31)"
        ) from None
    return {"until": moment} if sign == "<" else {"since": moment}


def _value(text: str) -> Any:
    """JSON if it reads as such, else text."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def unquoted(text: str) -> str:
    if not text.startswith('"'):
        return text
    found = _value(text)
    return found if isinstance(found, str) else text
