"""Push within one process, for a store in memory."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable

from holdfast.ports import Notifier, OnRing, OnTold, Topic, Watch, Watches


class Intercom(Notifier):
    """Tells those who listen and wait in this process."""

    can_watch_many = True

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._listeners: list[Callable[[Topic], None]] = []
        self._announced = 0
        self._runs: dict[str, int] = {}

    def listen(self, topics: Collection[Topic], on_ring: OnRing, on_told: OnTold) -> str:
        self._listeners.append(on_ring)
        return ""

    def ring(self, topic: Topic, everyone: bool = False) -> None:
        for on_ring in self._listeners:
            on_ring(topic)

    def announce(self, run_ids: Iterable[str]) -> None:
        with self._changed:
            self._announced += 1
            for run_id in run_ids:
                self._runs[run_id] = self._announced
            self._changed.notify_all()

    def watch(self, run_id: str) -> Watch:
        return _IntercomWatch(self, [run_id])

    def watch_many(self) -> Watches:
        return _IntercomWatch(self, ())

    def close(self) -> None:
        self._listeners.clear()


class _IntercomWatch(Watches):
    def __init__(self, intercom: Intercom, run_ids: Collection[str]) -> None:
        self._intercom = intercom
        self._seen: dict[str, int] = {}
        self._is_woken = False
        self.add(run_ids)

    def add(self, run_ids: Collection[str]) -> None:
        for run_id in run_ids:
            self._seen[run_id] = self._intercom._runs.get(run_id, 0)

    def drop(self, run_id: str) -> None:
        self._seen.pop(run_id, None)

    def wake(self) -> None:
        with self._intercom._changed:
            self._is_woken = True
            self._intercom._changed.notify_all()

    def wait(self, timeout: float) -> Collection[str]:
        with self._intercom._changed:
            self._intercom._changed.wait_for(lambda: self._is_woken or self._rung(), timeout)
            self._is_woken = False
            rung = self._rung()
            self.add(rung)
        return rung

    def _rung(self) -> list[str]:
        runs = self._intercom._runs
        return [run_id for run_id, seen in self._seen.items() if runs.get(run_id, 0) > seen]

    def close(self) -> None:
        """Nobody has to be told."""
