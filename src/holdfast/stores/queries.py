"""What people and monitors read, in every SQL store the same way: the Query port over the queries in `sql/`."""

from __future__ import annotations

import abc
import json
import re
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from functools import cache
from importlib import resources
from typing import Any, TypeVar

from msgspec.structs import replace

from holdfast.errors import EncodeError
from holdfast.ports import (
    AttemptRow,
    Clock,
    DomainEventRow,
    QueueRow,
    RunQuery,
    RunRow,
    ScheduleRow,
    Status,
    StreamRow,
    WorkerRow,
)
from holdfast.stores.dialect import Dialect
from holdfast.stores.search import LAST_NUMBER, Search
from holdfast.telemetry.clock import LamportClock, is_clock

COLUMNS = (
    "no", "app", "id", "workflow", "status", "reason", "stuck", "owner", "wake_at", "attempt", "losses", "base_seq",
    "end_seq", "priority", "parent_id", "parent_cmd", "root_id", "correlation", "build", "durable", "options",
    "fingerprint", "created_at", "started_at", "finished_at", "expires_at", "limited",
)  # fmt: skip
EVENT_COLUMNS = ("no", "app", "id", "name", "key", "payload", "correlation", "run_id", "cmd", "quiet", "ts")
ATTEMPT_COLUMNS = ("token", "run", "cmd", "step", "number", "queue", "not_before", "worker", "claimed_at")
IS_ACTIVE = "EXISTS (SELECT 1 FROM runs r WHERE r.app = s.app AND r.id = s.active AND r.finished_at IS NULL)"
SCHEDULE = (
    "s.name, s.workflow, s.spec, s.declared, s.paused, s.reason, s.next_at, s.last_at, s.active, {is_active}, s.queued, "
    "s.revision"
)
SHARED = ("queries.sql", "domain_events.sql", "attempts.sql", "limits.sql", "telemetry.sql")
Item = TypeVar("Item", bound=str | int)


def refuse_nul(*texts: str) -> None:
    """Not every database can hold it in a text, and what works on one has to work on all."""
    for text in texts:
        if "\0" in text:
            raise EncodeError(
                f"{text!r} contains a NUL character, which can't be kept in an id, a name or a key; leave it out"
            )


def list_in(text: Any, kind: type[Item]) -> list[Item]:
    """A column that holds a list; an empty one if it was damaged. One bad row must not keep anybody from the others."""
    return _read_list(text, kind) or []


def _read_list(text: Any, kind: type[Item]) -> list[Item] | None:
    try:
        found = json.loads(text)
    except (ValueError, TypeError):
        return None
    return found if isinstance(found, list) and all(type(item) is kind for item in found) else None


def damage_of(**columns: tuple[Any, type[str] | type[int]]) -> str:
    """What to say of the columns that should hold lists of that kind, and don't; empty if they do."""
    bad = [name for name, (text, kind) in columns.items() if _read_list(text, kind) is None]
    return f"its row in the store is damaged: {' and '.join(bad)} can't be read" if bad else ""


@cache
def read_queries(dialect: Dialect) -> dict[str, str]:
    """All queries by name, in the words of one database."""
    folder = resources.files("holdfast.stores").joinpath("sql")
    text = "".join(folder.joinpath(name).read_text() for name in (*SHARED, *dialect.files))
    text = text.replace("{columns}", ", ".join(COLUMNS))
    text = text.replace("{schedule}", SCHEDULE).replace("{is_active}", IS_ACTIVE)
    text = text.replace("{event}", ", ".join(f"e.{name}" for name in EVENT_COLUMNS))
    text = text.replace("{attempt}", ", ".join(f"a.{name}" for name in ATTEMPT_COLUMNS))
    blocks = re.split(r"^-- name: (\w+)\n", text, flags=re.M)[1:]
    texts = (re.sub(r"^--.*\n", "", block, flags=re.M).strip().rstrip("; ") for block in blocks[1::2])
    return {name: dialect.render(query) for name, query in zip(blocks[::2], texts, strict=True)}


class SqlQuery(abc.ABC):
    """The Query port. `db` is a connection that `read` or `write` has given."""

    app: str
    url: str
    clock: Clock
    dialect: Dialect
    _q: dict[str, str]
    _secret: bytes = b""

    @property
    @abc.abstractmethod
    def logical_clock(self) -> LamportClock: ...

    @abc.abstractmethod
    def read(self) -> AbstractContextManager[Any]:
        """A connection to read with."""

    def now(self) -> int:
        return self.clock.now()

    def secret(self) -> bytes:
        if not self._secret:
            with self.read() as db:
                self._secret = bytes(db.execute("SELECT value FROM meta WHERE key = 'secret'").fetchone()[0])
        return self._secret

    def workers(self) -> list[WorkerRow]:
        with self.read() as db:
            rows = db.execute(self._q["select_workers"], {"app": self.app}).fetchall()
        self._heard(row[13] for row in rows)
        return [
            WorkerRow(
                id=r[0], app=r[1], host=r[2], pid=r[3], build=r[4], names=list_in(r[5], str), address=r[6],
                started_at=r[7], lease_until=r[8], schedules=list_in(r[9], str), kind=r[10], queues=list_in(r[11], str),
                steps=list_in(r[12], str), clock=r[13],
                damage=damage_of(names=(r[5], str), schedules=(r[9], str), queues=(r[11], str), steps=(r[12], str)),
            )
            for r in rows
        ]  # fmt: skip

    def apps(self) -> list[str]:
        with self.read() as db:
            return [name for (name,) in db.execute(self._q["apps"])]

    # -- runs

    def get(self, run_id: str) -> RunRow | None:
        with self.read() as db:
            row = db.execute(self._q["select_run"], {"app": self.app, "id": run_id}).fetchone()
        return self._row(row) if row is not None else None

    def runs(self, query: RunQuery) -> list[RunRow]:
        with self.read() as db:
            search = self._search(db, query)
            sql = search.statement(", ".join(COLUMNS))
            return [self._row(row) for row in db.execute(self.dialect.render(sql), search.parameters)]

    def counts(self, query: RunQuery, most: int) -> dict[str, int]:
        wanted = list(query.statuses or Status)
        only = RunQuery(statuses=query.statuses, after=query.after, limit=query.limit)
        with self.read() as db:
            if query == only:
                # By the index on statuses, one at a time.
                each = (
                    "SELECT CAST(:s{0} AS TEXT), count(*) FROM "
                    "(SELECT 1 FROM runs WHERE app = :app AND status = :s{0} ORDER BY no DESC LIMIT :limit) c{0}"
                )
                sql = " UNION ALL ".join(each.format(i) for i in range(len(wanted)))
                named = {f"s{i}": str(status) for i, status in enumerate(wanted)}
                parameters: dict[str, Any] = {"app": self.app, "limit": most, **named}
            else:
                search = self._search(db, replace(query, after=None, limit=most))
                inside = search.statement("no, status", spread=True)
                sql, parameters = f"SELECT status, count(*) FROM ({inside}) newest GROUP BY status", search.parameters
            found = dict(db.execute(self.dialect.render(sql), parameters).fetchall())
        return {str(status): found.get(status, 0) for status in wanted}

    def counts_over_time(self, query: RunQuery, width: int, most: int) -> list[tuple[int, str, int]]:
        with self.read() as db:
            search = self._search(db, replace(query, after=None, limit=most))
            inside = search.statement("no, created_at, status", spread=True)
            sql = (
                "SELECT created_at / :width * :width AS at, status, count(*) "
                f"FROM ({inside}) newest GROUP BY at, status ORDER BY at"
            )
            rows = db.execute(self.dialect.render(sql), {**search.parameters, "width": width}).fetchall()
        return [(at, status, count) for at, status, count in rows]

    def histories(self, numbers: Sequence[int], kinds: Sequence[str] = ()) -> dict[int, list[bytes]]:
        found: dict[int, list[bytes]] = {no: [] for no in numbers}
        parameters = {"nos": self.dialect.array(numbers), "kinds": self.dialect.array(kinds)}
        with self.read() as db:
            for run, payload in db.execute(self._q["histories" if not kinds else "histories_of_kinds"], parameters):
                found[run].append(payload)
        return found

    def _search(self, db: Any, query: RunQuery) -> Search:
        def ask(sql: str, parameters: dict[str, Any]) -> list[Any]:
            return [row[0] for row in db.execute(self._q.get(sql) or self.dialect.render(sql), parameters)]

        return Search(self.app, query, ask)

    def payloads(self, run_id: str, after: int = 0, kinds: Sequence[str] = (), until: int | None = None) -> list[bytes]:
        with self.read() as db:
            last = LAST_NUMBER if until is None else until
            parameters = {"no": self._number(db, run_id), "after": after, "until": last}
            if not kinds:
                return [row[0] for row in db.execute(self._q["payloads"], parameters)]
            parameters["kinds"] = self.dialect.array(kinds)
            return [row[0] for row in db.execute(self._q["payloads_of_kinds"], parameters)]

    def clocks(self, run_id: str, after: int = 0, until: int | None = None) -> dict[int, int]:
        with self.read() as db:
            last = LAST_NUMBER if until is None else until
            parameters = {"no": self._number(db, run_id), "after": after, "until": last}
            return dict(db.execute(self._q["clocks"], parameters).fetchall())

    def data(self, run_id: str) -> dict[str, bytes]:
        with self.read() as db:
            rows = db.execute(self._q["data"], {"no": self._number(db, run_id)}).fetchall()
        return {key.removeprefix("data."): body for key, body in rows}

    def data_of(self, numbers: Sequence[int], most: int) -> dict[int, dict[str, bytes]]:
        found: dict[int, dict[str, bytes]] = {}
        with self.read() as db:
            for run, key, body in db.execute(self._q["data_of"], {"nos": self.dialect.array(numbers), "most": most}):
                found.setdefault(run, {})[key.removeprefix("data.")] = body
        return found

    def attributes(self, run_id: str, key: str) -> dict[str, bytes]:
        with self.read() as db:
            return dict(db.execute(self._q["attributes"], {"no": self._number(db, run_id), "key": key}).fetchall())

    def answer(self, run_id: str, request: str) -> bytes | None:
        with self.read() as db:
            found = db.execute(self._q["answer"], {"no": self._number(db, run_id), "id": request}).fetchone()
        return None if found is None else bytes(found[0])

    def stream(self, run_id: str, after: int, limit: int) -> list[StreamRow]:
        with self.read() as db:
            parameters = {"no": self._number(db, run_id), "after": after, "limit": limit}
            return [StreamRow(*row) for row in db.execute(self._q["stream"], parameters)]

    def orders(self, run_id: str) -> list[str]:
        with self.read() as db:
            return [kind for (kind,) in db.execute(self._q["orders"], {"no": self._number(db, run_id)})]

    def find_hook(self, key: str) -> list[tuple[str, str]]:
        with self.read() as db:
            rows = db.execute(self._q["find_hook"], {"value": key, "app": self.app}).fetchall()
        return [(run_id, name) for run_id, names in rows for name in list_in(names, str)]

    def attempts(self, run_id: str) -> list[AttemptRow]:
        with self.read() as db:
            nos = self.dialect.array([self._number(db, run_id)])
            return [self._attempt(row) for row in db.execute(self._q["attempts_of_runs"], {"nos": nos})]

    def queues(self) -> list[QueueRow]:
        with self.read() as db:
            rows = db.execute(self._q["queues"], {"app": self.app}).fetchall()
        return [QueueRow(queue=r[0], waiting=int(r[1]), since=r[2], claimed=int(r[3])) for r in rows]

    # -- schedules

    def schedules(self, name: str | None = None) -> list[ScheduleRow]:
        query = "select_schedules" if name is None else "select_schedule"
        return self._schedules(query, {"app": self.app, "name": name})

    def _schedules(self, query: str, parameters: dict[str, Any]) -> list[ScheduleRow]:
        with self.read() as db:
            rows = db.execute(self._q[query], parameters).fetchall()
        return [
            ScheduleRow(
                name=r[0], workflow=r[1], spec=r[2], declared=bool(r[3]), paused=bool(r[4]), reason=r[5], next_at=r[6],
                last_at=r[7], active=r[8], is_active=bool(r[9]), queued=list_in(r[10], int), revision=r[11],
                damage=damage_of(queued=(r[10], int)),
            )
            for r in rows
        ]  # fmt: skip

    # -- domain events

    def domain_event(self, id: str) -> DomainEventRow | None:
        with self.read() as db:
            row = db.execute(self._q["domain_event"], {"id": id}).fetchone()
        return None if row is None else self._event(row)

    def trace(self, correlation: str, limit: int) -> tuple[list[RunRow], list[DomainEventRow]]:
        root_app, _, root_id = correlation.partition(":")
        parameters = {"correlation": correlation, "root_app": root_app, "root_id": root_id, "limit": limit}
        with self.read() as db:
            runs = db.execute(self._q["runs_of_process"], parameters).fetchall()
            events = db.execute(self._q["events_of_process"], parameters).fetchall()
        return [self._row(row) for row in runs], [self._event(row) for row in events]

    # -- rows

    def _heard(self, clocks: Iterable[Any]) -> None:
        """What others have written was read: the logical clock goes past theirs."""
        highest = max((clock for clock in clocks if is_clock(clock)), default=0)
        if highest > self.logical_clock.value:
            self.logical_clock.adjust(highest)

    def _number(self, db: Any, run_id: str) -> int:
        found = db.execute(self._q["run_number"], {"app": self.app, "id": run_id}).fetchone()
        return found[0] if found else -1

    @staticmethod
    def _row(values: Sequence[Any]) -> RunRow:
        row = RunRow(**dict(zip(COLUMNS, values, strict=True)))
        row.durable = bool(row.durable)
        return row

    @staticmethod
    def _attempt(values: Sequence[Any]) -> AttemptRow:
        token, run, cmd, step, number, queue, due, worker, claimed_at = values
        return AttemptRow(
            token=token, run_no=run, cmd=cmd, step=step, number=number, queue=queue, due=due, worker=worker,
            claimed_at=claimed_at,
        )  # fmt: skip

    @staticmethod
    def _event(values: Sequence[Any]) -> DomainEventRow:
        row = DomainEventRow(**dict(zip(EVENT_COLUMNS, values, strict=True)))
        row.quiet = bool(row.quiet)
        return row
