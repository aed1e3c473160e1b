"""Several engines, one store, one seed: whatever happens to them, every program ends as it has to."""

from __future__ import annotations

import inspect
import os
from random import Random

import pytest
from sim_parts import ASKS_NO_DATABASE, SeamStore
from sim_programs import Fails, Generator, expected
from sim_world import World
from simulate import simulate

from holdfast.ports import Store

SEED = int(os.environ.get("SIMULATION_SEED", "1"))
WORLDS, FEW_WORLDS = 10, 6
"""In one test, and in one of `make test`. There are 12 programs in each."""


@pytest.mark.timeout(600)
@pytest.mark.parametrize("part", range(2))
def test_whatever_happens_to_engines_every_program_ends_as_it_has_to(part: int) -> None:
    """Another first seed: SIMULATION_SEED=7. One world with its trace: tests/simulation/simulate.py --seed 7."""
    for seed in range(SEED + part * FEW_WORLDS, SEED + (part + 1) * FEW_WORLDS):
        simulate(seed)


@pytest.mark.torture
@pytest.mark.parametrize("part", range(200))
def test_thousands_of_programs_end_as_they_have_to(part: int) -> None:
    for seed in range(SEED + 1_000 + part * WORLDS, SEED + 1_000 + (part + 1) * WORLDS):
        simulate(seed)


def histories(world: World) -> list[bytes]:
    return [payload for root in world.roots for payload in world.kept[root.id]]


def test_the_same_seed_is_the_same_world() -> None:
    once, again = simulate(SEED), simulate(SEED)
    assert once.trace == again.trace != simulate(SEED + 1).trace
    assert histories(once) == histories(again)


def test_all_of_the_store_that_asks_a_database_can_fail() -> None:
    port = {name for name, _ in inspect.getmembers(Store, inspect.isfunction) if not name.startswith("_")}
    assert port - {*ASKS_NO_DATABASE} <= {*vars(SeamStore)}


def test_programs_are_of_all_kinds_and_some_have_to_fail() -> None:
    generator = Generator(Random(1))
    programs = [generator.program()[0] for _ in range(300)]
    text = str(programs)
    for kind in (
        "hasty",
        "stream",
        "emit",
        "event",
        "once",
        "seq",
        "gather",
        "fan",
        "race",
        "timeout",
        "try",
        "sleep",
        "hook",
        "data",
        "child",
        "saga",
    ):
        assert f"['{kind}'" in text
    failing = 0
    for op in programs:
        try:
            expected(op)
        except Fails:
            failing += 1
    assert 10 < failing < 150
