"""An event loop, and who runs it: a thread of its own, or one that is lent for a while.

It changes its thread only while it is not used: libraries may know their code by its thread.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from holdfast.core.source_lines import line_of_thread, package_of

logger = logging.getLogger("holdfast.executor")
MOMENT = 0.002  # seconds that steps have to end on a thread that is wanted back
ROUNDS = 20  # after so many rounds of what is ready, sockets and clocks are looked at
OFTEN = 0.002  # and after so many seconds, whatever is ready


class LoopThread:
    """One loop, run by one thread at a time. `keeps` is called where a thread that was lent is needed longer, and says
    whether the loop can keep it."""

    def __init__(self, name: str, is_used: Callable[[], bool], keeps: Callable[[], bool]) -> None:
        self.name = name
        self.loop = asyncio.new_event_loop()
        self.is_closing = False
        self._is_used = is_used
        self._keeps = keeps
        self._running = threading.Lock()  # held by the thread that runs it
        self._thread: threading.Thread | None = None  # that one, or the last one
        self._is_apart = False  # the thread that runs it, or is about to, is its own
        self._alarm: asyncio.TimerHandle | None = None
        self._asking = threading.Lock()
        self._asked: threading.Event | None = None  # to leave its thread, for as long as that is waited for
        self.looked_at = 0.0  # when sockets and clocks were last looked at on a thread that was lent

    def call(self, function: Callable[..., object], *args: Any) -> None:
        """Call something on it, from any thread."""
        try:
            self.loop.call_soon_threadsafe(function, *args)
        except RuntimeError:  # it is closed
            if not self.is_closing:
                raise

    # -- a thread of its own

    def run_apart(self) -> None:
        """Let it have a thread of its own: the one that runs it, even if it was only lent, or else a new one."""
        self._is_apart = True
        if self._running.locked():
            if self._thread is not None:
                self._thread.name = self.name
        elif not self.is_closing:
            try:
                threading.Thread(target=self._run, name=self.name, daemon=True).start()
            except RuntimeError as error:  # the system has no more: it is tried again when the loop is looked at
                logger.error("async steps wait, as there is no thread for them: %s", error)

    def _run(self) -> None:
        with self._running:
            if self._is_apart and not self.loop.is_closed():
                self._thread = threading.current_thread()
                asyncio.set_event_loop(self.loop)
                self._keep_running()
        self._look_back()

    def _keep_running(self) -> None:
        keep_running(self.loop, lambda: self.is_closing or not self._is_apart)
        if self.is_closing:
            if self._alarm is not None:
                self._alarm.cancel()
            try:
                self.loop.run_until_complete(self.loop.shutdown_asyncgens())
            except BaseException as error:
                _tell(error)
            finally:
                self.loop.close()

    def _look_back(self) -> None:
        if self._is_apart:  # that was said too late for the thread that has just left
            self.run_apart()

    def end(self) -> None:
        """On the loop: it ends."""
        self.is_closing = True
        self.loop.stop()

    def has_left(self, within: float) -> bool:
        """Whether no thread runs it, or will have left it soon."""
        if self._running.acquire(timeout=within):
            self._running.release()
            return True
        return False

    # -- a thread that is lent

    def run_for(self, seconds: float, first: Callable[[], None]) -> bool:
        """Run it on this thread until it is stopped, or until so many seconds have passed; and for as long as it needs a
        thread if it keeps this one. `first` is called before it runs. False if another thread runs it."""
        if self.is_closing or not self._running.acquire(blocking=False):
            return False
        try:
            self._thread = threading.current_thread()
            self._set_alarm(seconds)
            try:
                first()
            except BaseException as error:
                _tell(error)
            was_stopped = run_ready(self.loop)
            if was_stopped and time.monotonic() - self.looked_at > OFTEN:
                self.loop.call_soon(self.loop.stop)
                was_stopped = False
            if not was_stopped:
                run_once(self.loop)
                self.looked_at = time.monotonic()
            if not self._is_apart and self._stays_used() and self._keeps():
                self.run_apart()
            if self._is_apart or self.is_closing:
                self._keep_running()
        finally:
            self._running.release()
        self._look_back()
        return True

    def _set_alarm(self, seconds: float) -> None:
        """An alarm that is there already and rings too early does no harm."""
        loop, alarm = self.loop, self._alarm
        now = loop.time()
        if seconds <= 0:
            loop.call_soon(loop.stop)
        elif alarm is None or not now < alarm.when() <= now + seconds:
            if alarm is not None:
                alarm.cancel()
            self._alarm = loop.call_at(now + seconds, loop.stop)

    def _stays_used(self) -> bool:
        """Whether it is still used after a moment."""
        end = time.monotonic() + MOMENT
        while self._is_used() and not self._is_apart:
            if time.monotonic() > end:
                return True
            self.loop.call_soon(self.loop.stop)
            run_once(self.loop)
        return False

    def stop(self) -> None:
        """The thread that was lent is wanted back."""
        if asyncio._get_running_loop() is self.loop:
            self._stop()
        else:
            self.call(self._stop)

    def _stop(self) -> None:
        if not self._is_apart:
            self.loop.stop()

    def come_back(self, within: float) -> bool:
        """Leave the thread that it has, so that another can run it; False if it is used, or that takes longer."""
        self._asked = answered = threading.Event()
        self.call(self._leave_if_unused, answered)
        answered.wait(within)
        with self._asking:  # an answer that comes later counts for nothing
            self._asked = None
        if not self._is_apart and self.has_left(within):
            return True
        self.run_apart()
        return False

    def _leave_if_unused(self, answered: threading.Event) -> None:
        with self._asking:
            if self._asked is answered and not self._is_used():
                self._is_apart = False
                self.loop.stop()
        answered.set()

    # -- what its thread does

    def is_idle(self) -> bool:
        """Whether its thread executes no code of a step: then it is the machine that keeps it from answering."""
        if not self._running.locked():  # it waits for a thread
            return True
        frame = sys._current_frames().get(self._ident())
        return frame is not None and package_of(frame) in ("asyncio", "selectors")

    def line(self) -> str:
        return line_of_thread(self._ident())

    def _ident(self) -> int:
        return 0 if self._thread is None else self._thread.ident or 0


def run_ready(loop: Any) -> bool:
    """Run what is ready, and what becomes ready by that, without looking at sockets and clocks: that would let go of the
    interpreter for a moment, and each thread that waits for it would wake up in vain. Whether the loop was stopped
    meanwhile. False at once for loops that are not asyncio's own."""
    kind: object = type(loop)
    if kind is not asyncio.SelectorEventLoop:
        return False
    ready, hooks = loop._ready, sys.get_asyncgen_hooks()
    loop._thread_id = threading.get_ident()
    sys.set_asyncgen_hooks(loop._asyncgen_firstiter_hook, loop._asyncgen_finalizer_hook)
    asyncio._set_running_loop(loop)
    handle: asyncio.Handle | None = None
    rounds = 0
    try:
        while ready and not loop._stopping and rounds < ROUNDS:
            rounds += 1
            for _ in range(len(ready)):
                handle = ready.popleft()
                if not handle._cancelled:
                    handle._run()
        return bool(loop._stopping)
    except BaseException as error:
        _tell(error)
        return True  # it may have been stopped before that
    finally:
        handle = None  # else it and what it holds would live until the next time
        loop._stopping, loop._thread_id = False, None
        asyncio._set_running_loop(None)
        sys.set_asyncgen_hooks(*hooks)


def run_once(loop: asyncio.AbstractEventLoop) -> None:
    """Run a loop until it is stopped, whatever the code of users does: asyncio lets SystemExit and KeyboardInterrupt of
    any task through, and anybody may call `loop.stop`."""
    try:
        loop.run_forever()
    except BaseException as error:
        _tell(error)


def _tell(error: BaseException) -> None:
    logger.error("code on the event loop of async steps raised %s, which ends no worker", type(error).__name__)


def keep_running(loop: asyncio.AbstractEventLoop, is_over: Callable[[], bool]) -> None:
    """The same until it is over."""
    while not is_over():
        run_once(loop)
