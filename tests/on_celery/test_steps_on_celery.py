"""What steps can do is the same in the pool of a Celery worker: one worker with two processes, an engine beside it."""

from __future__ import annotations

import os
from typing import Any

import pytest
from celery_outside import Shop

from holdfast import FatalError, StepTimeoutError, WorkerLostError
from holdfast.executors.celery.attachment import make_celery
from holdfast.executors.celery.broker import Broker, Parcel


def test_a_workflow_goes_through_steps_in_the_pool(shop: Shop) -> None:
    assert shop.start("five", 10).result(timeout=60) == 60
    assert sorted(shop.effects().values()) == [1] * 5


def test_force_local_executes_beside_the_engine_and_all_else_in_the_pool(shop: Shop) -> None:
    engine = shop.start("where_the_engine_is").result(timeout=30)
    child = shop.start("where_steps_are").result(timeout=30)
    workers = {worker.pid: worker for worker in shop.app.store.workers()}
    assert (workers[engine].kind, workers[child].kind) == ("engine", "executor")
    assert os.getpgid(engine) == os.getpgid(child) == shop.workers[0].pid


@pytest.mark.parametrize(
    ("name", "args", "result"), [("later", (1,), 2), ("flaky", (1,), 3), ("resuming", (), [1, 2]), ("twice", (4,), 8)]
)
def test_steps_retry_resume_and_are_async_as_everywhere(shop: Shop, name: str, args: Any, result: Any) -> None:
    assert shop.start(name, *args).result(timeout=30) == result


def test_a_fatal_error_is_final(shop: Shop) -> None:
    run = shop.start("fatal")
    with pytest.raises(FatalError, match="never"):
        run.result(timeout=30)
    assert run.steps[0].attempts == 1


def test_what_a_step_says_on_its_way_arrives(shop: Shop) -> None:
    run = shop.start("telling")
    assert run.result(timeout=30).startswith(run.id)
    assert [streamed.item for streamed in run.stream()] == ["one", "two"]
    assert "told" in [record.message for record in run.logs()]


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


def test_a_step_that_kills_its_process_is_lost_twice_and_nobody_else_is_blamed(shop: Shop) -> None:
    others = [shop.start("five", n, seconds=0.05) for n in range(2)]
    with pytest.raises(WorkerLostError):
        shop.start("deadly", 1).result(timeout=60)
    assert shop.ledger().count("deadly 1") == 2
    assert [run.result(timeout=60) for run in others] == [10, 15]
