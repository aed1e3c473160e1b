"""The live tree of a run on a terminal. The only module that needs rich to be imported at all."""

from __future__ import annotations

import time
from collections.abc import Iterable

from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live

from holdfast.cli.output import console, speaks_unicode, styled
from holdfast.cli.tree import Painter
from holdfast.ports import Store
from holdfast.views.tree import TreeNode

REFRESH = 8


class LiveTree:
    """What is painted anew several times a second: durations grow between two looks at the store."""

    def __init__(self, store: Store, unicode: bool) -> None:
        self._unicode = unicode
        self._offset = store.now() - time.time_ns() // 1_000
        self.root: TreeNode | None = None
        self.message = ""
        self.is_last = False

    def __rich_console__(self, screen: Console, options: ConsoleOptions) -> RenderResult:
        if self.root is None:
            return
        now = time.time_ns() // 1_000 + self._offset
        width = options.max_width - 3  # a full line would be broken in two by the ^C that a terminal writes after it
        painter = Painter(
            now,
            unicode=self._unicode,
            height=max(3, screen.height - 2),
            crop=not self.is_last,
            width=width,
            short_ids=True,
        )
        for line in painter.paint(self.root):
            text = styled(line)
            text.truncate(width, overflow="ellipsis")
            yield text
        if self.message:
            yield self.message


def show_live(store: Store, looks: Iterable[tuple[TreeNode, str]], *, err: bool) -> None:
    """Paint each look over the one before; the last stays, whole."""
    tree = LiveTree(store, speaks_unicode(err=err))
    with Live(tree, console=console(err=err), refresh_per_second=REFRESH, vertical_overflow="crop") as live:
        for root, message in looks:
            tree.root, tree.message = root, message
        live.vertical_overflow = "visible"
        tree.is_last, tree.message = True, ""
