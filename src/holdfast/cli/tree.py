"""A tree of runs and steps as lines."""

from __future__ import annotations

import collections
import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from holdfast.cli.output import (
    LOOKS,
    Line,
    Look,
    Styled,
    cells,
    console,
    cut,
    on_terminal,
    print_lines,
    short_id,
    speaks_unicode,
)
from holdfast.cli.target import Target
from holdfast.views.times import length
from holdfast.views.tree import TreeNode

BAR = 20
MANY = 12
"""More neighbours of one name share a line once they are done."""
_TWIGS = {True: ("├─ ", "└─ "), False: ("|- ", "`- ")}


@dataclass(frozen=True, slots=True)
class Painter:
    """Turns a tree into lines. `height` is how many there should be: what is done is folded, and if that isn't
    enough, `crop` leaves out the upper part."""

    now: int
    unicode: bool = True
    height: int | None = None
    crop: bool = False
    width: int = 100
    short_ids: bool = False

    def paint(self, root: TreeNode) -> list[Line]:
        lines = list(self._lines(root, "", "", "", False))
        if self.height is not None and len(lines) > self.height:
            lines = list(self._lines(root, "", "", "", True))
        if self.height is not None and len(lines) > self.height and self.crop:
            left_out = len(lines) - self.height + 1
            lines = [lines[0], [Styled(f"  {left_out} lines above ...", "dim")], *lines[left_out + 1 :]]
        return lines

    def _lines(self, node: TreeNode, parent_id: str, prefix: str, branch: str, fold: bool) -> Iterator[Line]:
        yield self._line(node, parent_id, prefix + branch)
        below = prefix + {"": "", "├─ ": "│  ", "└─ ": "   ", "|- ": "|  ", "`- ": "   "}[branch]
        groups = list(_folded(node.children) if fold else _fans_folded(node.children, self.height is not None))
        for i, group in enumerate(groups):
            is_last = i == len(groups) - 1
            twig = _TWIGS[self.unicode][is_last]
            if len(group) > 1:
                yield self._summary(group, below + twig)
            else:
                yield from self._lines(group[0], node.run_id, below, twig, fold)

    def _line(self, node: TreeNode, parent_id: str, prefix: str) -> Line:
        look = LOOKS.get(node.state, Look("?", "?", ""))
        line = [Styled(prefix, "dim"), Styled(look.icon if self.unicode else look.ascii, look.style), Styled(" ")]
        line.append(Styled(node.name, "bold" if node.run_id else ""))
        if node.run_id:
            line.append(Styled(f"  {self._id(node.run_id, parent_id)}", "dim"))
        line.append(Styled(f"  {node.state}", look.style))
        if node.attempt > 1:
            line.append(Styled(f"  attempt {node.attempt}", "yellow"))
        if node.reused:
            line.append(Styled("  from an earlier attempt", "dim"))
        if node.undoes:
            line.append(Styled("  compensation", "magenta"))
        if node.is_fork:
            line.append(Styled("  fork", "magenta"))
        if node.started_at is not None and not node.reused:
            line.append(Styled(f"  {length((node.ended_at or self.now) - node.started_at)}", "dim"))
        if node.progress is not None and node.ended_at is None:
            line += self._bar(node.progress)
        if node.detail:
            used = sum(cells(span.text) for span in line)
            style = "red" if node.state in ("FAILURE", "STUCK") else "cyan" if node.state == "WAITING" else "yellow"
            line.append(Styled("  " + cut(node.detail, max(20, self.width - used - 2)), style))
        return line

    def _id(self, run_id: str, parent_id: str) -> str:
        if self.short_ids and parent_id and run_id.startswith(parent_id):
            return (
                short_id(parent_id) + ("…" if self.unicode else "..") + run_id[len(parent_id) :]
            )  # as `find` takes it
        return short_id(run_id) if self.short_ids else run_id

    def _bar(self, progress: dict[str, Any]) -> Line:
        done, total = progress.get("done") or 0, progress.get("total")
        text = f"  {progress.get('note') or ''}".rstrip()
        if not total:
            return [Styled(f"  {done:g}", "blue"), Styled(text, "dim")]
        part = min(1.0, max(0.0, done / total))
        full = round(part * BAR)
        filled, empty = ("━", "─") if self.unicode else ("#", ".")
        bar = [
            Styled("  " + filled * full, "blue"),
            Styled(empty * (BAR - full), "dim"),
            Styled(f" {part:.0%}", "blue"),
        ]
        return [*bar, Styled(f" {done:g}/{total:g}", "dim"), Styled(text, "dim")]

    def _summary(self, group: list[TreeNode], prefix: str) -> Line:
        look = LOOKS["SUCCESS"]
        counts = collections.Counter(node.name for node in group).most_common()
        names = ", ".join(f"{name} × {count}" if count > 1 else name for name, count in counts[:4])
        more = f" and {len(counts) - 4} more" if len(counts) > 4 else ""
        icon = look.icon if self.unicode else look.ascii
        return [Styled(prefix, "dim"), Styled(icon, look.style), Styled(f" {len(group)} done: {names}{more}", "dim")]


def print_tree(target: Target, root: TreeNode, height: int | None = None) -> None:
    terminal = on_terminal()
    width = console().width if terminal else 1000
    painter = Painter(target.store.now(), unicode=speaks_unicode(), height=height, width=width, short_ids=terminal)
    print_lines(painter.paint(root))


def _fans_folded(nodes: list[TreeNode], fold: bool) -> Iterator[list[TreeNode]]:
    """Many neighbours of one name that are done, together, as the monitor has them; each of the others alone."""
    for (_, is_done), alike in itertools.groupby(nodes, key=lambda node: (node.name, node.is_done)):
        group = list(alike)
        if fold and is_done and len(group) > MANY:
            yield group
        else:
            yield from ([node] for node in group)


def _folded(nodes: list[TreeNode]) -> Iterator[list[TreeNode]]:
    """Neighbours that are done, together; each of the others alone."""
    group: list[TreeNode] = []
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
