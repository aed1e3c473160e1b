"""Hooks and other waits, from histories."""

from __future__ import annotations

import pytest
from view_histories import NAMES, SECOND, T0, golden, numbered, row_of

from holdfast.core import events as ev
from holdfast.ports import Status
from holdfast.views.waits import hooks_of, open_hooks, unclaimed, waits_of


def started() -> ev.RunStarted:
    return ev.RunStarted(ts=T0, workflow="buy")


def opened(number: int, name: str = "h", **fields: object) -> ev.HookOpened:
    return ev.HookOpened(ts=T0, cmd=f"1h{number}", cause=1, name=name, **fields)  # type: ignore[arg-type]


def received(name: str = "h", **fields: str) -> ev.HookReceived:
    return ev.HookReceived(ts=T0 + 5, name=name, **fields)


def open_names(history: list[ev.Event], status: str = Status.RUNNING, reason: str = "") -> list[str]:
    return [hook.cmd for hook in open_hooks(history, row_of(history, status=status, reason=reason))]


@pytest.mark.parametrize("name", NAMES)
def test_a_run_that_has_ended_waits_for_nothing(name: str) -> None:
    history = golden(name)
    if isinstance(history[-1], ev.RunEnded):
        assert waits_of(history, row_of(history)) == []
        assert all(hook.closed_at is not None for hook in hooks_of(history))


def test_all_open_hooks_are_found_though_the_reason_names_five() -> None:
    history = numbered(started(), *(opened(i, f"h{i}") for i in range(7)))
    reason = ", ".join(f"hook 'h{i}'" for i in range(5)) + " and 2 more"
    assert open_names(history, Status.WAITING, reason) == [f"1h{i}" for i in range(7)]


def test_a_hook_that_the_code_dropped_is_not_open() -> None:
    """No event tells that; the run's reason does, as far as it goes."""
    history = numbered(started(), *(opened(i, f"h{i}") for i in range(8)))
    assert open_names(history, Status.WAITING, "hook 'h1'") == ["1h1"]
    reason = "hook 'h0', hook 'h2', hook 'h3', hook 'h4', hook 'h5' and 2 more"
    assert open_names(history, Status.WAITING, reason) == [f"1h{i}" for i in (0, 2, 3, 4, 5, 6, 7)]


def test_a_hook_is_not_taken_for_another_of_its_name_that_has_a_key() -> None:
    history = numbered(started(), opened(0), opened(1, key="k, and 2 more"), opened(2, key="k"))
    assert open_names(history, Status.WAITING, "hook 'h' key 'k, and 2 more', or a timeout") == ["1h1"]


def test_an_answer_is_for_the_hook_of_its_token_else_for_the_first_else_for_the_next() -> None:
    history = numbered(started(), opened(0), opened(1), received(token="1h1"))
    assert open_names(history) == ["1h0"]
    history = numbered(started(), opened(0), opened(1), received())
    assert open_names(history) == ["1h1"]
    history = numbered(started(), received(), opened(0), opened(1), received(key="other"))
    assert open_names(history) == ["1h1"]
    assert hooks_of(history)[0].answer == 2


def test_a_hook_that_expired_is_closed_when_its_timer_fires() -> None:
    due = T0 + SECOND
    history = numbered(started(), opened(0, expires=due), opened(1, expires=due + 1), opened(2))
    fired = ev.TimerFired(ts=due + 3, cmd="1t0", cause=1, due=due, delay=SECOND)
    history = numbered(*history, fired)
    assert open_names(history) == ["1h1", "1h2"]
    assert hooks_of(history)[0].closed_at == due + 3


def test_a_new_attempt_begins_without_hooks_and_continuing_as_new_carries_answers_over() -> None:
    history = numbered(started(), opened(0), ev.AttemptStarted(ts=T0 + 9, attempt=2))
    assert open_names(history) == []
    anew = ev.ContinuedAsNew(ts=T0 + 9, workflow="buy", hooks=(received(),))
    history = numbered(started(), opened(0), anew, ev.HookOpened(ts=T0 + 9, cmd="3h0", cause=3, name="h"))
    assert open_names(history) == []
    assert hooks_of(history)[1].closed_at == T0 + 9


def test_what_was_sent_and_not_asked_for_is_unclaimed() -> None:
    history = numbered(started(), received("typo"), received(), opened(0), received(), received(key="other"))
    assert [(each.name, each.key, each.seq) for each in unclaimed(history)] == [
        ("typo", "", 2),
        ("h", "", 5),
        ("h", "other", 6),
    ]
    assert unclaimed(numbered(*history, opened(1))) == [history[1], history[5]]
