"""Values that are the same whenever code is replayed: times, random numbers, which way a changed workflow goes."""

from __future__ import annotations

import random
import uuid
from collections import deque

from holdfast.core import events as ev
from holdfast.core.comparison import Comparison
from holdfast.core.journal import Journal


class Values:
    """`times` are those that an earlier attempt has read, in order; `patches` says of each change whether the run goes the
    new way."""

    __slots__ = ("_comparison", "_journal", "_numbers", "patches", "times")

    def __init__(self, journal: Journal, comparison: Comparison) -> None:
        self._journal = journal
        self._comparison = comparison
        self._numbers: random.Random | None = None
        self.times: deque[int] = deque()
        self.patches: dict[str, bool] = {}

    def read_time(self) -> int:
        """The time of the event that is delivered; recorded, so that a retried attempt reads the same."""
        found = self._comparison.match("n", "", ev.NO_ARGS)
        value = self.times.popleft() if self.times else self._journal.loop.now
        if found.recorded is not None:
            assert isinstance(found.recorded.event, ev.TimeRead)
            return found.recorded.event.value
        self._journal.record(ev.TimeRead, found.cmd, value=value)
        return value

    def numbers(self) -> random.Random:
        """Seeded by the run, from the beginning of each attempt; made when first used, as seeding takes long."""
        if self._numbers is None:
            self._numbers = random.Random(self._journal.beginning.seed)
        return self._numbers

    def random(self) -> float:
        self._journal.loop.refuse_if_closed()
        return self.numbers().random()

    def uuid(self) -> uuid.UUID:
        self._journal.loop.refuse_if_closed()
        return uuid.UUID(int=self.numbers().getrandbits(128), version=4)

    def patched(self, change: str) -> bool:
        """Whether this run goes the new way: yes if it went so before, or has not been here before."""
        comparison, loop = self._comparison, self._journal.loop
        loop.refuse_if_closed()
        known = self.patches.get(change)
        cause, cmd = loop.cause, f"{loop.cause}p{change}"
        if known is None:
            known = self.patches[change] = not self._has_been_here(cause)
            if known:
                self._journal.record(ev.Patched, cmd, name=change)
        elif known:
            comparison.ledger.open(cause).pop(cmd, None)
        return known

    def _has_been_here(self, cause: int) -> bool:
        """What was asked for after the last event may be under way, though nothing of it is recorded."""
        comparison, journal = self._comparison, self._journal
        if cause != comparison.edge:
            return cause < comparison.edge
        is_seen = cause <= journal.passed and not journal.info.is_new
        return is_seen or comparison.ledger.knows(cause) or comparison.was_over
