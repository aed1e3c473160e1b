"""What is Celery's own about steps in the pool of its worker: one with two processes, and an engine beside it. What is the
same everywhere is tested with the other ways to execute steps."""

from __future__ import annotations

import os

import pytest
from celery_outside import Shop

from holdfast import StepTimeoutError
from holdfast.executors.celery.attachment import make_celery
from holdfast.executors.celery.broker import Broker, Parcel

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
