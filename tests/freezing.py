"""Stopping a worker's process where it holds up nobody."""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import Any

from holdfast import App
from holdfast.errors import StoreBusyError
from holdfast.stores.sqlite import SqliteStore
from warm_python import Process


def freeze(process: Process, app: App, path: str, until: Callable[[Callable[[], bool]], Any]) -> None:
    """Not inside a transaction, for which the others would wait."""
    probe = SqliteStore(app.name, path, app.clock, timeout=0.2)

    def is_apart() -> bool:
        process.send_signal(signal.SIGSTOP)
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
