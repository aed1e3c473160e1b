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
from collections.abc import Iterator, Sequence
from pathlib import Path
from urllib.parse import parse_qs

from holdfast import failpoints
from holdfast.errors import (
    EncodeError,
    StoreBusyError,
    StoreError,
    StoreFullError,
    StoreReadOnlyError,
    StoreUnavailableError,
)
from holdfast.ports import Clock, Subscription, WorkerRow
from holdfast.stores.locks import LifeLock, Turnstile
from holdfast.stores.shared import SqlStore

BUSY_TIMEOUT = 30.0
_of_the_parent: list[_Connection] = []
_MOUNTS = Path("/proc/self/mounts")
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
        # The locks and bells beside the file have to be the same ones for everybody, whatever link they came by.
        self.path = path if self.in_memory else os.path.realpath(Path(path).expanduser())
        self._idle: list[_Connection] = []
        self._is_closed = False
        self._pid = os.getpid()
        self._memory: _Connection | None = None
        self._memory_lock = threading.RLock()
        if not self.in_memory:
            self._check_place()
        try:
            super().__init__(app, url if self.in_memory else self.path, clock)
        except BaseException:
            self.close()
            raise

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
            connection = _Connection(raw, None)
            try:
                raw.execute(f"PRAGMA synchronous = {'OFF' if self.in_memory else self._sync.upper()}")
                if not self.in_memory:
                    connection.turnstile = Turnstile(self.path, self._timeout)
                    self._use_wal(connection)
                    raw.execute("PRAGMA journal_size_limit = 67108864")
            except BaseException:
                connection.close()
                raise
        except (sqlite3.Error, OSError) as error:
            raise self._translate(error) from error
        return connection

    def _use_wal(self, connection: _Connection) -> None:
        if connection.raw.execute("PRAGMA journal_mode").fetchone()[0] == "wal":
            return
        assert connection.turnstile is not None
        # Of several that make the same new file only one may, and SQLite's own timeout doesn't cover it.
        connection.turnstile.enter()
        try:
            connection.raw.execute("PRAGMA journal_mode = WAL")
        finally:
            connection.turnstile.leave()

    @contextlib.contextmanager
    def _borrow(self) -> Iterator[_Connection]:
        if self.in_memory:
            with self._memory_lock:
                if self._memory is None:
                    self._memory = self._connect()
                yield self._memory
            return
        if self._pid != os.getpid():  # connections don't survive a fork, and closing them here would hurt the parent
            _of_the_parent.extend(self._idle)
            self._idle, self._pid = [], os.getpid()
        try:
            connection = self._idle.pop()
        except IndexError:
            connection = self._connect()
        is_sound = True
        try:
            yield connection
        except sqlite3.Error:
            is_sound = False
            raise
        finally:
            if is_sound and not self._is_closed:
                self._idle.append(connection)
            else:
                connection.close()

    @contextlib.contextmanager
    def read(self) -> Iterator[sqlite3.Connection]:
        try:
            with self._borrow() as connection:
                yield connection.raw
        except sqlite3.Error as error:
            raise self._translate(error) from error

    @contextlib.contextmanager
    def write(self, name: str, lasting: bool = True) -> Iterator[sqlite3.Connection]:
        """A transaction. Failpoints stand before and after its commit."""
        relaxed = not lasting and self._sync == "full" and not self.in_memory
        try:
            with self._borrow() as connection:
                if connection.turnstile is not None:
                    connection.turnstile.enter()
                try:
                    if relaxed:
                        connection.raw.execute("PRAGMA synchronous = NORMAL")
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
                    if relaxed:
                        connection.raw.execute("PRAGMA synchronous = FULL")
                    if connection.turnstile is not None:
                        connection.turnstile.leave()
                failpoints.hit(f"{name}.after_commit")
        except (OverflowError, UnicodeEncodeError, sqlite3.DataError) as error:
            raise EncodeError(f"a value can't be kept in {self.path}: {error}") from error
        except sqlite3.Error as error:
            raise self._translate(error) from error

    def close(self) -> None:
        self._is_closed = True
        idle, self._idle = self._idle, []
        if self._memory is not None:
            idle.append(self._memory)
            self._memory = None
        for connection in idle:
            connection.close()

    # -- life

    def life_lock(self, worker_id: str) -> LifeLock | None:
        return None if self.in_memory else LifeLock(f"{self.path}-worker-{worker_id}")

    def register(self, worker: WorkerRow, lease: int, subscriptions: Sequence[Subscription] = ()) -> None:
        super().register(worker, lease, subscriptions)
        if not self.in_memory:
            self._clear_stale_locks()

    def _clear_stale_locks(self) -> None:
        """Remove the lock files of workers that were buried while they were frozen, and died later."""
        folder, name = os.path.split(self.path)
        with contextlib.suppress(OSError):
            for file in os.listdir(folder):
                if file.startswith(f"{name}-worker-"):
                    LifeLock(os.path.join(folder, file)).clear()

    # -- errors

    def _translate(self, error: Exception) -> StoreError:
        """The error in words that say what to do."""
        text, code = str(error), getattr(error, "sqlite_errorcode", 0) & 0xFF
        number = error.errno if isinstance(error, OSError) else 0
        if code == sqlite3.SQLITE_READONLY or number in (errno.EACCES, errno.EPERM, errno.EROFS) or self._is_shut(code):
            return StoreReadOnlyError(
                f"{self.path} can't be written ({text}); make the file and its folder writable for this user"
            )
        if code == sqlite3.SQLITE_FULL or number in (errno.ENOSPC, errno.EDQUOT) or self._has_no_room(code):
            return StoreFullError(
                f"there is no room left for {self.path} ({text}); free some, runs go on by themselves"
            )
        if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            return StoreBusyError(
                f"{self.path} was locked by another program for {self._timeout:g} s ({text}); close whatever has it "
                "open in a transaction"
            )
        if code == sqlite3.SQLITE_CANTOPEN:
            return StoreUnavailableError(f"{self.path} can't be opened ({text}); check the path and its permissions")
        if code in (sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT):
            return StoreUnavailableError(f"{self.path} is not a SQLite database ({text}); name another file")
        return StoreError(f"{self.path}: {text}")

    def _is_shut(self, code: int) -> bool:
        """A folder where nothing can be made is one reason why a database can't be opened."""
        if code != sqlite3.SQLITE_CANTOPEN:
            return False
        return not os.access(os.path.dirname(self.path), os.W_OK, effective_ids=os.access in os.supports_effective_ids)

    def _has_no_room(self, code: int) -> bool:
        """Some of what SQLite needs room for (shared memory, locks) fails as an I/O error instead."""
        if code not in (sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN):
            return False
        try:
            return os.statvfs(os.path.dirname(self.path)).f_bavail == 0
        except OSError:
            return False


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
