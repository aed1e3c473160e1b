"""Steps, statuses and trees, from histories."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import Raw
from view_histories import NAMES, SECOND, T0, golden, numbered, row_of

from holdfast.codec import Codec
from holdfast.core import events as ev
from holdfast.ports import AttemptRow, Status, StepState
from holdfast.views.statuses import statuses_of
from holdfast.views.steps import steps_of
from holdfast.views.tree import KnownRun, TreeNode, tree_of
from holdfast.views.values import PlainReader


def started() -> ev.RunStarted:
    return ev.RunStarted(ts=T0, workflow="buy")


def step(kind: type[ev.StepOutcome], at: int, cmd: str = "1s0", **fields: Any) -> ev.StepOutcome:
    return kind(ts=T0 + at, cmd=cmd, cause=1, name="charge", worker="w1", **fields)


@pytest.mark.parametrize("name", NAMES)
def test_every_step_is_there_once_and_those_of_a_run_that_ended_have_ended(name: str) -> None:
    history = golden(name)
    views = steps_of(history)
    assert len({view.cmd for view in views}) == len(views)
    for view in views:
        assert all(attempt.ended_at is not None for attempt in view.tries[:-1])
        if isinstance(history[-1], ev.RunEnded):
            assert not view.is_open or not view.waited


def test_attempts_are_told_one_by_one() -> None:
    error = Raw(Codec().encode_error(ValueError("no")))
    (view,) = steps_of(
        numbered(
            started(),
            step(ev.StepStarted, 10, attempt=1, started=T0 + 10),
            step(ev.StepRetrying, 20, attempt=1, started=T0 + 10, error=error, retry_at=T0 + 50),
            step(ev.StepLost, 70, attempt=2, started=T0 + 60),
            step(ev.StepStarted, 80, attempt=2, started=T0 + 80),
        )
    )
    told = [(t.number, t.state, t.started_at - T0, t.ended_at and t.ended_at - T0) for t in view.tries]
    assert told == [
        (1, StepState.RETRY, 10, 20), (2, StepState.PENDING, 60, 70), (2, StepState.STARTED, 80, None),
    ]  # fmt: skip
    assert (view.asked_at, view.state, view.ended_at) == (T0, StepState.STARTED, None)
    assert view.tries[0].error is not None


def test_an_attempt_that_was_taken_back_before_it_began_is_no_attempt() -> None:
    announced = step(ev.StepStarted, 10, attempt=1)
    (view,) = steps_of(numbered(started(), announced, step(ev.StepWithdrawn, 20, attempt=1)))
    assert (view.state, view.tries, view.started_at, view.worker) == (StepState.PENDING, (), None, "")


def test_a_step_that_begins_again_in_a_new_attempt_of_its_run_has_not_ended() -> None:
    history = numbered(
        started(),
        step(ev.StepFailed, 10, cmd="s:0.1"),
        ev.AttemptStarted(ts=T0 + 20, attempt=2),
        step(ev.StepStarted, 30, cmd="s:0.1", started=T0 + 30),
    )
    (view,) = steps_of(history)
    assert (view.state, view.ended_at) == (StepState.STARTED, None)


def test_steps_of_a_saga_have_the_names_by_which_its_failure_calls_them() -> None:
    def book(cmd: str, undoes: str = "", kind: type[ev.StepOutcome] = ev.StepCompleted) -> ev.StepOutcome:
        cause = int(cmd.partition("s")[0])
        return kind(ts=T0, cmd=cmd, cause=cause, name="unbook" if undoes else "book", undoes=undoes)

    before, saga = [book("1s0"), book("2s0")], [book("3s1"), book("3s0"), book("5s0", kind=ev.StepFailed)]
    again = [ev.AttemptStarted(ts=T0, attempt=2), book("9s0")]
    assert [view.key for view in steps_of(numbered(started(), *before, *saga))] == ["", "", "", "", ""]
    undone = numbered(started(), *before, *saga, book("6s0", undoes="3s0"), book("7s0", undoes="3s1"), *again)
    assert {view.cmd: view.key for view in steps_of(undone) if view.key} == {"3s1": "book#2", "5s0": "book#3"}


def test_a_run_that_no_worker_knows_is_stuck_in_its_statuses_too() -> None:
    history = numbered(started())
    row = row_of(history, status=Status.STUCK, stuck="unknown", reason="nobody knows it", started_at=None, wake_at=T0)
    last = statuses_of(history, row)[-1]
    assert (last.status, last.reason, last.at) == (Status.STUCK, "nobody knows it", T0)


# -- trees


def known(id: str, history: list[ev.Event], children: tuple[str, ...] = (), **fields: Any) -> KnownRun:
    return KnownRun(row_of(history, id=id, **fields), history, child_ids=list(children))  # type: ignore[arg-type]


def names(node: TreeNode) -> Any:
    return (node.name, node.state, [names(child) for child in node.children])


def test_a_tree_has_children_under_their_command_and_compensations_under_what_they_undo() -> None:
    parent = numbered(
        started(),
        step(ev.StepCompleted, 5),
        ev.ChildStarted(ts=T0, cmd="2c0", cause=2, name="ship", child_id="buy.ship"),
        step(ev.StepCompleted, 9, cmd="3s0", undoes="1s0"),
    )
    child = numbered(ev.RunStarted(ts=T0, workflow="ship"), step(ev.StepStarted, 1))
    runs = {
        "buy": known("buy", parent, ("buy.ship", "buy.extra"), status=Status.WAITING, reason="child 'buy.ship'"),
        "buy.ship": known("buy.ship", child),
        "buy.extra": known("buy.extra", numbered(ev.RunStarted(ts=T0, workflow="extra", forked_from="old"))),
    }
    root = tree_of(runs, "buy", T0 + SECOND, PlainReader())
    assert names(root) == (
        "buy", "WAITING",
        [
            ("charge", "SUCCESS", [("charge", "SUCCESS", [])]),
            ("ship", "RUNNING", [("charge", "STARTED", [])]),
            ("extra", "RUNNING", []),
        ],
    )  # fmt: skip
    assert root.detail == "", "children have lines of their own"
    assert root.summary()["children"][2]["forked_from"] == "old"
    assert [(run, node.name) for run, node in root.steps()][-1] == ("buy.ship", "charge")


def test_a_tree_has_steps_that_wait_for_a_worker_elsewhere_under_the_last_attempt() -> None:
    history = numbered(started(), step(ev.StepFailed, 10), ev.AttemptStarted(ts=T0 + 20, attempt=2))
    run = known("buy", history)
    run.attempts = [AttemptRow(token="t", run_no=1, cmd="3s0", step="print", number=1, queue="far", due=T0 + 20)]
    first, second = tree_of({"buy": run}, "buy", T0 + SECOND, PlainReader()).children
    assert names(first) == ("attempt 1", "FAILURE", [("charge", "FAILURE", [])])
    assert names(second) == ("attempt 2", "RUNNING", [("print", "PENDING", [])])


@pytest.mark.parametrize("name", NAMES)
def test_every_golden_history_has_a_tree(name: str) -> None:
    history = golden(name)
    for end in range(1, len(history) + 1):
        run = KnownRun(row_of(history[:end], id="r"), history[:end])
        root = tree_of({"r": run}, "r", history[end - 1].ts, PlainReader())
        assert root.summary()["run_id"] == "r"
