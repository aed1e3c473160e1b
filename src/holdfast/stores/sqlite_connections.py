"""Connections to SQLite: the files they stand on, those that are kept for the next one who needs one, and the end of all
of them when the files are gone."""

from __future__ import annotations

import contextlib
import ctypes
import os
import sqlite3
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

from holdfast.errors import StoreLostError, StoreUnavailableError
from holdfast.stores.forks import gate
from holdfast.stores.ground import Anchor, Anchors, Ground, identity
from holdfast.stores.locks import Turnstile
from holdfast.stores.sqlite_errors import translated

WAL_LIMIT = 64 * 2**20
"""How large the WAL may stay after a checkpoint, and when one that only grows is worth a word."""
LOOKED_AT_FOR = 0.05
"""Seconds for which those who only read don't look at the files again: what they find could as well have been read before."""
anchors = Anchors()
_lost: dict[tuple[int, int], str] = {}
"""Databases that this process must not open again: SQLite still believes that it holds locks on them."""


class Connection:
    """A connection, the turnstile it writes through, and the files it stands on."""

    def __init__(self, raw: sqlite3.Connection, is_for_long: bool = True) -> None:
        self.raw = raw
        self.is_for_long = is_for_long
        self.turnstile: Turnstile | None = None
        self._pid = os.getpid()
        self._anchor: Anchor | None = None
        self._ground: Ground | None = None

    def settle(self, path: str) -> None:
        """Keep hold of the files, and know them again."""
        self.raw.execute("SELECT 1 FROM sqlite_master LIMIT 1").fetchall()  # opens the WAL and its index
        self._anchor = anchors.hold(path)
        self._ground = Ground(path)

    def is_ours(self) -> bool:
        """Whether this is the process that has made it, and not one that was forked meanwhile."""
        return self._pid == os.getpid()

    def what_is_gone(self) -> str:
        return "" if self._ground is None else self._ground.what_is_gone()

    def close(self) -> None:
        if not self.is_ours() or self.what_is_gone():
            self.abandon()
            return
        is_last = self._anchor is not None and anchors.let_go(self._anchor)
        if self._anchor is not None and is_last:
            self._anchor.lift()
        self.raw.close()
        if self._anchor is not None and is_last:
            self._anchor.close()
        if self.turnstile is not None:
            self.turnstile.close()

    def abandon(self) -> None:
        """Let go of it without closing it, ever: to close it could copy pages of the past into the database, and would
        delete a WAL that has the same name and by now is somebody else's."""
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self.raw))
        if self.turnstile is not None:
            self.turnstile.close()


class Connections:
    """Those to one file, or the one to a database in memory."""

    def __init__(self, path: str, sync: str, timeout: float) -> None:
        self.path = path
        self.in_memory = path == ":memory:"
        # Each store in memory is a database of its own.
        self.file = f":memory:{id(self)}" if self.in_memory else path
        self.idle: list[Connection] = []
        self._sync = "off" if self.in_memory else sync
        self._timeout = timeout
        self._is_closed = False
        self._pid = os.getpid()
        self._database: tuple[int, int] | None = None
        self._is_lost = ""
        self._looked_at = 0.0
        self._memory: Connection | None = None
        self._memory_lock = threading.RLock()

    @contextlib.contextmanager
    def borrow(self, to_write: bool = True) -> Iterator[Connection]:
        """One that nobody else uses meanwhile. It is only for reading if it isn't `to_write`, nor to move what was written."""
        if self.in_memory:
            self._check_process()
            with gate.using(self.file), self._memory_lock:
                if self._memory is None:
                    self._memory = self._connect()
                yield self._memory
            return
        with gate.using(self.file):
            connection = self._take(to_write)
            is_sound = True
            try:
                yield connection
            except sqlite3.Error:
                is_sound = False
                raise
            finally:
                if is_sound and connection.is_for_long and not self._is_lost and connection.is_ours():
                    self.idle.append(connection)
                    if self._is_closed:  # before that, or right now
                        self.close_idle()
                else:
                    connection.close()

    def _take(self, to_write: bool) -> Connection:
        if self._is_lost:
            raise StoreLostError(self._is_lost)
        try:
            connection = self.idle.pop()
        except IndexError:
            return self._connect()
        now = time.monotonic()
        if not to_write and now - self._looked_at < LOOKED_AT_FOR:
            return connection
        # Also before a write: SQLite finds WAL and index by their names, and would write into those of another database.
        if gone := connection.what_is_gone():
            connection.abandon()
            raise self.lose(gone)
        self._looked_at = now
        return connection

    def _check_process(self) -> None:
        if self._pid != os.getpid():
            raise StoreUnavailableError(
                f"this store is in the memory of process {self._pid}, and process {os.getpid()} was forked from that; use a "
                "file for several processes, or call app.close() after the fork to begin with an empty store"
            )

    # -- opening

    def _connect(self) -> Connection:
        with translated(self.path, self._timeout):
            self._check_database()
            if not self.in_memory and Path(self.path).exists() and not self._may_write():
                return Connection(self._connect_to_read(), is_for_long=False)  # permissions may change
            raw = sqlite3.connect(self.path, isolation_level=None, timeout=self._timeout, check_same_thread=False)
            connection = Connection(raw)
            try:
                raw.execute(f"PRAGMA synchronous = {self._sync}")
                if not self.in_memory:
                    connection.turnstile = Turnstile(self.path, self._timeout)
                    self._use_wal(connection)
                    raw.execute(f"PRAGMA journal_size_limit = {WAL_LIMIT}")
                    connection.settle(self.path)
                    self._database = self._database or identity(self.path)
            except BaseException:
                connection.close()
                raise
        return connection

    def _may_write(self) -> bool:
        return os.access(self.path, os.W_OK) and os.access(Path(self.path).parent, os.W_OK)

    def _connect_to_read(self) -> sqlite3.Connection:
        """For whoever may only look: without the files that writers have beside the database."""
        address = f"file:{quote(self.path)}?mode=ro"
        if not Path(f"{self.path}-wal").exists():  # nobody writes, and the index of a WAL could not be made here
            address += "&immutable=1"
        return sqlite3.connect(
            address, uri=True, isolation_level=None, timeout=self._timeout, check_same_thread=False
        )  # fmt: skip

    def _use_wal(self, connection: Connection) -> None:
        if connection.raw.execute("PRAGMA journal_mode").fetchone()[0] == "wal":
            return
        assert connection.turnstile is not None
        # Of several that make the same new file only one may, and SQLite's own timeout doesn't cover it.
        connection.turnstile.enter()
        try:
            connection.raw.execute("PRAGMA journal_mode = WAL")
        finally:
            connection.turnstile.leave()

    # -- files that vanish

    def _check_database(self) -> None:
        """That the file at this path is the one that was opened first, and one that may be opened."""
        if self.in_memory:
            return
        found = identity(self.path)
        if found in _lost:
            raise StoreLostError(_lost[found])
        if self._database is not None and found != self._database:
            raise self.lose(f"{self.path} was {'deleted' if found is None else 'replaced by another file'}")

    def lose(self, what: str) -> StoreLostError:
        """From now on nothing is accepted here."""
        self._is_lost = (
            f"{what} while process {os.getpid()} used it, and what is written here would be lost; if that was a mistake put "
            "the file back; then restart this process"
        )
        if self._database is not None:
            _lost[self._database] = self._is_lost
        self._abandon_idle()
        return StoreLostError(self._is_lost)

    def _abandon_idle(self) -> bool:
        idle, self.idle = self.idle, []
        for connection in idle:
            connection.abandon()
        return bool(idle)

    # -- the end

    def close(self) -> None:
        self._is_closed = True
        memory, self._memory = self._memory, None
        if memory is not None:
            memory.close()
        self.close_idle()

    def close_idle(self) -> None:
        while self.idle:
            try:
                connection = self.idle.pop()
            except IndexError:  # another thread was faster
                return
            connection.close()

    def before_fork(self, busy: set[str]) -> None:
        if self.file not in busy:
            self.close_idle()

    def after_fork(self) -> list[str]:
        self._memory_lock = threading.RLock()
        return [self.file] if self._abandon_idle() else []
