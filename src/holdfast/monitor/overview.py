"""What an app does as JSON data: its workflows, workers and schedules, hooks that wait for people, steps of all runs."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from msgspec.structs import replace

from holdfast.api.forms import hook_schema
from holdfast.core import events as ev
from holdfast.core.definitions import DEFAULT_QUEUE
from holdfast.core.registry import is_own
from holdfast.monitor.source import COUNTED, HOOKS_SHOWN, LOOKED_AT, Source
from holdfast.monitor.starting import start_form
from holdfast.ports import RunQuery, RunRow, Status
from holdfast.views.findings import Finding, findings_of, glance_at
from holdfast.views.invocations import KNOWN_OF_STEPS, invocation_summary, read_invocations, read_steps, split_filter
from holdfast.views.lanes import quantile, step_grid, worker_lanes
from holdfast.views.summaries import hook_summaries, schedule_summary, worker_summary
from holdfast.views.times import SECOND, iso
from holdfast.views.waits import open_hooks

LAST_RUNS = 24
OF_EACH = 100
"""So many runs of each workflow say how it goes."""
COUNTED_IN_ALL = 20 * COUNTED
"""So many runs are counted for one list of workflows, which takes a quarter of a second: each has its share of them."""
FINDINGS = 5
GRID_RUNS = 30
HOOK_EVENTS = (
    "RunStarted", "ContinuedAsNew", "AttemptStarted", "HookOpened", "HookReceived", "OutcomeReused", "TimerFired",
)  # fmt: skip


@dataclass(slots=True)
class Overview:
    """All that is told of an app as a whole."""

    source: Source

    def about(self) -> dict[str, Any]:
        return {"app": self.source.app.name, "store": self.source.store.url, "now": iso(self.source.store.now())}

    def workflows(self) -> dict[str, Any]:
        """What can be started, with what the last runs of each say of it."""
        store = self.source.store
        names = dict.fromkeys(self.source.definitions.startable_names())
        names |= dict.fromkeys(name for worker in store.workers() for name in worker.names)
        names |= dict.fromkeys(row.workflow for row in store.runs(RunQuery(limit=LOOKED_AT)))
        steps = self.source.definitions.max_attempts()
        by_name = {name: store.runs(RunQuery(workflow=name, limit=OF_EACH)) for name in names if not name.endswith("*")}
        many = sum(len(rows) >= OF_EACH for rows in by_name.values())
        most = min(COUNTED, COUNTED_IN_ALL // max(1, many))
        found = [
            {**workflow_summary(name, rows, name in steps), **self._total(name, rows, OF_EACH, most)}
            for name, rows in by_name.items()
            if rows or not (is_own(name) or name in steps)
        ]
        return {"workflows": found, "looked_at": OF_EACH}

    def _total(self, name: str, rows: Sequence[RunRow], looked_at: int, most: int) -> dict[str, Any]:
        """How many runs it has, and whether there are `more`: at most one less than `most` are counted."""
        if len(rows) < looked_at:
            return {"total": len(rows), "more": False}
        counted = sum(self.source.store.counts(RunQuery(workflow=name), most).values()) if most > looked_at else most
        return {"total": max(looked_at, min(counted, most - 1)), "more": counted >= most}

    def workflow(self, name: str) -> dict[str, Any]:
        """One of them: what its last runs say, and a grid of their steps."""
        looked_at = LOOKED_AT // 4
        rows = self.source.store.runs(RunQuery(workflow=name, limit=looked_at))
        grid = step_grid(list(read_steps(self.source.store, rows[:GRID_RUNS])))
        builds = Counter(row.build for row in rows if row.build)
        summary = workflow_summary(name, rows, name in self.source.definitions.max_attempts())
        return {
            **summary,
            **self._total(name, rows, looked_at, COUNTED),
            "start": start_form(self.source, name),
            "looked_at": len(rows),
            "grid": grid,
            "builds": dict(builds),
            "now": iso(self.source.store.now()),
        }

    def findings(self) -> dict[str, Any]:
        """What keeps runs from going on, as `holdfast doctor` tells it; nothing as long as there are none to go on."""
        seen = glance_at(self.source.store)
        running = self.source.store.runs(RunQuery(statuses=[Status.RUNNING], limit=1))
        idle = not (seen.unfinished or seen.stuck or running)
        found = [each for each in findings_of(seen) if each.level == "bad" and each.check != "runs" and not idle]
        return {"findings": [_finding(each) for each in found[:FINDINGS]], "more": max(0, len(found) - FINDINGS)}

    def workers(self) -> dict[str, Any]:
        store = self.source.store
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
        store = self.source.store
        return {
            "schedules": [schedule_summary(row, self.source.reader) for row in store.schedules()],
            "now": iso(store.now()),
        }

    def hooks(self, after: int | None = None) -> dict[str, Any]:
        """Hooks that people can answer, the newest first: those of a page of runs, which may have none."""
        store = self.source.store
        now = store.now()
        rows = self.source.that_may_ask(after, HOOKS_SHOWN + 1)
        shown = rows[:HOOKS_SHOWN]
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
                        "until": iso(hook.expires), "schema": hook_schema(self.source.definitions.hook_models, hook.name),
                    }
                )  # fmt: skip
        return {"hooks": found, "now": iso(now), "after": shown[-1].no if len(rows) > HOOKS_SHOWN else None}

    def invocations(self, filter: str, run_id: str, after: str | None, limit: int) -> dict[str, Any]:
        wanted, rest = split_filter(filter)
        query = self.source.query_of(rest, KNOWN_OF_STEPS)
        now = self.source.store.now()
        page = read_invocations(self.source.store, self.source.row(run_id) if run_id else query, wanted, after, limit)
        return {
            "now": iso(now),
            "invocations": [invocation_summary(each, now) for each in page.found],
            "after": page.after,
            "looked_at": page.looked_at,
        }

    def timeline(self, filter: str, seconds: int) -> dict[str, Any]:
        """What each worker has done in the last `seconds`, as far as the newest runs tell."""
        query, now = self.source.query_of(filter), self.source.store.now()
        since = now - seconds * SECOND
        active = self.source.store.runs(replace(query, statuses=[Status.RUNNING, Status.WAITING], limit=LOOKED_AT // 4))
        # One that has ended in this time may have begun long before; those that did are rare.
        rows = {row.no: row for row in self.source.store.runs(replace(query, limit=LOOKED_AT))}
        rows = {no: row for no, row in rows.items() if (row.finished_at or now) >= since}
        rows |= {row.no: row for row in active}
        found = worker_lanes(read_steps(self.source.store, list(rows.values())), since, now)
        known = {worker.id: worker for worker in self.source.store.workers()}
        for lane in found["lanes"]:
            worker = known.get(lane["worker"])
            lane["host"], lane["alive"] = (worker.host, worker.lease_until >= now) if worker else (None, False)
        for id in known.keys() - {lane["worker"] for lane in found["lanes"]}:
            found["lanes"].append(
                {"worker": id, "spans": [], "host": known[id].host, "alive": known[id].lease_until >= now}
            )
        return {**found, "since": iso(since), "seconds": seconds, "now": iso(now), "looked_at": len(rows)}


def _finding(finding: Finding) -> dict[str, Any]:
    command = f"holdfast -A module {shlex.join(finding.command)}" if finding.command else ""
    return {"check": finding.check, "text": finding.text, "remedy": finding.remedy, "command": command}


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
