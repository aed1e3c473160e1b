"""`holdfast check`: whether open runs go on with this code, asked before it is deployed."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

import click

from holdfast.cli.failures import RUN_FAILED
from holdfast.cli.output import Line, Styled, json_option, note, print_json, print_lines
from holdfast.cli.target import open_target
from holdfast.errors import NondeterminismError, RunStuckError, UnknownNameError, in_words
from holdfast.testing.replaying import Replayed, replay_open_runs

_ARGUMENTS = re.compile(r"\{.*?\}(?= at |, | |\.|$)")  # as a NondeterminismError shows them
NAMED = 3
"""So many runs that don't go on for the same reason are named."""


@click.command()
@click.option("--workflow", help="Only runs of this workflow; a * at its end stands for any ending.")
@click.option("--limit", type=click.IntRange(min=1), help="Only so many, the newest.")
@json_option
@click.pass_context
def check(context: click.Context, workflow: str | None, limit: int | None, as_json: bool) -> None:
    """Replay every open run with this code, and say which would not go on. For before a deploy: the store may be the one
    that is in use. Workflow code is executed up to where each run is, no step is, and nothing is written. Exit code 1 if
    a run would be set aside, or its code would raise."""
    target = open_target(context, needs_code="to replay runs with it")
    replayed = list(replay_open_runs(target.app, workflow=workflow, limit=limit))
    unfit = list(_alike(replayed))
    if as_json:
        print_json({"replayed": len(replayed), "unfit": [_facts(runs) for runs in unfit]})
    else:
        print_lines(line for runs in unfit for line in _lines(runs))
        count = sum(map(len, unfit))
        told = "1 open run" if len(replayed) == 1 else f"{len(replayed):,} open runs"
        note(f"{told} replayed with this code, {f'{count:,} would not go on' if count else 'all go on'}")
    if unfit:
        context.exit(RUN_FAILED)


def _alike(replayed: Iterable[Replayed]) -> Iterator[list[Replayed]]:
    """Those that don't go on, put together where what is said of them differs only in values."""
    groups: dict[tuple[str, str], list[Replayed]] = {}
    for run in replayed:
        if run.error is not None:
            text = _ARGUMENTS.sub("", _said(run).replace(run.run_id, ""))
            groups.setdefault((run.workflow, text), []).append(run)
    yield from groups.values()


def _said(run: Replayed) -> str:
    assert run.error is not None
    text = in_words(run.error)
    if isinstance(run.error, NondeterminismError | UnknownNameError | RunStuckError):
        return text
    return f"its code would raise {text}" + (f" at {run.line}" if run.line else "")


def _facts(runs: list[Replayed]) -> dict[str, Any]:
    return {"workflow": runs[0].workflow, "runs": [run.run_id for run in runs], "error": _said(runs[0])}


def _lines(runs: list[Replayed]) -> Iterator[Line]:
    named = ", ".join(run.run_id for run in runs[:NAMED])
    more = f" and {len(runs) - NAMED:,} more" if len(runs) > NAMED else ""
    yield [Styled("BAD  ", "bold red"), Styled(runs[0].workflow, "bold"), Styled(f"  {named}{more}")]
    for line in _said(runs[0]).splitlines():
        yield [Styled(f"     {line}")]
