"""For what happens on other threads and processes, in real time."""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Callable

from holdfast.app import SystemClock


def wait_until(condition: Callable[[], bool], seconds: float = 10) -> None:
    deadline = (asked := time.monotonic()) + seconds
    while not condition():
        answered = time.monotonic()
        assert answered < deadline, "it did not happen"
        time.sleep(max(0.005, 2 * (answered - asked)))  # who asks for much leaves time to those who work
        asked = time.monotonic()


class MovedClock(SystemClock):
    """The machine's time, moved."""

    def __init__(self) -> None:
        self.by = 0

    def now(self) -> int:
        return super().now() + self.by

    def move(self, **by: float) -> None:
        self.by += round(dt.timedelta(**by).total_seconds() * 1_000_000)
