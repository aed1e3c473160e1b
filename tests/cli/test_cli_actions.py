"""Acting on runs."""

from __future__ import annotations

from pathlib import Path

import pytest
from cli_driver import Cli, eventually

from holdfast.views import failures

pytestmark = pytest.mark.usefixtures("worker")


@pytest.fixture
def asks(cli: Cli, worker: None) -> str:
    """A run that waits for a hook."""
    cli("start", "asks", "bob", "--id", "asks-1")
    cli.wait_for("asks-1", "WAITING")
    return "asks-1"


@pytest.mark.parametrize("code", [True, False])
def test_send_answers_a_hook(cli: Cli, asks: str, code: bool) -> None:
    said = (cli if code else cli.without_code)("runs", "send", asks, "shop-approval", '{"ok": true}')
    assert said.out == "sent shop-approval to asks-1\n"
    assert cli.wait_for(asks, "SUCCESS")
    assert cli("runs", "show", asks, "--json").json["result"] == "bob: True"


def test_send_takes_a_key_and_text(cli: Cli) -> None:
    cli("start", "listens", "--id", "l1")
    cli.wait_for("l1", "WAITING")
    assert cli("runs", "show", "l1", "--json").json["hooks"] == [{"name": "word", "key": "k1"}]
    cli("runs", "send", "l1", "word", "hello", "--key", "k1")
    cli.wait_for("l1", "SUCCESS")
    assert cli("runs", "show", "l1", "--json").json["result"] == "hello"


def test_a_payload_that_does_not_fit_is_refused(cli: Cli, asks: str) -> None:
    assert "Approval has the fields ok" in cli("runs", "send", asks, "shop-approval", "maybe", code=2).err
    said = cli("runs", "send", asks, "shop-approval", '{"yes": true}', code=2).err
    assert "Approval needs 'ok', which isn't there" in said
    assert "a default" not in said, "whoever sends it can't give the field one"


def test_an_answer_that_the_run_does_not_wait_for_is_told_and_shown(cli: Cli) -> None:
    cli("start", "listens", "--id", "l1")
    cli.wait_for("l1", "WAITING")
    said = cli("runs", "send", "l1", "word", "hello")
    assert said.out == "sent word to l1\n"
    assert "hook 'word' is kept until run l1 asks for it; now it waits for hook 'word' key 'k1'" in said.err
    assert cli("runs", "send", "l1", "wrod", "hello", "--json").json["awaited"] is False
    eventually(lambda: len(cli("runs", "show", "l1", "--json").json["unclaimed"]) == 2)
    shown = cli("runs", "show", "l1", "--json").json["unclaimed"]
    assert [(each["name"], each["key"], each["payload"]) for each in shown] == [
        ("word", "", "hello"),
        ("wrod", "", "hello"),
    ]
    assert "kept     hook 'wrod', sent but not asked for so far: \"hello\"" in cli("runs", "show", "l1").out


def test_cancel_then_retry(cli: Cli, asks: str) -> None:
    assert cli("runs", "cancel", "as", "--reason", "too late").out == "asked to cancel asks-1\n"
    cli.wait_for(asks, "CANCELLED")
    assert cli("runs", "show", asks, "--json").json["reason"] == "too late"
    said = cli("runs", "cancel", asks, code=4)
    assert "has ended (CANCELLED)" in said.err
    cli("runs", "retry", asks)
    cli.wait_for(asks, "WAITING")


def test_terminate_needs_a_reason_and_shows_it(cli: Cli, asks: str) -> None:
    assert "--reason" in cli("runs", "terminate", asks, code=2).err
    assert cli("runs", "terminate", asks, "--reason", "it hung").out == "asked to terminate asks-1\n"
    cli.wait_for(asks, "CANCELLED")
    assert "CANCELLED  was terminated: it hung" in cli("runs", "show", asks).out


def test_pause_then_resume(cli: Cli, asks: str) -> None:
    cli("runs", "pause", asks, "--reason", "holiday")
    cli.wait_for(asks, "PAUSED")
    assert "holiday" in cli("runs", "list").out
    cli("runs", "resume", asks)
    cli.wait_for(asks, "WAITING")
    assert "only PAUSED and STUCK runs can be resumed" in cli("runs", "resume", asks, code=4).err


def test_each_of_several_runs_is_tried_and_the_first_failure_is_the_exit_code(cli: Cli, asks: str) -> None:
    cli("run", "add", "1", "--id", "done")
    said = cli("runs", "cancel", "nosuch", "done", asks, code=3)
    assert said.out == "asked to cancel asks-1\n"
    assert "has ended" in said.err
    assert "nosuch" in said.err


def test_delete_wants_to_be_sure(cli: Cli, asks: str) -> None:
    cli("run", "add", "1", "--id", "done")
    assert "--yes" in cli("runs", "delete", "done", code=2).err
    eventually(lambda: cli("runs", "show", "done", "--json").json["worker"] is None)
    assert cli("runs", "delete", "done", "--yes", "--json").json == ["done"]
    cli("runs", "show", "done", code=3)
    assert "cancel or pause it" in cli("runs", "delete", asks, "--yes", code=4).err


def test_fork_goes_on_from_an_event_with_another_result(cli: Cli) -> None:
    cli("run", "total", "1", "--id", "t1")
    events = cli("runs", "history", "t1", "--json").json
    seq = next(event["seq"] for event in events if event["kind"] == "StepCompleted")
    facts = cli("runs", "fork", "t1", "--at", str(seq), "--replace", f"{seq}=40", "--id", "t2", "--json").json
    assert (facts["id"], facts["forked_from"], facts["reruns"]) == ("t2", "t1", [])
    cli.wait_for("t2", "SUCCESS")
    shown = cli("runs", "show", "t2", "--json").json
    assert (shown["result"], shown["forked_from"]) == (42, "t1")
    forks = [child for child in cli("runs", "tree", "t1", "--json").json["children"] if child.get("is_fork")]
    assert [(fork["run_id"], fork["state"]) for fork in forks] == [("t2", "SUCCESS")]


@pytest.mark.parametrize(
    ("options", "code", "words"),
    [
        (["--at", "99"], 4, "can't be forked at 99"),
        (["--at", "2", "--replace", "2=1"], 4, "no result to replace"),
        (["--at", "2", "--replace", "x"], 2, "give SEQ=JSON"),
        (["--at", "2", "--input", "5"], 2, "a list of arguments"),
    ],
)
def test_a_fork_that_cannot_be_is_refused(cli: Cli, options: list[str], code: int, words: str) -> None:
    cli("run", "total", "1", "--id", "t1")
    assert words in cli("runs", "fork", "t1", *options, code=code).err


def test_a_fork_says_what_runs_anew(cli: Cli) -> None:
    cli("run", "total", "1", "--id", "t1")
    events = cli("runs", "history", "t1", "--json").json
    seq = next(event["seq"] for event in events if event["kind"] == "StepRetrying")
    said = cli("runs", "fork", "t1", "--at", str(seq), "--id", "t2")
    assert said.out == "t2\n"
    assert "flaky" in said.err


def test_a_filter_names_runs_to_act_on_and_asks_before_it_does(cli: Cli, asks: str) -> None:
    cli("start", "asks", "eve", "--id", "asks-2")
    cli.wait_for("asks-2", "WAITING")
    refused = cli("runs", "cancel", "--workflow", "asks", "--status", "sleeping", code=2).err
    assert "this would cancel 2 runs (2 WAITING); say --yes" in refused
    assert "no run that this filter names" in cli("runs", "cancel", "--workflow", "asks", "--older-than", "2d").err
    said = cli("runs", "cancel", "--workflow", "as*", "--reason", "closed", "--yes")
    assert said.out == "asked to cancel 2 runs\n"
    cli.wait_for(asks, "CANCELLED")
    cli.wait_for("asks-2", "CANCELLED")
    assert cli("runs", "show", "asks-2", "--json").json["reason"] == "closed"
    assert cli("runs", "delete", "--all", "--status", "cancelled", "--yes", "--json").json == {"done": 2, "skipped": 0}
    assert cli("runs", "list", "--json").json == []


def test_runs_are_named_by_ids_or_by_a_filter_and_not_by_nothing(cli: Cli) -> None:
    for words in ((), ("some-id", "--all")):
        assert "name runs by their ids, or give a filter" in cli("runs", "cancel", *words, code=2).err
    assert "--older-than 'soon'" in cli("runs", "pause", "--older-than", "soon", code=2).err


def test_failures_that_are_alike_are_one_group_which_can_be_retried(cli: Cli, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    for i in range(3):
        cli("run", "inner", str(gate), "--id", f"in-{i}", code=1)
    cli("run", "fails", "order 17", "--id", "f-1", code=1)
    cli("run", "fails", "order 18", "--id", "f-2", code=1)
    first, second = cli("runs", "failures").lines
    group = first[0]
    assert (first[1], first[3], first[4]) == (
        "3",
        "inner",
        "FileNotFoundError: the gate is closed (inner in cli_shop.py)",
    )
    assert (second[1], second[3]) == ("2", "fails")
    assert [found["count"] for found in cli("runs", "failures", "workflow:fails", "--json").json] == [2]
    assert [line[0] for line in cli("runs", "list", "--failure", group).lines] == ["in-2", "in-1", "in-0"]
    page = cli("runs", "list", "--failure", group, "--limit", "2")
    assert [line[0] for line in page.lines] == ["in-2", "in-1"]
    after = page.err.split("--after ")[1].strip()
    assert [line[0] for line in cli("runs", "list", "--failure", group, "--after", after).lines] == ["in-0"]
    assert "this would retry 3 runs (3 FAILURE); say --yes" in cli("runs", "retry", "--failure", group, code=2).err
    assert "is there to cancel" in cli("runs", "cancel", "--failure", group, "--yes").err, "they have ended"
    gate.touch()
    assert cli("runs", "retry", "--failure", group, "--yes").out == "asked to retry 3 runs\n"
    for i in range(3):
        cli.wait_for(f"in-{i}", "SUCCESS")
    assert cli.status("f-1") == "FAILURE"
    assert "runs failures" in cli("runs", "retry", "--failure", group, "--yes", code=3).err
    deleted = cli("runs", "delete", "--failure", second[0], "--workflow", "fails", "--yes", "--json").json
    assert deleted["done"] + deleted["skipped"] == 2
    assert "no run that matches" in cli("runs", "failures", "workflow:inner").err


def test_a_group_of_failures_is_all_its_runs_however_many_have_failed(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(failures, "PAGE", 2)
    monkeypatch.setattr(failures, "FAILURES_LOOKED_AT", 2)
    cli("run", "inner", "/no/gate", "--id", "other", code=1)
    for i in range(5):
        cli("run", "fails", f"order {i}", "--id", f"f-{i}", code=1)
    (group, count, *_), (_, others, *_) = cli("runs", "failures").lines
    assert (count, others) == ("5", "1")
    page = cli("runs", "list", "--failure", group, "--limit", "3")
    assert [line[0] for line in page.lines] == ["f-4", "f-3", "f-2"]
    after = page.err.split("--after ")[1].strip()
    assert [line[0] for line in cli("runs", "list", "--failure", group, "--after", after).lines] == ["f-1", "f-0"]
    past = cli("runs", "list", "--failure", group, "--after", "1")
    assert (past.out, past.err) == ("", "no run matches\n"), "the last page is no group that isn't there"
    deleted = cli("runs", "delete", "--failure", group, "--yes", "--json").json
    assert deleted["done"] + deleted["skipped"] == 5
