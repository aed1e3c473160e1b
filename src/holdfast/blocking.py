"""What blocks, for async code. A call that is soon over runs on asyncio's pool of threads; waiting for long gets a thread
of its own. The pool has so few that a handful of callers who wait for runs would keep everybody else from sending the
very messages that those runs wait for; and a process can't end before each of them has come back."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import functools
import threading
from collections.abc import Callable, Coroutine, Iterator
from types import TracebackType
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar

P = ParamSpec("P")
S = TypeVar("S")
T = TypeVar("T")


def twin(method: Callable[Concatenate[S, P], T]) -> Callable[Concatenate[S, P], Coroutine[Any, Any, T]]:
    """A method for async code, with the same parameters: `aname = twin(name)`."""

    @functools.wraps(method)
    async def call(self: S, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await asyncio.to_thread(method, self, *args, **kwargs)

    call.__name__ = f"a{method.__name__}"
    call.__qualname__ = f"{method.__qualname__.rpartition('.')[0]}.{call.__name__}"
    call.__doc__ = f"`{method.__name__}` for async code."
    return call


class Opened(contextlib.ContextDecorator, Generic[T]):
    """What is open for the length of a block: `with`, or in async code `async with`, where neither its beginning nor its
    end blocks the event loop."""

    def __init__(self, make: Callable[[], contextlib.AbstractContextManager[T]]) -> None:
        self._make = make

    def __enter__(self) -> T:
        self._block = self._make()
        return self._block.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> bool | None:
        return self._block.__exit__(kind, error, tb)

    async def __aenter__(self) -> T:
        return await asyncio.to_thread(self.__enter__)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> bool | None:
        return await asyncio.to_thread(self.__exit__, kind, error, tb)


def opened(function: Callable[P, Iterator[T]]) -> Callable[P, Opened[T]]:
    """`contextlib.contextmanager`, for `async with` too."""
    make = contextlib.contextmanager(function)

    @functools.wraps(function)
    def open_block(*args: P.args, **kwargs: P.kwargs) -> Opened[T]:
        return Opened(functools.partial(make, *args, **kwargs))

    return open_block


async def run_blocking(wait: Callable[[threading.Event], T]) -> T:
    """What `wait` returns or raises. If the caller is cancelled the event is set, and `wait` should come back."""
    __tracebackhide__ = True
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()
    given_up = threading.Event()
    context = contextvars.copy_context()

    def settle(set_outcome: Callable[[Any], None], outcome: Any) -> None:
        if not done.done():
            set_outcome(outcome)

    def tell(set_outcome: Callable[[Any], None], outcome: Any) -> None:
        with contextlib.suppress(RuntimeError):  # the caller's loop is closed: nobody waits any more
            loop.call_soon_threadsafe(settle, set_outcome, outcome)

    def work() -> None:
        __tracebackhide__ = True
        try:
            found = context.run(wait, given_up)
        except BaseException as error:  # whatever it is, it is the caller's
            tell(done.set_exception, error)
        else:
            tell(done.set_result, found)

    threading.Thread(target=work, name="holdfast-wait", daemon=True).start()
    try:
        return await done
    finally:
        given_up.set()
