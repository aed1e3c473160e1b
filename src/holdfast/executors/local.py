"""Steps in this process: async ones on an event loop, plain ones on a pool of threads, and those that ask for it (or are
suspected of killing their worker) in processes of their own.

A thread can't be killed: a plain step that times out or is cancelled loses its outcome at once, and its slot
stays taken until it ends. A process is killed with all that it has started, and its slot is free.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from holdfast.codec import Codec
from holdfast.core.context import current_step
from holdfast.core.definitions import StepDefinition
from holdfast.core.reports import started_report
from holdfast.durations import in_words
from holdfast.errors import StepTimeoutError
from holdfast.executors.alarms import NEVER, Alarms
from holdfast.executors.loops import Loops, StepLoop
from holdfast.executors.process import Process, ProcessPool
from holdfast.executors.runner import LoggedContext, Runner, Transact, cancelled, from_frame
from holdfast.executors.surroundings import Surroundings
from holdfast.executors.threads import Threads
from holdfast.logs import handle_frame
from holdfast.ports import Attempt, Clock, Executor, Outcome
from holdfast.telemetry.instruments import Instruments

logger = logging.getLogger("holdfast.executor")
THREADS_END_WITHIN = 0.2  # seconds for those that are about to end when the executor does
Report = Callable[[Attempt, str, Any], None]


class LocalExecutor(Executor):
    """Executes attempts; says what became of each exactly once. An attempt that leaves `waiting` begins or is taken
    back, one that leaves `executing` has its outcome: who takes it out decides, and no lock is needed."""

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
        transact: Transact | None = None,
        instruments: Instruments | None = None,
        is_strict: bool = False,
    ) -> None:
        self._find = find
        self.codec = codec
        self.clock = clock
        self.keep_logs = keep_logs
        self.instruments = Instruments() if instruments is None else instruments
        self.on_outcome: Callable[[Outcome], None] = lambda outcome: None
        self.report: Report = lambda attempt, kind, value: None
        self.may_begin: Callable[[], bool] = lambda: True
        self.executing: dict[int, Execution] = {}
        self.waiting: dict[int, Execution] = {}
        self.sealed: dict[int, Execution] = {}
        self.alarms = Alarms()
        self._surroundings = surroundings or Surroundings()
        self.runner = Runner(codec, self._surroundings, transact, is_strict)
        self._loops = Loops(tasks, self._on_loop, self.alarms, self._surroundings)
        self._threads: Threads[Execution] = Threads(threads, "step", self._on_thread)
        self._processes = ProcessPool(child_command)
        self._process_threads: Threads[list[Execution]] = Threads(processes, "process", self._in_process)

    def start(
        self, on_outcome: Callable[[Outcome], None], on_report: Report, may_begin: Callable[[], bool] = lambda: True
    ) -> None:
        self.on_outcome = on_outcome
        self.report = on_report
        self.may_begin = may_begin

    def started_at(self, token: int) -> int | None:
        execution = self.executing.get(token) or self.sealed.get(token)
        return (execution.started or None) if execution is not None else None

    def submit(self, attempts: Sequence[Attempt]) -> None:
        on_loop, on_threads = [], []
        in_processes: list[list[Execution]] = []
        together: dict[int, list[Execution]] = {}
        for attempt in attempts:
            definition = self._find(attempt.step)
            execution = Execution(self, attempt, definition)
            self.executing[attempt.token] = self.waiting[attempt.token] = execution
            apart = attempt.pool == "process" and not definition.options.transaction  # its commit can't be cut short
            if apart and attempt.share_with:
                together.setdefault(attempt.share_with, []).append(execution)
            elif apart:
                in_processes.append([execution])
            elif definition.is_async:
                on_loop.append(execution)
            else:
                on_threads.append(execution)
        if on_loop:
            self._loops.submit(on_loop)
        if on_threads:
            self._threads.submit(on_threads)
        for others, group in together.items():
            in_processes += [group[at : at + others + 1] for at in range(0, len(group), others + 1)]
        if in_processes:
            self._process_threads.submit(in_processes)

    def withdraw(self, tokens: Iterable[int]) -> set[int]:
        taken = {token for token in tokens if self.waiting.pop(token, None) is not None}
        for token in taken:
            self.executing.pop(token, None)
        return taken

    def cancel(self, token: int) -> None:
        execution = self.executing.get(token)
        if execution is not None:
            self.waiting.pop(token, None)
            execution.end(cancelled(execution))

    def stop(self, grace: float) -> None:
        deadline = time.monotonic() + grace
        while (self.executing or self.sealed) and time.monotonic() < deadline:
            time.sleep(0.01)
        self.alarms.stop()
        for token in list(self.executing):
            self.cancel(token)
        self._processes.interrupt()
        self._loops.stop()
        end = time.monotonic() + THREADS_END_WITHIN
        self._threads.stop(end)
        self._process_threads.stop(end)

    def close(self) -> None:
        self._processes.close()
        self._surroundings.close()
        self._loops.close()

    # -- the three ways

    async def _on_loop(self, execution: Execution, loop: StepLoop) -> None:
        if execution.begin():
            execution.task, execution.loop = asyncio.current_task(), loop
            if execution.is_open():  # else it was cancelled just now, when there was no task to be seen
                execution.settle(await self.runner.arun(execution.definition, execution))
            execution.task = None  # else the two would keep each other in memory

    def _on_thread(self, execution: Execution) -> None:
        if execution.begin():
            execution.settle(contextvars.Context().run(self.runner.run, execution.definition, execution))

    def _in_process(self, group: list[Execution]) -> None:
        if len(group) > 1:
            self._together(group)
        else:
            self._alone(group[0])

    def _together(self, group: list[Execution]) -> None:
        """Suspects share a process: if it dies, one of them has killed it, and the worker lives."""
        group = [execution for execution in group if execution.is_waiting()]
        try:
            process = self._processes.take()
        except Exception as error:
            for execution in group:
                self._no_process(execution, error)
            return

        def kill_if_empty() -> None:
            if self.executing.keys().isdisjoint(begun):
                process.kill()

        begun: dict[int, Execution] = {}
        for execution in group:
            execution.kill = kill_if_empty
            if execution.begin():
                begun[execution.attempt.token] = execution
        replied = process.execute_all(
            [execution.attempt for execution in begun.values()],
            lambda token, kind, value: begun[token].heard(kind, value),
            lambda token, frame: begun[token].settle(self._read_reply(begun[token], frame)),
        )
        for execution in begun.values():
            execution.kill = None
        self._processes.give_back(process, is_usable=replied == len(begun))
        for execution in begun.values():
            lost = Outcome(
                attempt=execution.attempt, started=execution.started, lost=True, lost_with=len(begun) - 1,
                logs=execution.kept_logs(),
            )  # fmt: skip
            execution.settle(lost)

    def _read_reply(self, execution: Execution, frame: dict[str, Any]) -> Outcome:
        try:
            return from_frame(execution, frame)
        except BaseException as error:  # what came from there can't be used
            return self.runner.failed(execution, error)

    def _alone(self, execution: Execution) -> None:
        if not execution.is_waiting():
            return
        try:
            process = self._processes.take()
        except Exception as error:  # no process to be had: the attempt fails, and may be tried again
            self._no_process(execution, error)
            return
        execution.kill = process.kill
        if not execution.begin():
            self._processes.give_back(process, is_usable=True)
            return
        outcome, is_usable = self._outcome_of(execution, process)
        # In this order: whoever ends the attempt from now on has no process to kill, and who did so before is seen.
        execution.kill = None
        self._processes.give_back(process, is_usable and execution.is_open())
        execution.settle(outcome)

    def _outcome_of(self, execution: Execution, process: Process) -> tuple[Outcome, bool]:
        """And whether the process can execute another."""
        try:
            reply = process.execute(execution.attempt, execution.heard)
            if reply is not None:
                return from_frame(execution, reply), True
        except BaseException as error:  # what came from there can't be used
            return self.runner.failed(execution, error), False
        logs = execution.kept_logs()
        return Outcome(attempt=execution.attempt, started=execution.started, lost=True, logs=logs), False

    def _no_process(self, execution: Execution, error: Exception) -> None:
        if not execution.is_waiting():
            return
        if execution.definition.options.pool == "process":
            if self.waiting.pop(execution.attempt.token, None) is not None:
                execution.settle(self.runner.failed(execution, error.with_traceback(None)))  # of lines of ours alone
            return
        # It was to be kept apart only because it is suspected of something.
        logger.warning("step %r is not kept apart: %s", execution.attempt.step, error)
        if execution.definition.is_async:
            self._loops.submit([execution])
        else:
            self._threads.submit([execution])


class Execution(LoggedContext):
    """One attempt under way. Whoever settles it first wins; what comes later is dropped."""

    __slots__ = ("_executor", "_last_sign", "_time_is_over", "definition", "due", "loop", "task")

    def __init__(self, executor: LocalExecutor, attempt: Attempt, definition: StepDefinition) -> None:
        super().__init__(attempt, executor.codec, executor.report, executor.keep_logs)
        self._executor = executor
        self.definition = definition
        self.task: asyncio.Task[Any] | None = None
        self.loop: StepLoop | None = None
        self.due = NEVER

    # -- from its beginning to its end

    def is_waiting(self) -> bool:
        return self.attempt.token in self._executor.waiting

    def is_open(self) -> bool:
        """Whether nothing has become of it yet."""
        return self.attempt.token in self._executor.executing

    def begin(self) -> bool:
        """Right before the code is called. False if it is not to be: it was taken back, or is no longer wanted."""
        executor, attempt = self._executor, self.attempt
        # Asked while it can still be taken back: the answer may take a while, and be about another worker by then.
        wanted = executor.may_begin()
        if executor.waiting.pop(attempt.token, None) is None:
            return False
        if not wanted:
            self.settle(cancelled(self))
            return False
        self.started = executor.clock.now()
        if (tell := executor.instruments.step_started) is not None:
            tell(started_report(attempt, self.started))
        if attempt.timeout is not None or attempt.stall_timeout is not None:
            self._last_sign = now = time.monotonic()
            self._time_is_over = NEVER if attempt.timeout is None else now + attempt.timeout / 1_000_000
            self.due = self._next_due()
            executor.alarms.watch(self)
        return True

    def settle(self, outcome: Outcome) -> bool:
        """Say what became of it, unless that was said before."""
        executor, token = self._executor, self.attempt.token
        if executor.executing.pop(token, None) is None and executor.sealed.pop(token, None) is None:
            return False
        self._tell(outcome)
        return True

    def _tell(self, outcome: Outcome) -> None:
        if self.due != NEVER:
            self._executor.alarms.forget(self)
        self._executor.on_outcome(outcome)

    def seal(self) -> bool:
        executor, token = self._executor, self.attempt.token
        executor.sealed[token] = self
        if executor.executing.pop(token, None) is not None:
            return True
        del executor.sealed[token]
        return False

    def end(self, outcome: Outcome) -> None:
        """Settle it now, whatever the code does; interrupt that if it can be interrupted. One that is about to commit ends
        by itself."""
        self.cancelled = True
        if self._executor.executing.pop(self.attempt.token, None) is not None:
            self._tell(outcome)
            if self.kill is not None:
                self.kill()
            if self.loop is not None:
                self.loop.under_way.discard(self)
                self.loop.interrupt(self.task)

    # -- its time

    def _next_due(self) -> float:
        stall = self.attempt.stall_timeout
        return self._time_is_over if stall is None else min(self._time_is_over, self._last_sign + stall / 1_000_000)

    def ring(self, now: float) -> None:
        if not self.is_open():
            self._executor.alarms.forget(self)
            return
        self.due = self._next_due()
        if self.due > now:
            return
        attempt = self.attempt
        if self._time_is_over <= now:
            why = (
                f"step {attempt.step!r} of run {attempt.run_id} took longer than its timeout of "
                f"{in_words(attempt.timeout or 0)} (attempt {attempt.number}); make it faster, or raise timeout="
            )
        else:
            why = (
                f"step {attempt.step!r} made no progress for {in_words(attempt.stall_timeout or 0)} (stall_timeout); call "
                "this_step.progress() while it works, or raise the limit"
            )
        self.end(self._executor.runner.failed(self, StepTimeoutError(why)))

    def sign_of_life(self) -> None:
        self._last_sign = time.monotonic()

    # -- what it says

    def hear(self, record: logging.LogRecord) -> bool:
        return self.is_open() and super().hear(record)

    def heard(self, kind: str, value: Any) -> None:
        """The same from its own process."""
        if kind == "log":
            contextvars.Context().run(self._handle_log, value)
            return
        self.sign_of_life()
        if kind != "alive":
            self.report(kind, value)

    def _handle_log(self, frame: dict[str, Any]) -> None:
        """Handle a record of the step's own process as if it had been made here."""
        current_step.set(self)
        try:
            handle_frame(frame)
        except Exception:  # a handler or filter of the user's, which costs the step nothing here as there
            logger.warning("a record that step %r has logged could not be handled", self.attempt.step, exc_info=True)
