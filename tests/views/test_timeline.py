"""Spans of a run: inside it, in order, each step once."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw
from view_histories import NAMES, SECOND, T0, golden, numbered, row_of

from holdfast.core import events as ev
from holdfast.ports import Status
from holdfast.views.steps import steps_of
from holdfast.views.timeline import INSIDE, Lane, Timeline, lanes_of, timeline_of

GOLDEN = {name: golden(name) for name in NAMES}


def started() -> ev.RunStarted:
    return ev.RunStarted(ts=T0, workflow="buy")


def step(kind: type[ev.StepOutcome], at: int, cmd: str = "1s0", **fields: Any) -> ev.StepOutcome:
    return kind(ts=T0 + at, cmd=cmd, cause=1, name="charge", args=Raw(b'{"args":[1]}'), worker="w1", **fields)


def spans_of(lane: Lane) -> list[tuple[str, int, int | None]]:
    return [(span.kind, span.start - T0, None if span.end is None else span.end - T0) for span in lane.spans]


def lane_of(timeline: Timeline, kind: str) -> Lane:
    (found,) = (lane for lane in timeline.lanes if lane.kind == kind)
    return found


def check(history: list[Any], timeline: Timeline) -> None:
    for lane in timeline.lanes:
        at = timeline.start
        for span in lane.spans:
            assert at <= span.start <= timeline.end
            at = timeline.end if span.end is None else span.end
            assert span.start <= at <= timeline.end
        assert all(span.end is not None for span in lane.spans[:-1])
    commands = [lane.cmd for lane in timeline.lanes if lane.kind in ("step", "child")]
    assert sorted(commands) == sorted(view.cmd for view in steps_of(history))
    assert timeline.lanes[0].kind == "run"


@pytest.mark.parametrize("name", NAMES)
def test_every_span_of_every_prefix_lies_inside_its_run(name: str) -> None:
    history = GOLDEN[name]
    for end in range(1, len(history) + 1):
        check(history[:end], timeline_of(history[:end], row_of(history[:end]), history[end - 1].ts + 1))


@given(
    st.sampled_from(NAMES),
    st.lists(st.integers(-5 * SECOND, 5 * SECOND), min_size=8, max_size=8),
    st.integers(-10 * SECOND, 3600 * SECOND),
    st.sampled_from(["", "sleep", "hook 'x', or a timeout"]),
)
def test_that_holds_for_clocks_that_differ(name: str, drift: list[int], later: int, reason: str) -> None:
    history: list[Any] = [
        msgspec.structs.replace(event, ts=event.ts + drift[i % len(drift)]) for i, event in enumerate(GOLDEN[name])
    ]
    row = row_of(history, status=Status.WAITING, reason=reason) if reason else row_of(history)
    check(history, timeline_of(history, row, history[-1].ts + later))


def test_a_step_is_queued_executed_and_waits_for_its_retry() -> None:
    history = numbered(
        started(),
        step(ev.StepRetrying, 30, attempt=1, started=T0 + 10, retry_at=T0 + 100),
        step(ev.StepLost, 150, attempt=2, started=T0 + 120),
        step(ev.StepCompleted, 300, attempt=2, started=T0 + 200),
        ev.RunCompleted(ts=T0 + 310),
    )
    lane = lane_of(timeline_of(history, row_of(history), T0 + 999), "step")
    assert spans_of(lane) == [
        ("queued", 0, 10), ("executing", 10, 30), ("retry wait", 30, 100), ("queued", 100, 120),
        ("executing", 120, 150), ("queued", 150, 200), ("executing", 200, 300),
    ]  # fmt: skip
    executed = [(span.attempt, span.outcome, span.worker) for span in lane.spans if span.kind == "executing"]
    assert executed == [(1, "RETRY", "w1"), (2, "LOST", "w1"), (2, "SUCCESS", "w1")]


def test_what_goes_on_has_no_end() -> None:
    retrying = step(ev.StepRetrying, 30, attempt=1, started=T0 + 10, retry_at=T0 + 100)
    history = numbered(started(), retrying)
    timeline = timeline_of(history, row_of(history), T0 + 50)
    assert spans_of(lane_of(timeline, "step"))[-1] == ("retry wait", 30, None)
    timeline = timeline_of(history, row_of(history), T0 + 150)
    assert spans_of(lane_of(timeline, "step"))[-2:] == [("retry wait", 30, 100), ("queued", 100, None)]
    history = numbered(*history, step(ev.StepStarted, 160, attempt=2, started=T0 + 160))
    assert spans_of(lane_of(timeline_of(history, row_of(history), T0 + 200), "step"))[-1] == ("executing", 160, None)


def test_a_step_that_was_cancelled_while_it_waited_ends_there() -> None:
    retrying = step(ev.StepRetrying, 30, attempt=1, started=T0 + 10, retry_at=T0 + 100)
    history = numbered(started(), retrying, step(ev.StepCancelled, 60))
    assert spans_of(lane_of(timeline_of(history, row_of(history), T0 + 70), "step"))[-1] == ("retry wait", 30, 60)


def test_sleeps_hooks_and_children_have_lanes() -> None:
    history = numbered(
        started(),
        ev.ChildStarted(ts=T0 + 5, cmd="1c0", cause=1, name="ship", child_id="buy.ship"),
        ev.HookOpened(ts=T0 + 6, cmd="1h0", cause=1, name="approval", expires=T0 + 500),
        ev.TimerFired(ts=T0 + 101, cmd="1t0", cause=1, due=T0 + 100, delay=90, sleep=True),
        ev.HookReceived(ts=T0 + 110, name="approval"),
        ev.ChildCompleted(ts=T0 + 120, cmd="1c0", cause=1, name="ship", child_id="buy.ship"),
    )
    timeline = timeline_of(history, row_of(history), T0 + 200)
    assert spans_of(lane_of(timeline, "child")) == [("child", 0, 120)]
    assert spans_of(lane_of(timeline, "hook")) == [("hook", 6, 110)]
    assert lane_of(timeline, "hook").spans[0].outcome == "answered"
    assert spans_of(lane_of(timeline, "sleep")) == [("sleep", 10, 101)]


def test_the_timeout_of_a_hook_is_no_lane_of_its_own() -> None:
    opened = ev.HookOpened(ts=T0, cmd="1h0", cause=1, name="approval", expires=T0 + 50)
    fired = ev.TimerFired(ts=T0 + 51, cmd="1t0", cause=1, due=T0 + 50, delay=50)
    history = numbered(started(), opened, fired)
    timeline = timeline_of(history, row_of(history), T0 + 60)
    assert [lane.kind for lane in timeline.lanes] == ["run", "hook"]
    assert lane_of(timeline, "hook").spans[0].outcome == "closed"


def test_a_sleep_that_goes_on_is_told_by_the_row() -> None:
    history = numbered(started(), step(ev.StepCompleted, 20, started=T0 + 10))
    row = row_of(history, status=Status.WAITING, reason="sleep", wake_at=T0 + 900)
    lane = lane_of(timeline_of(history, row, T0 + 100), "sleep")
    assert spans_of(lane) == [("sleep", 20, None)]
    assert lane.spans[0].until == T0 + 900


def test_the_run_itself_is_a_lane_of_its_statuses() -> None:
    history = numbered(
        ev.RunStarted(ts=T0 + 50, workflow="buy"),
        ev.RunPaused(ts=T0 + 100, reason="wait"),
        ev.RunResumed(ts=T0 + 200),
        ev.RunCompleted(ts=T0 + 300),
    )
    row = row_of(history, created_at=T0, started_at=T0 + 60)
    assert spans_of(timeline_of(history, row, T0 + 999).lanes[0]) == [
        ("delayed", 0, 50), ("queued", 50, 60), ("running", 60, 100), ("paused", 100, 200), ("running", 200, 300),
    ]  # fmt: skip


def test_many_neighbours_of_one_name_are_one_lane_and_each_of_them_can_be_had() -> None:
    n = INSIDE + 50
    many = [step(ev.StepCompleted, 10 + i, cmd=f"1s{i}", started=T0 + 5 + i) for i in range(n)]
    many[7] = step(ev.StepFailed, 17, cmd="1s7", started=T0 + 12)
    others = [
        ev.StepCompleted(ts=T0 + 1_000 + i, cmd=f"2s{i}", cause=n + 1, name=f"other {i % 2}", args=Raw(b"{}"))
        for i in range(6)
    ]
    history = numbered(started(), *many, *others)
    row, steps = row_of(history), steps_of(history)
    timeline = timeline_of(history, row, T0 + 2_000, steps, most=3, fold=12)
    fold, *rest = timeline.lanes[1:]
    assert (fold.name, fold.states, len(fold.members)) == ("charge", {"SUCCESS": n - 1, "FAILURE": 1}, INSIDE)
    assert [lane.cmd for lane in fold.members] == [f"1s{i}" for i in range(INSIDE)]
    assert spans_of(fold) == [("executing", 5, 9 + n), ("executing", 12, 17)]
    assert [lane.cmd for lane in rest] == ["2s0", "2s1"]
    assert timeline.after == n + 2
    left = lanes_of(history, row, T0 + 2_000, steps, n - 1, 4)
    assert [lane.cmd for lane in left] == [f"1s{n - 1}", "2s0", "2s1", "2s2"]
    everything = timeline_of(history, row, T0 + 2_000, steps)
    assert len(everything.lanes) == 1 + len(steps)
    check(history, everything)


def test_many_that_a_second_attempt_has_kept_are_a_lane_of_their_own() -> None:
    done = [step(ev.StepCompleted, 10 + i, cmd=f"1s{i}", started=T0 + 5 + i) for i in range(20)]
    again = ev.AttemptStarted(ts=T0 + 100, attempt=2)
    kept = [
        ev.OutcomeReused(ts=T0 + 100, cmd=f"22s{i}", cause=22, name="charge", args=Raw(b'{"args":[1]}'), source=2 + i)
        for i in range(20)
    ]
    history = numbered(started(), *done, again, *kept)
    _, first, second = timeline_of(history, row_of(history), T0 + 200, fold=12).lanes
    assert (first.states, spans_of(first)) == ({"SUCCESS": 20}, [("executing", 5, 29)])
    assert (second.states, spans_of(second)) == ({"SUCCESS": 20}, [("reused", 100, 100)])
