"""Who owns runs here."""

from __future__ import annotations

import msgspec


class Identity(msgspec.Struct):
    """A worker's id and build, the other engines that lived when it last looked and their builds, how often it has
    looked, whether suspects are kept apart, and the queues whose steps it executes itself: "" is that of steps which name
    none, None stands for all."""

    worker: str
    build: str
    secret: bytes = b""
    others: set[str] = set()
    peers: frozenset[str] = frozenset()
    looks: int = 0
    isolates: bool = True
    queues: frozenset[str] | None = frozenset({""})
    asked: int = 0  # how often it has asked for slots

    def next_token(self) -> str:
        """No worker asks for two slots under the same one."""
        self.asked += 1
        return f"{self.worker}.{self.asked}"
