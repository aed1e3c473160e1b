"""Where async code waits for runs: one thread looks for all who wait, however many they are. A thread and a bell for each
of a thousand kept a whole process from doing anything else."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import heapq
import itertools
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from holdfast.ports import Notifier, Watches

LOOK = 1.0
"""Seconds after which whoever waits looks at a run that was not announced."""
A_LOOK_EACH = 0.002
"""Seconds for each who waits, after which all have looked: with very many of them it takes longer than that."""
STAYS = 2.0
"""Seconds for which the thread stays when nobody waits."""
A_WHILE = 0.1
"""Seconds after which it looks who has come meanwhile, although nobody has woken it."""


@dataclass(slots=True, eq=False)
class _Guest:
    run_id: str
    looks: Iterator[float]
    loop: asyncio.AbstractEventLoop
    done: asyncio.Future[Any]
    context: contextvars.Context = field(default_factory=contextvars.copy_context)
    has_left: bool = False
    due: float = 0.0

    def settle(self, set_outcome: Callable[[Any], None], outcome: Any) -> None:
        def tell() -> None:
            if not self.done.done():
                set_outcome(outcome)

        with contextlib.suppress(RuntimeError):  # the caller's loop is closed: nobody waits any more
            self.loop.call_soon_threadsafe(tell)


class WaitingRoom:
    """Lets coroutines wait. What each looks for is an iterator: it looks whenever it is asked for the next item, which is
    the number of seconds after which it wants to look again, announced or not, and returns what it has found."""

    def __init__(self, notifier: Notifier) -> None:
        self._notifier = notifier
        self._reset()

    def _reset(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._arrived: list[_Guest] = []
        self._is_open = False
        self._watches: Watches | None = None

    async def wait(self, run_id: str, looks: Iterator[float]) -> Any:
        """What `looks` returns or raises. It is gone through on another thread."""
        __tracebackhide__ = True
        loop = asyncio.get_running_loop()
        guest = _Guest(run_id, looks, loop, loop.create_future())
        self._admit(guest)
        try:
            return await guest.done
        finally:
            guest.has_left = True

    def _admit(self, guest: _Guest) -> None:
        if self._pid != os.getpid():
            self._reset()  # the thread is the parent's
        with self._lock:
            if not self._is_open:
                threading.Thread(target=self._stay_open, name="holdfast-wait", daemon=True).start()
                self._is_open = True
            self._arrived.append(guest)
            if self._watches is not None:
                self._watches.wake()

    # -- the thread

    def _stay_open(self) -> None:
        service = _Service()
        try:
            service.look_first(self._next_guests(False) or [])
            with contextlib.closing(self._notifier.watch_many()) as watches:
                with self._lock:
                    self._watches = watches
                service.serve(watches, self._next_guests)
        except BaseException as error:  # whatever it is, it is theirs who wait
            with self._lock:
                left, self._arrived = self._arrived, []
                self._is_open, self._watches = False, None
            for guest in [*service.guests(), *left]:
                guest.settle(guest.done.set_exception, error)

    def _next_guests(self, may_close: bool) -> list[_Guest] | None:
        """Those who have come; None if nobody has and the room is closed now."""
        with self._lock:
            arrived, self._arrived = self._arrived, []
            if not arrived and may_close:
                self._is_open, self._watches = False, None
                return None
        return arrived


class _Service:
    """What the thread knows of those who wait."""

    def __init__(self) -> None:
        self._watches: Watches | None = None
        self._guests: dict[str, list[_Guest]] = {}
        self._count = 0
        self._agenda: list[tuple[float, int, _Guest]] = []
        self._numbers = itertools.count()

    def look_first(self, arrived: list[_Guest]) -> None:
        """What is there already needs no watch, which may take a while to be made."""
        self._let_in(arrived)

    def serve(self, watches: Watches, next_guests: Callable[[bool], list[_Guest] | None]) -> None:
        self._watches = watches
        watches.add(set(self._guests))
        self._go_on(self.guests())
        close_at = time.monotonic() + STAYS
        while True:
            now = time.monotonic()
            if self._guests:
                close_at = now + STAYS
            arrived = next_guests(now >= close_at)
            if arrived is None:
                return
            self._let_in(arrived)
            # Who comes wakes this thread, but that is a hint, too.
            until = self._agenda[0][0] - time.monotonic() if self._agenda else A_WHILE
            rung = watches.wait(max(0.0, until))
            self._go_on(guest for run_id in rung for guest in list(self._guests.get(run_id, ())))
            self._go_on(self._due(time.monotonic()))

    def guests(self) -> list[_Guest]:
        return [guest for of_a_run in self._guests.values() for guest in of_a_run]

    def _let_in(self, arrived: list[_Guest]) -> None:
        if arrived:
            for guest in arrived:
                self._guests.setdefault(guest.run_id, []).append(guest)
            self._count += len(arrived)
            if self._watches is not None:
                self._watches.add({guest.run_id for guest in arrived})
            self._go_on(arrived)

    def _due(self, now: float) -> Iterator[_Guest]:
        while self._agenda and self._agenda[0][0] <= now:
            due, _, guest = heapq.heappop(self._agenda)
            if guest.due == due:  # it has not looked meanwhile
                yield guest

    def _go_on(self, guests: Iterable[_Guest]) -> None:
        for guest in guests:
            if guest.has_left or guest.loop.is_closed():
                self._show_out(guest)
                continue
            try:
                seconds = guest.context.run(next, guest.looks)
            except StopIteration as end:
                guest.settle(guest.done.set_result, end.value)
                self._show_out(guest)
            except BaseException as error:  # whatever it is, it is the caller's
                guest.settle(guest.done.set_exception, error)
                self._show_out(guest)
            else:
                guest.due = time.monotonic() + min(seconds, max(LOOK, A_LOOK_EACH * self._count))
                heapq.heappush(self._agenda, (guest.due, next(self._numbers), guest))

    def _show_out(self, guest: _Guest) -> None:
        others = self._guests[guest.run_id]
        others.remove(guest)
        self._count -= 1
        guest.due = 0.0
        if not others:
            del self._guests[guest.run_id]
            if self._watches is not None:
                self._watches.drop(guest.run_id)
