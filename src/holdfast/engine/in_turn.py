"""Attempts that an executor of others' runs has claimed ahead: they wait here for their turn, so that the next one begins
while the end of the last one is told."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from holdfast.ports import Attempt, Clock, Executor, Outcome

SMOOTH = 0.1
"""How much of what is known of durations is due to the last one."""
MOST = 256
"""How many attempts are claimed ahead, at most."""
LONGEST = 0.05
"""Seconds that what is claimed ahead takes, at most, as far as can be told."""


class InTurn(Executor):
    """Has another executor execute up to `most` attempts at a time, each begun by the thread that has ended the one
    before."""

    def __init__(self, executor: Executor, most: int, clock: Clock) -> None:
        self._executor = executor
        self._most = most
        self._clock = clock
        self._lock = threading.RLock()  # an executor may tell an outcome while it is given an attempt
        self._waiting: dict[int, Attempt] = {}
        self._executing: set[int] = set()
        self._on_outcome: Callable[[Outcome], None] = lambda outcome: None
        self._seconds = LONGEST * most  # that an attempt takes; until that is known none is claimed ahead

    def ahead(self, away: float) -> int:
        """How many attempts to have at hand beside those that execute, if it takes `away` seconds to get others: as many
        as will have ended by then."""
        return min(MOST, int(self._most * min(2 * away, LONGEST) / self._seconds))

    def give_way(self) -> set[int]:
        """Take back all that wait: others may execute them sooner. What takes longer than it was thought to is not waited
        for again."""
        with self._lock:
            taken = set(self._waiting)
            self._waiting.clear()
            if taken:
                self._seconds = LONGEST * self._most
        return taken

    def start(
        self,
        on_outcome: Callable[[Outcome], None],
        on_report: Callable[[Attempt, str, Any], None],
        may_begin: Callable[[], bool],
    ) -> None:
        self._on_outcome = on_outcome
        self._executor.start(self._ended, on_report, may_begin)

    def submit(self, attempts: Sequence[Attempt]) -> None:
        with self._lock:
            self._waiting.update((attempt.token, attempt) for attempt in attempts)
            self._hand_over()

    def _hand_over(self) -> None:
        """Never outside of the lock: whoever takes an attempt back finds it here, or there."""
        handed = []
        while self._waiting and len(self._executing) < self._most:
            token = next(iter(self._waiting))
            handed.append(self._waiting.pop(token))
            self._executing.add(token)
        if handed:
            self._executor.submit(handed)

    def _ended(self, outcome: Outcome) -> None:
        with self._lock:
            self._executing.discard(outcome.attempt.token)
            if outcome.started and not outcome.cancelled:
                took = max(0, self._clock.now() - outcome.started) / 1_000_000
                self._seconds += (max(took, 1e-5) - self._seconds) * SMOOTH
            self._hand_over()
        self._on_outcome(outcome)

    def withdraw(self, tokens: Iterable[int]) -> set[int]:
        with self._lock:
            asked = list(tokens)
            taken = {token for token in asked if self._waiting.pop(token, None) is not None}
            there = self._executor.withdraw([token for token in asked if token not in taken])
            self._executing -= there
            self._hand_over()
        return taken | there

    def started_at(self, token: int) -> int | None:
        return self._executor.started_at(token)

    def cancel(self, token: int) -> None:
        with self._lock:
            attempt = self._waiting.pop(token, None)
        if attempt is None:
            self._executor.cancel(token)
        else:
            self._on_outcome(Outcome(attempt=attempt, started=0, cancelled=True))

    def stop(self, grace: float) -> None:
        with self._lock:
            left = list(self._waiting)
        for token in left:
            self.cancel(token)
        self._executor.stop(grace)

    def close(self) -> None:
        self._executor.close()
