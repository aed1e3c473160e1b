"""One run for each tick: with several workers, killed at any moment, and with a client killed in between."""

from __future__ import annotations

import datetime as dt
import itertools
import signal

import effects
import pytest
from world import World

from holdfast import Schedule, every
from holdfast.ports import RunQuery

SETTINGS = {"beat": 0.05, "sweep": 0.1}
TICK = dt.timedelta(milliseconds=200)


def ticks_of(world: World, name: str) -> list[dt.datetime]:
    rows = world.app.store.runs(RunQuery(schedule=name, limit=10_000))
    return [dt.datetime.fromisoformat(row.id.partition("@")[2]) for row in reversed(rows)]


def check_one_run_per_tick(world: World, name: str) -> None:
    """From the first tick to the last there is one run each, which was executed; their order is that of time."""
    ticks = ticks_of(world, name)
    assert ticks == [ticks[0] + n * TICK for n in range(len(ticks))]
    executed = [entry.run for entry in world.ledger("add")]
    assert {f"{name}@{tick.isoformat()}" for tick in ticks} == set(executed)


def test_workers_that_share_the_ticks_start_one_run_for_each(world: World) -> None:
    workers = [world.engine(SETTINGS) for _ in range(3)]
    world.until(lambda: len(world.workers()) == 3)
    world.app.schedules.put(Schedule(every(TICK), name="often", overlap="allow"), effects.sequence, 1)
    world.until(lambda: len(ticks_of(world, "often")) >= 15)
    world.app.schedules.pause("often")
    world.until(world.is_done)
    check_one_run_per_tick(world, "often")
    assert len(world.ledger("add")) == len(ticks_of(world, "often")), "no step was executed twice"
    for worker in workers:
        assert world.stop(worker) == 0


@pytest.mark.parametrize(("when", "nth"), [("before", 1), ("before", 5), ("after", 2)])
def test_workers_killed_at_a_tick_miss_none_and_start_none_twice(world: World, when: str, nth: int) -> None:
    world.app.schedules.put(Schedule(every(TICK), name="often", missed="all", overlap="allow"), effects.sequence, 1)
    victims = [world.engine(SETTINGS, f"schedule.{when}_commit:{nth + n}") for n in range(2)]
    for victim in victims:
        assert victim.wait(30) == -signal.SIGKILL, world.log()
    before = len(ticks_of(world, "often"))
    survivor = world.engine(SETTINGS)
    world.until(lambda: len(ticks_of(world, "often")) >= before + 5)
    world.app.schedules.pause("often")
    world.until(world.is_done)
    check_one_run_per_tick(world, "often")
    world.check_histories()
    assert world.stop(survivor) == 0


def test_a_queue_goes_on_after_the_worker_died_between_the_end_of_a_run_and_the_next(world: World) -> None:
    world.app.schedules.put(Schedule(every("5000d"), name="past", overlap="queue"), effects.sequence, 1)
    made = world.app.schedules.backfill("past", dt.datetime(1980, 1, 1, tzinfo=dt.UTC))
    assert len(made) == 4
    victim = world.engine(SETTINGS, "schedule.before_commit:2")
    assert victim.wait(30) == -signal.SIGKILL, world.log()
    assert len(world.app.runs()) == 2
    survivor = world.engine(SETTINGS)
    world.until(world.is_done)
    assert [run.id for run in reversed(world.app.runs())] == made
    spans = [(run.started_at, run.finished_at) for run in reversed(world.app.runs())]
    assert all(
        end is not None and begin is not None and end <= begin for (_, end), (begin, _) in itertools.pairwise(spans)
    )
    assert world.stop(survivor) == 0


BACKFILL = """
import datetime as dt, effects
from holdfast import failpoints
failpoints.arm_from_environment()
effects.app.schedules.backfill("past", dt.datetime(1980, 1, 1, tzinfo=dt.UTC))
"""


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_client_killed_during_a_backfill_asks_again_and_there_is_one_run_per_tick(world: World, when: str) -> None:
    world.app.schedules.put(Schedule(every("5000d"), name="past", overlap="allow"), effects.sequence, 1)
    killed = world.python("-c", BACKFILL, HOLDFAST_FAILPOINT=f"schedule.{when}_commit:1")
    assert killed.wait(20) == -signal.SIGKILL
    assert len(world.app.runs()) == (0 if when == "before" else 4)
    assert world.python("-c", BACKFILL).wait(20) == 0
    worker = world.engine(SETTINGS)
    world.until(lambda: len(world.app.runs()) == 4 and world.is_done())
    assert len(world.ledger("add")) == 4
    world.stop(worker)


def test_many_workers_that_start_together_declare_a_schedule_once(world: World) -> None:
    workers = [world.engine(SETTINGS, EFFECTS_SCHEDULE="0 0 1 1 *") for _ in range(3)]
    world.until(lambda: len(world.workers()) == 3)
    assert [(info.name, info.declared) for info in world.app.schedules.list()] == [("sequence", True)]
    world.app.schedules.pause("sequence", "by hand")
    for worker in workers:
        world.kill(worker)
    again = world.engine(SETTINGS, EFFECTS_SCHEDULE="0 0 2 1 *")
    world.until(lambda: [info.when for info in world.app.schedules.list()] == ["0 0 2 1 *"])
    assert world.app.schedules.get("sequence").reason == "by hand"
    assert world.stop(again) == 0
    without = world.engine(SETTINGS)
    world.until(lambda: world.app.schedules.list() == [])
    assert world.stop(without) == 0
