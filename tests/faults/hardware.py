"""Power cuts and disks that fail, under the work of everything.py: what is tried, and what is checked."""

from __future__ import annotations

import contextlib
import errno
import json
import random
import re
import signal
import sqlite3
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

import disk
import everything
import fire
from world import World, open_world

from holdfast import RunFinishedError
from warm_python import Process

WORDS = 20
CAUSE = re.compile(r":(\d+)s\d+:[^:]*$")
"""A command is named by the number of the event that led to it; a canvas has other names for its members."""


# -- power cuts


def cut_power(
    folder: Path, shim: Path, seed: int, seconds: float, images: int, go_on: int
) -> tuple[Counter[str], list[str]]:
    """Let processes work, cut the power at `images` random moments, and look at what is left. A worker goes on with
    every `go_on`-th image. Gives figures, and all that is wrong."""
    log = folder / "disk-log"
    with open_world(folder, everything) as world:
        work_on_disk(world, seed, seconds, LD_PRELOAD=str(shim), SHIM_STORE=str(world.database), SHIM_LOG=str(log))
    chance = random.Random(f"power {seed}")
    operations = [record.op for record in disk.read(log)]
    cuts = choose_cuts(operations, images, chance)
    figures: Counter[str] = Counter({"disk operations": len(operations)})
    faults: list[str] = []
    simulated = disk.Disk()
    for number, record in enumerate(disk.read(log), 1):
        simulated.take(record)
        if cuts and number == cuts[0]:
            cuts.pop(0)
            here = folder / f"image-{number}"
            here.mkdir()
            torn = chance.random() < 0.5
            simulated.cut(here / "effects.db", chance, torn)
            with open_world(here, everything) as world:
                faults += [f"cut after {number}, torn {torn}: {fault}" for fault in look(world, simulated, figures)]
                figures["images"] += 1
                figures["torn images"] += torn
                if figures["images"] % go_on == 0:
                    faults += [f"cut after {number}, torn {torn}: {fault}" for fault in carry_on(world)]
                    figures["images carried on"] += 1
    return figures, faults


def choose_cuts(operations: list[str], images: int, chance: random.Random) -> list[int]:
    """After which operations: half of them just after something was said, when nothing else can have synced it."""
    said = [number for number, op in enumerate(operations, 1) if op == "a"]
    moments = set(chance.sample(said, images // 2))
    while len(moments) < images:
        moments.add(chance.randint(1, len(operations)))
    return sorted(moments)


def work_on_disk(world: World, seed: int, seconds: float, **environment: str) -> None:
    """This process keeps away from the store: what it does to the disk would not be in the log."""

    def client(call: str) -> Process:
        return world.python("-c", f"import everything; everything.{call}", **environment)

    first = client(f"listens.options(id='listens-0').start({WORDS}, [])")
    assert first.wait(60) == 0, world.log()
    workers = [world.worker(**environment) for _ in range(2)]
    world.until(lambda: world.log().count(" knows: ") == 2, 60, "two workers")
    calls = [f"play({seed}, {seconds})", f"ask({seed}, {seconds})", f"send(0, ['listens-0'], {WORDS}, {seconds})"]
    for each in [client(call) for call in calls]:
        assert each.wait(60 + seconds) == 0, world.log()
    for worker in workers:
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(60) == 0, world.log()


def look(world: World, simulated: disk.Disk, figures: Counter[str]) -> list[str]:
    """What was said before the cut, and isn't there."""
    said = [json.loads(line)[2:] for line in simulated.acknowledged]
    figures["acknowledgements"] += len(said)
    if not world.database.exists():
        return [f"the store is gone, and {len(said)} things had been said"] if said else []
    with closing(sqlite3.connect(world.database)) as db:
        verdict = db.execute("PRAGMA integrity_check").fetchall()
        if verdict != [("ok",)]:
            return [f"the database is damaged: {verdict[:3]}"]
        if not said:
            return []
        query = "SELECT r.id, r.status, max(h.seq) FROM runs r JOIN history h ON h.run = r.no GROUP BY r.no"
        runs = {run: (status, seq) for run, status, seq in db.execute(query)}
        words = {tuple(word) for word in received(db)}
    found = []
    for what, run, *facts in said:
        if what == "begin":
            cause = CAUSE.search(facts[0])
            if cause is not None and runs.get(run, ("", 0))[1] < int(cause[1]):
                found.append(f"{facts[0]} had begun, and event {cause[1]} that led to it is not there")
        elif what == "sent":
            if tuple(facts) not in words:
                found.append(f"word {facts} of {run} was acknowledged and is not there")
        elif what == "result":
            if runs.get(run, ("",))[0] != "SUCCESS":
                found.append(f"the result of {run} was shown, and it is {runs.get(run)}")
        elif what == "started" and run not in runs:
            found.append(f"the start of {run} was acknowledged, and it is not there")
    return found


def received(db: sqlite3.Connection) -> list[Any]:
    rows = db.execute(
        "SELECT payload FROM history WHERE kind = 'HookReceived' UNION ALL SELECT body FROM inbox WHERE kind = 'hook'"
    )
    return [json.loads(body)["payload"] for (body,) in rows]


def carry_on(world: World) -> list[str]:
    """Let a worker go on with an image until all has ended that isn't waiting for somebody else."""
    if not world.database.exists():
        return []
    for run in world.app.runs(workflow="listens"):
        with contextlib.suppress(RunFinishedError):
            run.cancel("nobody sends any more")
    worker = world.worker()
    world.until(lambda: fire.settled(world), 60, "the end of all runs")
    world.check_histories()
    stuck = [f"{run.id} is STUCK: {run.reason}" for run in world.app.runs(limit=10_000) if run.status == "STUCK"]
    world.stop(worker)
    return stuck


# -- disks that fail

FAULTS = {
    "EIO on a write": ("write", errno.EIO),
    "ENOSPC on a write": ("write", errno.ENOSPC),
    "a write cut short": ("write", 0),
    "EIO on a sync": ("sync", errno.EIO),
    "EIO on a read": ("read", errno.EIO),
}


def fail_disk(folder: Path, shim: Path, seed: int, name: str, runs: int = 25) -> tuple[Counter[str], list[str]]:
    """A worker and a client whose disk fails for a few calls. Gives figures, and all that is wrong."""
    chance = random.Random(f"disk {seed} {name}")
    what, number = FAULTS[name]
    log = folder / "disk-log"
    faults: list[str] = []
    figures: Counter[str] = Counter()

    def failing(world: World, latest: int) -> dict[str, str]:
        first, count = chance.randint(1, latest), chance.randint(1, 4)
        shimmed = {"LD_PRELOAD": str(shim), "SHIM_STORE": str(world.database), "SHIM_LOG": str(log)}
        return shimmed | {"SHIM_FAULT": f"{what} {number} {first} {count}"}

    with open_world(folder, everything) as world:
        everything.child.options(id="first").start(1)  # the store is there
        worker = world.worker(**failing(world, 150))
        client = world.python("-c", f"import everything; everything.insist({runs})", **failing(world, 60))
        if client.wait(60) < 0:
            faults.append(f"the client ended with {client.returncode}")
        try:
            world.until(lambda: worker.poll() is not None or fire.settled(world), 60, "the end of all runs")
            if worker.poll() is not None:  # it gives up if it can't read the store while it starts, and says so
                figures["workers that gave up"] += 1
                if worker.returncode < 0 or "Traceback" in world.log():
                    faults.append(f"the worker ended with {worker.returncode}: {world.log()[-2_000:]}")
                worker = world.worker()
                world.until(lambda: fire.settled(world), 60, "the end of all runs, with another worker")
            world.check_histories()
        except AssertionError as error:
            faults.append(str(error))
        faults += compare(world, figures)
        if world.stop(worker) != 0:
            faults.append(f"the worker ended with {worker.returncode}")
    figures["failed calls"] = sum(record.op == "f" for record in disk.read(log))
    return figures, faults


def compare(world: World, figures: Counter[str]) -> list[str]:
    """What was acknowledged is there, with the right result, and no step has two outcomes or was begun after its own."""
    verdict = fire.Verdict()
    ledger = fire.Ledger(world.ledger_file)
    known = {run.id: run for run in world.app.runs(limit=10_000)}
    for run_id, expected in ledger.expected.items():
        if run_id not in known:
            verdict.lost.append(run_id)
        else:
            fire.check_result(verdict, ledger, known[run_id], expected)
    for run_id in known:
        fire.check_steps(world, verdict, ledger, run_id)
    figures["runs"] += len(known)
    figures["acknowledged starts"] += len(ledger.expected)
    with closing(sqlite3.connect(world.database)) as db:
        if db.execute("PRAGMA integrity_check").fetchall() != [("ok",)]:
            verdict.wrong.append("the database is damaged")
    return [f"{name}: {line}" for name, lines in verdict.faults().items() for line in lines]
