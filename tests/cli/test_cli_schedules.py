"""Schedules, from the command line."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator

import cli_shop
import pytest
from cli_driver import Cli, eventually

from holdfast import Schedule, every
from holdfast.ports import ScheduleChange, ScheduleRow

YEARLY = Schedule("0 3 1 1 *", tz="Europe/Berlin", name="yearly")


@pytest.fixture
def yearly(cli: Cli) -> Iterator[str]:
    cli_shop.app.use_store(cli.store)
    cli_shop.app.schedules.put(YEARLY, cli_shop.total, 1, b=2)
    return YEARLY.name or ""


@pytest.fixture
def busy(cli: Cli, worker: None) -> str:
    """A schedule whose last run waits for ever."""
    cli_shop.app.schedules.put(Schedule("@yearly", name="busy", overlap="queue"), cli_shop.asks, "ann")
    run_id = cli("schedules", "trigger", "busy").out.strip()
    cli.wait_for(run_id, "WAITING")
    return run_id


def next_year() -> str:
    return f"{dt.datetime.now(dt.UTC).year + 1}-01-01T03:00:00+01:00"


@pytest.mark.parametrize("code", [True, False])
def test_list_shows_the_next_tick_in_the_schedules_own_zone(cli: Cli, yearly: str, code: bool) -> None:
    run = cli if code else cli.without_code
    assert run("schedules", "list").lines == [["yearly", "total", "0 3 1 1 *", "Europe/Berlin", next_year(), ""]]
    (facts,) = run("schedules", "list", "--json").json
    assert (facts["name"], facts["next_at"], facts["declared"], facts["paused"]) == (
        "yearly",
        next_year(),
        False,
        False,
    )
    assert facts["call"] == {"args": [1, 2]}


def test_an_empty_list_says_where_schedules_come_from(cli: Cli) -> None:
    cli("start", "add", "1")
    said = cli("schedules", "list")
    assert (said.out, "when a worker starts" in said.err) == ("", True)
    assert cli("schedules", "list", "--json").json == []


def test_show_tells_all(cli: Cli, yearly: str) -> None:
    said = cli("schedules", "show", yearly).out
    for words in (
        "yearly total(1, 2)",
        "0 3 1 1 * in Europe/Berlin",
        "missed: once, overlap: skip",
        "app.schedules.put",
    ):
        assert words in said
    facts = cli("schedules", "show", yearly, "--json").json
    assert len(facts["upcoming"]) == 5
    assert facts["upcoming"][0] == next_year()
    assert facts["runs"] == []


def test_pause_and_resume(cli: Cli, yearly: str) -> None:
    assert cli("schedules", "pause", yearly, "--reason", "holidays").out == "paused yearly\n"
    assert cli("schedules", "list").lines[0][4:] == ["", "paused: holidays"]
    assert "paused: holidays" in cli("schedules", "show", yearly).out
    assert cli("schedules", "resume", yearly).out == f"resumed yearly; it ticks next at {next_year()}\n"
    assert cli("schedules", "pause", yearly, "--json").json["paused"] is True


@pytest.mark.usefixtures("worker")
def test_trigger_starts_a_run(cli: Cli, yearly: str) -> None:
    run_id = cli("schedules", "trigger", yearly).out.strip()
    assert run_id.startswith("yearly@")
    cli.wait_for(run_id, "SUCCESS")
    assert [line[0] for line in cli("runs", "list", "--schedule", yearly).lines] == [run_id]
    assert run_id in cli("schedules", "show", yearly).out
    assert cli("runs", "list", "--schedule", "other").out == ""
    assert cli("schedules", "trigger", yearly, "--json").json["workflow"] == "total"


def test_a_trigger_that_would_overlap_is_a_conflict(cli: Cli, busy: str) -> None:
    said = cli("schedules", "trigger", "busy", code=4)
    assert busy in said.err
    assert f"holdfast -A cli_shop --store {cli.store} schedules show busy" in said.err
    assert cli("schedules", "list").lines[0][-1] == "running"


def test_backfill_takes_days_and_times_of_the_schedules_zone(cli: Cli, yearly: str) -> None:
    said = cli("schedules", "backfill", yearly, "--from", "2024-01-01", "--to", "2025-01-01")
    assert said.out == "yearly@2024-01-01T03:00:00+01:00\nyearly@2025-01-01T03:00:00+01:00\n"
    assert cli("schedules", "backfill", yearly, "--from", "2025-01-01T02:00", "--json").json == [
        f"yearly@{year}-01-01T03:00:00+01:00" for year in range(2026, dt.datetime.now(dt.UTC).year + 1)
    ]
    assert "without a run" in cli("schedules", "backfill", yearly, "--from", "2024-01-01").err
    assert "queued" in cli("schedules", "show", yearly).out


def test_backfill_up_to_today_ends_now(cli: Cli, worker: None) -> None:
    cli_shop.app.schedules.put(Schedule(every("1h"), name="hourly", overlap="allow"), cli_shop.add, 1)
    today = dt.datetime.now(dt.UTC).strftime("%Y-%m-%d")
    made = cli("schedules", "backfill", "hourly", "--from", "5h", "--to", today, "--json").json
    assert len(made) == 5
    eventually(lambda: all(cli.status(run_id) == "SUCCESS" for run_id in made))


@pytest.mark.parametrize(
    ("args", "code", "words"),
    [
        (["show", "nosuch"], 3, "no schedule named 'nosuch' in app 'shop'; known: yearly"),
        (["pause", "nosuch"], 3, "schedules list"),
        (["backfill", "yearly", "--from", "soon"], 2, "give a day or a time"),
        (["backfill", "yearly", "--from", "9999999w"], 2, "give a day or a time"),
        (["backfill", "yearly", "--from", "2999-01-01"], 2, "begins before it ends"),
        (["backfill", "yearly", "--from", "0001-01-01"], 2, "no calendar goes back so far"),
        (["delete", "yearly"], 2, "--yes"),
        (["frobnicate"], 2, "known: list, show, pause, resume, trigger, backfill, delete"),
    ],
)
def test_what_can_not_be_done_says_what_can(cli: Cli, yearly: str, args: list[str], code: int, words: str) -> None:
    assert words in cli("schedules", *args, code=code).err


def test_delete(cli: Cli, yearly: str) -> None:
    assert cli("schedules", "delete", yearly, "--yes").out == "deleted yearly\n"
    assert cli("schedules", "list").out == ""
    cli("schedules", "delete", yearly, "--yes", code=3)


def test_the_doctor_finds_a_schedule_that_nobody_serves(cli: Cli, worker: None) -> None:
    long_ago = cli_shop.app.store.now() - 60 * 1_000_000
    row = ScheduleRow(name="lost", workflow="gone", spec=b'{"cron":"0 2 * * *"}', next_at=long_ago)
    cli_shop.app.store.save_schedules([ScheduleChange(row=row)])
    said = cli("doctor", code=1)
    assert "schedule 'lost' is due for 1m00s, and no live worker knows 'gone'" in said.out
    assert "schedules pause lost" in said.out
