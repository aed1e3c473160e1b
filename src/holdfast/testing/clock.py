"""A clock that jumps to whatever is due next, when it may."""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections.abc import Callable
from queue import Empty
from typing import Any

from holdfast.engine.arrivals import Wake


class SkippingClock:
    """Stands still, except while somebody waits for a run (then nothing holds it back) or `advance` moves it."""

    def __init__(self, start: int) -> None:
        self._now = start
        self._horizon: int | None = None
        self._waiting = 0
        self._held_up = 0
        self._stalls = 0
        self._idle = False
        self._changed = threading.Condition()
        self.wake: Callable[[], None] = lambda: None
        self.has_failed: Callable[[], bool] = lambda: False

    def now(self) -> int:
        return self._now

    def monotonic(self) -> float:
        return time.monotonic()

    def random(self) -> float:
        return random.random()

    def wait(self, get: Callable[[float], Any], wake: Wake) -> Any:
        """Called by the engine's host when it has nothing to do."""
        due, tick = wake.due, wake.tick
        try:
            return get(0.0005)
        except Empty:
            pass
        with self._changed:
            # Whoever lets time pass has sent what it had to send before that: it is here now, or was nothing.
            with contextlib.suppress(Empty):
                return get(0)
            if wake.busy <= self._held_up:
                first = min((moment for moment in (due, tick) if moment is not None), default=None)
                goes_on = self._waiting and due is not None
                if first is not None and (goes_on or (self._horizon is not None and first <= self._horizon)):
                    self._now = max(self._now, first)
                    raise Empty
                if self._horizon is not None:
                    self._now, self._horizon = max(self._now, self._horizon), None
                self._idle = True
                self._stalls += 1
                self._changed.notify_all()
        try:
            return get(min(wake.seconds, 0.05))
        finally:
            with self._changed:
                self._idle = False

    def advance(self, by: int) -> None:
        """Move on by `by` microseconds; whatever falls due on the way happens in order."""
        with self._changed:
            self._horizon = self._now + by
            self.wake()
            self._wait_for(lambda: self._horizon is None and self._idle)

    def settle(self) -> None:
        """Wait until everything that can happen without time passing has happened."""
        with self._changed:
            stalls = self._stalls
            self.wake()
            self._wait_for(lambda: self._stalls > stalls and self._idle)

    def _wait_for(self, condition: Callable[[], bool]) -> None:
        for _ in range(600):
            if self._changed.wait_for(condition, timeout=0.1) or self.has_failed():
                return
        raise TimeoutError("steps have been executing for 60 s; a step that waits for something can't be skipped")

    def waiting(self, by: int, *, in_step: bool = False) -> None:
        """Somebody waits for a run (`by` is 1) or no longer does (-1). A step that does is not at work meanwhile."""
        with self._changed:
            self._waiting += by
            self._held_up += by if in_step else 0
            self._stalls = 0
        self.wake()

    @property
    def stalls(self) -> int:
        """How often the engine found nothing to do while somebody waited."""
        return self._stalls
