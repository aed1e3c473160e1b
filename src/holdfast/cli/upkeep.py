"""`holdfast gc` and `holdfast health`."""

from __future__ import annotations

import platform

import click

from holdfast.cli.failures import UNREACHABLE, Unreachable
from holdfast.cli.output import json_option, print_json, say
from holdfast.cli.target import open_target
from holdfast.views.summaries import worker_summary


@click.command()
@click.option("--batch", default=500, show_default=True, type=click.IntRange(1), help="How many in one transaction.")
@json_option
@click.pass_context
def gc(context: click.Context, batch: int, as_json: bool) -> None:
    """Delete runs whose time of retention has passed. Workers do this too, little by little."""
    count = open_target(context).app.gc(batch)
    if as_json:
        print_json({"deleted": count})
    else:
        say(f"deleted {count} run{'' if count == 1 else 's'}")


@click.command()
@click.option("--here", is_flag=True, help="Count only workers of this host: for a container's own probe.")
@json_option
@click.pass_context
def health(context: click.Context, here: bool, as_json: bool) -> None:
    """Whether the store answers and a worker is alive: exit code 0, else 5."""
    target = open_target(context)
    now = target.store.now()
    alive = [w for w in target.live_workers() if not here or w.host == platform.node()]
    if as_json:
        facts = {"store": target.store.url, "app": target.app.name, "workers": [worker_summary(w, now) for w in alive]}
        print_json({"ok": bool(alive), **facts})
        context.exit(0 if alive else UNREACHABLE)
    if not alive:
        where = " on this host" if here else ""
        raise Unreachable(f"no worker of app {target.app.name!r} is alive{where}; start one: {target.start_a_worker()}")
    say(
        f"ok: {target.store.url} answers, {len(alive)} worker{'' if len(alive) == 1 else 's'} of {target.app.name!r} alive"
    )
