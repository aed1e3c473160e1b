"""`worker --health`: what probes are told, of a real worker over real HTTP."""

from __future__ import annotations

import json
import os
import socket
import sqlite3
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import cli_shop
import pytest
from cli_driver import Cli, eventually
from prometheus_client.parser import text_string_to_metric_families

from holdfast.cli.endpoint import HealthEndpoint, parse_address
from holdfast.engine.health import Pulse
from holdfast.engine.settings import Settings


def get(url: str, method: str = "GET") -> tuple[int, str]:
    try:
        with urllib.request.urlopen(urllib.request.Request(url, method=method), timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as refusal:
        with refusal:
            return refusal.code, refusal.read().decode()


@contextmanager
def worker(cli: Cli, *options: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A worker with its endpoint on a port of its own, and where that is."""
    place = {
        "HOLDFAST_APP": "cli_shop",
        "HOLDFAST_STORE": cli.store,
        "PYTHONPATH": f"{Path(__file__).parent}{os.pathsep}{os.environ.get('PYTHONPATH', '')}",
    }
    process = subprocess.Popen(
        [sys.executable, "-m", "holdfast", "worker", "--log-format", "json", "--health", ":0", *options],
        env={**os.environ, **place},
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stderr is not None
        first = json.loads(process.stderr.readline())
        yield process, first["message"].removeprefix("health at ")
    finally:
        process.terminate()
        process.communicate(timeout=20)


def test_a_worker_that_is_well_says_so(cli: Cli, tmp_path: Path) -> None:
    with worker(cli, "--build", "v7") as (_, url):
        assert url.startswith("http://127.0.0.1:")
        gate = tmp_path / "gate"
        cli("start", "packs", str(gate), "--id", "p1")
        body: dict[str, Any] = eventually(lambda: (b := json.loads(get(url)[1])) and b["steps"] and b)
        assert get(url)[0] == 200
        assert (body["ok"], body["problem"], body["store_reachable"], body["stopping"]) == (True, "", True, False)
        assert (body["app"], body["build"], body["runs"], body["steps"]) == ("shop", "v7", 1, 1)
        assert body["worker"] == cli("health", "--json").json["workers"][0]["id"]
        assert 0 <= body["heartbeat_age"] < 10
        assert body["commit_age"] is not None
        gate.touch()
        eventually(lambda: not json.loads(get(url)[1])["steps"])
        assert get(url, "HEAD") == (200, "")
        assert get(url.replace("/health", "/other"))[0] == 404
        assert get(url, "POST")[0] == 501


def test_a_worker_tells_prometheus_what_it_has_done(cli: Cli, tmp_path: Path) -> None:
    with worker(cli) as (_, url):
        gate = tmp_path / "gate"
        cli("start", "packs", str(gate), "--id", "p1")

        def found() -> dict[str, float]:
            status, text = get(url.replace("/health", "/metrics"))
            assert status == 200
            families = text_string_to_metric_families(text)
            samples = [sample for family in families for sample in family.samples]
            return {
                f"{s.name} {' '.join(v for k, v in s.labels.items() if k != 'worker')}".strip(): s.value
                for s in samples
            }

        eventually(lambda: found().get("holdfast_steps_running") == 1)
        assert found()["holdfast_runs RUNNING"] == 1
        assert found()["holdfast_runs_live"] == 1
        gate.touch()
        eventually(lambda: "holdfast_runs_finished_total packs SUCCESS" in found())
        now = found()
        assert now["holdfast_runs_started_total packs"] == now["holdfast_runs_finished_total packs SUCCESS"] == 1
        assert now["holdfast_steps_finished_total pack SUCCESS"] == now["holdfast_step_seconds_count pack"] == 1
        assert now["holdfast_run_wait_seconds_count packs"] == now["holdfast_step_wait_seconds_count"] == 1
        assert now["holdfast_commit_events_sum"] >= 2
        assert now["holdfast_commit_seconds_sum"] > 0
        assert now["holdfast_commit_bytes_sum"] > 100
        assert (now["holdfast_runs_due"], now["holdfast_inbox_depth"], now["holdfast_runs_parked"]) == (0, 0, 0)
        assert now["holdfast_workers"] == 1


def test_a_worker_that_does_not_reach_its_store_says_503_and_why(cli: Cli) -> None:
    cli_shop.app.use_store(cli.store)
    endpoint = HealthEndpoint(":0")
    with cli_shop.app.worker(settings=Settings(lease=0.5, beat=0.05)) as engine:
        endpoint.start(engine.health)
        try:
            assert get(endpoint.url)[0] == 200
            with closing(sqlite3.connect(cli.store, isolation_level=None)) as other:
                other.execute("BEGIN IMMEDIATE")
                eventually(lambda: get(endpoint.url)[0] == 503)
                assert "no heartbeat has reached the store" in json.loads(get(endpoint.url)[1])["problem"]
            eventually(lambda: get(endpoint.url)[0] == 200)
        finally:
            endpoint.close()


@pytest.mark.parametrize(
    ("text", "address"),
    [
        (":8080", ("127.0.0.1", 8080)),
        ("8080", ("127.0.0.1", 8080)),
        ("localhost:8080", ("127.0.0.1", 8080)),
        ("0.0.0.0:80", ("0.0.0.0", 80)),
        ("[::1]:8080", ("::1", 8080)),
    ],
)
def test_only_an_address_that_is_named_is_open_to_others(text: str, address: tuple[str, int]) -> None:
    assert parse_address(text) == address


@pytest.mark.parametrize("text", ["", "http", ":", ":http", "example.com:80", "127.0.0.1", "1.2.3:80", ":99999", ":-1"])
def test_an_address_that_is_none_is_refused(cli: Cli, text: str) -> None:
    said = cli("worker", "--health", text or " ", code=2)
    assert "give a port on this machine (:8080)" in said.err


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="no IPv6 here")
def test_an_address_of_ipv6_works_too(cli: Cli) -> None:
    cli_shop.app.use_store(cli.store)
    endpoint = HealthEndpoint("[::1]:0")
    assert endpoint.url.startswith("http://[::1]:")
    with cli_shop.app.worker() as engine:
        endpoint.start(engine.health)
        try:
            assert get(endpoint.url)[0] == 200
        finally:
            endpoint.close()


def test_a_port_that_is_taken_is_said_before_anything_is_done(cli: Cli) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        said = cli("worker", "--health", f":{taken.getsockname()[1]}", code=2)
    assert "can't listen there: Address already in use" in said.err
    assert not Path(cli.store).exists()


def test_what_is_wrong_is_told_by_the_signs_that_are_missing() -> None:
    pulse = Pulse(100.0)
    assert pulse.problem(109.0, lease=10) == ""
    pulse.turn = 111.0
    pulse.trouble = "disk full"
    assert pulse.problem(111.5, lease=10) == "no heartbeat has reached the store for 12 s (disk full)"
    pulse.beaten(120.0)
    assert pulse.problem(121.5, lease=10) == "the engine is stuck: its loop has not turned for 10 s"
