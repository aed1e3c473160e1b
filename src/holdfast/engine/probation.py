"""Runs that have lost their worker: their code may be what took it down, so it goes on one at a time."""

from __future__ import annotations

from holdfast.engine.run import LiveRun, Probe


class Probation:
    """The code of a suspect goes on once that is committed: whoever finds this worker lost knows what did it."""

    def __init__(self, runs: dict[int, LiveRun]) -> None:
        self._runs = runs
        self._suspects: list[LiveRun] = []
        self.probed: LiveRun | None = None

    def add(self, live: LiveRun) -> None:
        if live not in self._suspects:
            self._suspects.append(live)

    def is_probing(self) -> bool:
        live = self.probed
        # One that wants another probe is not being probed: it waits for its turn like the others.
        return live is not None and self._runs.get(live.row.no) is live and live.probe is Probe.ANNOUNCED

    def has_next(self) -> bool:
        return bool(self._suspects) and not self.is_probing()

    def next(self) -> LiveRun | None:
        """The one that goes on next, if none does. Those that were there when workers were lost come last."""
        if not self.has_next():
            return None
        self._suspects = [live for live in self._suspects if self._runs.get(live.row.no) is live]
        self.probed = min(self._suspects, key=lambda live: live.opening.blame, default=None)
        if self.probed is not None:
            self._suspects.remove(self.probed)
        return self.probed
