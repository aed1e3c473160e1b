"""What people and monitors read, in every SQL store the same way: the Query port over the queries in `sql/`."""

from __future__ import annotations

import abc
import json
import re
from collections.abc import Sequence
from contextlib import AbstractContextManager
from functools import cache
from importlib import resources
from typing import Any, TypeVar

from msgspec.structs import replace

from holdfast.errors import EncodeError
from holdfast.ports import Clock, DomainEventRow, RunQuery, RunRow, ScheduleRow, Status, StreamRow, WorkerRow
from holdfast.stores.dialect import Dialect

COLUMNS = (
    "no", "app", "id", "workflow", "status", "reason", "stuck", "owner", "wake_at", "attempt", "losses", "base_seq",
    "end_seq", "priority", "parent_id", "parent_cmd", "root_id", "correlation", "build", "durable", "options",
    "fingerprint", "created_at", "started_at", "finished_at", "expires_at",
)  # fmt: skip
EVENT_COLUMNS = ("no", "app", "id", "name", "key", "payload", "correlation", "run_id", "cmd", "quiet", "ts")
IS_ACTIVE = "EXISTS (SELECT 1 FROM runs r WHERE r.app = s.app AND r.id = s.active AND r.finished_at IS NULL)"
SCHEDULE = (
    "s.name, s.workflow, s.spec, s.declared, s.paused, s.reason, s.next_at, s.last_at, s.active, {is_active}, s.queued, "
    "s.revision"
)
VALUE_LIMIT = 200
FEW = 1_000
"""Runs that are better looked at one by one than searched for."""
LAST_CHARACTER = "\U0010ffff"
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
    text = "".join(folder.joinpath(name).read_text() for name in ("queries.sql", "domain_events.sql", *dialect.files))
    text = text.replace("{columns}", ", ".join(COLUMNS))
    text = text.replace("{schedule}", SCHEDULE).replace("{is_active}", IS_ACTIVE)
    text = text.replace("{event}", ", ".join(f"e.{name}" for name in EVENT_COLUMNS))
    blocks = re.split(r"^-- name: (\w+)\n", text, flags=re.M)[1:]
    texts = (re.sub(r"^--.*\n", "", block, flags=re.M).strip().rstrip("; ") for block in blocks[1::2])
    return {name: dialect.render(query) for name, query in zip(blocks[::2], texts, strict=True)}


def _newest(wheres: Sequence[str]) -> str:
    """A page of runs of which one of these holds, the newest first. Each is looked for alone: an index has the runs of each
    status in order, but not those of several."""
    pages = [f"SELECT {', '.join(COLUMNS)} FROM runs WHERE {where} ORDER BY no DESC LIMIT :limit" for where in wheres]
    if len(pages) == 1:
        return pages[0]
    each = " UNION ALL ".join(f"SELECT * FROM ({page}) part{i}" for i, page in enumerate(pages))
    return f"SELECT * FROM ({each}) parts ORDER BY no DESC LIMIT :limit"


class SqlQuery(abc.ABC):
    """The Query port. `db` is a connection that `read` or `write` has given."""

    app: str
    url: str
    clock: Clock
    dialect: Dialect
    _q: dict[str, str]
    _secret: bytes = b""

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
        return [
            WorkerRow(
                id=r[0], app=r[1], host=r[2], pid=r[3], build=r[4], names=list_in(r[5], str), address=r[6],
                started_at=r[7], lease_until=r[8], schedules=list_in(r[9], str),
                damage=damage_of(names=(r[5], str), schedules=(r[9], str)),
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
            where, parameters = self._conditions(query, self._recent(db, query))
            chosen = [f"status{i}" for i, _ in enumerate(dict.fromkeys(query.statuses))]
            parameters |= dict(zip(chosen, map(str, dict.fromkeys(query.statuses)), strict=True))
            sql = _newest([f"{where} AND status = :{name}" for name in chosen] or [where])
            return [self._row(row) for row in db.execute(self.dialect.render(sql), parameters)]

    def counts(self, query: RunQuery, most: int) -> dict[str, int]:
        wanted = list(query.statuses or Status)
        only = RunQuery(statuses=query.statuses, after=query.after, limit=query.limit)
        with self.read() as db:
            recent = self._recent(db, query)
        where, parameters = self._conditions(replace(query, statuses=(), after=None, limit=most), recent)
        if query == only:
            # By the index on statuses, one at a time.
            each = (
                "SELECT CAST(:s{0} AS TEXT), count(*) FROM "
                "(SELECT 1 FROM runs WHERE app = :app AND status = :s{0} LIMIT :limit) c{0}"
            )
            sql = " UNION ALL ".join(each.format(i) for i in range(len(wanted)))
            parameters |= {f"s{i}": str(status) for i, status in enumerate(wanted)}
        else:
            inside = f"SELECT status FROM runs WHERE {where} ORDER BY no DESC LIMIT :limit"
            sql = f"SELECT status, count(*) FROM ({inside}) newest GROUP BY status"
        with self.read() as db:
            found = dict(db.execute(self.dialect.render(sql), parameters).fetchall())
        return {str(status): found.get(status, 0) for status in wanted}

    def _recent(self, db: Any, query: RunQuery) -> list[int] | None:
        """The numbers of all runs since the time that a query asks for, if they are few. If they are many, a list that is
        read by number soon has enough of them; if they are few, it would have to be read to its end."""
        if query.since is None:
            return None
        asked = "SELECT no FROM runs WHERE app = :app AND created_at >= :since ORDER BY created_at LIMIT :limit"
        parameters = {"app": self.app, "since": query.since, "limit": FEW + 1}
        found = [no for (no,) in db.execute(self.dialect.render(asked), parameters)]
        return found if len(found) <= FEW else None

    def _conditions(self, query: RunQuery, recent: Sequence[int] | None) -> tuple[str, dict[str, Any]]:
        """What a query asks for apart from statuses, as the text of a WHERE and its parameters."""
        is_prefix = query.workflow is not None and query.workflow.endswith("*")
        app = "app = :app" if query.owner is None else "{unindexed}app = :app"
        where, parameters = [app], {"app": self.app, "limit": query.limit}

        def add(condition: str, **values: Any) -> None:
            where.append(condition)
            parameters.update(values)

        for text, value in (
            ("parent_id = :parent", query.parent),
            ("{unindexed}created_at >= :since" if recent is None else "created_at >= :since", query.since),
            ("created_at < :until", query.until),
            ("owner = :owner", query.owner),
            ("no < :after", query.after),
        ):
            if value is not None:
                add(text, **{text.rpartition(":")[2]: value})
        if recent is not None:
            add("no {numbered recent}", recent=self.dialect.array(recent) if recent else self.dialect.array([0]))
        if query.workflow is not None and is_prefix:
            begins = query.workflow[:-1]
            name = "{unindexed}workflow"
            add(f"{name} >= :begins AND {name} < :ends", begins=begins, ends=begins + LAST_CHARACTER)
        elif query.workflow is not None:
            add("workflow = :workflow", workflow=query.workflow)
        if query.prefix:
            add("id >= :prefix AND id < :beyond", prefix=query.prefix, beyond=query.prefix + LAST_CHARACTER)
        if query.schedule is not None:
            add(
                "no IN (SELECT run FROM attributes WHERE key = 'schedule' AND value = :schedule)",
                schedule=query.schedule,
            )
        for i, (key, value) in enumerate(query.data.items()):
            add(
                f"no IN (SELECT run FROM attributes WHERE key = :key{i} AND value = :value{i} AND body = :body{i})",
                **{f"key{i}": f"data.{key}", f"value{i}": value[:VALUE_LIMIT], f"body{i}": value.encode()},
            )
        return " AND ".join(where), parameters

    def payloads(self, run_id: str, after: int = 0, kinds: Sequence[str] = ()) -> list[bytes]:
        with self.read() as db:
            parameters = {"no": self._number(db, run_id), "after": after}
            if not kinds:
                return [row[0] for row in db.execute(self._q["payloads"], parameters)]
            parameters["kinds"] = self.dialect.array(kinds)
            return [row[0] for row in db.execute(self._q["payloads_of_kinds"], parameters)]

    def data(self, run_id: str) -> dict[str, bytes]:
        with self.read() as db:
            rows = db.execute(self._q["data"], {"no": self._number(db, run_id)}).fetchall()
        return {key.removeprefix("data."): body for key, body in rows}

    def attributes(self, run_id: str, key: str) -> dict[str, bytes]:
        with self.read() as db:
            return dict(db.execute(self._q["attributes"], {"no": self._number(db, run_id), "key": key}).fetchall())

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

    def _number(self, db: Any, run_id: str) -> int:
        found = db.execute(self._q["run_number"], {"app": self.app, "id": run_id}).fetchone()
        return found[0] if found else -1

    @staticmethod
    def _row(values: Sequence[Any]) -> RunRow:
        return RunRow(**dict(zip(COLUMNS, values, strict=True)))

    @staticmethod
    def _event(values: Sequence[Any]) -> DomainEventRow:
        row = DomainEventRow(**dict(zip(EVENT_COLUMNS, values, strict=True)))
        row.quiet = bool(row.quiet)
        return row
