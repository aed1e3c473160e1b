"""Transactions on PostgreSQL that this library shares with code of its users: theirs, and those of steps."""

from __future__ import annotations

import abc
import contextlib
import functools
import weakref
from collections.abc import Iterator
from typing import Any

import psycopg
from psycopg.pq import TransactionStatus

from holdfast import failpoints
from holdfast.errors import ArgumentError
from holdfast.ports import Notifier, Store, Topic
from holdfast.stores.arrays import adapt
from holdfast.stores.joining import JoinedNotifier, JoinedStore, driver_connection, no_transaction, wrong_kind
from holdfast.stores.postgres_connections import Connections, ForeignDb
from holdfast.stores.postgres_sql import notify, rings_of
from holdfast.stores.shared import SqlStore


class Guests(SqlStore, abc.ABC):
    """The part of `PostgresStore` that is about connections of others."""

    schema: str
    _connections: Connections

    @abc.abstractmethod
    def _errors(self) -> contextlib.AbstractContextManager[None]: ...

    @abc.abstractmethod
    def _stamp_apart(self, count: int) -> int: ...

    @functools.cached_property
    def _joined(self) -> weakref.WeakSet[psycopg.Connection[Any]]:
        return weakref.WeakSet()

    def join(self, connection: object) -> tuple[Store, Notifier]:
        driver = driver_connection(connection)
        if not isinstance(driver, psycopg.Connection):
            raise wrong_kind(driver, "a psycopg.Connection (psycopg 3; postgresql+psycopg:// for SQLAlchemy)")
        if driver.autocommit and driver.info.transaction_status == TransactionStatus.IDLE:
            raise no_transaction("use it inside `with connection.transaction():`, or turn autocommit off")
        db = ForeignDb(driver, self.schema)
        self._check_same(driver, db)
        return JoinedStore(self, db, self._errors, self._stamp_apart), JoinedNotifier(
            functools.partial(self._tell_in, db)
        )

    def _tell_in(self, db: ForeignDb, topic: Topic, everyone: bool) -> None:
        with self._errors():
            db.execute(*notify(self.schema, rings_of("", "*" if everyone else self.app, topic)))

    def _check_same(self, driver: psycopg.Connection[Any], db: ForeignDb) -> None:
        """That it leads to this very store; once for each connection."""
        if driver in self._joined:
            return
        with self._errors():
            try:
                found = db.execute("SELECT value FROM meta WHERE key = 'secret'").fetchone()
            except (psycopg.errors.UndefinedTable, psycopg.errors.InvalidSchemaName):
                found = None
        if found is None or found[0] != self.secret():
            raise ArgumentError(
                f"the connection leads to another database than the store, which is {self.url}; one transaction can't be "
                "about both"
            )
        adapt(driver)
        self._joined.add(driver)

    @contextlib.contextmanager
    def step_write(self) -> Iterator[tuple[ForeignDb, psycopg.Connection[Any]]]:
        with self._errors(), self._connections.borrow_for_step() as connection:
            with connection.transaction():
                yield ForeignDb(connection, self.schema), connection
                failpoints.hit("transaction.before_commit")
            failpoints.hit("transaction.after_commit")
