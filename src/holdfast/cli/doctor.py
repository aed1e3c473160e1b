"""`holdfast doctor`: what keeps runs from going on, and what to do about it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

import click

from holdfast.cli.facts import doing, run_facts, worker_facts
from holdfast.cli.failures import RUN_FAILED, command
from holdfast.cli.output import SECOND, Line, Span, cut, json_option, length, print_json, print_lines
from holdfast.cli.place import Place, open_place
from holdfast.core.registry import is_own
from holdfast.ports import RunQuery, RunRow, Status
from holdfast.stores.shared import migrations

OVERDUE = 10 * SECOND
SHOWN = 10
LOOKED_AT = 1_000
MARKS = {"ok": Span("ok  ", "green"), "note": Span("note", "yellow"), "bad": Span("BAD ", "bold red")}


@dataclass
class Finding:
    """One thing that was looked at. `level` is ok, note or bad; `remedy` says what to do."""

    check: str
    level: str
    text: str
    remedy: str = ""
    items: list[str] = field(default_factory=list)
    facts: list[dict[str, Any]] = field(default_factory=list)


@click.command()
@json_option
@click.pass_context
def doctor(context: click.Context, as_json: bool) -> None:
    """Look at the store, the workers and the runs, and say what is wrong. Exit code 1 if something is, 5 if the store
    can't be reached."""
    place = open_place(context)
    findings = list(_examine(place))
    if as_json:
        print_json([asdict(finding) for finding in findings])
    else:
        print_lines(line for finding in findings for line in _lines(finding))
    if any(finding.level == "bad" for finding in findings):
        context.exit(RUN_FAILED)


def _lines(finding: Finding) -> Iterator[Line]:
    yield [MARKS[finding.level], Span(f"  {finding.check:<9}", "dim"), Span(finding.text)]
    for item in finding.items:
        yield [Span(" " * 17), Span(item, "dim")]
    if finding.remedy:
        yield [Span(" " * 15 + "→ "), Span(finding.remedy)]


def _examine(place: Place) -> Iterator[Finding]:
    yield from _store(place)
    yield from _workers(place)
    yield from _stuck(place)
    yield from _unknown(place)
    yield from _overdue(place)
    yield from _schedules(place)


def _store(place: Place) -> Iterator[Finding]:
    begun = time.monotonic()
    store = place.store  # opening it checks the schema
    now = store.now()
    took = length(round((time.monotonic() - begun) * SECOND))
    yield Finding("store", "ok", f"{store.url} answers in {took}; app {place.app.name!r}, schema {migrations()[-1][0]}")
    if strain := store.strain():
        what, _, remedy = strain.partition("; ")
        yield Finding("store", "bad", what, remedy)
    offset = now - time.time_ns() // 1_000
    if abs(offset) > SECOND:
        way = "ahead of" if offset > 0 else "behind"
        text = f"the store's clock is {length(abs(offset))} {way} this machine's"
        yield Finding("clock", "note", text, "synchronise them (NTP)")


def _workers(place: Place) -> Iterator[Finding]:
    now = place.store.now()
    workers = place.store.workers()
    alive = [worker for worker in workers if worker.lease_until >= now]
    items = [
        f"{w.id} on {w.host}, pid {w.pid}, up {length(now - w.started_at)}, lease {length(max(0, w.lease_until - now))}, "
        f"build {w.build}, knows {cut(', '.join(name for name in w.names if not is_own(name)), 60)}"
        for w in alive
    ]
    facts = [worker_facts(worker, now) for worker in workers]
    if not alive:
        remedy = f"start one: {place.start_a_worker()}"
        yield Finding("workers", "bad", "no worker is alive, so nothing goes on", remedy, facts=facts)
    else:
        yield Finding("workers", "ok", f"{len(alive)} alive", "", items, facts)
    gone = [worker for worker in workers if worker not in alive]
    if gone:
        ids = [f"{w.id} on {w.host}, pid {w.pid}, silent for {length(now - w.lease_until)}" for w in gone]
        remedy = "" if alive else "a new worker takes over what they left"
        yield Finding("workers", "note", f"{len(gone)} gone without a word", remedy, ids)
    builds = {worker.build for worker in alive}
    if len(builds) > 1:
        yield Finding(
            "builds", "note", f"workers run {len(builds)} builds: {', '.join(sorted(builds))}",
            "fine during a deploy; else restart the old ones",
        )  # fmt: skip
    if place.has_code and alive and place.app.build not in builds:
        yield Finding(
            "builds", "note", f"the code here is build {place.app.build}, which no worker runs", "restart the workers"
        )


def _stuck(place: Place) -> Iterator[Finding]:
    rows = place.store.runs(RunQuery(statuses=[Status.STUCK], limit=LOOKED_AT))
    if not rows:
        yield Finding("stuck", "ok", "no run is stuck")
        return
    groups: dict[str, list[RunRow]] = {}
    for row in rows:
        groups.setdefault(row.reason, []).append(row)
    now = place.store.now()
    for reason, members in groups.items():
        many = f"{len(members)} runs are" if len(members) > 1 else f"run {members[0].id} is"
        yield Finding(
            "stuck", "bad", f"{many} stuck: {reason}",
            f"once that is mended: {command('runs', 'resume', members[0].id)}",
            _ids(members) if len(members) > 1 else [], [run_facts(row, now) for row in members],
        )  # fmt: skip


def _unknown(place: Place) -> Iterator[Finding]:
    """Runs whose workflow no live worker defines. Workers set them aside, but only where there is a worker."""
    now, known = place.store.now(), {name for worker in place.live_workers() for name in worker.names}
    waiting = place.store.runs(RunQuery(statuses=[Status.PENDING, Status.RETRY, Status.WAITING], limit=LOOKED_AT))
    names: dict[str, list[RunRow]] = {}
    for row in waiting:
        if row.workflow not in known and row.owner is None:
            names.setdefault(row.workflow, []).append(row)
    if not known:
        if waiting:
            count = f"{LOOKED_AT} or more" if len(waiting) == LOOKED_AT else str(len(waiting))
            facts = [run_facts(row, now) for row in waiting]
            yield Finding("runs", "bad", f"{count} unfinished, and nobody to go on with them", facts=facts)
        return
    for name, rows in names.items():
        here = place.has_code and name in place.app.known_names()
        remedy = "the code here defines it: restart the workers" if here else "start a worker whose code defines it"
        need = "1 run needs" if len(rows) == 1 else f"{len(rows)} runs need"
        yield Finding(
            "unknown", "bad", f"no live worker knows {name!r}, which {need}",
            remedy, _ids(rows), [run_facts(row, now) for row in rows],
        )  # fmt: skip
    if not names:
        yield Finding("unknown", "ok", "every unfinished run has a worker that knows its code")


def _overdue(place: Place) -> Iterator[Finding]:
    now, alive = place.store.now(), place.live_workers()
    known = {name for worker in alive for name in worker.names}
    rows = [
        row
        for row in place.store.runs(RunQuery(statuses=[Status.PENDING, Status.RETRY, Status.WAITING], limit=LOOKED_AT))
        if row.owner is None and row.workflow in known and row.wake_at is not None and row.wake_at < now - OVERDUE
    ]
    if rows:
        oldest = length(now - min(row.wake_at or now for row in rows))
        yield Finding(
            "overdue", "bad", f"{len(rows)} due and not claimed, the oldest for {oldest}",
            "the workers are too busy or hang: add workers, or look at their logs",
            [f"{row.id} ({row.workflow}) {doing(row, now)}" for row in rows[:SHOWN]], [run_facts(row, now) for row in rows],
        )  # fmt: skip


def _schedules(place: Place) -> Iterator[Finding]:
    """Schedules that no live worker can serve: nothing else would say so."""
    now, known = place.store.now(), {name for worker in place.live_workers() for name in worker.names}
    for row in place.store.schedules() if known else ():
        if row.workflow not in known and row.next_at is not None and row.next_at < now - OVERDUE:
            yield Finding(
                "schedules", "bad", f"schedule {row.name!r} is due for {length(now - row.next_at)}, and no live worker knows "
                f"{row.workflow!r}",
                f"start a worker whose code defines it, or: {command('schedules', 'pause', row.name)}",
            )  # fmt: skip


def _ids(rows: list[RunRow]) -> list[str]:
    return [row.id for row in rows[:SHOWN]] + ([f"and {len(rows) - SHOWN} more"] if len(rows) > SHOWN else [])
