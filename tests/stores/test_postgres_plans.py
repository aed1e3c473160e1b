"""How PostgreSQL finds things among many runs: by an index, whether it has statistics or not."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import psycopg
import pytest

from holdfast.app import SystemClock
from holdfast.codec.ordering import order_key
from holdfast.ports import DataSpan, RunQuery
from holdfast.stores.arrays import Numbers, Texts
from holdfast.stores.postgres import PostgresStore

RUNS = 50_000
FILL = """
ALTER TABLE runs SET (autovacuum_enabled = off);
ALTER TABLE inbox SET (autovacuum_enabled = off);
ALTER TABLE history SET (autovacuum_enabled = off);
ALTER TABLE attributes SET (autovacuum_enabled = off);
INSERT INTO runs (app, id, workflow, status, owner, wake_at, options, fingerprint, created_at, finished_at)
SELECT 'orders', 'r' || g, (ARRAY['ship', 'bill', 'other'])[1 + g % 3],
    CASE WHEN g < {runs} * 0.9 THEN 'SUCCESS' WHEN g < {runs} * 0.98 THEN 'WAITING' WHEN g < {runs} * 0.985 THEN 'RUNNING'
         ELSE 'PENDING' END,
    CASE WHEN g >= {runs} * 0.98 AND g < {runs} * 0.985 THEN 'w' || (g % 4) END,
    CASE WHEN g < {runs} * 0.9 THEN NULL WHEN g < {runs} * 0.98 THEN 4000000000000000 + g
         WHEN g < {runs} * 0.985 THEN NULL ELSE g END,
    '{{}}', 'f', g, CASE WHEN g < {runs} * 0.9 THEN g END
FROM generate_series(1, {runs}) g;
INSERT INTO inbox (run, kind, body, ts) SELECT no, 'outcome', '{{}}', 0 FROM runs WHERE status = 'RUNNING';
INSERT INTO attributes (run, key, value, body)
SELECT no, 'data.amount', 'N2' || lpad((4999 + length(no::text))::text, 4, '0') || rtrim(no::text, '0'),
    no::text::bytea
FROM runs;
INSERT INTO history SELECT no, 1, 'RunStarted', '', '', 0, 1, '', 0, '{{}}' FROM runs;
"""


@pytest.fixture(scope="module")
def many(postgres_server: str) -> Iterator[PostgresStore]:
    joint = "&" if "?" in postgres_server else "?"
    schema = "many_runs"
    with psycopg.connect(postgres_server, autocommit=True) as connection:
        connection.execute(f"DROP SCHEMA IF EXISTS {schema} CASCADE")
        store = PostgresStore("orders", f"{postgres_server}{joint}schema={schema}", SystemClock())
        with closing(store):
            connection.execute(f"SET search_path = {schema}")
            connection.execute(FILL.format(runs=RUNS))
            yield store
        connection.execute(f"DROP SCHEMA {schema} CASCADE")


class Plans:
    """Explains instead of executing."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self._connection = connection
        self.found: list[dict[str, Any]] = []

    def execute(self, sql: str, parameters: Any = None) -> Any:
        with self._connection.transaction(force_rollback=True):
            (plan,) = self._connection.execute(f"EXPLAIN (FORMAT JSON) {sql}", parameters).fetchone()  # type: ignore[misc]
        self.found.append(plan[0]["Plan"] if not isinstance(plan, str) else json.loads(plan)[0]["Plan"])
        return self._connection.execute("SELECT 1 WHERE false")


def scanned(plan: dict[str, Any]) -> Iterator[str]:
    """The tables that a plan reads from one end to the other."""
    if plan["Node Type"] == "Seq Scan":
        yield plan["Relation Name"]
    for part in plan.get("Plans", ()):
        yield from scanned(part)


QUERIES: dict[str, dict[str, Any]] = {
    "claim": {"worker": "w1", "app": "orders", "now": 1_000, "limit": 100, "names": Texts(["ship", "bill"])},
    "message_waits": {"app": "orders", "now": 1_000, "names": Texts(["ship", "bill"])},
    "next_wake": {"app": "orders", "names": Texts(["ship", "bill"])},
    "history_from_base": {"nos": Numbers([1, 2, 3])},
    "letters_of_runs": {"nos": Numbers([1, 2, 3])},
    "release_runs": {"loss": 1, "now": 1, "worker": "w1"},
    "expired": {"app": "orders", "now": 1, "limit": 100},
    "select_run": {"app": "orders", "id": "r7"},
    "apps": {},
}
LISTS = {
    "newest": RunQuery(),
    "waiting": RunQuery(statuses=["WAITING"]),
    "of a workflow": RunQuery(workflow="ship"),
    "by prefix": RunQuery(prefix="r4999"),
    "of an owner": RunQuery(owner="w1"),
    "the next page": RunQuery(after=1_000),
    "of workflows": RunQuery(workflow="sh*"),
    "of data": RunQuery(data={"amount": "4999"}),
    "of data in a range": RunQuery(spans=[DataSpan(key="amount", low=order_key(b"49990"), high=order_key(b"49995"))]),
    "of a time": RunQuery(since=40_000, until=45_000),
    "of a status and a workflow": RunQuery(statuses=["WAITING", "RUNNING"], workflow="ship"),
}


@pytest.mark.xdist_group("plans")
@pytest.mark.parametrize("statistics", [False, True], ids=["without statistics", "with statistics"])
def test_nothing_reads_all_runs(many: PostgresStore, statistics: bool) -> None:
    with closing(many.connect()) as connection:
        if statistics:
            connection.execute("ANALYZE")
        plans = Plans(connection)
        for name, parameters in QUERIES.items():
            plans.execute(many._q[name], parameters)
            assert not {"runs", "history"} & set(scanned(plans.found[-1])), f"{name}: {plans.found[-1]}"
        for name, query in LISTS.items():
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(many, "read", lambda: _given(plans))
                many.runs(query)
            assert not {"runs", "attributes"} & set(scanned(plans.found[-1])), f"{name}: {plans.found[-1]}"


class _given:
    def __init__(self, value: Any) -> None:
        self._value = value

    def __enter__(self) -> Any:
        return self._value

    def __exit__(self, *error: object) -> None:
        return None
