"""What every SQL store does the same way: the port's methods over the queries in `sql/`.

A backend adds connections, transactions, error texts and life locks, and nothing else.
"""

from __future__ import annotations

import abc
import json
import re
import secrets
from collections.abc import Collection, Iterable, Sequence
from contextlib import AbstractContextManager
from importlib import resources
from typing import Any, Protocol

from msgspec.structs import astuple

from holdfast.codec.blobs import MARK, keys_in
from holdfast.errors import Fenced, StoreBusyError, StoreSchemaError
from holdfast.ports import (
    AHEAD,
    FINAL,
    Change,
    Claimed,
    Clock,
    Collected,
    Collision,
    Committed,
    Emission,
    Farewell,
    InboxRow,
    Message,
    NewRun,
    Notifier,
    Posted,
    Record,
    RunRow,
    ScheduleChange,
    ScheduleRow,
    Status,
    StepTransaction,
    Store,
    Subscription,
    WorkerRow,
)
from holdfast.stores.attempts import AttemptTables
from holdfast.stores.dialect import SQLITE, Dialect
from holdfast.stores.domain_events import EventTables
from holdfast.stores.limits import LimitTables
from holdfast.stores.moves import move_of, refuse_moved
from holdfast.stores.queries import read_queries, refuse_nul
from holdfast.stores.search import VALUE_LIMIT
from holdfast.stores.telemetry import TelemetryTables
from holdfast.stores.transactions import SqlTransaction
from holdfast.telemetry.clock import LamportClock, is_clock

HISTORY = ("run", "seq", "kind", "name", "cmd", "cause", "attempt", "worker", "ts", "payload", "clock")
PARTS = ("blobs", "history", "inbox", "attempts", "attributes", "streams", "subscriptions", "requests", "slots")
LET_IN_WITHIN = 100_000
TIMES = ("wake_at", "expires_at")
LAST_TIME = 2**63 - 1
CLOCK_RESERVE = 10_000
"""How far a process may count before it writes down how far it may have counted."""


def migrations(dialect: Dialect = SQLITE) -> list[tuple[int, str]]:
    """Numbered, forward only. `0007_name.sql` is for every database, `0007_name.postgres.sql` for one."""
    folder = resources.files("holdfast.stores").joinpath("sql")
    names = sorted(file.name for file in folder.iterdir() if file.name[:4].isdigit())
    meant = [name for name in names if name.split(".")[1:-1] in ([], [dialect.name])]
    return [(int(name[:4]), dialect.script(folder.joinpath(name).read_text())) for name in meant]


def all_scripts() -> str:
    """The migrations of every database."""
    folder = resources.files("holdfast.stores").joinpath("sql")
    return "\n".join(file.read_text() for file in folder.iterdir() if file.name[:4].isdigit())


class LifeLockLike(Protocol):
    def take(self) -> None: ...
    def release(self) -> None: ...
    def is_free(self) -> bool: ...
    def clear(self) -> None: ...


class SqlStore(AttemptTables, EventTables, LimitTables, TelemetryTables):
    """The Store port over a connection that speaks SQL."""

    dialect: Dialect = SQLITE
    conflict: type[StoreBusyError] = StoreBusyError

    def __init__(self, app: str, url: str, clock: Clock, *, as_it_is: bool = False) -> None:
        """With `as_it_is` nothing is upgraded or refused: for whoever looks at a store, or moves it."""
        self.app = app
        self.url = url
        self.clock = clock
        self._logical_clock = LamportClock()
        self._clock_limit = 0  # up to here the logical clock is written down; 0: nobody has looked yet
        self._q = read_queries(self.dialect)
        self._alive_here: dict[str, LifeLockLike | None] = {}
        if not as_it_is:
            self.upgrade()

    @property
    def logical_clock(self) -> LamportClock:
        """That of this process, which goes on from where anybody's has been in this store once it is needed."""
        return self._logical_clock

    @logical_clock.setter
    def logical_clock(self, clock: LamportClock) -> None:
        self._logical_clock, self._clock_limit = clock, 0

    # -- what a backend gives

    @abc.abstractmethod
    def write(self, name: str, lasting: bool = True) -> AbstractContextManager[Any]:
        """A connection inside a transaction, which is committed at the end; `name` names its failpoints. What is not
        `lasting` may be lost with the machine, as long as everybody sees it until then: claims and heartbeats mean
        nothing once all workers are gone."""

    @abc.abstractmethod
    def life_lock(self, worker_id: str) -> LifeLockLike | None:
        """The lock that a worker of that id holds as long as it lives; None if all workers live in this process."""

    @abc.abstractmethod
    def join(self, connection: object) -> tuple[Store, Notifier]: ...

    @abc.abstractmethod
    def step_write(self) -> AbstractContextManager[tuple[Any, Any]]:
        """A transaction on a connection that a step may use: as the shared code uses it, and as the step does."""

    @abc.abstractmethod
    def close(self) -> None:
        """Let go of every connection."""

    def check(self) -> None:
        """A server watches over its own files."""

    def strain(self) -> str:
        return ""  # and over what weighs on them

    def transaction(self, run_no: int | None, key: str) -> StepTransaction:
        return SqlTransaction(self, run_no, key)

    # -- schema

    def schema_versions(self) -> tuple[int, int]:
        """The schema's version here, 0 if there is nothing yet, and the newest that this library knows."""
        with self.read() as db:
            return self._schema_version(db), migrations(self.dialect)[-1][0]

    def upgrade(self, even_if_moved: bool = False) -> None:
        """Bring the schema up to date."""
        known = migrations(self.dialect)
        newest = known[-1][0]
        with self.read() as db:
            current = self._schema_version(db)
            if current and not even_if_moved:
                refuse_moved(self.url, move_of(db))
        if current < newest:
            with self.write("migrate") as db:
                self._before_migrating(db)
                current = self._schema_version(db)  # somebody else may have been faster
                for number, script in known:
                    if number > current:
                        for statement in _statements(script):
                            db.execute(statement)
                if current < newest:
                    db.execute(self._q["set_meta"], {"key": "schema", "value": b"%d" % newest})
                    db.execute(self._q["add_meta"], {"key": "secret", "value": secrets.token_bytes(32)})
        if current > newest:
            raise StoreSchemaError(
                f"{self.url} has schema {current}, this version of Holdfast knows {newest}; upgrade Holdfast here, or use "
                "another store"
            )

    def _before_migrating(self, db: Any) -> None:
        """Make sure that nobody else does the same at once, and that there is a place for tables."""

    def _schema_version(self, db: Any) -> int:
        tables = {name for (name,) in db.execute(self.dialect.tables)}
        if not tables:
            return 0
        if {"meta", "runs", "history", "inbox"} <= tables:
            found = db.execute("SELECT value FROM meta WHERE key = 'schema'").fetchone()
            if found is not None and re.fullmatch(rb"\d+", _bytes(found[0])):
                return int(found[0])
        raise StoreSchemaError(f"{self.url} is a database of another program; name another file or schema for Holdfast")

    # -- workers

    def register(self, worker: WorkerRow, lease: int, subscriptions: Sequence[Subscription] = ()) -> None:
        refuse_nul(worker.id, worker.host, worker.build)
        lock = self.life_lock(worker.id)
        if lock is not None:
            lock.take()
        self._alive_here[worker.id] = lock
        try:
            with self.write("register") as db:
                now = self.now()
                self._notice_clock(db, now, lease)
                db.execute(
                    self._q["insert_worker"],
                    {
                        "id": worker.id, "app": worker.app, "host": worker.host, "pid": worker.pid,
                        "build": worker.build, "names": json.dumps(worker.names),
                        "schedules": json.dumps(worker.schedules), "address": worker.address, "started_at": now,
                        "lease_until": now + lease, "kind": worker.kind, "queues": json.dumps(worker.queues),
                        "steps": json.dumps(worker.steps), "clock": self._stamp(db, 1),
                    },
                )  # fmt: skip
                self._welcome(db, worker, subscriptions)
        except BaseException:
            self.release_lock(worker.id)
            raise

    def _notice_clock(self, db: Any, now: int, lease: int) -> None:
        """Whether the last workers here had a clock that was ahead; nobody else may be there to remember."""
        (leased,) = db.execute(self._q["latest_lease"], {"app": self.app}).fetchone()
        left = db.execute(self._q["get_meta"], {"key": "left_at"}).fetchone()
        if max((leased or 0) - lease, int(bytes(left[0])) if left else 0) > now + AHEAD:
            db.execute(self._q["reset_times"], {"app": self.app, "now": now, "ahead": now + AHEAD})

    def update_worker(self, worker: WorkerRow, subscriptions: Sequence[Subscription] = ()) -> None:
        with self.write("update_worker") as db:
            parameters = {
                "worker": worker.id, "names": json.dumps(worker.names), "schedules": json.dumps(worker.schedules),
                "queues": json.dumps(worker.queues), "steps": json.dumps(worker.steps),
            }  # fmt: skip
            if not db.execute(self._q["learn"], parameters).rowcount:
                raise Fenced(worker.id)
            self._welcome(db, worker, subscriptions)

    def _welcome(self, db: Any, worker: WorkerRow, subscriptions: Sequence[Subscription]) -> None:
        parameters = {
            "app": self.app, "now": self.now(), "names": self.dialect.array(worker.names), "build": worker.build
        }  # fmt: skip
        db.execute(self._q["welcome"], parameters)
        self._declare(db, worker, subscriptions)

    def beat(self, worker_id: str, lease: int) -> bool:
        with self.write("beat", lasting=False) as db:
            cursor = db.execute(self._q["beat"], self._sign_of_life(worker_id, lease))
            return bool(cursor.rowcount)

    def _sign_of_life(self, worker_id: str, lease: int) -> dict[str, Any]:
        return {"until": self.now() + lease, "worker": worker_id, "clock": self.logical_clock.value}

    def unregister(self, worker_id: str) -> None:
        with self.write("unregister") as db:
            found = db.execute(self._q["delete_worker"], {"worker": worker_id}).fetchone()
            db.execute(self._q["release_runs"], {"loss": 0, "now": self.now(), "worker": worker_id})
            if found is not None:
                self._dismiss(db, found[0])
            db.execute(self._q["set_meta"], {"key": "left_at", "value": str(self.now()).encode()})
        self.release_lock(worker_id)

    def release_lock(self, worker_id: str) -> None:
        lock = self._alive_here.pop(worker_id, None)
        if lock is not None:
            lock.release()

    def declare_dead(self, me: str, by_lease: bool = True) -> list[str]:
        now = self.now()
        others = [worker for worker in self.workers() if worker.id != me]
        dead = self._dead([worker.id for worker in others])
        over = [worker for worker in others if worker.id in dead or (by_lease and worker.lease_until < now)]
        declared = []
        for worker in over:
            with self.write("declare_dead") as db:
                if self.now() - now > LET_IN_WITHIN:
                    break  # this had to wait to be let in, and so may their heartbeats
                # Its row goes first: what it is about to commit is then either refused, or done before its runs are
                # released. The other way round it could claim one more, which would be nobody's for ever.
                gone = {"worker": worker.id, "lease_until": worker.lease_until}
                found = db.execute(self._q["expire_worker"], gone).fetchone()
                if found is None:
                    continue
                db.execute(self._q["release_runs"], {"loss": 1, "now": now, "worker": worker.id})
                db.execute(self._q["release_lost"], {"app": self.app, "now": now})
                self._dismiss(db, found[0])
            declared.append(worker.id)
            lock = self.life_lock(worker.id)
            if lock is not None and worker.id not in self._alive_here:
                lock.clear()
        return declared

    def _dead(self, worker_ids: Sequence[str]) -> Collection[str]:
        """Those of them that hold no life lock."""
        return {worker_id for worker_id in worker_ids if self._is_dead(worker_id)}

    def _is_dead(self, worker_id: str) -> bool:
        if worker_id in self._alive_here:
            return False
        lock = self.life_lock(worker_id)
        return lock is None or lock.is_free()

    def addresses(self, everyone: bool = False, kind: str = "") -> list[str]:
        with self.read() as db:
            parameters = {"app": self.app, "everyone": int(everyone), "kind": kind}
            return [row[0] for row in db.execute(self._q["addresses"], parameters)]

    # -- runs

    def create(self, run: NewRun, replace: bool = False) -> RunRow | None:
        with self.write("create") as db:
            while self._insert_run(db, run) is None:
                found = db.execute(
                    self._q["lock_run" if replace else "select_run"], {"app": self.app, "id": run.id}
                ).fetchone()
                if found is None:
                    continue  # it was deleted in between
                taken = self._row(found)
                if not (replace and taken.status in FINAL and taken.owner is None):
                    return taken
                self._delete(db, taken.no)
            return None

    def create_all(self, runs: Sequence[NewRun], collision: Collision) -> list[RunRow | None]:
        with self.write("create") as db:
            self._insert_rows(db, runs)
            taken = self._taken(db, runs, collision)
            new = [(run.no, run) for run in runs if run.no is not None]
            self._insert_records(db, [(no, run.records) for no, run in new])
            for no, run in new:
                self._insert_parts(db, no, run)
            return taken

    def put_off(self, no: int, run: NewRun) -> bool:
        with self.write("put_off") as db:
            parameters = {"no": no, "app": self.app, "wake_at": last_time(run.wake_at), "fingerprint": run.fingerprint}
            if not db.execute(self._q["put_off"], parameters).rowcount:
                return False
            for table in ("history", "attributes"):
                db.execute(self._q["delete_parts"].replace("{table}", table), {"nos": self.dialect.array([no])})
            self._insert_records(db, [(no, run.records)])
            self._insert_parts(db, no, run)
            return True

    def _insert_rows(self, db: Any, runs: Sequence[NewRun]) -> None:
        for run in runs:
            self._insert_row(db, run)

    def _taken(self, db: Any, runs: Sequence[NewRun], collision: Collision) -> list[RunRow | None]:
        """The runs that have the ids of those that were not created."""
        found: list[RunRow | None] = []
        for run in runs:
            row = None
            if run.no is None:
                values = db.execute(self._q["select_run"], {"app": self.app, "id": run.id}).fetchone()
                if values is None:
                    raise self.conflict(f"run {run.id!r} was deleted just now; start again what was to have its id")
                row = self._row(values)
                collision(run, row)
            found.append(row)
        return found

    def _insert_run(self, db: Any, run: NewRun) -> int | None:
        no = self._insert_row(db, run)
        if no is None:
            return None
        self._insert_records(db, [(no, run.records)])
        self._insert_parts(db, no, run)
        return no

    def _insert_parts(self, db: Any, no: int, run: NewRun) -> None:
        """What a new run has beside its history."""
        for key, value, body in run.attributes:
            self._set_attribute(db, no, key, value, body)
        for message in run.messages:
            self._insert_message(db, message)

    def _insert_row(self, db: Any, run: NewRun) -> int | None:
        refuse_nul(run.id, run.workflow)
        found = db.execute(
            self._q["insert_run"],
            {
                "app": self.app, "id": run.id, "workflow": run.workflow, "status": run.status,
                "wake_at": last_time(run.wake_at),
                "priority": run.priority, "parent_id": run.parent_id, "parent_cmd": run.parent_cmd,
                "root_id": run.root_id, "correlation": run.correlation, "durable": int(run.durable), "options": run.options,
                "fingerprint": run.fingerprint, "base_seq": run.base_seq, "created_at": run.created_at,
            },
        ).fetchone()  # fmt: skip
        run.no = None if found is None else int(found[0])
        return run.no

    def _set_attribute(self, db: Any, no: int, key: str, value: str, body: bytes) -> None:
        refuse_nul(key, value)
        parameters = {"run": no, "key": key, "value": value[:VALUE_LIMIT], "body": body}
        db.execute(self._q["set_attribute"], parameters)

    def _insert_records(self, db: Any, histories: Iterable[tuple[int, Iterable[Record]]]) -> None:
        found = [(no, record) for no, records in histories for record in records]
        if found:
            first = self._stamp(db, len(found))
            rows = [(no, *astuple(record), clock) for clock, (no, record) in enumerate(found, first)]
            for statement in self.dialect.insert("history", HISTORY, rows):
                db.execute(*statement)
            self._name_blobs(db, [(no, record.payload) for no, record in found if MARK in record.payload])

    def _name_blobs(self, db: Any, payloads: Iterable[tuple[int, bytes]]) -> None:
        for no, payload in payloads:
            for key in keys_in(payload):
                db.execute(self._q["name_blob"], {"run": no, "key": key})

    def commit(self, worker_id: str, changes: Sequence[Change], claim: int, names: Sequence[str]) -> Committed:
        with self.write("commit", lasting=bool(changes)) as db:
            self._check_alive(db, worker_id)
            self._insert_records(db, [(change.no, change.records) for change in changes])
            self._update_runs(db, changes)
            others = [change for change in changes if not change.is_plain]
            rich = [change for change in others if has_more_than_history(change)]
            if rich:
                self._apply_attempts(db, rich)
            for change in rich:
                self._apply(db, change)
            freed = self._change_slots(db, others) if any(map(is_about_limits, others)) else []
            emitted = self._emit_if_heard(db, [emission for change in changes for emission in change.news])
            return Committed(self._claim(db, worker_id, claim, names) if claim else [], emitted, freed)

    def _stamp(self, db: Any, count: int) -> int:
        """The first of the next `count` numbers of the logical clock. The one before it stays free."""
        if not self._clock_limit:
            self._resume_clock(db)
        last = self.logical_clock.forward(count + 1)
        if last > self._clock_limit:
            self._reserve_clock(db, last)
        return last - count + 1

    def _resume_clock(self, db: Any) -> None:
        """After a restart it goes on from where anybody's has been."""
        reached = db.execute(self._q["clock_reached"]).fetchone()
        self.logical_clock.resume(reached[0] if reached and is_clock(reached[0]) else 0)

    def _reserve_clock(self, db: Any, reached: int) -> None:
        db.execute(self._q["reserve_clock"], {"upto": reached + CLOCK_RESERVE})
        self._clock_limit = reached + CLOCK_RESERVE

    def settle(self, worker_id: str) -> None:
        return None  # a transaction of another connection can't outlive that connection here

    def _update_runs(self, db: Any, changes: Sequence[Change]) -> None:
        for columns, rows in updates_of(changes):
            for statement in self.dialect.update("runs", columns, rows):
                db.execute(*statement)

    def _apply(self, db: Any, change: Change) -> None:
        if change.consumed:
            db.execute(self._q["consume"], {"ids": self.dialect.array(change.consumed)})
        for child in change.children:
            if self._insert_run(db, child) is None and child.if_taken is not None:
                self._insert_message(db, child.if_taken)
        for message in change.messages:
            self._insert_message(db, message)
        if change.signals:
            self._signal(db, change)
        for key, value in change.dropped_attributes:
            db.execute(self._q["drop_attribute"], {"run": change.no, "key": key, "value": value})
        for key, value, body in change.attributes:
            if key.startswith("data."):
                db.execute(self._q["clear_attribute"], {"run": change.no, "key": key})
            self._set_attribute(db, change.no, key, value, body)
        if change.streamed:
            self._stream(db, change)
        self._answer(db, change)

    def _answer(self, db: Any, change: Change) -> None:
        for answer in change.answers:
            parameters = {"run": change.no, "id": answer.request, "seq": answer.seq, "body": answer.body}
            db.execute(self._q["answer_request"], parameters)
        if change.forget_before:
            for table in ("history", "requests"):
                db.execute(self._q[f"forget_{table}"], {"run": change.no, "before": change.forget_before})

    def _stream(self, db: Any, change: Change) -> None:
        for cmd, attempt, ts, item in change.streamed:
            parameters = {"run": change.no, "cmd": cmd, "attempt": attempt, "ts": ts, "item": item}
            db.execute(self._q["append_stream"], parameters)

    def _claim(self, db: Any, worker_id: str, limit: int, names: Sequence[str]) -> list[Claimed]:
        now = self.now()
        parameters = {"worker": worker_id, "app": self.app, "now": now, "limit": limit}
        parameters["names"] = self.dialect.array(names)
        rows = [self._row(row) for row in db.execute(self._q["claim"], parameters).fetchall()]
        return self._read_claimed(db, rows, now) if rows else []

    def _read_claimed(self, db: Any, rows: Sequence[RunRow], now: int) -> list[Claimed]:
        rows = sorted(rows, key=lambda row: (-row.priority, row.no))  # RETURNING knows no order
        claimed = {row.no: Claimed(row, [], [], is_first=row.started_at == now) for row in rows}
        new = [no for no, one in claimed.items() if one.is_first]
        if new:
            self._read_new(db, new, claimed)
        if len(new) < len(claimed):
            self._read_begun(db, [no for no, one in claimed.items() if not one.is_first], claimed)
        limited = [row.no for row in rows if row.limited]
        for no, slots in self._slots(db, limited).items() if limited else ():
            claimed[no].slots = slots
        return list(claimed.values())

    def _read_new(self, db: Any, nos: Sequence[int], claimed: dict[int, Claimed]) -> None:
        found = db.execute(self._q["beginnings"], {"nos": self.dialect.array(nos)}).fetchall()
        if found and found[0][0] < 0:  # claimed before, at the same microsecond
            self._read_begun(db, nos, claimed)
            return
        for number, no, kind, body, ts, clock in found:
            if number:
                claimed[no].messages.append(InboxRow(number, no, kind, body, ts, clock))
            else:
                claimed[no].payloads.append(body)
        self._heard(row[5] for row in found)

    def _read_begun(self, db: Any, nos: Sequence[int], claimed: dict[int, Claimed]) -> None:
        numbers = {"nos": self.dialect.array(nos)}
        clocks = []
        for no, payload, clock in db.execute(self._q["history_from_base"], numbers):
            claimed[no].payloads.append(payload)
            clocks.append(clock)
        # Before the messages: one that ends in between is then found as both, and never as neither.
        for row in db.execute(self._q["attempts_of_runs"], numbers):
            claimed[row[1]].attempts.append(self._attempt(row))
        for message in db.execute(self._q["inbox_of_runs"], numbers):
            claimed[message[1]].messages.append(InboxRow(*message))
            clocks.append(message[5])
        self._heard(clocks)

    def inbox(self, worker_id: str, runs: Sequence[int] | None = None) -> list[InboxRow]:
        query, parameters = "inbox_of_worker", {"worker": worker_id}
        if runs is not None:
            query, parameters = "inbox_for_runs", {"worker": worker_id, "nos": self.dialect.array(runs)}
        with self.read() as db:
            messages = [InboxRow(*row) for row in db.execute(self._q[query], parameters)]
        if messages:
            self._heard(message.clock for message in messages)
        return messages

    def post(self, message: Message) -> Posted:
        return self.post_all([message])[0]

    def post_all(self, messages: Sequence[Message]) -> list[Posted]:
        with self.write("post") as db:
            posted = []
            for message in messages:
                kept = self._insert_message(db, message)
                row = self._addressed(db, message)
                held = bool(message.frees) and row is not None and row[1] in (Status.PAUSED, Status.STUCK)
                freed = self._free(db, row[0], message.frees) if held else []
                posted.append(Posted(row[1] if row is not None else None, kept, freed))
            return posted

    def _insert_message(self, db: Any, message: Message) -> bool:
        """Whether it was put into the inbox."""
        refuse_nul(message.kind, message.dedupe or "")
        kept = db.execute(self._q["post"], self._message(message, self._stamp(db, 1))).fetchone()
        if kept is not None and message.once:
            number, run = kept
            if not db.execute(self._q["take_once"], {"run": run, "value": message.dedupe}).rowcount:
                db.execute(self._q["consume"], {"ids": self.dialect.array([number])})
                return False
        if kept is not None and message.request:
            number, run = kept
            if not db.execute(self._q["add_request"], {"run": run, "id": message.request}).rowcount:
                db.execute(self._q["consume"], {"ids": self.dialect.array([number])})
                return False
        if kept is None and message.if_gone is not None:
            row = self._addressed(db, message)
            if row is None or (message.or_ended and row[1] in FINAL):
                self._insert_message(db, message.if_gone)
        return kept is not None

    def _addressed(self, db: Any, message: Message) -> Any:
        """The number and status of the run that a message is for."""
        parameters = {
            "app": self.app, "run_id": message.run_id, "run_no": message.run_no, "child_of": message.child_of
        }  # fmt: skip
        return db.execute(self._q["addressed"], parameters).fetchone()

    def _message(self, message: Message, clock: int) -> dict[str, Any]:
        return {
            "kind": message.kind, "control": int(message.control), "dedupe": message.dedupe, "body": message.body,
            "now": self.now(), "app": self.app, "run_id": message.run_id, "late": int(message.late),
            "run_no": message.run_no, "child_of": message.child_of, "clock": clock,
        }  # fmt: skip

    def delete(self, run_id: str, no: int | None = None, farewell: Farewell | None = None) -> str | None:
        with self.write("delete") as db:
            status, _ = self._delete_one(db, run_id, no, farewell)
            return status

    def delete_all(self, runs: Sequence[tuple[str, int]], farewell: Farewell | None = None) -> int:
        with self.write("delete") as db:
            by_number = sorted(runs, key=lambda run: run[1])  # one order for all who lock several
            return sum(self._delete_one(db, run_id, no, farewell)[1] for run_id, no in by_number)

    def _delete_one(self, db: Any, run_id: str, no: int | None, farewell: Farewell | None) -> tuple[str | None, bool]:
        """The status that it had, and whether it is gone."""
        found = db.execute(self._q["lock_run"], {"app": self.app, "id": run_id}).fetchone()
        row = None if found is None else self._row(found)
        if row is None or no not in (None, row.no):
            return None, False
        if row.owner is not None or row.status not in (*FINAL, Status.PAUSED, Status.STUCK):
            return row.status, False
        messages = db.execute(self._q["inbox_of_runs"], {"nos": self.dialect.array([row.no])}).fetchall()
        self._delete(db, row.no)
        for message in farewell(row, [InboxRow(*message) for message in messages]) if farewell is not None else ():
            self._insert_message(db, message)
        return row.status, True

    def collect(self, limit: int) -> Collected:
        with self.write("collect", lasting=False) as db:  # what a power cut brings back is deleted again
            rows = db.execute(self._q["expired"], {"app": self.app, "now": self.now(), "limit": limit}).fetchall()
            self._delete(db, *(no for (no,) in rows))
            return Collected(runs=len(rows), events=self._forget_events(db, limit))

    def _delete(self, db: Any, *numbers: int) -> None:
        if numbers:
            nos = {"nos": self.dialect.array(numbers)}
            for table in PARTS:
                db.execute(self._q["delete_parts"].replace("{table}", table), nos)
            db.execute(self._q["delete_runs"], nos)

    def named_blobs(self, keys: Sequence[str]) -> set[str]:
        with self.read() as db:
            named = {key for (key,) in db.execute(self._q["named_blobs"], {"keys": self.dialect.array(keys)})}
            for (body,) in db.execute(self._q["bodies"]):
                named.update(keys_in(bytes(body)))
        return named

    def reset_times(self, ahead: int) -> int:
        with self.write("reset_times") as db:
            now = self.now()
            return int(db.execute(self._q["reset_times"], {"app": self.app, "now": now, "ahead": now + ahead}).rowcount)

    def streamed(self, run_id: str) -> dict[str, int]:
        with self.read() as db:
            return dict(db.execute(self._q["streamed"], {"no": self._number(db, run_id)}).fetchall())

    def next_wake(self, names: Sequence[str]) -> int | None:
        with self.read() as db:
            parameters = {"app": self.app, "names": self.dialect.array(names), "now": self.now()}
            if db.execute(self._q["message_waits"], parameters).fetchone():
                return 0
            found = db.execute(self._q["next_wake"], parameters).fetchone()
        return found[0] if found else None

    def orphans(self, before: int) -> list[RunRow]:
        with self.read() as db:
            rows = db.execute(self._q["orphans"], {"app": self.app, "before": before}).fetchall()
        return [self._row(row) for row in rows]

    def set_aside(self, no: int, reason: str, stuck: str, news: Emission | None = None) -> bool:
        with self.write("set_aside") as db:
            done = bool(db.execute(self._q["set_aside"], {"reason": reason, "stuck": stuck, "no": no}).rowcount)
            if done and news is not None:
                self._emit_if_heard(db, [news])
            return done

    # -- schedules

    def due_schedules(self, names: Sequence[str], limit: int) -> list[ScheduleRow]:
        parameters = {"app": self.app, "names": self.dialect.array(names), "now": self.now(), "limit": limit}
        return self._schedules("due_schedules", parameters)

    def next_tick(self, names: Sequence[str]) -> int | None:
        with self.read() as db:
            found: int | None = db.execute(
                self._q["next_tick"], {"app": self.app, "names": self.dialect.array(names)}
            ).fetchone()[0]
        return found

    def save_schedules(self, changes: Sequence[ScheduleChange]) -> list[str]:
        saved = []
        with self.write("schedule") as db:
            for change in sorted(changes, key=lambda change: change.row.name):  # one order for all workers
                row = change.row
                refuse_nul(row.name)
                action = (
                    "delete_schedule" if change.delete else "update_schedule" if row.revision else "insert_schedule"
                )
                parameters = {
                    "app": self.app, "name": row.name, "workflow": row.workflow, "spec": row.spec,
                    "declared": int(row.declared), "paused": int(row.paused), "reason": row.reason,
                    "next_at": last_time(row.next_at), "last_at": row.last_at, "active": row.active,
                    "queued": json.dumps(row.queued), "revision": row.revision, "now": self.now(),
                }  # fmt: skip
                if not db.execute(self._q[action], parameters).rowcount:
                    continue
                saved.append(row.name)
                for run in change.runs:
                    self._insert_run(db, run)
                for message in change.messages:
                    self._insert_message(db, message)
        return saved


def _statements(script: str) -> list[str]:
    return [text for text in (part.strip() for part in re.sub(r"--.*", "", script).split(";")) if text]


def _bytes(value: Any) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode()


def last_time(value: int | None) -> int | None:
    """A time, or the last one that a database can hold."""
    return value if value is None else min(value, LAST_TIME)


def has_more_than_history(change: Change) -> bool:
    """Whether there is anything beside events and columns of the run's row: mostly there is not."""
    return bool(
        change.consumed or change.children or change.messages or change.signals or change.dropped_attributes
        or change.attributes or change.streamed or change.answers or change.forget_before or change.attempts
        or change.dropped_attempts or change.withdrawn_attempts
    )  # fmt: skip


def is_about_limits(change: Change) -> bool:
    return bool(change.asks or change.gives_back) or change.keeps is not None


def updates_of(changes: Sequence[Change]) -> list[tuple[tuple[str, ...], list[tuple[Any, ...]]]]:
    """What changes do to the columns of runs: columns, of which the first is the run's number, and their values. Those
    that set the same columns go together."""
    alike: dict[tuple[str, ...], list[tuple[Any, ...]]] = {}
    for change in changes:
        if change.columns:
            values = [last_time(value) if name in TIMES else value for name, value in change.columns.items()]
            alike.setdefault(("no", *change.columns), []).append((change.no, *values))
    return list(alike.items())
