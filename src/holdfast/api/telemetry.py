"""Telemetry over a store: those who receive say so in the store, workers then tell what they have committed, and the
events are read from the histories. Nothing is written while nobody receives.

With Celery the event exchange of its broker is a second way for what no history tells, and for events of one's own. What
comes both ways is heard once, and what the broker loses comes through the store.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from holdfast.codec import Codec
from holdfast.errors import StoreError
from holdfast.ports import Notes, Notifier, Store, Topic
from holdfast.telemetry.events import Event
from holdfast.telemetry.transport import Subscription
from holdfast.views.telemetry import REMEMBERED, Begun, read_notes
from holdfast.views.values import PlainReader

if TYPE_CHECKING:
    from holdfast.telemetry.dispatcher import EventDispatcher

logger = logging.getLogger("holdfast.telemetry")
INTERVAL = 0.1
"""Seconds between two looks at what workers tell."""
BELIEVED = 10 * 1_000_000
RENEWED = 2.0
PAGE = 200
GAP = 1.0
"""Seconds for which a number that is missing may yet come: whoever got it first may be the last to commit."""


class StoreTransport:
    """Carries telemetry events between all processes of a store. What workers do is told by itself; `publish` is for
    events of one's own."""

    def __init__(self, store: Store, notifier: Notifier, codec: Codec, exchange: EventDispatcher | None = None) -> None:
        self._store = store
        self._notifier = notifier
        self._codec = codec
        self._exchange = exchange
        self._subscriptions: list[StoreSubscription] = []

    def publish(self, events: Sequence[Event]) -> None:
        """Hand events over to all subscriptions, of this process and others; to nobody if there is none."""
        if self._exchange is not None:
            for event in events:
                self._exchange.send(blind="clock" not in event, **event)
        if self._store.is_watched():
            self._store.publish(Notes(worker="", events=[dict(event) for event in events]))

    def subscribe(self) -> StoreSubscription:
        """A new listener. Workers begin to tell as soon as they have heard of it, which is at once."""
        beside = None if self._exchange is None else self._exchange.transport.subscribe()
        subscription = StoreSubscription(self._store, PlainReader(self._codec), beside)
        self._subscriptions.append(subscription)
        self._notifier.ring(Topic.WATCHERS)
        return subscription

    def close(self) -> None:
        """End all subscriptions."""
        for subscription in self._subscriptions:
            subscription.close()


class StoreSubscription:
    """A listener, as long as it is asked to receive: one that is silent for ten seconds counts as gone."""

    def __init__(self, store: Store, reader: PlainReader, beside: Subscription | None = None) -> None:
        self._store = store
        self._beside = beside
        self._reader = reader
        self._name = str(uuid.uuid4())
        self._closed = threading.Event()
        self._renewed = 0.0
        self._after = store.newest_notes()
        self._beyond: set[int] = set()  # numbers that came before one that is missing
        self._missing_since: float | None = None
        self._begun = Begun()
        self._heard: dict[tuple[Any, ...], None] = {}
        self._renew()

    def receive(self, timeout: float | None) -> list[dict[str, Any]] | None:
        """The events that have come, as the contract of `Subscription` says."""
        end = None if timeout is None else time.monotonic() + timeout
        pushed: Sequence[Any] = self._pushed(0)
        while True:
            if not self._closed.is_set():
                self._renew()
            events = [event for notes in self._new() for event in self._read(notes)]
            if self._beside is not None:
                events = [event for event in (*pushed, *events) if self._is_new(event) and self._begun.is_news(event)]
            if events:
                return events
            if self._closed.is_set():
                return None
            left = INTERVAL if end is None else min(INTERVAL, end - time.monotonic())
            if left <= 0:
                return []
            pushed = self._pushed(left)

    def _pushed(self, seconds: float) -> Sequence[Any]:
        """Wait for so long, or for what comes another way than through the store."""
        found = None if self._beside is None else self._beside.receive(seconds)
        if found is None:
            self._closed.wait(seconds)
        return found or ()

    def _read(self, notes: Notes) -> list[dict[str, Any]]:
        # What comes another way too is looked at when both are there.
        return read_notes(self._store, notes, self._reader, Begun() if self._beside is not None else self._begun)

    def _is_new(self, event: dict[str, Any]) -> bool:
        """Whether it has not come the other way already."""
        key = tuple(event.get(name) for name in ("type", "id", "origin", "clock", "timestamp", "attempt"))
        if any(isinstance(each, list | dict) for each in key):
            return True  # somebody's own; who receives it has to know what that means
        if key in self._heard:
            return False
        self._heard[key] = None
        if len(self._heard) > REMEMBERED:
            del self._heard[next(iter(self._heard))]
        return True

    def _new(self) -> list[Notes]:
        found = [
            (number, notes) for number, notes in self._store.notes(self._after, PAGE) if number not in self._beyond
        ]
        self._beyond |= {number for number, _ in found}
        while self._after + 1 in self._beyond:
            self._after += 1
            self._beyond.discard(self._after)
        if not self._beyond:
            self._missing_since = None
        elif self._missing_since is None:
            self._missing_since = time.monotonic()
        elif time.monotonic() - self._missing_since > GAP:  # it was never committed
            self._after = max(self._beyond)
            self._beyond.clear()
            self._missing_since = None
        return [notes for _, notes in found]

    def _renew(self) -> None:
        if time.monotonic() - self._renewed > RENEWED:
            self._renewed = time.monotonic()
            self._store.watch(self._name, self._store.now() + BELIEVED)

    def close(self) -> None:
        """No more events."""
        if not self._closed.is_set():
            self._closed.set()
            if self._beside is not None:
                self._beside.close()
            try:
                self._store.watch(self._name, 0)
            except StoreError as error:
                logger.debug("a listener could not say that it is gone: %s", error)
