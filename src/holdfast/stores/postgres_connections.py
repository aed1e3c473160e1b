"""Connections to PostgreSQL: what the address says, the pool of the store, and the pool for steps that write in a
transaction of their own."""

from __future__ import annotations

import contextlib
import os
import re
import select
import threading
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import psycopg
from psycopg.conninfo import conninfo_to_dict
from psycopg.rows import tuple_row
from psycopg_pool import ConnectionPool

from holdfast.errors import StoreUnavailableError
from holdfast.stores.arrays import adapt
from holdfast.stores.joining import qualified

POOL = 10
LONGEST_WAIT = 10.0
"""Seconds for a connection, for a lock."""
WHERE = ("host", "hostaddr", "port", "dbname", "service")
"""Options of an address that say which database it is, as its beginning may: two that differ are shown differently."""
_of_the_parent: list[Any] = []

Pool = ConnectionPool[psycopg.Connection[Any]]


class Connections:
    """Made from an address: `postgresql://user:password@host/database?schema=holdfast&pool=10`."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        given = [option.partition("=") for option in parts.query.split("&") if option]
        mine = {name: value for name, _, value in given if name in ("schema", "pool", "pooler")}
        self.schema, size = mine.get("schema", "holdfast"), mine.get("pool", str(POOL))
        if not re.fullmatch(r"[a-z_][a-z0-9_]{0,62}", self.schema):
            raise StoreUnavailableError(
                f"?schema={self.schema}: a schema's name is made of a-z, 0-9 and _, up to 63 of them"
            )
        if not size.isdigit() or int(size) < 2:
            raise StoreUnavailableError(f"?pool={size}: give the number of connections a process may open, 2 or more")
        self.size = int(size)
        place = f"{parts.hostname or ''}{f':{parts.port}' if parts.port else ''}{parts.path}"
        where = "".join(f"{''.join(option)}&" for option in given if option[0] in WHERE)
        self.shown = f"postgresql://{place}?{where}schema={self.schema}"
        rest = "&".join("".join(option) for option in given if option[0] not in mine)  # as it is: it is the driver's
        self._conninfo = urlunsplit(parts._replace(query=rest))
        pooler = mine.get("pooler", "session")
        if pooler not in ("session", "transaction"):
            raise StoreUnavailableError(f"?pooler={pooler}: the mode of a connection pooler is session or transaction")
        self.shares_sessions = pooler == "transaction"
        """Each transaction may be in another session: there are no settings, locks and notifications that last longer."""
        options = self._read_options()
        ours = (
            f"-c search_path={self.schema} -c lock_timeout={LONGEST_WAIT:g}s -c idle_in_transaction_session_timeout=30s"
        )
        self._options = {**options, "options": f"{options['options']} {ours}".strip()}
        self._for_steps = {**options, "options": f"-c idle_in_transaction_session_timeout=60s {options['options']}"}
        if self.shares_sessions:
            self._options = self._for_steps = {**options, "prepare_threshold": None}
        self._pools: dict[str, Pool] = {}
        self._lock = threading.Lock()
        self._places = threading.Semaphore(self.size)
        self._here = threading.local()
        self._pid = os.getpid()
        self._is_closed = False

    def _read_options(self) -> dict[str, Any]:
        try:
            given = conninfo_to_dict(self._conninfo)
        except psycopg.Error as error:
            raise StoreUnavailableError(f"this is no address of a PostgreSQL database: {error}") from error
        return {
            "options": given.get("options") or "",
            "connect_timeout": given.get("connect_timeout") or 5,
            "application_name": given.get("application_name") or "holdfast",
            "keepalives_idle": 10, "keepalives_interval": 5, "keepalives_count": 3,
        }  # fmt: skip

    def connect(self) -> psycopg.Connection[Any]:
        """A connection of one's own, outside the pools."""
        connection = psycopg.connect(self._conninfo, autocommit=True, **self._options)
        adapt(connection)
        return connection

    def borrow(self) -> contextlib.AbstractContextManager[psycopg.Connection[Any]]:
        return self._pool("store", self._options).connection()

    @contextlib.contextmanager
    def borrow_for_step(self) -> Iterator[psycopg.Connection[Any]]:
        """With the settings of the role and the address: a step looks for its tables where it always does. The store's
        own connections are others, so that steps that take long don't keep its worker from committing."""
        pool = self._pool("steps", self._for_steps)  # first: after a fork the places are others too
        with self._place(), pool.connection() as connection:
            connection.row_factory = tuple_row  # whatever the step before wanted
            yield connection

    @contextlib.contextmanager
    def _place(self) -> Iterator[None]:
        """Where other steps of this process have all connections, they are waited for as long as that takes: a worker may
        have more threads than connections, and how long a step may take is said by the step. One that wants a second
        connection doesn't wait like that: it could be for itself."""
        if getattr(self._here, "has_place", False):
            yield
            return
        with self._places:
            self._here.has_place = True
            try:
                yield
            finally:
                self._here.has_place = False

    def _pool(self, name: str, options: dict[str, Any]) -> Pool:
        pool = self._pools.get(name)
        return pool if pool is not None and self._pid == os.getpid() else self._open_pool(name, options)

    def _open_pool(self, name: str, options: dict[str, Any]) -> Pool:
        with self._lock:
            self.leave_to_the_parent()
            if name not in self._pools:
                if self._is_closed:
                    raise StoreUnavailableError(f"{self.shown} was closed; open another store")
                self._pools[name] = ConnectionPool(
                    self._conninfo, kwargs={"autocommit": True, **options}, min_size=1, max_size=self.size,
                    timeout=LONGEST_WAIT, configure=adapt, name=f"holdfast-{name}", num_workers=1, open=True,
                    reconnect_timeout=LONGEST_WAIT, check=self._check,
                )  # fmt: skip
            return self._pools[name]

    def leave_to_the_parent(self, *more: Any) -> bool:
        """Connections don't survive a fork, and closing them in the child would hurt the parent. Whether there was one."""
        if self._pid == os.getpid():
            return False
        _of_the_parent.extend([self._pools, *more])
        self._pools, self._pid = {}, os.getpid()
        self._places, self._here = threading.Semaphore(self.size), threading.local()
        return True

    def _check(self, connection: psycopg.Connection[Any]) -> None:
        """One that the server has closed while nobody used it is not given to anybody. That is seen without asking the
        server: there is something to read, and then the end."""
        poll = select.poll()
        poll.register(connection.fileno(), select.POLLIN)
        try:
            while poll.poll(0):
                connection.pgconn.consume_input()
        except psycopg.OperationalError:
            connection.close()
            self.drop_broken()
            raise

    def drop_broken(self) -> None:
        """A server that restarts breaks all connections, not only the one that was in use."""
        for pool in list(self._pools.values()):
            with contextlib.suppress(Exception):
                pool.drain()

    def close(self) -> None:
        self._is_closed = True
        pools, self._pools = self._pools, {}
        if self._pid == os.getpid():
            for pool in pools.values():
                pool.close()

    def db(self, connection: psycopg.Connection[Any]) -> Db | ForeignDb:
        return ForeignDb(connection, self.schema) if self.shares_sessions else Db(connection)


class Db:
    """A connection as the shared code uses it."""

    __slots__ = ("connection",)

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self.connection = connection

    def execute(self, sql: str, parameters: Any = None) -> psycopg.Cursor[Any]:
        return self.connection.execute(sql, parameters, binary=True)


class ForeignDb:
    """The same of a connection that looks for tables elsewhere, and gives rows as its owner wants them."""

    __slots__ = ("_schema", "connection")

    def __init__(self, connection: psycopg.Connection[Any], schema: str) -> None:
        self.connection, self._schema = connection, schema

    def execute(self, sql: str, parameters: Any = None) -> psycopg.Cursor[Any]:
        cursor = psycopg.Cursor(self.connection, row_factory=tuple_row)
        return cursor.execute(qualified(sql, self._schema), parameters, binary=True)
