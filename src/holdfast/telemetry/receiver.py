"""Receiving telemetry events: in step with the senders' clocks, and handed to whom they concern."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

from holdfast.telemetry.clock import LamportClock, is_clock
from holdfast.telemetry.transport import Subscription, Transport

SENT_BY_CLIENTS = ("step-sent", "run-sent", "sent")
Handler = Callable[[dict[str, Any]], object]


class EventReceiver:
    """Listens to a transport, from the moment on that it is made."""

    def __init__(self, transport: Transport, clock: LamportClock | None = None) -> None:
        self.clock = clock or LamportClock()
        self._subscription: Subscription = transport.subscribe()
        self._pending: deque[Any] = deque()

    def capture(
        self, handlers: Mapping[str, Handler], *, limit: int | None = None, timeout: float | None = None
    ) -> int:
        """Hand each event to the handler of its type, and to the handler "*", until `limit` events have come, none
        has for `timeout` seconds, or `stop` is called; how many came.

        What is no event is skipped. What a handler raises, and trouble of the transport, goes to the caller, who may
        call `capture` again: it goes on with the next event."""
        handled = 0
        quiet_since = time.monotonic()
        while limit is None or handled < limit:
            if not self._pending:
                rest = None if timeout is None else max(0.0, quiet_since + timeout - time.monotonic())
                arrived = self._subscription.receive(rest)
                if arrived is None or (not arrived and rest is not None):
                    break
                self._pending.extend(arrived)
                continue
            event = self.receive(self._pending.popleft())
            if event is not None:
                handled += 1
                for name in (event["type"], "*"):
                    if (handler := handlers.get(name)) is not None:
                        handler(event)
            quiet_since = time.monotonic()
        return handled

    def receive(self, event: object) -> dict[str, Any] | None:
        """The event as handlers get it; None if it is none.

        The clock is adjusted to it; an event without one gets the next. `step-sent` and `run-sent` without one get 0, at
        every receiver: clients seldom synchronise, so whoever puts events in order places them before what follows.
        `received_at` is when it came, and `local_time` its timestamp in the time zone here. The timestamp itself stays
        what the sender said, for the order of events must be the same for all."""
        if not isinstance(event, Mapping) or not isinstance(event.get("type"), str):
            return None
        received = {name: value for name, value in event.items() if isinstance(name, str)}
        if is_clock(received.get("clock")):
            self.clock.adjust(received["clock"])
        elif received["type"] in SENT_BY_CLIENTS:
            received["clock"] = 0
        else:
            received["clock"] = self.clock.forward()
        received["received_at"] = time.time()
        received["local_time"] = local_time(received.get("timestamp"))
        return received

    def stop(self) -> None:
        """Let `capture`, on whichever thread it is, come back once it has handled what had come."""
        self._subscription.close()


def local_time(timestamp: object) -> str | None:
    """A timestamp in the time zone here, as ISO 8601 has it; None if it is none."""
    if isinstance(timestamp, bool) or not isinstance(timestamp, (int, float)):
        return None
    try:
        return datetime.fromtimestamp(timestamp).astimezone().isoformat()
    except (ValueError, OverflowError, OSError):
        return None
