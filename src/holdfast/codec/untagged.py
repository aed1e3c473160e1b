"""Recorded values as plain JSON, without the classes they were made of: a type's tag is dropped and what it holds is
kept. For people, for `jq` and for comparing; never for giving a value back to code."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Callable
from typing import Any


def untagged(data: Any) -> Any:
    if isinstance(data, list):
        return [untagged(item) for item in data]
    if not isinstance(data, dict):
        return data
    if "$" not in data:
        return {key: untagged(item) for key, item in data.items()}
    tag, held = data["$"], data.get("v")
    try:
        return _READERS[tag](held) if tag in _READERS else untagged(held)
    except Exception:  # a tag of another version, or a damaged one: shown as it is
        return data


def marked(data: Any) -> Any:
    """Tagged data in which what JSON has no word for is a text that says so: nobody takes it for a text of the user's."""
    if isinstance(data, list):
        return [marked(item) for item in data]
    if not isinstance(data, dict):
        return data
    if data.get("$") in _MARKS and isinstance(held := data.get("v"), str):
        return _MARKS[data["$"]].format(held)
    return {key: marked(item) for key, item in data.items()}


def error_facts(record: dict[str, Any]) -> dict[str, Any]:
    """A recorded exception, in words."""
    kind = str(record.get("type", ""))
    facts = {"type": kind.partition(":")[2] or kind, "message": str(record.get("message", ""))}
    return facts | ({"traceback": record["traceback"]} if record.get("traceback") else {})


def _mapping(pairs: list[list[Any]]) -> Any:
    plain = [[untagged(key), untagged(value)] for key, value in pairs]
    if all(isinstance(key, str | int | float | bool | None) for key, _ in plain):
        return {key if isinstance(key, str) else json.dumps(key): value for key, value in plain}
    return plain


def _whole(held: str) -> int | str:
    """A number, or the digits that were recorded of one for which Python writes none."""
    number = int(held, 0)
    try:
        str(number)
    except ValueError:
        return held
    return number


_MARKS = {"float": "<{}>", "bytes": "<bytes {}>", "bytearray": "<bytearray {}>"}
_READERS: dict[str, Callable[[Any], Any]] = {
    "map": _mapping,
    "OrderedDict": _mapping,
    "int": lambda held: _whole(held),
    "str": lambda held: held.encode("ascii").decode("unicode_escape").encode(errors="replace").decode(),
    "timedelta": lambda held: str(dt.timedelta(*held)),
    "complex": lambda held: f"{untagged(held[0])}+{untagged(held[1])}j",
    "Fraction": lambda held: f"{untagged(held[0])}/{untagged(held[1])}",
    "exc": error_facts,
    "pickle": lambda held: "<a pickle>",
    "blob": lambda held: f"<{held[1]:,} bytes, kept among the blobs>",
}
