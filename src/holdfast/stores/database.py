"""What a backend gives: connections, transactions, life locks, and its errors in our words. All that is kept is kept by
tables, which are the same over every database."""

from __future__ import annotations

import abc
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from holdfast.errors import Fenced, StoreBusyError
from holdfast.ports import Clock, Notifier, Store
from holdfast.stores.dialect import SQLITE, Dialect
from holdfast.stores.lives import Lives
from holdfast.stores.queries import read_queries
from holdfast.stores.stamps import Stamps


class SqlDatabase(abc.ABC):
    """A database as the tables of one app use it. `q` has all queries by name, in its words."""

    dialect: Dialect = SQLITE
    conflict: type[StoreBusyError] = StoreBusyError
    """What is raised for a transaction that was refused because of another one, and can be carried out again as it is."""
    pauses: Sequence[float] = ()
    """Seconds between two tries of such a transaction: so many times it is tried again."""

    def __init__(self, app: str, url: str, clock: Clock, lives: Lives[Any]) -> None:
        self.app = app
        self.url = url
        self.clock = clock
        self.lives = lives
        self.q = read_queries(self.dialect)
        self.stamps = Stamps(self.q)
        self._secret = b""

    def now(self) -> int:
        return self.clock.now()

    def secret(self) -> bytes:
        if not self._secret:
            with self.read() as db:
                self._secret = bytes(db.execute("SELECT value FROM meta WHERE key = 'secret'").fetchone()[0])
        return self._secret

    @abc.abstractmethod
    def read(self) -> AbstractContextManager[Any]:
        """A connection to read with."""

    @abc.abstractmethod
    def write(self, name: str, lasting: bool = True) -> AbstractContextManager[Any]:
        """A connection inside a transaction, which is committed at the end; `name` names its failpoints. What is not
        `lasting` may be lost with the machine, as long as everybody sees it until then: claims and heartbeats mean
        nothing once all workers are gone."""

    @abc.abstractmethod
    def step_write(self) -> AbstractContextManager[tuple[Any, Any]]:
        """A transaction on a connection that a step may use: as the tables use it, and as the step does."""

    @abc.abstractmethod
    def join(self, connection: object) -> tuple[Store, Notifier]: ...

    @abc.abstractmethod
    def close(self) -> None:
        """Let go of every connection."""

    def before_migrating(self, db: Any) -> None:
        """Make sure that nobody else does the same at once, and that there is a place for tables."""
        return

    def check(self) -> None:
        return  # a server watches over its own files

    def strain(self) -> str:
        return ""  # and over what weighs on them


@dataclass(eq=False)
class Tables:
    """What is kept of one concern, with the others that it writes to. `db` is a connection that the database has given."""

    database: SqlDatabase

    def __post_init__(self) -> None:
        self._q = self.database.q
        self._dialect = self.database.dialect
        self._array = self._dialect.array

    def _ask(self, query: str, **parameters: Any) -> list[Any]:
        """All rows that a query finds; `app` is this one."""
        with self.database.read() as db:
            found: list[Any] = db.execute(self._q[query], {"app": self.database.app, **parameters}).fetchall()
        return found

    def _ask_of(self, run_id: str, query: str, **parameters: Any) -> list[Any]:
        """The same about a run, whose number is `no`."""
        with self.database.read() as db:
            found = db.execute(self._q["run_number"], {"app": self.database.app, "id": run_id}).fetchone()
            no = found[0] if found else -1
            rows: list[Any] = db.execute(self._q[query], {"no": no, **parameters}).fetchall()
        return rows

    def _check_alive(self, db: Any, worker_id: str) -> None:
        """From here on nobody can declare it dead before the end of the transaction."""
        if db.execute(self._q["am_i_alive"], {"worker": worker_id}).fetchone() is None:
            raise Fenced(worker_id)
