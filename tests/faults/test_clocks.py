"""A database's clock that jumps ahead, and is set back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import effects
import pytest
from test_commit_failures import running_engine
from waiting import MovedClock, wait_until
from world import World

from holdfast import App, RetryableError, StepTimeoutError, this_step
from holdfast.core import events as ev
from holdfast.engine.settings import Settings

DAY = 86_400 * 1_000_000


@pytest.fixture
def clock(world: World, monkeypatch: pytest.MonkeyPatch) -> MovedClock:
    clock = MovedClock()
    monkeypatch.setattr(world.app.storage, "clock", clock)
    monkeypatch.setattr(world.app.store, "clock", clock)
    return clock


@pytest.mark.parametrize("parked", [False, True])
def test_a_sleep_that_began_while_the_clock_was_ahead_is_as_long_as_it_was_to_be(
    world: World, clock: MovedClock, parked: bool
) -> None:
    clock.move(days=400)
    with running_engine(world, lambda engine: None, park_after=0.05 if parked else 60.0) as engine:
        runs = [effects.nap.start(1.0) for _ in range(3)]
        world.until(lambda: all(run.status == "WAITING" for run in runs))
        if parked:
            world.until(lambda: not engine.runs)
        clock.move(days=-400)
        assert [run.result(timeout=20) for run in runs] == [3] * 3
    for run in runs:
        (back,) = [e for e in world.events(run.id) if isinstance(e, ev.ClockSetBack)]
        assert abs(back.by - 400 * DAY) < DAY
    world.check_histories()


def test_a_clock_that_was_set_back_while_no_worker_was_there_is_noticed_by_the_next(
    world: World, clock: MovedClock
) -> None:
    clock.move(days=400)
    with running_engine(world, lambda engine: None) as engine:
        run = effects.nap.start(1.0)
        world.until(lambda: not engine.runs and run.status == "WAITING")
    clock.move(days=-400)
    with running_engine(world, lambda engine: None):
        assert run.result(timeout=20) == 3
    world.check_histories()


def test_a_step_that_was_put_off_while_the_clock_was_ahead_is_tried_as_soon_as_it_was_to_be(tmp_path: Path) -> None:
    """The code itself has seen nothing of that time."""
    app = App("clocks", str(tmp_path / "clocks.db"))
    clock = app.storage.clock = MovedClock()

    @app.step(max_retries=1, retry_delay="2s")
    def fails_once() -> str:
        if this_step.attempt == 1:
            clock.move(days=400)
            raise RetryableError("not yet")
        return "done"

    @app.workflow
    def flow() -> str:
        return fails_once()

    with app.worker(settings=Settings(sweep=0.1)):
        run = flow.start()
        wait_until(lambda: run.history()[-1].kind == "StepRetrying")
        clock.move(days=-400)
        assert run.result(timeout=20) == "done"
    app.close()


def test_a_run_that_is_tried_again_waits_as_long_as_it_was_to(tmp_path: Path) -> None:
    app = App("clocks", str(tmp_path / "clocks.db"))
    clock = app.storage.clock = MovedClock()
    failed: list[bool] = []

    @app.workflow(max_retries=1, retry_delay="1s")
    def flow() -> str:
        if not failed:
            failed.append(True)
            raise ValueError
        return "done"

    clock.move(days=400)
    with app.worker(settings=Settings(sweep=0.1)):
        run = flow.start()
        wait_until(lambda: run.status == "RETRY")
        clock.move(days=-400)
        assert run.result(timeout=20) == "done"
    assert "ClockSetBack" in [event.kind for event in run.history()]
    app.close()


@pytest.mark.parametrize("words", [{"timeout": "1s"}, {"timeout": None, "stall_timeout": "1s"}])
def test_a_step_that_was_handed_over_while_the_clock_was_ahead_ends_in_time(
    tmp_path: Path, words: dict[str, Any]
) -> None:
    app = App("clocks", str(tmp_path / "clocks.db"))
    clock = app.storage.clock = MovedClock()

    @app.step(max_retries=0, **words)
    def pay() -> str:
        return this_step.hand_over()

    @app.workflow
    def flow() -> str:
        return pay()

    clock.move(days=400)
    with app.worker(settings=Settings(sweep=0.1)):
        run = flow.start()
        wait_until(lambda: "StepHandedOver" in [event.kind for event in run.history()])
        clock.move(days=-400)
        with pytest.raises(StepTimeoutError):
            run.result(timeout=20)
    app.close()
