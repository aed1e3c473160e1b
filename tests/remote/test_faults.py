"""Engines and executors in processes of their own are killed at each failpoint, and frozen; what was executed is in a
ledger outside the system."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import far_steps
import pytest

import warm_python
from freezing import freeze
from holdfast import Run
from holdfast.core import events as ev
from holdfast.engine import puller

HERE = Path(__file__).parent
QUICK: dict[str, Any] = {"beat": 0.05, "sweep": 0.1, "park_after": 0.1}
WANTED = [0, 1, 2, 3, 4, 5, 6, 7]
RUNS = 3
SEED = int(os.environ.get("HOLDFAST_SEED", "2026"))
pytestmark = pytest.mark.xdist_group("remote faults")


class World:
    """A store, workers in processes of their own, and the ledger of what they have executed."""

    def __init__(self, folder: Path, store: str = "") -> None:
        self.folder = folder
        self.store = store or str(folder / "far.db")
        self.app = far_steps.app
        self.app.use_store(self.store)
        self.processes: list[warm_python.Process] = []
        self.ledger_path = folder / "ledger"
        self.ledger_path.touch()

    def worker(self, kind: str, failpoint: str = "", **settings: Any) -> warm_python.Process:
        return self.process(
            [str(HERE / "far_process.py"), kind, json.dumps({**QUICK, **settings})], HOLDFAST_FAILPOINT=failpoint
        )

    def process(self, args: list[str], **more: str) -> warm_python.Process:
        environment = {
            **os.environ, "HOLDFAST_STORE": self.store, "FAR_LEDGER": str(self.ledger_path),
            "PYTHONPATH": f"{HERE}{os.pathsep}{os.environ.get('PYTHONPATH', '')}", **more,
        }  # fmt: skip
        with open(self.folder / "log", "ab") as log:
            process = warm_python.start(args, cwd=Path.cwd(), env=environment, stdout=log, stderr=log)
        self.processes.append(process)
        return process

    def start(self) -> list[Run[Any]]:
        return [far_steps.journey.options(id=f"r{i}").start(f"r{i}") for i in range(RUNS)]

    def until(self, condition: Callable[[], Any], what: str, seconds: float = 60) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            log = (self.folder / "log").read_text(errors="replace")[-4_000:]
            assert time.monotonic() < deadline, f"no {what}\n{log}"
            time.sleep(0.01)

    def freeze(self, process: warm_python.Process) -> None:
        freeze(process, self.app, self.store, lambda is_apart: self.until(is_apart, "moment without a transaction"))

    def effects(self) -> list[str]:
        return [line.rpartition(" ")[0] for line in self.ledger_path.read_text().splitlines()]

    def recorded(self) -> set[str]:
        """The steps whose success is in a history."""
        found = set()
        for run in self.app.runs(limit=1_000):
            for payload in self.app.store.payloads(run.id):
                event = ev.from_json(payload)
                if isinstance(event, ev.StepCompleted):
                    found.add(f"{run.id}.{json.loads(bytes(event.result))}")
        return found

    def lost(self) -> int:
        kinds = [ev.from_json(p).kind for run in self.app.runs() for p in self.app.store.payloads(run.id)]
        return kinds.count("StepLost")

    def close(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)
                process.kill()
            process.wait()
        self.app.close()


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = World(tmp_path)
    yield world
    world.close()


@pytest.fixture
def world_on_postgres(tmp_path: Path, postgres_url: str) -> Iterator[World]:
    world = World(tmp_path, postgres_url)
    yield world
    world.close()


def end_well(world: World, runs: list[Run[Any]], what: str) -> None:
    world.until(lambda: all(run.status.is_final for run in runs), f"end of all runs {what}")
    assert [run.result() for run in runs] == [WANTED] * RUNS
    assert not [row for run in runs for row in world.app.store.attempts(run.id)]
    for run in runs:
        rows = world.app.store.stream(run.id, 0, 1_000)
        assert {json.loads(row.item) for row in rows} == {0, 1, 2, 4, 7}, "what is streamed arrives before the outcome"
        assert len({(row.cmd, row.attempt) for row in rows}) == len(rows), "each step streams one item"


EXECUTOR = [
    "claim_attempts.before_commit", "claim_attempts.after_commit", "puller.before_hand_over", "puller.after_hand_over",
    "report_attempts.before_commit", "report_attempts.after_commit", "puller.before_post", "post.after_commit",
    "end_attempts.before_commit", "end_attempts.after_commit", "puller.before_ring", "beat.after_commit",
    "register.after_commit",
]  # fmt: skip
ENGINE = [
    "engine.before_commit", "commit.before_commit", "commit.after_commit", "engine.after_commit", "engine.before_ring",
    "engine.before_announce",
]  # fmt: skip


def test_every_failpoint_of_an_executor_is_visited() -> None:
    code = Path(puller.__file__).read_text()
    assert set(re.findall(r'hit\("(.*?)"\)', code)) <= set(EXECUTOR)


def kill_an_executor(world: World, failpoint: str, nth: int) -> None:
    """What it has told before it died is not executed again, and nothing is left undone."""
    world.worker("engine")
    victim = world.worker("executor", f"{failpoint}:{nth}")
    runs = world.start()
    world.until(lambda: victim.poll() is not None or all(run.status.is_final for run in runs), f"end at {failpoint}")
    recorded, before = world.recorded(), len(world.effects())
    world.worker("executor")
    end_well(world, runs, f"after an executor was killed at {failpoint}")
    again = recorded & {*world.effects()[before:]}
    assert not again, f"executed again after the outcome was recorded: {again}"
    most = Counter(world.effects()).most_common(1)[0]
    assert most[1] <= 3, f"{most} though one executor has died once"


def kill_an_engine(world: World, failpoint: str, nth: int) -> None:
    """Steps elsewhere go on: each is executed once, whatever becomes of the engine."""
    world.worker("executor")
    victim = world.worker("engine", f"{failpoint}:{nth}")
    runs = world.start()
    world.until(lambda: victim.poll() is not None or all(run.status.is_final for run in runs), f"end at {failpoint}")
    world.worker("engine")
    end_well(world, runs, f"after an engine was killed at {failpoint}")
    often = {
        name: count for name, count in Counter(world.effects()).items() if not name.endswith(".5")
    }  # which is near
    wanted = {f"r{i}.{n}": 2 if n == 2 else 1 for i in range(RUNS) for n in WANTED if n != 5}
    assert often == wanted
    assert world.lost() == 0


def sample(names: list[str], count: int) -> list[tuple[str, int]]:
    chance = random.Random(SEED)
    return [(name, chance.randint(1, 6)) for name in chance.sample(names, count)]


@pytest.mark.parametrize(("failpoint", "nth"), sample(EXECUTOR, 2))
def test_an_executor_is_killed(world: World, failpoint: str, nth: int) -> None:
    kill_an_executor(world, failpoint, nth)


@pytest.mark.parametrize(("failpoint", "nth"), sample(ENGINE, 1))
def test_an_engine_is_killed(world: World, failpoint: str, nth: int) -> None:
    kill_an_engine(world, failpoint, nth)


@pytest.mark.parametrize(("failpoint", "nth"), [("end_attempts.after_commit", 2)])
def test_an_executor_on_postgres_is_killed(world_on_postgres: World, failpoint: str, nth: int) -> None:
    kill_an_executor(world_on_postgres, failpoint, nth)


@pytest.mark.torture
@pytest.mark.parametrize("failpoint", EXECUTOR)
@pytest.mark.parametrize("nth", [1, 2, 5])
def test_an_executor_is_killed_anywhere(world: World, failpoint: str, nth: int) -> None:
    kill_an_executor(world, failpoint, nth)


@pytest.mark.torture
@pytest.mark.parametrize("failpoint", ENGINE)
@pytest.mark.parametrize("nth", [1, 2, 5, 12])
def test_an_engine_is_killed_anywhere(world: World, failpoint: str, nth: int) -> None:
    kill_an_engine(world, failpoint, nth)


@pytest.mark.torture
@pytest.mark.parametrize("failpoint", EXECUTOR)
def test_an_executor_on_postgres_is_killed_anywhere(world_on_postgres: World, failpoint: str) -> None:
    kill_an_executor(world_on_postgres, failpoint, 2)


@pytest.mark.torture
@pytest.mark.parametrize("failpoint", ENGINE)
def test_an_engine_on_postgres_is_killed_anywhere(world_on_postgres: World, failpoint: str) -> None:
    kill_an_engine(world_on_postgres, failpoint, 3)


def test_an_executor_that_was_frozen_past_its_lease_comes_too_late(world: World) -> None:
    short = {"lease": 1.0, "beat": 0.1}
    world.worker("engine", **short)
    frozen = world.worker("executor", **short)
    run = far_steps.slow.start("s", 0.5)
    world.until(lambda: world.effects() == ["s"], "beginning of the step")
    world.freeze(frozen)
    world.worker("executor", **short)
    world.until(lambda: world.effects().count("s") == 2, "beginning of the step elsewhere")
    frozen.send_signal(signal.SIGCONT)
    world.until(lambda: run.status.is_final, "end of the run")
    assert run.result() != frozen.pid, "the outcome of the one that was given up doesn't count"
    assert world.lost() == 1
    world.until(
        lambda: frozen.pid in {worker.pid for worker in world.app.store.workers()}, "new life of the frozen one"
    )


def test_a_stopped_executor_finishes_what_has_begun_and_gives_back_the_rest(world: World) -> None:
    world.worker("engine")
    first = world.worker("executor")
    runs = [far_steps.slow.start(f"s{i}", 0.5) for i in range(8)]
    world.until(lambda: len(world.effects()) >= 4, "beginning of what fits")
    first.terminate()
    assert first.wait(30) == 0
    world.worker("executor")
    world.until(lambda: all(run.status.is_final for run in runs), "end of all runs")
    assert Counter(world.effects()) == {f"s{i}{end}": 1 for i in range(8) for end in ("", " done")}
    assert world.lost() == 0


def test_one_process_serves_a_queue_beside_its_engine(world: World) -> None:
    both = world.process(["-m", "holdfast", "-A", "far_steps", "worker", "--queues", "default,far"])
    runs = world.start()
    end_well(world, runs, "with all in one process")
    workers = world.app.store.workers()
    assert {(worker.kind, worker.pid, *worker.queues) for worker in workers} == {
        ("engine", both.pid, ""), ("executor", both.pid, "far")
    }  # fmt: skip
    both.terminate()
    assert both.wait(30) == 0
    assert world.app.store.workers() == []
