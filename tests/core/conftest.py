from __future__ import annotations

from collections.abc import Iterator

import pytest
from core_world import World


@pytest.fixture(autouse=True)
def _no_run_is_left_in_memory() -> Iterator[None]:
    """A run that is collected without being evicted would run its clean-up inside another test."""
    yield
    while World.alive:
        World.alive.pop().crash()
