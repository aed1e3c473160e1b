"""Test workflows without a database and without waiting: `TestApp` is an in-memory world with skipped time.
`replay_open_runs` tells before a deploy which runs of a store would not go on with new code.
`StoreContract` is for whoever writes a store."""

from __future__ import annotations

from holdfast.testing.contract import MovableClock, StoreContract
from holdfast.testing.races import RaceContract
from holdfast.testing.replaying import Replayed, replay_open_runs
from holdfast.testing.world import TestApp

__all__ = ["MovableClock", "RaceContract", "Replayed", "StoreContract", "TestApp", "replay_open_runs"]
