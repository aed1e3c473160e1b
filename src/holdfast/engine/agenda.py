"""What is to be done at a certain time although nothing arrives."""

from __future__ import annotations

import heapq
from collections.abc import Hashable, Iterator

SLACK = 1_000


class Agenda:
    """Each key has one time. An entry that was changed or dropped stays in the heap, and wakes nothing."""

    __slots__ = ("_heap", "_number", "_times")

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Hashable]] = []
        self._times: dict[Hashable, float] = {}
        self._number = 0

    def __len__(self) -> int:
        return len(self._times)

    def set(self, key: Hashable, time: float) -> None:
        if self._times.get(key) == time:
            return
        self._times[key] = time
        self._number += 1
        heapq.heappush(self._heap, (time, self._number, key))
        if len(self._heap) > 2 * len(self._times) + SLACK:
            self._heap = [(time, number, key) for time, number, key in self._heap if self._times.get(key) == time]
            heapq.heapify(self._heap)

    def drop(self, key: Hashable) -> None:
        self._times.pop(key, None)

    def next(self) -> float | None:
        """The first time."""
        heap, times = self._heap, self._times
        while heap and times.get(heap[0][2]) != heap[0][0]:
            heapq.heappop(heap)
        return heap[0][0] if heap else None

    def due(self, now: float) -> Iterator[Hashable]:
        """The keys whose time has come, in order. Each is dropped as it is given."""
        while (first := self.next()) is not None and first <= now:
            key = heapq.heappop(self._heap)[2]
            del self._times[key]
            yield key
