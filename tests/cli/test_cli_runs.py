"""Looking at runs: lists, one run, its history, its tree; with and without the app's code."""

from __future__ import annotations

import json
import re

import cli_shop
import pytest
from cli_driver import Cli

from holdfast import App
from holdfast.cli import target
from holdfast.cli.output import short_ids
from holdfast.cli.runs import event_text, list_runs
from holdfast.core import events as ev
from holdfast.ports import Status
from holdfast.views.filters import STATUS_WORDS

pytestmark = pytest.mark.usefixtures("worker")


@pytest.fixture
def runs(cli: Cli, worker: None) -> None:
    """Three that ended and one that waits."""
    cli("run", "total", "1", "--id", "total-1")
    cli("run", "fails", "no boxes", "--id", "fails-1", code=1)
    cli("run", "buy", '{"id": "o1", "qty": 2}', "--id", "buy-1")
    cli("start", "asks", "bob", "--id", "asks-1")
    cli.wait_for("asks-1", "WAITING")


@pytest.mark.usefixtures("runs")
def test_list_is_tab_separated_newest_first(cli: Cli) -> None:
    lines = cli("runs", "list").lines
    ids = [line[0] for line in lines]
    assert (ids[0], ids[2:]) == ("asks-1", ["buy-1", "fails-1", "total-1"])
    assert lines[0][1:3] == ["asks", "WAITING"]
    assert lines[0][5].startswith("waiting for hook 'shop-approval'")


@pytest.mark.usefixtures("runs")
@pytest.mark.parametrize(
    ("options", "ids"),
    [
        (["--status", "failure"], ["fails-1"]),
        (["--status", "failure", "--status", "waiting"], ["asks-1", "fails-1"]),
        (["--workflow", "total"], ["total-1"]),
        (["--parent", "buy-1", "--limit", "5"], ["buy-1.ship"]),
        (["--data", "who=ann"], ["total-1"]),
        (["--data", "who=bob"], []),
        (["--since", "1h", "--workflow", "buy"], ["buy-1"]),
        (["--since", "2099-01-01"], []),
        (["status:failed"], ["fails-1"]),
        (["--status", "failed"], ["fails-1"]),
        (["--status", "Sleeping"], ["asks-1"]),
        (["status:failed,waiting", "workflow:as*", "started:<1h"], ["asks-1"]),
        (["data.who=ann", "--workflow", "buy"], []),
    ],
)
def test_list_can_be_narrowed(cli: Cli, options: list[str], ids: list[str]) -> None:
    found = [run["id"] for run in cli("runs", "list", *options, "--json").json]
    assert [id.partition(".ship.")[0] + (".ship" if ".ship." in id else "") for id in found] == ids


@pytest.mark.usefixtures("runs")
def test_pages_go_on_where_the_page_before_says(cli: Cli) -> None:
    first = cli("runs", "list", "--limit", "2")
    after = first.err.split("--after ")[1].strip()
    rest = cli("runs", "list", "--limit", "9", "--after", after)
    assert [line[0] for line in first.lines + rest.lines] == [line[0] for line in cli("runs", "list").lines]
    assert rest.err == ""


def test_the_statuses_that_can_be_asked_for_are_all(cli: Cli) -> None:
    """And in the words of a filter."""
    choices = next(p for p in list_runs.params if p.name == "statuses").type.choices  # type: ignore[attr-defined]
    assert [*choices] == [*STATUS_WORDS]
    assert {*STATUS_WORDS.values()} == {*Status}


@pytest.mark.usefixtures("runs")
def test_a_run_is_found_by_the_beginning_of_its_id(cli: Cli) -> None:
    assert cli("runs", "show", "tot", "--json").json["id"] == "total-1"
    assert cli("runs", "show", "buy", "--json").json["id"] == "buy-1", "its child's begins so, too"
    cli("run", "add", "1", "--id", "buy-1.1")
    said = cli("runs", "show", "buy", code=2)
    assert "buy-1 (buy, SUCCESS)" in said.err
    assert "buy-1.1 (add, SUCCESS)" in said.err
    assert cli("runs", "show", "buy-1", "--json").json["id"] == "buy-1", "an id that is whole is not ambiguous"
    assert "runs list" in cli("runs", "show", "zzz", code=3).err


@pytest.mark.usefixtures("runs")
def test_show_says_what_a_run_was_given_and_what_became_of_it(cli: Cli) -> None:
    out = cli("runs", "show", "total-1").out
    for words in ('data     who = "ann"', "input    (1)", "result   4", "add   (2, 2) → 4", "attempt 2"):
        assert words in out


@pytest.mark.usefixtures("runs")
def test_show_of_a_failure_has_the_users_own_lines_only(cli: Cli) -> None:
    out = cli("runs", "show", "fails-1").out
    assert "cli_shop.py" in out
    assert "ValueError: no boxes" in out
    assert "holdfast/core" not in out
    assert "holdfast/core" in cli("runs", "show", "fails-1", "--json").json["error"]["traceback"]


@pytest.mark.usefixtures("runs")
def test_show_names_the_hooks_that_are_open(cli: Cli) -> None:
    assert cli("runs", "show", "asks-1", "--json").json["hooks"] == [{"name": "shop-approval", "key": ""}]


@pytest.mark.usefixtures("runs")
def test_show_says_what_an_answer_consists_of(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.cli.runs.on_terminal", lambda: True)
    cli("start", "listens", "--id", "l1")
    cli.wait_for("l1", "WAITING")
    assert """runs send asks-1 shop-approval '{"ok": ...}'""" in cli("runs", "show", "asks-1").out
    assert "runs send l1 word PAYLOAD --key k1" in cli("runs", "show", "l1").out


def test_show_names_all_open_hooks_however_many_there_are(cli: Cli) -> None:
    cli("start", "polls", "7", "--id", "polls-1")
    cli.wait_for("polls-1", "WAITING")
    facts = cli("runs", "show", "polls-1", "--json").json
    assert [hook["name"] for hook in facts["hooks"]] == [f"vote-{i}" for i in range(7)]
    assert facts["why"]["kind"] == "hook"
    assert len(facts["why"]["details"]["waits"]) == 7


@pytest.mark.usefixtures("runs")
def test_show_says_why_a_run_is_where_it_is(cli: Cli) -> None:
    said = cli("runs", "show", "asks-1").out
    assert "WAITING  waiting for hook 'shop-approval', until " in said
    assert re.search(r"^  for +[0-9.]+m?s$", said, re.MULTILINE), said
    assert cli("runs", "show", "fails-1", "--json").json["why"]["text"] == "failed: ValueError: no boxes"


@pytest.mark.usefixtures("runs")
def test_history_numbers_the_events(cli: Cli) -> None:
    lines = cli("runs", "history", "total-1").lines
    assert [line[0] for line in lines] == [str(i + 1) for i in range(len(lines))]
    assert lines[-1][2] == "RunCompleted"
    events = cli("runs", "history", "total-1", "--json").json
    retrying = next(event for event in events if event["kind"] == "StepRetrying")
    assert retrying["detail"]["error"]["message"] == "attempt 1 got no answer"


def test_history_says_once_why_a_run_is_stuck() -> None:
    error = {"type": "NondeterminismError", "message": "the code no longer fits"}
    stuck = {"kind": "RunStuck", "detail": {"reason": "the code no longer fits", "error": error}}
    assert event_text(stuck) == "NondeterminismError: the code no longer fits"
    assert event_text({"kind": "RunStuck", "detail": {"reason": "unknown"}}) == 'reason="unknown"'


@pytest.mark.parametrize(("result", "text"), [(0, "→ 0"), (False, "→ false"), ("", '→ ""'), (None, ""), (7, "→ 7")])
def test_history_tells_each_result_that_is_one_and_not_the_thread(result: object, text: str) -> None:
    completed = {"kind": "StepCompleted", "detail": {"result": result, "thread": "holdfast-step-0", "undoes": ""}}
    assert event_text(completed) == text


def test_history_tells_what_was_sent_and_set_whatever_it_is() -> None:
    assert event_text({"kind": "HookReceived", "detail": {"payload": False, "by": ""}}) == "payload=false"
    assert event_text({"kind": "DataSet", "detail": {"args": 0}}) == "= 0"
    assert event_text({"kind": "ChildStarted", "detail": {"again": False}}) == ""


@pytest.mark.usefixtures("runs")
def test_export_is_the_whole_history_as_it_is_stored(cli: Cli) -> None:
    lines = cli("runs", "export", "total-1").out.splitlines()
    assert [ev.to_json(ev.from_json(line.encode())).decode() for line in lines] == lines
    assert json.loads(lines[0])["kind"] == "RunStarted"


@pytest.mark.usefixtures("runs")
def test_tree_shows_children_under_their_parents(cli: Cli) -> None:
    first, second, third = cli("runs", "tree", "buy-1").out.splitlines()
    assert first.startswith("✓ buy  buy-1  SUCCESS")
    assert second.startswith("└─ ✓ ship  buy-1.ship.")
    assert third.startswith("   └─ ✓ add  SUCCESS")
    facts = cli("runs", "tree", "buy-1", "--json").json
    assert facts["children"][0]["children"][0]["name"] == "add"


@pytest.mark.usefixtures("runs")
def test_the_store_alone_is_enough_to_look(cli: Cli) -> None:
    """Values of the app's own classes are shown as plain JSON."""
    facts = cli.without_code("runs", "show", "buy-1", "--json").json
    assert facts["input"] == {"args": [{"id": "o1", "qty": 2, "price": "9.99"}]}
    assert facts["result"] == "19.98"
    for command in ("show", "history", "tree", "export"):
        assert cli.without_code("runs", command, "buy-1").out == cli("runs", command, "buy-1").out
    assert len(cli.without_code("runs", "list").lines) == 5


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--since", "0001-01-01"], "--since '0001-01-01': give a day or a time"),
        (["--since", "9999-12-31T23:59-14:00"], "or how long ago"),
        (["data.x=" + "[" * 3_000], "is nested too deeply to be read"),
        (["--data", "x=" + "[" * 3_000], "is nested too deeply to be read"),
        (["--after", "9" * 23], "too large a number"),
    ],
)
def test_what_no_clock_shows_and_what_is_too_deep_or_too_large_is_refused(
    cli: Cli, words: list[str], said: str
) -> None:
    assert said in cli("runs", "list", *words, code=2).err


def test_no_runs_are_said_to_be_none(cli: Cli) -> None:
    assert cli("runs", "list").err == "no runs yet\n"
    assert cli("runs", "list", "--status", "stuck").err == "no run matches\n"
    assert cli("runs", "list", "--json").json == []


def test_what_would_move_the_cursor_is_not_printed(cli: Cli) -> None:
    cli("run", "fails", "\x1b[2Jgone", "--id", "x", code=1)
    assert "\x1b" not in cli("runs", "show", "x").out + cli("runs", "history", "x").out


def test_an_app_that_is_not_the_only_one_has_to_be_named(cli: Cli) -> None:
    cli("run", "add", "1")
    other = App("other", cli.store)
    other.step(cli_shop.add.__wrapped__)
    other.start("add", 1)
    other.close()
    said = cli.without_code("runs", "list", code=2)
    assert "other, shop" in said.err
    assert len(cli.without_code("--app-name", "other", "runs", "list").lines) == 1
    said = cli.without_code("--app-name", "othr", "runs", "list", code=3)
    assert f"no app 'othr' in {cli.store}; there are other, shop" in said.err


def test_a_list_says_why_runs_have_failed(cli: Cli) -> None:
    cli("run", "fails", "no funds", "--id", "x", code=1)
    assert "no funds" in cli("runs", "list").out.splitlines()[0].split("\t")[-1]
    (listed,) = cli("runs", "list", "--json").json
    assert "no funds" in listed["error"]["message"]


def test_the_parent_of_many_children_is_found_by_the_beginning_of_its_id(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = cli("run", "buy", '{"id": "o1", "qty": 2}', "--json").json
    monkeypatch.setattr(target, "CANDIDATES", 0)
    assert cli("runs", "show", short_ids([run["id"]])[run["id"]], "--json").json["id"] == run["id"]


def test_ids_as_they_are_shown_can_be_given_back(cli: Cli) -> None:
    cli("run", "buy", '{"id": "o1", "qty": 2}', "--id", "b1")
    (child,) = cli("runs", "show", "b1", "--json").json["children"]
    shown = f"b1…{child.removeprefix('b1')}"
    named = cli("run", "buy", '{"id": "o2", "qty": 2}', "--json").json
    ids = [named["id"], *named["children"]]
    assert [cli("runs", "show", text, "--json").json["id"] for text in short_ids(ids).values()] == ids
    for text in (shown, shown.replace("…", ".."), child[:5] + "…", "b1…" + child[-6:], child):
        assert cli("runs", "show", text, "--json").json["id"] == child
    assert "no run has the id" in cli("runs", "show", "b1…nothing", code=3).err
