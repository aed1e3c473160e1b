"""`holdfast events`: what workers do, as it happens."""

from __future__ import annotations

import datetime as dt
import fnmatch
from typing import Any

import click

from holdfast.cli.failures import INTERRUPTED, usage
from holdfast.cli.output import Styled, clean, console, json_option, json_text, on_terminal, short_id, styled
from holdfast.cli.target import open_target, run_ids
from holdfast.telemetry.receiver import EventReceiver

STYLES = {
    "succeeded": "green",
    "failed": "red",
    "rejected": "red",
    "stuck": "bold red",
    "retried": "yellow",
    "sent": "dim",
}
LOCAL = ("received_at", "local_time")
FAMILIES = ("run", "step", "worker")


@click.command()
@click.option(
    "--type", "types", multiple=True, metavar="TYPE",
    help="Only these: step-failed, run-* or a family such as step. May be given several times.",
)  # fmt: skip
@click.option("--run", "run_id", metavar="ID", help="Only this run and its steps.", shell_complete=run_ids)
@click.option("--workflow", metavar="NAME", help="Only runs of this workflow; order* is the beginning of a name.")
@click.option("--limit", type=click.IntRange(1), help="End after so many.")
@json_option
@click.pass_context
def events(
    context: click.Context,
    types: tuple[str, ...],
    run_id: str | None,
    workflow: str | None,
    limit: int | None,
    as_json: bool,
) -> None:
    """The telemetry events of all workers as they happen, until Ctrl-C: one line each, or one JSON document each. Their
    order in time is that of CLOCK: what led to something else has the lower one."""
    for each in types:
        if each.partition("-")[0] not in FAMILIES and "*" not in each:
            usage(f"--type {each!r}: types begin with {', '.join(FAMILIES)}, as in step-failed")
    target = open_target(context)
    wanted = target.find(run_id).id if run_id else None
    target.note_if_nobody_works("start one")
    receiver = EventReceiver(target.app.telemetry, target.app.logical_clock)
    left = limit
    terminal = on_terminal()

    def show(event: dict[str, Any]) -> None:
        nonlocal left
        if not is_wanted(event, types, wanted, workflow):
            return
        if as_json:
            facts = {name: value for name, value in event.items() if name not in LOCAL}
            click.echo(json_text(facts))
        elif terminal:
            out.print(styled(line_of(event)), soft_wrap=True)
        else:
            click.echo("\t".join(" ".join(clean(span.text).split()) for span in line_of(event, whole=True)))
        if left is not None:
            left -= 1
            if left == 0:
                raise _Enough

    out = console()
    try:
        receiver.capture({"*": show})
    except _Enough:
        return
    except KeyboardInterrupt:
        context.exit(INTERRUPTED)
    finally:
        receiver.stop()


class _Enough(Exception):
    """As many as were asked for have come."""


def is_wanted(event: dict[str, Any], types: tuple[str, ...], run_id: str | None, workflow: str | None) -> bool:
    kind = str(event["type"])
    if types and not any(
        fnmatch.fnmatchcase(kind, each if "-" in each or "*" in each else f"{each}-*") for each in types
    ):
        return False
    is_run = kind.startswith("run-")
    if run_id is not None and run_id != event.get("id" if is_run else "run_id"):
        return False
    name = event.get("name") if is_run else event.get("workflow")
    return workflow is None or fnmatch.fnmatchcase(str(name or ""), workflow)


def line_of(event: dict[str, Any], whole: bool = False) -> list[Styled]:
    """An event as people read it. `whole` is for programs: nothing is shortened, and all is where it always is."""
    kind, clock = str(event["type"]), str(event.get("clock", ""))
    at = event.get("timestamp")
    when = dt.datetime.fromtimestamp(at, dt.UTC) if isinstance(at, int | float) else None
    run_id = str(event.get("run_id") or (event.get("id") if kind.startswith("run-") else "") or "")
    name, origin = str(event.get("name") or ""), str(event.get("origin") or "")
    said = detail_of(event)
    if whole:
        time = "" if when is None else when.isoformat()
        return [Styled(text) for text in (time, clock, kind, name, run_id, origin, said)]
    time = "" if when is None else when.astimezone().strftime("%H:%M:%S.%f")[:-3]
    style = STYLES.get(kind.partition("-")[2], "")
    return [
        Styled(f"{time}  {clock:>8}  ", "dim"), Styled(f"{kind:<16} ", style), Styled(f"{name:<20} "),
        Styled(f"{short_id(run_id):<10} {origin:<16} ", "dim"), Styled(said, "red" if event.get("exception") else ""),
    ]  # fmt: skip


def detail_of(event: dict[str, Any]) -> str:
    parts = []
    if str(event["type"]).startswith("worker-"):
        parts = [f"{event[name]} {word}" for name, word in (("live", "live"), ("steps", "steps")) if name in event]
        return ", ".join([f"pid {event.get('pid')} on {event.get('hostname')}", *parts])
    if (event.get("attempt") or 1) > 1:
        parts.append(f"attempt {event['attempt']}")
    if event.get("seconds") is not None:
        parts.append(f"{event['seconds']:.3f} s")
    if event.get("done") is not None:
        parts.append(f"{event['done']:g}" + (f" of {event['total']:g}" if event.get("total") else ""))
    parts += [str(event[name]) for name in ("note", "reason", "exception") if event.get(name)]
    return ", ".join(parts)
