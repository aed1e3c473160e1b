"""`holdfast db copy` with runs in flight: they go on at the new place and nowhere else, also if it is killed on its way."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import effects
import psycopg
import pytest
from world import HERE, World, open_world

from holdfast.app import SystemClock
from holdfast.errors import EncodeError, StoreBusyError, StoreError, StoreMovedError
from holdfast.ports import NewRun, WorkerRow
from holdfast.stores.copying import copy
from holdfast.wiring import open_database, open_store
from postgres_server import own_server

KILLED = [f"{name}.{when}_commit" for name in ("copy_out", "copy_in", "copy_done") for when in ("before", "after")]


@pytest.fixture(params=["to a server", "to a file"])
def places(request: Any, tmp_path: Path, postgres_url: str) -> tuple[str, str]:
    """The address of a store, and of an empty one of another kind."""
    both = str(tmp_path / "effects.db"), postgres_url
    return both if request.param == "to a server" else (both[1], both[0])


def move(source: str, target: str) -> Any:
    with closing(open_database(source, SystemClock())) as old, closing(open_database(target, SystemClock())) as new:
        return copy(old, new)


def can_be_opened(url: str) -> bool:
    try:
        store, notifier = open_store("effects", url, SystemClock())
    except StoreMovedError:
        return False
    notifier.close()
    store.close()
    return True


def numbers(url: str) -> dict[str, int]:
    """What the store holds of each kind that matters here."""
    store, notifier = open_store("effects", url, SystemClock())
    try:
        with store.read() as db:  # type: ignore[attr-defined]
            tables = ("runs", "history", "inbox", "attributes", "schedules", "subscriptions", "domain_events")
            return {table: db.execute(f"SELECT count(*) FROM {table}").fetchone()[0] for table in tables}
    finally:
        notifier.close()
        store.close()


@pytest.fixture
def world(places: tuple[str, str], tmp_path: Path) -> Iterator[World]:
    """Runs in flight at the old place, whose worker was killed."""
    with open_world(tmp_path, store=places[0]) as opened:
        yield opened


def test_runs_in_flight_go_on_at_the_new_place(world: World, places: tuple[str, str], tmp_path: Path) -> None:
    worker = world.engine({"beat": 0.2, "lease": 1.0})
    runs = [effects.sequence.options(id=f"s{i}").start(12) for i in range(8)]
    runs += [effects.family.options(id=f"f{i}").start(2) for i in range(3)]
    asking = effects.question.options(id="q").start()
    effects.add.options(id="later", delay="1h").start(1, 2)
    world.until(lambda: len(world.ledger("add")) > 30 and asking.status == "WAITING")
    secret = world.app.store.secret()
    world.kill(worker)
    asking.send("answer", "one")
    recorded, before = world.recorded(), len(world.ledger())
    world.app.close()

    def moved() -> Any:
        try:
            return move(*places)
        except StoreBusyError:  # of a server nobody knows yet that the worker is dead
            return None

    assert world.until(moved).rows["runs"] >= 13
    assert not can_be_opened(places[0])

    with open_world(tmp_path, store=places[1]) as there:
        second = there.engine()
        again = [there.app.get_run(run.id) for run in runs]
        assert [run.result(timeout=30) for run in again[:8]] == [sum(range(12))] * 8
        assert [run.result(timeout=30) for run in again[8:]] == [[100, 101]] * 3
        there.app.get_run("q").send("answer", "two")
        assert there.app.store.secret() == secret, "links that were sent stay good"
        assert there.app.get_run("q").result(timeout=20) == "one two"
        assert there.app.get_run("later").status == "PENDING"
        there.check_histories()
        twice = [entry for entry in there.ledger()[before:] if entry.name in recorded]
        assert not twice, "what was recorded at the old place was executed again at the new one"
        fresh = effects.add.start(1, 1)
        assert fresh.result(timeout=20) == 2, "numbers go on"
        assert there.stop(second) == 0


@pytest.mark.parametrize("place", KILLED)
def test_a_move_that_is_killed_leaves_the_old_place_or_the_new_one(
    place: str, tmp_path: Path, postgres_url: str
) -> None:
    old = str(tmp_path / "effects.db")
    with open_world(tmp_path, store=old):
        for i in range(5):
            effects.question.options(id=f"q{i}").start()
        effects.app.get_run("q1").cancel()
    held = numbers(old)
    program = (
        "from holdfast import failpoints; failpoints.arm_from_environment(); from holdfast.cli import main; main()"
    )
    command = [sys.executable, "-c", program, "db", "copy", old, postgres_url]
    environment = {**os.environ, "HOLDFAST_FAILPOINT": f"{place}:1"}
    killed = subprocess.run(command, env=environment, cwd=HERE, capture_output=True, timeout=60, check=False)
    assert killed.returncode == -signal.SIGKILL, killed
    counts = [url for url in (old, postgres_url) if can_be_opened(url) and numbers(url)["runs"]]
    is_late = place in ("copy_out.after_commit", "copy_done.before_commit")
    expected = [postgres_url] if place == "copy_done.after_commit" else [] if is_late else [old]
    assert counts == expected
    if expected != [postgres_url]:
        move(old, postgres_url)
    assert not can_be_opened(old)
    assert numbers(postgres_url) == held
    with pytest.raises(StoreMovedError, match="were moved to postgresql://"):
        move(old, postgres_url)


def test_a_process_that_had_the_old_place_open_can_start_nothing_there(places: tuple[str, str]) -> None:
    store, notifier = open_store("effects", places[0], SystemClock())
    move(*places)
    now = store.now()
    run = NewRun(id="r", workflow="add", records=[], wake_at=now, created_at=now, fingerprint=b"")
    with pytest.raises(StoreMovedError, match="set HOLDFAST_STORE"):
        store.create(run)
    row = WorkerRow(id="w", app="effects", host="h", pid=1, build="1", names=[])
    with pytest.raises(StoreMovedError):
        store.register(row, 1_000_000)
    notifier.close()
    store.close()


def test_a_place_where_workers_live_is_not_left(world: World, places: tuple[str, str]) -> None:
    worker = world.engine()
    world.until(lambda: world.workers())
    with pytest.raises(StoreBusyError, match=f"process {worker.pid} on .* stop them first"):
        move(*places)
    assert world.stop(worker) == 0
    world.app.close()
    move(*places)


def test_a_database_of_the_same_name_on_another_server_is_another_place(tmp_path: Path, postgres_url: str) -> None:
    schema = postgres_url.partition("schema=")[2].partition("&")[0]
    with own_server() as another:
        source = f"{another.url}&schema={schema}"
        with open_world(tmp_path, store=source):
            effects.add.options(id="a").start(1, 2)
        with pytest.raises(StoreError, match="can't be copied to itself"):
            move(source, source)
        assert move(source, postgres_url).rows["runs"] == 1


def test_a_place_that_is_not_empty_is_not_mixed_with_another(places: tuple[str, str], tmp_path: Path) -> None:
    for url in places:
        with open_world(tmp_path, store=url):
            effects.add.options(id="a").start(1, 2)
    with pytest.raises(StoreError, match="is not empty"):
        move(*places)
    assert all(can_be_opened(url) for url in places)


def test_what_the_new_place_can_not_hold_is_told_and_nothing_has_moved(tmp_path: Path, postgres_url: str) -> None:
    old = str(tmp_path / "effects.db")
    with open_world(tmp_path, store=old):
        effects.add.options(id="a").start(1, 2)
    with closing(sqlite3.connect(old)) as db, db:
        db.execute("UPDATE runs SET reason = 'a' || char(0) || 'b'")
    with pytest.raises(EncodeError, match="NUL"):
        move(old, postgres_url)
    assert can_be_opened(old)
    with closing(sqlite3.connect(old)) as db, db:
        db.execute("UPDATE runs SET reason = ''")
    move(old, postgres_url)
    assert numbers(postgres_url)["runs"] == 1


def test_the_numbers_of_deleted_runs_are_not_given_again(places: tuple[str, str], tmp_path: Path) -> None:
    with open_world(tmp_path, store=places[0]) as world:
        runs = [effects.add.options(id=f"r{i}").start(1, 2) for i in range(3)]
        last = world.app.store.get("r2").no  # type: ignore[union-attr]
        runs[2].pause()
        with world.app.worker():
            world.until(lambda: runs[2].status == "PAUSED" or runs[2].status.is_final)
        runs[2].delete()
    move(*places)
    with open_world(tmp_path, store=places[1]) as world:
        effects.add.options(id="new").start(1, 2)
        assert world.app.store.get("new").no > last  # type: ignore[union-attr]


def test_a_new_place_has_statistics(tmp_path: Path, postgres_url: str, postgres_server: str) -> None:
    old = str(tmp_path / "effects.db")
    with open_world(tmp_path, store=old):
        for i in range(50):
            effects.add.options(id=f"r{i}").start(1, 2)
    move(old, postgres_url)
    schema = postgres_url.partition("schema=")[2].partition("&")[0]
    with psycopg.connect(postgres_server) as connection:
        asked = "SELECT reltuples FROM pg_class WHERE oid = %s::regclass"
        assert connection.execute(asked, (f"{schema}.runs",)).fetchone() == (50,)


@pytest.fixture
def cli() -> Callable[..., subprocess.CompletedProcess[str]]:
    def run(*words: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "holdfast", *words]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, cwd=HERE)
        assert done.returncode == code, done
        return done

    return run


def test_the_command_says_what_a_store_is_and_where_it_went(
    cli: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path, postgres_url: str
) -> None:
    old = str(tmp_path / "effects.db")
    with open_world(tmp_path, store=old):
        effects.add.options(id="a").start(1, 2)
    assert "there is nothing here yet" in cli("db", "status", postgres_url).stdout
    assert "schema 0 became" in cli("--store", postgres_url, "db", "upgrade").stdout
    assert "up to date" in cli("db", "upgrade", postgres_url).stdout
    assert cli("db", "status", old).stdout.splitlines()[-1].split() == ["effects", "1", "0", "0"]
    assert "moved " in cli("db", "copy", f"sqlite:///{old}", postgres_url).stdout
    assert "its runs were moved to postgresql://" in cli("db", "status", old).stdout
    assert "set HOLDFAST_STORE" in cli("--store", old, "runs", "list", code=5).stderr
    assert "were moved to" in cli("db", "copy", old, postgres_url, code=4).stderr
