"""A run as a tree: its steps, its child runs and theirs. Read piece by piece, so that watching costs little."""

from __future__ import annotations

import collections
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import msgspec

from holdfast.cli.facts import doing
from holdfast.cli.output import (
    LOOKS,
    Line,
    Look,
    Span,
    console,
    cut,
    iso,
    length,
    on_terminal,
    print_lines,
    short_id,
    speaks_unicode,
    until,
)
from holdfast.cli.place import Place
from holdfast.cli.plain import Reader
from holdfast.core import events as ev
from holdfast.core.views import steps_of
from holdfast.errors import RunNotFoundError
from holdfast.ports import FINAL, RunQuery, RunRow, Status, StepState, Store

FOLLOWED = 20
"""How many children of a run are looked into; of the others the parent's own history says enough."""

MAX_DEPTH = 20
BAR = 20
_TWIGS = {True: ("├─ ", "└─ "), False: ("|- ", "`- ")}


@dataclass
class Node:
    """A run, or a step of one."""

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
    children: list[Node] = field(default_factory=list)

    @property
    def is_done(self) -> bool:
        return self.state == "SUCCESS" and all(child.is_done for child in self.children)


class Branch:
    """What is known of one run so far."""

    def __init__(self, row: RunRow) -> None:
        self.row = row
        self.events: list[ev.AnyEvent] = []
        self.progress: dict[str, bytes] = {}
        self.complete = False
        self.child_ids: list[str] = []


class Grove:
    """Reads a run and all that hangs on it, again and again."""

    def __init__(self, store: Store, reader: Reader, run_id: str, followed: int = FOLLOWED) -> None:
        self.store = store
        self._followed = followed
        self.root_id = run_id
        self._reader = reader
        self._branches: dict[str, Branch] = {}

    def read(self) -> Node:
        """The tree as it is now."""
        row = self.store.get(self.root_id)
        if row is None:
            raise RunNotFoundError(f"run {self.root_id} was deleted", run_id=self.root_id)
        self._read(row, 0)
        return self._node(self._branches[self.root_id], self.store.now())

    @property
    def root(self) -> RunRow:
        return self._branches[self.root_id].row

    def new_events(self, seen: dict[str, int]) -> list[tuple[RunRow, ev.AnyEvent]]:
        """Events of all runs of the tree that are not in `seen` yet, in the order of time."""
        found = [
            (branch.row, event)
            for branch in self._branches.values()
            for event in branch.events
            if event.seq > seen.get(branch.row.id, 0)
        ]
        for row, event in found:
            seen[row.id] = max(seen.get(row.id, 0), event.seq)
        return sorted(found, key=lambda each: (each[1].ts, each[1].seq))

    def _read(self, row: RunRow, depth: int) -> None:
        """Bring what is known of a run up to date, and of its children."""
        branch = self._branches.setdefault(row.id, Branch(row))
        if branch.complete and (branch.row.status, branch.row.end_seq) == (row.status, row.end_seq):
            return
        if row.base_seq != branch.row.base_seq:
            branch.events = []
        branch.row = row
        last = branch.events[-1].seq if branch.events else row.base_seq - 1
        branch.events += [ev.from_json(payload) for payload in self.store.payloads(row.id, last)]
        branch.progress = self.store.attributes(row.id, "progress")
        children = self._children(row.id) if depth < MAX_DEPTH else []
        branch.child_ids = [child.id for child in children]
        for child in children:
            self._read(child, depth + 1)
        branch.complete = row.status in FINAL and all(self._branches[id].complete for id in branch.child_ids)

    def _children(self, run_id: str) -> list[RunRow]:
        """Those to look into, oldest first: all if they aren't many, else rather those that still do something."""
        rows = self.store.runs(RunQuery(parent=run_id, limit=10 * self._followed))
        chosen = sorted(rows, key=lambda row: row.status in FINAL)[: self._followed]
        return sorted(chosen, key=lambda row: row.no)

    def _node(self, branch: Branch, now: int) -> Node:
        row = branch.row
        node = Node(
            row.workflow, row.status, row.id, row.attempt, row.started_at, row.finished_at, self._detail(branch, now)
        )
        followed = dict.fromkeys(branch.child_ids)
        views = steps_of(branch.events)
        latest = {view.child_id: view for view in views}  # a retried child is asked for more than once
        found: dict[str, Node] = {}  # by command, and by the name in a composition
        for view in views:
            # A compensation hangs on what it undoes, and one of several executions on the whole.
            above = found.get(view.undoes) or found.get(view.part_of) or node
            if view.child_id in followed and latest[view.child_id] is view:
                del followed[view.child_id]
                child = self._node(self._branches[view.child_id], now)
                child.name, child.reused, child.undoes = view.key or child.name, view.reused, view.undoes
                above.children.append(child)
                found[view.cmd] = found[view.key or view.cmd] = child
                continue
            detail = view.reason
            if view.error is not None:
                error = self._reader.error(view.error) or {}
                detail = f"{error.get('type', '')}: {error.get('message', '')}"
            if view.state == StepState.RETRY and view.retry_at is not None:
                detail = f"retry {until(view.retry_at, now)}; {detail}"
            shown = branch.progress.get(view.cmd)
            each = Node(
                view.key or view.name, str(view.state), view.child_id, view.attempts, view.started_at, view.ended_at,
                detail, view.reused, view.undoes, None if shown is None else msgspec.json.decode(shown),
            )  # fmt: skip
            above.children.append(each)
            found[view.cmd] = found[view.key or view.cmd] = each
        node.children += [self._node(self._branches[child_id], now) for child_id in followed]
        return node

    def _detail(self, branch: Branch, now: int) -> str:
        row, last = branch.row, branch.events[-1] if branch.events else None
        if isinstance(last, ev.RunFailed):
            error = self._reader.error(last.error) or {}
            return f"{error.get('type', '')}: {error.get('message', '')}"
        if isinstance(last, ev.RunCancelled):
            return last.reason
        if row.status == Status.WAITING:  # children and retries have lines of their own
            reasons = [r for r in row.reason.split(", ") if not r.startswith(("child ", "retry of step "))]
            return doing(msgspec.structs.replace(row, reason=", ".join(reasons)), now) if reasons else ""
        return doing(row, now)


# -- as lines


class Painter:
    """Turns a tree into lines. `height` is how many there should be: what is done is folded, and if that isn't
    enough, `crop` leaves out the upper part."""

    def __init__(
        self,
        now: int,
        *,
        unicode: bool = True,
        height: int | None = None,
        crop: bool = False,
        width: int = 100,
        short_ids: bool = False,
    ) -> None:
        self._now = now
        self._unicode = unicode
        self._height = height
        self._crop = crop
        self._short_ids = short_ids
        self._width = width

    def paint(self, root: Node) -> list[Line]:
        lines = list(self._lines(root, "", "", "", False))
        if self._height is not None and len(lines) > self._height:
            lines = list(self._lines(root, "", "", "", True))
        if self._height is not None and len(lines) > self._height and self._crop:
            left_out = len(lines) - self._height + 1
            lines = [lines[0], [Span(f"  {left_out} lines above ...", "dim")], *lines[left_out + 1 :]]
        return lines

    def _lines(self, node: Node, parent_id: str, prefix: str, branch: str, fold: bool) -> Iterator[Line]:
        yield self._line(node, parent_id, prefix + branch)
        below = prefix + {"": "", "├─ ": "│  ", "└─ ": "   ", "|- ": "|  ", "`- ": "   "}[branch]
        groups = list(_folded(node.children) if fold else ([child] for child in node.children))
        for i, group in enumerate(groups):
            is_last = i == len(groups) - 1
            twig = _TWIGS[self._unicode][is_last]
            if len(group) > 1:
                yield self._summary(group, below + twig)
            else:
                yield from self._lines(group[0], node.run_id, below, twig, fold)

    def _line(self, node: Node, parent_id: str, prefix: str) -> Line:
        look = LOOKS.get(node.state, Look("?", "?", ""))
        line = [Span(prefix, "dim"), Span(look.icon if self._unicode else look.ascii, look.style), Span(" ")]
        line.append(Span(node.name, "bold" if node.run_id else ""))
        if node.run_id:
            line.append(Span(f"  {self._id(node.run_id, parent_id)}", "dim"))
        line.append(Span(f"  {node.state}", look.style))
        if node.attempt > 1:
            line.append(Span(f"  attempt {node.attempt}", "yellow"))
        if node.reused:
            line.append(Span("  from an earlier attempt", "dim"))
        if node.undoes:
            line.append(Span("  compensation", "magenta"))
        if node.started_at is not None and not node.reused:
            line.append(Span(f"  {length((node.ended_at or self._now) - node.started_at)}", "dim"))
        if node.progress is not None and node.ended_at is None:
            line += self._bar(node.progress)
        if node.detail:
            used = sum(len(span.text) for span in line)
            style = "red" if node.state in ("FAILURE", "STUCK") else "cyan" if node.state == "WAITING" else "yellow"
            line.append(Span("  " + cut(node.detail, max(20, self._width - used - 2)), style))
        return line

    def _id(self, run_id: str, parent_id: str) -> str:
        if self._short_ids and parent_id and run_id.startswith(parent_id):
            return f"…{run_id[len(parent_id) :]}" if self._unicode else f"..{run_id[len(parent_id) :]}"
        return short_id(run_id) if self._short_ids else run_id

    def _bar(self, progress: dict[str, Any]) -> Line:
        done, total = progress.get("done") or 0, progress.get("total")
        text = f"  {progress.get('note') or ''}".rstrip()
        if not total:
            return [Span(f"  {done:g}", "blue"), Span(text, "dim")]
        part = min(1.0, max(0.0, done / total))
        full = round(part * BAR)
        filled, empty = ("━", "─") if self._unicode else ("#", ".")
        bar = [Span("  " + filled * full, "blue"), Span(empty * (BAR - full), "dim"), Span(f" {part:.0%}", "blue")]
        return [*bar, Span(f" {done:g}/{total:g}", "dim"), Span(text, "dim")]

    def _summary(self, group: list[Node], prefix: str) -> Line:
        look = LOOKS["SUCCESS"]
        counts = collections.Counter(node.name for node in group).most_common()
        names = ", ".join(f"{name} × {count}" if count > 1 else name for name, count in counts[:4])
        more = f" and {len(counts) - 4} more" if len(counts) > 4 else ""
        icon = look.icon if self._unicode else look.ascii
        return [Span(prefix, "dim"), Span(icon, look.style), Span(f" {len(group)} done: {names}{more}", "dim")]


def print_tree(place: Place, root: Node, height: int | None = None) -> None:
    terminal = on_terminal()
    width = console().width if terminal else 1000
    painter = Painter(place.store.now(), unicode=speaks_unicode(), height=height, width=width, short_ids=terminal)
    print_lines(painter.paint(root))


def _folded(nodes: list[Node]) -> Iterator[list[Node]]:
    """Neighbours that are done, together; each of the others alone."""
    group: list[Node] = []
    for node in nodes:
        if node.is_done:
            group.append(node)
            continue
        if group:
            yield group
        group = []
        yield [node]
    if group:
        yield group


# -- as data


def tree_facts(node: Node) -> dict[str, Any]:
    facts: dict[str, Any] = {"name": node.name, "state": node.state}
    if node.run_id:
        facts["run_id"] = node.run_id
    facts |= {"attempt": node.attempt, "started_at": iso(node.started_at), "ended_at": iso(node.ended_at)}
    optional = {"detail": node.detail, "reused": node.reused, "undoes": node.undoes, "progress": node.progress}
    facts |= {key: value for key, value in optional.items() if value}
    return facts | {"children": [tree_facts(child) for child in node.children]}


def is_over(row: RunRow) -> bool:
    """Ended, or waiting for a person."""
    return row.status in FINAL or row.status == Status.STUCK
