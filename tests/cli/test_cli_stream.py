"""`holdfast events` and `holdfast top`, with a real worker beside them."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cli_shop
import pytest
from cli_driver import Cli, eventually

from holdfast.cli.failures import INTERRUPTED
from holdfast.cli.stream import detail_of, is_wanted, line_of

HERE = Path(__file__).parent


@contextlib.contextmanager
def process(cli: Cli, *args: str, terminal: int | None = None) -> Iterator[subprocess.Popen[str]]:
    place = {
        "HOLDFAST_APP": "cli_shop",
        "HOLDFAST_STORE": cli.store,
        "PYTHONPATH": f"{HERE}{os.pathsep}{os.environ.get('PYTHONPATH', '')}",
    }
    out = subprocess.PIPE if terminal is None else terminal
    command = [sys.executable, "-c", f"import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
               f"import sys; sys.argv[1:] = {list(args)!r}; from holdfast.cli import main; main()"]  # fmt: skip
    child = subprocess.Popen(
        command, env={**os.environ, **place, "PYTHONUTF8": "1", "TERM": "xterm"}, stdin=terminal, stdout=out, stderr=out,
        text=True,
    )  # fmt: skip
    try:
        yield child
    finally:
        if child.poll() is None:
            child.kill()
        child.wait()
        if child.stdout is not None:
            child.stdout.close()
        if child.stderr is not None:
            child.stderr.close()


@pytest.mark.usefixtures("worker")
def test_events_are_printed_as_they_happen_until_it_is_interrupted(cli: Cli) -> None:
    with process(cli, "events") as events:
        assert events.stdout is not None
        lines = (line.rstrip("\n").split("\t") for line in events.stdout)
        online = next(line for line in lines if line[2] == "worker-online")
        assert online[6].startswith(f"pid {os.getpid()} on ")
        cli_shop.app.start("total", 1)
        seen = []
        while not seen or seen[-1][2] != "run-succeeded":
            seen += [line for line in [next(lines)] if not line[2].startswith("worker-")]
        events.send_signal(signal.SIGINT)
        assert events.wait(20) == INTERRUPTED
    assert [line[2] for line in seen][:2] == ["run-sent", "run-started"]
    assert {"step-started", "step-succeeded"} <= {line[2] for line in seen}
    assert len({line[4] for line in seen}) == 1, "all are of that run"
    numbers = [int(line[1]) for line in seen]
    assert numbers == sorted(numbers)


@pytest.mark.usefixtures("worker")
def test_events_are_chosen_by_type_and_workflow_and_end_at_a_limit(cli: Cli) -> None:
    chosen = ("--type", "run-succeeded", "--type", "worker", "--workflow", "tot*", "--json", "--limit", "2")
    with process(cli, "events", *chosen) as events, process(cli, "events", "--limit", "1") as other:
        assert other.stdout is not None
        other.stdout.readline()  # a worker has heard that somebody listens
        run: Any = None

        def ended() -> bool:
            nonlocal run
            run = cli_shop.app.start("total", 1)
            run.result(timeout=20)
            return events.poll() is not None

        eventually(ended)
        assert events.returncode == 0
        assert events.stdout is not None
        found = [json.loads(line) for line in events.stdout.read().splitlines()]
    assert [(event["type"], event["name"]) for event in found] == [("run-succeeded", "total")] * 2
    assert "received_at" not in found[0]
    assert found[0]["clock"] < found[1]["clock"]


STEP = {"type": "step-failed", "id": "r1:1s0", "run_id": "r1", "workflow": "order", "name": "pay"}
RUN = {"type": "run-failed", "id": "r1", "name": "order"}


@pytest.mark.parametrize(
    ("event", "types", "run", "workflow", "wanted"),
    [
        (STEP, (), None, None, True),
        (STEP, ("step",), None, None, True),
        (STEP, ("run", "step-f*"), None, None, True),
        (STEP, ("run",), None, None, False),
        (STEP, ("step-failed",), "r1", "order", True),
        (STEP, (), "r2", None, False),
        (STEP, (), None, "ord*", True),
        (STEP, (), None, "pay", False),
        (RUN, (), "r1", "order", True),
        (RUN, (), None, "pay", False),
        ({"type": "worker-online", "origin": "w"}, (), "r1", None, False),
        ({"type": "worker-online", "origin": "w"}, ("worker",), None, None, True),
    ],
)
def test_what_is_wanted_is_shown(
    event: dict[str, Any], types: tuple[str, ...], run: str | None, workflow: str | None, wanted: bool
) -> None:
    assert is_wanted(event, types, run, workflow) is wanted


def test_a_line_shows_junk_too() -> None:
    assert [span.text for span in line_of({"type": "step-cooking"}, whole=True)] == [
        "",
        "",
        "step-cooking",
        "",
        "",
        "",
        "",
    ]
    said = detail_of({**STEP, "attempt": 2, "seconds": 0.5, "done": 1, "total": 4, "exception": "KeyError: 'x'"})
    assert said == "attempt 2, 0.500 s, 1 of 4, KeyError: 'x'"


def test_a_type_that_there_is_not_is_refused(cli: Cli) -> None:
    assert "types begin with run, step, worker" in cli("events", "--type", "failed", code=2).err


@pytest.mark.usefixtures("worker")
def test_top_tells_workers_runs_queues_and_rates(cli: Cli) -> None:
    cli_shop.app.start("total", 1).result(timeout=20)
    found = cli("top", "--json", "--interval", "0.3").json
    (worker,) = found["workers"]
    assert (worker["pid"], worker["alive"], found["app"], found["runs"]["SUCCESS"]) == (os.getpid(), True, "shop", 1)
    assert worker["clock"] > 0
    assert found["backlog"] == {"due": 0, "due_seconds": 0.0, "parked": 0, "inbox": 0}
    assert set(found["rates"].values()) == {0.0}
    text = cli("top", "--interval", "0.3").out
    assert re.search(r"WORKER +HOST +PID", text)
    assert "SUCCESS 1" in text
    assert "0 due, 0 parked, 0 messages unread" in text


@pytest.mark.usefixtures("worker")
def test_on_a_terminal_top_is_a_live_screen(cli: Cli) -> None:
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 100, 0, 0))
    with process(cli, "top", "--interval", "0.2", terminal=theirs) as top:
        os.close(theirs)
        seen = ""
        while "run-succeeded" not in seen:
            if not seen.count("total"):
                cli_shop.app.start("total", 1)
            seen += re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", os.read(ours, 65536).decode(errors="replace"))
        top.send_signal(signal.SIGINT)
        with contextlib.suppress(OSError):  # Linux says so when the other side has closed
            while os.read(ours, 65536):
                pass
        os.close(ours)
        assert top.wait(20) == INTERRUPTED
    assert "WORKFLOW" in seen
    assert "steps/s" in seen


def test_top_says_that_no_worker_is_there(cli: Cli) -> None:
    cli("start", "total", "1")
    said = cli("top", "--interval", "0.1")
    assert "no worker of app 'shop' is alive" in said.err
    assert "none is there" in said.out
    assert "1 due" in said.out
