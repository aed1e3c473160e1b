"""`holdfast doctor`: what keeps runs from going on, and what to do about it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import click

from holdfast.cli.failures import RUN_FAILED, command
from holdfast.cli.output import Line, Styled, json_option, print_json, print_lines
from holdfast.cli.target import Target, open_target
from holdfast.stores.schema import migrations
from holdfast.views.findings import Finding, Snapshot, findings_of, read_snapshot
from holdfast.views.times import SECOND, length

MARKS = {"ok": Styled("ok  ", "green"), "note": Styled("note", "yellow"), "bad": Styled("BAD ", "bold red")}


@click.command()
@json_option
@click.pass_context
def doctor(context: click.Context, as_json: bool) -> None:
    """Look at the store, the workers and the runs, and say what is wrong. Exit code 1 if something is, 5 if the store
    can't be reached."""
    target = open_target(context)
    findings = [*_store(target), *findings_of(_snapshot(target))]
    if as_json:
        print_json([_facts(finding, target) for finding in findings])
    else:
        print_lines(line for finding in findings for line in _lines(finding, target))
    if any(finding.level == "bad" for finding in findings):
        context.exit(RUN_FAILED)


def _store(target: Target) -> Iterator[Finding]:
    begun = time.monotonic()
    store = target.store  # opening it checks the schema
    now = store.now()
    took = length(round((time.monotonic() - begun) * SECOND))
    text = f"{store.url} answers in {took}; app {target.app.name!r}, schema {migrations()[-1][0]}"
    yield Finding(check="store", level="ok", text=text)
    if strain := store.strain():
        what, _, remedy = strain.partition("; ")
        yield Finding(check="store", level="bad", text=what, remedy=remedy)
    offset = now - time.time_ns() // 1_000
    if abs(offset) > SECOND:
        way = "ahead of" if offset > 0 else "behind"
        text = f"the store's clock is {length(abs(offset))} {way} this machine's"
        yield Finding(check="clock", level="note", text=text, remedy="synchronise them (NTP)")


def _snapshot(target: Target) -> Snapshot:
    if not target.has_code:
        return read_snapshot(target.store, "", ())
    return read_snapshot(target.store, target.app.build, target.app.definitions.known_names())


def _remedy(finding: Finding, target: Target) -> str:
    if not finding.command:
        return finding.remedy
    return (
        f"{finding.remedy}: {target.start_a_worker() if finding.command == ('worker',) else command(*finding.command)}"
    )


def _facts(finding: Finding, target: Target) -> dict[str, Any]:
    return {
        "check": finding.check,
        "level": finding.level,
        "text": finding.text,
        "remedy": _remedy(finding, target),
        "items": finding.items,
        "facts": finding.facts,
    }


def _lines(finding: Finding, target: Target) -> Iterator[Line]:
    yield [MARKS[finding.level], Styled(f"  {finding.check:<9}", "dim"), Styled(finding.text)]
    for item in finding.items:
        yield [Styled(" " * 17), Styled(item, "dim")]
    if remedy := _remedy(finding, target):
        yield [Styled(" " * 15 + "→ "), Styled(remedy)]
