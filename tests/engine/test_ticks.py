"""What engines do about schedules while clocks are set."""

from __future__ import annotations

from pathlib import Path

import pytest
from waiting import MovedClock

from holdfast import App, Schedule, every
from holdfast.engine.ticks import Ticks

TICK = 10 * 60


@pytest.mark.parametrize("missed", ["skip", "once", "all"])
def test_a_schedule_goes_on_though_who_moved_it_on_by_a_clock_that_was_ahead_is_gone(
    tmp_path: Path, missed: str
) -> None:
    """The other worker has seen nothing of that time, so that for it the clock was never set back."""
    app = App("ticks", str(tmp_path / "ticks.db"))
    clock = app.storage.clock = MovedClock()
    clock.move(seconds=TICK + 30 - clock.now() / 1_000_000 % TICK)  # half a minute after a tick

    @app.workflow
    def job() -> None: ...

    app.schedules.put(Schedule(every(f"{TICK}s"), missed=missed, overlap="allow"), job)  # type: ignore[arg-type]
    names = sorted(app.definitions.known_names())
    first, second = (Ticks(app.definitions, app.store, names, fires=True) for _ in range(2))
    for each in (first, second):
        each.declare()
        each.fire()
    clock.move(days=3)
    first.fire()
    clock.move(days=-3)
    made = len(app.runs(limit=10_000))
    for _ in range(4):
        clock.move(seconds=TICK / 2)
        second.look()
        second.fire()
    (schedule,) = app.schedules.list()
    assert schedule.next_at is not None
    assert abs(schedule.next_at.timestamp() - clock.now() / 1_000_000) <= TICK
    # All of them were made up for while the clock was ahead, or come now.
    assert len(app.runs(limit=10_000)) == made + (0 if missed == "all" else 2)
    app.close()


def test_a_worker_with_older_code_does_not_take_back_what_newer_code_declares(tmp_path: Path) -> None:
    store, clock = str(tmp_path / "ticks.db"), MovedClock()

    def deploy(seconds: int) -> tuple[App, Ticks]:
        app = App("ticks", store)
        app.storage.clock = clock

        @app.workflow(schedule=Schedule(every(f"{seconds}s")))
        def job() -> None: ...

        ticks = Ticks(app.definitions, app.store, sorted(app.definitions.known_names()), fires=True)
        ticks.declare()
        return app, ticks

    (old, older), (new, newer) = deploy(600), deploy(900)
    for _ in range(4):
        clock.move(seconds=300)
        for ticks in (newer, older):
            ticks.look()
            ticks.fire()
    assert [each.when for each in new.schedules.list()] == ["every 15m"]
    old.close()
    new.close()
