"""The stream of changes: told at once, nothing missed after a break, asked for in one place."""

from __future__ import annotations

import httpx
import pytest
from monitor_shop import asks, sleeps

from holdfast import App
from holdfast.monitor.changes import INTERVAL, pause_after
from holdfast.ports import WorkerRow


def next_version(client: httpx.Client, what: str, seen: str = "", last_event_id: str = "") -> str:
    """What the stream says first."""
    headers = {"last-event-id": last_event_id} if last_event_id else {}
    with client.stream("GET", "/api/changes", params={"what": what, "seen": seen}, headers=headers) as stream:
        assert stream.headers["content-type"].startswith("text/event-stream")
        for line in stream.iter_lines():
            if line.startswith("id: "):
                return line[4:]
    raise AssertionError("the stream ended")


def test_a_stream_tells_of_what_came_after_the_page_was_read(client: httpx.Client, shop: App) -> None:
    before = client.get("/api/runs").json()["version"]
    sleeps.options(id="s").start()
    after = next_version(client, "runs", seen=before)
    assert after != before
    assert after == client.get("/api/runs").json()["version"]


def test_a_stream_that_was_broken_goes_on_with_what_it_has_missed(client: httpx.Client, shop: App) -> None:
    sleeps.options(id="a").start()
    first = next_version(client, "runs")
    sleeps.options(id="b").start()
    second = next_version(client, "runs", seen="long ago", last_event_id=first)
    assert second == client.get("/api/runs").json()["version"] != first


@pytest.mark.usefixtures("worker")
def test_a_run_that_goes_on_is_told_and_one_that_is_deleted_too(client: httpx.Client, shop: App) -> None:
    run = asks.options(id="a").start("ann")
    seen = client.get("/api/run", params={"id": "a"}).json()["version"]
    run.send("signature", 1, key="ann")
    run.result(timeout=20)
    ended = client.get("/api/run", params={"id": "a"}).json()["version"]
    assert next_version(client, "run:a", seen=seen) == ended != seen
    run.delete()
    assert next_version(client, "run:a", seen=ended) == "gone"


def test_that_a_worker_has_come_or_gone_is_told_to_those_who_look_at_a_run(client: httpx.Client, shop: App) -> None:
    sleeps.options(id="s").start()
    page = client.get("/api/run", params={"id": "s"}).json()
    assert page["why"]["kind"] == "no_worker"
    worker = WorkerRow(id="w9", app="shop", host="h", pid=1, build="1", names=["sleeps"], address="w9-bell")
    shop.store.register(worker, 60_000_000)
    assert next_version(client, "run:s", seen=page["version"]) != page["version"]
    assert client.get("/api/run", params={"id": "s"}).json()["why"]["kind"] == "worker"


def test_a_store_that_takes_long_to_look_at_is_left_alone_for_longer() -> None:
    assert pause_after(0.001) == INTERVAL
    assert pause_after(2) == 10


def test_a_version_stays_while_nothing_happens(client: httpx.Client, shop: App) -> None:
    sleeps.options(id="s").start()
    for path in ("/api/runs?q=started:<1h", "/api/run?id=s", "/api/workflows", "/api/hooks", "/api/schedules"):
        assert client.get(path).json()["version"] == client.get(path).json()["version"]
