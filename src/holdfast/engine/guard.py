"""Keeps workflow code from blocking the engine: no I/O while it runs, and no hogging.

An audit hook sees files, sockets, subprocesses, threads and sleeps of the thread that runs workflow code. A watchdog
throws into code that doesn't come back. Either way the run is set aside, and nothing of it is lost.
"""

from __future__ import annotations

import ctypes
import functools
import logging
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

from holdfast.codec.blobs import does_own_io
from holdfast.core.execution import Execution
from holdfast.core.source_lines import frames_of_users, line_of_thread, line_of_users, package_of
from holdfast.errors import WorkflowBlocked

logger = logging.getLogger("holdfast.engine")

FORBIDDEN = {
    "open": "opens a file",
    "os.listdir": "reads a folder",
    "os.scandir": "reads a folder",
    "os.remove": "removes a file",
    "os.rename": "renames a file",
    "os.truncate": "shortens a file",
    "os.link": "links a file",
    "os.symlink": "links a file",
    "os.mkdir": "makes a folder",
    "os.rmdir": "removes a folder",
    "shutil.rmtree": "removes a folder",
    "socket.connect": "opens a connection",
    "socket.bind": "opens a socket",
    "socket.sendto": "sends a message",
    "socket.getaddrinfo": "looks up a host",
    "socket.gethostbyname": "looks up a host",
    "subprocess.Popen": "starts a process",
    "os.system": "starts a process",
    "os.posix_spawn": "starts a process",
    "os.exec": "starts a process",
    "os.fork": "forks",
    "sqlite3.connect": "opens a database",
    "time.sleep": "sleeps (use `await sleep(...)` or `wf.sleep(...)`)",
    "_thread.start_new_thread": "starts a thread",
    "_thread.start_joinable_thread": "starts a thread",
    "builtins.input": "waits for the keyboard",
}
# What the interpreter and logging do on the code's behalf is not the code's doing.
_ALLOWED = {
    "importlib", "_frozen_importlib", "_frozen_importlib_external", "zipimport", "linecache", "tokenize", "traceback",
    "logging", "inspect", "warnings",
}  # fmt: skip
# What is shown is the line of the code that called these.
_LIBRARIES = {
    "asyncio", "concurrent", "glob", "http", "os", "pathlib", "shutil", "socket", "subprocess", "tempfile", "threading",
    "urllib",
}  # fmt: skip

TICKS = 4

_armed: dict[int, Guard] = {}
_installed = False


def _install() -> None:
    global _installed
    if _installed:
        return
    _installed = True
    sys.addaudithook(_audit)
    # Not audited before Python 3.13 and 3.12.
    if sys.version_info < (3, 13):
        time.sleep = _audited(time.sleep, "time.sleep")
    if sys.version_info < (3, 12):
        threading.Thread.start = _audited(threading.Thread.start, "_thread.start_new_thread")  # type: ignore[method-assign]


def _audited(function: Callable[..., Any], event: str) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(*args: Any) -> Any:
        _audit(event, args)
        return function(*args)

    return call


def _audit(event: str, args: tuple[Any, ...]) -> None:
    if not _armed or event not in FORBIDDEN:
        return
    guard = _armed.get(threading.get_ident())
    if guard is not None:
        guard.saw(event, args)


class Guard:
    """Watches one engine's thread while it runs workflow code, which is interrupted if it doesn't yield for `seconds`."""

    def __init__(self, seconds: float = 2.0) -> None:
        self._seconds = seconds
        self._lock = threading.Lock()
        self._execution: Execution | None = None
        self._visits = 0
        self._thrown = False
        self._thread = 0
        self._stop = threading.Event()
        self._watchdog: threading.Thread | None = None

    def start(self) -> None:
        _install()
        self._watchdog = threading.Thread(target=self._watch, name="holdfast-watchdog", daemon=True)
        self._watchdog.start()

    def stop(self) -> None:
        self._stop.set()

    def enter(self, execution: Execution) -> None:
        """Workflow code runs on this thread from here to `leave`."""
        self._thread = threading.get_ident()
        self._visits += 1
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
        if execution is None or does_own_io(self._thread):
            return
        frame: FrameType | None = sys._getframe()
        while frame is not None and frame.f_globals is globals():
            frame = frame.f_back
        frames = frames_of_users(frame)
        if not _ALLOWED.isdisjoint(map(package_of, frames)):
            return
        line = line_of_users(frames, _LIBRARIES)
        if not line:
            return
        what = f" ({args[0]!r})" if args and isinstance(args[0], str) else ""
        raise execution.block(f"{FORBIDDEN[event]}{what}", line)

    def _watch(self) -> None:
        """Count the times this thread finds the engine in the same place: where other code holds the
        interpreter, or the whole process sleeps, this thread doesn't count either, and no run is blamed."""
        visit = ticks = 0
        while not self._stop.wait(self._seconds / TICKS):
            if self._execution is None or self._visits != visit or does_own_io(self._thread):
                visit, ticks = self._visits, 0
                continue
            ticks += 1
            if ticks % TICKS == 0:
                self._throw(visit, again=ticks > TICKS)

    def _throw(self, visit: int, again: bool) -> None:
        with self._lock:
            execution = self._execution
            if execution is None or self._visits != visit:
                return
            line = line_of_thread(self._thread, _LIBRARIES)
            execution.blocked_by = execution.blocked_by or (
                f"workflow code has not yielded for {self._seconds:g} s, at {line}: await something, or move the "
                "work into a step, then resume the run"
            )
            self._thrown = True
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(self._thread), ctypes.py_object(WorkflowBlocked))
        if again:
            logger.critical(
                "workflow code of run %s holds up the whole worker, and can't be interrupted where it is: %s; if it doesn't "
                "come back, restart the worker",
                execution.info.run_id,
                line,
            )
