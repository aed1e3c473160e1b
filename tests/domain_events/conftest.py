"""Apps on one store, for tests that define their steps and workflows in place."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast import App


@pytest.fixture
def app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[App]:
    monkeypatch.delenv("HOLDFAST_STORE", raising=False)
    monkeypatch.chdir(tmp_path)
    app = App("shop", str(tmp_path / "shop.db"))
    yield app
    app.close()


@pytest.fixture
def other(app: App) -> Iterator[App]:
    """Another app on the same store."""
    other = App("warehouse", app.store_url)
    yield other
    other.close()
