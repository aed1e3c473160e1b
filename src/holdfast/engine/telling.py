"""What others are told of attempts that are executed here: on their way, and at their end."""

from __future__ import annotations

from typing import Protocol

import msgspec

from holdfast import failpoints
from holdfast.engine.arrivals import Report
from holdfast.engine.attempts import run_of
from holdfast.engine.environment import Environment
from holdfast.engine.records import outcome_message, stream_message
from holdfast.ports import (
    Attempt,
    AttemptReport,
    AttemptStore,
    EndedAttempt,
    Message,
    MessageStore,
    Outcome,
    Query,
    TelemetryStore,
    Topic,
    WorkerStore,
)

SHOW_PROGRESS = 0.25
"""Seconds between two writes of how far steps are: they may say so as often as they like."""


class AttemptsOfOthers(Query, WorkerStore, AttemptStore, MessageStore, TelemetryStore, Protocol):
    """What of a store an executor of attempts of others needs."""


class Held(msgspec.Struct):
    """An attempt that is executed here, and the id under which this worker has claimed it."""

    token: str
    worker: str
    attempt: Attempt


class Telling:
    """Keeps what could not be written yet. Each is told by the worker that had claimed it: this one may have been declared
    dead since."""

    def __init__(self, env: Environment[AttemptsOfOthers]) -> None:
        self._env = env
        self.last_commit: float | None = None
        self._ended: dict[str, list[EndedAttempt]] = {}
        self._given_back: dict[str, list[str]] = {}
        self._reports: dict[tuple[str, str, str], bytes] = {}
        self._items: list[Message] = []
        self._show_from = 0.0

    def is_over(self) -> bool:
        """Whether the ends of all attempts are told."""
        return not (self._ended or self._given_back)

    def end(self, held: Held, outcome: Outcome) -> None:
        if self._env.reporter.broadcast.is_on and outcome.started:
            self._env.reporter.broadcast.began(held.attempt, outcome.started)
        message = outcome_message(held.attempt.run_id, outcome, held.worker, held.token)
        self.fail(held.worker, EndedAttempt(held.token, message))
        self._reports.pop((held.worker, held.token, "progress"), None)

    def fail(self, worker: str, ended: EndedAttempt) -> None:
        """It was not even begun."""
        self._ended.setdefault(worker, []).append(ended)

    def give_back(self, held: Held) -> None:
        self._given_back.setdefault(held.worker, []).append(held.token)

    def report(self, held: Held, report: Report) -> None:
        if report.kind == "stream":
            place, held.attempt.said = held.attempt.said, held.attempt.said + 1
            message = stream_message(held.attempt, self._env.store.now(), report.value, place)
            message.dedupe = f"stream:{held.token}:{place}"  # it may have to be posted again
            self._items.append(message)
        else:
            self._reports[held.worker, held.token, report.kind] = report.value
            if report.kind == "progress" and self._env.reporter.is_on:
                began = self._env.executor.started_at(report.attempt.token) or self._env.store.now()
                self._env.reporter.progressed(held.attempt, began, report.value)

    def tell(self, mono: float) -> None:
        """What steps have said on their way, then how they have ended. What can't be written is kept."""
        if self._reports:
            self._tell_reports(mono)
        while self._items:
            failpoints.hit("puller.before_post")
            self._env.store.post(self._items[0])
            del self._items[0]
            self._ring(Topic.INBOX)
        while self._given_back:
            worker, tokens = next(iter(self._given_back.items()))
            self._env.store.release_attempts(worker, tokens)
            del self._given_back[worker]
            self._ring(Topic.ATTEMPTS)
        while self._ended:
            worker, ended = next(iter(self._ended.items()))
            owners = self._env.store.end_attempts(worker, ended)
            del self._ended[worker]
            self.last_commit = self._env.clock.monotonic()
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
            self._env.notifier.tell(owner, sorted(runs))

    def _tell_reports(self, mono: float) -> None:
        """Checkpoints at once: they are for the next attempt. How far a step is interests nobody every millisecond."""
        shows = mono >= self._show_from
        told = {key: body for key, body in self._reports.items() if shows or key[2] != "progress"}
        for worker in {worker for worker, _, _ in told}:
            reports = [AttemptReport(token, kind, body) for (who, token, kind), body in told.items() if who == worker]
            self._env.store.report_attempts(worker, reports)
        self._reports = {key: body for key, body in self._reports.items() if key not in told}
        if shows:
            self._show_from = mono + SHOW_PROGRESS
        if self._reports:
            self._env.agenda.set("show", self._show_from)

    def _ring(self, topic: Topic) -> None:
        failpoints.hit("puller.before_ring")
        self._env.notifier.ring(topic)
