"""Acting on all runs that a filter names: `holdfast runs cancel --workflow order --status waiting --older-than 2d`."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

import click

from holdfast.api.selection import Acted, Action, Selection
from holdfast.cli.arguments import STATUS, data_terms, statuses_of
from holdfast.cli.failed import FailedAlike
from holdfast.cli.failures import usage
from holdfast.cli.output import confirm, note, on_terminal, print_json, say
from holdfast.cli.target import Target, run_ids
from holdfast.durations import to_us
from holdfast.ports import RunQuery


@dataclass(frozen=True)
class Filter:
    """What the options of a command say about which runs are meant."""

    statuses: tuple[str, ...] = ()
    workflow: str | None = None
    parent: str | None = None
    older_than: str | None = None
    data: tuple[str, ...] = ()
    schedule: str | None = None
    failure: str | None = None
    every: bool = False
    yes: bool = False

    @property
    def is_empty(self) -> bool:
        return not any(given for name, given in vars(self).items() if name != "yes")

    def select(self, target: Target) -> Selection:
        until = None
        if self.older_than is not None:
            try:
                until = target.store.now() - to_us(self.older_than)
            except ValueError:
                usage(f"--older-than {self.older_than!r}: give a length of time, such as 30m, 2h, 3d")
        equal, spans = data_terms(target.app.codec, self.data)
        query = RunQuery(
            statuses=statuses_of(self.statuses),
            workflow=self.workflow,
            parent=None if self.parent is None else target.find(self.parent).id,
            until=until,
            data=equal,
            spans=spans,
            schedule=self.schedule,
        )
        if self.failure is not None:
            return FailedAlike(target, query, self.failure)
        return Selection(target.app.client, query)


def by_filter(function: Callable[..., None]) -> Callable[..., None]:
    """Options that name runs; the command gets them as one `chosen`."""

    @functools.wraps(function)
    def call(*args: Any, **given: Any) -> None:
        chosen = Filter(**{field.name: given.pop(field.name) for field in fields(Filter)})
        if chosen.is_empty != bool(given["runs"]):
            usage("name runs by their ids, or give a filter (--workflow, --status, --older-than, ..., or --all)")
        function(*args, chosen=chosen, **given)

    for option in reversed(
        (
            click.option(
                "--status", "statuses", multiple=True, type=STATUS,
                help="All runs of this status; may be given several times.",
            ),
            click.option("--workflow", help="All runs of this workflow or step; a * at its end stands for any ending."),
            click.option("--older-than", metavar="TIME", help="All runs created longer ago than this: 30m, 2h, 3d."),
            click.option("--parent", shell_complete=run_ids, help="All children of this run."),
            click.option("--data", multiple=True, metavar="KEY=VALUE", help="All runs whose data holds this."),
            click.option("--schedule", metavar="NAME", help="All runs that this schedule started."),
            click.option("--failure", metavar="GROUP", help="All runs that have failed like this; see `runs failures`."),
            click.option("--all", "every", is_flag=True, help="All runs of the app."),
            click.option("--yes", "-y", is_flag=True, help="Don't ask."),
        )
    ):  # fmt: skip
        call = option(call)
    return call


def act_on_all(
    target: Target, chosen: Filter, action: Action, act: Callable[[Selection], Acted], said: str, as_json: bool
) -> None:
    """Say how many there are, ask, and do it."""
    selection = chosen.select(target)
    counts = selection.counts(action)
    total = sum(counts.values())
    if not total:
        print_json({"done": 0, "skipped": 0}) if as_json else note(
            f"no run that this filter names is there to {action}"
        )
        return
    if not chosen.yes:
        runs = f"{total:,} run{'s' if total > 1 else ''}"
        each = ", ".join(f"{number:,} {status}" for status, number in counts.items())
        if not on_terminal():
            usage(f"this would {action} {runs} ({each}); say --yes")
        confirm(f"{action.capitalize()} {runs} ({each})?")
    acted = act(selection)
    if as_json:
        print_json({"done": acted.done, "skipped": acted.skipped})
        return
    say(f"{said} {acted.done:,} run{'' if acted.done == 1 else 's'}")
    if acted.skipped:
        note(f"{acted.skipped:,} had gone on meanwhile, or are in use, and were left as they are")
