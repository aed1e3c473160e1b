"""The JSON API, described: OpenAPI 3.1, made from one table."""

from __future__ import annotations

from typing import Any, NamedTuple

from holdfast import __version__
from holdfast.api.selection import APPLIES

TEXT: dict[str, Any] = {"type": "string"}
NUMBER: dict[str, Any] = {"type": "integer", "minimum": 0, "maximum": 10**17}
LIST: dict[str, Any] = {"type": "array"}
OBJECT: dict[str, Any] = {"type": "object"}
MAYBE_NUMBER: dict[str, Any] = {"type": ["integer", "null"]}
MAYBE_TEXT: dict[str, Any] = {"type": ["string", "null"]}


class Parameter(NamedTuple):
    name: str
    text: str
    schema: dict[str, Any] = TEXT
    required: bool = False


FILTER = Parameter("q", "a filter, such as `status:failed workflow:order* data.customer=42 started:<1h`")
ID = Parameter("id", "the id of a run", required=True)
AFTER = Parameter("after", "what the page before said", NUMBER)
LIMIT = Parameter("limit", "how many at most", NUMBER)
SECONDS = Parameter("seconds", "how long back", NUMBER)
OPEN = Parameter("open", "fans to show one by one", {"type": "array", "items": TEXT})
SEQ = Parameter("seq", "the number of an event", NUMBER)
AT = Parameter("at", "the last event to keep", NUMBER)
PLACE = Parameter("at", "the place of a step among all of the run", NUMBER)
OF_RUN = Parameter("workflow_id", "those of one run")
AFTER_STEP = Parameter("after", "what the page before said")
CMD = Parameter("cmd", "the step's command", required=True)
NAME = Parameter("name", "the name of a workflow", required=True)

READING: dict[str, tuple[str, list[Parameter], dict[str, Any]]] = {
    "about": ("what is looked at, and what you may do", [], {"app": TEXT, "store": TEXT, "may": LIST}),
    "runs": ("a page of runs, newest first", [FILTER, AFTER, LIMIT], {"runs": LIST, "after": MAYBE_NUMBER, "version": TEXT}),
    "counts": ("runs by status, whatever the filter says of that", [FILTER], {"counts": OBJECT, "more": LIST}),
    "counts/time": ("runs by status and when they began", [FILTER, SECONDS], {"bars": LIST, "width": NUMBER}),
    "views": ("filters that were given a name, for all", [], {"views": LIST}),
    "run": ("all about a run", [ID], {"id": TEXT, "status": TEXT, "why": OBJECT, "steps": LIST, "timeline": OBJECT}),
    "run/values": ("its input, result and data in full", [ID], {"input": {}, "data": OBJECT}),
    "run/lanes": ("rows of its timeline that were left out", [ID, PLACE, LIMIT], {"lanes": LIST, "after": MAYBE_NUMBER}),
    "run/graph": ("its steps and what led to them", [ID, OPEN], {"shape": TEXT, "nodes": LIST, "edges": LIST}),
    "run/tree": ("its steps and children", [ID], {"name": TEXT, "state": TEXT, "children": LIST}),
    "run/family": ("runs above and below it, and what domain events have led to", [ID], {"tree": OBJECT, "above": LIST}),
    "run/events": ("a page of its events", [ID, AFTER, LIMIT], {"events": LIST, "after": MAYBE_NUMBER}),
    "run/event": ("one event, its cause and what followed", [ID, SEQ], {"event": OBJECT, "followed": LIST}),
    "run/stream": ("what it has streamed", [ID, AFTER, LIMIT], {"items": LIST, "after": MAYBE_NUMBER}),
    "run/reruns": ("what a fork would execute anew", [ID, AT], {"reruns": LIST}),
    "invocations": ("a page of steps across runs", [FILTER, OF_RUN, AFTER_STEP, LIMIT],
                    {"invocations": LIST, "after": MAYBE_TEXT, "looked_at": NUMBER}),
    "invocation": ("all about one step", [ID, CMD], {"name": TEXT, "state": TEXT, "tries": LIST}),
    "timeline": ("what each worker has executed", [FILTER, SECONDS], {"lanes": LIST, "seconds": NUMBER}),
    "failures": ("failures that are alike, as one", [FILTER], {"groups": LIST, "count": NUMBER}),
    "workflows": ("what can be started, and how it went", [], {"workflows": LIST}),
    "workflow": ("one of them, how it is started, and a grid of steps and runs", [NAME],
                 {"name": TEXT, "grid": OBJECT, "start": {"type": ["object", "null"]}}),
    "workers": ("workers and queues", [], {"workers": LIST, "queues": LIST}),
    "schedules": ("schedules", [], {"schedules": LIST}),
    "findings": ("what keeps runs from going on", [], {"findings": LIST, "more": NUMBER}),
    "hooks": ("a page of hooks that wait for an answer", [AFTER], {"hooks": LIST, "after": MAYBE_NUMBER, "version": TEXT}),
}  # fmt: skip
RUN = {"id": TEXT}
ARGUMENTS: dict[str, Any] = {"type": ["array", "object"], "description": "arguments in their order, or by name"}
ACTIONS: dict[str, tuple[str, dict[str, Any], list[str]]] = {
    "start": ("start a run, which has the id that is answered", {**RUN, "workflow": TEXT, "input": ARGUMENTS}, ["workflow"]),
    "cancel": ("raise CancelledError where the run waits", {**RUN, "reason": TEXT}, ["id"]),
    "terminate": ("end it without asking its code", {**RUN, "reason": TEXT}, ["id", "reason"]),
    "pause": ("let nothing new begin", {**RUN, "reason": TEXT}, ["id"]),
    "resume": ("go on", RUN, ["id"]),
    "retry": ("try it again, keeping what it has completed", RUN, ["id"]),
    "delete": ("forget it", RUN, ["id"]),
    "send": ("answer a hook", {**RUN, "hook": TEXT, "key": TEXT, "payload": {}}, ["id", "hook"]),
    "fork": ("a new run from a point in its history", {**RUN, "at": NUMBER, "input": LIST, "replace": OBJECT}, ["id", "at"]),
    "pause_schedule": ("let a schedule start nothing", {**RUN, "reason": TEXT}, ["id"]),
    "resume_schedule": ("let it go on", RUN, ["id"]),
    "trigger_schedule": ("start a run of it now", RUN, ["id"]),
    "save_view": ("keep a filter under a name, for all", {**RUN, "filter": TEXT}, ["id", "filter"]),
    "forget_view": ("forget a filter that was kept", RUN, ["id"]),
}  # fmt: skip
MAKES_RUNS = ("start", "fork", "trigger_schedule")
ERRORS = {
    "400": "it can't be read, or makes no sense", "401": "who are you?", "403": "you may not", "404": "there is none",
    "409": "not in this state", "413": "it is too long", "422": "it can't be done", "503": "the store can't be reached",
}  # fmt: skip


def described(base: str) -> dict[str, Any]:
    paths: dict[str, Any] = {}
    for path, (text, parameters, answer) in READING.items():
        paths[f"/api/{path}"] = {"get": _operation(text, answer, [_parameter(each) for each in parameters])}
    for name in APPLIES:
        answer = {"count": NUMBER, "more": {"type": "boolean"}, "statuses": OBJECT, "upto": NUMBER}
        preview = _operation(f"how many runs {name} would be done to", answer, [_parameter(FILTER)])
        order = {
            "q": TEXT, "ids": {"type": "array", "items": TEXT}, "fingerprint": TEXT, "reason": TEXT,
            "upto": NUMBER, "after": NUMBER,
        }  # fmt: skip
        done = {"done": NUMBER, "skipped": NUMBER, "after": MAYBE_NUMBER}
        paths[f"/api/bulk/{name}"] = {
            "get": preview,
            "post": _acting(f"{name} many runs, a batch", name, order, [], done),
        }
    for name, (text, order, required) in ACTIONS.items():
        made = RUN if name in MAKES_RUNS else {}
        paths[f"/api/actions/{name}"] = {"post": _acting(text, name, order, required, made)}
    return {
        "openapi": "3.1.0",
        "info": {"title": "Holdfast monitor", "version": __version__},
        "servers": [{"url": base or "/"}],
        "security": [{"token": []}],
        "paths": paths,
        "components": {
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
            "schemas": {"Error": {**_object({"error": TEXT, "field": TEXT}), "required": ["error"]}},
        },
    }


def _object(properties: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": [*properties]}


def _parameter(parameter: Parameter) -> dict[str, Any]:
    return {
        "name": parameter.name, "in": "query", "description": parameter.text, "required": parameter.required,
        "schema": parameter.schema,
    }  # fmt: skip


def _content(schema: dict[str, Any]) -> dict[str, Any]:
    return {"application/json": {"schema": schema}}


def _operation(text: str, answer: dict[str, Any], parameters: list[dict[str, Any]]) -> dict[str, Any]:
    failed = {"$ref": "#/components/schemas/Error"}
    responses = {status: {"description": words, "content": _content(failed)} for status, words in ERRORS.items()}
    good = {"description": "what was asked for", "content": _content(_object(answer))}
    return {"summary": text, "parameters": parameters, "responses": {"200": good, **responses}}


def _acting(text: str, name: str, order: dict[str, Any], required: list[str], answer: dict[str, Any]) -> dict[str, Any]:
    """Pages of other sites can't send the header."""
    header = {"name": "x-holdfast-action", "in": "header", "required": True, "schema": {"const": name}}
    body = {"type": "object", "properties": order, "required": required, "additionalProperties": False}
    return {**_operation(text, answer, [header]), "requestBody": {"required": True, "content": _content(body)}}
