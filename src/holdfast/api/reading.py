"""Runs as the store knows them, with values as Python objects. Nothing here writes or waits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec
from msgspec import Raw

from holdfast.api.checks import check_text
from holdfast.core import events as ev
from holdfast.core.registry import Definitions, is_own
from holdfast.engine.records import correlation_of
from holdfast.errors import DecodeError, RunCancelledError, RunNotFoundError, RunStuckError, UnknownNameError
from holdfast.ports import Query, RunQuery, RunRow, Status
from holdfast.views.entries import Entries, RunEvent, RunSteps, StatusEntry, StepLogs
from holdfast.views.trace import LIMIT, TraceNode, trace_of

MOST_CHILDREN = 100_000


class Which(NamedTuple):
    """A run, as a handle knows it. An id may be given to another run once this one is deleted; `no`, the store's own
    number, never is. None stands for whichever run has the id now. `made` is when a handle that has just started it was
    made, by the monotonic clock."""

    id: str
    no: int | None = None
    made: float = 0.0


@dataclass(slots=True)
class RunReader:
    """Reads the runs of an app, one at a time or in pages."""

    definitions: Definitions
    store: Query

    @property
    def entries(self) -> Entries:
        return Entries(self.definitions.codec)

    def row(self, run: Which) -> RunRow:
        row = self.store.get(run.id)
        if row is None:
            raise RunNotFoundError(
                f"no run {run.id!r} in app {self.definitions.name!r} on {self.store.url}", run_id=run.id
            )
        if run.no not in (None, row.no):
            raise RunNotFoundError(
                f"run {run.id!r} was deleted, and another run has its id since; for that one, ask app.get_run({run.id!r})",
                run_id=run.id,
            )
        return row

    def missing(self, run: Which, failure: str = "") -> RunNotFoundError:
        """Something was not done, as there is no such run; raised if another one has its id."""
        if run.no is not None and self.store.get(run.id) is not None:
            self.row(run)
        return RunNotFoundError(f"{failure}no run {run.id!r} in app {self.definitions.name!r}", run_id=run.id)

    def page(self, query: RunQuery) -> tuple[list[RunRow], int | None]:
        """Runs, and the number after which there are more; None at the end."""
        rows = self.store.runs(msgspec.structs.replace(query, limit=query.limit + 1))
        shown = rows[: query.limit]
        return shown, shown[-1].no if len(rows) > len(shown) else None

    def children(self, run: Which) -> list[RunRow]:
        """Oldest first."""
        return self.store.runs(RunQuery(parent=run.id, limit=MOST_CHILDREN))[::-1]

    def events(self, run: Which) -> list[ev.AnyEvent]:
        self.row(run)
        return [ev.from_json(payload) for payload in self.store.payloads(run.id)]

    def data(self, run: Which) -> dict[str, Any]:
        workflow = self.row(run).workflow
        return {key: self._decode(workflow, value) for key, value in self.store.data(run.id).items()}

    def history(self, run: Which) -> list[RunEvent]:
        events, clocks = self.events(run), self.store.clocks(run.id)
        return [self.entries.event(event, clocks.get(event.seq, 0)) for event in events]

    def steps(self, run: Which) -> RunSteps:
        events = self.events(run)
        return self.entries.steps(events, self.store.attributes(run.id, "progress"), self.store.attempts(run.id))

    def logs(self, run: Which) -> list[StepLogs]:
        self.row(run)
        return self.entries.logs(self.store.attributes(run.id, "logs").values())

    def status_history(self, run: Which) -> list[StatusEntry]:
        return self.entries.statuses(self.events(run), self.row(run))

    def trace(self, id: str) -> TraceNode:
        """All of the process that a run or a domain event belongs to."""
        check_text("id", id)
        row = self.store.get(id)
        event = self.store.domain_event(id) if row is None else None
        if row is None and event is None:
            raise RunNotFoundError(
                f"no run and no domain event {id!r} in app {self.definitions.name!r} on {self.store.url}", run_id=id
            )
        correlation = correlation_of(row) if row is not None else event.correlation if event is not None else ""
        return trace_of(correlation, *self.store.trace(correlation, LIMIT))

    def outcome(self, row: RunRow) -> tuple[Any, bool]:
        """The result of a run that is over, or the exception and that it is one."""
        if row.status == Status.STUCK:
            raise RunStuckError(f"run {row.id} is stuck: {row.reason}", run_id=row.id, reason=row.reason)
        payloads = self.store.payloads(row.id, row.end_seq - 1)
        if not payloads:
            raise RunNotFoundError(f"run {row.id!r} was deleted before its result was read", run_id=row.id)
        end = ev.from_json(payloads[0])
        if isinstance(end, ev.RunCompleted):
            try:
                return self.definitions.codec.decode(end.result, self._result_type(row.workflow)), False
            except DecodeError:  # not what the annotation says: give it as it is, as Python would
                return self._decode(row.workflow, end.result), False
        if isinstance(end, ev.RunFailed):
            return self.definitions.codec.decode_error(end.error), True
        assert isinstance(end, ev.RunCancelled)
        reason = f": {end.reason}" if end.reason else ""
        how = "terminated" if end.terminated else "cancelled"
        return RunCancelledError(f"run {row.id} was {how}{reason}", run_id=row.id), True

    def _decode(self, workflow: str, data: bytes | Raw) -> Any:
        """A value of a run. Without the code that made it, what its classes hold is plain data."""
        is_known = self.definitions.knows(workflow) or is_own(workflow)
        return self.definitions.codec.decode(data) if is_known else self.definitions.codec.decode_loosely(data)

    def _result_type(self, name: str) -> Any:
        for find in (self.definitions.find_workflow, self.definitions.find_step):
            try:
                return find(name).result_type
            except UnknownNameError:
                continue
        return Any
