"""`holdfast runs logs`: what the steps of a run have logged. `runs show` has the last of it under each step."""

from __future__ import annotations

import datetime as dt
from typing import Any

import click

from holdfast.cli.output import Line, Styled, json_option, note, on_terminal, print_json, print_lines
from holdfast.cli.target import one_run, open_target
from holdfast.views.summaries import log_summaries
from holdfast.views.values import PlainReader

_STYLES = {"WARNING": "yellow", "ERROR": "red", "CRITICAL": "red"}


@click.command("logs")
@one_run
@click.option("--step", "name", metavar="NAME", help="Only what steps of this name have logged.")
@json_option
@click.pass_context
def show_logs(context: click.Context, run: str, name: str | None, as_json: bool) -> None:
    """What the steps of a run have logged, attempt by attempt; the last of each, if it was a lot."""
    target = open_target(context)
    row = target.find(run)
    kept_logs = log_summaries(target.store.attributes(row.id, "logs"), PlainReader(target.app.codec))
    found = [kept for kept in kept_logs if name in (None, kept["step"])]
    if as_json:
        print_json(found)
        return
    for kept in found:
        title = Styled(f"{kept['step']}  attempt {kept['attempt']}", "bold")
        print_lines([[title], *log_lines(kept, "  ")])
    if not found:
        note(
            f"no step of run {row.id} has logged anything" if name is None else f"no step {name!r} has logged anything"
        )


def log_lines(kept: dict[str, Any], indent: str, limit: int | None = None) -> list[Line]:
    """The last `limit` records of an attempt, with how many there were before."""
    shown = kept["lines"] if limit is None else kept["lines"][-limit:]
    lines: list[Line] = []
    if earlier := kept["dropped"] + len(kept["lines"]) - len(shown):
        more = "; `runs logs` has more" if len(shown) < len(kept["lines"]) else ", no longer kept"
        lines.append([Styled(f"{indent}{earlier} earlier{more}", "dim")])
    for line in shown:
        first, *rest = line["message"].splitlines() or [""]
        at = (
            dt.datetime.fromisoformat(line["at"]).astimezone().strftime("%H:%M:%S.%f")[:-3]
            if on_terminal()
            else line["at"]
        )
        head = [Styled(f"{indent}{at} ", "dim"), Styled(f"{line['level']:<8}", _STYLES.get(line["level"], "dim"))]
        lines.append([*head, Styled(f"{line['logger']}: ", "dim"), Styled(first)])
        lines += [[Styled(f"{indent}  {more}")] for more in rest]
    return lines
