"""Steps that write in a transaction of their own, on workers that are killed and frozen: each write is there once."""

from __future__ import annotations

import signal
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import effects
import psycopg
import pytest
from world import World, open_world

SETTINGS = {"beat": 0.1, "sweep": 0.2, "lease": 1.5}
STEPS = 5
PLACES = ["transaction.before_commit", "transaction.after_commit"]
OTHERS = ["commit.before_commit", "commit.after_commit", "engine.before_hand_over", "engine.after_hand_over"]


class Bank:
    """A world, and a table in its store's database."""

    def __init__(self, world: World, table: str, query: Callable[[str], list[Any]]) -> None:
        self.world, self.table, self.query = world, table, query
        query(f"CREATE TABLE {table} (n INTEGER, pid INTEGER)")

    def engine(self, failpoint: str = "") -> Any:
        return self.world.engine(SETTINGS, failpoint, EFFECTS_TABLE=self.table)

    def deposits(self) -> list[int]:
        return [n for (n,) in self.query(f"SELECT n FROM {self.table} ORDER BY n")]


@pytest.fixture
def on_a_file(tmp_path: Path) -> Iterator[Bank]:
    with open_world(tmp_path) as world:
        _ = world.app.store

        def query(sql: str) -> list[Any]:
            with closing(sqlite3.connect(world.database, timeout=20)) as db, db:
                return db.execute(sql).fetchall()

        yield Bank(world, "deposits", query)


@pytest.fixture
def on_a_server(tmp_path: Path, postgres_server: str, postgres_url: str) -> Iterator[Bank]:
    schema = postgres_url.partition("schema=")[2].partition("&")[0]
    with (
        psycopg.connect(postgres_server, autocommit=True) as connection,
        open_world(tmp_path, store=postgres_url) as world,
    ):
        _ = world.app.store

        def query(sql: str) -> list[Any]:
            cursor = connection.execute(sql)
            return cursor.fetchall() if cursor.description else []

        yield Bank(world, f"{schema}.deposits", query)


@pytest.fixture
def bank(request: pytest.FixtureRequest) -> Bank:
    found: Bank = request.getfixturevalue(request.param)
    return found


def kill_and_go_on(bank: Bank, failpoint: str) -> None:
    world = bank.world
    run = effects.bank.start(STEPS)
    first = bank.engine(failpoint)
    world.until(lambda: first.poll() is not None, 30, f"a worker killed at {failpoint}")
    assert first.returncode == -signal.SIGKILL, world.log()
    second = bank.engine()
    assert run.result(timeout=30) == sum(range(STEPS)), world.log()
    assert bank.deposits() == list(range(STEPS))
    world.check_histories()
    assert world.stop(second) == 0


@pytest.mark.parametrize("bank", ["on_a_file", "on_a_server"], indirect=True)
@pytest.mark.parametrize("place", PLACES)
def test_what_a_step_writes_is_there_once_when_its_worker_is_killed(bank: Bank, place: str) -> None:
    kill_and_go_on(bank, f"{place}:2")
    executed = [entry for entry in bank.world.ledger("deposit") if entry.note == 1]
    assert len(executed) == (2 if place == "transaction.before_commit" else 1), (
        "what was committed is not executed again"
    )


@pytest.mark.torture
@pytest.mark.parametrize("bank", ["on_a_file", "on_a_server"], indirect=True)
@pytest.mark.parametrize("place", PLACES + OTHERS)
@pytest.mark.parametrize("nth", range(1, STEPS + 1))
def test_it_is_there_once_wherever_the_worker_is_killed(bank: Bank, place: str, nth: int) -> None:
    kill_and_go_on(bank, f"{place}:{nth}")


def test_what_a_frozen_worker_was_about_to_write_is_not_there_when_another_has_written_it(on_a_server: Bank) -> None:
    world = on_a_server.world
    schema = on_a_server.table.partition(".")[0]
    run = effects.deposit_in_turn.start()
    first = on_a_server.engine()
    world.until(lambda: world.ledger("deposit_in_turn"))
    first.send_signal(signal.SIGSTOP)
    second = on_a_server.engine()
    world.until(lambda: len(world.ledger("deposit_in_turn")) == 2)
    world.open_gate("second")
    assert run.result(timeout=20) == second.pid
    first.send_signal(signal.SIGCONT)
    world.open_gate("first")
    world.until(
        lambda: (
            not on_a_server.query(
                f"SELECT 1 FROM pg_stat_activity WHERE application_name = '{schema}' AND state LIKE 'idle in transaction%'"
            )
        )
    )
    assert on_a_server.query(f"SELECT pid FROM {on_a_server.table}") == [(second.pid,)]
    assert [world.stop(first), world.stop(second)] == [0, 0]


@pytest.mark.torture
def test_a_worker_frozen_in_its_commit_holds_nobody_up_for_ever(on_a_server: Bank) -> None:
    world = on_a_server.world
    run = effects.bank.start(STEPS)
    first = on_a_server.engine("transaction.before_commit:2:stop")
    world.until(lambda: len(world.ledger("deposit")) == 2)
    second = on_a_server.engine()
    assert run.result(timeout=60) == sum(range(STEPS)), world.log()
    assert on_a_server.deposits() == list(range(STEPS))
    world.kill(first)
    assert world.stop(second) == 0
