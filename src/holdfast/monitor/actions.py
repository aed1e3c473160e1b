"""What the monitor can do to runs and schedules: each by the same handle that the command uses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from holdfast.app import App

NAMES = ("cancel", "pause", "resume", "retry", "fork", "send", "pause_schedule", "resume_schedule", "trigger_schedule")


class Refusal(Exception):
    """A request that can't be carried out as it is; the text says why."""


class Order(msgspec.Struct, forbid_unknown_fields=True):
    """What the body of an action may say."""

    id: str
    reason: str = ""
    at: int | None = None
    hook: str = ""
    key: str = ""
    payload: Any = None
    input: list[Any] | None = None


def carry_out(app: App, name: str, body: bytes) -> dict[str, Any]:
    try:
        order = msgspec.json.decode(body, type=Order)
    except msgspec.DecodeError as error:
        raise Refusal(f"the body of {name} can't be read: {error}") from None
    return _ACTIONS[name](app, order)


def _cancel(app: App, order: Order) -> dict[str, Any]:
    app.get_run(order.id).cancel(order.reason)
    return {}


def _pause(app: App, order: Order) -> dict[str, Any]:
    app.get_run(order.id).pause(order.reason)
    return {}


def _resume(app: App, order: Order) -> dict[str, Any]:
    app.get_run(order.id).resume()
    return {}


def _retry(app: App, order: Order) -> dict[str, Any]:
    app.get_run(order.id).retry()
    return {}


def _fork(app: App, order: Order) -> dict[str, Any]:
    if order.at is None:
        raise Refusal("fork needs `at`: the number of the last event to keep")
    input = None if order.input is None else tuple(order.input)
    return {"id": app.get_run(order.id).fork(order.at, input=input).id}


def _send(app: App, order: Order) -> dict[str, Any]:
    if not order.hook:
        raise Refusal("send needs `hook`: the name of the hook to answer")
    app.get_run(order.id).send(order.hook, order.payload, key=order.key or None)
    return {}


def _pause_schedule(app: App, order: Order) -> dict[str, Any]:
    app.schedules.pause(order.id, order.reason)
    return {}


def _resume_schedule(app: App, order: Order) -> dict[str, Any]:
    app.schedules.resume(order.id)
    return {}


def _trigger_schedule(app: App, order: Order) -> dict[str, Any]:
    return {"id": app.schedules.trigger(order.id).id}


_ACTIONS: dict[str, Callable[[App, Order], dict[str, Any]]] = {
    "cancel": _cancel, "pause": _pause, "resume": _resume, "retry": _retry, "fork": _fork, "send": _send,
    "pause_schedule": _pause_schedule, "resume_schedule": _resume_schedule, "trigger_schedule": _trigger_schedule,
}  # fmt: skip
