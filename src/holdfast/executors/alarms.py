"""Times at which something has to be looked at, by one thread. Real time: a step's timeout is about its own work."""

from __future__ import annotations

import logging
import threading
import time
from typing import Protocol

logger = logging.getLogger("holdfast.executor")
NEVER = float("inf")


class Watched(Protocol):
    """`due` may be moved later by anybody at any time; who moves it nearer calls `watch` again."""

    due: float

    def ring(self, now: float) -> None:
        """Its time has come. It is over afterwards (`forget`), or due at another time."""


class Alarms:
    """Rings what it watches when that is due. What begins and ends in time costs a place in a set and no lock: most do,
    and the thread looks at all that is left when the first of them would have been due."""

    def __init__(self) -> None:
        self._watched: set[Watched] = set()
        self._wakes_at = NEVER
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._stopped = False

    def watch(self, one: Watched) -> None:
        self._watched.add(one)
        if one.due < self._wakes_at or self._thread is None:
            with self._changed:
                if self._thread is None:
                    self._thread = threading.Thread(target=self._run, name="holdfast-timeouts", daemon=True)
                    self._thread.start()
                self._wakes_at = min(self._wakes_at, one.due)
                self._changed.notify()

    def forget(self, one: Watched) -> None:
        self._watched.discard(one)

    def _run(self) -> None:
        while not self._has_stopped():
            with self._changed:
                # Set before looking: who is added meanwhile either is seen below, or sees that it has to notify.
                self._wakes_at = NEVER
            now, first = time.monotonic(), NEVER
            for one in list(self._watched):
                if one.due <= now:
                    self._ring(one, now)
                if one in self._watched:
                    first = min(first, one.due)
            with self._changed:
                self._wakes_at = min(self._wakes_at, first)
                while (pause := self._wakes_at - time.monotonic()) > 0 and not self._has_stopped():
                    self._changed.wait(min(pause, threading.TIMEOUT_MAX))

    def _ring(self, one: Watched, now: float) -> None:
        try:
            one.ring(now)
        except Exception:  # one of them must not keep the others from their time
            logger.exception("%r could not be ended at its time", one)
            self.forget(one)

    def _has_stopped(self) -> bool:
        return self._stopped

    def stop(self) -> None:
        with self._changed:
            self._stopped = True
            self._changed.notify()
