"""Time as the code of a run sees it. It never goes back, and has no gap before the run's first worker."""

from __future__ import annotations

from holdfast.core import events as ev
from holdfast.core.loop import WorkflowLoop


class CodeTime:
    """`ahead` is how far the code's time is ahead of the database's, since that was set back. `put_off_at` is when a step
    was last put off, in the code's time: the code itself has not seen that. `taken_up` is when a run that had to wait for
    its first worker got one. `started_at` is what the run's timeout counts from."""

    __slots__ = ("_loop", "ahead", "put_off_at", "started_at", "taken_up")

    def __init__(self, loop: WorkflowLoop) -> None:
        self._loop = loop
        self.ahead = 0
        self.put_off_at = 0
        self.started_at = 0
        self.taken_up = 0

    def of(self, event: ev.Event) -> int:
        """When the code sees the event. Timers must not count the time that a run waited for its first worker."""
        return max(event.ts, self.taken_up) if isinstance(event, ev.RunStarted) else event.ts + self.ahead

    @property
    def latest(self) -> int:
        """The latest time that the run waits from, be it one that the code has not seen."""
        return max(self._loop.now, self.put_off_at)

    def put_off(self, event: ev.StepRetrying) -> None:
        self.put_off_at = max(self.put_off_at, event.ts + self.ahead)

    def set_back(self, event: ev.ClockSetBack) -> int:
        """The database's clock was set back; by how much more than before."""
        more, self.ahead = event.by - self.ahead, event.by
        self.started_at = min(self.started_at, event.ts)
        return more

    def next_due(self) -> int | None:
        """When the first timer is due, by the database's clock."""
        timer = self._loop.timers.next_due() if self._loop.timers.by_id else None
        return None if timer is None else timer.due - self.ahead
