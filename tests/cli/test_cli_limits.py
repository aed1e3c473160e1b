"""Limits, from the command line."""

from __future__ import annotations

from collections.abc import Iterator

import cli_shop
import pytest
from cli_driver import Cli, eventually


@pytest.fixture
def busy(cli: Cli, worker: None) -> Iterator[list[str]]:
    """One run has the slot of its key, two wait for it."""
    runs = [cli_shop.deliver.options(id=f"deliver-{i}").start("ann") for i in range(3)]
    eventually(lambda: cli("limits").lines[0][4:6] == ["1", "2"])
    yield [run.id for run in runs]
    for run in runs:
        run.terminate("over")


def test_limits_are_listed_with_what_is_in_use_and_who_waits(cli: Cli, busy: list[str]) -> None:
    assert cli("limits").lines == [
        ["deliver/customer", "", "runs", "1 at once, 100/m (burst 10) per key", "1", "2", ""],
        ["deliver/customer", "ann", "", "", "1", "2", ""],
    ]
    (facts,) = cli.without_code("limits", "deliver/customer", "--json").json
    assert facts == {
        "name": "deliver/customer", "of": "runs", "concurrency": 1, "rate_limit": "100/m", "burst": 10, "per_key": True,
        "in_use": 1, "waiting": 2, "keys": 1,
        "lines": [{"key": "ann", "in_use": 1, "waiting": 2, "next_at": None}],
    }  # fmt: skip
    assert cli("limits", "--keys", "0").lines[1][1] == "and 1 more"
    assert "known: deliver/customer" in cli("limits", "delivery", code=3).err


def test_a_run_says_which_limit_it_waits_for_and_its_place_in_line(cli: Cli, busy: list[str]) -> None:
    why = cli("runs", "show", busy[2], "--json").json["why"]
    place = "a slot of limit 'deliver/customer' (key 'ann'), number 2 in line"
    assert (why["kind"], why["text"]) == ("limit", f"waiting to begin, for {place}")
    assert why["details"]["waits"][0]["place"] == 2
    listed = {line[0]: line[5] for line in cli("runs", "list").lines}
    assert listed[busy[1]] == "waiting to begin, for a slot of limit 'deliver/customer'"


def test_without_limits_there_is_a_note(cli: Cli) -> None:
    cli("start", "add", "1")  # makes the store
    said = cli("limits")
    assert (said.out, "no limits yet" in said.err) == ("", True)
