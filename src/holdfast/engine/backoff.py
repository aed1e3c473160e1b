"""Leaving the store alone for a while after it has failed."""

from __future__ import annotations

import logging

from holdfast.ports import Clock

logger = logging.getLogger("holdfast.engine")
LONGEST = 5.0


class Backoff:
    """The longer the more often it failed in a row."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.until = 0.0
        self.failures = 0

    def failed(self, what: str, error: Exception) -> None:
        self.failures += 1
        pause = min(LONGEST, 0.05 * 2**self.failures)
        logger.warning("%s failed, trying again in %.1f s: %s", what, pause, error)
        self.until = self._clock.monotonic() + pause

    def succeeded(self) -> None:
        self.failures = 0

    def is_on(self) -> bool:
        return self.until > 0 and self._clock.monotonic() < self.until
