"""Starting runs: how arguments are read, what is refused, what is printed."""

from __future__ import annotations

import cli_shop
import pytest
from cli_driver import Cli

pytestmark = pytest.mark.usefixtures("worker")


def test_start_prints_the_id_and_nothing_else(cli: Cli) -> None:
    said = cli("start", "total", "1", "--id", "t1")
    assert said.out == "t1\n"
    assert cli.wait_for("t1", "SUCCESS")


def test_run_gives_the_result_on_stdout_and_changes_on_stderr(cli: Cli) -> None:
    said = cli("run", "total", "1", "b=4")
    assert said.json == 7
    assert "StepCompleted" in said.err
    assert "RunCompleted" in said.err


def test_a_run_that_fails_exits_with_1_and_names_the_next_command(cli: Cli) -> None:
    said = cli("run", "fails", "no boxes", "--id", "f1", code=1)
    assert said.out == ""
    assert "ended as FAILURE: ValueError: no boxes" in said.err
    assert "runs show f1" in said.err


def test_run_with_json_prints_all_about_the_run(cli: Cli) -> None:
    facts = cli("run", "total", "1", "--json").json
    assert (facts["status"], facts["result"], facts["data"]) == ("SUCCESS", 4, {"who": "ann"})
    assert [step["name"] for step in facts["steps"]] == ["add", "flaky", "add"]


def test_a_step_can_be_run_alone(cli: Cli) -> None:
    assert cli("run", "add", "2", "3").json == 5


@pytest.mark.parametrize(
    ("args", "recorded"),
    [
        (["1", "2"], {"args": [1, 2]}),
        (["1", "b=2"], {"args": [1], "kwargs": {"b": 2}}),
        (["-1"], {"args": [-1]}),
        (["--args-json", "[1, 2]"], {"args": [1, 2]}),
        (["--args-json", '{"a": 1}'], {"kwargs": {"a": 1}}),
    ],
)
def test_arguments_are_json_and_keywords(cli: Cli, args: list[str], recorded: object) -> None:
    cli("start", "add", *args, "--id", "x")
    assert cli("runs", "show", "x", "--json").json["input"] == recorded


def test_text_stays_text_where_the_parameter_takes_text(cli: Cli) -> None:
    assert cli("run", "ship", "17").json == "172"


def test_plain_data_becomes_what_the_annotation_asks_for(cli: Cli) -> None:
    assert cli("run", "buy", '{"id": "o1", "qty": 2, "price": "1.50"}').json == "3.00"


def test_the_same_call_from_python_and_from_a_shell_is_the_same_run(cli: Cli) -> None:
    order = cli_shop.Order("o1", 2)
    cli_shop.buy.options(id="b1").start(order)
    assert cli("start", "buy", '{"id": "o1", "qty": 2}', "--id", "b1").out == "b1\n"
    assert "other arguments" in cli("start", "buy", '{"id": "o1", "qty": 3}', "--id", "b1", code=4).err


@pytest.mark.parametrize(
    ("args", "code", "words"),
    [
        (["start", "nosuch"], 3, "known: add"),
        (["start", "add", "[" * 3_000], 2, "is nested too deeply to be read"),
        (["start", "add", "--args-json", "[" * 3_000], 2, "--args-json isn't JSON"),
        (["start", "add"], 2, "missing a required argument: 'a'"),
        (["start", "add", "1", "c=2"], 2, "unexpected keyword argument 'c'"),
        (["start", "add", "one"], 2, "a: expected int, got 'one'"),
        (["start", "add", "a=1", "a=2"], 2, "given twice"),
        (["start", "add", "a=1", "2"], 2, "put arguments without a name first"),
        (["start", "add", "1", "--args-json", "[1]"], 2, "not both"),
        (["start", "add", "--args-json", "1"], 2, "a list of arguments"),
        (["start", "add", "--args-json", "["], 2, "isn't JSON"),
        (["start", "add", "1", "--delay", "soon"], 2, "delay: cannot read 'soon'"),
        (["start", "add", "1", "--dealy", "5s"], 2, "--dealy"),
        (["start", "buy", '{"id": "o1"}'], 2, "qty"),
    ],
)
def test_bad_input_is_refused_in_a_sentence_before_anything_is_written(
    cli: Cli, args: list[str], code: int, words: str
) -> None:
    said = cli(*args, code=code)
    assert words in said.err
    assert "Traceback" not in said.err
    assert cli("runs", "list").out == ""


def test_an_id_that_is_taken_is_an_error_if_that_is_asked_for(cli: Cli) -> None:
    cli("run", "add", "1", "--id", "x")
    assert "runs show x" in cli("start", "add", "1", "--id", "x", "--if-exists", "error", code=4).err
    cli("run", "add", "5", "--id", "x", "--if-exists", "restart")
    assert cli("runs", "show", "x", "--json").json["result"] == 6


def test_a_delayed_run_says_when_it_begins(cli: Cli) -> None:
    cli("start", "add", "1", "--id", "later", "--delay", "2h", "--priority", "3")
    (line,) = cli("runs", "list").lines
    assert line[2] == "PENDING"
    assert line[5].startswith("begins ")
    assert cli("runs", "show", "later", "--json").json["priority"] == 3
