"""Locks between processes on one machine: a worker's life, and the queue of writers.

A worker is alive as long as its process holds the lock on its own file; the kernel lets go of it when the
process dies, however it dies. Never by pid: pids are reused, and differ between containers.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import os
import time
import weakref
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

from holdfast.errors import StoreBusyError, StoreUnavailableError
from holdfast.stores.lives import Lives

logger = logging.getLogger("holdfast")
_FLAGS = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
_held: dict[str, int] = {}
_turnstiles: weakref.WeakSet[Turnstile] = weakref.WeakSet()


class LifeLock:
    """Held from `take` until `release` or the death of the process. A file that can't be opened or locked, as when a
    process has too many open, is a StoreUnavailableError."""

    def __init__(self, path: str) -> None:
        self.path = path

    def take(self) -> None:
        with _usable(self.path):
            while True:
                fd = os.open(self.path, _FLAGS, 0o666)
                try:
                    fcntl.flock(fd, fcntl.LOCK_EX)
                    if _is_file_of(fd, self.path):
                        break
                except BaseException:
                    os.close(fd)
                    raise
                os.close(fd)  # somebody cleared it away before it was locked
        _held[self.path] = fd

    def is_in_place(self) -> bool:
        """Whether others find the file that is locked here."""
        fd = _held.get(self.path)
        return fd is not None and _is_file_of(fd, self.path)

    def take_again(self) -> None:
        """Hold it at its place again, after that was cleared."""
        fd = _held.pop(self.path, None)
        self.take()
        if fd is not None:
            _close(fd)

    def release(self) -> None:
        fd = _held.pop(self.path, None)
        if fd is not None:
            with contextlib.suppress(OSError):
                os.unlink(self.path)
            _close(fd)

    def is_free(self) -> bool:
        """Whether nobody lives under this lock. A file that is gone was released."""
        with _usable(self.path):
            try:
                fd = os.open(self.path, os.O_RDWR | os.O_CLOEXEC)
            except FileNotFoundError:
                return True
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
            finally:
                os.close(fd)
            return True

    def clear(self) -> None:
        """Remove what a worker that died without `release` has left."""
        if self.is_free():
            with contextlib.suppress(OSError):
                os.unlink(self.path)


class FileLives(Lives[LifeLock]):
    """Life locks are files beside the database."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self._prefix = f"{path}-worker-"

    def lock_of(self, worker_id: str) -> LifeLock:
        return LifeLock(self._prefix + worker_id)

    def take(self, worker_id: str, lease: int) -> None:
        self._clear_stale()
        super().take(worker_id, lease)

    def dead(self, worker_ids: Sequence[str]) -> Collection[str]:
        return {worker_id for worker_id in super().dead(worker_ids) if self.lock_of(worker_id).is_free()}

    def clear(self, worker_id: str) -> None:
        if worker_id not in self.here:
            self.lock_of(worker_id).clear()

    def _clear_stale(self) -> None:
        """Remove the locks of workers that were declared dead while they were frozen, and died later."""
        folder, beginning = os.path.split(self._prefix)
        with contextlib.suppress(OSError):
            for file in os.listdir(folder):
                if file.startswith(beginning):
                    LifeLock(os.path.join(folder, file)).clear()

    def check(self) -> None:
        for worker_id, lock in list(self.here.items()):
            if lock is not None and not lock.is_in_place():
                logger.warning(
                    "%s was deleted or replaced while worker %s lives; it is made anew", lock.path, worker_id
                )
                lock.take_again()


class Turnstile:
    """Writers queue here before they ask SQLite for its write lock.

    SQLite lets whoever asks at the right moment go first, so a process that commits back to back starves all
    others for seconds. Whoever holds `next` is the next to write, and only one can hold it.
    """

    def __init__(self, path: str, timeout: float) -> None:
        self._timeout = timeout
        self._path = path
        self._next = os.open(path + "-next", _FLAGS, 0o666)
        try:
            self._write = os.open(path + "-write", _FLAGS, 0o666)
        except BaseException:
            os.close(self._next)
            raise
        self._is_open = True
        _turnstiles.add(self)

    def enter(self) -> None:
        deadline = time.monotonic() + self._timeout
        self._lock(self._next, deadline)
        try:
            self._lock(self._write, deadline)
        finally:
            fcntl.flock(self._next, fcntl.LOCK_UN)

    def leave(self) -> None:
        fcntl.flock(self._write, fcntl.LOCK_UN)

    def close(self) -> None:
        if self._is_open:
            self._is_open = False
            os.close(self._next)
            os.close(self._write)

    def _lock(self, fd: int, deadline: float) -> None:
        # A blocking flock can't time out, and a process that was stopped inside a transaction holds it for
        # ever; so short naps, which leave the queue's order as it is.
        nap = 0.00002
        while True:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise StoreBusyError(self._who_is_in_the_way(fd)) from None
                time.sleep(nap)
                nap = min(nap * 1.5, 0.001)

    def _who_is_in_the_way(self, fd: int) -> str:
        pid = _holder(fd)
        if pid is None:
            who = f"another process; `lslocks` tells which one holds {self._path}-write or {self._path}-next"
        else:
            who = f"process {pid}{_doing(pid)}"
        return (
            f"{self._path} has been locked for {self._timeout:g} s by {who}; continue that process (kill -CONT) or end it, "
            "and all goes on"
        )


def _is_file_of(fd: int, path: str) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), os.stat(path))
    except OSError:
        return False


def _close(fd: int) -> None:
    with contextlib.suppress(OSError):
        os.close(fd)


@contextlib.contextmanager
def _usable(path: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StoreUnavailableError(f"{path} can't be used ({error.strerror}); {_remedy(error.errno)}") from error


def _remedy(number: int | None) -> str:
    if number in (errno.EMFILE, errno.ENFILE):
        return "close files, or allow the process more of them (ulimit -n)"
    return "make it and its folder writable for this user"


def _holder(fd: int) -> int | None:
    """The process that holds the lock on an open file, where the system tells."""
    inode = str(os.fstat(fd).st_ino)
    with contextlib.suppress(OSError, ValueError):
        for line in Path("/proc/locks").read_text().splitlines():
            # 1: FLOCK  ADVISORY  WRITE 4711 fe:00:1234 0 EOF; a line with `->` is one that waits
            fields = line.split()
            if fields[1] == "FLOCK" and fields[5].rpartition(":")[2] == inode and int(fields[4]) > 0:
                return int(fields[4])
    return None


def _doing(pid: int) -> str:
    with contextlib.suppress(OSError, IndexError):
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        return ", which is stopped" if state in "Tt" else ""
    return ""


def after_fork() -> None:
    """In a forked child, which shares its parent's open files: a lock on one of those would outlive the parent for as
    long as the child lives."""
    for fd in _held.values():
        _close(fd)
    _held.clear()
    for turnstile in list(_turnstiles):
        turnstile.close()
