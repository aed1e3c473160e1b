"""What is left of a run that is ended without asking its code: the children and the waits that have to end with it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeGuard

from holdfast.core import events as ev
from holdfast.core.execution import Execution
from holdfast.core.pending import PendingHook


def children_left(execution: Execution | None, history: Iterable[ev.Event]) -> list[str]:
    """The children that end with it: those that it waits for and hasn't abandoned. A run that is in memory knows them;
    for one that isn't, or isn't yet where its history ends, that says so."""
    if execution is not None:
        return [child.child_id for child in execution.children.pending.values() if child.waited and not child.abandon]
    left: dict[str, None] = {}
    abandoned: set[str] = set()
    for event in history:
        if isinstance(event, ev.Beginning | ev.AttemptFailed):
            left.clear()
        elif isinstance(event, ev.ChildStarted) and event.abandon:
            abandoned.add(event.child_id)
        elif _is_waited_for(event) and event.child_id not in abandoned:
            left[event.child_id] = None
        elif isinstance(event, ev.ChildCompleted | ev.ChildFailed | ev.ChildCancelled | ev.ChildDropped):
            left.pop(event.child_id, None)
    return list(left)


def _is_waited_for(event: ev.Event) -> TypeGuard[ev.ChildStarted | ev.ChildAwaited]:
    return isinstance(event, ev.ChildAwaited) or (
        isinstance(event, ev.ChildStarted) and event.waited and bool(event.child_id)
    )


def hooks_left(execution: Execution | None, history: Iterable[ev.Event]) -> list[ev.HookOpened | PendingHook]:
    """The waits that others find it by. Without the code it is not known which ones are over; to end one twice is harmless."""
    if execution is not None:
        return list(execution.hooks.pending.values())
    return [event for event in history if isinstance(event, ev.HookOpened)]
