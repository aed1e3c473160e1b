"""A worker is killed at each commit of a composition, and another one goes on with it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import effects
import pytest
from world import World, open_world

from holdfast import SagaFailed


def killed_at_every_commit(folder: Path, play: Any, check: Any) -> None:
    """Play it with a worker that dies after its first, second, third... commit, until one lives to the end."""
    for nth in range(1, 100):
        here = folder / str(nth)
        here.mkdir()
        with open_world(here) as world:
            run = play()
            victim = world.worker(f"engine.after_commit:{nth}")
            world.until(lambda run=run, victim=victim: victim.poll() is not None or run.status.is_final)
            survived = victim.poll() is None
            other = None if survived else world.worker()
            world.until(lambda run=run: run.status.is_final)
            check(world, run)
            world.check_histories()
            world.stop(victim if other is None else other)
        if survived:
            assert nth > 4
            return


def check_undone(world: World, run: Any) -> None:
    with pytest.raises(SagaFailed) as caught:
        run.result(timeout=0)
    assert len(caught.value.compensated) == 2
    undone = [entry.note for entry in world.ledger("undo")]
    assert list(dict.fromkeys(undone)) == ["the hotel", "the flight"], "in reverse, each at least once"
    steps = [step for step in run.steps if step.undoes]
    assert [step.state for step in steps] == ["SUCCESS", "SUCCESS"]
    acts = [entry.key for entry in world.ledger("act")]
    recorded = [step for step in run.steps if step.result in ("the flight", "the hotel")]
    assert len(set(acts)) == len(recorded) == 2


@pytest.mark.timeout(300)
@pytest.mark.parametrize("form", ["trip", "named_trip"])
def test_a_saga_killed_at_any_commit_is_compensated_in_the_end(tmp_path: Path, form: str) -> None:
    def play() -> Any:
        return effects.trip.start() if form == "trip" else effects.named_trip.start({})

    killed_at_every_commit(tmp_path, play, check_undone)


@pytest.mark.timeout(300)
def test_a_dag_killed_at_any_commit_ends_as_if_nothing_had_happened(tmp_path: Path) -> None:
    def check(world: World, run: Any) -> None:
        found = run.result(timeout=0)
        assert found["each"] == ["the a", "the b", "the c"]
        assert (found["last"], "never" in found) == (3, False)
        keys = {entry.key: entry.note for entry in world.ledger("act")}
        assert sorted(keys.values()) == ["a", "b", "c", "first"], "nothing that was recorded is executed again"

    killed_at_every_commit(tmp_path, lambda: effects.errands.start({"names": ["a", "b", "c"]}), check)
