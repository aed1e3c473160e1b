"""Two builds of the code side by side, as in any rolling deploy."""

from __future__ import annotations

import signal

import effects
from world import World


def test_a_run_that_fits_another_build_is_left_to_its_workers(world: World) -> None:
    """The older build stands still for a while, so that the newer one has to decide."""
    quick = {"park_after": 0.05, "sweep": 0.1}
    older = world.engine(quick)
    run = effects.changed.start()
    world.until(lambda: run.status == "WAITING" and world.app.store.get(run.id).owner is None)  # type: ignore[union-attr]
    newer = world.engine(quick, EFFECTS_BUILD="2")
    world.until(lambda: newer.pid in world.pids())
    world.freeze(older)
    run.send("go on", "yes")
    world.until(lambda: run.status in ("PENDING", "STUCK"), what="the newer build's decision")
    assert run.status == "PENDING"
    older.send_signal(signal.SIGCONT)
    assert run.result(timeout=20) == "yes 3"
    assert [entry.step for entry in world.ledger()] == ["add"]
    assert not any(event.kind == "RunStuck" for event in world.events(run.id))
    world.check_histories()


def test_a_run_that_fits_no_build_that_is_left_is_set_aside_and_goes_on_when_it_does(world: World) -> None:
    quick = {"park_after": 0.05, "sweep": 0.1}
    older = world.engine(quick)
    run = effects.changed.start()
    world.until(lambda: run.status == "WAITING" and world.app.store.get(run.id).owner is None)  # type: ignore[union-attr]
    world.stop(older)
    newer = world.engine(quick, EFFECTS_BUILD="2")
    run.send("go on", "yes")
    world.until(lambda: run.status == "STUCK")
    world.stop(newer)
    world.engine(quick)
    run.resume()
    assert run.result(timeout=20) == "yes 3"
