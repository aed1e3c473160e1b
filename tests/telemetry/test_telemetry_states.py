"""What a cluster's state says of a step, a run, a worker: rule by rule."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
from telemetry_streams import NOW, fed, known

from holdfast import DecodeError
from holdfast.telemetry import STEP_PRECEDENCE, ClusterState
from holdfast.telemetry.records import MAX_HEARTBEATS, MAX_SLOTS

KINDS = {
    "succeeded": "SUCCESS", "failed": "FAILURE", "cancelled": "CANCELLED", "rejected": "REJECTED",
    "cooking": "COOKING", "started": "STARTED", "received": "RECEIVED", "sent": "PENDING",
}  # fmt: skip
"""From the strongest on."""


def event(kind: str, clock: int = 1, /, id: str = "a", **fields: Any) -> dict[str, Any]:
    return {"type": f"step-{kind}", "id": id, "clock": clock, "timestamp": float(clock), "origin": "w1", **fields}


def worker(kind: str, clock: int = 1, /, origin: str = "w1", **fields: Any) -> dict[str, Any]:
    return {"type": f"worker-{kind}", "clock": clock, "timestamp": NOW - 1, "origin": origin, **fields}


def in_any_order(*events: dict[str, Any]) -> ClusterState:
    """The state that these events give, having seen that all orders give the same."""
    states = [fed(list(order)) for order in itertools.permutations(events)]
    assert all(known(state) == known(states[0]) for state in states)
    return states[0]


# -- states


def test_the_precedence_is_the_one_that_is_documented() -> None:
    assert list(STEP_PRECEDENCE) == [None if state == "COOKING" else state for state in KINDS.values()]


@pytest.mark.parametrize(("stronger", "weaker"), list(itertools.combinations(KINDS, 2)))
@pytest.mark.parametrize("clocks", [(1, 2), (2, 1), (1, 1)])
@pytest.mark.parametrize("attempt", [{}, {"attempt": 1}])
def test_within_an_attempt_the_stronger_state_counts(
    stronger: str, weaker: str, clocks: tuple[int, int], attempt: dict[str, int]
) -> None:
    state = in_any_order(event(stronger, clocks[0], **attempt), event(weaker, clocks[1], **attempt))
    step = state.steps["a"]
    assert (step.state, step.clock, step.timestamp) == (KINDS[stronger], clocks[0], float(clocks[0]))
    assert state.counts == {KINDS[stronger]: 1}


@pytest.mark.parametrize(("early", "late"), list(itertools.product(KINDS, repeat=2)))
def test_the_highest_attempt_counts_whatever_became_of_those_before(early: str, late: str) -> None:
    step = in_any_order(event(early, 9, attempt=1), event(late, 2, attempt=2)).steps["a"]
    assert (step.state, step.attempt) == (KINDS[late], 2)


@pytest.mark.parametrize("kind", KINDS)
def test_a_step_is_ready_once_it_has_ended(kind: str) -> None:
    assert fed([event(kind)]).steps["a"].ready == (kind in ("succeeded", "failed", "cancelled", "rejected"))


def test_of_custom_states_the_newest_counts() -> None:
    step = in_any_order(event("cooking", 1), event("warming-up", 3), event("tasting", 2)).steps["a"]
    assert (step.state, step.clock, step.ready) == ("WARMING-UP", 3, False)


def test_of_events_with_the_same_clock_the_time_then_the_origin_then_the_content_decides() -> None:
    by_time = in_any_order(event("cooking", 1, timestamp=2.0), event("tasting", 1, timestamp=1.0))
    assert by_time.steps["a"].state == "COOKING"
    by_origin = in_any_order(event("cooking", 1, origin="a"), event("tasting", 1, origin="b"))
    assert (by_origin.steps["a"].state, by_origin.steps["a"].worker) == ("TASTING", "b")
    by_content = in_any_order(event("succeeded", 1, result=1), event("succeeded", 1, result=2))
    assert by_content.steps["a"].result in (1, 2)


def test_a_step_that_tells_how_far_it_is_has_started() -> None:
    step = in_any_order(event("started", 1), event("progress", 2, done=1), event("progress", 3, done=2)).steps["a"]
    assert (step.state, step.fields["done"], step.clock) == ("STARTED", 2, 3)


# -- late events


def test_a_late_event_fills_in_what_was_missing_and_moves_nothing() -> None:
    late = event("received", 1, name="f", args=[1], kwargs={"x": 1}, parent_id="p", root_id="r", queue="q", result="?")
    step = in_any_order(event("succeeded", 5, result=42), late).steps["a"]
    assert (step.state, step.clock, step.timestamp, step.result) == ("SUCCESS", 5, 5.0, 42)
    assert (step.name, step.args, step.kwargs, step.parent, step.root, step.queue) == (
        "f", [1], {"x": 1}, "p", "r", "q",
    )  # fmt: skip
    assert step.times == {"received": 1.0, "succeeded": 5.0}


def test_a_late_event_never_overwrites_what_newer_ones_say() -> None:
    step = in_any_order(event("started", 5, name="new", args=[2]), event("received", 1, name="old", args=[1])).steps[
        "a"
    ]
    assert (step.name, step.args) == ("new", [2])


def test_what_a_client_says_is_older_than_anything_that_follows() -> None:
    sent = event("sent", 1000, name="old", origin="client", worker=None)
    step = in_any_order(sent, event("received", 5, name="new")).steps["a"]
    assert (step.state, step.name, step.clock, step.worker) == ("RECEIVED", "new", 5, "w1")


def test_an_event_of_an_earlier_attempt_that_comes_late_changes_only_that_attempt() -> None:
    step = in_any_order(
        event("started", 4, attempt=2, origin="w2"),
        event("failed", 2, attempt=1, exception="late", origin="w1"),
        event("started", 1, attempt=1, origin="w1"),
    ).steps["a"]
    assert (step.state, step.attempt, step.worker, step.exception) == ("STARTED", 2, "w2", None)
    first, second = step.attempts
    assert (first.state, first.exception, first.worker) == ("FAILURE", "late", "w1")
    assert (second.state, second.exception, second.worker) == ("STARTED", None, "w2")


def test_a_result_does_not_show_with_the_failure_of_another_attempt() -> None:
    step = in_any_order(
        event("retried", 2, attempt=1, exception="no answer"), event("succeeded", 4, attempt=2, result="paid")
    ).steps["a"]
    assert (step.result, step.exception) == ("paid", None)
    assert [attempt.exception for attempt in step.attempts] == ["no answer", None]


# -- attempts without numbers


def test_a_retried_event_opens_the_next_attempt_in_the_order_of_clocks() -> None:
    events = [event("started", 1), event("retried", 2), event("received", 3), event("retried", 4), event("started", 5)]
    step = in_any_order(*events).steps["a"]
    assert (step.state, step.attempt) == ("STARTED", 3)
    assert [attempt.state for attempt in step.attempts] == ["RETRY", "RETRY", "STARTED"]


def test_an_attempt_that_was_opened_waits() -> None:
    step = in_any_order(event("started", 1), event("retried", 2, exception="no answer")).steps["a"]
    assert (step.state, step.attempt, step.ready, step.worker, step.exception) == ("PENDING", 2, False, None, None)
    assert (step.clock, step.timestamp) == (2, 2.0)


def test_an_outcome_of_before_the_retry_is_that_of_the_attempt_before() -> None:
    step = in_any_order(event("failed", 1), event("retried", 2), event("started", 3)).steps["a"]
    assert (step.state, step.attempt) == ("STARTED", 2)


def test_numbered_and_other_events_of_one_step_go_together() -> None:
    step = in_any_order(
        event("sent", 1), event("started", 2, attempt=1), event("retried", 3, attempt=1), event("started", 4),
        event("succeeded", 5, attempt=2),
    ).steps["a"]  # fmt: skip
    assert (step.state, step.attempt) == ("SUCCESS", 2)
    assert step.attempts[1].times == {"started": 4.0, "succeeded": 5.0}


def test_a_retried_event_that_names_the_attempt_it_opens_opens_no_other() -> None:
    step = in_any_order(event("retried", 2, attempt=2), event("started", 3, attempt=2)).steps["a"]
    assert (step.state, step.attempt) == ("STARTED", 2)


# -- parents and children


def test_parents_and_children_are_linked_whichever_comes_first() -> None:
    state = in_any_order(
        event("started", 1, id="p"),
        event("started", 3, id="c1", parent_id="p"),
        event("sent", 2, id="c2", parent_id="p"),
    )
    assert state.steps["p"].children == ("c2", "c1")
    assert [state.steps[id].parent for id in ("p", "c1", "c2")] == [None, "p", "p"]


def test_a_child_knows_its_parent_before_anything_is_heard_of_it() -> None:
    state = fed([event("started", 3, id="c", parent_id="p")])
    assert state.steps["c"].parent == "p"
    assert "p" not in state.steps


def test_a_step_that_is_said_to_be_its_own_ancestor_is_shown_as_it_is_said() -> None:
    state = fed([event("started", id="a", parent_id="b"), event("started", id="b", parent_id="a")])
    assert (state.steps["a"].children, state.steps["b"].children) == (("b",), ("a",))


def test_a_forgotten_child_is_no_child() -> None:
    state = fed([event("started", 9, id="p"), event("started", 1, id="c", parent_id="p")], max_steps=2)
    assert state.steps["p"].children == ("c",)
    state.apply(event("started", 5, id="other"))
    assert state.steps["p"].children == ()


# -- order, bounds, counters


def test_newest_is_by_clock_and_not_by_wall_clocks_or_arrival() -> None:
    events = [
        event("started", 2, id="b", timestamp=900.0), event("started", 3, id="c", timestamp=1.0),
        event("started", 1, id="a", timestamp=5000.0),
    ]  # fmt: skip
    state = in_any_order(*events)
    assert [step.id for step in state.newest()] == ["c", "b", "a"]
    assert [step.id for step in state.newest(2)] == ["c", "b"]
    assert state.newest(0) == []
    assert list(state.steps) == ["a", "b", "c"]


def test_a_step_that_was_only_sent_is_placed_by_its_time() -> None:
    sent = event("sent", 1, id="waits", timestamp=25.0, origin="client")
    state = in_any_order(
        event("started", 200, id="old", timestamp=20.0), event("started", 300, id="new", timestamp=30.0), sent
    )
    assert [step.id for step in state.newest()] == ["new", "waits", "old"]


def test_the_oldest_steps_are_forgotten_and_duplicates_of_theirs_do_not_bring_them_back() -> None:
    events = [event(kind, n, id=f"s{n}") for n in range(1, 101) for kind in ("sent", "received", "succeeded")]
    state = fed(events, max_steps=10)
    expected = [f"s{n}" for n in range(91, 101)]
    assert list(state.steps) == expected
    before = known(state)
    recent = [event for event in events if event["clock"] > 80]
    assert state.apply_many(recent) == 0
    assert known(state) == before
    assert state.counts == {"SUCCESS": 10}


def test_a_step_that_has_news_is_no_longer_the_oldest() -> None:
    state = fed([event("started", 1, id="a"), event("started", 2, id="b"), event("progress", 10, id="a")], max_steps=2)
    state.apply(event("started", 3, id="c"))
    assert list(state.steps) == ["c", "a"]


def test_a_step_that_was_only_sent_is_as_old_as_what_had_come_before_it_after_a_restart_too(tmp_path: Path) -> None:
    before = [event("started", 10, id="a"), event("sent", 1, id="waits"), event("started", 20, id="b")]
    fed([*before, event("progress", 30, id="a")], max_steps=3).save(tmp_path / "state")
    state = ClusterState.load(tmp_path / "state")
    state.apply(event("started", 15, id="c"))
    assert set(state.steps) == {"c", "b", "a"}
    state.apply(event("sent", 1, id="later"))
    assert set(state.steps) == {"b", "a", "later"}
    state.apply(event("started", 25, id="d"))
    assert set(state.steps) == {"d", "a", "later"}


def test_a_forgotten_step_stays_so_after_a_restart(tmp_path: Path) -> None:
    events = [event(kind, n, id=f"s{n}") for n in range(1, 21) for kind in ("sent", "succeeded")]
    fed(events, max_steps=10).save(tmp_path / "state")
    state = ClusterState.load(tmp_path / "state")
    assert state.apply_many(events) == 0
    assert len(state.steps) == 10


def test_a_state_that_is_full_learns_of_a_client_with_a_young_clock() -> None:
    state = fed([event("succeeded", 1000 + n, id=f"s{n}") for n in range(10)], max_steps=10)
    state.apply(event("sent", 1, id="new", name="f", origin="client"))
    assert state.steps["new"].state == "PENDING"
    state.apply(event("received", 1011, id="new"))
    assert (state.steps["new"].state, state.steps["new"].name) == ("RECEIVED", "f")
    assert len(state.steps) == 10


def test_counters_count_steps_and_not_events() -> None:
    events = [event("started", 1, id="a"), event("succeeded", 2, id="a"), event("started", 3, id="b")]
    state = fed(events * 3)
    assert state.counts == {"SUCCESS": 1, "STARTED": 1}
    assert state.counts["FAILURE"] == 0


def test_what_is_kept_of_one_step_is_bounded() -> None:
    state = fed([event("progress", n, done=n) for n in range(5000)])
    state.apply_many([event("progress", n, attempt=n, done=n) for n in range(5000)])
    state.apply_many([event(f"custom{n}", 1, id="b") for n in range(5000)])
    kept = [len(record.kept()) for record in state.steps._population.records.values()]
    assert max(kept) <= 3 * MAX_SLOTS
    assert (state.steps["a"].attempt, state.steps["a"].fields["done"]) == (4999, 4999)
    assert state.apply_many([event("progress", 1, attempt=1, done=1), event("progress", 1, done=1)]) == 0


def test_nothing_is_left_behind_of_what_was_forgotten() -> None:
    state = ClusterState(max_steps=5)
    for n in range(2000):
        state.apply(event("started", n, id=f"s{n}", parent_id=f"p{n}"))
        state.apply(event("progress", n, id=f"s{n}"))
    steps = state.steps
    assert len(steps._children) == 5
    assert len(steps._population._heap) < 200
    assert len(steps._population.forgotten) == 5


@pytest.mark.parametrize("limit", [0, -1, True, 1.5, None, "10"])
def test_wrong_bounds_are_refused(limit: Any) -> None:
    with pytest.raises(ValueError, match="max_steps"):
        ClusterState(max_steps=limit)


# -- runs


def run(kind: str, clock: int, /, **fields: Any) -> dict[str, Any]:
    return {"type": f"run-{kind}", "id": "r", "clock": clock, "name": "fulfil", **fields}


def test_a_run_goes_to_and_fro_until_it_ends() -> None:
    events = [run("started", 1), run("waiting", 2, reason="sleeping"), run("resumed", 3)]
    state = in_any_order(*events)
    assert (state.runs["r"].state, state.runs["r"].name) == ("RUNNING", "fulfil")
    state = in_any_order(*events, run("waiting", 4, reason="hook approval"))
    assert (state.runs["r"].state, state.runs["r"].fields["reason"]) == ("WAITING", "hook approval")
    state = in_any_order(*events, run("succeeded", 2))
    assert (state.runs["r"].state, state.runs["r"].ready) == ("SUCCESS", True)
    assert state.run_counts == {"SUCCESS": 1}
    assert state.counts == {}
    assert [each.id for each in state.newest_runs()] == ["r"]


def test_a_run_is_retried() -> None:
    state = in_any_order(run("started", 1), run("failed", 2), run("retried", 3))
    assert (state.runs["r"].state, state.runs["r"].attempt) == ("RETRY", 2)
    state = in_any_order(run("started", 1), run("failed", 2), run("retried", 3), run("started", 4))
    assert state.runs["r"].state == "RUNNING"


# -- workers


def test_a_worker_is_alive_as_long_as_we_hear_from_it() -> None:
    now = [100.0]
    state = ClusterState(now=lambda: now[0])
    state.apply(worker("online", 1))
    state.apply(worker("heartbeat", 2, freq=2.0))
    assert state.workers["w1"].alive
    now[0] = 110.0
    assert state.workers["w1"].alive
    now[0] = 110.1
    assert not state.workers["w1"].alive
    state.apply(worker("heartbeat", 3))
    assert state.workers["w1"].alive


def test_a_wrong_wall_clock_does_not_make_a_worker_dead_and_is_shown() -> None:
    state = fed([worker("heartbeat", 1, timestamp=NOW - 3600)])
    assert state.workers["w1"].alive
    assert state.workers["w1"].drift == 3600
    assert fed([worker("heartbeat", 1, timestamp=NOW + 60)]).workers["w1"].drift == -60


def test_a_duplicate_or_an_older_heartbeat_is_no_sign_of_life() -> None:
    now = [100.0]
    state = ClusterState(now=lambda: now[0])
    state.apply(worker("heartbeat", 5))
    now[0] = 200.0
    state.apply_many([worker("heartbeat", 5), worker("heartbeat", 4)])
    assert not state.workers["w1"].alive
    assert len(state.workers["w1"].heartbeats) == 2


def test_a_late_heartbeat_does_not_bring_a_worker_back_that_has_gone() -> None:
    state = in_any_order(worker("heartbeat", 1), worker("offline", 3), worker("heartbeat", 2))
    assert (state.workers["w1"].alive, state.workers["w1"].online) == (False, False)
    state.apply(worker("online", 4))
    assert state.workers["w1"].alive


def test_heartbeats_are_counted_once_and_the_newest_are_kept() -> None:
    beats = [worker("heartbeat", n, timestamp=float(n), active=n) for n in range(1, 101)]
    state = fed(beats * 2)
    assert state.workers["w1"].heartbeats == tuple(float(n) for n in range(101 - MAX_HEARTBEATS, 101))
    assert state.workers["w1"].fields["active"] == 100


def test_the_time_of_receipt_is_the_receivers() -> None:
    state = ClusterState(now=lambda: 1000.0)
    state.apply(worker("heartbeat", 1, received_at=900.0))
    assert not state.workers["w1"].alive
    state.apply(worker("heartbeat", 2, received_at=10**9))
    assert state.workers["w1"].received_at == 1000.0


def test_the_workers_unheard_of_for_longest_are_forgotten() -> None:
    state = fed([worker("heartbeat", n, f"w{n}") for n in (3, 1, 4, 2, 5)], max_workers=2)
    assert list(state.workers) == ["w4", "w5"]


def test_a_worker_that_was_alive_when_the_state_was_saved_is_judged_by_the_time_of_now(tmp_path: Path) -> None:
    state = fed([worker("heartbeat", 1)])
    state.save(tmp_path / "state")
    assert ClusterState.load(tmp_path / "state", now=lambda: NOW + 5).workers["w1"].alive
    assert not ClusterState.load(tmp_path / "state", now=lambda: NOW + 60).workers["w1"].alive


# -- junk


class Hostile(dict[str, Any]):
    def get(self, *_: object) -> Any:
        raise SystemError("no")


class Unshowable:
    def __repr__(self) -> str:
        raise RuntimeError("no")


NO_EVENTS: list[Any] = [
    None, 0, "step-started", b"", [], {}, object, {"type": "step-started"}, {"id": "a"}, {"type": None, "id": "a"},
    {"type": [], "id": "a"}, {"type": "step-started", "id": None}, {"type": "step-started", "id": []},
    {"type": "step-started", "id": 7}, {"type": "step-started", "id": ""}, {"type": "step-started", "id": "x" * 10**6},
    {"type": "x" * 10**6, "id": "a"}, {"type": "", "id": "a"}, {"type": "step-", "id": "a"}, {"type": "-", "id": "a"},
    {"type": "weather-changed", "id": "a"}, {"type": "worker-online"}, {"type": "worker-online", "origin": 7},
    Hostile(type="step-started", id="a"),
]  # fmt: skip


@pytest.mark.parametrize("junk", NO_EVENTS, ids=lambda junk: repr(junk)[:40])
def test_what_is_no_event_changes_nothing(junk: Any) -> None:
    state = fed([event("started"), worker("online")])
    before = known(state)
    assert state.apply(junk) is False
    assert known(state) == before


WRONG = [None, True, -1, 1.5, float("nan"), float("inf"), 10**400, "1", b"1", [], {}, {1, 2}, object(), Unshowable()]


@pytest.mark.parametrize(
    "field", ["clock", "timestamp", "origin", "attempt", "name", "args", "parent_id", "worker", "x"]
)
@pytest.mark.parametrize("wrong", WRONG, ids=lambda wrong: type(wrong).__name__)
def test_wrong_values_do_no_harm(field: str, wrong: Any, tmp_path: Path) -> None:
    junk = event("started") | {field: wrong}
    state = fed([junk, event("succeeded", 5), worker("heartbeat") | {field: wrong, "origin": "w1", "freq": wrong}])
    assert state.steps["a"].state == "SUCCESS"
    assert state.workers["w1"].alive
    state.save(tmp_path / "state")
    assert known(ClusterState.load(tmp_path / "state", now=lambda: NOW)) == known(state)


def test_enormous_and_deep_values_are_cut(tmp_path: Path) -> None:
    deep: Any = "x"
    for _ in range(5000):
        deep = [deep]
    huge = {f"k{n}": "y" * 10_000 for n in range(10_000)}
    state = fed([event("started", args=deep, kwargs=huge, result="z" * 10**7, **{f"f{n}": n for n in range(1000)})])
    state.save(tmp_path / "state")
    assert (tmp_path / "state").stat().st_size < 20_000_000
    assert state.steps["a"].state == "STARTED"


def test_text_that_can_not_be_written_is_replaced(tmp_path: Path) -> None:
    state = fed([event("started", id="a\ud800", name="\udfff")])
    state.save(tmp_path / "state")
    assert known(ClusterState.load(tmp_path / "state", now=lambda: NOW)) == known(state)


def test_what_a_sender_does_to_an_event_later_changes_nothing() -> None:
    args = [1]
    state = fed([event("started", args=args)])
    args.append(2)
    assert state.steps["a"].args == [1]


# -- files


def test_saving_and_loading_keeps_all_of_it(tmp_path: Path) -> None:
    state = fed(
        [event("started", 3, id="b"), event("sent", 1, name="f"), worker("online"), run("started", 1)], max_steps=7
    )
    state.save(tmp_path / "state")
    loaded = ClusterState.load(tmp_path / "state", now=lambda: NOW)
    assert known(loaded) == known(state)
    assert loaded.steps._population.limit == 7
    assert [path.name for path in tmp_path.iterdir()] == ["state"]


@pytest.mark.parametrize(
    "content",
    [b"", b"{}", b"[]", b"null\n", b"\xff\xfe", b'{"format":"holdfast cluster state","version":99}', b"x" * 100],
)
def test_a_file_that_is_something_else_is_refused(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "state"
    path.write_bytes(content)
    with pytest.raises(DecodeError, match="delete it"):
        ClusterState.load(path)


def test_a_file_that_was_cut_short_is_refused_and_a_missing_one_is_said_to_be(tmp_path: Path) -> None:
    path = tmp_path / "state"
    fed([event("started", id="a"), event("started", id="b")]).save(path)
    lines = path.read_bytes().splitlines(keepends=True)
    for cut in (b"".join(lines[:-1]), path.read_bytes()[:-20]):
        path.write_bytes(cut)
        with pytest.raises(DecodeError, match="delete it"):
            ClusterState.load(path)
    with pytest.raises(FileNotFoundError):
        ClusterState.load(tmp_path / "elsewhere")


def test_a_save_that_fails_leaves_the_file_that_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "state"
    state = fed([event("started")])
    state.save(path)
    before = path.read_bytes()

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    state.apply(event("succeeded", 2))
    with pytest.raises(OSError, match="No space"):
        state.save(path)
    assert path.read_bytes() == before
    assert [each.name for each in tmp_path.iterdir()] == ["state"]
