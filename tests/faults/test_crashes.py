"""kill -9 under load."""

from __future__ import annotations

import random
import statistics
import time

import effects
import pytest
from world import World

from holdfast import WorkerLostError, chain, chord

STARTS = """
import sys, time, effects
for i in range(int(sys.argv[1])):
    effects.sequence.options(id=f"load-{i}").start(5)
    time.sleep(0.004)
"""


def work_under_fire(world: World, kills: int, runs: int, seed: int) -> list[float]:
    """Kill workers again and again while a client starts runs. How long after each kill something was recorded."""
    chance = random.Random(seed)
    workers = [world.worker() for _ in range(2)]
    world.until(lambda: len(world.workers()) == 2)
    client = world.python("-c", STARTS, str(runs))
    gated = [effects.endures.options(id=f"gated-{i}").start("end") for i in range(3)]
    recoveries = []
    for _ in range(kills):
        pause = time.monotonic() + chance.uniform(0.05, 0.5)
        world.until(lambda pause=pause: time.monotonic() > pause)
        victim = chance.randrange(2)
        owned = {w.id for w in world.app.store.workers() if w.pid == workers[victim].pid}
        world.kill(workers[victim])
        begin = time.monotonic()
        world.until(lambda owned=owned: not owned & set(world.workers()), 20, "a takeover")
        recoveries.append(time.monotonic() - begin)
        workers[victim] = world.worker()
    world.open_gate("end")
    assert client.wait(60) == 0, world.log()
    world.until(world.is_done, max(60, runs / 5), "the end of all runs")
    assert [run.result(timeout=5) for run in gated] == ["end"] * 3
    loads = [run for run in world.app.runs(limit=10_000) if run.id.startswith("load-")]
    assert len(loads) == runs, "no run is lost"
    assert {run.result(timeout=0) for run in loads} == {10}
    world.check_histories()
    return recoveries


def tell(recoveries: list[float]) -> None:
    recoveries.sort()
    print(f"takeover after kill -9: median {statistics.median(recoveries):.2f} s, worst {recoveries[-1]:.2f} s")


def test_workers_killed_at_any_moment_lose_no_run_and_record_no_outcome_twice(world: World) -> None:
    tell(work_under_fire(world, kills=6, runs=150, seed=11))


@pytest.mark.torture
@pytest.mark.timeout(1_800)
@pytest.mark.parametrize("seed", range(4))
def test_workers_killed_many_times_lose_no_run(world: World, seed: int) -> None:
    tell(work_under_fire(world, kills=60, runs=3_000, seed=seed))


def test_what_a_killed_worker_had_goes_on_elsewhere_though_its_lease_is_not_over(world: World) -> None:
    """Its lock says that it is dead. From the kill to the next outcome of the run that the victim had."""
    settings = {"lease": 3_600.0, "sweep": 0.2}
    recoveries = []
    for number in range(2):
        victim = world.engine(settings)
        world.until(lambda: len(world.workers()) == 1)
        run = effects.gated.options(id=f"run-{number}").start(f"gate-{number}")
        world.until(lambda run=run: world.ledger("wait_at_gate", run.id))
        other = world.engine(settings)
        world.until(lambda: len(world.workers()) == 2)
        world.open_gate(f"gate-{number}")
        world.kill(victim)
        begin = time.monotonic()
        run.result(timeout=60)
        recoveries.append(time.monotonic() - begin)
        world.stop(other)
    tell(recoveries)


def test_a_chord_under_fire_runs_its_body_once_with_every_result(world: World) -> None:
    """Workers are killed while the members of a chord execute; none that was recorded executes again."""
    header = [chain(effects.double.s(n), effects.add.s(n)) for n in range(400)]
    run = chord(header, effects.total.s()).options(id="chord").start()
    worker = world.worker()
    for share in (60, 150, 240, 400):
        world.until(lambda share=share: len(world.ledger()) > share or run.status.is_final)
        world.kill(worker)
        recorded, before = world.recorded(), len(world.ledger())
        worker = world.worker()
        world.until(lambda before=before: len(world.ledger()) > before + 20 or run.status.is_final)
        assert not [entry for entry in world.ledger()[before:] if entry.name in recorded]
    assert run.result(timeout=30) == sum(3 * n for n in range(400))
    assert [entry.note for entry in world.ledger("total")] == [[3 * n for n in range(400)]]
    world.check_histories()
    world.stop(worker)


def test_a_run_without_a_history_ends_with_its_worker(world: World) -> None:
    """With durable=False nothing is kept, and nobody says otherwise."""
    victim = world.worker()
    run = effects.fleeting_gate.start("never")
    world.until(lambda: world.ledger("wait_at_gate"))
    world.kill(victim)
    other = world.worker()
    with pytest.raises(WorkerLostError, match="durable=False"):
        run.result(timeout=20)
    assert len(world.ledger("wait_at_gate")) == 1
    world.stop(other)
