"""A support agent of Pydantic AI in a durable workflow: it looks up an order, and refunds it once a person has agreed.

    pip install './holdfast[agents]'
    holdfast -A support worker
    holdfast -A support run chat '"Where is order 17?"'

Without MODEL=openai:gpt-... (and that model's package and key) Pydantic AI's own test model answers, which calls every tool.
"""

from __future__ import annotations

import os

from pydantic_ai import Agent
from pydantic_ai.models.test import TestModel

from holdfast import App, hook
from holdfast.contrib.pydantic_ai import DurableAgent

app = App("support")
agent = Agent(os.environ.get("MODEL") or TestModel(), name="support", instructions="You help customers of a shop.")


@agent.tool_plain
def look_up(order: str) -> dict[str, str]:
    """The state of an order."""
    return {"order": order, "state": "on its way"}


@agent.tool_plain
async def refund(order: str, amount: float) -> str:
    """Pay an order back. A person has to agree."""
    agreed = await hook("refund", key=order, timeout="2d")  # workflow code, as `in_workflow` says: it waits for nothing
    return f"{amount} paid back" if agreed else "a person has refused it"


support = DurableAgent(app, agent, in_workflow=["refund"])


@app.workflow
async def chat(question: str) -> str:
    answer = await support.run(question)
    return str(answer.output)
