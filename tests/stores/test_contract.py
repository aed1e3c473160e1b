"""The contract of the Store port, over each backend."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from holdfast.ports import Store
from holdfast.stores.postgres import PostgresStore
from holdfast.stores.sqlite import SqliteStore
from holdfast.testing import StoreContract


class ReadsOnlyWhereItReads(SqliteStore):
    """Refuses to write outside a transaction of `write`, where no failpoint would be passed."""

    @contextmanager
    def read(self) -> Iterator[sqlite3.Connection]:
        with super().read() as db:
            db.execute("PRAGMA query_only = ON")
            try:
                yield db
            finally:
                db.execute("PRAGMA query_only = OFF")


class TestSqliteFile(StoreContract):
    @pytest.fixture
    def store(self, tmp_path: Path) -> Iterator[Store]:
        store = ReadsOnlyWhereItReads("orders", str(tmp_path / "orders.db"), self.clock)
        yield store
        store.close()
        for file in tmp_path.glob("*-worker-*"):
            file.unlink()


class TestSqliteInMemory(StoreContract):
    @pytest.fixture
    def store(self) -> Iterator[Store]:
        store = SqliteStore("orders", ":memory:", self.clock)
        yield store
        store.close()


class TestPostgres(StoreContract):
    @pytest.fixture
    def store(self, postgres_url: str) -> Iterator[Store]:
        store = PostgresStore("orders", postgres_url, self.clock, server_time=False, judge_after=0)
        yield store
        store.close()
