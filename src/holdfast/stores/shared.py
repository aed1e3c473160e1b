"""What every SQL store does the same way: the port's methods over the queries in `sql/`.

A backend adds connections, transactions, error texts and life locks, and nothing else.
"""

from __future__ import annotations

import abc
import json
import re
import secrets
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from importlib import resources
from typing import Any, ClassVar, Protocol, TypeVar

from holdfast.errors import Fenced, StoreSchemaError
from holdfast.ports import (
    FINAL,
    Change,
    Claimed,
    Clock,
    Collected,
    Letter,
    Message,
    NewRun,
    News,
    Record,
    RunQuery,
    RunRow,
    ScheduleChange,
    ScheduleRow,
    Status,
    StreamRow,
    Subscription,
    WorkerRow,
)
from holdfast.stores.domain_events import EVENT_COLUMNS, EventTables

COLUMNS = (
    "no", "app", "id", "workflow", "status", "reason", "stuck", "owner", "wake_at", "attempt", "losses", "base_seq",
    "end_seq", "priority", "parent_id", "parent_cmd", "root_id", "correlation", "build", "durable", "options",
    "fingerprint", "created_at", "started_at", "finished_at", "expires_at",
)  # fmt: skip
PARTS = ("history", "inbox", "attempts", "attributes", "streams", "subscriptions")
IS_ACTIVE = "EXISTS (SELECT 1 FROM runs r WHERE r.app = s.app AND r.id = s.active AND r.finished_at IS NULL)"
SCHEDULE = (
    "s.name, s.workflow, s.spec, s.declared, s.paused, s.reason, s.next_at, s.last_at, s.active, {is_active}, s.queued, "
    "s.revision"
)
VALUE_LIMIT = 200
PATIENCE = 100_000
TIMES = ("wake_at", "expires_at")
LAST_TIME = 2**63 - 1


Row = tuple[Any, ...]
Item = TypeVar("Item", str, int)
CHUNKS = (128, 32, 8, 4, 2, 1)
"""Few sizes, so that their statements stay prepared."""


def read_queries() -> dict[str, str]:
    folder = resources.files("holdfast.stores").joinpath("sql")
    text = "".join(folder.joinpath(name).read_text() for name in ("queries.sql", "domain_events.sql"))
    text = text.replace("{columns}", ", ".join(COLUMNS))
    text = text.replace("{schedule}", SCHEDULE).replace("{is_active}", IS_ACTIVE)
    for column in ("names", "listens"):  # a damaged row is one that knows nothing
        text = text.replace(f"{{{column}}}", f"CASE WHEN json_valid(w.{column}) THEN w.{column} ELSE '[]' END")
    text = text.replace("{event}", ", ".join(f"e.{name}" for name in EVENT_COLUMNS))
    blocks = re.split(r"^-- name: (\w+)\n", text, flags=re.M)[1:]
    return dict(zip(blocks[::2], (block.strip().rstrip(";") for block in blocks[1::2]), strict=True))


def in_chunks(rows: Sequence[Row]) -> Iterator[Sequence[Row]]:
    """Rows to be written with one statement each: every statement lets other threads in, and getting back in may take
    longer than the statement itself."""
    at = 0
    while at < len(rows):
        size = next(size for size in CHUNKS if size <= len(rows) - at)
        yield rows[at : at + size]
        at += size


def migrations() -> list[tuple[int, str]]:
    """Numbered, forward only."""
    folder = resources.files("holdfast.stores").joinpath("sql")
    found = [(int(file.name[:4]), file.read_text()) for file in folder.iterdir() if file.name[:4].isdigit()]
    return sorted(found)


class LifeLockLike(Protocol):
    def take(self) -> None: ...
    def release(self) -> None: ...
    def is_free(self) -> bool: ...
    def clear(self) -> None: ...


class SqlStore(EventTables):
    """The Store port over a connection that speaks SQL."""

    queries: ClassVar[dict[str, str]] = {}

    def __init__(self, app: str, url: str, clock: Clock) -> None:
        self.app = app
        self.url = url
        self.clock = clock
        if not SqlStore.queries:
            SqlStore.queries = read_queries()
        self._q = SqlStore.queries
        self._alive_here: dict[str, LifeLockLike | None] = {}
        self._secret = b""
        self._migrate()

    # -- what a backend gives

    @abc.abstractmethod
    def read(self) -> AbstractContextManager[Any]:
        """A connection to read with."""

    @abc.abstractmethod
    def write(self, name: str, lasting: bool = True) -> AbstractContextManager[Any]:
        """A connection inside a transaction, which is committed at the end; `name` names its failpoints. What is not
        `lasting` may be lost with the machine, as long as everybody sees it until then: claims and heartbeats mean
        nothing once all workers are gone."""

    @abc.abstractmethod
    def life_lock(self, worker_id: str) -> LifeLockLike | None:
        """The lock that a worker of that id holds as long as it lives; None if all workers live in this process."""

    # -- schema

    def _migrate(self) -> None:
        known = migrations()
        newest = known[-1][0]
        with self.read() as db:
            current = self._schema_version(db)
        if current < newest:
            with self.write("migrate") as db:
                current = self._schema_version(db)  # somebody else may have been faster
                for number, script in known:
                    if number > current:
                        for statement in _statements(script):
                            db.execute(statement)
                if current < newest:
                    db.execute(self._q["set_meta"], {"key": "schema", "value": str(newest)})
                    db.execute(self._q["add_meta"], {"key": "secret", "value": secrets.token_bytes(32)})
        if current > newest:
            raise StoreSchemaError(
                f"{self.url} has schema {current}, this version of Holdfast knows {newest}; upgrade Holdfast here, or use "
                "another store"
            )

    def _schema_version(self, db: Any) -> int:
        tables = {name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        if not tables:
            return 0
        if {"meta", "runs", "history", "inbox"} <= tables:
            found = db.execute("SELECT value FROM meta WHERE key = 'schema'").fetchone()
            if found is not None and str(found[0]).isdecimal():
                return int(found[0])
        raise StoreSchemaError(f"{self.url} is a database of another program; name another file for Holdfast")

    def now(self) -> int:
        return self.clock.now()

    def secret(self) -> bytes:
        if not self._secret:
            with self.read() as db:
                self._secret = bytes(db.execute("SELECT value FROM meta WHERE key = 'secret'").fetchone()[0])
        return self._secret

    # -- workers

    def register(self, worker: WorkerRow, lease: int, subscriptions: Sequence[Subscription] = ()) -> None:
        lock = self.life_lock(worker.id)
        if lock is not None:
            lock.take()
        self._alive_here[worker.id] = lock
        try:
            with self.write("register") as db:
                now = self.now()
                db.execute(
                    self._q["insert_worker"],
                    {
                        "id": worker.id, "app": worker.app, "host": worker.host, "pid": worker.pid,
                        "build": worker.build, "names": json.dumps(worker.names),
                        "schedules": json.dumps(worker.schedules), "address": worker.address, "started_at": now,
                        "lease_until": now + lease,
                    },
                )  # fmt: skip
                self._welcome(db, worker, subscriptions)
        except BaseException:
            self.let_go(worker.id)
            raise

    def learn(self, worker: WorkerRow, subscriptions: Sequence[Subscription] = ()) -> None:
        with self.write("learn") as db:
            parameters = {
                "worker": worker.id, "names": json.dumps(worker.names), "schedules": json.dumps(worker.schedules)
            }  # fmt: skip
            if not db.execute(self._q["learn"], parameters).rowcount:
                raise Fenced(worker.id)
            self._welcome(db, worker, subscriptions)

    def _welcome(self, db: Any, worker: WorkerRow, subscriptions: Sequence[Subscription]) -> None:
        parameters = {
            "app": self.app, "now": self.now(), "names": json.dumps(worker.names), "build": worker.build
        }  # fmt: skip
        db.execute(self._q["welcome"], parameters)
        self._declare(db, worker, subscriptions)

    def beat(self, worker_id: str, lease: int) -> bool:
        with self.write("beat", lasting=False) as db:
            cursor = db.execute(self._q["beat"], {"until": self.now() + lease, "worker": worker_id})
            return bool(cursor.rowcount)

    def unregister(self, worker_id: str) -> None:
        with self.write("unregister") as db:
            db.execute(self._q["release_runs"], {"loss": 0, "now": self.now(), "worker": worker_id})
            self._dismiss(db, worker_id)
        self.let_go(worker_id)

    def let_go(self, worker_id: str) -> None:
        """Stop claiming that a worker of this process lives."""
        lock = self._alive_here.pop(worker_id, None)
        if lock is not None:
            lock.release()

    def bury(self, me: str, by_lease: bool = True) -> list[str]:
        now = self.now()

        def is_over(worker_id: str, lease_until: int) -> bool:
            return (by_lease and lease_until < now) or self._is_dead(worker_id)

        buried = []
        for worker in self.workers():
            if worker.id == me or not is_over(worker.id, worker.lease_until):
                continue
            with self.write("bury") as db:
                found = db.execute("SELECT lease_until FROM workers WHERE id = ?", (worker.id,)).fetchone()
                if self.now() - now > PATIENCE:
                    break  # this had to wait to be let in, and so may their heartbeats
                if found is None or not is_over(worker.id, found[0]):
                    continue
                db.execute(self._q["release_runs"], {"loss": 1, "now": now, "worker": worker.id})
                self._dismiss(db, worker.id)
            buried.append(worker.id)
            lock = self.life_lock(worker.id)
            if lock is not None and worker.id not in self._alive_here:
                lock.clear()
        return buried

    def _is_dead(self, worker_id: str) -> bool:
        if worker_id in self._alive_here:
            return False
        lock = self.life_lock(worker_id)
        return lock is None or lock.is_free()

    def workers(self) -> list[WorkerRow]:
        with self.read() as db:
            rows = db.execute(self._q["select_workers"], {"app": self.app}).fetchall()
        return [
            WorkerRow(
                id=r[0], app=r[1], host=r[2], pid=r[3], build=r[4], names=_list(r[5], str), address=r[6],
                started_at=r[7], lease_until=r[8], schedules=_list(r[9], str), damage=_damage(names=r[5], schedules=r[9]),
            )
            for r in rows
        ]  # fmt: skip

    def addresses(self, everyone: bool = False) -> list[str]:
        with self.read() as db:
            return [row[0] for row in db.execute(self._q["addresses"], {"app": self.app, "everyone": everyone})]

    def apps(self) -> list[str]:
        with self.read() as db:
            return [name for (name,) in db.execute(self._q["apps"])]

    # -- runs

    def create(self, run: NewRun, replace: bool = False) -> RunRow | None:
        with self.write("create") as db:
            no = self._insert_run(db, run)
            if no is not None:
                return None
            taken = self._row(db.execute(self._q["select_run"], {"app": self.app, "id": run.id}).fetchone())
            if not (replace and taken.status in FINAL and taken.owner is None):
                return taken
            self._delete(db, taken.no)
            self._insert_run(db, run)
            return None

    def _insert_run(self, db: Any, run: NewRun) -> int | None:
        found = db.execute(
            self._q["insert_run"],
            {
                "app": self.app, "id": run.id, "workflow": run.workflow, "status": run.status,
                "wake_at": _time(run.wake_at),
                "priority": run.priority, "parent_id": run.parent_id, "parent_cmd": run.parent_cmd,
                "root_id": run.root_id, "correlation": run.correlation, "durable": run.durable, "options": run.options,
                "fingerprint": run.fingerprint, "base_seq": run.base_seq, "created_at": run.created_at,
            },
        ).fetchone()  # fmt: skip
        if found is None:
            return None
        no = int(found[0])
        self._insert_records(db, [(no, run.records)])
        db.executemany(
            self._q["set_attribute"],
            [(no, *_attribute(key, value, body)) for key, value, body in run.attributes],
        )
        return no

    def _insert_records(self, db: Any, histories: Iterable[tuple[int, Iterable[Record]]]) -> None:
        rows = [
            (no, r.seq, r.kind, r.name, r.cmd, r.cause, r.attempt, r.worker, r.ts, r.payload)
            for no, records in histories
            for r in records
        ]
        head, _, marks = self._q["insert_history"].rstrip("; \n").rpartition("VALUES")
        for chunk in in_chunks(rows):
            values = [value for row in chunk for value in row]
            db.execute(f"{head}VALUES{', '.join([marks] * len(chunk))}", values)

    def commit(self, worker_id: str, changes: Sequence[Change], claim: int, names: Sequence[str]) -> list[Claimed]:
        with self.write("commit", lasting=bool(changes)) as db:
            if db.execute(self._q["am_i_alive"], {"worker": worker_id}).fetchone() is None:
                raise Fenced(worker_id)
            self._insert_records(db, [(change.no, change.records) for change in changes])
            self._update_runs(db, changes)
            for change in changes:
                self._apply(db, change)
            self._spread_news(db, (news for change in changes for news in change.news))
            return self._claim(db, worker_id, claim, names) if claim else []

    def _update_runs(self, db: Any, changes: Sequence[Change]) -> None:
        """Those that set the same columns together."""
        alike: dict[tuple[str, ...], list[tuple[Any, ...]]] = {}
        for change in changes:
            if change.columns:
                values = [_time(value) if name in TIMES else value for name, value in change.columns.items()]
                alike.setdefault(tuple(change.columns), []).append((change.no, *values))
        for names, rows in alike.items():
            sets = ", ".join(f"{name} = v.column{i}" for i, name in enumerate(names, 2))
            marks = f"({', '.join('?' * (len(names) + 1))})"
            for chunk in in_chunks(rows):
                new = f"(VALUES {', '.join([marks] * len(chunk))}) AS v"
                values = [value for row in chunk for value in row]
                db.execute(f"UPDATE runs SET {sets} FROM {new} WHERE no = v.column1", values)

    def _apply(self, db: Any, change: Change) -> None:
        if change.consumed:
            db.executemany(self._q["consume"], [(id,) for id in change.consumed])
        for child in change.children:
            if self._insert_run(db, child) is None and child.if_taken is not None:
                self._insert_message(db, child.if_taken)
        for message in change.messages:
            self._insert_message(db, message)
        if change.signals:
            self._signal(db, change)
        for key, value in change.dropped_attributes:
            db.execute(self._q["drop_attribute"], (change.no, key, value))
        for key, value, body in change.attributes:
            if key.startswith("data."):
                db.execute(self._q["clear_attribute"], (change.no, key))
            db.execute(self._q["set_attribute"], (change.no, *_attribute(key, value, body)))
        for cmd, attempt, ts, item in change.streamed:
            parameters = {"run": change.no, "cmd": cmd, "attempt": attempt, "ts": ts, "item": item}
            db.execute(self._q["append_stream"], parameters)

    def _claim(self, db: Any, worker_id: str, limit: int, names: Sequence[str]) -> list[Claimed]:
        now = self.now()
        parameters = {"worker": worker_id, "app": self.app, "now": now, "limit": limit, "names": json.dumps(names)}
        rows = [self._row(row) for row in db.execute(self._q["claim"], parameters).fetchall()]
        if not rows:
            return []
        rows.sort(key=lambda row: (-row.priority, row.no))  # RETURNING knows no order
        nos = json.dumps([row.no for row in rows])
        claimed = {row.no: Claimed(row, [], [], is_first=row.started_at == now) for row in rows}
        for no, payload in db.execute(self._q["history_from_base"], {"nos": nos}):
            claimed[no].payloads.append(payload)
        for letter in db.execute(self._q["letters_of_runs"], {"nos": nos}):
            claimed[letter[1]].letters.append(Letter(*letter))
        return list(claimed.values())

    def letters(self, worker_id: str) -> list[Letter]:
        with self.read() as db:
            return [Letter(*row) for row in db.execute(self._q["letters_of_worker"], {"worker": worker_id})]

    def post(self, message: Message) -> str | None:
        with self.write("post") as db:
            self._insert_message(db, message)
            found = db.execute(
                "SELECT status FROM runs WHERE app = ? AND id = ?", (self.app, message.run_id)
            ).fetchone()
            return found[0] if found else None

    def _insert_message(self, db: Any, message: Message) -> None:
        db.execute(
            self._q["post"],
            {
                "kind": message.kind, "control": message.control, "dedupe": message.dedupe, "body": message.body,
                "now": self.now(), "app": self.app, "run_id": message.run_id, "late": message.late,
            },
        )  # fmt: skip

    def orders(self, run_id: str) -> list[str]:
        with self.read() as db:
            return [kind for (kind,) in db.execute(self._q["orders"], {"no": self._number(db, run_id)})]

    def get(self, run_id: str) -> RunRow | None:
        with self.read() as db:
            row = db.execute(self._q["select_run"], {"app": self.app, "id": run_id}).fetchone()
        return self._row(row) if row is not None else None

    def payloads(self, run_id: str, after: int = 0, kinds: Sequence[str] = ()) -> list[bytes]:
        with self.read() as db:
            no = self._number(db, run_id)
            query = self._q["payloads_of_kinds" if kinds else "payloads"]
            parameters = {"no": no, "after": after} | ({"kinds": json.dumps(kinds)} if kinds else {})
            return [row[0] for row in db.execute(query, parameters)]

    def data(self, run_id: str) -> dict[str, bytes]:
        with self.read() as db:
            rows = db.execute(self._q["data"], {"no": self._number(db, run_id)}).fetchall()
        return {key.removeprefix("data."): body for key, body in rows}

    def attributes(self, run_id: str, key: str) -> dict[str, bytes]:
        with self.read() as db:
            query = "SELECT value, body FROM attributes WHERE run = ? AND key = ?"
            return dict(db.execute(query, (self._number(db, run_id), key)).fetchall())

    def stream(self, run_id: str, after: int, limit: int) -> list[StreamRow]:
        with self.read() as db:
            parameters = {"no": self._number(db, run_id), "after": after, "limit": limit}
            return [StreamRow(*row) for row in db.execute(self._q["stream"], parameters)]

    def streamed(self, run_id: str) -> dict[str, int]:
        with self.read() as db:
            return dict(db.execute(self._q["streamed"], {"no": self._number(db, run_id)}).fetchall())

    def find_hook(self, key: str) -> list[tuple[str, str]]:
        with self.read() as db:
            rows = db.execute(self._q["find_hook"], {"value": key, "app": self.app}).fetchall()
        return [(run_id, name) for run_id, names in rows for name in _list(names, str)]

    def runs(self, query: RunQuery) -> list[RunRow]:
        where, parameters = ["app = ?"], [self.app]
        conditions: list[tuple[str, Any]] = [
            ("workflow = ?", query.workflow),
            ("parent_id = ?", query.parent),
            ("created_at >= ?", query.since),
            ("owner = ?", query.owner),
            ("no < ?", query.after),
        ]
        for text, value in conditions:
            if value is not None:
                where.append(text)
                parameters.append(value)
        if query.prefix is not None:
            where.append("substr(id, 1, ?) = ?")
            parameters += [len(query.prefix), query.prefix]  # type: ignore[list-item]
        if query.statuses:
            where.append(f"status IN ({', '.join('?' * len(query.statuses))})")
            parameters += query.statuses
        if query.schedule is not None:
            where.append("no IN (SELECT run FROM attributes WHERE key = 'schedule' AND value = ?)")
            parameters.append(query.schedule)
        for key, value in query.data.items():
            where.append("no IN (SELECT run FROM attributes WHERE key = ? AND value = ? AND body = ?)")
            parameters += [f"data.{key}", value[:VALUE_LIMIT], value.encode()]  # type: ignore[list-item]
        sql = f"SELECT {', '.join(COLUMNS)} FROM runs WHERE {' AND '.join(where)} ORDER BY no DESC LIMIT ?"
        with self.read() as db:
            return [self._row(row) for row in db.execute(sql, (*parameters, query.limit))]

    def delete(self, run_id: str) -> str | None:
        with self.write("delete") as db:
            found = db.execute(self._q["select_run"], {"app": self.app, "id": run_id}).fetchone()
            if found is None:
                return None
            row = self._row(found)
            if row.owner is None and row.status in (*FINAL, Status.PAUSED, Status.STUCK):
                self._delete(db, row.no)
            return row.status

    def collect(self, limit: int) -> Collected:
        with self.write("collect", lasting=False) as db:  # what a power cut brings back is deleted again
            rows = db.execute(self._q["expired"], {"app": self.app, "now": self.now(), "limit": limit}).fetchall()
            self._delete(db, *(no for (no,) in rows))
            return Collected(runs=len(rows), events=self._forget_events(db, limit))

    def _delete(self, db: Any, *numbers: int) -> None:
        if numbers:
            nos = {"nos": json.dumps(numbers)}
            for table in PARTS:
                db.execute(self._q["delete_parts"].replace("{table}", table), nos)
            db.execute(self._q["delete_runs"], nos)

    def next_wake(self, names: Sequence[str]) -> int | None:
        with self.read() as db:
            parameters = {"app": self.app, "names": json.dumps(names), "now": self.now()}
            if db.execute(self._q["message_waits"], parameters).fetchone():
                return 0
            found = db.execute(self._q["next_wake"], parameters).fetchone()
        return found[0] if found else None

    def orphans(self, before: int) -> list[RunRow]:
        with self.read() as db:
            rows = db.execute(self._q["orphans"], {"app": self.app, "before": before}).fetchall()
        return [self._row(row) for row in rows]

    def set_aside(self, no: int, reason: str, stuck: str, news: News | None = None) -> bool:
        with self.write("set_aside") as db:
            done = bool(db.execute(self._q["set_aside"], {"reason": reason, "stuck": stuck, "no": no}).rowcount)
            if done and news is not None:
                self._spread_news(db, [news])
            return done

    # -- schedules

    def schedules(self, name: str | None = None) -> list[ScheduleRow]:
        return self._schedules("select_schedules", {"app": self.app, "name": name})

    def due_schedules(self, names: Sequence[str], limit: int) -> list[ScheduleRow]:
        parameters = {"app": self.app, "names": json.dumps(names), "now": self.now(), "limit": limit}
        return self._schedules("due_schedules", parameters)

    def _schedules(self, query: str, parameters: dict[str, Any]) -> list[ScheduleRow]:
        with self.read() as db:
            rows = db.execute(self._q[query], parameters).fetchall()
        return [
            ScheduleRow(
                name=r[0], workflow=r[1], spec=r[2], declared=bool(r[3]), paused=bool(r[4]), reason=r[5], next_at=r[6],
                last_at=r[7], active=r[8], is_active=bool(r[9]), queued=_list(r[10], int), revision=r[11],
                damage=_damage(queued=r[10]),
            )
            for r in rows
        ]  # fmt: skip

    def next_tick(self, names: Sequence[str]) -> int | None:
        with self.read() as db:
            found: int | None = db.execute(
                self._q["next_tick"], {"app": self.app, "names": json.dumps(names)}
            ).fetchone()[0]
        return found

    def save_schedules(self, changes: Sequence[ScheduleChange]) -> list[str]:
        saved = []
        with self.write("schedule") as db:
            for change in changes:
                row = change.row
                action = (
                    "delete_schedule" if change.delete else "update_schedule" if row.revision else "insert_schedule"
                )
                parameters = {
                    "app": self.app, "name": row.name, "workflow": row.workflow, "spec": row.spec,
                    "declared": row.declared, "paused": row.paused, "reason": row.reason, "next_at": _time(row.next_at),
                    "last_at": row.last_at, "active": row.active, "queued": json.dumps(row.queued),
                    "revision": row.revision, "now": self.now(),
                }  # fmt: skip
                if not db.execute(self._q[action], parameters).rowcount:
                    continue
                saved.append(row.name)
                for run in change.runs:
                    self._insert_run(db, run)
        return saved

    def _number(self, db: Any, run_id: str) -> int:
        found = db.execute("SELECT no FROM runs WHERE app = ? AND id = ?", (self.app, run_id)).fetchone()
        return found[0] if found else -1

    @staticmethod
    def _row(values: Sequence[Any]) -> RunRow:
        return RunRow(**dict(zip(COLUMNS, values, strict=True)))


def _statements(script: str) -> list[str]:
    return [text for text in (part.strip() for part in re.sub(r"--.*", "", script).split(";")) if text]


def _list(text: Any, kind: type[Item]) -> list[Item]:
    """A column that holds a list; an empty one if it was damaged. One bad row must not keep anybody from the others."""
    return _read_list(text, kind) or []


def _read_list(text: Any, kind: type[Item]) -> list[Item] | None:
    try:
        found = json.loads(text)
    except (ValueError, TypeError):
        return None
    return found if isinstance(found, list) and all(type(item) is kind for item in found) else None


def _damage(**columns: Any) -> str:
    """What to say of the columns that should hold lists, and don't; empty if they do."""
    bad = [
        name
        for name, text in columns.items()
        if (_read_list(text, int) if name == "queued" else _read_list(text, str)) is None
    ]
    return f"its row in the store is damaged: {' and '.join(bad)} can't be read" if bad else ""


def _time(value: int | None) -> int | None:
    return value if value is None else min(value, LAST_TIME)


def _attribute(key: str, value: str, body: bytes) -> tuple[str, str, bytes]:
    return key, value[:VALUE_LIMIT], body
