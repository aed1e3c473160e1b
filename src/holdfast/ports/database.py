"""What all of a store has."""

from __future__ import annotations

from typing import Protocol

from holdfast.ports.clock import Clock
from holdfast.telemetry.clock import LamportClock


class Database(Protocol):
    """What a store stands on. `url` is for people: no password is in it. `clock` is the store's time, to wait by.
    `logical_clock` is that of this process: it goes past those of all messages, histories and heartbeats that are read for a
    worker."""

    app: str
    url: str
    clock: Clock
    logical_clock: LamportClock

    def now(self) -> int:
        """The store's time. All workers on one store agree on it."""

    def secret(self) -> bytes:
        """A random key made once per store, for signing tokens."""

    def close(self) -> None:
        """Let go of every connection. Nothing is lost."""

    def check(self) -> None:
        """Find out whether what the store stands on is still there; StoreLostError if it was deleted or replaced, and
        from then on from every method. A life lock that others no longer find is taken again. Cheap: engines ask once a
        second."""
