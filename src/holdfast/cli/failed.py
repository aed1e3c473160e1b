"""`holdfast runs failures`: failures that are alike, as one; and the runs of one such group."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator

import click

from holdfast.api.selection import Action, Selection, applicable
from holdfast.cli.failures import NotFound, command
from holdfast.cli.output import Styled, json_option, note, on_terminal, print_json, print_table
from holdfast.cli.target import Target, open_target
from holdfast.ports import RunQuery, RunRow, Status
from holdfast.views.failures import FailureGroup, group_summary, pages_of_group, read_failures
from holdfast.views.filters import parse_filter
from holdfast.views.times import ago, iso
from holdfast.views.values import PlainReader


@click.command()
@click.argument("terms", nargs=-1, metavar="[FILTER]...")
@json_option
@click.pass_context
def failures(context: click.Context, terms: tuple[str, ...], as_json: bool) -> None:
    """Failures that are alike, as one, those of most runs first: the same exception, raised in the same place, with a text
    that differs in values only. Of all runs that have failed or are stuck, and that FILTER finds if it is given.
    GROUP is what --failure of `runs list`, `runs retry` and their like takes."""
    target = open_target(context)
    query = parse_filter(" ".join(terms), target.store.now(), target.app.codec.encode)
    groups = read_failures(target.store, query, PlainReader(target.app.codec))
    if as_json:
        print_json([group_summary(group) for group in groups])
    else:
        now = target.store.now()
        print_table(["GROUP", "RUNS", "LAST", "WORKFLOWS", "FAILURE"], [_row(group, now) for group in groups],
                    left_out_first=("LAST", "WORKFLOWS"))  # fmt: skip
    if not groups:
        note("no run that matches has failed or is stuck" if terms else "no run has failed or is stuck")


def _row(group: FailureGroup, now: int) -> list[Styled | str]:
    where = f" ({group.where})" if group.where else ""
    return [
        group.fingerprint,
        str(group.count),
        Styled(ago(group.last_at, now) if on_terminal() else str(iso(group.last_at)), "dim"),
        ", ".join(name for name, _ in group.workflows.most_common()),
        Styled(f"{group.type}: {group.message}{where}", "red"),
    ]


def runs_failed_like(target: Target, query: RunQuery, group: str) -> list[RunRow]:
    """The newest runs of a group, of those that a query finds, as many as it asks for."""
    pages = pages_of_group(target.store, query, PlainReader(target.app.codec), group)
    found = list(itertools.islice(itertools.chain.from_iterable(pages), query.limit))
    if not found and query.after is None:
        raise _no_such_group(group)
    return found


def _no_such_group(group: str) -> NotFound:
    return NotFound(
        f"no run that matches has failed like {group!r}; `{command('runs', 'failures')}` shows which groups there are"
    )


class FailedAlike(Selection):
    """The runs of a group of failures, of those that a query finds."""

    def __init__(self, target: Target, query: RunQuery, group: str) -> None:
        super().__init__(target.app.client, query)
        self._group, self._reader = group, PlainReader(target.app.codec)
        if next(self._pages(query), None) is None:
            raise _no_such_group(group)

    def counts(self, action: Action | None = None) -> dict[Status, int]:
        query = self.query if action is None else applicable(self.query, action)
        found = () if query is None else self._pages(query)
        return Counter(Status(row.status) for rows in found for row in rows)

    def _pages(self, query: RunQuery) -> Iterator[list[RunRow]]:
        return pages_of_group(self._client.store, query, self._reader, self._group)
