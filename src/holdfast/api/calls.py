"""Things that workflow code has asked for: awaited, or waited for by a plain call."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable, Coroutine, Generator
from typing import Any, Generic, TypeVar

from holdfast.core.context import StepContext
from holdfast.core.execution import Execution
from holdfast.core.greenlets import wait_plainly
from holdfast.core.loop import running
from holdfast.core.pending import PendingChild
from holdfast.core.unawaited import Unawaited
from holdfast.errors import WrongContextError

R = TypeVar("R")
B = TypeVar("B", bound=Awaitable[Any])  # what is awaited in its place


class _Begun(Coroutine[None, None, R], Generic[R, B]):
    """Something that begins when it is awaited, and is noted until then, with the line that made it."""

    __slots__ = ("__weakref__", "_begin", "_future", "_number", "_unawaited", "_what")

    def __init__(self, unawaited: Unawaited, begin: Callable[[], B], what: str) -> None:
        self._begin = begin
        self._what = what
        self._future: Generator[Any, Any, Any] | None = None
        self._unawaited = unawaited
        maker = sys._getframe(1).f_back  # outside of the constructors; the line is that of its caller
        self._number = unawaited.add(what, None if maker is None else maker.f_back)

    def __repr__(self) -> str:
        return f"<{self._what}, to be awaited>"

    def __await__(self) -> Generator[Any, Any, R]:
        if self._future is None:
            self._future = self.begin().__await__()
        return self._future

    def send(self, value: Any) -> Any:
        return self.__await__().send(value)

    def throw(self, typ: Any, val: Any = None, tb: Any = None) -> Any:
        if self._future is None:
            self.close()
            raise val if val is not None else typ
        return self._future.throw(typ if val is None else val)

    def close(self) -> None:
        self._unawaited.remove(self._number)

    def begin(self) -> B:
        self._unawaited.remove(self._number)
        begin, self._begin = self._begin, _begun  # it may be a method of this very object
        return begin()


class Call(_Begun[R, asyncio.Future[Any]]):
    """What workflow code awaits. If it never does, the run fails."""

    __slots__ = ("_execution",)

    def __init__(self, execution: Execution, begin: Callable[[], asyncio.Future[Any]], what: str) -> None:
        super().__init__(execution.code.unawaited, begin, what)
        self._execution = execution


class StepCall(_Begun[R, Coroutine[Any, Any, R]]):
    """What the code of a step awaits. If it never does, the attempt fails."""

    __slots__ = ()

    def __init__(self, step: StepContext, begin: Callable[[], Coroutine[Any, Any, R]], what: str) -> None:
        super().__init__(step.unawaited, begin, what)

    def close(self) -> None:
        super().close()
        if self._future is not None:
            self._future.close()


def _begun() -> Any:
    raise WrongContextError("this was awaited before; keep its result, or ask again")


class StepFuture(Generic[R]):
    """A step or child that was submitted: await it, call `.result()`, or give it to `asyncio.wait` with others."""

    def __init__(self, future: asyncio.Future[Any]) -> None:
        self._future = future

    def __hash__(self) -> int:
        return hash(self._future)  # its number in the run: asyncio keeps futures in sets, and their order has to repeat

    def __eq__(self, other: object) -> bool:
        return self is other

    def __await__(self) -> Generator[Any, Any, R]:
        return self._wait().__await__()

    def _wait(self) -> asyncio.Future[Any]:
        return self._future

    def result(self) -> R:
        """Wait for it in a plain call: only the task that calls waits."""
        found: R = wait_plainly(self._wait())
        return found

    def get(self) -> R:
        """Celery's spelling of `result`."""
        return self.result()

    def done(self) -> bool:
        """Whether it has ended, as far as this run knows."""
        return self._future.done()

    def cancel(self) -> bool:
        """Stop waiting for it, and have it interrupted; False if it has ended."""
        return self._future.cancel()

    def cancelled(self) -> bool:
        """Whether it was cancelled by this run's code."""
        return self._future.cancelled()

    def exception(self) -> BaseException | None:
        """What it has raised, once it is done; None if it has a result."""
        return self._future.exception()

    def add_done_callback(self, callback: Callable[[Any], object], *, context: Any = None) -> None:
        """As of an asyncio future: called by the run's loop when it has ended."""
        self._wait().add_done_callback(callback, context=context)

    def remove_done_callback(self, callback: Callable[[Any], object]) -> int:
        """As of an asyncio future."""
        return self._future.remove_done_callback(callback)


class ChildRun(StepFuture[R]):
    """A child run as its parent's code sees it."""

    def __init__(self, execution: Execution, child: PendingChild) -> None:
        super().__init__(child.future)
        self._execution = execution
        self._child = child

    @property
    def child_run_id(self) -> str:
        """The child's id: `app.get_run` finds it from outside."""
        return self._child.child_id

    id = child_run_id

    def _wait(self) -> asyncio.Future[Any]:
        if running() is None:
            raise WrongContextError(
                f"the handle of child {self.child_run_id} belongs to the workflow that started it; elsewhere use "
                f"app.get_run({self.child_run_id!r})"
            )
        return self._execution.children.wait_for(self._child)


def wait(awaitable: Any) -> Any:
    """Wait in a plain call for anything that can be awaited: for `def` workflows."""
    loop = running()
    if loop is None:
        return _wait_outside(awaitable)
    if isinstance(awaitable, Call):
        return wait_plainly(awaitable.begin())
    if isinstance(awaitable, StepFuture):
        return awaitable.result()
    return wait_plainly(asyncio.ensure_future(awaitable, loop=loop))


def _wait_outside(awaitable: Any) -> Any:
    """Where there is no run (a unit test, a step), a plain call can wait as long as no event loop runs here."""

    async def until_done() -> Any:
        return await awaitable

    if asyncio._get_running_loop() is None:
        return asyncio.run(until_done())
    if asyncio.iscoroutine(awaitable):
        awaitable.close()
    raise WrongContextError("wf.wait() would block the event loop that runs here; await it instead")
