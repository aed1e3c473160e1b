"""The PostgreSQL store: any number of workers on any number of machines.

Only what is peculiar to PostgreSQL is here: transactions, locks, errors, time. What it says in SQL is in
`postgres_sql.py`, connections are in `postgres_connections.py`, push is in `postgres_notifier.py`.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import random
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

import psycopg
from psycopg_pool import PoolClosed, PoolTimeout, TooManyRequests

from holdfast import failpoints
from holdfast.codec.blobs import keys_in
from holdfast.errors import EncodeError, Fenced, StoreError, StoreUnavailableError
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
from holdfast.stores.arrays import Texts
from holdfast.stores.attempts import in_turn
from holdfast.stores.postgres_connections import Connections, Db
from holdfast.stores.postgres_errors import Conflict, in_our_words
from holdfast.stores.postgres_guests import Guests
from holdfast.stores.postgres_life import LifeLock, ServerClock
from holdfast.stores.postgres_sql import (
    POSTGRES,
    Batch,
    children_of,
    commit_of,
    creation_of,
    ends_of,
    goes_alone,
    messages_of,
)
from holdfast.stores.shared import CLOCK_RESERVE, SqlStore, is_about_limits

NOT_IN_REPERTOIRE = "22021"
"""What the server says of a text with NUL; what else it can't keep the driver can't encode."""
PAUSES = (0.005, 0.02, 0.05, 0.1, 0.2)


class PostgresStore(Guests, SqlStore):
    """`postgresql://user:password@host/database?schema=holdfast&pool=10`; what else stands there is for the driver.

    `server_time=False` takes the time from `clock` alone, `judge_after` is for how many seconds the server has to be up
    before a free lock means a dead worker: tests say both."""

    dialect = POSTGRES
    conflict = Conflict

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
        self._connections = Connections(url)
        self.schema = self._connections.schema
        self._judge_after = judge_after
        self._lease = 0.0
        self._server_clock = ServerClock(clock) if server_time else None
        try:
            self.connect().close()  # a wrong address is told at once, not when the pool's patience ends
            super().__init__(app, self._connections.shown, self._server_clock or clock, as_it_is=as_it_is)
            self._next_wake = f"SELECT EXISTS ({self._q['message_waits']}), ({self._q['next_wake']})"
            if self._server_clock is not None:
                self._ask_the_time(self._server_clock)
        except BaseException:
            self.close()
            raise

    # -- connections

    @property
    def hears(self) -> bool:
        """Whether a connection can wait for notifications."""
        return not self._connections.shares_sessions

    def connect(self) -> psycopg.Connection[Any]:
        """A connection of one's own, outside the pool."""
        with self._errors():
            return self._connections.connect()

    def _borrow(self) -> contextlib.AbstractContextManager[psycopg.Connection[Any]]:
        if self._connections.leave_to_the_parent(self._alive_here):
            self._alive_here = {}
        return self._connections.borrow()

    @contextlib.contextmanager
    def read(self) -> Iterator[Any]:
        with self._errors(), self._borrow() as connection:
            yield self._connections.db(connection)

    @contextlib.contextmanager
    def write(self, name: str, lasting: bool = True) -> Iterator[Any]:
        """A transaction. Failpoints stand before and after its commit. All of them last: other than with a file, workers
        outlive the server, and what they believe to have claimed has to be theirs after its restart."""
        if name != "migrate":
            self._look_ahead()
        with self._errors(), self._borrow() as connection:
            try:
                with connection.transaction():
                    if self._connections.shares_sessions:
                        connection.execute(f'SET LOCAL search_path = "{self.schema}"')
                    yield Db(connection)
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
        for worker_id in list(getattr(self, "_alive_here", ())):
            self.release_lock(worker_id)
        self._connections.close()

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

    def life_lock(self, worker_id: str) -> LifeLock | None:
        if self._connections.shares_sessions:
            return None  # a lock would stay with whoever gets the session next
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
        if self._connections.shares_sessions:
            return ()  # the lease tells
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
            with self.read() as db:
                run.no = db.execute(*creation_of(self.app, run, clock)).fetchone()[0]
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
        now = self.now()
        batch = commit_of(self.app, worker_id, changes, now, self._stamp_apart(numbers))
        alone = [message for change in changes for message in change.messages if goes_alone(message)]
        naming = [
            (change.no, record.payload) for change in changes for record in change.records if keys_in(record.payload)
        ]
        others = [change for change in changes if not change.is_plain]
        limits = any(map(is_about_limits, others))
        looks_at_itself = bool(claim) and any(map(makes_claimable, changes))
        if not (alone or naming or limits or looks_at_itself or any(map(has_parts, others))):
            if claim:
                batch.claim(self._q["claim"], {"limit": claim, "names": Texts(names)})
            failpoints.hit("commit.before_commit")
            with self.read() as db:
                rows, emitted = self._write(db, worker_id, batch)
            failpoints.hit("commit.after_commit")
            return Committed(self._claimed_apart(rows, now), emitted)
        with self.write("commit") as db:
            _, emitted = self._write(db, worker_id, batch)
            self._name_blobs(db, naming)
            if any(change.children for change in changes):
                self._add_children(db, changes)
            for message in alone:
                self._insert_message(db, message)
            for change in changes:
                self._signal(db, change)
                self._stream(db, change)
                self._answer(db, change)
            freed = self._change_slots(db, changes) if limits else []
            claimed: list[Claimed] = self._claim(db, worker_id, claim, names) if claim else []
        return Committed(claimed, emitted, freed)

    def _write(self, db: Any, worker_id: str, batch: Batch) -> tuple[list[RunRow], bool]:
        """What was claimed, and whether any news were recorded."""
        found = db.execute(batch.sql, batch.parameters).fetchall()
        width = len(batch.names)
        counts = dict(zip(batch.names, found[0][:width], strict=True))
        if not counts["fence"]:
            raise Fenced(worker_id)
        rows = [self._row(row[width:]) for row in found if row[width:] and row[width] is not None]
        return rows, bool(counts.get("news"))

    def _claimed_apart(self, rows: Sequence[RunRow], now: int) -> list[Claimed]:
        """What belongs to runs that a commit has claimed. From now on this worker alone writes it."""
        if not rows:
            return []
        try:
            with self.read() as db:
                return self._read_claimed(db, rows, now)
        except StoreError as error:  # other errors of a commit may say that nothing has happened
            raise StoreUnavailableError(f"what was committed and claimed could not be read: {error}") from error

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

    def claim_attempt(self, worker_id: str, token: str) -> ClaimedAttempt | None:
        parameters = {"worker": worker_id, "app": self.app, "now": self.now(), "token": token}
        failpoints.hit("claim_attempt.before_commit")
        with self.read() as db:
            is_alive, found, body, clock = db.execute(self._q["claim_attempt"], parameters).fetchone()
        failpoints.hit("claim_attempt.after_commit")
        if not is_alive:
            raise Fenced(worker_id)
        if found is None:
            return None
        self._heard([clock])
        return ClaimedAttempt(token, body)

    def end_attempts(self, worker_id: str, ended: Sequence[EndedAttempt]) -> dict[str, str | None]:
        clock = self._stamp_apart(1)
        failpoints.hit("end_attempts.before_commit")
        with self.read() as db:
            owners = dict(db.execute(*ends_of(worker_id, ended, self.now(), clock)).fetchall())
        failpoints.hit("end_attempts.after_commit")
        return owners

    def next_wake(self, names: Sequence[str]) -> int | None:
        parameters = {"app": self.app, "names": Texts(names), "now": self.now()}
        with self.read() as db:
            waits, wake = db.execute(self._next_wake, parameters).fetchone()
        return 0 if waits else wake

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
            why = "a text contains a NUL character" if getattr(error, "sqlstate", None) == NOT_IN_REPERTOIRE else error
            raise EncodeError(f"a value can't be kept in {self.url}: {why}") from error
        except (psycopg.Error, PoolTimeout, PoolClosed, TooManyRequests) as error:
            raise self._translate(error) from error

    def _translate(self, error: Exception) -> StoreError:
        found = in_our_words(error, getattr(self, "url", "PostgreSQL"), self._connections.size)
        if type(found) is StoreUnavailableError and not (getattr(error, "sqlstate", None) or "").startswith("53"):
            self._connections.drop_broken()
        return found


def has_parts(change: Change) -> bool:
    """Whether there is something that is not written by the one statement."""
    return bool(change.children or change.signals or change.streamed or change.answers or change.forget_before)


def makes_claimable(change: Change) -> bool:
    """Whether there may be a run to claim because of it, which the statement that writes it doesn't see."""
    return change.columns.get("wake_at") is not None or bool(change.messages)


def _again(method: Callable[..., Any]) -> Callable[..., Any]:
    """A method that is one transaction, carried out again if the database refused it because of another one."""

    @functools.wraps(method)
    def call(self: PostgresStore, *args: Any, **kwargs: Any) -> Any:
        for pause in PAUSES:
            try:
                return method(self, *args, **kwargs)
            except Conflict:
                time.sleep(pause * random.uniform(0.5, 1.5))
        return method(self, *args, **kwargs)

    return call


for _name in (
    "register", "update_worker", "unregister", "declare_dead", "create", "create_all", "put_off", "commit", "post_all", "delete",
    "delete_all", "collect", "set_aside", "save_schedules", "emit", "deliver", "claim_attempts", "claim_attempt",
    "end_attempts", "release_attempts", "report_attempts", "declare_limits", "serve",
):  # fmt: skip
    setattr(PostgresStore, _name, _again(getattr(PostgresStore, _name)))
