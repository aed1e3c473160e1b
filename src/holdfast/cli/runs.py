"""`holdfast runs list | show | history | tree | export`: looking at runs."""

from __future__ import annotations

import datetime as dt
import json
from collections import Counter
from typing import Any

import click

from holdfast.api.checks import to_epoch
from holdfast.cli.arguments import STATUS, StoredNumber, data_terms, moment_of, statuses_of
from holdfast.cli.failed import runs_failed_like
from holdfast.cli.failures import command
from holdfast.cli.logs import log_lines
from holdfast.cli.output import (
    Line,
    Styled,
    cells,
    cut,
    json_option,
    note,
    on_terminal,
    padded,
    print_json,
    print_lines,
    print_table,
    short_ids,
    status_span,
)
from holdfast.cli.target import Target, one_run, open_target, run_ids
from holdfast.cli.tree import print_tree
from holdfast.codec.exceptions import own_frames
from holdfast.codec.shapes import field_names
from holdfast.ports import FINAL, RunRow, Status
from holdfast.views.details import read_details, read_outcome
from holdfast.views.filters import parse_filter
from holdfast.views.reading import RunTree
from holdfast.views.summaries import event_summary, run_summary
from holdfast.views.times import ago, clock, iso, length
from holdfast.views.values import PlainReader, as_text, call_text
from holdfast.views.why import doing


@click.command("list")
@click.argument("terms", nargs=-1, metavar="[FILTER]...")
@click.option(
    "--status", "statuses", multiple=True, type=STATUS,
    help="Only runs of this status; may be given several times.",
)  # fmt: skip
@click.option("--workflow", help="Only runs of this workflow or step.")
@click.option("--parent", shell_complete=run_ids, help="Only children of this run.")
@click.option("--since", metavar="TIME", help="Only runs created since: 2h, 3d, 2026-01-31, 2026-01-31T12:00+01:00.")
@click.option(
    "--data", "data", multiple=True, metavar="KEY=VALUE",
    help="Only runs whose data holds this. Also KEY>=VALUE (>, <, <=), and KEY=BEGINNING* of a text.",
)  # fmt: skip
@click.option("--schedule", metavar="NAME", help="Only runs that this schedule started.")
@click.option("--failure", metavar="GROUP", help="Only runs that have failed like this; see `runs failures`.")
@click.option("--limit", default=20, show_default=True, type=click.IntRange(1, 100_000), help="How many at most.")
@click.option("--after", type=StoredNumber(), metavar="NO", help="Go on after this one, as the page before says.")
@json_option
@click.pass_context
def list_runs(
    context: click.Context,
    terms: tuple[str, ...],
    statuses: tuple[str, ...],
    workflow: str | None,
    parent: str | None,
    since: str | None,
    data: tuple[str, ...],
    schedule: str | None,
    failure: str | None,
    limit: int,
    after: int | None,
    as_json: bool,
) -> None:
    """List runs, newest first. FILTER is what the monitor's filter is: status:failed workflow:order* data.customer=42
    'started:<1h'; options say the same, and narrow it down."""
    target = open_target(context)
    store = target.store
    query = parse_filter(" ".join(terms), store.now(), target.app.codec.encode)
    equal, spans = data_terms(target.app.codec, data)
    query.statuses = [*query.statuses, *statuses_of(statuses)]
    query.data, query.spans = query.data | equal, (*query.spans, *spans)
    query.workflow, query.schedule = workflow or query.workflow, schedule or query.schedule
    query.after, query.limit = after, limit + 1
    if parent is not None:
        query.parent = target.find(parent).id
    if since is not None:
        query.since = to_epoch(moment_of("--since", since, store.now()))
    rows = store.runs(query) if failure is None else runs_failed_like(target, query, failure)
    more, rows = len(rows) > limit, rows[:limit]
    now = store.now()
    if as_json:
        print_json([{**run_summary(row, now), **_error_of(target, row)} for row in rows])
    else:
        _print_runs(target, rows, now)
    if not rows:
        narrowed = any((terms, statuses, workflow, parent, since, data, schedule, failure, after))
        note("no run matches" if narrowed else "no runs yet")
    elif more:
        note(f"more: add --after {rows[-1].no}")


def _error_of(target: Target, row: RunRow) -> dict[str, Any]:
    """What a run that has failed has failed with; nothing of others."""
    return read_outcome(target.store, row, PlainReader(target.app.codec)) if row.status == Status.FAILURE else {}


def _ended(target: Target, row: RunRow) -> Styled:
    """Why a run has not succeeded."""
    error = _error_of(target, row).get("error")
    if error:
        return Styled(f"{error['type']}: {error['message']}", "red")
    return Styled(row.reason if row.status == Status.CANCELLED else "", "dim")


def _print_runs(target: Target, rows: list[RunRow], now: int) -> None:
    terminal = on_terminal()
    short = short_ids([row.id for row in rows]) if terminal else {}
    lines: list[list[Styled | str]] = []
    for row in rows:
        began = "" if row.started_at is None else length((row.finished_at or now) - row.started_at)
        doing_now: Styled | str = doing(row, now) + (f" (attempt {row.attempt})" if row.attempt > 1 else "")
        if row.status in FINAL:
            doing_now = _ended(target, row)
        lines.append(
            [
                short.get(row.id, row.id),
                row.workflow,
                status_span(row.status),
                Styled(ago(row.created_at, now) if terminal else str(iso(row.created_at)), "dim"),
                Styled(began, "dim"),
                doing_now,
            ]
        )
    print_table(["RUN", "WORKFLOW", "STATUS", "CREATED", "TOOK", "DOING"], lines, left_out_first=("CREATED", "TOOK"))


# -- one run


@click.command()
@one_run
@json_option
@click.pass_context
def show(context: click.Context, run: str, as_json: bool) -> None:
    """All about one run: why it waits, input, result, data, steps and the last of what they have logged."""
    target = open_target(context)
    row = target.find(run)
    facts = details_of(target, row)
    if as_json:
        print_json(facts)
    else:
        print_lines(_show_lines(target, row, facts))


def details_of(target: Target, row: RunRow) -> dict[str, Any]:
    return read_details(target.store, row, PlainReader(target.app.codec), target.app.definitions.max_attempts())


def _show_lines(target: Target, row: RunRow, facts: dict[str, Any]) -> list[Line]:
    now = target.store.now()
    lines: list[Line] = [[Styled(f"{row.workflow} ", "bold"), Styled(row.id)]]

    def add(name: str, text: str, style: str = "") -> None:
        first, *rest = text.splitlines() or [""]
        lines.append([Styled(f"  {name:<9}", "dim"), Styled(first, style)])
        lines.extend([Styled(" " * 11), Styled(more, style)] for more in rest)

    status = status_span(row.status)
    ended = row.status in FINAL
    waits = facts["why"]["text"] if not ended or (row.status == Status.CANCELLED and row.reason) else ""
    add("status", f"{status.text}" + (f"  {waits}" if waits else ""), status.style)
    add("created", _when(row.created_at, now))
    if row.started_at is not None:
        took = length((row.finished_at or now) - row.started_at)
        add("took" if row.finished_at else "for", took + (f", attempt {row.attempt}" if row.attempt > 1 else ""))
    for name, key in (("parent", "parent_id"), ("fork of", "forked_from"), ("worker", "worker"), ("build", "build")):
        if facts[key]:
            add(name, str(facts[key]))
    given = facts.get("canvas") or call_text(facts["input"])
    add("canvas" if "canvas" in facts else "input", given if len(given) <= INPUT_SHOWN else cut(given, INPUT_SHOWN))
    if "result" in facts:
        add("result", _text_of(facts["result"]))
    if facts.get("error"):
        error = facts["error"]
        add("error", own_frames(error.get("traceback", "")) or f"{error['type']}: {error['message']}", "red")
    for key, value in facts["data"].items():
        add("data", f"{key} = {_text_of(value)}")
    for sent in facts["unclaimed"]:
        key = f" key {sent['key']!r}" if sent["key"] else ""
        add("kept", f"hook {sent['name']!r}{key}, sent but not asked for so far: {_text_of(sent['payload'])}", "yellow")
    lines += _step_lines(facts["steps"])
    lines += _next_lines(target, row, facts)
    return lines


def _when(us: int, now: int) -> str:
    return f"{clock(us, now)} ({ago(us, now)})" if on_terminal() else str(iso(us))


def _text_of(value: Any) -> str:
    """On one line if it fits."""
    text = as_text(value)
    fits = len(text) < 100 or not isinstance(value, dict | list)
    return text if fits else json.dumps(value, ensure_ascii=False, indent=2)


STEPS_SHOWN = 40
LOGS_SHOWN = 5
INPUT_SHOWN = 1_000  # characters
LINES_OF_TREE = 100


def _step_lines(steps: list[dict[str, Any]]) -> list[Line]:
    """All if they aren't many, else the last, and rather those that did not succeed."""
    lines: list[Line] = [[Styled(f"  steps ({len(steps)})", "dim")]] if steps else []
    shown = steps
    if len(steps) > STEPS_SHOWN:
        counts = Counter(_state_of(step) for step in steps).most_common()
        lines[0].append(Styled(": " + ", ".join(f"{count} {state}" for state, count in counts), "dim"))
        chosen = sorted(range(len(steps)), key=lambda i: (steps[i]["state"] == "SUCCESS", -i))[:STEPS_SHOWN]
        shown = [steps[i] for i in sorted(chosen)]
        left_out = f"    {len(steps) - STEPS_SHOWN} are not shown here; `runs history` and `runs tree --all` show all"
        lines.append([Styled(left_out, "dim")])
    names = {step["cmd"]: step["key"] or step["name"] for step in steps}
    width = max((cells(names[step["cmd"]]) for step in shown), default=0)
    for step in shown:
        state = status_span(_state_of(step))
        line = [
            Styled("    "),
            Styled(f"{state.text:<11}", state.style),
            Styled(f" {padded(names[step['cmd']], width)} "),
        ]
        line.append(Styled(cut(call_text(step["call"]), 60), "dim"))
        if step["state"] == "SUCCESS" and step["result"] is not None:
            line += [Styled(" → ", "dim"), Styled(cut(as_text(step["result"]), 60))]
        if step["attempts"] > 1:
            line.append(Styled(f"  attempt {step['attempts']}", "yellow"))
        if step["reused"]:
            line.append(Styled("  from an earlier attempt", "dim"))
        if step["undoes"]:
            line.append(Styled(f"  undoes {names.get(step['undoes'], step['undoes'])}", "magenta"))
        if step["reason"] or step["child_reason"]:
            line.append(Styled(f"  {step['reason'] or step['child_reason']}", "dim"))
        if step["child_run_id"]:
            line.append(Styled(f"  run {step['child_run_id']}", "dim"))
        if step["error"]:
            line.append(Styled(f"  {step['error']['type']}: {cut(step['error']['message'], 80)}", "red"))
        lines.append(line)
        for kept in step["logs"]:
            if len(step["logs"]) > 1:
                lines.append([Styled(f"      attempt {kept['attempt']}", "dim")])
            lines += log_lines(kept, "      ", LOGS_SHOWN)
    return lines


def _state_of(step: dict[str, Any]) -> str:
    """Of a child that goes on it is what that run does."""
    return str(step["child_status"] if step["child_status"] and step["ended_at"] is None else step["state"])


def _next_lines(target: Target, row: RunRow, facts: dict[str, Any]) -> list[Line]:
    """What can be done about it now, for those who look at a terminal."""
    models = target.app.definitions.hook_models
    commands = [
        command(
            "runs",
            "send",
            row.id,
            hook["name"],
            _payload_form(models.find(hook["name"])),
            *(["--key", hook["key"]] if hook["key"] else []),
        )
        for hook in facts["hooks"]
    ]
    if row.status in (Status.FAILURE, Status.CANCELLED):
        commands.append(command("runs", "retry", row.id))
    if "cancel_requested_at" in facts["why"]["details"]:
        commands.append(command("runs", "terminate", row.id, "--reason", "WHY"))
    if row.status in (Status.PAUSED, Status.STUCK):
        commands.append(command("runs", "resume", row.id))
    if not commands or not on_terminal():
        return []
    return [[Styled("  next", "dim")], *([Styled("    "), Styled(text)] for text in commands)]


def _payload_form(model: Any) -> str:
    """What has to be put in the place of a payload, as far as its type says it."""
    fields = ", ".join(f'"{name}": ...' for name in field_names(model))
    return f"{{{fields}}}" if fields else "PAYLOAD"


@click.command()
@one_run
@json_option
@click.pass_context
def history(context: click.Context, run: str, as_json: bool) -> None:
    """The events of a run, numbered. The numbers are what `runs fork --at` takes. CLOCK is the logical clock: what led to
    something else has the lower one, whichever process it happened in."""
    target = open_target(context)
    row = target.find(run)
    reader = PlainReader(target.app.codec)
    payloads, clocks = target.store.payloads(row.id), target.store.clocks(row.id)
    events = [event_summary(payload, reader, clocks) for payload in payloads]
    if as_json:
        print_json(events)
        return
    terminal = on_terminal()
    rows: list[list[Styled | str]] = []
    for event in events:
        at = event["at"] or ""
        if terminal and at:
            at = dt.datetime.fromisoformat(at).astimezone().strftime("%H:%M:%S.%f")[:-3]
        attempt = f" (attempt {event['attempt']})" if event.get("attempt", 1) > 1 else ""
        rows.append(
            [
                str(event["seq"]),
                Styled(at, "dim"),
                Styled(event["kind"], _style_of(event["kind"])),
                f"{event.get('name', '')}{attempt}",
                Styled(str(event["clock"] or ""), "dim"),
                Styled(event_text(event), "dim"),
            ]
        )
    print_table(["SEQ", "AT", "EVENT", "NAME", "CLOCK", "DETAIL"], rows, left_out_first=("CLOCK", "AT"))


def _style_of(kind: str) -> str:
    for ending, style in (
        ("Completed", "green"), ("Failed", "red"), ("Stuck", "red"), ("Retrying", "yellow"), ("Lost", "yellow"),
        ("Cancelled", "magenta"),
    ):  # fmt: skip
        if kind.endswith(ending):
            return style
    return ""


_UNSAID = ("flags", "seed", "worker", "thread", "started", "workflow", "sleep")
_VALUES = ("args", "input", "payload", "result")
"""What users gave: 0, False and "" are told of these."""


def event_text(event: dict[str, Any]) -> str:
    """What is particular to an event, on one line, the outcome first."""
    detail = event["detail"]
    if event["kind"] == "RunStuck" and detail.get("error"):  # its message is the reason
        detail = {"error": detail["error"]}
    parts = {name: _detail_text(event["kind"], name, value) for name, value in detail.items()}
    return "  ".join(text for _, text in sorted(parts.items(), key=lambda part: part[0] in ("args", "input")) if text)


def _detail_text(kind: str, name: str, value: Any) -> str:
    if name in _UNSAID or (name not in _VALUES and (value == "" or value is False)):
        return ""
    if value is None and kind != "DataSet":
        return ""
    if name in ("args", "input"):
        return f"= {as_text(value)}" if kind == "DataSet" else call_text(value)
    if name == "error" and isinstance(value, dict):
        return f"{value['type']}: {value['message']}"
    if name in ("retry_at", "due", "expires", "scheduled_at"):
        return f"{name.replace('_', ' ')} {value}"
    if name == "delay" and isinstance(value, int):
        return f"after {length(value)}"
    if name == "result":
        return f"→ {as_text(value)}"
    return f"{name}={as_text(value)}"


@click.command()
@one_run
@click.option("--all", "show_all", is_flag=True, help="A line for each step, however many are done.")
@json_option
@click.pass_context
def tree(context: click.Context, run: str, show_all: bool, as_json: bool) -> None:
    """A run's steps, its child runs, and its forks. Many neighbours that are done share a line."""
    target = open_target(context)
    root = RunTree(target.store, PlainReader(target.app.codec), target.find(run).id, followed=1_000).read()
    if as_json:
        print_json(root.summary())
        return
    print_tree(target, root, height=None if show_all else LINES_OF_TREE)


@click.command()
@one_run
@click.pass_context
def export(context: click.Context, run: str) -> None:
    """A run's whole history as JSON lines: one event each, as it is stored."""
    target = open_target(context)
    for payload in target.store.payloads(target.find(run).id):
        click.echo(payload)
