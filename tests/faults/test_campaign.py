"""Everything at once, under fire. A failure names its seed: `python tests/faults/campaign.py --only fire --way SIGKILL
--seed 7` tries it again."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from fire import WAYS, Plan, Verdict, run_campaign

SEED = int(os.environ.get("HOLDFAST_SEED", "2026"))


def check(plan: Plan, verdict: Verdict) -> None:
    print(f"{plan}: {dict(verdict.figures)}")
    faults = {name: lines for name, lines in verdict.faults().items() if lines}
    if faults:
        print(f"{plan}: {faults}")
    assert not {name: lines[:10] for name, lines in faults.items()}, str(plan)


@pytest.mark.timeout(240)
def test_everything_at_once_under_fire_loses_nothing(tmp_path: Path) -> None:
    plan = Plan(SEED, "all of them", seconds=5, stops=(0.5, 2), words=15)
    check(plan, run_campaign(tmp_path, plan))


@pytest.mark.torture
@pytest.mark.timeout(900)
@pytest.mark.parametrize("number", range(2))
@pytest.mark.parametrize("way", WAYS)
def test_everything_at_once_under_fire_for_long_loses_nothing(tmp_path: Path, way: str, number: int) -> None:
    plan = Plan(SEED + number, way, seconds=60)
    check(plan, run_campaign(tmp_path, plan))
