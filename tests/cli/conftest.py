"""The command on a store of its own, and an engine beside it where a test needs one."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import cli_shop
import pytest
from cli_driver import Cli


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cli]:
    for name in [name for name in os.environ if name.startswith("HOLDFAST_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.chdir(tmp_path)
    yield Cli(str(tmp_path / "shop.db"))
    cli_shop.app.close()


@pytest.fixture
def worker(cli: Cli) -> Iterator[None]:
    """An engine on the same store, in this process."""
    cli_shop.app.use_store(cli.store)
    with cli_shop.app.worker():
        yield
