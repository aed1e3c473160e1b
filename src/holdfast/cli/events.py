"""`holdfast emit` and `holdfast runs trace`: domain events, and what they have led to."""

from __future__ import annotations

import click

from holdfast.api.checks import to_epoch
from holdfast.cli.arguments import TakesValues
from holdfast.cli.failures import command
from holdfast.cli.output import json_option, note, on_terminal, print_json, say
from holdfast.cli.target import open_target, run_ids
from holdfast.cli.tree import print_tree
from holdfast.views.filters import value_of
from holdfast.views.trace import TraceNode, trace_summary
from holdfast.views.tree import TreeNode


@click.command(cls=TakesValues)
@click.argument("name")
@click.argument("payload", required=False)
@click.option("--key", help="The same name and key again is the same event.")
@json_option
@click.pass_context
def emit(context: click.Context, name: str, payload: str | None, key: str | None, as_json: bool) -> None:
    """Emit a domain event; prints its id. PAYLOAD is JSON if it reads as such, else text."""
    target = open_target(context, may_create=True)
    event = target.app.emit(name, None if payload is None else value_of(payload), key=key)
    if as_json:
        print_json({"id": event, "name": name, "key": key})
        return
    say(event)
    if on_terminal():
        note(f"see what it leads to with: {command('runs', 'trace', event)}")


@click.command()
@click.argument("id", shell_complete=run_ids)
@json_option
@click.pass_context
def trace(context: click.Context, id: str, as_json: bool) -> None:
    """The process that a run belongs to, from its beginning: runs, the domain events they emit, the runs those start.
    ID is that of a run, or of a domain event."""
    target = open_target(context)
    is_event = target.store.get(id) is None and target.store.domain_event(id) is not None
    root = target.app.trace(id if is_event else target.find(id).id)
    if as_json:
        print_json(trace_summary(root))
    else:
        print_tree(target, _node(root, target.app.name))


def _node(node: TraceNode, app: str) -> TreeNode:
    name = node.name or "deleted"
    began = to_epoch(node.at) if node.kind == "run" and node.at is not None else None
    return TreeNode(
        name=name if node.app == app else f"{node.app}/{name}",
        state=node.status or ("EVENT" if node.kind == "event" else "GONE"),
        run_id=node.id,
        started_at=began,
        ended_at=to_epoch(node.ended_at) if node.ended_at is not None else None,
        children=[_node(child, app) for child in node.children],
    )
