"""This worker among the others: registered, alive to them or not, and who they are."""

from __future__ import annotations

import logging
import os
import platform
import secrets
import threading
from collections.abc import Callable, Sequence

from holdfast.core.registry import Definitions
from holdfast.engine.domain_events import subscription_of
from holdfast.engine.identity import Identity
from holdfast.engine.settings import Settings
from holdfast.errors import StoreError
from holdfast.ports import AHEAD, Clock, Subscription, WorkerKind, WorkerRow, WorkerStore

logger = logging.getLogger("holdfast.engine")


def new_worker_id() -> str:
    return f"{os.getpid()}-{secrets.token_hex(4)}"


def pid_of(worker_id: str) -> int | None:
    """The process that a worker was, also once its row is gone."""
    pid, _, rest = worker_id.partition("-")
    return int(pid) if rest and pid.isascii() and pid.isdigit() else None


class Lease:
    """Until when no other worker can have declared this one dead, by a clock that never jumps."""

    def __init__(self, clock: Clock, seconds: float) -> None:
        self._clock = clock
        self._seconds = seconds
        self._until = 0.0
        self.asking = threading.Lock()

    def is_sure(self) -> bool:
        return self._clock.monotonic() < self._until

    def asked_at(self) -> float:
        return self._clock.monotonic()

    def renew(self, asked_at: float) -> None:
        self._until = asked_at + self._seconds

    def end(self) -> None:
        self._until = 0.0


class Gaps:
    """Times in which this worker was kept from the store (a lock, a sleeping machine): it can't tell whether the others were,
    and gives them time to renew their leases."""

    def __init__(self, store: WorkerStore, settings: Settings) -> None:
        self._store = store
        self._settings = settings
        self._judge_from = 0  # the store's time from which other workers' leases mean something
        self._last_look = 0
        self.clock_was_set_back = False

    def begin(self) -> None:
        """The clock may have jumped before this worker came: the others get the time to renew their leases by it. And it
        may jump before this one has looked for the first time."""
        self._last_look = self._last_look or self._store.now()
        self._judge_from = self._store.now() + self._settings.lease_us

    def may_judge(self) -> bool:
        return self._store.now() >= self._judge_from

    def check(self, last: int, interval: float) -> int:
        """The time now, to be given as `last` after about `interval` seconds."""
        now = self._store.now()
        if last - now > AHEAD:
            self.clock_was_set_back = True
        if now - last > round((interval + self._settings.lease / 2) * 1_000_000):
            self._judge_from = now + self._settings.lease_us
        return now

    def swept(self) -> None:
        self._last_look = self.check(self._last_look or self._store.now(), self._settings.sweep)


class Membership:
    """Registers, renews the lease, and knows who the others are."""

    def __init__(
        self,
        app: Definitions,
        store: WorkerStore,
        clock: Clock,
        settings: Settings,
        me: Identity,
        new_id: Callable[[], str],
        kind: WorkerKind = WorkerKind.ENGINE,
    ) -> None:
        self._app = app
        self._store = store
        self._settings = settings
        self._new_id = new_id
        self._lease = Lease(clock, settings.lease)
        self.gaps = Gaps(store, settings)
        self.me = me
        self._kind = kind
        self.names = sorted(app.known_names()) if kind == WorkerKind.ENGINE else []
        self.steps = [] if kind == WorkerKind.ENGINE else sorted(app.step_names())
        self.revision = app.revision
        self.address = ""
        self.is_registered = False
        self.has_peers = False
        self.is_damaged = False  # what others read of this worker

    # -- coming and going

    def register(self, schedules: Sequence[str]) -> None:
        """Become a worker, or, once declared dead, another one."""
        worker_id, asked_at = self._new_id(), self._lease.asked_at()
        self._store.register(self._describe(worker_id, schedules), self._settings.lease_us, self._subscriptions())
        self.me.worker = worker_id
        self._lease.renew(asked_at)
        self.gaps.begin()
        self.is_registered = True

    def tell_definitions(self, schedules: Sequence[str]) -> None:
        """Something was defined since this worker has registered, in a notebook for example."""
        self._store.update_worker(self._describe(self.me.worker, schedules), self._subscriptions())

    def _describe(self, worker_id: str, schedules: Sequence[str]) -> WorkerRow:
        return WorkerRow(
            id=worker_id, app=self._app.name, host=platform.node(), pid=os.getpid(), build=self.me.build,
            names=self.names, schedules=list(schedules), address=self.address, kind=self._kind, steps=self.steps,
            queues=sorted(self.me.queues or ()),
        )  # fmt: skip

    def _subscriptions(self) -> list[Subscription]:
        if self._kind != WorkerKind.ENGINE:
            return []
        return [subscription_of(subscriber) for subscriber in self._app.subscribers()]

    def fenced(self) -> None:
        """Others took this worker for dead."""
        self.is_registered = False
        self._lease.end()
        self._store.release_lock(self.me.worker)

    # -- being alive to the others

    def beat(self) -> bool:
        """Renew the lease; False if others have declared this worker dead. From any thread."""
        worker_id, asked_at = self.me.worker, self._lease.asked_at()
        if not self._store.beat(worker_id, self._settings.lease_us):
            return False
        if worker_id == self.me.worker:
            self._lease.renew(asked_at)
        return True

    def may_begin(self, on_dead: Callable[[str], None]) -> bool:
        """Whether a step may still begin here; asked on any thread. A process that was frozen past its lease goes on
        where it was, and doesn't know yet that others have taken its runs."""
        if self._lease.is_sure():
            return True
        with self._lease.asking:
            if self._lease.is_sure():  # another thread has asked
                return True
            worker_id = self.me.worker
            try:
                if self.beat():
                    return True
            except StoreError as error:
                logger.warning("no step begins before the store has said whether this worker is alive: %s", error)
                return False
        on_dead(worker_id)
        return False

    # -- the others

    def look_at_others(self) -> list[str]:
        """Who lives, and who no longer does: those that are declared dead now."""
        dead = self._store.declare_dead(self.me.worker, by_lease=self.gaps.may_judge())
        workers = self._store.workers()
        self.is_damaged = any(worker.damage for worker in workers if worker.id == self.me.worker)
        peers = [worker for worker in workers if worker.id != self.me.worker]
        self.has_peers = bool(peers)
        engines = [worker for worker in peers if worker.kind == WorkerKind.ENGINE]
        self.me.others, self.me.peers = {w.build for w in engines}, frozenset(w.id for w in engines)
        self.me.looks += 1
        return dead
