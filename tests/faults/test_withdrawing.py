"""What is no longer wanted is not begun: steps that wait for a thread when their run is let go."""

from __future__ import annotations

import signal
import subprocess

import effects
import pytest
from world import World

THREADS = 16


def fill(world: World, settings: dict[str, float]) -> subprocess.Popen[bytes]:
    """A worker with a run that has more steps than it has threads; all threads are taken."""
    worker = world.engine(settings)
    effects.crowd.options(id="crowd").start(40, "go")
    world.until(lambda: len(world.ledger("wait_at_gate")) == THREADS)
    return worker


@pytest.mark.xfail(reason="attempts that wait for a thread are not withdrawn", strict=True)
def test_steps_of_a_run_that_was_paused_are_not_begun(world: World) -> None:
    fill(world, {})
    run = world.app.get_run("crowd")
    run.pause()
    world.until(lambda: run.status == "PAUSED")
    world.open_gate("go")
    effects.plain.start(1).result(timeout=20)  # it waited in the same queue, behind them
    assert len(world.ledger("wait_at_gate")) == THREADS
    run.resume()
    assert run.result(timeout=20) == 40
    assert len({entry.key for entry in world.ledger("wait_at_gate")}) == len(world.ledger("wait_at_gate")) == 40


@pytest.mark.xfail(reason="attempts that wait for a thread are not withdrawn", strict=True)
def test_steps_that_another_worker_has_recorded_are_not_begun_by_one_that_thaws(world: World) -> None:
    short = {"lease": 1.0, "beat": 0.1, "sweep": 0.1}
    frozen = fill(world, short)
    world.freeze(frozen)
    other = world.engine(short)
    world.until(lambda: len(world.ledger("wait_at_gate")) > THREADS, what="a takeover")
    world.open_gate("go")
    assert world.app.get_run("crowd").result(timeout=30) == 40
    world.stop(other)
    frozen.send_signal(signal.SIGCONT)
    effects.plain.start(1).result(timeout=20)  # by the one that thawed, behind what it had queued
    assert len([entry for entry in world.ledger("wait_at_gate") if entry.pid == frozen.pid]) == THREADS
