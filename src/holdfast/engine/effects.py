"""What workflow code asks for beside steps, as parts of the change that is committed: child runs, hooks, domain events, data,
answers, messages to others."""

from __future__ import annotations

import msgspec
from msgspec import Raw

from holdfast.core import commands as co
from holdfast.core import events as ev
from holdfast.core.execution import Execution
from holdfast.core.pending import FLAGS
from holdfast.engine.domain_events import wait_of
from holdfast.engine.records import (
    PRIORITY_HEAD_START,
    AnswerBody,
    RunOptions,
    ask_child,
    control,
    correlation_of,
    data_attribute,
    fingerprint,
    not_a_child,
    sent_hook,
    to_record,
)
from holdfast.engine.run_state import RunState
from holdfast.ports import Answer, NewItem, NewRun, Unsubscription


def carry_out(state: RunState, execution: Execution, command: co.Command, now: int) -> None:
    change, row, codec = state.change, state.row, state.shared.app.codec
    if isinstance(command, co.StartChild):
        change.children.append(_child(state, command, now))
        if command.again:
            change.messages.append(ask_child(codec, command.child_id, "retry", row.id, command.cmd))
    elif isinstance(command, co.WatchChild):
        change.messages.append(ask_child(codec, command.child_id, "watch", row.id, command.cmd))
    elif isinstance(command, co.CancelChild):
        change.messages.append(control(command.child_id, "cancel", command.reason, child_of=row.id))
    elif isinstance(command, co.OpenHook | co.CloseHook):
        if command.where is not None:
            opened = isinstance(command, co.OpenHook)
            change.signals.append(wait_of(command) if opened else Unsubscription(cmd=command.cmd))
        elif command.key:
            names = [hook.name for hook in execution.hooks.pending.values() if hook.key == command.key]
            change.publish_hook_key(command.key, names)
    elif isinstance(command, co.EmitEvent):
        state.emit(command.name, command.key, command.payload, command.cmd, now)
    elif isinstance(command, co.StreamItem):
        change.streamed.append(NewItem(command.cmd, row.attempt, now, bytes(command.item)))
    elif isinstance(command, co.PublishData):
        change.publish(command.key, bytes(command.value))
    elif isinstance(command, co.GiveAnswer):
        body = msgspec.json.encode(AnswerBody(answer=command.answer, error=command.error))
        change.answers.append(Answer(command.request, command.seq, body))
    elif isinstance(command, co.SendHook):
        change.messages.append(sent_hook(row.id, command.run_id, command.name, command.key, command.payload))


def _child(state: RunState, command: co.StartChild, now: int) -> NewRun:
    row, given = state.row, command.options
    options = RunOptions(
        timeout=given.get("timeout"),  # type: ignore[arg-type]
        max_retries=given.get("max_retries"),  # type: ignore[arg-type]
        notify=command.waited,
        trace=state.options.trace,
        quiet=state.options.quiet,
        headers=state.options.headers,
    )
    priority = int(given.get("priority", row.priority))  # type: ignore[call-overload]
    delay = int(given.get("delay", 0))  # type: ignore[call-overload]
    data: dict[str, Raw] = given.get("data", {})  # type: ignore[assignment]
    started = ev.RunStarted(
        seq=1,
        ts=now + delay,
        workflow=command.name,
        input=command.args,
        seed=int(state.shared.clock.random() * 2**53),
        flags=FLAGS,
        data=data,
    )
    head_start = 0 if delay else priority * PRIORITY_HEAD_START  # it must not begin a delayed run early
    refusal = None
    if "id" in given and not command.again:
        refusal = not_a_child(state.shared.app.codec, command.child_id, row.id, command.cmd)
    return NewRun(
        id=command.child_id, workflow=command.name, records=[to_record(started)],
        wake_at=now + delay - head_start, created_at=now, fingerprint=fingerprint(command.name, bytes(command.args)),
        priority=priority, parent_id=row.id, parent_cmd=command.cmd, root_id=row.root_id or row.id,
        correlation=correlation_of(row), options=options.to_json(), durable=bool(given.get("durable", True)),
        attributes=[data_attribute(key, bytes(value)) for key, value in data.items()], if_taken=refusal,
    )  # fmt: skip
