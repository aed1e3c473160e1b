"""One run as JSON data, with its steps, events, children and relatives."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from holdfast.api.forms import hook_schema
from holdfast.api.selection import APPLIES
from holdfast.core import events as ev
from holdfast.engine.membership import pid_of
from holdfast.errors import RunNotFoundError
from holdfast.monitor.source import LOOKED_AT, Source
from holdfast.ports import RunRow
from holdfast.views.details import RunSource, read_details, read_values
from holdfast.views.graph import folded, graph_of
from holdfast.views.imported import ImportedRun
from holdfast.views.invocations import Invocation, invocation_summary
from holdfast.views.reading import RunTree
from holdfast.views.statuses import statuses_of
from holdfast.views.steps import StepView, kept_by_retry, steps_of
from holdfast.views.summaries import event_summary, log_summaries, step_summary
from holdfast.views.timeline import lanes_of, timeline_of
from holdfast.views.times import iso, marking, unmarked
from holdfast.views.trace import TraceNode, trace_summary

EVENTS_PER_PAGE = 500
FOLLOWERS = 100
LANES_SHOWN = 400
FOLDED = 12
"""More neighbours of one name are one row, until somebody opens it."""
STEPS_SHOWN = 200
CHILDREN_SHOWN = 500
PROCESS_SHOWN = 200
LONG = 65_536
"""A longer input or result is read by those who look at it."""
NODES_SHOWN = 400
FANNED = 8


@dataclass(slots=True)
class OneRun:
    """All that is told of one run, by its id."""

    source: Source

    def run(self, run_id: str) -> dict[str, Any]:
        row = self.source.row(run_id)
        events, steps = self.source.history(row)
        kept = kept_by_retry(events) if row.status in APPLIES["retry"] else 0
        return {**self._run(self.source.store, row, events, steps, LONG), "kept_by_retry": kept}

    def values(self, run_id: str) -> dict[str, Any]:
        """What went in and came out, in full."""
        return read_values(self.source.store, self.source.row(run_id), self.source.reader)

    def imported(self, text: bytes) -> dict[str, Any]:
        """All of a run that somebody has exported, as `run` and the others tell it of one that is here."""
        found = ImportedRun(text)
        summaries = [event_summary(payload, self.source.reader) for payload in found.payloads("")]
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
        reader, known = self.source.reader, self.source.definitions
        began = max((event.seq for event in events if isinstance(event, ev.AttemptStarted)), default=0)
        latest = [step for step in steps if step.seq >= began]
        with marking():
            facts = read_details(store, row, reader, known.max_attempts(), events, steps, STEPS_SHOWN, most_bytes)
        facts["why"] |= {"marked": facts["why"]["text"], "text": unmarked(facts["why"]["text"], now)}
        for hook in facts["hooks"]:
            hook["schema"] = hook_schema(known.hook_models, hook["name"])
        return {
            **facts,
            "now": iso(now),
            "durable": row.durable,
            "orders": store.orders(row.id),
            "logs": log_summaries(store.attributes(row.id, "logs"), reader),
            "timeline": _timeline(events, row, now, steps),
            "statuses": [
                {"status": change.status, "at": iso(change.at), "reason": change.reason, "by": change.by,
                 "error": reader.error_text(change.error)}
                for change in statuses_of(events, row)
            ],
            "step_names": {
                state: [step.key or step.name for step in latest if step.state == state][:20]
                for state in ("STARTED", "RETRY", "FAILURE", "CANCELLED")
            },
            "streamed": bool(store.stream(row.id, 0, 1)),
        }  # fmt: skip

    def lanes(self, run_id: str, at: int, limit: int) -> dict[str, Any]:
        """Rows of the timeline that were left out: those of steps, from one of their places on."""
        row = self.source.row(run_id)
        events, steps = self.source.history(row)
        found = lanes_of(events, row, self.source.store.now(), steps, at, limit)
        after = at + len(found)
        return {"lanes": msgspec.to_builtins(found), "after": after if after < len(steps) else None}

    def graph(self, run_id: str, opened: Collection[str]) -> dict[str, Any]:
        return self._graph(self.source.history(self.source.row(run_id))[0], opened)

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
        row = self.source.row(run_id)
        tree = RunTree(self.source.store, self.source.reader, run_id).read().summary(CHILDREN_SHOWN)
        above: list[dict[str, Any]] = []
        while row.parent_id is not None and len(above) < 20:
            parent = self.source.store.get(row.parent_id)
            if parent is None:
                above.append({"id": row.parent_id, "workflow": "", "status": ""})
                break
            above.append({"id": parent.id, "workflow": parent.workflow, "status": parent.status})
            row = parent
        trace = self.source.app.client.reader.trace(run_id)
        process = trace_summary(trace, PROCESS_SHOWN) if _has_events(trace) else None
        return {"tree": tree, "above": above[::-1], "process": process}

    def tree(self, run_id: str) -> dict[str, Any]:
        self.source.row(run_id)
        return RunTree(self.source.store, self.source.reader, run_id).read().summary(CHILDREN_SHOWN)

    def events(self, run_id: str, after: int, limit: int) -> dict[str, Any]:
        self.source.row(run_id)
        payloads = self.source.store.payloads(run_id, after, (), after + limit + 1)
        clocks = self.source.store.clocks(run_id, after, after + limit)
        shown = [event_summary(payload, self.source.reader, clocks) for payload in payloads[:limit]]
        return {"events": shown, "after": shown[-1]["seq"] if len(payloads) > len(shown) else None}

    def event(self, run_id: str, seq: int) -> dict[str, Any]:
        """One event, what caused it, and what it led to."""
        row = self.source.row(run_id)
        payloads = self.source.store.payloads(run_id, seq - 1, (), seq)
        if not payloads:
            raise RunNotFoundError(f"run {run_id!r} has no event {seq}", run_id=run_id)
        found = event_summary(payloads[0], self.source.reader)
        found["clock"] = self.source.store.clocks(run_id, seq - 1, seq).get(seq, 0)
        cause = found.get("cause") or 0
        before = self.source.store.payloads(run_id, cause - 1, (), cause) if cause else []
        led_to = [event.seq for event in self.source.history(row)[0] if getattr(event, "cause", 0) == seq]
        shown = [self.source.store.payloads(run_id, number - 1, (), number) for number in led_to[:FOLLOWERS]]
        return {
            "event": found,
            "cause": event_summary(before[0], self.source.reader) if before else None,
            "followed": [event_summary(payload, self.source.reader) for payloads in shown for payload in payloads],
            "more": max(0, len(led_to) - FOLLOWERS),
        }

    def stream(self, run_id: str, after: int, limit: int) -> dict[str, Any]:
        self.source.row(run_id)
        rows = self.source.store.stream(run_id, after, limit + 1)
        items = [
            {"number": row.number, "item": self.source.reader.value(row.item), "cmd": row.cmd, "attempt": row.attempt,
             "at": iso(row.ts)}
            for row in rows[:limit]
        ]  # fmt: skip
        return {"items": items, "after": items[-1]["number"] if len(rows) > limit else None}

    def fork_reruns(self, run_id: str, at: int) -> dict[str, Any]:
        return {"reruns": self.source.app.get_run(run_id).fork_reruns(at)}

    def invocation(self, run_id: str, cmd: str) -> dict[str, Any]:
        """All about one step: each attempt, with its error and where it was executed."""
        row = self.source.row(run_id)
        events, steps = self.source.history(row)
        step = next((step for step in steps if step.cmd == cmd), None)
        if step is None:
            raise RunNotFoundError(f"run {run_id!r} has no step {cmd!r}", run_id=run_id)
        workers = {worker.id: worker for worker in self.source.store.workers()}
        progress = self.source.store.attributes(run_id, "progress")
        logs = log_summaries(self.source.store.attributes(run_id, "logs"), self.source.reader)
        checkpoint = self.source.store.attributes(run_id, "checkpoint").get(cmd)
        outcome = next((e.seq for e in reversed(events) if getattr(e, "cmd", "") == cmd and e.delivered), None)
        now = self.source.store.now()
        return {
            **step_summary(step, self.source.reader, progress, logs),
            **invocation_summary(Invocation(row, step), now),
            "now": iso(now),
            "tries": [
                {
                    "number": attempt.number,
                    "state": "LOST" if attempt.state == "PENDING" else str(attempt.state),
                    "started_at": iso(attempt.started_at),
                    "ended_at": iso(attempt.ended_at),
                    "retry_at": iso(attempt.retry_at or None),
                    "error": self.source.reader.error(attempt.error),
                    "worker": attempt.worker,
                    "host": workers[attempt.worker].host if attempt.worker in workers else None,
                    "pid": workers[attempt.worker].pid if attempt.worker in workers else pid_of(attempt.worker),
                    "thread": attempt.thread or None,
                }
                for attempt in step.tries
            ],
            "checkpoint": self.source.reader.value(checkpoint),
            "outcome_seq": outcome,
            "max_attempts": self.source.definitions.max_attempts().get(step.name),
            "events": [e.seq for e in events if getattr(e, "cmd", "") == cmd],
        }


def _timeline(events: Sequence[ev.AnyEvent], row: RunRow, now: int, steps: Sequence[StepView]) -> dict[str, Any]:
    found = timeline_of(events, row, now, steps, LANES_SHOWN, FOLDED)
    data: dict[str, Any] = msgspec.to_builtins(found)
    return {**data, "left_out": 0 if found.after is None else len(steps) - found.after}


def _has_events(node: TraceNode) -> bool:
    return node.kind != "run" or any(_has_events(child) for child in node.children)
