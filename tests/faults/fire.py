"""Everything at once, under fire.

Clients start runs of every kind, send, pause, resume, cancel, retry and fork, while workers are killed, frozen and
stopped at random. Afterwards the store is held against the ledger that steps and clients have written beside it.
"""

from __future__ import annotations

import datetime as dt
import itertools
import json
import random
import signal
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import everything
from world import World, open_world

from holdfast import Schedule, every
from holdfast.core import events as ev
from holdfast.ports import RunQuery
from warm_python import Process

WAYS = {
    "SIGKILL": ("kill",),
    "SIGSTOP for 2, 12 or 14 s": ("stop",),
    "SIGTERM": ("term",),
    "all of them": ("kill", "kill", "kill", "stop", "term"),
}
TICK = dt.timedelta(milliseconds=500)
LISTENERS = 2
SENDERS = 3
STEPS = {"add", "double", "square", "work", "flaky", "total", "say", "act", "undo", "refuse", "pass_if_open"}
NEVER = float("inf")
FAULTS = {
    "lost": "acknowledged, and not in the store",
    "wrong": "another result, order, number or end than it should be",
    "repeated": "steps begun after their own outcome was recorded",
    "unasked": "steps begun while their run was paused",
    "unsaid": "items that a step streamed, and nobody can read",
    "stuck": "runs that did not end",
}


@dataclass(frozen=True)
class Plan:
    """One campaign. The same plan does the same again, as far as the machine's own timing lets it."""

    seed: int
    way: str
    seconds: float
    stops: tuple[float, ...] = (2, 12, 14)
    words: int = 40

    def __str__(self) -> str:
        return f"seed {self.seed}, {self.way}, {self.seconds:g} s"


@dataclass
class Verdict:
    """What was tried, and everything that is wrong, a line each."""

    figures: Counter[str] = field(default_factory=Counter)
    lost: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    repeated: list[str] = field(default_factory=list)
    unasked: list[str] = field(default_factory=list)
    unsaid: list[str] = field(default_factory=list)
    stuck: list[str] = field(default_factory=list)

    def faults(self) -> dict[str, list[str]]:
        return {name: getattr(self, name) for name in FAULTS}


# -- the campaign


class Fire:
    """Signals for workers, and new workers for those that are gone."""

    def __init__(self, world: World, plan: Plan, figures: Counter[str]) -> None:
        self.world = world
        self.plan = plan
        self.figures = figures
        self.chance = random.Random(f"fire {plan.seed} {plan.way}")
        self.workers = [world.worker() for _ in range(self.chance.randint(2, 5))]
        self.frozen: dict[Process, float] = {}
        self.leaving: list[Process] = []

    def burn(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        strike = 0.0
        while time.monotonic() < until:
            self.thaw(time.monotonic())
            if time.monotonic() >= strike:
                self.strike()
                strike = time.monotonic() + self.chance.uniform(0.2, 1.2)
            time.sleep(0.01)
        self.thaw(float("inf"))

    def thaw(self, now: float) -> None:
        for process, due in list(self.frozen.items()):
            if due <= now:
                process.send_signal(signal.SIGCONT)
                del self.frozen[process]

    def strike(self) -> None:
        how = self.chance.choice(WAYS[self.plan.way])
        number = self.chance.randrange(len(self.workers))
        victim = self.workers[number]
        if victim in self.frozen or (how != "kill" and victim.pid not in self.world.pids()):
            return  # what a signal does to a process that doesn't listen yet is the system's business
        if how == "stop":
            if len(self.frozen) + 1 < len(self.workers):  # somebody has to be left to go on
                victim.send_signal(signal.SIGSTOP)
                self.frozen[victim] = time.monotonic() + self.chance.choice(self.plan.stops)
                self.figures["stops"] += 1
            return
        if how == "kill":
            self.world.kill(victim)
            self.figures["kills"] += 1
        else:
            victim.send_signal(signal.SIGTERM)
            self.leaving.append(victim)
            self.figures["terms"] += 1
        self.workers[number] = self.world.worker()

    def ends(self) -> Iterator[tuple[int, int]]:
        """Workers that ended in a way nobody asked for: pid and exit code."""
        for process in self.leaving:
            if process.wait(60):
                yield process.pid, process.returncode
        for process in self.workers:
            if process.poll() is not None:
                yield process.pid, process.returncode


def run_campaign(folder: Path, plan: Plan, settle: float = 180) -> Verdict:
    with open_world(folder, everything) as world:
        verdict = Verdict()
        fire = Fire(world, plan, verdict.figures)
        world.until(world.pids, 60, "the first worker")
        app = world.app
        app.schedules.put(Schedule(every(TICK), name="ticks", missed="all", overlap="allow"), everything.tick)
        listeners = [f"listens-{number}" for number in range(LISTENERS)]
        for run_id in listeners:
            everything.listens.options(id=run_id).start(SENDERS * plan.words, [])
        calls = [f"play({plan.seed * 10 + n}, {plan.seconds})" for n in range(2)]
        calls += [f"send({n}, {listeners}, {plan.words}, {plan.seconds})" for n in range(SENDERS)]
        calls += [f"meddle({plan.seed}, {plan.seconds})"]
        clients = [world.python("-c", f"import everything; everything.{call}") for call in calls]
        fire.burn(plan.seconds)
        for call, client in zip(calls, clients, strict=True):
            if client.wait(120):
                verdict.wrong.append(f"client {call} ended with {client.returncode}")
        app.schedules.pause("ticks")
        try:
            world.until(lambda: settled(world), settle)
        except AssertionError:
            verdict.stuck += [f"{r.id} is {r.status} {r.reason}" for r in app.runs(limit=10_000) if is_open(r)]
        verdict.wrong += [f"worker {pid} ended with {code}" for pid, code in fire.ends()]
        check(world, verdict, listeners, plan)
        if verdict.figures["kills"] == 0 and "kill" in WAYS[plan.way]:
            verdict.wrong.append("nobody was killed: the campaign proves nothing")
        return verdict


def is_open(run: Any) -> bool:
    return not run.status.is_final


def settled(world: World) -> bool:
    """Whether every run has ended; what waits for a person is helped on."""
    for run in world.app.runs(limit=10_000):
        if run.status == "PAUSED":
            run.resume()
        elif run.id.startswith("shut-") and run.status == "FAILURE":
            everything.gate(run.id).touch()
            run.retry()
    time.sleep(0.2)
    return world.is_done() and not any(
        run.status == "FAILURE" for run in world.app.runs(limit=10_000) if run.id.startswith("shut-")
    )


# -- the ledger against the store


class Ledger:
    def __init__(self, file: Path) -> None:
        self.begun: dict[str, list[int]] = defaultdict(list)  # times, by run and command
        self.ended: set[str] = set()
        self.undone: dict[str, list[str]] = defaultdict(list)
        self.expected: dict[str, Any] = {}
        self.forked: dict[str, str] = {}
        self.cancelled: set[str] = set()
        self.counts: Counter[str] = Counter()
        for line in file.read_text().splitlines():
            self._read(*json.loads(line))

    def _read(self, at: int, pid: int, what: str, run: str, *facts: Any) -> None:
        self.counts[what] += 1
        if what in ("begin", "end"):
            key, step, about = facts
            name = key.rpartition(":")[0]  # run and command; the rest tells runs of one id apart
            if what == "begin":
                self.begun[name].append(at)
                if step == "undo" and about not in self.undone[run]:
                    self.undone[run].append(about)
            else:
                self.ended.add(name)
        elif what == "started":
            self.expected[run] = facts[1]
        elif what == "forked":
            self.forked[run] = facts[0]
        elif what == "cancelling":
            self.cancelled.add(run)


def check(world: World, verdict: Verdict, listeners: list[str], plan: Plan) -> None:
    ledger = Ledger(world.ledger_file)
    runs = {run.id: run for run in world.app.runs(limit=100_000)}
    try:
        world.check_histories()
    except AssertionError as error:
        verdict.wrong.append(str(error))
    longest = max(plan.stops) if "stop" in WAYS[plan.way] else 0.0
    for run_id, run in runs.items():
        check_steps(world, verdict, ledger, run_id, longest)
        if run.status == "STUCK":
            verdict.stuck.append(f"{run_id}: {run.reason}")
    for run_id in [*ledger.expected, *ledger.forked, *listeners]:
        if run_id not in runs:
            verdict.lost.append(f"{run_id} was acknowledged and is not in the store")
    for run_id, expected in ledger.expected.items():
        if run_id in runs:
            check_result(verdict, ledger, runs[run_id], expected)
    for run_id, source in ledger.forked.items():
        if run_id in runs and source in ledger.expected:
            check_result(verdict, ledger, runs[run_id], ledger.expected[source])
    for run_id in listeners:
        if run_id in runs:
            check_words(verdict, runs[run_id], plan)
    check_ticks(world, verdict)
    check_events(verdict, runs)
    check_streams(verdict, runs)
    check_compensations(verdict, ledger, runs)
    figures = verdict.figures
    figures["runs"] = len(runs)
    figures["acknowledged starts"] = len(ledger.expected)
    figures["executions"] = ledger.counts["begin"]
    figures["hooks"] = ledger.counts["sent"]
    figures["forks"] = len(ledger.forked)
    figures["controls"] = sum(ledger.counts[what] for what in ("paused", "resumed", "cancelling", "retried"))


def check_steps(world: World, verdict: Verdict, ledger: Ledger, run_id: str, longest_stop: float = 0.0) -> None:
    """One outcome each (see `check_histories`), which somebody executed, and nothing begun after it; and nothing begun
    while the run was paused. A pause bears the time at which its turn began: a worker that is frozen before it commits has
    not paused anything yet."""
    grace = GRACE + longest_stop * 1_000_000
    events = world.events(run_id)
    anew = [event.ts for event in events if isinstance(event, ev.AttemptStarted)]
    held_since = 0
    holds: list[tuple[int, int]] = []
    begun: list[tuple[str, int]] = []
    for event in events:
        if isinstance(event, ev.RunPaused):
            held_since = event.ts
        elif isinstance(event, ev.RunResumed) and held_since:
            holds.append((held_since, event.ts))
            held_since = 0
        elif isinstance(event, ev.StepCompleted | ev.StepFailed):
            verdict.figures["steps recorded"] += 1
            name = f"{run_id}:{event.cmd}"
            times = ledger.begun.get(name, [])
            begun += [(f"{name} {event.name}", at) for at in times]
            # A fork has outcomes of the run it comes from, and a step that is tried anew keeps its key.
            if not times and event.name in STEPS and run_id not in ledger.forked and not anew:
                verdict.wrong.append(f"{name} {event.name} has an outcome, and nobody has executed it")
            if isinstance(event, ev.StepCompleted) and times and name not in ledger.ended:
                verdict.wrong.append(f"{name} {event.name} has a result, and no execution of it has ended")
            failed = isinstance(event, ev.StepFailed)
            until = next((at for at in anew if at > event.ts), NEVER) if failed else NEVER
            late = [at for at in times if event.ts < at < until]
            if late:
                after = ", ".join(f"{(at - event.ts) / 1e6:.3f} s" for at in late)
                verdict.repeated.append(f"{name} {event.name} began {after} after its outcome was recorded")
    for (name, at), (since, until) in itertools.product(begun, holds):
        if since + grace < at < until:
            verdict.unasked.append(f"{name} began {(at - since) / 1e6:.3f} s after its run was paused")


GRACE = 1_000_000
"""What is being handed over while a pause is committed may still begin; a second is long for that on any machine."""


def check_result(verdict: Verdict, ledger: Ledger, run: Any, expected: Any) -> None:
    if is_open(run):
        return  # told as stuck
    if run.status == "CANCELLED" and run.id in ledger.cancelled:
        verdict.figures["cancelled"] += 1
        return
    found = run.result(timeout=0, propagate=False)
    if isinstance(found, BaseException):
        found = type(found).__name__ if expected == "SagaFailed" else repr(found)
    elif run.workflow == "errands":
        found = found["last"]
    if found != expected:
        verdict.wrong.append(f"{run.id} came to {found!r} and should have come to {expected!r}")
    verdict.figures[f"{run.id.partition('-')[0]} results"] += 1


def check_words(verdict: Verdict, run: Any, plan: Plan) -> None:
    """Each word once, those of one sender in the order in which they were sent."""
    if is_open(run):
        return
    heard = [tuple(word) for word in run.result(timeout=0)]
    for sender in range(SENDERS):
        numbers = [number for by, number in heard if by == sender]
        if numbers != list(range(plan.words)):
            verdict.wrong.append(f"{run.id} heard from sender {sender}: {numbers}")


def check_ticks(world: World, verdict: Verdict) -> None:
    rows = world.app.store.runs(RunQuery(schedule="ticks", limit=100_000))
    ticks = sorted(dt.datetime.fromisoformat(row.id.partition("@")[2]) for row in rows)
    verdict.figures["ticks"] = len(ticks)
    gaps = [f"{a} and {b}" for a, b in itertools.pairwise(ticks) if b - a != TICK]
    if gaps or not ticks:
        verdict.wrong.append(f"ticks are missing or doubled between {gaps}")


def check_events(verdict: Verdict, runs: dict[str, Any]) -> None:
    """One run of the handler for each domain event."""
    handled = Counter(run.result(timeout=0) for run in runs.values() if run.workflow == "on_made" and not is_open(run))
    makers = [run.id for run in runs.values() if run.workflow == "makes" and run.status == "SUCCESS"]
    verdict.figures["domain events"] = len(makers)
    verdict.wrong += [
        f"the event of {run_id} was handled {handled[run_id]} times" for run_id in makers if handled[run_id] != 1
    ]


def check_streams(verdict: Verdict, runs: dict[str, Any]) -> None:
    """Numbers without gaps; what each execution said from its beginning on; one said all of it."""
    for run in runs.values():
        if run.workflow != "talks" or run.status != "SUCCESS":
            continue
        items = list(run.stream())
        verdict.figures["streamed items"] += len(items)
        if [item.number for item in items] != list(range(1, len(items) + 1)):
            verdict.wrong.append(f"the stream of {run.id} has numbers {[item.number for item in items]}")
        said: dict[int, list[int]] = defaultdict(list)
        for item in items:
            said[item.attempt].append(item.item)
        whole = list(range(run.result(timeout=0)))
        if any(words != whole[: len(words)] for words in said.values()):
            verdict.wrong.append(f"the stream of {run.id} is {dict(said)}")
        elif whole not in said.values():
            verdict.unsaid.append(f"the stream of {run.id} is {dict(said)}, of {whole}")


def check_compensations(verdict: Verdict, ledger: Ledger, runs: dict[str, Any]) -> None:
    for run in runs.values():
        if run.workflow == "trip" and run.status == "FAILURE":
            verdict.figures["compensated sagas"] += 1
            if ledger.undone[run.id] != everything.UNDONE:
                verdict.wrong.append(f"{run.id} was undone as {ledger.undone[run.id]}")
