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
import heapq
from collections.abc import Callable, Coroutine, Generator, Iterable
from typing import Any, NoReturn, TypeVar, cast

import greenlet

from holdfast.errors import Suspended, WrongContextError

T = TypeVar("T")
_wakes_sleeper = asyncio.futures._set_result_unless_cancelled  # type: ignore[attr-defined]
_set_running_loop = asyncio._set_running_loop
_get_running_loop = asyncio._get_running_loop

# Code that catches BaseException in a loop would hold up an eviction for ever: after so many refusals its
# frame is left where it is.
_PATIENCE = 100
_abandoned: list[object] = []


class Future(asyncio.Future[T]):
    """A future of a run. `on_cancel` tells whoever made it that nobody waits any more."""

    number: int
    on_cancel: Callable[[], None] | None

    def __init__(self, loop: WorkflowLoop, on_cancel: Callable[[], None] | None = None) -> None:
        self.number = loop.next_number()
        self.on_cancel = on_cancel
        super().__init__(loop=loop)

    def __hash__(self) -> int:
        return self.number

    def cancel(self, msg: Any | None = None) -> bool:
        if not super().cancel(msg=msg):
            return False
        if self.on_cancel is not None:
            self.on_cancel()
        return True


class Task(asyncio.Task[T]):
    """A task of a run. While `shielded`, a cancellation is kept until the shield is left."""

    number: int
    shielded: int
    deferred_cancel: tuple[Any] | None

    def __hash__(self) -> int:
        return self.number

    def cancel(self, msg: Any | None = None) -> bool:
        if self.shielded and not self.done():
            self.deferred_cancel = (msg,)
            return True
        return super().cancel(msg=msg)


class _Block:
    """What a greenlet hands to its driver when a plain call has to wait for a future."""

    __slots__ = ("future",)

    def __init__(self, future: asyncio.Future[Any]) -> None:
        self.future = future


class Greenlets:
    """A pool of idle greenlets for one thread. A greenlet keeps no reference to what it ran."""

    def __init__(self) -> None:
        self.idle: list[Any] = []

    def take(self) -> Any:
        return self.idle.pop() if self.idle else greenlet.greenlet(_drive)

    def give_back(self, runner: Any) -> None:
        if not runner.dead:
            runner.gr_context = None
            self.idle.append(runner)

    def close(self) -> None:
        while self.idle:
            self.idle.pop().throw(greenlet.GreenletExit)


def _drive(job: tuple[Any, Any, BaseException | None]) -> None:
    """The body of a pooled greenlet: one send or throw per job."""
    hub = greenlet.getcurrent().parent
    while True:
        coro, value, error = job
        try:
            out = ("yield", coro.send(value) if error is None else coro.throw(error))
        except StopIteration as stop:
            out = ("return", stop.value)
        except greenlet.GreenletExit:
            raise
        except BaseException as raised:
            out = ("raise", raised)
        coro = value = error = None
        box = [out]
        del out, job
        job = hub.switch(box.pop())


class Driver(collections.abc.Coroutine[Any, Any, Any]):
    """Drives a coroutine inside a greenlet. It is a Coroutine object because Task accepts nothing less."""

    __slots__ = ("__weakref__", "coro", "future", "greenlets", "runner")

    def __init__(self, coro: Coroutine[Any, Any, Any], greenlets: Greenlets) -> None:
        self.coro = coro
        self.greenlets = greenlets
        self.runner: Any = None  # the greenlet of a plain call that waits
        self.future: asyncio.Future[Any] | None = None

    def send(self, value: Any) -> Any:
        return self._step(value, None)

    def throw(self, typ: Any, val: Any = None, tb: Any = None) -> Any:
        error = val if val is not None else (typ if isinstance(typ, BaseException) else typ())
        return self._step(None, error)

    def close(self) -> None:
        if self.runner is None:
            self.coro.close()

    def __await__(self) -> Generator[Any, Any, Any]:
        raise WrongContextError("a workflow task can't be awaited through its driver")

    def _step(self, value: Any, error: BaseException | None) -> Any:
        runner = self.runner
        context = greenlet.getcurrent().gr_context
        if runner is None:
            runner = self.greenlets.take()
            runner.gr_context = context
            out = runner.switch((self.coro, value, error))
        else:
            future, self.runner, self.future = self.future, None, None
            assert future is not None
            runner.gr_context = context
            out = runner.switch((future, error))
        if type(out) is _Block:
            self.runner, self.future = runner, out.future
            out.future._asyncio_future_blocking = True
            return out.future
        self.greenlets.give_back(runner)
        what, payload = cast("tuple[str, Any]", out)
        if what == "yield":
            return payload
        if what == "return":
            raise StopIteration(payload)
        raise payload

    def evict(self) -> None:
        """Throw Suspended until the code has left; what doesn't leave is never resumed and never collected."""
        for _ in range(_PATIENCE):
            try:
                if self.runner is not None:
                    self._step(None, Suspended())
                else:
                    self.coro.throw(Suspended())
            except (Suspended, StopIteration, RuntimeError):
                return
            except BaseException:
                return
        _abandoned.append((self.coro, self.runner))


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
        self.on_error: Callable[[dict[str, Any]], None] = lambda context: None
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
        self.now = max(self.now, now)
        self._timer_index = 0

    def run_dry(self) -> None:
        """Run until nothing is ready."""
        outer = _get_running_loop()
        _set_running_loop(self)
        try:
            ready = self._ready
            while ready:
                handle = ready.popleft()
                if not handle._cancelled:
                    try:
                        handle._run()
                    except SystemExit:  # the task has it as its exception; it must not end the worker
                        continue
        finally:
            _set_running_loop(outer)

    def next_due(self) -> Timer | None:
        while self._heap:
            timer = self._heap[0][2]
            if not timer._cancelled and timer.id in self.timers:
                return timer
            heapq.heappop(self._heap)
        return None

    def fire(self, timer: Timer) -> None:
        del self.timers[timer.id]
        self._ready.append(timer)

    def evict(self) -> None:
        """Leave memory: every frame is unwound here and now, with every command refused."""
        self.closed = True
        outer = _get_running_loop()
        _set_running_loop(self)
        try:
            for task in list(self.tasks.values()):
                task._log_destroy_pending = False  # type: ignore[attr-defined]
                if not task.done():
                    cast("Driver", task.get_coro()).evict()
            self._ready.clear()
            self._heap.clear()
            self.timers.clear()
            self.tasks.clear()
            self.execution = None
        finally:
            _set_running_loop(outer)

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
        if self.closed:
            raise Suspended
        timer = Timer(self, f"{self.cause}t{self._timer_index}", delay, callback, args, context)
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
        if self.closed:
            if hasattr(coro, "close"):
                coro.close()
            raise Suspended
        task: Task[Any] = Task.__new__(Task)
        number = task.number = self.next_number()
        task.shielded = 0
        task.deferred_cancel = None
        task.__init__(  # type: ignore[misc]
            Driver(coro, self.greenlets), loop=self, name=name or f"Task-{number}", context=context
        )
        # asyncio's global set of tasks would hash thousands of runs' task 1 to one bucket.
        asyncio.tasks._unregister_task(task)
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

    def get_debug(self) -> bool:
        return False

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


_as_completed = asyncio.as_completed


def _as_completed_in_order(fs: Iterable[Any], **options: Any) -> Any:
    """asyncio.as_completed, with coroutines made tasks in the order given: asyncio makes a set of them first."""
    if running() is not None:
        fs = [asyncio.ensure_future(f) for f in dict.fromkeys(fs)]
    return _as_completed(fs, **options)


_as_completed_in_order.__name__ = "as_completed"
_as_completed_in_order.__doc__ = _as_completed.__doc__
asyncio.as_completed = asyncio.tasks.as_completed = _as_completed_in_order
