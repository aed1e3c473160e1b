"""Coroutines of tasks are driven inside greenlets, so that a plain call anywhere below one can wait for a future while
only that task waits."""

from __future__ import annotations

import asyncio
import collections.abc
import ctypes
from collections.abc import Callable, Coroutine, Generator
from typing import Any, Protocol, TypeVar

import greenlet

from holdfast.errors import Suspended, WrongContextError

T = TypeVar("T")

MOST_REFUSALS = 100
"""Code that catches BaseException in a loop would hold up an eviction for ever: after so many refusals it is left
standing where it is."""


class _Block:
    """What a greenlet hands to its driver when a plain call has to wait for a future, or (None) is left standing."""

    __slots__ = ("future",)

    def __init__(self, future: asyncio.Future[Any] | None) -> None:
        self.future = future


class Greenlets:
    """A pool of idle greenlets for one thread. A greenlet keeps no reference to what it ran."""

    def __init__(self) -> None:
        self.idle: list[Any] = []
        self._hub: Any = greenlet.getcurrent()

    def enter_thread(self) -> None:
        """The calling thread uses it from now on."""
        if self._hub is not greenlet.getcurrent():
            self.idle, self._hub = [], greenlet.getcurrent()

    def take(self, caller: Any) -> Any:
        """One that comes back to the greenlet that calls: the pool's come back to the thread's own."""
        if self.idle and caller is self._hub:
            return self.idle.pop()
        runner = greenlet.greenlet(_drive)
        runner.switch()
        return runner

    def give_back(self, runner: Any) -> None:
        if runner.parent is not self._hub:
            runner.throw(greenlet.GreenletExit)
        elif not runner.dead:
            runner.gr_context = None
            self.idle.append(runner)

    def close(self) -> None:
        """The thread ends. Nothing may hold its own greenlet by then: greenlet would look for that among all objects."""
        while self.idle:
            self.idle.pop().throw(greenlet.GreenletExit)
        self._hub = None


def _drive() -> None:
    """The body of a pooled greenlet: one send or throw per job.

    What is passed to `switch` is held for as long as the greenlet is switched out, so it passes a box, to be emptied.
    """
    hub = greenlet.getcurrent().parent
    box: list[tuple[str, Any]] = []
    while True:
        coro, value, error = hub.switch(box)
        try:
            box.append(("yield", coro.send(value) if error is None else coro.throw(error)))
        except StopIteration as stop:
            box.append(("return", stop.value))
        except greenlet.GreenletExit:
            raise
        except BaseException as raised:
            box.append(("raise", raised))
        coro = value = error = None


class Home(Protocol):
    """The loop whose tasks are driven. If it `gives`, a future that a task is about to wait for may be done after all."""

    greenlets: Greenlets
    gives: Callable[[asyncio.Future[Any]], bool] | None


class Driver(collections.abc.Coroutine[Any, Any, Any]):
    """Drives a coroutine inside a greenlet. It is a Coroutine object because Task accepts nothing less."""

    __slots__ = ("__weakref__", "coro", "future", "home", "runner")

    def __init__(self, coro: Coroutine[Any, Any, Any], home: Home) -> None:
        self.coro = coro
        self.home = home
        self.runner: Any = None  # the greenlet of a plain call that waits
        self.future: asyncio.Future[Any] | None = None

    def throw(self, typ: Any, val: Any = None, tb: Any = None) -> Any:
        error = val if val is not None else (typ if isinstance(typ, BaseException) else typ())
        try:
            return self.send(None, error)
        finally:
            del error, typ, val

    def close(self) -> None:
        if self.runner is None:
            self.coro.close()

    def __await__(self) -> Generator[Any, Any, Any]:
        raise WrongContextError("a workflow task can't be awaited through its driver")

    def send(self, value: Any, error: BaseException | None = None) -> Any:
        """Go on with a value, or where the code has to be told of an `error`, with that."""
        runner = self.runner
        if runner is None:
            caller = greenlet.getcurrent()
            runner = self.home.greenlets.take(caller)
            runner.gr_context = caller.gr_context
            out = runner.switch((self.coro, value, error))
        else:
            future, self.runner, self.future = self.future, None, None
            assert future is not None
            out = runner.switch((future, error))
        if self.home.gives is not None:
            out = self._go_on(runner, out)
        if type(out) is _Block:
            self.runner, self.future = runner, out.future
            if out.future is None:
                return None
            out.future._asyncio_future_blocking = True
            return out.future
        self.home.greenlets.give_back(runner)
        what, payload = out.pop()
        if what == "yield":
            return payload
        if what == "return":
            raise StopIteration(payload)
        try:
            raise payload
        finally:
            del payload, error  # a frame in an exception's traceback that holds the exception would never be freed

    def _go_on(self, runner: Any, out: Any) -> Any:
        """Go on as long as the code is given what it is about to wait for."""
        while (gives := self.home.gives) is not None:
            if type(out) is _Block:
                if out.future is None or not gives(out.future):
                    break
                out = runner.switch((out.future, None))
            else:
                what, payload = out[-1]
                if what != "yield" or not gives(payload):
                    break
                out.clear()
                payload._asyncio_future_blocking = False
                out = runner.switch((self.coro, None, None))
        return out

    def evict(self) -> None:
        """Throw Suspended until the code has left; code that doesn't leave is never resumed and never collected."""
        for _ in range(MOST_REFUSALS):
            if self.runner is not None and self.future is None:
                break
            try:
                self.send(None, Suspended())
            except BaseException as left:
                left.__traceback__ = None
                return
        # Collecting it would run it once more, at any time and in any other run.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self))


def wait_plainly(future: asyncio.Future[T]) -> T:
    """Wait for `future` in a plain call: only the task that calls waits."""
    if not future.done():
        hub = greenlet.getcurrent().parent
        if hub is None:
            future.cancel()
            raise WrongContextError(
                "a plain call waits only inside a workflow's own code, not in a callback of its loop; "
                "await the step instead, or call it from a task"
            )
        future, error = hub.switch(_Block(future))
        if error is not None:
            try:
                raise error
            finally:
                del error, future
    return future.result()


def leave_standing() -> None:
    """Never come back to the code that calls, if it is a task's."""
    hub = greenlet.getcurrent().parent
    if hub is not None:
        hub.switch(_Block(None))
