"""Recorded values as people and programs read them: as plain JSON, or as the Python objects they were."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Mapping
from typing import Any, Protocol

import msgspec
from msgspec import Raw

from holdfast.codec import Codec
from holdfast.codec.untagged import error_facts, marked, untagged
from holdfast.errors import ValueCodecError
from holdfast.views.times import iso, moment

Data = bytes | memoryview | Raw
COMMON = ("seq", "kind", "ts", "name", "cmd", "cause", "attempt")
"""What any event may have; all else is particular to its kind."""

_MOMENTS = ("due", "expires", "limit", "retry_at", "scheduled_at", "started", "until", "value")


class Reader(Protocol):
    """In which form recorded values are wanted."""

    def value(self, data: Data | None) -> Any: ...

    def error(self, data: Data | None) -> Any: ...

    def call(self, data: Data) -> Any:
        """The arguments of a call."""

    def moment(self, us: int | None) -> Any: ...


def detail_of(fields: Mapping[str, Any], reader: Reader) -> dict[str, Any]:
    """What is particular to an event, from its fields as they are recorded or as an event has them."""
    return {name: _field(name, value, reader) for name, value in fields.items() if name not in COMMON}


def _field(name: str, value: Any, reader: Reader) -> Any:
    if name in _MOMENTS:
        us = msgspec.json.decode(value) if isinstance(value, Raw) else value
        return reader.moment(us or None) if us is None or isinstance(us, int) else us
    if isinstance(value, dict):
        return {key: _field("", each, reader) for key, each in value.items()}
    if not isinstance(value, Raw):
        return value
    if name == "error":
        return reader.error(value)
    return reader.call(value) if name in ("args", "input") else reader.value(value)


class PlainReader:
    """Plain JSON, with or without the app's own codec: that is needed only for what was compressed or encrypted.
    With `marks`, bytes and numbers that JSON doesn't have can be told from texts."""

    def __init__(self, codec: Codec | None = None, marks: bool = False) -> None:
        self._codec = codec
        self._marks = marks

    def named(self, name: str, data: Data | None) -> Any:
        """A value that has a name of its own."""
        return self.value(data)

    def value(self, data: Data | None) -> Any:
        if data is None:
            return None
        found = msgspec.json.decode(bytes(data))
        if isinstance(found, dict) and found.get("$") == "x":
            return self._sealed(bytes(data), found)
        return untagged(marked(found) if self._marks else found)

    def error(self, data: Data | None) -> dict[str, Any] | None:
        found = self.value(data)
        return error_facts(found) if isinstance(found, dict) else None

    def call(self, data: Data) -> Any:
        return self.value(data)

    def moment(self, us: int | None) -> str | None:
        return iso(us)

    def error_text(self, data: Data | None) -> str:
        error = self.error(data)
        return "" if error is None else f"{error['type']}: {error['message']}"

    def _sealed(self, data: bytes, envelope: dict[str, Any]) -> Any:
        try:
            if self._codec is not None:
                return msgspec.to_builtins(self._codec.decode(data), str_keys=True, enc_hook=str)
        except (ValueCodecError, TypeError):
            pass
        return f"<sealed by {', '.join(map(str, envelope.get('t', [])))}>"


class PythonReader:
    """Python objects, as an app's codec rebuilds them; of classes that aren't known here, what they hold."""

    def __init__(self, codec: Codec) -> None:
        self._codec = codec

    def value(self, data: Data | None) -> Any:
        return None if data is None else self._codec.decode_loosely(data)

    def error(self, data: Data | None) -> BaseException | None:
        return None if data is None or bytes(data) == b"null" else self._codec.decode_error(data)

    def call(self, data: Data) -> Any:
        args, kwargs = self.arguments(data)
        return (*args, kwargs) if kwargs else args

    def arguments(self, data: Data) -> tuple[tuple[Any, ...], dict[str, Any]]:
        found = self._codec.decode_loosely(data)
        if isinstance(found, dict) and set(found) <= {"args", "kwargs"}:
            return tuple(found.get("args", ())), found.get("kwargs", {})
        return (found,), {}

    def moment(self, us: int | None) -> dt.datetime | None:
        return moment(us)


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
