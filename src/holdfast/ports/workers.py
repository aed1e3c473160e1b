"""The workers on a store."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Protocol

import msgspec

from holdfast.ports.database import Database
from holdfast.ports.domain_events import Subscription


class WorkerKind(StrEnum):
    """What a worker does: own runs and bring them forward, or only execute attempts of others' runs."""

    ENGINE = "engine"
    EXECUTOR = "executor"


class WorkerRow(msgspec.Struct, kw_only=True):
    """A worker: what its code knows by `names`, the schedules that its code declares, and the `queues` whose attempts it
    executes, of these `steps`. `clock` is its logical clock at its last heartbeat. `damage` says what of it could not be
    read."""

    id: str
    app: str
    host: str
    pid: int
    build: str
    names: list[str]
    kind: str = WorkerKind.ENGINE
    queues: list[str] = []
    steps: list[str] = []
    schedules: list[str] = []
    address: str = ""
    started_at: int = 0
    lease_until: int = 0
    clock: int = 0
    damage: str = ""


class WorkerQuery(Database, Protocol):
    """Who is there."""

    def workers(self) -> list[WorkerRow]: ...

    def apps(self) -> list[str]:
        """The apps that have runs, workers or schedules here, by name; for whoever looks at a store without an app's code."""


class WorkerStore(WorkerQuery, Protocol):
    """Membership: register, stay alive to the others, find those that are dead."""

    def register(self, worker: WorkerRow, lease: int, subscriptions: Sequence[Subscription] = ()) -> None:
        """Make a worker known, hold its life lock, and give back runs that were set aside because nobody knew
        their code, or diverged on another build, if this worker's code may do better.

        The subscriptions that its code declares hold from now on, as this worker says. One that no live worker declares
        ends with the next worker that comes or goes, if a live one knows its target, or if none has known it for a day.
        As long as no worker of the app lives all of them stay."""

    def update_worker(self, worker: WorkerRow, subscriptions: Sequence[Subscription] = ()) -> None:
        """A registered worker's code defines more than it did (or less): as if it had registered with that. Raises
        Fenced if it has been declared dead."""

    def beat(self, worker_id: str, lease: int) -> bool:
        """Renew a lease; False if the worker has been declared dead."""

    def release_lock(self, worker_id: str) -> None:
        """Give up the life lock of a worker of this process that was declared dead."""

    def unregister(self, worker_id: str) -> None:
        """Release every run of a worker without counting a loss, and let go of its life lock."""

    def declare_dead(self, me: str, by_lease: bool = True) -> list[str]:
        """Declare dead each worker whose life lock is free or whose lease has run out: its row is deleted (so
        that it can't write any more), its runs can be claimed at once, and each counts a loss. Whoever was kept
        from the store itself says `by_lease=False`: the others may not have been able to renew theirs either."""

    def addresses(self, everyone: bool = False, kind: str = "") -> list[str]:
        """Where live workers can be rung: those of the app, or of all apps; those of that kind, if one is named."""
