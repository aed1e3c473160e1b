"""A small cluster that is simulated: clients and workers with clocks of their own, wall clocks that are wrong, steps
that are tried again, and the events that all of them send. What really happened is known."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from typing import Any

from holdfast.telemetry import ClusterState, LamportClock

NOW = 2_000_000_000.0
Event = dict[str, Any]
ENDS = {"succeeded": "SUCCESS", "failed": "FAILURE", "cancelled": "CANCELLED", "rejected": "REJECTED"}


@dataclass
class Process:
    """Somebody who sends events. Its wall clock is wrong by `skew` seconds."""

    origin: str
    skew: float
    clock: LamportClock = field(default_factory=LamportClock)

    def send(self, kind: str, time: float, **fields: Any) -> Event:
        return {
            "type": kind, "clock": self.clock.forward(), "timestamp": time + self.skew, "origin": self.origin,
            "hostname": self.origin.partition(":")[0], **fields,
        }  # fmt: skip


@dataclass
class Truth:
    """What became of a step."""

    state: str
    attempt: int
    worker: str | None
    name: str
    args: list[int]
    parent: str | None


@dataclass
class Stream:
    """All events, in the order in which they happened, and the truth by step."""

    events: list[Event]
    steps: dict[str, Truth]


def simulate(seed: int, steps: int = 6, numbered: bool = True) -> Stream:
    """A cluster of some workers. Without `numbered` its events don't say which attempt they are of."""
    random = Random(seed)
    engine = Process("engine:1", random.uniform(-5, 5))
    engine.clock.resume(random.randrange(1000, 5000))
    workers = [Process(f"host{n}:{n}", random.uniform(-3600, 3600)) for n in range(random.randint(1, 3))]
    for worker in workers:
        worker.clock.resume(random.randrange(5000))
    events: list[Event] = []
    truth: dict[str, Truth] = {}
    time = NOW - 10_000
    events += [worker.send("worker-online", time, freq=2.0) for worker in workers]
    run = f"run-{seed}"
    events.append(engine.send("run-started", time, id=run, name="fulfil"))
    for number in range(steps):
        time += random.uniform(0, 10)
        id = f"s{number}"
        parent = random.choice([None, *truth]) if truth else None
        client = Process(f"client:{number}", random.uniform(-60, 60))  # in step with nobody
        client.clock.resume(random.choice([0, random.randrange(20_000)]))
        given: Event = {"name": f"step{number % 3}", "args": [number]}
        if parent is not None:
            given["parent_id"] = parent
        events.append(client.send("step-sent", time, id=id, **given))
        events += _attempts(random, engine, workers, id, time, truth, given, numbered)
        if random.random() < 0.4:
            worker = random.choice(workers)
            events.append(worker.send("worker-heartbeat", time, active=random.randrange(5)))
    events.append(engine.send("run-succeeded", time, id=run))
    if random.random() < 0.5:
        events.append(workers[0].send("worker-offline", time))
    return Stream(events, truth)


def _attempts(
    random: Random,
    engine: Process,
    workers: list[Process],
    id: str,
    time: float,
    truth: dict[str, Truth],
    given: Event,
    numbered: bool,
) -> list[Event]:
    events: list[Event] = []
    attempt = 0
    while True:
        attempt += 1
        worker = random.choice(workers)
        worker.clock.adjust(engine.clock.forward())  # the message that hands the attempt over
        about: Event = {"id": id} | ({"attempt": attempt} if numbered else {})
        events.append(worker.send("step-received", time, **about, name=given["name"]))
        kinds = ["started", *(["progress"] * random.randrange(3)), *(["warming-up"] if random.random() < 0.2 else [])]
        for kind in kinds:
            time += random.uniform(0, 1)
            fields = {"done": random.randrange(9)} if kind == "progress" else {}
            events.append(worker.send(f"step-{kind}", time, **about, **fields))
        end = random.choice(["succeeded", "failed", "cancelled", "rejected", "retried", "retried"])
        if end == "retried" and attempt < 4:
            events.append(worker.send("step-retried", time, **about, exception=f"error {attempt}"))
            engine.clock.adjust(worker.clock.value)  # the outcome of the attempt
            continue
        end = "failed" if end == "retried" else end
        says = {"succeeded": {"result": attempt}, "failed": {"exception": f"error {attempt}"}}.get(end, {})
        events.append(worker.send(f"step-{end}", time, **about, **says))
        engine.clock.adjust(worker.clock.value)
        truth[id] = Truth(ENDS[end], attempt, worker.origin, given["name"], given["args"], given.get("parent_id"))
        return events


def fed(events: list[Any], **bounds: int) -> ClusterState:
    """A state that has been told these events, at a time that stands still."""
    state = ClusterState(**bounds, now=lambda: NOW)
    state.apply_many(events)
    return state


def known(state: ClusterState) -> dict[str, Any]:
    """Everything that a state says."""
    return {
        "steps": list(state.steps.items()), "runs": list(state.runs.items()), "workers": list(state.workers.items()),
        "newest": state.newest(), "counts": state.counts, "run_counts": state.run_counts,
    }  # fmt: skip


def disturbed(events: list[Event], random: Random) -> list[Event]:
    """The same events in another order, many of them more than once."""
    stream = [dict(event) for event in events + random.choices(events or [{}], k=len(events))]
    random.shuffle(stream)
    return stream
