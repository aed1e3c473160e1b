"""What a store holds, as gauges for Prometheus: asked for when somebody looks, and counted up to a bound."""

from __future__ import annotations

import time
from collections.abc import Callable

from holdfast.core.definitions import DEFAULT_QUEUE
from holdfast.ports import Backlog, LimitUse, Query, QueueRow, RunQuery
from holdfast.telemetry.instruments import Instruments
from holdfast.telemetry.metrics import Gauges, Metrics, Readings

FRESH = 0.5
COUNTED = 10_000
"""Nobody counts all of very many: a gauge that shows this number means so many or more."""


def metrics_of(instruments: Instruments) -> Metrics:
    """The metrics that listen already, or new ones that do from now on."""
    for instrument in instruments:
        if isinstance(instrument, Metrics):
            return instrument
    made = Metrics()
    instruments.add(made)
    return made


class Glance:
    """The backlog of a store, read once for all who ask at about the same time."""

    def __init__(self, store: Query) -> None:
        self._store = store
        self._at = float("-inf")
        self._found = Backlog()

    def __call__(self) -> Backlog:
        if time.monotonic() - self._at > FRESH:
            self._found, self._at = self._store.backlog(COUNTED), time.monotonic()
        return self._found


def store_gauges(store: Query) -> Gauges:
    """Only what the store says, for a process that has no worker in it."""
    gauges = Gauges()
    add_store_gauges(gauges, store)
    return gauges


def add_store_gauges(metrics: Gauges, store: Query) -> None:
    """Runs by status, what waits, and who is there. All processes that look at one store show the same."""
    backlog = Glance(store)

    def statuses() -> Readings:
        return {(status,): count for status, count in store.counts(RunQuery(), COUNTED).items()}

    def late() -> Readings:
        since = backlog().due_since
        return {(): 0.0 if since is None else max(0, store.now() - since) / 1_000_000}

    def alive() -> Readings:
        now = store.now()
        return {(): sum(worker.lease_until >= now for worker in store.workers())}

    def queues(read: Callable[[QueueRow], float]) -> Callable[[], Readings]:
        return lambda: {(row.queue or DEFAULT_QUEUE,): read(row) for row in store.queues()}

    def oldest(row: QueueRow) -> float:
        return 0.0 if row.since is None else max(0, store.now() - row.since) / 1_000_000

    def limits(read: Callable[[LimitUse], float]) -> Callable[[], Readings]:
        return lambda: {(use.limit.name,): read(use) for use in store.limits(0)}

    add = metrics.gauge
    add("holdfast_runs", "Runs by status.", ["status"], statuses)
    add("holdfast_runs_parked", "Runs that wait outside of memory.", [], lambda: {(): backlog().parked})
    add("holdfast_runs_due", "Runs that are due, and no worker has taken.", [], lambda: {(): backlog().due})
    add("holdfast_runs_due_seconds", "For how long the first of them is due.", [], late)
    add("holdfast_inbox_depth", "Messages that wait in inboxes.", [], lambda: {(): backlog().inbox})
    add("holdfast_queue_waiting", "Attempts that nobody has claimed.", ["queue"], queues(lambda row: row.waiting))
    add("holdfast_queue_claimed", "Attempts that are executed elsewhere.", ["queue"], queues(lambda row: row.claimed))
    add("holdfast_queue_wait_seconds", "For how long the first attempt of a queue waits.", ["queue"], queues(oldest))
    add("holdfast_limit_used", "Slots of a limit that are in use.", ["limit"], limits(lambda use: use.in_use))
    add("holdfast_limit_waiting", "Those that wait for a slot.", ["limit"], limits(lambda use: use.waiting))
    add("holdfast_workers", "Workers that are alive.", [], alive)
