"""What the monitor shows of runs, as JSON data: over the Query port and the views, with no web framework in sight."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from holdfast.api.forms import hook_schema
from holdfast.app import App
from holdfast.core import events as ev
from holdfast.core.definitions import DEFAULT_QUEUE
from holdfast.core.registry import is_own
from holdfast.engine.membership import pid_of
from holdfast.errors import RunNotFoundError
from holdfast.ports import FINAL, Query, RunQuery, RunRow, Status
from holdfast.views.details import RunSource, read_details, read_values
from holdfast.views.failures import group_summary, read_failures
from holdfast.views.filters import parse_filter
from holdfast.views.graph import folded, graph_of
from holdfast.views.imported import ImportedRun
from holdfast.views.invocations import (
    Invocation,
    invocation_summary,
    read_invocations,
    read_steps,
    split_filter,
)
from holdfast.views.lanes import quantile, step_grid, worker_lanes
from holdfast.views.reading import Histories, RunTree
from holdfast.views.redaction import Redact, RedactingReader
from holdfast.views.statuses import statuses_of
from holdfast.views.steps import StepView, steps_of
from holdfast.views.summaries import (
    event_summary,
    hook_summaries,
    log_summaries,
    run_summary,
    schedule_summary,
    step_summary,
    worker_summary,
)
from holdfast.views.timeline import lanes_of, timeline_of
from holdfast.views.times import SECOND, iso
from holdfast.views.trace import TraceNode
from holdfast.views.values import PlainReader
from holdfast.views.waits import open_hooks
from holdfast.views.why import why

COUNTED = 10_001
MANY_NAMES = 50
"""So many workflows that share the beginning of a name are counted each by itself."""
LOOKED_AT = 2_000
FAILURES_LOOKED_AT = 1_000
EVENTS_PER_PAGE = 500
FOLLOWERS = 100
HOOKS_SHOWN = 200
LANES_SHOWN = 400
FOLDED = 12
"""More neighbours of one name are one row, until somebody opens it."""
STEPS_SHOWN = 200
CHILDREN_SHOWN = 500
DATA_SHOWN = 5
SHORT = 200
"""Longer data is not shown in a list of runs."""
LONG = 65_536
"""A longer input or result is read by those who look at it."""
NODES_SHOWN = 400
FANNED = 8
LAST_RUNS = 24
GRID_RUNS = 30
BARS = 60
HOOK_EVENTS = (
    "RunStarted", "ContinuedAsNew", "AttemptStarted", "HookOpened", "HookReceived", "OutcomeReused", "TimerFired",
)  # fmt: skip


class Resources:
    """Everything that can be asked for. Nothing is kept but the histories that were read last."""

    def __init__(self, app: App, redact: Redact | None = None) -> None:
        self.app = app
        self.reader = PlainReader(app.codec) if redact is None else RedactingReader(app.codec, redact)
        self._histories = Histories()

    @property
    def store(self) -> Query:
        return self.app.store

    def about(self) -> dict[str, Any]:
        return {"app": self.app.name, "store": self.store.url, "now": iso(self.store.now())}

    def query_of(self, filter: str) -> RunQuery:
        return parse_filter(filter, self.store.now(), self.app.codec.encode)

    # -- runs

    def runs(self, filter: str, after: int | None, limit: int) -> dict[str, Any]:
        store, query = self.store, self.query_of(filter)
        rows = store.runs(replace(query, after=after, limit=limit + 1))
        now = store.now()
        shown = rows[:limit]
        data = store.data_of([row.no for row in shown], SHORT) if shown else {}
        return {
            "now": iso(now),
            "runs": [
                {**run_summary(row, now), "doing": doing(row, now), "data": self._data(data.get(row.no, {}))}
                for row in shown
            ],
            "after": shown[-1].no if len(rows) > limit else None,
        }

    def _data(self, published: Mapping[str, bytes]) -> dict[str, Any]:
        return {key: self.reader.named(key, value) for key, value in list(published.items())[:DATA_SHOWN]}

    def counts(self, filter: str) -> dict[str, Any]:
        """Of the runs that a filter finds, whatever it says of statuses."""
        query = replace(self.query_of(filter), statuses=())
        counts = self.store.counts(query, COUNTED)
        # Where not all were counted the others are lower bounds too, unless each status was counted on its own.
        capped = query != RunQuery() and sum(counts.values()) >= self.counted_of(query)
        return {
            "counts": {status: min(n, COUNTED - 1) for status, n in counts.items()},
            "more": [status for status, n in counts.items() if n >= COUNTED or capped],
        }

    def counted_of(self, query: RunQuery) -> int:
        """If so many runs were counted there may be more."""
        return COUNTED // MANY_NAMES if (query.workflow or "").endswith("*") else COUNTED

    def counts_over_time(self, filter: str, seconds: int) -> dict[str, Any]:
        """How many runs began in each stretch of the last `seconds`, by status; the newest of them if they are many."""
        query, now = self.query_of(filter), self.store.now()
        width = max(1, seconds // BARS) * SECOND
        first = now // width * width - (BARS - 1) * width
        query.since = max(first, query.since or 0)
        found = self.store.counts_over_time(query, width, COUNTED - 1)
        bars: list[dict[str, int]] = [{} for _ in range(BARS)]
        for at, status, count in found:
            if first <= at < first + BARS * width:
                bars[(at - first) // width][status] = count
        capped = sum(count for _, _, count in found) >= COUNTED - 1
        return {"since": iso(first), "width": width // SECOND, "bars": bars, "capped": capped, "now": iso(now)}

    def row(self, run_id: str) -> RunRow:
        row = self.store.get(run_id) if "\0" not in run_id else None
        if row is None:
            raise RunNotFoundError(f"there is no run {run_id!r}; it may have been deleted", run_id=run_id)
        return row

    def views(self) -> dict[str, Any]:
        """Filters that somebody has given a name, for all."""
        return {"views": [{"name": name, "filter": text} for name, text in self.store.saved_views().items()]}

    # -- one run

    def run(self, run_id: str) -> dict[str, Any]:
        row = self.row(run_id)
        return self._run(self.store, row, *self._histories.read(self.store, row), LONG)

    def values(self, run_id: str) -> dict[str, Any]:
        """What went in and came out, in full."""
        return read_values(self.store, self.row(run_id), self.reader)

    def imported(self, text: bytes) -> dict[str, Any]:
        """All of a run that somebody has exported, as `run` and the others tell it of one that is here."""
        found = ImportedRun(text)
        summaries = [event_summary(payload, self.reader) for payload in found.payloads("")]
        facts = self._run(found, found.row, found.events, steps_of(found.events))
        graph = self._graph(found.events, ())
        return {**facts, "imported": True, "all_events": summaries[:LOOKED_AT], "graph": graph}

    def _run(
        self,
        store: RunSource,
        row: RunRow,
        events: Sequence[ev.AnyEvent],
        steps: Sequence[StepView],
        most_bytes: int | None = None,
    ) -> dict[str, Any]:
        now = store.now()
        facts = read_details(store, row, self.reader, self.app.max_attempts(), events, steps, STEPS_SHOWN, most_bytes)
        for hook in facts["hooks"]:
            hook["schema"] = hook_schema(self.app.hook_models, hook["name"])
        return {
            **facts,
            "now": iso(now),
            "durable": row.durable,
            "orders": store.orders(row.id),
            "logs": log_summaries(store.attributes(row.id, "logs"), self.reader),
            "timeline": _timeline(events, row, now, steps),
            "statuses": [
                {"status": change.status, "at": iso(change.at), "reason": change.reason, "by": change.by,
                 "error": self.reader.error_text(change.error)}
                for change in statuses_of(events, row)
            ],
            "step_counts": dict(Counter(str(step.state) for step in steps)),
            "step_names": {
                state: [step.key or step.name for step in steps if step.state == state][:20]
                for state in ("STARTED", "RETRY", "FAILURE", "CANCELLED")
            },
            "streamed": bool(store.stream(row.id, 0, 1)),
        }  # fmt: skip

    def lanes(self, run_id: str, at: int, limit: int) -> dict[str, Any]:
        """Rows of the timeline that were left out: those of steps, from one of their places on."""
        row = self.row(run_id)
        events, steps = self._histories.read(self.store, row)
        found = lanes_of(events, row, self.store.now(), steps, at, limit)
        after = at + len(found)
        return {"lanes": msgspec.to_builtins(found), "after": after if after < len(steps) else None}

    def graph(self, run_id: str, opened: Collection[str]) -> dict[str, Any]:
        return self._graph(self._histories.read(self.store, self.row(run_id))[0], opened)

    def _graph(self, events: Sequence[ev.AnyEvent], opened: Collection[str]) -> dict[str, Any]:
        graph = folded(graph_of(events), FANNED, opened)
        shown = graph.nodes[:NODES_SHOWN]
        ids = {node.id for node in shown}
        return {
            "shape": graph.shape,
            "nodes": [msgspec.to_builtins(node) for node in shown],
            "edges": [msgspec.to_builtins(e) for e in graph.edges if e.source in ids and e.target in ids],
            "left_out": len(graph.nodes) - len(shown),
        }

    def family(self, run_id: str) -> dict[str, Any]:
        """Its children and theirs, the runs above it, and the process that domain events make of it and others."""
        row = self.row(run_id)
        tree = RunTree(self.store, self.reader, run_id).read().summary(CHILDREN_SHOWN)
        above: list[dict[str, Any]] = []
        while row.parent_id is not None and len(above) < 20:
            parent = self.store.get(row.parent_id)
            if parent is None:
                above.append({"id": row.parent_id, "workflow": "", "status": ""})
                break
            above.append({"id": parent.id, "workflow": parent.workflow, "status": parent.status})
            row = parent
        trace = self.app.client.trace(run_id)
        return {"tree": tree, "above": above[::-1], "process": _trace(trace) if _has_events(trace) else None}

    def tree(self, run_id: str) -> dict[str, Any]:
        self.row(run_id)
        return RunTree(self.store, self.reader, run_id).read().summary(CHILDREN_SHOWN)

    def events(self, run_id: str, after: int, limit: int) -> dict[str, Any]:
        self.row(run_id)
        payloads = self.store.payloads(run_id, after, (), after + limit + 1)
        clocks = self.store.clocks(run_id, after, after + limit)
        shown = [event_summary(payload, self.reader, clocks) for payload in payloads[:limit]]
        return {"events": shown, "after": shown[-1]["seq"] if len(payloads) > len(shown) else None}

    def event(self, run_id: str, seq: int) -> dict[str, Any]:
        """One event, what caused it, and what it led to."""
        row = self.row(run_id)
        payloads = self.store.payloads(run_id, seq - 1, (), seq)
        if not payloads:
            raise RunNotFoundError(f"run {run_id!r} has no event {seq}", run_id=run_id)
        found = event_summary(payloads[0], self.reader)
        found["clock"] = self.store.clocks(run_id, seq - 1, seq).get(seq, 0)
        cause = found.get("cause") or 0
        before = self.store.payloads(run_id, cause - 1, (), cause) if cause else []
        led_to = [event.seq for event in self._histories.read(self.store, row)[0] if getattr(event, "cause", 0) == seq]
        shown = [self.store.payloads(run_id, number - 1, (), number) for number in led_to[:FOLLOWERS]]
        return {
            "event": found,
            "cause": event_summary(before[0], self.reader) if before else None,
            "followed": [event_summary(payload, self.reader) for payloads in shown for payload in payloads],
            "more": max(0, len(led_to) - FOLLOWERS),
        }

    def stream(self, run_id: str, after: int, limit: int) -> dict[str, Any]:
        self.row(run_id)
        rows = self.store.stream(run_id, after, limit + 1)
        items = [
            {"number": row.number, "item": self.reader.value(row.item), "cmd": row.cmd, "attempt": row.attempt,
             "at": iso(row.ts)}
            for row in rows[:limit]
        ]  # fmt: skip
        return {"items": items, "after": items[-1]["number"] if len(rows) > limit else None}

    def fork_reruns(self, run_id: str, at: int) -> dict[str, Any]:
        return {"reruns": self.app.get_run(run_id).fork_reruns(at)}

    # -- steps of all runs

    def invocations(self, filter: str, run_id: str, after: str | None, limit: int) -> dict[str, Any]:
        wanted, rest = split_filter(filter)
        query = self.query_of(rest)
        now = self.store.now()
        page = read_invocations(self.store, self.row(run_id) if run_id else query, wanted, after, limit)
        return {
            "now": iso(now),
            "invocations": [invocation_summary(each, now) for each in page.found],
            "after": page.after,
            "looked_at": page.looked_at,
        }

    def invocation(self, run_id: str, cmd: str) -> dict[str, Any]:
        """All about one step: each attempt, with its error and where it was executed."""
        row = self.row(run_id)
        events, steps = self._histories.read(self.store, row)
        step = next((step for step in steps if step.cmd == cmd), None)
        if step is None:
            raise RunNotFoundError(f"run {run_id!r} has no step {cmd!r}", run_id=run_id)
        workers = {worker.id: worker for worker in self.store.workers()}
        progress = self.store.attributes(run_id, "progress")
        logs = log_summaries(self.store.attributes(run_id, "logs"), self.reader)
        checkpoint = self.store.attributes(run_id, "checkpoint").get(cmd)
        outcome = next((e.seq for e in reversed(events) if getattr(e, "cmd", "") == cmd and e.delivered), None)
        now = self.store.now()
        return {
            **step_summary(step, self.reader, progress, logs),
            **invocation_summary(Invocation(row, step), now),
            "now": iso(now),
            "tries": [
                {
                    "number": attempt.number,
                    "state": "LOST" if attempt.state == "PENDING" else str(attempt.state),
                    "started_at": iso(attempt.started_at),
                    "ended_at": iso(attempt.ended_at),
                    "retry_at": iso(attempt.retry_at or None),
                    "error": self.reader.error(attempt.error),
                    "worker": attempt.worker,
                    "host": workers[attempt.worker].host if attempt.worker in workers else None,
                    "pid": workers[attempt.worker].pid if attempt.worker in workers else pid_of(attempt.worker),
                    "thread": attempt.thread or None,
                }
                for attempt in step.tries
            ],
            "checkpoint": self.reader.value(checkpoint),
            "outcome_seq": outcome,
            "max_attempts": self.app.max_attempts().get(step.name),
            "events": [e.seq for e in events if getattr(e, "cmd", "") == cmd],
        }

    def timeline(self, filter: str, seconds: int) -> dict[str, Any]:
        """What each worker has done in the last `seconds`, as far as the newest runs tell."""
        query, now = self.query_of(filter), self.store.now()
        since = now - seconds * SECOND
        active = self.store.runs(replace(query, statuses=[Status.RUNNING, Status.WAITING], limit=LOOKED_AT // 4))
        # One that has ended in this time may have begun long before; those that did are rare.
        rows = {row.no: row for row in self.store.runs(replace(query, limit=LOOKED_AT))}
        rows = {no: row for no, row in rows.items() if (row.finished_at or now) >= since}
        rows |= {row.no: row for row in active}
        found = worker_lanes(read_steps(self.store, list(rows.values())), since, now)
        known = {worker.id: worker for worker in self.store.workers()}
        for lane in found["lanes"]:
            worker = known.get(lane["worker"])
            lane["host"], lane["alive"] = (worker.host, worker.lease_until >= now) if worker else (None, False)
        for id in known.keys() - {lane["worker"] for lane in found["lanes"]}:
            found["lanes"].append(
                {"worker": id, "spans": [], "host": known[id].host, "alive": known[id].lease_until >= now}
            )
        return {**found, "since": iso(since), "seconds": seconds, "now": iso(now), "looked_at": len(rows)}

    # -- failures

    def failures(self, filter: str) -> dict[str, Any]:
        query = replace(self.query_of(filter), limit=FAILURES_LOOKED_AT)
        groups = read_failures(self.store, query, self.reader)
        count = sum(len(group.run_ids) for group in groups)
        groups.sort(key=lambda group: -len(group.run_ids))
        return {
            "groups": [group_summary(group) for group in groups], "count": count, "all": count < FAILURES_LOOKED_AT,
            "now": iso(self.store.now()),
        }  # fmt: skip

    def run_ids_of_failure(self, filter: str, fingerprint: str) -> list[str]:
        query = replace(self.query_of(filter), limit=FAILURES_LOOKED_AT)
        groups = read_failures(self.store, query, self.reader)
        return next((group.run_ids for group in groups if group.fingerprint == fingerprint), [])

    # -- the app

    def workflows(self) -> dict[str, Any]:
        """What can be started, with what the last runs say of each."""
        store = self.store
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

    def workflow(self, name: str) -> dict[str, Any]:
        """One of them: what its last runs say, and a grid of their steps."""
        rows = self.store.runs(RunQuery(workflow=name, limit=LOOKED_AT // 4))
        grid = step_grid(list(read_steps(self.store, rows[:GRID_RUNS])))
        builds = Counter(row.build for row in rows if row.build)
        summary = workflow_summary(name, rows, name in self.app.max_attempts())
        return {**summary, "looked_at": len(rows), "grid": grid, "builds": dict(builds), "now": iso(self.store.now())}

    def workers(self) -> dict[str, Any]:
        store = self.store
        now = store.now()
        found = []
        for worker in store.workers():
            owned = store.runs(RunQuery(owner=worker.id, limit=COUNTED - 1))
            names = [name for name in worker.names if not is_own(name)]
            found.append({**worker_summary(worker, now), "names": names, "runs": len(owned)})
        served = {queue for worker in found if worker["alive"] for queue in worker["queues"]}
        queues = [
            {
                "name": row.queue or DEFAULT_QUEUE, "waiting": row.waiting, "since": iso(row.since),
                "claimed": row.claimed, "served": (row.queue or DEFAULT_QUEUE) in served,
            }
            for row in store.queues()
        ]  # fmt: skip
        return {"workers": found, "queues": queues, "now": iso(now)}

    def schedules(self) -> dict[str, Any]:
        store = self.store
        return {"schedules": [schedule_summary(row, self.reader) for row in store.schedules()], "now": iso(store.now())}

    def hooks(self) -> dict[str, Any]:
        """Hooks that people can answer, the newest first."""
        store = self.store
        now = store.now()
        waiting = [
            row for row in store.runs(RunQuery(statuses=[Status.WAITING], limit=LOOKED_AT)) if "hook" in row.reason
        ]
        shown = waiting[:HOOKS_SHOWN]
        histories = store.histories([row.no for row in shown], HOOK_EVENTS)
        found: list[dict[str, Any]] = []
        for row in shown:
            hooks = open_hooks([ev.from_json(payload) for payload in histories[row.no]], row)
            opened = {(hook.name, hook.key): hook for hook in reversed(hooks)}
            for said in hook_summaries(hooks):
                hook = opened[said["name"], said["key"]]
                found.append(
                    {
                        **said, "run_id": row.id, "workflow": row.workflow, "since": iso(hook.opened_at),
                        "until": iso(hook.expires), "schema": hook_schema(self.app.hook_models, hook.name),
                    }
                )  # fmt: skip
        return {"hooks": found, "now": iso(now), "left_out": max(0, len(waiting) - HOOKS_SHOWN)}


def doing(row: RunRow, now: int) -> str:
    """What a run waits for, in words, from its row alone."""
    return "" if row.status == Status.RUNNING or row.status in FINAL else why(row, now).text


def _timeline(events: Sequence[ev.AnyEvent], row: RunRow, now: int, steps: Sequence[StepView]) -> dict[str, Any]:
    found = timeline_of(events, row, now, steps, LANES_SHOWN, FOLDED)
    data: dict[str, Any] = msgspec.to_builtins(found)
    return {**data, "left_out": 0 if found.after is None else len(steps) - found.after}


def _has_events(node: TraceNode) -> bool:
    return node.kind != "run" or any(_has_events(child) for child in node.children)


def _trace(node: TraceNode) -> dict[str, Any]:
    return {
        "kind": node.kind, "id": node.id, "name": node.name, "app": node.app, "status": node.status,
        "at": None if node.at is None else node.at.isoformat(),
        "ended_at": None if node.ended_at is None else node.ended_at.isoformat(),
        "children": [_trace(child) for child in node.children[:200]],
    }  # fmt: skip


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
        "p50": quantile(took, 0.5),
        "p95": quantile(took, 0.95),
        "last_at": iso(rows[0].created_at) if rows else None,
        "last": [{"id": row.id, "status": row.status} for row in rows[:LAST_RUNS]],
    }
