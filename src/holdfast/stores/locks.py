"""Locks between processes on one machine: a worker's life, and the queue of writers.

A worker is alive as long as its process holds the lock on its own file; the kernel lets go of it when the
process dies, however it dies. Never by pid: pids are reused, and differ between containers.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from pathlib import Path

from holdfast.errors import StoreBusyError

# POSIX locks belong to the process, so a process can't ask the kernel about its own.
_held: dict[str, int] = {}


class LifeLock:
    """Held from `take` until `release` or the death of the process."""

    def __init__(self, path: str) -> None:
        self.path = path

    def take(self) -> None:
        fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        fcntl.lockf(fd, fcntl.LOCK_EX)
        _held[self.path] = fd

    def release(self) -> None:
        fd = _held.pop(self.path, None)
        if fd is not None:
            with contextlib.suppress(OSError):
                os.unlink(self.path)
            os.close(fd)

    def is_free(self) -> bool:
        """Whether nobody lives under this lock. A file that is gone was released."""
        if self.path in _held:
            return False
        try:
            fd = os.open(self.path, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            return True
        try:
            fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
        finally:
            os.close(fd)
        return True


def forget_after_fork() -> None:
    """A forked child holds none of its parent's locks."""
    _held.clear()


os.register_at_fork(after_in_child=forget_after_fork)


class Turnstile:
    """Writers queue here before they ask SQLite for its write lock.

    SQLite lets whoever asks at the right moment go first, so a process that commits back to back starves all
    others for seconds. Whoever holds `next` is the next to write, and only one can hold it.
    """

    def __init__(self, path: str, timeout: float) -> None:
        self._timeout = timeout
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
        self._next = os.open(path + "-next", flags, 0o666)
        self._write = os.open(path + "-write", flags, 0o666)
        self._path = path

    def enter(self) -> None:
        self._lock(self._next)
        try:
            self._lock(self._write)
        finally:
            fcntl.flock(self._next, fcntl.LOCK_UN)

    def leave(self) -> None:
        fcntl.flock(self._write, fcntl.LOCK_UN)

    def close(self) -> None:
        os.close(self._next)
        os.close(self._write)

    def _lock(self, fd: int) -> None:
        # A blocking flock can't time out, and a process that was stopped inside a transaction holds it for
        # ever; so short naps, which leave the queue's order as it is.
        nap, deadline = 0.00002, 0.0
        while True:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                now = time.monotonic()
                deadline = deadline or now + self._timeout
                if now > deadline:
                    raise StoreBusyError(
                        f"{Path(self._path)} has been locked by another process for {self._timeout:g} s; see who "
                        f"holds it with `fuser {self._path}-write`, and end or continue that process"
                    ) from None
                time.sleep(nap)
                nap = min(nap * 1.5, 0.001)
