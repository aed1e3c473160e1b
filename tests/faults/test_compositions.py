"""A worker is killed at each commit of a composition, and another one goes on with it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import effects
import pytest
from world import World, open_world

from holdfast import SagaFailed

SOME = (2, 4)
"""The commits after which a worker is killed, unless it is killed after each."""


def killed_at_a_commit(folder: Path, play: Any, check: Any, nth: int) -> bool:
    """Whether the worker lived to the end: it dies after its commit of that number, and another one goes on."""
    folder.mkdir()
    with open_world(folder) as world:
        run = play()
        victim = world.worker(f"engine.after_commit:{nth}")
        world.until(lambda: victim.poll() is not None or run.status.is_final)
        survived = victim.poll() is None
        other = victim if survived else world.worker()
        world.until(lambda: run.status.is_final)
        check(world, run)
        world.check_histories()
        world.stop(other)
    return survived


def killed_at_some_commits(folder: Path, play: Any, check: Any) -> None:
    for nth in SOME:
        assert not killed_at_a_commit(folder / str(nth), play, check, nth)


def killed_at_every_commit(folder: Path, play: Any, check: Any) -> None:
    """With a worker that dies after its first, second, third... commit, until one lives to the end."""
    for nth in range(1, 100):
        if killed_at_a_commit(folder / str(nth), play, check, nth):
            assert nth > max(SOME)
            return


EVERY = [killed_at_some_commits, pytest.param(killed_at_every_commit, marks=pytest.mark.torture)]


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
@pytest.mark.parametrize("killed", EVERY)
@pytest.mark.parametrize("form", ["trip", "named_trip"])
def test_a_saga_killed_at_any_commit_is_compensated_in_the_end(tmp_path: Path, form: str, killed: Any) -> None:
    def play() -> Any:
        return effects.trip.start() if form == "trip" else effects.named_trip.start({})

    killed(tmp_path, play, check_undone)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("killed", EVERY)
def test_a_dag_killed_at_any_commit_ends_as_if_nothing_had_happened(tmp_path: Path, killed: Any) -> None:
    def check(world: World, run: Any) -> None:
        found = run.result(timeout=0)
        assert found["each"] == ["the a", "the b", "the c"]
        assert (found["last"], "never" in found) == (3, False)
        keys = {entry.key: entry.note for entry in world.ledger("act")}
        assert sorted(keys.values()) == ["a", "b", "c", "first"], "nothing that was recorded is executed again"

    killed(tmp_path, lambda: effects.errands.start({"names": ["a", "b", "c"]}), check)
