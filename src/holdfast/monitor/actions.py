"""What the monitor can do to runs, schedules and views: each by the same handle that the command uses, in somebody's name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, get_args

import msgspec

from holdfast.api.client import Client
from holdfast.api.handles import Run
from holdfast.api.selection import Acted, Action, act_on, act_on_page, applicable
from holdfast.app import App
from holdfast.monitor.run_lists import RunLists, counted_of
from holdfast.monitor.source import COUNTED, Refusal, Source
from holdfast.monitor.starting import StartOrder, start
from holdfast.ports import RunQuery
from holdfast.views.filters import parse_filter

IN_TURN = 100
"""How many runs one request acts on; whoever asked goes on with the next."""
SELECTED = 500
VIEWS, VIEW_NAME, VIEW_FILTER = 100, 40, 2_000
"""How many views a store keeps, and how long their names and filters may be."""


class Order(msgspec.Struct, forbid_unknown_fields=True):
    """What the body of an action may say. `replace` are results by the numbers of their events."""

    id: str
    reason: str = ""
    at: int | None = None
    hook: str = ""
    key: str = ""
    payload: Any = None
    input: list[Any] | None = None
    replace: dict[int, Any] = {}
    filter: str = ""


class BulkOrder(msgspec.Struct, forbid_unknown_fields=True):
    """Which runs: those with these ids, those of a group of failures, or those that the filter `q` finds. `upto` is the
    newest of them when it was asked for, and `after` the last one of the batch before."""

    q: str = ""
    ids: list[str] = []
    fingerprint: str = ""
    reason: str = ""
    upto: int | None = None
    after: int | None = None


Act = Callable[[App, Client, Order], dict[str, Any]]


def carry_out(app: App, name: str, body: bytes, by: str) -> dict[str, Any]:
    client = app.client.acting_as(by)
    if name == "start":
        return start(app, client, _read(name, body, StartOrder))
    return _ACTIONS[name](app, client, _read(name, body, Order))


def _read(name: str, body: bytes, kind: type[Any]) -> Any:
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.DecodeError, RecursionError) as error:
        raise Refusal(f"the body of {name} can't be read: {error}") from None


def _on_run(act: Callable[[Run[Any], Order], None]) -> Act:
    def carry(app: App, client: Client, order: Order) -> dict[str, Any]:
        act(client.get(order.id), order)
        return {}

    return carry


def _fork(app: App, client: Client, order: Order) -> dict[str, Any]:
    if order.at is None:
        raise Refusal("fork needs `at`: the number of the last event to keep")
    input = None if order.input is None else tuple(order.input)
    replace: dict[int, object] = dict(order.replace)
    return {"id": client.get(order.id).fork(order.at, replace=replace, input=input).id}


def _send(run: Run[Any], order: Order) -> None:
    if not order.hook:
        raise Refusal("send needs `hook`: the name of the hook to answer")
    run.send(order.hook, order.payload, key=order.key or None)


def _pause_schedule(app: App, client: Client, order: Order) -> dict[str, Any]:
    app.schedules.pause(order.id, f"{order.reason} (by {client.by})".strip())
    return {}


def _resume_schedule(app: App, client: Client, order: Order) -> dict[str, Any]:
    app.schedules.resume(order.id)
    return {}


def _trigger_schedule(app: App, client: Client, order: Order) -> dict[str, Any]:
    return {"id": app.schedules.trigger(order.id).id}


def _save_view(app: App, client: Client, order: Order) -> dict[str, Any]:
    """For all who look at this store. Its name is `id`."""
    if not 0 < len(order.id) <= VIEW_NAME or not order.id.isprintable():
        raise Refusal(f"the name of a view has 1 to {VIEW_NAME} characters")
    if not 0 < len(order.filter) <= VIEW_FILTER or "\0" in order.filter:
        raise Refusal(f"save_view needs `filter`, of at most {VIEW_FILTER} characters")
    parse_filter(order.filter, app.store.now(), app.codec.encode)
    if len(app.store.saved_views()) >= VIEWS:
        raise Refusal(f"there are {VIEWS} views already; forget one first")
    app.store.save_view(order.id, order.filter)
    return {}


def _forget_view(app: App, client: Client, order: Order) -> dict[str, Any]:
    app.store.save_view(order.id, None)
    return {}


_ACTIONS: dict[str, Act] = {
    "cancel": _on_run(lambda run, order: run.cancel(order.reason)),
    "terminate": _on_run(lambda run, order: run.terminate(order.reason)),
    "pause": _on_run(lambda run, order: run.pause(order.reason)),
    "resume": _on_run(lambda run, order: run.resume()),
    "retry": _on_run(lambda run, order: run.retry()),
    "delete": _on_run(lambda run, order: run.delete()),
    "send": _on_run(_send),
    "fork": _fork,
    "pause_schedule": _pause_schedule,
    "resume_schedule": _resume_schedule,
    "trigger_schedule": _trigger_schedule,
    "save_view": _save_view,
    "forget_view": _forget_view,
}
NAMES = ("start", *_ACTIONS)
BULK: tuple[Action, ...] = get_args(Action)


# -- many runs


def preview(source: Source, name: Action, filter: str) -> dict[str, Any]:
    """How many runs it would be done to, by status; `upto` keeps those out that begin later."""
    query = applicable(source.query_of(filter), name)
    newest = source.store.runs(msgspec.structs.replace(query, limit=1)) if query is not None else []
    if query is None or not newest:
        return {"count": 0, "more": False, "statuses": {}, "upto": 0}
    counts = {status: n for status, n in source.store.counts(query, COUNTED).items() if n}
    most = COUNTED if query == RunQuery(statuses=query.statuses) else counted_of(query) // len(query.statuses)
    more = any(n >= most for n in counts.values())
    return {"count": sum(counts.values()), "more": more, "statuses": counts, "upto": newest[0].no}


def carry_out_for_many(source: Source, lists: RunLists, name: Action, body: bytes, by: str) -> dict[str, Any]:
    order = _read(name, body, BulkOrder)
    client = source.app.client.acting_as(by)
    after = None
    if order.fingerprint or order.ids:
        if len(order.ids) > SELECTED:
            raise Refusal(f"at most {SELECTED} runs can be named; give a filter")
        ids = order.ids or lists.run_ids_of_failure(order.q, order.fingerprint)
        rows = [row for row in map(source.find, ids) if row is not None]  # others may have deleted some meanwhile
        acted = act_on(client, name, rows, order.reason)
        acted = Acted(acted.done, acted.skipped + len(ids) - len(rows))
    else:
        if order.upto is None:
            raise Refusal("`upto` is missing: ask first how many runs there are, which says it")
        query = source.query_of(order.q)
        query.after, query.limit = order.upto + 1 if order.after is None else order.after, IN_TURN
        acted, after = act_on_page(client, name, query, order.reason)
    return {"done": acted.done, "skipped": acted.skipped, "after": after}
