"""Reads a run and all that hangs on it from a store, again and again: piece by piece, so that watching costs little."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from holdfast.core import events as ev
from holdfast.errors import RunNotFoundError
from holdfast.ports import FINAL, Query, RunQuery, RunRow
from holdfast.views.steps import StepView, steps_of
from holdfast.views.tree import KnownRun, TreeNode, tree_of
from holdfast.views.values import PlainReader

FOLLOWED = 20
"""How many children of a run are looked into; of the others the parent's own history says enough."""

MOST_CHILDREN = 100_000
MAX_DEPTH = 20
MOST_FORKS = 50
REMEMBERED = 120_000
"""So many events of histories that were read last are kept."""


class Histories:
    """Histories only grow, so of one that was looked at a moment ago only what is new is read and decoded. Safe to use
    from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # By store, run, and where its history begins.
        self._known: dict[tuple[str, int, int], tuple[list[ev.AnyEvent], list[StepView]]] = {}

    def read(self, store: Query, row: RunRow) -> tuple[Sequence[ev.AnyEvent], Sequence[StepView]]:
        """The events of a run, and what they tell of its steps."""
        key = (store.url, row.no, row.base_seq)
        with self._lock:
            events, steps = self._known.get(key, ([], []))
        new = [ev.from_json(payload) for payload in store.payloads(row.id, events[-1].seq if events else 0)]
        if new or not events:
            events = [*events, *new]
            steps = steps_of(events)
        with self._lock:
            self._known.pop(key, None)
            self._known[key] = (events, steps)  # the last is the newest
            while sum(len(each) for each, _ in self._known.values()) > REMEMBERED and len(self._known) > 1:
                del self._known[next(iter(self._known))]
        return events, steps


class RunTree:
    """A run, its children and theirs, as far as they were read."""

    def __init__(self, store: Query, reader: PlainReader, run_id: str, followed: int = FOLLOWED) -> None:
        self.store = store
        self.root_id = run_id
        self._followed = followed
        self._reader = reader
        self._runs: dict[str, KnownRun] = {}

    def read(self) -> TreeNode:
        """The tree as it is now."""
        row = self.store.get(self.root_id)
        if row is None:
            raise RunNotFoundError(f"run {self.root_id} was deleted", run_id=self.root_id)
        self._read(row, 0)
        self._runs[row.id].forks = self.store.runs(RunQuery(forked_from=row.id, limit=MOST_FORKS))[::-1]
        return tree_of(self._runs, self.root_id, self.store.now(), self._reader)

    @property
    def root(self) -> RunRow:
        return self._runs[self.root_id].row

    @property
    def changed_at(self) -> int:
        """When the last that was read of the run happened."""
        run = self._runs[self.root_id]
        return run.events[-1].ts if run.events else run.row.created_at

    def new_events(self, seen: dict[str, int]) -> list[tuple[RunRow, ev.AnyEvent]]:
        """Events of all runs of the tree that are not in `seen` yet, in the order of time."""
        found = [
            (run.row, event)
            for run in self._runs.values()
            for event in run.events
            if event.seq > seen.get(run.row.id, 0)
        ]
        for row, event in found:
            seen[row.id] = max(seen.get(row.id, 0), event.seq)
        return sorted(found, key=lambda each: (each[1].ts, each[1].seq))

    def _read(self, row: RunRow, depth: int) -> None:
        """Bring what is known of a run up to date, and of its children."""
        run = self._runs.setdefault(row.id, KnownRun(row))
        if run.complete and (run.row.status, run.row.end_seq) == (row.status, row.end_seq):
            return
        if row.base_seq != run.row.base_seq:
            run.events = []
        run.row = row
        last = run.events[-1].seq if run.events else row.base_seq - 1
        run.events += [ev.from_json(payload) for payload in self.store.payloads(row.id, last)]
        run.attempts = [] if row.status in FINAL else self.store.attempts(row.id)
        run.progress = self.store.attributes(row.id, "progress")
        children, others = self._children(row.id) if depth < MAX_DEPTH else ([], [])
        run.child_ids = [child.id for child in children]
        run.others = {child.id: child for child in others}
        for child in children:
            self._read(child, depth + 1)
        over = all(self._runs[id].complete for id in run.child_ids) and all(row.status in FINAL for row in others)
        run.complete = row.status in FINAL and over

    def _children(self, run_id: str) -> tuple[list[RunRow], list[RunRow]]:
        """Those to look into, oldest first, and the others: all if they aren't many, else rather those that still do
        something."""
        rows = self.store.runs(RunQuery(parent=run_id, limit=MOST_CHILDREN))
        by_need = sorted(rows, key=lambda row: row.status in FINAL)
        return sorted(by_need[: self._followed], key=lambda row: row.no), by_need[self._followed :]
