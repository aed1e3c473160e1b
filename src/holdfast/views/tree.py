"""A run as a tree: its steps, its child runs and theirs."""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import msgspec
from msgspec.structs import replace

from holdfast.core import events as ev
from holdfast.ports import AttemptRow, RunRow, Status, StepState
from holdfast.views.steps import StepView, steps_of, with_attempts
from holdfast.views.times import iso, until
from holdfast.views.values import PlainReader
from holdfast.views.waits import waits_of
from holdfast.views.why import doing, waiting_text, why


class KnownRun(msgspec.Struct):
    """What was read of one run. `child_ids` are those of the runs that are looked into; of the others there are the rows,
    in `others`. `attempts` are those of steps that other workers execute, or are to."""

    row: RunRow
    events: list[ev.AnyEvent] = []
    progress: dict[str, bytes] = {}
    child_ids: list[str] = []
    others: dict[str, RunRow] = {}
    forks: list[RunRow] = []
    complete: bool = False
    attempts: list[AttemptRow] = []


class TreeNode(msgspec.Struct, frozen=True):
    """A run, or a step of one. A compensation hangs on what it undoes, one of several executions on the whole. A fork
    hangs on the run that it was made from, of which it is no part."""

    name: str
    state: str
    run_id: str = ""
    attempt: int = 1
    started_at: int | None = None
    ended_at: int | None = None
    detail: str = ""
    reused: bool = False
    undoes: str = ""
    progress: dict[str, Any] | None = None
    children: list[TreeNode] = []
    forked_from: str = ""
    is_heading: bool = False
    is_fork: bool = False

    @property
    def is_done(self) -> bool:
        return self.state == "SUCCESS" and all(child.is_done for child in self.children if not child.is_fork)

    def steps(self) -> Iterator[tuple[str, TreeNode]]:
        """All steps below, each with the id of its run."""
        for child in self.children:
            if child.is_heading:
                yield from ((self.run_id, step) if not run_id else (run_id, step) for run_id, step in child.steps())
            elif child.children or child.run_id:
                yield from child.steps()
            else:
                yield self.run_id, child

    def summary(self, most: int | None = None) -> dict[str, Any]:
        """As JSON data. With `most`, of each node that many children, and how many more there are."""
        facts: dict[str, Any] = {"name": self.name, "state": self.state}
        if self.run_id:
            facts["run_id"] = self.run_id
        facts |= {"attempt": self.attempt, "started_at": iso(self.started_at), "ended_at": iso(self.ended_at)}
        for name in ("forked_from", "is_fork", "detail", "reused", "undoes", "progress"):
            if value := getattr(self, name):
                facts[name] = value
        if most is not None and len(self.children) > most:
            facts["left_out"] = len(self.children) - most
        return facts | {"children": [child.summary(most) for child in self.children[:most]]}


def tree_of(runs: Mapping[str, KnownRun], run_id: str, now: int, reader: PlainReader) -> TreeNode:
    """The tree below a run, of the runs that are known."""
    run = runs[run_id]
    row, first = run.row, run.events[0] if run.events else None
    node = TreeNode(
        name=row.workflow, state=row.status, run_id=row.id, attempt=row.attempt, started_at=row.started_at,
        ended_at=row.finished_at, detail=_detail_of_run(run, now, reader), children=[],
        forked_from=(first.forked_from or "") if isinstance(first, ev.RunStarted | ev.ContinuedAsNew) else "",
    )  # fmt: skip
    left = dict.fromkeys(run.child_ids)
    views = with_attempts(steps_of(run.events), run.attempts)
    latest = {view.child_id: view for view in views}  # a retried child is asked for more than once
    found: dict[str, TreeNode] = {}  # by command, and by the name in a composition
    attempts, attempt_of = _attempts(run, node)
    for view in views:
        if view.child_id in left and latest[view.child_id] is view:
            del left[view.child_id]
            child = tree_of(runs, view.child_id, now, reader)
            child = replace(child, name=view.key or child.name, reused=view.reused, undoes=view.undoes)
        else:
            child = _step(view, run.progress.get(view.cmd), now, reader, run.others.get(view.child_id))
        above = found.get(view.undoes) or found.get(view.part_of) or attempts.get(attempt_of(view)) or node
        above.children.append(child)
        found[view.cmd] = found[view.key or view.cmd] = child
    node.children.extend(tree_of(runs, child_id, now, reader) for child_id in left)
    node.children.extend(_fork(row, now) for row in run.forks)
    return node


def _fork(row: RunRow, now: int) -> TreeNode:
    return TreeNode(
        name=row.workflow, state=row.status, run_id=row.id, attempt=row.attempt, started_at=row.started_at,
        ended_at=row.finished_at, detail="" if Status(row.status).is_final else why(row, now).text, children=[],
        is_fork=True,
    )  # fmt: skip


def _attempts(run: KnownRun, node: TreeNode) -> tuple[dict[int, TreeNode], Callable[[StepView], int]]:
    """A heading for each attempt of a run that was tried more than once, and which of them a step belongs to."""
    begins = [event for event in run.events if isinstance(event, ev.AttemptStarted)]
    if not begins:
        return {}, lambda view: 0
    first = begins[0].attempt - 1
    seqs, ended = [event.seq for event in begins], node.ended_at
    headings = {}
    for number in range(first, first + len(begins) + 1):
        is_last = number == first + len(begins)
        end = ended if is_last else begins[number - first].ts
        state = node.state if is_last else str(StepState.FAILURE)
        headings[number] = TreeNode(name=f"attempt {number}", state=state, ended_at=end, children=[], is_heading=True)
    node.children.extend(headings.values())

    def attempt_of(view: StepView) -> int:  # of what no event tells yet it is the last
        return first + bisect.bisect_right(seqs, view.cause or view.seq or seqs[-1])

    return headings, attempt_of


def _step(view: StepView, progress: bytes | None, now: int, reader: PlainReader, row: RunRow | None = None) -> TreeNode:
    if row is not None and view.ended_at is None:  # a child that is not looked into: its parent's history says less
        return TreeNode(
            name=view.key or view.name, state=row.status, run_id=row.id, attempt=row.attempt, started_at=row.started_at,
            ended_at=row.finished_at, detail="" if Status(row.status).is_final else why(row, now).text, children=[],
        )  # fmt: skip
    detail = view.reason if view.error is None else reader.error_text(view.error)
    if view.state == StepState.RETRY and view.retry_at is not None:
        detail = f"retry {until(view.retry_at, now)}; {detail}"
    return TreeNode(
        name=view.key or view.name, state=str(view.state), run_id=view.child_id, attempt=view.attempts,
        started_at=view.started_at, ended_at=view.ended_at, detail=detail, reused=view.reused, undoes=view.undoes,
        progress=reader.value(progress), children=[],
    )  # fmt: skip


def _detail_of_run(run: KnownRun, now: int, reader: PlainReader) -> str:
    row, last = run.row, run.events[-1] if run.events else None
    if isinstance(last, ev.RunFailed):
        return reader.error_text(last.error)
    if isinstance(last, ev.RunCancelled):
        return last.reason
    if row.status == Status.WAITING:  # children and retries have lines of their own
        waits = [wait for wait in waits_of(run.events, row) if wait.kind not in ("step", "retry", "child")]
        return waiting_text(row, now, waits) if waits else ""
    return doing(row, now)
