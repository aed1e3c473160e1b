"""The newest so many of something: steps, runs, workers. Who is older than all of them, when there are enough, is
forgotten, and stays so: what is left is the same in whichever order they came."""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Generic, Protocol, TypeVar

from holdfast.telemetry.events import Key


class Aged(Protocol):
    """Something with a place in the order."""

    id: str
    age: Key | None


R = TypeVar("R", bound=Aged)


class Population(Generic[R]):
    """Records by id, at most `limit`. `forgotten` are the ids of the last ones that had to go."""

    def __init__(self, limit: int, make: Callable[[str], R]) -> None:
        self.limit = limit
        self.records: dict[str, R] = {}
        self.forgotten: OrderedDict[str, None] = OrderedDict()
        self._make = make
        self._heap: list[tuple[Key, str]] = []  # may hold ages that records no longer have

    def get(self, id: str) -> R:
        """The record of that id; a new one if there is none."""
        record = self.records.get(id)
        if record is None:
            record = self.records[id] = self._make(id)
            self.forgotten.pop(id, None)
        return record

    def place(self, record: R, age: Key) -> list[R]:
        """Note the age of a record; those that have to go for it, which may be itself."""
        if record.age is None or record.age != age:
            record.age = age
            heapq.heappush(self._heap, (age, record.id))
            if len(self._heap) > 64 + 4 * len(self.records):
                self._heap = [(each.age, each.id) for each in self.records.values() if each.age is not None]
                heapq.heapify(self._heap)
        return list(self._evict()) if len(self.records) > self.limit else []

    def _evict(self) -> Iterator[R]:
        while len(self.records) > self.limit:
            age, id = heapq.heappop(self._heap)
            record = self.records.get(id)
            if record is not None and record.age == age:
                del self.records[id]
                self.forgotten[id] = None
                if len(self.forgotten) > self.limit:
                    self.forgotten.popitem(last=False)
                yield record
