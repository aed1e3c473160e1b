"""Recorded values as people read them, with or without the app's own codec."""

from __future__ import annotations

import json
from typing import Any

import msgspec
from msgspec import Raw

from holdfast.codec import Codec
from holdfast.codec.plain import error_facts, untagged
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
        return untagged(found)

    def error(self, data: Data | None) -> dict[str, Any] | None:
        found = self.value(data)
        return error_facts(found) if isinstance(found, dict) else None

    def _sealed(self, data: bytes, envelope: dict[str, Any]) -> Any:
        try:
            return msgspec.to_builtins(self._codec.decode(data), str_keys=True, enc_hook=str)
        except (ValueCodecError, TypeError):
            return f"<sealed by {', '.join(map(str, envelope.get('t', [])))}>"


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
