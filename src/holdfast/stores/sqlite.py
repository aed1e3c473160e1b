"""The SQLite store: one file, any number of processes on one machine.

WAL with `synchronous=FULL`, so what is committed survives a power cut; `?sync=normal` trades the last commits
for speed. Only what is peculiar to SQLite is here: connections, transactions, errors, locks.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import errno
import logging
import os
import sqlite3
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, quote

from holdfast import failpoints
from holdfast.errors import (
    ArgumentError,
    EncodeError,
    StoreBusyError,
    StoreError,
    StoreFullError,
    StoreLostError,
    StoreMovedError,
    StoreReadOnlyError,
    StoreUnavailableError,
)
from holdfast.ports import Clock, Notifier, Store, Subscription, WorkerRow
from holdfast.stores import locks
from holdfast.stores.forks import gate
from holdfast.stores.ground import Anchor, Anchors, Ground, identity
from holdfast.stores.joining import JoinedNotifier, JoinedStore, driver_connection, no_transaction, wrong_kind
from holdfast.stores.locks import LifeLock, Turnstile
from holdfast.stores.shared import SqlStore
from holdfast.stores.sqlite_guests import Joined, StepConnection

logger = logging.getLogger("holdfast")
BUSY_TIMEOUT = 30.0
WAL_LIMIT = 64 * 2**20
"""How large the WAL may stay after a checkpoint, and when one that only grows is worth a word."""
_anchors = Anchors()
_lost: dict[tuple[int, int], str] = {}
"""Databases that this process must not open again: SQLite still believes that it holds locks on them."""
_of_a_step = threading.local()
"""The file in which the step on this thread has a transaction open, whichever store of this process it came by."""
_MOUNTS = Path("/proc/self/mounts")
_REMOTE = {"nfs", "nfs4", "cifs", "smb3", "smbfs", "fuse.sshfs", "afs", "9p"}


class _Connection:
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
        self._anchor = _anchors.hold(path)
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
        is_last = self._anchor is not None and _anchors.let_go(self._anchor)
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


class SqliteStore(SqlStore):
    """`sqlite:///path/to/file.db`, a plain path, or `:memory:` for one process."""

    def __init__(
        self, app: str, url: str, clock: Clock, *, timeout: float = BUSY_TIMEOUT, as_it_is: bool = False
    ) -> None:
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
        self._database: tuple[int, int] | None = None
        self._is_lost = ""
        self._memory: _Connection | None = None
        self._memory_lock = threading.RLock()
        # Each store in memory is a database of its own.
        self._file = f":memory:{id(self)}" if self.in_memory else self.path
        if not self.in_memory:
            self._check_place()
        with gate.using(self._file):
            try:
                super().__init__(app, url if self.in_memory else self.path, clock, as_it_is=as_it_is)
            except OSError as error:
                self.close()
                raise self._translate(error) from error
            except BaseException:
                self.close()
                raise
            gate.attend(self)

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
            self._check_database()
            if not self.in_memory and Path(self.path).exists() and not self._may_write():
                return _Connection(self._connect_to_read(), is_for_long=False)  # permissions may change
            raw = sqlite3.connect(self.path, isolation_level=None, timeout=self._timeout, check_same_thread=False)
            connection = _Connection(raw)
            try:
                raw.execute(f"PRAGMA synchronous = {'OFF' if self.in_memory else self._sync.upper()}")
                if not self.in_memory:
                    connection.turnstile = Turnstile(self.path, self._timeout)
                    self._use_wal(connection)
                    raw.execute(f"PRAGMA journal_size_limit = {WAL_LIMIT}")
                    connection.settle(self.path)
                    self._database = self._database or identity(self.path)
            except BaseException:
                connection.close()
                raise
        except (sqlite3.Error, OSError) as error:
            raise self._translate(error) from error
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

    def _check_database(self) -> None:
        """That the file at this path is the one that was opened first, and one that may be opened."""
        if self.in_memory:
            return
        found = identity(self.path)
        if found in _lost:
            raise StoreLostError(_lost[found])
        if self._database is not None and found != self._database:
            raise self._lose(f"{self.path} was {'deleted' if found is None else 'replaced by another file'}")

    def _lose(self, what: str) -> StoreLostError:
        """From now on nothing is accepted here."""
        self._is_lost = (
            f"{what} while process {os.getpid()} used it, and what is written here would be lost; if that was a mistake put "
            "the file back; then restart this process"
        )
        if self._database is not None:
            _lost[self._database] = self._is_lost
        idle, self._idle = self._idle, []
        for connection in idle:
            connection.abandon()
        return StoreLostError(self._is_lost)

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
            self._check_process()
            with gate.using(self._file), self._memory_lock:
                if self._memory is None:
                    self._memory = self._connect()
                yield self._memory
            return
        with gate.using(self._file):
            connection = self._take()
            is_sound = True
            try:
                yield connection
            except sqlite3.Error:
                is_sound = False
                raise
            finally:
                if (
                    is_sound
                    and connection.is_for_long
                    and not self._is_closed
                    and not self._is_lost
                    and connection.is_ours()
                ):
                    self._idle.append(connection)
                else:
                    connection.close()

    def _take(self) -> _Connection:
        if self._is_lost:
            raise StoreLostError(self._is_lost)
        try:
            connection = self._idle.pop()
        except IndexError:
            return self._connect()
        if gone := connection.what_is_gone():
            connection.abandon()
            raise self._lose(gone)
        return connection

    def _check_process(self) -> None:
        if self._pid != os.getpid():
            raise StoreUnavailableError(
                f"this store is in the memory of process {self._pid}, and process {os.getpid()} was forked from that; use a "
                "file for several processes, or call app.close() after the fork to begin with an empty store"
            )

    @contextlib.contextmanager
    def read(self) -> Iterator[sqlite3.Connection]:
        try:
            with self._borrow() as connection:
                yield connection.raw
        except (OverflowError, UnicodeEncodeError) as error:
            raise EncodeError(f"{self.path} can't be asked for such a value: {error}") from error
        except (sqlite3.Error, OSError) as error:
            raise self._translate(error) from error

    @contextlib.contextmanager
    def write(self, name: str, lasting: bool = True) -> Iterator[sqlite3.Connection]:
        """A transaction. Failpoints stand before and after its commit."""
        relaxed = not lasting and self._sync == "full" and not self.in_memory
        if getattr(_of_a_step, "file", None) == self._file:
            raise StoreBusyError(
                f"{self.path}: this step has a transaction open, and would wait for itself; say connection=transaction() for "
                "what it starts, sends or emits, or do it before transaction() is called"
            )
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
                        self._check_fork(connection)
                        connection.raw.execute("COMMIT")
                    except BaseException:
                        self._clock_limit = 0  # what it says may not have been written
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
                    raise self._lose(gone)
        except (OverflowError, UnicodeEncodeError, sqlite3.DataError) as error:
            raise EncodeError(f"a value can't be kept in {self.path}: {error}") from error
        except (sqlite3.Error, OSError) as error:
            raise self._translate(error) from error

    def _check_fork(self, connection: _Connection) -> None:
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
            return JoinedStore(self, raw.driver, self._translated), JoinedNotifier()
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
        return JoinedStore(self, Joined(raw), self._translated), JoinedNotifier()

    @contextlib.contextmanager
    def step_write(self) -> Iterator[tuple[sqlite3.Connection, Any]]:
        with self.write("transaction") as db:
            _of_a_step.file = self._file
            try:
                yield db, StepConnection(db)
                if not db.in_transaction:
                    raise StoreError(f"{self.path}: the step has ended its transaction itself; leave that to Holdfast")
            finally:
                _of_a_step.file = None

    def close(self) -> None:
        self._is_closed = True
        memory, self._memory = self._memory, None
        if memory is not None:
            memory.close()
        self._close_idle()

    def _close_idle(self) -> None:
        idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    # -- forks

    def before_fork(self, busy: set[str]) -> None:
        if self._file not in busy:
            self._close_idle()

    def after_fork(self) -> list[str]:
        idle, self._idle = self._idle, []
        for connection in idle:
            connection.abandon()
        self._alive_here.clear()  # those are the parent's
        self._memory_lock = threading.RLock()
        return [self._file] if idle else []

    # -- life

    def life_lock(self, worker_id: str) -> LifeLock | None:
        return None if self.in_memory else LifeLock(f"{self.path}-worker-{worker_id}")

    def check(self) -> None:
        with self.read():  # which looks at the files
            pass
        for worker_id, lock in list(self._alive_here.items()):
            if isinstance(lock, LifeLock) and not lock.is_in_place():
                logger.warning(
                    "%s was deleted or replaced while worker %s lives; it is made anew", lock.path, worker_id
                )
                lock.take_again()

    def strain(self) -> str:
        log = f"{self.path}-wal"
        if self.in_memory or _size(log) <= WAL_LIMIT:
            return ""
        with self.read() as db:
            _, frames, copied = db.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
        if copied == frames:
            self._shorten_wal()
            return ""
        pids = _anchors.readers(self.path)
        who = " and ".join(f"process {pid}{' (this one)' * (pid == os.getpid())}" for pid in pids)
        return (
            f"{log} has grown to {_size(log) >> 20} MB, because {who or 'a program'} reads {self.path} in a transaction that it "
            f"doesn't end; end that{'' if who else f' (`lsof {self.path}-shm` names all that use it)'}, and the file shrinks by "
            "itself"
        )

    def _shorten_wal(self) -> None:
        """Give back the room of a WAL that a reader has made grow, if nobody is in the way just now."""
        with self._translated(), self._borrow() as connection:
            assert connection.turnstile is not None
            connection.turnstile.enter()
            try:
                connection.raw.execute("PRAGMA busy_timeout = 0")
                connection.raw.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
            finally:
                connection.raw.execute(f"PRAGMA busy_timeout = {round(self._timeout * 1_000)}")
                connection.turnstile.leave()

    def register(self, worker: WorkerRow, lease: int, subscriptions: Sequence[Subscription] = ()) -> None:
        super().register(worker, lease, subscriptions)
        if not self.in_memory:
            self._clear_stale_locks()

    def _clear_stale_locks(self) -> None:
        """Remove the lock files of workers that were declared dead while they were frozen, and died later."""
        folder, name = os.path.split(self.path)
        with contextlib.suppress(OSError):
            for file in os.listdir(folder):
                if file.startswith(f"{name}-worker-"):
                    LifeLock(os.path.join(folder, file)).clear()

    # -- errors

    @contextlib.contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, OSError) as error:
            raise self._translate(error) from error

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
        if number in (errno.EMFILE, errno.ENFILE):
            return StoreUnavailableError(
                f"{self.path} can't be used ({text}); close files, or allow the process more of them (ulimit -n)"
            )
        if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            return StoreBusyError(
                f"{self.path} was locked by another program for {self._timeout:g} s ({text}); close whatever has it "
                "open in a transaction"
            )
        if getattr(error, "sqlite_errorcode", 0) == sqlite3.SQLITE_CONSTRAINT_TRIGGER:  # of our own, see copying.py
            return StoreMovedError(text)
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


class _Inherited:
    """What a forked child has from its parent and no store knows of."""

    def before_fork(self, busy: set[str]) -> None:
        pass

    def after_fork(self) -> list[str]:
        locks.after_fork()
        _anchors.after_fork()
        return []


def _at_exit() -> None:
    """Close what nobody has closed while it can still be told how: the interpreter's own end would do it blindly."""
    for attendant in gate.attendants():
        if isinstance(attendant, SqliteStore):
            attendant._close_idle()


_inherited = _Inherited()
gate.attend(_inherited)
atexit.register(_at_exit)


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except OSError:
        return 0


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
