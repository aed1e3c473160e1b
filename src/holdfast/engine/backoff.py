"""What failed at the store: it is left alone for a while, or given up once it is lost."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeVar

from holdfast.errors import StoreError, StoreLostError
from holdfast.ports import Clock

logger = logging.getLogger("holdfast.engine")
T = TypeVar("T")
LONGEST = 5.0


class Backoff:
    """The longer the more often it failed in a row. `lost` says that the store is gone for good, as far as this process can
    tell."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.until = 0.0
        self.failures = 0
        self.lost: StoreLostError | None = None

    def ask(self, what: str, question: Callable[[], T]) -> T | None:
        """Ask the store for something; None if it fails, and then it is left alone for a while."""
        try:
            return question()
        except StoreError as error:
            self.failed(what, error)
            return None

    def failed(self, what: str, error: Exception) -> None:
        if isinstance(error, StoreLostError):
            self.lost = error
            return
        self.failures += 1
        pause = min(LONGEST, 0.05 * 2**self.failures)
        logger.warning("%s failed, trying again in %.1f s: %s", what, pause, error)
        self.until = self._clock.monotonic() + pause

    def succeeded(self) -> None:
        self.failures = 0

    def is_on(self) -> bool:
        return self.until > 0 and self._clock.monotonic() < self.until
