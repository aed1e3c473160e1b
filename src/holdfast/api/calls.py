"""Things that workflow code has asked for: awaited, or waited for by a plain call."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Generator
from typing import Any, Generic, TypeVar

from holdfast.core.execution import Execution, PendingChild, code_line
from holdfast.core.loop import running, wait_plainly
from holdfast.errors import WrongContextError

R = TypeVar("R")


class Call(Coroutine[Any, Any, R]):
    """Something that begins when it is awaited. One that never is fails the run, with the line that made it."""

    __slots__ = ("__weakref__", "_begin", "_execution", "_future", "_number")

    def __init__(self, execution: Execution, begin: Callable[[], asyncio.Future[Any]], what: str) -> None:
        self._execution = execution
        self._begin = begin
        self._future: Generator[Any, Any, Any] | None = None
        self._number = execution.calls = execution.calls + 1
        execution.unawaited[self._number] = f"{what} at {code_line()}"

    def _iterator(self) -> Generator[Any, Any, Any]:
        if self._future is None:
            self._execution.unawaited.pop(self._number, None)
            self._future = self._begin().__await__()
        return self._future

    def __await__(self) -> Generator[Any, Any, R]:
        return self._iterator()

    def send(self, value: Any) -> Any:
        return self._iterator().send(value)

    def throw(self, typ: Any, val: Any = None, tb: Any = None) -> Any:
        if self._future is None:
            self.close()
            raise val if val is not None else typ
        return self._future.throw(typ if val is None else val)

    def close(self) -> None:
        self._execution.unawaited.pop(self._number, None)

    def begin(self) -> asyncio.Future[Any]:
        self._execution.unawaited.pop(self._number, None)
        return self._begin()


class StepFuture(Generic[R]):
    """A step or child that was submitted: await it, or call `.result()`."""

    def __init__(self, future: asyncio.Future[Any]) -> None:
        self._future = future

    def __await__(self) -> Generator[Any, Any, R]:
        return self._wait().__await__()

    def _wait(self) -> asyncio.Future[Any]:
        return self._future

    def result(self) -> R:
        """Wait for it in a plain call: only the task that calls waits."""
        found: R = wait_plainly(self._wait())
        return found

    def done(self) -> bool:
        return self._future.done()

    def cancel(self) -> bool:
        return self._future.cancel()


class ChildRun(StepFuture[R]):
    """A child run as its parent's code sees it."""

    def __init__(self, execution: Execution, child: PendingChild) -> None:
        super().__init__(child.future)
        self._execution = execution
        self._child = child

    @property
    def child_run_id(self) -> str:
        return self._child.child_id

    id = child_run_id

    def _wait(self) -> asyncio.Future[Any]:
        if running() is None:
            raise WrongContextError(
                f"the handle of child {self.child_run_id} belongs to the workflow that started it; elsewhere use "
                f"app.get_run({self.child_run_id!r})"
            )
        return self._execution.await_child(self._child)


def wait(awaitable: Any) -> Any:
    """Wait in a plain call for anything that can be awaited: for `def` workflows."""
    loop = running()
    if loop is None:
        raise WrongContextError("wf.wait() works in workflow code; elsewhere await it")
    if isinstance(awaitable, Call):
        return wait_plainly(awaitable.begin())
    if isinstance(awaitable, StepFuture):
        return awaitable.result()
    return wait_plainly(asyncio.ensure_future(awaitable, loop=loop))
