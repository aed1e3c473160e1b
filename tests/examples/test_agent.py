from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from holdfast import Status
from holdfast.testing import TestApp

FOLDER = Path(__file__).parents[2] / "examples" / "agent"
COMMAND = [sys.executable, str(FOLDER)]
QUICK = {**os.environ, "AGENT_PACE": "0.01"}


@pytest.fixture
def assistant(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ModuleType:
    monkeypatch.syspath_prepend(str(FOLDER))
    monkeypatch.setenv("AGENT_PACE", "0")
    monkeypatch.setenv("AGENT_EFFECTS", str(tmp_path / "effects.jsonl"))
    import assistant

    return assistant


def test_a_worker_that_dies_in_the_middle_of_a_sentence_repeats_no_tool(tmp_path: Path) -> None:
    command = [*COMMAND, "--yes", "--crash", "--folder", str(tmp_path)]
    ran = subprocess.run(command, env=QUICK, capture_output=True, text=True, check=True)
    assert "kill -9" in ran.stdout
    assert "said again, as attempt 2" in ran.stdout
    assert "effects: looked up × 1, refunded × 1, mail written × 1" in ran.stdout


def test_the_approval_can_come_from_another_terminal(tmp_path: Path) -> None:
    command = [*COMMAND, "--elsewhere", "--folder", str(tmp_path)]
    with subprocess.Popen(command, env=QUICK, stdout=subprocess.PIPE, text=True) as agent:
        assert agent.stdout is not None
        told = next(line for line in agent.stdout if line.startswith("holdfast"))
        program, *arguments = shlex.split(told)
        subprocess.run([sys.executable, "-m", program, *arguments], env=QUICK, check=True)
        assert "refunded × 1" in agent.stdout.read()
    assert agent.returncode == 0


def test_what_is_refused_is_not_done(assistant: ModuleType) -> None:
    with TestApp(assistant.app) as world:
        run = assistant.assist.start("Order 17 is broken")
        world.settle()
        assert (run.status, world.calls(assistant.refund)) == (Status.WAITING, [])
        run.send("approval", {"ok": False, "by": "Ada"}, key="call-2")
        assert "colleague" in run.result()
        assert world.calls(assistant.refund) == []


def test_nobody_answers_for_three_days(assistant: ModuleType) -> None:
    with TestApp(assistant.app) as world:
        run = assistant.assist.start("Order 17 is broken")
        assert "colleague" in run.result()
        assert world.calls(assistant.refund) == []


def test_a_model_that_is_away_is_asked_again(assistant: ModuleType) -> None:
    with TestApp(assistant.app) as world:
        world.fail(assistant.think, ConnectionError("503"))
        run = assistant.assist.start("Order 99 is broken")
        assert run.result() == "I can't find an order 99. Is the number right?"
        assert len(world.calls(assistant.think)) == 3


def test_the_agent_gives_up_after_so_many_turns(assistant: ModuleType) -> None:
    with TestApp(assistant.app):
        run = assistant.assist.start("Order 17 is broken", max_turns=1)
        assert "too long" in run.result()
