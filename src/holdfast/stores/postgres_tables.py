"""What PostgreSQL does in one statement where a file needs several: a commit, a new run, claims and ends of attempts; and a
heartbeat on the connection that holds the life lock."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from holdfast import failpoints
from holdfast.codec.blobs import keys_in
from holdfast.errors import Fenced, StoreError, StoreUnavailableError
from holdfast.ports import Change, Claimed, ClaimedAttempt, Committed, EndedAttempt, Message, NewRun, RunRow
from holdfast.stores.arrays import Texts
from holdfast.stores.attempts import Attempts, in_turn
from holdfast.stores.commits import Commits, is_about_limits
from holdfast.stores.postgres_life import LifeLock, ServerClock
from holdfast.stores.postgres_sql import Batch, children_of, commit_of, creation_of, ends_of, goes_alone, messages_of
from holdfast.stores.queries import run_row
from holdfast.stores.runs import Runs
from holdfast.stores.stamps import RESERVE, Stamps
from holdfast.stores.workers import Workers

if TYPE_CHECKING:
    from holdfast.stores.postgres import PostgresDatabase


class StampsAhead(Stamps):
    """Written down ahead of time and outside of transactions: all processes write the same row, and whoever had it locked
    would keep the others waiting."""

    def __init__(self, q: Mapping[str, str], read: Callable[[], AbstractContextManager[Any]]) -> None:
        super().__init__(q)
        self._read = read

    def look_ahead(self, count: int = 0) -> None:
        """Write down how far the clock may count, if it is near what was written."""
        if self._clock.value + count + RESERVE // 2 > self._limit:
            with self._read() as db:
                if not self._limit:
                    self._resume(db)
                self._reserve(db, self._clock.value + count)

    def apart(self, count: int) -> int:
        """Numbers for what is written in one statement."""
        self.look_ahead(count)
        return self._clock.forward(count + 1) - count + 1


class PostgresWorkers(Workers):
    database: PostgresDatabase

    def beat(self, worker_id: str, lease: int) -> bool:
        """On the connection that holds the life lock: whoever can't renew the one can't the other."""
        lock = self.database.lives.here.get(worker_id)
        if not isinstance(lock, LifeLock):
            return super().beat(worker_id, lease)
        failpoints.hit("beat.before_commit")
        with self.database.errors():
            clock = self.database.clock
            before = clock.steady() if isinstance(clock, ServerClock) else 0
            found = lock.execute(self._q["beat"], self._sign_of_life(worker_id, lease))
            if isinstance(clock, ServerClock) and found:
                clock.set(before, found[0], clock.steady())
        failpoints.hit("beat.after_commit")
        return found is not None


class PostgresRuns(Runs):
    database: PostgresDatabase

    def create(self, run: NewRun, replace: bool = False) -> RunRow | None:
        if replace or run.messages or any(keys_in(record.payload) for record in run.records):
            return super().create(run, replace)
        while True:
            clock = self.database.stamps.apart(len(run.records))
            with self.database.one_statement("create") as db:
                run.no = db.execute(*creation_of(self.database.app, run, clock)).fetchone()[0]
            found = [] if run.no is not None else self._ask("select_run", id=run.id)
            if run.no is not None or found:
                return run_row(found[0]) if found else None

    def _insert_rows(self, db: Any, runs: Sequence[NewRun]) -> None:
        fresh = dict(db.execute(*children_of(self.database.app, runs)).fetchall()) if runs else {}
        for run in runs:
            run.no = fresh.pop(run.id, None)

    def insert_children(self, db: Any, changes: Sequence[Change]) -> None:
        """Children, then messages: some of those may be for them."""
        self._insert_rows(db, [run for change in changes for run in change.children])
        messages: list[Message] = []
        for change in changes:
            for run in change.children:
                if run.no is not None:
                    self.insert_records(db, [(run.no, run.records)])
                    for attribute in run.attributes:
                        self.set_attribute(db, run.no, *attribute)
                elif run.if_taken is not None:
                    messages.append(run.if_taken)
            messages += [message for message in change.messages if not goes_alone(message)]
        if messages:
            clock = self.database.stamps.take(db, 1)
            db.execute(*messages_of(self.database.app, messages, self.database.now(), clock))


class PostgresCommits(Commits):
    database: PostgresDatabase
    runs: PostgresRuns

    def commit(self, worker_id: str, changes: Sequence[Change], claim: int, names: Sequence[str]) -> Committed:
        numbers = sum(len(change.records) for change in changes) + 1  # one for all messages
        now = self.database.now()
        batch = commit_of(self.database.app, worker_id, changes, now, self.database.stamps.apart(numbers))
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
            with self.database.one_statement("commit") as db:
                rows, emitted = _write(db, worker_id, batch)
            return Committed(self._claimed_apart(rows, now), emitted)
        with self.database.write("commit") as db:
            _, emitted = _write(db, worker_id, batch)
            self.runs.name_blobs(db, naming)
            if any(change.children for change in changes):
                self.runs.insert_children(db, changes)
            for message in alone:
                self.messages.insert(db, message)
            for change in changes:
                emitted |= self.events.signal(db, change)
                self._stream(db, change)
                self._answer(db, change)
            freed = self.limits.change(db, changes) if limits else []
            claimed = self.claims.claim(db, worker_id, claim, names) if claim else []
        return Committed(claimed, emitted, freed)

    def _claimed_apart(self, rows: Sequence[RunRow], now: int) -> list[Claimed]:
        """What belongs to runs that a commit has claimed. From now on this worker alone writes it."""
        if not rows:
            return []
        try:
            with self.database.read() as db:
                return self.claims.read(db, rows, now)
        except StoreError as error:  # other errors of a commit may say that nothing has happened
            raise StoreUnavailableError(f"what was committed and claimed could not be read: {error}") from error


def _write(db: Any, worker_id: str, batch: Batch) -> tuple[list[RunRow], bool]:
    """What was claimed, and whether any news were recorded."""
    found = db.execute(batch.sql, batch.parameters).fetchall()
    width = len(batch.names)
    counts = dict(zip(batch.names, found[0][:width], strict=True))
    if not counts["fence"]:
        raise Fenced(worker_id)
    rows = [run_row(row[width:]) for row in found if row[width:] and row[width] is not None]
    return rows, bool(counts.get("news"))


def has_parts(change: Change) -> bool:
    """Whether there is something that is not written by the one statement."""
    return bool(change.children or change.signals or change.streamed or change.answers or change.forget_before)


def makes_claimable(change: Change) -> bool:
    """Whether there may be a run to claim because of it, which the statement that writes it doesn't see."""
    return change.columns.get("wake_at") is not None or bool(change.messages)


class PostgresAttempts(Attempts):
    database: PostgresDatabase

    def claim_attempts(
        self, worker_id: str, queues: Sequence[str], steps: Sequence[str], limit: int
    ) -> list[ClaimedAttempt]:
        claimed: list[ClaimedAttempt] = []
        for queue in in_turn(queues):
            about = {"queue": queue, "steps": Texts(steps), "limit": limit - len(claimed)}
            claimed += self._claim("claim_attempts", worker_id, about)
            if len(claimed) >= limit:
                break
        return claimed

    def claim_attempt(self, worker_id: str, token: str) -> ClaimedAttempt | None:
        return next(iter(self._claim("claim_attempt", worker_id, {"token": token})), None)

    def _claim(self, query: str, worker_id: str, about: dict[str, Any]) -> list[ClaimedAttempt]:
        parameters = {"worker": worker_id, "app": self.database.app, "now": self.database.now(), **about}
        with self.database.one_statement(query) as db:
            rows = db.execute(self._q[query], parameters).fetchall()
        if not rows[0][0]:
            raise Fenced(worker_id)
        self.database.stamps.heard(row[3] for row in rows)
        return [ClaimedAttempt(token, body) for _, token, body, _ in rows if token is not None]

    def end_attempts(self, worker_id: str, ended: Sequence[EndedAttempt]) -> dict[str, str | None]:
        clock = self.database.stamps.apart(1)
        with self.database.one_statement("end_attempts") as db:
            return dict(db.execute(*ends_of(worker_id, ended, self.database.now(), clock)).fetchall())
