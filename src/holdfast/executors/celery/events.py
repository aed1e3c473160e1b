"""Telemetry events over the event exchange of a broker, beside those of Celery itself.

Each has a type that begins with `holdfast-`, for what Celery's own tools make of `worker-heartbeat` is a worker of
Celery's. They count such events and go on.
"""

from __future__ import annotations

import logging
import os
import threading
from collections import deque
from collections.abc import Sequence
from typing import Any

from celery import Celery
from celery.events import EventReceiver
from celery.events.event import get_exchange
from kombu import Connection, Consumer

from holdfast.telemetry.events import Event

logger = logging.getLogger("holdfast.telemetry")
PREFIX = "holdfast-"
LOOK = 1.0
"""Seconds in which a listener sees that it was closed."""
CONNECTING = 5.0
LONGEST_PAUSE = 30.0
MOST = 100_000
"""How many events a listener may be behind; it loses the oldest of more."""
CARRIES = ("amqp", "redis", "gcpubsub")
"""Drivers of brokers that hand an event to all who listen, in whichever process they are."""


def carries_events(celery: Celery) -> bool:
    """Whether the broker can; nothing is connected to find out."""
    connection: Connection = celery.connection_for_write()
    return connection.transport.driver_type in CARRIES


class CeleryTransport:
    """Carries telemetry events of an app. All of it is for one thread at a time, but for what subscriptions do."""

    def __init__(self, celery: Celery, app: str) -> None:
        self._celery = celery
        self._app = app
        self._connection: Connection | None = None
        self._producer: Any = None
        self._pid = os.getpid()
        self._subscriptions: list[CelerySubscription] = []

    def publish(self, events: Sequence[Event]) -> None:
        """Hand events over to all who listen: as one message, which the broker drops if nobody does."""
        body = [_for_all(event) for event in events]
        try:
            producer = self._open()
            exchange = get_exchange(producer.connection, name=self._celery.conf.event_exchange)
            producer.publish(
                body, routing_key=f"holdfast.{self._app}", exchange=exchange.name, declare=[exchange], serializer="json",
                delivery_mode="transient", retry=False,
            )  # fmt: skip
        except Exception:
            self._disconnect()
            raise

    def _open(self) -> Any:
        if self._pid != os.getpid():  # forked: the connection is the parent's, which goes on with it
            self._connection = self._producer = None
            self._pid = os.getpid()
        if self._producer is None:
            self._connection = self._celery.connection_for_write()
            self._connection.ensure_connection(max_retries=0, timeout=CONNECTING)
            self._producer = self._celery.amqp.Producer(self._connection, auto_declare=False)
        return self._producer

    def _disconnect(self) -> None:
        connection, self._connection, self._producer = self._connection, None, None
        if connection is not None and self._pid == os.getpid():
            try:
                connection.release()
            except Exception as error:  # it is given up, whatever its driver says
                logger.debug("closing the connection to the broker: %s", error)

    def subscribe(self) -> CelerySubscription:
        """A new listener. It connects on a thread of its own, and again whenever the connection breaks."""
        subscription = CelerySubscription(self._celery, self._app)
        self._subscriptions = [each for each in self._subscriptions if not each.is_closed]
        self._subscriptions.append(subscription)
        return subscription

    def close(self) -> None:
        """End all subscriptions, and let go of the connection."""
        for subscription in self._subscriptions:
            subscription.close()
        self._disconnect()


class CelerySubscription:
    """A listener. What is published while the broker can't be reached is lost to it."""

    def __init__(self, celery: Celery, app: str) -> None:
        self.is_connected = threading.Event()
        self._celery = celery
        self._app = app
        self._events: deque[Any] = deque(maxlen=MOST)
        self._changed = threading.Condition()
        self._closed = threading.Event()
        threading.Thread(target=self._listen, name="holdfast-events", daemon=True).start()

    @property
    def is_closed(self) -> bool:
        return self._closed.is_set()

    def receive(self, timeout: float | None) -> list[Any] | None:
        """The events that have come, as the contract of `Subscription` says."""
        with self._changed:
            self._changed.wait_for(lambda: self._events or self._closed.is_set(), timeout)
            events = list(self._events)
            self._events.clear()
            return None if not events and self._closed.is_set() else events

    def close(self) -> None:
        """No more events."""
        self._closed.set()
        with self._changed:
            self._changed.notify_all()

    # -- the thread

    def _listen(self) -> None:
        pause = 0.0
        while not self._closed.wait(pause):
            try:
                self._drain()
            except Exception as error:  # of a broker's driver, which may raise anything
                level = logging.DEBUG if pause else logging.WARNING  # once
                logger.log(level, "the broker's events can't be heard for now, those of the store are: %r", error)
                pause = min(LONGEST_PAUSE, pause * 2 + 0.5) if not self.is_connected.is_set() else 0.5
                self.is_connected.clear()

    def _drain(self) -> None:
        with self._celery.connection_for_read() as connection:
            connection.ensure_connection(max_retries=0, timeout=CONNECTING)
            # With the queue that Celery's settings describe.
            queue = EventReceiver(connection, routing_key=f"holdfast.{self._app}", app=self._celery).queue
            with Consumer(connection, [queue], callbacks=[self._take], no_ack=True, accept=["json"]):
                self.is_connected.set()
                while not self._closed.is_set():
                    try:
                        connection.drain_events(timeout=LOOK)
                    except TimeoutError:
                        connection.heartbeat_check()

    def _take(self, body: Any, message: Any) -> None:
        events = [
            event for each in (body if isinstance(body, list) else [body]) if (event := _for_us(each)) is not None
        ]
        with self._changed:
            self._events.extend(events)
            self._changed.notify_all()


def _for_all(event: Event) -> dict[str, Any]:
    """An event as Celery's tools can read it: they count offsets from UTC in hours."""
    sent = {**event, "type": PREFIX + str(event["type"])}
    if isinstance(offset := event.get("utcoffset"), int):
        sent["utcoffset"] = offset / 3600
    return sent


def _for_us(sent: object) -> dict[str, Any] | None:
    if not isinstance(sent, dict) or not isinstance(kind := sent.get("type"), str) or not kind.startswith(PREFIX):
        return None
    event = {**sent, "type": kind.removeprefix(PREFIX)}
    if isinstance(offset := event.get("utcoffset"), int | float):
        event["utcoffset"] = round(offset * 3600)
    return event
