"""Workers and those who ask are killed between question and answer."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import asked
import pytest
from world import World, open_world

from holdfast import RequestRefusedError


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with open_world(tmp_path, asked) as opened:
        yield opened


# The commits of a worker: the run is claimed, the question arrives and asks for a step, the step ends and answers.
@pytest.mark.parametrize(
    "failpoint",
    [
        "commit.after_commit:2",
        "commit.before_commit:3",
        pytest.param("commit.before_commit:2", marks=pytest.mark.torture),
        pytest.param("commit.after_commit:3", marks=pytest.mark.torture),
    ],
)
def test_a_worker_killed_between_question_and_answer_answers_once(world: World, failpoint: str) -> None:
    run = asked.counter.options(id="c").start()
    asker = world.python("asked.py", "c", "5", "q1")
    world.until(lambda: world.inbox("c"), what="the question")
    first = world.worker(failpoint)
    assert first.wait(20) == -signal.SIGKILL, world.log()
    second = world.worker()
    assert asker.wait(20) == 0, world.log()
    assert "answer 5" in world.log()
    assert run.ask(asked.add, 5, id="q1", timeout=20) == 5
    with pytest.raises(RequestRefusedError, match="only upwards"):
        run.ask(asked.add, -1, timeout=20)
    assert run.ask(asked.add, 2, timeout=20) == 7
    asked.forwarder.start("c")
    assert run.result(timeout=20) == 7
    kinds = [event.kind for event in world.events("c")]
    assert kinds.count("RequestReceived") == kinds.count("RequestAnswered") == 3
    world.check_histories()
    world.stop(second)


@pytest.mark.parametrize(
    "failpoint", ["post.after_commit:1", pytest.param("post.before_commit:1", marks=pytest.mark.torture)]
)
def test_who_was_killed_while_asking_asks_again_and_is_counted_once(world: World, failpoint: str) -> None:
    run = asked.counter.options(id="c").start()
    worker = world.worker()
    world.until(world.pids)
    assert world.python("asked.py", "c", "5", "q1", HOLDFAST_FAILPOINT=failpoint).wait(20) == -signal.SIGKILL
    assert world.python("asked.py", "c", "5", "q1").wait(20) == 0, world.log()
    assert run.ask(asked.add, 1, timeout=20) == 6
    assert run.wait_data("total", timeout=20) == 6
    world.stop(worker)


def test_a_step_handed_over_in_a_process_of_its_own_is_finished_after_its_worker_was_killed(world: World) -> None:
    run = asked.delegates.options(id="d").start()
    first = world.worker()
    world.until(lambda: "StepHandedOver" in [event.kind for event in world.events("d")], what="the hand-over")
    world.kill(first)
    second = world.worker()
    world.until(lambda: second.pid in world.pids())
    asked.app.finish_step((world.folder / "token").read_text(), 7)
    assert run.result(timeout=20) == 7
    kinds = [event.kind for event in world.events("d")]
    assert kinds.count("StepHandedOver") == kinds.count("StepCompleted") == 1
    assert "StepLost" not in kinds
    world.stop(second)
