"""Runs that are started through the API: what a form is made of, who may, and what is refused."""

from __future__ import annotations

import logging
from contextlib import closing
from decimal import Decimal
from typing import Any

import httpx
import pytest
from monitor_server import client_of
from monitor_shop import Item, asks, orders
from test_api import act

from holdfast import App
from holdfast.monitor import monitor

TOKEN = "a-token-of-the-tests"
BOOK = {"name": "book", "price": "12.50"}


def form(client: httpx.Client, name: str) -> Any:
    return client.get("/api/workflow", params={"name": name}).json()["start"]


@pytest.mark.usefixtures("worker")
def test_a_run_is_started_with_arguments_by_name_or_in_their_order_and_who_did_is_recorded(
    shop: App, client: httpx.Client
) -> None:
    made = act(client, "start", workflow="total", input={"a": 2}, id="mine").json()
    assert made == {"id": "mine"}
    run = shop.get_run("mine")
    assert run.result(timeout=20) == 5
    assert run.history()[0].detail["by"] == "admin at 127.0.0.1"
    statuses = client.get("/api/run", params={"id": "mine"}).json()["statuses"]
    assert (statuses[0]["status"], statuses[0]["by"]) == ("PENDING", "admin at 127.0.0.1")
    other = act(client, "start", workflow="total", input=[3, 7]).json()["id"]
    assert shop.get_run(other).result(timeout=20) == 6
    assert shop.get_run(other).data == {"customer": 7}
    many = act(client, "start", workflow="collects", input=[1, 2, 3]).json()["id"]
    assert shop.get_run(many).result(timeout=20) == 6


def test_arguments_become_what_the_annotations_say_as_if_code_had_started_the_run(
    shop: App, client: httpx.Client
) -> None:
    act(client, "start", workflow="orders", input={"item": BOOK, "count": 2}, id="o").raise_for_status()
    again = orders.options(id="o").start(Item("book", Decimal("12.50")), 2)  # the same call, so it is the same run
    assert again.id == "o"


def test_the_form_of_a_workflow_has_its_arguments(client: httpx.Client) -> None:
    found = form(client, "orders")
    assert found["known"]
    schema = found["schema"]
    assert schema["required"] == ["item", "count"]
    fields = schema["properties"]
    assert fields["item"] == {"$ref": "#/$defs/Item"}
    assert [fields[name].get("type") for name in ("count", "rebate", "gift")] == ["integer", "number", "boolean"]
    assert [fields[name]["default"] for name in ("rebate", "size", "gift", "note")] == [0.5, "m", False, None]
    assert fields["size"]["enum"] == ["m", "s"]
    assert set(schema["$defs"]["Item"]["properties"]) == {"name", "price"}
    assert form(client, "collects") == {"known": True, "schema": None}


@pytest.mark.parametrize(
    ("order", "status", "field", "words"),
    [
        ({"workflow": "total", "input": {"a": "x"}}, 400, "a", "expected int, got 'x'"),
        ({"workflow": "total", "input": [1, "x"]}, 400, "customer", "expected int, got 'x'"),
        ({"workflow": "orders", "input": {"item": {"name": "x"}, "count": 1}}, 400, "item", "price"),
        ({"workflow": "total", "input": {"a": 1}, "id": "two words"}, 400, "id", "without spaces"),
        ({"workflow": "total", "input": {"a": 1}, "id": "taken"}, 409, "id", "there is a run 'taken' already"),
        ({"workflow": "total"}, 400, None, "missing a required argument: 'a'"),
        ({"workflow": "total", "input": {"a": 1, "b": 1}}, 400, None, "got an unexpected keyword argument"),
        ({"workflow": "nobody", "input": []}, 422, None, "no workflow named 'nobody'"),
        ({"workflow": "holdfast.chain"}, 422, None, "no workflow named"),
        ({"workflow": "tot*"}, 422, None, "no workflow named"),
        ({"workflow": "\0"}, 422, None, "no workflow named"),
        ({"workflow": "total", "input": 1}, 400, None, "can't be read"),
        ({"id": "x"}, 400, None, "workflow"),
    ],
)
def test_what_cannot_be_started_is_refused_where_it_is_wrong(
    shop: App, client: httpx.Client, order: dict[str, Any], status: int, field: str | None, words: str
) -> None:
    asks.options(id="taken").start("ann")
    answer = act(client, "start", **order)
    assert (answer.status_code, answer.json().get("field")) == (status, field)
    assert words in answer.json()["error"]
    assert [run.id for run in shop.runs()] == ["taken"]


def test_only_who_may_act_starts_runs(shop: App) -> None:
    tokens = {"operator_token": "the-operators-token", "viewer_token": "the-viewers-token"}
    headers = {"x-holdfast-action": "start"}
    order = {"workflow": "total", "input": [1]}
    for read_only, role, status in ((False, "viewer", 403), (False, "operator", 200), (True, "operator", 403)):
        site = monitor(shop, read_only=read_only, **tokens)  # type: ignore[arg-type]
        with client_of(site, authorization=f"Bearer the-{role}s-token") as client:
            assert client.post("/api/actions/start", json=order, headers=headers).status_code == status
            assert ("start" in client.get("/api/about").json()["may"]) is (status == 200)
            assert client.post("/api/actions/start", json=order).status_code == 403
    assert len(shop.runs()) == 1


def test_arguments_are_no_part_of_the_log(shop: App, client: httpx.Client, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "holdfast.monitor"):
        act(client, "start", workflow="hides", input=["4111"], id="h").raise_for_status()
    assert "start by admin at 127.0.0.1" in caplog.text
    assert '"workflow":"hides"' in caplog.text
    assert "4111" not in caplog.text


def test_a_default_that_is_not_to_be_seen_is_left_to_the_code(shop: App) -> None:
    site = monitor(shop, token=TOKEN, redact=lambda name, value: "hidden" if name == "card" else value)
    with client_of(site, authorization=f"Bearer {TOKEN}") as client:
        assert "default" not in form(client, "pays")["schema"]["properties"]["card"]
        assert form(client, "total")["schema"]["properties"]["customer"]["default"] == 42


def test_a_monitor_without_the_code_starts_what_a_worker_or_a_run_has_the_name_of(shop: App) -> None:
    with closing(App("shop", shop.store_url)) as bare, client_of(monitor(bare, token=TOKEN)) as client:
        client.headers["authorization"] = f"Bearer {TOKEN}"
        assert form(client, "total") is None
        assert act(client, "start", workflow="total", input=[1]).status_code == 422
        with shop.worker():
            assert form(client, "total") == {"known": False, "schema": None}
            made = act(client, "start", workflow="total", input={"a": 1}).json()["id"]
            assert shop.get_run(made).result(timeout=20) == 4
        assert form(client, "total") == {"known": False, "schema": None}  # it has a run
