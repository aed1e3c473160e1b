"""Steps in this process: async ones on one loop thread, plain ones on a pool of threads, and those that ask for
it (or are suspected of killing their worker) in processes of their own.

A thread can't be killed: a plain step that times out or is cancelled loses its outcome at once, and its slot
stays taken until it ends.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import heapq
import itertools
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Sequence
from queue import SimpleQueue
from typing import Any

from holdfast.codec import Codec
from holdfast.core.context import StepContext, current_step
from holdfast.core.definitions import StepDefinition
from holdfast.core.source_lines import line_of_thread
from holdfast.durations import in_words
from holdfast.errors import StepTimeoutError
from holdfast.executors.process import ProcessPool
from holdfast.executors.surroundings import Surroundings
from holdfast.logs import KeptLogs, handle_frame
from holdfast.ports import Attempt, Clock, Executor, Outcome

logger = logging.getLogger("holdfast.executor")
PATIENCE = 1.0  # seconds that the loop of async steps may take to answer
Report = Callable[[Attempt, str, Any], None]


class LocalExecutor(Executor):
    """Executes attempts; says what became of each exactly once."""

    def __init__(
        self,
        find: Callable[[str], StepDefinition],
        codec: Codec,
        clock: Clock,
        *,
        threads: int = 16,
        tasks: int = 1_000,
        processes: int = 4,
        child_command: Callable[[], dict[str, Any]] | None = None,
        surroundings: Surroundings | None = None,
        keep_logs: int | None = logging.INFO,
    ) -> None:
        self._find = find
        self._codec = codec
        self._clock = clock
        self._keep_logs = keep_logs
        self._on_outcome: Callable[[Outcome], None] = lambda outcome: None
        self._report: Report = lambda attempt, kind, value: None
        self._executing: dict[int, _Execution] = {}
        self._timekeeper = _Timekeeper()
        self._surroundings = surroundings or Surroundings()
        self._loop = _LoopThread(tasks, self._run_async, self._timekeeper)
        self._threads = Threads(threads, "step")
        self._processes = ProcessPool(child_command)
        self._process_threads = Threads(processes, "process")

    def start(self, on_outcome: Callable[[Outcome], None], on_report: Report, may_begin: Callable[[], bool]) -> None:
        self._on_outcome = on_outcome
        self._report = on_report
        self._may_begin = may_begin

    def started_at(self, token: int) -> int | None:
        execution = self._executing.get(token)
        return (execution.started or None) if execution is not None else None

    def submit(self, attempts: Sequence[Attempt]) -> None:
        on_loop = []
        for attempt in attempts:
            execution = _Execution(self, attempt)
            self._executing[attempt.token] = execution
            if attempt.pool == "process":
                self._process_threads.submit(functools.partial(self._run_in_process, execution))
            elif self._find(attempt.step).is_async:
                on_loop.append(execution)
            else:
                self._threads.submit(functools.partial(self._run_on_thread, execution))
        if on_loop:
            self._loop.submit(on_loop)

    def _submit_here(self, execution: _Execution) -> None:
        execution._waiting.append(True)
        if self._find(execution.attempt.step).is_async:
            self._loop.submit([execution])
        else:
            self._threads.submit(functools.partial(self._run_on_thread, execution))

    def withdraw(self, tokens: Iterable[int]) -> set[int]:
        taken = set()
        for token in tokens:
            execution = self._executing.get(token)
            if execution is not None and execution.take_turn():
                execution._open.clear()
                del self._executing[token]
                taken.add(token)
        return taken

    def cancel(self, token: int) -> None:
        execution = self._executing.get(token)
        if execution is not None:
            execution.cancel()

    def stop(self, grace: float) -> None:
        deadline = time.monotonic() + grace
        while self._executing and time.monotonic() < deadline:
            time.sleep(0.01)
        for execution in list(self._executing.values()):
            execution.cancel()
        self._threads.stop()
        self._process_threads.stop()
        self._loop.wind_up()
        self._timekeeper.stop()

    def close(self) -> None:
        self._processes.stop()
        self._surroundings.close()
        self._loop.stop()

    # -- the three ways

    async def _run_async(self, execution: _Execution) -> None:
        attempt = execution.attempt
        if not execution.may_begin():
            return
        execution.task = asyncio.current_task()
        execution.begin(self._clock.now())
        limit = None if attempt.timeout is None else attempt.timeout / 1_000_000
        try:
            async with asyncio.timeout(limit) as guard:
                result = await self._surroundings.aexecute(self._find(attempt.step), execution.context)
        except TimeoutError as error:
            execution.fail(_timed_out(attempt) if guard.expired() else error)
        except asyncio.CancelledError as error:
            execution.fail(error)
        except BaseException as error:  # whatever a step raises is its outcome, and never the worker's
            execution.fail(error)
        else:
            execution.succeed(result)

    def _run_on_thread(self, execution: _Execution) -> None:
        if execution.is_settled() or not execution.may_begin():  # cancelled while it waited for a thread
            return
        attempt = execution.attempt
        execution.begin(self._clock.now())
        if attempt.timeout is not None:
            execution.alarm(attempt.timeout, lambda: execution.lose(_timed_out(attempt)))
        try:
            definition = self._find(attempt.step)
            result = contextvars.Context().run(self._surroundings.execute, definition, execution.context)
        except BaseException as error:  # whatever a step raises is its outcome, and never the worker's
            execution.fail(error)
        else:
            execution.succeed(result)

    def _run_in_process(self, execution: _Execution) -> None:
        attempt = execution.attempt
        if execution.is_settled() or not execution.may_begin():
            return
        try:
            process = self._processes.take()
        except Exception as error:  # no process to be had: the attempt fails, and may be tried again
            if self._find(attempt.step).options.pool == "process":
                execution.fail(error)
            else:  # it was to be kept apart only because it is suspected of something
                logger.warning("step %r is not kept apart: %s", attempt.step, error)
                self._submit_here(execution)
            return
        execution.kill = process.kill
        if execution.is_settled():  # cancelled while the process started
            self._processes.give_back(process, alive=True)
            return
        execution.begin(self._clock.now())
        if attempt.timeout is not None:
            execution.alarm(attempt.timeout, lambda: execution.lose(_timed_out(attempt)))
        reply = process.execute(attempt, lambda kind, value: self._heard(execution, kind, value))
        execution.kill = None
        self._processes.give_back(process, alive=reply is not None and not execution.is_settled())
        if reply is None:
            execution.settle(Outcome(attempt=attempt, started=execution.started, lost=True))
        elif "error" in reply:
            execution.settle(
                Outcome(
                    attempt=attempt, started=execution.started, encoded_error=reply["error"],
                    error=self._codec.decode_error(reply["error"]), retry_after=reply.get("retry_after"),
                )
            )  # fmt: skip
        else:
            execution.settle(
                Outcome(
                    attempt=attempt, started=execution.started, result=reply["result"], data=reply["data"],
                    emitted=reply["emitted"],
                )
            )  # fmt: skip

    def _heard(self, execution: _Execution, kind: str, value: Any) -> None:
        if kind == "log":
            contextvars.Context().run(execution.handle_log, value)
            return
        execution.touched()
        if kind != "alive":
            self._report(execution.attempt, kind, value)


class _Execution:
    """One attempt under way. Whoever settles it first wins; what comes later is dropped."""

    def __init__(self, executor: LocalExecutor, attempt: Attempt) -> None:
        self.executor = executor
        self.attempt = attempt
        self.started = 0
        self.task: asyncio.Task[Any] | None = None
        self.kill: Callable[[], None] | None = None
        self.context = StepContext(attempt, executor._codec, lambda kind, value: executor._report(attempt, kind, value))
        self.context.on_log = self._keep_log
        self._logs: KeptLogs | None = None
        self._waiting = [True]
        self._open = [True]  # popping it is atomic, and cheaper than a lock
        self._signs = 0
        self._alarms: list[_Alarm] = []

    def _keep_log(self, record: logging.LogRecord) -> bool:
        level = self.executor._keep_logs
        if level is not None and record.levelno >= level:
            if self._logs is None:
                self._logs = KeptLogs()
            self._logs.add(record)
        return False

    def handle_log(self, frame: dict[str, Any]) -> None:
        """Handle a record of the step's own process as if it had been made here."""
        current_step.set(self.context)
        handle_frame(frame)

    def take_turn(self) -> bool:
        """Whether it was still to begin: it begins, or is withdrawn, once."""
        try:
            self._waiting.pop()
        except IndexError:
            return False
        return True

    def may_begin(self) -> bool:
        if not self.take_turn():
            return False
        if not self.executor._may_begin():
            self.cancel()
            return False
        return True

    def alarm(self, delay: int, callback: Callable[[], None]) -> None:
        self._alarms.append(self.executor._timekeeper.after(delay, callback))

    def begin(self, now: int) -> None:
        self.started = now
        if self.attempt.stall_timeout is not None:
            self.context.on_progress = self.touched
            self._watch_for_stall(self._signs)

    def touched(self) -> None:
        self._signs += 1

    def _watch_for_stall(self, seen: int) -> None:
        stall = self.attempt.stall_timeout
        assert stall is not None

        def look() -> None:
            if self.is_settled():
                return
            if self._signs != seen:
                self._watch_for_stall(self._signs)
                return
            self.lose(
                StepTimeoutError(
                    f"step {self.attempt.step!r} made no progress for {in_words(stall)} (stall_timeout); call "
                    "this_step.progress() while it works, or raise the limit"
                )
            )

        self.alarm(stall, look)

    def is_settled(self) -> bool:
        return not self._open

    def succeed(self, result: Any) -> None:
        codec, attempt = self.executor._codec, self.attempt
        try:
            encoded = codec.encode(result, f"the result of step {attempt.step!r}")
        except Exception as error:
            self.fail(error)
            return
        context = self.context
        self.settle(
            Outcome(attempt=attempt, started=self.started, result=encoded, data=context.writes, emitted=context.emitted)
        )

    def fail(self, error: BaseException) -> None:
        if isinstance(error, asyncio.CancelledError) and self.context.cancelled:
            self.settle(Outcome(attempt=self.attempt, started=self.started, cancelled=True))
            return
        encoded = self.executor._codec.encode_error(error)
        self.settle(Outcome(attempt=self.attempt, started=self.started, error=error, encoded_error=encoded))

    def lose(self, error: BaseException) -> None:
        """Fail now, whatever the code does; interrupt it if that is possible."""
        self.context.cancelled = True
        self.fail(error)
        self._interrupt()

    def cancel(self) -> None:
        self.context.cancelled = True
        self.settle(Outcome(attempt=self.attempt, started=self.started, cancelled=True))
        self._interrupt()

    def _interrupt(self) -> None:
        if self.kill is not None:
            self.kill()
        task = self.task
        if task is not None:
            self.executor._loop.call(task.cancel)

    def settle(self, outcome: Outcome) -> None:
        try:
            self._open.pop()
        except IndexError:
            return
        for alarm in self._alarms:
            self.executor._timekeeper.drop(alarm)
        self.context.on_log = None  # nothing more is kept, and without it the two would keep each other in memory
        if self._logs is not None and not outcome.cancelled:
            outcome.logs = self._logs.encode(self.attempt, self.executor._codec)
        self.executor._executing.pop(self.attempt.token, None)
        self.executor._on_outcome(outcome)


def _timed_out(attempt: Attempt) -> StepTimeoutError:
    return StepTimeoutError(
        f"step {attempt.step!r} of run {attempt.run_id} took longer than its timeout of {in_words(attempt.timeout or 0)} "
        f"(attempt {attempt.number}); make it faster, or raise timeout="
    )


class _LoopThread:
    """One asyncio loop on one thread, for all async steps. One that blocks it holds up all others, so that is told."""

    def __init__(
        self, limit: int, execute: Callable[[_Execution], Coroutine[Any, Any, None]], timekeeper: _Timekeeper
    ) -> None:
        self._limit = limit
        self._execute = execute
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._arrived: deque[_Execution] = deque()
        self._tasks: set[asyncio.Task[None]] = set()
        self._draining = False
        self._starting = threading.Lock()
        self._timekeeper = timekeeper
        self._watched = False
        self._answered = self._told = False

    def submit(self, executions: Iterable[_Execution]) -> None:
        """One wake-up for all of them: each costs a switch of threads."""
        loop = self._loop or self._start()
        self._arrived.extend(executions)
        if not self._draining:
            self._draining = True
            loop.call_soon_threadsafe(self._drain)
        if not self._watched:
            self._watched = True
            self._ask(loop)

    def _ask(self, loop: asyncio.AbstractEventLoop) -> None:
        self._answered = False
        loop.call_soon_threadsafe(self._answer)
        self._timekeeper.after(round(PATIENCE * 1_000_000), self._look)

    def _answer(self) -> None:
        self._answered = True

    def _look(self) -> None:
        loop, thread = self._loop, self._thread
        if loop is None or thread is None or loop.is_closed() or not (self._tasks or self._arrived):
            self._watched = False
        elif self._answered:
            self._told = False
            self._ask(loop)
        else:
            if not self._told:
                self._told = True
                logger.warning(
                    "an async step holds up all others of this worker, for %g s or longer, at %s: await something there, or make "
                    "it a plain `def`, which gets a thread of its own", PATIENCE, line_of_thread(thread.ident),
                )  # fmt: skip
            self._timekeeper.after(round(PATIENCE * 1_000_000), self._look)

    def _start(self) -> asyncio.AbstractEventLoop:
        with self._starting:
            if self._loop is None:
                loop = asyncio.new_event_loop()
                self._thread = threading.Thread(target=self._run, args=(loop,), name="holdfast-async", daemon=True)
                self._thread.start()
                self._loop = loop
            return self._loop

    def _run(self, loop: asyncio.AbstractEventLoop) -> None:
        asyncio.set_event_loop(loop)
        loop.run_forever()
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()

    def _drain(self) -> None:
        self._draining = False
        assert self._loop is not None
        while self._arrived and len(self._tasks) < self._limit:
            execution = self._arrived.popleft()
            if execution.is_settled():
                continue
            task = self._loop.create_task(self._execute(execution))
            self._tasks.add(task)
            task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if self._arrived:
            self._drain()

    def call(self, function: Callable[[], Any]) -> None:
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(function)

    def wind_up(self) -> None:
        """Cancel what still executes, and give it a moment to end."""

        async def end_all() -> None:
            tasks = list(self._tasks)
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks, timeout=1) if tasks else None

        if self._loop is not None:
            asyncio.run_coroutine_threadsafe(end_all(), self._loop).result()

    def stop(self) -> None:
        loop, thread = self._loop, self._thread
        if loop is None or thread is None:
            return
        loop.call_soon_threadsafe(loop.stop)
        thread.join(5)
        self._loop = None


class Threads:
    """A pool that grows to `limit` threads and never more."""

    def __init__(self, limit: int, name: str) -> None:
        self._limit = limit
        self._name = name
        self._jobs: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._idle = 0
        self._unclaimed = 0
        self._lock = threading.Lock()

    def submit(self, job: Callable[[], None]) -> None:
        with self._lock:
            self._unclaimed += 1
            if self._unclaimed > self._idle and len(self._threads) < self._limit:
                name = f"holdfast-{self._name}-{len(self._threads)}"
                thread = threading.Thread(target=self._work, name=name, daemon=True)
                self._threads.append(thread)
                self._idle += 1
                thread.start()
        self._jobs.put(job)

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            with self._lock:
                self._unclaimed -= 1
                self._idle -= 1
            job()
            job = None
            with self._lock:
                self._idle += 1

    def stop(self) -> None:
        """Threads that are stuck in a step are left behind; they are daemons."""
        for _ in self._threads:
            self._jobs.put(None)
        for thread in self._threads:
            thread.join(0.2)


class _Alarm:
    __slots__ = ("callback", "due", "number")

    def __init__(self, due: float, number: int, callback: Callable[[], None] | None) -> None:
        self.due = due
        self.number = number
        self.callback = callback

    def __lt__(self, other: _Alarm) -> bool:
        return (self.due, self.number) < (other.due, other.number)


class _Timekeeper:
    """Calls back after a time, from one thread. Real time: a step's timeout is about the step's own work."""

    def __init__(self) -> None:
        self._heap: list[_Alarm] = []
        self._count = itertools.count()
        self._dropped = 0
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._stopped = False

    def after(self, delay: int, callback: Callable[[], None]) -> _Alarm:
        alarm = _Alarm(time.monotonic() + delay / 1_000_000, next(self._count), callback)
        with self._changed:
            earliest = not self._heap or alarm < self._heap[0]
            heapq.heappush(self._heap, alarm)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="holdfast-timeouts", daemon=True)
                self._thread.start()
            elif earliest:
                self._changed.notify()
        return alarm

    def drop(self, alarm: _Alarm) -> None:
        with self._changed:
            alarm.callback = None
            self._dropped += 1
            if self._dropped > 1_000 and self._dropped > len(self._heap) // 2:
                self._heap = [alarm for alarm in self._heap if alarm.callback is not None]
                heapq.heapify(self._heap)
                self._dropped = 0

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._stopped and (not self._heap or self._heap[0].due > time.monotonic()):
                    self._changed.wait(max(0.0, self._heap[0].due - time.monotonic()) if self._heap else None)
                if self._stopped:
                    return
                callback = heapq.heappop(self._heap).callback
            if callback is not None:
                callback()

    def stop(self) -> None:
        with self._changed:
            self._stopped = True
            self._changed.notify()
