"""How an engine is doing, for whoever watches over its process."""

from __future__ import annotations

import msgspec


class Health(msgspec.Struct, kw_only=True):
    """Ages in seconds. An engine is well as long as its heartbeats reach the store and its loop turns, each within
    the lease: after that, others take its runs over. `note` is what weighs on the store without stopping it."""

    ok: bool
    problem: str
    worker: str
    app: str
    build: str
    store_reachable: bool
    heartbeat_age: float
    turn_age: float
    commit_age: float | None
    runs: int
    steps: int
    stopping: bool
    note: str = ""


class Pulse:
    """When an engine last gave each sign of life, by the monotonic clock."""

    def __init__(self, now: float) -> None:
        self.heartbeat = now
        self.turn = now
        self.trouble = ""

    def beaten(self, now: float) -> None:
        self.heartbeat, self.trouble = now, ""

    def problem(self, now: float, lease: float) -> str:
        """What is wrong, in words; empty if nothing is."""
        if now - self.heartbeat > lease:
            why = f" ({self.trouble})" if self.trouble else ""
            return f"no heartbeat has reached the store for {now - self.heartbeat:.0f} s{why}"
        if now - self.turn > lease:
            return f"the engine is stuck: its loop has not turned for {now - self.turn:.0f} s"
        return ""
