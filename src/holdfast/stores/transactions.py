"""The transaction of a step whose own writes and whose outcome are committed together.

What makes it exactly once is a row of `attributes`: a step's outcome, under its idempotency key. It is inserted by the
very transaction that writes what the step has to write, so of any number of attempts one commits, wherever they execute
and whoever believes whom to be dead; the others find the outcome of that one, and roll back. The row stays as long as its
run does: an attempt may have been frozen for however long.
"""

from __future__ import annotations

import time
from contextlib import AbstractContextManager
from typing import Any

from holdfast.errors import StoreBusyError, StoreError, StoreFullError, StoreReadOnlyError, StoreUnavailableError
from holdfast.ports import StepTransaction
from holdfast.stores.database import SqlDatabase

PAUSE = 0.5
"""Seconds between two looks at a database that can't be asked."""
PASSING = (StoreBusyError, StoreUnavailableError, StoreFullError, StoreReadOnlyError)
"""What a database is for a while: without a free connection, away, full, or a replica that is about to take over."""


class _RolledBack(Exception):
    """Ends a transaction without its commit."""


class SqlTransaction(StepTransaction):
    """Begins when the step first asks for its connection."""

    def __init__(self, database: SqlDatabase, run_no: int | None, key: str) -> None:
        self._database = database
        self._run_no = run_no
        self._where = {"run": run_no, "value": key}
        self._context: AbstractContextManager[tuple[Any, Any]] | None = None
        self._db: Any = None
        self._connection: Any = None

    @property
    def connection(self) -> Any:
        if self._context is None:
            context = self._database.step_write()
            self._db, self._connection = context.__enter__()
            self._context = context
        return self._connection

    @property
    def has_begun(self) -> bool:
        return self._context is not None

    def recorded(self) -> bytes | None:
        with self._database.read() as db:
            return self._read(db)

    def commit(self, body: bytes) -> bytes | None:
        assert self._context is not None
        if self._run_no is not None and not self._record(self._db, body):
            found = self._read(self._db)
            self.rollback()
            return found
        context, self._context = self._context, None
        try:
            context.__exit__(None, None, None)
        except StoreBusyError:
            raise  # which certainly did not happen
        except BaseException:  # also a time limit of the thread's, which is raised wherever that is
            if self._run_no is None or (found := self._after_doubt(body)) is None:
                raise
            return found
        return body

    def rollback(self) -> None:
        context, self._context = self._context, None
        if context is not None:
            error = _RolledBack()
            try:
                context.__exit__(_RolledBack, error, None)
            except (_RolledBack, StoreError):  # a connection that is broken has nothing to roll back
                return

    def _record(self, db: Any, body: bytes) -> bool:
        return bool(db.execute(self._database.q["record_outcome"], {**self._where, "body": body}).rowcount)

    def _read(self, db: Any) -> bytes | None:
        found = db.execute(self._database.q["recorded_outcome"], self._where).fetchone()
        return None if found is None else bytes(found[0])

    def _after_doubt(self, body: bytes) -> bytes | None:
        """What has become of a commit whose answer was lost: None if it did not happen. The insert waits for a
        transaction that the server is still busy with. There is no time limit: until it is known nothing true could be
        said of the step, and nobody else can record anything either."""
        pause = 0.0
        while True:
            try:
                time.sleep(pause)
                with self._database.step_write() as (db, _):
                    if self._record(db, body):
                        raise _RolledBack
                    return self._read(db)
            except _RolledBack:
                return None
            except PASSING:
                pause = PAUSE
            except StoreError:
                raise
            except Exception:  # a time limit of the thread's comes once, and says nothing of the commit
                pause = PAUSE
