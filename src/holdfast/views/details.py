"""All about one run, read from a store."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from msgspec import Raw

from holdfast.core import events as ev
from holdfast.core.canvases import canvas_of, outline
from holdfast.core.registry import is_own
from holdfast.ports import FINAL, AttemptRow, Place, Query, RunQuery, RunRow, StreamRow, WorkerRow
from holdfast.views.reading import MOST_CHILDREN
from holdfast.views.steps import StepView, steps_of, with_attempts
from holdfast.views.summaries import (
    hook_summaries,
    log_summaries,
    outcome_summary,
    run_summary,
    step_summary,
    unclaimed_summaries,
    why_summary,
)
from holdfast.views.values import PlainReader
from holdfast.views.waits import open_hooks, unclaimed
from holdfast.views.why import why

MOST_PLACES = 100
"""So many of the slots that a run waits for are told with their places in line."""


def read_outcome(store: Query, row: RunRow, reader: PlainReader) -> dict[str, Any]:
    """What became of a run, if it has ended."""
    payloads = store.payloads(row.id, row.end_seq - 1) if row.status in FINAL else []
    return outcome_summary(row, ev.from_json(payloads[-1]) if payloads else None, reader)


class RunSource(Protocol):
    """What is asked of a store about one run."""

    def now(self) -> int: ...
    def workers(self) -> list[WorkerRow] | None: ...
    def attempts(self, run_id: str) -> list[AttemptRow]: ...
    def places(self, run_id: str, limit: int) -> list[Place]: ...
    def data(self, run_id: str) -> dict[str, bytes]: ...
    def attributes(self, run_id: str, key: str) -> dict[str, bytes]: ...
    def runs(self, query: RunQuery) -> list[RunRow]: ...
    def orders(self, run_id: str) -> list[str]: ...
    def stream(self, run_id: str, after: int, limit: int) -> list[StreamRow]: ...
    def payloads(
        self, run_id: str, after: int = 0, kinds: Sequence[str] = (), until: int | None = None
    ) -> list[bytes]: ...


def read_details(
    store: RunSource,
    row: RunRow,
    reader: PlainReader,
    max_attempts: Mapping[str, int] | None = None,
    events: Sequence[ev.AnyEvent] | None = None,
    steps: Sequence[StepView] | None = None,
    most_steps: int | None = None,
    most_bytes: int | None = None,
) -> dict[str, Any]:
    """As JSON data. `max_attempts` is how often each step may be tried, where the code is at hand; `events` and `steps` are
    those of the run, if they were read already. With `most_steps`, only so many of its steps are told; with `most_bytes`,
    an input or a result that is longer is only named, in `large`."""
    now = store.now()
    if events is None:
        events = [ev.from_json(payload) for payload in store.payloads(row.id)]
    if steps is None:
        steps = steps_of(events)
    beginnings = [event for event in events if isinstance(event, (ev.RunStarted, ev.ContinuedAsNew))]
    progress = store.attributes(row.id, "progress")
    logs = log_summaries(store.attributes(row.id, "logs"), reader)
    attempts = store.attempts(row.id)
    places = store.places(row.id, MOST_PLACES) if row.limited and row.status not in FINAL else []
    reason = why(row, now, events, store.workers(), max_attempts, reader, steps, attempts, places)
    children = {child.id: child for child in reversed(store.runs(RunQuery(parent=row.id, limit=MOST_CHILDREN)))}
    forked = next((e.forked_from for e in beginnings if isinstance(e, ev.RunStarted)), None)
    input = beginnings[-1].input if beginnings else None
    end = next((event for event in reversed(events) if event.seq == row.end_seq), None)
    large = [] if most_bytes is None else _longer(most_bytes, input=input, result=getattr(end, "result", None))
    return {
        **run_summary(row, now),
        "why": why_summary(reason),
        "forked_from": forked,
        "input": None if "input" in large else reader.value(input),
        "large": large,
        **(
            {"canvas": outline(canvas_of(input))}
            if input is not None and is_own(row.workflow) and "input" not in large
            else {}
        ),
        **({"result": None} if "result" in large else outcome_summary(row, end, reader)),
        "hooks": hook_summaries(open_hooks(events, row)),
        "unclaimed": unclaimed_summaries(unclaimed(events), reader),
        "data": {key: reader.named(key, value) for key, value in store.data(row.id).items()},
        "events": events[-1].seq if events else 0,
        "steps": [
            step_summary(view, reader, progress, logs, children.get(view.child_id))
            for view in with_attempts(steps, attempts)[:most_steps]
        ],
        "children": list(children)[:1000],
    }


def read_values(store: RunSource, row: RunRow, reader: PlainReader) -> dict[str, Any]:
    """What went into a run, what came out, and its data, however long they are."""
    payloads = store.payloads(row.id, 0, ("RunStarted", "ContinuedAsNew", "RunCompleted", "RunFailed", "RunCancelled"))
    events = [ev.from_json(payload) for payload in payloads]
    beginnings = [event for event in events if isinstance(event, (ev.RunStarted, ev.ContinuedAsNew))]
    input = beginnings[-1].input if beginnings else None
    return {
        "input": reader.value(input),
        **({"canvas": outline(canvas_of(input))} if input is not None and is_own(row.workflow) else {}),
        **outcome_summary(row, next((event for event in events if event.seq == row.end_seq), None), reader),
        "data": {key: reader.named(key, value) for key, value in store.data(row.id).items()},
    }


def _longer(most: int, **values: Raw | None) -> list[str]:
    return [name for name, value in values.items() if value is not None and len(bytes(value)) > most]
