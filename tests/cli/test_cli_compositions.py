"""DAGs and sagas on the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cli_driver import Cli


@pytest.mark.usefixtures("worker")
def test_a_dag_is_started_by_name_and_its_tree_shows_what_was_mapped_and_skipped(cli: Cli) -> None:
    ran = cli("run", "parcels", "{}", "--json").json
    assert ran["result"] == {"boxes": [1, 2], "pack": [1, 2]}
    run_id = ran["id"]
    facts = cli("runs", "tree", run_id, "--json").json
    boxes, pack, gift = facts["children"]
    assert (boxes["name"], pack["name"], gift["name"]) == ("boxes", "pack", "gift")
    assert [child["name"] for child in pack["children"]] == ["pack[0]", "pack[1]"]
    assert (gift["state"], gift["detail"]) == ("SKIPPED", "its condition is not met")
    shown = cli("runs", "show", run_id).out
    assert "its condition is not met" in shown


@pytest.mark.usefixtures("worker")
def test_the_tree_of_a_saga_has_each_compensation_under_what_it_undoes(cli: Cli) -> None:
    run_id = cli("start", "returns", '{"order": 7}').out.strip()
    assert cli.wait_for(run_id, "FAILURE") == "FAILURE"
    label, collect = cli("runs", "tree", run_id, "--json").json["children"]
    assert (label["state"], collect["state"]) == ("SUCCESS", "FAILURE")
    (undo,) = label["children"]
    assert (undo["name"], undo["state"], undo["undoes"]) == ("label.undo", "SUCCESS", "s:label")
    assert "compensation" in cli("runs", "tree", run_id).out
    assert "undoes label" in cli("runs", "show", run_id).out


def test_a_context_that_lacks_something_is_refused_at_once(cli: Cli) -> None:
    assert "step 'label' takes 'order', which is neither" in cli("start", "returns", "{}", code=2).err
    assert "no workflow or step named 'holdfast.chord'" in cli("start", "holdfast.chord", "{}", code=3).err
    assert not Path(cli.store).exists(), "nothing was written"


@pytest.mark.usefixtures("worker")
def test_of_many_steps_those_that_failed_are_seen_at_once(cli: Cli) -> None:
    run_id = cli("start", "inspection", json.dumps({"boxes": list(range(120))})).out.strip()
    assert cli.wait_for(run_id, "FAILURE") == "FAILURE"
    tree = cli("runs", "tree", run_id).out
    assert [line.strip("│├└─ ") for line in tree.splitlines()[2:]] == [
        f"✓ 7 done: {', '.join(f'look[{i}]' for i in range(4))} and 3 more",
        next(line.strip("│├└─ ") for line in tree.splitlines() if "look[7]" in line),
        f"✓ 112 done: {', '.join(f'look[{i}]' for i in range(8, 12))} and 108 more",
    ]
    assert len(cli("runs", "tree", run_id, "--all").out.splitlines()) == 2 + 120
    shown = cli("runs", "show", run_id).out
    assert "steps (121): 119 SUCCESS, 2 FAILURE" in shown
    assert "FAILURE     look[7]" in shown
    assert "81 are not shown here" in shown
