"""Agents of Pydantic AI whose model requests and tool calls are steps.

The agent's own loop is workflow code, and is replayed: what a model has answered and what a tool has done is recorded,
and isn't asked or done again after a crash.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from pydantic import TypeAdapter
from pydantic_ai import Agent, RunContext
from pydantic_ai.direct import model_request, model_request_stream
from pydantic_ai.exceptions import ModelRetry
from pydantic_ai.messages import (
    ModelMessagesTypeAdapter,
    PartDeltaEvent,
    PartStartEvent,
    TextPart,
    TextPartDelta,
    ToolReturn,
)
from pydantic_ai.models import ModelRequestParameters, infer_model
from pydantic_ai.models.wrapper import WrapperModel
from pydantic_ai.toolsets import WrapperToolset
from pydantic_ai.usage import RunUsage
from pydantic_core import to_jsonable_python

from holdfast.api.context import this_step
from holdfast.app import App
from holdfast.errors import DefinitionError
from holdfast.printing import show

_PARAMETERS = TypeAdapter(ModelRequestParameters)
_VOLATILE = ("timestamp", "run_id", "conversation_id")
"""What the agent's loop makes anew on each replay, and no model is told."""


class DurableAgent:
    """A Pydantic AI agent in workflows: `await DurableAgent(app, agent).run("...")`.

    Define it at the top of a module, once for each agent: it defines two steps, `<name>.model` and `<name>.tool`, with
    these options. With `stream`, text is given to those who watch `run.stream()` as the model writes it. Tools named
    `in_workflow` are executed as workflow code, so that they may wait for a hook, sleep, or call steps.
    """

    def __init__(
        self,
        app: App,
        agent: Agent[Any, Any],
        *,
        name: str | None = None,
        stream: bool = True,
        in_workflow: Collection[str] = (),
        model_options: Mapping[str, Any] | None = None,
        tool_options: Mapping[str, Any] | None = None,
    ) -> None:
        self.name = name or agent.name or ""
        if not self.name:
            raise DefinitionError(
                f"DurableAgent({show(agent)}): it needs a name, which its steps are recorded under; give Agent(..., name=...)"
            )
        if agent.model is None:
            raise DefinitionError(f"agent {self.name!r} has no model; give it one where it is defined")
        self.agent = agent
        self._model = infer_model(agent.model)
        self._stream = stream
        self._in_workflow = frozenset(in_workflow)
        self._toolsets = list(agent.toolsets)
        options = {"timeout": "10m", "max_retries": 2, "retry_delay": "exponential"}
        self._request = app.step(**{**options, **(model_options or {}), "name": f"{self.name}.model"})(self._ask)
        self._call = app.step(**{**options, **(tool_options or {}), "name": f"{self.name}.tool"})(self._use)

    async def run(self, prompt: Any = None, **options: Any) -> Any:
        """`agent.run`, with the same options but the model, durably. What it gives has `output` and all messages."""
        toolsets = [_DurableToolset(toolset, self, number) for number, toolset in enumerate(self._toolsets)]
        with self.agent.override(model=_DurableModel(self._model, self), toolsets=toolsets, tools=[]):
            return await self.agent.run(prompt, **options)

    async def _ask(self, messages: Any, settings: Any, parameters: Any) -> Any:
        """A step: one request of the model."""
        asked = {
            "messages": ModelMessagesTypeAdapter.validate_python(messages),
            "model_settings": settings,
            "model_request_parameters": _PARAMETERS.validate_python(parameters),
        }
        if not self._stream:
            return _plain([await model_request(self._model, **asked)])[0]
        async with model_request_stream(self._model, **asked) as answer:
            async for event in answer:
                if isinstance(event, PartStartEvent) and isinstance(event.part, TextPart):
                    self._tell(event.part.content)
                elif isinstance(event, PartDeltaEvent) and isinstance(event.delta, TextPartDelta):
                    self._tell(event.delta.content_delta)
            return _plain([answer.get()])[0]

    def _tell(self, text: str) -> None:
        if text:
            this_step.stream({"agent": self.name, "text": text})

    async def _use(self, toolset: int, tool: str, args: Any, deps: Any, call: Any) -> Any:
        """A step: one call of a tool."""
        this_step.stream({"agent": self.name, "tool": tool, "args": args})
        context = RunContext(
            deps=deps, model=self._model, usage=RunUsage(), agent=self.agent, tool_name=tool, **call
        )  # fmt: skip
        found = self._toolsets[toolset]
        tools = await found.get_tools(context)
        try:
            result = await found.call_tool(tool, args, context, tools[tool])
        except ModelRetry as retry:  # not a failure: the model is told, and tries something else
            return {"retry": retry.message}
        return {"result": to_jsonable_python(result.return_value if isinstance(result, ToolReturn) else result)}


class _DurableModel(WrapperModel):
    """Asks the model in a step."""

    def __init__(self, wrapped: Any, owner: DurableAgent) -> None:
        super().__init__(wrapped)
        self._owner = owner

    async def __aenter__(self) -> Any:
        return self  # the step opens what it needs

    async def __aexit__(self, *args: Any) -> None:
        return None

    async def request(self, messages: Any, model_settings: Any, model_request_parameters: Any) -> Any:
        answer = await self._owner._request(
            [_steady(message) for message in _plain(messages)],
            None if model_settings is None else to_jsonable_python(dict(model_settings)),
            _PARAMETERS.dump_python(model_request_parameters, mode="json"),
        )
        return ModelMessagesTypeAdapter.validate_python([answer])[0]


class _DurableToolset(WrapperToolset[Any]):
    """Calls tools in a step each."""

    def __init__(self, wrapped: Any, owner: DurableAgent, number: int) -> None:
        super().__init__(wrapped)
        self._owner = owner
        self._number = number

    async def for_run(self, ctx: Any) -> Any:
        return self

    async def for_run_step(self, ctx: Any) -> Any:
        return self

    async def __aenter__(self) -> Any:
        return self

    async def __aexit__(self, *args: Any) -> None:
        return None

    async def call_tool(self, name: str, tool_args: dict[str, Any], ctx: Any, tool: Any) -> Any:
        if name in self._owner._in_workflow:
            return await self.wrapped.call_tool(name, tool_args, ctx, tool)
        call = {"tool_call_id": ctx.tool_call_id, "retry": ctx.retry, "max_retries": ctx.max_retries}
        answer = await self._owner._call(self._number, name, to_jsonable_python(tool_args), ctx.deps, call)
        if "retry" in answer:
            raise ModelRetry(answer["retry"])
        return answer["result"]


def _plain(messages: Any) -> list[Any]:
    found: list[Any] = ModelMessagesTypeAdapter.dump_python(list(messages), mode="json")
    return found


def _steady(message: dict[str, Any]) -> dict[str, Any]:
    """A message without what is different on each replay."""
    kept = {key: value for key, value in message.items() if key not in _VOLATILE}
    kept["parts"] = [{key: value for key, value in part.items() if key not in _VOLATILE} for part in message["parts"]]
    return kept
