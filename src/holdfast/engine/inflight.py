"""Attempts that were handed to the executor, and have no outcome yet."""

from __future__ import annotations

import itertools
from collections import deque

from holdfast.ports import Attempt


class InFlight:
    """By token. Those of a run that is no longer in memory are kept apart by run and command: if the run comes back to
    this engine they are not handed over again."""

    def __init__(self) -> None:
        self._attempts: dict[int, Attempt] = {}
        self._left_behind: dict[int, dict[str, Attempt]] = {}
        self._tokens = itertools.count(1)
        self._handed_over: deque[tuple[float, list[Attempt]]] = deque()

    def __len__(self) -> int:
        return len(self._attempts)

    def __contains__(self, attempt: Attempt) -> bool:
        return attempt.token in self._attempts

    def next_token(self) -> int:
        return next(self._tokens)

    def add(self, attempts: list[Attempt], look_at: float) -> None:
        """They are handed over together; at `look_at` it is time to see which of them have begun."""
        for attempt in attempts:
            self._attempts[attempt.token] = attempt
        self._handed_over.append((look_at, attempts))

    def put_back(self, attempt: Attempt) -> None:
        self._attempts[attempt.token] = attempt

    def pop(self, token: int) -> Attempt | None:
        return self._attempts.pop(token, None)

    # -- whose start is to be shown

    def next_look(self) -> float | None:
        """Those that have ended by now wake nothing."""
        looks, attempts = self._handed_over, self._attempts
        while looks:
            when, handed_over = looks[0]
            if any(attempt.token in attempts for attempt in handed_over):
                return when
            looks.popleft()
        return None

    def to_look_at(self, now: float) -> list[Attempt]:
        found: list[Attempt] = []
        while (when := self.next_look()) is not None and when <= now:
            found += [attempt for attempt in self._handed_over.popleft()[1] if attempt.token in self._attempts]
        return found

    def look_again(self, attempts: list[Attempt], at: float) -> None:
        if attempts:
            self._handed_over.append((at, attempts))

    # -- runs that leave

    def leave_behind(self, run_no: int, attempts: dict[str, Attempt]) -> None:
        if attempts:
            self._left_behind[run_no] = attempts

    def take_up(self, run_no: int) -> dict[str, Attempt]:
        return self._left_behind.pop(run_no, {})

    def forget_left_behind(self, attempt: Attempt) -> None:
        left = self._left_behind.get(attempt.run_no)
        if left is not None:
            left.pop(attempt.cmd, None)
            if not left:
                del self._left_behind[attempt.run_no]
