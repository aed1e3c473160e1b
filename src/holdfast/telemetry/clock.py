"""Lamport's logical clock: if one thing led to another, it has the lower number. Whatever the wall clocks say."""

from __future__ import annotations

import os
import threading
import weakref
from typing import TypeGuard

MAX_CLOCK = 2**53
"""Larger values are not believed: JSON readers can't hold them exactly, and counting there takes centuries."""


MAX_BELIEVED = MAX_CLOCK // 2
"""Nor is what is beyond the half of it, if it comes from others. Nobody gets there by counting, and a clock that one faulty
sender brought to its end would have to run backwards."""


def is_clock(value: object) -> TypeGuard[int]:
    """Whether this is a value that a clock can have: a whole number from 0 to MAX_CLOCK."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MAX_CLOCK


class LamportClock:
    """A counter that only goes up. Every process has one; safe to use from any thread.

    What a process sends carries `forward()`; for what it receives it calls `adjust(other)`. A process that starts again
    begins with the value it had stored, `LamportClock(stored)`, or takes it up later with `resume(stored)`.
    """

    def __init__(self, value: int | None = 0) -> None:
        self._value = 0
        self._lock = threading.Lock()
        _clocks.add(self)
        self.resume(value)

    @property
    def value(self) -> int:
        """What the clock shows: the highest number that it has given."""
        return self._value

    def forward(self, count: int = 1) -> int:
        """Something happens here: the next number, or the last of the next `count`."""
        with self._lock:
            self._value += count
            return self._value

    def adjust(self, other: object) -> int:
        """Something came from elsewhere, with that clock's value: a number higher than both.

        A value that no clock can have (no whole number, negative, beyond MAX_BELIEVED) is no knowledge of that clock.
        Something did come, so this one goes forward by one.
        """
        believed = int(other) if is_clock(other) and other <= MAX_BELIEVED else 0
        with self._lock:
            self._value = max(self._value, believed) + 1
            return self._value

    def resume(self, stored: int | None) -> int:
        """Go on from a stored value, unless the clock is ahead of it already. None: nothing was stored.

        Raises ValueError for what no clock can have shown. To begin at 0 instead would be to run backwards.
        """
        if stored is not None and not is_clock(stored):
            raise ValueError(
                f"a clock can't go on from {stored!r}: it takes a whole number from 0 to {MAX_CLOCK}, or None for a new one"
            )
        with self._lock:
            self._value = max(self._value, int(stored or 0))
            return self._value

    def __repr__(self) -> str:
        return f"LamportClock({self._value})"


_clocks: weakref.WeakSet[LamportClock] = weakref.WeakSet()


def _unlock_in_child() -> None:
    """A thread that held a lock when the process was forked doesn't exist in the child, and would never let go."""
    for clock in list(_clocks):
        clock._lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_unlock_in_child)
