"""Workers are killed while steps and runs are limited: never too many at once, and nobody waits for ever."""

from __future__ import annotations

import random
import subprocess
from collections.abc import Iterator
from pathlib import Path

import limited
import pytest
from test_failpoints import SEED
from world import World, open_world

COUNT = 12


@pytest.fixture(params=["sqlite", "postgres"])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    store = request.getfixturevalue("postgres_url") if request.param == "postgres" else ""
    with open_world(tmp_path, limited, store=store) as opened:
        yield opened


def check(world: World) -> None:
    """All was done, nothing was done by too many at once, and no slot is left."""
    counts = [line.split() for line in (world.folder / "counts").read_text().splitlines()]
    most: dict[str, int] = {}
    for group, count, _ in counts:
        most[group] = max(most.get(group, 0), int(count))
    allowed = {"all": limited.ALL, "each": limited.EACH, "account": 1}
    for group, count in most.items():
        assert count <= allowed[group.partition(".")[0]], most
    world.check_histories()
    assert [(use.in_use, use.waiting) for use in world.app.store.limits(5)] == [(0, 0)] * 3


def test_no_more_than_the_limit_are_under_way_whoever_is_killed(world: World) -> None:
    chance = random.Random(SEED)
    payments = [limited.pay.start(customer, COUNT) for customer in ("ann", "bob", "ann")]
    bookings = [limited.book.start(account) for _ in range(3) for account in "xy"]
    workers = [world.worker() for _ in range(2)]

    def done() -> int:
        found = world.folder / "counts"
        return len(set(found.read_text().splitlines())) if found.exists() else 0

    for kill in range(1, 4):
        world.until(lambda kill=kill: done() >= kill * 15, 60, f"{kill * 15} steps")  # type: ignore[misc]
        victim = workers.pop(chance.randrange(len(workers)))
        world.kill(victim)
        workers.append(world.worker())
    assert [run.result(timeout=60) for run in payments] == [sum(range(COUNT))] * 3
    assert [run.result(timeout=60) for run in bookings] == [run for _ in range(3) for run in "xy"]
    for worker in workers:
        assert world.stop(worker) == 0
    check(world)


@pytest.mark.parametrize("world", ["sqlite", pytest.param("postgres", marks=pytest.mark.torture)], indirect=True)
@pytest.mark.parametrize(
    "failpoint",
    [
        "engine.before_serve:2",
        pytest.param("serve.before_commit:3", marks=pytest.mark.torture),
        "serve.after_commit:4",
    ],
)
def test_a_worker_that_dies_before_it_has_served_a_line_leaves_nobody_waiting(world: World, failpoint: str) -> None:
    first = world.worker(failpoint)
    runs = [limited.pay.start("ann", 4), limited.pay.start("bob", 4)]
    runs.append(limited.book.start("x"))  # type: ignore[arg-type]
    try:
        first.wait(20)
    except subprocess.TimeoutExpired:
        pytest.fail(f"nobody came to {failpoint}\n{world.log()}")
    second = world.worker()
    assert [run.result(timeout=60) for run in runs] == [6, 6, "x"]
    assert world.stop(second) == 0
    check(world)
