"""`holdfast runs cancel | terminate | pause | resume | retry | fork | send | delete`: acting on runs."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import click

from holdfast.api.handles import Run
from holdfast.api.reading import Which
from holdfast.api.selection import Action
from holdfast.cli.arguments import TakesValues
from holdfast.cli.bulk import Filter, act_on_all, by_filter
from holdfast.cli.failures import Conflict, command, told_in_a_sentence, usage
from holdfast.cli.output import confirm_for_good, json_option, json_text, note, on_terminal, print_json, say
from holdfast.cli.target import Target, one_run, open_target, run_ids
from holdfast.errors import WaitTimeoutError
from holdfast.views.filters import value_of
from holdfast.views.summaries import run_summary

Act = Callable[[Any], Any]
"""Does something to a `Run`, or to the runs of a selection: both have the same words for it."""

some_runs = click.argument("runs", nargs=-1, shell_complete=run_ids)
because = click.option("--reason", default="", help="Why; it is recorded.")


def _each(context: click.Context, prefixes: tuple[str, ...], as_json: bool, said: str, act: Act) -> Target:
    """Do it to every run, whatever becomes of the others. The exit code is that of the first that failed."""
    target = open_target(context)
    done: list[str] = []
    failures: list[click.ClickException] = []
    for prefix in prefixes:
        try:
            with told_in_a_sentence(context.find_root()):
                run = target.run(target.find(prefix).id)
                act(run)
                done.append(run.id)
        except click.ClickException as failure:
            failures.append(failure)
    if as_json:
        print_json(done)
    else:
        for run_id in done:
            say(f"{said} {run_id}")
    for other in failures[1:]:
        note(f"Error: {other.format_message()}")
    if failures:
        raise failures[0]
    return target


def _act(
    context: click.Context,
    runs: tuple[str, ...],
    chosen: Filter,
    as_json: bool,
    action: Action,
    act: Act,
) -> None:
    """Ask something of the runs that were named, or of all that the filter names."""
    said = f"asked to {action}"
    if runs:
        target = _each(context, runs, as_json, said, act)
    else:
        target = open_target(context)
        act_on_all(target, chosen, action, act, said, as_json)
    _asked(target)


def _asked(target: Target) -> None:
    target.note_if_nobody_works("it happens once there is one, start it with")


@click.command()
@some_runs
@by_filter
@because
@json_option
@click.pass_context
def cancel(context: click.Context, runs: tuple[str, ...], chosen: Filter, reason: str, as_json: bool) -> None:
    """Cancel runs: CancelledError is raised where each waits, and its clean-up still happens."""
    _act(context, runs, chosen, as_json, "cancel", lambda found: found.cancel(reason))


@click.command()
@some_runs
@by_filter
@click.option("--reason", required=True, help="Why; it is recorded.")
@json_option
@click.pass_context
def terminate(context: click.Context, runs: tuple[str, ...], chosen: Filter, reason: str, as_json: bool) -> None:
    """End runs for good, for code that catches its cancellation or can't go on: nothing of it runs, not even its
    clean-up, and the children that it waits for end likewise."""
    _act(context, runs, chosen, as_json, "terminate", lambda found: found.terminate(reason))


@click.command()
@some_runs
@by_filter
@because
@click.option("--children", is_flag=True, help="The children that they wait for, too.")
@json_option
@click.pass_context
def pause(
    context: click.Context, runs: tuple[str, ...], chosen: Filter, reason: str, children: bool, as_json: bool
) -> None:
    """Let nothing new begin in runs; what executes ends and is kept. Their children go on, unless --children."""
    _act(context, runs, chosen, as_json, "pause", lambda found: found.pause(reason, children=children))


@click.command()
@some_runs
@by_filter
@click.option("--children", is_flag=True, help="The children that they wait for, too.")
@json_option
@click.pass_context
def resume(context: click.Context, runs: tuple[str, ...], chosen: Filter, children: bool, as_json: bool) -> None:
    """Let PAUSED runs go on, and STUCK ones whose cause was removed."""
    _act(context, runs, chosen, as_json, "resume", lambda found: found.resume(children=children))


@click.command()
@some_runs
@by_filter
@json_option
@click.pass_context
def retry(context: click.Context, runs: tuple[str, ...], chosen: Filter, as_json: bool) -> None:
    """Try failed or cancelled runs again; what they completed is kept."""
    _act(context, runs, chosen, as_json, "retry", lambda found: found.retry())


@click.command()
@some_runs
@by_filter
@json_option
@click.pass_context
def delete(context: click.Context, runs: tuple[str, ...], chosen: Filter, as_json: bool) -> None:
    """Forget runs that have ended or are held, with their histories."""
    if runs and not chosen.yes:
        confirm_for_good(f"Delete {len(runs)} run{'s' if len(runs) > 1 else ''}, history and all?")
    if runs:
        _each(context, runs, as_json, "deleted", Run.delete)
    else:
        act_on_all(open_target(context), chosen, "delete", lambda found: found.delete(), "deleted", as_json)


@click.command(cls=TakesValues)
@one_run
@click.argument("name")
@click.argument("payload", required=False)
@click.option("--key", help="The key, if the workflow gave the hook one.")
@json_option
@click.pass_context
def send(context: click.Context, run: str, name: str, payload: str | None, key: str | None, as_json: bool) -> None:
    """Answer a hook that a run waits for. PAYLOAD is JSON if it reads as such, else text."""
    target = open_target(context)
    row = target.find(run)
    sent = target.run(row.id).send(name, None if payload is None else value_of(payload), key=key)
    if as_json:
        print_json({"run_id": row.id, "hook": name, "key": key or "", "awaited": sent.awaited, "note": sent.note})
    else:
        say(f"sent {name} to {row.id}")
        if sent.note:
            note(sent.note)
    _asked(target)


@click.command(cls=TakesValues)
@one_run
@click.argument("name")
@click.argument("payload", required=False)
@click.option("--id", "request_id", help="Ask once: the same id again gets the same answer.")
@click.option("--timeout", default="30s", show_default=True, metavar="TIME", help="How long to wait for the answer.")
@json_option
@click.pass_context
def ask(
    context: click.Context,
    run: str,
    name: str,
    payload: str | None,
    request_id: str | None,
    timeout: str,
    as_json: bool,
) -> None:
    """Ask a run something, and print its answer as JSON. PAYLOAD is JSON if it reads as such, else text. A refusal ends
    with exit code 4."""
    target = open_target(context)
    row = target.find(run)
    given = None if payload is None else value_of(payload)
    try:
        asker = target.app.client.asker
        asked = asker.asked(Which(row.id, row.no), name, given, request_id, timeout)
        answer = asker.answer(asked, plain=True)
    except WaitTimeoutError as error:
        raise Conflict(str(error)) from None
    if as_json:
        print_json({"run_id": row.id, "request": name, "answer": answer})
    else:
        say(json_text(answer))


@click.command()
@one_run
@click.option("--at", required=True, type=int, metavar="SEQ", help="The last event to keep; see `runs history`.")
@click.option("--replace", multiple=True, metavar="SEQ=JSON", help="Put another result in place of a recorded one.")
@click.option("--input", "input_json", metavar="JSON", help="Other arguments, as a list.")
@click.option("--id", "new_id", help="The id of the new run.")
@click.option("--yes", "-y", is_flag=True, help="Don't ask.")
@json_option
@click.pass_context
def fork(
    context: click.Context,
    run: str,
    at: int,
    replace: tuple[str, ...],
    input_json: str | None,
    new_id: str | None,
    yes: bool,
    as_json: bool,
) -> None:
    """Start a new run that shares another's history up to an event. Steps under way at that point run anew."""
    target = open_target(context)
    source = target.run(target.find(run).id)
    results = dict(_replacement(each) for each in replace)
    reruns = source.fork_reruns(at)
    if reruns and not yes and on_terminal():
        confirm_for_good(f"Under way at event {at}, these will run anew: {', '.join(reruns)}. Fork?")
    made = source.fork(at, replace=results, input=_input(input_json), id=new_id)
    if as_json:
        print_json(
            {**run_summary(target.find(made.id), target.store.now()), "forked_from": source.id, "reruns": reruns}
        )
        return
    say(made.id)
    if reruns:
        note(f"run anew, as they were under way at event {at}: {', '.join(reruns)}")
    if on_terminal():
        note(f"watch it with: {command('runs', 'watch', made.id)}")
    _asked(target)


def _replacement(text: str) -> tuple[int, Any]:
    seq, _, value = text.partition("=")
    try:
        return int(seq), json.loads(value)
    except (ValueError, RecursionError):
        usage(f"--replace {text!r}: give SEQ=JSON, such as 12='\"paid\"'")


def _input(text: str | None) -> tuple[Any, ...] | None:
    if text is None:
        return None
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        usage(f"--input isn't JSON: {error}")
    if not isinstance(found, list):
        usage("--input: give a list of arguments")
    return tuple(found)
