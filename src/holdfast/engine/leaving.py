"""How a run leaves although its code has not come to an end: terminated, or set aside because it can't go on."""

from __future__ import annotations

import contextlib
import logging

import msgspec
from msgspec import Raw

from holdfast.core import events as ev
from holdfast.core.execution import Execution
from holdfast.engine.records import MESSAGES, ControlMessage, control
from holdfast.engine.run_inbox import is_order
from holdfast.engine.run_state import RunState
from holdfast.engine.termination import children_left, hooks_left
from holdfast.ports import InboxRow, Status, Unsubscription
from holdfast.printing import printable, text_of

logger = logging.getLogger("holdfast.engine")


def terminate(state: RunState, message: InboxRow, there: Execution | None, now: int) -> None:
    """End it, whatever its code is like: nothing of it runs, not even its clean-up. `there` is its code, if that is where the
    history ends."""
    state.inbox.termination = None
    state.inbox.deliveries.remove(message)
    state.change.consumed.append(message.id)
    try:
        body = msgspec.json.decode(message.body, type=ControlMessage)
    except msgspec.DecodeError as error:
        body = ControlMessage(reason=printable(text_of(error)))
    for child_id in children_left(there, state.history):
        why = f"its parent {state.row.id} was terminated: {body.reason}"
        state.change.messages.append(control(child_id, "terminate", why, child_of=state.row.id))
    for hook in hooks_left(there, state.history):
        if hook.where is not None:
            state.change.signals.append(Unsubscription(cmd=hook.cmd))
        elif hook.key:
            state.change.drop_attribute("hook", hook.key)
    for cmd in list(state.steps.inflight):
        state.steps.drop(cmd)
    state.steps.forget_unscheduled()
    state.read_terms()
    end = ev.RunCancelled(ts=now, reason=body.reason, terminated=True, by=body.by)
    if state.row.durable:
        state.change.append(end)
    state.end(end, now)
    state.change.columns |= {"held": 0, "stuck": ""}


def obey(state: RunState, now: int) -> bool:
    """Cancel or pause a run that continues as new: code that does nothing else never comes to another moment."""
    for message in state.inbox.messages("cancel", "pause"):
        state.inbox.deliveries.remove(message)
        state.change.consumed.append(message.id)
        body = state.read(message, state.append, now)
        if body is None:
            return False
        if message.kind == "cancel":
            state.end_outside(ev.RunCancelled(ts=now, reason=body.reason, by=body.by), now)
        else:
            state.append(ev.RunPaused(ts=now, reason=body.reason, by=body.by))
            state.leave({"status": Status.PAUSED, "held": 1, "reason": body.reason, "wake_at": None})
        return True
    return False


def set_aside(state: RunState, now: int, error: BaseException, stuck: str, has_code: bool) -> None:
    """The code can't go on: take back what isn't committed, keep every outcome, and say why. Nothing here depends on what the
    run's code, values or rows are like: a run that can't be set aside would end every worker in turn."""
    inbox, change, me = state.inbox, state.change, state.shared.me
    reason = printable(text_of(error))
    messages = inbox.messages()
    cancel = next((message for message in messages if message.kind == "cancel"), inbox.cancel)
    outcomes = state.steps.kept(inbox.deliveries)
    inbox.deliveries.clear()
    state.steps.forget_unscheduled()
    change.clear()
    change.consumed = inbox.orders
    state.keep_outcomes(outcomes)
    if not has_code:
        _answer_orders(state, messages)
    if cancel is not None:
        state.history = []
        end = ev.RunCancelled(ts=now, reason=f"cancelled while its code could not go on: {reason}")
        change.consumed.append(cancel.id)
        change.append(end)
        state.end(end, now)
    elif stuck == "diverged" and state.row.build != me.build and state.row.build in me.others:
        # Another worker still has the code that made this history.
        state.leave({"status": Status.PENDING, "wake_at": now + 1_000_000})
    else:
        event = ev.RunStuck(ts=now, reason=reason, error=_encoded(state, error))
        change.append(event)
        state.tell(event)
        logger.error("run %s is set aside: %s", state.row.id, reason, extra=state.log_fields)
        state.leave(
            {"status": Status.STUCK, "held": 1, "reason": reason, "stuck": stuck, "wake_at": None, "losses": 0}
        )  # fmt: skip


def write_the_least(state: RunState, now: int, error: BaseException) -> None:
    """Not even how the run was set aside can be written: what can is that it was."""
    columns = state.change.columns
    state.change.clear()
    state.change.columns = columns
    state.change.append(ev.RunStuck(ts=now, reason=printable(text_of(error))))


def _answer_orders(state: RunState, messages: list[InboxRow]) -> None:
    """Its code was not even begun, so no code will read these: left where they are they would wake it for ever."""
    for message in messages:
        if message.kind == "cancel" or not is_order(message):
            continue
        state.change.consumed.append(message.id)
        with contextlib.suppress(msgspec.DecodeError, KeyError):
            state.notify_later(msgspec.json.decode(message.body, type=MESSAGES[message.kind]))


def _encoded(state: RunState, error: BaseException) -> Raw:
    try:
        return Raw(state.shared.app.codec.encode_error(error))
    except BaseException as why:  # a transform of the codec fails, or the error itself; the reason is told in words
        logger.error(
            "the error of run %s can't be encoded: %s", state.row.id, printable(text_of(why)), extra=state.log_fields
        )
        return ev.NULL
