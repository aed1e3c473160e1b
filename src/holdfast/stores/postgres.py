"""The PostgreSQL store: any number of workers on any number of machines.

Only what is peculiar to PostgreSQL is here: connections, transactions, locks, errors, time. What it says in SQL is in
`postgres_sql.py`, push is in `postgres_notifier.py`.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import random
import re
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import psycopg
from psycopg.conninfo import conninfo_to_dict
from psycopg_pool import ConnectionPool, PoolClosed, PoolTimeout, TooManyRequests

from holdfast import failpoints
from holdfast.codec.blobs import keys_in
from holdfast.errors import (
    EncodeError,
    Fenced,
    StoreBusyError,
    StoreError,
    StoreFullError,
    StoreReadOnlyError,
    StoreUnavailableError,
)
from holdfast.ports import (
    Change,
    Claimed,
    ClaimedAttempt,
    Clock,
    Committed,
    EndedAttempt,
    Message,
    NewRun,
    RunRow,
    Subscription,
    WorkerRow,
)
from holdfast.stores.arrays import Texts, adapt
from holdfast.stores.attempts import in_turn
from holdfast.stores.postgres_life import LifeLock, ServerClock
from holdfast.stores.postgres_sql import (
    POSTGRES,
    children_of,
    commit_of,
    creation_of,
    ends_of,
    goes_alone,
    messages_of,
)
from holdfast.stores.shared import CLOCK_RESERVE, SqlStore

POOL = 10
PATIENCE = 10.0
"""Seconds for a connection, for a lock."""
PAUSES = (0.005, 0.02, 0.05, 0.1, 0.2)
_of_the_parent: list[Any] = []


class _Conflict(StoreBusyError):
    """Refused because of another transaction. It did not happen, and can be tried again as it is."""


class PostgresStore(SqlStore):
    """`postgresql://user:password@host/database?schema=holdfast&pool=10`; what else stands there is for the driver.

    `server_time=False` takes the time from `clock` alone, `judge_after` is for how many seconds the server has to be up
    before a free lock means a dead worker: tests say both."""

    dialect = POSTGRES
    conflict = _Conflict

    def __init__(
        self, app: str, url: str, clock: Clock, *, server_time: bool = True, judge_after: float | None = None
    ) -> None:
        parts = urlsplit(url)
        given = [option.partition("=") for option in parts.query.split("&") if option]
        ours = {name: value for name, _, value in given if name in ("schema", "pool")}
        self.schema, size = ours.get("schema", "holdfast"), ours.get("pool", str(POOL))
        if not re.fullmatch(r"[a-z_][a-z0-9_]{0,62}", self.schema):
            raise StoreUnavailableError(
                f"?schema={self.schema}: a schema's name is made of a-z, 0-9 and _, up to 63 of them"
            )
        if not size.isdigit() or int(size) < 2:
            raise StoreUnavailableError(f"?pool={size}: give the number of connections a process may open, 2 or more")
        rest = "&".join("".join(option) for option in given if option[0] not in ours)  # as it is: it is the driver's
        self._conninfo = urlunsplit(parts._replace(query=rest))
        self._options = self._connection_options()
        self._size = int(size)
        self._pool: ConnectionPool[psycopg.Connection[Any]] | None = None
        self._pool_lock = threading.Lock()
        self._pid = os.getpid()
        self._is_closed = False
        self._judge_after = judge_after
        self._lease = 0.0
        shown = f"{parts.hostname or ''}{f':{parts.port}' if parts.port else ''}{parts.path}?schema={self.schema}"
        self._server_clock = ServerClock(clock) if server_time else None
        try:
            self.connect().close()  # a wrong address is told at once, not when the pool's patience ends
            super().__init__(app, f"postgresql://{shown}", self._server_clock or clock)
            if self._server_clock is not None:
                self._ask_the_time(self._server_clock)
        except BaseException:
            self.close()
            raise

    # -- connections

    def _connection_options(self) -> dict[str, Any]:
        try:
            given = conninfo_to_dict(self._conninfo)
        except psycopg.Error as error:
            raise StoreUnavailableError(f"this is no address of a PostgreSQL database: {error}") from error
        settings = (
            f"-c search_path={self.schema} -c lock_timeout={PATIENCE:g}s -c idle_in_transaction_session_timeout=30s"
        )
        return {
            "options": f"{given.get('options') or ''} {settings}".strip(),
            "connect_timeout": given.get("connect_timeout") or 5,
            "application_name": given.get("application_name") or "holdfast",
            "keepalives_idle": 10, "keepalives_interval": 5, "keepalives_count": 3,
        }  # fmt: skip

    def connect(self) -> psycopg.Connection[Any]:
        """A connection of one's own, outside the pool."""
        with self._errors():
            connection = psycopg.connect(self._conninfo, autocommit=True, **self._options)
        adapt(connection)
        return connection

    @contextlib.contextmanager
    def _borrow(self) -> Iterator[psycopg.Connection[Any]]:
        pool = self._pool
        if pool is None or self._pid != os.getpid():
            pool = self._open_pool()
        with pool.connection() as connection:
            yield connection

    def _open_pool(self) -> ConnectionPool[psycopg.Connection[Any]]:
        with self._pool_lock:
            if (
                self._pid != os.getpid()
            ):  # connections don't survive a fork, and closing them here would hurt the parent
                _of_the_parent.extend([self._pool, self._alive_here])
                self._pool, self._alive_here, self._pid = None, {}, os.getpid()
            if self._pool is None:
                if self._is_closed:
                    raise StoreUnavailableError(f"{self.url} was closed; open another store")
                self._pool = ConnectionPool(
                    self._conninfo, kwargs={"autocommit": True, **self._options}, min_size=1, max_size=self._size,
                    timeout=PATIENCE, configure=adapt, name="holdfast", num_workers=1, open=True,
                    reconnect_timeout=PATIENCE,
                )  # fmt: skip
            return self._pool

    @contextlib.contextmanager
    def read(self) -> Iterator[Any]:
        with self._errors(), self._borrow() as connection:
            yield _Db(connection)

    @contextlib.contextmanager
    def write(self, name: str, lasting: bool = True) -> Iterator[Any]:
        """A transaction. Failpoints stand before and after its commit. All of them last: other than with a file, workers
        outlive the server, and what they believe to have claimed has to be theirs after its restart."""
        if name != "migrate":
            self._look_ahead()
        with self._errors(), self._borrow() as connection:
            try:
                with connection.transaction():
                    yield _Db(connection)
                    failpoints.hit(f"{name}.before_commit")
            except BaseException:
                self._clock_limit = 0  # what it says may not have been written
                raise
            failpoints.hit(f"{name}.after_commit")

    def _look_ahead(self, count: int = 0) -> None:
        """Write down how far the logical clock may count, if it is near what was written. Outside of transactions: all
        processes write the same row, and whoever had it locked would keep the others waiting."""
        if self.logical_clock.value + count + CLOCK_RESERVE // 2 > self._clock_limit:
            with self.read() as db:
                if not self._clock_limit:
                    self._resume_clock(db)
                self._reserve_clock(db, self.logical_clock.value + count)

    def _stamp_apart(self, count: int) -> int:
        """Numbers for what is written in one statement."""
        self._look_ahead(count)
        return self.logical_clock.forward(count + 1) - count + 1

    def close(self) -> None:
        self._is_closed = True
        for worker_id in list(getattr(self, "_alive_here", ())):
            self.let_go(worker_id)
        pool, self._pool = self._pool, None
        if pool is not None and self._pid == os.getpid():
            pool.close()

    # -- schema

    def _before_migrating(self, db: Any) -> None:
        db.execute("SELECT pg_advisory_xact_lock(%s)", (self._key("migrate"),))
        if db.execute("SELECT 1 FROM pg_namespace WHERE nspname = %s", (self.schema,)).fetchone() is None:
            db.execute(f'CREATE SCHEMA "{self.schema}"')

    # -- time

    def _ask_the_time(self, clock: ServerClock) -> None:
        with self.read() as db:
            before = clock.local.now()
            (told,) = db.execute(self._q["database_time"]).fetchone()
            clock.set(before, told, clock.local.now())

    # -- life

    def _key(self, name: str) -> int:
        """Advisory locks are the whole database's, so their keys contain the schema."""
        digest = hashlib.sha256(f"{self.schema}\0{name}".encode()).digest()
        return int.from_bytes(digest[:8], "big", signed=True)

    def life_lock(self, worker_id: str) -> LifeLock:
        return LifeLock(self.connect, self._key(worker_id))

    def register(self, worker: WorkerRow, lease: int, subscriptions: Sequence[Subscription] = ()) -> None:
        self._lease = lease / 1e6
        super().register(worker, lease, subscriptions)

    def beat(self, worker_id: str, lease: int) -> bool:
        """On the connection that holds the life lock: whoever can't renew the one can't the other."""
        lock = self._alive_here.get(worker_id)
        if not isinstance(lock, LifeLock):
            return super().beat(worker_id, lease)
        failpoints.hit("beat.before_commit")
        with self._errors():
            before = self._server_clock.local.now() if self._server_clock else 0
            found = lock.execute(self._q["beat"], self._sign_of_life(worker_id, lease))
            if self._server_clock and found:
                self._server_clock.set(before, found[0], self._server_clock.local.now())
        failpoints.hit("beat.after_commit")
        return found is not None

    def _dead(self, worker_ids: Sequence[str]) -> Collection[str]:
        with self.read() as db:
            up, held = db.execute(self._q["life_locks"]).fetchone()
            if up is None:
                db.execute(self._q["booted"])
        # A restart lets go of everybody's lock. The living need their next heartbeat to take it again.
        if up is None or up < (self._lease if self._judge_after is None else self._judge_after):
            return ()
        keys = set(held)
        return {worker_id for worker_id in worker_ids if self._key(worker_id) not in keys}

    # -- runs

    def create(self, run: NewRun, replace: bool = False) -> RunRow | None:
        if replace or run.messages or any(keys_in(record.payload) for record in run.records):
            return super().create(run, replace)
        while True:
            clock = self._stamp_apart(len(run.records))
            failpoints.hit("create.before_commit")
            with self._errors(), self._borrow() as connection:
                run.no = connection.execute(*creation_of(self.app, run, clock)).fetchone()[0]  # type: ignore[index]
            failpoints.hit("create.after_commit")
            taken = None if run.no is not None else self.get(run.id)
            if run.no is not None or taken is not None:
                return taken

    def _insert_rows(self, db: Any, runs: Sequence[NewRun]) -> None:
        fresh = dict(db.execute(*children_of(self.app, runs)).fetchall()) if runs else {}
        for run in runs:
            run.no = fresh.pop(run.id, None)

    def commit(self, worker_id: str, changes: Sequence[Change], claim: int, names: Sequence[str]) -> Committed:
        numbers = sum(len(change.records) for change in changes) + 1  # one for all messages
        batch = commit_of(self.app, worker_id, changes, self.now(), self._stamp_apart(numbers))

        def write(db: Any) -> bool:
            counts = dict(zip(batch.names, db.execute(batch.sql, batch.parameters).fetchone(), strict=True))
            if not counts["fence"]:
                raise Fenced(worker_id)
            return bool(counts.get("news"))

        alone = [message for change in changes for message in change.messages if goes_alone(message)]
        naming = [
            (change.no, record.payload) for change in changes for record in change.records if keys_in(record.payload)
        ]
        if not (claim or alone or naming or any(map(has_parts, changes))):
            failpoints.hit("commit.before_commit")
            with self.read() as db:
                emitted = write(db)
            failpoints.hit("commit.after_commit")
            return Committed([], emitted)
        with self.write("commit") as db:
            emitted = write(db)
            self._name_blobs(db, naming)
            if any(change.children for change in changes):
                self._add_children(db, changes)
            for message in alone:
                self._insert_message(db, message)
            for change in changes:
                self._signal(db, change)
                self._stream(db, change)
                self._answer(db, change)
            claimed: list[Claimed] = self._claim(db, worker_id, claim, names) if claim else []
        return Committed(claimed, emitted)

    def _add_children(self, db: Any, changes: Sequence[Change]) -> None:
        """Children, then messages: some of those may be for them."""
        fresh = dict(
            db.execute(*children_of(self.app, [run for change in changes for run in change.children])).fetchall()
        )
        messages: list[Message] = []
        for change in changes:
            for run in change.children:
                no = fresh.pop(run.id, None)
                if no is not None:
                    run.no = no
                    self._insert_records(db, [(no, run.records)])
                    for attribute in run.attributes:
                        self._set_attribute(db, no, *attribute)
                elif run.if_taken is not None:
                    messages.append(run.if_taken)
            messages += [message for message in change.messages if not goes_alone(message)]
        if messages:
            db.execute(*messages_of(self.app, messages, self.now(), self._stamp(db, 1)))

    def claim_attempts(
        self, worker_id: str, queues: Sequence[str], steps: Sequence[str], limit: int
    ) -> list[ClaimedAttempt]:
        claimed: list[ClaimedAttempt] = []
        for queue in in_turn(queues):
            parameters = {
                "worker": worker_id, "app": self.app, "now": self.now(), "queue": queue, "steps": Texts(steps),
                "limit": limit - len(claimed),
            }  # fmt: skip
            failpoints.hit("claim_attempts.before_commit")
            with self.read() as db:
                rows = db.execute(self._q["claim_attempts"], parameters).fetchall()
            failpoints.hit("claim_attempts.after_commit")
            if not rows[0][0]:
                raise Fenced(worker_id)
            self._heard(row[3] for row in rows)
            claimed += [ClaimedAttempt(token, body) for _, token, body, _ in rows if token is not None]
            if len(claimed) >= limit:
                break
        return claimed

    def end_attempts(self, worker_id: str, ended: Sequence[EndedAttempt]) -> set[str]:
        clock = self._stamp_apart(1)
        failpoints.hit("end_attempts.before_commit")
        with self.read() as db:
            done = {token for (token,) in db.execute(*ends_of(worker_id, ended, self.now(), clock))}
        failpoints.hit("end_attempts.after_commit")
        return done

    def settle(self, worker_id: str) -> None:
        with self.read() as db:
            db.execute(self._q["settle"], {"worker": worker_id})

    def _forget_events(self, db: Any, limit: int) -> int:
        db.execute(self._q["dead_messages"])
        return super()._forget_events(db, limit)

    # -- errors

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except (OverflowError, UnicodeEncodeError, psycopg.DataError) as error:
            raise EncodeError(f"a value can't be kept in {self.url}: {error}") from error
        except (psycopg.Error, PoolTimeout, PoolClosed, TooManyRequests) as error:
            raise self._translate(error) from error

    def _translate(self, error: Exception) -> StoreError:
        """The error in words that say what to do. Of a StoreBusyError it is certain that nothing has happened."""
        where = getattr(self, "url", "PostgreSQL")
        text, code = str(error).strip(), getattr(error, "sqlstate", None) or ""
        if code in ("55P03", "57014") or (code.startswith("40") and code != "40003"):
            return _Conflict(f"{where} refused a transaction because of others ({text}); it is tried again")
        if isinstance(error, PoolTimeout | TooManyRequests):
            return StoreBusyError(
                f"no connection to {where} within {PATIENCE:g} s: the server is down, or all {self._size} of this process "
                "are in use; raise ?pool="
            )
        if code == "53100":
            return StoreFullError(
                f"the server of {where} has no room left ({text}); free some, runs go on by themselves"
            )
        if code in ("25006", "42501"):
            return StoreReadOnlyError(
                f"{where} can't be written ({text}); connect to the primary, with a role that may"
            )
        if isinstance(error, psycopg.OperationalError | psycopg.InterfaceError | PoolClosed):
            if self.__dict__.get("_pool") is not None and not code.startswith("53"):
                self._drop_broken()
            return StoreUnavailableError(f"{where} can't be reached ({text}); start the server, or check the address")
        return StoreError(f"{where}: {text}")

    def _drop_broken(self) -> None:
        """A server that restarts breaks all connections, not only the one that was in use."""
        pool = self._pool
        if pool is not None:
            with contextlib.suppress(Exception):
                pool.drain()


class _Db:
    """A connection as the shared code uses it."""

    __slots__ = ("_connection",)

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self._connection = connection

    def execute(self, sql: str, parameters: Any = None) -> psycopg.Cursor[Any]:
        return self._connection.execute(sql, parameters, binary=True)


def has_parts(change: Change) -> bool:
    """Whether there is something that is not written by the one statement."""
    return bool(change.children or change.signals or change.streamed or change.answers or change.forget_before)


def _again(method: Callable[..., Any]) -> Callable[..., Any]:
    """A method that is one transaction, carried out again if the database refused it because of another one."""

    @functools.wraps(method)
    def call(self: PostgresStore, *args: Any, **kwargs: Any) -> Any:
        for pause in PAUSES:
            try:
                return method(self, *args, **kwargs)
            except _Conflict:
                time.sleep(pause * random.uniform(0.5, 1.5))
        return method(self, *args, **kwargs)

    return call


for _name in (
    "register", "learn", "unregister", "bury", "create", "create_all", "put_off", "commit", "post_all", "delete",
    "delete_all", "collect", "set_aside", "save_schedules", "emit", "deliver", "claim_attempts", "claim_attempt",
    "end_attempts", "release_attempts", "report_attempts",
):  # fmt: skip
    setattr(PostgresStore, _name, _again(getattr(PostgresStore, _name)))
