"""Domain events: their names and ids, and which of them a subscriber wants."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from holdfast.errors import DefinitionError
from holdfast.printing import show

Scalar = str | int | float | bool | None
Where = Mapping[str, Scalar]

LIFECYCLE = ("run.succeeded", "run.failed", "run.cancelled", "run.stuck", "step.failed")
"""What Holdfast itself emits, if there is a subscriber."""

NAME_LIMIT = 200
_LOOKUP_LIMIT = 100
_MISSING = object()


def check_event_name(name: Any, *, emitting: bool = False) -> None:
    if type(name) is not str or not 0 < len(name) <= NAME_LIMIT or not name.isprintable() or " " in name:
        raise DefinitionError(
            f"event {show(name)}: the name of an event is a text of 1 to {NAME_LIMIT} printable characters without spaces"
        )
    if name.startswith(("run.", "step.")):
        if emitting:
            raise DefinitionError(
                f"event {name!r}: names that begin with 'run.' and 'step.' are for what Holdfast emits; choose another"
            )
        if name not in LIFECYCLE:
            raise DefinitionError(f"there is no event {name!r}; of runs and steps there are: {', '.join(LIFECYCLE)}")


def check_event_key(name: str, key: Any) -> None:
    if key is not None and (type(key) is not str or not 0 < len(key) <= NAME_LIMIT or not key.isprintable()):
        raise DefinitionError(
            f"event {name!r}, key={show(key)}: a key is a text of 1 to {NAME_LIMIT} printable characters"
        )


def event_id(app: str, name: str, key: str) -> str:
    """The same name and key is the same event of an app."""
    text = json.dumps([app, name, key])
    return f"evt-{hashlib.sha256(text.encode()).hexdigest()[:24]}"


def started_run_id(target: str, event: str) -> str:
    """The run that an event starts: derived, so that there is one however often the event arrives."""
    return f"{target}.on-{event.removeprefix('evt-')}"


@dataclass(frozen=True, slots=True)
class Subscriber:
    """A step or workflow that each event of a name starts, if the event fulfils one of the conditions."""

    event: str
    target: str
    where: list[dict[str, Scalar]]
    takes_payload: bool
    durable: bool


# -- where


def check_where(name: str, where: Any) -> dict[str, Scalar]:
    """The conditions, as they are recorded. What could never be compared is refused."""
    if where is None:
        return {}
    if not isinstance(where, Mapping):
        raise DefinitionError(f"event {name!r}, where={show(where)}: give a dict such as {{'currency': 'EUR'}}")
    for path, value in where.items():
        if type(path) is not str or not all(path.split(".")) or not _is_comparable(path):
            raise DefinitionError(
                f"event {name!r}, where: {show(path)} is not a path into the payload, such as 'currency' or 'customer.id'"
            )
        if not _is_comparable(value):
            raise DefinitionError(
                f"event {name!r}, where: {show(path)} is compared with {show(value)}; give a text, a number, True, False or "
                "None, as it is in the payload's JSON (a date or a Decimal is a text there)"
            )
    return {path: _plain(value) for path, value in where.items()}


def _is_comparable(value: Any) -> bool:
    if isinstance(value, float):
        return math.isfinite(value)
    if isinstance(value, int):
        return -(2**63) <= value < 2**63
    if isinstance(value, str):
        return "\0" not in value and not any("\ud800" <= char <= "\udfff" for char in value)
    return value is None


def _plain(value: Any) -> Scalar:
    """The JSON of it: an enum that is a text is that text, and 2.0 is 2."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int):
        return int(value)
    return int(value) if float(value).is_integer() else float(value)


def matches(where: Where, payload: Any) -> bool:
    """Whether a payload, as plain JSON, has each of these values at its path."""
    return all(_same(value_at(payload, path), value) for path, value in where.items())


def value_at(payload: Any, path: str) -> Any:
    for key in path.split("."):
        payload = payload.get(key, _MISSING) if isinstance(payload, dict) else _MISSING
    return payload


def _same(found: Any, value: Scalar) -> bool:
    if isinstance(found, bool) or isinstance(value, bool):
        return found is value
    return type(found) in (str, int, float, type(None)) and found == value


# -- how those who wait are found without asking each of them


def address(where: Where) -> str:
    """What tells two waits for the same event apart."""
    return "event " + json.dumps(dict(where), sort_keys=True)


def lookup(path: str, value: Any) -> str:
    """By which a store finds those that compare `path` with `value`: "" for those that compare nothing."""
    if not path:
        return ""
    text = f"{path}={json.dumps(_plain(value))}"
    return text if len(text) <= _LOOKUP_LIMIT else hashlib.sha256(text.encode()).hexdigest()


def lookups(paths: list[str], payload: Any) -> list[str]:
    """By which those are found whose first condition a payload fulfils."""
    found = [(path, value_at(payload, path)) for path in paths if path]
    return ["", *(lookup(path, value) for path, value in found if type(value) in (str, int, float, bool, type(None)))]
