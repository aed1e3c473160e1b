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
from holdfast.core import events as ev
from holdfast.core.loop import Greenlets
from holdfast.core.registry import Definitions, is_own
from holdfast.engine.domain_events import Postman, has_emitted, news_of, subscription_of
from holdfast.engine.guard import Guard
from holdfast.engine.health import Health, Pulse
from holdfast.engine.live import LiveRun
from holdfast.engine.owned import Identity
from holdfast.engine.records import PRIORITY_HEAD_START, RunOptions, correlation_of, outcome_message
from holdfast.engine.ticks import Ticks
from holdfast.errors import EncodeError, Fenced, StoreError, StoreLostError, UnknownNameError
from holdfast.logs import install
from holdfast.ports import (
    FINAL,
    Attempt,
    Change,
    Claimed,
    Clock,
    Executor,
    Notifier,
    Outcome,
    RunQuery,
    RunRow,
    Status,
    Store,
    Subscription,
    WorkerRow,
)

logger = logging.getLogger("holdfast.engine")
BATCH = 100
"""How many runs, and domain events, are deleted at a time."""


class Settings(msgspec.Struct, kw_only=True):
    """Times in seconds. Without `schedules`, ticks start no runs here."""

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
    collect_for: float = 0.1
    schedules: bool = True


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
        self.me = Identity("", build, isolates=isolate)
        self._revision = app.revision
        self.names = sorted(app.known_names())
        self.ticks = Ticks(app, store, self.names, self.settings.schedules)
        self.runs: dict[int, LiveRun] = {}
        self.failure: BaseException | None = None
        self._arrivals: SimpleQueue[Any] = SimpleQueue()
        self._attempts: dict[int, Attempt] = {}
        self._left_behind: dict[int, dict[str, Attempt]] = {}  # under way for runs that are no longer in memory
        self._tokens = itertools.count(1)
        self._due: list[tuple[int, int]] = []  # when, and the number of a run that may be gone by then
        self._ready: OrderedDict[int, LiveRun] = OrderedDict()
        self._idle: OrderedDict[int, LiveRun] = OrderedDict()
        self._to_show: deque[tuple[float, LiveRun]] = deque()
        self._started: deque[tuple[float, Attempt]] = deque()
        self._greenlets = Greenlets()
        self._guard = Guard(self.settings.patience)
        self._look = True  # something may wait to be claimed
        self._mail = False  # letters may have come for runs that are ours
        self._events = True  # domain events may have come for this app
        self._postman = Postman(store, app.codec)
        self._parked_due: int | None = None
        self._due_unknown = False  # somebody else may have parked or created a run
        self._next_park = float("inf")
        self._next_sweep = 0.0
        self._last_sweep = 0
        self._next_collect = 0.0
        self._stopping = False
        self._stop_by = 0.0
        self._address = ""
        self._is_registered = False
        self._judge_from = 0  # the time from which other workers' leases mean something
        self._heart: threading.Thread | None = None
        self._beating = threading.Event()
        self._backoff = 0.0
        self._failures = 0
        self._claims_unknown = False
        self._touched: dict[int, LiveRun] = {}
        self._has_peers = False
        self._pulse = Pulse(time.monotonic())

    # -- life

    def start(self) -> None:
        """Register, and begin to listen; then `run` may be called on a thread."""
        install()
        self._address = self.notifier.listen(self.wake)
        try:
            self.me.secret = self.store.secret()
            self._register()
            self.ticks.declare()
        except BaseException:
            self.notifier.close()
            raise
        self._guard.start()
        self.executor.start(self._arrivals.put, self._arrived_report)
        self._heart = threading.Thread(target=self._beat, name="holdfast-heartbeat", daemon=True)
        self._heart.start()

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

    def health(self) -> Health:
        """How it is doing. May be asked from any thread, and asks the store nothing itself."""
        now, pulse = time.monotonic(), self._pulse
        problem = pulse.problem(now, self.settings.lease)
        if self.failure is not None:
            problem = f"the engine has ended because of an error in it: {self.failure!r}"
        return Health(
            ok=not problem, problem=problem, worker=self.me.worker, app=self.app.name, build=self.me.build,
            store_reachable=not (pulse.trouble or pulse.lost), heartbeat_age=round(now - pulse.heartbeat, 3),
            turn_age=round(now - pulse.turn, 3),
            commit_age=None if pulse.commit is None else round(now - pulse.commit, 3),
            runs=len(self.runs), steps=len(self._attempts), stopping=self._stopping, note=pulse.strain,
        )  # fmt: skip

    def _register(self) -> None:
        worker_id = f"{os.getpid()}-{secrets.token_hex(4)}"
        self.store.register(self._describe(worker_id), round(self.settings.lease * 1_000_000), self._subscriptions())
        self.me.worker = worker_id
        self._is_registered = True

    def _describe(self, worker_id: str) -> WorkerRow:
        return WorkerRow(
            id=worker_id, app=self.app.name, host=platform.node(), pid=os.getpid(), build=self.me.build,
            names=self.names, schedules=self.ticks.names, address=self._address,
        )  # fmt: skip

    def _subscriptions(self) -> list[Subscription]:
        return [subscription_of(subscriber) for subscriber in self.app.subscribers()]

    def _learn(self) -> None:
        """Something was defined since this engine has started, in a notebook for example."""
        revision = self.app.revision
        self.names = sorted(self.app.known_names())
        self.ticks.learn(self.names)
        try:
            self.store.learn(self._describe(self.me.worker), self._subscriptions())
            self.ticks.declare()
        except Fenced:
            self._fenced()
        except StoreError as error:
            self._back_off("making known what was defined", error)
            return
        self._revision, self._look = revision, True

    def _beat(self) -> None:
        """The heartbeat has a thread of its own: a busy engine is not a dead one."""
        lease = round(self.settings.lease * 1_000_000)
        last = self.store.now()
        while not self._beating.wait(self.settings.beat):
            worker_id = self.me.worker
            try:
                if not self.store.beat(worker_id, lease):
                    self._arrivals.put(("dead", worker_id))
                self._pulse.beaten(time.monotonic())
            except StoreError as error:
                self._pulse.trouble = str(error)
                logger.warning("heartbeat failed, trying again: %s", error)
            last = self._check_gap(last, self.settings.beat)

    def _check_gap(self, last: int, interval: float) -> int:
        """Whoever was kept from the store (a lock, a sleeping machine) can't tell whether the others were, and gives
        them time to renew their leases."""
        now = self.store.now()
        if now - last > round((interval + self.settings.lease / 2) * 1_000_000):
            self._judge_from = now + round(self.settings.lease * 1_000_000)
        return now

    def _close(self) -> None:
        self._beating.set()
        if self._heart is not None:
            self._heart.join(1)
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
        self._ring()
        self.notifier.close()
        self.executor.close()

    # -- the turn

    def turn(self) -> bool:
        """One round; False when the engine has stopped."""
        self._drain()
        self._pulse.turn = time.monotonic()
        if self._is_registered or self._begin_again():
            if self.app.revision != self._revision and time.monotonic() >= self._backoff:
                self._learn()
            now = self.store.now()
            self._sweep()
            self._tick(now)
            if self._claims_unknown:
                self._find_claimed()
            if self._events:
                self._deliver_events()
            if self._mail:
                self._read_letters()
            self._wake_due(now)
            self._advance(now)
            self._tidy(now)
            self._commit()
        return not (self._stopping and self._has_drained())

    def _has_drained(self) -> bool:
        """Whether every step has ended and every outcome is committed, or the time for that is over."""
        return not (self._attempts or self._ready or self._touched) or time.monotonic() >= self._stop_by

    def _has_room(self) -> bool:
        return not self._stopping and len(self.runs) < self.settings.max_live

    def _is_busy(self) -> bool:
        """Whether there is something to do before anything arrives."""
        ticks = self.ticks.unknown and not self._stopping
        return bool(self._ready or self._mail or self._events or ticks or (self._look and self._has_room()))

    def _drain(self) -> None:
        """Take all that has arrived; sleep if nothing is to be done before something does."""
        get = self._arrivals.get
        try:
            if self._due_unknown and not self._is_busy() and self._has_room():
                self._something_waits()
            if self._is_busy() and time.monotonic() >= self._backoff:
                self._arrived(self._arrivals.get_nowait())
            else:
                due, timeout = self._sleep_until()
                tick = None if self._stopping or time.monotonic() < self._backoff else self.ticks.next_at
                busy = len(self._attempts)
                self._arrived(self.clock.wait(lambda seconds: get(timeout=seconds), due, timeout, busy, tick))
            while True:
                self._arrived(self._arrivals.get_nowait())
        except Empty:
            return

    def _sleep_until(self) -> tuple[int | None, float]:
        """When to wake if nothing arrives: a time of the store's clock, and seconds at most."""
        mono = time.monotonic()
        times = [self._next_sweep]
        if self._touched or not self._is_registered or self._is_busy():
            times.append(self._backoff)
        if self._to_show:
            times.append(self._to_show[0][0])
        if self._started:
            times.append(self._started[0][0])
        if self._idle:
            times.append(self._next_park)
        if self._stopping:
            times.append(self._stop_by)
        dues = [self._due[0][0]] if self._due else []
        if self._parked_due is not None:
            dues.append(self._parked_due)
        return min(dues, default=None), max(0.0, min(times) - mono)

    def _arrived(self, what: Any) -> None:
        if what is _RING:
            self._look = self._mail = self._events = True
            self.ticks.look()
        elif isinstance(what, Outcome):
            self._outcome(what)
        elif what[0] == "report":
            self._report(what[1], what[2], what[3])
        elif what[0] == "stop":
            self._stopping, self._stop_by = True, time.monotonic() + what[1]
        elif what[0] == "dead" and what[1] == self.me.worker and self._is_registered:
            self._fenced()

    def _arrived_report(self, attempt: Attempt, kind: str, value: Any) -> None:
        self._arrivals.put(("report", attempt, kind, value))

    def _outcome(self, outcome: Outcome) -> None:
        attempt = self._attempts.pop(outcome.attempt.token, None)
        if attempt is None:
            return
        live = self.runs.get(attempt.run_no)
        if live is not None and live.inflight.get(attempt.cmd) is attempt:
            live.deliveries.append(outcome)
            self._make_ready(live)
            return
        left = self._left_behind.get(attempt.run_no, {})
        left.pop(attempt.cmd, None)
        if not left:
            self._left_behind.pop(attempt.run_no, None)
        if not outcome.cancelled and not outcome.lost:
            self._post_outcome(outcome)

    def _post_outcome(self, outcome: Outcome) -> None:
        """The run is no longer ours: its outcome goes to whoever owns it."""
        failpoints.hit("engine.before_post_outcome")
        try:
            self.store.post(outcome_message(outcome.attempt.run_id, outcome, self.me.worker))
        except StoreError as error:
            logger.warning("outcome of step %r is kept until the store answers: %s", outcome.attempt.step, error)
            self._attempts[outcome.attempt.token] = outcome.attempt
            again = threading.Timer(1.0, self._arrivals.put, (outcome,))
            again.daemon = True
            again.start()
            return
        self._look = self._mail = True
        self._ring()

    def _report(self, attempt: Attempt, kind: str, value: Any) -> None:
        live = self.runs.get(attempt.run_no)
        if live is None or live.inflight.get(attempt.cmd) is not attempt:
            return
        if kind == "stream":
            live.stream(attempt.cmd, self._streams_as(live, attempt), self.store.now(), value)
        else:
            live.report(kind, attempt.cmd, value)
        self._make_ready(live)

    # -- what is due

    def _sweep(self) -> None:
        """The safety net: once a second, look for all that a lost hint would have told."""
        mono = time.monotonic()
        if mono < self._next_sweep:
            return
        self._next_sweep = mono + self.settings.sweep
        self._last_sweep = self._check_gap(self._last_sweep or self.store.now(), self.settings.sweep)
        self._look = self._mail = self._events = True
        self.ticks.look()
        try:
            self.store.check()
            for worker_id in self.store.bury(self.me.worker, by_lease=self.store.now() >= self._judge_from):
                logger.warning("worker %s is gone; its runs go on here or elsewhere", worker_id)
            workers = self.store.workers()
            if any(w.damage for w in workers if w.id == self.me.worker):
                self._learn()  # writes it anew
            peers = [w for w in workers if w.id != self.me.worker]
            self._has_peers = bool(peers)
            self.me.others = {w.build for w in peers}
            self._set_aside_unknown()
            if mono > self._next_collect:
                self._collect()
            self._feel(self.store.strain())
        except StoreLostError as error:
            if not self._pulse.lost:
                logger.critical("worker %s can do nothing any more: %s", self.me.worker, error)
            self._pulse.lost = str(error)
        except StoreError as error:
            logger.warning("sweep failed, trying again: %s", error)

    def _collect(self) -> None:
        """Delete what is too old, for a share of the time: as fast as others start runs, and no turn waits for long."""
        end = time.monotonic() + self.settings.collect_for
        while True:
            gone = self.store.collect(BATCH)
            if max(gone.runs, gone.events) < BATCH:
                self._next_collect = time.monotonic() + self.settings.collect_every
                return
            if time.monotonic() >= end:
                return  # there is more, for the next sweep

    def _feel(self, strain: str) -> None:
        if strain and not self._pulse.strain:
            logger.warning("%s", strain)
        elif self._pulse.strain and not strain:
            logger.info("what weighed on %s is over", self.store.url)
        self._pulse.strain = strain

    def _tick(self, now: int) -> None:
        """Let schedules start what is due."""
        if self._stopping or not self.ticks.have_come(now) or time.monotonic() < self._backoff:
            return
        try:
            has_started = self.ticks.fire()
        except StoreError as error:
            self._back_off("starting what is scheduled", error)
            return
        if has_started:
            self._look = True
            if self._has_peers:
                self._ring()

    def _set_aside_unknown(self) -> None:
        before = self.store.now() - round(self.settings.unknown_after * 1_000_000)
        for row in self.store.orphans(before):
            known = sorted({name for worker in self.store.workers() for name in worker.names if not is_own(name)})
            reason = (
                f"no live worker of app {self.app.name!r} knows {row.workflow!r}; known: {', '.join(known)}. Start a worker "
                "whose code defines it, and the run goes on by itself"
            )
            options = msgspec.json.decode(row.options, type=RunOptions)
            stuck = ev.RunStuck(seq=self.store.now(), ts=self.store.now(), reason=reason)
            (news,) = news_of(row, options, stuck, self.app.codec) or (None,)
            if self.store.set_aside(row.no, reason, "unknown", news):
                logger.error("run %s is set aside: %s", row.id, reason)
                self._announce([row.id])

    def _read_letters(self) -> None:
        try:
            letters = self.store.letters(self.me.worker)
        except StoreError as error:
            self._back_off("reading inboxes", error)
            return
        self._mail = False
        for letter in letters:
            live = self.runs.get(letter.run_no)
            if live is not None and live.add_letter(letter):
                self._make_ready(live)

    def _deliver_events(self) -> None:
        """Bring domain events to those of this app who listen: runs to start, runs that wait."""
        try:
            self._events = self._postman.deliver()
        except StoreError as error:
            self._back_off("delivering events", error)
            return
        if self._events:
            self._look = self._mail = True
            if self._has_peers:
                self._ring()

    def _wake_due(self, now: int) -> None:
        while self._due and self._due[0][0] <= now:
            due, no = heapq.heappop(self._due)
            live = self.runs.get(no)
            if live is not None and live.scheduled_due == due:
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
        for _ in range(len(self._ready)):
            no, live = self._ready.popitem(last=False)
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
            heapq.heappush(self._due, (due, live.row.no))
            if (
                len(self._due) > 2 * len(self.runs) + 1_000
            ):  # most of them were let go: the store knows when they are due
                self._due = [(r.scheduled_due, no) for no, r in self.runs.items() if r.scheduled_due is not None]
                heapq.heapify(self._due)
        if live.is_idle():
            live.idle_since = time.monotonic()
            self._to_show.append((live.idle_since + self.settings.show_after, live))
            if live.row.durable:  # the others are nowhere but in memory
                self._idle[live.row.no] = live
                self._idle.move_to_end(live.row.no)
                self._next_park = min(self._next_park, self._park_at(live))

    def _park_at(self, live: LiveRun) -> float:
        return live.idle_since + max(self.settings.park_after, self.settings.park_factor * live.replay_seconds)

    def _tidy(self, now: int) -> None:
        """Show what has been waiting for a moment, park what has been for longer."""
        mono = time.monotonic()
        while self._to_show and self._to_show[0][0] <= mono:
            _, live = self._to_show.popleft()
            if self.runs.get(live.row.no) is live and not live.released:
                live.show_status(live.execution.waiting_for() if live.is_idle() and live.execution is not None else "")
                self._touched[live.row.no] = live
        while self._started and self._started[0][0] <= mono:
            _, attempt = self._started.popleft()
            under_way = self.runs.get(attempt.run_no)
            if (
                under_way is not None
                and under_way.inflight.get(attempt.cmd) is attempt
                and attempt.token in self._attempts
                and not under_way.released
            ):
                began = self.executor.started_at(attempt.token)
                if began is None:
                    self._started.append((mono + self.settings.started_after, attempt))
                else:
                    under_way.note_started(attempt.cmd, began)
                    if under_way.shown == Status.WAITING:
                        under_way.show_status("")
                    self._touched[attempt.run_no] = under_way
        self._park(now, mono)

    def _park(self, now: int, mono: float) -> None:
        """Let go of what has only waited for a while, oldest first; at once where memory is short."""
        crowded = len(self.runs) > self.settings.max_live
        if not crowded and mono < self._next_park:
            return
        self._next_park = float("inf")
        for live in list(itertools.islice(self._idle.values(), 1_000)):
            park_at = self._park_at(live)
            if crowded or park_at <= mono:
                live.release(now)
                del self._idle[live.row.no]
                self._touched[live.row.no] = live
                continue
            self._next_park = min(self._next_park, park_at)
            if live.idle_since + self.settings.park_after > mono:
                break

    # -- commit, then act

    def _commit(self) -> None:
        """Commit all that is new in one transaction, then hand over and tell. Nothing leaves before."""
        if time.monotonic() < self._backoff:
            return
        touched, self._touched = self._touched, {}
        changes = [(live, live.take_change()) for live in touched.values() if live.has_change()]
        self._look = self._look or any(change.children or change.messages for _, change in changes)
        room = self.settings.max_live - len(self.runs)
        claim = min(self.settings.claim, room) if self._look and self._has_room() else 0
        if changes or (claim and self._something_waits()):
            try:
                claimed = self._write(changes, claim)
            except Fenced:
                self._fenced()
                return
            except StoreError as error:
                self._claims_unknown = self._claims_unknown or claim > 0
                self._commit_failed(touched, changes, error)
                return
            self._failures = 0
            self._act(touched)
            for one in sorted(claimed, key=lambda c: c.row.created_at - c.row.priority * PRIORITY_HEAD_START):
                self._take_over(one)
            if claim:
                self._look = len(claimed) >= claim
                self._due_unknown = True
            self._mail = self._mail or any(
                change.messages or any(child.if_taken for child in change.children) for _, change in changes
            )
            self._tell(changes)
        else:
            self._act(touched)

    def _write(self, changes: list[tuple[LiveRun, Change]], claim: int) -> list[Claimed]:
        """One transaction. If a change can't be written at all, its run is set aside and the others are written."""
        failpoints.hit("engine.before_commit")
        try:
            claimed = self.store.commit(self.me.worker, [change for _, change in changes], claim, self.names)
        except EncodeError as error:
            if len(changes) > 1:
                return [one for pair in changes for one in self._write([pair], 0)]
            for live, _ in changes:
                live.refuse(self.store.now(), error)
                self._make_ready(live)
            return []
        failpoints.hit("engine.after_commit")
        self._pulse.commit = time.monotonic()
        for live, change in changes:
            live.confirmed(change)
        return claimed

    def _something_waits(self) -> bool:
        """Whether a run can be claimed now; if not, when the next one can."""
        self._due_unknown = False
        try:
            wake = self.store.next_wake(self.names)
        except StoreError as error:
            self._back_off("looking for runs", error)
            return False
        self._look = wake is not None and wake <= self.store.now()
        self._parked_due = wake
        return self._look

    def _take_over(self, claimed: Claimed) -> None:
        earlier = self.runs.get(claimed.row.no)
        if earlier is not None:  # it had been let go by a commit whose fate was not known yet
            self._drop(earlier)
        live = LiveRun(claimed, self.app, self._greenlets, self._guard, self.me)
        # Steps may still execute here from before it was paused or lost: they are not handed over again.
        live.inflight = self._left_behind.pop(claimed.row.no, {})
        self.runs[claimed.row.no] = live
        self._make_ready(live)

    def _act(self, touched: dict[int, LiveRun]) -> None:
        mono = time.monotonic()
        attempts: list[Attempt] = []
        for live in touched.values():
            for attempt in live.to_cancel:
                self._attempts.pop(attempt.token, None)
                self.executor.cancel(attempt.token)
            live.to_cancel.clear()
            if live.released:
                if not live.has_change():  # else it was set aside just now, which is still to be committed
                    self._let_go(live)
            elif not self._stopping:
                scheduled, live.to_schedule = live.to_schedule, {}
                for command in scheduled.values():
                    if not live.released:
                        attempts += self._attempt(live, command, mono)
        if attempts:
            failpoints.hit("engine.before_hand_over")
            self.executor.submit(attempts)
            failpoints.hit("engine.after_hand_over")

    def _let_go(self, live: LiveRun) -> None:
        """A run leaves memory. What still executes for it will be posted to whoever owns it then, or is found here
        if that is us again."""
        no = live.row.no
        for table in (self.runs, self._ready, self._idle, self._touched):
            if table.get(no) is live:
                del table[no]
        under_way = {cmd: attempt for cmd, attempt in live.inflight.items() if attempt.token in self._attempts}
        if under_way:
            self._left_behind[no] = under_way
        for outcome in live.kept_outcomes():
            self._post_outcome(outcome)

    def _attempt(self, live: LiveRun, command: co.ScheduleStep, mono: float) -> list[Attempt]:
        """What to give to the executor: nothing if this worker's code lacks the step."""
        try:
            options = live.step_options(command)
        except UnknownNameError as error:
            live.cannot_schedule(command, self.store.now(), error)
            self._make_ready(live)
            return []
        token = next(self._tokens)
        attempt = Attempt(
            token=token, run_no=live.row.no, run_id=live.row.id, app=live.row.app, workflow=live.row.workflow,
            root_id=live.row.root_id or live.row.id, parent_id=live.row.parent_id, correlation=correlation_of(live.row),
            quiet=live.options.quiet, cmd=command.cmd, step=command.name,
            args=command.args if command.resolve is None else msgspec.Raw(command.resolve()), number=command.attempt,
            idempotency_key=live.idempotency_key(command),
            timeout=options.timeout, stall_timeout=options.stall_timeout,
            pool="process" if self.me.isolates and live.is_suspect(command) else options.pool,
            data=command.data, checkpoint=self._checkpoint(live, command),
        )  # fmt: skip
        live.inflight[command.cmd] = attempt
        self._attempts[token] = attempt
        self._started.append((mono + self.settings.started_after, attempt))
        return [attempt]

    def _streams_as(self, live: LiveRun, attempt: Attempt) -> int:
        """The number that tells items of this execution from those of any other. An execution that was cut short, by a
        lost worker or one that was stopped, used up no attempt but may have streamed."""
        if not attempt.streams_as:
            if live.streamed is None:
                try:
                    live.streamed = self.store.streamed(live.row.id)
                except StoreError as error:
                    logger.warning("what run %s has streamed could not be read: %s", live.row.id, error)
                    return attempt.number
            attempt.streams_as = max(attempt.number, live.streamed.get(attempt.cmd, 0) + 1)
            live.streamed[attempt.cmd] = attempt.streams_as
        return attempt.streams_as

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
        news = [
            live.row.id for live, change in changes if change.streamed or change.columns.get("status") in _WORTH_TELLING
        ]
        if news:
            self._announce(news)
        if self._has_peers and any(change.children or change.messages or live.released for live, change in changes):
            self._ring()
        if any(has_emitted(change) for _, change in changes):
            self._events = True
            self._ring(everyone=True)
        for live, change in changes:
            if live.options.schedule and change.columns.get("status") in FINAL:
                self.ticks.look()  # a tick may wait for this end
            due = change.columns.get("wake_at")
            if due is not None and (self._parked_due is None or due < self._parked_due):
                self._parked_due = due

    def _announce(self, run_ids: list[str]) -> None:
        failpoints.hit("engine.before_announce")
        self.notifier.announce(run_ids)

    def _ring(self, everyone: bool = False) -> None:
        failpoints.hit("engine.before_ring")
        self.notifier.ring(everyone)

    # -- when things go wrong

    def _back_off(self, what: str, error: StoreError) -> None:
        """Leave the store alone for a while; the longer the more often it failed."""
        self._failures += 1
        pause = min(5.0, 0.05 * 2**self._failures)
        logger.warning("%s failed, trying again in %.1f s: %s", what, pause, error)
        self._backoff = time.monotonic() + pause

    def _commit_failed(
        self, touched: dict[int, LiveRun], changes: list[tuple[LiveRun, Change]], error: StoreError
    ) -> None:
        """Nobody knows whether it happened: each run has to be looked at again before it goes on."""
        self._back_off("commit", error)
        self._touched |= touched
        for live, change in changes:
            live.unsure(change)
            del self._touched[live.row.no]
            self._make_ready(live)

    def _reload(self, live: LiveRun) -> LiveRun | None:
        """Read a run again after a commit whose fate is unknown; None if it can't be, or is no longer ours."""
        no = live.row.no
        try:
            row = self.store.get(live.row.id)
            if row is None or row.no != no or row.owner != self.me.worker:
                self._drop(live)
                return None
            if not row.durable:  # there is no history to begin again from; what it does can be done twice
                live.broken = False
                return live
            claimed = self._read(row)
        except StoreError as error:
            self._back_off(f"reading run {live.row.id}", error)
            return None
        if live.execution is not None:
            live.execution.evict()
        fresh = LiveRun(claimed, self.app, self._greenlets, self._guard, self.me)
        fresh.carry_over(live)
        self.runs[no] = fresh
        return fresh

    def _find_claimed(self) -> None:
        """Take over what a commit has claimed whose fate is unknown."""
        if time.monotonic() < self._backoff:
            return
        try:
            rows = self.store.runs(RunQuery(owner=self.me.worker, limit=self.settings.max_live + self.settings.claim))
            for row in rows:
                if row.no not in self.runs:
                    self._take_over(self._read(row))
        except StoreError as error:
            self._back_off("looking for what was claimed", error)
            return
        self._claims_unknown = False

    def _read(self, row: RunRow) -> Claimed:
        payloads = self.store.payloads(row.id, row.base_seq - 1)
        letters = [letter for letter in self.store.letters(self.me.worker) if letter.run_no == row.no]
        return Claimed(row, payloads, letters)

    def _drop(self, live: LiveRun) -> None:
        """A run that is no longer ours."""
        if live.execution is not None:
            live.execution.evict()
        self._let_go(live)

    def _fenced(self) -> None:
        """Others took this worker for dead. Nothing was written; begin again as a new one."""
        logger.warning("worker %s was taken for dead; going on as a new worker", self.me.worker)
        self._is_registered = False
        self.store.let_go(self.me.worker)
        for live in list(self.runs.values()):
            self._drop(live)
        self._touched.clear()
        self._begin_again()

    def _begin_again(self) -> bool:
        """Register as a new worker, as soon as the store allows it."""
        if time.monotonic() < self._backoff:
            return False
        try:
            self._register()
        except StoreError as error:
            self._back_off("registering", error)
            return False
        self._look = self._mail = True
        return True


_RING = object()
_WORTH_TELLING = (*FINAL, Status.PAUSED, Status.STUCK)
