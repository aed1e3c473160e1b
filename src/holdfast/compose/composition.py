"""What a DAG, a saga and a checkpointed list have in common: each is a workflow of an app, known by its name, that is
made of named steps over one context."""

from __future__ import annotations

import abc
from collections.abc import Callable, Collection, Coroutine, Mapping
from typing import Any

import msgspec
from msgspec import Raw

from holdfast.api.checks import check_name
from holdfast.api.functions import AsyncWorkflow
from holdfast.api.options import workflow_options
from holdfast.api.owner import Owner
from holdfast.codec import digest
from holdfast.compose.handlers import Handler, Scope, define, find
from holdfast.core.execution import Execution
from holdfast.core.loop import running
from holdfast.core.pending import Recorded
from holdfast.core.plans import Plan, PlannedStep, read_plan
from holdfast.core.source_lines import code_line
from holdfast.errors import ArgumentError, DecodeError, DefinitionError, DuplicateNameError, UnknownNameError
from holdfast.printing import show

Context = dict[str, Any]


class Composition(AsyncWorkflow[..., Context], abc.ABC):
    """A workflow made of named steps. It takes a context, and gives it back with the results of its steps."""

    _home: Owner

    def __init__(self, name: str, app: Owner, options: dict[str, Any]) -> None:
        check_name(self._what, name)
        self._home = app
        self._handlers: dict[str, Handler] = {}
        self._functions: dict[str, Callable[..., Any]] = {}
        workflow = app.define_workflow(self._follow, name, workflow_options(options), self._place(), self._check)
        super().__init__(app, workflow._definition, self._follow)
        self.__name__, self.__doc__ = name, type(self).__doc__

    async def _follow(self, context: dict[str, Any] | None = None) -> Any:
        """The workflow's code."""
        loop = running()
        if loop is None:
            self._check_context(context)
            return await self._follow_directly(dict(context or {}))
        # A run that has its plan was checked when it began; what the code needs by now is not asked of it.
        shape = self._plan().to_json()
        plan = read_plan(loop.execution.outputs.plan(self.name, shape, check=lambda: self._check_context(context)))
        return Recorded(await self._carry_out(loop.execution, plan, context or {}))

    @abc.abstractmethod
    def _plan(self) -> Plan:
        """What it is made of; DefinitionError if that can't work."""

    @abc.abstractmethod
    async def _carry_out(self, execution: Execution, plan: Plan, context: Context) -> Raw:
        """In a run. The result is the context, as it is recorded."""

    @abc.abstractmethod
    async def _follow_directly(self, context: Context) -> Context:
        """Outside a run: with plain calls."""

    # -- definitions

    @staticmethod
    def _place() -> str:
        """Where the user's code is that defines this."""
        return code_line().rpartition(" in ")[0]

    def _add_handler(self, name: str, function: Any, options: dict[str, Any], what: str) -> Handler:
        check_name(what, name)
        if "[" in name or name == "$":
            raise DefinitionError(
                f"{what} name={name!r}: brackets number the executions of a step; choose another name"
            )
        if name in self._handlers:
            raise DuplicateNameError(f"{self!r} has a step {name!r} already; names are unique in it")
        handler, called = define(
            self._home, function, f"{self.name}.{name}", options, self._place(), f"{what} {name!r}"
        )
        self._handlers[name] = handler
        self._functions[name] = called
        return handler

    def _encode(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Raw:
        if len(args) > 1 or kwargs.keys() - {"context"}:
            raise ArgumentError(f"{self!r} takes one dict, its context, e.g. .start({{'order': 17}})")
        self._check(*args, **kwargs)
        return super()._encode(args, kwargs)

    def _check(self, context: Any = None) -> None:
        """Refuse what can't work, before anything is written."""
        self._plan()
        self._check_context(context)

    def _check_context(self, context: Any) -> None:
        if context is None:
            context = {}
        if not isinstance(context, dict) or not all(isinstance(key, str) for key in context):
            raise ArgumentError(f"{self!r}: give the context as a dict with texts as keys, not {show(context)}")
        self._check_names(context)

    @abc.abstractmethod
    def _check_names(self, context: Context) -> None:
        """Refuse a context that lacks what the handlers need."""

    def _check_need(self, step: str, handler: Handler, known: Collection[str], given: tuple[str, ...] = ()) -> None:
        for name in handler.needs(given):
            if name not in known:
                raise ArgumentError(
                    f"{self!r}: step {step!r} takes {name!r}, which is neither in the context nor a step before it; known: "
                    f"{', '.join([*known, *given]) or 'nothing'}. A parameter named `ctx` takes the whole context"
                )

    # -- in a run

    def _handler(self, execution: Execution, key: str, runs: str, is_workflow: bool) -> Handler:
        """What a planned step executes. The plan is the run's own: the code may have changed since."""
        handler = self._handlers.get(key)
        if handler is not None and (handler.name, handler.is_workflow) == (runs, is_workflow):
            return handler
        try:
            return find(self._home, runs, is_workflow)
        except UnknownNameError:
            execution.comparison.diverged(
                f"a plan in which step {key!r} runs {runs!r}",
                f"a {self._what} {self.name!r} of {', '.join(self._handlers) or 'nothing'}, and no {runs!r} is known",
            )

    def _decoded(self, step: PlannedStep | None, value: bytes) -> Any:
        """A recorded value as Python; a result as its function's annotation says."""
        codec, hint = self._home.codec, Any
        if step is not None and not step.map_over:
            try:
                known = self._home.definitions
                find = known.find_workflow if step.is_workflow else known.find_step
                hint = find(step.runs).result_type
            except UnknownNameError:
                pass
        try:
            return codec.decode(value, hint)
        except DecodeError:  # not what the annotation says: as it is, as Python would
            return codec.decode(value)

    # -- outside

    async def _call_directly(self, key: str, context: Mapping[str, Any]) -> Any:
        args, kwargs = self._handlers[key].plain_arguments(context)
        function = self._functions[key]
        found = function(*args, **kwargs)
        return await found if isinstance(found, Coroutine) else found


class StepValues:
    """The values of steps that run one after the other, as they are recorded."""

    def __init__(self, execution: Execution, context: Context) -> None:
        self._codec = execution.codec
        self.values = encode_context(execution, context)
        self._version = digest_of(self.values)
        self._what = "the initial context"

    def add(self, name: str, result: Raw) -> None:
        self.values[name] = bytes(result)
        self._version, self._what = digest(self._version, self.values[name]), f"the context after {name}"

    def scope(self) -> Scope:
        """What the next step sees. What is here when it is handed over is what was here when it was asked for."""
        return Scope(self.values, self.whole, [self._version], self._what)

    def whole(self) -> bytes:
        return self._codec.join_dict(self.values)


def digest_of(values: Mapping[str, bytes]) -> bytes:
    return digest(*(part for name, value in values.items() for part in (name.encode(), value)))


def split_list(execution: Execution, value: bytes) -> list[bytes] | None:
    """The elements of a recorded list or tuple, as they are recorded; None if it is something else."""
    if value[:1] == b"[":
        return [bytes(element) for element in msgspec.json.decode(value, type=list[Raw])]
    decoded = execution.codec.decode(value)
    return [execution.codec.encode(element) for element in decoded] if isinstance(decoded, list | tuple) else None


def encode_context(execution: Execution, context: Context) -> dict[str, bytes]:
    return {name: execution.codec.encode(value, f"{name!r} of the context") for name, value in context.items()}
