"""The recorded history of a run whose code is replayed: what has to be known of it before, and what is still to come."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from holdfast.core import events as ev
from holdfast.core.matching import Ledger
from holdfast.core.pending import FLAGS
from holdfast.core.reuse import EarlierOutcomes
from holdfast.errors import NondeterminismError

if TYPE_CHECKING:
    from holdfast.core.execution import Execution

NOTED = (ev.StepOutcome, ev.ClockSetBack, ev.RunEnded, ev.AttemptFailed)
"""What changes something though the code doesn't see it."""


class Past:
    """What is recorded of an attempt and has not reached its code yet. Each event is given out once, in order. When it no
    longer `has_time`, the code has to wait for the next one, so that whoever replays it can do something else."""

    __slots__ = ("_at", "_events", "_seen", "has_time")

    def __init__(self, events: Sequence[ev.AnyEvent], has_time: Callable[[], bool]) -> None:
        self._events = events
        self._at = self._seen = 0
        self.has_time = has_time

    def next(self) -> ev.AnyEvent | None:
        if self._at == len(self._events):
            return None
        event = self._events[self._at]
        self._at += 1
        return event

    def see_result(self, cmd: str) -> ev.StepCompleted | None:
        """The result of a step, if it comes next and nothing before it counts."""
        for at in range(self._at, len(self._events)):
            event = self._events[at]
            if type(event) is ev.StepCompleted:
                self._seen = at
                return event if event.cmd == cmd else None
            if event.delivered or (
                isinstance(event, NOTED) and not (type(event) is ev.StepStarted and event.cmd == cmd)
            ):
                return None
        return None

    def pass_by(self) -> None:
        """What was seen has reached the code."""
        self._at = self._seen + 1


def prepare(
    execution: Execution,
    first: ev.RunStarted | ev.ContinuedAsNew,
    earlier: list[ev.AnyEvent],
    current: list[ev.AnyEvent],
) -> None:
    """Tell the parts of an execution what they need to know of a history before its `current` attempt is replayed."""
    unknown = [flag for flag in first.flags if flag not in FLAGS]
    if unknown:
        raise NondeterminismError(
            f"run {execution.info.run_id} was made by a newer version of Holdfast (it uses {', '.join(unknown)}); "
            "upgrade this worker"
        )
    execution.journal.begin(first)
    execution.time.started_at = first.ts
    if earlier:
        _look_back(execution, earlier, current[0])
        execution.reuse.earlier = EarlierOutcomes(earlier)
    execution.comparison.edge = current[0].seq
    if len(current) > 1:
        _look_ahead(execution, current)


def _look_back(execution: Execution, earlier: list[ev.AnyEvent], beginning: ev.AnyEvent) -> None:
    """What earlier attempts leave to this one."""
    journal, sent = execution.journal, execution.outputs.sent
    times: list[int] = []
    nth = 0
    has_ended = False
    for event in (*earlier, beginning):
        if isinstance(event, ev.Beginning):
            nth = 0
            if has_ended:  # another attempt was asked for: its time begins anew
                execution.time.started_at, has_ended = event.ts, False
        elif isinstance(event, ev.RunEnded):
            has_ended = True
        elif isinstance(event, ev.HookReceived):
            execution.hooks.answered.add(event.token)
        elif isinstance(event, ev.RequestReceived):  # what it led to has to be done again; its answer stands
            execution.requests.keep(event)
        elif isinstance(event, ev.HookSent):
            look = (event.name, bytes(event.args))
            sent[look] = sent.get(look, 0) + (not event.again)
        elif isinstance(event, ev.DataSet):
            journal.data = {**journal.data, event.name: event.args}
        elif isinstance(event, ev.StepCompleted) and event.data:
            journal.data = {**journal.data, **event.data}
        elif isinstance(event, ev.TimeRead):
            times[nth : nth + 1] = [event.value]
            nth += 1
    execution.values.times = deque(times)


def _look_ahead(execution: Execution, current: list[ev.AnyEvent]) -> None:
    comparison = execution.comparison
    comparison.ledger = Ledger(current)
    for event in current:
        if event.delivered:
            comparison.edge = event.seq
        elif isinstance(event, ev.StepCancelled):
            execution.steps.cancelled.add(event.cmd)
        elif isinstance(event, ev.ChildDropped):
            execution.children.dropped.add(event.cmd)
        elif isinstance(event, ev.Patched):
            execution.values.patches[event.name] = True
        elif isinstance(event, ev.ArgumentsChanged):
            comparison.warned.add((event.cmd, bytes(event.args)))
        elif isinstance(event, ev.RunEnded | ev.AttemptFailed):
            comparison.was_over = True
        elif isinstance(event, ev.RunTakenUp):
            execution.time.taken_up = execution.time.taken_up or event.ts
