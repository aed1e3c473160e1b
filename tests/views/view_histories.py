"""The golden histories, and rows that fit them."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

from holdfast.core import events as ev
from holdfast.ports import RunRow, Status, WorkerRow

FOLDER = Path(__file__).parent.parent / "histories"
NAMES = sorted(path.stem for path in FOLDER.glob("*.jsonl"))
T0 = 1_900_000_000_000_000
SECOND = 1_000_000


def golden(name: str) -> list[ev.AnyEvent]:
    return [ev.from_json(line) for line in (FOLDER / f"{name}.jsonl").read_bytes().splitlines()]


def numbered(*events: ev.Event) -> list[ev.Event]:
    """Events with their numbers."""
    for seq, event in zip(itertools.count(1), events):
        event.seq = seq
    return list(events)


def row_of(history: list[Any], **fields: Any) -> RunRow:
    """A row as an engine would have written it at this point."""
    last, first = history[-1], history[0]
    ended = isinstance(last, ev.RunEnded)
    status: str = Status.RUNNING
    if isinstance(last, ev.RunCompleted):
        status = Status.SUCCESS
    elif isinstance(last, ev.RunFailed):
        status = Status.FAILURE
    elif isinstance(last, ev.RunCancelled):
        status = Status.CANCELLED
    elif isinstance(last, ev.RunPaused):
        status = Status.PAUSED
    elif isinstance(last, ev.RunStuck):
        status = Status.STUCK
    elif isinstance(last, ev.AttemptFailed):
        status = Status.RETRY
    common = {
        "no": 1, "app": "golden", "id": "r1", "workflow": first.workflow, "status": status, "owner": "w1",
        "created_at": first.ts, "started_at": first.ts, "finished_at": last.ts if ended else None,
        "reason": getattr(last, "reason", ""), "wake_at": getattr(last, "retry_at", None),
    }  # fmt: skip
    return RunRow(**{**common, **fields})


def worker(id: str = "w1", names: tuple[str, ...] = (), lease_until: int = T0 + 3600 * SECOND) -> WorkerRow:
    return WorkerRow(id=id, app="golden", host="h", pid=1, build="b", names=list(names), lease_until=lease_until)
