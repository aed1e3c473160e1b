"""Numbers of the logical clock for what this process writes into a store, and how they stay higher than all there is."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from holdfast.telemetry.clock import LamportClock, is_clock

RESERVE = 10_000
"""How far a process may count before it writes down how far it may have counted."""


class Stamps:
    """The logical clock of this process, which goes on from where anybody's has been in this store once it is needed."""

    def __init__(self, q: Mapping[str, str], clock: LamportClock | None = None) -> None:
        self._q = q
        self._clock = clock or LamportClock()
        self._limit = 0  # up to here it is written down; 0: nobody has looked yet

    @property
    def clock(self) -> LamportClock:
        return self._clock

    @clock.setter
    def clock(self, clock: LamportClock) -> None:
        self._clock, self._limit = clock, 0

    def take(self, db: Any, count: int) -> int:
        """The first of the next `count` numbers. The one before it stays free."""
        if not self._limit:
            self._resume(db)
        last = self._clock.forward(count + 1)
        if last > self._limit:
            self._reserve(db, last)
        return last - count + 1

    def forget(self) -> None:
        """A transaction has failed, and what was written down in it may not have been written."""
        self._limit = 0

    def heard(self, clocks: Iterable[Any]) -> None:
        """What others have written was read: the logical clock goes past theirs."""
        highest = max((clock for clock in clocks if is_clock(clock)), default=0)
        if highest > self._clock.value:
            self._clock.adjust(highest)

    def _resume(self, db: Any) -> None:
        """After a restart it goes on from where anybody's has been."""
        reached = db.execute(self._q["clock_reached"]).fetchone()
        self._clock.resume(reached[0] if reached and is_clock(reached[0]) else 0)

    def _reserve(self, db: Any, reached: int) -> None:
        db.execute(self._q["reserve_clock"], {"upto": reached + RESERVE})
        self._limit = reached + RESERVE
