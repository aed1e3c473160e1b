"""What a test executes in place of steps and workflows, what it lets fail, and what they were called with."""

from __future__ import annotations

import asyncio
import dataclasses
import threading
from collections.abc import Callable, Collection
from typing import Any

from holdfast.api.functions import Step, Workflow
from holdfast.api.remote import Remote
from holdfast.core.definitions import StepDefinition, StepOptions
from holdfast.core.resources import Resource
from holdfast.errors import ArgumentError
from holdfast.printing import show
from holdfast.registry import Registry

Mockable = Step[..., Any] | Workflow[..., Any] | Remote | Callable[..., Any] | str
ONCE = StepOptions(max_retries=0, timeout=None)
SHOWN = 10  # names in one error


class Call(tuple[Any, ...]):
    """The arguments of one execution: a tuple of all of them. `kwargs` has those that were given by name."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def __new__(cls, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call:
        call = super().__new__(cls, (*args, *kwargs.values()))
        call.args, call.kwargs = args, kwargs
        return call

    def __repr__(self) -> str:
        if not self.kwargs:
            return super().__repr__()
        return f"({', '.join([*map(repr, self.args), *(f'{key}={value!r}' for key, value in self.kwargs.items())])})"


class Mocks:
    """Those of one test. A workflow that is mocked is a run of a single step, so that its replacement is executed once,
    and may do what steps may."""

    def __init__(self, definitions: Registry) -> None:
        self._definitions = definitions
        self.stand_ins: dict[str, StepDefinition] = {}  # for workflows, and for what is elsewhere
        self._replacements: dict[str, Callable[..., Any]] = {}
        self._failures: dict[str, list[tuple[int, BaseException]]] = {}
        self._calls: dict[str, list[Call]] = {}
        self._lock = threading.Lock()

    def replace(self, mocked: Mockable, replacement: Any, has_runs: Callable[[str], bool]) -> None:
        """`has_runs` says whether this test has runs of a name already."""
        known, name = self._definitions, self._name_of(mocked)
        function = replacement if callable(replacement) else lambda *args, **kwargs: replacement
        if isinstance(mocked, str):
            known.find_startable(name)
        if name not in known.steps:
            if name not in self.stand_ins and has_runs(name):
                raise ArgumentError(
                    f"mock({name!r}): this test has runs of it already, and their histories are those of its code; mock it "
                    "before it is started"
                )
            self.stand_ins[name] = self._stand_in(name, function)
            known.revision += 1  # what the engine takes up has changed
        self._replacements[name] = function

    def _stand_in(self, name: str, function: Callable[..., Any]) -> StepDefinition:
        """The step that is executed in place of a workflow, or of something whose code is not here."""
        known = self._definitions
        workflow = known.workflows.get(name)
        if workflow is None:
            hints, result_type, place, called = known.codec.hints_for(function), Any, "a mock", function
        else:
            hints, result_type, place, called = workflow.hints, workflow.result_type, workflow.place, workflow.function
        return StepDefinition(name, called, asyncio.iscoroutinefunction(called), ONCE, hints, result_type, place)

    def fail(self, mocked: Mockable, error: BaseException, call: int) -> None:
        name = self._executed(mocked)
        if not isinstance(error, BaseException):
            raise ArgumentError(f"fail({name!r}, {show(error)}): give an exception, such as OSError('...')")
        if type(call) is not int or call < 1:
            raise ArgumentError(f"fail({name!r}, call={show(call)}): calls are counted from 1, the next one")
        with self._lock:
            self._failures.setdefault(name, []).append((len(self._calls.get(name, ())) + call, error))

    def calls(self, mocked: Mockable) -> list[Call]:
        name = self._executed(mocked)
        with self._lock:
            return list(self._calls.get(name, ()))

    def _name_of(self, mocked: Mockable) -> str:
        """A function that a DAG or a saga has made a step of stays as it is, so it is looked for among the steps."""
        known = self._definitions
        known.load()
        if isinstance(mocked, str):
            return mocked
        if isinstance(mocked, Step | Workflow | Remote):
            return mocked.name
        names = [
            step.name
            for step in known.steps.values()
            if step.function == mocked or getattr(step.function, "__wrapped__", None) == mocked
        ]
        if len(names) == 1:
            return names[0]
        if names:
            raise ArgumentError(
                f"{show(mocked)} is the function of several steps; give the name of the one you mean: "
                f"{' or '.join(map(repr, names))}"
            )
        names = known.step_names()
        raise ArgumentError(
            f"{show(mocked)}: give a step or workflow of the app, its name, or app.remote('name'); known steps: "
            f"{', '.join(names[:SHOWN]) or 'none'}{', …' if len(names) > SHOWN else ''}"
        )

    def _executed(self, mocked: Mockable) -> str:
        """The name of a step, or of what is mocked: only their executions are seen."""
        known, name = self._definitions, self._name_of(mocked)
        if name in self.stand_ins:
            return name
        if name in known.workflows:
            raise ArgumentError(f"workflow {name!r} isn't mocked, so its calls are not counted; world.mock() it first")
        return known.find_step(name).name

    def find(self, name: str) -> StepDefinition:
        """What is executed as a step of that name."""
        definition = self._definitions.find_step(name)
        if name in self._replacements:
            function = self._replacements[name]
            is_async, resources = asyncio.iscoroutinefunction(function), dict[str, Resource[Any]]()
        else:
            function, is_async, resources = definition.function, definition.is_async, dict(definition.resources)
        record = self._recording_async if is_async else self._recording
        run = record(name, function, resources)
        return dataclasses.replace(definition, function=run, is_async=is_async, resources=resources)

    def _record(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        with self._lock:
            calls = self._calls.setdefault(name, [])
            calls.append(Call(args, kwargs))
            due = [error for number, error in self._failures.get(name, ()) if number == len(calls)]
        if due:
            raise due[0]

    def _recording(self, name: str, function: Callable[..., Any], unseen: Collection[str]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            self._record(name, args, {key: value for key, value in kwargs.items() if key not in unseen})
            return function(*args, **kwargs)

        return call

    def _recording_async(self, name: str, function: Callable[..., Any], unseen: Collection[str]) -> Callable[..., Any]:
        async def call(*args: Any, **kwargs: Any) -> Any:
            self._record(name, args, {key: value for key, value in kwargs.items() if key not in unseen})
            return await function(*args, **kwargs)

        return call
