"""Transactions on PostgreSQL that this library shares with code of its users: theirs, and those of steps."""

from __future__ import annotations

import contextlib
import functools
import weakref
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg.pq import TransactionStatus

from holdfast import failpoints
from holdfast.errors import ArgumentError
from holdfast.ports import Notifier, Store, Topic
from holdfast.stores.arrays import adapt
from holdfast.stores.joining import JoinedNotifier, driver_connection, joined, no_transaction, wrong_kind
from holdfast.stores.postgres_connections import Connections, ForeignDb
from holdfast.stores.postgres_sql import notify, rings_of
from holdfast.stores.postgres_tables import StampsAhead
from holdfast.stores.stamps import Stamps

if TYPE_CHECKING:
    from holdfast.stores.postgres import PostgresDatabase


class StampsOutside(Stamps):
    """Numbers from the store's own, which says no word of them to somebody else's transaction: the row of the logical clock
    would stay locked until that is committed."""

    def __init__(self, stamps: StampsAhead) -> None:
        super().__init__({}, stamps.clock)
        self._stamps = stamps

    def take(self, db: Any, count: int) -> int:
        return self._stamps.apart(count)


class Guests:
    """Lets connections of users take part, and gives steps those that they write with."""

    def __init__(self, database: PostgresDatabase, connections: Connections) -> None:
        self._database = database
        self._connections = connections
        self._joined: weakref.WeakSet[psycopg.Connection[Any]] = weakref.WeakSet()

    def join(self, connection: object) -> tuple[Store, Notifier]:
        driver = driver_connection(connection)
        if not isinstance(driver, psycopg.Connection):
            raise wrong_kind(driver, "a psycopg.Connection (psycopg 3; postgresql+psycopg:// for SQLAlchemy)")
        if driver.autocommit and driver.info.transaction_status == TransactionStatus.IDLE:
            raise no_transaction("use it inside `with connection.transaction():`, or turn autocommit off")
        db = ForeignDb(driver, self._database.schema)
        self._check_same(driver, db)
        store = joined(self._database, db, self._database.errors, StampsOutside(self._database.stamps))
        return store, JoinedNotifier(functools.partial(self._tell_in, db))

    def _tell_in(self, db: ForeignDb, topic: Topic, everyone: bool) -> None:
        with self._database.errors():
            db.execute(*notify(self._database.schema, rings_of("", "*" if everyone else self._database.app, topic)))

    def _check_same(self, driver: psycopg.Connection[Any], db: ForeignDb) -> None:
        """That it leads to this very store; once for each connection."""
        if driver in self._joined:
            return
        with self._database.errors():
            try:
                found = db.execute("SELECT value FROM meta WHERE key = 'secret'").fetchone()
            except (psycopg.errors.UndefinedTable, psycopg.errors.InvalidSchemaName):
                found = None
        if found is None or found[0] != self._database.secret():
            raise ArgumentError(
                f"the connection leads to another database than the store, which is {self._database.url}; one transaction "
                "can't be about both"
            )
        adapt(driver)
        self._joined.add(driver)

    @contextlib.contextmanager
    def step_write(self) -> Iterator[tuple[ForeignDb, psycopg.Connection[Any]]]:
        with self._database.errors(), self._connections.borrow_for_step() as connection:
            with connection.transaction():
                yield ForeignDb(connection, self._database.schema), connection
                failpoints.hit("transaction.before_commit")
            failpoints.hit("transaction.after_commit")
