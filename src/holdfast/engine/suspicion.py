"""Which steps of a run may have taken workers down, from what was announced and lost."""

from __future__ import annotations

from collections.abc import Iterable

from holdfast.core import commands as co
from holdfast.core import events as ev
from holdfast.engine.change import PendingChange
from holdfast.engine.identity import Identity
from holdfast.engine.step_rules import StepRules
from holdfast.ports import RunRow

SPARED = 10
"""So many lost workers of a step in a process of its own count as one that it took down."""

SHARED_WITH = (1_000, 15, 0)
"""How many others a suspect may share its process with, the first time, the second, and from then on."""


class Suspicion:
    """A run that is `cautious` has lost its worker, and has not progressed since. It announces what it starts, so only the
    first start of a row of losses may not have been recorded. A step whose start was announced had a process beside the
    worker, or still waited for it, and is hardly to blame.

    Of those whose start this worker has announced, `announced_here` are on their way or under way, `not_handed_over` are
    those that will not be."""

    def __init__(self, row: RunRow, me: Identity, rules: StepRules, change: PendingChange) -> None:
        self._row = row
        self._me = me
        self._rules = rules
        self._change = change
        self._claimed_at_look = me.looks
        self._announced: dict[str, str] = {}  # in the history: the worker that did
        self._spared: dict[str, int] = {}
        self._unrecorded: dict[str, int] = {}
        self._shared_with: dict[str, int] = {}
        self.cautious = row.losses > 0
        self.announced_here: dict[str, co.ScheduleStep] = {}
        self.not_handed_over: set[str] = set()

    def covers(self, command: co.ScheduleStep) -> bool:
        """Whether the step may be what took a worker down: then it says so before it starts, and runs apart."""
        return command.losses > 0 or (self.cautious and self._rules.queue_elsewhere(command) is None)

    def has_to_be_announced(self, command: co.ScheduleStep) -> bool:
        return self._row.durable and (self.covers(command) or self._rules.is_at_most_once(command))

    def may_still_end(self, command: co.ScheduleStep) -> bool:
        """Whether it executes elsewhere: its run was let go meanwhile, and its outcome will come. What may be executed
        more than once doesn't wait for that."""
        me = self._me
        if not self._rules.is_at_most_once(command):
            return False
        return command.worker == me.worker or command.worker in me.peers or me.looks == self._claimed_at_look

    def progressed(self) -> None:
        """The run goes on: nothing of it is suspected of the workers that it has lost."""
        if self.cautious:
            self.cautious = False
            self._change.columns["losses"] = self._row.losses = 0

    def weigh(self, history: Iterable[ev.Event], pending: Iterable[co.ScheduleStep]) -> None:
        """See what the history knows of losses, if any of these steps is suspected of them."""
        suspects = [command for command in pending if self.covers(command)]
        if not suspects:
            return
        for event in history if self._me.isolates else ():
            if isinstance(event, ev.StepStarted):
                if event.started:
                    self._announced.pop(event.cmd, None)
                else:
                    self._announced[event.cmd] = event.worker
            elif isinstance(event, ev.StepLost) and (
                event.company or self._announced.get(event.cmd, event.worker) != event.worker
            ):
                self._spare(event.cmd)
        for command in suspects:
            # What is executed elsewhere has nothing to do with the workers that the run has lost.
            if self._rules.queue_elsewhere(command) is None:
                self._unrecorded[command.cmd] = int(self._row.losses > command.losses + int(command.started))

    def _spare(self, cmd: str) -> None:
        self._spared[cmd] = self._spared.get(cmd, 0) + 1

    def lost_with_worker(self, cmd: str) -> None:
        """It had started on a worker that is gone."""
        if cmd in self._announced:
            self._spare(cmd)

    def lost_with_others(self, cmd: str, others: int) -> None:
        """One of those that shared their process has killed it."""
        self._shared_with[cmd] = next(few for few in SHARED_WITH if few < others)
        self._spare(cmd)

    def may_share_with(self, cmd: str) -> int:
        """How many others may share its process: all, until that has died; then few, then none."""
        return self._shared_with.get(cmd, SHARED_WITH[0])

    def why_not_again(self, command: co.ScheduleStep) -> str:
        """Why a step whose worker was lost is not executed again; empty if it is."""
        options = self._rules.options(command)
        if options.at_most_once:
            return (
                "had begun when its worker was lost, and is executed at most once; find out what it has done, then retry "
                "the run, or go on without it"
            )
        spared = self._spared.get(command.cmd, 0)
        took_down = command.losses - spared + spared // SPARED + self._unrecorded.get(command.cmd, 0)
        if took_down < options.max_losses:
            return ""
        return (
            f"took its worker down {options.max_losses} times; look at what it does to its process (memory, native code, "
            "os._exit), or raise max_losses"
        )
