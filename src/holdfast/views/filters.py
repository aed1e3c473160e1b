"""The grammar of filters: `status:failed workflow:order* data.customer=42 data.amount>=100 started:<1h`, as text and as a
query.

Terms are joined by "and"; a word alone is the beginning of a run's id. What holds a space stands in double quotes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import msgspec

from holdfast.codec.ordering import LAST_CHARACTER, next_kind, order_key
from holdfast.durations import to_us
from holdfast.errors import ArgumentError
from holdfast.ports import DataSpan, RunQuery, Status
from holdfast.printing import show
from holdfast.views.times import SECOND, read_local

_TERM = re.compile(r'(?:[^\s"]|"(?:[^"\\]|\\.)*")+')
_NAMES = {"workflow": "workflow", "parent": "parent", "worker": "owner", "schedule": "schedule", "id": "prefix"}
STATUS_WORDS: dict[str, Status] = {status.lower(): status for status in Status} | {
    "failed": Status.FAILURE, "succeeded": Status.SUCCESS, "done": Status.SUCCESS, "sleeping": Status.WAITING,
}  # fmt: skip
_COMPARED = re.compile(r"([^=<>]+)(>=|<=|=|<|>)(.*)", re.S)
KNOWN = "status:, workflow:, started:, data.KEY= (or <, <=, >, >=), id:, parent:, worker:, schedule:"


def parse_filter(text: str, now: int, encode: Callable[[Any], bytes], known: str = KNOWN) -> RunQuery:
    """What a filter asks for. `encode` writes a value as the app's codec does; ArgumentError says what can't be read, and
    that these terms are `known`."""
    found: dict[str, Any] = {}
    data: dict[str, str] = {}
    spans: list[DataSpan] = []
    for term in terms_of(text):
        if term.startswith("data.") and add_data_term(term.removeprefix("data."), encode, data, spans):
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
            raise ArgumentError(f"filter {show(term)}: there is no {name}:; known: {known}")
    if "*" in (found.get("workflow") or "")[:-1]:
        raise ArgumentError(f"filter workflow:{found['workflow']}: a * stands at the end of a name only")
    return RunQuery(**found, data=data, spans=tuple(spans))


def add_data_term(term: str, encode: Callable[[Any], bytes], data: dict[str, str], spans: list[DataSpan]) -> bool:
    """Take in `customer=42`, `amount>=100` or `name=ac*`; False if it is nothing like that."""
    compared = _COMPARED.fullmatch(term)
    if compared is None:
        return False
    key, sign, value = compared.groups()
    if sign == "=" and not (value.endswith("*") and isinstance(value_of(value[:-1]), str)):
        data[key] = encode(value_of(value)).decode(errors="replace")
    elif value:
        spans.append(_span(key, sign, value, encode))
    else:
        raise ArgumentError(f"filter {show(term)}: nothing comes after {sign}; give a value to compare with")
    return True


def _span(key: str, sign: str, text: str, encode: Callable[[Any], bytes]) -> DataSpan:
    """`data.amount>=100`, `data.name=ac*`. What reads as a date is compared with dates and times as well as with texts."""
    if sign == "=":
        begins = order_key(encode(value_of(text[:-1])))
        return DataSpan(key=key, low=begins, high=begins + LAST_CHARACTER)
    value = value_of(text)
    meanings: list[Any] = [value]
    if isinstance(value, str):
        try:
            local = read_local(value)
        except ValueError:
            pass
        else:
            meanings += [local, local.replace(tzinfo=None) if len(value) > len("2026-01-31") else local.date()]
    found = [_between(key, sign, order_key(encode(meaning))) for meaning in meanings]
    return msgspec.structs.replace(found[0], others=tuple(found[1:]))


def _between(key: str, sign: str, bound: str) -> DataSpan:
    if sign[0] == ">":
        return DataSpan(key=key, low=bound, high=next_kind(bound), above=sign == ">")
    return DataSpan(key=key, low=bound[0], high=bound, upto=sign == "<=")


def terms_of(text: str) -> list[str]:
    if _TERM.sub("", text).strip():
        raise ArgumentError(f'filter {show(text)}: a " is open; close it')
    return _TERM.findall(text)


def _status(word: str) -> Status:
    status = STATUS_WORDS.get(word.lower())
    if status is None:
        raise ArgumentError(f"filter status:{word}: no such status; known: {', '.join(STATUS_WORDS)}")
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
        moment = round(read_local(when).timestamp() * SECOND)
    except ValueError:
        raise ArgumentError(
            f"filter {show(term)}: give how long ago (started:<1h, started:>2d), or a date (started:>2026-01-31)"
        ) from None
    return {"until": moment} if sign == "<" else {"since": moment}


def value_of(text: str) -> Any:
    """JSON if it reads as such, else text."""
    try:
        return json.loads(text)
    except ValueError:
        return text
    except RecursionError:
        raise ArgumentError(f"{show(text)} is nested too deeply to be read; to mean the text, quote it") from None


def unquoted(text: str) -> str:
    if not text.startswith('"'):
        return text
    found = value_of(text)
    return found if isinstance(found, str) else text
