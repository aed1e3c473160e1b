"""The contract of the Store port between connections that meet, over each backend."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from holdfast.errors import StoreError
from holdfast.stores.postgres import PostgresStore
from holdfast.stores.sqlite import SqliteStore
from holdfast.testing import RaceContract


class CountsConflicts(PostgresStore):
    def __init__(self, *given: Any, **more: Any) -> None:
        super().__init__(*given, **more)
        self.conflicts = 0
        self._translate = self.database._translate
        self.database._translate = self._count  # type: ignore[method-assign]

    def _count(self, error: Exception) -> StoreError:
        found = self._translate(error)
        if isinstance(error, psycopg.Error) and (error.sqlstate or "").startswith(("40", "55P03")):
            self.conflicts += 1
        return found


class TestPostgresRaces(RaceContract):
    one_in = 4

    @pytest.fixture
    def stores(self, postgres_url: str) -> Iterator[tuple[Any, Any]]:
        stores = tuple(
            CountsConflicts("orders", postgres_url, self.clock, server_time=False, judge_after=0) for _ in range(2)
        )
        yield stores
        for store in stores:
            store.close()

    def conflicts(self, stores: tuple[Any, Any]) -> int:
        return sum(store.conflicts for store in stores)


@pytest.mark.torture
class TestAllPostgresRaces(TestPostgresRaces):
    one_in = 1


class TestSqliteRaces(RaceContract):
    statements = 1

    @pytest.fixture
    def stores(self, tmp_path: Path) -> Iterator[tuple[Any, Any]]:
        stores = tuple(SqliteStore("orders", str(tmp_path / "orders.db"), self.clock) for _ in range(2))
        yield stores
        for store in stores:
            store.close()
