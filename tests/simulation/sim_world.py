"""Several engines on one store, turned by one seeded generator of random numbers on one thread: it decides who is turned
next, what a call of the store does, which hints arrive, who crashes or freezes, and what time it is.

At every call that an engine makes of its store, its executor or its notifier the others may go on before it gets its
answer, so that their turns interleave as those of processes do.
"""

from __future__ import annotations

import copy
import itertools
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from types import SimpleNamespace
from typing import Any

from sim_parts import SeamStore, SimulatedClock, SimulatedExecutor, SimulatedNotifier
from sim_programs import (
    NARROW,
    NEWER,
    SAID,
    Fails,
    Generator,
    Op,
    events_of,
    expected,
    hooks_of,
    make_app,
    matches,
)

from holdfast import App, Schedule, every
from holdfast.api.client import Client
from holdfast.api.options import StartOptions
from holdfast.api.reading import Which
from holdfast.api.schedules import Schedules
from holdfast.core import events as ev
from holdfast.engine.arrivals import Arrival, DeclaredDead, Hint, InboxHint, Report, Stop, Wake
from holdfast.engine.engine import Engine
from holdfast.engine.environment import Environment
from holdfast.engine.identity import Identity
from holdfast.engine.opening import BEFORE_THE_CODE
from holdfast.engine.puller import Puller
from holdfast.engine.queues import Queues
from holdfast.engine.settings import Settings
from holdfast.errors import Fenced, RunError, StoreBusyError, StoreError, StoreUnavailableError
from holdfast.ports import FINAL, Attempt, Change, Committed, RunQuery, RunRow, Status, WorkerKind
from holdfast.stores.sqlite import SqliteStore
from holdfast.testing.replaying import replay

LEASE, BEAT = 10.0, 2.0
PROGRAMS = 12
"""So many in one world."""
PATIENCE = 600.0
"""Simulated seconds after the last trouble within which every run has to end."""
ELSEWHERE = 0.3
"""The share of worlds in which engines leave all steps to executors."""
SCHEDULED = 0.5
"""The share of worlds with a schedule."""
TICK = 60
"""Seconds between two of its ticks."""
BUSY = 40_000
"""So many things don't happen in that time, unless an engine turns without anything to do."""
APPS = {build: make_app(build) for build in ("one", "two")}
STEP_ENDS = (ev.StepCompleted, ev.StepFailed)
OUTCOMES = (*STEP_ENDS, ev.StepCancelled, ev.TimerFired, ev.ChildOutcome)


_ALL = RunQuery(limit=100_000)
_STUCK = RunQuery(statuses=[Status.STUCK], limit=100_000)


CAUSE = re.compile(r"(\d+)[a-z]")
"""The cause of a command is in its name."""


class Crash(BaseException):
    """The process of an engine is gone, wherever it was."""


class Violation(BaseException):
    """A promise was broken. No engine can catch it."""


# -- who is there


class Host:
    """One process: an engine and its executor, until it crashes or stops; or only an executor, of attempts of others."""

    def __init__(self, world: World, number: int, build: str, pulls: bool = False) -> None:
        self.world = world
        self.number = number
        self.app: App = APPS[build]
        self.build = build
        self.workers: list[str] = []
        self.is_gone = False
        self.is_stopping = False
        self.turns = 0  # that are on the stack
        self.is_asking = False  # whether it is alive; its other threads wait for the answer
        self.frozen_until = 0.0
        self.arrivals: list[Arrival] = []
        self.executor = SimulatedExecutor(world, self)
        settings = Settings(lease=LEASE, beat=BEAT, max_live=world.max_live, claim=world.claim)
        self.pulls = pulls
        me = Identity("", build, isolates=False, queues=frozenset([""] if pulls or not world.elsewhere else []))
        env: Any = Environment(
            self.app.definitions, SeamStore(world, self), self.executor, SimulatedNotifier(world, self), world.clock, me,
            settings, self._new_id, WorkerKind.EXECUTOR if pulls else WorkerKind.ENGINE,
        )  # fmt: skip
        self.engine: Any = Puller(env, Queues(env, world.room)) if pulls else Engine(env)
        self.wakes_at = 0.0
        self.due: int | None = None
        self.beats_at = 0.0
        self._last = 0

    def __repr__(self) -> str:
        return f"{'X' if self.pulls else 'E'}{self.number}"

    def _new_id(self) -> str:
        self.workers.append(f"{self}.{len(self.workers)}")
        return self.workers[-1]

    def start(self) -> None:
        self.engine.start("")
        self.engine.env.executor.start(
            self.arrivals.append,
            lambda attempt, kind, value: self.arrivals.append(Report(attempt, kind, value)),
            self._may_begin,
        )
        self.beats_at = self.world.clock.monotonic() + BEAT
        self._last = self.world.store.now()

    def _may_begin(self) -> bool:
        self.is_asking = True
        try:
            return self.engine.env.membership.may_begin(lambda worker: self.arrivals.append(DeclaredDead(worker)))
        finally:
            self.is_asking = False

    def is_up(self) -> bool:
        return not self.is_gone and self.world.clock.monotonic() >= self.frozen_until

    def may_turn(self) -> bool:
        return self.is_up() and not self.turns

    def is_ready(self) -> bool:
        clock = self.world.clock
        return bool(self.arrivals) or clock.monotonic() >= self.wakes_at or (self.due or 2**62) <= clock.now()

    def turn(self) -> None:
        arrivals, self.arrivals[:] = list(self.arrivals), []
        wake = self.engine.turn(arrivals)
        if wake is None:
            self.engine.close()
            self.world.leave(self)
        else:
            self.sleep(wake)

    def sleep(self, wake: Wake) -> None:
        self.wakes_at = 0.0 if wake.at_once else self.world.clock.monotonic() + wake.seconds
        self.due = min((moment for moment in (wake.due, wake.tick) if moment is not None), default=None)

    def beat(self) -> None:
        membership = self.engine.env.membership
        worker = membership.me.worker
        self.beats_at = self.world.clock.monotonic() + BEAT
        try:
            if not membership.beat():
                self.arrivals.append(DeclaredDead(worker))
        except StoreError:
            pass
        self._last = membership.gaps.check(self._last, BEAT)


# -- what was begun


@dataclass
class Begun:
    host: Host
    worker: str
    time: int
    end: str = ""


class Ledger:
    """Every beginning of every attempt, and what became of it."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.begun: dict[tuple[str, str, int], list[Begun]] = {}
        self._steps: dict[tuple[str, str], str] = {}

    def begins(self, host: Host, attempt: Attempt) -> None:
        world, store = self._world, self._world.store
        worker = host.engine.me.worker
        row = store.get(attempt.run_id)
        history = [ev.from_json(payload) for payload in store.payloads(attempt.run_id)]
        what = f"{attempt.step} {attempt.cmd} of {attempt.run_id}, attempt {attempt.number}, on {worker}"
        if host.pulls:
            self._begins_elsewhere(host, attempt, row, history, what)
            return
        if row is None or row.status in (*FINAL, Status.PAUSED, Status.STUCK):
            raise Violation(f"{what} begins though its run is {row and row.status}")
        if row.owner != worker:
            raise Violation(f"{what} begins though its run belongs to {row.owner}")
        ended = [e for e in history if isinstance(e, (*STEP_ENDS, ev.StepCancelled)) and e.cmd == attempt.cmd]
        cause = int(CAUSE.findall(attempt.cmd)[-1])
        if cause > len(history):
            raise Violation(f"{what} begins before what led to it is committed")
        if ended:
            raise Violation(f"{what} begins after its outcome was recorded: {ended[0]}")
        tried = [e for e in history if isinstance(e, ev.StepRetrying) and e.cmd == attempt.cmd]
        if any(e.attempt >= attempt.number for e in tried):
            raise Violation(f"{what} begins after that attempt has failed")
        key = (attempt.run_id, attempt.cmd, attempt.number)
        self._steps[attempt.run_id, attempt.cmd] = attempt.step
        earlier = self.begun.setdefault(key, [])
        alive = {one.id for one in store.workers()}
        for number, one in enumerate(earlier):
            if attempt.step == "once":
                raise Violation(f"{what} begins though it had begun on {one.worker} and is executed at most once")
            if one.host.is_gone or one.end in ("lost", "interrupted"):
                continue
            was_elsewhere = one.host is not host or any(other.host is not host for other in earlier[number + 1 :])
            if one.worker not in alive and was_elsewhere and (one.end or one.host is not host):
                continue
            if one.host is not host and any(e.ts >= one.time and isinstance(e, ev.RunPaused) for e in history):
                continue  # it was let go while that one executed
            raise Violation(f"{what} begins though {one.worker} had begun it, which {one.end or 'still executes it'}")
        earlier.append(Begun(host, worker, world.clock.now()))
        if "narrow" in (attempt.step, attempt.workflow.partition("_")[0]):
            self._check_limits(alive)

    def _check_limits(self, alive: set[str]) -> None:
        """What is under way of that which is limited. What was cancelled, or is done elsewhere meanwhile, no longer counts;
        nor does what a worker does that all others take for dead."""
        under_way = {
            (run_id, cmd)
            for (run_id, cmd, _), begun in self.begun.items()
            if any(not one.end and not one.host.is_gone and one.worker in alive for one in begun)
            and self._steps.get((run_id, cmd)) == "narrow"
            and not self._has_ended(run_id, cmd)
        }
        runs = [
            row
            for row in self._world.store.runs(_ALL)
            if row.workflow == "narrow_program"
            and row.status in (Status.RUNNING, Status.WAITING)
            and row.owner in alive
        ]
        begun_runs = [row for row in runs if len(self._world.store.payloads(row.id)) > 1]
        for what, found in (("steps", under_way), ("runs", begun_runs)):
            if len(found) > NARROW:
                raise Violation(f"{len(found)} {what} are under way at once, and {NARROW} may be: {found}")

    def _has_ended(self, run_id: str, cmd: str) -> bool:
        history = map(ev.from_json, self._world.store.payloads(run_id))
        return any(isinstance(e, (*STEP_ENDS, ev.StepCancelled)) and e.cmd == cmd for e in history)

    def _begins_elsewhere(
        self, host: Host, attempt: Attempt, row: RunRow | None, history: list[ev.AnyEvent], what: str
    ) -> None:
        """An executor begins what it has claimed. That the run has ended or dropped the step meanwhile it learns later."""
        store = self._world.store
        held = host.engine.inflight.get(attempt.token)
        if held is None:
            raise Violation(f"{what} begins though nobody has claimed it")
        there = {one.token: one.worker for one in store.attempts(attempt.run_id)}
        if there.get(held.token, held.worker) != held.worker:
            raise Violation(f"{what} begins though it was claimed by {there[held.token]}")
        if int(CAUSE.findall(attempt.cmd)[-1]) > len(history):
            raise Violation(f"{what} begins before what led to it is committed")
        ended = [e for e in history if isinstance(e, STEP_ENDS) and e.cmd == attempt.cmd]
        if ended:
            raise Violation(f"{what} begins after its outcome was recorded: {ended[0]}")
        earlier = self.begun.setdefault((attempt.run_id, attempt.cmd, attempt.number), [])
        alive = {one.id for one in store.workers()}
        for one in earlier:
            if attempt.step == "once":
                raise Violation(f"{what} begins though it had begun on {one.worker} and is executed at most once")
            if not (one.host.is_gone or one.end in ("lost", "interrupted") or one.worker not in alive):
                raise Violation(f"{what} begins though {one.worker} had begun it, which {one.end or 'executes it'}")
        earlier.append(Begun(host, held.worker, self._world.clock.now()))

    def ended(self, host: Host, attempt: Attempt, how: str) -> None:
        own = [one for one in self.begun[attempt.run_id, attempt.cmd, attempt.number] if one.host is host]
        own[-1].end = how


# -- what is asked for


@dataclass
class Root:
    """A run that a client has started."""

    id: str
    op: Op
    last: int
    workflow: str = "program"
    is_started: bool = False
    is_cancelled: bool = False
    is_paused: bool = False
    retries: int = 0
    hooks: list[str] = field(default_factory=list)
    events: list[str] = field(default_factory=list)


class World:
    """One seed is one world: the same seed, the same trace and the same histories."""

    def __init__(self, seed: int, programs: int = PROGRAMS) -> None:
        self.seed = seed
        self.chance = chance = Random(seed)
        self.trace: list[str] = []
        self.clock = SimulatedClock(chance.random, chance.choice((0.0, 0.00002, 0.002)))
        self.store = SqliteStore("simulated", ":memory:", self.clock)
        self.ledger = Ledger(self)
        self.max_live = chance.choice((3, 10_000))
        self.claim = chance.choice((1, 3, 200))
        self.client = Client(APPS["two"].definitions, self.store, SimulatedNotifier(self, None))
        self.hosts: list[Host] = []
        self.hints: list[tuple[Host, Hint | InboxHint]] = []
        self.late: list[tuple[Host, Callable[[], Any]]] = []  # commits that nobody has heard of again
        self.depth = 0
        self.acts = 0
        self.kept: dict[str, list[bytes]] = {}  # the histories, at the end
        self._numbers = itertools.count(1)
        self._gone: list[Host] = []
        # Each world has troubles of its own: all at once hide each other.
        often = lambda *shares: chance.choice((0.0, *shares))
        self.crashes = often(0.0005, 0.003)
        self.failures = often(0.005, 0.03)
        self.pauses = often(0.01, 0.1)
        self.freezes = often(0.001, 0.004)
        self.lost_hints = often(0.1, 0.5, 1.0)
        self.jumps = often(0.0, 0.001)
        self.losses = often(0.0, 0.02)
        self.orders = often(0.01, 0.06)
        self.builds = chance.choice((["one"], ["one"], ["one", "two"]))
        self.may_be_stuck = ("lost",) if len(self.builds) == 1 else ("lost", "unknown")
        self.slow = often(0.1, 0.4)
        self.is_quiet = False
        # By a chance of its own, so that the other worlds stay as they are.
        apart = Random(f"elsewhere {seed}")
        self.elsewhere = apart.random() < ELSEWHERE
        self.room = apart.choice((1, 4, 100))
        self.has_schedule = apart.random() < SCHEDULED
        self.first_tick = 0
        self._emissions = itertools.count(1)
        generator = Generator(chance)
        self.roots = [self._root(number, *generator.program()) for number in range(programs)]

    def _root(self, number: int, op: Op, last: int) -> Root:
        root = Root(f"r{number}", op, last)
        if len(self.builds) > 1 and self.chance.random() < 0.3:
            root.workflow = NEWER
        root.hooks = [f"{name} {generation}" for name in hooks_of(op) for generation in range(last + 1)]
        root.events = [f"{name} {generation}" for name in events_of(op) for generation in range(last + 1)]
        return root

    def note(self, what: str) -> None:
        self.trace.append(what)

    # -- the seams

    def at_seam(self, host: Host | None, name: str) -> None:
        """An engine asks for something: it may die there, or stand still while others go on."""
        if host is None:
            return
        if not self.is_quiet and not host.is_gone:
            luck = self.chance.random()
            if luck < self.crashes:
                self.note(f"{host} crashes at {name}")
                self.crash(host)
            elif luck < self.crashes + self.freezes and self.depth < 2:
                self.freeze(host, name)
            elif luck < self.crashes + self.freezes + self.pauses and self.depth < 2:
                self.play(self.chance.randint(1, 6))
        if host.is_gone:
            raise Crash

    def at_store(self, host: Host, name: str, args: tuple[Any, ...], call: Callable[[], Any]) -> Any:
        self.at_seam(host, name)
        if name == "settle":
            self._settle(host)
        luck = 1.0 if self.is_quiet else self.chance.random()
        if luck < self.failures / 2:
            self.note(f"{host} {name} fails")
            raise self.chance.choice((StoreBusyError, StoreUnavailableError))("the store is away")
        if luck < self.failures:
            if name == "commit" and self.chance.random() < 0.5:
                self.note(f"{host} commit is not heard of again")
                worker, changes, *rest = copy.deepcopy(args)
                self.late.append((host, lambda: self._commit(worker, changes, *rest)))
            else:
                self.note(f"{host} {name} fails after it was done")
                _ = self._commit(*args) if name == "commit" else call()
                if name == "register":
                    self.store.release_lock(args[0].id)
            raise StoreUnavailableError("the store is away")
        answer = self._commit(*args) if name == "commit" else call()
        self.at_seam(host, f"{name} done")
        return answer

    def _commit(self, worker: str, changes: Sequence[Change], claim: int, names: Sequence[str]) -> Committed:
        owners = {row.no: row.owner for row in self.store.runs(_ALL)} if changes else {}
        committed = self.store.commit(worker, changes, claim, names)
        for change in changes:
            if owners[change.no] != worker:
                raise Violation(f"{worker} has written run number {change.no} of {owners[change.no]}")
        return committed

    def _settle(self, host: Host) -> None:
        for late in [late for late in self.late if late[0] is host]:
            self.late.remove(late)
            if self.chance.random() < 0.5:
                self._happen(late)

    def _happen(self, late: tuple[Host, Callable[[], Any]]) -> None:
        self.note(f"{late[0]} commit happens after all")
        try:
            late[1]()
        except (Fenced, StoreError):
            self.note("or not")

    def hint(self, hint: Hint | InboxHint) -> None:
        for host in self.hosts:
            luck = self.chance.random()
            if luck < self.lost_hints:
                continue
            if luck < self.lost_hints + 0.2:
                self.hints.append((host, hint))
            if luck > 0.1:
                host.arrivals.append(hint)

    # -- coming and going

    def start_host(self, pulls: bool | None = None) -> None:
        if self.elsewhere and pulls is None:
            missing = [each for each in (False, True) if all(host.pulls != each for host in self.hosts)]
            pulls = self.chance.choice(missing or [False, True])
        host = Host(self, next(self._numbers), self.chance.choice(self.builds), bool(pulls))
        self.note(f"{host} starts ({host.build})")
        self.hosts.append(host)
        host.turns += 1
        try:
            host.start()
        except StoreError:
            self.crash(host)
        except Crash:
            pass
        finally:
            host.turns -= 1

    def crash(self, host: Host) -> None:
        self.leave(host)
        for worker in host.workers:
            self.store.release_lock(worker)  # the kernel does

    def leave(self, host: Host) -> None:
        host.is_gone = True
        if host in self.hosts:
            self.hosts.remove(host)
        self._gone.append(host)

    def freeze(self, host: Host, name: str) -> None:
        """It stands still for longer than its lease, and goes on where it was."""
        seconds = self.chance.choice((1.0, LEASE + 2.0, 3 * LEASE))
        self.note(f"{host} freezes at {name} for {seconds:g} s")
        until = self.clock.monotonic() + seconds
        host.frozen_until = until
        if len(self.hosts) < 2:
            self.start_host()
        for _ in range(400):
            if self.clock.monotonic() >= until:
                break
            self.play(1)
        else:
            self.clock.pass_time(max(0.0, until - self.clock.monotonic()))
        self.note(f"{host} goes on")

    # -- what happens next

    def play(self, actions: int) -> None:
        self.depth += 1
        try:
            for _ in range(actions):
                self.act()
        finally:
            self.depth -= 1

    def act(self) -> None:
        """One thing happens, or time passes until one can."""
        self.acts += 1
        chance = self.chance
        if not self.is_quiet and self._trouble():
            return
        actions = self._actions()
        if not actions:
            self._pass_time()
            return
        action, host, argument = chance.choice(actions)
        try:
            if host is not None:
                host.turns += action == "turn"
            self._do(action, host, argument)
        except Crash:
            pass
        finally:
            if host is not None:
                host.turns -= action == "turn"

    def _actions(self) -> list[tuple[str, Host | None, Any]]:
        actions: list[tuple[str, Host | None, Any]] = []
        mono = self.clock.monotonic()
        for host in self.hosts:
            if not host.is_up():
                continue
            if not host.turns and host.is_ready():
                actions += [("turn", host, None)] * 3
            if mono >= host.beats_at:
                actions += [("beat", host, None)]
            executor = host.executor
            if not host.is_asking:
                actions += [("begin", host, token) for token in itertools.islice(executor.waiting, 2)]
            actions += [("end", host, token) for token, each in executor.executing.items() if each.ends_at <= mono]
        actions += [("hint", None, hint) for hint in self.hints]
        return actions

    def _do(self, action: str, host: Host | None, argument: Any) -> None:
        if host is None:
            self.hints.remove(argument)
            argument[0].arrivals.append(argument[1])
            return
        self.note(f"{host} {action}{'' if argument is None else f' {argument}'}")
        if action == "turn":
            host.turn()
        elif action == "beat":
            host.beat()
        elif action == "begin":
            host.executor.begin(argument, self._seconds())
        elif not self.is_quiet and self.chance.random() < self.losses:
            self.note(f"{host} loses {argument}")
            host.executor.lose(argument)
        else:
            outcome = host.executor.finish(argument)
            if not self.is_quiet and self.chance.random() < 0.05:
                host.arrivals.append(outcome)

    def _seconds(self) -> float:
        if self.chance.random() >= self.slow:
            return 0.0
        return self.chance.choice((0.01, 0.2, 3.0, 15.0))

    def _pass_time(self) -> None:
        mono, now = self.clock.monotonic(), self.clock.now()
        times = [mono + 1.0]
        for host in self.hosts:
            if host.frozen_until > mono:
                times.append(host.frozen_until)
                continue
            if not host.turns:
                times.append(host.wakes_at)
                if host.due is not None:
                    times.append(mono + (host.due - now) / 1_000_000)
            times += [host.beats_at, *(each.ends_at for each in host.executor.executing.values())]
        self.clock.pass_time(max(0.000_01, min(times) - mono))

    def _trouble(self) -> bool:
        chance = self.chance
        luck = chance.random()
        if len(self.hosts) < 1 + self.elsewhere or luck < 0.001:
            if len(self.hosts) < 4:
                self.start_host()
                return True
        elif luck < 0.001 + self.crashes:
            host = chance.choice(self.hosts)
            self.note(f"{host} crashes")
            self.crash(host)
            return True
        elif luck < 0.0015 + self.crashes and len(self.hosts) > 1:
            host = chance.choice(self.hosts)
            self.note(f"{host} is to stop")
            host.arrivals.append(Stop(chance.choice((0.0, 1.0, 20.0))))
            return True
        luck = chance.random()
        if luck < self.freezes:
            host = chance.choice(self.hosts)
            if host.is_up() and not host.turns:
                seconds = chance.choice((1.0, LEASE + 2.0, 3 * LEASE))
                self.note(f"{host} freezes for {seconds:g} s")
                host.frozen_until = self.clock.monotonic() + seconds
                return True
        elif luck < self.freezes + self.jumps:
            seconds = chance.choice((-7200.0, -30.0, 5.0, 40.0, 3600.0))
            if seconds < -30.0 and not self._have_begun():
                seconds = -30.0  # what is to begin at a time of the old clock begins when the new one shows it
            self.note(f"the clock is set by {seconds:g} s")
            self.clock.set_by(seconds)
            return True
        elif luck < self.freezes + self.jumps + self.orders:
            self._order(chance.choice(self.roots))
            return True
        elif self.late and luck > 0.95:
            self._happen(self.late.pop(chance.randrange(len(self.late))))
            return True
        return self._start_a_run(0.03)

    def _have_begun(self) -> bool:
        open_runs = [run.id for run in self.client.runs(_ALL) if run.status not in FINAL]
        return all(
            any(not isinstance(event, BEFORE_THE_CODE) for event in self.client.reader.events(Which(run_id)))
            for run_id in open_runs
        )

    # -- clients

    def _start_a_run(self, share: float) -> bool:
        unborn = [root for root in self.roots if not root.is_started]
        if not unborn or self.chance.random() >= share:
            return False
        self._start(unborn[0])
        return True

    def _start(self, root: Root) -> None:
        self.note(f"client starts {root.id}")
        root.is_started = True
        call = APPS["two"].encode_by_name(root.workflow, (root.op, root.last), {})
        self.client.start(root.workflow, call, StartOptions(id=root.id))

    def _order(self, root: Root) -> None:
        if not root.is_started:
            return
        kinds = ("hook", "hook", "hook", "event", "event", "pause", "resume", "resume", "cancel", "retry")
        kind = self.chance.choice(kinds)
        row = self.client.reader.row(Which(root.id))
        try:
            if kind == "hook":
                if root.hooks:
                    self._answer(root, self.chance.choice(root.hooks))
            elif kind == "event":
                if root.events:
                    self._tell_news(self.chance.choice(root.events))
            elif kind == "cancel":
                if self.chance.random() < 0.3:
                    root.is_cancelled = True
                    self.client.inbox.cancel(Which(root.id))
            elif kind == "retry":
                if row.status in (Status.FAILURE, Status.CANCELLED) and root.retries < 2:
                    root.retries += 1
                    self.client.inbox.retry(Which(root.id))
            elif kind == "pause":
                self.client.inbox.pause(Which(root.id), "")
            elif row.status == Status.PAUSED or row.stuck == "lost":
                self.client.inbox.resume(Which(root.id))
            self.note(f"client: {kind} {root.id}")
        except RunError as error:
            self.note(f"client: {kind} {root.id} is refused: {type(error).__name__}")

    def _answer(self, root: Root, name: str) -> None:
        self.note(f"client answers {name} of {root.id}")
        self.client.hooks.send(Which(root.id), name, f"answer to {name.rpartition(' ')[0]}")

    def _tell_news(self, name: str) -> None:
        self.note(f"client tells news of {name}")
        news = {"name": name, "says": f"news of {name.rpartition(' ')[0]}"}
        self.client.emitter.emit("News", news, f"news {next(self._emissions)}")

    @property
    def _schedules(self) -> Schedules:
        app: Any = SimpleNamespace(
            name="simulated", client=self.client, codec=APPS["two"].codec, encode_by_name=APPS["two"].encode_by_name,
            definitions=SimpleNamespace(declared_schedules=list),
        )  # fmt: skip
        return Schedules(app)

    # -- from the beginning to the end

    def run(self, actions: int = 1_500) -> None:
        """Trouble for a while, then peace until all runs have ended; then everything is looked at."""
        try:
            if self.has_schedule:
                when = Schedule(every(f"{TICK}s"), name="often", missed="all", overlap="allow")
                self._schedules.put(when, "ticked")
                (often,) = self.store.schedules()
                self.first_tick = (often.next_at or 0) // 1_000_000
            while self.acts < actions:
                self.act()
            self._calm_down()
            self._wait_for_the_ends()
            self._check()
            self.kept = {root.id: self.store.payloads(root.id) for root in self.roots}
        finally:
            self.close()

    def close(self) -> None:
        for host in [*self._gone, *self.hosts]:
            for live in host.engine.runs.values():
                live.code.evict()
            if not host.pulls:
                host.engine.live_runs.shared.greenlets.close()
        self.store.close()

    def _calm_down(self) -> None:
        self.note("peace")
        self.is_quiet = True
        self.builds = self.builds[-1:]
        for late in self.late:
            self._happen(late)
        self.late.clear()
        for host in self.hosts:
            host.frozen_until = 0.0
            if host.build not in self.builds:
                host.arrivals.append(Stop(1.0))
        self.start_host(pulls=False)
        if self.elsewhere:
            self.start_host(pulls=True)
        for root in self.roots:
            if not root.is_started:
                self._start(root)

    def _wait_for_the_ends(self) -> None:
        until = self.clock.monotonic() + PATIENCE
        looks_at = 0.0
        for _ in range(BUSY):
            if self.clock.monotonic() >= looks_at:
                looks_at = self.clock.monotonic() + 2.0
                if all([self._is_over(root) for root in self.roots]) and self._are_others_over():
                    return
                if self.clock.monotonic() > until:
                    raise Violation(f"not everything has ended: {self._tell()}")
            self.act()
        raise Violation(f"engines are busy without an end: {self._tell()}")

    def _is_over(self, root: Root) -> bool:
        row = self.client.reader.row(Which(root.id))
        orders = self.store.orders(root.id)
        if row.status in FINAL:
            return "retry" not in orders
        if row.status == Status.PAUSED and not orders:
            self.client.inbox.resume(Which(root.id))
        self._resume_stuck(root.id)
        history = self.client.reader.events(Which(root.id))
        answered = {e.name for e in history if isinstance(e, ev.HookReceived)}
        waiting = [name for name in root.hooks if name not in answered]
        if waiting:  # one at a time, so that each has to be found
            self._answer(root, self.chance.choice(waiting))
        for name in root.events:
            self._tell_news(name)
        for child in self.client.runs(_STUCK):
            self._resume_stuck(child.id)
        return False

    def _are_others_over(self) -> bool:
        """What domain events and ticks have started. No tick comes any more."""
        if self.has_schedule and self._schedules.list():
            self._schedules.delete("often")
        if self.store.arrivals(1):
            return False
        others = [run for run in self.client.runs(_ALL) if run.workflow in ("pinged", "ticked")]
        for run in others:
            self._resume_stuck(run.id)
        return all(run.status in FINAL for run in others)

    def _resume_stuck(self, run_id: str) -> None:
        """A person looks at a run whose workers were lost one after the other. One whose code nobody knew goes on by
        itself."""
        row = self.client.reader.row(Which(run_id))
        if row.status != Status.STUCK:
            return
        if row.stuck not in self.may_be_stuck:
            raise Violation(f"{run_id} is stuck: {row.reason}")
        if row.stuck == "lost" and not self.store.orders(run_id):
            self.client.inbox.resume(Which(run_id))

    def _tell(self) -> str:
        rows = [self.client.reader.row(Which(root.id)) for root in self.roots]
        return ", ".join(
            f"{row.id} {row.status} {row.reason} owner {row.owner}" for row in rows if row.status not in FINAL
        )

    # -- looking at everything

    def _check(self) -> None:
        for root in self.roots:
            self._check_end(root)
        for run in self.client.runs(_ALL):
            self._check_history(run.id)
            self._check_stream(run.id)
        self._check_pings()
        self._check_ticks()
        left = [use for use in self.store.limits(5) if use.in_use or use.waiting]
        if left:
            raise Violation(f"all runs have ended, and slots are left: {left}")

    def _check_end(self, root: Root) -> None:
        row = self.client.reader.row(Which(root.id))
        if row.status == Status.CANCELLED and root.is_cancelled:
            return
        try:
            wanted: Any = expected(root.op)
            status: Status = Status.SUCCESS
        except Fails as fails:
            wanted, status = str(fails), Status.FAILURE
        found, failed = self.client.reader.outcome(row)
        found = str(found) if failed else found
        if row.status != status or not matches(found, wanted):
            raise Violation(
                f"{root.id} ended as {row.status} with {found!r}, not as {status} with {wanted!r}: {root.op}"
            )

    def _results(self, workflow: str) -> list[Any]:
        rows = [self.client.reader.row(Which(run.id)) for run in self.client.runs(_ALL) if run.workflow == workflow]
        return [self.client.reader.outcome(row)[0] for row in rows]

    def _check_pings(self) -> None:
        """Each domain event that a history knows of has started one run, and nothing else has."""
        emitted: set[str] = set()
        for run in self.client.runs(_ALL):
            for event in self.client.reader.events(Which(run.id)):
                if isinstance(event, ev.EventEmitted):
                    emitted.add(event.key)
                elif isinstance(event, ev.StepCompleted):
                    emitted.update(each.key for each in event.emitted)
        found = self._results("pinged")
        if sorted(found) != sorted(emitted):
            raise Violation(f"{sorted(emitted)} were emitted, and runs were started by {sorted(found)}")

    def _check_ticks(self) -> None:
        """One run for each tick from the first on, however the clock was set; those before it come only if the clock was
        set back to before there was a schedule, and then only those that it shows."""
        ticks = sorted(self._results("ticked"))
        if len(ticks) != len(set(ticks)):
            raise Violation(f"ticks are doubled: {ticks}")
        since = [tick for tick in ticks if tick >= self.first_tick]
        if since != [self.first_tick + TICK * number for number in range(len(since))]:
            raise Violation(f"ticks since {self.first_tick} are missing: {since}")

    def _check_stream(self, run_id: str) -> None:
        """Numbers have no gaps. What a workflow says is said once; what a step says is there once and in order."""
        rows = self.store.stream(run_id, 0, 100_000)
        if [row.number for row in rows] != list(range(1, len(rows) + 1)):
            raise Violation(f"the stream of {run_id} has gaps: {[row.number for row in rows]}")
        said: dict[tuple[str, int], list[Any]] = {}
        for row in rows:
            said.setdefault((row.cmd, row.attempt), []).append(APPS["two"].codec.decode(row.item))
        own = [event.cmd for event in self.client.reader.events(Which(run_id)) if isinstance(event, ev.Streamed)]
        for (cmd, attempt), items in said.items():
            wanted = [["before"], ["after"]] if cmd in own else [list(range(n)) for n in range(1, SAID + 1)]
            if items not in wanted:
                raise Violation(f"{cmd} of {run_id}, attempt {attempt}, has streamed {items}")
        missing = {cmd for cmd in own if all(cmd != each for each, _ in said)}
        if missing:
            raise Violation(f"{run_id} has streamed {missing}, and nobody can read it")

    def _check_history(self, run_id: str) -> None:
        row = self.client.reader.row(Which(run_id))
        history = self.client.reader.events(Which(run_id))
        if [event.seq for event in history] != list(range(1, len(history) + 1)):
            raise Violation(f"the history of {run_id} has gaps: {[event.seq for event in history]}")
        cmds = [event.cmd for event in history if isinstance(event, OUTCOMES)]
        twice = {cmd for cmd in cmds if cmds.count(cmd) > 1}
        if twice:
            raise Violation(f"{run_id} has several outcomes of {sorted(twice)}")
        if row.status in FINAL:
            replay(APPS["two"].definitions, row, history, self.store.secret())
