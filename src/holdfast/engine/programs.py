"""Workflows and steps, by name, as something the core can replay."""

from __future__ import annotations

import contextlib
from collections.abc import Coroutine
from typing import Any

from msgspec import Raw

from holdfast.core.context import WorkflowAttempt
from holdfast.core.definitions import StepDefinition, WorkflowDefinition, WorkflowOptions
from holdfast.core.loop import running
from holdfast.core.registry import Definitions
from holdfast.core.spans import Span
from holdfast.engine.records import RunOptions
from holdfast.errors import ArgumentError, DecodeError, EncodeError, UnknownNameError

SINGLE_STEP = WorkflowOptions()


class WorkflowProgram:
    """A workflow's function."""

    def __init__(self, app: Definitions, definition: WorkflowDefinition, options: RunOptions) -> None:
        self._app = app
        self._definition = definition
        self._options = options
        self.name = definition.name
        self.settings = definition.options
        self.retry_within = definition.options.retry_within
        self.timeout = options.timeout if options.timeout is not None else definition.options.timeout

    async def call(self, input: Raw) -> Any:
        if not self._app.workflow_arounds:
            return await self._call(input)
        loop = running()
        assert loop is not None
        execution = loop.execution
        attempt = WorkflowAttempt(self.name, execution.info.run_id, execution.journal.attempt, self._options.headers)
        with contextlib.ExitStack() as stack:
            for around in self._app.workflow_arounds:
                stack.enter_context(Span(around.function(attempt), f"around_workflow {around.name!r}"))
            return await self._call(input)

    async def _call(self, input: Raw) -> Any:
        definition = self._definition
        if definition.raw:
            return await definition.function(input)
        args, kwargs = _arguments(self._app, "workflow", definition, input)
        made = definition.function(*args, **kwargs)
        result = await made if definition.is_async else made
        if self._app.is_strict:
            self._check_result(result)
        return result

    def _check_result(self, result: Any) -> None:
        what = f"the result of workflow {self.name!r}"
        unfit = self._app.codec.misfit(result, self._definition.result_type, what)
        if unfit:
            raise EncodeError(f"{unfit}; return what the annotation says, or correct it (a worker takes it as it is)")

    @property
    def hook_models(self) -> Any:
        return self._app.hook_models

    def check_call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        signature = self._definition.signature
        try:
            signature.bind(*args, **kwargs)
        except TypeError as error:
            raise ArgumentError(f"continue_as_new: {self.name}{signature}: {error}") from None

    def result_type(self, kind: str, name: str) -> Any:
        return _result_type(self._app, kind, name)

    def retry_delay(self, error: BaseException, attempt: int) -> int | None:
        return self.settings.retry_delay(error, attempt, self._options.max_retries)


class StepProgram:
    """A run that is a single step."""

    def __init__(self, app: Definitions, name: str, options: RunOptions) -> None:
        self._app = app
        self.name = name
        self.settings = SINGLE_STEP
        self.retry_within: int | None = None
        self.timeout: int | None = None
        self._overrides: dict[str, object] = {}
        if options.timeout is not None:
            self._overrides["timeout"] = options.timeout / 1_000_000
        if options.max_retries is not None:
            self._overrides["max_retries"] = options.max_retries
        if options.queue:
            self._overrides["queue"] = options.queue

    def call(self, input: Raw) -> Coroutine[Any, Any, Any]:
        return self._call(input)

    async def _call(self, input: Raw) -> Any:
        loop = running()
        assert loop is not None
        _arguments(self._app, "step", self._app.find_step(self.name), input)
        return await loop.execution.steps.ask(self.name, input, options=self._overrides)

    @property
    def hook_models(self) -> Any:
        return self._app.hook_models

    def check_call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        return None

    def result_type(self, kind: str, name: str) -> Any:
        return _result_type(self._app, kind, name)

    def retry_delay(self, error: BaseException, attempt: int) -> int | None:
        return None


def _arguments(
    app: Definitions, what: str, definition: StepDefinition | WorkflowDefinition, input: Raw
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of a run. Whoever started it may not have had the code, or another one."""
    try:
        args, kwargs = app.codec.decode_call(input, definition.hints)
        if kwargs or len(args) != definition.arity:
            definition.signature.bind(*args, **kwargs)
    except (DecodeError, TypeError) as error:
        why = str(error).removeprefix("arguments: ")
        form = f"{definition.name}{definition.signature}".replace("'", "")  # of annotations that are texts
        raise ArgumentError(f"the arguments of {what} {definition.name!r} don't fit {form}: {why}") from None
    return args, kwargs


Program = WorkflowProgram | StepProgram


def program_for(app: Definitions, name: str, options: RunOptions) -> Program:
    if name in app.mocked:
        return StepProgram(app, name, options)
    try:
        return WorkflowProgram(app, app.find_workflow(name), options)
    except UnknownNameError:
        app.find_step(name)
        return StepProgram(app, name, options)


def is_durable(app: Definitions, name: str) -> bool:
    try:
        return app.find_workflow(name).options.durable
    except UnknownNameError:
        return True


def _result_type(app: Definitions, kind: str, name: str) -> Any:
    try:
        return app.find_step(name).result_type if kind == "s" else app.find_workflow(name).result_type
    except UnknownNameError:
        return Any
