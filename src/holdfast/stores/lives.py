"""Who lives: each worker holds a lock as long as it does."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Generic, Protocol, TypeVar


class LifeLockLike(Protocol):
    def take(self) -> None: ...
    def release(self) -> None: ...


L = TypeVar("L", bound=LifeLockLike)


class Lives(Generic[L]):
    """The life locks of this process, and what those of others tell. As it is, for a store in memory: all workers live in
    this process, and need none."""

    def __init__(self) -> None:
        self.here: dict[str, L | None] = {}

    def lock_of(self, worker_id: str) -> L | None:
        """The lock that a worker of that id holds as long as it lives."""
        return None

    def take(self, worker_id: str, lease: int) -> None:
        lock = self.lock_of(worker_id)
        if lock is not None:
            lock.take()
        self.here[worker_id] = lock

    def release(self, worker_id: str) -> None:
        lock = self.here.pop(worker_id, None)
        if lock is not None:
            lock.release()

    def dead(self, worker_ids: Sequence[str]) -> Collection[str]:
        """Those of them that hold no lock."""
        return set(worker_ids) - self.here.keys()

    def clear(self, worker_id: str) -> None:
        """Remove what a worker that was declared dead has left."""

    def check(self) -> None:
        """Take again the locks that others no longer find."""
