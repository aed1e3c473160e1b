"""A stand-in for a language model: it needs no network, and gives the same answers each time.

`Client.stream` has the shape of a real client: messages and tools go in, pieces of text and tool calls come out, one
by one. Behind it are a few rules that read the conversation instead of a neural network.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class ToolCall:
    id: str
    tool: str
    arguments: dict[str, Any]


@dataclass(frozen=True)
class Message:
    role: str  # "user", "assistant", or "tool": what the tool call `answers` returned
    text: str
    calls: list[ToolCall] = field(default_factory=list)
    answers: str = ""


class Client:
    """Give it the conversation so far and the tools it may ask for; it answers token by token."""

    def __init__(self, seconds_per_token: float | None = None) -> None:
        self._pace = float(os.environ.get("AGENT_PACE", "0.03")) if seconds_per_token is None else seconds_per_token

    async def stream(self, messages: list[Message], tools: list[dict[str, Any]]) -> AsyncIterator[str | ToolCall]:
        reply = _reply(messages)
        for token in re.findall(r"\S+\s*", reply.text):
            await asyncio.sleep(self._pace)
            yield token
        offered = {tool["name"] for tool in tools}
        for call in reply.calls:
            if call.tool not in offered:
                raise LookupError(f"the model wants to use {call.tool!r}; offered are {sorted(offered)}")
            yield call


def _reply(messages: list[Message]) -> Message:
    turn = sum(message.role == "assistant" for message in messages) + 1
    answered = {message.answers: message.text for message in messages if message.role == "tool"}
    results = {call.tool: answered[call.id] for call in _calls(messages) if call.id in answered}
    found = re.search(r"\border\s+#?(\w+)", messages[0].text, re.IGNORECASE)

    def ask(say: str, tool: str, **arguments: Any) -> Message:
        return Message("assistant", say, [ToolCall(f"call-{turn}", tool, arguments)])

    if found is None:
        return Message("assistant", "Which order is it about? Please tell me its number.")
    order = found[1]
    if "look_up_order" not in results:
        return ask(f"Let me look at order {order} first. ", "look_up_order", order=order)
    if "no such order" in results["look_up_order"]:
        return Message("assistant", f"I can't find an order {order}. Is the number right?")
    if "refund" not in results:
        amount = float(re.findall(r"[\d.]+", results["look_up_order"])[-1])
        return ask(f"It arrived broken. I would give the {amount:.2f} back. ", "refund", order=order, amount=amount)
    if "refused" in results["refund"]:
        return Message("assistant", "A colleague has to look into this first; you will hear from us.")
    if "write_mail" not in results:
        return ask(
            "The refund went through. I will tell the customer. ", "write_mail", order=order, text=results["refund"]
        )
    return Message("assistant", f"Done: {results['refund']}, and the customer knows.")


def _calls(messages: list[Message]) -> Iterator[ToolCall]:
    for message in messages:
        yield from message.calls
