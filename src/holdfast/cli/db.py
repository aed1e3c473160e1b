"""`holdfast db`: a store as a whole."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import click

from holdfast.app import SystemClock
from holdfast.cli.failures import Conflict, command, usage
from holdfast.cli.output import Styled, json_option, note, print_json, print_table, say
from holdfast.cli.target import find_app, must_exist
from holdfast.errors import StoreBusyError, StoreMovedError
from holdfast.ports import FINAL, RunQuery
from holdfast.printing import without_password
from holdfast.stores.copying import copy as copy_store
from holdfast.stores.moves import Move, move_of
from holdfast.stores.store import SqlStore
from holdfast.wiring import open_database

MANY = 100_000

store_argument = click.argument("url", required=False)


@contextlib.contextmanager
def _opened(url: str) -> Iterator[SqlStore]:
    store = open_database(url, SystemClock())
    try:
        yield store
    finally:
        store.close()


def _url(context: click.Context, given: str | None) -> str:
    """The store that is named here, or by the options."""
    root = context.find_root()
    url = given or root.params.get("store")
    if not url and root.params.get("target"):
        url = find_app(root.params["target"]).store_url
    if not url:
        usage("which store? Say `holdfast db ... URL`, or `holdfast --store URL db ...`; HOLDFAST_STORE does too")
    must_exist(url)
    return str(url)


@click.command()
@store_argument
@json_option
@click.pass_context
def status(context: click.Context, url: str | None, as_json: bool) -> None:
    """Which schema the store has, and whose runs are in it. Nothing is changed."""
    with _opened(_url(context, url)) as store:
        current, newest = store.schema_versions()
        facts: dict[str, Any] = {"store": store.url, "schema": current, "newest": newest}
        move = Move()
        if current:
            with store.read() as db:
                move = move_of(db)
        facts["moved_to"] = move.moved_to and move.moved_to.url
        facts["incoming_from"] = move.incoming and move.incoming.url
        facts["apps"] = _apps(store) if current == newest else []
    if as_json:
        print_json(facts)
        return
    say(f"{facts['store']}: {_in_words(current, newest)}")
    if move.moved_to:
        say(f"its runs were moved to {move.moved_to.url} on {move.moved_to.day}")
    if move.incoming:
        say(f"runs are being copied here from {move.incoming.url} since {move.incoming.day}")
    if facts["apps"]:
        rows = [[a["app"], str(a["open"]), str(a["ended"]), str(a["workers"])] for a in facts["apps"]]
        print_table(["APP", "OPEN", "ENDED", "WORKERS"], [[Styled(cell) for cell in row] for row in rows])


def _in_words(current: int, newest: int) -> str:
    if not current:
        return "there is nothing here yet; the first worker, or `holdfast db upgrade`, makes the tables"
    if current < newest:
        return f"schema {current}, and {newest} is the newest; `{command('db', 'upgrade')}` or any worker brings it up to date"
    if current > newest:
        return f"schema {current}, and this version of Holdfast knows {newest}; upgrade Holdfast"
    return f"schema {current}, up to date"


def _apps(store: SqlStore) -> list[dict[str, Any]]:
    found = []
    for app in store.apps():
        store.app = app
        counts = store.counts(RunQuery(), MANY)
        ended = sum(counts[status] for status in FINAL)
        now = store.now()
        alive = sum(worker.lease_until >= now for worker in store.workers())
        found.append({"app": app, "open": sum(counts.values()) - ended, "ended": ended, "workers": alive})
    return found


@click.command()
@store_argument
@json_option
@click.pass_context
def upgrade(context: click.Context, url: str | None, as_json: bool) -> None:
    """Bring the store's schema up to date, or make its tables. Workers do this too when they start; here it can be a
    step of its own in a deploy."""
    with _opened(_url(context, url)) as store:
        before, _ = store.schema_versions()
        store.upgrade()
        after, _ = store.schema_versions()
        if as_json:
            print_json({"store": store.url, "before": before, "after": after})
        elif before == after:
            say(f"{store.url}: schema {after}, up to date")
        else:
            say(f"{store.url}: schema {before} became {after}")


@click.command()
@click.argument("source")
@click.argument("target")
@json_option
def copy(source: str, target: str, as_json: bool) -> None:
    """Move all runs from SOURCE to TARGET, which has to be empty: a file, or postgresql://...

    Runs in flight go on at the new place. No worker may live at the old one, and once all is copied it is marked as
    moved, so that nobody works on it again. If this is interrupted, say it again."""
    for url in (source, target):
        if url == ":memory:":
            usage("a store in memory lives in one process, so it can't be copied; use a file")
    must_exist(source)
    with _opened(source) as old, _opened(target) as new:
        try:
            copied = copy_store(old, new)
        except (StoreBusyError, StoreMovedError) as error:
            raise Conflict(str(error)) from error
        rows = sum(copied.rows.values())
        if as_json:
            print_json({"from": old.url, "to": new.url, "rows": copied.rows, "finished": copied.finished})
        elif copied.finished:
            say(f"finished: the runs of {old.url} are at {new.url}")
        else:
            say(f"moved {rows} rows from {old.url} to {new.url}")
    note(f"start workers there: set HOLDFAST_STORE={without_password(target)}")
