"""What the monitor reads from: the store of an app, with values as they may be shown."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.app import App
from holdfast.core.events import AnyEvent
from holdfast.errors import RunNotFoundError
from holdfast.ports import Query, RunQuery, RunRow, Status
from holdfast.registry import Registry
from holdfast.views.filters import KNOWN, parse_filter
from holdfast.views.reading import Histories
from holdfast.views.redaction import Redact, RedactingReader
from holdfast.views.steps import StepView
from holdfast.views.values import PlainReader

COUNTED = 10_001
LOOKED_AT = 2_000
HOOKS_SHOWN = 200
"""So many runs that may wait for hooks are a page."""
MAY_ASK = ("hook ", " more")
"""What is said of runs that may wait for a hook: one that waits for much names only some of it."""


class Refusal(Exception):
    """A request that can't be carried out as it is; the text says why, and `field` which part of it is wrong."""

    def __init__(self, text: str, field: str = "") -> None:
        super().__init__(text)
        self.field = field


class Conflict(Refusal):
    """One that would be carried out if something else were not there."""


class Source:
    """An app to look at. Nothing is kept but the histories that were read last."""

    def __init__(self, app: App, redact: Redact | None = None) -> None:
        self.app = app
        self.reader = (
            PlainReader(app.codec, marks=True) if redact is None else RedactingReader(app.codec, redact, marks=True)
        )
        self._histories = Histories()

    @property
    def store(self) -> Query:
        return self.app.store

    @property
    def definitions(self) -> Registry:
        return self.app.definitions

    def query_of(self, filter: str, known: str = KNOWN) -> RunQuery:
        return parse_filter(filter, self.store.now(), self.app.codec.encode, known)

    def that_may_ask(self, after: int | None, limit: int) -> Sequence[RunRow]:
        """Runs that may wait for hooks, the newest first. One that runs may have a hook open beside what it does."""
        running = self.store.runs(RunQuery(statuses=[Status.RUNNING], after=after, limit=limit))
        waiting = self.store.runs(RunQuery(statuses=[Status.WAITING], reasons=MAY_ASK, after=after, limit=limit))
        # In this order: one that began to wait between the two is in both, and else would be in neither.
        found = {row.no: row for row in (*running, *waiting)}
        return [found[no] for no in sorted(found, reverse=True)[:limit]]

    def find(self, run_id: str) -> RunRow | None:
        return self.store.get(run_id) if "\0" not in run_id else None

    def row(self, run_id: str) -> RunRow:
        row = self.find(run_id)
        if row is None:
            raise RunNotFoundError(f"there is no run {run_id!r}; it may have been deleted", run_id=run_id)
        return row

    def history(self, row: RunRow) -> tuple[Sequence[AnyEvent], Sequence[StepView]]:
        """The events of a run, and what they tell of its steps."""
        return self._histories.read(self.store, row)
