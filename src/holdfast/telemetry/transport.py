"""How telemetry events get from those who send them to those who listen. The docstrings are the contract: a table with
a feed, or a broker's exchange, carries events by writing these few methods."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from typing import Any, Protocol

from holdfast.telemetry.events import Event


class Subscription(Protocol):
    """One listener. It gets what is published from the moment on that it was made."""

    def receive(self, timeout: float | None) -> Sequence[Any] | None:
        """The events that have come, oldest first; waits for the first one, at most `timeout` seconds (None: as long
        as it takes, 0: not at all). Empty if none has come, None once the subscription or its transport is closed and
        everything was received.

        Events may be lost, come twice or in another order, and be anything: others publish too. An exception is trouble
        that may pass, after which it can be called again."""

    def close(self) -> None:
        """No more events. Whoever waits in `receive`, on any thread, comes back. May be called twice."""


class Transport(Protocol):
    """Carries telemetry events, as well as it can: nothing may depend on them but what people are shown."""

    def publish(self, events: Sequence[Event]) -> None:
        """Hand events over to all subscriptions, of this process and others. The events are plain data as JSON has it.

        It may take its time and may raise: it is called on a thread where nobody waits, one call at a time, and the
        same events are offered again later. Those of a call that raised may have been published in part, and are then
        published twice."""

    def subscribe(self) -> Subscription:
        """A new listener."""

    def close(self) -> None:
        """Let go of connections. May be called twice."""


class InMemoryTransport:
    """Carries events within one process. A listener that falls behind by more than `limit` events loses the oldest."""

    def __init__(self, limit: int = 100_000) -> None:
        self._limit = limit
        self._changed = threading.Condition()
        self._subscriptions: list[InMemorySubscription] = []
        self._closed = False

    def publish(self, events: Sequence[Event]) -> None:
        """Hand events over to all subscriptions."""
        with self._changed:
            if self._closed:
                raise RuntimeError("the transport is closed; make another one")
            for subscription in self._subscriptions:
                subscription._put(events)
            self._changed.notify_all()

    def subscribe(self) -> InMemorySubscription:
        """A new listener."""
        with self._changed:
            if self._closed:
                raise RuntimeError("the transport is closed; make another one")
            subscription = InMemorySubscription(self._limit, self._changed, self._subscriptions)
            self._subscriptions.append(subscription)
            return subscription

    def close(self) -> None:
        """End all subscriptions. What they have not received yet they still can."""
        with self._changed:
            self._closed = True
            for subscription in list(self._subscriptions):
                subscription.close()


class InMemorySubscription:
    """A listener in the same process. `lost` counts events that it was too slow for."""

    def __init__(self, limit: int, changed: threading.Condition, others: list[InMemorySubscription]) -> None:
        self.lost = 0
        self._events: deque[Event] = deque(maxlen=limit)
        self._changed = changed
        self._others = others
        self._closed = False

    def _put(self, events: Sequence[Event]) -> None:
        self.lost += max(0, len(self._events) + len(events) - (self._events.maxlen or 0))
        # Each listener has its own copies: what one does to an event is none of the others' business.
        self._events.extend(dict(event) for event in events)

    def receive(self, timeout: float | None) -> list[Event] | None:
        """The events that have come, as the contract says."""
        with self._changed:
            self._changed.wait_for(lambda: self._events or self._closed, timeout)
            if self._closed and not self._events:
                return None
            events = list(self._events)
            self._events.clear()
            return events

    def close(self) -> None:
        """No more events."""
        with self._changed:
            self._closed = True
            if self in self._others:
                self._others.remove(self)
            self._changed.notify_all()
