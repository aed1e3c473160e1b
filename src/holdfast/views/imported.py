"""A run that was exported, read from its history alone: what a store would say of it if it had no other run."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from holdfast.core import events as ev
from holdfast.errors import ArgumentError
from holdfast.ports import AttemptRow, Place, RunQuery, RunRow, Status, StreamRow, WorkerRow
from holdfast.views.statuses import statuses_of

ID = "imported"


class ImportedRun:
    """As far as the views of one run ask a store."""

    def __init__(self, text: bytes) -> None:
        lines = [line for line in text.splitlines() if line.strip()]
        self._payloads: list[bytes] = []
        self.events: list[ev.AnyEvent] = []
        for number, line in enumerate(lines, 1):
            try:
                self.events.append(ev.from_json(line))
            except (msgspec.MsgspecError, ValueError, RecursionError) as error:
                raise ArgumentError(
                    f"line {number} is no event: {error}; give what `holdfast runs export` has printed"
                ) from None
            self._payloads.append(line)
        if not self.events or not isinstance(self.events[0], ev.RunStarted | ev.ContinuedAsNew):
            raise ArgumentError("there is no beginning of a run in it; give what `holdfast runs export` has printed")
        self.row = row_of(self.events)

    def now(self) -> int:
        return self.events[-1].ts

    def payloads(self, run_id: str, after: int = 0, kinds: Sequence[str] = (), until: int | None = None) -> list[bytes]:
        return [
            payload
            for event, payload in zip(self.events, self._payloads, strict=True)
            if event.seq > after and (until is None or event.seq <= until) and (not kinds or event.kind in kinds)
        ]

    def data(self, run_id: str) -> dict[str, bytes]:
        return ev.published(self.events)

    def attributes(self, run_id: str, key: str) -> dict[str, bytes]:
        return {}

    def stream(self, run_id: str, after: int, limit: int) -> list[StreamRow]:
        return []

    def orders(self, run_id: str) -> list[str]:
        return []

    def attempts(self, run_id: str) -> list[AttemptRow]:
        return []

    def places(self, run_id: str, limit: int) -> list[Place]:
        return []

    def runs(self, query: RunQuery) -> list[RunRow]:
        return []

    def workers(self) -> list[WorkerRow] | None:
        return None


def row_of(history: Sequence[ev.AnyEvent]) -> RunRow:
    first, last = history[0], history[-1]
    assert isinstance(first, ev.RunStarted | ev.ContinuedAsNew)
    begun = next((event.ts for event in history[1:]), None)
    row = RunRow(
        no=0, app="", id=ID, workflow=first.workflow, status=Status.WAITING, created_at=first.ts, started_at=begun,
        options=b"{}", fingerprint=b"",
    )  # fmt: skip
    row.attempt = max((event.attempt for event in history if isinstance(event, ev.AttemptStarted)), default=1)
    changes = statuses_of(history, row)
    if changes and (changes[-1].status.is_final or changes[-1].status in (Status.PAUSED, Status.STUCK)):
        row.status, row.reason = changes[-1].status, changes[-1].reason
    if isinstance(last, ev.RunEnded):
        row.finished_at, row.end_seq = last.ts, last.seq
    return row
