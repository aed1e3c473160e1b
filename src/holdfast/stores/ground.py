"""The files that a connection stands on, and how it notices that they are gone.

A process goes on for ever in files that were deleted or replaced under it, and whatever it commits there is lost. SQLite
itself deletes the WAL once the last process has let go of the database, and a process loses SQLite's lock that says it
hasn't as soon as it closes any descriptor of the file: a step that copies it is enough. So an anchor holds the same
locks once more, with descriptors of its own.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import struct
import sys
import threading
import time
from pathlib import Path

from holdfast.errors import StoreUnavailableError

SUFFIXES = ("", "-wal", "-shm")
_SHARED = (0x40000002, 510)
"""The bytes of the database that SQLite locks while it has it open."""
_DEADMAN = (128, 1)
"""The byte of the WAL's index that says somebody uses it."""
_MARKS = 123
"""The first of the five bytes of the WAL's index that readers lock."""
_LOCKS = Path("/proc/locks")
_MOUNTS = Path("/proc/self/mounts")
_REMOTE = {"nfs", "nfs4", "cifs", "smb3", "smbfs", "fuse.sshfs", "afs", "9p"}
_HAS_OWN_LOCKS = sys.platform == "linux" and sys.maxsize > 2**32  # the layout of `struct flock` below


def check_place(path: str) -> None:
    """That a database can be where it is to be."""
    folder = Path(path).parent
    if not folder.is_dir():
        raise StoreUnavailableError(f"{path}: the folder {folder} doesn't exist; create it, or name another")
    kind = _filesystem_of(folder)
    if kind in _REMOTE:
        raise StoreUnavailableError(
            f"{path} is on a {kind} mount, where SQLite's locks don't hold; put the file on a local disk, or use PostgreSQL for "
            "workers on several machines"
        )


def _filesystem_of(folder: Path) -> str:
    """The kind of file system a folder is on, where the system tells."""
    try:
        mounts = _MOUNTS.read_text().splitlines()
    except OSError:
        return ""
    best, kind = "", ""
    for line in mounts:
        _, place, found, *_ = line.split(" ")
        place = place.replace("\\040", " ")
        inside = str(folder) == place or str(folder).startswith(place.rstrip("/") + "/")
        if inside and len(place) >= len(best):
            best, kind = place, found
    return kind


class Ground:
    """The files as they were when a connection had opened them."""

    def __init__(self, path: str) -> None:
        self._files = [(path + suffix, identity(path + suffix)) for suffix in SUFFIXES]
        self.database = self._files[0][1]

    def what_is_gone(self) -> str:
        """What happened to the first file that is no longer the one that was opened; empty if all are."""
        for path, before in self._files:
            now = identity(path)
            if now != before:
                return f"{path} was {'deleted' if now is None else 'replaced by another file'}"
        return ""


def identity(path: str) -> tuple[int, int] | None:
    try:
        return _identity(os.stat(path))
    except FileNotFoundError:
        return None


def _identity(found: os.stat_result) -> tuple[int, int]:
    return found.st_dev, found.st_ino


class Anchor:
    """Locks on a database and on its WAL's index that copying these files doesn't drop. All connections of a process
    share it: it is taken with the first and given up with the last."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.holders = 0
        self._fds: list[int] = []
        try:
            for suffix, place in (("", _SHARED), ("-shm", _DEADMAN)):
                self._fds.append(os.open(path + suffix, os.O_RDONLY | os.O_CLOEXEC))
                _lock(self._fds[-1], fcntl.F_RDLCK, place)
        except BaseException:
            self.close()
            raise

    def is_in_place(self) -> bool:
        files = (self.path, f"{self.path}-shm")
        return [_identity(os.fstat(fd)) for fd in self._fds] == [identity(file) for file in files]

    def lift(self) -> None:
        """Let SQLite clear up after itself, if this was the last process."""
        for fd, place in zip(self._fds, (_SHARED, _DEADMAN), strict=True):
            _lock(fd, fcntl.F_UNLCK, place)

    def readers(self) -> set[int]:
        """The processes that read what was there before the last commits. The index says up to which frame each of five
        marks reads, and who reads at a mark holds a lock on its byte."""
        head = os.pread(self._fds[1], 120, 0)
        if len(head) < 120:
            return set()
        (frames,) = struct.unpack_from("=I", head, 16)
        marks = struct.unpack_from("=5I", head, 100)
        behind = {_MARKS + number for number, mark in enumerate(marks) if number == 0 or mark < frames}
        return {pid for pid, start, end in _read_locks(self._fds[1]) if any(start <= byte <= end for byte in behind)}

    def close(self) -> None:
        """Only once this process has no connection any more: it drops SQLite's own locks."""
        fds, self._fds = self._fds, []
        for fd in fds:
            with contextlib.suppress(OSError):
                os.close(fd)


class Anchors:
    """The anchors of this process, by path."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._by_path: dict[str, Anchor] = {}

    def hold(self, path: str) -> Anchor | None:
        """None where the system has no such locks."""
        if not _HAS_OWN_LOCKS:
            return None
        with self._lock:
            anchor = self._by_path.get(path)
            if anchor is None or not anchor.is_in_place():  # else it holds on to files that were replaced
                anchor = self._by_path[path] = Anchor(path)
            anchor.holders += 1
            return anchor

    def let_go(self, anchor: Anchor) -> bool:
        """Whether nobody holds it any more."""
        with self._lock:
            anchor.holders -= 1
            if anchor.holders:
                return False
            if self._by_path.get(anchor.path) is anchor:
                del self._by_path[anchor.path]
            return True

    def readers(self, path: str) -> list[int]:
        """The processes whose reading keeps the WAL of a database from being copied into it, where the system tells."""
        with self._lock:
            anchor = self._by_path.get(path)
        if anchor is None:
            return []
        found = anchor.readers()
        time.sleep(0.05)  # those that were only passing are gone by then
        return sorted(found & anchor.readers())

    def after_fork(self) -> None:
        """In a child: its copies of the descriptors would keep the parent's locks after the parent's death."""
        self._lock = threading.RLock()
        for anchor in self._by_path.values():
            anchor.close()
        self._by_path.clear()


def _read_locks(fd: int) -> list[tuple[int, int, int]]:
    """The locks of readers on an open file: process, first and last byte."""
    inode, found = str(os.fstat(fd).st_ino), []
    with contextlib.suppress(OSError, ValueError):
        for line in _LOCKS.read_text().splitlines():
            # 1: POSIX  ADVISORY  READ 4711 fe:00:1234 124 124; a line with `->` is one that waits
            fields = line.split()
            if fields[1] == "POSIX" and fields[3] == "READ" and fields[5].rpartition(":")[2] == inode:
                end = sys.maxsize if fields[7] == "EOF" else int(fields[7])
                found.append((int(fields[4]), int(fields[6]), end))
    return [lock for lock in found if lock[0] > 0]


def _lock(fd: int, how: int, place: tuple[int, int]) -> None:
    start, length = place
    try:
        fcntl.fcntl(fd, fcntl.F_OFD_SETLK, struct.pack("hhqqi4x", how, os.SEEK_SET, start, length, 0))
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP):  # a file system without such locks
            raise
