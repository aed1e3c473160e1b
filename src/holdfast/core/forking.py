"""A new history from the beginning of another one: the same up to a point, and open from there."""

from __future__ import annotations

import re

import msgspec
from msgspec import Raw

from holdfast.core import events as ev
from holdfast.errors import RunError

_COMMAND = re.compile(r"(\d+)([a-z].*)", re.S)


class Fork(msgspec.Struct):
    """`reruns` names the steps and children that were under way at that point, and will run anew."""

    events: list[ev.Event]
    reruns: list[str]


def fork(history: list[ev.AnyEvent], run_id: str, at: int, replace: dict[int, Raw], input: Raw | None = None) -> Fork:
    """The events up to number `at`, renumbered, with the results in `replace` put in place of recorded ones."""
    if not history or not history[0].seq <= at <= history[-1].seq:
        raise RunError(
            f"run {run_id} has events {history[0].seq if history else 0} to {history[-1].seq if history else 0}; "
            f"it can't be forked at {at}",
            run_id=run_id,
        )
    kept = [event for event in history if event.seq <= at]
    first = max(i for i, e in enumerate(kept) if isinstance(e, ev.RunStarted | ev.ContinuedAsNew))
    kept = kept[first:]
    over = ev.StepCancelled | ev.ChildDropped
    ended = {e.cmd for e in kept if isinstance(e, ev.Commanded) and (e.delivered or isinstance(e, over))}
    reruns: dict[str, str] = {}
    numbers: dict[int, int] = {}
    out: list[ev.Event] = []
    for event in kept:
        if isinstance(event, ev.RunPaused | ev.RunResumed | ev.RunStuck | ev.RunEnded):
            continue
        if isinstance(event, ev.StepOutcome | ev.ChildStarted) and event.cmd not in ended:
            known = event.cmd in reruns
            reruns[event.cmd] = event.name
            if known or isinstance(event, ev.StepOutcome):
                continue
            event = msgspec.structs.replace(event, child_id="", again=False)
        if isinstance(event, ev.ArgumentsChanged):
            continue
        numbers[event.seq] = len(out) + 1
        out.append(_renumbered(_replaced(event, replace.pop(event.seq, None), run_id), numbers))
    if replace:
        raise RunError(
            f"run {run_id}: there is no outcome to replace at event {', '.join(map(str, sorted(replace)))} up to {at}; "
            "give the number of a StepCompleted, StepFailed, ChildCompleted or ChildFailed",
            run_id=run_id,
        )
    beginning = out[0]
    assert isinstance(beginning, ev.RunStarted | ev.ContinuedAsNew)
    if input is not None:
        beginning = out[0] = msgspec.structs.replace(beginning, input=input)
    out[0] = msgspec.structs.replace(beginning, forked_from=run_id)
    return Fork(out, list(reruns.values()))


def _replaced(event: ev.Event, result: Raw | None, run_id: str) -> ev.Event:
    if result is None:
        return event
    if isinstance(event, ev.StepCompleted | ev.StepFailed):
        fields = {name: getattr(event, name) for name in ev.StepOutcome.__struct_fields__}
        return ev.StepCompleted(**fields, result=result)
    if isinstance(event, ev.ChildCompleted | ev.ChildFailed):
        fields = {name: getattr(event, name) for name in ev.ChildOutcome.__struct_fields__}
        return ev.ChildCompleted(**fields, result=result)
    raise RunError(
        f"run {run_id}: event {event.seq} is {event.kind}, which has no result to replace; give the number of an outcome",
        run_id=run_id,
    )


def _renumbered(event: ev.Event, numbers: dict[int, int]) -> ev.Event:
    changes: dict[str, object] = {"seq": numbers[event.seq]}
    if isinstance(event, ev.Commanded):
        changes["cause"] = numbers.get(event.cause, event.cause)
        changes["cmd"] = _command(event.cmd, numbers)
    if isinstance(event, ev.StepOutcome | ev.ChildStarted) and event.undoes:
        changes["undoes"] = _command(event.undoes, numbers)
    if isinstance(event, ev.OutcomeReused):
        changes["source"] = numbers[event.source]
    if isinstance(event, ev.ChildAwaited):
        changes["args"] = Raw(msgspec.json.encode(_command(msgspec.json.decode(event.args, type=str), numbers)))
    return msgspec.structs.replace(event, **changes)


def _command(cmd: str, numbers: dict[int, int]) -> str:
    found = _COMMAND.fullmatch(cmd)
    return f"{numbers.get(int(found[1]), int(found[1]))}{found[2]}" if found else cmd
