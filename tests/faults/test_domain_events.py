"""Workers and clients are killed while domain events are on their way."""

from __future__ import annotations

import signal

import effects
import pytest
from world import World

SETTINGS = {"beat": 0.05, "sweep": 0.1}
EMIT = """
import sys, effects
from holdfast import failpoints
failpoints.arm_from_environment()
effects.app.emit("Announced", {"n": 3}, key=sys.argv[1])
"""


def announced(world: World) -> list[int]:
    world.until(world.is_done)
    return sorted(run.result(timeout=0) for run in world.app.runs(workflow="on_announced"))


@pytest.mark.parametrize("failpoint", ["deliver.before_commit", "deliver.after_commit"])
def test_a_worker_killed_while_it_delivers_loses_and_doubles_nothing(world: World, failpoint: str) -> None:
    listener = effects.listener.options(id="listener").start()
    first = world.engine(SETTINGS, f"{failpoint}:1")
    world.until(lambda: listener.status == "WAITING")
    effects.app.emit("Announced", {"n": 3}, key="k")
    assert first.wait(20) == -signal.SIGKILL, world.log()
    second = world.engine(SETTINGS)
    world.until(lambda: world.app.runs(workflow="on_announced"), what="the event's run")
    assert announced(world) == [23]
    assert listener.result(timeout=20) == 3
    world.check_histories()
    world.stop(second)


@pytest.mark.parametrize("number", [1, 2, 3])
@pytest.mark.parametrize("failpoint", ["commit.before_commit", "commit.after_commit"])
def test_a_worker_killed_while_its_runs_emit_loses_and_doubles_nothing(
    world: World, failpoint: str, number: int
) -> None:
    for name in ("emitter", "listener"):
        getattr(effects, name).options(id=name).start()
    first = world.engine(SETTINGS, f"{failpoint}:{number}")
    assert first.wait(20) == -signal.SIGKILL, world.log()
    second = world.engine(SETTINGS)
    world.until(lambda: world.app.runs(workflow="on_announced"), what="the event's run")
    assert announced(world) == [23]
    assert world.app.get_run("listener").result(timeout=20) == 3
    (begun,) = world.app.runs(workflow="on_begun")
    assert begun.result(timeout=20) == 11
    world.check_histories()
    world.stop(second)


@pytest.mark.parametrize("failpoint", ["emit.before_commit:1", "emit.after_commit:1"])
def test_a_client_killed_while_it_emits_emits_again_and_there_is_one(world: World, failpoint: str) -> None:
    worker = world.engine(SETTINGS)
    world.until(world.pids)
    assert world.python("-c", EMIT, "k", HOLDFAST_FAILPOINT=failpoint).wait(20) == -signal.SIGKILL
    assert world.python("-c", EMIT, "k").wait(20) == 0
    world.until(lambda: world.app.runs(workflow="on_announced"))
    assert announced(world) == [23]
    world.stop(worker)


def test_a_step_in_a_process_of_its_own_emits(world: World) -> None:
    worker = world.engine(SETTINGS)
    assert effects.announcer.start(3).result(timeout=20) == 3
    world.until(lambda: world.app.runs(workflow="on_announced"))
    assert announced(world) == [23]
    world.stop(worker)
