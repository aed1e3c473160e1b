"""The contract of the Store port, over each backend."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from holdfast.ports import Message, Status, Store
from holdfast.stores.postgres import PostgresStore
from holdfast.stores.sqlite import SqliteStore
from holdfast.testing import StoreContract
from holdfast.testing.contract.arranging import SECOND


class ReadsOnlyWhereItReads(SqliteStore):
    """Refuses to write outside a transaction of `write`, where no failpoint would be passed."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self._read = self.database.read
        self.database.read = self._read_only  # type: ignore[method-assign]

    @contextmanager
    def _read_only(self) -> Iterator[sqlite3.Connection]:
        with self._read() as db:
            db.execute("PRAGMA query_only = ON")
            try:
                yield db
            finally:
                db.execute("PRAGMA query_only = OFF")


class Senders(StoreContract):
    """What a sender does not do: each of its writes to the row of a run would have to wait for those of all others."""

    def test_a_message_is_its_own_wake_up_and_leaves_the_row_of_its_run_alone(self, store: Store) -> None:
        row, other = self.owned(store), self.owned(store, "other")
        self.leave(store, row, Status.WAITING, wake_at=self.clock.now() + SECOND)
        before = self.row(store)
        for kind in ("hook", "cancel"):
            assert store.post(Message(run_id="r", kind=kind, control=kind == "cancel")).kept
        self.change(store, other, messages=[Message(run_id="r", kind="hook")])
        assert self.row(store) == before
        assert [claimed.row.id for claimed in self.claim(store)] == ["r"], "though it is not due"


class TestSqliteFile(Senders):
    @pytest.fixture
    def store(self, tmp_path: Path) -> Iterator[Store]:
        store = ReadsOnlyWhereItReads("orders", str(tmp_path / "orders.db"), self.clock)
        yield store
        store.close()
        for file in tmp_path.glob("*-worker-*"):
            file.unlink()


class TestSqliteInMemory(Senders):
    @pytest.fixture
    def store(self) -> Iterator[Store]:
        store = SqliteStore("orders", ":memory:", self.clock)
        yield store
        store.close()


class TestPostgres(Senders):
    @pytest.fixture
    def store(self, postgres_url: str) -> Iterator[Store]:
        store = PostgresStore("orders", postgres_url, self.clock, server_time=False, judge_after=0)
        yield store
        store.close()
