"""Databases that can't be used, or can't for a while: a clear error that says what to do, and nothing lost."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from holdfast import App
from holdfast.app import SystemClock
from holdfast.errors import (
    StoreBusyError,
    StoreFullError,
    StoreReadOnlyError,
    StoreSchemaError,
    StoreUnavailableError,
)
from holdfast.ports import NewRun, Record, RunQuery
from holdfast.stores import ground, schema
from holdfast.stores.sqlite import SqliteStore


def open_store(path: Path | str, timeout: float = 5.0, app: str = "orders") -> SqliteStore:
    return SqliteStore(app, str(path), SystemClock(), timeout=timeout)


def create(store: SqliteStore, run_id: str, size: int = 10) -> None:
    now = store.now()
    record = Record(1, "RunStarted", "", "", 0, 0, "", now, b"x" * size)
    store.create(NewRun(id=run_id, workflow="ship", records=[record], wake_at=now, created_at=now, fingerprint=b""))


def ids(store: SqliteStore) -> list[str]:
    return sorted(row.id for row in store.runs(RunQuery()))


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that any user may enter."""
    folder = Path(tempfile.mkdtemp(dir="/tmp"))
    folder.chmod(0o777)
    yield folder
    folder.chmod(0o777)
    shutil.rmtree(folder)


@contextmanager
def as_ordinary_user() -> Iterator[None]:
    """Permissions mean nothing to root. The user it becomes may not be allowed to read where the code lies, so what
    a store reads from there is read before."""
    if os.geteuid() != 0:
        yield
        return
    open_store(":memory:").close()  # its queries
    with pytest.MonkeyPatch.context() as patch:
        known = schema.migrations()
        patch.setattr(schema, "migrations", lambda dialect: known)
        os.seteuid(65534)
        try:
            yield
        finally:
            os.seteuid(0)


# -- where it is


def test_a_folder_that_does_not_exist_is_named(tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailableError, match=r"the folder .*/nowhere doesn't exist; create it"):
        open_store(tmp_path / "nowhere" / "orders.db")
    assert not (tmp_path / "nowhere").exists()


def test_a_folder_is_no_database(tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailableError, match="can't be opened"):
        open_store(tmp_path)


@pytest.mark.parametrize("kind", ["nfs", "nfs4", "cifs", "9p", "fuse.sshfs"])
def test_a_network_file_system_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    mounts = tmp_path / "mounts"
    place = str(tmp_path / "far away").replace(" ", "\\040")
    mounts.write_text(f"/dev/sda / ext4 rw 0 0\nserver:/x {place} {kind} rw 0 0\n")
    monkeypatch.setattr(ground, "_MOUNTS", mounts)
    folder = tmp_path / "far away" / "deeper"
    folder.mkdir(parents=True)
    with pytest.raises(StoreUnavailableError, match=rf"is on a {kind} mount.*local disk, or use PostgreSQL"):
        open_store(folder / "orders.db")
    assert list(folder.iterdir()) == []
    open_store(tmp_path / "orders.db").close()


def test_a_network_file_system_behind_a_link_is_refused_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "far").mkdir()
    (tmp_path / "near").symlink_to(tmp_path / "far")
    mounts = tmp_path / "mounts"
    mounts.write_text(f"/dev/sda / ext4 rw 0 0\nserver:/x {tmp_path / 'far'} nfs4 rw 0 0\n")
    monkeypatch.setattr(ground, "_MOUNTS", mounts)
    with pytest.raises(StoreUnavailableError, match="nfs4"):
        open_store(tmp_path / "near" / "orders.db")


def test_a_system_that_does_not_tell_its_mounts_is_trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ground, "_MOUNTS", tmp_path / "none")
    open_store(tmp_path / "orders.db").close()


def test_unknown_options_are_refused(tmp_path: Path) -> None:
    for query in ("sync=off", "sync=full&cache=shared", "timeout=3"):
        with pytest.raises(StoreUnavailableError, match=r"\?sync=full or \?sync=normal"):
            open_store(f"sqlite:///{tmp_path / 'orders.db'}?{query}")
    open_store(f"sqlite:///{tmp_path / 'orders.db'}?sync=normal").close()


# -- what it is


@pytest.mark.parametrize(
    "content", [b"hello, this is a text and no database at all\n" * 100, os.urandom(8192)], ids=["text", "noise"]
)
def test_a_file_that_is_no_database_is_left_alone(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "orders.db"
    file.write_bytes(content)
    with pytest.raises(StoreUnavailableError, match=r"is not a SQLite database.*name another file"):
        open_store(file)
    assert file.read_bytes() == content


def test_an_empty_file_becomes_a_database(tmp_path: Path) -> None:
    (tmp_path / "orders.db").touch()
    store = open_store(tmp_path / "orders.db")
    create(store, "r")
    assert ids(store) == ["r"]
    store.close()


@pytest.mark.parametrize(
    "schema",
    [
        "CREATE TABLE users (id INTEGER PRIMARY KEY, name TEXT)",
        "CREATE TABLE runs (distance REAL)",
        "CREATE TABLE meta (name TEXT, content TEXT)",
        "CREATE TABLE meta (key TEXT, value TEXT)",
    ],
)
def test_a_database_of_another_program_is_left_alone(tmp_path: Path, schema: str) -> None:
    file = tmp_path / "other.db"
    db = sqlite3.connect(file)
    db.execute(schema)
    db.commit()
    with pytest.raises(StoreSchemaError, match="database of another program; name another file"):
        open_store(file)
    assert [sql for (sql,) in db.execute("SELECT sql FROM sqlite_master")] == [schema]
    db.close()


def test_a_newer_schema_is_refused_and_left_alone(tmp_path: Path) -> None:
    file = tmp_path / "orders.db"
    store = open_store(file)
    create(store, "r")
    store.close()
    db = sqlite3.connect(file)
    (known,) = db.execute("SELECT value FROM meta WHERE key = 'schema'").fetchone()
    db.execute("UPDATE meta SET value = '99' WHERE key = 'schema'")
    db.commit()
    with pytest.raises(StoreSchemaError, match=r"schema 99, this version of Holdfast knows \d+; upgrade Holdfast"):
        open_store(file)
    db.execute("UPDATE meta SET value = ? WHERE key = 'schema'", (known,))
    db.commit()
    db.close()
    again = open_store(file)
    assert ids(again) == ["r"]
    again.close()


def test_apps_share_a_file_and_do_not_see_each_other(tmp_path: Path) -> None:
    orders, bills = open_store(tmp_path / "x.db"), open_store(tmp_path / "x.db", app="bills")
    create(orders, "r")
    create(bills, "r")
    create(bills, "s")
    assert (ids(orders), ids(bills)) == (["r"], ["r", "s"])
    assert orders.secret() == bills.secret()
    assert orders.apps() == ["bills", "orders"]
    assert orders.next_wake(["ship"]) is not None
    orders.close()
    bills.close()


# -- what it allows


def test_a_read_only_file_says_so(open_folder: Path) -> None:
    file = open_folder / "orders.db"
    store = open_store(file)
    create(store, "r")
    store.close()
    for each in open_folder.iterdir():
        each.chmod(0o444)
    with as_ordinary_user(), pytest.raises(StoreReadOnlyError, match=r"orders.db can't be written.*make the file"):
        opened = open_store(file)
        create(opened, "s")
    for each in open_folder.iterdir():
        each.chmod(0o666)
    with as_ordinary_user():
        again = open_store(file)
        create(again, "s")
        assert ids(again) == ["r", "s"]
        again.close()


def test_a_read_only_folder_says_so(open_folder: Path) -> None:
    open_folder.chmod(0o555)
    with (
        as_ordinary_user(),
        pytest.raises(StoreReadOnlyError, match=r"orders.db can't be written.*make the file and its folder"),
    ):
        open_store(open_folder / "orders.db")
    open_folder.chmod(0o777)
    assert list(open_folder.iterdir()) == []


def test_a_database_locked_by_another_program_is_busy_and_goes_on_later(tmp_path: Path) -> None:
    file = tmp_path / "orders.db"
    store = open_store(file, timeout=0.2)
    create(store, "r")
    other = sqlite3.connect(file, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    begin = time.monotonic()
    with pytest.raises(StoreBusyError, match=r"locked by another program for 0.2 s.*close whatever has it open"):
        create(store, "s")
    assert 0.15 < time.monotonic() - begin < 3
    assert ids(store) == ["r"], "reading goes on"
    other.execute("ROLLBACK")
    other.close()
    create(store, "s")
    assert ids(store) == ["r", "s"]
    store.close()


def test_a_database_with_no_room_is_full_and_goes_on_later(tmp_path: Path) -> None:
    """A limit on its pages is as good as a full disk to SQLite."""
    store = open_store(tmp_path / "orders.db")
    create(store, "r")
    with store.read() as db:
        pages = db.execute("PRAGMA page_count").fetchone()[0]
        db.execute(f"PRAGMA max_page_count = {pages}")
    with pytest.raises(StoreFullError, match=r"no room left for .*orders.db.*free some, runs go on by themselves"):
        create(store, "s", size=1_000_000)
    assert ids(store) == ["r"]
    create(store, "s", size=1_000_000)  # by a connection without the limit
    assert ids(store) == ["r", "s"]
    store.close()


# -- a disk that is really full, and a worker on it


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    place = tmp_path / "disk"
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", place], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("no file systems can be mounted here")
    yield place
    subprocess.run(["umount", "-l", place], check=True)


def fill(disk: Path) -> Callable[[], None]:
    """Take all the room there is; what gives it back."""
    filler = disk / "filler"
    with filler.open("wb", buffering=0) as file, pytest.raises(OSError):
        while True:
            file.write(b"x" * 4096)
    return filler.unlink


def test_a_full_disk_says_so_and_runs_go_on_when_there_is_room(small_disk: Path) -> None:
    app = App("full", str(small_disk / "orders.db"))
    gate = threading.Event()
    executed = []

    @app.step
    def wait() -> int:
        executed.append(1)
        gate.wait(20)
        return len(executed)

    @app.workflow
    async def patient() -> int:
        return wait() + wait()

    with app.worker() as engine:
        runs = [patient.options(id=f"r{i}").start() for i in range(3)]
        until(lambda: len(executed) == 3)
        give_back = fill(small_disk)
        with pytest.raises(StoreFullError, match="free some, runs go on by themselves"):
            for number in range(1_000):  # there may be room left in the files themselves
                patient.options(id=f"more-{number}", delay=3600).start()
        gate.set()
        until(lambda: engine.engine.env.backoff.failures > 0)
        give_back()
        assert sorted(run.result(timeout=20) for run in runs)
        assert len(executed) == 6, "nothing is executed twice"
    app.close()


def test_a_new_database_on_a_full_disk_says_so(small_disk: Path) -> None:
    give_back = fill(small_disk)
    with pytest.raises(StoreFullError, match="there is no room left"):
        open_store(small_disk / "orders.db")
    give_back()
    store = open_store(small_disk / "orders.db")
    create(store, "r")
    store.close()


def test_a_disk_that_becomes_read_only_is_told_and_runs_go_on_when_it_is_not(small_disk: Path) -> None:
    app = App("frozen", str(small_disk / "orders.db"))

    @app.step
    def one() -> int:
        return 1

    @app.workflow
    async def simple() -> int:
        return one()

    assert simple.options(id="first").start()
    app.close()
    subprocess.run(["mount", "-o", "remount,ro", small_disk], check=True)
    with pytest.raises(StoreReadOnlyError, match="can't be written"):
        simple.options(id="second").start()
    subprocess.run(["mount", "-o", "remount,rw", small_disk], check=True)
    with app.worker():
        assert simple.options(id="second").start().result(timeout=20) == 1
        assert app.get_run("first").result(timeout=20) == 1
    app.close()


def until(condition: Callable[[], object], timeout: float = 20) -> None:
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


LOOK = """
import os, sys
from holdfast.app import SystemClock
from holdfast.errors import StoreReadOnlyError
from holdfast.ports import Message, RunQuery
from holdfast.stores.sqlite import SqliteStore

SqliteStore("shop", ":memory:", SystemClock()).close()  # imports all that it needs
os.setuid(65534)
store = SqliteStore("shop", sys.argv[1], SystemClock())
print([row.id for row in store.runs(RunQuery())], len(store.payloads("r1")))
try:
    store.post(Message(run_id="r1", kind="x"))
except StoreReadOnlyError as error:
    print("refused")
store.close()
"""


@pytest.mark.skipif(os.name == "nt" or os.geteuid() != 0, reason="needs to become somebody who may not write")
@pytest.mark.parametrize("in_use", [True, False])
def test_who_may_only_read_the_file_can_look_and_not_write(in_use: bool) -> None:
    folder = Path(tempfile.mkdtemp())
    try:
        store = SqliteStore("shop", str(folder / "shop.db"), SystemClock())
        create(store, "r1")
        if not in_use:
            store.close()
        folder.chmod(0o555)
        looked = subprocess.run(
            [sys.executable, "-c", LOOK, str(folder / "shop.db")], capture_output=True, text=True, timeout=60, cwd="/"
        )
        assert looked.stdout == "['r1'] 1\nrefused\n", looked.stderr
        store.close()
    finally:
        folder.chmod(0o755)
        shutil.rmtree(folder)
