"""What compositions are tested on: every store and executor there is."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast import App

DEPLOYMENTS = ("memory", "sqlite")


@pytest.fixture(params=DEPLOYMENTS)
def app(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[App]:
    """An app on one deployment; `with app.worker():` makes it work."""
    monkeypatch.delenv("HOLDFAST_STORE", raising=False)
    monkeypatch.chdir(tmp_path)
    app = App("canvas", ":memory:" if request.param == "memory" else str(tmp_path / "canvas.db"))
    yield app
    app.close()
