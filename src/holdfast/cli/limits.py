"""`holdfast limits`: what is limited, how much of it is in use, and who waits."""

from __future__ import annotations

import click

from holdfast.cli.failures import NotFound
from holdfast.cli.output import Styled, json_option, note, print_json, print_table
from holdfast.cli.target import open_target
from holdfast.ports import LimitUse
from holdfast.views.limits import allowed, limit_summary
from holdfast.views.times import length


@click.command()
@click.argument("name", required=False)
@click.option(
    "--keys", default=10, show_default=True, type=click.IntRange(0, 100_000), help="How many keys of each at most."
)
@json_option
@click.pass_context
def limits(context: click.Context, name: str | None, keys: int, as_json: bool) -> None:
    """List limits, with how much of each is in use and how many wait; of those per key, first the keys where most do."""
    target = open_target(context)
    found, now = target.store.limits(keys), target.store.now()
    if name is not None:
        known = [use.limit.name for use in found]
        found = [use for use in found if use.limit.name == name]
        if not found:
            raise NotFound(
                f"there is no limit {name!r} in app {target.app.name!r}; known: {', '.join(known) or 'none'}"
            )
    if as_json:
        print_json([limit_summary(use) for use in found])
    else:
        lines: list[list[Styled | str]] = []
        for use in found:
            of = "runs" if use.limit.of_runs else "steps"
            next_at = "" if use.limit.keyed else _next(use, now)
            lines.append([use.limit.name, "", of, allowed(use.limit), str(use.in_use), _waiting(use.waiting), next_at])
            lines += _lines(use, now)
        print_table(["LIMIT", "KEY", "OF", "ALLOWED", "IN USE", "WAITING", "NEXT"], lines)
    if not found:
        note("no limits yet; those that code declares become known when a worker starts")


def _lines(use: LimitUse, now: int) -> list[list[Styled | str]]:
    if not use.limit.keyed:
        return []
    name = Styled(use.limit.name, "dim")
    found: list[list[Styled | str]] = [
        [name, line.key, "", "", str(line.in_use), _waiting(line.waiting), _until(line.next_at, now)]
        for line in use.lines
    ]
    if use.keys > len(use.lines):
        found.append([name, Styled(f"and {use.keys - len(use.lines)} more", "dim"), "", "", "", "", ""])
    return found


def _next(use: LimitUse, now: int) -> str:
    return _until(use.lines[0].next_at, now) if use.lines else ""


def _until(next_at: int | None, now: int) -> str:
    return "" if next_at is None else f"in {length(next_at - now)}"


def _waiting(count: int) -> Styled:
    return Styled(str(count), "yellow" if count else "")
