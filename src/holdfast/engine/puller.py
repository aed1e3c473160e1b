"""A worker that owns no runs: it claims attempts of other workers' runs, has them executed, and tells their ends.

A host turns it as it turns an engine. The row of an attempt is the truth: who has claimed it may execute it, its outcome
takes the row away, and an attempt whose row is gone is not wanted any more.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterable
from typing import Any, Protocol

import msgspec

from holdfast import failpoints
from holdfast.engine.arrivals import Arrival, DeclaredDead, Hint, Report, Stop, Wake
from holdfast.engine.attempts import decode_attempt, run_of, unreadable
from holdfast.engine.environment import Environment
from holdfast.engine.identity import Identity
from holdfast.engine.in_turn import SMOOTH, InTurn
from holdfast.engine.records import outcome_message, stream_message
from holdfast.errors import Fenced, StoreError, StoreLostError
from holdfast.ports import (
    FOR_EXECUTORS,
    Attempt,
    AttemptReport,
    AttemptStore,
    ClaimedAttempt,
    EndedAttempt,
    Executor,
    Message,
    MessageStore,
    Outcome,
    Query,
    TelemetryStore,
    Topic,
    WorkerStore,
)

logger = logging.getLogger("holdfast.executor")
GIVE_WAY = 0.2
"""Seconds that an attempt that was claimed ahead waits for its turn, until others may have it."""
SHOW_PROGRESS = 0.25
"""Seconds between two writes of how far steps are: they may say so as often as they like."""


class Held(msgspec.Struct):
    """An attempt that is executed here, and the id under which this worker has claimed it."""

    token: str
    worker: str
    attempt: Attempt


class Unguarded:
    """No workflow code runs here that somebody would have to watch over."""

    def start(self) -> None: ...

    def stop(self) -> None: ...


class AttemptsOfOthers(Query, WorkerStore, AttemptStore, MessageStore, TelemetryStore, Protocol):
    """What of a store an executor of attempts of others needs."""


class Puller:
    """Executes up to `concurrency` attempts of `queues` at a time; of short ones it claims more, so that it need not wait
    for the store between two. `turn` is called again and again with what has arrived, always on one thread."""

    heeds = frozenset({Topic.EVERYTHING, *FOR_EXECUTORS})

    def __init__(
        self, env: Environment[AttemptsOfOthers], concurrency: int, tokens: Iterable[int] | None = None
    ) -> None:
        self.env = env
        self.guard = Unguarded()
        self.queues = sorted(env.membership.me.queues or ())
        self.concurrency = concurrency
        env.executor = self._having_executed(env.executor)
        self.last_commit: float | None = None
        self.strain = ""
        self.stopping = False
        self.inflight: dict[int, Held] = {}
        self.runs: dict[int, Any] = {}  # none, ever
        self._began = self._away = 0.0  # when this turn began; how long it takes to tell what has ended and get more
        # Not those that are executed at most once: what was claimed is lost with this worker, whether it has begun or not.
        self._to_claim_ahead = [
            name for name in env.membership.steps if not env.app.find_step(name).options.at_most_once
        ]
        self._tokens = iter(tokens if tokens is not None else itertools.count(1))
        self._is_stale = True
        self._are_all_wanted = True
        self._is_over = False
        # To be told, by the worker that had claimed it: this one may have been declared dead since.
        self._ended: dict[str, list[EndedAttempt]] = {}
        self._given_back: dict[str, list[str]] = {}
        self._reports: dict[tuple[str, str, str], bytes] = {}
        self._items: list[Message] = []
        self._streamed = itertools.count(1)
        self._show_from = 0.0

    def _having_executed(self, executor: Executor) -> Executor:
        self._turns: InTurn | None = InTurn(executor, self.concurrency, self.env.clock)
        return self._turns

    @property
    def me(self) -> Identity:
        return self.env.membership.me

    # -- life

    def start(self, address: str) -> None:
        self.env.membership.address = address
        self.env.membership.register(())
        self.env.agenda.set("sweep", 0.0)

    def turn(self, arrivals: Iterable[Arrival]) -> Wake | None:
        """One round: take what has arrived, tell what has ended, claim more, hand it over. None once it has stopped."""
        for arrival in arrivals:
            self._take(arrival)
        self._began = mono = self.env.clock.monotonic()
        for key in self.env.agenda.due(mono):
            if key == "sweep":
                self._sweep(mono)
            elif key == "give way":
                self._give_way()
            elif key == "stop":
                self._is_over = True
        if not self.env.backoff.is_on() and (self.env.membership.is_registered or self._register_again()):
            try:
                self._tell(mono)
                self._look_whether_wanted()
                self._claim()
                self.env.backoff.succeeded()
            except StoreError as error:
                self.env.backoff.failed("executing for others", error)
        return None if self.stopping and self._has_drained() else self._next_turn()

    def start_over(self) -> None:
        """A turn has failed in a way nobody thought of: look at everything again."""
        self._is_stale, self._are_all_wanted = True, False

    def close(self) -> None:
        """Stop what still executes, and give back what others may execute instead."""
        left = dict(self.inflight)
        withdrawn = self.env.executor.withdraw(list(left))
        self.env.executor.stop(0)
        for token, held in left.items():
            self.inflight.pop(token)
            if token not in withdrawn and held.attempt.at_most_once:
                self._end(held, Outcome(attempt=held.attempt, started=self.env.store.now(), lost=True))
            else:
                self._give_back(held)
        try:
            self._tell(self.env.clock.monotonic())
            self.env.store.unregister(self.me.worker)
        except StoreError as error:
            logger.warning("could not say goodbye to the store, others will notice: %s", error)

    def _has_drained(self) -> bool:
        return self._is_over or not (self.inflight or self._ended or self._given_back)

    def _next_turn(self) -> Wake:
        pausing = self.env.backoff.is_on()
        if not pausing and self._has_room() and self._is_stale:
            return Wake(None, None, 0.0, len(self.inflight), at_once=True)
        times = [self.env.agenda.next() or 0.0]
        if pausing:
            times.append(self.env.backoff.until)
        return Wake(None, None, max(0.0, min(times) - self.env.clock.monotonic()), len(self.inflight))

    def _has_room(self) -> bool:
        return not self.stopping and self._room() > 0

    def _room(self) -> int:
        """How many more to claim. Few are not worth asking the store for while others wait for their turn here."""
        ahead = 0 if self._turns is None or not self._to_claim_ahead else self._turns.ahead(self._away)
        room = self.concurrency + ahead - len(self.inflight)
        if len(self.inflight) < self.concurrency:
            return room
        is_careful = len(self._to_claim_ahead) < len(self.env.membership.steps)
        return 0 if is_careful or room <= ahead // 2 else room

    # -- what arrives

    def _take(self, arrival: Arrival) -> None:
        if isinstance(arrival, Outcome):
            self._take_outcome(arrival)
        elif isinstance(arrival, Report):
            self._take_report(arrival)
        elif isinstance(arrival, Hint):
            if arrival.topic in (Topic.ATTEMPTS, Topic.EVERYTHING):
                self._is_stale = True
            if arrival.topic in (Topic.DROPPED, Topic.EVERYTHING):
                self._are_all_wanted = False
        elif isinstance(arrival, Stop):
            self._stop(arrival.grace)
        elif (
            isinstance(arrival, DeclaredDead) and arrival.worker == self.me.worker and self.env.membership.is_registered
        ):
            self._fenced()

    def _take_outcome(self, outcome: Outcome) -> None:
        held = self.inflight.pop(outcome.attempt.token, None)
        if held is None:
            return
        if outcome.cancelled:  # it was not begun: this worker could not tell whether the others think it alive
            self._give_back(held)
        else:
            self._end(held, outcome)

    def _end(self, held: Held, outcome: Outcome) -> None:
        if self.env.reporter.broadcast.is_on and outcome.started:
            self.env.reporter.broadcast.began(held.attempt, outcome.started)
        message = outcome_message(held.attempt.run_id, outcome, held.worker, held.token)
        self._ended.setdefault(held.worker, []).append(EndedAttempt(held.token, message))
        self._reports.pop((held.worker, held.token, "progress"), None)

    def _give_back(self, held: Held) -> None:
        self._given_back.setdefault(held.worker, []).append(held.token)

    def _take_report(self, report: Report) -> None:
        held = self.inflight.get(report.attempt.token)
        if held is None:
            return
        if report.kind == "stream":
            message = stream_message(held.attempt, self.env.store.now(), report.value)
            message.dedupe = f"stream:{held.token}:{next(self._streamed)}"  # it may have to be posted again
            self._items.append(message)
        else:
            self._reports[held.worker, held.token, report.kind] = report.value
            if report.kind == "progress" and self.env.reporter.is_on:
                began = self.env.executor.started_at(report.attempt.token) or self.env.store.now()
                self.env.reporter.progressed(held.attempt, began, report.value)

    def _stop(self, grace: float) -> None:
        """Claim no more, and give back what has not begun."""
        self.stopping = True
        self.env.agenda.set("stop", self.env.clock.monotonic() + grace)
        for token in self.env.executor.withdraw(list(self.inflight)):
            self._give_back(self.inflight.pop(token))

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
        self._is_stale = True
        return True

    # -- what is told

    def _tell(self, mono: float) -> None:
        """What steps have said on their way, then how they have ended. What can't be written is kept."""
        if self._reports:
            self._tell_reports(mono)
        while self._items:
            failpoints.hit("puller.before_post")
            self.env.store.post(self._items[0])
            del self._items[0]
            self._ring(Topic.INBOX)
        while self._given_back:
            worker, tokens = next(iter(self._given_back.items()))
            self.env.store.release_attempts(worker, tokens)
            del self._given_back[worker]
            self._ring(Topic.ATTEMPTS)
        while self._ended:
            worker, ended = next(iter(self._ended.items()))
            owners = self.env.store.end_attempts(worker, ended)
            del self._ended[worker]
            self.last_commit = self.env.clock.monotonic()
            self._tell_owners(owners)

    def _tell_owners(self, owners: dict[str, str | None]) -> None:
        """Of attempts that have ended, by token."""
        told: dict[str, set[int]] = {}
        for token, owner in owners.items():
            told.setdefault(owner or "", set()).add(run_of(token))
        if told.pop("", None):
            self._ring(Topic.INBOX)  # of a run that nobody owns: it is to be claimed
        for owner, runs in told.items():
            failpoints.hit("puller.before_ring")
            self.env.notifier.tell(owner, sorted(runs))

    def _tell_reports(self, mono: float) -> None:
        """Checkpoints at once: they are for the next attempt. How far a step is interests nobody every millisecond."""
        shows = mono >= self._show_from
        told = {key: body for key, body in self._reports.items() if shows or key[2] != "progress"}
        for worker in {worker for worker, _, _ in told}:
            reports = [AttemptReport(token, kind, body) for (who, token, kind), body in told.items() if who == worker]
            self.env.store.report_attempts(worker, reports)
        self._reports = {key: body for key, body in self._reports.items() if key not in told}
        if shows:
            self._show_from = mono + SHOW_PROGRESS
        if self._reports:
            self.env.agenda.set("show", self._show_from)

    def _ring(self, topic: Topic) -> None:
        failpoints.hit("puller.before_ring")
        self.env.notifier.ring(topic)

    # -- what is not wanted any more

    def _sweep(self, mono: float) -> None:
        """The safety net: once a second, look for all that a lost hint would have told."""
        self.env.agenda.set("sweep", mono + self.env.settings.sweep)
        self._is_stale, self._are_all_wanted = True, False
        try:
            self.env.membership.swept()
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
                self._is_stale = True
        self._are_all_wanted = True

    # -- what comes next

    def _claim(self) -> None:
        if not self._is_stale or not self._has_room():
            return
        limit, steps = self._room(), self.env.membership.steps
        free = limit if len(self._to_claim_ahead) == len(steps) else self.concurrency - len(self.inflight)
        try:
            claimed = self.env.store.claim_attempts(self.me.worker, self.queues, steps, free)
            self._is_stale = len(claimed) >= free
            if self._is_stale and free < limit:
                claimed += self.env.store.claim_attempts(
                    self.me.worker, self.queues, self._to_claim_ahead, limit - free
                )
        except Fenced:
            self._fenced()
            return
        self._away += (self.env.clock.monotonic() - self._began - self._away) * SMOOTH
        if claimed:
            self._hand_over(claimed)

    def _hand_over(self, claimed: list[ClaimedAttempt]) -> None:
        attempts = []
        for one in claimed:
            try:
                attempt = decode_attempt(one.body, next(self._tokens))
                self.env.app.find_step(attempt.step)
            except Exception as error:
                failed = unreadable(one.token, self.me.worker, self.env.app.codec, error)
                self._ended.setdefault(self.me.worker, []).append(failed)
                continue
            self.inflight[attempt.token] = Held(one.token, self.me.worker, attempt)
            attempts.append(attempt)
        failpoints.hit("puller.before_hand_over")
        if self.env.reporter.is_on:
            self.env.reporter.received(attempts, self.env.store.now())
        self.env.executor.submit(attempts)
        if len(self.inflight) > self.concurrency:
            self.env.agenda.set("give way", self.env.clock.monotonic() + GIVE_WAY)
        failpoints.hit("puller.after_hand_over")

    def _give_way(self) -> None:
        """What was claimed ahead waits behind others that take long: give it back."""
        taken = set() if self._turns is None else self._turns.give_way()
        for token in taken:
            self._give_back(self.inflight.pop(token))
