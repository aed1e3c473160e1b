"""The thread that turns an engine is lent to the executor while the engine waits: a step then costs no switch of threads.

Code of users runs on that thread, and may block it. So a second thread looks from time to time: if the engine is wanted and
its thread does not come back, the engine goes on with another one, and if a turn takes long, steps get threads of their own.
Workflows that wait in a plain call are read again then: a plain call waits in a greenlet, which belongs to a thread. With many
of these, or long ones, the thread is not lent.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Protocol

from holdfast.ports import Borrower

FEW = 16
"""With more steps under way than that, theirs are threads of their own: switches are shared by many then, and steps execute
while the engine commits."""
LOOK = 0.01
"""Seconds between two looks while there is something to look at."""
LATE = 0.02
"""Seconds that a step may keep an engine waiting, or a turn the connections on the steps' loop."""
QUIET, ASLEEP = 1.0, 0.5
"""After so many seconds without anything to look at, it looks only that often, or when it is told to."""
PAUSE = 0.25
"""Seconds until the thread is lent again, once steps needed threads of their own."""
PAUSES = (1.0, 60.0)
"""The same after a step has held up the engine: twice as long each time, up to the second number."""
COME_BACK = 0.02
"""Seconds that the steps' loop has to leave its own thread."""


logger = logging.getLogger("holdfast.engine")


class Replaced(Exception):
    """Another thread turns the engine now."""


class Movable(Protocol):
    """An engine, or an executor of attempts of others."""

    def may_move(self) -> bool:
        """Whether another thread can go on with it, at any time until its next turn."""

    def leave_thread(self) -> Callable[[], None]:
        """Another thread goes on with it. What is returned is left to the present one, as soon as that is free."""


class Lending:
    """Who turns the engine: the thread with the number `turner`. `go_on` is called on a thread that takes over."""

    def __init__(self, borrower: Borrower, engine: Movable, go_on: Callable[[], None]) -> None:
        self._borrower = borrower
        self._engine = engine
        self._go_on = go_on
        self._left_behind: dict[int, Callable[[], None]] = {}
        self.turner = 0
        self._lock = threading.Lock()
        self._lent_by = 0  # the thread that is lent; 0 if none is
        self._wanted_at = 0.0  # when the thread that is lent was first wanted back; 0 if it isn't
        self._back_by = 0.0  # when the engine wants it back in any case
        self._turns_since = 0.0  # when the thread last came back
        self._apart_until = 0.0
        self._pause = PAUSES[0]
        self._sleeps = True  # the thread that looks
        self._look = threading.Event()
        self._has_ended = False
        self._pid = os.getpid()

    # -- on the engine's thread

    def is_open(self, steps: int) -> bool:
        """Whether the thread is to be lent now, with so many steps under way."""
        if steps <= FEW and self._engine.may_move() and time.monotonic() >= self._apart_until:
            return self._borrower.borrows() or self._borrow()
        if self._borrower.borrows():
            with self._lock:
                self._release()
        return False

    def _borrow(self) -> bool:
        if self._borrower.is_busy():  # it is asked again before the next step begins
            return False
        with self._lock:
            if self._borrower.borrow(COME_BACK, self._keeps):
                return True
            self._apart_until = time.monotonic() + PAUSE
            return False

    def _keeps(self) -> bool:
        """Something that is under way needs this thread, which is wanted back; whether the engine goes on with another."""
        with self._lock:
            if self._lent_by == threading.get_ident():  # else it does already
                self._move()
            return self._lent_by != threading.get_ident()

    def lend(self, seconds: float, is_wanted: Callable[[], bool]) -> bool:
        """Lend this thread until it is wanted, or so many seconds have passed. It may come back before that; with False if
        there is nothing to wait for on it. Raises Replaced if the engine has gone on with another thread meanwhile."""
        turner = self.turner
        with self._lock:  # whoever releases the executor sees that it is lent, or this thread sees the release
            self._wanted_at, self._back_by = 0.0, time.monotonic() + seconds
            self._lent_by = threading.get_ident()
        if is_wanted():  # it came before anybody could know that the thread has to be called back
            seconds = 0.0
        if self._sleeps and self._borrower.is_busy():
            self._look.set()
        try:
            has_waited = self._borrower.lend(seconds)
        finally:
            self._come_back(turner)
        return has_waited

    def _come_back(self, turner: int) -> None:
        """Whatever has happened on the thread: if the engine has gone on with another one, it must do nothing more."""
        if os.getpid() != self._pid:
            sys.stderr.write(
                "a step has forked its worker and returned in the child, which ends here: end it in the step\n"
            )
            os._exit(1)
        with self._lock:
            if self.turner == turner:
                self._lent_by = 0
                self._turns_since = time.monotonic()
                return
            left_behind = self._left_behind.pop(turner)
        try:
            left_behind()
        except BaseException:
            logger.exception("a thread that was left could not let go of the code on it")
        raise Replaced

    def has_work(self, steps: int) -> bool:
        """Whether any of so many steps wait for the thread, though the engine has something to do."""
        return self._borrower.is_busy() and self._borrower.borrows() and self.is_open(steps)

    # -- on any thread

    def want(self) -> None:
        """Something has arrived."""
        if self._lent_by:
            if not self._wanted_at:
                self._wanted_at = time.monotonic()
            if self._sleeps:
                self._look.set()
            self._borrower.recall()

    def start(self) -> None:
        self._borrower.offer(self.is_open)
        threading.Thread(target=self._keep_looking, name="holdfast-lending", daemon=True).start()

    def end(self) -> None:
        """No more is lent."""
        with self._lock:
            self._has_ended = True
            self._release()
        self._look.set()

    def _release(self, pause: float | None = None) -> None:
        self._apart_until = time.monotonic() + (PAUSE if pause is None else pause)
        self._borrower.release()

    # -- on the thread that looks

    def _keep_looking(self) -> None:
        last = time.monotonic()
        while True:
            self._sleeps = time.monotonic() - last > QUIET
            self._look.wait(ASLEEP if self._sleeps else LOOK)
            self._look.clear()
            with self._lock:
                if self._has_ended:
                    return
                now = time.monotonic()
                if self._lent_by:
                    late = now - min(self._wanted_at or now, self._back_by)
                    # A thread that no step holds comes back by itself, on a busy machine a bit later.
                    if late > ASLEEP or (late > LATE and self._borrower.holds_thread()):
                        self._move()
                elif self._borrower.borrows() and now - self._turns_since > LATE:
                    self._release()
                if self._borrower.is_busy():
                    last = now

    def _move(self) -> None:
        """Go on with another thread. The present one is left to the step that keeps it, and to the steps' loop."""
        try:
            next_one = threading.Thread(
                target=self._take_over, args=(self.turner + 1,), name="holdfast-engine", daemon=True
            )
            next_one.start()
            self._left_behind[self.turner] = self._engine.leave_thread()
        except Exception as error:  # the system has no more, for example: the step has to come to its end
            logger.error("a step holds up the engine, which can't go on with another thread: %s", error)
            return
        self.turner += 1
        self._lent_by = 0
        self._release(self._pause)
        self._pause = min(self._pause * 2, PAUSES[1])

    def _take_over(self, turner: int) -> None:
        with self._lock:  # until the other one has left
            has_left = self.turner == turner
        if has_left:
            self._go_on()
