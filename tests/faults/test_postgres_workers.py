"""Real workers on PostgreSQL: killed at failpoints, two at once, with a server that restarts under them. What came out is
told by the ledger and the histories."""

from __future__ import annotations

import itertools
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import effects
import psycopg
import pytest
from test_failpoints import CLIENT, SEED, Undisturbed, kill_at
from world import World, open_world

from holdfast import Run
from holdfast.errors import StoreError
from holdfast.stores.postgres import PostgresStore
from postgres_server import Server, own_server

RUNS = 30
STEPS = 20


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory, postgres_server: str) -> Undisturbed:
    with psycopg.connect(postgres_server) as connection:  # a lock means nothing until it has been up for a lease
        connection.execute(
            "SELECT pg_sleep(greatest(0, 10.5 - extract(epoch FROM now() - pg_postmaster_start_time())))"
        )
    joint = "&" if "?" in postgres_server else "?"
    return Undisturbed(
        tmp_path_factory.mktemp("undisturbed"), f"{postgres_server}{joint}schema=undisturbed_{os.getpid()}"
    )


@pytest.fixture
def world(tmp_path: Path, postgres_url: str) -> Iterator[World]:
    with open_world(tmp_path, store=postgres_url) as opened:
        yield opened


def losses(world: World) -> int:
    return sum(world.app.store.get(run.id).losses for run in world.app.runs(limit=10_000))  # type: ignore[union-attr]


def check(world: World, runs: list[Run[int]]) -> None:
    """Every step of every run was executed, and its outcome recorded once."""
    assert [run.result(timeout=60) for run in runs] == [sum(range(STEPS))] * len(runs)
    world.check_histories()
    assert len({entry.key for entry in world.ledger()}) == len(runs) * STEPS


def executed_again(world: World) -> int:
    return sum(count - 1 for count in Counter(entry.key for entry in world.ledger()).values())


# -- killed workers


@pytest.mark.timeout(120)
@pytest.mark.parametrize("draw", range(2))
def test_a_worker_killed_at_a_failpoint_loses_nothing(world: World, undisturbed: Undisturbed, draw: int) -> None:
    chance = random.Random(SEED * 1_000 + draw)
    name = chance.choice(sorted(undisturbed.hits))
    nth = chance.randint(1, min(undisturbed.hits[name], 12))
    kill_at(world, undisturbed, f"{name}:{nth}")


def test_the_same_failpoints_are_passed_as_on_a_file(undisturbed: Undisturbed) -> None:
    for name in ("commit", "beat", "register", "unregister", "declare_dead", "post", "collect", "deliver", "schedule"):
        assert name not in CLIENT
        assert {f"{name}.before_commit", f"{name}.after_commit"} <= set(undisturbed.hits)


def test_what_a_killed_worker_had_goes_on_elsewhere(world: World) -> None:
    first, second = world.engine(), world.engine()
    world.until(lambda: len(world.workers()) == 2)
    runs = [effects.sequence.start(STEPS) for _ in range(RUNS)]
    world.until(lambda: len(world.ledger()) > RUNS)
    world.kill(first)
    check(world, runs)
    assert world.stop(second) == 0


def test_two_engines_share_the_runs_and_do_nothing_twice(world: World) -> None:
    engines = [world.engine() for _ in range(2)]
    world.until(lambda: len(world.workers()) == 2)
    runs = [effects.sequence.start(STEPS) for _ in range(RUNS)]
    check(world, runs)
    assert executed_again(world) == 0
    assert losses(world) == 0
    assert [world.stop(engine) for engine in engines] == [0, 0]


def test_a_frozen_worker_is_replaced_and_writes_nothing_when_it_thaws(world: World) -> None:
    settings = {"beat": 0.2, "lease": 1.5, "sweep": 0.2}
    first = world.engine(settings)
    world.until(lambda: len(world.workers()) == 1)
    runs = [effects.sequence.start(STEPS) for _ in range(RUNS)]
    world.until(lambda: len(world.ledger()) > RUNS)
    first.send_signal(signal.SIGSTOP)
    second = world.engine(settings)
    check(world, runs)
    first.send_signal(signal.SIGCONT)
    extra = effects.sequence.start(STEPS)
    check(world, [*runs, extra])
    assert [world.stop(first), world.stop(second)] == [0, 0]


# -- a server that goes away


def restarts(server: Server) -> None:
    server.restart("fast")


def is_killed(server: Server) -> None:
    server.restart("immediate")


def crashes(server: Server) -> None:
    """One of its processes is killed: it throws out all the others, recovers, and goes on."""
    with psycopg.connect(server.url) as connection:
        os.kill(connection.info.backend_pid, signal.SIGKILL)


@pytest.mark.timeout(120)
@pytest.mark.parametrize("happens", [restarts, is_killed, crashes])
def test_a_server_that_comes_back_finds_its_workers_at_work(tmp_path: Path, happens: Callable[[Server], None]) -> None:
    with own_server() as server, open_world(tmp_path, store=server.url) as world:
        engines = [world.engine() for _ in range(2)]
        world.until(lambda: len(world.workers()) == 2)
        before = sorted(world.workers())
        runs = [effects.sequence.options(id=f"r{i}").start(STEPS) for i in range(RUNS)]
        world.until(lambda: len(world.ledger()) > 2 * RUNS)
        happens(server)
        world.app.close()
        check_when_back(world, runs)
        assert losses(world) == 0, world.log()
        assert sorted(world.workers()) == before, "nobody was declared dead"
        assert executed_again(world) == 0
        assert [world.stop(engine) for engine in engines] == [0, 0]


def check_when_back(world: World, runs: list[Run[int]]) -> None:
    def are_done() -> bool:
        try:
            return all(run.status.is_final for run in world.app.runs(limit=1_000))
        except StoreError:
            return False

    world.until(are_done, 60, "the end of all runs after the server came back")
    check(world, [world.app.get_run(run.id) for run in runs])


# -- runs that others have locked


def test_an_engine_does_not_spin_while_a_run_is_locked_by_others(world: World) -> None:
    run = effects.sequence.start(1)
    claims: list[int] = []
    commit = PostgresStore.commit

    def noting(store: Any, worker: str, changes: list[Any], claim: int, names: list[str]) -> Any:
        committed = commit(store, worker, changes, claim, names)
        if claim and not committed.claimed:
            claims.append(time.monotonic_ns())
        return committed

    with pytest.MonkeyPatch.context() as patch, closing(world.app.store.database.connect()) as other:  # type: ignore[attr-defined]
        patch.setattr(PostgresStore, "commit", noting)
        other.execute("BEGIN")
        other.execute("SELECT 1 FROM runs FOR UPDATE")
        with world.app.worker():
            world.until(lambda: len(claims) >= 4)
            other.execute("COMMIT")
            assert run.result(timeout=20) == 0
    pauses = [later - earlier for earlier, later in itertools.pairwise(claims[:4])]
    assert min(pauses) > 15_000_000, pauses
