"""The workflow's function as a task of its run: how it is called, and how it has ended."""

from __future__ import annotations

from typing import Any

from msgspec import Raw

from holdfast.codec import Codec
from holdfast.core import events as ev
from holdfast.core.journal import Journal
from holdfast.core.loop import Task
from holdfast.core.pending import FLAGS, Program, Recorded
from holdfast.core.source_lines import task_lines
from holdfast.core.unawaited import Unawaited
from holdfast.errors import (
    ContinueAsNew,
    DeadlockError,
    Suspended,
    TransformError,
    WorkflowTimeoutError,
    WrongContextError,
)


class Code:
    """`unawaited` is what it has created and not awaited so far; `cancelling` is the order to end it, if there was one."""

    __slots__ = ("_codec", "_journal", "_program", "cancelling", "task", "unawaited")

    def __init__(self, journal: Journal, program: Program, codec: Codec) -> None:
        self._journal = journal
        self._program = program
        self._codec = codec
        self.task: Task[Any] | None = None
        self.cancelling: ev.CancelRequested | None = None
        self.unawaited = Unawaited()

    def begin(self) -> None:
        call = self._program.call(self._journal.beginning.input)
        self.task = self._journal.loop.create_task(call, name=self._program.name)

    def is_under_way(self) -> bool:
        return self.task is not None and not self.task.done()

    def cancel(self, event: ev.CancelRequested) -> None:
        assert self.task is not None
        self.cancelling = event
        self.task.cancel(event.reason or "cancelled")

    def end(self, now: int) -> ev.Event:
        """How it has ended, as an event. What is no end of it is raised: values that can't be written or read for now."""
        task, cancelling = self.task, self.cancelling
        assert task is not None
        if task.cancelled():
            return self._cancelled(now)
        error = task.exception()
        try:
            if error is None and not self.unawaited:
                return ev.RunCompleted(ts=now, result=self._encoded(task.result()))
            if isinstance(error, ContinueAsNew):
                if cancelling is not None and task.deferred:  # a shield has kept it from the code until now
                    return self._cancelled(now)
                return self._continued(error, now)
        except Exception as unfit:
            if _may_pass(unfit):
                raise
            return self.failure(unfit, now)
        if error is None:
            return self.failure(self.unawaited.error(), now)
        if (isinstance(error, Suspended) and self._journal.loop.closed) or _may_pass(error):
            raise error
        if isinstance(error, BaseExceptionGroup) and error.subgroup(ContinueAsNew) is not None:
            error = WrongContextError(
                "wf.continue_as_new() was called in a task of a TaskGroup, which ends only itself; call it where the "
                "workflow's own function goes on, after the group"
            )
        if isinstance(error, TypeError | AttributeError):
            self._note_mixed_up_awaits(error)
        return self.failure(error, now)

    def _cancelled(self, now: int) -> ev.Event:
        cancelling = self.cancelling
        if cancelling is not None and cancelling.timed_out:
            return self.failure(WorkflowTimeoutError(cancelling.reason), now)
        reason = cancelling.reason if cancelling else "the workflow raised CancelledError"
        return ev.RunCancelled(ts=now, reason=reason)

    def _encoded(self, result: Any) -> Raw:
        if type(result) is Recorded:
            return result.data
        return Raw(self._codec.encode(result, f"the result of workflow {self._program.name!r}", apart=True))

    def _continued(self, request: ContinueAsNew, now: int) -> ev.ContinuedAsNew:
        journal = self._journal
        first = journal.beginning
        return ev.ContinuedAsNew(
            ts=now, workflow=first.workflow, input=Raw(self._codec.encode_call(request.call_args, request.call_kwargs)),
            flags=FLAGS, scheduled_at=first.scheduled_at, scheduled_offset=first.scheduled_offset, data=journal.data,
        )  # fmt: skip

    def failure(self, error: BaseException, now: int) -> ev.AttemptFailed | ev.RunFailed:
        """It failed: the run is tried again, unless it may not be, or is being cancelled."""
        encoded = Raw(self._codec.encode_error(error))
        drop_tracebacks(error)
        attempt, within = self._journal.attempt, self._program.retry_within
        delay = self._program.retry_delay(error, attempt) if self.cancelling is None else None
        if delay is not None and (within is None or now + delay <= self._journal.beginning.ts + within):
            return ev.AttemptFailed(ts=now, attempt=attempt, error=encoded, retry_at=now + delay)
        return ev.RunFailed(ts=now, error=encoded)

    def deadlock(self, now: int) -> ev.AttemptFailed | ev.RunFailed:
        """It waits, and nothing is outstanding."""
        tasks = self._journal.loop.tasks.values()
        lines = [(task.get_name(), task_lines(task, users_own=True) or task_lines(task)) for task in tasks]
        stacks = [f"  {name}: {' < '.join(reversed(stack))}" for name, stack in lines]
        error = DeadlockError(
            f"run {self._journal.info.run_id} waits for nothing that can happen: no step, timer, hook, request or child is "
            "outstanding.\n" + "\n".join(stacks)
        )
        return self.failure(error, now)

    def _note_mixed_up_awaits(self, error: TypeError | AttributeError) -> None:
        """Python's own words for a forgotten await, or for one too many, name neither the step nor the rule."""
        for line in self.unawaited.in_words():
            error.add_note(f"{line} was never awaited: what it gives is there only after `await`")
        if isinstance(error, TypeError) and "await" in str(error):
            error.add_note("what is made from `def` is called, and what is made from `async def` is awaited")


def drop_tracebacks(error: BaseException | None) -> None:
    """Let go of the frames that an exception came through, which hold it in turn."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        error.__traceback__ = None
        error = error.__cause__ or error.__context__


def _may_pass(error: BaseException) -> bool:
    """Whether a value could not be written or read here for now, which is no failure of the workflow. One that a step or
    a child has failed with is."""
    return isinstance(error, TransformError) and "__holdfast_traceback__" not in vars(error)
