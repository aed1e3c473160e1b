"""A worker that owns no runs: it claims attempts of other workers' runs, has them executed, and tells their ends.

A host turns it as it turns an engine. The row of an attempt is the truth: who has claimed it may execute it, its outcome
takes the row away, and an attempt whose row is gone is not wanted any more.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Hashable, Iterable
from typing import Any

from holdfast import failpoints
from holdfast.engine.arrivals import DeclaredDead, Hint, Report, Stop, Wake
from holdfast.engine.attempts import decode_attempt, unreadable
from holdfast.engine.environment import Environment
from holdfast.engine.identity import Identity
from holdfast.engine.telling import AttemptsOfOthers, Held, Telling
from holdfast.errors import Fenced, StoreError, StoreLostError
from holdfast.ports import FOR_EXECUTORS, Attempt, ClaimedAttempt, Outcome, Topic

logger = logging.getLogger("holdfast.executor")


class Source:
    """Where the attempts of a worker come from."""

    def claim(self, worker: Puller, began: float) -> None:
        """Claim what there is, and have the worker execute it; its turn has begun at that time."""
        raise NotImplementedError

    def has_more(self, worker: Puller) -> bool:
        """Whether the worker is to be turned again at once."""
        raise NotImplementedError

    def look_again(self) -> None:
        """There may be something new."""

    def take(self, worker: Puller, arrival: Any) -> None:
        """Something has arrived that the worker itself knows nothing of."""

    def due(self, worker: Puller, key: Hashable) -> None:
        """Something on the agenda, the same."""

    def ended(self, outcome: Outcome) -> None:
        """An attempt has ended, and will be told."""

    def told(self) -> None:
        """All that has ended was told."""

    def close(self) -> None:
        """Nothing more is claimed, told or taken."""


class Unguarded:
    """No workflow code runs here that somebody would have to watch over."""

    def start(self) -> None: ...

    def stop(self) -> None: ...


class Puller:
    """`turn` is called again and again with what has arrived, always on one thread."""

    heeds = frozenset({Topic.EVERYTHING, *FOR_EXECUTORS})

    def __init__(self, env: Environment[AttemptsOfOthers], source: Source, tokens: Iterable[int] | None = None) -> None:
        self.env = env
        self.guard = Unguarded()
        self.telling = Telling(env)
        self.strain = ""
        self.stopping = False
        self.inflight: dict[int, Held] = {}
        self.runs: dict[int, Any] = {}  # none, ever
        self._source = source
        self._tokens = iter(tokens if tokens is not None else itertools.count(1))
        self._are_all_wanted = True
        self._is_over = False

    @property
    def me(self) -> Identity:
        return self.env.membership.me

    @property
    def last_commit(self) -> float | None:
        return self.telling.last_commit

    # -- life

    def start(self, address: str) -> None:
        self.env.membership.address = address
        self.env.membership.register(())
        self.env.agenda.set("sweep", 0.0)

    def turn(self, arrivals: Iterable[Any]) -> Wake | None:
        """One round: take what has arrived, tell what has ended, claim more, hand it over. None once it has stopped."""
        for arrival in arrivals:
            self._take(arrival)
        mono = self.env.clock.monotonic()
        for key in self.env.agenda.due(mono):
            if key == "sweep":
                self._sweep(mono)
            elif key == "stop":
                self._is_over = True
            else:
                self._source.due(self, key)
        if not self.env.backoff.is_on() and (self.env.membership.is_registered or self._register_again()):
            try:
                self._tell(mono)
                self._look_whether_wanted()
                self._source.claim(self, mono)
                self.env.backoff.succeeded()
            except Fenced:
                self._fenced()
            except StoreError as error:
                self.env.backoff.failed("executing for others", error)
        return None if self.stopping and self._has_drained() else self._next_turn()

    def enter_thread(self) -> None:
        """The calling thread goes on with it."""

    def start_over(self) -> None:
        """A turn has failed in a way nobody thought of: look at everything again."""
        self._source.look_again()
        self._are_all_wanted = False

    def close(self) -> None:
        """Stop what still executes, and give back what others may execute instead."""
        left = dict(self.inflight)
        withdrawn = self.env.executor.withdraw(list(left))
        self.env.executor.stop(0)
        for token in left:
            self.let_go(token, has_begun=token not in withdrawn)
        try:
            self._tell(self.env.clock.monotonic())
            self.env.store.unregister(self.me.worker)
        except StoreError as error:
            logger.warning("could not say goodbye to the store, others will notice: %s", error)
        self._source.close()

    def let_go(self, token: int, has_begun: bool) -> None:
        """Give an attempt back, unless it has begun and is executed at most once: then it is lost."""
        held = self.inflight.pop(token, None)
        if held is None:
            return
        if has_begun and held.attempt.at_most_once:
            self.telling.end(held, Outcome(attempt=held.attempt, started=self.env.store.now(), lost=True))
        else:
            self.telling.give_back(held)

    def _has_drained(self) -> bool:
        return self._is_over or (not self.inflight and self.telling.is_over())

    def _next_turn(self) -> Wake:
        pausing = self.env.backoff.is_on()
        if not pausing and self._source.has_more(self):
            return Wake(None, None, 0.0, len(self.inflight), at_once=True)
        times = [self.env.agenda.next() or 0.0]
        if pausing:
            times.append(self.env.backoff.until)
        return Wake(None, None, max(0.0, min(times) - self.env.clock.monotonic()), len(self.inflight))

    # -- what arrives

    def _take(self, arrival: Any) -> None:
        if isinstance(arrival, Outcome):
            self._take_outcome(arrival)
        elif isinstance(arrival, Report):
            held = self.inflight.get(arrival.attempt.token)
            if held is not None:
                self.telling.report(held, arrival)
        elif isinstance(arrival, Hint):
            if arrival.topic in (Topic.ATTEMPTS, Topic.EVERYTHING):
                self._source.look_again()
            if arrival.topic in (Topic.DROPPED, Topic.EVERYTHING):
                self._are_all_wanted = False
        elif isinstance(arrival, Stop):
            self._stop(arrival.grace)
        elif isinstance(arrival, DeclaredDead):
            if arrival.worker == self.me.worker and self.env.membership.is_registered:
                self._fenced()
        else:
            self._source.take(self, arrival)

    def _take_outcome(self, outcome: Outcome) -> None:
        self._source.ended(outcome)
        held = self.inflight.pop(outcome.attempt.token, None)
        if held is None:
            return
        if outcome.cancelled:  # it was not begun: this worker could not tell whether the others think it alive
            self.telling.give_back(held)
        else:
            self.telling.end(held, outcome)

    def _stop(self, grace: float) -> None:
        """Claim no more, and give back what has not begun."""
        self.stopping = True
        self.env.agenda.set("stop", self.env.clock.monotonic() + grace)
        for token in self.env.executor.withdraw(list(self.inflight)):
            self.let_go(token, has_begun=False)

    def _fenced(self) -> None:
        """Others took this worker for dead. What it has claimed is lost to it, unless nobody has noticed yet."""
        logger.warning("worker %s was taken for dead; going on as a new worker", self.me.worker)
        self.env.membership.fenced()
        self._are_all_wanted = False
        self._register_again()

    def _register_again(self) -> bool:
        try:
            self.env.membership.register(())
        except StoreError as error:
            self.env.backoff.failed("registering", error)
            return False
        self._source.look_again()
        return True

    def _tell(self, mono: float) -> None:
        self.telling.tell(mono)
        self._source.told()

    # -- what is not wanted any more

    def _sweep(self, mono: float) -> None:
        """The safety net: once a second, look for all that a lost hint would have told."""
        self.env.agenda.set("sweep", mono + self.env.settings.sweep)
        self.start_over()
        try:
            self.env.membership.gaps.swept()
            self.env.store.check()
        except StoreLostError as error:
            self.env.backoff.lost = error
        except StoreError as error:
            logger.warning("sweep failed, trying again: %s", error)

    def _look_whether_wanted(self) -> None:
        """Interrupt the code of attempts whose rows are gone: their runs have ended, or others were given them. Give back
        what this worker has claimed without knowing: the answer of the store was lost."""
        if self._are_all_wanted:
            return
        for worker in {self.me.worker, *(held.worker for held in self.inflight.values())}:
            wanted = self.env.store.held_attempts(worker)
            mine = {token: held for token, held in self.inflight.items() if held.worker == worker}
            for token, held in mine.items():
                if held.token not in wanted:
                    self.env.executor.cancel(token)
                    del self.inflight[token]
            if unknown := wanted - {held.token for held in mine.values()}:
                self.env.store.release_attempts(worker, sorted(unknown))
                self._source.look_again()
        self._are_all_wanted = True

    # -- what comes next

    def hand_over(self, claimed: list[ClaimedAttempt]) -> list[Attempt]:
        """Have those executed that make sense here; what doesn't is told to its run."""
        attempts = []
        for one in claimed:
            try:
                attempt = decode_attempt(one.body, next(self._tokens))
                self.env.app.find_step(attempt.step)
            except Exception as error:
                failed = unreadable(one.token, self.me.worker, self.env.app.codec, error)
                self.telling.fail(self.me.worker, failed)
                continue
            self.inflight[attempt.token] = Held(one.token, self.me.worker, attempt)
            attempts.append(attempt)
        failpoints.hit("puller.before_hand_over")
        if self.env.reporter.is_on:
            self.env.reporter.received(attempts, self.env.store.now())
        self.env.executor.submit(attempts)
        failpoints.hit("puller.after_hand_over")
        return attempts
