"""How PostgreSQL finds things among many runs: by an index, whether it has statistics or not."""

from __future__ import annotations

import itertools
import json
import os
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
INSERT INTO runs (app, id, workflow, status, options, fingerprint, created_at)
SELECT 'small', 's' || g, 'ship', 'SUCCESS', '{{}}', 'f', g FROM generate_series(1, 20) g;
INSERT INTO inbox (run, kind, body, ts) SELECT no, 'outcome', '{{}}', 0 FROM runs WHERE status = 'RUNNING';
INSERT INTO attributes (run, key, value, body)
SELECT no, 'data.amount', 'N2' || lpad((4999 + length(no::text))::text, 4, '0') || rtrim(no::text, '0'),
    no::text::bytea
FROM runs;
ALTER TABLE attempts SET (autovacuum_enabled = off);
INSERT INTO attempts (token, app, run, cmd, step, number, state, queue, not_before, worker, body)
SELECT 't' || no, 'orders', no, '1s0', 'train', 1, 'READY', (ARRAY['gpu', 'cpu'])[1 + no % 2], no,
    CASE WHEN no % 1000 = 0 THEN 'w' || no % 3 END, ''
FROM runs WHERE app = 'orders';
INSERT INTO history SELECT no, 1, 'RunStarted', '', '', 0, 1, '', 0, '{{}}' FROM runs;
"""


@pytest.fixture(scope="module")
def many(postgres_server: str) -> Iterator[PostgresStore]:
    joint = "&" if "?" in postgres_server else "?"
    schema = f"many_runs_{os.getpid()}"
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
        self._explain(sql, parameters)
        if sql.startswith("SELECT"):
            return self._connection.execute(sql, parameters)  # what is asked next may depend on it
        return self._connection.execute("SELECT 1 WHERE false")

    def _explain(self, sql: str, parameters: Any) -> None:
        with self._connection.transaction(force_rollback=True):
            (plan,) = self._connection.execute(f"EXPLAIN (FORMAT JSON) {sql}", parameters).fetchone()  # type: ignore[misc]
        self.found.append(plan[0]["Plan"] if not isinstance(plan, str) else json.loads(plan)[0]["Plan"])


def scanned(plan: dict[str, Any], along: bool = True) -> Iterator[str]:
    """The tables that a plan reads from one end to the other, be it `along` an index."""
    kind = plan["Node Type"]
    # A partial index may be short, and be read as a whole.
    is_along = kind.startswith("Index") and "Index Cond" not in plan and plan["Index Name"] not in PARTIAL
    if kind == "Seq Scan" or (along and is_along and "Relation Name" in plan):
        yield plan["Relation Name"]
    for part in plan.get("Plans", ()):
        yield from scanned(part, along)


PARTIAL = {"runs_owned", "runs_due", "runs_expiring", "attempts_by_worker"}
NAMES = Texts(["ship", "bill"])
QUERIES: dict[str, dict[str, Any]] = {
    "claim": {"worker": "w1", "app": "orders", "now": 1_000, "limit": 100, "names": Texts(["ship", "bill"])},
    "message_waits": {"app": "orders", "now": 1_000, "names": Texts(["ship", "bill"])},
    "next_wake": {"app": "orders", "names": Texts(["ship", "bill"])},
    "history_from_base": {"nos": Numbers([1, 2, 3])},
    "inbox_of_runs": {"nos": Numbers([1, 2, 3])},
    "inbox_for_runs": {"nos": Numbers([1, 2, 3]), "worker": "w1"},
    "beginnings": {"nos": Numbers([1, 2, 3])},
    "owners": {"nos": Numbers([1, 2, 3])},
    "release_runs": {"loss": 1, "now": 1, "worker": "w1"},
    "expired": {"app": "orders", "now": 1, "limit": 100},
    "select_run": {"app": "orders", "id": "r7"},
    "inbox_of_worker": {"worker": "w1"},
    "release_lost": {"app": "orders", "now": 1},
    "welcome": {"app": "orders", "now": 1, "names": NAMES, "build": "1"},
    "orphans": {"app": "orders", "before": 1},
    "post": {"app": "orders", "run_id": "r7", "run_no": None, "child_of": None, "late": 0, "kind": "hook", "control": 0,
             "dedupe": None, "body": b"", "now": 1, "clock": 1},
    "addressed": {"app": "orders", "run_id": "r7", "run_no": None, "child_of": None},
    "set_aside": {"no": 7, "reason": "", "stuck": ""},
    "runs_of_process": {"correlation": "orders:r7", "root_app": "orders", "root_id": "r7", "limit": 100},
    "find_hook": {"value": "k", "app": "orders"},
    "payloads": {"no": 7, "after": 0, "until": 10},
    "record_outcome": {"run": 7, "value": "k", "body": b""},
    "recorded_outcome": {"run": 7, "value": "k"},
    "claim_attempts": {"worker": "w1", "app": "orders", "now": 1, "queue": "gpu", "steps": Texts(["train"]), "limit": 9},
    "claim_attempt": {"worker": "w1", "app": "orders", "now": 1, "token": "t7"},
    "attempts_of_runs": {"nos": Numbers([1, 2, 3])},
    "held_attempts": {"worker": "w1"},
    "lost_attempts": {"app": "orders", "limit": 1_000},
    "drop_attempts": {"tokens": Texts(["t1", "t2"])},
    "due_schedules": {"app": "orders", "now": 1, "names": NAMES, "limit": 10},
    "next_tick": {"app": "orders", "names": NAMES},
}  # fmt: skip
LISTS = {
    "newest": RunQuery(),
    "of several statuses": RunQuery(statuses=["WAITING", "SUCCESS", "STUCK"]),
    "since a moment": RunQuery(since=RUNS - 20),
    "since long": RunQuery(since=1),
    "failed since a moment": RunQuery(statuses=["FAILURE"], since=RUNS - 20),
    "of a parent": RunQuery(parent="r7"),
    "waiting": RunQuery(statuses=["WAITING"]),
    "of a workflow": RunQuery(workflow="ship"),
    "by prefix": RunQuery(prefix="r4999"),
    "of an owner": RunQuery(owner="w1"),
    "forks": RunQuery(forked_from="r7"),
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
    with closing(many.database.connect()) as connection:
        if statistics:
            connection.execute("ANALYZE")
        plans = Plans(connection)
        for name, parameters in QUERIES.items():
            plans.execute(many.database.q[name], parameters)
            read = set(scanned(plans.found[-1]))
            assert not {"runs", "history", "attempts"} & read, f"{name}: {plans.found[-1]}"
        for app, (name, query) in itertools.product(("orders", "small"), LISTS.items()):
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(many, "app", app)
                patch.setattr(many.database, "read", lambda: _given(plans))
                plans.found.clear()
                many.runs(query)
            for plan in plans.found:  # whose app is nearly everybody's finds its runs in the order of all
                found = set(scanned(plan, along=app == "small"))
                assert not {"runs", "attributes"} & found, f"{name} of {app}: {plan}"


@pytest.mark.xdist_group("plans")
def test_ids_that_begin_alike_are_looked_up_and_not_looked_for_from_the_newest_run_on(many: PostgresStore) -> None:
    with closing(many.database.connect()) as connection, pytest.MonkeyPatch.context() as patch:
        connection.execute("ANALYZE")
        plans = Plans(connection)
        patch.setattr(many.database, "read", lambda: _given(plans))
        found = many.runs(RunQuery(prefix="r2", limit=50))
        assert not set(scanned(plans.found[-1])), plans.found[-1]
        assert [row.id for row in found] == [f"r{29_999 - i}" for i in range(50)]


@pytest.mark.xdist_group("plans")
def test_a_list_has_the_same_runs_whatever_way_they_are_found(many: PostgresStore) -> None:
    """Few of them since some time, and many."""
    few = [row.no for row in many.runs(RunQuery(since=RUNS - 20, limit=10))]
    many_since = [row.no for row in many.runs(RunQuery(since=1, limit=10))]
    assert few == many_since == [row.no for row in many.runs(RunQuery(limit=10))]
    assert len(many.runs(RunQuery(since=RUNS - 20))) == 21
    waiting = RunQuery(statuses=["WAITING", "SUCCESS", "WAITING"], limit=5_000)
    assert {row.status for row in many.runs(waiting)} == {"WAITING", "SUCCESS"}
    assert len({row.no for row in many.runs(waiting)}) == 5_000


class _given:
    def __init__(self, value: Any) -> None:
        self._value = value

    def __enter__(self) -> Any:
        return self._value

    def __exit__(self, *error: object) -> None:
        return None
