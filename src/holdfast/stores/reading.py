"""What people read of runs, in every SQL store the same way."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from holdfast.ports import RunQuery, RunRow, Status, StreamRow
from holdfast.stores.database import Tables
from holdfast.stores.queries import COLUMNS, list_in, run_row
from holdfast.stores.search import LAST_NUMBER, Search


class Reading(Tables):
    """Runs, their histories, and what they have published."""

    def get(self, run_id: str) -> RunRow | None:
        rows = self._ask("select_run", id=run_id)
        return run_row(rows[0]) if rows else None

    def rows(self, numbers: Sequence[int]) -> list[RunRow]:
        return [run_row(row) for row in self._ask("rows_by_number", nos=self._array(numbers))]

    # -- lists

    def runs(self, query: RunQuery) -> list[RunRow]:
        with self.database.read() as db:
            search = self._search(db, query)
            sql = search.statement(", ".join(COLUMNS))
            return [run_row(row) for row in db.execute(self._dialect.render(sql), search.parameters)]

    def counts(self, query: RunQuery, most: int) -> dict[str, int]:
        wanted = list(query.statuses or Status)
        only = RunQuery(statuses=query.statuses, after=query.after, limit=query.limit)
        with self.database.read() as db:
            if query == only:
                # By the index on statuses, one at a time.
                each = (
                    "SELECT CAST(:s{0} AS TEXT), count(*) FROM "
                    "(SELECT 1 FROM runs WHERE app = :app AND status = :s{0} ORDER BY no DESC LIMIT :limit) c{0}"
                )
                sql = " UNION ALL ".join(each.format(i) for i in range(len(wanted)))
                named = {f"s{i}": str(status) for i, status in enumerate(wanted)}
                parameters: dict[str, Any] = {"app": self.database.app, "limit": most, **named}
            else:
                search = self._search(db, replace(query, after=None, limit=most))
                inside = search.statement("no, status", spread=True)
                sql, parameters = f"SELECT status, count(*) FROM ({inside}) newest GROUP BY status", search.parameters
            found = dict(db.execute(self._dialect.render(sql), parameters).fetchall())
        return {str(status): found.get(status, 0) for status in wanted}

    def counts_over_time(self, query: RunQuery, width: int, most: int) -> list[tuple[int, str, int]]:
        with self.database.read() as db:
            search = self._search(db, replace(query, after=None, limit=most))
            inside = search.statement("no, created_at, status", spread=True)
            sql = (
                "SELECT created_at / :width * :width AS at, status, count(*) "
                f"FROM ({inside}) newest GROUP BY at, status ORDER BY at"
            )
            rows = db.execute(self._dialect.render(sql), {**search.parameters, "width": width}).fetchall()
        return [(at, status, count) for at, status, count in rows]

    def _search(self, db: Any, query: RunQuery) -> Search:
        def ask(sql: str, parameters: dict[str, Any]) -> list[Any]:
            return [row[0] for row in db.execute(self._q.get(sql) or self._dialect.render(sql), parameters)]

        return Search(self.database.app, query, ask)

    def find_hook(self, key: str) -> list[tuple[str, str]]:
        return [(run_id, name) for run_id, names in self._ask("find_hook", value=key) for name in list_in(names, str)]

    # -- histories

    def histories(self, numbers: Sequence[int], kinds: Sequence[str] = ()) -> dict[int, list[bytes]]:
        found: dict[int, list[bytes]] = {no: [] for no in numbers}
        parameters = {"nos": self._array(numbers), "kinds": self._array(kinds)}
        with self.database.read() as db:
            for run, payload in db.execute(self._q["histories" if not kinds else "histories_of_kinds"], parameters):
                found[run].append(payload)
        return found

    def payloads(self, run_id: str, after: int = 0, kinds: Sequence[str] = (), until: int | None = None) -> list[bytes]:
        last = LAST_NUMBER if until is None else until
        query, given = ("payloads_of_kinds", {"kinds": self._array(kinds)}) if kinds else ("payloads", {})
        rows = self._ask_of(run_id, query, after=after, until=last, **given)
        self.database.stamps.heard(clock for _, clock in rows[-1:])  # the last has the highest
        return [payload for payload, _ in rows]

    def clocks(self, run_id: str, after: int = 0, until: int | None = None) -> dict[int, int]:
        last = LAST_NUMBER if until is None else until
        found: dict[int, int] = dict(self._ask_of(run_id, "clocks", after=after, until=last))
        self.database.stamps.heard(found.values())
        return found

    # -- what is kept beside them

    def data(self, run_id: str) -> dict[str, bytes]:
        return {key.removeprefix("data."): body for key, body in self._ask_of(run_id, "data")}

    def data_of(self, numbers: Sequence[int], most: int) -> dict[int, dict[str, bytes]]:
        found: dict[int, dict[str, bytes]] = {}
        for run, key, body in self._ask("data_of", nos=self._array(numbers), most=most):
            found.setdefault(run, {})[key.removeprefix("data.")] = body
        return found

    def attributes(self, run_id: str, key: str) -> dict[str, bytes]:
        return dict(self._ask_of(run_id, "attributes", key=key))

    def answer(self, run_id: str, request: str) -> bytes | None:
        rows = self._ask_of(run_id, "answer", id=request)
        return bytes(rows[0][0]) if rows else None

    def stream(self, run_id: str, after: int, limit: int) -> list[StreamRow]:
        return [StreamRow(*row) for row in self._ask_of(run_id, "stream", after=after, limit=limit)]

    def streamed(self, run_id: str) -> dict[str, dict[int, int]]:
        counts: dict[str, dict[int, int]] = {}
        for cmd, attempt, count in self._ask_of(run_id, "streamed"):
            counts.setdefault(cmd, {})[attempt] = count
        return counts
