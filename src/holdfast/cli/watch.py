"""`holdfast runs watch`, and the watching half of `holdfast run`: a live tree on a terminal, a line per change on
a pipe. Pushed by the engines; a slow look is the safety net."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import Any

import click

from holdfast.cli.failures import INTERRUPTED, OK, RUN_FAILED, command
from holdfast.cli.output import clean, json_option, json_text, note, on_terminal, print_json
from holdfast.cli.runs import details_of, event_text
from holdfast.cli.target import Target, one_run, open_target
from holdfast.core import events as ev
from holdfast.ports import FINAL, Status
from holdfast.views.details import read_outcome
from holdfast.views.reading import RunTree
from holdfast.views.summaries import event_summary
from holdfast.views.times import iso
from holdfast.views.tree import TreeNode
from holdfast.views.values import PlainReader, as_text
from holdfast.views.why import doing

FALLBACK = 1.0
LIVE_FALLBACK = 0.25
WARN_AFTER = 2.0  # seconds without a worker

Look = tuple[TreeNode, str]


@click.command()
@one_run
@click.option("--exit-status", is_flag=True, help="Exit with 1 if the run doesn't succeed.")
@json_option
@click.pass_context
def watch(context: click.Context, run: str, exit_status: bool, as_json: bool) -> None:
    """Follow a run until it ends or needs a person: a live tree on a terminal, a line per change otherwise."""
    target = open_target(context)
    row = target.find(run)
    tree = RunTree(target.store, PlainReader(target.app.codec), row.id)
    try:
        _follow(target, tree, as_json=as_json, err=False)
    except KeyboardInterrupt:
        context.exit(INTERRUPTED)
    if exit_status:
        context.exit(OK if tree.root.status == Status.SUCCESS else RUN_FAILED)


def follow_to_the_end(target: Target, run_id: str, as_json: bool) -> int:
    """Watch on stderr, give the result on stdout; the exit code."""
    reader = PlainReader(target.app.codec)
    tree = RunTree(target.store, reader, run_id)
    try:
        _follow(target, tree, as_json=False, err=True)
    except KeyboardInterrupt:
        again, stop = command("runs", "watch", run_id), command("runs", "cancel", run_id)
        note(f"run {run_id} goes on; `{again}` follows it again, `{stop}` stops it")
        return INTERRUPTED
    row = tree.root
    outcome = read_outcome(target.store, row, reader)
    if as_json:
        print_json(details_of(target, row))
    elif row.status == Status.SUCCESS and (outcome["result"] is not None or not on_terminal()):
        print_json(outcome["result"])
    if row.status == Status.SUCCESS:
        return OK
    error = outcome.get("error") or {}
    why = f"{error.get('type')}: {error.get('message')}" if error else outcome.get("reason") or row.reason
    note(
        f"run {run_id} ended as {row.status}{f': {why}' if why else ''}; `{command('runs', 'show', run_id)}` says more"
    )
    return RUN_FAILED


def _follow(target: Target, tree: RunTree, *, as_json: bool, err: bool) -> None:
    if on_terminal(err=err) and not as_json:
        from holdfast.cli.live import show_live

        show_live(target.store, _looks(target, tree, LIVE_FALLBACK), err=err)
    else:
        _tell(target, tree, _looks(target, tree, FALLBACK), as_json, err)


def _looks(target: Target, tree: RunTree, pause: float) -> Iterator[Look]:
    """The tree whenever it may have changed, until the run is over, with a word for who waits in vain."""
    begun, message = time.monotonic(), ""
    push = target.app.notifier.watch(tree.root_id)
    try:
        while True:
            root = tree.read()
            yield root, message
            if tree.root.status in FINAL or tree.root.status == Status.STUCK:  # it needs a person
                return
            if time.monotonic() - begun > WARN_AFTER:
                message = "" if target.live_engines() else f"no worker is alive; start one: {target.start_a_worker()}"
            push.wait(pause)
    finally:
        push.close()


# -- a line per change


def _tell(target: Target, tree: RunTree, looks: Iterable[Look], as_json: bool, err: bool) -> None:
    reader = PlainReader(target.app.codec)
    seen: dict[str, int] = {}
    shown: dict[str, str] = {}
    warned = ""
    for root, message in looks:
        for row, event in tree.new_events(seen):
            facts = event_summary(ev.to_json(event), reader)
            if as_json:
                _put(json_text({"run_id": row.id, "event": facts}, err=err), err)
            else:
                attempt = f"attempt {facts['attempt']}  " if facts.get("attempt", 1) > 1 else ""
                _put_line(
                    facts["at"] or "", row.id, facts["kind"], facts.get("name", ""), attempt + event_text(facts), err
                )
        for change in (*_status_change(target, tree, shown), *_progress(target, root, shown)):
            if as_json:
                _put(json_text(change, err=err), err)
            else:
                said = as_text(change["progress"]) if "progress" in change else change["reason"]
                _put_line(
                    change["at"], change["run_id"], change.get("status", "progress"), change.get("step", ""), said, err
                )
        if message != warned:
            warned = message
            if message:
                note(message)


def _status_change(target: Target, tree: RunTree, shown: dict[str, str]) -> Iterator[dict[str, Any]]:
    """What no event tells: that the run waits, since the last of them. A status that was over before the events were read
    is none to tell: the next look has another."""
    row = tree.root
    if row.status not in FINAL and target.store.get(row.id) != row:
        return
    status = f"{row.status} {row.reason}"
    if shown.get("") != status and row.status != Status.RUNNING:
        reason = doing(row, target.store.now())
        yield {"run_id": row.id, "at": iso(tree.changed_at), "status": row.status, "reason": reason}
    shown[""] = status


def _progress(target: Target, root: TreeNode, shown: dict[str, str]) -> Iterator[dict[str, Any]]:
    """How far steps are, which no event tells either."""
    now = target.store.now()
    for i, (run_id, step) in enumerate(root.steps()):
        text = as_text(step.progress)
        if step.progress is not None and shown.get(f"{run_id} {i}") != text:
            shown[f"{run_id} {i}"] = text
            yield {"run_id": run_id, "at": iso(now), "step": step.name, "progress": step.progress}


def _put_line(at: str, run_id: str, what: str, name: str, detail: str, err: bool) -> None:
    line = "\t".join(" ".join(clean(part).split()) for part in (at, run_id, what, name, detail))
    _put(line.rstrip("\t"), err)


def _put(line: str, err: bool) -> None:
    click.echo(line, err=err)
