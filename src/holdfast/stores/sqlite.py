"""The SQLite store: one file, any number of processes on one machine.

WAL with `synchronous=FULL`, so what is committed survives a power cut; `?sync=normal` trades the last commits
for speed. Only what is peculiar to SQLite is here: transactions, locks, a WAL that grows.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

from holdfast import failpoints
from holdfast.errors import ArgumentError, EncodeError, StoreBusyError, StoreError, StoreUnavailableError
from holdfast.ports import Clock, Notifier, Store
from holdfast.stores import locks
from holdfast.stores.database import SqlDatabase
from holdfast.stores.forks import gate
from holdfast.stores.ground import check_place
from holdfast.stores.joining import JoinedNotifier, driver_connection, joined, no_transaction, wrong_kind
from holdfast.stores.lives import Lives
from holdfast.stores.locks import FileLives
from holdfast.stores.sqlite_connections import WAL_LIMIT, Connection, Connections, anchors
from holdfast.stores.sqlite_errors import in_our_words, translated
from holdfast.stores.sqlite_guests import Joined, StepConnection
from holdfast.stores.store import SqlStore

BUSY_TIMEOUT = 30.0
_of_a_step = threading.local()
"""The file in which the step on this thread has a transaction open, whichever store of this process it came by."""


class SqliteStore(SqlStore):
    """`sqlite:///path/to/file.db`, a plain path, or `:memory:` for one process."""

    database: SqliteDatabase

    def __init__(
        self, app: str, url: str, clock: Clock, *, timeout: float = BUSY_TIMEOUT, as_it_is: bool = False
    ) -> None:
        database = SqliteDatabase(app, url, clock, timeout)
        with database.opening():
            super().__init__(database, as_it_is=as_it_is)


class SqliteDatabase(SqlDatabase):
    """A file, or what a process has in its memory."""

    def __init__(self, app: str, url: str, clock: Clock, timeout: float = BUSY_TIMEOUT) -> None:
        path, _, query = url.removeprefix("sqlite:///").partition("?")
        options = {key: values[-1] for key, values in parse_qs(query).items()}
        sync = options.pop("sync", "full")
        if sync not in ("full", "normal") or options:
            raise StoreUnavailableError(f"{url}: the only option is ?sync=full or ?sync=normal")
        self.in_memory = path == ":memory:"
        # The locks and bells beside the file have to be the same ones for everybody, whatever link they came by.
        self.path = path if self.in_memory else os.path.realpath(Path(path).expanduser())
        if not self.in_memory:
            check_place(self.path)
        lives: Lives[Any] = Lives() if self.in_memory else FileLives(self.path)
        super().__init__(app, url if self.in_memory else self.path, clock, lives)
        self.connections = Connections(self.path, sync, timeout)
        self._is_synced = sync == "full" and not self.in_memory
        self._timeout = timeout

    @contextlib.contextmanager
    def opening(self) -> Iterator[None]:
        """Closed again if that fails, and not forked in the middle of it."""
        with gate.using(self.connections.file):
            try:
                with self._translated():
                    yield
            except BaseException:
                self.close()
                raise
            gate.attend(self)

    def _translated(self) -> contextlib.AbstractContextManager[None]:
        return translated(self.path, self._timeout)

    # -- transactions

    @contextlib.contextmanager
    def read(self) -> Iterator[sqlite3.Connection]:
        try:
            with self.connections.borrow(to_write=False) as connection:
                yield connection.raw
        except (OverflowError, UnicodeEncodeError) as error:
            raise EncodeError(f"{self.path} can't be asked for such a value: {error}") from error
        except (sqlite3.Error, OSError) as error:
            raise in_our_words(error, self.path, self._timeout) from error

    @contextlib.contextmanager
    def write(self, name: str, lasting: bool = True) -> Iterator[sqlite3.Connection]:
        """A transaction. Failpoints stand before and after its commit."""
        relaxed = not lasting and self._is_synced
        if getattr(_of_a_step, "file", None) == self.connections.file:
            raise StoreBusyError(
                f"{self.path}: this step has a transaction open, and would wait for itself; say connection=transaction() for "
                "what it starts, sends or emits, or do it before transaction() is called"
            )
        try:
            with self.connections.borrow() as connection:
                if connection.turnstile is not None:
                    connection.turnstile.enter()
                try:
                    if relaxed:
                        connection.raw.execute("PRAGMA synchronous = NORMAL")
                    connection.raw.execute("BEGIN IMMEDIATE")
                    try:
                        yield connection.raw
                        failpoints.hit(f"{name}.before_commit")
                        self._check_fork(connection)
                        connection.raw.execute("COMMIT")
                    except BaseException:
                        self.stamps.forget()
                        if connection.is_ours() and connection.raw.in_transaction:
                            connection.raw.execute("ROLLBACK")
                        raise
                finally:
                    if connection.is_ours():
                        if relaxed:
                            connection.raw.execute("PRAGMA synchronous = FULL")
                        if connection.turnstile is not None:
                            connection.turnstile.leave()
                failpoints.hit(f"{name}.after_commit")
                if gone := connection.what_is_gone():
                    raise self.connections.lose(gone)
        except (OverflowError, UnicodeEncodeError, sqlite3.DataError) as error:
            raise EncodeError(f"a value can't be kept in {self.path}: {error}") from error
        except (sqlite3.Error, OSError) as error:
            raise in_our_words(error, self.path, self._timeout) from error

    def _check_fork(self, connection: Connection) -> None:
        if not connection.is_ours():
            raise StoreUnavailableError(
                f"{self.path}: process {os.getpid()} was forked inside a transaction, which only its parent can commit"
            )

    # -- transactions of others, and of steps

    def join(self, connection: object) -> tuple[Store, Notifier]:
        """By a connection to the same file. Nobody can be told when its transaction ends: the next sweep finds what there
        is."""
        raw = driver_connection(connection)
        if isinstance(raw, StepConnection):
            return joined(self, raw.driver, self._translated), JoinedNotifier()
        if not isinstance(raw, sqlite3.Connection):
            raise wrong_kind(raw, "a sqlite3.Connection")
        begins_by_itself = raw.isolation_level is not None and getattr(raw, "autocommit", -1) == -1
        if not raw.in_transaction and not begins_by_itself:
            raise no_transaction("execute BEGIN IMMEDIATE first")
        (path,) = [file for _, name, file in Joined(raw).execute("PRAGMA database_list") if name == "main"]
        if self.in_memory or not path or os.path.realpath(path) != self.path:
            raise ArgumentError(
                f"the connection leads to {path or 'a database in memory'}, and runs are kept in {self.url}: one transaction "
                "can't be about both; keep your tables in that file, or start the run after your commit"
            )
        return joined(self, Joined(raw), self._translated), JoinedNotifier()

    @contextlib.contextmanager
    def step_write(self) -> Iterator[tuple[sqlite3.Connection, Any]]:
        with self.write("transaction") as db:
            _of_a_step.file = self.connections.file
            try:
                yield db, StepConnection(db)
                if not db.in_transaction:
                    raise StoreError(f"{self.path}: the step has ended its transaction itself; leave that to Holdfast")
            finally:
                _of_a_step.file = None

    def close(self) -> None:
        self.connections.close()

    # -- forks

    def before_fork(self, busy: set[str]) -> None:
        self.connections.before_fork(busy)

    def after_fork(self) -> list[str]:
        self.lives.here.clear()  # those are the parent's
        return self.connections.after_fork()

    # -- what is looked after

    def check(self) -> None:
        with self._translated(), self.connections.borrow():  # which looks at the files
            pass
        self.lives.check()

    def strain(self) -> str:
        log = f"{self.path}-wal"
        if self.in_memory or _size(log) <= WAL_LIMIT:
            return ""
        with self._translated(), self.connections.borrow() as connection:
            _, frames, copied = connection.raw.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
        if copied == frames:
            self._shorten_wal()
            return ""
        pids = anchors.readers(self.path)
        who = " and ".join(f"process {pid}{' (this one)' * (pid == os.getpid())}" for pid in pids)
        return (
            f"{log} has grown to {_size(log) >> 20} MB, because {who or 'a program'} reads {self.path} in a transaction that it "
            f"doesn't end; end that{'' if who else f' (`lsof {self.path}-shm` names all that use it)'}, and the file shrinks by "
            "itself"
        )

    def _shorten_wal(self) -> None:
        """Give back the room of a WAL that a reader has made grow, if nobody is in the way just now."""
        with self._translated(), self.connections.borrow() as connection:
            assert connection.turnstile is not None
            connection.turnstile.enter()
            try:
                connection.raw.execute("PRAGMA busy_timeout = 0")
                connection.raw.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
            finally:
                connection.raw.execute(f"PRAGMA busy_timeout = {round(self._timeout * 1_000)}")
                connection.turnstile.leave()


class _Inherited:
    """What a forked child has from its parent and no store knows of."""

    def before_fork(self, busy: set[str]) -> None:
        pass

    def after_fork(self) -> list[str]:
        locks.after_fork()
        anchors.after_fork()
        return []


def _at_exit() -> None:
    """Close what nobody has closed while it can still be told how: the interpreter's own end would do it blindly."""
    for attendant in gate.attendants():
        if isinstance(attendant, SqliteDatabase):
            attendant.connections.close_idle()


_inherited = _Inherited()
gate.attend(_inherited)
atexit.register(_at_exit)


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except OSError:
        return 0
