"""`holdfast monitor`: where it listens, and whom it lets in."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from cli_driver import Cli

HOLDFAST = [sys.executable, "-m", "holdfast", "-A", "cli_shop"]


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.7.7", "example.org"])
def test_an_address_that_others_reach_is_not_served_without_a_token(cli: Cli, host: str) -> None:
    answer = cli("monitor", "--host", host, "--no-token", code=2)
    assert "lets other machines in, so a token is needed" in answer.err


def test_a_token_that_can_be_guessed_is_refused(cli: Cli) -> None:
    answer = cli("monitor", "--token", "1234", code=2)
    assert "16 characters or more" in answer.err


@contextlib.contextmanager
def served(store: Path, *options: str) -> Iterator[str]:
    """What the command prints, while it serves."""
    command = [*HOLDFAST, "--store", str(store), "monitor", "--port", "0", *options]
    process = subprocess.Popen(command, cwd=Path(__file__).parent, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        yield process.stdout.readline().strip()
    finally:
        process.terminate()
        process.communicate(timeout=20)


def test_a_store_that_is_taken_away_is_told_and_ends_it(tmp_path: Path) -> None:
    store = tmp_path / "shop.db"
    command = [*HOLDFAST, "--store", str(store), "monitor", "--port", "0", "--no-token"]
    with subprocess.Popen(
        command, cwd=Path(__file__).parent, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        assert "holdfast_workers 0" in httpx.get(f"{url}metrics", timeout=20).text
        store.rename(tmp_path / "away.db")
        assert httpx.get(f"{url}metrics", timeout=20).status_code == 503
        said = process.communicate(timeout=20)[1]
    assert process.returncode == 5
    assert "was deleted" in said


@pytest.mark.parametrize("base", ["", "/ops"])
def test_the_printed_address_is_the_way_in(tmp_path: Path, base: str) -> None:
    with served(tmp_path / "shop.db", "--base-path", base) as url, httpx.Client(timeout=20) as client:
        assert url.startswith("http://127.0.0.1:")
        assert client.get(url.partition("?")[0] + "workflows/runs").status_code == 401
        page = client.get(url, follow_redirects=True)
        assert (page.status_code, page.url.path) == (200, f"{base}/workflows/runs")
        assert client.get(url.partition("?")[0] + "api/about").json()["app"] == "shop"


def test_without_a_token_a_name_that_leads_here_does_not_open_it(tmp_path: Path) -> None:
    with served(tmp_path / "shop.db", "--no-token") as url:
        assert httpx.get(f"{url}api/about", timeout=20).status_code == 200
        assert httpx.get(f"{url}api/about", headers={"host": "evil.example"}, timeout=20).status_code == 401
