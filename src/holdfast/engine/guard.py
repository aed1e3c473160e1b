"""Keeps workflow code from blocking the engine: no I/O while it runs, and no hogging.

An audit hook sees files, sockets, subprocesses and sleeps of the thread that runs workflow code. A watchdog
throws into code that doesn't come back. Either way the run is set aside, and nothing of it is lost.
"""

from __future__ import annotations

import ctypes
import sys
import threading
import time
from types import FrameType
from typing import Any

from holdfast.core.execution import Execution
from holdfast.errors import WorkflowBlocked

FORBIDDEN = {
    "open": "opens a file",
    "socket.connect": "opens a connection",
    "socket.bind": "opens a socket",
    "socket.getaddrinfo": "looks up a host",
    "subprocess.Popen": "starts a process",
    "os.system": "starts a process",
    "os.posix_spawn": "starts a process",
    "os.fork": "forks",
    "sqlite3.connect": "opens a database",
    "time.sleep": "sleeps (use `await sleep(...)` or `wf.sleep(...)`)",
    "_thread.start_new_thread": "starts a thread",
}
# What the interpreter and logging do on the code's behalf is not the code's doing.
_ALLOWED = ("importlib", "linecache", "traceback", "logging", "tokenize", "zipimport", "inspect", "warnings")

_armed: dict[int, Guard] = {}
_installed = False


def _audit(event: str, args: tuple[Any, ...]) -> None:
    if not _armed or event not in FORBIDDEN:
        return
    guard = _armed.get(threading.get_ident())
    if guard is not None:
        guard.saw(event, args)


class Guard:
    """Watches one engine's thread while it runs workflow code."""

    def __init__(self, patience: float = 2.0) -> None:
        self.patience = patience
        self._lock = threading.Lock()
        self._execution: Execution | None = None
        self._since = 0.0
        self._thrown = False
        self._thread = 0
        self._stop = threading.Event()
        self._watchdog: threading.Thread | None = None

    def start(self) -> None:
        global _installed
        if not _installed:
            _installed = True
            sys.addaudithook(_audit)
        self._watchdog = threading.Thread(target=self._watch, name="holdfast-watchdog", daemon=True)
        self._watchdog.start()

    def stop(self) -> None:
        self._stop.set()

    def enter(self, execution: Execution) -> None:
        """Workflow code runs on this thread from here to `leave`."""
        self._thread = threading.get_ident()
        self._since = time.monotonic()
        self._execution = execution
        _armed[self._thread] = self

    def leave(self) -> None:
        _armed.pop(self._thread, None)
        with self._lock:
            self._execution = None
            thrown, self._thrown = self._thrown, False
        if thrown:  # it may not have arrived yet, and must not arrive in the engine's own code
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(self._thread), None)

    def saw(self, event: str, args: tuple[Any, ...]) -> None:
        execution = self._execution
        if execution is None:
            return
        frame: FrameType | None = sys._getframe(2)
        line = ""
        while frame is not None:
            module = frame.f_globals.get("__name__", "")
            if module.startswith(_ALLOWED):
                return
            if module.startswith("holdfast."):
                break
            if not line and not module.startswith(
                ("asyncio", "socket", "subprocess", "urllib", "http", "pathlib", "os")
            ):
                line = f"{frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_name}"
            frame = frame.f_back
        if not line:
            return
        what = f" ({args[0]!r})" if args and isinstance(args[0], str) else ""
        execution.blocked_by = (
            f"workflow code {FORBIDDEN[event]}{what} at {line}: it is replayed, so move this into a step, "
            "then resume the run"
        )
        raise WorkflowBlocked(execution.blocked_by)

    def _watch(self) -> None:
        while not self._stop.wait(self.patience / 4):
            execution = self._execution
            if execution is None or time.monotonic() - self._since < self.patience:
                continue
            with self._lock:
                if self._execution is not execution or self._thrown:
                    continue
                line = _user_line(sys._current_frames().get(self._thread))
                execution.blocked_by = (
                    f"workflow code has not yielded for {self.patience:g} s, at {line}: await something, or move the "
                    "work into a step, then resume the run"
                )
                self._thrown = True
                ctypes.pythonapi.PyThreadState_SetAsyncExc(
                    ctypes.c_ulong(self._thread), ctypes.py_object(WorkflowBlocked)
                )


def _user_line(frame: FrameType | None) -> str:
    while frame is not None:
        module = frame.f_globals.get("__name__", "")
        if not module.startswith(("holdfast.", "asyncio")):
            return f"{frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_name}"
        frame = frame.f_back
    return "an unknown line"
