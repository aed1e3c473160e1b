"""Why a run is where it is: a sentence for every run, whatever is known of it."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from msgspec import Raw
from view_histories import NAMES, SECOND, T0, golden, numbered, row_of, worker

from holdfast.codec import Codec
from holdfast.core import events as ev
from holdfast.errors import NondeterminismError
from holdfast.ports import AttemptRow, Place, RunRow, Status, WorkerRow
from holdfast.views.summaries import why_summary
from holdfast.views.why import Why, why

ARGS = Raw(b'{"args":[1]}')


def started(**fields: Any) -> ev.RunStarted:
    return ev.RunStarted(ts=T0, workflow="buy", **fields)


def step(kind: type[ev.StepOutcome], at: int, **fields: Any) -> ev.StepOutcome:
    return kind(ts=T0 + at, cmd="1s0", cause=1, name="charge", args=ARGS, worker="w1", **fields)


def waiting(history: list[ev.Event], reason: str, **fields: Any) -> RunRow:
    return row_of(history, status=Status.WAITING, reason=reason, **fields)


@pytest.mark.parametrize("name", NAMES)
def test_every_prefix_of_every_golden_history_has_an_answer(name: str) -> None:
    history = golden(name)
    for end in range(1, len(history) + 1):
        prefix = history[:end]
        now = prefix[-1].ts + SECOND
        for status in Status:
            for workers in (None, [], [worker(names=(prefix[0].workflow,))]):  # type: ignore[union-attr]
                for reason in ("", "sleep", "timeout", "hook 'x', or a timeout", "child 'a' and 7 more"):
                    row = row_of(prefix, status=status, reason=reason)
                    found = why(row, now, prefix, workers)
                    json.dumps(why_summary(found))
                    assert (found.kind == "ended") == status.is_final
                    assert found.text or (status == Status.STUCK and not reason)


def test_a_step_that_executes_is_named_with_its_worker_its_time_and_its_attempt() -> None:
    history = numbered(
        started(), step(ev.StepRetrying, 5, attempt=1), step(ev.StepStarted, SECOND, attempt=2, started=T0 + SECOND)
    )
    found = why(row_of(history), T0 + 4 * SECOND, history, [worker(names=("buy",))], {"charge": 4})
    assert found.kind == "step"
    assert found.text == "step 'charge' executes on w1 for 3.0s, attempt 2 of 4"
    assert found.since == T0 + SECOND
    assert found.details["waits"] == [
        {"kind": "step", "name": "charge", "cmd": "1s0", "since": T0 + SECOND, "attempt": 2, "worker": "w1"}
    ]


def test_a_retry_says_which_attempt_comes_and_when() -> None:
    history = numbered(started(), step(ev.StepRetrying, 0, attempt=2, retry_at=T0 + 45 * SECOND))
    row = waiting(history, "retry of step 'charge' (attempt 3)", wake_at=T0 + 45 * SECOND)
    found = why(row, T0 + 5 * SECOND, history, max_attempts={"charge": 5})
    assert found.kind == "step_retry"
    assert found.text == "waiting for retry of step 'charge' (attempt 3 of 5, in 40.0s)"
    assert found.details["waits"][0]["until"] == T0 + 45 * SECOND


def test_a_step_whose_worker_was_lost_waits_for_another() -> None:
    history = numbered(started(), step(ev.StepStarted, 0), step(ev.StepLost, SECOND))
    found = why(row_of(history), T0 + 3 * SECOND, history)
    assert (found.kind, found.text) == (
        "step",
        "step 'charge' waits for a worker, for 2.0s: the last one was lost",
    )


@pytest.mark.parametrize(
    ("opened", "kind", "text"),
    [
        ({"name": "approval"}, "hook", "waiting for hook 'approval'"),
        ({"name": "approval", "key": "o-1"}, "hook", "waiting for hook 'approval' key 'o-1'"),
        ({"name": "Paid", "key": "event {}", "where": {"n": 1}}, "event", "waiting for event 'Paid' where {'n': 1}"),
    ],
)
def test_a_hook_and_a_domain_event_are_named(opened: dict[str, Any], kind: str, text: str) -> None:
    history = numbered(started(), ev.HookOpened(ts=T0 + 5, cmd="1h0", cause=1, **opened))
    found = why(waiting(history, text.removeprefix("waiting for ")), T0 + SECOND, history)
    assert (found.kind, found.text, found.since) == (kind, text, T0 + 5)


def test_a_child_is_named_by_its_id_unless_nobody_waits_for_it() -> None:
    waited = ev.ChildStarted(ts=T0, cmd="1c0", cause=1, name="ship", child_id="buy.ship")
    beside = ev.ChildStarted(ts=T0, cmd="1c1", cause=1, name="mail", child_id="buy.mail", waited=False)
    history = numbered(started(), waited, beside)
    found = why(waiting(history, "child 'buy.ship'"), T0 + SECOND, history)
    assert (found.kind, found.text) == ("child", "waiting for child 'buy.ship'")
    awaited = ev.ChildAwaited(ts=T0, cmd="1w0", cause=1, name="mail", args=Raw(b'"1c1"'), child_id="buy.mail")
    history = numbered(*history, awaited)
    found = why(waiting(history, "child 'buy.ship', child 'buy.mail'"), T0 + SECOND, history)
    assert found.text == "waiting for child 'buy.ship', child 'buy.mail'"


def test_of_many_things_five_are_named_and_the_others_counted() -> None:
    hooks = [ev.HookOpened(ts=T0, cmd=f"1h{i}", cause=1, name=f"h{i}") for i in range(7)]
    history = numbered(started(), *hooks)
    reason = ", ".join(f"hook 'h{i}'" for i in range(5)) + " and 2 more"
    found = why(waiting(history, reason), T0, history)
    assert found.text == f"waiting for {reason}"
    assert len(found.details["waits"]) == 7


def test_a_sleep_says_until_when() -> None:
    history = numbered(started())
    found = why(waiting(history, "sleep", wake_at=T0 + 60 * SECOND), T0, history)
    assert found.kind == "sleep"
    assert found.text.startswith("sleeping until ")
    assert found.text.endswith("(in 1m00s)")


def test_a_row_alone_is_enough_for_an_answer() -> None:
    history = numbered(started())
    found = why(waiting(history, "hook 'approval', or a timeout", wake_at=T0 + 60 * SECOND), T0)
    assert found.kind == "hook"
    assert found.text.startswith("waiting for hook 'approval', until ")
    assert why(row_of(history), T0).text == "worker w1 executes its code"


def test_a_run_that_its_worker_has_given_back_waits_for_another() -> None:
    history = numbered(started(), step(ev.StepStarted, 0))
    found = why(row_of(history, owner=None), T0 + SECOND, history, [worker("w2", names=("buy",))])
    assert (found.kind, found.text) == ("worker", "waits for a worker")


def test_a_run_to_begin_later_says_when() -> None:
    history = numbered(started())
    row = row_of(history, status=Status.PENDING, owner=None, started_at=None, wake_at=T0 + 60 * SECOND)
    found = why(row, T0, history, [])
    assert (found.kind, found.details) == ("not_yet", {"begins_at": T0 + 60 * SECOND})
    assert found.text.startswith("begins ")


@pytest.mark.parametrize(
    ("workers", "kind", "text"),
    [
        ([], "no_worker", "no worker is alive, so nothing goes on; start one"),
        ([worker(lease_until=T0)], "no_worker", "no worker is alive, so nothing goes on; start one"),
        ([worker(names=("sell",))], "unknown_workflow", "no live worker knows 'buy'; start one whose code defines it"),
        ([worker(names=("buy",))], "worker", "waits for a worker"),
        (None, "worker", "waits for a worker"),
    ],
)
def test_what_is_due_and_not_taken_up_says_who_is_missing(workers: Any, kind: str, text: str) -> None:
    history = numbered(started())
    row = row_of(history, status=Status.PENDING, owner=None, started_at=None, wake_at=T0)
    found = why(row, T0 + SECOND, history, workers)
    assert (found.kind, found.text) == (kind, text)


def test_a_run_that_only_waits_needs_no_worker() -> None:
    history = numbered(started(), ev.HookOpened(ts=T0, cmd="1h0", cause=1, name="approval"))
    assert why(waiting(history, "hook 'approval'", owner=None), T0, history, []).kind == "hook"


def test_a_worker_that_is_gone_is_told_apart_from_one_that_is_at_work() -> None:
    history = numbered(started(), step(ev.StepStarted, 0))
    found = why(row_of(history), T0 + 60 * SECOND, history, [worker(lease_until=T0 + 40 * SECOND)])
    assert found.kind == "worker_lost"
    assert found.text == "its worker w1 was last heard of 20s ago: no other is alive to take over; start one"
    found = why(row_of(history), T0 + 60 * SECOND, history, [worker("w2")])
    assert found.text == "its worker w1 is gone: another one takes over"


def test_code_that_diverged_is_told_with_the_event_and_both_sides() -> None:
    error = NondeterminismError("no longer fits", recorded="step 'a'", asked="step 'b'", line="f.py:3", event=1)
    stuck = ev.RunStuck(ts=T0 + 9, reason="no longer fits", error=Raw(Codec().encode_error(error)))
    history = numbered(started(), stuck)
    found = why(row_of(history, stuck="diverged"), T0 + SECOND, history)
    assert (found.kind, found.text, found.since) == ("diverged", "no longer fits", T0 + 9)
    assert found.details == {
        "reason": "no longer fits", "event": 1, "recorded": "step 'a'", "asked": "step 'b'", "line": "f.py:3",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("stuck", "kind"), [("blocked", "blocked"), ("lost", "crashing"), ("unknown", "unknown_workflow")]
)
def test_other_reasons_to_be_stuck_are_told_apart(stuck: str, kind: str) -> None:
    history = numbered(started())
    row = row_of(history, status=Status.STUCK, stuck=stuck, reason="because")
    found = why(row, T0, history)
    assert (found.kind, found.text) == (kind, "because")


def test_a_pause_is_told_with_its_reason() -> None:
    history = numbered(started(), ev.RunPaused(ts=T0 + 7, reason="customer called"))
    assert why(row_of(history), T0 + SECOND, history) == Why(
        kind="paused", text="customer called", since=T0 + 7, details={"reason": "customer called"}
    )


def test_between_attempts_the_next_one_and_the_last_error_are_told() -> None:
    error = Raw(Codec().encode_error(ValueError("no funds")))
    failed = ev.AttemptFailed(ts=T0 + 3, attempt=1, error=error, retry_at=T0 + 60 * SECOND)
    history = numbered(started(), failed)
    found = why(row_of(history, owner=None), T0 + 10, history, [])
    assert (found.kind, found.since) == ("retry", T0 + 3), "until then no worker is needed"
    assert found.text.startswith("next attempt ")
    assert found.details["attempt"] == 2
    assert found.details["error"]["message"] == "no funds"


@pytest.mark.parametrize(
    ("end", "text"),
    [
        (ev.RunCompleted(ts=T0 + 9), "succeeded"),
        (ev.RunFailed(ts=T0 + 9, error=Raw(Codec().encode_error(ValueError("no")))), "failed: ValueError: no"),
        (ev.RunCancelled(ts=T0 + 9, reason="too late"), "was cancelled: too late"),
    ],
)
def test_a_run_that_has_ended_says_how(end: ev.Event, text: str) -> None:
    history = numbered(started(), msgspec.structs.replace(end))
    found = why(row_of(history), T0 + SECOND, history)
    assert (found.kind, found.text, found.since) == ("ended", text, T0 + 9)


def place(number: int, **fields: Any) -> Place:
    return Place(cmd="1s0", limit="stripe", place=number, asked_at=T0 + 7, in_use=5, **fields)


def test_a_step_in_line_names_its_limit_and_its_place() -> None:
    history = numbered(started())
    row = waiting(history, "limit 'stripe'")
    found = why(row, T0 + SECOND, history, places=[place(3, key="ann")])
    assert (found.kind, found.since) == ("limit", T0 + 7)
    assert found.text == "waiting for a slot of limit 'stripe' (key 'ann'), number 3 in line"
    assert found.details["waits"] == [
        {"kind": "limit", "name": "stripe", "cmd": "1s0", "key": "ann", "since": T0 + 7, "place": 3}
    ]
    by_row = why(row, T0 + SECOND)
    assert (by_row.kind, by_row.text) == ("limit", "waiting for limit 'stripe'")


def test_the_first_in_line_is_told_when_its_time_comes() -> None:
    history = numbered(started())
    found = why(waiting(history, "limit 'stripe'"), T0, history, places=[place(1, key="", next_at=T0 + 30 * SECOND)])
    assert found.text.startswith("waiting for a slot of limit 'stripe', next in line, until ")
    assert found.text.endswith("(in 30.0s)")
    held = why(waiting(history, ""), T0, history, places=[place(0, key="")])
    assert held.kind != "limit", "it has its slot"


def test_a_step_that_executes_comes_before_those_in_line() -> None:
    history = numbered(started(), step(ev.StepStarted, 0, attempt=1, started=T0))
    in_line = [Place(cmd="1s1", limit="stripe", key="", place=1, asked_at=T0, in_use=1)]
    found = why(row_of(history), T0 + SECOND, history, places=in_line)
    assert (found.kind, found.text) == ("step", "step 'charge' executes on w1 for 1.0s")
    assert [wait["kind"] for wait in found.details["waits"]] == ["step", "limit"]


@pytest.mark.parametrize("status", [Status.PENDING, Status.RETRY])
def test_a_run_that_has_not_begun_names_the_limit_it_waits_for(status: Status) -> None:
    history = numbered(started())
    row = row_of(history, status=status, reason="limit 'import'", owner=None, wake_at=None)
    assert why(row, T0).text == "waiting to begin, for a slot of limit 'import'"
    found = why(row, T0, history, [], places=[place(2, key="")])
    assert found.kind == "no_worker", "that comes first"
    found = why(row, T0, history, places=[place(2, key="")])
    assert (found.kind, found.text) == ("limit", "waiting to begin, for a slot of limit 'stripe', number 2 in line")


# -- steps that other workers execute


def attempt(**fields: Any) -> AttemptRow:
    given = {"token": "7:1s0:1:0", "run_no": 7, "cmd": "1s0", "step": "charge", "number": 1, "queue": "gpu", "due": T0}
    return AttemptRow(**{**given, **fields})


def far(**fields: Any) -> WorkerRow:
    row = worker("x1", names=())
    row.kind, row.queues, row.steps = "executor", fields.get("queues", ["gpu"]), fields.get("steps", ["charge"])
    return row


@pytest.mark.parametrize(
    ("row", "workers", "kind", "text"),
    [
        (attempt(worker="x1", claimed_at=T0 + SECOND), [far()], "step", "step 'charge' executes on x1 for 3.0s"),
        (attempt(number=2), [far()], "queue", "step 'charge' waits in queue 'gpu' for 4.0s, attempt 2"),
        (
            attempt(), [], "unserved_queue",
            "step 'charge' waits in queue 'gpu' for 4.0s: no worker serves queue 'gpu'; start one: "
            "holdfast worker --executor-only --queues gpu",
        ),
        (
            attempt(queue=""), [far()], "unserved_queue",
            "step 'charge' waits in queue 'default' for 4.0s: no worker serves queue 'default'; start one: "
            "holdfast worker --executor-only --queues default",
        ),
        (
            attempt(), [far(steps=["paint"])], "unserved_queue",
            "step 'charge' waits in queue 'gpu' for 4.0s: no worker that serves it knows the step; restart them with the "
            "code that defines it",
        ),
    ],
)  # fmt: skip
def test_a_step_that_others_execute_is_named_with_its_queue_and_who_is_missing(
    row: AttemptRow, workers: list[WorkerRow], kind: str, text: str
) -> None:
    history = numbered(started())
    run = waiting(history, "step 'charge' in queue 'gpu'")
    found = why(run, T0 + 4 * SECOND, history, [worker(names=("buy",)), *workers], attempts=[row])
    assert (found.kind, found.text) == (kind, text)
    more = why(run, T0 + 4 * SECOND, history, [worker(names=("buy",)), *workers], attempts=[row, attempt(worker="x2")])
    assert more.text.endswith(" and 1 more")


def test_an_executor_takes_no_run_over() -> None:
    row = row_of(numbered(started()), status=Status.PENDING, owner=None, wake_at=T0)
    assert why(row, T0 + SECOND, (), [far()]).kind == "no_worker"
