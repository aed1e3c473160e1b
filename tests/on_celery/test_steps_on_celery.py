"""What is Celery's own about steps in the pool of its worker: one with two processes, and an engine beside it. What is the
same everywhere is tested with the other ways to execute steps."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest
from celery_outside import Shop

from holdfast import App, StepTimeoutError
from holdfast.executors.celery.attachment import make_celery
from holdfast.executors.celery.broker import Broker, Parcel
from holdfast.executors.celery.events import CeleryTransport
from holdfast.telemetry import ClusterState, EventReceiver

pytestmark = pytest.mark.xdist_group("shop on celery")


def test_a_workflow_goes_through_steps_in_the_pool(shop: Shop) -> None:
    assert shop.start("five", 10).result(timeout=60) == 60
    assert sorted(shop.effects().values()) == [1] * 5


def test_force_local_executes_beside_the_engine_and_all_else_in_the_pool(shop: Shop) -> None:
    engine = shop.start("where_the_engine_is").result(timeout=30)
    child = shop.start("where_steps_are").result(timeout=30)
    workers = {worker.pid: worker for worker in shop.app.store.workers()}
    assert (workers[engine].kind, workers[child].kind) == ("engine", "executor")
    assert os.getpgid(engine) == os.getpgid(child) == shop.workers[0].pid


def test_a_step_that_takes_too_long_is_interrupted(shop: Shop) -> None:
    with pytest.raises(StepTimeoutError):
        shop.start("too_slow").result(timeout=30)
    shop.wait_for("interrupted too_slow")


def test_a_cancelled_run_interrupts_its_step(shop: Shop) -> None:
    run = shop.start("endless", "cancelled")
    shop.wait_for("begin cancelled")
    run.cancel()
    shop.wait_for("interrupted cancelled CancelledError")
    assert shop.start("twice", 1).result(timeout=30) == 2, "the process goes on"


def test_an_engine_that_has_ended_is_started_again(shop: Shop) -> None:
    def engines() -> set[int]:
        return {worker.pid for worker in shop.app.store.workers() if worker.kind == "engine"}

    shop.wait_until(lambda: bool(engines()))
    (before,) = engines()
    os.kill(before, signal.SIGKILL)
    shop.wait_until(lambda: bool(engines() - {before}), 60)
    assert shop.start("twice", 3).result(timeout=60) == 6


def test_a_message_that_comes_again_and_again_and_late_does_nothing(shop: Shop) -> None:
    broker = Broker(make_celery("shop", shop.broker), "shop")
    run = shop.start("effect", 1, seconds=0.3)
    shop.wait_until(lambda: bool(shop.app.store.attempts(run.id)))
    (attempt,) = shop.app.store.attempts(run.id)
    copies = [Parcel(attempt.token, "shop.effect", "", 0)] * 20
    broker.publish(copies)
    assert run.result(timeout=30) == 1
    broker.publish(copies)
    broker.publish([Parcel("no:such:token", "shop.effect", "", 0)])
    assert shop.start("twice", 2).result(timeout=30) == 4, "what came after the copies"
    shop.wait_until(lambda: broker.ready("shop") == 0)
    broker.close()
    assert [count for key, count in shop.effects().items() if key.startswith(run.id)] == [1]


def test_what_a_pool_does_is_told_through_the_brokers_event_exchange_and_heard_once(shop: Shop) -> None:
    app = App("shop", shop.app.store_url, broker=shop.broker)
    pushed = CeleryTransport(app.celery, "shop").subscribe()
    receiver = EventReceiver(app.telemetry, app.logical_clock)
    assert pushed.is_connected.wait(20)
    state, heard = ClusterState(), list[dict[str, Any]]()
    wanted = {"step-received", "step-started", "step-progress", "worker-heartbeat"}
    workers = {worker.id for worker in shop.app.store.workers()}

    def has_heard(types: set[str], origins: set[str]) -> bool:
        receiver.capture({"*": heard.append}, timeout=0)
        return {event["type"] for event in heard} >= types and {event["origin"] for event in heard} >= origins

    shop.wait_until(lambda: has_heard(set(), workers))  # processes of a pool look now and then whether somebody listens
    run = shop.start("counting", 3)
    shop.wait_until(lambda: has_heard(wanted | {"run-succeeded"}, set()))
    told: dict[tuple[str, str | None], dict[str, Any]] = {}

    def is_told() -> bool:
        told.update({(event["type"], event.get("id")): event for event in pushed.receive(0) or ()})
        return {kind for kind, _ in told} >= wanted

    shop.wait_until(is_told)
    (step,) = {id for kind, id in told if kind == "step-progress"}
    assert told["step-progress", step]["run_id"] == run.id
    assert told["step-received", step]["clock"] < told["step-progress", step]["clock"] < app.logical_clock.value
    keys = [(event["type"], event.get("id"), event["origin"], event["clock"]) for event in heard]
    assert len(keys) == len(set(keys)), "what came both ways is heard once"
    state.apply_many(heard)
    assert (state.steps[step].state, state.steps[step].name) == ("SUCCESS", "counting")
    receiver.stop()
    pushed.close()
    app.close()
