"""`holdfast schedules list | show | pause | resume | trigger | backfill | delete`. Times are the schedule's own."""

from __future__ import annotations

import datetime as dt
import itertools

import click
from click.shell_completion import CompletionItem

from holdfast.cli.actions import because
from holdfast.cli.arguments import moment_of
from holdfast.cli.failures import command
from holdfast.cli.output import (
    Line,
    Styled,
    confirm_for_good,
    json_option,
    note,
    on_terminal,
    print_json,
    print_lines,
    print_table,
    say,
    status_span,
)
from holdfast.cli.target import Target, open_target
from holdfast.engine.ticks import read_spec
from holdfast.engine.timetable import Spec, local, ticks_after, zone
from holdfast.ports import RunQuery, ScheduleRow
from holdfast.views.summaries import run_summary, schedule_summary, tick_iso
from holdfast.views.times import length
from holdfast.views.values import PlainReader, call_text

UPCOMING = 5
LAST_RUNS = 5


def _names(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    try:
        target = open_target(ctx)
        rows = target.store.schedules()
        target.app.close()  # click has left the context already
    except Exception:  # a shell that completes must never print an error
        return []
    return [CompletionItem(row.name, help=row.workflow) for row in rows if row.name.startswith(incomplete)]


one_schedule = click.argument("name", shell_complete=_names)


def _doing(row: ScheduleRow) -> Styled:
    if row.paused:
        return Styled("paused" + (f": {row.reason}" if row.reason else ""), "magenta")
    words = ["running"] * row.is_active + [f"{len(row.queued)} queued"] * bool(row.queued)
    return Styled(", ".join(words), "blue")


def _next(row: ScheduleRow, spec: Spec, now: int) -> str:
    """When it ticks next. For people with how long that is; without seconds where there are none."""
    if row.next_at is None:
        return ""
    if not on_terminal():
        return str(tick_iso(row.next_at, spec))
    moment = local(row.next_at, spec)
    text = moment.strftime("%a %Y-%m-%d %H:%M" + (":%S" if moment.second else ""))
    return f"{text} ({f'in {length(row.next_at - now)}' if row.next_at > now else 'due'})"


@click.command("list")
@json_option
@click.pass_context
def list_schedules(context: click.Context, as_json: bool) -> None:
    """List schedules by name, with their next tick in their own time zone."""
    target = open_target(context)
    rows, now = target.store.schedules(), target.store.now()
    if as_json:
        reader = PlainReader(target.app.codec)
        print_json([schedule_summary(row, reader) for row in rows])
    else:
        lines: list[list[Styled | str]] = []
        for row in rows:
            spec = read_spec(row)
            shown = [row.name, row.workflow, spec.in_words(), spec.tz, _next(row, spec, now)]
            lines.append([*shown, _doing(row)])
        print_table(["SCHEDULE", "WORKFLOW", "WHEN", "TZ", "NEXT", "DOING"], lines)
    if not rows:
        note("no schedules yet; those that code declares become known when a worker starts")
    elif any(row.next_at is not None and row.next_at <= now for row in rows):
        target.note_if_nobody_works("what is due starts once there is one, start it with")


@click.command()
@one_schedule
@json_option
@click.pass_context
def show(context: click.Context, name: str, as_json: bool) -> None:
    """All about one schedule: its next ticks, what is queued, its last runs."""
    target = open_target(context)
    row = _find(target, name)
    spec, now = read_spec(row), target.store.now()
    begin = row.next_at
    ticks = [] if begin is None else list(itertools.islice(ticks_after(spec, begin - 1), UPCOMING))
    runs = target.store.runs(RunQuery(schedule=name, limit=LAST_RUNS))
    facts = schedule_summary(row, PlainReader(target.app.codec))
    if as_json:
        print_json(
            {**facts, "upcoming": [tick_iso(t, spec) for t in ticks], "runs": [run_summary(run, now) for run in runs]}
        )
        return
    lines: list[Line] = [[Styled(f"{row.name} ", "bold"), Styled(f"{row.workflow}{call_text(facts['call'])}")]]

    def add(title: str, *texts: Styled | str) -> None:
        for number, text in enumerate(texts):
            span = text if isinstance(text, Styled) else Styled(text)
            lines.append([Styled(f"  {title if number == 0 else '':<9}", "dim"), span])

    add("when", f"{spec.in_words()} in {spec.tz}" + (f", up to {length(spec.jitter)} later" if spec.jitter else ""))
    add("policy", f"missed: {spec.missed}, overlap: {spec.overlap}")
    add("from", "the app's code" if row.declared else "app.schedules.put")
    if _doing(row).text:
        add("doing", _doing(row))
    add("queued", *map(str, facts["queued"]))
    add("next", *[local(tick, spec).isoformat() for tick in ticks])
    for number, run in enumerate(runs):
        status = status_span(run.status)
        title = "runs" if number == 0 else ""
        lines.append([Styled(f"  {title:<9}", "dim"), Styled(f"{status.text:<11}", status.style), Styled(f" {run.id}")])
    print_lines(lines)
    if row.paused and on_terminal():
        note(f"let it go on with: {command('schedules', 'resume', name)}")


def _find(target: Target, name: str) -> ScheduleRow:
    found = target.store.schedules(name)
    if not found:
        target.app.schedules.get(name)  # says which there are
    return found[0]


def _say_state(target: Target, name: str, said: str, as_json: bool) -> None:
    row = _find(target, name)
    if as_json:
        print_json(schedule_summary(row, PlainReader(target.app.codec)))
    else:
        say(said.format(next=tick_iso(row.next_at, read_spec(row))))


@click.command()
@one_schedule
@because
@json_option
@click.pass_context
def pause(context: click.Context, name: str, reason: str, as_json: bool) -> None:
    """Let a schedule start nothing by itself, also after a deploy, until it is resumed."""
    target = open_target(context)
    target.app.schedules.pause(name, reason)
    _say_state(target, name, f"paused {name}", as_json)


@click.command()
@one_schedule
@json_option
@click.pass_context
def resume(context: click.Context, name: str, as_json: bool) -> None:
    """Let a paused schedule go on. Ticks of the time between are not made up for; `backfill` does that."""
    target = open_target(context)
    target.app.schedules.resume(name)
    _say_state(target, name, f"resumed {name}; it ticks next at {{next}}", as_json)


@click.command()
@one_schedule
@json_option
@click.pass_context
def trigger(context: click.Context, name: str, as_json: bool) -> None:
    """Start a run of a schedule now; prints the run's id."""
    target = open_target(context)
    run = target.app.schedules.trigger(name)
    if as_json:
        print_json(run_summary(target.find(run.id), target.store.now()))
        return
    say(run.id)
    if on_terminal():
        note(f"watch it with: {command('runs', 'watch', run.id)}")
    target.note_if_nobody_works("start one with")


@click.command()
@one_schedule
@click.option(
    "--from", "start", required=True, metavar="TIME", help="2026-01-31, 2026-01-31T12:00, or 3d for so long ago."
)
@click.option("--to", "end", metavar="TIME", help="The same; now if it isn't given.")
@json_option
@click.pass_context
def backfill(context: click.Context, name: str, start: str, end: str | None, as_json: bool) -> None:
    """Start a run for each tick of a range that has none; prints their ids.

    Times are those of the schedule's time zone, both included, and a day is the whole day. The runs go one after the
    other, unless the schedule allows them to overlap.
    """
    target = open_target(context)
    spec, now = read_spec(_find(target, name)), target.store.now()
    first = moment_of("--from", start, now, zone(spec.tz))
    last = None if end is None else moment_of("--to", end, now, zone(spec.tz))
    if last is not None and _is_day(str(end)):
        last = min(last + dt.timedelta(days=1, microseconds=-1), local(now, spec))
    ids = target.app.schedules.backfill(name, first, last)
    if as_json:
        print_json(ids)
        return
    for run_id in ids:
        say(run_id)
    if not ids:
        note("no tick of that time is without a run")
        return
    target.note_if_nobody_works("start one with")


def _is_day(text: str) -> bool:
    try:
        dt.date.fromisoformat(text)
    except ValueError:
        return False
    return True


@click.command()
@one_schedule
@click.option("--yes", "-y", is_flag=True, help="Don't ask.")
@json_option
@click.pass_context
def delete(context: click.Context, name: str, yes: bool, as_json: bool) -> None:
    """Forget a schedule that was made at run time; its runs stay. One that code declares is removed there."""
    target = open_target(context)
    _find(target, name)
    if not yes:
        confirm_for_good(f"Delete schedule {name}?")
    target.app.schedules.delete(name)
    if as_json:
        print_json([name])
    else:
        say(f"deleted {name}")
