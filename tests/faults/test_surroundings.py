"""What happens around workers: programs that hold the file, kills while they start, kills while old runs are removed."""

from __future__ import annotations

import contextlib
import random
import signal
import sqlite3
import time

import effects
import pytest
from world import World

QUICK = {"lease": 1.0, "beat": 0.1, "sweep": 0.1}


def test_a_program_that_holds_the_file_for_longer_than_a_lease_stops_nothing_for_good(world: World) -> None:
    """It doesn't know of the turnstile, and nobody can renew a lease meanwhile."""
    workers = [world.engine(QUICK) for _ in range(2)]
    world.until(lambda: len(world.workers()) == 2)
    runs = [effects.gated.start("go") for _ in range(4)]
    world.until(lambda: len(world.ledger("wait_at_gate")) == 4)
    before = set(world.workers())
    with contextlib.closing(sqlite3.connect(world.database, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        world.open_gate("go")
        hold = time.monotonic() + 2.5 * QUICK["lease"]
        world.until(lambda: time.monotonic() > hold)
        other.execute("ROLLBACK")
    assert [run.result(timeout=30) for run in runs] == ["go"] * 4
    assert set(world.workers()) == before, "nobody was taken for dead"
    assert len(world.ledger("wait_at_gate")) == 4
    assert all(worker.poll() is None for worker in workers)
    world.check_histories()


@pytest.mark.timeout(300)
@pytest.mark.parametrize("kills", [6, pytest.param(60, marks=pytest.mark.torture)])
def test_workers_killed_while_they_start_are_no_harm(world: World, kills: int) -> None:
    """From the first import on: the database, its schema, locks and bells are made meanwhile."""
    chance = random.Random(kills)
    for _ in range(kills):
        worker = world.worker()
        moment = time.monotonic() + chance.uniform(0.0, 1.0)
        world.until(lambda worker=worker, moment=moment: time.monotonic() > moment or worker.pid in known(world))
        world.kill(worker)
    last = world.worker()
    assert effects.sequence.start(3).result(timeout=60) == 3
    world.until(lambda: world.pids() == [last.pid], what="the others to be cleared away")
    assert world.stop(last) == 0
    world.app.close()  # it may have kept a bell for the next wait
    assert (
        sorted(file.name for file in world.folder.iterdir() if "-worker-" in file.name or "-bell-" in file.name) == []
    )


def known(world: World) -> list[int]:
    """Who has registered, without being the one who makes the database."""
    if not world.database.exists():
        return []
    with contextlib.closing(sqlite3.connect(world.database)) as db, contextlib.suppress(sqlite3.OperationalError):
        return [pid for (pid,) in db.execute("SELECT pid FROM workers")]
    return []


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_worker_killed_while_it_removes_old_runs_leaves_whole_ones(world: World, when: str) -> None:
    worker = world.engine(QUICK)
    for _ in range(20):
        effects.brief.start(3)
    kept = effects.sequence.options(id="kept").start(3)
    world.until(world.is_done)
    world.stop(worker)
    with contextlib.closing(sqlite3.connect(world.database, isolation_level=None)) as db:
        assert db.execute("UPDATE runs SET expires_at = 1 WHERE workflow = 'brief'").rowcount == 20
    victim = world.engine(QUICK | {"collect_every": 0.1}, f"collect.{when}_commit:1")
    assert victim.wait(30) == -signal.SIGKILL, world.log()
    left = world.app.runs(workflow="brief", limit=100)
    assert len(left) == (20 if when == "before" else 0)
    world.check_histories()
    last = world.engine(QUICK | {"collect_every": 0.1})
    world.until(lambda: not world.app.runs(workflow="brief"))
    assert kept.result(timeout=0) == 3
    with contextlib.closing(sqlite3.connect(world.database)) as db:
        for table in ("history", "inbox", "attributes", "streams"):
            orphans = db.execute(f"SELECT count(*) FROM {table} WHERE run NOT IN (SELECT no FROM runs)").fetchone()
            assert orphans == (0,), table
    world.stop(last)
