"""The event loop that async steps share, on a thread of its own.

A step that blocks it (computes, sleeps, calls what waits without `await`) holds up all others, and can't be interrupted:
a thread can't be killed. So that is told, and if it lasts, or if its time is over, the loop is left to it: what has not
begun goes on with a fresh loop on a fresh thread. What was under way on the old one goes on there as soon as it is free,
and is held to its own timeout meanwhile; the old loop ends with the last of it.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, Protocol

from holdfast.core.context import current_step
from holdfast.core.source_lines import line_of_thread, package_of
from holdfast.executors.alarms import Alarms
from holdfast.executors.surroundings import Surroundings
from holdfast.ports import Attempt

logger = logging.getLogger("holdfast.executor")
ANSWERS_WITHIN = 1.0  # seconds that the loop may take to answer before that is told
LONGEST_BLOCK = 5.0  # seconds of one and the same step after which the others leave it alone with its loop
INTERRUPTED_BLOCK = 0.25  # the same where an attempt on the loop was interrupted and the loop doesn't notice
LOOK = 0.25
MOMENT = 1.0  # seconds that interrupted steps get to clean up when the executor ends


class Job(Protocol):
    """An attempt that is to execute on a loop."""

    attempt: Attempt

    def is_waiting(self) -> bool:
        """Whether it has neither begun nor been taken back."""


class Loops:
    """Executes jobs on the current loop, at most `limit` at a time: `execute(job, loop)` is called there."""

    def __init__(
        self,
        limit: int,
        execute: Callable[[Any, StepLoop], Coroutine[Any, Any, None]],
        alarms: Alarms,
        surroundings: Surroundings,
    ) -> None:
        self.limit = limit
        self.execute = execute
        self.alarms = alarms
        self.surroundings = surroundings
        self.arrived: deque[Any] = deque()
        self._current: StepLoop | None = None
        self._left: list[StepLoop] = []
        self._count = 0
        self._lock = threading.Lock()

    def submit(self, jobs: Iterable[Any]) -> None:
        """One wake-up for all of them: each costs a switch of threads."""
        self.arrived.extend(jobs)
        # Read after they are there: who replaces the current loop wakes the fresh one after that.
        (self._current or self._start()).wake()

    def _start(self) -> StepLoop:
        with self._lock:
            if self._current is None:
                self._current = self._fresh()
            return self._current

    def _fresh(self) -> StepLoop:
        self._count += 1
        return StepLoop(self, "holdfast-async" if self._count == 1 else f"holdfast-async-{self._count}")

    def replace(self, blocked: StepLoop, moved: list[Any]) -> None:
        """Go on without a loop that is blocked."""
        with self._lock:
            if self._current is not blocked:
                return
            self._current = fresh = self._fresh()
            blocked.is_left = True
            self._left.append(blocked)
        # One that begins on both loops at once begins on one of them: that is decided when it begins.
        self.arrived.extendleft(reversed(moved))
        fresh.wake()

    def ended(self, loop: StepLoop) -> None:
        with self._lock:
            if loop in self._left:  # else all of them end
                self._left.remove(loop)
                logger.info("a loop for async steps that was blocked is free again, and has ended")

    def stop(self) -> None:
        """Interrupt what still executes, and give it a moment to end. A loop that doesn't answer is left behind."""
        answers = [(loop, loop.ask()) for loop in self._all()]
        deadline = time.monotonic() + LOOK
        for loop, answered in answers:
            if not answered.wait(max(0.0, deadline - time.monotonic())):
                loop.give_up()
        ends = [(loop, loop.cancel_all()) for loop, _ in answers if not loop.is_given_up]
        deadline = time.monotonic() + MOMENT
        for loop, ended in ends:
            if not ended.wait(max(0.0, deadline - time.monotonic())) and not loop.is_closing:
                loop.give_up()  # one of them blocks it while it cleans up

    def _all(self) -> list[StepLoop]:
        with self._lock:
            return [*self._left, *([self._current] if self._current is not None else [])]

    def close(self) -> None:
        loops = self._all()
        self._current, self._left = None, []
        for loop in loops:
            loop.close()


class StepLoop:
    """One loop on one thread."""

    def __init__(self, loops: Loops, name: str) -> None:
        self._loops = loops
        self.is_left = False  # others have gone on without it
        self.is_given_up = False  # nothing more is expected of it
        self.under_way: set[Any] = set()  # jobs that take a place
        self.tasks: dict[asyncio.Task[None], Any] = {}  # those, and some whose outcome has been decided without them
        self.due = 0.0
        self._loop = asyncio.new_event_loop()
        self._draining = self.is_closing = False
        self._has_answered, self._is_watched = True, False
        self._is_told = self._is_interrupted = False
        self._asked_at = self._blocked_since = 0.0
        self._blocker: asyncio.Task[Any] | None = None
        loops.surroundings.loops.add(self._loop)
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        keep_running(self._loop, lambda: self.is_closing)
        try:
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        except BaseException as error:
            _tell(error)
        finally:
            self._loop.close()

    # -- jobs

    def wake(self) -> None:
        if not self._draining:
            self._draining = True
            self.call(self._drain)
        if not self._is_watched:
            self._is_watched = True
            self._ask(time.monotonic())

    def call(self, function: Callable[..., object], *args: Any) -> None:
        try:
            self._loop.call_soon_threadsafe(function, *args)
        except RuntimeError:  # it is closed
            if not self.is_closing:
                raise

    def _drain(self) -> None:
        self._draining = False
        arrived, limit = self._loops.arrived, self._loops.limit
        while arrived and not self.is_left and len(self.under_way) < limit:
            try:
                job = arrived.popleft()
            except IndexError:  # a fresh loop was faster
                return
            if job.is_waiting():
                self.under_way.add(job)
                task = self._loop.create_task(self._execute(job), context=contextvars.Context())
                if not task.done():  # it may be one that has begun at once
                    self.tasks[task] = job

    async def _execute(self, job: Any) -> None:
        task = asyncio.current_task()
        assert task is not None
        try:
            await self._loops.execute(job, self)
        finally:
            self.under_way.discard(job)
            self.tasks.pop(task, None)
            if self._loops.arrived:
                self._drain()
            if self.is_left or self.is_given_up:
                self._end_if_empty()

    def interrupt(self, task: asyncio.Task[Any] | None) -> None:
        """Cancel a task whose outcome is decided. If the loop doesn't notice, the others need another."""
        self.call(self._interrupt, task)
        self._is_interrupted = True
        now = time.monotonic()
        if self._has_answered:
            self._ask(now)
        self.due = now + INTERRUPTED_BLOCK
        self._is_watched = True
        self._loops.alarms.watch(self)

    def _interrupt(self, task: asyncio.Task[Any] | None) -> None:
        if task is not None:
            task.cancel()
        if self._loops.arrived:  # it has left its place to another one
            self._drain()

    # -- whether it is blocked

    def _ask(self, now: float) -> None:
        self._has_answered = False
        self._asked_at = self._blocked_since = now
        self._blocker = None
        self.due = now + ANSWERS_WITHIN
        self.call(self._answer)
        self._loops.alarms.watch(self)

    def _answer(self) -> None:
        self._has_answered = True
        self._is_told = self._is_interrupted = False

    def ring(self, now: float) -> None:
        if self._has_answered and not self.under_way and not (self._loops.arrived and not self.is_left):
            self._is_watched = False
            self._loops.alarms.forget(self)
            if self.under_way or self._loops.arrived:  # they came just now
                self.wake()
        elif self.is_left or self.is_given_up:
            self._loops.alarms.forget(self)
        elif self._has_answered:
            self._ask(now)
        else:
            self._look(now)

    def _look(self, now: float) -> None:
        """It has not answered yet. Many short pieces of work keep a loop busy too: it is blocked if this is one."""
        current = asyncio.current_task(self._loop)
        if current is not self._blocker or (current is None and self._is_idle()):
            self._blocker, self._blocked_since = current, now
        if now - self._blocked_since >= (INTERRUPTED_BLOCK if self._is_interrupted else LONGEST_BLOCK):
            logger.error(
                "%s blocks the event loop at %s: the other async steps of this worker go on without it, on a fresh loop with "
                "resources of its own, and thread %r is left to it; await something there, or make it a plain `def`",
                self._who(current), line_of_thread(self._thread.ident), self._thread.name,
            )  # fmt: skip
            self._loops.alarms.forget(self)
            self._loops.replace(self, [job for job in list(self.under_way) if job.is_waiting()])
            return
        if now - self._asked_at >= ANSWERS_WITHIN and not self._is_told:
            self._is_told = True
            logger.warning(
                "%s holds up all others of this worker, for %g s or longer, at %s: await something there, or make "
                "it a plain `def`, which gets a thread of its own",
                self._who(current), ANSWERS_WITHIN, line_of_thread(self._thread.ident),
            )  # fmt: skip
        self.due = now + LOOK

    def _is_idle(self) -> bool:
        """Whether its thread executes no code of a step: then it is the machine that keeps it from answering."""
        frame = sys._current_frames().get(self._thread.ident or 0)
        return frame is not None and package_of(frame) in ("asyncio", "selectors")

    def _who(self, task: asyncio.Task[Any] | None) -> str:
        """The step that a task belongs to, in words."""
        job = self.tasks.get(task) if task is not None else None
        if job is None and hasattr(task, "get_context"):  # one that the step has made; Python 3.12 or newer
            job = task.get_context().get(current_step)  # type: ignore[union-attr]
        return "an async step" if job is None else f"async step {job.attempt.step!r} of run {job.attempt.run_id}"

    # -- its end

    def _end_if_empty(self) -> None:
        if not self.tasks and not self.is_closing:
            self.tasks[self._loop.create_task(self._end(), context=contextvars.Context())] = None

    async def _end(self) -> None:
        """The last of what was left on it has ended."""
        await self._loops.surroundings.leave(self._loop)
        self._loops.ended(self)
        self.is_closing = True
        self._loop.stop()

    def cancel_all(self) -> threading.Event:
        """Set when all on it have ended, or have had the time to; or when the loop itself has ended."""
        ended = threading.Event()
        self.call(self._cancel_all, ended)
        return ended

    def _cancel_all(self, ended: threading.Event) -> None:
        pending = {task for task, job in self.tasks.items() if job is not None}

        def has_ended(task: asyncio.Task[None]) -> None:
            pending.discard(task)
            if not pending:
                ended.set()

        if not pending:
            ended.set()
        else:
            self._loop.call_later(MOMENT * 0.9, ended.set)
        for task in list(pending):
            task._log_destroy_pending = False  # type: ignore[attr-defined]  # its outcome is known
            task.add_done_callback(has_ended)
            task.cancel()

    def ask(self) -> threading.Event:
        """Set as soon as it does anything."""
        answered = threading.Event()
        self.call(answered.set)
        return answered

    def give_up(self) -> None:
        """It is still blocked, and nobody waits for it any longer."""
        self.is_given_up = True
        left = self._loops.surroundings.abandon(self._loop)
        names = [resource.name for resource, _ in left]
        for _, life in left:
            if life.task is not None:
                life.task._log_destroy_pending = False  # type: ignore[attr-defined]  # that is told here
        logger.error(
            "%s still blocks thread %r at %s; the worker ends without it%s",
            self._who(asyncio.current_task(self._loop)), self._thread.name, line_of_thread(self._thread.ident),
            f", and resources on its loop are not closed: {', '.join(names)}" if names else "",
        )  # fmt: skip

    def close(self) -> None:
        """After `stop`. A loop with steps on it that refuse to end is left to them."""
        if self.is_given_up:
            return
        self.is_left = True
        names = sorted(
            {f"{job.attempt.step!r} of run {job.attempt.run_id}" for job in list(self.tasks.values()) if job}
        )
        self.call(self._end_if_empty)
        if names:
            logger.error("async steps go on although they were cancelled, and are left behind: %s", ", ".join(names))
        else:
            self._thread.join(5)


def keep_running(loop: asyncio.AbstractEventLoop, is_over: Callable[[], bool]) -> None:
    """Run a loop that the code of users can't end: asyncio lets SystemExit and KeyboardInterrupt of any task through,
    and anybody may call `loop.stop`."""
    while not is_over():
        try:
            loop.run_forever()
        except BaseException as error:
            _tell(error)


def _tell(error: BaseException) -> None:
    logger.error("code on the event loop of async steps raised %s, which ends no worker", type(error).__name__)
