"""The steps that code asks for, until they have an outcome."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec import Raw

from holdfast.core import commands as co
from holdfast.core import events as ev
from holdfast.core.comparison import Comparison
from holdfast.core.journal import Journal
from holdfast.core.loop import Future
from holdfast.core.matching import command_id, match_all
from holdfast.core.reuse import Reuse, origin_of


class Steps:
    """`asked` is what the event that is delivered made the code ask for. All of it gets its ids when the loop is dry, and
    is `pending` from then on, with its future in `futures`. `cancelled` are those whose cancellation is recorded."""

    __slots__ = ("_comparison", "_journal", "_reuse", "asked", "cancelled", "futures", "pending")

    def __init__(self, journal: Journal, comparison: Comparison, reuse: Reuse) -> None:
        self._journal = journal
        self._comparison = comparison
        self._reuse = reuse
        self.cancelled: set[str] = set()
        self.asked: list[tuple[co.ScheduleStep, Future[Any]]] = []
        self.pending: dict[str, co.ScheduleStep] = {}
        self.futures: dict[str, Future[Any]] = {}

    def ask(
        self,
        name: str,
        args: Raw,
        *,
        options: dict[str, object] | None = None,
        key: str = "",
        undoes: str = "",
        line: str = "",
        resolve: Callable[[], bytes] | None = None,
        raw: bool = False,
    ) -> Future[Any]:
        """Ask for a step; the future has its result, or its exception.

        With `resolve`, `args` are recorded as references, and `resolve` gives the arguments themselves when the step
        is handed over. With `raw`, the result is given as it is recorded.
        """
        journal = self._journal
        loop = journal.loop
        if loop.closed:
            loop.refuse()
        if key:
            self._comparison.check_key("s", key)
        future: Future[Any] = Future(loop)
        step = co.ScheduleStep(
            name=name, args=args, key=key, line=line, options=options or {}, undoes=undoes, data=journal.data,
            resolve=resolve, raw=raw,
        )  # fmt: skip
        self.asked.append((step, future))
        return future

    def settle(self, cause: int, is_new: bool) -> None:
        """Give those that were asked for, and still are, their ids. If it `is_new`, the history knows of no such thing."""
        asked, self.asked = self.asked, []
        if is_new:
            place = 0
            for step, future in asked:
                if not future.cancelled():
                    self._schedule(step, future, command_id("s", cause, place, step.key), cause)
                    place += not step.key
            return
        comparison = self._comparison
        asked = [each for each in asked if not each[1].cancelled()]
        matches = match_all(comparison.ledger, cause, "s", [step for step, _ in asked])
        for found, (step, future) in zip(matches, asked, strict=True):
            comparison.compare(found, cause)
            if found.recorded is None:
                comparison.unrecorded.append(step)
            else:
                step.args = found.recorded.args
            self._schedule(step, future, found.cmd, cause)

    def _schedule(self, step: co.ScheduleStep, future: Future[Any], cmd: str, cause: int) -> None:
        journal, reuse = self._journal, self._reuse
        step.cmd = future.cmd = cmd
        step.cause = cause
        self.pending[cmd] = step
        self.futures[cmd] = future
        future.on_cancel = lambda: self.cancel(cmd)
        if reuse.earlier is not None and not step.undoes:
            args = bytes(step.args)
            step.origin = reuse.earlier.origin(step.name, args, step.key)
            reuse.claim("s", step.name, args, cmd, step.key)
        step.origin = step.origin or origin_of(cmd, journal.attempt)
        if journal.is_live and cmd not in reuse.promised:
            journal.new_commands.append(step)

    def take_up(self) -> None:
        """Ask again for what is under way: whoever was at it is gone."""
        self._journal.new_commands += [s for cmd, s in self.pending.items() if cmd not in self._reuse.promised]

    def cancel(self, cmd: str) -> None:
        journal = self._journal
        step = self.pending.pop(cmd, None)
        if step is None:
            return
        del self.futures[cmd]
        if journal.loop.closed:
            return
        self._reuse.promised.pop(cmd, None)
        if cmd in self.cancelled:
            return
        journal.append(
            ev.StepCancelled(
                ts=journal.loop.now, cmd=cmd, cause=step.cause, name=step.name, args=step.args, attempt=step.attempt,
                undoes=step.undoes,
            )
        )  # fmt: skip
        journal.new_commands.append(co.CancelStep(cmd=cmd))

    def clear(self) -> None:
        self.asked.clear()
        self.pending.clear()
        self.futures.clear()

    def note(self, event: ev.StepOutcome) -> None:
        """What has become of an attempt, which doesn't end its step."""
        step = self.pending[event.cmd]
        step.began = step.began or event.started or event.ts
        step.handed_over = isinstance(event, ev.StepHandedOver)
        if isinstance(event, ev.StepHandedOver):
            step.attempt, step.until, step.limit = event.attempt, event.until, event.limit
            step.not_before, step.started = 0, False
        elif isinstance(event, ev.StepStarted):
            step.started, step.worker, step.attempt, step.not_before = True, event.worker, event.attempt, 0
        elif isinstance(event, ev.StepRetrying):
            step.started, step.attempt, step.not_before = False, event.attempt + 1, event.retry_at
        elif isinstance(event, ev.StepWithdrawn):
            step.started = False
        elif isinstance(event, ev.StepLost):
            step.started = False
            step.losses += 1
