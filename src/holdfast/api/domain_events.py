"""Domain events, as the code of workflows and steps uses them."""

from __future__ import annotations

import functools
import logging
from collections.abc import Coroutine
from typing import Any, TypeVar, overload

from msgspec import Raw

from holdfast.api.calls import Call, StepCall
from holdfast.api.checks import check_model
from holdfast.api.hooks import Answer, run_that_waits
from holdfast.api.models import TypeForm
from holdfast.codec import Codec
from holdfast.core.context import StepContext, current_step
from holdfast.core.domain_events import Where, address, check_event_key, check_event_name, check_where, event_id
from holdfast.core.execution import Execution
from holdfast.core.loop import Future, running
from holdfast.durations import Duration, to_wait
from holdfast.printing import show

M = TypeVar("M")
logger = logging.getLogger("holdfast")


class EventWait(Answer[M]):
    """A domain event that a workflow waits for: await it for the payload."""

    __slots__ = ()
    _nobody = "there was no event"


def emit(name: str, payload: object = None, *, key: str | None = None) -> Coroutine[None, None, str]:
    """Emit a domain event from a workflow or a step; its id. From elsewhere: `app.emit(...)`.

    In a step it is held until the attempt has succeeded. The same name and `key` again is the same event.
    """
    check_event_name(name, emitting=True)
    check_event_key(name, key)
    loop, step = running(), current_step.get()
    if loop is None:
        soon = functools.partial(_emit_soon, name, payload, key)
        return soon() if step is None else StepCall(step, soon, f"emit {name!r}")
    execution: Execution = loop.execution

    def begin() -> Future[str]:
        done: Future[str] = Future(execution.loop)
        done.set_result(emit_now(name, payload, key))
        return done

    return Call(execution, begin, f"emit {name!r}")


async def _emit_soon(name: str, payload: object, key: str | None) -> str:
    return emit_now(name, payload, key)


def emit_now(name: str, payload: object, key: str | None) -> str:
    """What `emit` does when it is awaited, and `wf.emit` at once."""
    check_event_name(name, emitting=True)
    check_event_key(name, key)
    loop, step = running(), current_step.get()
    if loop is not None:
        execution: Execution = loop.execution
        return execution.outputs.emit(name, Raw(encode_event(execution.codec, name, payload)), key)
    if step is not None:
        return emit_in_step(step, name, payload, key)
    logger.warning("emit(%r) outside a run reaches nobody: use app.emit(...) there", name)
    return event_id("", name, key or "")


def emit_in_step(step: StepContext, name: str, payload: object, key: str | None) -> str:
    step.touch()
    key = step.emit(name, encode_event(step.codec, name, payload), key)
    return event_id(step.attempt.app, name, key)


def encode_event(codec: Codec, name: str, payload: object) -> bytes:
    return codec.encode(payload, f"the payload of event {name!r}")


@overload
def wait_for_event(
    name: str, *, where: Where | None = None, timeout: Duration | None = None
) -> Coroutine[None, None, Any]: ...
@overload
def wait_for_event(
    name: str, *, where: Where | None = None, timeout: Duration | None = None, payload: type[M]
) -> Coroutine[None, None, M]: ...
@overload
def wait_for_event(
    name: str, *, where: Where | None = None, timeout: Duration | None = None, payload: TypeForm
) -> Coroutine[None, None, Any]: ...
def wait_for_event(
    name: str, *, where: Where | None = None, timeout: Duration | None = None, payload: Any = None
) -> Coroutine[None, None, Any]:
    """Wait for the next domain event of that name that has these values; its payload, as a `payload` if that is given.

    Raises TimeoutError in the workflow if there is none within `timeout`.
    """
    execution = run_that_waits(f"wait_for_event({show(name)})", "wait")
    check_event_name(name)
    if payload is not None:
        check_model("payload", payload)
    wanted = check_where(name, where)
    us = None if timeout is None else to_wait(timeout, "timeout")
    return EventWait(execution, name, us, address(wanted), payload, wanted)
