"""A store inside a transaction of somebody else's: what is created, posted and emitted there happens with that
transaction's commit, or not at all. Nothing here begins, commits or rolls back.

A connection may be the driver's own, SQLAlchemy's or Django's; those are known by what they look like, so that none of
them has to be installed.
"""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import AbstractContextManager
from typing import Any, NoReturn

from holdfast.errors import ArgumentError
from holdfast.ports import Notifier, OnRing, OnTold, Topic, Watch
from holdfast.stores.database import SqlDatabase
from holdfast.stores.lives import LifeLockLike, Lives
from holdfast.stores.schema import all_scripts
from holdfast.stores.stamps import Stamps
from holdfast.stores.store import SqlStore


def driver_connection(given: object) -> Any:
    """The driver's own connection, with a transaction that its owner will end."""
    connection: Any = given
    if type(connection).__module__.partition(".")[0] == "sqlalchemy":
        return _of_sqlalchemy(connection)
    if hasattr(connection, "vendor") and hasattr(connection, "ensure_connection"):  # of Django
        if not connection.in_atomic_block:
            raise no_transaction("use it inside `with transaction.atomic():`")
        connection.ensure_connection()
        return connection.connection
    return connection


def _of_sqlalchemy(connection: Any) -> Any:
    if hasattr(connection, "sync_session") or hasattr(connection, "sync_connection"):
        raise ArgumentError(
            f"connection={type(connection).__name__}: a transaction of SQLAlchemy's asyncio side can't be joined; use a Session "
            "or Connection of the plain side"
        )
    if hasattr(connection, "get_bind"):  # a Session
        connection = connection.connection()
    if not connection.in_transaction():
        connection.begin()  # what its own first statement would do: only then does its commit() mean something
    return connection.connection.driver_connection


def no_transaction(remedy: str) -> ArgumentError:
    return ArgumentError(
        f"the connection has no transaction open, so there is nothing to join: what is started would be there at once; {remedy}"
    )


def wrong_kind(given: object, wanted: str) -> ArgumentError:
    kind = type(given)
    return ArgumentError(
        f"connection={kind.__module__}.{kind.__qualname__}: this store is joined by {wanted}, or by a SQLAlchemy or Django "
        "connection that has one"
    )


@functools.cache
def _table_names() -> str:
    return "|".join(sorted(set(re.findall(r"^CREATE (?:UNLOGGED )?TABLE (\w+)", all_scripts(), re.MULTILINE))))


@functools.lru_cache(200)
def qualified(sql: str, schema: str) -> str:
    """A statement that means the tables of a schema, whatever the connection would look for first."""
    named = re.sub(rf"\b(INTO|FROM|JOIN|UPDATE)(\s+)({_table_names()})\b", rf'\1\2"{schema}".\3', sql)
    return named.replace("current_schema()", f"'{schema}'")


class Nobody(Lives[LifeLockLike]):
    """Who lives in a transaction."""

    def lock_of(self, worker_id: str) -> NoReturn:
        raise ArgumentError("a worker doesn't live in a transaction; give it a store of its own")


class JoinedDatabase(SqlDatabase):
    """Somebody else's transaction. What makes sense there: to start, to send, to emit, to look."""

    def __init__(self, host: SqlDatabase, db: Any, errors: Callable[[], AbstractContextManager[None]]) -> None:
        self.dialect, self.conflict = host.dialect, host.conflict
        super().__init__(host.app, host.url, host.clock, Nobody())
        self.stamps = Stamps(self.q, host.stamps.clock)
        self._db, self._errors = db, errors

    @contextlib.contextmanager
    def read(self) -> Iterator[Any]:
        with self._errors():
            yield self._db

    def write(self, name: str, lasting: bool = True) -> AbstractContextManager[Any]:
        return self.read()

    def join(self, connection: object) -> NoReturn:
        raise ArgumentError("this store is in a transaction already")

    def step_write(self) -> NoReturn:
        raise ArgumentError("this store is in a transaction already")

    def close(self) -> None:
        """The connection is its owner's."""


def joined(
    host: SqlDatabase, db: Any, errors: Callable[[], AbstractContextManager[None]], stamps: Stamps | None = None
) -> SqlStore:
    """A store in a transaction of somebody else's."""
    database = JoinedDatabase(host, db, errors)
    if stamps is not None:
        database.stamps = stamps
    return SqlStore(database, as_it_is=True)


class JoinedNotifier(Notifier):
    """Hints that leave with the transaction, where the database can do that; elsewhere the next sweep finds what there
    is. Nobody can wait in somebody else's transaction."""

    def __init__(self, tell: Callable[[Topic, bool], None] = lambda topic, everyone: None) -> None:
        self._tell = tell

    def listen(self, topics: Collection[Topic], on_ring: OnRing, on_told: OnTold) -> NoReturn:
        raise ArgumentError("nobody listens in a transaction")

    def ring(self, topic: Topic, everyone: bool = False) -> None:
        self._tell(topic, everyone)

    def announce(self, run_ids: Iterable[str]) -> None:
        """Those who wait for a run look at it once a second in any case."""

    def watch(self, run_id: str) -> Watch:
        raise ArgumentError("a result can't be waited for in a transaction; commit it first")

    def close(self) -> None:
        """Nothing is open."""
