"""Time and chance."""

from __future__ import annotations

from typing import Protocol

AHEAD = 60 * 1_000_000
"""Clocks of machines differ by less: what is further in the future was told by a clock that was wrong."""


class Clock(Protocol):
    """Time and chance, as something that a test can move."""

    def now(self) -> int:
        """Microseconds since the epoch."""

    def monotonic(self) -> float:
        """Seconds, on a clock that is never set, and goes on while the machine sleeps."""

    def random(self) -> float:
        """A number in [0, 1)."""
