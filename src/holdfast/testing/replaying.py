"""Histories against code: whether runs go on with the code as it is now. Nothing is executed but workflow code, and nothing
is written."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from holdfast.api.reading import RunReader, Which
from holdfast.app import App
from holdfast.core import events as ev
from holdfast.core.execution import Execution
from holdfast.core.greenlets import Greenlets
from holdfast.core.loop import Task
from holdfast.core.pending import Recorded
from holdfast.core.registry import Definitions
from holdfast.core.run_info import RunInfo
from holdfast.engine.programs import program_for
from holdfast.engine.run_state import read_options
from holdfast.errors import ContinueAsNew, NondeterminismError, RunNotFoundError, UnknownNameError, WorkflowBlocked
from holdfast.ports import FINAL, RunQuery, RunRow, Status

OPEN = [status for status in Status if status not in FINAL]
AT_ONCE = 500
"""Runs that are read at a time."""


@dataclass(frozen=True)
class Replayed:
    """An open run that was replayed with the code as it is now. With an `error` it would not go on: what a worker would set
    it aside or fail it with."""

    run_id: str
    workflow: str
    error: Exception | None = None


def replay_open_runs(app: App, *, workflow: str | None = None, limit: int | None = None) -> Iterator[Replayed]:
    """Each run of the app's store that has not ended, the newest first, replayed with the app's code as it is now: before
    that code is deployed. With `limit` at most so many."""
    reader, secret = RunReader(app.definitions, app.store), app.store.secret()
    query = RunQuery(statuses=OPEN, workflow=workflow, limit=AT_ONCE)
    count = 0
    while True:
        rows, query.after = reader.page(query)
        for row in rows:
            if limit is not None and count >= limit:
                return
            if row.durable and (replayed := _replayed(app, reader, row, secret)) is not None:
                count += 1
                yield replayed
        if query.after is None:
            return


def _replayed(app: App, reader: RunReader, row: RunRow, secret: bytes) -> Replayed | None:
    try:
        history = reader.events(Which(row.id, row.no))
    except RunNotFoundError:  # it has ended meanwhile, and was deleted
        return None
    try:
        error = replay(app.definitions, row, history, secret, same_build=row.build == app.build)
    except (NondeterminismError, UnknownNameError) as unfit:
        error = unfit
    return Replayed(row.id, row.workflow, error)


def replay(
    app: Definitions, row: RunRow, history: list[ev.AnyEvent], secret: bytes = b"", *, same_build: bool = True
) -> Exception | None:
    """Feed a history to an app's code, strictly. The code's end has to be the history's. What the code raises at the end of
    a history that goes on."""
    run_id = row.id
    base = max(i for i, e in enumerate(history) if isinstance(e, ev.RunStarted | ev.ContinuedAsNew))
    info = RunInfo(
        run_id=run_id, run_no=row.no, app=app.name, parent_id=row.parent_id, root_id=row.root_id or run_id,
        secret=secret, durable=row.durable, strict=True, same_build=same_build,
    )  # fmt: skip
    greenlets = Greenlets()
    execution = Execution(info, program_for(app, row.workflow, read_options(row)[0]), app.codec, greenlets)
    recorded = history[-1]
    try:
        for _ in execution.replay(history[base:]):
            pass
        main = execution.code.task
        if isinstance(recorded, ev.RunCompleted):
            if main is None or not main.done() or main.cancelled() or main.exception() is not None:
                raise NondeterminismError(f"run {run_id} has returned, but on replay its code does not")
            result = main.result()
            if (bytes(result.data) if type(result) is Recorded else app.codec.encode(result, apart=True)) != bytes(
                recorded.result
            ):
                raise NondeterminismError(f"run {run_id} returns something else on replay")
        elif isinstance(recorded, ev.RunCancelled):
            pass  # also by others, before its code came to anything: whatever that does then was not to happen
        elif main is not None and main.done() and not main.cancelled() and isinstance(main.exception(), ContinueAsNew):
            raise NondeterminismError(f"run {run_id} continues as new on replay only")
        return None if isinstance(recorded, ev.RunEnded) else _raised(main)
    except WorkflowBlocked as blocked:
        if not isinstance(recorded, ev.RunStuck):
            raise NondeterminismError(f"run {run_id} goes on, but on replay {blocked}") from None
        return None
    finally:
        execution.evict()
        greenlets.close()


def _raised(main: Task[Any] | None) -> Exception | None:
    if main is None or not main.done() or main.cancelled():
        return None
    error = main.exception()
    return error if isinstance(error, Exception) else None
