"""`sleep` and `shield`, as workflow code uses them."""

from __future__ import annotations

import asyncio
import datetime as dt
import time
from collections.abc import Coroutine
from types import TracebackType

from holdfast.api.calls import Call, StepCall
from holdfast.api.checks import to_epoch
from holdfast.core.context import current_step
from holdfast.core.loop import Task, running
from holdfast.durations import LONGEST, Duration, to_wait


def sleep(duration: Duration | dt.datetime) -> Coroutine[None, None, None]:
    """Wait for so long, or until a moment. In a workflow it is durable and holds nothing; in a step it is an ordinary
    sleep."""
    loop = running()
    if loop is not None:
        us = sleep_us(duration, loop.now)
        return Call(loop.execution, lambda: loop.sleep(us), "sleep")
    us = sleep_us(duration, time.time_ns() // 1_000)
    step = current_step.get()
    if step is not None:
        return StepCall(step, lambda: asyncio.sleep(us / 1_000_000), "sleep")
    return asyncio.sleep(us / 1_000_000)


def sleep_us(duration: Duration | dt.datetime, now: int) -> int:
    """Microseconds from now; none if the moment has passed."""
    if isinstance(duration, dt.datetime):
        return min(LONGEST, max(0, to_epoch(duration, "sleep") - now))
    return to_wait(duration, "sleep")


class shield:
    """`async with shield():` (or `with`): a cancellation waits until the block has ended, for clean-up that must
    finish."""

    def __enter__(self) -> None:
        self._task = asyncio.current_task() if running() is not None else None
        if isinstance(self._task, Task):
            self._task.shielded += 1

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        task = self._task
        if isinstance(task, Task):
            task.leave_shield()

    async def __aenter__(self) -> None:
        self.__enter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        self.__exit__(kind, error, tb)
