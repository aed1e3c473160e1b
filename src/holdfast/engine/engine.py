"""The engine: take what arrived, deliver it, commit, act. One transaction per turn.

A host turns it (`host.py`), which owns threads, queues and waiting: the engine starts no thread and waits for nothing but
the store, so that several of them can be turned by a simulation. While a commit is under way the next batch gathers: that
is the group commit, and where the speed comes from. Nothing leaves before its cause is committed: steps are handed over,
and others told, only after the commit.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

from holdfast.core.greenlets import Greenlets
from holdfast.engine.announcer import Announcer
from holdfast.engine.arrivals import Arrival, Hint, InboxHint, Report, Stop, Wake
from holdfast.engine.committer import Committer
from holdfast.engine.environment import Environment
from holdfast.engine.guard import Guard
from holdfast.engine.handover import HandOver
from holdfast.engine.housekeeping import Housekeeping
from holdfast.engine.identity import Identity
from holdfast.engine.inflight import InFlight
from holdfast.engine.intake import Intake
from holdfast.engine.limits import SAFETY_NET
from holdfast.engine.live_runs import LiveRuns
from holdfast.engine.outbox import Outbox
from holdfast.engine.probation import Probation
from holdfast.engine.records import PRIORITY_HEAD_START
from holdfast.engine.run import LiveRun, Probe
from holdfast.engine.run_state import Shared
from holdfast.engine.sources import Sources
from holdfast.errors import Fenced, StoreError
from holdfast.ports import Carrier, Outcome, Store, Topic

logger = logging.getLogger("holdfast.engine")
MANY = 50
GATHER = 0.005
"""While that many runs wait, outcomes that come from elsewhere one by one gather for so many seconds: each has waited longer
in its queue, and a commit for each would keep all others from their work."""


class Engine:
    """Owns runs. `turn` is called again and again with what has arrived, always on one thread."""

    heeds = frozenset({Topic.EVERYTHING, Topic.RUNS, Topic.INBOX, Topic.EVENTS, Topic.SCHEDULES})

    def __init__(self, env: Environment[Store], carrier: Carrier | None = None) -> None:
        self.env = env
        self.carrier = carrier
        self.guard = Guard(env.settings.blocked_after)
        self.sources = Sources(env.app, env.store, env.membership.names, env.settings)
        self.inflight = InFlight()
        self.announcer = Announcer(env.store, env.notifier, carrier, env.membership, self.sources)
        outbox = Outbox(env, self.announcer, self.inflight)
        shared = Shared(env.app, Greenlets(), self.guard, self.me, env.clock, env.reporter)
        self.live_runs = LiveRuns(env, shared, self.inflight, outbox)
        self.intake = Intake(env, self.sources, self.announcer, self.live_runs)
        self.handover = HandOver(env, self.live_runs, self.inflight, outbox)
        self.committer = Committer(env, self.sources, self.announcer, self.live_runs)
        self.housekeeping = Housekeeping(env, self.sources, self.announcer, self.live_runs)
        self.probation = Probation(self.live_runs.by_no)
        self.stopping = False
        self._is_over = False

    @property
    def me(self) -> Identity:
        return self.env.membership.me

    @property
    def runs(self) -> dict[int, LiveRun]:
        """Those in memory, by their number."""
        return self.live_runs.by_no

    @property
    def last_commit(self) -> float | None:
        return self.committer.last_commit

    @property
    def strain(self) -> str:
        return self.housekeeping.strain

    # -- life

    def start(self, address: str) -> None:
        """Register; others ring at `address`."""
        self.env.membership.address = address
        self.me.secret = self.env.store.secret()
        self.env.membership.register(self.sources.ticks.names)
        self.sources.ticks.declare()
        self.sources.lines.declare()
        self.env.agenda.set("lines", self.env.clock.monotonic() + SAFETY_NET)
        self.env.agenda.set("sweep", 0.0)
        self.env.agenda.set("collect", 0.0)
        if self.carrier is not None:
            self.carrier.start(self.env.store)

    def turn(self, arrivals: Iterable[Arrival]) -> Wake | None:
        """One round: take what has arrived, deliver, commit, act. None once the engine has stopped."""
        for arrival in arrivals:
            self._take(arrival)
        if self.env.membership.is_registered or self._register_again():
            sources, committer = self.sources, self.committer
            self._unless_fenced(self.intake.look_at_definitions)
            now = self.env.store.now()
            self._do_what_is_due(now)
            if committer.has_unknown_claims:
                committer.find_claimed()
            if committer.has_unknown_grants:
                committer.find_granted()
            if sources.events.stale:
                self.intake.deliver_events()
            if sources.inbox.stale:
                self.intake.read_inbox()
            if self.probation.has_next() and not self.stopping:
                self._probe(now)
            if self.live_runs.ready:
                self._advance(now)
            if not self.env.backoff.is_on():
                self._commit()
            if sources.lines.are_stale() and not self.env.backoff.is_on():
                self._unless_fenced(committer.serve)
        return None if self.stopping and self._has_drained() else self._next_turn()

    def enter_thread(self) -> None:
        """The calling thread goes on with it."""
        self.live_runs.shared.greenlets.enter_thread()

    def start_over(self) -> None:
        """A turn has failed in a way nobody thought of: whatever is in memory is read again."""
        self.live_runs.distrust_all()

    def close(self) -> None:
        """Let go of every run. What executes is interrupted by the executor, whose outcomes no longer count here."""
        self.committer.commit_last(self.handover.take_back_all())
        self.env.executor.stop(0)
        self.live_runs.clear()
        if self.carrier is not None:
            self.carrier.stop()
        try:
            self.env.store.unregister(self.me.worker)
        except StoreError as error:
            logger.warning("could not say goodbye to the store, others will notice: %s", error)
        self.announcer.ring(Topic.RUNS)

    # -- when to turn

    def _has_drained(self) -> bool:
        """Whether every step has ended and every outcome is committed, or the time for that is over."""
        return self._is_over or not (self.inflight or self.live_runs.ready or self.live_runs.touched)

    def _has_room(self) -> bool:
        return not self.stopping and len(self.live_runs.by_no) < self.env.settings.max_live

    def _is_busy(self) -> bool:
        """Whether there is something to do before anything arrives."""
        sources = self.sources
        if self.live_runs.ready or sources.inbox.stale or sources.events.stale or sources.lines.are_stale():
            return True
        if self.stopping:
            return False
        return sources.ticks.stale or self.probation.has_next() or (sources.claims.stale and self._has_room())

    def _next_turn(self) -> Wake:
        sources = self.sources
        # What was claimed just now goes on first: a new run's first step, and what it leads to, wait for nothing else. If
        # steps take their time, it is looked at after a moment all the same.
        is_at_rest = not (self.live_runs.ready or self.inflight or sources.claims.stale)
        if sources.claims.is_due_unknown and is_at_rest and self._has_room():
            self.intake.can_claim()
        pausing, busy = self.env.backoff.is_on(), self._is_busy()
        if busy and not pausing:
            return Wake(None, None, 0.0, len(self.inflight), at_once=True)
        times = [self.env.agenda.next(), self.inflight.next_look()]
        if not self.env.membership.is_registered:
            times = [self.env.backoff.until]  # what is due is not done before that
        elif pausing and (busy or self.live_runs.touched):
            times.append(self.env.backoff.until)
        seconds = min(time for time in times if time is not None) - self.env.clock.monotonic()
        times_due = (self.live_runs.due.next(), sources.claims.due_at, sources.lines.due.next())
        dues = [time for time in times_due if time is not None]
        tick = None if self.stopping or pausing else sources.ticks.due_at
        gather = GATHER if len(self.live_runs.idle) >= MANY else 0.0
        return Wake(int(min(dues)) if dues else None, tick, max(0.0, seconds), len(self.inflight), gather=gather)

    # -- what arrives

    def _take(self, arrival: Arrival) -> None:
        if isinstance(arrival, Outcome):
            self.handover.take_outcome(arrival)
        elif isinstance(arrival, Hint):
            self.sources.look_at(arrival.topic)
        elif isinstance(arrival, InboxHint):
            self.intake.take_hint(arrival)
        elif isinstance(arrival, Report):
            self.handover.take_report(arrival)
        elif isinstance(arrival, Stop):
            self.stopping = True
            self.env.agenda.set("stop", self.env.clock.monotonic() + arrival.grace)
        elif arrival.worker == self.me.worker and self.env.membership.is_registered:
            self._fenced()

    def _do_what_is_due(self, now: int) -> None:
        sources, live_runs = self.sources, self.live_runs
        for no in live_runs.due.due(now):
            live = live_runs.by_no.get(no)  # type: ignore[call-overload]
            if live is not None:
                live_runs.make_ready(live)
        if sources.claims.is_due(now):
            sources.claims.stale, sources.claims.due_at = True, None
        sources.lines.have_come(now)
        mono = self.env.clock.monotonic()
        for key in self.env.agenda.due(mono):
            match key:
                case "sweep":
                    self.housekeeping.sweep(mono)
                case "collect":
                    self.housekeeping.collect()
                case "lines":
                    self.env.agenda.set("lines", mono + SAFETY_NET)
                    sources.lines.look_at_all()
                case "stop":
                    self._is_over = True
                case "kept outcomes":
                    self.handover.take_kept()
                case ("show", int(no)):
                    live_runs.show(no)
                case ("park", int(no)):
                    live_runs.park(no, now, self.committer.has_unknown_grants)
        if (look := self.inflight.next_look()) is not None and look <= mono:
            self.handover.show_started(mono)
        if len(live_runs.by_no) >= self.env.settings.max_live and live_runs.idle:
            self._make_room(now)
        if not self.stopping and sources.ticks.have_come(now) and not self.env.backoff.is_on():
            self.intake.tick()

    def _make_room(self, now: int) -> None:
        """Memory is full and others wait: those that have waited longest leave at once."""
        surplus = len(self.live_runs.by_no) - self.env.settings.max_live
        if self.sources.claims.stale and not self.stopping and self.intake.can_claim():
            surplus += self.env.settings.claim
        self.live_runs.park_longest(surplus, now, self.committer.has_unknown_grants)

    # -- deliver

    def _advance(self, now: int) -> None:
        """Bring ready runs forward, each for a slice, so that none holds up the others or the commit."""
        clock, live_runs, settings = self.env.clock.monotonic, self.live_runs, self.env.settings
        ready, touched = live_runs.ready, live_runs.touched
        end = clock() + settings.turn
        events = 0
        for _ in range(len(ready)):
            no, live = ready.popitem(last=False)
            if live.broken:
                fresh = None if self.env.backoff.is_on() else self.committer.reload(live)
                if fresh is None:
                    if live_runs.by_no.get(no) is live:
                        ready[no] = live
                    continue
                live = fresh
            touched[no] = live
            if live.advance(now, settings.slice):
                ready[no] = live
            else:
                self._after_advance(live)
            events += len(live.change.records)
            if events > settings.max_events or clock() > end:
                return

    def _after_advance(self, live: LiveRun) -> None:
        if live.state.released:
            return
        if live.probe is Probe.WANTED:
            self.probation.add(live)
            return
        if live is self.probation.probed:
            live.probe_is_over()
        due = live.code.next_due()
        if due is not None:
            self.live_runs.due.set(live.row.no, due)
        if live.is_idle():
            self.live_runs.waits(live)

    def _probe(self, now: int) -> None:
        live = self.probation.next()
        if live is not None:
            live.announce_probe(now)
            self.live_runs.touched[live.row.no] = live

    # -- commit, then act

    def _commit(self) -> None:
        """Commit all that is new in one transaction, then hand over and tell. Nothing leaves before."""
        live_runs, handover, claims = self.live_runs, self.handover, self.sources.claims
        touched = live_runs.take_touched()
        handover.take_back(touched)
        if not self.stopping:
            handover.ask_elsewhere(touched)
        changes = [(live, live.state.take_change()) for live in touched.values() if live.change]
        rich = [change for _, change in changes if not change.is_plain]
        if self.intake.reaches_listeners(rich) or any(change.children or change.messages for change in rich):
            claims.stale = True
        claim = self._room_for_claims()
        if not changes and not (claim and self.intake.can_claim()):
            handover.hand_over(touched, begins=not self.stopping)
            return
        try:
            committed = self.committer.commit(touched, changes, claim)
        except Fenced:
            for live, change in changes:
                live.change.put_back(change)  # what steps have said is told to whoever owns them now
            self._fenced()
            return
        if committed is None:
            return
        if self.env.reporter.is_on:
            self.env.reporter.committed(changes, committed.claimed, self.env.clock.monotonic() - self.committer.began)
        handover.hand_over(touched, begins=not self.stopping)
        probed = self.probation.probed
        if probed is not None and probed.row.no in touched and self.probation.is_probing():
            live_runs.make_ready(probed)
        for one in sorted(committed.claimed, key=lambda c: c.row.created_at - c.row.priority * PRIORITY_HEAD_START):
            live_runs.take_over(one)
        if claim:
            claims.claimed(claim, len(committed.claimed), alone=not changes)
        self.announcer.committed(changes, committed.emitted)

    def _room_for_claims(self) -> int:
        if not self.sources.claims.stale or not self._has_room():
            return 0
        return min(self.env.settings.claim, self.env.settings.max_live - len(self.live_runs.by_no))

    # -- when others took this worker for dead

    def _unless_fenced(self, action: Callable[[], None]) -> None:
        try:
            action()
        except Fenced:
            self._fenced()

    def _fenced(self) -> None:
        """Others took this worker for dead. Nothing was written; begin again as a new one."""
        logger.warning("worker %s was taken for dead; going on as a new worker", self.me.worker)
        self.env.membership.fenced()
        self.live_runs.drop_all()
        self._register_again()

    def _register_again(self) -> bool:
        """Register as a new worker, as soon as the store allows it."""
        if self.env.backoff.is_on():
            return False
        try:
            self.env.membership.register(self.sources.ticks.names)
        except StoreError as error:
            self.env.backoff.failed("registering", error)
            return False
        self.sources.look_at(Topic.INBOX)
        return True
