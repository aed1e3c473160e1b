"""What stands in for a run where there is none, so that plain calls in unit tests work."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Coroutine, Generator
from contextvars import ContextVar
from typing import Any, TypeVar, cast

from holdfast.core.context import current_step, under_way
from holdfast.errors import WrongContextError

R = TypeVar("R")


class Scratch:
    """What code keeps for the length of one plain call, or outside of any (`is_of_call` is False then) in this context."""

    def __init__(self, is_of_call: bool) -> None:
        self.is_of_call = is_of_call
        self.data: dict[str, Any] = {}
        self.checkpoint: Any = None

    @property
    def id(self) -> str:
        """The same for all threads that ask."""
        found: str = self.__dict__.get("_id") or self.__dict__.setdefault("_id", str(uuid.uuid4()))
        return found


_scratch: ContextVar[Scratch | None] = ContextVar("holdfast_scratch", default=None)


def scratch(what: str) -> Scratch:
    """What `what` works on. A thread that a step may have started itself is refused: what it keeps would be lost, and its
    key would be another one in each attempt. No step has started the main thread."""
    found = _scratch.get()
    if found is not None and found.is_of_call:
        return found
    if under_way and threading.current_thread() is not threading.main_thread():
        raise WrongContextError(
            f"{what} on thread {threading.current_thread().name!r}: steps execute in this process, and this thread doesn't "
            "know whether it belongs to one; a step starts threads with asyncio.to_thread, or with "
            "contextvars.copy_context().run, or passes what they need as arguments"
        )
    if found is None:
        found = Scratch(is_of_call=False)
        _scratch.set(found)
    return found


def in_scratch(call: Callable[[], R], is_async: bool) -> R:
    """What the plain call of a step or workflow gives. One that no other makes has a scratch of its own."""
    outer = _scratch.get()
    if current_step.get() is not None or (outer is not None and outer.is_of_call):
        return call()
    if is_async:
        return cast("R", _InScratch(cast("Coroutine[Any, Any, Any]", call())))
    token = _scratch.set(Scratch(is_of_call=True))
    try:
        return call()
    finally:
        _scratch.reset(token)


class _InScratch(Coroutine[Any, Any, R], Generator[Any, Any, R]):
    """A coroutine with a scratch that is there whenever it executes."""

    __slots__ = ("__weakref__", "_coroutine", "_own")

    def __init__(self, coroutine: Coroutine[Any, Any, R]) -> None:
        self._coroutine = coroutine
        self._own = Scratch(is_of_call=True)

    def __await__(self) -> Generator[Any, Any, R]:
        return self

    def send(self, value: Any) -> Any:
        return self._go_on(lambda: self._coroutine.send(value))

    def throw(self, typ: Any, val: Any = None, tb: Any = None) -> Any:
        return self._go_on(lambda: self._coroutine.throw(typ if val is None else val))

    def close(self) -> None:
        self._go_on(self._coroutine.close)

    def _go_on(self, go_on: Callable[[], Any]) -> Any:
        token = _scratch.set(self._own)
        try:
            return go_on()
        finally:
            _scratch.reset(token)
