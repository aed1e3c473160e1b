"""What the monitor shows, as JSON data: over the Query port and the views, with no web framework in sight."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from holdfast.app import App
from holdfast.core import events as ev
from holdfast.core.registry import is_own
from holdfast.errors import RunNotFoundError
from holdfast.ports import FINAL, RunQuery, RunRow, Status
from holdfast.views.details import read_details
from holdfast.views.filters import parse_filter
from holdfast.views.reading import RunTree
from holdfast.views.summaries import (
    event_summary,
    hook_summaries,
    log_summaries,
    run_summary,
    schedule_summary,
    worker_summary,
)
from holdfast.views.timeline import timeline_of
from holdfast.views.times import iso
from holdfast.views.values import PlainReader
from holdfast.views.waits import open_hooks
from holdfast.views.why import why

COUNTED = 10_001
LOOKED_AT = 2_000
EVENTS_PER_PAGE = 500
HOOKS_SHOWN = 200
LANES_SHOWN = 2_000
LAST_RUNS = 24


class Resources:
    """Everything that can be asked for. Each method reads the store once and keeps nothing."""

    def __init__(self, app: App) -> None:
        self.app = app
        self.reader = PlainReader(app.codec)

    def about(self) -> dict[str, Any]:
        store = self.app.store
        return {"app": self.app.name, "store": store.url, "now": iso(store.now())}

    def query_of(self, filter: str) -> RunQuery:
        return parse_filter(filter, self.app.store.now(), self.app.codec.encode)

    # -- runs

    def runs(self, filter: str, after: int | None, limit: int) -> dict[str, Any]:
        store, query = self.app.store, self.query_of(filter)
        rows = store.runs(replace(query, after=after, limit=limit + 1))
        now = store.now()
        shown = rows[:limit]
        return {
            "now": iso(now),
            "runs": [{**run_summary(row, now), "doing": doing(row, now)} for row in shown],
            "after": shown[-1].no if len(rows) > limit else None,
        }

    def counts(self, filter: str) -> dict[str, Any]:
        """Of the runs that a filter finds, whatever it says of statuses."""
        query = replace(self.query_of(filter), statuses=())
        counts = self.app.store.counts(query, COUNTED)
        # Where not all were counted the others are lower bounds too, unless each status was counted on its own.
        is_all = query == RunQuery()
        return {
            "counts": {status: min(n, COUNTED - 1) for status, n in counts.items()},
            "more": [s for s, n in counts.items() if n >= COUNTED or (not is_all and sum(counts.values()) >= COUNTED)],
        }

    def row(self, run_id: str) -> RunRow:
        row = self.app.store.get(run_id) if "\0" not in run_id else None
        if row is None:
            raise RunNotFoundError(f"there is no run {run_id!r}; it may have been deleted", run_id=run_id)
        return row

    def run(self, run_id: str) -> dict[str, Any]:
        store, row = self.app.store, self.row(run_id)
        facts = read_details(store, row, self.reader, self.app.max_attempts())
        return {
            **facts,
            "now": iso(store.now()),
            "durable": row.durable,
            "orders": store.orders(run_id),
            "logs": log_summaries(store.attributes(run_id, "logs"), self.reader),
            "timeline": self._timeline(row),
        }

    def _timeline(self, row: RunRow) -> dict[str, Any]:
        events = [ev.from_json(payload) for payload in self.app.store.payloads(row.id)]
        found = timeline_of(events, row, self.app.store.now())
        data: dict[str, Any] = msgspec.to_builtins(found)
        return {**data, "lanes": data["lanes"][:LANES_SHOWN], "left_out": max(0, len(data["lanes"]) - LANES_SHOWN)}

    def tree(self, run_id: str) -> dict[str, Any]:
        self.row(run_id)
        return RunTree(self.app.store, self.reader, run_id).read().summary()

    def events(self, run_id: str, after: int) -> dict[str, Any]:
        self.row(run_id)
        payloads = self.app.store.payloads(run_id, after)
        clocks = self.app.store.clocks(run_id, after)
        shown = [event_summary(payload, self.reader, clocks) for payload in payloads[:EVENTS_PER_PAGE]]
        return {"events": shown, "after": shown[-1]["seq"] if len(payloads) > len(shown) else None}

    def fork_reruns(self, run_id: str, at: int) -> dict[str, Any]:
        return {"reruns": self.app.get_run(run_id).fork_reruns(at)}

    # -- the app

    def workflows(self) -> dict[str, Any]:
        """What can be started, with what the last runs say of each."""
        store = self.app.store
        rows = store.runs(RunQuery(limit=LOOKED_AT))
        by_name: dict[str, list[RunRow]] = {name: [] for name in self.app.startable_names()}
        for worker in store.workers():
            for name in worker.names:
                by_name.setdefault(name, [])
        for row in rows:
            by_name.setdefault(row.workflow, []).append(row)
        steps = self.app.max_attempts()
        found = [
            workflow_summary(name, rows, name in steps)
            for name, rows in by_name.items()
            if rows or not (is_own(name) or name in steps)
        ]
        return {"workflows": found, "looked_at": len(rows), "all": len(rows) < LOOKED_AT}

    def workers(self) -> dict[str, Any]:
        store = self.app.store
        now = store.now()
        found = []
        for worker in store.workers():
            owned = store.runs(RunQuery(owner=worker.id, limit=COUNTED - 1))
            names = [name for name in worker.names if not is_own(name)]
            found.append({**worker_summary(worker, now), "names": names, "runs": len(owned)})
        return {"workers": found, "now": iso(now)}

    def schedules(self) -> dict[str, Any]:
        store = self.app.store
        return {"schedules": [schedule_summary(row, self.reader) for row in store.schedules()], "now": iso(store.now())}

    def hooks(self) -> dict[str, Any]:
        """Hooks that people can answer, the newest first."""
        store = self.app.store
        now = store.now()
        waiting = [
            row for row in store.runs(RunQuery(statuses=[Status.WAITING], limit=LOOKED_AT)) if "hook" in row.reason
        ]
        found: list[dict[str, Any]] = []
        for row in waiting[:HOOKS_SHOWN]:
            kinds = [
                "RunStarted",
                "ContinuedAsNew",
                "AttemptStarted",
                "HookOpened",
                "HookReceived",
                "OutcomeReused",
                "TimerFired",
            ]
            hooks = open_hooks([ev.from_json(payload) for payload in store.payloads(row.id, 0, kinds)], row)
            opened = {(hook.name, hook.key): hook for hook in reversed(hooks)}
            for said in hook_summaries(hooks):
                hook = opened[said["name"], said["key"]]
                run = {"run_id": row.id, "workflow": row.workflow}
                found.append({**said, **run, "since": iso(hook.opened_at), "until": iso(hook.expires)})
        return {"hooks": found, "now": iso(now), "left_out": max(0, len(waiting) - HOOKS_SHOWN)}


def doing(row: RunRow, now: int) -> str:
    """What a run waits for, in words, from its row alone."""
    return "" if row.status == Status.RUNNING or row.status in FINAL else why(row, now).text


def workflow_summary(name: str, rows: Sequence[RunRow], is_step: bool) -> dict[str, Any]:
    ended = [row for row in rows if row.status in (Status.SUCCESS, Status.FAILURE)]
    took = sorted(
        (row.finished_at - row.started_at) / 1_000_000
        for row in ended
        if row.finished_at is not None and row.started_at is not None
    )
    return {
        "name": name,
        "is_step": is_step,
        "counts": dict(Counter(row.status for row in rows)),
        "success_rate": sum(row.status == Status.SUCCESS for row in ended) / len(ended) if ended else None,
        "p50": _quantile(took, 0.5),
        "p95": _quantile(took, 0.95),
        "last_at": iso(rows[0].created_at) if rows else None,
        "last": [{"id": row.id, "status": row.status} for row in rows[:LAST_RUNS]],
    }


def _quantile(values: Sequence[float], part: float) -> float | None:
    return values[min(len(values) - 1, math.floor(part * len(values)))] if values else None
