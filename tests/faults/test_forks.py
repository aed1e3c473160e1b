"""A fork never hurts a store: it works, or the first use in the child says what to do."""

from __future__ import annotations

import os
import signal
import socket
import sqlite3
import urllib.request

import pytest
from world import HERE, World

BESIDE = """
import os, sys, threading, time, effects
from pathlib import Path
here = Path(os.environ["EFFECTS_LEDGER"]).parent
def start(name): effects.sequence.options(id=name).start(1)
def tell(name): (here / name).touch()
def wait_for(name):
    while not (here / name).exists(): time.sleep(0.005)
"""


def run_script(world: World, script: str, timeout: float = 60, **environment: str) -> None:
    process = world.python("-W", "ignore::DeprecationWarning", "-c", BESIDE + script, **environment)
    assert process.wait(timeout) == 0, world.log()


def starts(world: World, *names: str) -> None:
    """Start runs in a process that ends in order: the last to close a database clears away its WAL."""
    run_script(world, f"for name in {names!r}: start(name)\neffects.app.close()")


def ids(world: World) -> set[str]:
    world.app.close()
    return {run.id for run in world.app.runs(limit=100_000)}


def check_file(world: World) -> None:
    world.app.close()
    db = sqlite3.connect(world.database)
    assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    db.close()


DAEMON = """
start("in-parent")
if os.fork():
    os._exit(0) if {hard} else sys.exit()
os.setsid()
if os.fork():
    os._exit(0)
tell("up")
wait_for("go")
start("in-daemon")
tell("started")
wait_for("end")
start("late-in-daemon")
tell("done")
if {killed}: os.kill(os.getpid(), 9)
"""


@pytest.mark.parametrize(
    ("killed", "hard"),
    [
        (False, False),
        (True, True),
        pytest.param(False, True, marks=pytest.mark.torture),
        pytest.param(True, False, marks=pytest.mark.torture),
    ],
)
def test_a_daemon_loses_nothing_and_breaks_nothing(world: World, killed: bool, hard: bool) -> None:
    run_script(world, DAEMON.format(killed=killed, hard=hard))
    world.until(lambda: (world.folder / "up").exists())
    starts(world, "a")
    (world.folder / "go").touch()
    world.until(lambda: (world.folder / "started").exists())
    starts(world, *(f"b{i}" for i in range(50)))
    (world.folder / "end").touch()
    world.until(lambda: (world.folder / "done").exists())
    starts(world, "c")
    check_file(world)
    expected = {"in-parent", "in-daemon", "late-in-daemon", "a", "c", *(f"b{i}" for i in range(50))}
    assert ids(world) == expected
    world.worker()
    world.until(world.is_done)


BUSY_PARENT = """
import random
stop = threading.Event()
acknowledged = [[] for _ in range(4)]
def write(mine, prefix):
    while not stop.is_set():
        name = f"{prefix}-{len(mine)}"
        start(name)
        mine.append(name)
threads = [threading.Thread(target=write, args=(mine, f"t{i}")) for i, mine in enumerate(acknowledged)]
for thread in threads: thread.start()
children = []
for i in range(25):
    time.sleep(random.random() / 50)
    pid = os.fork()
    if pid == 0:
        start(f"child-{i}")
        os._exit(0)
    children.append(pid)
assert [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children] == [0] * 25
stop.set()
for thread in threads: thread.join()
(here / "acknowledged").write_text("\\n".join(name for mine in acknowledged for name in mine))
"""


def test_children_of_a_process_whose_threads_write_all_work(world: World) -> None:
    run_script(world, BUSY_PARENT, timeout=90)
    acknowledged = set((world.folder / "acknowledged").read_text().split())
    check_file(world)
    assert ids(world) == acknowledged | {f"child-{i}" for i in range(25)}


POOL = """
import multiprocessing
start("before")
context = multiprocessing.get_context("fork")
with context.Pool(4) as pool:
    pool.map(start, [f"p{i}" for i in range(40)])
workers = [context.Process(target=start, args=(f"q{i}",)) for i in range(8)]
for worker in workers: worker.start()
for worker in workers: worker.join()
assert [worker.exitcode for worker in workers] == [0] * 8
start("after")
"""


def test_multiprocessing_by_fork_works(world: World) -> None:
    run_script(world, POOL)
    check_file(world)
    assert ids(world) == {"before", "after", *(f"p{i}" for i in range(40)), *(f"q{i}" for i in range(8))}


FORKING_WORKER = """
import multiprocessing
with effects.app.worker() as engine:
    runs = [effects.sequence.options(id=f"r{i}").start(20) for i in range(10)]
    for i in range(10):
        child = multiprocessing.get_context("fork").Process(target=start, args=(f"c{i}",))
        child.start()
        child.join()
        assert child.exitcode == 0
    for run in runs: run.result(timeout=30)
    for i in range(10): effects.app.get_run(f"c{i}").result(timeout=30)
    assert [worker.id for worker in effects.app.store.workers()] == [engine.worker_id]
"""


def test_a_worker_goes_on_while_its_process_forks(world: World) -> None:
    run_script(world, FORKING_WORKER)
    check_file(world)
    assert "taken for dead" not in world.log()


UNDER_A_WORKER = """
with effects.app.worker(grace=600) as engine:  # for which the child would wait
    effects.sequence.start(1).result(timeout=30)
    pid = os.fork()
    if pid == 0:
        effects.sequence.options(id="in-child").start(3)
        sys.exit()  # leaves the worker's block, as a child that knows nothing of it would
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    effects.app.get_run("in-child").result(timeout=30)
    assert [worker.id for worker in effects.app.store.workers()] == [engine.worker_id]
"""


def test_a_child_that_leaves_the_block_of_a_worker_leaves_the_worker_alone(world: World) -> None:
    run_script(world, UNDER_A_WORKER)


HELD = """
from holdfast.stores import forks
forks.THREADS_LEAVE_WITHIN = 0.2
effects.app.store
inside = threading.Event()
def hold():
    with effects.app.store.write("slow"):
        inside.set()
        wait_for("go")
holder = threading.Thread(target=hold)
holder.start()
inside.wait()
pid = os.fork()
if pid == 0:
    from holdfast import StoreError
    for _ in range(2):
        try:
            start("in-child")
        except StoreError as error:
            (here / "said").write_text(str(error))
        else:
            os._exit(1)
    {end}
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
tell("go")
holder.join()
start("in-parent")
"""


@pytest.mark.parametrize("end", ["os._exit(0)", "effects.app.close(); sys.exit()"])
def test_a_child_forked_in_a_long_transaction_is_told_what_to_do(world: World, end: str) -> None:
    run_script(world, HELD.format(end=end))
    said = (world.folder / "said").read_text()
    assert "forked from process" in said
    assert "spawn" in said
    check_file(world)
    assert ids(world) == {"in-parent"}


WITHIN = """
from holdfast import StoreError, failpoints
children = []
def fork():
    failpoints.disarm()
    children.append(os.fork())
failpoints.arm("create.before_commit", fork)
effects.app.store
try:
    start("by-both")
except StoreError as error:
    assert children == [0] and "only its parent can commit" in str(error), error
    try:
        start("in-child")
    except StoreError as error:
        (here / "said").write_text(str(error))
    os._exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(children[0], 0)[1]) == 0
"""


def test_a_transaction_is_committed_by_the_process_that_began_it(world: World) -> None:
    run_script(world, WITHIN)
    assert "forked from process" in (world.folder / "said").read_text()
    check_file(world)
    assert ids(world) == {"by-both"}


UNANNOUNCED = """
import ctypes
start("in-parent")
pid = ctypes.CDLL(None).fork()
if pid == 0:
    from holdfast import StoreError
    try:
        start("in-child")
    except StoreError as error:
        (here / "said").write_text(str(error))
    os._exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
start("in-parent-again")
"""


def test_a_fork_that_python_does_not_know_of_is_found_out(world: World) -> None:
    run_script(world, UNANNOUNCED)
    assert "forked from process" in (world.folder / "said").read_text()
    check_file(world)
    assert ids(world) == {"in-parent", "in-parent-again"}


IN_MEMORY = """
from holdfast import App, StoreError
del os.environ["HOLDFAST_STORE"]
app = App("memory", ":memory:")
@app.workflow
async def simple() -> int:
    return 1
simple.start()
pid = os.fork()
if pid == 0:
    try:
        simple.start()
    except StoreError as error:
        (here / "said").write_text(str(error))
    app.close()
    simple.start()
    os._exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
simple.start()
"""


def test_a_store_in_memory_is_not_taken_for_that_of_the_parent(world: World) -> None:
    run_script(world, IN_MEMORY)
    assert "in the memory of process" in (world.folder / "said").read_text()


SITE = """
import os, effects
effects.sequence.options(id="at-import").start(1)
def application(environ, respond):
    name = environ["PATH_INFO"].strip("/")
    effects.sequence.options(id=name).start(1)
    respond("200 OK", [("Content-Type", "text/plain")])
    return [str(os.getpid()).encode()]
"""


def test_gunicorn_with_a_preloaded_app_loses_nothing(world: World) -> None:
    pytest.importorskip("gunicorn")
    (world.folder / "site_with_runs.py").write_text(SITE)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    server = world.python(
        "-m", "gunicorn", "--preload", "--workers", "3", "--bind", f"127.0.0.1:{port}", "site_with_runs:application",
        PYTHONPATH=os.pathsep.join([str(world.folder), str(HERE)]),
    )  # fmt: skip

    def ask(name: str) -> int:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/{name}", timeout=20) as answer:
            return int(answer.read())

    def is_up() -> bool:
        try:
            return bool(ask("first"))
        except OSError:
            return False

    world.until(is_up, timeout=30)
    served = {ask(f"web-{i}") for i in range(60)}
    starts(world, "outside")
    os.kill(served.pop(), signal.SIGKILL)  # gunicorn forks another
    for i in range(60, 100):
        try:
            ask(f"web-{i}")
        except OSError:  # of the worker that was killed
            ask(f"web-{i}")
    server.send_signal(signal.SIGTERM)
    assert server.wait(20) == 0, world.log()
    check_file(world)
    assert ids(world) == {"at-import", "first", "outside", *(f"web-{i}" for i in range(100))}
