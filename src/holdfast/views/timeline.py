"""A run over time: a lane for the run itself and one for each step, child, hook and sleep, ready for a waterfall."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
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
    """One line of a waterfall; its spans are in order and don't overlap. A step that was only planned has none."""

    kind: LaneKind
    name: str
    spans: tuple[Span, ...]
    cmd: str = ""
    key: str = ""
    state: str = ""
    part_of: str = ""
    undoes: str = ""
    child_id: str = ""


class Timeline(msgspec.Struct, frozen=True, kw_only=True):
    """Every span lies between `start` and `end`. The run's own lane comes first, the others as they began."""

    start: int
    end: int
    lanes: tuple[Lane, ...]


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
) -> Timeline:
    """`steps` are those of the history, if they are known already; with `most`, lanes are made for the first of them."""
    steps = steps_of(history) if steps is None else steps
    start = min([row.created_at or now, *(event.ts for event in history[:1])])
    last = max((event.ts for event in history), default=start)
    # A fork has the times of the run that it was made from, and clocks may be set back.
    end = max(start, last, row.finished_at if row.finished_at is not None else now)
    found = [_step_lane(step, now) for step in steps[:most]]
    found += _hook_lanes(history, row, last)
    found += _timer_lanes(history, row, steps)
    lanes = [msgspec.structs.replace(lane, spans=_in_order(lane.spans, start, end)) for lane in found]
    lanes.sort(key=lambda lane: lane.spans[0].start if lane.spans else end)
    own = Lane(kind="run", name=row.workflow, state=row.status, spans=_in_order(_run_spans(history, row), start, end))
    return Timeline(start=start, end=end, lanes=(own, *lanes))


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
