"""The engine's loop: drain what arrived, deliver it, commit, act. One thread, one transaction per turn.

While a commit is under way the next batch gathers: that is the group commit, and where the speed comes from.
Nothing leaves before its cause is committed: steps are handed over, and others told, only after the commit.
"""

from __future__ import annotations

import heapq
import itertools
import logging
import os
import platform
import secrets
import threading
import time
from collections import OrderedDict, deque
from queue import Empty, SimpleQueue
from typing import Any

import msgspec

from holdfast import failpoints
from holdfast.core import commands as co
from holdfast.core.loop import Greenlets
from holdfast.core.registry import Definitions
from holdfast.engine.guard import Guard
from holdfast.engine.live import Identity, LiveRun, outcome_message
from holdfast.errors import Fenced, StoreError, UnknownNameError
from holdfast.ports import (
    FINAL,
    Attempt,
    Change,
    Claimed,
    Clock,
    Executor,
    Notifier,
    Outcome,
    Status,
    Store,
    WorkerRow,
)

logger = logging.getLogger("holdfast.engine")


class Settings(msgspec.Struct, kw_only=True):
    """Times in seconds."""

    lease: float = 10.0
    beat: float = 2.0
    sweep: float = 1.0
    slice: float = 0.005
    turn: float = 0.025
    max_events: int = 2_000
    claim: int = 200
    max_live: int = 10_000
    park_after: float = 1.0
    park_factor: float = 20.0
    show_after: float = 0.03
    started_after: float = 0.1
    unknown_after: float = 3.0
    grace: float = 10.0
    patience: float = 2.0
    collect_every: float = 60.0


class Engine:
    """Owns runs. `run` is its thread; `stop` ends it after draining."""

    def __init__(
        self,
        app: Definitions,
        store: Store,
        executor: Executor,
        notifier: Notifier,
        clock: Clock,
        build: str,
        settings: Settings | None = None,
        isolate: bool = True,
    ) -> None:
        self.app = app
        self.store = store
        self.executor = executor
        self.notifier = notifier
        self.clock = clock
        self.settings = settings or Settings()
        self.me = Identity("", build)
        self.names = sorted(app.startable_names())
        self.runs: dict[int, LiveRun] = {}
        self.failure: BaseException | None = None
        self._arrivals: SimpleQueue[Any] = SimpleQueue()
        self._attempts: dict[int, tuple[int, str]] = {}
        self._tokens = itertools.count(1)
        self._due: list[tuple[int, int, LiveRun]] = []
        self._counter = itertools.count()
        self._ready: OrderedDict[int, LiveRun] = OrderedDict()
        self._idle: OrderedDict[int, LiveRun] = OrderedDict()
        self._to_show: deque[tuple[float, LiveRun]] = deque()
        self._started: deque[tuple[float, int, LiveRun, str]] = deque()
        self._greenlets = Greenlets()
        self._guard = Guard(self.settings.patience)
        self._look = True  # something may wait to be claimed
        self._mail = False  # letters may have come for runs that are ours
        self._parked_due: int | None = None
        self._next_sweep = 0.0
        self._next_collect = 0.0
        self._stopping = False
        self._stop_by = 0.0
        self._address = ""
        self._beating = threading.Event()
        self._backoff = 0.0
        self._failures = 0
        self._touched: dict[int, LiveRun] = {}
        self._has_peers = False
        self._isolate = isolate

    # -- life

    def start(self) -> None:
        """Register, and begin to listen; then `run` may be called on a thread."""
        self._guard.start()
        self.executor.start(self._arrivals.put, self._arrived_report)
        self._address = self.notifier.listen(self.wake)
        self.me.secret = self.store.secret()
        self._register()
        threading.Thread(target=self._beat, name="holdfast-heartbeat", daemon=True).start()

    def run(self) -> None:
        """Turn until stopped."""
        try:
            while self.turn():
                pass
        except BaseException as error:
            self.failure = error
            logger.critical("the engine of app %r ends because of an error in it", self.app.name, exc_info=True)
            raise
        finally:
            self._close()

    def stop(self, grace: float | None = None) -> None:
        """Stop claiming, let steps finish for `grace` seconds, then release every run."""
        self._arrivals.put(("stop", self.settings.grace if grace is None else grace))

    def wake(self) -> None:
        self._arrivals.put(_RING)

    def _register(self) -> None:
        worker_id = f"{os.getpid()}-{secrets.token_hex(4)}"
        self.store.register(
            WorkerRow(
                id=worker_id, app=self.app.name, host=platform.node(), pid=os.getpid(), build=self.me.build,
                names=self.names, address=self._address,
            ),
            round(self.settings.lease * 1_000_000),
        )  # fmt: skip
        self.me.worker = worker_id

    def _beat(self) -> None:
        """The heartbeat has a thread of its own: a busy engine is not a dead one."""
        lease = round(self.settings.lease * 1_000_000)
        while not self._beating.wait(self.settings.beat):
            try:
                if not self.store.beat(self.me.worker, lease):
                    self.wake()
            except StoreError as error:
                logger.warning("heartbeat failed, trying again: %s", error)

    def _close(self) -> None:
        self._beating.set()
        self.executor.stop(0)
        for live in self.runs.values():
            if live.execution is not None:
                live.execution.evict()
        self.runs.clear()
        self._greenlets.close()
        self._guard.stop()
        try:
            self.store.unregister(self.me.worker)
        except StoreError as error:
            logger.warning("could not say goodbye to the store, others will notice: %s", error)
        self.notifier.ring()
        self.notifier.close()

    # -- the turn

    def turn(self) -> bool:
        """One round; False when the engine has stopped."""
        self._drain()
        if self._stopping and (not self._attempts or time.monotonic() > self._stop_by):
            return False
        now = self.store.now()
        self._sweep()
        if self._look or self._mail:
            self._read_letters()
        self._wake_due(now)
        self._advance(now)
        self._tidy(now)
        self._commit()
        return True

    def _drain(self) -> None:
        """Take all that has arrived; sleep if nothing is to be done before something does."""
        get = self._arrivals.get
        try:
            if (self._ready or self._look or self._mail) and time.monotonic() >= self._backoff:
                self._arrived(self._arrivals.get_nowait())
            else:
                due, timeout = self._sleep_until()
                self._arrived(self.clock.wait(lambda seconds: get(timeout=seconds), due, timeout, bool(self._attempts)))
            while True:
                self._arrived(self._arrivals.get_nowait())
        except Empty:
            return

    def _sleep_until(self) -> tuple[int | None, float]:
        """When to wake if nothing arrives: a time of the store's clock, and seconds at most."""
        mono = time.monotonic()
        times = [max(self._next_sweep, self._backoff)]
        if self._to_show:
            times.append(self._to_show[0][0])
        if self._started:
            times.append(self._started[0][0])
        if self._idle:
            times.append(next(iter(self._idle.values())).idle_since + self.settings.park_after)
        if self._stopping:
            times.append(self._stop_by)
        dues = [self._due[0][0]] if self._due else []
        if self._parked_due is not None:
            dues.append(self._parked_due)
        return min(dues, default=None), max(0.0, min(times) - mono)

    def _arrived(self, what: Any) -> None:
        if what is _RING:
            self._look = True
        elif isinstance(what, Outcome):
            self._outcome(what)
        elif what[0] == "report":
            self._report(what[1], what[2], what[3])
        elif what[0] == "stop":
            self._stopping, self._stop_by = True, time.monotonic() + what[1]
            self.settings.claim = 0

    def _arrived_report(self, attempt: Attempt, kind: str, value: Any) -> None:
        self._arrivals.put(("report", attempt, kind, value))

    def _outcome(self, outcome: Outcome) -> None:
        token = outcome.attempt.token
        place = self._attempts.pop(token, None)
        if place is None:
            return
        no, cmd = place
        live = self.runs.get(no)
        if live is not None and live.inflight.get(cmd) == token:
            del live.inflight[cmd]
            live.deliveries.append(outcome)
            self._make_ready(live)
        elif live is None and not outcome.cancelled and not outcome.lost:
            self._post_outcome(outcome)

    def _post_outcome(self, outcome: Outcome) -> None:
        """The run is no longer ours: its outcome goes to whoever owns it."""
        failpoints.hit("engine.before_post_outcome")
        try:
            self.store.post(outcome_message(outcome.attempt.run_id, outcome, self.me.worker))
        except StoreError as error:
            logger.warning("outcome of step %r is kept until the store answers: %s", outcome.attempt.step, error)
            self._attempts[outcome.attempt.token] = (outcome.attempt.run_no, outcome.attempt.cmd)
            threading.Timer(1.0, self._arrivals.put, (outcome,)).start()
            return
        self.notifier.ring()

    def _report(self, attempt: Attempt, kind: str, value: Any) -> None:
        live = self.runs.get(attempt.run_no)
        if live is None or live.inflight.get(attempt.cmd) != attempt.token:
            return
        live.report(kind, attempt.cmd, value)
        self._make_ready(live)

    # -- what is due

    def _sweep(self) -> None:
        """The safety net: once a second, look for all that a lost hint would have told."""
        mono = time.monotonic()
        if mono < self._next_sweep:
            return
        self._next_sweep = mono + self.settings.sweep
        self._look = True
        try:
            for worker_id in self.store.bury(self.me.worker):
                logger.warning("worker %s is gone; its runs go on here or elsewhere", worker_id)
            peers = [w for w in self.store.workers() if w.id != self.me.worker]
            self._has_peers = bool(peers)
            self.me.others = {w.build for w in peers}
            self._set_aside_unknown()
            if mono > self._next_collect:
                self._next_collect = mono + self.settings.collect_every
                self.store.collect(100)
        except StoreError as error:
            logger.warning("sweep failed, trying again: %s", error)

    def _set_aside_unknown(self) -> None:
        before = self.store.now() - round(self.settings.unknown_after * 1_000_000)
        for row in self.store.orphans(before):
            known = sorted({name for worker in self.store.workers() for name in worker.names})
            reason = (
                f"no live worker of app {self.app.name!r} knows {row.workflow!r}; known: {', '.join(known)}. Start a worker "
                "whose code defines it, and the run goes on by itself"
            )
            if self.store.set_aside(row.no, reason, "unknown"):
                logger.error("run %s is set aside: %s", row.id, reason)
                self.notifier.announce([row.id])

    def _read_letters(self) -> None:
        try:
            letters = self.store.letters(self.me.worker)
        except StoreError as error:
            logger.warning("reading inboxes failed, trying again: %s", error)
            return
        self._mail = False
        for letter in letters:
            live = self.runs.get(letter.run_no)
            if live is not None and live.add_letter(letter):
                self._make_ready(live)

    def _wake_due(self, now: int) -> None:
        while self._due and self._due[0][0] <= now:
            due, _, live = heapq.heappop(self._due)
            if self.runs.get(live.row.no) is live and live.scheduled_due == due:
                live.scheduled_due = None
                self._make_ready(live)
        if self._parked_due is not None and self._parked_due <= now:
            self._look, self._parked_due = True, None

    def _make_ready(self, live: LiveRun) -> None:
        self._ready[live.row.no] = live
        self._idle.pop(live.row.no, None)

    # -- deliver

    def _advance(self, now: int) -> None:
        """Bring ready runs forward, each for a slice, so that none holds up the others or the commit."""
        end = time.perf_counter() + self.settings.turn
        events = 0
        mono = time.monotonic()
        for no in list(self._ready):
            live = self._ready.pop(no)
            if live.broken:
                fresh = self._reload(live) if mono >= self._backoff else None
                if fresh is None:
                    if self.runs.get(no) is live:
                        self._ready[no] = live
                    continue
                live = fresh
            self._touched[no] = live
            if live.advance(now, self.settings.slice):
                self._ready[no] = live
            else:
                self._after_advance(live)
            events += live.new_records()
            if events > self.settings.max_events or time.perf_counter() > end:
                return

    def _after_advance(self, live: LiveRun) -> None:
        if live.released:
            return
        due = live.next_due()
        if due is not None and due != live.scheduled_due:
            live.scheduled_due = due
            heapq.heappush(self._due, (due, next(self._counter), live))
        if live.is_idle():
            live.idle_since = time.monotonic()
            self._idle[live.row.no] = live
            self._idle.move_to_end(live.row.no)
            self._to_show.append((live.idle_since + self.settings.show_after, live))

    def _tidy(self, now: int) -> None:
        """Show what has been waiting for a moment, park what has been for longer."""
        mono = time.monotonic()
        while self._to_show and self._to_show[0][0] <= mono:
            _, live = self._to_show.popleft()
            if self.runs.get(live.row.no) is live and not live.released:
                live.show_status(live.execution.waiting_for() if live.is_idle() and live.execution is not None else "")
                self._touched[live.row.no] = live
        while self._started and self._started[0][0] <= mono:
            _, token, live, cmd = self._started.popleft()
            if live.inflight.get(cmd) == token and not live.released and self.runs.get(live.row.no) is live:
                began = self.executor.started_at(token)
                if began is None:
                    self._started.append((mono + self.settings.started_after, token, live, cmd))
                else:
                    live.note_started(cmd, began)
                    if live.shown == Status.WAITING:
                        live.show_status("")
                    self._touched[live.row.no] = live
        crowded = len(self.runs) > self.settings.max_live
        for live in list(itertools.islice(self._idle.values(), 1_000)):
            wait = max(self.settings.park_after, self.settings.park_factor * live.replay_seconds)
            if not crowded and mono - live.idle_since < self.settings.park_after:
                break
            if not live.row.durable or (not crowded and mono - live.idle_since < wait):
                continue
            live.release(now)
            self._idle.pop(live.row.no)
            self._touched[live.row.no] = live

    # -- commit, then act

    def _commit(self) -> None:
        """Commit all that is new in one transaction, then hand over and tell. Nothing leaves before."""
        if time.monotonic() < self._backoff:
            return
        touched, self._touched = self._touched, {}
        changes = [(live, live.take_change()) for live in touched.values() if live.has_change()]
        self._look = self._look or any(change.children or change.messages for _, change in changes)
        claim = self.settings.claim if self._look and len(self.runs) < self.settings.max_live else 0
        if changes or (claim and self._something_waits()):
            failpoints.hit("engine.before_commit")
            try:
                claimed = self.store.commit(self.me.worker, [change for _, change in changes], claim, self.names)
            except Fenced:
                self._fenced()
                return
            except StoreError as error:
                self._commit_failed(touched, changes, error)
                return
            failpoints.hit("engine.after_commit")
            for live, change in changes:
                live.confirmed(change)
            for one in claimed:
                self._take_over(one)
            self._look = bool(claim) and len(claimed) >= claim
            self._mail = any(change.messages for _, change in changes)
        elif claim or self._stopping:
            self._look = False
        self._act(touched)
        self._tell(changes)

    def _something_waits(self) -> bool:
        try:
            wake = self.store.next_wake(self.names)
        except StoreError as error:
            logger.warning("looking for runs failed, trying again: %s", error)
            return False
        self._parked_due = wake
        return wake is not None and wake <= self.store.now()

    def _take_over(self, claimed: Claimed) -> None:
        live = LiveRun(claimed, self.app, self._greenlets, self._guard, self.me)
        self.runs[claimed.row.no] = live
        self._make_ready(live)

    def _act(self, touched: dict[int, LiveRun]) -> None:
        mono = time.monotonic()
        for no, live in touched.items():
            if live.to_cancel:
                for token in live.to_cancel:
                    self._attempts.pop(token, None)
                    self.executor.cancel(token)
                live.to_cancel.clear()
            if live.released:
                if self.runs.get(no) is live:
                    del self.runs[no]
                self._ready.pop(no, None)
                self._idle.pop(no, None)
                continue
            if live.to_schedule and not self._stopping:
                for command in live.to_schedule.values():
                    self._hand_over(live, command, mono)
                live.to_schedule.clear()

    def _hand_over(self, live: LiveRun, command: co.ScheduleStep, mono: float) -> None:
        """Give an attempt to the executor."""
        try:
            options = live.step_options(command)
        except UnknownNameError as error:
            live.cannot_schedule(command, self.store.now(), error)
            self._make_ready(live)
            return
        token = next(self._tokens)
        attempt = Attempt(
            token=token, run_no=live.row.no, run_id=live.row.id, workflow=live.row.workflow,
            root_id=live.row.root_id or live.row.id, parent_id=live.row.parent_id, cmd=command.cmd, step=command.name,
            args=command.args, number=command.attempt, idempotency_key=live.idempotency_key(command),
            timeout=options.timeout, stall_timeout=options.stall_timeout,
            pool="process" if live.cautious and self._isolate else options.pool,
            data=command.data, checkpoint=self._checkpoint(live, command),
        )  # fmt: skip
        live.inflight[command.cmd] = token
        self._attempts[token] = (live.row.no, command.cmd)
        self._started.append((mono + self.settings.started_after, token, live, command.cmd))
        failpoints.hit("engine.before_hand_over")
        self.executor.submit(attempt)
        failpoints.hit("engine.after_hand_over")

    def _checkpoint(self, live: LiveRun, command: co.ScheduleStep) -> bytes | None:
        """What an earlier attempt of the step has kept; it may have been on another worker."""
        if live.checkpoints is None:
            if not live.resumed:
                return None
            try:
                live.checkpoints = self.store.attributes(live.row.id, "checkpoint")
            except StoreError as error:
                logger.warning("checkpoints of run %s could not be read: %s", live.row.id, error)
                return None
        return live.checkpoints.get(command.cmd)

    def _tell(self, changes: list[tuple[LiveRun, Change]]) -> None:
        over = [live.row.id for live, change in changes if change.columns.get("status") in _WORTH_TELLING]
        if over:
            failpoints.hit("engine.before_announce")
            self.notifier.announce(over)
        if self._has_peers and any(change.children or change.messages or live.released for live, change in changes):
            self.notifier.ring()
        for _, change in changes:
            due = change.columns.get("wake_at")
            if due is not None and (self._parked_due is None or due < self._parked_due):
                self._parked_due = due

    # -- when things go wrong

    def _commit_failed(
        self, touched: dict[int, LiveRun], changes: list[tuple[LiveRun, Change]], error: StoreError
    ) -> None:
        """Nobody knows whether it happened: forget what was not committed, and look again. Outcomes are kept."""
        self._failures += 1
        pause = min(5.0, 0.05 * 2**self._failures)
        logger.warning("commit failed, trying again in %.1f s: %s", pause, error)
        self._backoff = time.monotonic() + pause
        for live, _ in changes:
            live.broken = True
            self._make_ready(live)
        self._touched |= {no: live for no, live in touched.items() if not live.broken}

    def _reload(self, live: LiveRun) -> LiveRun | None:
        """Read a run again after a commit whose fate is unknown; None if it can't be, or is no longer ours."""
        no = live.row.no
        try:
            row = self.store.get(live.row.id)
            if row is None or row.owner != self.me.worker:
                self._drop(live)
                return None
            payloads = self.store.payloads(row.id, row.base_seq - 1)
            letters = [letter for letter in self.store.letters(self.me.worker) if letter.run_no == no]
        except StoreError as error:
            logger.warning("run %s can't be read, trying again: %s", live.row.id, error)
            self._backoff = time.monotonic() + 0.5
            return None
        self._failures = 0
        if live.execution is not None:
            live.execution.evict()
        fresh = LiveRun(Claimed(row, payloads, letters), self.app, self._greenlets, self._guard, self.me)
        fresh.inflight = live.inflight
        fresh.deliveries.extend(live.kept_outcomes())
        self.runs[no] = fresh
        return fresh

    def _drop(self, live: LiveRun) -> None:
        """A run that is no longer ours. What still executes for it will be posted to its new owner."""
        if live.execution is not None:
            live.execution.evict()
        for table in (self.runs, self._ready, self._idle, self._touched):
            table.pop(live.row.no, None)
        for outcome in live.kept_outcomes():
            self._post_outcome(outcome)

    def _fenced(self) -> None:
        """Others took this worker for dead. Nothing was written; begin again as a new one."""
        logger.warning("worker %s was taken for dead; going on as a new worker", self.me.worker)
        old = self.me.worker
        while True:
            try:
                self._register()
                break
            except StoreError as error:
                logger.warning("registering failed, trying again: %s", error)
                time.sleep(0.5)
        self.store.let_go(old)
        for live in list(self.runs.values()):
            self._drop(live)
        self._touched.clear()
        self._look = True


_RING = object()
_WORTH_TELLING = (*FINAL, Status.PAUSED, Status.STUCK)
