"""The ways to execute steps. Another one has a module `behaviours_<way>` and says what processes it needs."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
ENGINE = ["worker", "--concurrency", "8"]
PROCESSES: dict[str, list[list[str]]] = {
    "local": [ENGINE],
    "process": [ENGINE],
    "remote": [ENGINE, ["worker", "--executor-only", "--queues", "far", "--concurrency", "8"]],
    "celery": [["worker", "--concurrency", "4"]],
}


class Way:
    """Workers in processes of their own that execute steps in one way, and are started again when they have died."""

    def __init__(self, name: str, folder: Path, store: str = "", **environment: str) -> None:
        self.name = name
        self.folder = folder
        self._environment = environment
        made = importlib.import_module(f"behaviours_{name}").made
        self.made: Any = made
        self.store = store or str(folder / "store.db")
        made.app.use_store(self.store)
        self._processes = [self._start(args) for args in PROCESSES[name]]
        self.deaths = 0

    def _start(self, args: list[str]) -> tuple[list[str], subprocess.Popen[bytes]]:
        with open(self.folder / "log", "ab") as log:
            command = [sys.executable, "-m", "holdfast", "-A", f"behaviours_{self.name}", *args]
            environment = {
                **os.environ,
                "HOLDFAST_STORE": self.store,
                "PYTHONPATH": f"{HERE}{os.pathsep}{os.environ.get('PYTHONPATH', '')}",
                **self._environment,
            }
            return args, subprocess.Popen(command, env=environment, stdout=log, stderr=log)

    def look_after(self) -> None:
        for i, (args, process) in enumerate(self._processes):
            if process.poll() is not None:
                self.deaths += 1
                self._processes[i] = self._start(args)

    def until(self, condition: Callable[[], Any], seconds: float = 60) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline, f"it did not happen\n{self.log()}"
            self.look_after()
            time.sleep(0.01)

    def log(self) -> str:
        return (self.folder / "log").read_text(errors="replace")[-5_000:]

    def ledger(self, name: str) -> str:
        return str(self.folder / name)

    def effects(self, name: str) -> list[str]:
        path = Path(self.ledger(name))
        return path.read_text().splitlines() if path.exists() else []

    def close(self) -> None:
        for _, process in self._processes:
            process.terminate()
        for _, process in self._processes:
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self.made.app.close()
