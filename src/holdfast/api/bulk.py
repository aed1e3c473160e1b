"""One action on many runs: those that a query finds, a batch at a time."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.errors import ArgumentError, HoldfastError, StoreError
from holdfast.ports import FINAL, RunQuery, RunRow, Status

if TYPE_CHECKING:
    from holdfast.api.client import Client

_UNFINISHED = tuple(status for status in Status if not status.is_final)
SUITABLE: dict[str, tuple[Status, ...]] = {
    "cancel": _UNFINISHED,
    "terminate": _UNFINISHED,
    "pause": tuple(status for status in _UNFINISHED if status not in (Status.PAUSED, Status.STUCK)),
    "resume": (Status.PAUSED, Status.STUCK),
    "retry": (Status.FAILURE, Status.CANCELLED, Status.STUCK),
    "delete": (*(Status(status) for status in FINAL), Status.PAUSED, Status.STUCK),
}
"""What can be done to many runs, and the statuses in which it makes sense."""


class Batch(msgspec.Struct):
    """`done` are the runs that were asked; `refused` says why others were not. `after` is for the next batch, if any."""

    done: list[str] = []
    refused: dict[str, str] = {}
    after: int | None = None


def suitable(query: RunQuery, action: str) -> RunQuery | None:
    """The same query for the runs of a status in which an action makes sense; None if it asks for none of them."""
    if action not in SUITABLE:
        raise ArgumentError(f"{action!r} can't be done to many runs; known: {', '.join(SUITABLE)}")
    statuses = [status for status in SUITABLE[action] if not query.statuses or status in query.statuses]
    return msgspec.structs.replace(query, statuses=statuses) if statuses else None


def act_on_page(client: Client, query: RunQuery, action: str, reason: str) -> Batch:
    """Do it to one page of runs. What one of them refuses keeps nobody from the others."""
    wanted = suitable(query, action)
    rows = client.store.runs(wanted) if wanted is not None else []
    batch = act_on(client, rows, action, reason)
    batch.after = rows[-1].no if wanted is not None and len(rows) == wanted.limit else None
    return batch


def act_on(client: Client, rows: Iterable[RunRow], action: str, reason: str) -> Batch:
    batch = Batch()
    for row in rows:
        try:
            run: Any = client.get(row.id)
            if action in ("cancel", "terminate", "pause"):
                getattr(run, action)(reason)
            else:
                getattr(run, action)()
            batch.done.append(row.id)
        except StoreError:
            raise
        except HoldfastError as error:
            batch.refused[row.id] = str(error)
    return batch
