"""A deterministic asyncio event loop, one per live run, run by hand until nothing is ready.

Tasks and futures are numbered in the run and hashed by that number: asyncio keeps them in sets, whose order
would otherwise be their memory addresses. Time moves only with `WorkflowLoop.now`.
"""

from __future__ import annotations

import asyncio
import asyncio.tasks
import collections
import contextlib
import contextvars
import sys
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NoReturn, TypeVar, cast

from holdfast.core.greenlets import MOST_REFUSALS, Driver, Greenlets, leave_standing
from holdfast.core.timers import Timer, Timers, wakes_sleeper
from holdfast.errors import Suspended, WrongContextError

T = TypeVar("T")
_set_running_loop = asyncio._set_running_loop
_get_running_loop = asyncio._get_running_loop


class Future(asyncio.Future[T]):
    """A future of a run. `on_cancel` tells whoever made it that it is not waited for any more. That of a step has the
    step's command in `cmd`, from when it is asked for in earnest."""

    number: int
    cmd: str = ""
    on_cancel: Callable[[], None] | None

    def __init__(self, loop: WorkflowLoop, on_cancel: Callable[[], None] | None = None) -> None:
        self.number = loop._number = loop._number + 1
        self.on_cancel = on_cancel
        asyncio.Future.__init__(self, loop=loop)

    def __hash__(self) -> int:
        return self.number

    def cancel(self, msg: Any | None = None) -> bool:
        if not super().cancel(msg=msg):
            return False
        if self.on_cancel is not None:
            self.on_cancel()
        return True


class Task(asyncio.Task[T]):
    """A task of a run. While `shielded`, cancellations are kept until the shield is left."""

    number: int
    shielded: int
    context: contextvars.Context
    deferred: list[Any]
    """Messages of cancellations that the code has not seen: they count, as those do that it has, and an `asyncio.timeout`
    whose block has ended by then takes its own back. asyncio would raise it even so before Python 3.13."""

    def __hash__(self) -> int:
        return self.number

    def cancel(self, msg: Any | None = None) -> bool:
        if self.shielded and not self.done():
            self.deferred.append(msg)
            return True
        return super().cancel(msg=msg)

    def cancelling(self) -> int:
        return super().cancelling() + len(self.deferred)

    def uncancel(self) -> int:
        if super().cancelling():
            return super().uncancel() + len(self.deferred)
        if self.deferred:
            self.deferred.pop()
        return len(self.deferred)

    def leave_shield(self) -> None:
        """What was kept reaches the code where it waits next, unless it is taken back before."""
        self.shielded -= 1
        if not self.shielded and self.deferred:
            self.get_loop().call_soon(self._cancel_deferred)

    def _cancel_deferred(self) -> None:
        if self.shielded or self.done():  # the next shield keeps it; nothing is left that it could reach
            return
        deferred, self.deferred = self.deferred, []
        for message in deferred:
            super().cancel(msg=message)


def _ignore(context: dict[str, Any]) -> None:
    """What was not handled, in a run that is gone."""


class WorkflowLoop(asyncio.AbstractEventLoop):
    """Runs what is `ready` in order, and nothing else: no threads, no sockets, no clock. What a task waits for may be given to
    it at once, by whoever replays it: see `Execution._give`."""

    def __init__(self, greenlets: Greenlets) -> None:
        self.greenlets = greenlets
        self.gives: Callable[[asyncio.Future[Any]], bool] | None = None
        self.origin = 0
        self.now = 0
        self.cause = 0
        self.closed = False
        self.execution: Any = None
        self.tasks: dict[int, Task[Any]] = {}
        self.timers = Timers()
        self.on_error: Callable[[dict[str, Any]], None] = _ignore
        self._refusals = 0
        self._generators: weakref.WeakSet[Any] | None = None
        self._forgotten: list[Any] = []
        self.ready: collections.deque[asyncio.Handle] = collections.deque()
        self._number = 0

    # -- what the execution drives

    def next_number(self) -> int:
        self._number += 1
        return self._number

    def begin(self, cause: int, now: int) -> None:
        """From here on, what code asks for is caused by event `cause`, at time `now`."""
        self.cause = cause
        if now > self.now:
            self.now = now
        self.timers.made = 0

    def run_dry(self) -> None:
        """Run until nothing is ready."""
        ready = self.ready
        if not ready:
            return
        outer, hooks = _get_running_loop(), sys.get_asyncgen_hooks()
        handle: asyncio.Handle | None
        try:
            _set_running_loop(self)
            sys.set_asyncgen_hooks(self._first_iteration, self._finalize)
            while ready and not self.closed:
                handle = ready.popleft()
                if not handle._cancelled:
                    try:
                        handle._run()
                    except (SystemExit, KeyboardInterrupt):  # the task has it as its exception; the worker goes on
                        continue
        finally:
            handle = None  # else a task's exception would hold the task, through its traceback and this frame
            sys.set_asyncgen_hooks(*hooks)
            _set_running_loop(outer)

    @contextlib.contextmanager
    def _entered(self) -> Iterator[None]:
        outer, hooks = _get_running_loop(), sys.get_asyncgen_hooks()
        _set_running_loop(self)
        sys.set_asyncgen_hooks(self._first_iteration, self._finalize)
        try:
            yield
        finally:
            sys.set_asyncgen_hooks(*hooks)
            _set_running_loop(outer)

    def _first_iteration(self, generator: Any) -> None:
        if self._generators is None:
            self._generators = weakref.WeakSet()
        self._generators.add(generator)

    def _finalize(self, generator: Any) -> None:
        """An async generator was left half-way and is held by nothing. Its clean-up belongs to this run alone."""
        if self.closed:
            self._evict_generator(generator)
        elif _get_running_loop() is self:
            self.create_task(generator.aclose())
        else:
            self._forgotten.append(generator)

    def fire(self, timer: Timer) -> None:
        del self.timers.by_id[timer.id]
        if timer.sleep:
            timer.sleeper.on_cancel = None  # which is the timer's own
        self.ready.append(timer)

    def refuse_if_closed(self) -> None:
        if self.closed:
            self.refuse()

    def refuse(self) -> NoReturn:
        """Refuse what code asks for after its run has left. Code that asks again and again is left standing."""
        self._refusals += 1
        if self._refusals > MOST_REFUSALS:
            leave_standing()
        raise Suspended

    def evict(self) -> None:
        """Leave memory: every frame is unwound here and now, with every command refused."""
        self.closed = True
        self.gives = None
        if self.tasks or self._forgotten or self._generators:
            self._unwind()
        self.timers.clear()
        self._forgotten.clear()
        self.ready.clear()
        self.tasks.clear()
        self.execution = None
        self.on_error = _ignore

    def _unwind(self) -> None:
        with self._entered():
            for task in list(self.tasks.values()):
                task._log_destroy_pending = False  # type: ignore[attr-defined]
                if not task.done():
                    self._refusals = 0
                    asyncio.tasks._enter_task(self, task)
                    try:
                        task.context.run(cast("Driver", task.get_coro()).evict)
                    finally:
                        asyncio.tasks._leave_task(self, task)
            for generator in [*self._forgotten, *(self._generators or ())]:
                self._evict_generator(generator)
            for task in self.tasks.values():
                # A task and what it waits for hold each other. No callback is called: this loop runs no more.
                waiter = task._fut_waiter  # type: ignore[attr-defined]
                if waiter is not None:
                    asyncio.Future.cancel(waiter)

    def forget(self, futures: Iterable[asyncio.Future[Any]]) -> None:
        """What is not waited for any more: futures and their callbacks hold each other."""
        for future in futures:
            asyncio.Future.cancel(future)
        self.ready.clear()

    def _evict_generator(self, generator: Any) -> None:
        async def leave() -> None:
            await generator.athrow(Suspended())

        with self._entered():
            self._refusals = 0
            contextvars.copy_context().run(self._drive_out, Driver(leave(), self))

    def _drive_out(self, driver: Driver) -> None:
        try:
            driver.send(None)
        except BaseException:
            return
        driver.evict()

    # -- what asyncio calls

    def time(self) -> float:
        return (self.now - self.origin) / 1_000_000

    def call_soon(self, callback: Any, *args: Any, context: Any = None) -> asyncio.Handle:  # type: ignore[override]
        handle = asyncio.Handle(callback, args, self, context)
        self.ready.append(handle)
        return handle

    def call_later(self, delay: float, callback: Any, *args: Any, context: Any = None) -> asyncio.TimerHandle:  # type: ignore[override]
        return self._timer(max(0, round(delay * 1_000_000)), callback, args, context)

    def call_at(self, when: float, callback: Any, *args: Any, context: Any = None) -> asyncio.TimerHandle:  # type: ignore[override]
        return self._timer(max(0, round(when * 1_000_000) + self.origin - self.now), callback, args, context)

    def _timer(self, delay: int, callback: Any, args: tuple[Any, ...], context: Any) -> Timer:
        timer = Timer(self, f"{self.cause}t{self.timers.made}", delay, callback, args, context)
        if not self.closed:  # else it will never fire
            self.timers.add(timer, self.next_number())
        return timer

    def sleep(self, delay: int) -> Future[None]:
        """A future that a timer resolves after `delay` microseconds."""
        future: Future[None] = Future(self)
        timer = self._timer(delay, wakes_sleeper, (future, None), None)
        future.on_cancel = timer.cancel
        return future

    def _timer_handle_cancelled(self, handle: Timer) -> None:
        self.timers.drop(handle)

    def create_future(self) -> Future[Any]:
        return Future(self)

    def create_task(self, coro: Any, *, name: str | None = None, context: Any = None, **_unknown: Any) -> Task[Any]:
        task: Task[Any] = Task.__new__(Task)
        number = task.number = self.next_number()
        task.shielded = 0
        task.deferred = []
        task.context = contextvars.copy_context() if context is None else context
        task.__init__(  # type: ignore[misc]
            Driver(coro, self), loop=self, name=name or f"Task-{number}", context=task.context
        )
        # asyncio's global set of tasks would hash thousands of runs' task 1 to one bucket.
        asyncio.tasks._unregister_task(task)
        if self.closed:  # it never starts; closed, so that nothing complains of a coroutine that was never awaited
            coro.close()
            task._log_destroy_pending = False  # type: ignore[attr-defined]
            return task
        self.tasks[number] = task
        task.add_done_callback(self._forget)
        return task

    def _forget(self, task: asyncio.Task[Any]) -> None:
        self.tasks.pop(cast("Task[Any]", task).number, None)

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        if not self.closed:
            self.on_error(context)

    def default_exception_handler(self, context: dict[str, Any]) -> None:
        self.call_exception_handler(context)

    get_debug = staticmethod(bool)
    """False. asyncio asks for every future and handle, so it is nothing that has to be interpreted."""

    def is_running(self) -> bool:
        return True

    def is_closed(self) -> bool:
        return self.closed

    def _refuse_waiting(self, *_args: Any, **_kwargs: Any) -> NoReturn:
        """What waits for the world outside would not be the same on replay: the run is set aside, whatever its code makes of
        this."""
        self.refuse_if_closed()
        raise self.execution.block("uses threads, connections or processes")

    def _refuse(self, *_args: Any, **_kwargs: Any) -> NoReturn:
        raise WrongContextError(
            "the event loop of workflow code is its run's: it can't be stopped, closed or changed, and no thread reaches it"
        )

    def get_task_factory(self) -> None:
        return None

    async def shutdown_asyncgens(self) -> None:
        return None


_WAITING = (
    "run_in_executor", "getaddrinfo", "getnameinfo", "create_connection", "create_server",
    "start_tls", "sendfile", "create_unix_connection", "create_unix_server", "connect_accepted_socket",
    "create_datagram_endpoint", "connect_read_pipe", "connect_write_pipe", "subprocess_shell", "subprocess_exec",
    "add_reader", "remove_reader", "add_writer", "remove_writer", "sock_recv", "sock_recv_into", "sock_recvfrom",
    "sock_recvfrom_into", "sock_sendall", "sock_sendto", "sock_connect", "sock_accept", "sock_sendfile",
)  # fmt: skip
_CHANGING = (
    "call_soon_threadsafe", "run_forever", "run_until_complete", "stop", "close", "set_debug", "set_default_executor",
    "add_signal_handler", "remove_signal_handler", "set_task_factory", "set_exception_handler",
    "get_exception_handler", "shutdown_default_executor",
)  # fmt: skip
for _name in _WAITING:
    setattr(WorkflowLoop, _name, WorkflowLoop._refuse_waiting)
for _name in _CHANGING:
    setattr(WorkflowLoop, _name, WorkflowLoop._refuse)


def running() -> WorkflowLoop | None:
    """The loop of the run whose code calls, if it is workflow code that calls."""
    loop = _get_running_loop()
    return loop if type(loop) is WorkflowLoop else None
