"""Commits, and what is in doubt after one that failed: whether it happened is not known.

Each run of a failed commit is read again before it goes on. What the store was asked to give to this worker, runs and slots
of limits, is looked for.
"""

from __future__ import annotations

import logging

import msgspec

from holdfast import failpoints
from holdfast.engine.announcer import Announcer
from holdfast.engine.environment import Environment
from holdfast.engine.live_runs import LiveRuns
from holdfast.engine.records import SlotMessage
from holdfast.engine.run import LiveRun
from holdfast.engine.sources import Sources
from holdfast.errors import Fenced, StoreError
from holdfast.ports import Change, Claimed, Committed, RunQuery, RunRow, SlotRow, Store, Topic

logger = logging.getLogger("holdfast.engine")
Changes = list[tuple[LiveRun, Change]]


class Committer:
    """`began` is when the last commit was begun, `last_commit` when one was last known to have happened."""

    def __init__(self, env: Environment[Store], sources: Sources, announcer: Announcer, live_runs: LiveRuns) -> None:
        self._store = env.store
        self._clock = env.clock
        self._settings = env.settings
        self._membership = env.membership
        self._backoff = env.backoff
        self._sources = sources
        self._announcer = announcer
        self._live_runs = live_runs
        self.last_commit: float | None = None
        self.began = 0.0
        self._is_in_doubt = False  # a commit of unknown fate may yet happen
        self.has_unknown_claims = False
        self.has_unknown_grants = False

    def commit(self, touched: dict[int, LiveRun], changes: Changes, claim: int) -> Committed | None:
        """Write the changes of the runs that were touched, and claim up to `claim` others, in one transaction; None if
        whether that has happened is not known."""
        try:
            for live, change in changes:
                if change.streamed and any(item.place >= 0 for item in change.streamed):
                    self._refuse_repeated(live, change)
            committed = self._write(changes, claim)
        except StoreError as error:
            self.has_unknown_claims = self.has_unknown_claims or claim > 0
            self._failed(touched, changes, error)
            return None
        self._backoff.succeeded()
        return committed

    def _refuse_repeated(self, live: LiveRun, change: Change) -> None:
        """Items that are there already. Whoever had no answer tells them again, and so does a worker that was taken for dead
        and goes on with an attempt that is executed once more."""
        if live.steps.reports.streamed is None:
            live.steps.reports.streamed = self._store.streamed(live.row.id)
        new = []
        for item in change.streamed:
            counts = live.steps.reports.streamed.setdefault(item.cmd, {})
            there = counts.get(item.attempt, 0)
            if item.place < 0 or item.place >= there:
                counts[item.attempt] = max(there, item.place) + 1
                new.append(item)
        change.streamed = new

    def _write(self, changes: Changes, claim: int) -> Committed:
        """One transaction. If a change can't be written at all, its run is set aside and the others are written."""
        failpoints.hit("engine.before_commit")
        self.began = self._clock.monotonic()
        try:
            names = self._membership.names
            committed = self._store.commit(self._membership.me.worker, [change for _, change in changes], claim, names)
        except StoreError:
            raise
        except Exception as error:
            if not changes:
                raise
            if len(changes) > 1:
                return Committed([], any([self._write([pair], 0).emitted for pair in changes]))
            for live, _ in changes:
                live.refuse(self._store.now(), error)
                self._live_runs.make_ready(live)
            return Committed([], False)
        failpoints.hit("engine.after_commit")
        self.last_commit = self._clock.monotonic()
        for live, change in changes:
            live.confirmed(change)
            if change.asks:
                self._sources.lines.joined(change.asks)
        if committed.freed:
            self._sources.lines.freed(committed.freed)
        return committed

    def commit_last(self, changes: list[Change]) -> None:
        """This worker ends: whether it succeeds changes nothing any more."""
        try:
            if changes:
                failpoints.hit("engine.before_commit")
                self._store.commit(self._membership.me.worker, changes, 0, self._membership.names)
                failpoints.hit("engine.after_commit")
        except (StoreError, Fenced) as error:
            logger.warning("what was taken back could not be recorded: %s", error)

    def serve(self) -> None:
        """Let those have the slots whose turn it is. What a worker that dies here has freed is found by the others."""
        failpoints.hit("engine.before_serve")
        try:
            for served in self._sources.lines.serve(self._membership.me.worker):
                for no, message in served.messages:
                    self._live_runs.hand_in(no, "slot", message)
                if served.posted:
                    self._sources.look_at(Topic.INBOX)
                    self._announcer.ring_peers(Topic.INBOX)
        except StoreError as error:
            self.has_unknown_grants = True
            self._backoff.failed("serving limits", error)

    # -- what is in doubt

    def _failed(self, touched: dict[int, LiveRun], changes: Changes, error: StoreError) -> None:
        """Whether it happened is not known: each run has to be looked at again before it goes on."""
        self._backoff.failed("commit", error)
        self._is_in_doubt = True
        self._live_runs.touched |= touched
        for live, change in changes:
            live.unsure(change)
            del self._live_runs.touched[live.row.no]
            self._live_runs.make_ready(live)

    def _settle(self) -> None:
        if self._is_in_doubt:
            self._store.settle(self._membership.me.worker)
            self._is_in_doubt = False

    def reload(self, live: LiveRun) -> LiveRun | None:
        """Read a run again after a commit whose fate is unknown; None if it can't be, or is no longer ours."""
        no = live.row.no
        try:
            self._settle()
            row = self._store.get(live.row.id)
            if row is None or row.no != no or row.owner != self._membership.me.worker:
                self._live_runs.drop(live)
                return None
            if not row.durable:  # there is no history to begin again from; what it does can be done twice
                live.broken = False
                return live
            claimed = self._read(row)
        except StoreError as error:
            self._backoff.failed(f"reading run {live.row.id}", error)
            return None
        return self._live_runs.replace(live, claimed)

    def find_claimed(self) -> None:
        """Take over what a commit has claimed whose fate is unknown."""
        if self._backoff.is_on():
            return
        try:
            self._settle()
            rows = self._store.runs(
                RunQuery(owner=self._membership.me.worker, limit=self._settings.max_live + self._settings.claim)
            )
            for row in rows:
                if row.no not in self._live_runs.by_no:
                    self._live_runs.take_over(self._read(row))
        except StoreError as error:
            self._backoff.failed("looking for what was claimed", error)
            return
        self.has_unknown_claims = False

    def _read(self, row: RunRow) -> Claimed:
        payloads = self._store.payloads(row.id, row.base_seq - 1)
        attempts = self._store.attempts(row.id)  # before the messages, one of which may be the outcome of one of these
        messages = [message for message in self._store.inbox(self._membership.me.worker) if message.run_no == row.no]
        slots = self._store.slots([row.no]).get(row.no, []) if row.limited else []
        return Claimed(row, payloads, messages, attempts=attempts, slots=slots)

    def find_granted(self) -> None:
        """Runs of this worker may have been given slots by a transaction whose fate is unknown."""
        waiting = [no for no, live in self._live_runs.by_no.items() if live.steps.slots.waiting()]
        if self._backoff.is_on():
            return
        found = self._backoff.ask("looking for what was granted", lambda: self._granted(waiting))
        if found is not None:
            for no, slot in found:
                self._live_runs.hand_in(no, "slot", msgspec.json.encode(SlotMessage(cmd=slot.cmd, token=slot.token)))
            self.has_unknown_grants = False

    def _granted(self, nos: list[int]) -> list[tuple[int, SlotRow]]:
        self._store.settle(self._membership.me.worker)
        by_run = self._store.slots(nos) if nos else {}
        return [(no, slot) for no, slots in by_run.items() for slot in slots if slot.granted]
