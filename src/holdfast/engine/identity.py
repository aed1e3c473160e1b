"""Who owns runs here."""

from __future__ import annotations

import msgspec


class Identity(msgspec.Struct):
    """A worker's id and build, the other workers that lived when it last looked and their builds, how often it has
    looked, and whether suspects are kept apart."""

    worker: str
    build: str
    secret: bytes = b""
    others: set[str] = set()
    peers: frozenset[str] = frozenset()
    looks: int = 0
    isolates: bool = True
    asked: int = 0  # how often it has asked for slots

    def next_token(self) -> str:
        """No worker asks for two slots under the same one."""
        self.asked += 1
        return f"{self.worker}.{self.asked}"
