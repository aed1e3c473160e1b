"""A worker that executes the attempts that it is told of, one by one, on the threads of those who tell it.

It doesn't look for attempts by itself: a broker carries their tokens to whom it likes. All else is as with those that it
would have pulled.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

import msgspec

from holdfast.engine.environment import Environment
from holdfast.engine.host import Host
from holdfast.engine.puller import Puller, Source
from holdfast.engine.telling import AttemptsOfOthers
from holdfast.errors import StoreUnavailableError
from holdfast.ports import Executor, Outcome

GIVES_UP_AFTER = 5.0
"""Seconds in which a thread that was interrupted waits for what becomes of its attempt."""


class Lending(Executor, Protocol):
    """An executor that needs a thread for some of its attempts."""

    def work_of(self, token: int) -> Callable[[], None] | None: ...

    def fail(self, token: int, error: BaseException) -> None: ...


class Job:
    """An attempt that this process was told of, and whose thread waits here."""

    def __init__(self, token: str) -> None:
        self.token = token
        self.number = 0
        self.work: Callable[[], None] | None = None
        self.outcome: Outcome | None = None
        self.handed = threading.Event()
        self.done = threading.Event()

    def hand(self, number: int, work: Callable[[], None] | None) -> None:
        self.number, self.work = number, work
        self.handed.set()

    def end(self) -> None:
        self.handed.set()
        self.done.set()


class Told(msgspec.Struct):
    """This process was told of an attempt."""

    job: Job


class GivenUp(msgspec.Struct):
    """The thread that waits for an attempt was interrupted."""

    job: Job
    error: BaseException


class Jobs(Source):
    """Claims what it is told of. An attempt that is gone, or that another worker has, is not executed."""

    def __init__(self, env: Environment[AttemptsOfOthers], executor: Lending) -> None:
        self._env = env
        self._executor = executor
        self._told: deque[Job] = deque()
        self._handed: dict[int, Job] = {}
        self._ending: list[Job] = []

    def has_more(self, worker: Puller) -> bool:
        return bool(self._told or self._ending)

    def take(self, worker: Puller, arrival: Any) -> None:
        if isinstance(arrival, Told):
            self._told.append(arrival.job)
        elif isinstance(arrival, GivenUp):
            self._give_up(worker, arrival.job, arrival.error)

    def _give_up(self, worker: Puller, job: Job, error: BaseException) -> None:
        if job in self._told:
            self._told.remove(job)
            job.end()
        elif job.number in self._handed:
            has_begun = not self._executor.withdraw([job.number])
            if has_begun and isinstance(error, Exception):  # a time limit: it has failed
                self._executor.fail(job.number, error)
                return
            worker.let_go(job.number, has_begun)
            self._executor.cancel(job.number)
            self._ending.append(self._handed.pop(job.number))

    def ended(self, outcome: Outcome) -> None:
        job = self._handed.pop(outcome.attempt.token, None)
        if job is not None:
            job.outcome = outcome
            self._ending.append(job)

    def told(self) -> None:
        for job in self._ending:
            job.end()
        self._ending.clear()

    def claim(self, worker: Puller, began: float) -> None:
        while self._told:
            job = self._told[0]
            claimed = None if worker.stopping else self._env.store.claim_attempt(worker.me.worker, job.token)
            self._told.popleft()
            if claimed is None:
                job.end()
            elif attempts := worker.hand_over([claimed]):
                number = attempts[0].token
                self._handed[number] = job
                job.hand(number, self._executor.work_of(number))
            else:  # it can't be read, which its run is told
                self._ending.append(job)

    def close(self) -> None:
        for job in [*self._told, *self._handed.values(), *self._ending]:
            job.end()


class CarriedHost(Host):
    """Turns it, and lets threads wait for what they were told of."""

    engine: Puller

    def begin(self) -> None:
        """Start, on a thread of its own."""
        self.start()
        self._thread = threading.Thread(target=self.run, name="holdfast-carried", daemon=True)
        self._thread.start()

    def _listen(self) -> str:
        """To nobody: that would cost each of many processes a connection to the database. What it would be told it finds
        within the second, when it looks anyway."""
        return ""

    def is_over(self) -> bool:
        return self._is_ending.is_set()

    def leave(self) -> None:
        """End at once. What executes is given back, for others to execute."""
        self.stop(0)
        self._thread.join(GIVES_UP_AFTER)
        self.store.close()

    def execute(self, token: str) -> Outcome | None:
        """Execute an attempt on this thread; its outcome, once that is recorded. None if there is nothing to execute:
        it is another process's, or has its outcome."""
        job = Job(token)
        self.put(Told(job))
        try:
            self._wait(job.handed)
            if job.work is not None:
                job.work()
            self._wait(job.done)
        except BaseException as error:  # a time limit, or the end of the process: raised wherever this thread is
            self.put(GivenUp(job, error))
            job.done.wait(GIVES_UP_AFTER)
            raise
        return job.outcome

    def _wait(self, event: threading.Event) -> None:
        while not event.wait(1.0):
            if self._is_ending.is_set():
                raise StoreUnavailableError(f"worker {self.worker_id} has ended: {self.failure or 'it was stopped'}")
