"""One server for all processes of a test run, kept by a process of its own for as long as the run lives."""

from __future__ import annotations

import contextlib
import fcntl
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

_keepers: list[subprocess.Popen[Any]] = []


def shared(place: Path, name: str, script: str) -> str:
    """The URL of the one server. `place` is a folder that all processes of the run share; `script` calls `keep`."""
    with (place / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        told = place / f"{name}.url"
        if not told.exists():
            run = os.getppid() if "PYTEST_XDIST_WORKER" in os.environ else os.getpid()
            log = place / f"{name}.errors"
            with log.open("w") as errors:
                keeper = subprocess.Popen(
                    [sys.executable, script, str(run), str(told)], start_new_session=True, stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL, stderr=errors,
                )  # fmt: skip
            _keepers.append(keeper)  # it outlives this process
            deadline = time.monotonic() + 60
            while not told.exists():
                if time.monotonic() > deadline or keeper.poll() is not None:
                    raise RuntimeError(f"{name} did not start: {log.read_text()}")
                time.sleep(0.02)
        return told.read_text()


def keep(own_server: contextlib.AbstractContextManager[Any]) -> None:
    """Have a server for as long as the test run lives. The arguments of the process are its id, and where to tell."""
    run, told = int(sys.argv[1]), Path(sys.argv[2])
    with own_server as server:
        written = told.with_suffix(".part")
        written.write_text(server.url)
        written.rename(told)
        with contextlib.suppress(ProcessLookupError):
            while True:
                os.kill(run, 0)
                time.sleep(0.25)
