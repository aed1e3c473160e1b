"""How SQLite finds a page of runs among many: by an index that has them in order, or leads to few."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.app import SystemClock
from holdfast.ports import RunQuery
from holdfast.stores.sqlite import SqliteStore

RUNS = 20_000
FILL = f"""
WITH RECURSIVE g (x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM g WHERE x < {RUNS})
INSERT INTO runs (app, id, workflow, status, options, fingerprint, created_at)
SELECT CASE WHEN x % 10 THEN 'orders' ELSE 'other' END, 'r' || x, CASE WHEN x % 2 THEN 'ship' ELSE 'bill' END,
    CASE WHEN x % 51 THEN 'SUCCESS' ELSE 'WAITING' END, '', '', x FROM g
"""
LISTS = {
    "newest": (RunQuery(), "runs_by_number"),
    "the next page": (RunQuery(after=1_000), "runs_by_number"),
    "waiting": (RunQuery(statuses=["WAITING"]), "runs_by_status"),
    "of several statuses": (RunQuery(statuses=["WAITING", "STUCK"]), "runs_by_status"),
    "of a workflow": (RunQuery(workflow="ship"), "runs_by_workflow"),
    "by prefix": (RunQuery(prefix="r1999"), "(app=? AND id>? AND id<?)"),
    "of an owner": (RunQuery(owner="w1"), "runs_owned"),
    "since a moment": (RunQuery(since=RUNS - 20), "runs_by_number (app=? AND no>?)"),
    "since long": (RunQuery(since=1), "runs_by_number"),
}


class Plans:
    def __init__(self, db: Any) -> None:
        self._db = db
        self.last: list[str] = []

    def execute(self, sql: str, parameters: Any) -> Any:
        self.last = [row[3] for row in self._db.execute(f"EXPLAIN QUERY PLAN {sql}", parameters)]
        return self._db.execute(sql, parameters)


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SqliteStore]:
    file: Path = tmp_path_factory.mktemp("many") / "orders.db"
    store = SqliteStore("orders", str(file), SystemClock())
    with contextlib.closing(sqlite3.connect(file)) as db, db:
        db.execute(FILL)
    yield store
    store.close()


@pytest.mark.parametrize("name", LISTS)
def test_a_page_of_runs_is_found_by_an_index(many: SqliteStore, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    query, index = LISTS[name]
    plain = [row.no for row in many.runs(query)]
    with many.read() as db:
        plans = Plans(db)
        monkeypatch.setattr(many.database, "read", lambda: contextlib.nullcontext(plans))
        assert [row.no for row in many.runs(query)] == plain == sorted(plain, reverse=True)
    assert any(index in line for line in plans.last), plans.last
    assert not any(line.startswith("SCAN runs") for line in plans.last), plans.last
