"""A folder with a database, a ledger, and real worker processes on it."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

import effects

import warm_python
from freezing import freeze
from holdfast.api.reading import Which
from holdfast.core import events as ev
from holdfast.ports import WorkerRow
from warm_python import Process

HERE = Path(__file__).parent
T = TypeVar("T")


class Entry:
    """A line of the ledger: one execution of a step."""

    def __init__(self, line: str) -> None:
        self.run, self.step, self.key, self.attempt, self.pid, self.note = json.loads(line)
        self.name = self.key.rpartition(":")[0]  # run and command; the rest tells runs of one id apart

    def __repr__(self) -> str:
        return f"<{self.key} {self.step} attempt {self.attempt} by {self.pid}>"


class World:
    """What one fault test works on. `app` is the client's side, in this process."""

    def __init__(self, folder: Path, code: ModuleType = effects, store: str = "") -> None:
        self.folder = folder
        self.code = code.__name__
        self.database: Path | str = store or folder / "effects.db"
        self.ledger_file = folder / "ledger"
        self.ledger_file.touch()
        self.app = code.app
        self._processes: list[Process] = []

    @property
    def environment(self) -> dict[str, str]:
        return {
            **os.environ,
            "HOLDFAST_STORE": str(self.database),
            "EFFECTS_LEDGER": str(self.ledger_file),
            "PYTHONUNBUFFERED": "1",
        }

    # -- processes

    def worker(self, failpoint: str = "", **environment: str) -> Process:
        """`holdfast -A effects worker`, as anybody would start it."""
        command = ["-c", "from holdfast.cli import main; main()", "-A", self.code, "worker"]
        return self.python(*command, HOLDFAST_FAILPOINT=failpoint, **environment)

    def engine(self, settings: dict[str, Any] | None = None, failpoint: str = "", **env: str) -> Process:
        """A worker with settings of its own."""
        return self.python("engine_process.py", json.dumps(settings or {}), HOLDFAST_FAILPOINT=failpoint, **env)

    def python(self, *arguments: str, **environment: str) -> Process:
        with (self.folder / "log").open("ab") as log:
            process = warm_python.start(arguments, cwd=HERE, env=self.environment | environment, stdout=log, stderr=log)
        self._processes.append(process)
        return process

    def stop(self, process: Process, timeout: float = 20) -> int:
        """Ask politely, once it has come up."""
        self.until(lambda: process.poll() is not None or process.pid in self.pids(), 20, "a worker to be stopped")
        process.send_signal(signal.SIGTERM)
        return process.wait(timeout)

    def kill(self, process: Process) -> None:
        process.kill()
        process.wait()

    def freeze(self, process: Process) -> None:
        freeze(process, self.app, str(self.database), self.until)

    def close(self) -> None:
        for process in self._processes:
            if process.poll() is None:
                self.kill(process)

    # -- looking

    def log(self) -> str:
        return (self.folder / "log").read_text(errors="replace")

    def ledger(self, step: str = "", run: str = "") -> list[Entry]:
        written, _, _ = self.ledger_file.read_text().rpartition("\n")  # the last line may just be written
        entries = [Entry(line) for line in written.splitlines()]
        return [e for e in entries if (not step or e.step == step) and (not run or e.run == run)]

    def open_gate(self, name: str) -> None:
        (self.folder / f"gate-{name}").touch()

    def events(self, run_id: str) -> list[ev.AnyEvent]:
        return self.app.client.reader.events(Which(run_id))

    def until(self, condition: Callable[[], T], timeout: float = 20, what: str = "") -> T:
        """The first true answer of `condition`."""
        deadline = (asked := time.monotonic()) + timeout
        while not (found := condition()):
            answered = time.monotonic()
            if answered > deadline:
                raise AssertionError(f"{what or condition} did not come true in {timeout} s\n{self.log()[-6000:]}")
            time.sleep(max(0.005, 2 * (answered - asked)))  # who asks for much leaves time to those who work
            asked = time.monotonic()
        return found

    def workers(self) -> list[str]:
        return [worker.id for worker in self.app.store.workers()]

    def pids(self) -> list[int]:
        return [worker.pid for worker in self.app.store.workers()]

    def inbox(self, run_id: str) -> list[str]:
        """The kinds of messages that wait for a run."""
        with closing(sqlite3.connect(self.database)) as db:
            query = "SELECT kind FROM inbox i JOIN runs r ON r.no = i.run WHERE r.id = ? ORDER BY i.id"
            return [kind for (kind,) in db.execute(query, (run_id,))]

    def recorded(self) -> set[str]:
        """All steps whose end is in the store, as ledger entries name them."""
        names = set()
        for run in self.app.runs(limit=10_000):
            for event in self.events(run.id):
                if isinstance(event, ev.StepCompleted | ev.StepFailed):
                    names.add(f"{run.id}:{event.cmd}")
        return names

    def results(self) -> dict[str, Any]:
        """What became of each run."""
        found = {}
        for run in self.app.runs(limit=10_000):
            try:
                result = repr(run.result(timeout=0))
            except Exception as error:
                result = f"{type(error).__name__}: {error}"
            found[same_everywhere(run.id)] = (str(run.status), result, run.data)
        return found

    def is_done(self) -> bool:
        """Whether nothing more will happen: what a run has emitted on its way may still start another."""
        if any(info.queued for info in self.app.schedules.list()):  # looked at first: what leaves a queue is a run
            return False
        before = self.app.runs(limit=10_000)
        over = all(run.status.is_final or run.status == "STUCK" for run in before)
        return over and not self.app.store.arrivals(1) and before == self.app.runs(limit=10_000)

    def executed(self) -> dict[tuple[str, str, str], int]:
        """How many steps of each kind each run has executed, whatever the number of executions."""
        keys: dict[tuple[str, str, str], set[str]] = {}
        for entry in self.ledger():
            keys.setdefault((same_everywhere(entry.run), entry.step, json.dumps(entry.note)), set()).add(entry.key)
        return {kind: len(found) for kind, found in keys.items()}

    def leave_a_dead_worker(self) -> None:
        """A worker whose process is gone."""
        store = self.app.store
        store.register(
            WorkerRow(id="dead-1", app=self.app.name, host="here", pid=1, build="1", names=[]), 3_600 * 1_000_000
        )
        store.release_lock("dead-1")

    def check_histories(self) -> None:
        """What holds for every history, whatever happened to its workers."""
        for run in self.app.runs(limit=10_000):
            was_final = run.status.is_final  # it may be about to end
            events = self.events(run.id)
            assert [e.seq for e in events] == list(range(1, len(events) + 1)), f"{run.id} has gaps"
            anew = max((e.seq for e in events if isinstance(e, ev.AttemptStarted)), default=0)
            ends = [e for e in events if isinstance(e, ev.RunEnded) and e.seq > anew]
            assert len(ends) <= 1, f"{run.id} has ended twice"
            assert run.status.is_final if ends else not was_final, (
                f"{run.id} is {run.status}, and its history ends with {events[-1]}"
            )
            outcomes: dict[str, ev.Event] = {}
            for event in events:
                delivered = isinstance(event, ev.Commanded) and event.delivered
                if delivered or isinstance(event, ev.StepCancelled | ev.ChildDropped):
                    assert event.cmd not in outcomes, f"{run.id}: {event} after {outcomes[event.cmd]}"
                    outcomes[event.cmd] = event
            retried = [(e.cmd, e.attempt) for e in events if isinstance(e, ev.StepRetrying)]
            assert len(retried) == len(set(retried)), f"{run.id}: an attempt failed twice: {retried}"


def same_everywhere(run_id: str) -> str:
    """A run's id without the part of a child's that differs from world to world."""
    return run_id.rpartition("-")[0] if "." in run_id else run_id


@contextmanager
def open_world(folder: Path, code: ModuleType = effects, *, store: str = "") -> Iterator[World]:
    """`store` is the URL of another one than a file in that folder."""
    before = {name: os.environ.get(name) for name in ("HOLDFAST_STORE", "EFFECTS_LEDGER")}
    world = World(folder, code, store)
    world.app.close()
    os.environ["HOLDFAST_STORE"] = str(world.database)
    os.environ["EFFECTS_LEDGER"] = str(world.ledger_file)
    try:
        yield world
    finally:
        world.close()
        world.app.close()
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
