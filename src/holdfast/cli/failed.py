"""`holdfast runs failures`: failures that are alike, as one; and the runs of one such group."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import click

from holdfast.api.selection import BATCH, Action, Selection, applicable
from holdfast.cli.failures import NotFound, command
from holdfast.cli.output import Styled, json_option, note, on_terminal, print_json, print_table
from holdfast.cli.target import Target, open_target
from holdfast.ports import RunQuery, RunRow, Status
from holdfast.views.failures import FAILURES_LOOKED_AT, FailureGroup, group_summary, read_failures
from holdfast.views.filters import parse_filter
from holdfast.views.times import ago, iso
from holdfast.views.values import PlainReader


@click.command()
@click.argument("terms", nargs=-1, metavar="[FILTER]...")
@json_option
@click.pass_context
def failures(context: click.Context, terms: tuple[str, ...], as_json: bool) -> None:
    """Failures that are alike, as one, those of most runs first: the same exception, raised in the same place, with a text
    that differs in values only. Of the newest 1,000 runs that have failed or are stuck, and that FILTER finds if it is
    given. GROUP is what --failure of `runs list`, `runs retry` and their like takes."""
    target = open_target(context)
    groups = groups_of(target, parse_filter(" ".join(terms), target.store.now(), target.app.codec.encode))
    if as_json:
        print_json([group_summary(group) for group in groups])
    else:
        now = target.store.now()
        print_table(["GROUP", "RUNS", "LAST", "WORKFLOWS", "FAILURE"], [_row(group, now) for group in groups],
                    left_out_first=("LAST", "WORKFLOWS"))  # fmt: skip
    if not groups:
        note("no run that matches has failed or is stuck" if terms else "no run has failed or is stuck")
    elif sum(len(group.run_ids) for group in groups) == FAILURES_LOOKED_AT:
        note(
            f"these are the newest {FAILURES_LOOKED_AT:,} failures; there may be more: narrow it down, as with 'started:<1d'"
        )


def _row(group: FailureGroup, now: int) -> list[Styled | str]:
    where = f" ({group.where})" if group.where else ""
    return [
        group.fingerprint,
        str(len(group.run_ids)),
        Styled(ago(group.last_at, now) if on_terminal() else str(iso(group.last_at)), "dim"),
        ", ".join(name for name, _ in group.workflows.most_common()),
        Styled(f"{group.type}: {group.message}{where}", "red"),
    ]


def groups_of(target: Target, query: RunQuery) -> list[FailureGroup]:
    return read_failures(target.store, query, PlainReader(target.app.codec))


def runs_failed_like(target: Target, query: RunQuery, group: str) -> list[RunRow]:
    """The runs of a group, newest first, of those that a query finds."""
    found = [each for each in groups_of(target, query) if each.fingerprint == group]
    if not found:
        raise NotFound(
            f"no run that matches has failed like {group!r}; `{command('runs', 'failures')}` shows which groups there are"
        )
    return [row for run_id in found[0].run_ids if (row := target.store.get(run_id)) is not None]


class FailedAlike(Selection):
    """The runs of a group of failures, of those that a query finds, as they were when they were looked for."""

    def __init__(self, target: Target, query: RunQuery, group: str) -> None:
        super().__init__(target.app.client, query)
        self._rows = runs_failed_like(target, query, group)

    def counts(self, action: Action | None = None) -> dict[Status, int]:
        query = self.query if action is None else applicable(self.query, action)
        found = [] if query is None else self._pages(query)
        return Counter(Status(row.status) for rows in found for row in rows)

    def _pages(self, query: RunQuery) -> Iterator[list[RunRow]]:
        rows = [row for row in self._rows if not query.statuses or row.status in query.statuses]
        for at in range(0, len(rows), BATCH):
            yield rows[at : at + BATCH]
