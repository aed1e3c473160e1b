"""How an engine behaves, in numbers."""

from __future__ import annotations

import msgspec


class Settings(msgspec.Struct, kw_only=True):
    """Times in seconds. What has expired is deleted for `collect_for` at a time, so that no turn waits for long. Without
    `schedules`, ticks start no runs here. Workflow code that does not yield is `blocked_after` so long. After more than
    `broken_turns` turns in a row that failed in unforeseen ways, the engine gives up."""

    lease: float = 10.0
    beat: float = 2.0
    sweep: float = 1.0
    slice: float = 0.005
    turn: float = 0.025
    max_events: int = 2_000
    claim: int = 200
    max_live: int = 10_000
    park_after: float = 1.0
    park_factor: float = 20.0
    show_after: float = 0.03
    started_after: float = 0.1
    unknown_after: float = 3.0
    grace: float = 10.0
    blocked_after: float = 2.0
    collect_every: float = 60.0
    collect_for: float = 0.1
    schedules: bool = True
    broken_turns: int = 5

    @property
    def lease_us(self) -> int:
        return round(self.lease * 1_000_000)
