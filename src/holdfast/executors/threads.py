"""A pool of threads that do jobs of one kind."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

logger = logging.getLogger("holdfast.executor")
T = TypeVar("T")


class Threads(Generic[T]):
    """Grows to `limit` threads and never more. One is woken at a time, and before it does its first job wakes the next
    if there is more to do: short jobs are done in a row by the thread that is awake, and as soon as one of them waits
    for something the next thread is at work."""

    def __init__(self, limit: int, name: str, do: Callable[[T], None]) -> None:
        self._limit = limit
        self._name = name
        self._do = do
        self._jobs: deque[T] = deque()
        self._threads: list[threading.Thread] = []
        self._idle: list[threading.Lock] = []
        self._waking = False  # a thread was woken and has not come to its first job
        self._lock = threading.Lock()
        self._stopped = False

    def submit(self, jobs: Iterable[T]) -> None:
        self._jobs.extend(jobs)
        if not self._waking:
            self._wake()

    def _wake(self) -> None:
        with self._lock:
            if self._waking or self._stopped:
                return
            if self._idle:
                self._waking = True
                self._idle.pop().release()
            elif len(self._threads) < self._limit:
                name = f"holdfast-{self._name}-{len(self._threads)}"
                thread = threading.Thread(target=self._work, name=name, daemon=True)
                self._waking = True
                try:
                    thread.start()
                except RuntimeError as error:  # the system has no more; the threads there are go on
                    self._waking = False
                    logger.error("no thread for steps beside %d others: %s", len(self._threads), error)
                else:
                    self._threads.append(thread)

    def _work(self) -> None:
        jobs, do = self._jobs, self._do
        bell = threading.Lock()
        bell.acquire()
        while True:
            self._waking = False
            while jobs:
                try:
                    job = jobs.popleft()
                except IndexError:  # another thread was faster
                    break
                if jobs and not self._waking and (self._idle or len(self._threads) < self._limit):
                    self._wake()
                try:
                    do(job)
                except BaseException:  # a job tells of its own failures; this thread has others to do
                    logger.exception("a thread for steps met an error that is not a step's")
                del job  # not kept in memory while nothing is to be done
            with self._lock:
                if self._stopped:
                    return
                if jobs:  # they came after the last look
                    continue
                self._idle.append(bell)
            bell.acquire()

    def stop(self, deadline: float) -> None:
        """Threads that are stuck in a job are left behind after `deadline`; they are daemons."""
        with self._lock:
            self._stopped = True
            self._jobs.clear()
            for bell in self._idle:
                bell.release()
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
