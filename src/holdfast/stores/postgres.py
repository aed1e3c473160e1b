"""The PostgreSQL store: any number of workers on any number of machines.

Only what is peculiar to PostgreSQL is here: transactions, errors, time. What it says in SQL is in `postgres_sql.py`, what
it does with that in `postgres_tables.py`; connections are in `postgres_connections.py`, locks in `postgres_life.py`, push
is in `postgres_notifier.py`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import psycopg
from psycopg_pool import PoolClosed, PoolTimeout, TooManyRequests

from holdfast import failpoints
from holdfast.errors import EncodeError, StoreError, StoreUnavailableError
from holdfast.ports import Clock, Notifier, Store
from holdfast.stores.database import SqlDatabase
from holdfast.stores.postgres_connections import Connections, Db, ForeignDb
from holdfast.stores.postgres_errors import Conflict, in_our_words
from holdfast.stores.postgres_guests import Guests
from holdfast.stores.postgres_life import ServerClock, ServerLives, key_of
from holdfast.stores.postgres_sql import POSTGRES
from holdfast.stores.postgres_tables import (
    PostgresAttempts,
    PostgresCommits,
    PostgresRuns,
    PostgresWorkers,
    StampsAhead,
)
from holdfast.stores.store import SqlStore

NOT_IN_REPERTOIRE = "22021"
"""What the server says of a text with NUL; what else it can't keep the driver can't encode."""


class PostgresStore(SqlStore):
    """`postgresql://user:password@host/database?schema=holdfast&pool=10`; what else stands there is for the driver.

    `server_time=False` takes the time from `clock` alone, `judge_after` is for how many seconds the server has to be up
    before a free lock means a dead worker: tests say both."""

    database: PostgresDatabase
    runs_type = PostgresRuns
    attempts_type = PostgresAttempts
    workers_type = PostgresWorkers
    commits_type = PostgresCommits

    def __init__(
        self,
        app: str,
        url: str,
        clock: Clock,
        *,
        server_time: bool = True,
        judge_after: float | None = None,
        as_it_is: bool = False,
    ) -> None:
        database = PostgresDatabase(app, url, ServerClock(clock) if server_time else clock, judge_after)
        try:
            database.connect().close()  # a wrong address is told at once, not when the pool's patience ends
            super().__init__(database, as_it_is=as_it_is)
            database.ask_the_time()
        except BaseException:
            database.close()
            raise


class PostgresDatabase(SqlDatabase):
    """A schema of a database on a server."""

    dialect = POSTGRES
    conflict = Conflict
    pauses = (0.005, 0.02, 0.05, 0.1, 0.2)
    stamps: StampsAhead

    def __init__(self, app: str, url: str, clock: Clock, judge_after: float | None = None) -> None:
        self._connections = Connections(url)
        self.schema = self._connections.schema
        super().__init__(app, self._connections.shown, clock, ServerLives(self, judge_after))
        self.stamps = StampsAhead(self.q, self.read)
        self._guests = Guests(self, self._connections)

    # -- connections

    @property
    def shares_sessions(self) -> bool:
        """Whether a session is somebody else's after each transaction: then it can hold no lock, and hears nothing."""
        return self._connections.shares_sessions

    def connect(self) -> psycopg.Connection[Any]:
        """A connection of one's own, outside the pool."""
        with self.errors():
            return self._connections.connect()

    def _borrow(self) -> contextlib.AbstractContextManager[psycopg.Connection[Any]]:
        if self._connections.leave_to_the_parent(self.lives.here):
            self.lives.here = {}
        if isinstance(self.clock, ServerClock) and self.clock.is_doubtful():
            self.ask_the_time()
        return self._connections.borrow()

    @contextlib.contextmanager
    def read(self) -> Iterator[Any]:
        with self.errors(), self._borrow() as connection:
            yield self._connections.db(connection)

    @contextlib.contextmanager
    def write(self, name: str, lasting: bool = True) -> Iterator[Any]:
        """A transaction. Failpoints stand before and after its commit. All of them last: other than with a file, workers
        outlive the server, and what they believe to have claimed has to be theirs after its restart."""
        if name != "migrate":
            self.stamps.look_ahead()
        with self.errors(), self._borrow() as connection:
            try:
                with connection.transaction():
                    if self.shares_sessions:
                        connection.execute(f'SET LOCAL search_path = "{self.schema}"')
                    yield Db(connection)
                    failpoints.hit(f"{name}.before_commit")
            except BaseException:
                self.stamps.forget()
                raise
            failpoints.hit(f"{name}.after_commit")

    @contextlib.contextmanager
    def one_statement(self, name: str) -> Iterator[Any]:
        """A transaction that is one statement, which needs no beginning and no end."""
        failpoints.hit(f"{name}.before_commit")
        with self.read() as db:
            yield db
        failpoints.hit(f"{name}.after_commit")

    def close(self) -> None:
        for worker_id in list(self.lives.here):
            self.lives.release(worker_id)
        self._connections.close()

    def join(self, connection: object) -> tuple[Store, Notifier]:
        return self._guests.join(connection)

    def step_write(self) -> contextlib.AbstractContextManager[tuple[ForeignDb, psycopg.Connection[Any]]]:
        return self._guests.step_write()

    def before_migrating(self, db: Any) -> None:
        # What others have made while they were waited for is to be seen, whatever the role's own level is.
        db.execute("SET TRANSACTION ISOLATION LEVEL READ COMMITTED")
        db.execute("SELECT pg_advisory_xact_lock(%s)", (key_of(self.schema, "migrate"),))
        if db.execute("SELECT 1 FROM pg_namespace WHERE nspname = %s", (self.schema,)).fetchone() is None:
            db.execute(f'CREATE SCHEMA "{self.schema}"')

    def ask_the_time(self) -> None:
        if isinstance(self.clock, ServerClock):
            with self.errors(), self._connections.borrow() as connection:
                before = self.clock.steady()
                found: Any = self._connections.db(connection).execute(self.q["database_time"]).fetchone()
                self.clock.set(before, found[0], self.clock.steady())

    # -- errors

    @contextlib.contextmanager
    def errors(self) -> Iterator[None]:
        try:
            yield
        except (OverflowError, UnicodeEncodeError, psycopg.DataError) as error:
            why = "a text contains a NUL character" if getattr(error, "sqlstate", None) == NOT_IN_REPERTOIRE else error
            raise EncodeError(f"a value can't be kept in {self.url}: {why}") from error
        except (psycopg.Error, PoolTimeout, PoolClosed, TooManyRequests) as error:
            raise self._translate(error) from error

    def _translate(self, error: Exception) -> StoreError:
        found = in_our_words(error, self.url, self._connections.size)
        if type(found) is StoreUnavailableError and not (getattr(error, "sqlstate", None) or "").startswith("53"):
            self._connections.drop_broken()
        return found
