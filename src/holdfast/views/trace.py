"""A process as one tree: runs, the domain events that they emit, the runs that those start, and so on."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec

from holdfast.engine.records import RunOptions
from holdfast.ports import DomainEventRow, RunRow
from holdfast.views.times import moment

LIMIT = 10_000


@dataclass(slots=True)
class TraceNode:
    """A run or a domain event of a process, and what it led to. Where the beginning was deleted, `kind` is "gone"."""

    kind: Literal["run", "event", "gone"]
    id: str
    name: str
    app: str
    status: str = ""
    at: dt.datetime | None = None
    ended_at: dt.datetime | None = None
    children: list[TraceNode] = field(default_factory=list)


def trace_of(correlation: str, runs: list[RunRow], events: list[DomainEventRow]) -> TraceNode:
    """What hangs on what: a child on its parent, an event on its run, a run on its event. All else on the root."""
    of_runs = {(row.app, row.id): _run(row) for row in runs}
    of_events = {row.id: _event(row) for row in events}
    loose: list[TraceNode] = []
    for row in runs:
        options = msgspec.json.decode(row.options, type=RunOptions)
        above = of_runs.get((row.app, row.parent_id or "")) or of_events.get(options.event)
        (loose if above is None else above.children).append(of_runs[row.app, row.id])
    for event in events:
        above = of_runs.get((event.app, event.run_id or ""))
        (loose if above is None else above.children).append(of_events[event.id])
    for node in (*of_runs.values(), *of_events.values()):
        node.children.sort(key=_age)
    loose.sort(key=_age)
    if len(loose) == 1:
        return loose[0]
    app, _, origin = correlation.rpartition(":")
    root = next((node for node in loose if node.id == origin), None)
    if root is None:
        root = TraceNode("gone", origin, "", app)
    root.children += [node for node in loose if node is not root]
    return root


def _run(row: RunRow) -> TraceNode:
    return TraceNode("run", row.id, row.workflow, row.app, row.status, moment(row.created_at), moment(row.finished_at))


def _event(row: DomainEventRow) -> TraceNode:
    return TraceNode("event", row.id, row.name, row.app, at=moment(row.ts))


def _age(node: TraceNode) -> dt.datetime:
    return node.at or moment(0)


def trace_summary(node: TraceNode, most: int | None = None) -> dict[str, Any]:
    """As JSON data. With `most`, of each node that many children."""
    return {
        "kind": node.kind,
        "id": node.id,
        "name": node.name,
        "app": node.app,
        "status": node.status or None,
        "at": node.at.isoformat() if node.at is not None else None,
        "ended_at": node.ended_at.isoformat() if node.ended_at is not None else None,
        "children": [trace_summary(child, most) for child in node.children[:most]],
    }
