"""What a worker works with, whether it owns runs or executes attempts of others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from holdfast.core.registry import Definitions
from holdfast.engine.agenda import Agenda
from holdfast.engine.backoff import Backoff
from holdfast.engine.broadcast import Broadcast
from holdfast.engine.identity import Identity
from holdfast.engine.membership import Membership, new_worker_id
from holdfast.engine.reporting import Reporter
from holdfast.engine.settings import Settings
from holdfast.ports import Clock, Executor, Notifier, TelemetryStore, WorkerKind, WorkerStore
from holdfast.telemetry.dispatcher import EventDispatcher


class AnyWorkersStore(WorkerStore, TelemetryStore, Protocol):
    """What of a store every worker needs."""


S_co = TypeVar("S_co", bound=AnyWorkersStore, covariant=True)


class Environment(Generic[S_co]):
    """The ports that it was given, and what it is to the others. The `agenda` is by the clock that never jumps."""

    def __init__(
        self,
        app: Definitions,
        store: S_co,
        executor: Executor,
        notifier: Notifier,
        clock: Clock,
        me: Identity,
        settings: Settings | None = None,
        new_id: Callable[[], str] = new_worker_id,
        kind: WorkerKind = WorkerKind.ENGINE,
        exchange: Callable[[], EventDispatcher | None] = lambda: None,
    ) -> None:
        self.app = app
        self.store = store
        self.executor = executor
        self.notifier = notifier
        self.clock = clock
        self.settings = settings or Settings()
        self.membership = Membership(app, store, clock, self.settings, me, new_id, kind)
        self.backoff = Backoff(clock)
        self.agenda = Agenda()
        broadcast = Broadcast(store, me, exchange)
        self.reporter = Reporter(app.instruments, broadcast, me, app.codec)
