"""What a step of a composition executes, and which values of the context its function takes.

A parameter named `ctx` or `context` takes the whole context, any other the value of its name. Values stay as they
are recorded: large ones are recorded once, as somebody's result, and referred to from then on.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping
from dataclasses import dataclass
from types import FunctionType, MethodType
from typing import Any

from msgspec import Raw

from holdfast.api.functions import AsyncStep, AsyncWorkflow, Step, Workflow, child_options
from holdfast.api.options import NO_OPTIONS, StartOptions, step_options
from holdfast.api.owner import Owner
from holdfast.api.signatures import Canvas
from holdfast.codec import Codec, refer_to
from holdfast.core.context import StepContext, current_step
from holdfast.core.definitions import WorkflowDefinition
from holdfast.core.execution import Execution
from holdfast.core.loop import Future
from holdfast.errors import ArgumentError, DefinitionError

WHOLE = ("ctx", "context")
SMALL = 100
"""A value of at most so many bytes is recorded where it is used: that is hardly longer than a reference, and says more."""

PER_CALL = ("max_retries", "retry_delay", "timeout", "stall_timeout", "force_local", "pool", "max_losses", "queue")


@dataclass(slots=True)
class Scope:
    """What one step of a composition sees: values by name, as they are recorded. `version` is the same for the same
    values; `whole` gives them all, as one dict."""

    values: Mapping[str, bytes]
    whole: Callable[[], bytes]
    version: Iterable[bytes]
    what: str


@dataclass(frozen=True, slots=True)
class Parameter:
    name: str
    positional: bool
    required: bool


class Handler:
    """A step or workflow with the parameters that it takes from a context."""

    def __init__(self, name: str, is_workflow: bool, signature: inspect.Signature, per_call: dict[str, object]) -> None:
        self.name = name
        self.is_workflow = is_workflow
        self._per_call = per_call
        self.parameters = [
            Parameter(p.name, p.kind is p.POSITIONAL_ONLY, p.default is p.empty)
            for p in signature.parameters.values()
            if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
        ]
        for parameter in self.parameters:
            if parameter.positional and not parameter.required:
                raise DefinitionError(
                    f"{name}: parameter {parameter.name!r} has a default, and can only be given by position; leave out the /"
                )

    @property
    def element(self) -> str:
        """The parameter that takes the element, of a handler that is executed for each: the first, "" if there is
        none."""
        return next((p.name for p in self.parameters if p.name not in WHOLE), "")

    def needs(self, given: Iterable[str] = ()) -> list[str]:
        """The names that have to be in the context."""
        return [p.name for p in self.parameters if p.required and p.name not in (*WHOLE, *given)]

    def takes(self, given: Iterable[str] = ()) -> list[str]:
        """The names that it looks for in the context."""
        return [p.name for p in self.parameters if p.name not in (*WHOLE, *given)]

    def check(self, known: Collection[str], *given: str) -> None:
        """Refuse to be executed with these values, if one that it needs is missing."""
        for name in self.needs(given):
            if name not in known:
                raise missing(self, name, known)

    def ask(
        self,
        execution: Execution,
        key: str,
        scope: Scope,
        given: Mapping[str, tuple[bytes, str]] | None = None,
        undoes: str = "",
    ) -> Future[Raw]:
        """Ask for it under `key`. `given` are values beside the context, each with words for what it is."""
        recorded, resolve = self._arguments(execution.codec, scope, given or {})
        if not self.is_workflow:
            return execution.steps.ask(
                self.name, recorded, key=key, options=self._per_call, undoes=undoes, resolve=resolve, raw=True
            )
        child = execution.children.ask(
            self.name, recorded, key=key, options=dict(self._per_call), waited=True, abandon=False, undoes=undoes,
            resolve=resolve, raw=True,
        )  # fmt: skip
        found: Future[Raw] = child.future
        return found

    def _arguments(
        self, codec: Codec, scope: Scope, given: Mapping[str, tuple[bytes, str]]
    ) -> tuple[Raw, Callable[[], bytes] | None]:
        """The arguments as they are recorded, and what gives them in full if that is something else."""
        recorded: dict[str, bytes] = {}
        in_full: dict[str, bytes] = {}
        wants_whole = ""
        for parameter in self.parameters:
            name = parameter.name
            if name in WHOLE:
                wants_whole = name
                recorded[name] = refer_to(scope.version, scope.what)
                continue
            value, what = given.get(name) or (scope.values.get(name), f"value of {name!r}")
            if value is None:
                if parameter.required:
                    raise missing(self, name, scope.values)
                continue
            recorded[name] = value if len(value) <= SMALL else refer_to([value], what)
            in_full[name] = value
        if not wants_whole and recorded == in_full:
            return Raw(self._call(codec, recorded)), None

        def resolve() -> bytes:
            values = in_full if not wants_whole else {**in_full, wants_whole: scope.whole()}
            return self._call(codec, values)

        return Raw(self._call(codec, recorded)), resolve

    def _call(self, codec: Codec, values: Mapping[str, bytes]) -> bytes:
        positional = [values[p.name] for p in self.parameters if p.positional and p.name in values]
        named = {p.name: values[p.name] for p in self.parameters if not p.positional and p.name in values}
        return codec.join_call(positional, named)

    def plain_arguments(self, context: Mapping[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        """For a plain call, outside a run."""
        values: dict[str, Any] = {}
        for parameter in self.parameters:
            if parameter.name in WHOLE:
                values[parameter.name] = dict(context)
            elif parameter.name in context:
                values[parameter.name] = context[parameter.name]
            elif parameter.required:
                raise missing(self, parameter.name, context)
        positional = [values[p.name] for p in self.parameters if p.positional and p.name in values]
        return positional, {p.name: values[p.name] for p in self.parameters if not p.positional and p.name in values}


def missing(handler: Handler, name: str, known: Iterable[str]) -> ArgumentError:
    return ArgumentError(
        f"{handler.name} takes {name!r}, which is not in its context ({', '.join(known) or 'nothing is'}): put it into "
        "the initial context, name the step that gives it and come after that step, or give the parameter a default; "
        "`ctx` takes the whole context"
    )


def define(
    home: Owner, function: Any, name: str, options: dict[str, Any], place: str, what: str
) -> tuple[Handler, Callable[..., Any]]:
    """A handler from what a user gives: a step, a workflow, or a function that becomes the step `name`."""
    if isinstance(function, Step | Workflow):
        if function._app.name != home.name:
            raise DefinitionError(
                f"{what}: {function!r} belongs to another app than this, {home.name!r}; define both in one app"
            )
        per_call = _per_call(function, options, what)
    elif isinstance(function, Canvas):
        raise DefinitionError(
            f"{what}: {function!r} is a canvas; give the step itself, or a workflow that awaits the canvas"
        )
    else:
        function = home.define_step(awaiting(function), name, step_options(options), place)
        per_call = {}
    handler = Handler(function.name, isinstance(function, Workflow), function._definition.signature, per_call)
    return handler, function


def _per_call(function: Step[..., Any] | Workflow[..., Any], options: dict[str, Any], what: str) -> dict[str, object]:
    """Options of one call of a step or workflow that has its own, checked."""
    if isinstance(function, Workflow):
        known = ("timeout", "max_retries", "priority")
        _refuse_others(options, known, what, function)
        return child_options(StartOptions(**options), function._definition.options.durable, 0)
    step_options(options)
    _refuse_others(options, PER_CALL, what, function)
    return dict(options)


def _refuse_others(options: dict[str, Any], known: tuple[str, ...], what: str, function: Any) -> None:
    for name in options:
        if name not in known:
            raise DefinitionError(
                f"{what}: {name}= is given where {function!r} is defined; of it, only {', '.join(known)} can be changed "
                "in a composition"
            )


def find(home: Owner, name: str, is_workflow: bool) -> Handler:
    """The handler of what is registered under `name`; UnknownNameError if nothing is."""
    definition = home.definitions.find_workflow(name) if is_workflow else home.definitions.find_step(name)
    per_call = (
        child_options(NO_OPTIONS, definition.options.durable, 0) if isinstance(definition, WorkflowDefinition) else {}
    )
    return Handler(name, is_workflow, definition.signature, per_call)


def awaiting(function: Any) -> Any:
    """The function, or if it is a plain one that may give a coroutine (`lambda ctx: charge(ctx["order"])`), one that awaits
    it: on a loop for this attempt, as a plain step has a thread of its own. Called directly in async code it leaves that
    to whoever calls."""
    if not isinstance(function, FunctionType | MethodType | functools.partial) or inspect.iscoroutinefunction(function):
        return function

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        found = function(*args, **kwargs)
        if not isinstance(found, Coroutine) or asyncio._get_running_loop() is not None:
            return found
        return asyncio.run(_await(found, current_step.get()))

    return call


async def _await(found: Coroutine[Any, Any, Any], step: StepContext | None) -> Any:
    """What it gives. A step that times out or is cancelled meanwhile cancels it."""
    task, loop = asyncio.current_task(), asyncio.get_running_loop()
    if step is None or step.kill is not None or task is None:
        return await found

    def interrupt() -> None:
        with contextlib.suppress(RuntimeError):  # it has just ended
            loop.call_soon_threadsafe(task.cancel)

    step.kill = interrupt
    try:
        if step.cancelled:  # before that
            task.cancel()
        return await found
    finally:
        step.kill = None


def is_async(function: Any) -> bool:
    return isinstance(function, AsyncStep | AsyncWorkflow)
