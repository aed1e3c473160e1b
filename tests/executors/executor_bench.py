"""An executor without an engine: attempts go in, outcomes come out."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import executor_steps
from msgspec import Raw

from holdfast.app import SystemClock
from holdfast.executors.local import LocalExecutor
from holdfast.executors.surroundings import Surroundings
from holdfast.ports import Attempt, Outcome

T = TypeVar("T")


class Bench:
    def __init__(self, folder: Path, may_begin: Callable[[], bool] = lambda: True, **options: Any) -> None:
        app = executor_steps.app
        self.folder = folder
        self.outcomes: dict[int, list[Outcome]] = {}
        self.reports: list[tuple[int, str]] = []
        self.surroundings = Surroundings(app.definitions.arounds)
        self._tokens = itertools.count(1)
        self._gates = itertools.count(1)
        self._lock = threading.Lock()
        self.executor = LocalExecutor(
            app.definitions.find_step, app.codec, SystemClock(), surroundings=self.surroundings, child_command=self._describe,
            **options,
        )  # fmt: skip
        self.executor.start(self._arrived, lambda attempt, kind, value: None, may_begin)

    def _describe(self) -> dict[str, Any]:
        return {"app": "executor_steps", "modules": [], "main_file": executor_steps.__file__, "store": ""}

    def _arrived(self, outcome: Outcome) -> None:
        with self._lock:
            self.outcomes.setdefault(outcome.attempt.token, []).append(outcome)

    # -- attempts

    def attempt(self, step: str, *args: Any, pool: str = "thread", timeout: float | None = None) -> Attempt:
        token = next(self._tokens)
        return Attempt(
            token=token, run_no=1, run_id=f"run-{token}", workflow="flow", root_id="run", parent_id=None, cmd=f"c{token}",
            step=step, args=Raw(executor_steps.app.codec.encode_call(args, {})), number=1, idempotency_key=f"key-{token}",
            timeout=None if timeout is None else round(timeout * 1_000_000), stall_timeout=None, pool=pool, data={},
        )  # fmt: skip

    def submit(self, step: str, *args: Any, **options: Any) -> int:
        attempt = self.attempt(step, *args, **options)
        self.executor.submit([attempt])
        return attempt.token

    def outcome(self, token: int, timeout: float = 30) -> Outcome:
        outcomes = self.until(lambda: self.outcomes.get(token), timeout, f"the outcome of attempt {token}")
        assert outcomes is not None
        assert len(outcomes) == 1
        return outcomes[0]

    def result(self, token: int) -> Any:
        outcome = self.outcome(token)
        assert outcome.encoded_error is None, outcome.error
        assert not outcome.cancelled
        assert not outcome.lost
        return executor_steps.app.codec.decode(outcome.result)

    # -- gates

    def gate(self) -> Gate:
        return Gate(self, self.folder / f"gate-{next(self._gates)}")

    def until(self, condition: Callable[[], T], timeout: float = 30, what: str = "") -> T:
        deadline = time.monotonic() + timeout
        while not (found := condition()):
            assert time.monotonic() < deadline, f"{what or condition} did not come true"
            time.sleep(0.002)
        return found


class Gate:
    """What a step waits at. Its path is the step's argument."""

    def __init__(self, bench: Bench, path: Path) -> None:
        self._bench = bench
        self.path = str(path)

    def open(self) -> None:
        Path(self.path).touch()

    def began(self) -> list[int]:
        """The processes that have come to it."""
        mark = Path(self.path + ".begun")
        return [int(line) for line in mark.read_text().split()] if mark.exists() else []

    def until_begun(self) -> int:
        return self._bench.until(self.began, what="a step at its gate")[0]


@contextmanager
def open_bench(folder: Path, **options: Any) -> Iterator[Bench]:
    bench = Bench(folder, **options)
    try:
        yield bench
    finally:
        for mark in folder.glob("gate-*.begun"):
            mark.with_suffix("").touch()
        bench.executor.stop(0)
        bench.executor.close()


def is_running(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False
