"""Histories against code: whether runs go on with the code as it is now. Nothing is executed but workflow code, and nothing
is written."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from holdfast.api.reading import RunReader, Which
from holdfast.app import App
from holdfast.core import events as ev
from holdfast.core.execution import Execution
from holdfast.core.greenlets import Greenlets
from holdfast.core.pending import Recorded
from holdfast.core.registry import Definitions
from holdfast.core.run_info import RunInfo
from holdfast.core.source_lines import lines_of_error
from holdfast.engine.guard import Guard
from holdfast.engine.programs import program_for
from holdfast.engine.run_state import read_options
from holdfast.errors import (
    ContinueAsNew,
    NondeterminismError,
    RunNotFoundError,
    RunStuckError,
    StepError,
    WorkflowBlocked,
)
from holdfast.ports import FINAL, RunQuery, RunRow, Status

OPEN = [status for status in Status if status not in FINAL]
AT_ONCE = 500
"""Runs that are read at a time."""


@dataclass(frozen=True)
class Replayed:
    """An open run that was replayed with the code as it is now. With an `error` it would not go on: what a worker would set
    it aside with, or what its code raises, then with the `line` that does."""

    run_id: str
    workflow: str
    error: Exception | None = None
    line: str = ""


def replay_open_runs(app: App, *, workflow: str | None = None, limit: int | None = None) -> Iterator[Replayed]:
    """Each run of the app's store that has not ended, the newest first, replayed with the app's code as it is now: before
    that code is deployed. With `limit` at most so many."""
    reader, secret = RunReader(app.definitions, app.store), app.store.secret()
    query = RunQuery(statuses=OPEN, workflow=workflow, limit=AT_ONCE)
    count = 0
    guard = Guard()
    guard.start()
    try:
        while True:
            rows, query.after = reader.page(query)
            for row in rows:
                if limit is not None and count >= limit:
                    return
                if row.durable and (replayed := _replayed(app, reader, row, secret, guard)) is not None:
                    count += 1
                    yield replayed
            if query.after is None:
                return
    finally:
        guard.stop()


def _replayed(app: App, reader: RunReader, row: RunRow, secret: bytes, guard: Guard) -> Replayed | None:
    try:
        history = reader.events(Which(row.id, row.no))
    except RunNotFoundError:  # it has ended meanwhile, and was deleted
        return None
    try:
        with _code(app.definitions, row, history, secret, row.build == app.build, guard) as execution:
            error, line = _new_end(app, execution, history, guard)
    except Exception as unfit:  # whatever keeps its code from going on
        error, line = unfit, ""
    except WorkflowBlocked as blocked:
        error, line = RunStuckError(f"run {row.id} would be stuck: {blocked}", run_id=row.id, reason=str(blocked)), ""
    if error is not None:
        # Else all of the run would be kept with it.
        error = error.with_traceback(None)
        error.__context__ = error.__cause__ = None
    return Replayed(row.id, row.workflow, error, line)


def _new_end(app: App, execution: Execution, history: list[ev.AnyEvent], guard: Guard) -> tuple[Exception | None, str]:
    """What the code raises where the history of an open run ends, and where: its own exception, or that of an engine which
    can't take what it gives."""
    recorded = execution.ended
    if recorded is not None:  # as its history says, and it will be tried again
        return None, ""
    raised = _raised_by(execution)
    lines = [] if raised is None else lines_of_error(raised)  # before it is recorded, which takes its frames
    with _guarded(guard, execution):
        execution.settle(history[-1].ts)
    end = execution.ended
    if not isinstance(end, ev.RunFailed):
        return None, ""
    error = app.codec.decode_error(end.error)
    return error if isinstance(error, Exception) else StepError(str(error)), lines[-1] if lines else ""


def replay(app: Definitions, row: RunRow, history: list[ev.AnyEvent], secret: bytes = b"") -> None:
    """Feed a history to an app's code, strictly. The code's end has to be the history's."""
    run_id, recorded = row.id, history[-1]
    try:
        with _code(app, row, history, secret, True) as execution:
            main = execution.code.task
            if isinstance(recorded, ev.RunCompleted):
                if main is None or not main.done() or main.cancelled() or main.exception() is not None:
                    raise NondeterminismError(f"run {run_id} has returned, but on replay its code does not")
                result = main.result()
                given = bytes(result.data) if type(result) is Recorded else app.codec.encode(result, apart=True)
                if given != bytes(recorded.result):
                    raise NondeterminismError(f"run {run_id} returns something else on replay")
            elif isinstance(recorded, ev.RunCancelled):
                pass  # also by others, before its code came to anything: whatever that does then was not to happen
            elif isinstance(_raised_by(execution), ContinueAsNew):
                raise NondeterminismError(f"run {run_id} continues as new on replay only")
    except WorkflowBlocked as blocked:
        if not isinstance(recorded, ev.RunStuck):
            raise NondeterminismError(f"run {run_id} goes on, but on replay {blocked}") from None


def _raised_by(execution: Execution) -> BaseException | None:
    main = execution.code.task
    return main.exception() if main is not None and main.done() and not main.cancelled() else None


@contextmanager
def _code(
    app: Definitions,
    row: RunRow,
    history: list[ev.AnyEvent],
    secret: bytes,
    same_build: bool,
    guard: Guard | None = None,
) -> Iterator[Execution]:
    """The code of a run, where its history ends."""
    base = max(i for i, e in enumerate(history) if isinstance(e, ev.RunStarted | ev.ContinuedAsNew))
    info = RunInfo(
        run_id=row.id, run_no=row.no, app=app.name, parent_id=row.parent_id, root_id=row.root_id or row.id,
        secret=secret, durable=row.durable, strict=True, same_build=same_build,
    )  # fmt: skip
    greenlets = Greenlets()
    execution = Execution(info, program_for(app, row.workflow, read_options(row)[0]), app.codec, greenlets)
    try:
        steps = execution.replay(history[base:])
        is_over = False
        while not is_over:  # the guard counts the time of each delivery
            with _guarded(guard, execution):
                is_over = next(steps, steps) is steps
        yield execution
    finally:
        with _guarded(guard, execution):
            execution.evict()
        greenlets.close()


@contextmanager
def _guarded(guard: Guard | None, execution: Execution) -> Iterator[None]:
    """Workflow code that does I/O or doesn't yield is told so, as a worker does."""
    if guard is None:
        yield
        return
    guard.enter(execution)
    try:
        yield
    finally:
        guard.leave()
    if execution.blocked_by:
        raise WorkflowBlocked(execution.blocked_by)
