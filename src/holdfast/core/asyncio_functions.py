"""asyncio's own functions where their order depends on memory addresses or on the version of Python.

Each is given new code in place when this module is imported: who has imported the function before must get the same.
Outside workflow code they do what they did.
"""

from __future__ import annotations

import asyncio
import asyncio.tasks
import sys
from collections.abc import Callable, Coroutine, Iterable
from typing import Any

from holdfast.core.loop import WorkflowLoop, running


class _Completions:
    """asyncio.as_completed as it is from Python 3.13 on, but in the order given where asyncio makes a set."""

    def __init__(self, loop: WorkflowLoop, fs: Iterable[Any], timeout: float | None) -> None:
        self._done: asyncio.Queue[asyncio.Future[Any] | None] = asyncio.Queue()
        self._todo = {asyncio.ensure_future(f): None for f in dict.fromkeys(fs)}
        self._left = len(self._todo)
        for future in self._todo:
            future.add_done_callback(self._completed)
        self._timer = loop.call_later(timeout, self._expired) if self._todo and timeout is not None else None

    def _completed(self, future: asyncio.Future[Any]) -> None:
        if future in self._todo:
            del self._todo[future]
            self._done.put_nowait(future)
            if not self._todo and self._timer is not None:
                self._timer.cancel()

    def _expired(self) -> None:
        for _ in self._todo:
            self._done.put_nowait(None)
        self._todo.clear()

    async def _next(self) -> asyncio.Future[Any]:
        future = await self._done.get()
        if future is None:
            raise TimeoutError
        return future

    async def _next_result(self) -> Any:
        return (await self._next()).result()

    def __iter__(self) -> _Completions:
        return self

    def __next__(self) -> Coroutine[Any, Any, Any]:
        if not self._left:
            raise StopIteration
        self._left -= 1
        return self._next_result()

    def __aiter__(self) -> _Completions:
        return self

    async def __anext__(self) -> asyncio.Future[Any]:
        if not self._left:
            raise StopAsyncIteration
        self._left -= 1
        return await self._next()


def _as_completed(fs: Iterable[Any], *, timeout: float | None = None) -> Any:
    loop = running()
    if loop is None or asyncio.isfuture(fs) or asyncio.iscoroutine(fs):
        return _stock["as_completed"](fs, timeout=timeout)
    return _Completions(loop, fs, timeout)


async def _wait_for(fut: Any, timeout: float | None) -> Any:
    """asyncio.wait_for as it is from Python 3.12 on: it makes no task, so what it waits for begins at once."""
    if running() is None:
        return await _stock["wait_for"](fut, timeout)
    if timeout is not None and timeout <= 0:
        fut = asyncio.ensure_future(fut)
        if fut.done():
            return fut.result()
        fut.cancel()
        await asyncio.wait([fut])
        try:
            return fut.result()
        except asyncio.CancelledError as cancelled:
            raise TimeoutError from cancelled
    async with asyncio.timeout(timeout):
        return await fut


def _call_as_completed(fs: Any, *, timeout: Any = None) -> Any:
    return _holdfast_as_completed(fs, timeout=timeout)  # type: ignore[name-defined]  # noqa: F821


async def _call_wait_for(fut: Any, timeout: Any) -> Any:
    return await _holdfast_wait_for(fut, timeout)  # type: ignore[name-defined]  # noqa: F821


def _replace(function: Any, code: Any, replacement: Callable[..., Any]) -> None:
    stock = type(function)(function.__code__, function.__globals__, function.__name__)
    stock.__kwdefaults__ = function.__kwdefaults__
    _stock[function.__name__] = stock
    setattr(asyncio.tasks, f"_holdfast_{function.__name__}", replacement)
    function.__code__ = code.__code__


_stock: dict[str, Any] = {}
_replace(asyncio.as_completed, _call_as_completed, _as_completed)
if sys.version_info < (3, 12):
    _replace(asyncio.wait_for, _call_wait_for, _wait_for)
