"""Domain events from a shell."""

from __future__ import annotations

import pytest
from cli_driver import Cli, eventually

pytestmark = pytest.mark.usefixtures("worker")


@pytest.mark.parametrize("code", [True, False])
def test_an_event_is_emitted_and_what_it_leads_to_is_one_tree(cli: Cli, code: bool) -> None:
    hold = cli if code else cli.without_code
    event = hold("emit", "ShopOpened", '{"by": "ann"}').out.strip()
    facts = eventually(lambda: (f := hold("runs", "trace", event, "--json").json)["children"] and f)
    (run,) = facts["children"]
    cli.wait_for(run["id"], "SUCCESS")
    tree = hold("runs", "trace", run["id"], "--json").json
    assert (tree["kind"], tree["id"], tree["name"], tree["app"]) == ("event", event, "ShopOpened", "shop")
    assert [(child["name"], child["status"]) for child in tree["children"]] == [("greet", "SUCCESS")]
    lines = hold("runs", "trace", run["id"][:20]).out.splitlines()
    assert event in lines[0]
    assert "EVENT" in lines[0]
    assert f"greet  {run['id']}  SUCCESS" in lines[1]


def test_the_same_key_again_is_the_same_event(cli: Cli) -> None:
    first = cli("emit", "ShopOpened", "text", "--key", "monday", "--json").json
    assert cli("emit", "ShopOpened", "other", "--key", "monday", "--json").json == first
    assert first["name"] == "ShopOpened"


def test_what_can_not_be_emitted_or_traced_is_refused(cli: Cli) -> None:
    assert "for what Holdfast emits" in cli("emit", "run.failed", code=2).err
    assert "no run has the id 'nosuch'" in cli("runs", "trace", "nosuch", code=3).err
