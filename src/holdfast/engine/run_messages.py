"""Messages from others to a run whose code is in memory, as the events that it sees or that are only noted."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

from holdfast.core import events as ev
from holdfast.core.execution import Execution
from holdfast.engine.records import (
    AskMessage,
    BeatMessage,
    ChildMessage,
    HookMessage,
    OutcomeMessage,
    SlotMessage,
    StreamMessage,
    UndeliveredMessage,
)
from holdfast.engine.run_state import RunState
from holdfast.ports import NewItem, Status

logger = logging.getLogger("holdfast.engine")


def events_of(body: Any, state: RunState, execution: Execution, now: int) -> Iterator[ev.Event]:
    """One at a time: whoever asks appends each, or delivers it to the code, before it asks for the next."""
    if isinstance(body, HookMessage):
        if not (body.token and body.token in execution.hooks.answered):
            yield ev.HookReceived(
                ts=now, name=body.name, key=body.key, payload=body.payload, token=body.token, event=body.event,
                by=body.by,
            )  # fmt: skip
    elif isinstance(body, AskMessage):
        yield ev.RequestReceived(ts=now, name=body.name, request=body.request, payload=body.payload)
    elif isinstance(body, UndeliveredMessage):
        logger.warning(
            "run %s: %s was not delivered: %s", state.row.id, body.message, body.reason, extra=state.log_fields
        )
        yield ev.MessageDropped(ts=now, message=body.message, reason=body.reason)
    elif isinstance(body, ChildMessage):
        yield from _child_ended(body, execution, now)
    elif isinstance(body, OutcomeMessage | SlotMessage | BeatMessage | StreamMessage):
        yield from _about_a_step(body, state, execution, now)


def _child_ended(body: ChildMessage, execution: Execution, now: int) -> Iterator[ev.Event]:
    child = execution.children.pending.get(body.cmd)
    if child is None or child.child_id != body.child_id:
        return
    common: dict[str, Any] = {
        "ts": now, "cmd": child.cmd, "cause": child.cause, "name": child.name, "args": child.args,
        "child_id": child.child_id,
    }  # fmt: skip
    if body.status == Status.SUCCESS:
        yield ev.ChildCompleted(**common, result=body.result)
    elif body.status == Status.FAILURE:
        yield ev.ChildFailed(**common, error=body.error)
    else:
        yield ev.ChildCancelled(**common, reason=body.reason)


def _about_a_step(
    body: OutcomeMessage | SlotMessage | BeatMessage | StreamMessage, state: RunState, execution: Execution, now: int
) -> Iterator[ev.Event]:
    step, steps = execution.steps.pending.get(body.cmd), state.steps
    if isinstance(body, SlotMessage):
        if steps.slots.granted(body) and step is not None:
            yield from steps.schedule(step, now)
    elif body.run_no != state.row.no:  # an earlier run may have had the same id
        return
    elif isinstance(body, StreamMessage):
        state.change.streamed.append(NewItem(body.cmd, body.attempt, body.ts, bytes(body.item), body.place))
    elif step is not None:
        is_wanted = body.since in (0, execution.journal.since)
        if isinstance(body, OutcomeMessage):  # its engine had lost the run when it arrived
            if is_wanted and body.step not in ("", step.name) and not body.lost:
                execution.begun_as_another(step, body.step)
            yield from state.ends.take_message(body, step, is_wanted, now)
        elif is_wanted:
            yield from state.ends.beat(body, step, now)
