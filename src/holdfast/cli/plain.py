"""Recorded values as plain JSON, read without the classes they were made of. A type's tag is dropped and what it
holds is kept: this is for people and for `jq`, never for giving a value back to code."""

from __future__ import annotations

import datetime as dt
import json
import re
from collections.abc import Callable
from typing import Any

import msgspec
from msgspec import Raw

from holdfast.codec import Codec
from holdfast.errors import ValueCodecError

Data = bytes | memoryview | Raw


class Reader:
    """Reads what one app has recorded. Its codec is needed only for what was compressed or encrypted."""

    def __init__(self, codec: Codec) -> None:
        self._codec = codec

    def value(self, data: Data | None) -> Any:
        if data is None:
            return None
        found = msgspec.json.decode(bytes(data))
        if isinstance(found, dict) and found.get("$") == "x":
            return self._sealed(bytes(data), found)
        return _untagged(found)

    def error(self, data: Data | None) -> dict[str, Any] | None:
        found = self.value(data)
        return error_facts(found) if isinstance(found, dict) else None

    def _sealed(self, data: bytes, envelope: dict[str, Any]) -> Any:
        try:
            return msgspec.to_builtins(self._codec.decode(data), str_keys=True, enc_hook=str)
        except (ValueCodecError, TypeError):
            return f"<sealed by {', '.join(map(str, envelope.get('t', [])))}>"


def error_facts(record: dict[str, Any]) -> dict[str, Any]:
    kind = str(record.get("type", ""))
    facts = {"type": kind.partition(":")[2] or kind, "message": str(record.get("message", ""))}
    return facts | ({"traceback": record["traceback"]} if record.get("traceback") else {})


_OURS = re.compile(r'  File "[^"\n]*/holdfast/(?:api|core|engine|executors|codec)/[^\n]*\n(?:    [^\n]*\n?)*')
_REMOTE = re.compile(r'^holdfast\.[\w.]*RemoteTraceback: ?\n?"""\n(.*?)^"""\n?', re.M | re.S)


def own_frames(traceback: str) -> str:
    """A traceback without the lines that are not the user's own. JSON keeps it whole."""
    return _OURS.sub("", _REMOTE.sub(r"\1", traceback)).rstrip()


def _untagged(data: Any) -> Any:
    if isinstance(data, list):
        return [_untagged(item) for item in data]
    if not isinstance(data, dict):
        return data
    if "$" not in data:
        return {key: _untagged(item) for key, item in data.items()}
    tag, held = data["$"], data.get("v")
    try:
        return _READERS[tag](held) if tag in _READERS else _untagged(held)
    except Exception:  # a tag of another version, or a damaged one: shown as it is
        return data


def _mapping(pairs: list[list[Any]]) -> Any:
    plain = [[_untagged(key), _untagged(value)] for key, value in pairs]
    if all(isinstance(key, str | int | float | bool | None) for key, _ in plain):
        return {key if isinstance(key, str) else json.dumps(key): value for key, value in plain}
    return plain


_READERS: dict[str, Callable[[Any], Any]] = {
    "map": _mapping,
    "OrderedDict": _mapping,
    "int": lambda held: int(held, 0),
    "str": lambda held: held.encode("ascii").decode("unicode_escape").encode(errors="replace").decode(),
    "timedelta": lambda held: str(dt.timedelta(*held)),
    "complex": lambda held: f"{_untagged(held[0])}+{_untagged(held[1])}j",
    "Fraction": lambda held: f"{_untagged(held[0])}/{_untagged(held[1])}",
    "exc": error_facts,
    "pickle": lambda held: "<a pickle>",
}


def as_text(value: Any) -> str:
    """On one line."""
    return json.dumps(value, ensure_ascii=False)


def call_text(call: Any) -> str:
    """A call as it was written: (1, "a", key=2)."""
    if not isinstance(call, dict) or not set(call) <= {"args", "kwargs"}:
        return f"({as_text(call)})"
    parts = [as_text(value) for value in call.get("args", [])]
    parts += [f"{key}={as_text(value)}" for key, value in call.get("kwargs", {}).items()]
    return f"({', '.join(parts)})"
