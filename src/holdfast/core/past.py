"""What is recorded of an attempt and has not reached its code yet, while that is replayed."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.core import events as ev

AHEAD = 50
"""So many outcomes are given to code that goes on at once, before whoever replays it can look at the clock again."""

NOTED = (ev.StepOutcome, ev.ClockSetBack, ev.RunEnded, ev.AttemptFailed)
"""What changes something though the code doesn't see it."""


class Past:
    """Gives out each event once, in order."""

    __slots__ = ("_at", "_events", "_left", "_seen")

    def __init__(self, events: Sequence[ev.AnyEvent]) -> None:
        self._events = events
        self._at = self._seen = 0
        self._left = 0

    def next(self) -> ev.AnyEvent | None:
        if self._at == len(self._events):
            return None
        event = self._events[self._at]
        self._at += 1
        self._left = AHEAD
        return event

    def see_result(self, cmd: str) -> ev.StepCompleted | None:
        """The result of a step, if it comes next and nothing before it counts; but not too many in a row."""
        if not self._left:
            return None
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
        self._left -= 1
