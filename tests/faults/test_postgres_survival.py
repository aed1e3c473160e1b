"""What a server may do to its workers: restart while they recover and right after they have claimed, end their
sessions, refuse transactions because of each other, and have few connections to give."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import effects
import psycopg
import pytest
from test_postgres_workers import RUNS, STEPS, check_when_back, executed_again, losses
from world import World, open_world

from holdfast import Run
from holdfast.errors import StoreError
from holdfast.stores import postgres_connections
from postgres_server import Server, own_server

SETTINGS = {"beat": 0.2, "sweep": 0.2, "lease": 3.0}


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with own_server() as server:
        yield server


@pytest.fixture
def world(tmp_path: Path, server: Server, request: pytest.FixtureRequest) -> Iterator[World]:
    schema = f"s{abs(hash(request.node.name)) % 10**9}"
    with open_world(tmp_path, store=f"{server.url}&schema={schema}&application_name={schema}") as opened:
        yield opened


def start(number: int = RUNS) -> list[Run[int]]:
    return [effects.sequence.options(id=f"r{i}").start(STEPS) for i in range(number)]


@pytest.mark.timeout(120)
@pytest.mark.xdist_group("survival")
def test_a_server_that_is_killed_right_after_a_claim_remembers_it(world: World, server: Server) -> None:
    """Unlike with a file, workers outlive the server: what they believe to have claimed has to be theirs."""
    runs = start()
    worker = world.engine(SETTINGS, "commit.after_commit:1:stop")
    world.until(lambda: any(run.status == "RUNNING" for run in runs))
    server.restart("immediate")
    world.app.close()
    worker.send_signal(signal.SIGCONT)
    check_when_back(world, runs)
    assert executed_again(world) == 0
    assert losses(world) == 0
    assert world.stop(worker) == 0


@pytest.mark.timeout(120)
@pytest.mark.xdist_group("survival")
@pytest.mark.parametrize("mode", [pytest.param("fast", marks=pytest.mark.torture), "immediate"])
def test_a_server_that_restarts_while_a_worker_recovers_costs_nothing(world: World, server: Server, mode: str) -> None:
    first = world.engine(SETTINGS)
    runs = start()
    world.until(lambda: len(world.ledger()) > RUNS)
    world.kill(first)
    recorded, before = world.recorded(), len(world.ledger())
    second = world.engine(SETTINGS)
    world.until(lambda: len(world.ledger()) > before)
    (survivor,) = [row.id for row in world.app.store.workers() if row.pid == second.pid]
    server.restart(mode)
    world.app.close()
    check_when_back(world, runs)
    again = [entry for entry in world.ledger()[before:] if entry.name in recorded]
    assert not again, "its outcome had been recorded"
    assert losses(world) == 0
    assert world.workers() == [survivor], "it was not declared dead because of the restart"
    assert world.stop(second) == 0


@pytest.mark.timeout(120)
@pytest.mark.xdist_group("survival")
def test_whoever_waits_for_a_result_waits_on_while_the_server_is_away(
    world: World, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_connections, "LONGEST_WAIT", 0.5)
    run = effects.sequence.start(STEPS)
    found: list[int] = []
    waiting = threading.Thread(target=lambda: found.append(run.result(timeout=60)))
    waiting.start()
    world.until(lambda: any(thread.name == "holdfast-listen" for thread in threading.enumerate()))
    server.stop()
    waiting.join(3)
    assert waiting.is_alive(), "it waits for the server too"
    with pytest.raises(StoreError):
        run.result(timeout=0.1)
    server.start()
    worker = world.engine(SETTINGS)
    waiting.join(60)
    assert found == [run.result(timeout=10)]
    assert world.stop(worker) == 0


@pytest.mark.timeout(120)
@pytest.mark.xdist_group("survival")
def test_sessions_that_are_ended_in_mid_commit_cost_nothing(world: World, server: Server) -> None:
    worker = world.engine(SETTINGS)
    runs = start()
    world.until(lambda: len(world.ledger()) > RUNS)
    schema = world.app.store.database.schema  # type: ignore[attr-defined]
    with psycopg.connect(server.url, autocommit=True) as other:
        for _ in range(20):  # while something is being committed, most of the time
            other.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE application_name = %s AND query LIKE 'WITH fence%%'",
                (schema,),
            )
            other.execute("SELECT pg_sleep(0.02)")
    world.app.close()
    check_when_back(world, runs)
    assert executed_again(world) == 0
    assert losses(world) == 0
    assert world.stop(worker) == 0


@pytest.mark.timeout(120)
@pytest.mark.xdist_group("survival")
@pytest.mark.parametrize(
    "option",
    ["options=-c%20default_transaction_isolation%3Dserializable", "pool=2", "pooler=transaction"],
    ids=["serializable", "few connections", "no session of one's own"],
)
def test_transactions_that_are_refused_and_connections_that_are_few_only_cost_time(
    tmp_path: Path, server: Server, option: str
) -> None:
    schema = f"s{abs(hash(option)) % 10**9}"
    with open_world(tmp_path, store=f"{server.url}&schema={schema}&{option}") as world:
        engines = [world.engine() for _ in range(2)]
        world.until(lambda: len(world.workers()) == 2)
        runs = start(20)
        families = [effects.family.start(3) for _ in range(5)]
        check_families(families)
        assert [run.result(timeout=60) for run in runs] == [sum(range(STEPS))] * len(runs)
        world.check_histories()
        assert executed_again(world) == 0
        assert losses(world) == 0
        assert [world.stop(engine) for engine in engines] == [0, 0]


def check_families(families: list[Run[list[int]]]) -> None:
    assert [run.result(timeout=60) for run in families] == [[100, 101, 103]] * len(families)
