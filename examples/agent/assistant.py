"""An agent: a model that thinks and a loop that acts, both of which survive a crash.

Each turn of the model and each use of a tool is a step, so it is recorded once and not repeated. The loop between
them is a workflow. A tool that moves money waits for a person, for as long as it takes.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from model import Client, Message, ToolCall

from holdfast import App, define_hook, this_step, wf

app = App("agent")
ORDERS = {"17": "a lamp, delivered broken, 49.90", "18": "a chair, delivered, 120.00"}


@dataclass(frozen=True)
class Decision:
    ok: bool
    by: str


approval = define_hook("approval", Decision)

# -- tools: what the agent can do to the world


def note(effect: str, **details: Any) -> None:
    """One line per effect on the outside world, in a file that Holdfast knows nothing of."""
    with Path(os.environ.get("AGENT_EFFECTS", "effects.jsonl")).open("a") as file:
        file.write(json.dumps({"effect": effect, **details}) + "\n")


@app.step
async def look_up_order(order: str) -> str:
    """What was ordered, and what became of it."""
    note("looked up", order=order)
    return ORDERS.get(order, "no such order")


@app.step(max_retries=5, retry_delay="exponential")
async def refund(order: str, amount: float) -> str:
    """Give money back."""
    note("refunded", order=order, amount=amount, key=this_step.idempotency_key)
    return f"{amount:.2f} refunded for order {order}"


@app.step
async def write_mail(order: str, text: str) -> str:
    """Write to the customer."""
    note("mail written", order=order, text=text)
    return "sent"


TOOLS = {"look_up_order": look_up_order, "refund": refund, "write_mail": write_mail}
RISKY = {"refund"}


def described() -> list[dict[str, Any]]:
    """The tools as a model is told about them: name, purpose, parameters."""
    return [
        {"name": name, "description": inspect.getdoc(step), "parameters": list(inspect.signature(step).parameters)}
        for name, step in TOOLS.items()
    ]


# -- the agent


@app.step(timeout="2m", max_retries=5, retry_delay="exponential")
async def think(conversation: list[Message]) -> Message:
    """One turn of the model. Each token can be seen as it comes; the whole message is what is recorded."""
    text, calls = "", []
    async for piece in Client().stream(conversation, described()):
        if isinstance(piece, ToolCall):
            calls.append(piece)
        else:
            text += piece
            this_step.stream(piece)
    return Message("assistant", text, calls)


async def use(call: ToolCall) -> Message:
    """Do what the model asks for. What it may not do alone, a person has to allow."""
    if call.tool in RISKY:
        wf.stream(call)  # those who follow the run see what is asked for
        try:
            decision = await approval(key=call.id, timeout="3d")
        except TimeoutError:
            decision = Decision(ok=False, by="nobody, in three days")
        if not decision.ok:
            return Message("tool", f"refused by {decision.by}", answers=call.id)
    return Message("tool", await TOOLS[call.tool](**call.arguments), answers=call.id)


@app.workflow(timeout="30d")
async def assist(request: str, max_turns: int = 10) -> str:
    conversation = [Message("user", request)]
    for _ in range(max_turns):
        reply = await think(conversation)
        if not reply.calls:
            return reply.text
        conversation += [reply, *await asyncio.gather(*(use(call) for call in reply.calls))]
    return "I have thought about this for too long. A colleague will take over."
