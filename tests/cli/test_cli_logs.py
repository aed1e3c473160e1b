"""What steps have logged, in `runs show`, in `runs logs` and in a worker's own log."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import cli_shop
import pytest
from cli_driver import Cli, eventually

from holdfast import App, Codec, RunFields
from holdfast.cli.worker import JsonFormatter, TextFormatter


@pytest.fixture
def talked(cli: Cli, worker: None, caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    with caplog.at_level("INFO", "shop"):
        cli("run", "talk", "7", "--id", "t1")
        yield


@pytest.mark.usefixtures("talked")
def test_show_has_the_last_lines_under_the_step(cli: Cli) -> None:
    out = cli("runs", "show", "t1").out
    step = out[out.index("steps (1)") :]
    assert step.count("2 earlier; `runs logs` has more") == 2
    assert step.count("INFO    shop: line ") == 10
    assert step.index("attempt 1") < step.index("line 6 of attempt 1") < step.index("line 2 of attempt 2")


@pytest.mark.usefixtures("talked")
def test_logs_has_all_that_is_kept(cli: Cli) -> None:
    out = cli("runs", "logs", "t1").out
    assert out.count("INFO    shop: line ") == 14
    assert [line for line in out.splitlines() if line[0] != " "] == ["talk  attempt 1", "talk  attempt 2"]
    first, second = cli("runs", "logs", "t1", "--json").json
    assert (first["step"], first["attempt"], second["attempt"], first["dropped"]) == ("talk", 1, 2, 0)
    assert first["lines"][0]["message"] == "line 0 of attempt 1"
    shown = cli("runs", "show", "t1", "--json").json["steps"][0]["logs"]
    assert shown == [{key: kept[key] for key in ("attempt", "dropped", "lines")} for kept in (first, second)]


@pytest.mark.usefixtures("talked")
def test_logs_can_be_narrowed_to_a_step_and_say_if_there_are_none(cli: Cli) -> None:
    assert cli("runs", "logs", "t1", "--step", "talk").out
    assert "no step 'walk' has logged anything" in cli("runs", "logs", "t1", "--step", "walk").err
    cli("run", "add", "1", "--id", "a1")
    assert "no step of run a1 has logged anything" in cli.without_code("runs", "logs", "a1").err


class Upside:
    name = "upside"

    def encode(self, data: bytes) -> bytes:
        return data[::-1]

    decode = encode


def test_what_is_sealed_stays_so_without_the_code(cli: Cli, caplog: pytest.LogCaptureFixture) -> None:
    app = App("shop", cli.store, codec=Codec(transforms=[Upside()]))

    @app.step
    def whisper() -> None:
        cli_shop.log.info("a secret")

    with app.worker(), caplog.at_level("INFO", "shop"):
        whisper.options(id="w1").start().result(timeout=10)
    app.close()
    out = cli.without_code("runs", "logs", "w1").out
    assert "<sealed by upside>" in out
    assert "a secret" not in out


# -- a worker's own log


def test_the_json_log_of_a_worker_says_where_each_line_was_made(cli: Cli) -> None:
    place = {
        "HOLDFAST_APP": "cli_shop",
        "HOLDFAST_STORE": cli.store,
        "PYTHONPATH": f"{Path(__file__).parent}{os.pathsep}{os.environ.get('PYTHONPATH', '')}",
    }
    worker = subprocess.Popen(
        [sys.executable, "-m", "holdfast", "worker", "--log-format", "json"],
        env={**os.environ, **place},
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        eventually(lambda: Path(cli.store).exists())
        cli("run", "talks", "1", "--id", "t1")
    finally:
        worker.terminate()
        _, err = worker.communicate(timeout=20)
    lines = [json.loads(line) for line in err.splitlines()]
    told = [
        {key: line[key] for key in ("message", "run_id", "workflow", "step", "attempt", "customer") if key in line}
        for line in lines
        if line["logger"] == "shop"
    ]
    where = {"run_id": "t1", "workflow": "talks"}
    assert told == [
        {"message": "begin", **where, "attempt": 1},
        {"message": "line 0 of attempt 1", **where, "step": "talk", "attempt": 1},
        {"message": "line 0 of attempt 2", **where, "step": "talk", "attempt": 2},
        {"message": "from another process", **where, "step": "talk_apart", "attempt": 1, "customer": 7},
    ]
    assert not any({"run_id", "step"} & set(line) for line in lines if line["logger"] == "holdfast")


def record(**fields: object) -> logging.LogRecord:
    found = logging.makeLogRecord({"msg": "hello", "levelname": "INFO", **fields})
    RunFields().filter(found)
    return found


def test_the_text_log_of_a_worker_names_run_and_step() -> None:
    text = TextFormatter("%(where)s%(message)s")
    assert text.format(record()) == "hello"
    assert text.format(record(run_id="o1", attempt=1)) == "[o1] hello"
    assert text.format(record(run_id="o1", step="charge", attempt=2)) == "[o1 step charge attempt 2] hello"
    assert text.format(record(run_id="o1", step="charge", attempt="third")) == "[o1 step charge attempt third] hello"


def test_a_traceback_from_another_process_is_in_the_json_log() -> None:
    line = json.loads(JsonFormatter().format(record(exc_text="Traceback ...")))
    assert line["traceback"] == "Traceback ..."
    assert "exc_text" not in line
