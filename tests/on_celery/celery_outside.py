"""The app of celery_shop.py from outside, with Celery workers of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from holdfast import App
from holdfast.api.options import NO_OPTIONS

HERE = Path(__file__).parent


class Shop:
    """Seen from outside: on a store, with a broker, with Celery workers of its own."""

    def __init__(self, folder: Path, store: str, broker: str, module: str = "celery_shop", **env: str) -> None:
        self.folder = folder
        self.broker = broker
        self.module = module
        self.ledger_file = folder / "ledger"
        self.env = {
            **os.environ, "HOLDFAST_STORE": store, "BROKER": broker, "LEDGER": str(self.ledger_file), "SWEEP": "0.3",
            "PATIENCE": "0.5",
            "PYTHONPATH": f"{HERE}{os.pathsep}{os.environ.get('PYTHONPATH', '')}", "PYTHONWARNINGS": "ignore", **env,
        }  # fmt: skip
        self.app = App("shop", store)
        self.workers: list[subprocess.Popen[bytes]] = []

    def start_worker(self, *options: str, command: tuple[str, ...] = ("-m", "celery")) -> subprocess.Popen[bytes]:
        with (self.folder / f"worker-{len(self.workers)}.log").open("wb") as log:
            worker = subprocess.Popen(
            [sys.executable, *command, "-A", f"{self.module}:celery", "worker", "--without-gossip", "--without-mingle",
             "-l", "INFO", "-n", f"w{len(self.workers)}@{self.folder.name}", *options],
            cwd=self.folder, env=self.env, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
            start_new_session=True,
        )  # fmt: skip
        self.workers.append(worker)
        return worker

    def start(self, name: str, *args: Any, **kwargs: Any) -> Any:
        return self.app.start_run(name, self.app.codec.encode_call(args, kwargs, "arguments", None), NO_OPTIONS)

    def ledger(self) -> list[str]:
        return self.ledger_file.read_text().splitlines() if self.ledger_file.exists() else []

    def effects(self) -> Counter[str]:
        return Counter(line.split(" ", 1)[1] for line in self.ledger() if line.startswith("end "))

    def wait_for(self, line: str, seconds: float = 30) -> None:
        self.wait_until(lambda: any(each.startswith(line) for each in self.ledger()), seconds)

    def wait_until(self, is_so: Callable[[], bool], seconds: float = 30) -> None:
        deadline = time.monotonic() + seconds
        while not is_so():
            assert time.monotonic() < deadline, self.logs()
            time.sleep(0.02)

    def logs(self) -> str:
        return "\n".join(f"{log.name}:\n{log.read_text()[-4000:]}" for log in sorted(self.folder.glob("worker-*.log")))

    def stop(self, worker: subprocess.Popen[bytes]) -> int:
        worker.terminate()
        return worker.wait(30)

    @staticmethod
    def kill(worker: subprocess.Popen[bytes]) -> None:
        """All processes of the worker at once."""
        os.killpg(worker.pid, signal.SIGKILL)
        worker.wait()

    def close(self) -> None:
        for worker in self.workers:
            if worker.poll() is None:
                worker.terminate()
        for worker in self.workers:
            try:
                worker.wait(15)
            except subprocess.TimeoutExpired:
                os.killpg(worker.pid, signal.SIGKILL)
                worker.wait()
        self.app.close()
