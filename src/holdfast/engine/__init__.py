"""The engine: owns runs, replays them, commits their events, hands their steps to the executor."""

from __future__ import annotations
