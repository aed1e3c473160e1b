"""What lies beside the database: locks and bells. And processes that fork."""

from __future__ import annotations

import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import effects
import pytest
from world import World, open_world

from holdfast.stores.doorbell import Doorbell
from holdfast.stores.locks import LifeLock


def litter(world: World) -> list[str]:
    """Locks and bells of workers and of those who wait."""
    return sorted(f.name for f in world.folder.iterdir() if "-worker-" in f.name or "-bell-" in f.name)


def test_a_worker_that_stops_leaves_no_files(world: World) -> None:
    worker = world.worker()
    effects.sequence.start(3).result(timeout=20)
    assert len(litter(world)) in (2, 3), "its lock, its bell, and ours if it was rung"
    world.stop(worker)
    world.app.close()
    assert litter(world) == []


def test_those_who_wait_one_after_the_other_share_a_bell_which_goes_with_the_process(world: World) -> None:
    worker = world.worker()
    world.until(lambda: len(litter(world)) == 2)  # before that nobody rings, and no bell is kept
    code = """
import effects, os
names = set()
for _ in range(5):
    effects.sequence.start(1).result(timeout=20)
    names.add(tuple(sorted(name for name in os.listdir(os.environ["FOLDER"]) if "-bell-" in name)))
assert len(names) == 1, names
"""
    assert world.python("-c", code, FOLDER=str(world.folder)).wait(20) == 0, world.log()
    assert len(litter(world)) == 2
    world.stop(worker)


def test_a_bell_whose_file_was_removed_is_not_used_again(world: World) -> None:
    world.worker()
    world.until(lambda: len(litter(world)) == 2)
    workers = litter(world)
    effects.sequence.start(1).result(timeout=20)
    (ours,) = set(litter(world)) - set(workers)
    (world.folder / ours).unlink()
    effects.sequence.start(1).result(timeout=20)
    (other,) = set(litter(world)) - set(workers)
    assert other != ours


def test_who_waits_takes_another_bell_when_its_own_was_removed(world: World) -> None:
    world.worker()
    world.until(lambda: len(litter(world)) == 2)
    workers = litter(world)
    run = effects.wait_at_gate.start("open")
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(run.result, timeout=20)
        (ours,) = world.until(lambda: set(litter(world)) - set(workers))
        (world.folder / ours).unlink()
        world.until(lambda: set(litter(world)) - set(workers), what="another bell")
        world.open_gate("open")
        assert waiting.result(20) == "open"


def test_what_killed_workers_and_clients_leave_is_cleared_away(world: World) -> None:
    workers = [world.worker() for _ in range(2)]
    world.until(lambda: len(world.workers()) == 2)
    client = world.python("-c", "import effects; effects.gated.options(id='g').start('never').result()")
    world.until(lambda: len(litter(world)) == 5, what="two locks and three bells")
    for process in (*workers, client):
        world.kill(process)
    last = world.worker()
    world.until(lambda: len(world.workers()) == 1 and world.workers()[0].startswith(f"{last.pid}-"))
    world.until(lambda: len(litter(world)) == 2, what="only the files of the worker that lives")
    world.app.get_run("g").cancel()
    world.until(world.is_done)
    world.stop(last)
    assert litter(world) == []


def test_the_lock_of_a_worker_that_froze_and_died_later_is_cleared_away(world: World) -> None:
    short = {"lease": 1.0, "beat": 0.1, "sweep": 0.1}
    frozen = world.engine(short)
    world.until(lambda: world.workers())
    (old,) = world.workers()
    world.freeze(frozen)
    world.engine(short)
    world.until(lambda: old not in world.workers(), what="a takeover")
    world.kill(frozen)
    third = world.engine(short)
    world.until(lambda: third.pid in world.pids() and len(litter(world)) == 4, what="two locks and two bells")


def test_a_lock_that_was_cleared_away_before_it_was_held_is_taken_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(tmp_path / "x.db-worker-1")
    flock = __import__("fcntl").flock
    cleared = []

    def clear_first(fd: int, how: int) -> None:
        if not cleared:
            cleared.append(os.unlink(path))
        flock(fd, how)

    monkeypatch.setattr("holdfast.stores.locks.fcntl.flock", clear_first)
    lock = LifeLock(path)
    lock.take()
    assert cleared
    assert os.path.exists(path)
    assert not lock.is_free()
    lock.release()
    assert not os.path.exists(path)


@pytest.mark.parametrize("long_name", [False, True])
def test_bells_ring_where_paths_are_long(tmp_path: Path, long_name: bool) -> None:
    folder = tmp_path / ("deep" * 40) / "and with spaces"
    folder.mkdir(parents=True)
    with open_world(folder) as world:
        if long_name:
            world.database = folder / f"{'name' * 50}.db"
            os.environ["HOLDFAST_STORE"] = str(world.database)
        worker = world.engine({"sweep": 30.0})
        world.until(lambda: world.workers())
        effects.sequence.start(1).result(timeout=20)
        begin = time.monotonic()
        for _ in range(5):
            assert effects.sequence.start(1).result(timeout=20) == 0
        assert time.monotonic() - begin < 2, world.log()
        world.stop(worker)
        world.app.close()
        assert litter(world) == []


def test_a_folder_without_sockets_is_slower_and_no_worse(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def cannot(self: Doorbell) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(Doorbell, "hang", cannot)
    with world.app.worker():
        assert effects.sequence.start(3).result(timeout=20) == 3
    assert litter(world) == []


def test_one_database_by_several_names_is_one_database(world: World, tmp_path: Path) -> None:
    """Locks are looked for beside the file, not beside a link to it: else each takes the others for dead."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "link.db").symlink_to(world.database)
    (tmp_path / "folder").symlink_to(elsewhere)
    names = [str(world.database), str(elsewhere / "link.db"), str(tmp_path / "folder" / ".." / "folder" / "link.db")]
    quick = {"sweep": 0.05}
    workers = [world.engine(quick, HOLDFAST_STORE=name) for name in names]
    world.until(lambda: sorted(world.pids()) == sorted(worker.pid for worker in workers))
    before = set(world.workers())
    runs = [effects.long.start(0.2) for _ in range(30)]
    assert [run.result(timeout=20) for run in runs] == ["done"] * 30
    assert set(world.workers()) == before
    assert len(world.ledger("slow")) == 30


# -- forks


def in_a_fork(job: str) -> str:
    return f"""
import os, sys, effects
effects.sequence.options(id="before").start(1)
pid = os.fork()
if pid == 0:
    {job}
    os._exit(0)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""


def test_a_forked_child_starts_runs_of_its_own(world: World) -> None:
    job = 'effects.sequence.options(id="in the fork".replace(" ", "-")).start(1)'
    assert world.python("-c", in_a_fork(job)).wait(20) == 0, world.log()
    world.worker()
    world.until(lambda: len(world.app.runs()) == 2 and world.is_done())


FORK_BETWEEN_WAITS = """
import os, sys, effects
effects.sequence.start(1).result(timeout=20)
bells = [name for name in os.listdir(os.environ["FOLDER"]) if "-bell-" in name]
pid = os.fork()
if pid == 0:
    if "waits" in os.environ["CHILD"]:
        effects.sequence.start(1).result(timeout=20)
    sys.exit()  # with all that is done at exit
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
assert sorted(bells) == sorted(name for name in os.listdir(os.environ["FOLDER"]) if "-bell-" in name)
effects.sequence.start(1).result(timeout=20)
"""


@pytest.mark.parametrize("child", ["waits", "only ends"])
def test_a_forked_child_leaves_its_parent_the_bell_that_it_waits_with(world: World, child: str) -> None:
    world.worker()
    world.until(lambda: len(litter(world)) == 2)
    parent = world.python("-c", FORK_BETWEEN_WAITS, FOLDER=str(world.folder), CHILD=child)
    assert parent.wait(30) == 0, world.log()
    world.until(lambda: len(litter(world)) == 2)


FORK_BY_MULTIPROCESSING = """
import multiprocessing, effects
wait = lambda: effects.sequence.start(1).result(timeout=20)
children = [multiprocessing.get_context("fork").Process(target=wait) for _ in range(3)]
for child in children:
    child.start()
    child.join()
assert [child.exitcode for child in children] == [0] * 3
"""


def test_a_forked_child_awaits_runs_with_a_thread_of_its_own(world: World) -> None:
    worker = world.worker()
    code = """
import asyncio, effects, os

async def result(run):
    return await run

assert asyncio.run(result(effects.sequence.start(2))) == 1
child = os.fork()  # while the parent's thread stays for others who might wait
assert asyncio.run(asyncio.wait_for(result(effects.sequence.start(3)), 20)) == 3
if child:
    assert os.waitpid(child, 0)[1] == 0
"""
    assert world.python("-c", code).wait(60) == 0, world.log()
    world.stop(worker)


def test_a_program_that_ends_while_others_might_still_wait_leaves_no_bell(world: World) -> None:
    worker = world.worker()
    world.until(lambda: len(litter(world)) == 2)
    code = "import asyncio, effects; assert asyncio.run(effects.sequence.start(2).aresult(timeout=20)) == 1"
    assert world.python("-c", code).wait(20) == 0, world.log()
    assert len(litter(world)) == 2
    world.stop(worker)


def test_children_of_multiprocessing_leave_no_bells(world: World) -> None:
    """They end without what is done at exit."""
    world.worker()
    world.until(lambda: len(litter(world)) == 2)
    assert world.python("-c", FORK_BY_MULTIPROCESSING).wait(30) == 0, world.log()
    assert len(litter(world)) == 2


FORK_IN_TRANSACTION = """
import os, signal, sys, time, effects
from holdfast import failpoints
def fork_and_die():
    failpoints.disarm()
    if os.fork() == 0:
        open(os.environ["EFFECTS_LEDGER"] + ".forked", "w").close()
        time.sleep(10)
        os._exit(0)
    while not os.path.exists(os.environ["EFFECTS_LEDGER"] + ".forked"):
        time.sleep(0.001)
    os.kill(os.getpid(), signal.SIGKILL)
effects.app.store
failpoints.arm("create.before_commit", fork_and_die)
effects.sequence.start(1)
"""


def test_a_forked_child_does_not_keep_the_locks_of_a_parent_that_died(world: World) -> None:
    """Locks on open files are shared by a fork: the child would hold the turnstile for as long as it lives."""
    assert world.python("-c", FORK_IN_TRANSACTION).wait(20) == -signal.SIGKILL
    begin = time.monotonic()
    effects.sequence.start(1)
    assert time.monotonic() - begin < 5


FORK_BESIDE_ENGINE = """
import os, sys, time, effects
with effects.app.worker() as engine:
    effects.sequence.start(1).result(timeout=20)
    pid = os.fork()
    if pid == 0:
        time.sleep(3)
        os._exit(0)
    os.kill(os.getpid(), 9)
"""


def test_a_forked_child_is_not_taken_for_its_parent(world: World) -> None:
    """A worker that forked and was killed is dead, however long its child lives."""
    world.engine({"sweep": 0.1})
    world.until(lambda: len(world.workers()) == 1)
    assert world.python("-c", FORK_BESIDE_ENGINE).wait(20) == -signal.SIGKILL
    begin = time.monotonic()
    world.until(lambda: len(world.workers()) == 1)
    assert time.monotonic() - begin < 2.5


def test_several_processes_may_make_the_same_new_database_at_once(world: World) -> None:
    processes = [world.python("-c", "import effects; effects.sequence.start(2)") for _ in range(8)]
    assert [process.wait(30) for process in processes] == [0] * 8, world.log()
    assert len(world.app.runs()) == 8
