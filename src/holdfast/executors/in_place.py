"""Steps that are not worth a switch of threads: which ones are, and those that wait for a thread that is lent."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

logger = logging.getLogger("holdfast.executor")
T = TypeVar("T")
BRIEF = 0.0005  # seconds of a step that is not worth it
LONG = 0.01  # seconds of one that is no matter of chance, or of a busy machine
LONGEST = 0.005  # seconds of such steps in a row


class BriefSteps:
    """Which steps end so soon that another thread would cost more than they do: those that did of late."""

    def __init__(self) -> None:
        self._seconds: dict[str, float] = {}

    def knows(self, step: str) -> bool:
        return self._seconds.get(step, float("inf")) < BRIEF

    def took(self, step: str, seconds: float) -> None:
        before = self._seconds.get(step)
        # One that is long counts at once, and is forgotten by and by.
        self._seconds[step] = seconds if before is None or seconds > LONG else before + (seconds - before) / 8


class InPlace(Generic[T]):
    """Plain steps for the thread that is lent. What it can't do soon goes to `others`."""

    def __init__(self, do: Callable[[T], None], others: Callable[[list[T]], None]) -> None:
        self._do = do
        self._others = others
        self._jobs: deque[T] = deque()
        self._at_work: set[int] = set()  # threads

    def __bool__(self) -> bool:
        return bool(self._at_work or self._jobs)

    def is_at_work(self) -> bool:
        """Whether a job executes at this moment."""
        return bool(self._at_work)

    def is_this_thread(self) -> bool:
        """Whether one executes on the thread that asks."""
        return threading.get_ident() in self._at_work

    def add(self, job: T) -> None:
        self._jobs.append(job)

    def work(self, is_lent: Callable[[], bool]) -> bool:
        """Do on this thread what waits for it; whether there was anything."""
        began, has_worked, me = time.monotonic(), False, threading.get_ident()
        while self._jobs and is_lent():
            try:
                job = self._jobs.popleft()
            except IndexError:  # others took them, as this thread is no longer lent
                break
            has_worked = True
            self._at_work.add(me)
            try:
                self._do(job)
            except BaseException:
                logger.exception("an attempt could not be executed")
            finally:
                self._at_work.discard(me)
            if time.monotonic() - began > LONGEST:
                self.leave()
        return has_worked

    def leave(self) -> None:
        """Leave what waits to others. From any thread."""
        left = []
        while self._jobs:
            try:
                left.append(self._jobs.popleft())
            except IndexError:  # another thread was faster
                break
        if left:
            self._others(left)
