"""The SQLite store: one file, any number of processes on one machine.

WAL with `synchronous=FULL`, so what is committed survives a power cut; `?sync=normal` trades the last commits
for speed. Only what is peculiar to SQLite is here: connections, transactions, errors, locks.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import parse_qs

from holdfast import failpoints
from holdfast.errors import (
    StoreBusyError,
    StoreError,
    StoreFullError,
    StoreReadOnlyError,
    StoreUnavailableError,
)
from holdfast.ports import Clock
from holdfast.stores.locks import LifeLock, Turnstile
from holdfast.stores.shared import SqlStore

BUSY_TIMEOUT = 30.0
_REMOTE = {"nfs", "nfs4", "cifs", "smb3", "smbfs", "fuse.sshfs", "afs", "9p"}


class _Connection:
    def __init__(self, raw: sqlite3.Connection, turnstile: Turnstile | None) -> None:
        self.raw = raw
        self.turnstile = turnstile

    def close(self) -> None:
        self.raw.close()
        if self.turnstile is not None:
            self.turnstile.close()


class SqliteStore(SqlStore):
    """`sqlite:///path/to/file.db`, a plain path, or `:memory:` for one process."""

    def __init__(self, app: str, url: str, clock: Clock, *, timeout: float = BUSY_TIMEOUT) -> None:
        path, _, query = url.removeprefix("sqlite:///").partition("?")
        options = {key: values[-1] for key, values in parse_qs(query).items()}
        sync = options.pop("sync", "full")
        if sync not in ("full", "normal") or options:
            raise StoreUnavailableError(f"{url}: the only option is ?sync=full or ?sync=normal")
        self._sync = sync
        self._timeout = timeout
        self.in_memory = path == ":memory:"
        self.path = path if self.in_memory else str(Path(path).expanduser().absolute())
        self._idle: list[_Connection] = []
        self._pid = os.getpid()
        self._memory: _Connection | None = None
        self._memory_lock = threading.RLock()
        if not self.in_memory:
            self._check_place()
        super().__init__(app, url if self.in_memory else self.path, clock)

    # -- where the file is

    def _check_place(self) -> None:
        folder = Path(self.path).parent
        if not folder.is_dir():
            raise StoreUnavailableError(f"{self.path}: the folder {folder} doesn't exist; create it, or name another")
        kind = _filesystem_of(folder)
        if kind in _REMOTE:
            raise StoreUnavailableError(
                f"{self.path} is on a {kind} mount, where SQLite's locks don't hold; put the file on a local disk, "
                "or use PostgreSQL for workers on several machines"
            )

    # -- connections

    def _connect(self) -> _Connection:
        try:
            raw = sqlite3.connect(self.path, isolation_level=None, timeout=self._timeout, check_same_thread=False)
            try:
                raw.execute(f"PRAGMA synchronous = {'OFF' if self.in_memory else self._sync.upper()}")
                if not self.in_memory:
                    raw.execute("PRAGMA journal_mode = WAL")
                    raw.execute("PRAGMA journal_size_limit = 67108864")
                turnstile = None if self.in_memory else Turnstile(self.path, self._timeout)
            except BaseException:
                raw.close()
                raise
        except (sqlite3.Error, OSError) as error:
            raise self._translate(error) from error
        return _Connection(raw, turnstile)

    @contextlib.contextmanager
    def _borrow(self) -> Iterator[_Connection]:
        if self.in_memory:
            with self._memory_lock:
                if self._memory is None:
                    self._memory = self._connect()
                yield self._memory
            return
        if self._pid != os.getpid():  # connections don't survive a fork
            self._idle, self._pid = [], os.getpid()
        connection = self._idle.pop() if self._idle else self._connect()
        try:
            yield connection
        except sqlite3.Error:
            connection.close()
            raise
        except BaseException:
            self._idle.append(connection)
            raise
        self._idle.append(connection)

    @contextlib.contextmanager
    def read(self) -> Iterator[sqlite3.Connection]:
        try:
            with self._borrow() as connection:
                yield connection.raw
        except sqlite3.Error as error:
            raise self._translate(error) from error

    @contextlib.contextmanager
    def write(self, name: str) -> Iterator[sqlite3.Connection]:
        """A transaction. Failpoints stand before and after its commit."""
        try:
            with self._borrow() as connection:
                if connection.turnstile is not None:
                    connection.turnstile.enter()
                try:
                    connection.raw.execute("BEGIN IMMEDIATE")
                    try:
                        yield connection.raw
                        failpoints.hit(f"{name}.before_commit")
                        connection.raw.execute("COMMIT")
                    except BaseException:
                        if connection.raw.in_transaction:
                            connection.raw.execute("ROLLBACK")
                        raise
                finally:
                    if connection.turnstile is not None:
                        connection.turnstile.leave()
                failpoints.hit(f"{name}.after_commit")
        except sqlite3.Error as error:
            raise self._translate(error) from error

    def close(self) -> None:
        idle, self._idle = self._idle, []
        if self._memory is not None:
            idle.append(self._memory)
            self._memory = None
        for connection in idle:
            connection.close()

    # -- life

    def life_lock(self, worker_id: str) -> LifeLock | None:
        return None if self.in_memory else LifeLock(f"{self.path}-worker-{worker_id}")

    # -- errors

    def _translate(self, error: Exception) -> StoreError:
        text = str(error)
        if isinstance(error, PermissionError) or "readonly" in text or getattr(error, "errno", 0) == errno.EROFS:
            return StoreReadOnlyError(
                f"{self.path} can't be written ({text}); make the file and its folder writable for this user"
            )
        if "full" in text or getattr(error, "errno", 0) == errno.ENOSPC:
            return StoreFullError(
                f"there is no room left for {self.path} ({text}); free some, runs go on by themselves"
            )
        if "locked" in text or "busy" in text:
            return StoreBusyError(
                f"{self.path} was locked by another program for {self._timeout:g} s ({text}); close whatever has it "
                "open in a transaction"
            )
        if "unable to open" in text:
            return StoreUnavailableError(f"{self.path} can't be opened ({text}); check the path and its permissions")
        if "not a database" in text or "malformed" in text:
            return StoreUnavailableError(f"{self.path} is not a SQLite database ({text}); name another file")
        return StoreError(f"{self.path}: {text}")


def _filesystem_of(folder: Path) -> str:
    """The kind of file system a folder is on, where the system tells."""
    try:
        mounts = Path("/proc/self/mounts").read_text().splitlines()
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
