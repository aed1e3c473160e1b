"""A run over time: a lane for the run itself and one for each step, child, hook and sleep, ready for a waterfall."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Literal

import msgspec

from holdfast.core import events as ev
from holdfast.ports import RunRow, Status, StepState
from holdfast.views.statuses import statuses_of
from holdfast.views.steps import StepView, steps_of
from holdfast.views.waits import HookView, hooks_of, open_hooks, waits_of

LaneKind = Literal["run", "step", "child", "hook", "event", "sleep", "timer"]
SpanKind = Literal[
    "delayed", "queued", "running", "executing", "retry wait", "paused", "stuck", "reused", "group", "child", "hook",
    "event", "sleep", "timer",
]  # fmt: skip


class Span(msgspec.Struct, frozen=True, kw_only=True):
    """A stretch of time. Without `end` it goes on; `until` is when time will end it. `outcome` is that of an attempt."""

    kind: SpanKind
    start: int
    end: int | None = None
    until: int | None = None
    attempt: int = 0
    worker: str = ""
    outcome: str = ""


class Lane(msgspec.Struct, frozen=True, kw_only=True):
    """One line of a waterfall; its spans are in order and don't overlap. A step that was only planned has none.

    Many neighbours of one name can be one lane: how many there are in each of their `states`, the first of them as
    `members`, and `at`, the place of the first among all steps. Its spans are when any of them was at work."""

    kind: LaneKind
    name: str
    spans: tuple[Span, ...]
    cmd: str = ""
    key: str = ""
    state: str = ""
    part_of: str = ""
    undoes: str = ""
    child_id: str = ""
    states: dict[str, int] = {}
    members: tuple[Lane, ...] = ()
    at: int = 0


class Timeline(msgspec.Struct, frozen=True, kw_only=True):
    """Every span lies between `start` and `end`. The run's own lane comes first, the others as they began. Of its steps
    those from `after` on are left out."""

    start: int
    end: int
    lanes: tuple[Lane, ...]
    after: int | None = None


INSIDE = 100
"""So many lanes come with the one that stands for all of them."""
PIECES = 200
_OF_STATUS: dict[str, SpanKind] = {
    Status.PENDING: "queued", Status.RUNNING: "running", Status.RETRY: "retry wait", Status.PAUSED: "paused",
    Status.STUCK: "stuck",
}  # fmt: skip


def timeline_of(
    history: Sequence[ev.Event],
    row: RunRow,
    now: int,
    steps: Sequence[StepView] | None = None,
    most: int | None = None,
    fold: int | None = None,
) -> Timeline:
    """`steps` are those of the history, if they are known already; with `most`, that many lanes are made of them, the
    first. More than `fold` neighbours of one name become one lane."""
    steps = steps_of(history) if steps is None else steps
    start, last, end = _bounds(history, row, now)
    found, after = _step_lanes(steps, now, start, end, most, fold)
    others = [*_hook_lanes(history, row, last), *_timer_lanes(history, row, steps)]
    lanes = [*found, *(msgspec.structs.replace(lane, spans=_in_order(lane.spans, start, end)) for lane in others)]
    lanes.sort(key=lambda lane: lane.spans[0].start if lane.spans else end)
    own = Lane(kind="run", name=row.workflow, state=row.status, spans=_in_order(_run_spans(history, row), start, end))
    return Timeline(start=start, end=end, lanes=(own, *lanes), after=after)


def lanes_of(
    history: Sequence[ev.Event], row: RunRow, now: int, steps: Sequence[StepView], at: int, limit: int
) -> list[Lane]:
    """Lanes of steps, from one of their places on."""
    start, _, end = _bounds(history, row, now)
    return [_one(step, now, start, end) for step in _as_asked(steps)[at : at + limit]]


def _bounds(history: Sequence[ev.Event], row: RunRow, now: int) -> tuple[int, int, int]:
    """When it began, when something last happened, and until when it is drawn."""
    start = min([row.created_at or now, *(event.ts for event in history[:1])])
    last = max((event.ts for event in history), default=start)
    # A fork has the times of the run that it was made from, and clocks may be set back.
    return start, last, max(start, last, row.finished_at if row.finished_at is not None else now)


def _as_asked(steps: Sequence[StepView]) -> list[StepView]:
    """In the order in which the code asked for them; last what it has not asked for yet."""
    return sorted(steps, key=lambda step: (step.asked_at is None, step.asked_at))


def _step_lanes(
    steps: Sequence[StepView], now: int, start: int, end: int, most: int | None, fold: int | None
) -> tuple[list[Lane], int | None]:
    ordered = _as_asked(steps)
    if fold is None:
        return [_one(step, now, start, end) for step in ordered[:most]], None
    found: list[Lane] = []
    at = 0
    for _, alike in groupby(ordered, key=lambda step: (step.name, step.is_child, step.part_of, step.reused)):
        group = list(alike)
        if len(group) > fold:
            found.append(_folded(group, at, now, start, end))
        else:
            found += [_one(step, now, start, end) for step in group]
        at += len(group)
        if most is not None and len(found) >= most and at < len(ordered):
            return found, at
    return found, None


def _one(step: StepView, now: int, start: int, end: int) -> Lane:
    lane = _step_lane(step, now)
    return msgspec.structs.replace(lane, spans=_in_order(lane.spans, start, end))


def _folded(group: Sequence[StepView], at: int, now: int, start: int, end: int) -> Lane:
    first = group[0]
    return Lane(
        kind="child" if first.is_child else "step", name=first.name, spans=_when_at_work(group, start, end),
        cmd=f"many:{at}", part_of=first.part_of, states=dict(Counter(str(step.state) for step in group)), at=at,
        members=tuple(_one(step, now, start, end) for step in group[:INSIDE]),
    )  # fmt: skip


def _when_at_work(group: Sequence[StepView], start: int, end: int) -> tuple[Span, ...]:
    """Stretches in which any of them was, with those that failed apart. What is closer than can be seen is one."""
    kind: SpanKind = "reused" if group[0].reused else "executing"
    near = (end - start) // PIECES
    found: list[Span] = []
    for outcome in ("", "FAILURE"):
        times = [
            (max(start, step.started_at), None if step.ended_at is None else min(end, step.ended_at))
            for step in group
            if step.started_at is not None and (step.state == StepState.FAILURE) == bool(outcome)
        ]
        times.sort(key=lambda each: each[0])
        pieces: list[tuple[int, int | None]] = []
        for begin, over in times:
            if pieces and (pieces[-1][1] is None or begin <= pieces[-1][1] + near):
                known = pieces[-1][1]
                pieces[-1] = (pieces[-1][0], None if known is None or over is None else max(known, over))
            else:
                pieces.append((begin, over))
        found += [Span(kind=kind, start=begin, end=over, outcome=outcome) for begin, over in pieces]
    return tuple(found)


def _in_order(spans: Sequence[Span], start: int, end: int) -> tuple[Span, ...]:
    """Inside the run, each after the one before: workers' clocks differ a little. What has no length is left out,
    unless something was done in it."""
    kept: list[Span] = []
    at = start
    for span in spans:
        begin = min(max(span.start, at), end)
        over = None if span.end is None else min(max(span.end, begin), end)
        if over == begin and span.kind in ("queued", "retry wait", "delayed", "running"):
            continue
        kept.append(msgspec.structs.replace(span, start=begin, end=over))
        at = end if over is None else over
    return tuple(kept)


def _run_spans(history: Sequence[ev.Event], row: RunRow) -> list[Span]:
    changes = statuses_of(history, row)
    if not changes:
        return []
    spans = [Span(kind="delayed", start=row.created_at, end=changes[0].at)] if row.created_at < changes[0].at else []
    for change, after in zip(changes, [*changes[1:], None], strict=True):
        if not change.status.is_final:
            spans.append(Span(kind=_OF_STATUS[change.status], start=change.at, end=None if after is None else after.at))
    return spans


def _step_lane(step: StepView, now: int) -> Lane:
    return Lane(
        kind="child" if step.is_child else "step", name=step.name, spans=tuple(_step_spans(step, now)), cmd=step.cmd,
        key=step.key, state=str(step.state), part_of=step.part_of, undoes=step.undoes, child_id=step.child_id,
    )  # fmt: skip


def _step_spans(step: StepView, now: int) -> Iterator[Span]:
    if step.asked_at is None:
        return
    if step.reused:
        yield Span(kind="reused", start=step.asked_at, end=step.asked_at, outcome=str(step.state))
    elif step.is_child:
        yield Span(kind="child", start=step.asked_at, end=step.ended_at, outcome=_outcome(step.state))
    elif not step.tries:
        kind: SpanKind = "queued" if step.started_at is None or step.state == StepState.CANCELLED else "group"
        yield Span(kind=kind, start=step.asked_at, end=step.ended_at, outcome=_outcome(step.state))
    else:
        yield from _attempts(step, now)


def _attempts(step: StepView, now: int) -> Iterator[Span]:
    """Queued, executing, waiting for a retry, queued again..."""
    at = step.asked_at or 0
    for attempt, after in zip(step.tries, [*step.tries[1:], None], strict=True):
        if attempt.started_at > at:
            yield Span(kind="queued", start=at, end=attempt.started_at, attempt=attempt.number)
        yield Span(
            kind="executing", start=attempt.started_at, end=attempt.ended_at, attempt=attempt.number,
            worker=attempt.worker, outcome="LOST" if attempt.state == StepState.PENDING else _outcome(attempt.state),
        )  # fmt: skip
        if attempt.ended_at is None:
            return
        at = attempt.ended_at
        next_at = after.started_at if after is not None else step.ended_at
        if attempt.retry_at:
            ends = min(time for time in (attempt.retry_at, next_at, max(at, now)) if time is not None)
            goes_on = next_at is None and attempt.retry_at > now
            yield Span(
                kind="retry wait", start=at, end=None if goes_on else ends, until=attempt.retry_at,
                attempt=attempt.number + 1,
            )  # fmt: skip
            if goes_on:
                return
            at = ends
    if step.ended_at is None or at < step.ended_at:
        yield Span(kind="queued", start=at, end=step.ended_at, attempt=step.attempts)


def _outcome(state: StepState) -> str:
    return "" if state in (StepState.STARTED, StepState.PENDING) else str(state)


def _hook_lanes(history: Sequence[ev.Event], row: RunRow, last: int) -> Iterator[Lane]:
    waiting = {hook.cmd for hook in open_hooks(history, row)}
    for hook in hooks_of(history):
        kind: Literal["hook", "event"] = "hook" if hook.where is None else "event"
        ended = hook.closed_at if hook.closed_at is not None or hook.cmd in waiting else max(last, hook.opened_at)
        span = Span(kind=kind, start=hook.opened_at, end=ended, until=hook.expires, outcome=_answer(hook))
        yield Lane(
            kind=kind, name=hook.name, spans=(span,), cmd=hook.cmd, key=hook.key if hook.where is None else "",
            state="WAITING" if hook.cmd in waiting else "",
        )  # fmt: skip


def _answer(hook: HookView) -> str:
    return "" if hook.closed_at is None else "answered" if hook.answer else "closed"


def _timer_lanes(history: Sequence[ev.Event], row: RunRow, steps: Sequence[StepView]) -> Iterator[Lane]:
    """Sleeps and timeouts: recorded when they are over, told by the row until then. That of a hook is the hook's."""
    of_hooks = {hook.expires for hook in hooks_of(history)}
    for event in history:
        if isinstance(event, ev.TimerFired) and (event.sleep or event.due not in of_hooks):
            kind: Literal["sleep", "timer"] = "sleep" if event.sleep else "timer"
            span = Span(kind=kind, start=event.due - event.delay, end=event.ts, until=event.due)
            yield Lane(kind=kind, name=kind, spans=(span,), cmd=event.cmd)
    for wait in waits_of(history, row, steps):
        if wait.kind == "sleep" and wait.since is not None:
            span = Span(kind="sleep", start=wait.since, until=wait.until)
            yield Lane(kind="sleep", name="sleep", spans=(span,), state="WAITING")
