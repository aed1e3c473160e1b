"""The campaign of docs/promises.md: `make torture CAMPAIGN_MINUTES=10`, or `python tests/faults/campaign.py --minutes 10`.

Prints what was tried, how often, and what was lost. Each fault is told with the seed that found it, and `--seed`, `--only`
try that again.
"""

from __future__ import annotations

import argparse
import itertools
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import disk
import fire
import hardware

SHARE = {"fire": 0.7, "power": 0.15, "disk": 0.15}
"""Of the time there is."""


def rounds(minutes: float) -> Iterator[int]:
    """Numbers, until the time is over; at least one."""
    until = time.monotonic() + 60 * minutes
    for number in itertools.count():
        if number and time.monotonic() > until:
            return
        yield number


def say(plan: object, figures: Counter[str], faults: list[str]) -> None:
    print(f"{plan}: {dict(figures)}", file=sys.stderr)
    for fault in faults[:20]:
        print(f"{plan}: {fault}", file=sys.stderr)


def under_fire(seed: int, minutes: float, seconds: float, ways: list[str]) -> int:
    """A table of all ways to treat workers badly; how many faults there were."""
    sums = {way: fire.Verdict() for way in ways}
    for number in rounds(minutes):
        way = ways[number % len(ways)]
        plan = fire.Plan(seed + number // len(ways), way, seconds)
        with tempfile.TemporaryDirectory(prefix="holdfast-campaign-") as folder:
            verdict = fire.run_campaign(Path(folder), plan)
        sums[way].figures += verdict.figures
        for name, lines in verdict.faults().items():
            getattr(sums[way], name).extend(lines)
        say(plan, verdict.figures, [f"{name}: {line}" for name, lines in verdict.faults().items() for line in lines])
    columns = ("runs", "kills", "stops", "terms", "steps recorded", "hooks", "controls", "forks", "ticks")
    print(f"| under | {' | '.join(columns)} | {' | '.join(fire.FAULTS)} |")
    print("|---" * (1 + len(columns) + len(fire.FAULTS)) + "|")
    for way, verdict in sums.items():
        tried = " | ".join(f"{verdict.figures[name]:,}" for name in columns)
        print(f"| {way} | {tried} | {' | '.join(str(len(lines)) for lines in verdict.faults().values())} |")
    return sum(len(lines) for verdict in sums.values() for lines in verdict.faults().values())


Trial = Callable[[Path, int], tuple[Counter[str], list[str]]]


def repeat(name: str, trial: Trial, seed: int, minutes: float) -> int:
    """Try something again and again, and print a line of sums; how many faults there were."""
    figures: Counter[str] = Counter()
    lost = 0
    for number in rounds(minutes):
        with tempfile.TemporaryDirectory(prefix="holdfast-campaign-") as folder:
            found, faults = trial(Path(folder), seed + number)
        figures += found
        lost += len(faults)
        say(f"seed {seed + number}, {name}", found, faults)
    print(f"\n{name}: {', '.join(f'{count:,} {what}' for what, count in figures.items())}; faults: {lost}")
    return lost


def main() -> int:
    parser = argparse.ArgumentParser(description="Everything at once, under fire; power cuts; disks that fail.")
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--seed", type=int, default=int(os.environ.get("HOLDFAST_SEED", "2026")))
    parser.add_argument("--seconds", type=float, default=60, help="how long each round is under fire")
    parser.add_argument("--only", choices=list(SHARE))
    parser.add_argument("--way", choices=list(fire.WAYS), help="only this way, under fire")
    given = parser.parse_args()
    minutes = {part: given.minutes * (share if given.only is None else 1) for part, share in SHARE.items()}
    faults = 0
    if given.only in (None, "fire"):
        faults += under_fire(given.seed, minutes["fire"], given.seconds, [given.way] if given.way else list(fire.WAYS))
    if given.only == "fire":
        return 1 if faults else 0
    with tempfile.TemporaryDirectory(prefix="holdfast-shim-") as folder:
        try:
            shim = disk.build(Path(folder))
        except FileNotFoundError as error:
            print(f"power cuts and disks that fail were not tried: {error}")
            return 1 if faults else 0

        def cut(here: Path, seed: int) -> tuple[Counter[str], list[str]]:
            return hardware.cut_power(here, shim, seed, seconds=5, images=40, go_on=10)

        def fail(here: Path, seed: int) -> tuple[Counter[str], list[str]]:
            return hardware.fail_disk(here, shim, seed, list(hardware.FAULTS)[seed % len(hardware.FAULTS)])

        if given.only in (None, "power"):
            faults += repeat("power cuts", cut, given.seed, minutes["power"])
        if given.only in (None, "disk"):
            faults += repeat("disks that fail", fail, given.seed, minutes["disk"])
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
