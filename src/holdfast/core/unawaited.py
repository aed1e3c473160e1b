"""What code has created to be awaited, and has not awaited so far."""

from __future__ import annotations

import inspect
from types import FrameType

from holdfast.core.source_lines import SourceLine, source_line
from holdfast.errors import NeverAwaitedError

_CAN_AWAIT = inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR


class Unawaited:
    """Each by a number, with the line that created it."""

    __slots__ = ("_count", "_lines")

    def __init__(self) -> None:
        self._count = 0
        self._lines: dict[int, tuple[str, SourceLine | None]] = {}

    def __bool__(self) -> bool:
        return bool(self._lines)

    def add(self, what: str, frame: FrameType | None) -> int:
        """`frame` is one that asks for it: the line is in it, or in the nearest one outside of Holdfast that called it."""
        self._count += 1
        self._lines[self._count] = (what, source_line(frame))
        return self._count

    def remove(self, number: int) -> None:
        self._lines.pop(number, None)

    def in_words(self) -> list[str]:
        return [what if place is None else f"{what} at {place}" for what, place in self._lines.values()]

    def error(self) -> NeverAwaitedError:
        lines = [line for _, line in self._lines.values() if line is not None]
        can_await = all(line.code.co_flags & _CAN_AWAIT for line in lines)
        remedy = "await it" if can_await else "wait for it with wf.wait(...), or in `async def` code with await"
        return NeverAwaitedError(
            f"created and never awaited: {', '.join(self.in_words())}; {remedy}, or don't create it"
        )
