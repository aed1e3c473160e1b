"""Telemetry over a store: what real workers do reaches whoever receives, in an order that holds for all."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from telemetry_streams import disturbed, fed, known

from holdfast import App
from holdfast.telemetry import ClusterState, EventDispatcher, EventReceiver, in_order, order_key

HERE = Path(__file__).parent
PATIENCE = 20.0
ORDERS, WORKERS = 6, 2
Event = dict[str, Any]


def shop(store: str) -> App:
    """Only its names are needed to start its runs."""
    app = App("shop", store)

    @app.workflow
    async def order(item: str) -> list[str]:
        return []

    @app.workflow
    def unwanted(item: str) -> str:
        return ""

    @app.workflow
    async def approval(item: str) -> str:
        return ""

    return app


@contextmanager
def workers(store: str, count: int) -> Iterator[list[subprocess.Popen[bytes]]]:
    command = [sys.executable, "-m", "holdfast", "-A", "telemetry_shop", "worker", "--log-level", "error"]
    environment = {
        **os.environ,
        "SHOP_STORE": store,
        "PYTHONPATH": f"{HERE}{os.pathsep}{os.environ.get('PYTHONPATH', '')}",
    }
    started = [subprocess.Popen(command, cwd=HERE, env=environment) for _ in range(count)]
    try:
        yield started
    finally:
        for worker in started:
            worker.terminate()
        for worker in started:
            worker.wait(PATIENCE)


def hear(receiver: EventReceiver, heard: list[Event], until: Callable[[], bool]) -> None:
    """Receive until that is so."""
    deadline = time.monotonic() + PATIENCE
    while not until():
        assert time.monotonic() < deadline, f"heard only {[event['type'] for event in heard]}"
        receiver.capture({"*": heard.append}, timeout=0.1)


def kinds(events: list[Event]) -> list[str]:
    return [event["type"] for event in events]


@pytest.fixture(scope="module")
def stream(tmp_path_factory: pytest.TempPathFactory) -> list[Event]:
    """What two workers did, as it was received while they did it."""
    store = str(tmp_path_factory.mktemp("telemetry") / "shop.db")
    app = shop(store)
    heard: list[Event] = []
    _ = app.store
    with workers(store, WORKERS):
        receiver = EventReceiver(app.telemetry)
        hear(receiver, heard, lambda: kinds(heard).count("worker-online") >= WORKERS)
        names = [*(["order"] * ORDERS), "unwanted", "approval"]
        runs = [app.start(name, f"item {number}") for number, name in enumerate(names)]
        runs[-1].cancel()
        ends = ("run-succeeded", "run-failed", "run-cancelled")
        hear(receiver, heard, lambda: sum(kind in ends for kind in kinds(heard)) == len(runs) + ORDERS)
        hear(receiver, heard, lambda: "worker-heartbeat" in kinds(heard))
    hear(receiver, heard, lambda: kinds(heard).count("worker-offline") == WORKERS)
    receiver.stop()
    app.close()
    return heard


def test_all_that_workers_do_is_heard(stream: list[Event]) -> None:
    state = ClusterState()
    state.apply_many(stream)
    assert state.run_counts == {"SUCCESS": 2 * ORDERS, "FAILURE": 1, "CANCELLED": 1}
    assert state.counts == {"SUCCESS": 3 * ORDERS, "FAILURE": 1}
    for step in state.steps.values():
        assert step.attempt == (2 if step.name == "charge" else 1)
        assert step.worker in state.workers
        assert step.exception == ("FatalError: nobody wants item 6" if step.name == "refuse" else None)
        if step.name == "pack":
            assert step.result.startswith("packed item")
            assert list(step.times) == ["started", "progress", "succeeded"]
    assert len(state.workers) == WORKERS
    assert not any(worker.online for worker in state.workers.values())


def test_what_led_to_something_has_the_lower_clock_in_whichever_process(stream: list[Event]) -> None:
    runs: defaultdict[str, list[Event]] = defaultdict(list)
    attempts: defaultdict[tuple[str, int], list[Event]] = defaultdict(list)
    for event in in_order(stream):
        if event["type"].startswith("run-"):
            runs[event["id"]].append(dict(event))
        elif event["type"].startswith("step-"):
            runs[event["run_id"]].append(dict(event))
            attempts[event["id"], event["attempt"]].append(dict(event))
    for events in runs.values():
        assert kinds(events)[:2] == ["run-sent", "run-started"]
        assert kinds(events)[-1] in ("run-succeeded", "run-failed", "run-cancelled")
        clocks = [event["clock"] for event in events]
        assert clocks == sorted(set(clocks)), "each event of a run follows from the one before it, or is beside it"
    for events in attempts.values():
        assert kinds(events)[0] == "step-started"
        assert kinds(events)[-1] in ("step-succeeded", "step-failed", "step-retried")
        assert set(kinds(events)[1:-1]) <= {"step-progress"}
    for events in runs.values():
        parent = events[0].get("parent_id")
        if parent is not None:
            assert runs[parent][1]["clock"] < events[0]["clock"], "a child follows from its parent"
            assert events[-1]["clock"] < runs[parent][-1]["clock"], "and its parent's end from its own"


def test_no_two_events_have_the_same_place(stream: list[Event]) -> None:
    assert len({order_key(event) for event in stream}) == len(stream)


@given(seed=st.integers(0, 2**32))
@settings(max_examples=30, deadline=None, derandomize=True, database=None)
def test_any_order_of_a_recorded_stream_with_duplicates_gives_the_same_state(stream: list[Event], seed: int) -> None:
    assert known(fed(disturbed(stream, Random(seed)))) == known(fed(stream))


@pytest.fixture(params=["sqlite", "postgres"])
def app(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[App]:
    store = str(tmp_path / "shop.db") if request.param == "sqlite" else request.getfixturevalue("postgres_url")
    app = App("shop", store)

    @app.step
    def double(number: int) -> int:
        return 2 * number

    @app.step
    def times(number: int, *, by: int) -> int:
        return number * by

    yield app
    app.close()


def test_events_reach_whoever_receives_and_nothing_is_kept_for_nobody(app: App) -> None:
    with app.worker() as host:
        assert app.start("double", 1).result(timeout=PATIENCE) == 2
        assert app.store.newest_notes() == 0, "nobody listens, and nothing is written"
        assert not host.engine.env.reporter.is_on
        heard: list[Event] = []
        receiver = EventReceiver(app.telemetry)
        hear(receiver, heard, lambda: "worker-online" in kinds(heard))
        run = app.start("double", 4)
        hear(receiver, heard, lambda: "run-succeeded" in kinds(heard))
        found = [event for event in heard if not event["type"].startswith("worker-")]
        assert kinds(found) == ["run-sent", "run-started", "step-started", "step-succeeded", "run-succeeded"]
        assert {event.get("run_id", event["id"]) for event in found} == {run.id}
        assert (found[3]["name"], found[3]["args"], found[3]["result"]) == ("double", [4], 8)
        assert receiver.clock.value > max(event["clock"] for event in heard)
        receiver.stop()
        assert receiver.capture({}) == 0
        deadline = time.monotonic() + PATIENCE
        while host.engine.env.reporter.is_on:
            assert time.monotonic() < deadline, "nobody listens any more"
            time.sleep(0.05)


def test_the_arguments_of_a_step_and_of_a_run_are_args_and_kwargs(app: App) -> None:
    state = ClusterState()
    receiver, heard = EventReceiver(app.telemetry), list[Event]()
    with app.worker():
        hear(receiver, heard, lambda: "worker-online" in kinds(heard))
        run = app.start("times", 3, by=2)
        hear(receiver, heard, lambda: "run-succeeded" in kinds(heard))
    receiver.stop()
    state.apply_many(heard)
    (step,) = state.newest()
    assert (step.args, step.kwargs) == ([3], {"by": 2})
    assert (state.runs[run.id].args, state.runs[run.id].kwargs) == ([3], {"by": 2})


def test_events_of_ones_own_reach_receivers_in_other_processes_too(app: App) -> None:
    receiver, heard = EventReceiver(app.telemetry), list[Event]()
    with EventDispatcher(app.telemetry, app.logical_clock, origin="importer") as dispatcher:
        dispatcher.send("step-imported", id="row 1", attempt=1, rows=3)
        dispatcher.flush()
    hear(receiver, heard, lambda: bool(heard))
    assert (heard[0]["type"], heard[0]["origin"], heard[0]["rows"]) == ("step-imported", "importer", 3)
    receiver.stop()


def test_a_receiver_can_be_stopped_from_another_thread_while_it_waits(app: App) -> None:
    receiver = EventReceiver(app.telemetry)
    waiting = threading.Thread(target=receiver.capture, args=({},))
    waiting.start()
    receiver.stop()
    waiting.join(PATIENCE)
    assert not waiting.is_alive()


def test_what_workers_tell_is_a_ring_that_never_grows_beyond_its_bounds(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.stores.telemetry.KEPT", 5)
    subscription = app.telemetry.subscribe()
    for number in range(20):
        app.telemetry.publish([{"type": "step-imported", "id": str(number)}])
    events = subscription.receive(0)
    assert [event["id"] for event in events or []] == ["15", "16", "17", "18", "19"]
    subscription.close()


@pytest.mark.parametrize(
    "junk",
    [
        {"type": "step-started"}, {"type": "step-started", "id": ["a"], "attempt": 1}, {"type": "step-failed", "id": 3},
        {"type": "run-sent", "clock": "late"}, {"type": 7}, {},
    ],
)  # fmt: skip
def test_events_that_make_no_sense_hurt_no_receiver(tmp_path: Path, junk: Event) -> None:
    app = App("shop", str(tmp_path / "shop.db"))
    subscription = app.telemetry.subscribe()
    for _ in range(2):
        app.telemetry.publish([junk])
    assert subscription.receive(0) == [junk, junk]
    subscription.close()
    app.close()
