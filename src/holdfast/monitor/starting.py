"""Runs that people start in a browser: what a workflow takes, for a form, and the run that comes of it."""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.api.checks import check_id
from holdfast.api.client import Client
from holdfast.api.forms import call_schema
from holdfast.api.options import StartOptions, check_call, check_input
from holdfast.app import App
from holdfast.codec.paths import Misfit, explain
from holdfast.core.definitions import StepDefinition, WorkflowDefinition
from holdfast.core.registry import is_own
from holdfast.errors import ArgumentError, EncodeError, RunExistsError, UnknownNameError
from holdfast.monitor.source import Conflict, Refusal, Source
from holdfast.ports import RunQuery


class StartOrder(msgspec.Struct, forbid_unknown_fields=True):
    """What to start, with a list of arguments or an object of them by name, and the id that the run gets."""

    workflow: str
    input: list[Any] | dict[str, Any] = []
    id: str = ""


def start_form(source: Source, name: str) -> dict[str, Any] | None:
    """How a run of that name is started; None if it can't be. `schema` is that of all arguments by name, None where they
    are given as JSON. Those of code that is not `known` here are checked by the worker that takes the run up."""
    if not _can_be_started(source.app, name):
        return None
    if not source.definitions.knows(name):
        return {"known": False, "schema": None}
    schema = call_schema(source.definitions.find_startable(name))
    for each, field in {} if schema is None else schema["properties"].items():
        # One that is not to be seen is left to the code, too.
        if (
            "default" in field
            and source.reader.named(each, source.app.codec.encode(field["default"])) != field["default"]
        ):
            del field["default"]
    return {"known": True, "schema": schema}


def start(app: App, client: Client, order: StartOrder) -> dict[str, Any]:
    name = order.workflow
    if not _can_be_started(app, name):
        raise UnknownNameError(
            f"no workflow named {name!r} in app {app.name!r}: neither this monitor nor a worker knows it, and it has no runs"
        )
    args, kwargs = (order.input, {}) if isinstance(order.input, list) else ([], order.input)
    if app.definitions.knows(name):
        call = _encoded(app, app.definitions.find_startable(name), args, kwargs)
    else:
        call = app.codec.encode_call(tuple(args), kwargs, f"the arguments of {name!r}")
    # Whoever gives an id that is taken wants to know: here it is no program that repeats itself.
    options = StartOptions(if_exists="error", id=_checked(order.id) if order.id else None)
    try:
        return {"id": client.start(name, call, options).id}
    except RunExistsError as error:
        raise Conflict(str(error), field="id") from None


def _checked(run_id: str) -> str:
    try:
        check_id(run_id)
    except ArgumentError as error:
        raise Refusal(str(error), field="id") from None
    return run_id


def _can_be_started(app: App, name: str) -> bool:
    """Whether anybody knows it. One that nobody knows would be a run that is stuck."""
    if not name or "\0" in name or name.endswith("*") or is_own(name):
        return False
    if app.definitions.knows(name) or any(name in worker.names for worker in app.store.workers()):
        return True
    return bool(app.store.runs(RunQuery(workflow=name, limit=1)))


def _encoded(
    app: App, definition: StepDefinition | WorkflowDefinition, args: list[Any], kwargs: dict[str, Any]
) -> bytes:
    """The call as it is recorded, with the types that its annotations ask for: the same as if code had started it."""
    bound, named = check_call(definition.name, definition, tuple(args), kwargs)
    given = list(bound)
    what = f"the arguments of {definition.name!r}"
    try:
        definition.hints.fit(given, named)
        definition.hints.check(given, named)
    except (Misfit, RecursionError) as error:
        field = error.steps[-1] if isinstance(error, Misfit) and error.steps else ""
        raise Refusal(explain(error, what, root=""), field=field) from None
    check_input(definition, given, named)
    try:
        return app.codec.encode_call(tuple(given), named, what, definition.hints)
    except EncodeError as error:
        raise Refusal(str(error)) from None
