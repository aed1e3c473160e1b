"""A worker's life on PostgreSQL, and the time there."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import Any

import psycopg

from holdfast.ports import Clock


class LifeLock:
    """A session's advisory lock on a connection of its own, free 3 ms after the process has died."""

    def __init__(self, connect: Callable[[], psycopg.Connection[Any]], key: int) -> None:
        self._connect = connect
        self._key = key
        self._connection: psycopg.Connection[Any] | None = None
        self._lock = threading.Lock()

    def take(self) -> None:
        with self._lock:
            self._hold()

    def execute(self, sql: str, parameters: dict[str, Any]) -> tuple[Any, ...] | None:
        """One row from the connection that holds the lock, or from a new one that has taken it, if that was lost: what
        is asked here may be asked twice."""
        with self._lock:
            connection = self._hold()
            try:
                return connection.execute(sql, parameters).fetchone()
            except psycopg.OperationalError:
                if not connection.closed:
                    raise
            return self._hold().execute(sql, parameters).fetchone()

    def _hold(self) -> psycopg.Connection[Any]:
        connection = self._connection
        if connection is None or connection.closed:
            connection = self._connection = self._connect()
            connection.execute("SET synchronous_commit = off")  # only heartbeats are written here
            # It is not waited for: a connection that was lost may hold it for a while yet, which serves as well.
            connection.execute("SELECT pg_try_advisory_lock(%s)", (self._key,))
        return connection

    def release(self) -> None:
        with self._lock:
            if self._connection is not None:
                with contextlib.suppress(psycopg.Error):  # closing alone would let go of it too, a moment later
                    self._connection.execute("SELECT pg_advisory_unlock(%s)", (self._key,))
                self._connection.close()
                self._connection = None

    def is_free(self) -> bool:
        with contextlib.closing(self._connect()) as connection:
            found = connection.execute("SELECT pg_try_advisory_lock(%s)", (self._key,)).fetchone()
            return bool(found and found[0])

    def clear(self) -> None:
        """Nothing is left of one."""


class ServerClock:
    """The database's time without asking for it: this machine's, and by how much that is wrong."""

    def __init__(self, local: Clock) -> None:
        self.local = local
        self._offset = 0

    def now(self) -> int:
        return self.local.now() + self._offset

    def monotonic(self) -> float:
        return self.local.monotonic()

    def random(self) -> float:
        return self.local.random()

    def set(self, before: int, told: int, after: int) -> None:
        """The database told its time between two of ours. What we believed stays as long as it may be true, so that time
        doesn't jump to and fro with each answer."""
        if not told - after <= self._offset <= told - before:
            self._offset = told - (before + after) // 2
