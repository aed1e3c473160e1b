"""How long the monitor's server takes to find runs among very many: `python benchmarks/lists.py [--store URL] [--runs N]`.

`make bench` has the slowest of these in its table. The store is filled with plain SQL, so it must be a new one.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from msgspec import Raw

from holdfast import App
from holdfast.core import events as ev
from holdfast.engine.records import to_record
from holdfast.monitor.one_run import OneRun
from holdfast.monitor.overview import Overview
from holdfast.monitor.run_lists import RunLists
from holdfast.monitor.source import Source
from holdfast.ports import NewRun

FILTERS = (
    "", "status:success", "status:failed", "status:stuck", "status:running,waiting", "workflow:workflow_3",
    "workflow:workflow_*", "workflow:none*", "workflow:workflow_3 status:stuck", "data.customer=42",
    "data.customer=42 status:failed", "data.customer=nobody", "started:<1h", "started:<1h status:stuck", "started:>5d",
    "started:>5d status:success", "run-77", "worker:nobody",
)  # fmt: skip
NUMBERS = "WITH RECURSIVE n(i) AS (SELECT CAST(1 AS BIGINT) UNION ALL SELECT i + 1 FROM n WHERE i < {runs})"
FILL = (
    NUMBERS + """
    INSERT INTO runs (app, id, workflow, status, reason, end_seq, options, fingerprint, created_at, started_at, finished_at)
    SELECT 'shop', 'run-' || CAST(i AS TEXT), 'workflow_' || CAST(i % 7 AS TEXT),
        CASE WHEN i % 1000 = 7 THEN 'STUCK' WHEN i % 20 = 3 THEN 'FAILURE' WHEN i % 33 = 5 THEN 'WAITING' ELSE 'SUCCESS' END,
        '', 1, '{{}}', 'f', {now} - ({runs} - i) * 500000, {now} - ({runs} - i) * 500000,
        {now} - ({runs} - i) * 500000 + 20000 FROM n""",
    """INSERT INTO attributes (run, key, value, body)
    SELECT no, 'data.customer', CAST(no % 5000 AS TEXT), CAST(CAST(no % 5000 AS TEXT) AS {blob}) FROM runs""",
)  # fmt: skip


def fill(app: App, runs: int) -> None:
    store: Any = app.store
    is_postgres = app.store_url.startswith("postgres")
    values = {"runs": runs, "now": store.now(), "blob": "BYTEA" if is_postgres else "BLOB"}
    with store.write("fill") as db:
        for statement in FILL:
            db.execute(statement.format(**values))
        if is_postgres:  # as its autovacuum does after a minute
            db.execute("ANALYZE")


def best(action: Callable[[], Any], rounds: int = 3) -> float:
    """Milliseconds."""
    times = []
    for _ in range(rounds):
        started = time.perf_counter()
        action()
        times.append((time.perf_counter() - started) * 1e3)
    return min(times)


def measure(url: str, runs: int) -> dict[str, float]:
    """Milliseconds by what was asked for: a first page, one in the middle, one near the end, and the counts."""
    app = App("shop", url)
    fill(app, runs)
    lists = RunLists(Source(app))
    found: dict[str, float] = {}
    for filter in FILTERS:
        for page, after in (("first page", None), ("page in the middle", runs // 2), ("last page", 60)):
            found[f"{page} {filter}".strip()] = best(lambda f=filter, a=after: lists.runs(f, a, 50))  # type: ignore[misc]
        found[f"counts {filter}".strip()] = best(lambda f=filter: lists.counts(f))  # type: ignore[misc]
    found["counts over time"] = best(lambda: lists.counts_over_time("", 86_400))
    found["failures"] = best(lambda: lists.failures(""))
    found["steps"] = best(lambda: Overview(Source(app)).invocations("", "", None, 50))
    app.close()
    return found


def read_large_run(url: str, steps: int) -> tuple[float, float]:
    """Milliseconds for all that the page of a run of so many steps asks for first: for the first time, and again."""
    app = App("shop", url)
    now = app.store.now()
    events: list[ev.Event] = [ev.RunStarted(seq=1, ts=now, workflow="large", input=Raw(b"{}"))]
    events += [
        ev.StepCompleted(
            seq=i + 2, ts=now + i * 1_000, cmd=f"1s{i}", cause=1, name="charge", args=Raw(b'{"args":[1]}'),
            worker="1-abcdef01", started=now + i * 1_000 - 500, result=Raw(b"1"),
        )
        for i in range(steps)
    ]  # fmt: skip
    records = [to_record(event) for event in events]
    app.store.create(
        NewRun(id="large", workflow="large", records=records, wake_at=now + 10**12, created_at=now, fingerprint=b"")
    )
    first = min(best(lambda: OneRun(Source(app)).run("large"), 1) for _ in range(3))
    one_run = OneRun(Source(app))
    one_run.run("large")
    again = best(lambda: one_run.run("large"))
    app.close()
    return first, again


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--store", help="a new store; a file that is thrown away if nothing is said")
    parser.add_argument("--runs", type=int, default=1_000_000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for name, ms in measure(options.store or str(Path(folder, "lists.db")), options.runs).items():
            print(f"{name:60s} {ms:8.1f} ms")


if __name__ == "__main__":
    main()
