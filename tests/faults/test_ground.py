"""What a store stands on can vanish, be cut short or be damaged; nobody goes on as if it had not."""

from __future__ import annotations

import os
import re
import resource
import shutil
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import effects
import pytest
from world import World

from holdfast import App, RunStuckError, Schedule, ScheduleError, every, sleep
from holdfast.app import SystemClock
from holdfast.errors import StoreError, StoreLostError, StoreUnavailableError
from holdfast.ports import NewRun, Record, RunQuery
from holdfast.stores import sqlite
from holdfast.stores.doorbell import Doorbell
from holdfast.stores.limits import Limits
from holdfast.stores.locks import LifeLock
from holdfast.stores.messages import Messages
from holdfast.stores.runs import Runs
from holdfast.stores.sqlite import SqliteStore

QUICK = {"sweep": 0.05, "beat": 0.1, "lease": 5.0}


def remove(world: World) -> None:
    for suffix in ("", "-wal", "-shm"):
        os.unlink(f"{world.database}{suffix}")


def replace(world: World) -> None:
    """As somebody would who brings back a backup."""
    copy = world.folder / "copy.db"
    db = sqlite3.connect(copy)
    db.execute("CREATE TABLE other (x)")
    db.commit()
    db.close()
    os.replace(copy, world.database)


def remove_wal(world: World) -> None:
    os.unlink(f"{world.database}-wal")


@contextmanager
def sql(world: World) -> Iterator[sqlite3.Connection]:
    db = sqlite3.connect(world.database, timeout=20)
    with db:
        yield db
    db.close()


# -- the files


@pytest.mark.parametrize("vanish", [remove, replace, remove_wal])
def test_nothing_is_acknowledged_once_the_file_is_gone(world: World, vanish: Callable[[World], None]) -> None:
    effects.sequence.start(1)
    vanish(world)
    for _ in range(2):
        with pytest.raises(StoreLostError, match=r"effects.db\S* was (deleted|replaced).*restart this process"):
            effects.sequence.start(1)
        with pytest.raises(StoreLostError):
            world.app.runs()


def test_a_file_that_goes_while_a_commit_is_under_way_is_not_acknowledged(world: World) -> None:
    effects.sequence.start(1)
    with pytest.raises(StoreLostError), world.app.store.write("commit"):
        remove(world)


def test_a_new_file_of_the_same_name_is_left_alone_by_those_who_had_the_old_one(world: World) -> None:
    """The last to close a database deletes the WAL by its name, which by then may be that of another."""
    effects.sequence.start(1)
    remove(world)
    script = "import effects, os; effects.sequence.options(id='new').start(1); os._exit(0)"
    assert world.python("-c", script).wait(20) == 0, world.log()
    assert os.path.exists(f"{world.database}-wal")
    world.app.close()
    assert os.path.exists(f"{world.database}-wal")
    assert [run.id for run in world.app.runs()] == ["new"]
    shutil.copy(world.database, world.folder / "copied")  # the locks on the new file are held as those on the old were
    script = "import effects; effects.sequence.options(id='newer').start(1); effects.app.close()"
    assert world.python("-c", script).wait(20) == 0, world.log()
    effects.sequence.options(id="newest").start(1)
    assert len(world.app.runs()) == 3


@pytest.mark.parametrize("vanish", [remove, replace])
def test_a_worker_ends_once_its_file_is_gone_whatever_its_steps_do(
    world: World, vanish: Callable[[World], None]
) -> None:
    code = "import threading, time; threading.Thread(target=time.sleep, args=(60,)).start(); "  # Python waits for those
    worker = world.python("-c", f"{code}from holdfast.cli import main; main()", "-A", "effects", "worker")
    effects.gated.start("shut")
    world.until(lambda: world.ledger("wait_at_gate"))
    vanish(world)
    assert worker.wait(20) == 5, world.log()
    assert "worker ends, as" in re.sub(r"worker \S+ ends", "worker ends", world.log())
    assert "restart this process" in world.log()
    assert "Traceback" not in world.log()


@pytest.mark.parametrize("vanish", [remove, replace])
def test_an_engine_in_this_process_ends_once_its_file_is_gone_and_results_say_so(
    world: World, vanish: Callable[[World], None]
) -> None:
    with world.app.worker() as engine:
        world.until(lambda: engine.health().ok)
        run = effects.question.start()
        vanish(world)
        with pytest.raises(StoreLostError, match="restart this process"):
            run.result(timeout=20)
        told = world.until(lambda: not (now := engine.health()).ok and now)
        assert "restart this process" in told.problem
        assert not told.store_reachable
        world.until(lambda: isinstance(engine.failure, StoreLostError))


COPY = """
import glob, os, shutil, effects
run = effects.sequence.options(id="before").start(1)
store = os.environ["HOLDFAST_STORE"]
for name in glob.glob(store + "*"):
    if "-bell-" not in name:
        shutil.copy(name, os.path.join(os.path.dirname(store), "copied"))  # drops the locks that POSIX gives to a process
open(os.environ["EFFECTS_LEDGER"] + ".copied", "w").close()
while not os.path.exists(os.environ["EFFECTS_LEDGER"] + ".go"): pass
effects.sequence.options(id="after").start(1)
os._exit(0)
"""


def test_a_process_that_copies_the_files_keeps_its_hold_on_them(world: World) -> None:
    process = world.python("-c", COPY)
    world.until(lambda: (world.folder / "ledger.copied").exists())
    client = "import effects; effects.sequence.options(id='other').start(1); effects.app.close()"
    assert world.python("-c", client).wait(20) == 0, world.log()
    assert os.path.exists(f"{world.database}-wal"), "somebody else has it open"
    (world.folder / "ledger.go").touch()
    assert process.wait(20) == 0, world.log()
    assert {run.id for run in world.app.runs()} == {"before", "other", "after"}


def test_the_last_to_close_a_database_leaves_one_file(world: World) -> None:
    for end in ("effects.app.close()", ""):
        script = f"import effects; effects.sequence.start(1); {end}"
        assert world.python("-c", script).wait(20) == 0, world.log()
        assert not os.path.exists(f"{world.database}-wal"), end or "at the end of the process"


def test_copying_the_lock_of_a_worker_does_not_kill_it(world: World) -> None:
    with world.app.worker() as engine:
        path = f"{world.database}-worker-{engine.worker_id}"
        shutil.copy(path, world.folder / "copied")
        check = f"from holdfast.stores.locks import LifeLock; assert not LifeLock({path!r}).is_free()"
        assert world.python("-c", check).wait(20) == 0, world.log()


@pytest.mark.parametrize("with_a_copy", [False, True])
def test_a_worker_whose_lock_file_was_deleted_makes_it_anew(world: World, with_a_copy: bool) -> None:
    worker = world.engine({"sweep": 0.05})
    world.until(lambda: world.workers())
    path = Path(f"{world.database}-worker-{world.workers()[0]}")
    if with_a_copy:
        shutil.copy(path, world.folder / "copied")
        os.replace(world.folder / "copied", path)
    else:
        path.unlink()
    world.until(lambda: path.exists() and not LifeLock(str(path)).is_free())
    assert "it is made anew" in world.log()
    world.stop(worker)
    assert not path.exists()


def test_a_process_with_too_many_files_open_gets_an_error_of_the_store(world: World) -> None:
    effects.sequence.start(1)
    world.app.close()
    store = world.app.store
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    lock = LifeLock(f"{world.database}-worker-x")
    lock.take()
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")), hard))
        opened: list[int] = []
        with pytest.raises(OSError):
            while True:
                opened.append(os.open("/dev/null", os.O_RDONLY))
        for ask in (lock.is_free, LifeLock(f"{world.database}-worker-y").take):
            with pytest.raises(StoreUnavailableError, match=r"Too many open files.*ulimit -n"):
                ask()
        with pytest.raises(StoreError):
            SqliteStore("effects", str(world.database), world.app.storage.clock)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for fd in opened:
            os.close(fd)
        lock.release()
    assert store.get("nobody") is None


# -- histories


@pytest.mark.parametrize("which", ["middle", "last", "first", "all"])
def test_a_run_that_lost_an_event_is_set_aside(world: World, which: str) -> None:
    app = App("gaps", str(world.database))
    done: list[int] = []

    @app.step
    def work(n: int) -> int:
        done.append(n)
        return n

    @app.workflow
    async def long() -> None:
        for n in range(3):
            work(n)
        await sleep("1d")

    del os.environ["HOLDFAST_STORE"]
    run = long.options(id="r").start()
    with app.worker():
        world.until(lambda: len(run.steps) == 3 and run.status == "WAITING")
    with sql(world) as db:
        last = db.execute("SELECT max(seq) FROM history").fetchone()[0]
        where = {"middle": "seq = 2", "last": f"seq = {last}", "first": "seq = 1", "all": "1"}[which]
        db.execute(f"DELETE FROM history WHERE {where}")
        db.execute("UPDATE runs SET wake_at = 1")
    lost = {"middle": "event 2", "last": f"event {last}", "first": "event 1", "all": "events 1, 2"}[which]
    with app.worker():
        with pytest.raises(RunStuckError, match=rf"lost {lost}.*backup, or cancel or delete the run"):
            run.result(timeout=20)
        assert done == [0, 1, 2]
        run.resume()
        world.until(lambda: not app.store.orders("r") and run.status == "STUCK")
        assert done == [0, 1, 2]
        run.cancel()
        world.until(lambda: run.status == "CANCELLED")
    run.delete()
    assert not app.runs()
    app.close()


# -- room


def create(store: SqliteStore, run_id: str, size: int = 10) -> None:
    now = store.now()
    record = Record(1, "RunStarted", "", "", 0, 0, "", now, b"x" * size)
    store.create(NewRun(id=run_id, workflow="ship", records=[record], wake_at=now, created_at=now, fingerprint=b""))


def test_retention_keeps_up_and_the_file_stops_growing(tmp_path: Path) -> None:
    store = SqliteStore("orders", str(tmp_path / "x.db"), SystemClock())
    runs = Runs(store.database, Messages(store.database, Limits(store.database)))
    sizes = []
    for turn in range(6):
        with store.write("fill") as db:
            for number in range(1_000):
                record = Record(1, "RunStarted", "", "", 0, 0, "", 1, b"x" * 500)
                new = NewRun(
                    id=f"{turn}-{number}", workflow="w", records=[record], wake_at=1, created_at=1, fingerprint=b""
                )
                runs.insert(db, new)
            db.execute("UPDATE runs SET status = 'SUCCESS', expires_at = 1, wake_at = NULL")
        while store.collect(500).runs:
            pass
        with store.read() as db:
            sizes.append(db.execute("PRAGMA page_count").fetchone()[0])
            assert not any(db.execute(f"SELECT count(*) FROM {t}").fetchone()[0] for t in ("runs", "history"))
    assert max(sizes[2:]) <= sizes[1] * 1.1, "pages that were freed are used again"
    store.close()


def test_a_worker_deletes_more_than_one_batch_in_a_sweep(world: World) -> None:
    store = world.app.store
    assert isinstance(store, SqliteStore)
    for number in range(3):
        create(store, f"{number}")
    with store.write("fill") as db:
        db.execute("DELETE FROM history")
        db.execute(
            "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 2000) "
            "INSERT INTO runs (app, id, workflow, status, options, fingerprint, created_at, finished_at, expires_at) "
            "SELECT 'effects', 'old-' || i, 'sequence', 'SUCCESS', '{}', '', 1, 1, 1 FROM n"
        )
    # One sweep, as the next is an hour away.
    world.engine({"sweep": 3600.0, "collect_for": 30.0})
    world.until(lambda: not store.runs(RunQuery(prefix="old-", limit=1)))


READER = """
import sqlite3, sys, time
db = sqlite3.connect(sys.argv[1], isolation_level=None)
db.execute("BEGIN")
db.execute("SELECT count(*) FROM runs").fetchall()
print("reading", flush=True)
time.sleep(60)
"""


def test_a_reader_that_makes_the_wal_grow_is_named(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite, "WAL_LIMIT", 8 * 2**20)
    store = SqliteStore("effects", str(world.database), SystemClock())
    create(store, "first")
    assert store.strain() == ""
    command = [sys.executable, "-c", READER, str(world.database)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as reader:
        assert reader.stdout is not None
        reader.stdout.readline()
        for number in range(12):
            create(store, f"r{number}", 2**20)
        said = store.strain()
        assert f"process {reader.pid} reads" in said
        assert "MB" in said
        reader.kill()
    assert store.strain() == ""
    assert os.stat(f"{world.database}-wal").st_size == 0
    store.close()


def test_a_worker_and_the_doctor_tell_of_a_wal_that_grows(world: World) -> None:
    store = world.app.store
    assert isinstance(store, SqliteStore)
    command = [sys.executable, "-c", READER, str(world.database)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as reader, world.app.worker() as engine:
        assert reader.stdout is not None
        reader.stdout.readline()
        for number in range(9):
            create(store, f"r{number}", 8 * 2**20)
        world.until(lambda: f"process {reader.pid}" in engine.health().note)
        assert engine.health().ok
        doctor = "from holdfast.cli import main; main()"
        found = world.python("-c", doctor, "-A", "effects", "doctor").wait(30)
        assert found == 1
        assert f"process {reader.pid} reads" in world.log()
        reader.kill()
        reader.wait()
        world.until(lambda: not engine.health().note)


def test_a_backup_that_was_brought_back_in_place_is_not_written_into_by_a_checkpoint(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, backup = world.app.store, world.folder / "backup.db"
    assert isinstance(store, SqliteStore)
    with store.read() as db:
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    shutil.copyfile(world.database, backup)
    effects.sequence.start(1)
    monkeypatch.setattr(sqlite, "_size", lambda path: sqlite.WAL_LIMIT + 1)
    assert store.get("r") is None  # which has looked at the files
    for suffix in ("-wal", "-shm"):
        os.unlink(f"{world.database}{suffix}")
    shutil.copyfile(backup, world.database)
    with pytest.raises(StoreLostError):
        store.strain()
    assert world.database.read_bytes() == backup.read_bytes()


# -- bells


def test_who_could_not_be_heard_of_looks_more_often(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine that is told more than it can take hears no more of whoever begins to wait."""
    store = world.app.store
    assert isinstance(store, SqliteStore)
    bells = Doorbell(store, store.database.path)
    engine = bells.hang()
    monkeypatch.setattr(store, "addresses", lambda everyone, kind: [engine.name])
    while bells.tell_engines(b"something"):
        pass
    watch = bells.watch("r")
    begin = time.monotonic()
    assert not watch.wait(10)
    assert time.monotonic() - begin < 5
    engine.drain()
    assert bells.tell_engines(b"something")
    watch.close()
    bells.close()
    engine.take_down()


def test_bells_of_killed_waiters_are_cleared_by_the_next_waiter(world: World) -> None:
    store = world.app.store
    assert isinstance(store, SqliteStore)
    dead = Doorbell(store, store.database.path)
    for _ in range(120):
        dead.hang().socket.close()  # as the kernel does for a process that was killed
    alive = dead.hang()
    watch = Doorbell(store, store.database.path).watch("r")
    left = [f.name for f in world.folder.iterdir() if "-bell-" in f.name]
    assert len(left) == 2
    assert alive.name in left
    watch.close()
    alive.take_down()


# -- damaged rows


@pytest.mark.parametrize("damage", ["'{'", "'[1'", "5", "x'ff00ff'", "'null'"])
def test_a_damaged_row_of_a_worker_keeps_nobody_from_working(world: World, damage: str) -> None:
    worker = world.engine({"sweep": 0.05})
    world.until(lambda: world.workers())
    with sql(world) as db:
        db.execute(f"UPDATE workers SET names = {damage}, schedules = {damage}, listens = {damage}")
        db.execute(
            "INSERT INTO workers (id, app, host, pid, build, names, started_at, lease_until) "
            f"SELECT 'damaged', app, host, pid, build, {damage}, started_at, 0 FROM workers"
        )
    assert effects.sequence.start(2).result(timeout=20) == 1
    world.until(lambda: len(world.workers()) == 1, what="the other, which is dead, is gone")
    world.until(lambda: "sequence" in world.app.store.workers()[0].names, what="it makes itself known again")
    world.stop(worker)
    assert "ends because of an error" not in world.log()


@pytest.mark.parametrize("damage", ["'{'", "x'ff00ff'", "'[\"a\"]'"])
def test_a_schedule_with_a_damaged_row_is_paused_and_says_why(world: World, damage: str) -> None:
    name = "odd"
    world.app.schedules.put(Schedule(every("5000d"), name=name), effects.sequence, 2)
    worker = world.engine({"sweep": 0.05})
    world.until(lambda: world.workers())
    with sql(world) as db:
        db.execute(f"UPDATE schedules SET queued = {damage} WHERE name = ?", (name,))
    world.until(lambda: "damaged" in world.app.store.schedules(name)[0].reason)
    (row,) = world.app.store.schedules(name)
    assert row.paused
    assert row.damage == ""
    assert effects.sequence.start(2).result(timeout=20) == 1
    world.stop(worker)
    assert "ends because of an error" not in world.log()


@pytest.mark.parametrize("damage", ["'{'", "x'ff00ff'", "5"])
@pytest.mark.parametrize("due", ["next_at", "1"])
def test_a_schedule_whose_times_can_not_be_read_is_paused_and_says_why(world: World, damage: str, due: str) -> None:
    name = "odd"
    world.app.schedules.put(Schedule(every("5000d"), name=name), effects.sequence, 2)
    with sql(world) as db:
        db.execute(f"UPDATE schedules SET spec = {damage}, next_at = {due} WHERE name = ?", (name,))
    worker = world.engine({"sweep": 0.05})
    world.until(lambda: "can't be told" in world.app.store.schedules(name)[0].reason)
    (row,) = world.app.store.schedules(name)
    assert row.paused
    assert effects.sequence.start(2).result(timeout=20) == 1
    world.stop(worker)
    assert "a turn of the engine" not in world.log()
    with pytest.raises(ScheduleError, match=r"'odd' does can't be read.*put or declare it again, or delete it"):
        world.app.schedules.list()
    if due == "1":
        delete = ["-A", "effects", "schedules", "delete", name, "--yes"]
        assert world.python("-c", "from holdfast.cli import main; main()", *delete).wait(20) == 0, world.log()
    world.app.schedules.put(Schedule(every("5000d"), name=name), effects.sequence, 2)
    assert world.app.schedules.get(name).when == "every 5000d"
