"""The laws of telemetry: a state is a function of the set of events.

HOLDFAST_EXAMPLES says how many streams each law is tried on.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from random import Random
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from telemetry_streams import NOW, disturbed, fed, known, simulate

from holdfast.telemetry import ClusterState, in_order, order_key

laws = settings(
    max_examples=int(os.environ.get("HOLDFAST_EXAMPLES", "60")),
    derandomize=True,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
seeds = st.integers(0, 2**16)
orders = seeds.map(Random)

# Few values, so that ids, clocks and times meet in every way.
KINDS = [
    "sent",
    "received",
    "started",
    "progress",
    "succeeded",
    "failed",
    "rejected",
    "retried",
    "cancelled",
    "cooking",
]
step_events = st.fixed_dictionaries(
    {
        "type": st.sampled_from([f"step-{kind}" for kind in KINDS]),
        "id": st.sampled_from("ab"),
        "clock": st.integers(0, 3),
        "timestamp": st.sampled_from([0.0, 1.0]),
        "origin": st.sampled_from(["w1", "w2"]),
    },
    optional={
        "attempt": st.integers(0, 3),
        "name": st.sampled_from(["f", "g"]),
        "args": st.sampled_from([[1], [2]]),
        "parent_id": st.sampled_from("abc"),
        "result": st.integers(0, 1),
    },
)
run_events = st.fixed_dictionaries(
    {
        "type": st.sampled_from(
            ["run-started", "run-waiting", "run-resumed", "run-retried", "run-failed", "run-paused"]
        ),
        "id": st.sampled_from("rs"),
        "clock": st.integers(0, 3),
    },
    optional={"attempt": st.integers(1, 2), "name": st.just("fulfil")},
)
worker_events = st.fixed_dictionaries(
    {
        "type": st.sampled_from(["worker-online", "worker-heartbeat", "worker-offline"]),
        "origin": st.sampled_from(["w1", "w2"]),
        "clock": st.integers(0, 3),
        "timestamp": st.sampled_from([NOW, NOW - 1]),
    },
    optional={"active": st.integers(0, 2)},
)
any_events = st.lists(st.one_of(step_events, step_events, step_events, run_events, worker_events), max_size=14)


def saved_and_loaded(state: ClusterState) -> ClusterState:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "state"
        state.save(path)
        return ClusterState.load(path, now=lambda: NOW)


@laws
@given(any_events, orders)
def test_any_order_with_duplicates_gives_the_same_state(events: list[Any], random: Random) -> None:
    assert known(fed(disturbed(events, random))) == known(fed(events))


@laws
@given(any_events, orders, st.integers(0, 28))
def test_saving_and_loading_on_the_way_changes_nothing(events: list[Any], random: Random, at: int) -> None:
    stream = disturbed(events, random)
    state = saved_and_loaded(fed(stream[:at]))
    assert known(state) == known(fed(stream[:at]))
    state.apply_many(stream[at:])
    assert known(state) == known(fed(events))


@laws
@given(seeds, st.booleans(), orders)
def test_a_cluster_is_known_as_it_is_in_whichever_order_its_events_come(
    seed: int, numbered: bool, random: Random
) -> None:
    stream = simulate(seed, numbered=numbered)
    state = fed(disturbed(stream.events, random))
    assert known(state) == known(fed(stream.events))
    for id, truth in stream.steps.items():
        step = state.steps[id]
        found = (step.state, step.attempt, step.worker, step.name, step.args, step.parent)
        assert found == (truth.state, truth.attempt, truth.worker, truth.name, truth.args, truth.parent)
        assert step.ready
        children = {child for child, other in stream.steps.items() if other.parent == id}
        assert set(step.children) == children
    assert sum(state.counts.values()) == len(stream.steps)


@laws
@given(seeds, st.booleans(), orders)
def test_what_is_left_of_a_stream_with_losses_gives_the_same_state_in_any_order(
    seed: int, numbered: bool, random: Random
) -> None:
    events = [event for event in simulate(seed, numbered=numbered).events if random.random() < 0.6]
    assert known(fed(disturbed(events, random))) == known(fed(events))


@laws
@given(seeds, orders, st.integers(1, 7))
def test_a_stream_in_chunks_and_through_restarts_gives_the_same_state(seed: int, random: Random, size: int) -> None:
    events = simulate(seed, numbered=False).events
    stream = disturbed(events, random)
    state = fed([])
    for at in range(0, len(stream), size * 4):
        state.apply_many(stream[at : at + size * 4])
        state = saved_and_loaded(state)
    assert known(state) == known(fed(events))


@laws
@given(seeds, orders)
def test_events_that_were_applied_say_nothing_new(seed: int, random: Random) -> None:
    events = simulate(seed).events
    state = fed(events)
    assert state.apply_many(disturbed(events, random)) == 0


@laws
@given(seeds, orders, st.integers(1, 4))
def test_with_too_many_steps_the_newest_are_known_whatever_came_first(seed: int, random: Random, limit: int) -> None:
    events = [event for event in simulate(seed).events if event["type"] != "step-sent"]
    newest = [step.id for step in fed(events).newest(limit)]
    state = fed(disturbed(events, random), max_steps=limit)
    assert [step.id for step in state.newest()] == newest
    assert len(state.steps) == min(limit, 6)


@laws
@given(any_events, orders)
def test_the_order_of_events_is_total(events: list[Any], random: Random) -> None:
    ordered = in_order(events)
    assert in_order(random.sample(events, len(events))) == ordered
    for one in events:
        for other in events:
            assert (order_key(one) == order_key(other)) == (one == other)


@laws
@given(seeds)
def test_what_happened_before_comes_before_in_the_order(seed: int) -> None:
    """Each step's events, its `sent` included, and each worker's, are in the order in which they happened."""
    events = simulate(seed).events
    ordered = in_order(random_order(events, seed))
    for about in ("id", "origin"):
        for subject in {event[about] for event in events if about in event}:
            happened = [event for event in events if event.get(about) == subject]
            assert [event for event in ordered if event.get(about) == subject] == happened


def test_what_a_client_sent_is_just_before_what_follows_from_it() -> None:
    def event(kind: str, clock: int, id: str = "a", **fields: Any) -> Any:
        return {"type": f"step-{kind}", "id": id, "clock": clock, "origin": "w", **fields}

    others = [event("started", clock, "b") for clock in (3, 49, 50, 51)]
    for client in (0, 1, 50, 9999):
        ordered = in_order([event("sent", client), event("started", 52), event("received", 50), *others])
        place = ordered.index(event("sent", client))
        assert [each["clock"] for each in ordered[:place]] in ([3], [3, 49])
        again = in_order(
            [event("sent", client, attempt=2), event("retried", 4, attempt=1), event("received", 50, attempt=2)]
        )
        assert [each["type"] for each in again] == ["step-retried", "step-sent", "step-received"]
    alone = in_order([event("sent", 7), *others])
    assert [each["clock"] for each in alone] == [3, 7, 49, 50, 51]


def random_order(events: list[Any], seed: int) -> list[Any]:
    return Random(seed).sample(events, len(events))
