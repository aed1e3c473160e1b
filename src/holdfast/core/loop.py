"""A deterministic asyncio event loop, one per live run, run by hand until nothing is ready.

Tasks and futures are numbered in the run and hashed by that number: asyncio keeps them in sets, whose order
would otherwise be their memory addresses. A task's coroutine is driven inside a greenlet, so that a plain call
anywhere below it can wait for a future while only that task waits. Time moves only with `WorkflowLoop.now`.
"""

from __future__ import annotations

import asyncio
import asyncio.futures
import asyncio.tasks
import collections
import collections.abc
import ctypes
import heapq
import sys
import weakref
from collections.abc import Callable, Coroutine, Generator, Iterable
from typing import Any, NoReturn, TypeVar, cast

import greenlet

from holdfast.errors import Suspended, WrongContextError

T = TypeVar("T")
_wakes_sleeper = asyncio.futures._set_result_unless_cancelled  # type: ignore[attr-defined]
_set_running_loop = asyncio._set_running_loop
_get_running_loop = asyncio._get_running_loop

# Code that catches BaseException in a loop would hold up an eviction for ever: after so many refusals it is
# left standing where it is.
_MOST_REFUSALS = 100


class Future(asyncio.Future[T]):
    """A future of a run. `on_cancel` tells whoever made it that nobody waits any more. That of a step has the
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
        if self.shielded:  # the next shield keeps it
            return
        deferred, self.deferred = self.deferred, []
        for message in deferred:
            super().cancel(msg=message)


class _Block:
    """What a greenlet hands to its driver when a plain call has to wait for a future, or (None) is left standing."""

    __slots__ = ("future",)

    def __init__(self, future: asyncio.Future[Any] | None) -> None:
        self.future = future


class Greenlets:
    """A pool of idle greenlets for one thread. A greenlet keeps no reference to what it ran."""

    def __init__(self) -> None:
        self.idle: list[Any] = []

    def take(self) -> Any:
        if self.idle:
            return self.idle.pop()
        runner = greenlet.greenlet(_drive)
        runner.switch()
        return runner

    def give_back(self, runner: Any) -> None:
        if not runner.dead:
            runner.gr_context = None
            self.idle.append(runner)

    def close(self) -> None:
        while self.idle:
            self.idle.pop().throw(greenlet.GreenletExit)


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


class Driver(collections.abc.Coroutine[Any, Any, Any]):
    """Drives a coroutine inside a greenlet. It is a Coroutine object because Task accepts nothing less."""

    __slots__ = ("__weakref__", "coro", "future", "greenlets", "runner")

    def __init__(self, coro: Coroutine[Any, Any, Any], greenlets: Greenlets) -> None:
        self.coro = coro
        self.greenlets = greenlets
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
        context = greenlet.getcurrent().gr_context
        if runner is None:
            runner = self.greenlets.take()
            runner.gr_context = context
            out = runner.switch((self.coro, value, error))
        else:
            future, self.runner, self.future = self.future, None, None
            assert future is not None
            out = runner.switch((future, error))
        if type(out) is _Block:
            self.runner, self.future = runner, out.future
            if out.future is None:
                return None
            out.future._asyncio_future_blocking = True
            return out.future
        self.greenlets.give_back(runner)
        what, payload = out.pop()
        if what == "yield":
            return payload
        if what == "return":
            raise StopIteration(payload)
        try:
            raise payload
        finally:
            del payload, error  # a frame in an exception's traceback that holds the exception would never be freed

    def evict(self) -> None:
        """Throw Suspended until the code has left; code that doesn't leave is never resumed and never collected."""
        for _ in range(_MOST_REFUSALS):
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


def _ignore(context: dict[str, Any]) -> None:
    """What nobody handled, and nobody wants to know of."""


class WorkflowLoop(asyncio.AbstractEventLoop):
    """Runs ready callbacks in order, and nothing else: no threads, no sockets, no clock."""

    def __init__(self, greenlets: Greenlets, origin: int) -> None:
        self.greenlets = greenlets
        self.origin = origin
        self.now = origin
        self.cause = 0
        self.closed = False
        self.execution: Any = None
        self.tasks: dict[int, Task[Any]] = {}
        self.timers: dict[str, Timer] = {}
        self.on_error: Callable[[dict[str, Any]], None] = _ignore
        self._refusals = 0
        self._generators: weakref.WeakSet[Any] | None = None
        self._forgotten: list[Any] = []
        self._ready: collections.deque[asyncio.Handle] = collections.deque()
        self._heap: list[tuple[int, int, Timer]] = []
        self._number = 0
        self._timer_index = 0

    # -- what the execution drives

    def next_number(self) -> int:
        self._number += 1
        return self._number

    def begin(self, cause: int, now: int) -> None:
        """From here on, what code asks for is caused by event `cause`, at time `now`."""
        self.cause = cause
        if now > self.now:
            self.now = now
        self._timer_index = 0

    def run_dry(self) -> None:
        """Run until nothing is ready."""
        ready = self._ready
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
                    except (
                        SystemExit,
                        KeyboardInterrupt,
                    ):  # the task has it as its exception; no reason to end the worker
                        continue
        finally:
            handle = None  # else a task's exception would hold the task, through its traceback and this frame
            sys.set_asyncgen_hooks(*hooks)
            _set_running_loop(outer)

    def _enter(self) -> tuple[Any, Any]:
        outer, hooks = _get_running_loop(), sys.get_asyncgen_hooks()
        _set_running_loop(self)
        sys.set_asyncgen_hooks(self._first_iteration, self._finalize)
        return outer, hooks

    def _leave(self, outer: Any, hooks: Any) -> None:
        sys.set_asyncgen_hooks(*hooks)
        _set_running_loop(outer)

    def _first_iteration(self, generator: Any) -> None:
        if self._generators is None:
            self._generators = weakref.WeakSet()
        self._generators.add(generator)

    def _finalize(self, generator: Any) -> None:
        """An async generator was left half-way and nobody holds it. Its clean-up belongs to this run alone."""
        if self.closed:
            self._evict_generator(generator)
        elif _get_running_loop() is self:
            self.create_task(generator.aclose())
        else:
            self._forgotten.append(generator)

    def next_due(self) -> Timer | None:
        while self._heap:
            timer = self._heap[0][2]
            if not timer._cancelled and timer.id in self.timers:
                return timer
            heapq.heappop(self._heap)
        return None

    def fire(self, timer: Timer) -> None:
        del self.timers[timer.id]
        if timer.sleep:
            timer.sleeper.on_cancel = None  # which is the timer's own
        self._ready.append(timer)

    def refuse(self) -> NoReturn:
        """Refuse what code asks for after its run has left. Code that asks again and again is left standing."""
        self._refusals += 1
        hub = greenlet.getcurrent().parent
        if self._refusals > _MOST_REFUSALS and hub is not None:
            hub.switch(_Block(None))
        raise Suspended

    def evict(self) -> None:
        """Leave memory: every frame is unwound here and now, with every command refused."""
        self.closed = True
        if self.tasks or self._forgotten or self._generators:
            self._unwind()
        for timer in self.timers.values():
            asyncio.Handle.cancel(timer)
        self._forgotten.clear()
        self._ready.clear()
        self._heap.clear()
        self.timers.clear()
        self.tasks.clear()
        self.execution = None
        self.on_error = _ignore

    def _unwind(self) -> None:
        outer, hooks = self._enter()
        try:
            for task in list(self.tasks.values()):
                task._log_destroy_pending = False  # type: ignore[attr-defined]
                if not task.done():
                    self._refusals = 0
                    asyncio.tasks._enter_task(self, task)
                    try:
                        cast("Driver", task.get_coro()).evict()
                    finally:
                        asyncio.tasks._leave_task(self, task)
            for generator in [*self._forgotten, *(self._generators or ())]:
                self._evict_generator(generator)
            for task in self.tasks.values():
                # A task and what it waits for hold each other. Nobody is told: this loop runs no more.
                waiter = task._fut_waiter  # type: ignore[attr-defined]
                if waiter is not None:
                    asyncio.Future.cancel(waiter)
        finally:
            self._leave(outer, hooks)

    def forget(self, futures: Iterable[asyncio.Future[Any]]) -> None:
        """What nobody waits for any more: futures and their callbacks hold each other."""
        for future in futures:
            asyncio.Future.cancel(future)
        self._ready.clear()

    def _evict_generator(self, generator: Any) -> None:
        async def leave() -> None:
            await generator.athrow(Suspended())

        outer, hooks = self._enter()
        try:
            self._refusals = 0
            driver = Driver(leave(), self.greenlets)
            try:
                driver.send(None)
            except BaseException:
                return
            driver.evict()
        finally:
            self._leave(outer, hooks)

    # -- what asyncio calls

    def time(self) -> float:
        return (self.now - self.origin) / 1_000_000

    def call_soon(self, callback: Any, *args: Any, context: Any = None) -> asyncio.Handle:  # type: ignore[override]
        handle = asyncio.Handle(callback, args, self, context)
        self._ready.append(handle)
        return handle

    def call_later(self, delay: float, callback: Any, *args: Any, context: Any = None) -> asyncio.TimerHandle:  # type: ignore[override]
        return self._timer(max(0, round(delay * 1_000_000)), callback, args, context)

    def call_at(self, when: float, callback: Any, *args: Any, context: Any = None) -> asyncio.TimerHandle:  # type: ignore[override]
        return self._timer(max(0, round(when * 1_000_000) + self.origin - self.now), callback, args, context)

    def _timer(self, delay: int, callback: Any, args: tuple[Any, ...], context: Any) -> Timer:
        timer = Timer(self, f"{self.cause}t{self._timer_index}", delay, callback, args, context)
        if self.closed:  # it will never fire
            return timer
        self._timer_index += 1
        self.timers[timer.id] = timer
        heapq.heappush(self._heap, (timer.due, self.next_number(), timer))
        return timer

    def sleep(self, delay: int) -> Future[None]:
        """A future that a timer resolves after `delay` microseconds."""
        future: Future[None] = Future(self)
        timer = self._timer(delay, _wakes_sleeper, (future, None), None)
        future.on_cancel = timer.cancel
        return future

    def _timer_handle_cancelled(self, handle: Timer) -> None:
        self.timers.pop(handle.id, None)
        if len(self._heap) > 64 and len(self._heap) > 2 * len(self.timers):
            self._heap = [entry for entry in self._heap if entry[2].id in self.timers]
            heapq.heapify(self._heap)

    def create_future(self) -> Future[Any]:
        return Future(self)

    def create_task(self, coro: Any, *, name: str | None = None, context: Any = None, **_unknown: Any) -> Task[Any]:
        task: Task[Any] = Task.__new__(Task)
        number = task.number = self.next_number()
        task.shielded = 0
        task.deferred = []
        task.__init__(  # type: ignore[misc]
            Driver(coro, self.greenlets), loop=self, name=name or f"Task-{number}", context=context
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

    def _refuse(self, *_args: Any, **_kwargs: Any) -> NoReturn:
        raise WrongContextError(
            "workflow code can't use threads, sockets, subprocesses or executors: "
            "it is replayed, so put the work into a step and call that"
        )

    def get_task_factory(self) -> None:
        return None

    async def shutdown_asyncgens(self) -> None:
        return None


class Timer(asyncio.TimerHandle):
    """A timer of a run: known by its cause and its place among the timers of that cause."""

    __slots__ = ("delay", "due", "id", "sleep")

    def __init__(
        self, loop: WorkflowLoop, id: str, delay: int, callback: Any, args: tuple[Any, ...], context: Any
    ) -> None:
        self.id = id
        self.delay = delay
        self.due = loop.now + delay
        self.sleep = callback is _wakes_sleeper
        super().__init__((self.due - loop.origin) / 1_000_000, callback, args, loop, context)

    @property
    def cause(self) -> int:
        return int(self.id.partition("t")[0])

    @property
    def sleeper(self) -> Future[None]:
        """The future that it wakes."""
        future: Future[None] = self._args[0]
        return future


_REFUSED = (
    "run_forever", "run_until_complete", "stop", "close", "set_debug", "call_soon_threadsafe", "run_in_executor",
    "set_default_executor", "getaddrinfo", "getnameinfo", "create_connection", "create_server", "start_tls", "sendfile",
    "create_unix_connection", "create_unix_server", "connect_accepted_socket", "create_datagram_endpoint",
    "connect_read_pipe", "connect_write_pipe", "subprocess_shell", "subprocess_exec", "add_reader", "remove_reader",
    "add_writer", "remove_writer", "sock_recv", "sock_recv_into", "sock_recvfrom", "sock_recvfrom_into", "sock_sendall",
    "sock_sendto", "sock_connect", "sock_accept", "sock_sendfile", "add_signal_handler", "remove_signal_handler",
    "set_task_factory", "set_exception_handler", "get_exception_handler", "shutdown_default_executor",
)  # fmt: skip
for _name in _REFUSED:
    setattr(WorkflowLoop, _name, WorkflowLoop._refuse)


def running() -> WorkflowLoop | None:
    """The loop of the run whose code calls, if it is workflow code that calls."""
    loop = _get_running_loop()
    return loop if type(loop) is WorkflowLoop else None


# asyncio's own functions where their order depends on memory addresses or on the version of Python. Each is given
# new code in place: who has imported it before this module must get the same.


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


def _replace(function: Any, code: Any, replacement: Callable[..., Any]) -> Any:
    stock = type(function)(function.__code__, function.__globals__, function.__name__)
    stock.__kwdefaults__ = function.__kwdefaults__
    setattr(asyncio.tasks, f"_holdfast_{function.__name__}", replacement)
    function.__code__ = code.__code__
    return stock


_stock: dict[str, Any] = {"as_completed": _replace(asyncio.as_completed, _call_as_completed, _as_completed)}
if sys.version_info < (3, 12):
    _stock["wait_for"] = _replace(asyncio.wait_for, _call_wait_for, _wait_for)
