"""Sending telemetry events: the sender puts them into a buffer with bounds, a thread carries them away in batches."""

from __future__ import annotations

import logging
import os
import platform
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from datetime import datetime
from typing import Any

from holdfast.telemetry.clock import LamportClock
from holdfast.telemetry.events import MAX_NODES, MAX_TEXT, plain
from holdfast.telemetry.transport import Transport

logger = logging.getLogger("holdfast.telemetry")
BATCH = 500
MAX_PAUSE = 30.0


def utcoffset(timestamp: float | None = None) -> int:
    """How far local time is ahead of UTC, in seconds."""
    offset = datetime.fromtimestamp(time.time() if timestamp is None else timestamp).astimezone().utcoffset()
    return int(offset.total_seconds()) if offset is not None else 0


class EventDispatcher:
    """Sends telemetry events. `send` never waits for anybody and fails for no reason but a wrong `type`.

    If events come faster than they are carried away, the oldest of those that wait are dropped, and counted in
    `dropped`. Trouble of the transport is logged once, and what waits is offered again with growing pauses. With
    `interval=None` there is no thread: whoever has the dispatcher calls `flush` on one of its own.

    `origin` names this process for all who listen: a worker's id; if none is given, host and pid. A forked child says
    its own pid, and leaves what waited at the fork to its parent.
    """

    def __init__(
        self,
        transport: Transport,
        clock: LamportClock | None = None,
        *,
        origin: str | None = None,
        hostname: str | None = None,
        limit: int = 10_000,
        interval: float | None = 0.1,
    ) -> None:
        self.transport = transport
        self.clock = clock or LamportClock()
        self.hostname = hostname or platform.node()
        self.dropped = 0
        self._origin = origin
        self._limit = limit
        self._interval = interval
        self._closed = False
        self._begin()
        _dispatchers.add(self)

    def _begin(self) -> None:
        origin = self._origin or f"{self.hostname}:{os.getpid()}"
        self._about: dict[str, Any] = {"origin": origin, "hostname": self.hostname, "pid": os.getpid(), "utcoffset": 0}
        self._hour = -1  # that of the offset
        self._buffer: deque[dict[str, Any]] = deque()
        self._lock = threading.Lock()  # held for moments only: senders take it
        self._publishing = threading.Lock()
        self._wanted = threading.Event()
        self._thread: threading.Thread | None = None
        self._is_in_trouble = False

    @property
    def origin(self) -> str:
        """The name under which this process sends."""
        return str(self._about["origin"])

    def send(self, type: str, *, blind: bool = False, **fields: Any) -> dict[str, Any]:
        """Send an event of that type, with any fields, and return it as it is sent. A `blind` one has no clock: the
        sender doesn't know when it was, in the order of things, and each receiver gives it its own next."""
        name: object = type
        if not isinstance(name, str) or not name:
            raise ValueError(f"the type of a telemetry event is a text such as 'step-started', not {name!r}")
        now = time.time()
        if (hour := int(now // 3600)) != self._hour:  # the offset changes with the seasons
            self._hour, self._about["utcoffset"] = hour, utcoffset(now)
        event = {"type": name, "timestamp": now, **self._about, **fields}
        for field, value in fields.items():  # most need nothing, and this is on everybody's way
            kind = value.__class__
            if kind is str:
                if value.isascii() and len(value) <= MAX_TEXT:
                    continue
            elif kind is int:
                if -(2**63) <= value < 2**63:
                    continue
            elif value is None:
                continue
            event[field] = plain(value, [MAX_NODES])
        with self._lock:
            if not blind and "clock" not in event:  # under the lock: what is sent first has the lower clock
                event["clock"] = self.clock.forward()
            if self._closed:
                self.dropped += 1
                return event
            self._buffer.append(event)
            if len(self._buffer) > self._limit:
                self._buffer.popleft()
                self.dropped += 1
            if self._thread is None and self._interval is not None:
                self._thread = _started(self._carry)
        return event

    def flush(self) -> bool:
        """Hand what waits to the transport, now and on this thread; whether all of it could be."""
        with self._publishing:
            while batch := self._take():
                try:
                    self.transport.publish(batch)
                except Exception as error:
                    self._give_back(batch)
                    if not self._is_in_trouble:
                        self._is_in_trouble = True
                        logger.warning("telemetry events can't be sent for now, work goes on without: %r", error)
                    return False
                if self._is_in_trouble:
                    self._is_in_trouble = False
                    logger.warning("telemetry events are sent again; %d were dropped so far", self.dropped)
            return True

    def _take(self) -> list[dict[str, Any]]:
        with self._lock:
            return [self._buffer.popleft() for _ in range(min(BATCH, len(self._buffer)))]

    def _give_back(self, batch: list[dict[str, Any]]) -> None:
        with self._lock:
            room = max(0, self._limit - len(self._buffer))
            kept = batch[-room:] if room else []
            self.dropped += len(batch) - len(kept)
            self._buffer.extendleft(reversed(kept))

    def _carry(self) -> None:
        assert self._interval is not None
        pause = self._interval
        while not self._wanted.wait(pause):
            pause = self._interval if self.flush() else min(MAX_PAUSE, pause * 2 + 0.1)

    def close(self, timeout: float = 2.0) -> None:
        """Send what waits, for at most `timeout` seconds, and end the thread. What is sent later is dropped. The
        transport stays open: it may be somebody else's too."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        self._wanted.set()
        # On a thread of its own, for a transport may hang, and a process that ends must not hang with it.
        last = _started(self.flush)
        if last is not None:
            last.join(timeout)

    def __enter__(self) -> EventDispatcher:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _started(work: Callable[[], object]) -> threading.Thread | None:
    """A thread that does this; None if there can't be one: the process is ending, or has too many."""
    thread = threading.Thread(target=work, name="holdfast-telemetry", daemon=True)
    try:
        thread.start()
    except RuntimeError:
        return None
    return thread


_dispatchers: weakref.WeakSet[EventDispatcher] = weakref.WeakSet()


def _begin_in_child() -> None:
    """A forked child has none of its parent's threads; what waited is the parent's to send."""
    for dispatcher in list(_dispatchers):
        dispatcher._begin()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_in_child)
