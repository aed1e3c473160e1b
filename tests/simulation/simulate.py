"""Worlds by seed: `simulate.py --seed 7` for one, with its trace if it fails; `--worlds 1000` for many from there on."""

from __future__ import annotations

import argparse
import logging
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from sim_world import PROGRAMS, Violation, World

TOLD = 60
"""How many of the things that happened are shown."""


def simulate(seed: int, trace: int = TOLD) -> World:
    """Play the world of that seed; AssertionError, with what happened there, if a promise was broken."""
    logger = logging.getLogger("holdfast")
    level = logger.level
    logger.setLevel(logging.CRITICAL + 1)  # trouble is what this is about
    world = World(seed)
    try:
        world.run()
    except (Exception, Violation) as error:
        shown = "\n".join(world.trace[-trace:])
        raise AssertionError(
            f"seed {seed}: {type(error).__name__}: {error}\nthe last of {len(world.trace)} things that happened:\n{shown}\n"
            f"again, with all of it: .venv/bin/python tests/simulation/simulate.py --seed {seed} --trace {len(world.trace)}"
        ) from error
    finally:
        logger.setLevel(level)
    return world


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1, help="the first world")
    parser.add_argument("--worlds", type=int, default=1, help="how many of them")
    parser.add_argument("--trace", type=int, default=TOLD, help="how much of what happened is shown")
    given = parser.parse_args()
    began, failed = time.perf_counter(), 0
    for seed in range(given.seed, given.seed + given.worlds):
        try:
            simulate(seed, given.trace)
        except AssertionError as error:
            print(error, flush=True)
            failed += 1
    took = time.perf_counter() - began
    print(f"{given.worlds - failed} of {given.worlds} worlds held, {given.worlds * PROGRAMS} programs, {took:.1f} s")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
