"""What keeps the runs of an app from going on, and what to do about it: for `holdfast doctor`, and for a monitor."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from typing import Any, Literal

import msgspec
from msgspec.structs import replace

from holdfast.core import events as ev
from holdfast.core.definitions import DEFAULT_QUEUE
from holdfast.core.registry import is_own
from holdfast.ports import Query, QueueRow, RunQuery, RunRow, ScheduleRow, Status, WorkerKind, WorkerRow
from holdfast.views.summaries import run_summary, worker_summary
from holdfast.views.times import SECOND, length
from holdfast.views.why import why

OVERDUE = 10 * SECOND
UNCLAIMED = 300 * SECOND
"""For how long a step may wait for those who serve its queue before that is told."""
IDLE = "they execute none of it: see their logs, and on Celery those of the broker"
SHOWN = 10
LOOKED_AT = 1_000


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that was looked at. `remedy` says what to do, and `command` is what to type for it, if anything."""

    check: str
    level: Literal["ok", "note", "bad"]
    text: str
    remedy: str = ""
    command: tuple[str, ...] = ()
    items: Sequence[str] = ()
    facts: Sequence[dict[str, Any]] = ()


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """What is looked at. `build` and `defines` are those of the code at hand; both are empty without it."""

    now: int
    workers: Sequence[WorkerRow] = ()
    stuck: Sequence[RunRow] = ()
    unfinished: Sequence[RunRow] = ()
    schedules: Sequence[ScheduleRow] = ()
    bereft: Sequence[tuple[RunRow, str]] = ()
    queues: Sequence[QueueRow] = ()
    build: str = ""
    defines: Collection[str] = ()

    @property
    def alive(self) -> list[WorkerRow]:
        """Workers whose lease runs. One that was killed stays in the table until another worker looks."""
        return [worker for worker in self.workers if worker.lease_until >= self.now]

    @property
    def known(self) -> set[str]:
        """What the code of live workers defines."""
        return {name for worker in self.alive for name in worker.names}


def read_snapshot(store: Query, build: str, defines: Collection[str]) -> Snapshot:
    return replace(glance_at(store), build=build, defines=defines, bereft=_bereft(store))


def glance_at(store: Query) -> Snapshot:
    """What costs little to look at, for whoever does so again and again."""
    waiting = [Status.PENDING, Status.RETRY, Status.WAITING]
    return Snapshot(
        now=store.now(), workers=store.workers(), schedules=store.schedules(), queues=store.queues(),
        stuck=store.runs(RunQuery(statuses=[Status.STUCK], limit=LOOKED_AT)),
        unfinished=store.runs(RunQuery(statuses=waiting, limit=LOOKED_AT)),
    )  # fmt: skip


def _bereft(store: Query) -> list[tuple[RunRow, str]]:
    """Runs that wait for a child, with the child's id, where that is no longer there. A parent is told when a child is
    deleted; that of an older version was not."""
    waiting = store.runs(RunQuery(statuses=[Status.WAITING], limit=LOOKED_AT))
    waiting = [row for row in waiting if "child " in row.reason and row.owner is None]
    return [(row, child) for row in waiting for child in _awaited(store, row) if store.get(child) is None]


def _awaited(store: Query, row: RunRow) -> list[str]:
    """The children that a run waits for, by what its history tells of this attempt."""
    kinds = [kind.__name__ for kind in (*_ASKED, *_ANSWERED, *_BEGUN)]
    waiting: dict[str, str] = {}
    for payload in store.payloads(row.id, row.base_seq - 1, kinds):
        event = ev.from_json(payload)
        if isinstance(event, ev.ChildStarted) and event.child_id and (event.waited or event.cmd in waiting):
            waiting[event.cmd] = event.child_id
        elif isinstance(event, ev.ChildAwaited):
            waiting[msgspec.json.decode(event.args)] = event.child_id
        elif isinstance(event, _ANSWERED):
            waiting.pop(event.cmd, None)
        elif isinstance(event, _BEGUN):
            waiting.clear()
    return list(waiting.values())


_ASKED = (ev.ChildStarted, ev.ChildAwaited)
_ANSWERED = (ev.ChildCompleted, ev.ChildFailed, ev.ChildCancelled, ev.ChildDropped, ev.OutcomeReused)
_BEGUN = (ev.AttemptStarted, ev.ContinuedAsNew)


def findings_of(seen: Snapshot) -> Iterator[Finding]:
    yield from _workers(seen)
    yield from _queues(seen)
    yield from _stuck(seen)
    yield from _unknown(seen)
    yield from _overdue(seen)
    yield from _schedules(seen)
    yield from _children(seen)


def _workers(seen: Snapshot) -> Iterator[Finding]:
    now, alive = seen.now, seen.alive
    items = [
        f"{w.id} on {w.host}, pid {w.pid}, up {length(now - w.started_at)}, lease {length(max(0, w.lease_until - now))}, "
        f"build {w.build}, {_does(w)}"
        for w in sorted(alive, key=lambda w: w.kind)
    ]
    engines = [worker for worker in alive if worker.kind == WorkerKind.ENGINE]
    executors = len(alive) - len(engines)
    facts = [worker_summary(worker, now) for worker in seen.workers]
    if not engines:
        text = "no worker is alive, so nothing goes on"
        if executors:
            text = f"no engine is alive, so no run goes on; alive: {_some(executors, 'executor')}"
        yield Finding(
            check="workers", level="bad", text=text, remedy="start one", command=("worker",), facts=facts
        )  # fmt: skip
    else:
        text = f"{len(alive)} alive"
        if executors:
            text = f"{_some(len(engines), 'engine')} and {_some(executors, 'executor')} alive"
        yield Finding(check="workers", level="ok", text=text, items=items, facts=facts)
    gone = [worker for worker in seen.workers if worker not in alive]
    if gone:
        ids = [f"{w.id} on {w.host}, pid {w.pid}, silent for {length(now - w.lease_until)}" for w in gone]
        remedy = "" if alive else "a new worker takes over what they left"
        text = f"{len(gone)} gone without a word"
        yield Finding(check="workers", level="note", text=text, remedy=remedy, items=ids)
    builds = {worker.build for worker in alive}
    if len(builds) > 1:
        yield Finding(
            check="builds", level="note", text=f"workers run {len(builds)} builds: {', '.join(sorted(builds))}",
            remedy="fine during a deploy; else restart the old ones",
        )  # fmt: skip
    if seen.build and alive and seen.build not in builds:
        text = f"the code here is build {seen.build}, which no worker runs"
        yield Finding(check="builds", level="note", text=text, remedy="restart the workers")


def _does(worker: WorkerRow) -> str:
    queues = ", ".join(queue or DEFAULT_QUEUE for queue in worker.queues)
    if worker.kind == WorkerKind.EXECUTOR:
        return f"executes steps of: {_cut(queues, 60)}"
    return f"knows {_cut(', '.join(name for name in worker.names if not is_own(name)), 60)}"


def _some(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"


def _queues(seen: Snapshot) -> Iterator[Finding]:
    """Queues whose steps nobody executes: nothing else would say so, as their runs only wait."""
    served = Counter(
        queue for worker in seen.alive if worker.kind == WorkerKind.EXECUTOR for queue in set(worker.queues)
    )
    for row in seen.queues:
        if not row.waiting or row.since is None:
            continue
        name, oldest = row.queue or DEFAULT_QUEUE, length(max(0, seen.now - row.since))
        wait = "1 step waits" if row.waiting == 1 else f"{row.waiting} steps wait"
        if not served[row.queue]:
            yield Finding(
                check="queues", level="bad", text=f"no worker serves queue {name!r}: {wait}, the first for {oldest}",
                remedy="start one", command=("worker", "--executor-only", "--queues", name),
            )  # fmt: skip
        elif seen.now - row.since > UNCLAIMED:
            yield Finding(
                check="queues", level="note",
                text=f"{wait} in queue {name!r}, the first for {oldest}; serving it: {_some(served[row.queue], 'worker')}",
                remedy=f"they execute {row.claimed}: start more of them, or wait" if row.claimed else IDLE,
            )  # fmt: skip


def _stuck(seen: Snapshot) -> Iterator[Finding]:
    if not seen.stuck:
        yield Finding(check="stuck", level="ok", text="no run is stuck")
    groups: dict[str, list[RunRow]] = {}
    for row in seen.stuck:
        groups.setdefault(row.reason, []).append(row)
    for reason, rows in groups.items():
        many = f"{len(rows)} runs are" if len(rows) > 1 else f"run {rows[0].id} is"
        yield Finding(
            check="stuck", level="bad", text=f"{many} stuck: {reason}", remedy="once that is corrected",
            command=("runs", "resume", rows[0].id), items=_ids(rows) if len(rows) > 1 else [], facts=_facts(rows, seen),
        )  # fmt: skip


def _unknown(seen: Snapshot) -> Iterator[Finding]:
    """Runs whose workflow no live worker defines. Workers set them aside, but only where there is a worker."""
    known = seen.known
    if not known:
        if seen.unfinished:
            count = f"{LOOKED_AT} or more" if len(seen.unfinished) == LOOKED_AT else str(len(seen.unfinished))
            text = f"{count} unfinished, and nobody to go on with them"
            yield Finding(check="runs", level="bad", text=text, facts=_facts(seen.unfinished, seen))
        return
    names: dict[str, list[RunRow]] = {}
    for row in seen.unfinished:
        if row.workflow not in known and row.owner is None:
            names.setdefault(row.workflow, []).append(row)
    for name, rows in names.items():
        here = "the code here defines it: restart the workers"
        need = "1 run needs" if len(rows) == 1 else f"{len(rows)} runs need"
        yield Finding(
            check="unknown", level="bad", text=f"no live worker knows {name!r}, which {need}", items=_ids(rows),
            remedy=here if name in seen.defines else "start a worker whose code defines it", facts=_facts(rows, seen),
        )  # fmt: skip
    if not names:
        yield Finding(check="unknown", level="ok", text="every unfinished run has a worker that knows its code")


def _overdue(seen: Snapshot) -> Iterator[Finding]:
    late, known = seen.now - OVERDUE, seen.known
    rows = [
        row
        for row in seen.unfinished
        if row.owner is None and row.workflow in known and row.wake_at is not None and row.wake_at < late
    ]
    if rows:
        oldest = length(seen.now - min(row.wake_at or seen.now for row in rows))
        yield Finding(
            check="overdue", level="bad", text=f"{len(rows)} due and not claimed, the oldest for {oldest}",
            remedy="the workers are too busy or hang: add workers, or look at their logs", facts=_facts(rows, seen),
            items=[f"{row.id} ({row.workflow}) {why(row, seen.now).text}" for row in rows[:SHOWN]],
        )  # fmt: skip


def _schedules(seen: Snapshot) -> Iterator[Finding]:
    """Schedules that no live worker can serve: nothing else would say so."""
    known = seen.known
    for row in seen.schedules if known else ():
        if row.workflow not in known and row.next_at is not None and row.next_at < seen.now - OVERDUE:
            late = length(seen.now - row.next_at)
            yield Finding(
                check="schedules", level="bad",
                text=f"schedule {row.name!r} is due for {late}, and no live worker knows {row.workflow!r}",
                remedy="start a worker whose code defines it, or", command=("schedules", "pause", row.name),
            )  # fmt: skip


def _children(seen: Snapshot) -> Iterator[Finding]:
    if seen.bereft:
        rows = list({row.id: row for row, _ in seen.bereft}.values())
        many = f"{len(rows)} runs wait" if len(rows) > 1 else f"run {rows[0].id} waits"
        yield Finding(
            check="children", level="bad",
            text=f"{many} for children that were deleted, and nobody can know how these ended",
            remedy="cancel it, or fork it before the child", command=("runs", "cancel", rows[0].id),
            items=[f"{row.id} waits for {child}" for row, child in seen.bereft[:SHOWN]], facts=_facts(rows, seen),
        )  # fmt: skip


def _facts(rows: Sequence[RunRow], seen: Snapshot) -> list[dict[str, Any]]:
    return [run_summary(row, seen.now) for row in rows]


def _ids(rows: Sequence[RunRow]) -> list[str]:
    return [row.id for row in rows[:SHOWN]] + ([f"and {len(rows) - SHOWN} more"] if len(rows) > SHOWN else [])


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 1] + "…"
