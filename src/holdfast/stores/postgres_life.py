"""A worker's life on PostgreSQL, and the time there."""

from __future__ import annotations

import contextlib
import hashlib
import threading
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any

import psycopg

from holdfast.ports import Clock
from holdfast.stores.lives import Lives

if TYPE_CHECKING:
    from holdfast.stores.postgres import PostgresDatabase

DISAGREEMENT = 1_000_000
"""By how many microseconds the time of day and the steady clock may come apart until the database is asked."""


def key_of(schema: str, name: str) -> int:
    """The key of an advisory lock. Those are the whole database's, so it contains the schema."""
    digest = hashlib.sha256(f"{schema}\0{name}".encode()).digest()
    return int.from_bytes(digest[:8], "big", signed=True)


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


class ServerLives(Lives[LifeLock]):
    """Life locks are held by sessions. `judge_after` is for how many seconds the server has to be up before a free one means
    a dead worker: the length of a lease, if it isn't said."""

    def __init__(self, database: PostgresDatabase, judge_after: float | None) -> None:
        super().__init__()
        self._database = database
        self._judge_after = judge_after
        self._lease = 0.0

    def lock_of(self, worker_id: str) -> LifeLock | None:
        if self._database.shares_sessions:
            return None  # a lock would stay with whoever gets the session next
        return LifeLock(self._database.connect, key_of(self._database.schema, worker_id))

    def take(self, worker_id: str, lease: int) -> None:
        self._lease = lease / 1e6
        super().take(worker_id, lease)

    def dead(self, worker_ids: Sequence[str]) -> Collection[str]:
        if self._database.shares_sessions:
            return ()  # the lease tells
        with self._database.read() as db:
            up, held = db.execute(self._database.q["life_locks"]).fetchone()
            if up is None:
                db.execute(self._database.q["booted"])
        # A restart lets go of everybody's lock. The living need their next heartbeat to take it again.
        if up is None or up < (self._lease if self._judge_after is None else self._judge_after):
            return ()
        keys = set(held)
        return {worker_id for worker_id in worker_ids if key_of(self._database.schema, worker_id) not in keys}


class ServerClock:
    """The database's time without asking for it: as it was told, and what has passed since then on this machine's steady
    clock. If the machine's time of day is set, nothing is due earlier or later for that."""

    def __init__(self, local: Clock) -> None:
        self.local = local
        self._offset = self._of_day = self._day()

    def now(self) -> int:
        return self.steady() + self._offset

    def steady(self) -> int:
        """Microseconds since whenever."""
        return int(self.local.monotonic() * 1_000_000)

    def _day(self) -> int:
        return self.local.now() - self.steady()

    def is_doubtful(self) -> bool:
        """Whether the time of day and the steady clock no longer agree: one was set, or the other stood still while the
        machine slept. Only the database knows which."""
        return abs(self._day() - self._of_day) > DISAGREEMENT

    def monotonic(self) -> float:
        return self.local.monotonic()

    def random(self) -> float:
        return self.local.random()

    def set(self, before: int, told: int, after: int) -> None:
        """The database told its time between two of the steady clock's. What we believed stays as long as it may be true,
        so that time doesn't jump to and fro with each answer."""
        self._of_day = self._day()
        if not told - after <= self._offset <= told - before:
            self._offset = told - (before + after) // 2
