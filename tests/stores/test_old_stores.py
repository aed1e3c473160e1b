"""Stores that an older version has written."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast import App
from holdfast.app import SystemClock
from holdfast.stores import schema
from holdfast.stores.dialect import Dialect
from holdfast.stores.postgres import PostgresStore
from holdfast.stores.sqlite import SqliteStore

OLD = (
    "INSERT INTO runs (no, app, id, workflow, status, wake_at, options, fingerprint, created_at) "
    "VALUES (7, 'orders', 'old', 'ship', 'PENDING', 1, '{}', 'f', 1)",
    "INSERT INTO history (run, seq, kind, name, cmd, cause, attempt, worker, ts, payload) VALUES "
    "(7, 1, 'RunStarted', '', '', 0, 0, '', 1, "
    """'{"kind":"RunStarted","seq":1,"ts":1,"workflow":"ship","input":{"a":[]},"seed":1}')""",
    "INSERT INTO inbox (run, kind, control, body, ts) VALUES (7, 'hook', 0, '{\"name\":\"go\"}', 1)",
)


@pytest.fixture(params=["sqlite", "postgres"])
def old_store(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The address of a store of the fourth schema, with a run in it."""
    make: Callable[..., Any] = SqliteStore if request.param == "sqlite" else PostgresStore
    url = str(tmp_path / "orders.db") if request.param == "sqlite" else request.getfixturevalue("postgres_url")
    all_of_them = schema.migrations

    def first_four(dialect: Dialect) -> list[tuple[int, str]]:
        return [each for each in all_of_them(dialect) if each[0] <= 4]

    with monkeypatch.context() as patch:
        patch.setattr(schema, "migrations", first_four)
        store = make("orders", url, SystemClock())
    with store.write("migrate") as db:
        for statement in OLD:
            db.execute(statement)
    store.close()
    return str(url)


def test_what_was_written_without_a_clock_goes_on_and_counts_as_0(old_store: str) -> None:
    app = App("orders", old_store)

    @app.step
    def load() -> str:
        return "loaded"

    @app.workflow
    def ship() -> str:
        return load()

    run = app.get_run("old")
    assert [event.clock for event in run.history()] == [0]
    with app.worker():
        assert run.result(timeout=20) == "loaded"
    clocks = [event.clock for event in run.history()]
    assert clocks[0] == 0
    assert 0 < clocks[1] < clocks[-1]
    app.close()
