"""The engine: take what arrived, deliver it, commit, act. One transaction per turn.

A host turns it (`host.py`), which owns threads, queues and waiting: the engine starts no thread and waits for nothing but
the store, so that several of them can be turned by a simulation. While a commit is under way the next batch gathers: that
is the group commit, and where the speed comes from. Nothing leaves before its cause is committed: steps are handed over,
and others told, only after the commit.
"""

from __future__ import annotations

import itertools
import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import msgspec

from holdfast import failpoints
from holdfast.codec.blobs import store_mark, sweep
from holdfast.core import commands as co
from holdfast.core import events as ev
from holdfast.core.loop import Greenlets
from holdfast.core.registry import Definitions, is_own
from holdfast.engine.agenda import Agenda
from holdfast.engine.attempts import encode_attempt, lost_outcome, token_of
from holdfast.engine.backoff import Backoff
from holdfast.engine.broadcast import Broadcast
from holdfast.engine.domain_events import EventDelivery, news_of
from holdfast.engine.guard import Guard
from holdfast.engine.identity import Identity
from holdfast.engine.inflight import InFlight
from holdfast.engine.limits import SAFETY_NET, Lines
from holdfast.engine.membership import Membership, new_worker_id
from holdfast.engine.probation import Probation
from holdfast.engine.records import (
    PRIORITY_HEAD_START,
    SlotLetter,
    correlation_of,
    outcome_message,
    stream_message,
)
from holdfast.engine.reporting import Reporter
from holdfast.engine.run import HELD, Home, LiveRun, Probe, read_options
from holdfast.engine.settings import Settings
from holdfast.engine.sources import Claims, Inbox
from holdfast.engine.ticks import Ticks
from holdfast.errors import Fenced, StoreError, StoreLostError, UnknownNameError
from holdfast.ports import (
    AHEAD,
    FINAL,
    Attempt,
    AttemptRow,
    Carrier,
    Change,
    Claimed,
    Clock,
    Committed,
    Emission,
    Executor,
    Letter,
    Message,
    NewAttempt,
    Notifier,
    Outcome,
    RunQuery,
    RunRow,
    SlotRow,
    Status,
    Store,
    Topic,
)

logger = logging.getLogger("holdfast.engine")
T = TypeVar("T")
BATCH = 100
"""How many runs, and domain events, are deleted at a time."""
LOST = 1_000
"""How many attempts of workers that are gone are ended at a time."""
COLLECT_AGAIN = 0.05
SWEEP_BLOBS_EVERY = 3_600.0
KEPT_OUTCOME_AGAIN = 1.0


class Report(msgspec.Struct):
    """What a step says on its way."""

    attempt: Attempt
    kind: str
    value: Any


class Hint(msgspec.Struct, frozen=True):
    """Somebody has put something where an engine should look."""

    topic: Topic


class Stop(msgspec.Struct):
    """Stop claiming, let steps finish for `grace` seconds, then release every run."""

    grace: float


class DeclaredDead(msgspec.Struct):
    """Others took a worker for dead."""

    worker: str


Arrival = Outcome | Report | Hint | Stop | DeclaredDead


class Wake(msgspec.Struct):
    """When to turn the engine again if nothing arrives: at once, when the store's clock shows `due`, or `tick` (the next
    tick of a schedule), or after `seconds`. `busy` steps are under way."""

    due: int | None
    tick: int | None
    seconds: float
    busy: int
    at_once: bool = False


class Engine:
    """Owns runs. `turn` is called again and again with what has arrived, always on one thread."""

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
        new_id: Callable[[], str] = new_worker_id,
        queues: Iterable[str] | None = ("",),
        carrier: Carrier | None = None,
    ) -> None:
        self.app = app
        self.store = store
        self.executor = executor
        self.notifier = notifier
        self.carrier = carrier
        self.clock = clock
        self.settings = settings or Settings()
        self.guard = Guard(self.settings.patience)
        me = Identity("", build, isolates=isolate, queues=None if queues is None else frozenset(queues))
        self.membership = Membership(app, store, clock, self.settings, me, new_id)
        self.backoff = Backoff(clock)
        self.claims = Claims(store)
        self.inbox = Inbox(store)
        self._sweep_blobs_at = 0.0
        self.events = EventDelivery(store, app.codec)
        self.ticks = Ticks(app, store, self.membership.names, self.settings.schedules)
        self.lines = Lines(app, store)
        self.runs: dict[int, LiveRun] = {}
        self.inflight = InFlight()
        self.probation = Probation(self.runs)
        self.due = Agenda()  # by the store's clock: when time alone brings a run in memory forward
        self.agenda = Agenda()  # by the clock that never jumps
        self.last_commit: float | None = None
        self._commit_began = 0.0
        self.lost: StoreLostError | None = None  # the store is gone for good, as far as this process can tell
        self.strain = ""  # what weighs on the store without stopping it
        self.stopping = False
        self._is_over = False
        self._ready: OrderedDict[int, LiveRun] = OrderedDict()
        self._idle: OrderedDict[int, LiveRun] = OrderedDict()
        self._touched: dict[int, LiveRun] = {}
        self._kept: list[Outcome] = []  # could not be posted to those who own their runs now
        self.reporter = Reporter(
            app.instruments, Broadcast(store, self.me, lambda: app.event_exchange), self.me, app.codec
        )
        self._home = Home(app, Greenlets(), self.guard, self.membership.me, clock, self.reporter)
        self._is_in_doubt = False  # a commit of unknown fate may yet happen
        self._has_unknown_claims = False
        self._has_unknown_grants = False

    @property
    def me(self) -> Identity:
        return self.membership.me

    # -- life

    def start(self, address: str) -> None:
        """Register; others ring at `address`."""
        self.membership.address = address
        self.me.secret = self.store.secret()
        self.membership.register(self.ticks.names)
        self.ticks.declare()
        self.lines.declare()
        self.agenda.set("lines", self.clock.monotonic() + SAFETY_NET)
        self.agenda.set("sweep", 0.0)
        self.agenda.set("collect", 0.0)
        if self.carrier is not None:
            self.carrier.start(self.store)

    def turn(self, arrivals: Iterable[Arrival]) -> Wake | None:
        """One round: take what has arrived, deliver, commit, act. None once the engine has stopped."""
        for arrival in arrivals:
            self._take(arrival)
        if self.membership.is_registered or self._register_again():
            self._look_at_definitions()
            now = self.store.now()
            self._do_what_is_due(now)
            if self._has_unknown_claims:
                self._find_claimed()
            if self._has_unknown_grants:
                self._find_granted()
            if self.events.stale:
                self._deliver_events()
            if self.inbox.stale:
                self._read_inbox()
            if self.probation.has_next() and not self.stopping:
                self._probe(now)
            if self._ready:
                self._advance(now)
            self._commit()
            if self.lines.are_stale() and not self.backoff.is_on():
                self._serve()
        return None if self.stopping and self._has_drained() else self._next_turn()

    def start_over(self) -> None:
        """A turn has failed in a way nobody thought of: whatever is in memory is read again."""
        self._touched.clear()
        for live in self.runs.values():
            live.broken = True
            self._make_ready(live)

    def close(self) -> None:
        """Let go of every run. What executes is interrupted by the executor, whose outcomes no longer count here."""
        self._take_back_all()
        self.executor.stop(0)
        for live in self.runs.values():
            if live.execution is not None:
                live.execution.evict()
        for table in (self.runs, self._ready, self._idle, self._touched):
            table.clear()
        self._home.greenlets.close()
        if self.carrier is not None:
            self.carrier.stop()
        try:
            self.store.unregister(self.me.worker)
        except StoreError as error:
            logger.warning("could not say goodbye to the store, others will notice: %s", error)
        self._ring(Topic.RUNS)

    # -- when to turn

    def _has_drained(self) -> bool:
        """Whether every step has ended and every outcome is committed, or the time for that is over."""
        return self._is_over or not (self.inflight or self._ready or self._touched)

    def _has_room(self) -> bool:
        return not self.stopping and len(self.runs) < self.settings.max_live

    def _is_busy(self) -> bool:
        """Whether there is something to do before anything arrives."""
        if self._ready or self.inbox.stale or self.events.stale or self.lines.are_stale():
            return True
        if self.stopping:
            return False
        return self.ticks.stale or self.probation.has_next() or (self.claims.stale and self._has_room())

    def _next_turn(self) -> Wake:
        if self.claims.is_due_unknown and self._has_room() and not self._is_busy():
            self._try("looking for runs", lambda: self.claims.look(self.membership.names))
        pausing, busy = self.backoff.is_on(), self._is_busy()
        if busy and not pausing:
            return Wake(None, None, 0.0, len(self.inflight), at_once=True)
        times = [self.agenda.next(), self.inflight.next_look()]
        if not self.membership.is_registered:
            times = [self.backoff.until]  # what is due is not done before that
        elif pausing and (busy or self._touched):
            times.append(self.backoff.until)
        seconds = min(time for time in times if time is not None) - self.clock.monotonic()
        times_due = (self.due.next(), self.claims.due_at, self.lines.due.next())
        dues = [time for time in times_due if time is not None]
        tick = None if self.stopping or pausing else self.ticks.due_at
        return Wake(int(min(dues)) if dues else None, tick, max(0.0, seconds), len(self.inflight))

    # -- what arrives

    def _take(self, arrival: Arrival) -> None:
        if isinstance(arrival, Outcome):
            self._take_outcome(arrival)
        elif isinstance(arrival, Hint):
            self._look_at(arrival.topic)
        elif isinstance(arrival, Report):
            self._take_report(arrival)
        elif isinstance(arrival, Stop):
            self.stopping = True
            self.agenda.set("stop", self.clock.monotonic() + arrival.grace)
        elif arrival.worker == self.me.worker and self.membership.is_registered:
            self._fenced()

    def _look_at(self, topic: Topic) -> None:
        everything = topic is Topic.EVERYTHING
        if everything or topic is Topic.RUNS:
            self.claims.stale = True
        if everything or topic is Topic.INBOX:
            self.claims.stale = self.inbox.stale = True
        if everything or topic is Topic.EVENTS:
            self.events.stale = True
        if everything or topic is Topic.SCHEDULES:
            self.ticks.look()

    def _take_outcome(self, outcome: Outcome) -> None:
        attempt = self.inflight.pop(outcome.attempt.token)
        if attempt is None:
            return
        live = self.runs.get(attempt.run_no)
        if live is not None and live.steps.inflight.get(attempt.cmd) is attempt:
            live.deliveries.append(outcome)
            self._make_ready(live)
            return
        self.inflight.forget_left_behind(attempt)
        if not outcome.cancelled and not outcome.lost:
            self._post_outcome(outcome)

    def _post_outcome(self, outcome: Outcome) -> None:
        """The run is no longer ours: its outcome goes to whoever owns it."""
        try:
            self._post(outcome_message(outcome.attempt.run_id, outcome, self.me.worker))
        except StoreError as error:
            logger.warning("outcome of step %r is kept until the store answers: %s", outcome.attempt.step, error)
            self.inflight.put_back(outcome.attempt)
            self._kept.append(outcome)
            self.agenda.set("kept outcomes", self.clock.monotonic() + KEPT_OUTCOME_AGAIN)

    def _take_report(self, report: Report) -> None:
        attempt = report.attempt
        live = self.runs.get(attempt.run_no)
        if live is None or live.steps.inflight.get(attempt.cmd) is not attempt:
            if report.kind == "stream" and attempt in self.inflight:  # its run was let go meanwhile
                item = stream_message(attempt, self.store.now(), report.value)
                self._try("keeping what a step says", lambda: self._post(item))
            return
        if report.kind == "stream" and live.has_items_waiting():
            # Said while its run was away, they come first: this one waits behind them.
            item = stream_message(attempt, self.store.now(), report.value)
            live.deliveries.append(Letter(0, attempt.run_no, item.kind, item.body))
        elif report.kind == "stream":
            live.stream(attempt.cmd, self._streams_as(live, attempt), self.store.now(), report.value)
        else:
            live.steps.report(report.kind, attempt.cmd, report.value)
            if report.kind == "progress" and self.reporter.is_on:
                began = self.executor.started_at(attempt.token) or self.store.now()
                self.reporter.progressed(attempt, began, report.value)
        self._make_ready(live)

    def _post(self, message: Message) -> None:
        failpoints.hit("engine.before_post")
        self.lines.freed(self.store.post(message).freed)
        self._look_at(Topic.INBOX)
        self._ring(Topic.INBOX)

    # -- what is due

    def _do_what_is_due(self, now: int) -> None:
        for no in self.due.due(now):
            live = self.runs.get(no)  # type: ignore[call-overload]
            if live is not None:
                self._make_ready(live)
        if self.claims.is_due(now):
            self.claims.stale, self.claims.due_at = True, None
        self.lines.have_come(now)
        mono = self.clock.monotonic()
        for key in self.agenda.due(mono):
            match key:
                case "sweep":
                    self._sweep(mono)
                case "collect":
                    self._collect()
                case "lines":
                    self.agenda.set("lines", mono + SAFETY_NET)
                    self.lines.look_at_all()
                case "stop":
                    self._is_over = True
                case "kept outcomes":
                    kept, self._kept = self._kept, []
                    for outcome in kept:
                        self._take_outcome(outcome)
                case ("show", int(no)):
                    self._show(no)
                case ("park", int(no)):
                    self._park(no, now)
        if (look := self.inflight.next_look()) is not None and look <= mono:
            self._show_started(mono)
        if len(self.runs) >= self.settings.max_live and self._idle:
            self._make_room(now)
        if not self.stopping and self.ticks.have_come(now) and not self.backoff.is_on():
            self._tick()

    def _sweep(self, mono: float) -> None:
        """The safety net: once a second, look for all that a lost hint would have told."""
        self.agenda.set("sweep", mono + self.settings.sweep)
        self._look_at(Topic.EVERYTHING)
        try:
            self.membership.swept()
            self.store.check()
            for worker_id in self.membership.look_at_others():
                logger.warning("worker %s is gone; its runs go on here or elsewhere", worker_id)
                self.lines.look_at_all()
            self._end_lost()
            if self.membership.clock_was_set_back:
                self.store.reset_times(AHEAD)
                self.membership.clock_was_set_back = False
                for live in self.runs.values():
                    self._make_ready(live)
            self._set_aside_unknown()
            self._note_strain(self.store.strain())
        except StoreLostError as error:
            self.lost = error
        except StoreError as error:
            logger.warning("sweep failed, trying again: %s", error)

    def _end_lost(self) -> None:
        """What workers that are gone had claimed: their runs hear that it is lost, and how many were lost together."""
        lost: dict[str, list[AttemptRow]] = {}
        for row in self.store.lost_attempts(LOST):
            lost.setdefault(row.worker or "", []).append(row)
        for worker_id, rows in lost.items():
            failpoints.hit("engine.before_post")
            self.store.end_attempts(worker_id, [lost_outcome(row, len(rows) - 1) for row in rows])
            self._look_at(Topic.INBOX)
            self._ring(Topic.INBOX)

    def _note_strain(self, strain: str) -> None:
        if strain and not self.strain:
            logger.warning("%s", strain)
        elif self.strain and not strain:
            logger.info("what weighed on %s is over", self.store.url)
        self.strain = strain

    def _collect(self) -> None:
        """Delete what has expired, for a share of the time: as fast as others start runs, and no turn waits for long."""
        clock = self.clock.monotonic
        end = clock() + self.settings.collect_for
        while True:
            gone = self._try("deleting what has expired", lambda: self.store.collect(BATCH))
            has_more = gone is not None and max(gone.runs, gone.events) >= BATCH
            if not has_more or clock() >= end:
                break
        self.agenda.set("collect", clock() + (COLLECT_AGAIN if has_more else self.settings.collect_every))
        if self.app.codec.blobs is not None and clock() >= self._sweep_blobs_at:
            self._sweep_blobs_at = clock() + SWEEP_BLOBS_EVERY
            threading.Thread(target=self._sweep_blobs, name="holdfast-blobs", daemon=True).start()

    def _sweep_blobs(self) -> None:
        """On a thread of its own: there may be many, and they may be far away."""
        blobs = self.app.codec.blobs
        assert blobs is not None
        try:
            sweep(blobs, store_mark(self.store.secret()), self.store.named_blobs)
        except Exception as error:  # they are found the next time
            logger.warning("blobs that nobody names could not be deleted: %s: %s", type(error).__name__, error)

    def _set_aside_unknown(self) -> None:
        before = self.store.now() - round(self.settings.unknown_after * 1_000_000)
        for row in self.store.orphans(before):
            known = sorted({name for worker in self.store.workers() for name in worker.names if not is_own(name)})
            reason = (
                f"no live worker of app {self.app.name!r} knows {row.workflow!r}; known: {', '.join(known)}. Start a worker "
                "whose code defines it, and the run goes on by itself"
            )
            options, _ = read_options(row)
            stuck = ev.RunStuck(seq=self.store.now(), ts=self.store.now(), reason=reason)
            (news,) = news_of(row, options, stuck, self.app.codec) or (None,)
            if self.store.set_aside(row.no, reason, "unknown", news):
                logger.error("run %s is set aside: %s", row.id, reason)
                self._announce([row.id])

    def _tick(self) -> None:
        """Let schedules start what is due."""
        if self._try("starting what is scheduled", self.ticks.fire):
            self.claims.stale = self.inbox.stale = True  # runs that go on may have been told to end
            self._tell_peers(Topic.INBOX)

    def _read_inbox(self) -> None:
        for letter in self._try("reading inboxes", lambda: self.inbox.poll(self.me.worker)) or ():
            live = self.runs.get(letter.run_no)
            if live is not None and live.add_letter(letter):
                self._make_ready(live)
                if self.reporter.is_on:
                    self.reporter.letters(live.row, [letter], self.store.now())

    def _deliver_events(self) -> None:
        """Bring domain events to those of this app who listen: runs to start, runs that wait."""
        if self._try("delivering events", self.events.deliver):
            self.claims.stale = self.inbox.stale = True
            self._tell_peers(Topic.INBOX)

    def _look_at_definitions(self) -> None:
        """Something may have been defined since this engine has started, in a notebook for example, or what was told of it
        is damaged."""
        membership, revision = self.membership, self.app.revision
        if (revision == membership.revision and not membership.is_damaged) or self.backoff.is_on():
            return
        membership.names = sorted(self.app.known_names())
        self.ticks.learn(membership.names)
        try:
            membership.tell_definitions(self.ticks.names)
            self.ticks.declare()
            self.lines.declare()
        except Fenced:
            self._fenced()
        except StoreError as error:
            self._failed("making known what was defined", error)
            return
        membership.revision, membership.is_damaged, self.claims.stale = revision, False, True

    def _make_ready(self, live: LiveRun) -> None:
        no = live.row.no
        self._ready[no] = live
        if self._idle.pop(no, None) is not None:
            self.agenda.drop(("park", no))

    # -- deliver

    def _advance(self, now: int) -> None:
        """Bring ready runs forward, each for a slice, so that none holds up the others or the commit."""
        clock, ready, settings = self.clock.monotonic, self._ready, self.settings
        end = clock() + settings.turn
        events = 0
        for _ in range(len(ready)):
            no, live = ready.popitem(last=False)
            if live.broken:
                fresh = None if self.backoff.is_on() else self._reload(live)
                if fresh is None:
                    if self.runs.get(no) is live:
                        ready[no] = live
                    continue
                live = fresh
            self._touched[no] = live
            if live.advance(now, settings.slice):
                ready[no] = live
            else:
                self._after_advance(live)
            events += len(live.change.records)
            if events > settings.max_events or clock() > end:
                return

    def _after_advance(self, live: LiveRun) -> None:
        if live.released:
            return
        if live.probe is Probe.WANTED:
            self.probation.add(live)
            return
        if live is self.probation.probed:
            live.probe_is_over()
        due = live.next_due()
        if due is not None:
            self.due.set(live.row.no, due)
        if live.is_idle():
            self._is_idle_now(live)

    def _is_idle_now(self, live: LiveRun) -> None:
        no, mono, settings = live.row.no, self.clock.monotonic(), self.settings
        self.agenda.set(("show", no), mono + settings.show_after)
        if live.row.durable:  # the others are nowhere but in memory
            self._idle[no] = live
            self._idle.move_to_end(no)
            wait = max(settings.park_after, settings.park_factor * live.replay_seconds)
            self.agenda.set(("park", no), mono + wait)

    def _probe(self, now: int) -> None:
        live = self.probation.next()
        if live is not None:
            live.announce_probe(now)
            self._touched[live.row.no] = live

    # -- show, park

    def _show(self, no: int) -> None:
        """What a run waits for, once it has waited for a moment."""
        live = self.runs.get(no)
        if live is not None and not live.released and not live.broken:
            live.show_status(live.waiting_for() if live.is_idle() and live.execution is not None else "")
            self._touched[no] = live

    def _show_started(self, mono: float) -> None:
        """Steps that take their time are shown as started."""
        waiting = []
        for attempt in self.inflight.to_look_at(mono):
            live = self.runs.get(attempt.run_no)
            if live is None or live.steps.inflight.get(attempt.cmd) is not attempt or live.released:
                continue
            began = self.executor.started_at(attempt.token)
            if began is None:
                waiting.append(attempt)
                continue
            live.note_started(attempt.cmd, began)
            if live.shown == Status.WAITING:
                live.show_status("")
            self._touched[attempt.run_no] = live
        self.inflight.look_again(waiting, mono + self.settings.started_after)

    def _park(self, no: int, now: int) -> None:
        """Let go of a run that has only waited for a while."""
        live = self._idle.pop(no, None)
        if live is None or self.runs.get(no) is not live:
            return
        if self._has_unknown_grants and live.steps.slots:  # nobody else would ever tell it
            self._is_idle_now(live)
            return
        if live.is_ahead(now):  # it waits for a time that is too late, and first has to know
            self._make_ready(live)
            return
        live.release(now)
        self._touched[no] = live

    def _make_room(self, now: int) -> None:
        """Memory is full and others wait: those that have waited longest leave at once."""
        surplus = len(self.runs) - self.settings.max_live
        if self.claims.stale and not self.stopping and self._can_claim():
            surplus += self.settings.claim
        for no in list(itertools.islice(self._idle, surplus)):
            self.agenda.drop(("park", no))
            self._park(no, now)

    # -- commit, then act

    def _commit(self) -> None:
        """Commit all that is new in one transaction, then hand over and tell. Nothing leaves before."""
        if self.backoff.is_on():
            return
        touched, self._touched = self._touched, {}
        self._take_back(touched)
        if not self.stopping:
            self._ask_elsewhere(touched)
        changes = [(live, live.take_change()) for live in touched.values() if live.change]
        for _, change in changes:
            if not change.is_plain and (change.children or change.messages):
                self.claims.stale = True
        claim = self._room_for_claims()
        if not changes and not (claim and self._can_claim()):
            self._act(touched)
            return
        try:
            committed = self._write(changes, claim)
        except Fenced:
            self._fenced()
            return
        except StoreError as error:
            self._has_unknown_claims = self._has_unknown_claims or claim > 0
            self._commit_failed(touched, changes, error)
            return
        self.backoff.succeeded()
        if self.reporter.is_on:
            self.reporter.committed(changes, committed.claimed, self.clock.monotonic() - self._commit_began)
        self._act(touched)
        probed = self.probation.probed
        if probed is not None and probed.row.no in touched and self.probation.is_probing():
            self._make_ready(probed)
        for one in sorted(committed.claimed, key=lambda c: c.row.created_at - c.row.priority * PRIORITY_HEAD_START):
            self._take_over(one)
        if claim:
            self.claims.claimed(claim, len(committed.claimed), alone=not changes)
        self._tell(changes, committed.emitted)

    def _serve(self) -> None:
        """Let those have the slots whose turn it is. What a worker that dies here has freed is found by the others."""
        failpoints.hit("engine.before_serve")
        try:
            for served in self.lines.serve(self.me.worker):
                for no, letter in served.letters:
                    self._hand_in(no, letter)
                if served.posted:
                    self._look_at(Topic.INBOX)
                    self._tell_peers(Topic.INBOX)
        except Fenced:
            self._fenced()
        except StoreError as error:
            self._has_unknown_grants = True
            self._failed("serving limits", error)

    def _hand_in(self, no: int, letter: bytes) -> None:
        live = self.runs.get(no)
        if live is not None:  # else it was claimed by a commit of unknown fate, and its slots are read with it
            live.deliveries.append(Letter(0, no, "slot", letter))
            self._make_ready(live)

    def _find_granted(self) -> None:
        """Runs of this worker may have been given slots by a transaction whose fate is unknown."""
        waiting = [no for no, live in self.runs.items() if live.steps.slots.waiting()]
        if self.backoff.is_on():
            return
        found = self._try("looking for what was granted", lambda: self._granted(waiting))
        if found is not None:
            for no, slot in found:
                self._hand_in(no, msgspec.json.encode(SlotLetter(cmd=slot.cmd, token=slot.token)))
            self._has_unknown_grants = False

    def _granted(self, nos: list[int]) -> list[tuple[int, SlotRow]]:
        self.store.settle(self.me.worker)
        by_run = self.store.slots(nos) if nos else {}
        return [(no, slot) for no, slots in by_run.items() for slot in slots if slot.granted]

    def _room_for_claims(self) -> int:
        if not self.claims.stale or not self._has_room():
            return 0
        return min(self.settings.claim, self.settings.max_live - len(self.runs))

    def _can_claim(self) -> bool:
        return bool(self._try("looking for runs", lambda: self.claims.look(self.membership.names)))

    def _write(self, changes: list[tuple[LiveRun, Change]], claim: int) -> Committed:
        """One transaction. If a change can't be written at all, its run is set aside and the others are written."""
        failpoints.hit("engine.before_commit")
        self._commit_began = self.clock.monotonic()
        try:
            names = self.membership.names
            committed = self.store.commit(self.me.worker, [change for _, change in changes], claim, names)
        except StoreError:
            raise
        except Exception as error:
            if not changes:
                raise
            if len(changes) > 1:
                return Committed([], any([self._write([pair], 0).emitted for pair in changes]))
            for live, _ in changes:
                live.refuse(self.store.now(), error)
                self._make_ready(live)
            return Committed([], False)
        failpoints.hit("engine.after_commit")
        self.last_commit = self.clock.monotonic()
        for live, change in changes:
            live.confirmed(change)
            if change.asks:
                self.lines.joined(change.asks)
        if committed.freed:
            self.lines.freed(committed.freed)
        return committed

    def _take_over(self, claimed: Claimed) -> None:
        earlier = self.runs.get(claimed.row.no)
        if earlier is not None:  # it had been let go by a commit whose fate was not known yet
            self._drop(earlier)
        live = self._live(claimed)
        # Steps may still execute here from before it was paused or lost: they are not handed over again.
        live.steps.inflight = self.inflight.take_up(claimed.row.no)
        self.runs[claimed.row.no] = live
        self._make_ready(live)
        if self.reporter.is_on:
            self.reporter.taken_over(live, claimed, self.store.now())

    def _live(self, claimed: Claimed) -> LiveRun:
        return LiveRun(claimed, self._home)

    def _take_back(self, touched: dict[int, LiveRun]) -> None:
        """What a commit gives away or ends is not begun after it: others may have begun it then, or know its end."""
        for live in touched.values():
            if live.released and (live.steps.to_schedule or live.steps.to_ask):
                live.steps.will_not_be_handed_over(self.store.now())
            if not (live.steps.to_cancel or (live.released and live.steps.inflight)):
                continue
            given_up = {attempt.token: attempt for attempt in live.steps.to_cancel}
            if live.released:
                given_up |= {attempt.token: attempt for attempt in live.steps.inflight.values()}
            for token in self.executor.withdraw(given_up):
                attempt = given_up[token]
                self.inflight.pop(token)
                if live.steps.inflight.get(attempt.cmd) is attempt:
                    live.steps.withdrawn(attempt.cmd, self.store.now())
                else:
                    live.steps.to_cancel.remove(attempt)
        for live in touched.values():
            # Held for how long, nobody knows: only what goes on has a slot until then.
            if live.released and live.row.limited and live.row.status in HELD and live.change.keeps is None:
                live.steps.slots.give_others_back([*live.steps.inflight, ""])

    def _act(self, touched: dict[int, LiveRun]) -> None:
        attempts: list[Attempt] = []
        for live in touched.values():
            if live.steps.to_cancel:
                for attempt in live.steps.to_cancel:
                    self.inflight.pop(attempt.token)
                    self.executor.cancel(attempt.token)
                live.steps.to_cancel.clear()
            if live.released:
                if not live.change:  # else it was set aside just now, which is still to be committed
                    self._let_go(live)
            elif live.steps.to_schedule and not self.stopping:
                scheduled, live.steps.to_schedule = live.steps.to_schedule, {}
                for command in scheduled.values():
                    if not live.released:
                        attempts += self._attempt(live, command)
        if attempts:
            self.inflight.add(attempts, self.clock.monotonic() + self.settings.started_after)
            if self.reporter.is_on:
                self.reporter.handed_over(attempts, self.store.now())
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
        self.due.drop(no)
        self.agenda.drop(("show", no))
        self.agenda.drop(("park", no))
        if live.steps.inflight:
            under_way = {cmd: attempt for cmd, attempt in live.steps.inflight.items() if attempt in self.inflight}
            for token in self.executor.withdraw([attempt.token for attempt in under_way.values()]):
                del under_way[self.inflight.pop(token).cmd]  # type: ignore[union-attr]
            self.inflight.leave_behind(no, under_way)
        for outcome in live.steps.kept(live.deliveries):
            self._post_outcome(outcome)

    def _ask_elsewhere(self, touched: dict[int, LiveRun]) -> None:
        """Steps that others are to execute get a row, in the commit of what has led to them."""
        for live in touched.values():
            if live.steps.to_ask and not live.released and not live.broken:
                asked, live.steps.to_ask = live.steps.to_ask, {}
                for command in asked.values():
                    self._ask(live, command, live.steps.options(command).queue)
                if live.is_idle():
                    self._is_idle_now(live)

    def _ask(self, live: LiveRun, command: co.ScheduleStep, queue: str) -> None:
        attempt = self._describe(live, command, 0)
        if command.attempt > 1 or command.losses:
            self._add_what_was_said(live, attempt)
        due = self.store.now() - live.row.priority * PRIORITY_HEAD_START
        asked = NewAttempt(
            token=token_of(attempt, self.clock.random()), cmd=command.cmd, step=command.name, number=command.attempt,
            queue=queue, due=due, body=encode_attempt(attempt),
        )  # fmt: skip
        live.change.attempts.append(asked)
        live.steps.elsewhere[command.cmd] = AttemptRow(
            token=asked.token, run_no=live.row.no, cmd=asked.cmd, step=asked.step, number=asked.number, queue=queue,
            due=due,
        )  # fmt: skip

    def _add_what_was_said(self, live: LiveRun, attempt: Attempt) -> None:
        """The checkpoint of an earlier attempt elsewhere, which nobody here has heard of, and a number that tells items of
        this execution from those of any other: one that was lost used up no attempt, but may have streamed."""
        try:
            attempt.checkpoint = self.store.attributes(live.row.id, "checkpoint").get(attempt.cmd)
            streamed = self.store.streamed(live.row.id).get(attempt.cmd, 0)
        except StoreError as error:
            logger.warning("what run %s has kept could not be read: %s", live.row.id, error)
            return
        to_come = [number for cmd, number, _, _ in live.change.streamed if cmd == attempt.cmd]
        attempt.streams_as = max(attempt.number, max([streamed, *to_come]) + 1)

    def _attempt(self, live: LiveRun, command: co.ScheduleStep) -> list[Attempt]:
        """What to give to the executor: nothing if this worker's code lacks the step."""
        try:
            attempt = self._describe(live, command, self.inflight.next_token())
        except UnknownNameError as error:
            live.cannot_schedule(command, self.store.now(), error)
            self._make_ready(live)
            return []
        attempt.checkpoint = self._checkpoint(live, command)
        live.steps.inflight[command.cmd] = attempt
        return [attempt]

    def _describe(self, live: LiveRun, command: co.ScheduleStep, token: int) -> Attempt:
        row, options = live.row, live.steps.options(command)
        return Attempt(
            token=token, run_no=row.no, run_id=row.id, app=row.app, workflow=row.workflow,
            root_id=row.root_id or row.id, parent_id=row.parent_id, correlation=correlation_of(row),
            quiet=live.options.quiet, headers=live.options.headers, cmd=command.cmd, step=command.name,
            args=command.args if command.resolve is None else msgspec.Raw(command.resolve()), number=command.attempt,
            idempotency_key=live.idempotency_key(command),
            timeout=options.timeout, stall_timeout=options.stall_timeout,
            pool="process" if self.me.isolates and live.steps.is_suspect(command) else options.pool,
            company=live.steps.suspicion.company(command.cmd) if options.pool != "process" else 0,
            data=command.data, at_most_once=options.at_most_once, trace=live.options.trace,
        )  # fmt: skip

    def _streams_as(self, live: LiveRun, attempt: Attempt) -> int:
        """The number that tells items of this execution from those of any other. An execution that was cut short, by a
        lost worker or one that was stopped, used up no attempt but may have streamed."""
        if not attempt.streams_as:
            if live.steps.streamed is None:
                try:
                    live.steps.streamed = self.store.streamed(live.row.id)
                except StoreError as error:
                    logger.warning("what run %s has streamed could not be read: %s", live.row.id, error)
                    return attempt.number
            attempt.streams_as = max(attempt.number, live.steps.streamed.get(attempt.cmd, 0) + 1)
            live.steps.streamed[attempt.cmd] = attempt.streams_as
        return attempt.streams_as

    def _checkpoint(self, live: LiveRun, command: co.ScheduleStep) -> bytes | None:
        """What an earlier attempt of the step has kept; it may have been on another worker."""
        if live.steps.checkpoints is None:
            if not live.resumed:
                return None
            try:
                live.steps.checkpoints = self.store.attributes(live.row.id, "checkpoint")
            except StoreError as error:
                logger.warning("checkpoints of run %s could not be read: %s", live.row.id, error)
                return None
        return live.steps.checkpoints.get(command.cmd)

    # -- telling others

    def _tell(self, changes: list[tuple[LiveRun, Change]], emitted: bool) -> None:
        changed = []
        to_runs = to_inboxes = to_executors = dropped = False
        for live, change in changes:
            columns = change.columns
            if change.is_plain and not columns:  # most are
                continue
            if change.attempts:
                to_executors = True
            if change.dropped_attempts:
                dropped = True
            if change.streamed or columns.get("status") in _WORTH_TELLING or change.answers or _has_data(change):
                changed.append(live.row.id)
            to_runs = to_runs or live.released
            if change.messages:
                to_inboxes = True
            if change.children:
                to_runs, to_inboxes = True, to_inboxes or any(child.if_taken for child in change.children)
            if change.signals:
                emitted = emitted or any(isinstance(signal, Emission) for signal in change.signals)
            if live.options.schedule and columns.get("status") in FINAL:
                self.ticks.look()  # a tick may wait for this end
            due = columns.get("wake_at")
            if due is not None:
                self.claims.released(due)
        if changed:
            self._announce(changed)
        if to_inboxes:
            self.inbox.stale = True
            self._tell_peers(Topic.INBOX)
        elif to_runs:
            self._tell_peers(Topic.RUNS)
        if to_executors:
            if self.carrier is not None:
                self.carrier.carry([attempt for _, change in changes for attempt in change.attempts])
            self._tell_peers(Topic.ATTEMPTS)
        if dropped:
            self._tell_peers(Topic.DROPPED)
        if emitted:
            self.events.stale = True
            self._ring(Topic.EVENTS, everyone=True)

    def _announce(self, run_ids: list[str]) -> None:
        failpoints.hit("engine.before_announce")
        self.notifier.announce(run_ids)

    def _tell_peers(self, topic: Topic) -> None:
        if self.membership.has_peers:
            self._ring(topic)

    def _ring(self, topic: Topic, everyone: bool = False) -> None:
        failpoints.hit("engine.before_ring")
        self.notifier.ring(topic, everyone)

    # -- when things go wrong

    def _try(self, what: str, ask: Callable[[], T]) -> T | None:
        """Ask the store for something; None if it fails, and then it is left alone for a while."""
        try:
            return ask()
        except StoreError as error:
            self._failed(what, error)
            return None

    def _failed(self, what: str, error: StoreError) -> None:
        if isinstance(error, StoreLostError):
            self.lost = error
        else:
            self.backoff.failed(what, error)

    def _commit_failed(
        self, touched: dict[int, LiveRun], changes: list[tuple[LiveRun, Change]], error: StoreError
    ) -> None:
        """Nobody knows whether it happened: each run has to be looked at again before it goes on."""
        self._failed("commit", error)
        self._is_in_doubt = True
        self._touched |= touched
        for live, change in changes:
            live.unsure(change)
            del self._touched[live.row.no]
            self._make_ready(live)

    def _settle(self) -> None:
        if self._is_in_doubt:
            self.store.settle(self.me.worker)
            self._is_in_doubt = False

    def _reload(self, live: LiveRun) -> LiveRun | None:
        """Read a run again after a commit whose fate is unknown; None if it can't be, or is no longer ours."""
        no = live.row.no
        try:
            self._settle()
            row = self.store.get(live.row.id)
            if row is None or row.no != no or row.owner != self.me.worker:
                self._drop(live)
                return None
            if not row.durable:  # there is no history to begin again from; what it does can be done twice
                live.broken = False
                return live
            claimed = self._read(row)
        except StoreError as error:
            self._failed(f"reading run {live.row.id}", error)
            return None
        if live.execution is not None:
            live.execution.evict()
        fresh = self._live(claimed)
        fresh.carry_over(live)
        self.runs[no] = fresh
        return fresh

    def _find_claimed(self) -> None:
        """Take over what a commit has claimed whose fate is unknown."""
        if self.backoff.is_on():
            return
        try:
            self._settle()
            rows = self.store.runs(RunQuery(owner=self.me.worker, limit=self.settings.max_live + self.settings.claim))
            for row in rows:
                if row.no not in self.runs:
                    self._take_over(self._read(row))
        except StoreError as error:
            self._failed("looking for what was claimed", error)
            return
        self._has_unknown_claims = False

    def _read(self, row: RunRow) -> Claimed:
        payloads = self.store.payloads(row.id, row.base_seq - 1)
        attempts = self.store.attempts(row.id)  # before the messages, one of which may be the outcome of one of these
        letters = [letter for letter in self.store.letters(self.me.worker) if letter.run_no == row.no]
        slots = self.store.slots([row.no]).get(row.no, []) if row.limited else []
        return Claimed(row, payloads, letters, attempts=attempts, slots=slots)

    def _drop(self, live: LiveRun) -> None:
        """A run that is no longer ours."""
        if live.execution is not None:
            live.execution.evict()
        self._let_go(live)

    def _fenced(self) -> None:
        """Others took this worker for dead. Nothing was written; begin again as a new one."""
        logger.warning("worker %s was taken for dead; going on as a new worker", self.me.worker)
        self.membership.fenced()
        for live in list(self.runs.values()):
            self._drop(live)
        self._touched.clear()
        self._register_again()

    def _register_again(self) -> bool:
        """Register as a new worker, as soon as the store allows it."""
        if self.backoff.is_on():
            return False
        try:
            self.membership.register(self.ticks.names)
        except StoreError as error:
            self._failed("registering", error)
            return False
        self.claims.stale = self.inbox.stale = True
        return True

    def _take_back_all(self) -> None:
        """What was announced and has not begun will begin elsewhere: say so, else it would count as begun."""
        waiting = {
            no: live for no, live in self.runs.items() if live.steps.inflight and not (live.broken or live.change)
        }
        for live in waiting.values():
            live.released = True
        self._take_back(waiting)
        changes = [live.take_change() for live in waiting.values() if live.change]
        try:
            if changes:
                failpoints.hit("engine.before_commit")
                self.store.commit(self.me.worker, changes, 0, self.membership.names)
                failpoints.hit("engine.after_commit")
        except (StoreError, Fenced) as error:
            logger.warning("what was taken back could not be recorded: %s", error)


def _has_data(change: Change) -> bool:
    """Whether data is published, for which somebody may wait."""
    return any(key.startswith("data.") for key, _, _ in change.attributes)


_WORTH_TELLING = (*FINAL, Status.PAUSED, Status.STUCK)
