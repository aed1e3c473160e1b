"""Whoever follows a stream sees each execution apart, and costs nothing while nothing is said."""

from __future__ import annotations

import itertools

import effects
import pytest
from world import World

from holdfast import Run
from warm_python import Process


def said(run: Run[str], count: int) -> list[tuple[int, str]]:
    return [(item.attempt, item.item) for item in itertools.islice(run.stream(), count)]


@pytest.mark.parametrize("end", ["killed", "stopped"])
def test_what_is_said_again_has_another_number(world: World, end: str) -> None:
    first = world.engine({"grace": 0.0})
    run = effects.say_at_gate.start("end")
    assert said(run, 2) == [(1, "one"), (1, "two")]
    leave(world, first, end)
    second = world.engine({"grace": 0.0})
    assert said(run, 4)[2:] == [(2, "one"), (2, "two")]
    leave(world, second, end)
    world.open_gate("end")
    world.worker()
    assert run.result(timeout=20) == "end"
    assert [attempt for attempt, _ in said(run, 6)] == [1, 1, 2, 2, 3, 3]


def leave(world: World, worker: Process, end: str) -> None:
    if end == "killed":
        world.kill(worker)
    else:
        world.stop(worker)


def test_a_watch_waits_again_for_what_was_not_announced_yet(world: World) -> None:
    """Otherwise whoever follows a run that has said something once would turn in circles until it ends."""
    world.engine()
    world.until(lambda: world.workers())
    run = effects.say_at_gate.start("end")
    assert len(said(run, 2)) == 2
    watch = world.app.notifier.watch(run.id)
    try:
        world.until(lambda: not watch.wait(0.1), what="silence")
        assert not any(watch.wait(0.05) for _ in range(5))
        world.open_gate("end")
        assert watch.wait(20)
    finally:
        watch.close()


def test_what_a_step_says_while_its_run_is_paused_is_kept(world: World) -> None:
    world.engine()
    run = effects.say_until_gate.start("end")
    assert said(run, 1) == [(1, "before")]
    run.pause()
    world.until(lambda: run.status == "PAUSED")
    world.open_gate("end")
    world.until(lambda: world.inbox(run.id)[-1:] == ["outcome"], what="the end of the step")
    run.resume()
    assert run.result(timeout=20) == "end"
    assert [item.item for item in run.stream()] == ["before", "after"]
