"""Stopping a worker's process where it holds up nobody."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

from holdfast import App
from holdfast.errors import StoreBusyError
from holdfast.stores.sqlite import SqliteStore
from warm_python import Process


def has_stopped(pid: int) -> bool:
    """Whether none of its threads can do anything more."""
    states = [stat.read_text().rpartition(")")[2].split()[0] for stat in Path(f"/proc/{pid}/task").glob("*/stat")]
    return set(states) == {"T"}


def freeze(process: Process, app: App, path: str, until: Callable[[Callable[[], bool]], Any]) -> None:
    """Not inside a transaction, for which the others would wait."""
    probe = SqliteStore(app.name, path, app.storage.clock, timeout=0.2)

    def is_apart() -> bool:
        process.send_signal(signal.SIGSTOP)
        until(lambda: has_stopped(process.pid))  # a thread that waits for the disk stops when it comes back
        try:
            probe.collect(1)
        except StoreBusyError:
            process.send_signal(signal.SIGCONT)
            return False
        return True

    try:
        until(is_apart)
    finally:
        probe.close()
