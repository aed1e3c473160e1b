"""DAGs and sagas on the command line."""

from __future__ import annotations

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
