"""The monitor on a store of its own, and an engine beside it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import monitor_shop
import pytest
from monitor_server import client_of

from holdfast import App
from holdfast.monitor import monitor

TOKEN = "a-token-of-the-tests"


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[App]:
    monitor_shop.app.use_store(str(tmp_path / "shop.db"))
    yield monitor_shop.app
    monitor_shop.app.close()


@pytest.fixture
def worker(shop: App) -> Iterator[None]:
    with shop.worker():
        yield


@pytest.fixture
def client(shop: App) -> Iterator[httpx.Client]:
    """One that has the token."""
    with client_of(monitor(shop, token=TOKEN), authorization=f"Bearer {TOKEN}") as found:
        yield found
