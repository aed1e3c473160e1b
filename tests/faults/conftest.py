from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from world import World, open_world


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with open_world(tmp_path) as opened:
        yield opened
