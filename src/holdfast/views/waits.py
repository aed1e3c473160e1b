"""What a run waits for: steps, hooks, domain events, children and time."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Literal

import msgspec
from msgspec.structs import replace

from holdfast.core import events as ev
from holdfast.core.domain_events import Scalar
from holdfast.ports import Place, RunRow, Status, StepState
from holdfast.views.steps import StepView, steps_of

_CUT = r" and \d+ more$"
_REASON_ENDS = rf"(?=$|, |{_CUT})"

WaitKind = Literal["step", "retry", "limit", "hook", "event", "child", "sleep", "timeout"]
TIMEOUTS = frozenset({"timeout", "or a timeout"})
"""How a run's reason says that it doesn't wait for ever: alone, and after what it waits for."""


class HookView(msgspec.Struct, kw_only=True, frozen=True):
    """A hook that a run has asked for; with `where` it waits for a domain event. `closed_at` is when it was answered,
    by event `answer`, or expired. That the code stopped waiting for another reason is in no history."""

    cmd: str
    name: str
    key: str = ""
    where: dict[str, Scalar] | None = None
    opened_at: int = 0
    expires: int | None = None
    closed_at: int | None = None
    answer: int = 0
    cause: int = 0
    seq: int = 0

    def __str__(self) -> str:
        if self.where is None:
            return f"hook {self.name!r}" + (f" key {self.key!r}" if self.key else "")
        return f"event {self.name!r}" + (f" where {self.where}" if self.where else "")


class Wait(msgspec.Struct, kw_only=True, frozen=True):
    """One thing that a run waits for. `until` is when time ends the wait; `attempt` is that of a step; `place` is that in
    the line of a limit, of which `name` and `key` are told."""

    kind: WaitKind
    name: str = ""
    cmd: str = ""
    key: str = ""
    since: int | None = None
    until: int | None = None
    attempt: int = 0
    worker: str = ""
    child_id: str = ""
    where: dict[str, Scalar] | None = None
    place: int = 0
    handed_over: bool = False


def hooks_of(history: Iterable[ev.Event]) -> list[HookView]:
    """All hooks in the order they were asked for, answered as the code was: an answer is for the hook of its token, else
    for the first that is open under its name and key, else for the next one."""
    return _follow(history)[0]


def unclaimed(history: Iterable[ev.Event]) -> list[ev.HookReceived]:
    """What was sent, and what the code has not asked for so far, in the order it came."""
    return _follow(history)[1]


def _follow(history: Iterable[ev.Event]) -> tuple[list[HookView], list[ev.HookReceived]]:
    hooks: dict[str, HookView] = {}
    open_: dict[str, None] = {}
    early: dict[tuple[str, str], deque[ev.HookReceived]] = {}
    carried: tuple[ev.HookReceived, ...] = ()

    def close(cmd: str, event: ev.Event, answer: int) -> None:
        del open_[cmd]
        hooks[cmd] = replace(hooks[cmd], closed_at=max(event.ts, hooks[cmd].opened_at), answer=answer)

    for event in history:
        if isinstance(event, ev.StepOutcome):  # nearly all of a long history, and nothing here
            continue
        if isinstance(event, ev.Beginning | ev.RunEnded | ev.AttemptFailed):
            for cmd in list(open_):
                close(cmd, event, 0)
            if isinstance(event, ev.ContinuedAsNew):
                carried = event.hooks
            early.clear()
            for received in carried:
                early.setdefault((received.name, received.key), deque()).append(received)
        elif isinstance(event, ev.HookOpened):
            hooks[event.cmd] = HookView(
                cmd=event.cmd, name=event.name, key=event.key, where=event.where, opened_at=event.ts,
                expires=event.expires, cause=event.cause, seq=event.seq,
            )  # fmt: skip
            open_[event.cmd] = None
            if waiting := early.get((event.name, event.key)):
                close(event.cmd, event, waiting.popleft().seq)
        elif isinstance(event, ev.HookReceived):
            alike = [cmd for cmd in open_ if (hooks[cmd].name, hooks[cmd].key) == (event.name, event.key)]
            if event.token in open_:
                close(event.token, event, event.seq)
            elif alike:
                close(alike[0], event, event.seq)
            else:
                early.setdefault((event.name, event.key), deque()).append(event)
        elif isinstance(event, ev.OutcomeReused) and event.cmd in open_:
            close(event.cmd, event, event.source)
        elif isinstance(event, ev.TimerFired):
            for cmd in [cmd for cmd in open_ if (hooks[cmd].expires or event.due + 1) <= event.due]:
                close(cmd, event, 0)
    left = [received for waiting in early.values() for received in waiting]
    return list(hooks.values()), sorted(left, key=lambda received: received.seq)


def awaits(row: RunRow, name: str, key: str) -> bool | None:
    """Whether a run waits for such a hook, as far as its row tells: None while it is at work, or waits for more than its
    reason names."""
    if row.status != Status.WAITING:
        return None
    if re.search(re.escape(str(HookView(cmd="", name=name, key=key))) + _REASON_ENDS, row.reason):
        return True
    return None if re.search(_CUT, row.reason) else False


def open_hooks(history: Iterable[ev.Event], row: RunRow) -> list[HookView]:
    """The hooks and domain events that a run waits for now. That a hook was dropped, say because another one was
    answered first, is in no history; but a run that waits names the first few of what it waits for, in order."""
    found = [hook for hook in hooks_of(history) if hook.closed_at is None]
    if Status(row.status).is_final:
        return []
    if row.status != Status.WAITING or not row.reason:
        return found
    named = [re.search(re.escape(str(hook)) + _REASON_ENDS, row.reason) is not None for hook in found]
    if re.search(_CUT, row.reason) is None:
        return [hook for hook, is_named in zip(found, named, strict=True) if is_named]
    last = max((i for i, is_named in enumerate(named) if is_named), default=-1)
    return [hook for i, hook in enumerate(found) if named[i] or i > last]


def waits_of(
    history: Sequence[ev.Event],
    row: RunRow,
    steps: Sequence[StepView] | None = None,
    places: Sequence[Place] = (),
) -> list[Wait]:
    """What a run waits for, as far as its history and its row tell: a step that was handed over a moment ago and a
    timer that runs are in no history. Steps that execute come first, then retries, slots of limits, hooks, children and
    time."""
    if Status(row.status).is_final:
        return []
    steps = steps_of(history) if steps is None else steps
    found = [_wait_for(step) for step in steps if _is_waited_for(step)]
    in_line = in_line_of(places)
    lined_up = {wait.cmd for wait in in_line}
    found = [wait for wait in found if wait.cmd not in lined_up] + in_line
    found += [
        Wait(
            kind="hook" if hook.where is None else "event", name=hook.name, cmd=hook.cmd,
            key=hook.key if hook.where is None else "", where=hook.where, since=hook.opened_at, until=hook.expires,
        )
        for hook in open_hooks(history, row)
    ]  # fmt: skip
    found.sort(key=lambda wait: _ORDER.index(wait.kind))
    reasons = row.reason.split(", ") if row.status == Status.WAITING else []
    kind: WaitKind | None = "sleep" if "sleep" in reasons else "timeout" if TIMEOUTS & {*reasons} else None
    if kind is not None:
        found.append(Wait(kind=kind, since=history[-1].ts if history else None, until=row.wake_at))
    return found


def in_line_of(places: Sequence[Place]) -> list[Wait]:
    """The slots of limits that are waited for."""
    return [
        Wait(
            kind="limit", name=each.limit, cmd=each.cmd, key=each.key, since=each.asked_at, place=each.place,
            until=each.next_at if each.place == 1 else None,
        )
        for each in places
        if each.place
    ]  # fmt: skip


_ORDER = ("step", "retry", "limit", "hook", "event", "child")


def _is_waited_for(step: StepView) -> bool:
    return step.is_open and step.waited and (bool(step.tries) or step.is_child)


def _wait_for(step: StepView) -> Wait:
    if step.is_child:
        return Wait(kind="child", name=step.name, cmd=step.cmd, since=step.started_at, child_id=step.child_id)
    last = step.tries[-1]
    if step.state == StepState.RETRY:
        return Wait(
            kind="retry",
            name=step.name,
            cmd=step.cmd,
            since=last.ended_at,
            until=step.retry_at,
            attempt=last.number + 1,
        )
    running = step.state == StepState.STARTED
    return Wait(
        kind="step", name=step.name, cmd=step.cmd, attempt=last.number,
        since=last.started_at if running else last.ended_at, worker=last.worker if running else "",
        handed_over=step.handed_over,
    )  # fmt: skip
