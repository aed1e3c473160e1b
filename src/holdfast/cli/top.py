"""`holdfast top`: workers, what waits, rates and the last that happened, on one screen."""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from typing import Any

import click
from rich.console import Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from holdfast.cli.failures import INTERRUPTED
from holdfast.cli.output import (
    LOOKS,
    clean,
    console,
    json_option,
    on_terminal,
    print_json,
    speaks_unicode,
    styled,
)
from holdfast.cli.stream import line_of
from holdfast.cli.target import Target, open_target
from holdfast.core.definitions import DEFAULT_QUEUE
from holdfast.errors import StoreError
from holdfast.ports import RunQuery
from holdfast.telemetry.cluster import ClusterState
from holdfast.telemetry.receiver import EventReceiver
from holdfast.views.summaries import worker_summary

WINDOW = 10.0
"""Seconds over which rates are measured."""
COUNTED = 10_000
KEPT = 200
RUN_ENDS = ("run-succeeded", "run-failed", "run-cancelled")
STEP_ENDS = ("step-succeeded", "step-failed", "step-cancelled")
SHOWN_WORKFLOWS = 8


class Listening:
    """What workers tell while this looks: rates, and the state of what they do. On a thread of its own."""

    def __init__(self, target: Target) -> None:
        self.state = ClusterState(max_steps=2_000, max_runs=2_000)
        self.last: deque[dict[str, Any]] = deque(maxlen=KEPT)
        self.since = time.monotonic()
        self.trouble = ""
        self._ends: deque[tuple[float, str, str]] = deque()
        self._lock = threading.Lock()
        self._receiver = EventReceiver(target.app.telemetry, target.app.logical_clock)
        self._thread = threading.Thread(target=self._listen, name="holdfast-top", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._receiver.stop()
        self._thread.join(2)

    def _listen(self) -> None:
        while True:
            try:
                self._receiver.capture({"*": self._hear})
                return
            except StoreError as error:
                self.trouble = str(error)
                time.sleep(1)

    def _hear(self, event: dict[str, Any]) -> None:
        self.trouble = ""
        self.state.apply(event)
        kind = event["type"]
        with self._lock:
            if not kind.startswith("worker-") and kind != "step-progress":
                self.last.append(event)
            if kind in RUN_ENDS or kind in STEP_ENDS:
                workflow = event.get("name") if kind in RUN_ENDS else event.get("workflow")
                self._ends.append((time.monotonic(), kind, str(workflow)))

    def rates(self) -> dict[str, float]:
        """How many a second, by type."""
        now = time.monotonic()
        with self._lock:
            while self._ends and self._ends[0][0] < now - WINDOW:
                self._ends.popleft()
            counts = Counter(kind for _, kind, _ in self._ends)
        over = min(WINDOW, max(1.0, now - self.since))
        return {kind: round(counts[kind] / over, 2) for kind in (*RUN_ENDS, *STEP_ENDS)}

    def workflows(self) -> list[dict[str, Any]]:
        """The workflows whose runs were heard of, the busiest first: runs by state, and how many end a second."""
        with self._lock:
            ended = Counter(name for _, kind, name in self._ends if kind in RUN_ENDS)
        over = min(WINDOW, max(1.0, time.monotonic() - self.since))
        states: dict[str, Counter[str]] = {}
        for run in self.state.newest_runs():
            states.setdefault(run.name or "", Counter())[run.state] += 1
        found = [
            {"name": name, "states": dict(counts), "ended_per_second": round(ended[name] / over, 2)}
            for name, counts in states.items()
        ]
        return sorted(found, key=lambda each: (-each["ended_per_second"], each["name"]))

    def newest(self, count: int) -> list[dict[str, Any]]:
        with self._lock:
            return list(self.last)[-count:]


def snapshot(target: Target, listening: Listening) -> dict[str, Any]:
    """All that is shown, as data."""
    store = target.store
    now = store.now()
    backlog = store.backlog(COUNTED)
    workers = []
    for worker in store.workers():
        told = listening.state.workers.get(worker.id)
        fields = told.fields if told is not None else {}
        workers.append(
            {
                **worker_summary(worker, now),
                "runs": fields.get("live"),
                "steps": fields.get("steps"),
                "names": len(worker.names),
            }
        )
    return {
        "app": target.app.name,
        "store": store.url,
        "workers": workers,
        "runs": store.counts(RunQuery(), COUNTED),
        "backlog": {
            "due": backlog.due,
            "due_seconds": 0.0 if backlog.due_since is None else max(0, now - backlog.due_since) / 1_000_000,
            "parked": backlog.parked,
            "inbox": backlog.inbox,
        },
        "queues": [
            {
                "name": row.queue or DEFAULT_QUEUE,
                "waiting": row.waiting,
                "claimed": row.claimed,
                "seconds": 0.0 if row.since is None else max(0, now - row.since) / 1_000_000,
            }
            for row in store.queues()
        ],
        "rates": listening.rates(),
        "workflows": listening.workflows(),
        "steps": dict(listening.state.counts),
        "trouble": listening.trouble,
    }


@click.command()
@click.option(
    "--interval", default=1.0, show_default=True, type=click.FloatRange(0.1), help="Seconds between two looks."
)
@click.option("--once", is_flag=True, help="Look for one interval, print what was seen, and end.")
@json_option
@click.pass_context
def top(context: click.Context, interval: float, once: bool, as_json: bool) -> None:
    """Workers, queues, rates and the last events on one screen, live until Ctrl-C. In a pipe, or with --json, it is
    printed once."""
    target = open_target(context)
    target.note_if_nobody_works("start one")
    listening = Listening(target)
    listening.start()
    try:
        if once or as_json or not on_terminal():
            time.sleep(interval)
            found = snapshot(target, listening)
            if as_json:
                print_json(found)
            else:
                console().print(painted(found, listening.newest(10), 100), soft_wrap=True)
            return
        out = console()
        with Live(console=out, auto_refresh=False, screen=True) as live:
            while True:
                found = snapshot(target, listening)
                room = out.height - 12 - len(found["workers"]) - min(SHOWN_WORKFLOWS, len(found["workflows"]))
                live.update(painted(found, listening.newest(max(3, room)), out.width), refresh=True)
                time.sleep(interval)
    except KeyboardInterrupt:
        context.exit(INTERRUPTED)
    finally:
        listening.stop()


# -- painting


def painted(found: dict[str, Any], newest: list[dict[str, Any]], width: int) -> RenderableType:
    parts: list[RenderableType] = [
        _head(found, width),
        Text(""),
        _workers(found["workers"]),
        Text(""),
        *_figures(found),
        Text(""),
    ]
    if found["workflows"]:
        parts += [_workflows(found["workflows"]), Text("")]
    if found["trouble"]:
        parts.append(Text(f"the store does not answer: {clean(found['trouble'])}", "bold red"))
    for event in newest:
        line = styled(line_of(event))
        line.truncate(width, overflow="ellipsis")
        parts.append(line)
    if not newest:
        parts.append(Text("nothing has happened since this looks", "dim"))
    return Group(*parts)


def _head(found: dict[str, Any], width: int) -> Text:
    head = Text.assemble(
        (f"{clean(found['app'])}  ", "bold"), (f"{clean(found['store'])}  ", "dim"), time.strftime("%H:%M:%S")
    )
    head.truncate(width, overflow="ellipsis")
    return head


def _workers(workers: list[dict[str, Any]]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for name, side in (
        ("WORKER", "left"), ("HOST", "left"), ("PID", "right"), ("BUILD", "left"), ("RUNS", "right"), ("STEPS", "right"),
        ("CLOCK", "right"), ("LEASE", "right"),
    ):  # fmt: skip
        table.add_column(name, justify=side, no_wrap=True)  # type: ignore[arg-type]
    for worker in workers:
        style = "" if worker["alive"] else "red"
        cells = [
            worker["id"],
            worker["host"],
            worker["pid"],
            worker["build"],
            _count(worker["runs"]),
            _count(worker["steps"]),
        ]
        lease = f"{worker['lease_seconds']} s" if worker["alive"] else "gone"
        table.add_row(*(Text(clean(str(cell)), style) for cell in [*cells, worker["clock"], lease]))
    if not workers:
        table.add_row(Text("none is there", "yellow"))
    return table


def _workflows(workflows: list[dict[str, Any]]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("WORKFLOW", no_wrap=True)
    table.add_column("ENDED/S", justify="right")
    table.add_column("SINCE THIS LOOKS", no_wrap=True)
    for each in workflows[:SHOWN_WORKFLOWS]:
        states = Text("  ").join(_state(state, count) for state, count in sorted(each["states"].items()))
        table.add_row(Text(clean(each["name"])), f"{each['ended_per_second']:g}", states)
    return table


def _state(state: str, count: int | str) -> Text:
    look = LOOKS.get(state, LOOKS["GONE"])
    return Text.assemble((f"{look.icon if speaks_unicode() else look.ascii} {state} ", look.style), str(count))


def _count(number: Any) -> str:
    return "" if number is None else str(number)


def _figures(found: dict[str, Any]) -> list[Text]:
    runs = Text.assemble(("runs   ", "dim"))
    runs.append_text(
        Text("   ").join(
            _state(status, f"{COUNTED}+" if count >= COUNTED else count)
            for status, count in found["runs"].items()
            if count
        )
    )
    backlog, rates = found["backlog"], found["rates"]
    waits = Text.assemble(("queues ", "dim"))
    due = f"{backlog['due']} due" + (f" for {backlog['due_seconds']:.0f} s" if backlog["due"] else "")
    waits.append(due, "yellow" if backlog["due_seconds"] > 5 else "")
    waits.append(f", {backlog['parked']} parked, {backlog['inbox']} messages unread")
    for queue in found["queues"]:
        waits.append(f"; {clean(queue['name'])}: {queue['waiting']} waiting", "yellow" if queue["seconds"] > 5 else "")
        waits.append(f", {queue['claimed']} claimed")
    steps = Text.assemble(("rates  ", "dim"))
    steps.append(f"{rates['step-succeeded']:g} steps/s, {rates['run-succeeded']:g} runs/s")
    failed = rates["step-failed"] + rates["run-failed"]
    steps.append(f", {failed:g} failures/s", "red" if failed else "")
    return [runs, waits, steps]
