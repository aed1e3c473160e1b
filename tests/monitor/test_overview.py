"""What the monitor says across runs: failures, steps, workers, graphs; what it does to many; what it reads from a file."""

from __future__ import annotations

import contextlib
import os
from typing import Any

import httpx
import pytest
from monitor_server import client_of
from monitor_shop import add, asks, decides, fails, fans, hides, sleeps, total, undone
from test_api import act, until

from holdfast import App
from holdfast.monitor import monitor

TOKEN = "a-token-of-the-tests"
pytestmark = pytest.mark.usefixtures("worker")


def bulk(client: httpx.Client, name: str, **order: Any) -> Any:
    answer = client.post(f"/api/bulk/{name}", json=order, headers={"x-holdfast-action": name})
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_failures_that_differ_in_values_only_are_one_and_are_retried_at_once(shop: App, client: httpx.Client) -> None:
    runs = [fails.options(id=f"f{i}").start(f"order {i} has no address") for i in range(3)]
    undone.options(id="saga").start().result(timeout=20, propagate=False)
    for run in runs:
        run.result(timeout=20, propagate=False)
    groups = client.get("/api/failures").json()["groups"]
    assert [(group["type"], group["count"]) for group in groups] == [("ValueError", 3), ("SagaFailed", 1)]
    assert "monitor_shop.py" in groups[0]["where"]
    assert client.get("/api/failures", params={"q": "workflow:undone"}).json()["count"] == 1
    done = bulk(client, "retry", fingerprint=groups[0]["fingerprint"])
    assert (done["done"], done["after"]) == (3, None)
    until(lambda: all(len(run.status_history()) > 5 for run in runs))
    again = [entry for entry in runs[0].history() if entry.kind == "AttemptStarted"]
    assert [event.detail["by"] for event in again] == ["admin at 127.0.0.1"]


def test_many_runs_are_counted_first_and_what_starts_later_is_left_alone(shop: App, client: httpx.Client) -> None:
    before = [sleeps.options(id=f"s{i}").start() for i in range(3)]
    total.options(id="done").start(1).result(timeout=20)
    found = client.get("/api/bulk/cancel", params={"q": "workflow:sleeps"}).json()
    assert (found["count"], found["more"]) == (3, False)
    assert client.get("/api/bulk/retry", params={"q": "workflow:sleeps"}).json()["count"] == 0
    later = sleeps.options(id="later").start()
    done = bulk(client, "cancel", q="workflow:sleeps", upto=found["upto"], reason="stocktaking")
    assert (done["done"], done["after"]) == (3, None)
    until(lambda: {run.status for run in before} == {"CANCELLED"})
    assert later.status != "CANCELLED"
    one = client.get("/api/run", params={"id": "s0"}).json()
    assert (one["statuses"][-1]["reason"], one["statuses"][-1]["by"]) == ("stocktaking", "admin at 127.0.0.1")
    assert bulk(client, "delete", ids=["s0", "later"]) == {"done": 1, "skipped": 1, "after": None}
    assert client.post("/api/bulk/fork", json={}, headers={"x-holdfast-action": "fork"}).status_code == 404
    assert client.post("/api/bulk/cancel", json={}, headers={"x-holdfast-action": "cancel"}).status_code == 400


def test_of_chosen_runs_those_that_are_gone_are_skipped(shop: App, client: httpx.Client) -> None:
    total.options(id="done").start(1).result(timeout=20)
    assert bulk(client, "delete", ids=["gone", "done", "\0"]) == {"done": 1, "skipped": 2, "after": None}


def test_steps_are_found_across_runs_and_each_has_its_attempts(client: httpx.Client) -> None:
    total.options(id="t").start(1).result(timeout=20)
    fails.options(id="f").start("x").result(timeout=20, propagate=False)

    def found(**query: Any) -> list[tuple[str, str]]:
        answer = client.get("/api/invocations", params=query).json()
        return [(each["run_id"], each["name"]) for each in answer["invocations"]]

    assert found() == [("f", "explode"), ("f", "add"), ("t", "flaky"), ("t", "add")]
    assert found(q="state:failed") == [("f", "explode")]
    assert found(q="step:ad* workflow:total") == [("t", "add")]
    assert found(workflow_id="t") == [("t", "flaky"), ("t", "add")]
    assert found(q="worker:nobody") == []
    first = client.get("/api/invocations", params={"limit": 3}).json()
    rest = client.get("/api/invocations", params={"limit": 3, "after": first["after"]}).json()
    assert [each["name"] for each in rest["invocations"]] == ["add"]
    assert rest["after"] is None
    assert client.get("/api/invocations", params={"q": "state:odd"}).status_code == 400
    refused = client.get("/api/invocations", params={"q": "colour:red"})
    assert "known: step:, state:, status:" in refused.text
    [flaky] = client.get("/api/invocations", params={"q": "step:flaky"}).json()["invocations"]
    step = client.get("/api/invocation", params={"id": "t", "cmd": flaky["cmd"]}).json()
    assert [(each["number"], each["state"]) for each in step["tries"]] == [(1, "RETRY"), (2, "SUCCESS")]
    assert step["tries"][0]["error"]["message"] == "no answer"
    assert step["tries"][0]["pid"] == step["tries"][1]["pid"] == os.getpid()
    assert [each["thread"].startswith("holdfast-step") for each in step["tries"]] == [True, True]
    assert client.get("/api/invocation", params={"id": "t", "cmd": "none"}).status_code == 404


def test_a_graph_folds_what_is_many_and_opens_it_on_demand(client: httpx.Client) -> None:
    fans.options(id="wide").start(12).result(timeout=20)
    undone.options(id="saga").start().result(timeout=20, propagate=False)
    graph = client.get("/api/run/graph", params={"id": "wide"}).json()
    [fan] = graph["nodes"]
    assert (fan["label"], fan["counts"]) == ("add × 13", {"SUCCESS": 13})
    opened = client.get("/api/run/graph", params={"id": "wide", "open": fan["id"]}).json()
    assert len(opened["nodes"]) == 13
    assert len(opened["edges"]) == 12
    pairs = client.get("/api/run/graph", params={"id": "saga"}).json()
    assert [edge["kind"] for edge in pairs["edges"]].count("undoes") == 1


def test_rows_of_a_timeline_and_long_values_are_read_by_those_who_look(client: httpx.Client) -> None:
    fans.options(id="wide").start(30).result(timeout=20)
    fails.options(id="long", data={"customer": 1}).start("x" * 70_000).result(timeout=20, propagate=False)
    run = client.get("/api/run", params={"id": "wide"}).json()
    [_, fold] = run["timeline"]["lanes"]
    assert (fold["states"], len(fold["members"]), run["timeline"]["left_out"]) == ({"SUCCESS": 31}, 31, 0)
    found = client.get("/api/run/lanes", params={"id": "wide", "at": fold["at"] + 28, "limit": 2}).json()
    assert ([lane["cmd"] for lane in found["lanes"]], found["after"]) == (
        [lane["cmd"] for lane in fold["members"][28:30]],
        30,
    )
    run = client.get("/api/run", params={"id": "long"}).json()
    assert (run["large"], run["input"]) == (["input"], None)
    values = client.get("/api/run/values", params={"id": "long"}).json()
    assert len(values["input"]["args"][0]) == 70_000
    assert values["data"] == {"customer": 1}


def test_a_family_has_the_forks_of_a_run(client: httpx.Client, shop: App) -> None:
    total.options(id="t").start(1).result(timeout=20)
    shop.get_run("t").fork(1, id="again").result(timeout=20)
    tree = client.get("/api/run/family", params={"id": "t"}).json()["tree"]
    assert [(node["name"], node.get("is_fork", False)) for node in tree["children"]] == [
        ("add", False),
        ("flaky", False),
        ("total", True),
    ]
    assert tree["children"][-1]["run_id"] == "again"
    fork = client.get("/api/run/family", params={"id": "again"}).json()["tree"]
    assert (fork["forked_from"], len(fork["children"])) == ("t", 2)


def test_what_caused_an_event_and_what_followed_is_told(client: httpx.Client) -> None:
    total.options(id="t").start(1).result(timeout=20)
    events = client.get("/api/run/events", params={"id": "t", "limit": 1_000}).json()["events"]
    completed = next(event for event in events if event["kind"] == "StepCompleted" and event["name"] == "add")
    found = client.get("/api/run/event", params={"id": "t", "seq": completed["seq"]}).json()
    assert found["cause"]["kind"] == "RunStarted"
    assert {event["name"] for event in found["followed"]} == {"flaky"}
    page = client.get("/api/run/events", params={"id": "t", "after": 2, "limit": 1}).json()
    assert ([event["seq"] for event in page["events"]], page["after"]) == ([3], 3)
    assert client.get("/api/run/event", params={"id": "t", "seq": 999}).status_code == 404


def test_workers_have_lanes_and_workflows_a_grid_of_their_steps(client: httpx.Client) -> None:
    for i in range(2):
        total.options(id=f"t{i}").start(i).result(timeout=20)
    lanes = client.get("/api/timeline", params={"seconds": 600}).json()["lanes"]
    assert [(len(lane["spans"]), lane["alive"]) for lane in lanes] == [(6, True)]
    grid = client.get("/api/workflow", params={"name": "total"}).json()["grid"]
    assert [run["id"] for run in grid["runs"]] == ["t1", "t0"]
    steps = {step["name"]: step for step in grid["steps"]}
    assert (steps["flaky"]["retried"], steps["add"]["retried"], steps["add"]["success_rate"]) == (2, 0, 1)
    assert [cell["attempts"] for cell in steps["flaky"]["cells"]] == [2, 2]
    bars = client.get("/api/counts/time", params={"seconds": 3600}).json()["bars"]
    assert sum(bar.get("SUCCESS", 0) for bar in bars) == 2


def test_an_exported_run_is_shown_without_being_kept(client: httpx.Client, shop: App) -> None:
    total.options(id="t").start(1).result(timeout=20)
    text = b"\n".join(shop.store.payloads("t"))
    headers = {"x-holdfast-action": "inspect", "content-type": "application/json"}
    run = client.post("/api/inspect", content=text, headers=headers).json()
    assert (run["status"], run["result"], run["data"]) == ("SUCCESS", 4, {"customer": 42})
    assert [step["name"] for step in run["steps"]] == ["add", "flaky"]
    assert len(run["graph"]["nodes"]) == 2
    assert len(client.get("/api/runs").json()["runs"]) == 1
    for bad in (b"", b"{}", b"not json", text[40:], b"[" * 100_000):
        assert client.post("/api/inspect", content=bad, headers=headers).status_code == 400
    assert client.post("/api/inspect", content=text, headers={"content-type": "application/json"}).status_code == 403


def test_a_fork_may_have_another_result(client: httpx.Client, shop: App) -> None:
    total.options(id="t").start(1).result(timeout=20)
    events = client.get("/api/run/events", params={"id": "t"}).json()["events"]
    seq = next(event["seq"] for event in events if event["kind"] == "StepCompleted" and event["name"] == "add")
    made = act(client, "fork", id="t", at=seq, replace={str(seq): 100}).json()["id"]
    assert shop.get_run(made).result(timeout=20) == 102
    assert shop.get_run(made).history()[0].detail["by"] == "admin at 127.0.0.1"


def test_a_hook_says_what_it_takes(client: httpx.Client) -> None:
    run = decides.options(id="d").start()
    [hook] = until(lambda: client.get("/api/hooks").json()["hooks"])
    shape = hook["schema"]["$defs"]["Decision"]["properties"]
    assert {name: field["type"] for name, field in shape.items()} == {"approved": "boolean", "note": "string"}
    assert act(client, "send", id="d", hook="shop_decision", payload={"approved": "x"}).status_code == 422
    assert act(client, "send", id="d", hook="shop_decision", payload={"approved": True}).status_code == 200
    assert run.result(timeout=20) is True


def test_what_is_redacted_leaves_the_monitor_nowhere(shop: App) -> None:
    def redact(name: str, value: Any) -> Any:
        return "hidden" if name == "card" or value == "4111" else value

    hides.options(id="h").start("4111").result(timeout=20)
    run = add.start(1)
    run.result(timeout=20)
    cmd = shop.get_run("h").steps[0].cmd
    with client_of(monitor(shop, token=TOKEN, redact=redact), authorization=f"Bearer {TOKEN}") as client:
        for path in (
            "runs",
            "run?id=h",
            "run/values?id=h",
            "run/events?id=h",
            "run/event?id=h&seq=1",
            "run/stream?id=h",
            f"invocation?id=h&cmd={cmd}",
        ):
            answer = client.get(f"/api/{path}")
            assert answer.status_code == 200
            assert "4111" not in answer.text, path
        assert client.get("/api/run?id=h").json()["result"] == {"card": "hidden", "name": "ann"}
    by_name = monitor(shop, token=TOKEN, redact=lambda name, value: "hidden" if name == "card" else value)
    with client_of(by_name, authorization=f"Bearer {TOKEN}") as client:
        listed = {run["id"]: run["data"] for run in client.get("/api/runs").json()["runs"]}
        assert listed == {"h": {"card": "hidden"}, run.id: {}}
        assert client.get("/api/run?id=h").json()["data"] == {"card": "hidden"}


def test_a_view_is_kept_for_all_who_look(client: httpx.Client, shop: App) -> None:
    def views() -> list[tuple[str, str]]:
        return [(each["name"], each["filter"]) for each in client.get("/api/views").json()["views"]]

    assert act(client, "save_view", id="Broken orders", filter="status:failed workflow:total").status_code == 200
    assert act(client, "save_view", id="Mine", filter="data.customer=42").status_code == 200
    assert act(client, "save_view", id="Mine", filter="data.customer=7").status_code == 200
    for id, filter in (("", "status:failed"), ("x" * 41, "status:failed"), ("x", ""), ("x", "statuss:failed")):
        assert act(client, "save_view", id=id, filter=filter).status_code == 400
    assert views() == [("Broken orders", "status:failed workflow:total"), ("Mine", "data.customer=7")]
    with contextlib.closing(App("another", shop.store_url)) as another:
        assert another.store.saved_views() == {}
    assert act(client, "forget_view", id="Mine").status_code == 200
    assert [name for name, _ in views()] == ["Broken orders"]


def test_each_role_may_do_what_it_may(shop: App) -> None:
    sleeps.options(id="s").start()
    tokens = {
        "token": "the-admins-own-token",
        "operator_token": "the-operators-token",
        "viewer_token": "the-viewers-token",
    }
    with client_of(monitor(shop, **tokens)) as client:  # type: ignore[arg-type]

        def status(token: str, action: str, **order: Any) -> int:
            headers = {"x-holdfast-action": action, "authorization": f"Bearer {token}"}
            return int(client.post(f"/api/actions/{action}", json=order, headers=headers).status_code)

        def may(token: str) -> list[str]:
            return list(client.get("/api/about", headers={"authorization": f"Bearer {token}"}).json()["may"])

        assert may("the-viewers-token") == []
        assert "cancel" in may("the-operators-token")
        assert "delete" not in may("the-operators-token")
        assert "delete" in may("the-admins-own-token")
        assert status("the-viewers-token", "pause", id="s") == 403
        assert status("the-operators-token", "terminate", id="s", reason="x") == 403
        assert status("the-operators-token", "pause", id="s") == 200
        assert status("somebody-elses-token", "pause", id="s") == 401
        until(lambda: shop.get_run("s").status == "PAUSED")
        assert status("the-admins-own-token", "delete", id="s") == 200


def test_whoever_authorizes_says_who_it_was(shop: App) -> None:
    run = asks.options(id="a").start("ann")
    with client_of(monitor(shop, authorize=lambda request, action: request.headers.get("x-user"))) as client:
        assert client.get("/api/runs").status_code == 401
        headers = {"x-user": "bob", "x-holdfast-action": "send"}
        order = {"id": "a", "hook": "signature", "key": "ann", "payload": 1}
        assert client.post("/api/actions/send", json=order, headers=headers).status_code == 200
    run.result(timeout=20)
    assert [event.detail["by"] for event in run.history() if event.kind == "HookReceived"] == ["bob"]
