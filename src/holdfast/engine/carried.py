"""A worker that executes the attempts that it is told of, one by one, on the threads of those who tell it.

It doesn't look for attempts by itself: a broker carries their tokens to whom it likes. All else is as with those that it
would have pulled.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, Protocol

import msgspec

from holdfast.engine.arrivals import Wake
from holdfast.engine.environment import Environment
from holdfast.engine.host import Host
from holdfast.engine.puller import AttemptsOfOthers, Puller
from holdfast.errors import Fenced, StoreUnavailableError
from holdfast.ports import ClaimedAttempt, Executor, Notifier, OnRing, OnTold, Outcome, Topic, Watch

GIVES_UP_AFTER = 5.0
"""Seconds in which a thread that was interrupted waits for what becomes of its attempt."""


class Lending(Executor, Protocol):
    """An executor that needs a thread for some of its attempts."""

    def work_of(self, token: int) -> Callable[[], None] | None: ...

    def fail(self, token: int, error: BaseException) -> None: ...


class Job:
    """An attempt that somebody was told of, and whose thread waits here."""

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
    """Somebody was told of an attempt."""

    job: Job


class GivenUp(msgspec.Struct):
    """The thread that waits for an attempt was interrupted."""

    job: Job
    error: BaseException


class Carried(Puller):
    """Claims what it is told of. An attempt that is gone, or that another worker has, is not executed."""

    def __init__(self, env: Environment[AttemptsOfOthers], executor: Lending, concurrency: int) -> None:
        super().__init__(env, concurrency)
        self.executor = executor
        self._told: deque[Job] = deque()
        self._handed: dict[int, Job] = {}
        self._ending: list[Job] = []

    def _having_executed(self, executor: Executor) -> Executor:
        self._turns = None  # nothing is claimed ahead
        return executor

    def _take(self, arrival: Any) -> None:
        if isinstance(arrival, Told):
            self._told.append(arrival.job)
        elif isinstance(arrival, GivenUp):
            self._give_up(arrival.job, arrival.error)
        else:
            super()._take(arrival)

    def _take_outcome(self, outcome: Outcome) -> None:
        job = self._handed.pop(outcome.attempt.token, None)
        super()._take_outcome(outcome)
        if job is not None:
            job.outcome = outcome
            self._ending.append(job)

    def _give_up(self, job: Job, error: BaseException) -> None:
        if job in self._told:
            self._told.remove(job)
            job.end()
        elif job.number in self._handed:
            has_begun = not self.executor.withdraw([job.number])
            if has_begun and isinstance(error, Exception):  # a time limit: it has failed
                self.executor.fail(job.number, error)
                return
            held = self.inflight.pop(job.number, None)
            if held is not None and has_begun and held.attempt.at_most_once:
                self._end(held, Outcome(attempt=held.attempt, started=self.env.store.now(), lost=True))
            elif held is not None:
                self._give_back(held)
            self.executor.cancel(job.number)
            self._ending.append(self._handed.pop(job.number))

    def _tell(self, mono: float) -> None:
        super()._tell(mono)
        for job in self._ending:
            job.end()
        self._ending.clear()

    def _claim(self) -> None:
        self._is_stale = False
        while self._told:
            claimed = None
            if not self.stopping:
                try:
                    claimed = self.env.store.claim_attempt(self.me.worker, self._told[0].token)
                except Fenced:
                    self._fenced()
                    return
            job = self._told.popleft()
            if claimed is None:
                job.end()
            else:
                self._hand_to(job, claimed)

    def _hand_to(self, job: Job, claimed: ClaimedAttempt) -> None:
        self._hand_over([claimed])
        number = next(reversed(self.inflight), 0)
        if not number or self.inflight[number].token != claimed.token:  # nobody can read it, which its run is told
            self._ending.append(job)
            return
        self._handed[number] = job
        job.hand(number, self.executor.work_of(number))

    def _next_turn(self) -> Wake:
        wake = super()._next_turn()
        if self._ending and not self.env.backoff.is_on():
            wake.at_once = True
        return wake

    def close(self) -> None:
        super().close()
        for job in [*self._told, *self._handed.values(), *self._ending]:
            job.end()


class CarriedHost(Host):
    """Turns it, and lets threads wait for what they were told of."""

    engine: Carried

    def begin(self) -> None:
        """Start, on a thread of its own."""
        self.start()
        self._thread = threading.Thread(target=self.run, name="holdfast-carried", daemon=True)
        self._thread.start()

    def is_over(self) -> bool:
        return self._is_ending.is_set()

    def leave(self) -> None:
        """End at once. What executes is given back, for others to execute."""
        self.stop(0)
        self._thread.join(GIVES_UP_AFTER)
        self.store.close()

    def execute(self, token: str) -> Outcome | None:
        """Execute an attempt on this thread; its outcome, once that is recorded. None if there is nothing to execute:
        it is somebody else's, or has its outcome."""
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


class Silent(Notifier):
    """Tells others, and hears nothing: that would cost each of many processes a connection to the database. What it
    would be told it finds within the second, when it looks anyway."""

    def __init__(self, notifier: Notifier) -> None:
        self._notifier = notifier

    def listen(self, topics: Collection[Topic], on_ring: OnRing, on_told: OnTold) -> str:
        return ""

    def ring(self, topic: Topic, everyone: bool = False) -> None:
        self._notifier.ring(topic, everyone)

    def tell(self, owner: str, runs: Sequence[int]) -> None:
        self._notifier.tell(owner, runs)

    def announce(self, run_ids: Iterable[str]) -> None:
        self._notifier.announce(run_ids)

    def watch(self, run_id: str) -> Watch:
        return self._notifier.watch(run_id)

    def close(self) -> None:
        self._notifier.close()
