"""`app.select(...)`: all runs that a filter names, to count and to act on at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from msgspec.structs import replace

from holdfast.api.checks import check_flag, check_text, one_of
from holdfast.api.handles import Run
from holdfast.blocking import twin
from holdfast.engine.records import control
from holdfast.errors import ArgumentError
from holdfast.ports import FINAL, RunQuery, RunRow, Status, Topic

if TYPE_CHECKING:
    from holdfast.api.client import Client

Action = Literal["cancel", "terminate", "pause", "resume", "retry", "delete"]

_OPEN = [status for status in Status if status not in FINAL]
APPLIES: dict[str, list[Status]] = {
    "cancel": _OPEN,
    "terminate": _OPEN,
    "pause": [status for status in _OPEN if status != Status.PAUSED],
    "resume": [Status.PAUSED, Status.STUCK],
    "retry": [Status.FAILURE, Status.CANCELLED, Status.STUCK],
    "delete": [*sorted(FINAL), Status.PAUSED, Status.STUCK],
}
"""The statuses in which each action means something."""

BATCH = 500  # runs in one transaction: others want to write, too
_NO_LIMIT = 2**62


class Acted(NamedTuple):
    """What an action on many runs came to: how many it was done to, and how many were found, but had gone on to where it
    no longer applies, or (of a deletion) were in use."""

    done: int
    skipped: int = 0


class Selection:
    """Runs that a filter names: what `app.select(...)` gives. Each action is done to those of them to which it applies
    (`cancel` to those that have not ended, `retry` to those that failed or were cancelled, and so on), newest first, and
    to none that is started after it began."""

    def __init__(self, client: Client, query: RunQuery) -> None:
        self._client = client
        self.query = query

    def __iter__(self) -> Iterator[Run[Any]]:
        return (Run(self._client, row.id, row.no) for rows in self._pages(self.query) for row in rows)

    def count(self, action: Action | None = None) -> int:
        """How many there are; with an action, how many it would be done to."""
        return sum(self.counts(action).values())

    def counts(self, action: Action | None = None) -> dict[Status, int]:
        """How many there are of each status; with an action, only those it would be done to."""
        query = self.query if action is None else applicable(self.query, action)
        if query is None:
            return {}
        found = self._client.store.counts(query, _NO_LIMIT)
        return {Status(status): number for status, number in found.items() if number}

    def cancel(self, reason: str = "") -> Acted:
        """`run.cancel` for each."""
        return self._tell("cancel", reason)

    def terminate(self, reason: str) -> Acted:
        """`run.terminate` for each."""
        check_text("reason", reason)
        return self._tell("terminate", reason)

    def pause(self, reason: str = "", *, children: bool = False) -> Acted:
        """`run.pause` for each."""
        return self._tell("pause", reason, children)

    def resume(self, *, children: bool = False) -> Acted:
        """`run.resume` for each."""
        return self._tell("resume", children=children)

    def retry(self) -> Acted:
        """`run.retry` for each."""
        return self._tell("retry")

    def delete(self) -> Acted:
        """`run.delete` for each."""
        return self._tell("delete")

    acount = twin(count)
    acounts = twin(counts)
    acancel = twin(cancel)
    aterminate = twin(terminate)
    apause = twin(pause)
    aresume = twin(resume)
    aretry = twin(retry)
    adelete = twin(delete)

    def _tell(self, action: Action, reason: str = "", children: bool = False) -> Acted:
        check_flag("children", children, ArgumentError)
        done = skipped = 0
        for rows in self._matching(action):
            acted = act_on(self._client, action, rows, reason, children)
            done, skipped = done + acted.done, skipped + acted.skipped
        return Acted(done, skipped)

    def _matching(self, action: str) -> Iterator[list[RunRow]]:
        query = applicable(self.query, action)
        return iter(()) if query is None else self._pages(query)

    def _pages(self, query: RunQuery) -> Iterator[list[RunRow]]:
        query = replace(query, limit=BATCH)
        while rows := self._client.store.runs(query):
            yield rows
            query = replace(query, after=rows[-1].no)


def applicable(query: RunQuery, action: str) -> RunQuery | None:
    """The same for those runs that an action applies to; None if it applies to no status that was asked for."""
    one_of("action", action, tuple(APPLIES), ArgumentError)
    wanted = set(query.statuses or Status)
    statuses = [str(status) for status in APPLIES[action] if status in wanted]
    return replace(query, statuses=statuses) if statuses else None


def act_on_page(client: Client, action: Action, query: RunQuery, reason: str = "") -> tuple[Acted, int | None]:
    """Do it to one page of the runs that it applies to; the number after which to go on, None if that was all."""
    chosen = applicable(query, action)
    rows = client.store.runs(chosen) if chosen is not None else []
    return act_on(client, action, rows, reason), rows[-1].no if len(rows) == query.limit else None


def act_on(client: Client, action: Action, rows: Sequence[RunRow], reason: str = "", children: bool = False) -> Acted:
    """Do it to those of these runs to which it applies; with `children`, to those that they wait for."""
    check_text("reason", reason, empty=action != "terminate")
    fit = [row for row in rows if row.status in APPLIES[action] and (action != "pause" or row.durable)]
    if action == "delete":
        done = client.deleter.delete_all(fit)
    else:
        late = action == "retry"
        orders = [
            control(row.id, action, reason, by=client.by, late=late, run_no=row.no, children=children) for row in fit
        ]
        done = sum(each.kept for each in client.store.post_all(orders))
        client.notifier.ring(Topic.INBOX)
    return Acted(done, len(rows) - done)
