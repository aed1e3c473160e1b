"""The child runs that code asks for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
from msgspec import Raw

from holdfast.core import commands as co
from holdfast.core import events as ev
from holdfast.core.comparison import Comparison
from holdfast.core.ids import child_run_id
from holdfast.core.journal import Journal
from holdfast.core.loop import Future
from holdfast.core.pending import PendingChild
from holdfast.core.reuse import Reuse


class Children:
    """`pending` are those whose outcome the code waits for, `dropped` those of which the history says that it has stopped
    to."""

    __slots__ = ("_comparison", "_journal", "_reuse", "dropped", "pending")

    def __init__(self, journal: Journal, comparison: Comparison, reuse: Reuse) -> None:
        self._journal = journal
        self._comparison = comparison
        self._reuse = reuse
        self.dropped: set[str] = set()
        self.pending: dict[str, PendingChild] = {}

    def ask(
        self,
        name: str,
        args: Raw,
        *,
        options: dict[str, object],
        waited: bool,
        abandon: bool,
        key: str = "",
        undoes: str = "",
        resolve: Callable[[], bytes] | None = None,
        raw: bool = False,
    ) -> PendingChild:
        """Start a child run. Its id derives from the command's, unless `options` names one. `undoes`, `resolve` and
        `raw` are as for steps."""
        journal = self._journal
        loop, run_id = journal.loop, journal.info.run_id
        found = self._comparison.match("c", name, args, key)
        cmd, cause = found.cmd, loop.cause
        if found.recorded is not None:
            args = found.recorded.args
        earlier = None if undoes else self._reuse.claim("c", name, bytes(args), cmd, key)
        reused = cmd in self._reuse.promised
        recorded = found.recorded.event if found.recorded is not None else None
        child_id = recorded.child_id if isinstance(recorded, ev.ChildStarted) else ""
        is_new = not child_id
        if is_new:
            again = earlier is not None and recorded is None
            if earlier is not None and again:
                child_id = earlier.child_id
            else:
                # An id of its own belongs to the child of the run that this one was forked from.
                own = None if recorded is not None else options.get("id")
                child_id = str(own or child_run_id(run_id, name, cmd, journal.attempt, journal.mark))
            journal.append(
                ev.ChildStarted(
                    ts=max(loop.now, journal.recorded_until), cmd=cmd, cause=cause, name=name, args=args,
                    child_id=child_id, waited=waited, abandon=abandon, again=again, undoes=undoes,
                )
            )  # fmt: skip
            if not reused and (waited or not again or (earlier is not None and earlier.failed)):
                journal.new_commands.append(
                    co.StartChild(
                        cmd=cmd, name=name, args=args if resolve is None else Raw(resolve()), child_id=child_id,
                        again=again, waited=waited, options=options,
                    )
                )  # fmt: skip
        future: Future[Any] = Future(loop, lambda: self.drop(cmd))
        future.cmd = cmd
        child = PendingChild(cmd, child_id, name, args, cause, waited, abandon, future, is_new, raw)
        if waited or reused:
            self.pending[cmd] = child
        return child

    def wait_for(self, child: PendingChild) -> Future[Any]:
        """The future of a child that was started without waiting for it."""
        journal = self._journal
        journal.loop.refuse_if_closed()
        if child.cmd not in self.pending and not child.future.done():
            started_by = Raw(msgspec.json.encode(child.cmd))
            found = self._comparison.match("w", child.name, started_by)
            if found.recorded is None:
                journal.record(ev.ChildAwaited, found.cmd, name=child.name, args=started_by, child_id=child.child_id)
            if found.recorded is None or child.is_new:
                journal.new_commands.append(co.WatchChild(cmd=child.cmd, child_id=child.child_id))
            child.waited = True
            self.pending[child.cmd] = child
        return child.future

    def drop(self, cmd: str) -> None:
        journal = self._journal
        child = self.pending.pop(cmd, None)
        if child is None or journal.loop.closed:
            return
        self._reuse.promised.pop(cmd, None)
        if cmd in self.dropped:
            return
        journal.record(ev.ChildDropped, cmd, name=child.name, child_id=child.child_id)
        if not child.abandon:
            reason = f"run {journal.info.run_id} no longer waits for it"
            journal.new_commands.append(co.CancelChild(cmd=cmd, child_id=child.child_id, reason=reason))
