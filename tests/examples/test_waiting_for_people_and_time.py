"""The examples that take weeks: played as their READMEs say, and in tests of their own."""

from __future__ import annotations

import datetime as dt
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from holdfast.testing import TestApp

EXAMPLES = Path(__file__).parents[2] / "examples"


def play(name: str) -> list[str]:
    command = [sys.executable, "-W", "error", str(EXAMPLES / name)]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout.splitlines()


@pytest.fixture
def onboarding(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(EXAMPLES / "drip_onboarding"))
    import onboarding

    return onboarding


@pytest.fixture
def approval(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(EXAMPLES / "document_approval"))
    import approval

    return approval


def test_a_month_of_onboarding() -> None:
    said = play("drip_onboarding")
    assert [line.split("  ")[1] for line in said if "eve@" in line] == ["eve@example.com"] * 4
    assert [line[-9:] for line in said if "ann@" in line] == ["  welcome", "rst steps", "thank you"]
    assert not any("bob@" in line for line in said)
    assert said[-3:] == ["ann: bought", "bob: left", "eve: was sent everything"]
    mondays = [line for line in said if "team@" in line]
    mornings = ["Mon 09 Mar 07:00", "Mon 16 Mar 07:00", "Mon 23 Mar 07:00", "Mon 30 Mar 06:00"]  # in UTC
    assert [line[:16] for line in mondays] == mornings
    assert mondays[0].endswith("week 11: 2 at 'first steps'")
    assert mondays[-1].endswith("week 14: nobody is new")


def test_a_mail_service_that_is_down_delays_one_mail_and_sends_none_twice(onboarding: ModuleType) -> None:
    with TestApp(onboarding.app, schedules=False) as world:
        world.fail(onboarding.send_mail, ConnectionError("down"), call=2)
        run = onboarding.onboard.start("eve@example.com")
        assert run.result() == "was sent everything"
        sent = [mail for _, mail in world.calls(onboarding.send_mail)]
        assert sent == ["welcome", "first steps", "first steps", "what others do with it", "an offer"]
        took = run.finished_at - run.created_at
        assert dt.timedelta(days=21) < took < dt.timedelta(days=21, seconds=5)


def test_a_week_of_approvals() -> None:
    said = play("document_approval")
    assert [line for line in said if "report" not in line and line] == [
        "quick",
        "  Mon 12:00  approved by rita",
        "late",
        "  Wed 15:00  rejected by rita: the numbers of March are missing",
        "escalated",
        "  Thu 10:00  approved by max",
        "forgotten",
        "  Mon 09:00  expired",
    ]
    forgotten = said[said.index("forgotten") + 1 : -1]
    letters = ["Mon 09:00  to rita", "Wed 09:00  to rita", "Thu 09:00  to max:", "Sat 09:00  to max:"]
    assert [line[2:20] for line in forgotten] == letters


def test_an_answer_that_comes_before_it_is_asked_for_is_not_lost(approval: ModuleType) -> None:
    with TestApp(approval.app) as world:
        run = approval.approve.start(approval.Document("d", "plan", "rita", "max"))
        run.send("decision", approval.Decision(True, "rita"), key="d")
        assert run.result() == "approved by rita"
        assert run.data["outcome"] == "approved by rita"
        assert len(world.calls(approval.file_away)) == 1
