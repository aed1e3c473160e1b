"""The engine's side: a thread that publishes what was committed, and again what nobody has claimed."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from queue import Empty, SimpleQueue

from holdfast.executors.celery.broker import Broker, Parcel, TaskName
from holdfast.ports import AttemptRow, Carrier, NewAttempt, Store

logger = logging.getLogger("holdfast.celery")
SWEEP = 2.0
CLAIMED_WITHIN = 2.0
"""Seconds that an attempt may wait for a worker before anybody asks whether its message is lost."""
LONGEST = 60.0
"""Seconds between two messages for an attempt whose message doesn't seem to be lost, at first; and the longest time
between two for one whose message does."""
LOOKED_AT = 2_000
"""How many attempts that nobody has claimed are looked at of each step in each queue, the oldest first."""
PRIORITY_STEP = 60 * 1_000_000
"""Attempts of higher priority are due earlier, by so much for each point."""
GOODBYE = 2.0


class Waiting:
    """An attempt that nobody has claimed: since when that is known here, and how often it was told again."""

    __slots__ = ("again_at", "since", "times")

    def __init__(self, now: float) -> None:
        self.since = now
        self.again_at = now + CLAIMED_WITHIN
        self.times = 0

    def is_due(self, now: float, is_lost: bool) -> bool:
        if is_lost:
            return now >= self.again_at
        # As many messages as attempts are there. They may be about something else.
        return now >= max(self.again_at, self.since + LONGEST * 2.0**self.times)

    def told(self, now: float) -> None:
        self.times += 1
        self.again_at = now + min(LONGEST, CLAIMED_WITHIN * 2.0**self.times)


class CeleryCarrier(Carrier):
    def __init__(self, broker: Broker, task_name: TaskName) -> None:
        self._broker = broker
        self._task_name = task_name
        self._to_tell: SimpleQueue[Sequence[NewAttempt] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._waiting: dict[str, Waiting] = {}
        self._failures = 0
        self._not_before = 0.0

    def start(self, store: Store) -> None:
        self._thread = threading.Thread(target=self._run, args=(store,), name="holdfast-publish", daemon=True)
        self._thread.start()

    def carry(self, attempts: Sequence[NewAttempt]) -> None:
        self._to_tell.put(attempts)

    def stop(self) -> None:
        self._to_tell.put(None)
        if self._thread is not None:
            self._thread.join(GOODBYE)

    def _run(self, store: Store) -> None:
        sweep_at = 0.0
        ends = False
        while not ends:
            found, ends = self._gather(max(0.0, sweep_at - time.monotonic()))
            try:
                if found and time.monotonic() >= self._not_before:
                    self._publish(found, store.now())
                if time.monotonic() >= sweep_at and not ends:
                    sweep_at = time.monotonic() + SWEEP
                    if time.monotonic() >= self._not_before:
                        self.sweep(store, time.monotonic())
                        self._failures = 0
            except (
                Exception
            ) as error:  # of the broker's driver or the store's: what was to be told is found by the sweep
                self._failed(error)
        self._broker.close()

    def _gather(self, seconds: float) -> tuple[list[NewAttempt], bool]:
        """All that is to be told, once there is something or the time is over; and whether this is the end."""
        found: list[NewAttempt] = []
        try:
            attempts = self._to_tell.get(timeout=seconds) if seconds else self._to_tell.get_nowait()
            while attempts is not None:
                found += attempts
                attempts = self._to_tell.get_nowait()
        except Empty:
            return found, False
        return found, True

    def _failed(self, error: Exception) -> None:
        self._failures += 1
        pause = min(10.0, 0.5 * 2**self._failures)
        self._not_before = time.monotonic() + pause
        logger.warning("steps wait until they can be told to Celery, trying again in %.0f s: %s", pause, error)
        try:
            self._broker.close()
        except Exception as failure:  # the connection is given up, whatever its driver says
            logger.debug("closing the connection to the broker: %s", failure)

    def _publish(self, attempts: Sequence[NewAttempt | AttemptRow], now: int) -> None:
        parcels = [
            Parcel(
                attempt.token, self._task_name(attempt.step), attempt.queue,
                min(9, max(0, round((now - attempt.due) / PRIORITY_STEP))),
            )
            for attempt in attempts
        ]  # fmt: skip
        self._broker.publish(parcels)

    # -- the safety net

    def sweep(self, store: Store, mono: float) -> None:
        """Tell again of attempts that nobody claims: as many as messages are missing in the queue of the broker, and the
        others too after a long time."""
        queues = [row.queue for row in store.queues() if row.waiting]
        rows = store.unclaimed(queues, store.now(), LOOKED_AT) if queues else []
        self._waiting = {row.token: self._waiting.get(row.token) or Waiting(mono) for row in rows}
        for queue, group in self._by_target(rows).items():
            overdue = [row for row in group if mono >= self._waiting[row.token].again_at]
            if not overdue:
                continue
            missing = len(group) - self._broker.ready(queue) if queue else len(group)
            again = [row for row in overdue if self._waiting[row.token].is_due(mono, is_lost=True)][: max(0, missing)]
            known = {row.token for row in again}
            again += [
                row
                for row in overdue
                if row.token not in known and self._waiting[row.token].is_due(mono, is_lost=False)
            ]
            if again:
                logger.info("%d attempts in queue %r were not claimed, telling of them again", len(again), queue)
                self._publish(again, store.now())
            for row in again:
                self._waiting[row.token].told(mono)

    def _by_target(self, rows: Sequence[AttemptRow]) -> dict[str, list[AttemptRow]]:
        """By the broker's queue; under "" those that are sent to an exchange."""
        targets: dict[tuple[str, str], str] = {}
        groups: dict[str, list[AttemptRow]] = {}
        for row in rows:
            key = (row.step, row.queue)
            if key not in targets:
                try:
                    target = self._broker.route(self._task_name(row.step), row.queue).get("queue")
                except Exception as error:  # of a router of the user's
                    logger.error("no route for step %r, it waits: %s", row.step, error)
                    target = None
                targets[key] = getattr(target, "name", "")
            groups.setdefault(targets[key], []).append(row)
        return groups
