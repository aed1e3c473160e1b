"""`holdfast start` and `holdfast run`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import click

from holdfast.api.options import StartOptions
from holdfast.cli.arguments import TakesValues, encoded_call
from holdfast.cli.failures import command
from holdfast.cli.output import json_option, note, on_terminal, print_json, say
from holdfast.cli.target import Target, open_target, startable_names
from holdfast.cli.watch import follow_to_the_end
from holdfast.views.summaries import run_summary

IF_EXISTS = ("return", "error", "restart")


def starting(command: Callable[..., Any]) -> Callable[..., Any]:
    """What `start` and `run` have in common."""
    for decorate in (
        click.option("--args-json", metavar="JSON", help="All arguments at once: a list, or an object of keywords."),
        click.option("--if-exists", type=click.Choice(IF_EXISTS), default="return", show_default=True,
                     help="What to do if the id is taken."),
        click.option("--priority", type=int, default=0, help="Higher goes first."),
        click.option("--delay", metavar="TIME", help="Begin later: 30s, 2h, 1d."),
        click.option("--id", "run_id", help="The run's id; the same again is the same run."),
        click.argument("args", nargs=-1),
        click.argument("workflow", shell_complete=startable_names),
    ):  # fmt: skip
        command = decorate(command)
    return command


def _start(
    context: click.Context,
    workflow: str,
    args: tuple[str, ...],
    run_id: str | None,
    delay: str | None,
    priority: int,
    if_exists: Literal["return", "error", "restart"],
    args_json: str | None,
) -> tuple[Target, str]:
    target = open_target(context, needs_code=f"to {context.command.name} {workflow!r}", may_create=True)
    call = encoded_call(target.app, workflow, args, args_json)
    options = StartOptions(id=run_id, delay=delay, priority=priority, if_exists=if_exists)
    return target, target.app.start_run(workflow, call, options).id


ARGUMENTS = """ARGS are JSON values if they read as such, else text; KEY=VALUE gives a keyword argument."""


@click.command(cls=TakesValues, epilog=ARGUMENTS)
@starting
@json_option
@click.pass_context
def start(context: click.Context, /, as_json: bool, **given: Any) -> None:
    """Start a workflow or a step; prints the run's id once the run is recorded."""
    target, run_id = _start(context, **given)
    if as_json:
        print_json(run_summary(target.find(run_id), target.store.now()))
        return
    say(run_id)
    if on_terminal():
        note(f"watch it with: {command('runs', 'watch', run_id)}")
    target.note_if_nobody_works("start one with")


@click.command(cls=TakesValues, epilog=ARGUMENTS)
@starting
@json_option
@click.pass_context
def run(context: click.Context, /, as_json: bool, **given: Any) -> None:
    """Start a workflow or a step, and watch it until it ends: its result goes to stdout, all else to stderr.

    The exit code is 0 if it succeeds, and 1 if it fails, is cancelled or gets stuck.
    """
    target, run_id = _start(context, **given)
    context.exit(follow_to_the_end(target, run_id, as_json))
