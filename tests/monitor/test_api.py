"""The JSON API: what pages are made of, and what actions do."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from monitor_shop import asks, besides, fails, sleeps, total, twice, undone

from holdfast import App
from holdfast.monitor import overview
from holdfast.ports import RunQuery


def act(client: httpx.Client, name: str, **order: Any) -> Any:
    return client.post(f"/api/actions/{name}", json=order, headers={"x-holdfast-action": name})


def until(ask: Callable[[], Any], timeout: float = 20) -> Any:
    end = time.monotonic() + timeout
    while not (found := ask()):
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.02)
    return found


def test_runs_come_in_pages_that_neither_overlap_nor_leave_a_gap(shop: App, client: httpx.Client) -> None:
    for i in range(7):
        total.options(id=f"r{i}").start(i)
    first = client.get("/api/runs", params={"limit": 3}).json()
    second = client.get("/api/runs", params={"limit": 3, "after": first["after"]}).json()
    third = client.get("/api/runs", params={"limit": 3, "after": second["after"]}).json()
    assert [run["id"] for page in (first, second, third) for run in page["runs"]] == [f"r{i}" for i in range(6, -1, -1)]
    assert third["after"] is None


@pytest.mark.usefixtures("worker")
def test_a_filter_finds_runs_by_status_workflow_data_and_age(client: httpx.Client) -> None:
    total.options(id="mine").start(1).result(timeout=20)
    total.options(id="other").start(1, 7).result(timeout=20)
    fails.options(id="bad").start("x").result(timeout=20, propagate=False)

    def found(filter: str) -> list[str]:
        return [run["id"] for run in client.get("/api/runs", params={"q": filter}).json()["runs"]]

    assert found("status:failed") == ["bad"]
    assert found("workflow:to* data.customer=42") == ["mine"]
    assert found("started:<1h workflow:total") == ["other", "mine"]
    assert found("started:>1h") == []
    assert found("ot") == ["other"]
    counts = client.get("/api/counts", params={"q": "status:failed workflow:total"}).json()["counts"]
    assert (counts["SUCCESS"], counts["FAILURE"]) == (2, 0)


def test_a_filter_that_cannot_be_read_says_what_is_known(client: httpx.Client) -> None:
    answer = client.get("/api/runs", params={"q": "state:failed"})
    assert answer.status_code == 400
    assert "there is no state:; known: status:" in answer.json()["error"]


@pytest.mark.usefixtures("worker")
def test_a_run_has_its_reason_its_attempts_its_times_and_its_values(client: httpx.Client) -> None:
    total.options(id="t").start(1).result(timeout=20)
    run = client.get("/api/run", params={"id": "t"}).json()
    assert (run["status"], run["why"]["text"], run["result"]) == ("SUCCESS", "succeeded", 4)
    assert run["data"] == {"customer": 42}
    assert [(step["name"], step["attempts"]) for step in run["steps"]] == [("add", 1), ("flaky", 2)]
    lanes = {lane["name"]: lane for lane in run["timeline"]["lanes"]}
    outcomes = [span["outcome"] for span in lanes["flaky"]["spans"] if span["kind"] == "executing"]
    assert outcomes == ["RETRY", "SUCCESS"]
    events = client.get("/api/run/events", params={"id": "t"}).json()["events"]
    assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
    assert client.get("/api/run/events", params={"id": "t", "after": 2}).json()["events"] == events[2:]
    tree = client.get("/api/run/tree", params={"id": "t"}).json()
    assert [child["name"] for child in tree["children"]] == ["add", "flaky"]


@pytest.mark.usefixtures("worker")
def test_what_a_retry_keeps_is_counted_once_however_many_attempts_have_kept_it(client: httpx.Client) -> None:
    twice.options(id="t").start().result(timeout=20, propagate=False)
    run = client.get("/api/run", params={"id": "t"}).json()
    assert [(step["name"], step["reused"]) for step in run["steps"]] == [
        ("add", False), ("add", False), ("explode", False), ("add", True), ("add", True), ("explode", False),
    ]  # fmt: skip
    assert (run["kept_by_retry"], run["step_names"]["FAILURE"]) == (2, ["explode"])
    undone.options(id="u").start().result(timeout=20, propagate=False)
    assert client.get("/api/run", params={"id": "u"}).json()["kept_by_retry"] == 0  # it was done, and undone


@pytest.mark.usefixtures("worker")
def test_an_error_has_its_traceback(client: httpx.Client) -> None:
    fails.options(id="bad").start("boom").result(timeout=20, propagate=False)
    error = client.get("/api/run", params={"id": "bad"}).json()["error"]
    assert (error["type"], error["message"]) == ("ValueError", "boom")
    assert "raise ValueError(text)" in error["traceback"]


@pytest.mark.usefixtures("worker")
def test_a_hook_that_waits_is_listed_and_can_be_answered(shop: App, client: httpx.Client) -> None:
    run = asks.options(id="a").start("ann")
    hooks = until(lambda: client.get("/api/hooks").json()["hooks"])
    assert [(hook["run_id"], hook["name"], hook["key"]) for hook in hooks] == [("a", "signature", "ann")]
    assert act(client, "send", id="a", hook="signature", key="ann", payload={"ok": True}).status_code == 200
    assert run.result(timeout=20) == "ann: {'ok': True}"
    until(lambda: not client.get("/api/hooks").json()["hooks"])


@pytest.mark.usefixtures("worker")
def test_a_hook_of_a_run_that_does_something_else_meanwhile_is_listed_in_its_place(client: httpx.Client) -> None:
    asks.options(id="before").start("ann")
    run = besides.options(id="b").start()
    asks.options(id="after").start("ann")
    until(lambda: len(client.get("/api/hooks").json()["hooks"]) == 3)
    assert [hook["run_id"] for hook in client.get("/api/hooks").json()["hooks"]] == ["after", "b", "before"]
    assert run.status == "RUNNING"
    run.cancel()
    until(lambda: run.status == "CANCELLED")


def _waiting(shop: App, count: int, reason: str) -> None:
    """So many runs that wait, and are newer than all others."""
    before = {row.id for row in shop.store.runs(RunQuery(limit=10))}
    sleeps.start_many([()] * count)
    with sqlite3.connect(shop.store.url.removeprefix("sqlite:///")) as db:
        left = ",".join("?" * len(before))
        db.execute(f"UPDATE runs SET status='WAITING', reason=? WHERE id NOT IN ({left})", [reason, *before])
    db.close()


def test_a_hook_is_listed_however_many_newer_runs_wait(shop: App, client: httpx.Client) -> None:
    with shop.worker():
        run = asks.options(id="a").start("ann")
        until(lambda: run.status == "WAITING")
    _waiting(shop, 2_500, "sleep")
    page = client.get("/api/hooks").json()
    assert ([hook["run_id"] for hook in page["hooks"]], page["after"]) == (["a"], None)


def test_a_workflow_has_its_runs_however_many_newer_ones_others_have(shop: App, client: httpx.Client) -> None:
    for i in range(3):
        total.options(id=f"t{i}").start(i)
    _waiting(shop, 2_500, "sleep")
    found = {each["name"]: each for each in client.get("/api/workflows").json()["workflows"]}
    assert found["total"]["counts"] == {"PENDING": 3}
    assert [run["id"] for run in found["total"]["last"]] == ["t2", "t1", "t0"]


def test_a_workflow_has_all_of_its_runs_counted_up_to_a_bound(
    shop: App, client: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    def told(path: str, name: str = "sleeps") -> tuple[int, bool]:
        found = client.get(f"/api/{path}", params={"name": name}).json()
        [each] = [each for each in found.get("workflows", [found]) if each["name"] == name]
        return each["total"], each["more"]

    sleeps.start_many([()] * 650)
    total.start_many([1] * 100)
    assert told("workflows") == told("workflow") == (650, False)
    assert told("workflows", "total") == told("workflow", "total") == (100, False)
    assert told("workflows", "asks") == told("workflow", "asks") == (0, False)
    # Where many workflows have many runs, fewer of each are counted.
    monkeypatch.setattr(overview, "COUNTED_IN_ALL", 600)
    assert (told("workflows"), told("workflows", "total")) == ((299, True), (100, False))
    monkeypatch.setattr(overview, "COUNTED_IN_ALL", 100)
    assert told("workflows") == (100, True)


def test_hooks_come_in_pages_and_one_that_has_none_says_that_there_are_more(shop: App, client: httpx.Client) -> None:
    with shop.worker():
        run = asks.options(id="a").start("ann")
        until(lambda: run.status == "WAITING")
    _waiting(shop, 250, "step 'a', step 'b', step 'c', step 'd', step 'e' and 1 more")
    first = client.get("/api/hooks").json()
    assert (first["hooks"], first["after"] is None) == ([], False)
    second = client.get("/api/hooks", params={"after": first["after"]}).json()
    assert ([hook["run_id"] for hook in second["hooks"]], second["after"]) == (["a"], None)


@pytest.mark.usefixtures("worker")
def test_a_run_is_paused_resumed_cancelled_retried_and_forked(client: httpx.Client) -> None:
    run = sleeps.options(id="s").start()
    until(lambda: run.status == "WAITING")
    assert act(client, "pause", id="s", reason="wait for ann").status_code == 200
    until(lambda: run.status == "PAUSED")
    assert (
        client.get("/api/run", params={"id": "s"}).json()["why"]["text"]
        == "wait for ann (paused by admin at 127.0.0.1)"
    )
    assert act(client, "resume", id="s").status_code == 200
    until(lambda: run.status == "WAITING")
    assert act(client, "cancel", id="s", reason="no longer needed").status_code == 200
    until(lambda: run.status == "CANCELLED")
    assert act(client, "retry", id="s").status_code == 200
    until(lambda: run.status == "WAITING")
    fork = act(client, "fork", id="s", at=1).json()["id"]
    assert client.get("/api/run", params={"id": fork}).json()["forked_from"] == "s"


def test_an_action_that_makes_no_sense_is_refused_with_the_reason(shop: App, client: httpx.Client) -> None:
    sleeps.options(id="s").start()
    answer = act(client, "resume", id="s")
    assert answer.status_code == 409
    assert "only PAUSED and STUCK runs can be resumed" in answer.json()["error"]
    assert act(client, "cancel", id="nobody").status_code == 404
    assert act(client, "fork", id="s").status_code == 400


@pytest.mark.usefixtures("worker")
def test_workflows_workers_and_schedules_are_listed(client: httpx.Client) -> None:
    for i in range(3):
        total.start(i).result(timeout=20)
    fails.start("x").result(timeout=20, propagate=False)
    known = {each["name"]: each for each in client.get("/api/workflows").json()["workflows"]}
    assert known["total"]["counts"] == {"SUCCESS": 3}
    assert (known["total"]["success_rate"], known["fails"]["success_rate"]) == (1, 0)
    assert known["asks"]["success_rate"] is None
    [worker] = client.get("/api/workers").json()["workers"]
    assert worker["alive"]
    [schedule] = until(lambda: client.get("/api/schedules").json()["schedules"])
    assert schedule["name"] == "nightly"
    assert act(client, "pause_schedule", id="nightly", reason="holiday").status_code == 200
    [schedule] = client.get("/api/schedules").json()["schedules"]
    assert (schedule["paused"], schedule["reason"]) == (True, "holiday (by admin at 127.0.0.1)")
    started = act(client, "trigger_schedule", id="nightly").json()["id"]
    assert client.get("/api/run", params={"id": started}).status_code == 200


def test_what_keeps_runs_from_going_on_is_told(client: httpx.Client, shop: App) -> None:
    def told() -> list[str]:
        return [each["check"] for each in client.get("/api/findings").json()["findings"]]

    assert told() == []  # nobody is missed as long as there is nothing to do
    sleeps.options(id="s").start()
    assert told() == ["workers"]
    with shop.worker():
        until(lambda: not told())
    assert client.get("/api/findings").json()["findings"][0]["command"] == "holdfast -A module worker"


def test_prometheus_is_told_what_the_store_holds(client: httpx.Client, shop: App) -> None:
    shop.start("total", 3)
    answer = client.get("/metrics")
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    lines = answer.text.splitlines()
    assert 'holdfast_runs{status="PENDING"} 1' in lines
    assert "holdfast_runs_due 1" in lines
    assert "holdfast_workers 0" in lines
    assert client.get("/metrics", headers={"authorization": "Bearer somebody-elses"}).status_code == 401
