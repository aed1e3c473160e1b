"""Steps on threads that others own and lend, one attempt at a time: those of a Celery worker's pool.

Async steps, and those that ask for a process of their own, execute as they do everywhere.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import signal
import threading
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any

from holdfast.executors.local import Execution, LocalExecutor
from holdfast.ports import Attempt

INTERRUPT = signal.SIGURG
"""By default nobody hears it, so one that comes too late does nothing."""


class LentThreads(LocalExecutor):
    """`is_apart` says that each lent thread is the only one of a process of its own, where a step that is suspected of
    killing its worker harms nobody. `is_ending` says whether what the code raises comes from the end of the process."""

    def __init__(
        self, *given: Any, is_apart: bool = False, is_ending: Callable[[], bool] = lambda: False, **options: Any
    ) -> None:
        super().__init__(*given, **options)
        self._is_apart = is_apart
        self._is_ending = is_ending
        self._lent: dict[int, Execution] = {}
        self._on_main: Execution | None = None

    def submit(self, attempts: Sequence[Attempt]) -> None:
        others = []
        for attempt in attempts:
            definition = self._find(attempt.step)
            pool = definition.options.pool if self._is_apart else attempt.pool
            if definition.is_async or pool == "process":
                others.append(attempt)
                continue
            execution = Execution(self, attempt, definition)
            self.executing[attempt.token] = self.waiting[attempt.token] = execution
            self._lent[attempt.token] = execution
        if others:
            super().submit(others)

    def work_of(self, token: int) -> Callable[[], None] | None:
        """What the thread that is lent for an attempt has to do; None if it has only to wait."""
        execution = self._lent.pop(token, None)
        return None if execution is None else functools.partial(self._execute_here, execution)

    def fail(self, token: int, error: BaseException) -> None:
        """End an attempt with an error that was not raised by its code."""
        execution = self.executing.get(token)
        if execution is not None:
            self.waiting.pop(token, None)
            execution.end(self.runner.failed(execution, error))

    def _execute_here(self, execution: Execution) -> None:
        is_main = threading.current_thread() is threading.main_thread()
        if is_main:
            self._let_interrupt()
            execution.kill = _interrupt_main
        if not execution.begin():
            return
        if is_main:
            self._on_main = execution
        try:
            # In a copy: what instruments Celery's tasks has something to say to the code of the step.
            outcome = contextvars.copy_context().run(self.runner.run, execution.definition, execution)
        except asyncio.CancelledError:  # the interruption came when the code had ended; its outcome was told before
            return
        finally:
            self._on_main = None
        if self._is_ending():
            raise SystemExit  # it didn't fail: its process is told to end, and others are given the attempt
        execution.settle(outcome)

    def _let_interrupt(self) -> None:
        # Bound methods are made anew each time, so they are compared.
        if signal.getsignal(INTERRUPT) != self._interrupted:
            signal.signal(INTERRUPT, self._interrupted)

    def _interrupted(self, number: int, frame: FrameType | None) -> None:
        """On the main thread, between two instructions of the step, or of what came after it."""
        execution, self._on_main = self._on_main, None
        if execution is None:
            return
        if not execution.cancelled:
            self._on_main = execution
            return
        attempt = execution.attempt
        raise asyncio.CancelledError(f"step {attempt.step!r} of run {attempt.run_id} was cancelled, or took too long")


def _interrupt_main() -> None:
    """A signal, and not only an exception: it ends what waits for the system too."""
    ident = threading.main_thread().ident
    if ident is not None:
        signal.pthread_kill(ident, INTERRUPT)
