"""Test workflows without a database and without waiting: `TestApp` is an in-memory world with skipped time.
`StoreContract` is for whoever writes a store."""

from __future__ import annotations

from holdfast.testing.contract import MovableClock, StoreContract
from holdfast.testing.races import RaceContract
from holdfast.testing.world import TestApp

__all__ = ["MovableClock", "RaceContract", "StoreContract", "TestApp"]
