"""Values without what nobody is to see: a function of the user's decides, entry by entry."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from holdfast.codec import Codec
from holdfast.views.values import Data, PlainReader

Redact = Callable[[str, Any], Any]
"""Given the name that a plain value has (its key; in a list, that of the list; empty if there is none) and the value: what
is shown."""


class RedactingReader(PlainReader):
    """Reads as PlainReader does, and shows what is left of it."""

    def __init__(self, codec: Codec | None, redact: Redact, marks: bool = False) -> None:
        super().__init__(codec, marks)
        self._redact = redact

    def value(self, data: Data | None) -> Any:
        return self._walk("", super().value(data))

    def named(self, name: str, data: Data | None) -> Any:
        return self._walk(name, super().value(data))

    def _walk(self, name: str, value: Any) -> Any:
        if isinstance(value, dict):
            return {key: self._walk(key, each) for key, each in value.items()}
        if isinstance(value, list):
            return [self._walk(name, each) for each in value]
        return self._redact(name, value)
