"""The command as a process of its own: a worker and its signals, a terminal, a pipe that closes."""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import json
import os
import pty
import re
import select
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
from rich.cells import cell_len

from holdfast.cli import failures
from holdfast.cli.main import EPILOG

HERE = Path(__file__).parent
COMMAND = [sys.executable, "-m", "holdfast"]


@pytest.fixture
def environment(cli: Cli) -> dict[str, str]:
    """Of a process that knows the app and the store; `cli` has cleaned ours."""
    place = {
        "HOLDFAST_APP": "cli_shop",
        "HOLDFAST_STORE": cli.store,
        "PYTHONPATH": f"{HERE}{os.pathsep}{os.environ.get('PYTHONPATH', '')}",
    }
    return {**os.environ, **place, "PYTHONUTF8": "1", "TERM": "xterm"}


@pytest.fixture
def process(environment: dict[str, str], cli: Cli) -> Iterator[subprocess.Popen[str]]:
    worker = subprocess.Popen(
        [*COMMAND, "worker", "--log-format", "json"], env=environment, stderr=subprocess.PIPE, text=True
    )
    try:
        yield worker
    finally:
        if worker.poll() is None:
            worker.kill()
        worker.wait()
        assert worker.stderr is not None
        worker.stderr.close()


def in_terminal(args: list[str], environment: dict[str, str], answer: bytes = b"") -> tuple[int, str]:
    """Run a command on a terminal of its own, where a question gets an answer; its exit code, and what was to be seen,
    without the colours."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 100, 0, 0))
    child = subprocess.Popen(
        [*COMMAND, *args], env=environment, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),  # so that ^C interrupts
    )  # fmt: skip
    os.close(theirs)
    seen = b""
    with contextlib.suppress(OSError):  # Linux says so when the other side has closed
        while True:
            # A ^C between the question and the wait for its answer is only seen with the next key: press it again.
            if select.select([ours], [], [], 2.0)[0]:
                if not (chunk := os.read(ours, 65536)):
                    break
                seen += chunk
                if b"[y/N]" not in chunk:
                    continue
            if answer and b"[y/N]" in seen:
                os.write(ours, answer)
    os.close(ours)
    return child.wait(), re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", seen.decode())


def test_a_worker_works_until_it_is_told_to_stop(
    process: subprocess.Popen[str], cli: Cli, environment: dict[str, str]
) -> None:
    assert process.stderr is not None
    first = json.loads(process.stderr.readline())
    assert (first["level"], first["logger"]) == ("info", "holdfast")
    assert "of app 'shop'" in first["message"]
    result = subprocess.run([*COMMAND, "run", "total", "1"], env=environment, capture_output=True, text=True)
    assert (result.returncode, result.stdout) == (0, "4\n")
    process.send_signal(signal.SIGTERM)
    assert process.wait(20) == 0
    assert "has stopped" in process.stderr.read()
    assert "no worker" in cli("health", code=5).err


def test_on_a_terminal_a_run_is_a_live_tree(
    process: subprocess.Popen[str], cli: Cli, environment: dict[str, str]
) -> None:
    eventually(lambda: Path(cli.store).exists() and "ok" in health(cli))
    code, seen = in_terminal(["run", "buy", '{"id": "o1", "qty": 2}', "--id", "b1"], environment)
    assert code == 0
    last = seen[seen.rindex("✓ buy  b1  SUCCESS") :]
    assert "└─ ✓ ship  b1….ship." in last
    assert last.rstrip().endswith('"19.98"')
    code, seen = in_terminal(["runs", "list"], environment)
    assert re.search(r"RUN +WORKFLOW +STATUS +CREATED +TOOK +DOING", seen)
    assert re.search(r"b1 +buy +✓ SUCCESS", seen)
    code, seen = in_terminal(["runs", "show", "b1"], environment)
    assert "✓ SUCCESS" in seen
    code, seen = in_terminal(["doctor"], {**environment, "NO_COLOR": "1"})
    assert (code, "BAD" in seen) == (0, False)


def health(cli: Cli) -> str:
    from click.testing import CliRunner

    from holdfast.cli import main

    return CliRunner().invoke(main, ["--store", cli.store, "--app-name", "shop", "health"]).output


def test_a_pipe_that_closes_early_is_no_error(environment: dict[str, str], cli: Cli) -> None:
    for i in range(50):
        cli("start", "add", "1", "--id", f"run-{i}")
    command = f"{sys.executable} -m holdfast runs list --limit 50 | head -1"
    result = subprocess.run(command, shell=True, env=environment, capture_output=True, text=True)
    assert result.stdout.startswith("run-49\t")
    assert result.stderr == ""


def test_a_pipe_that_nobody_reads_ends_a_command_as_sigpipe_does(environment: dict[str, str], cli: Cli) -> None:
    cli("start", "add", "1", "--id", "x")
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run([*COMMAND, "runs", "list"], env=environment, stdout=writing, stderr=subprocess.PIPE)
    os.close(writing)
    assert (done.returncode, done.stderr) == (141, b"")


@pytest.mark.parametrize("option", ["--help", "--version"])
def test_what_click_prints_by_itself_ends_likewise(environment: dict[str, str], option: str) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run([*COMMAND, option], env=environment, stdout=writing, stderr=subprocess.PIPE)
    os.close(writing)
    assert (done.returncode, done.stderr) == (141, b"")


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ("runs list > /dev/full", 74, "Error: the output can't be written: No space left on device\n"),
        ("--version > /dev/full", 74, "Error: the output can't be written: No space left on device\n"),
        ("runs list > /dev/full 2> /dev/full", 74, ""),
        ("runs list >&-", 0, ""),
        ("runs list --json >&-", 0, ""),
        ("runs show x 2>&- >/dev/null", 0, ""),
        ("runs show nosuch 2> /dev/full", 3, ""),
        ("runs show nosuch 2>&-", 3, ""),
        ("runs show 2> /dev/full", 2, ""),
    ],
)
def test_an_exit_code_holds_where_nothing_can_be_written(
    environment: dict[str, str], cli: Cli, words: str, code: int, said: str
) -> None:
    cli("start", "add", "1", "--id", "x")
    command = f"{sys.executable} -m holdfast {words}"
    done = subprocess.run(command, shell=True, env=environment, stderr=subprocess.PIPE, text=True)
    assert (done.returncode, done.stderr) == (code, said)


@pytest.mark.parametrize(
    ("answer", "code", "there"), [(b"n\n", 6, True), (b"\x03", 130, True), (b"\x04", 130, True), (b"y\n", 0, False)]
)
def test_a_question_that_is_declined_is_no_run_that_failed(
    environment: dict[str, str], cli: Cli, worker: None, answer: bytes, code: int, there: bool
) -> None:
    cli("run", "add", "1", "--id", "done")
    eventually(lambda: cli("runs", "show", "done", "--json").json["worker"] is None)
    ended, seen = in_terminal(["runs", "delete", "done"], environment, answer)
    assert (ended, "nothing was done" in seen) == (code, answer == b"n\n")
    assert cli("runs", "list").out.startswith("done") is there


def test_what_an_encoding_has_no_character_for_is_replaced_and_data_is_escaped(
    environment: dict[str, str], cli: Cli, worker: None
) -> None:
    cli("run", "ship", "žluť", "--id", "ž1")
    environment = {**environment, "PYTHONIOENCODING": "latin-1"}

    def piped(*args: str) -> str:
        done = subprocess.run([*COMMAND, *args], env=environment, capture_output=True)
        assert (done.returncode, done.stderr) == (0, b"")
        return done.stdout.decode("latin-1")

    assert piped("runs", "list").startswith("?1\tship\t")
    assert "-> 2" in piped("runs", "show", "ž1")
    assert json.loads(piped("runs", "show", "ž1", "--json"))["input"] == {"args": ["žluť"]}


def test_a_terminal_that_knows_ascii_only_gets_nothing_else(
    environment: dict[str, str], cli: Cli, worker: None
) -> None:
    cli("run", "many", "20", "--id", "ž" * 60)
    environment = {**environment, "PYTHONIOENCODING": "ascii"}
    code, seen = in_terminal(["runs", "tree", "ž"], environment)
    assert (code, seen.isascii()) == (0, True)
    assert "`- + 20 done: add x 20" in seen


def test_json_on_a_terminal_has_nothing_that_moves_the_cursor_or_turns_text_around(
    environment: dict[str, str], cli: Cli, worker: None
) -> None:
    text = "\x9b2J\u202edesrever\x7f\U000e0041ž"
    cli("run", "fails", text, "--id", "f1", code=1)
    code, seen = in_terminal(["runs", "show", "f1", "--json"], environment)
    assert (code, json.loads(seen)["input"]) == (0, {"args": [text]})
    assert '"\\u009b2J\\u202edesrever\\u007f\\udb40\\udc41ž"' in seen
    assert seen.replace("\r\n", "").isprintable()
    assert cli("runs", "show", "f1", "--json").json["input"] == {"args": [text]}


def test_columns_are_aligned_whatever_ids_are_written_in(environment: dict[str, str], cli: Cli, worker: None) -> None:
    for run_id in ("日本語-1", "order-17", "e\u0301"):
        cli("run", "add", "1", "--id", run_id)
    code, seen = in_terminal(["runs", "list"], environment)
    lines = seen.splitlines()
    assert (code, {cell_len(line[: line.index(" add ")]) for line in lines[1:]}) == (0, {9})


def test_each_exit_code_is_on_the_page_of_the_command() -> None:
    page = (HERE.parents[1] / "docs" / "command.md").read_text()
    codes = [value for name, value in vars(failures).items() if name.isupper() and isinstance(value, int)]
    assert len(codes) == 11
    assert [code for code in codes if f"\n| {code} | " not in page] == []
    assert [code for code in codes if not re.search(rf"\b{code} ", EPILOG)] == []


def test_an_interrupt_leaves_the_run_and_says_how_to_go_on(cli: Cli, environment: dict[str, str]) -> None:
    command = [*COMMAND, "run", "sleeps", "--id", "s1"]
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as child:
        try:
            assert child.stderr is not None
            # On a busy machine it may be told first that no worker is there.
            said = "".join(itertools.takewhile(lambda line: "RunStarted" not in line, child.stderr))
            child.send_signal(signal.SIGINT)
            said += child.stderr.read()
            assert child.wait(60) == 130
        finally:
            child.kill()
    assert "run s1 goes on" in said
    assert "runs cancel s1" in said
    assert "Traceback" not in said
    assert cli.status("s1") == "PENDING"
    assert cli_shop.app.store.orders("s1") == []


def test_what_steps_print_is_seen_at_once_in_a_pipe(tmp_path: Path) -> None:
    (tmp_path / "printing.py").write_text(
        "import holdfast\n"
        "app = holdfast.App('printing')\n"
        "@app.step\n"
        "def say() -> None:\n"
        "    print('charging order-2')\n"
    )
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    command = {"cwd": tmp_path, "env": environment, "text": True}
    with subprocess.Popen([*COMMAND, "-A", "printing", "worker"], stdout=subprocess.PIPE, **command) as worker:
        try:
            subprocess.run(
                [*COMMAND, "-A", "printing", "start", "say"], check=True, stdout=subprocess.DEVNULL, **command
            )
            assert worker.stdout is not None
            assert worker.stdout.readline() == "charging order-2\n"
        finally:
            worker.kill()


def test_a_worker_of_its_own_switches_threads_often_and_one_in_a_program_leaves_that_alone(tmp_path: Path) -> None:
    """One step that computes would hold up every commit; but how a program switches threads is its own business."""
    (tmp_path / "switching.py").write_text(
        "import sys, holdfast\n"
        "app = holdfast.App('switching')\n"
        "@app.step\n"
        "def interval() -> float:\n"
        "    return sys.getswitchinterval()\n"
    )
    ask = "import switching; print(switching.interval.start().result(timeout=60))"
    embedded = "import switching\nwith switching.app.worker():\n    " + ask.partition("; ")[2]
    place: dict[str, Any] = {"cwd": tmp_path, "text": True}
    usual = subprocess.run([sys.executable, "-c", embedded], check=True, capture_output=True, **place)
    assert float(usual.stdout) == sys.getswitchinterval() == 0.005
    with subprocess.Popen([*COMMAND, "-A", "switching", "worker"], stderr=subprocess.DEVNULL, **place) as worker:
        try:
            found = subprocess.run([sys.executable, "-c", ask], check=True, capture_output=True, **place)
            assert float(found.stdout) == 0.0005
        finally:
            worker.kill()
