"""`sleep` and `shield`, as workflow code uses them."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from types import TracebackType

from holdfast.api.calls import Call, StepCall
from holdfast.core.context import current_step
from holdfast.core.loop import Task, running
from holdfast.durations import Duration, to_us


def sleep(duration: Duration) -> Coroutine[None, None, None]:
    """Wait. In a workflow it is durable and holds nothing; in a step it is an ordinary sleep."""
    us = to_us(duration, "sleep")
    loop = running()
    if loop is not None:
        return Call(loop.execution, lambda: loop.sleep(us), "sleep")
    step = current_step.get()
    if step is not None:
        return StepCall(step, lambda: asyncio.sleep(us / 1_000_000), "sleep")
    return asyncio.sleep(us / 1_000_000)


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
