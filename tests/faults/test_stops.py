"""A worker ends when it is told to, whatever its steps and resources do, and its processes end with it."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import stubborn
from test_poison import is_running
from world import World

from holdfast.core import events as ev
from warm_python import Process

COMMAND = "from holdfast.cli import main; main()"


@pytest.fixture(autouse=True)
def _own_store(world: World) -> Iterator[None]:
    stubborn.app.close()
    yield
    stubborn.app.close()


def start_worker(world: World, *options: str, **environment: str) -> Process:
    return world.python("-c", COMMAND, "-A", "stubborn", "worker", *options, **environment)


def begun(world: World, step: str) -> Any:
    return world.until(lambda: world.ledger(step), what=f"the beginning of {step}")[0]


@pytest.mark.parametrize("step", ["blocks_loop", "swallows", "blocks_thread", "leaves_a_thread", "computes_in_process"])
def test_a_worker_ends_after_its_grace_whatever_its_steps_do(world: World, step: str) -> None:
    worker = start_worker(world, "--grace", "1")
    run = stubborn.app.start(step)
    begun(world, step)
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(20) == 0
    assert "Traceback" not in world.log()
    row = stubborn.app.store.get(run.id)
    assert row is not None
    assert (row.owner, row.losses) == (None, 0), "it was handed over in good order"


@pytest.mark.parametrize(
    ("step", "second"),
    [
        ("blocks_loop", signal.SIGTERM), ("blocks_loop", signal.SIGINT), ("swallows", signal.SIGTERM),
        ("blocks_thread", signal.SIGINT), ("leaves_a_thread", signal.SIGTERM), ("computes_in_process", signal.SIGINT),
    ],
)  # fmt: skip
def test_a_second_signal_ends_a_worker_whatever_its_steps_do(world: World, step: str, second: signal.Signals) -> None:
    worker = start_worker(world, "--grace", "600")
    stubborn.app.start(step)
    begun(world, step)
    worker.send_signal(signal.SIGTERM)
    time.sleep(0.2)
    assert worker.poll() is None
    worker.send_signal(second)
    worker.wait(20)
    assert "Traceback" not in world.log()


@pytest.mark.parametrize("step", ["takes", "takes_on_loop"])
def test_a_second_signal_ends_a_worker_whose_resources_do_not_close(world: World, step: str) -> None:
    worker = start_worker(world)
    stubborn.app.start(step).result(timeout=20)
    worker.send_signal(signal.SIGTERM)
    world.until(lambda: (world.folder / "gate-closing").exists(), what="a resource that is being closed")
    begin = time.monotonic()
    worker.send_signal(signal.SIGTERM)
    worker.wait(20)
    assert time.monotonic() - begin < 8, "resources get ten seconds"


def test_a_second_signal_ends_a_worker_that_comes_up(world: World) -> None:
    """It waits for a store that somebody else holds."""
    stubborn.app.start("blocks_thread")
    other = sqlite3.connect(world.database, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    try:
        worker = start_worker(world)
        time.sleep(3)
        assert worker.poll() is None
        worker.send_signal(signal.SIGTERM)
        time.sleep(0.2)
        if worker.poll() is None:
            worker.send_signal(signal.SIGTERM)
        worker.wait(10)
    finally:
        other.close()


def test_sighup_drains_and_may_come_beside_another_signal(world: World) -> None:
    worker = start_worker(world, "--grace", "60")
    run = stubborn.app.start("blocks_thread")
    begun(world, "blocks_thread")
    worker.send_signal(signal.SIGTERM)
    worker.send_signal(signal.SIGHUP)
    worker.send_signal(signal.SIGHUP)
    time.sleep(0.5)
    assert worker.poll() is None, "it drains"
    world.open_gate("end")
    assert worker.wait(20) == 0
    assert run.result(timeout=0) == "done"
    assert len(world.ledger("blocks_thread")) == 1


def test_sighup_alone_drains(world: World) -> None:
    worker = start_worker(world, "--grace", "60")
    run = stubborn.app.start("blocks_thread")
    begun(world, "blocks_thread")
    worker.send_signal(signal.SIGHUP)
    time.sleep(0.3)
    world.open_gate("end")
    assert worker.wait(20) == 0
    assert run.result(timeout=0) == "done"


# -- the processes of a worker


@pytest.mark.parametrize("step", ["computes_in_process", "spawns_in_process", "forks_in_process"])
def test_what_a_killed_worker_has_started_ends_with_it(world: World, step: str) -> None:
    worker = start_worker(world)
    stubborn.app.start(step)
    entry = begun(world, step)
    pids = [entry.pid, *([entry.note] if entry.note else [])]
    assert worker.pid not in pids
    assert all(is_running(pid) for pid in pids)
    world.kill(worker)
    for pid in pids:
        world.until(lambda pid=pid: not is_running(pid), 10, f"the end of process {pid}")
    assert "Traceback" not in world.log()


def test_a_process_for_steps_that_comes_up_while_its_worker_is_killed_says_nothing(world: World) -> None:
    worker = start_worker(world, STUBBORN_SLOW_IMPORT="1")
    stubborn.app.start("quick_in_process")
    mark = world.folder / "gate-importing"
    pid = int(world.until(lambda: mark.exists() and mark.read_text(), what="a process that imports the app"))
    assert pid != worker.pid
    world.kill(worker)
    world.until(lambda: not is_running(pid), 10, "its end")
    time.sleep(0.1)
    assert "Traceback" not in world.log()
    assert "BrokenPipe" not in world.log()


UNGUARDED = """
import os
from holdfast import App

with open("imported", "a") as file:
    file.write(f"{os.getpid()}\\n")

app = App("unguarded", "unguarded.db")

@app.step(pool="process")
def work() -> int:
    return 1

if os.environ.get("START_FIRST"):
    work.start()
with app.worker():
    try:
        print(work.start().result(timeout=60))
    except Exception as error:
        print(type(error).__name__, error)
"""


@pytest.mark.parametrize(
    ("environment", "what"), [({}, "a worker is started"), ({"START_FIRST": "1"}, "a run of 'work' is")]
)
def test_a_script_without_a_guard_is_told_so_and_starts_no_processes_without_end(
    tmp_path: Path, environment: dict[str, str], what: str
) -> None:
    (tmp_path / "unguarded.py").write_text(UNGUARDED)
    done = subprocess.run(
        [sys.executable, "unguarded.py"], cwd=tmp_path, env={**os.environ, **environment}, capture_output=True, text=True,
        timeout=100, check=True,
    )  # fmt: skip
    assert what in done.stdout, done.stderr
    assert "if __name__ == '__main__':" in done.stdout
    assert "unguarded.py" in done.stdout
    assert "Traceback" not in done.stdout
    assert len((tmp_path / "imported").read_text().split()) <= 3, "the script, and a process for each of its runs"
    for pid in (tmp_path / "imported").read_text().split():
        assert not is_running(int(pid))


@pytest.mark.parametrize("how", ["-", "unguarded"])
def test_a_program_that_no_process_can_import_is_told_so_at_once(tmp_path: Path, how: str) -> None:
    (tmp_path / "unguarded").write_text(UNGUARDED)
    done = subprocess.run(
        [sys.executable, how], cwd=tmp_path, input=UNGUARDED, capture_output=True, text=True, timeout=100, check=True
    )
    assert done.stdout.startswith("FatalError "), done.stderr
    assert ("put it into a file" if how == "-" else "in a file that ends in .py") in done.stdout
    assert "failed for good at attempt 1:" in done.stderr


def test_a_run_of_a_worker_that_was_ended_by_a_second_signal_goes_on(world: World) -> None:
    worker = start_worker(world, "--grace", "600")
    run = stubborn.app.start("blocks_loop")
    begun(world, "blocks_loop")
    for _ in range(2):
        worker.send_signal(signal.SIGTERM)
        time.sleep(0.1)
    worker.wait(20)
    world.open_gate("end")
    start_worker(world)
    run.result(timeout=30)
    assert not [event for event in stubborn.app.client.reader.events(run._which) if isinstance(event, ev.StepLost)]
