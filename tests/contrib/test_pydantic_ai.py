"""Agents of Pydantic AI: model and tool calls are steps, streams reach the client, a crash repeats nothing."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("pydantic_ai", reason="pip install 'holdfast[agents]'")

from pydantic_ai import Agent, ModelRetry
from pydantic_ai.models.test import TestModel

from holdfast import App, DefinitionError, hook
from holdfast.contrib.pydantic_ai import DurableAgent
from holdfast.testing import TestApp


def test_model_and_tool_calls_are_steps_and_text_is_streamed(tmp_path: Path) -> None:
    app = App("ai", str(tmp_path / "ai.db"))
    agent = Agent(TestModel(), name="support", deps_type=str)
    asked: list[str] = []

    @agent.tool_plain
    def weather(city: str) -> str:
        asked.append(city)
        if len(asked) == 1:
            raise ModelRetry("give another city")
        return f"sunny in {city}"

    @agent.tool_plain
    async def approve(amount: int) -> object:
        return await hook("approval")

    durable = DurableAgent(app, agent, in_workflow=["approve"])

    @app.workflow
    async def chat(question: str) -> str:
        return str((await durable.run(question, deps="x")).output)

    with TestApp(app):
        run = chat.start("hello")
        run.send("approval", "yes")
        assert json.loads(run.result()) == {"weather": "sunny in a", "approve": "yes"}
        names = [step.name for step in run.steps]
        assert names.count("support.tool") == 2, "once refused, once done"
        assert names.count("support.model") == 3
        told = [item.item for item in run.stream()]
        assert "".join(item.get("text", "") for item in told) == run.result()
        assert {item["tool"] for item in told if "tool" in item} == {"weather"}
    app.close()


def test_an_agent_without_a_name_or_a_model_is_refused() -> None:
    app = App("ai2", ":memory:")
    with pytest.raises(DefinitionError, match="it needs a name"):
        DurableAgent(app, Agent(TestModel()))
    with pytest.raises(DefinitionError, match="has no model"):
        DurableAgent(app, Agent(name="x"))


WORKER = """
import os
from pydantic_ai import Agent
from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import FunctionModel
from holdfast import App
from holdfast.contrib.pydantic_ai import DurableAgent

folder = os.path.dirname(os.path.abspath(__file__))
app = App("ai", folder + "/ai.db")

def note(what):
    with open(folder + "/effects", "a") as file:
        file.write(what + "\\n")

def answer(messages, info):
    note("model")
    done = sum(part.part_kind == "tool-return" for message in messages for part in message.parts)
    names = ["first", "second"]
    if done < 2:
        return ModelResponse(parts=[ToolCallPart(names[done], {}, tool_call_id=str(done))])
    return ModelResponse(parts=[TextPart("done")])

agent = Agent(FunctionModel(answer), name="a")

@agent.tool_plain
def first() -> str:
    note("first")
    return "1"

@agent.tool_plain
def second() -> str:
    if not os.path.exists(folder + "/crashed"):
        open(folder + "/crashed", "w").close()
        os.kill(os.getpid(), 9)
    note("second")
    return "2"

durable = DurableAgent(app, agent, stream=False)

@app.workflow
async def chat(question: str) -> str:
    return (await durable.run(question)).output

if __name__ == "__main__":
    with app.worker():
        print(chat.options(id="c").start("go").result(timeout=60))
"""


def test_a_crash_between_two_tool_calls_repeats_neither_tool_nor_model(tmp_path: Path) -> None:
    (tmp_path / "agents.py").write_text(WORKER)
    command = [sys.executable, str(tmp_path / "agents.py")]
    killed = subprocess.run(command, capture_output=True, text=True, timeout=100, cwd=tmp_path)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    again = subprocess.run(command, capture_output=True, text=True, timeout=100, cwd=tmp_path)
    assert again.stdout == "done\n", again.stderr
    assert (tmp_path / "effects").read_text().split() == ["model", "first", "model", "second", "model"]


def test_the_example_waits_for_a_person(tmp_path: Path) -> None:
    example = Path(__file__).parents[2] / "examples" / "pydantic_agent" / "support.py"
    code = (
        "import support, time\n"
        "with support.app.worker():\n"
        "    run = support.chat.options(id='q').start('Where is order 17?')\n"
        "    deadline = time.monotonic() + 40\n"
        "    while 'refund' not in run.reason and time.monotonic() < deadline:\n"
        "        time.sleep(0.02)\n"
        "    support.app.send_hook(key='a', payload=True)\n"
        "    print(run.result(timeout=40))\n"
    )
    environment = {
        **os.environ,
        "PYTHONPATH": f"{example.parent}{os.pathsep}{os.environ.get('PYTHONPATH', '')}",
        "HOLDFAST_STORE": str(tmp_path / "s.db"),
    }
    environment.pop("MODEL", None)
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100, env=environment)
    assert "paid back" in ran.stdout, ran.stderr
