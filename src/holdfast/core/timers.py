"""The timers of a run, which fire when its execution says so."""

from __future__ import annotations

import asyncio
import asyncio.futures
import heapq
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from holdfast.core.loop import Future, WorkflowLoop

wakes_sleeper = asyncio.futures._set_result_unless_cancelled  # type: ignore[attr-defined]
"""What the timer of a sleep calls, be it asyncio's or ours."""


class Timer(asyncio.TimerHandle):
    """A timer of a run: known by its cause and its place among the timers of that cause."""

    __slots__ = ("delay", "due", "id", "sleep")

    def __init__(
        self, loop: WorkflowLoop, id: str, delay: int, callback: Any, args: tuple[Any, ...], context: Any
    ) -> None:
        self.id = id
        self.delay = delay
        self.due = loop.now + delay
        self.sleep = callback is wakes_sleeper
        super().__init__((self.due - loop.origin) / 1_000_000, callback, args, loop, context)

    @property
    def cause(self) -> int:
        return int(self.id.partition("t")[0])

    @property
    def sleeper(self) -> Future[None]:
        """The future that it wakes."""
        future: Future[None] = self._args[0]
        return future


class Timers:
    """Those that have not fired, `by_id`. `made` is how many the event that is delivered has led to so far."""

    __slots__ = ("_heap", "by_id", "made")

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Timer]] = []
        self.by_id: dict[str, Timer] = {}
        self.made = 0

    def add(self, timer: Timer, number: int) -> None:
        """Of those due at the same time, that with the lower number comes first."""
        self.made += 1
        self.by_id[timer.id] = timer
        heapq.heappush(self._heap, (timer.due, number, timer))

    def next_due(self) -> Timer | None:
        while self._heap:
            timer = self._heap[0][2]
            if not timer._cancelled and timer.id in self.by_id:
                return timer
            heapq.heappop(self._heap)
        return None

    def drop(self, timer: Timer) -> None:
        self.by_id.pop(timer.id, None)
        if len(self._heap) > 64 and len(self._heap) > 2 * len(self.by_id):
            self._heap = [entry for entry in self._heap if entry[2].id in self.by_id]
            heapq.heapify(self._heap)

    def clear(self) -> None:
        for timer in self.by_id.values():
            asyncio.Handle.cancel(timer)
        self._heap.clear()
        self.by_id.clear()
