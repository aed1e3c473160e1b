"""`Step[P, R]` and `Workflow[P, R]`: decorated functions that are called exactly as before.

In a workflow a call is recorded and may wait; anywhere else it is a plain call.
"""

from __future__ import annotations

import abc
import asyncio
import datetime as dt
import functools
import inspect
import sys
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, Generic, Literal, ParamSpec, Protocol, TypeVar, cast, overload

from msgspec import Raw

from holdfast.api.calls import Call, ChildRun, StepFuture
from holdfast.api.checks import check_arguments, to_epoch
from holdfast.api.direct_calls import call_directly, call_in_transaction
from holdfast.api.handles import Run
from holdfast.api.options import (
    NO_OPTIONS,
    IfExists,
    OnParentClose,
    StartOptions,
    check_call,
    refuse_connection,
    start_options_of,
)
from holdfast.api.owner import Owner
from holdfast.api.signatures import Canvas, Signature, chunks, each, group
from holdfast.core.context import current_step
from holdfast.core.definitions import StepDefinition, WorkflowDefinition
from holdfast.core.execution import Execution
from holdfast.core.loop import running, wait_plainly
from holdfast.durations import Duration, to_us
from holdfast.errors import ArgumentError, DefinitionError, WrongContextError
from holdfast.printing import show

P = ParamSpec("P")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)
F = TypeVar("F")  # what `submit` gives: a StepFuture[R] or a ChildRun[R]


class _HasCall(Protocol[P, R_co]):
    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R_co: ...


CallableClass = type[_HasCall[P, R]]
"""A class whose instances are called: as a step or workflow it is called like its `__call__`."""


class _Function(abc.ABC, Generic[P, R, F]):
    """What steps and workflows have in common."""

    _what: str

    def __init__(self, app: Owner, definition: StepDefinition | WorkflowDefinition, original: Any) -> None:
        self._app = app
        self._definition = definition
        self._original = original
        parameters = definition.signature.parameters
        kinds = {p.kind for p in parameters.values()}
        simple = kinds <= {inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD}
        self._exact = len(parameters) if simple else -1
        functools.update_wrapper(cast("Any", self), original, updated=())
        self.__signature__ = inspect.signature(definition.function)  # a class would show its constructor's
        self._described = f"{self._what} {definition.name!r}"
        self._arguments = f"the arguments of {self._described}"
        if definition.is_async:
            _mark_async(self)

    @property
    def name(self) -> str:
        """What it is called in its app, in histories and by `app.start`."""
        return self._definition.name

    def __repr__(self) -> str:
        return f"<{self._what} {self.name!r} of app {self._app.name!r}>"

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        raise DefinitionError(
            f"{self._what} {self.name!r} is defined in a class; define it at the top of a module, so that a worker finds it"
        )

    def _encode(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Raw:
        """The arguments as they are recorded; wrong ones are refused here, where the call is."""
        if kwargs or len(args) != self._exact:
            args, kwargs = check_call(f"{self._what} {self.name}", self._definition, args, kwargs)
        return Raw(self._app.codec.encode_call(args, kwargs, self._arguments, self._definition.hints))

    def _execution(self) -> Execution | None:
        """The run whose code calls, if any does."""
        loop = running()
        if loop is None:
            return None
        execution: Execution = loop.execution
        if execution.app != self._app.name:
            raise WrongContextError(
                f"{self._what} {self.name!r} belongs to app {self._app.name!r}, but this run to {execution.app!r}; define both "
                "in one app, or start it from a step"
            )
        return execution

    def start(self, *args: P.args, **kwargs: P.kwargs) -> Run[R]:
        """Start a run. It is durable when this returns."""
        return CallOptions(self, NO_OPTIONS).start(*args, **kwargs)

    async def astart(self, *args: P.args, **kwargs: P.kwargs) -> Run[R]:
        """`start` for async code."""
        return await CallOptions(self, NO_OPTIONS).astart(*args, **kwargs)

    def delay(self, *args: P.args, **kwargs: P.kwargs) -> Run[R]:
        """Celery's spelling of `start`."""
        return self.start(*args, **kwargs)

    def apply_async(
        self,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
        *,
        link: Canvas | Iterable[Canvas] = (),
        link_error: Canvas | Iterable[Canvas] = (),
        **options: Any,
    ) -> Run[R]:
        """Celery's spelling of `options(...).start(...)`: `countdown`, `eta`, `task_id` mean delay, at, id. With `link`
        or `link_error` the run is that of its signature, which has callbacks."""
        if not _is_empty(link) or not _is_empty(link_error):
            called = self.s().clone(args, kwargs)
            return called.apply_async(link=link, link_error=link_error, **options)
        chosen = start_options_of(f"{self!r}.apply_async()", options)
        return cast("Run[R]", CallOptions(self, chosen).start_with(*check_arguments(args, kwargs)))

    def s(self, *args: Any, **kwargs: Any) -> Signature:
        """A signature: a call that has not been made, to be put together with others. What comes before it in a chain
        gives its first argument."""
        return Signature(self._app, self._definition, args, kwargs)

    def si(self, *args: Any, **kwargs: Any) -> Signature:
        """An immutable signature: it ignores what comes before it."""
        return Signature(self._app, self._definition, args, kwargs, immutable=True)

    def submit(self, *args: P.args, **kwargs: P.kwargs) -> F:
        """Start it from a workflow without waiting: await what this gives, or call its `.result()`."""
        return CallOptions(self, NO_OPTIONS).submit(*args, **kwargs)

    def options(
        self,
        *,
        id: str | None = None,
        delay: Duration | None = None,
        at: dt.datetime | None = None,
        priority: int = 0,
        timeout: Duration | None = None,
        max_retries: int | None = None,
        queue: str | None = None,
        if_exists: IfExists = "return",
        on_parent_close: OnParentClose = "cancel",
        connection: object = None,
    ) -> CallOptions[P, R, F]:
        """Say more about one call: `fn.options(id="order-17").start(order)`. With the `connection` of an open transaction on
        the store's database, of psycopg, sqlite3, SQLAlchemy or Django, the run exists once that is committed."""
        return CallOptions(
            self,
            StartOptions(id, delay, at, priority, timeout, max_retries, queue, if_exists, on_parent_close, connection),
        )

    @abc.abstractmethod
    def _submit(self, execution: Execution, call: Raw, options: StartOptions) -> F:
        """Ask for it, from a workflow's code."""


class Step(_Function[P, R, StepFuture[R]]):
    """A function that does work: retried, timed out, recorded."""

    _what = "step"
    _definition: StepDefinition

    def map(self, items: Iterable[Any]) -> each:
        """A canvas: this step for each item, one after the other; the result is the list of results."""
        return each(self.s(), items, star=False)

    def starmap(self, items: Iterable[Iterable[Any]]) -> each:
        """`map`, for items that are lists of arguments."""
        return each(self.s(), items, star=True)

    def chunks(self, items: Iterable[Iterable[Any]], size: int) -> group:
        """A canvas: a group of starmaps of `size` items each. The result is a list of lists."""
        return chunks(self.s(), items, size)

    def _ask(self, execution: Execution, call: Raw, options: StartOptions) -> asyncio.Future[Any]:
        return execution.ask_step(self.name, call, options=step_overrides(options))

    def _submit(self, execution: Execution, call: Raw, options: StartOptions) -> StepFuture[R]:
        return StepFuture(self._ask(execution, call, options))


class SyncStep(Step[P, R]):
    """A step made from `def`."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        execution = self._execution()
        if execution is None:
            definition, app = self._definition, self._app
            if not definition.options.transaction:
                return cast("R", call_directly(definition, args, kwargs, app.replaced))
            call = functools.partial(call_directly, definition, args, kwargs, app.replaced)
            return cast("R", call_in_transaction(call, lambda: app.client.store.transaction(None, "")))
        found: R = wait_plainly(execution.ask_step(self._definition.name, self._encode(args, kwargs)))
        return found


class AsyncStep(Step[P, R]):
    """A step made from `async def`."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Coroutine[None, None, R]:
        execution = self._execution()
        if execution is None:
            return cast("Coroutine[None, None, R]", call_directly(self._definition, args, kwargs, self._app.replaced))
        call = self._encode(args, kwargs)
        return Call(execution, lambda: execution.ask_step(self._definition.name, call), self._described)


class Workflow(_Function[P, R, ChildRun[R]]):
    """A function that coordinates steps: replayed, so it must be deterministic."""

    _what = "workflow"
    _definition: WorkflowDefinition

    def _child(self, execution: Execution, call: Raw, options: StartOptions, waited: bool) -> ChildRun[R]:
        child = execution.ask_child(
            self.name, call, options=child_options(options, self._definition.options.durable, execution.loop.now), waited=waited,
            abandon=options.on_parent_close == "abandon",
        )  # fmt: skip
        return ChildRun(execution, child)

    def _submit(self, execution: Execution, call: Raw, options: StartOptions) -> ChildRun[R]:
        return self._child(execution, call, options, waited=True)

    def _refuse_in_step(self) -> None:
        if current_step.get() is not None:
            raise WrongContextError(
                f"workflow {self.name!r} is called in a step; a step starts a workflow with "
                f"start_child_workflow({self.name}, ...)"
            )


class SyncWorkflow(Workflow[P, R]):
    """A workflow made from `def`."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        execution = self._execution()
        if execution is None:
            self._refuse_in_step()
            return cast("R", self._definition.function(*args, **kwargs))
        return self._child(execution, self._encode(args, kwargs), NO_OPTIONS, waited=True).result()


class AsyncWorkflow(Workflow[P, R]):
    """A workflow made from `async def`."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Coroutine[None, None, R]:
        execution = self._execution()
        if execution is None:
            self._refuse_in_step()
            return cast("Coroutine[None, None, R]", self._definition.function(*args, **kwargs))
        call = self._encode(args, kwargs)
        return Call(
            execution,
            lambda: self._child(execution, call, NO_OPTIONS, waited=True)._wait(),
            f"workflow {self.name!r}",
        )


class CallOptions(Generic[P, R, F]):
    """A function with more said about the next call."""

    def __init__(self, function: _Function[P, R, F], options: StartOptions) -> None:
        self._function = function
        self._options = options

    def start(self, *args: P.args, **kwargs: P.kwargs) -> Run[R]:
        """Start a run, with these options. It is durable when this returns."""
        return cast("Run[R]", self.start_with(args, kwargs))

    async def astart(self, *args: P.args, **kwargs: P.kwargs) -> Run[R]:
        """`start` for async code."""
        start = self._prepare(args, kwargs)
        stays = running() is not None or self._options.connection is not None  # which is this thread's
        return cast("Run[R]", start() if stays else await asyncio.to_thread(start))

    def delay(self, *args: P.args, **kwargs: P.kwargs) -> Run[R]:
        """Celery's spelling of `start`."""
        return self.start(*args, **kwargs)

    def submit(self, *args: P.args, **kwargs: P.kwargs) -> F:
        """Start it from a workflow without waiting."""
        function = self._function
        execution = function._execution()
        if execution is None:
            raise WrongContextError(f"{function!r}.submit() works in a workflow; elsewhere use .start()")
        refuse_connection(self._options)
        return function._submit(execution, function._encode(args, kwargs), self._options)

    def _parts(self) -> tuple[_Function[P, R, F], StartOptions]:
        return self._function, self._options

    def start_with(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return self._prepare(args, kwargs)()

    def _prepare(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Callable[[], Any]:
        """All but the starting itself. What depends on the order of calls is settled here, on the caller's thread."""
        function, options = self._function, self._options
        call = function._encode(args, kwargs)
        execution = function._execution()
        if execution is not None:
            refuse_connection(options)
            if not isinstance(function, Workflow):
                raise WrongContextError(
                    f"{function!r}.start() in a workflow: call it, or use .submit(); a run of its own is for outside"
                )
            return lambda: function._child(execution, call, options, waited=False)
        function._app.codec.check_call(args, kwargs, function._arguments, function._definition.hints)
        chosen = options.with_id_in_step(function.name)
        return lambda: function._app.start_run(function.name, bytes(call), chosen)


def step_overrides(options: StartOptions) -> dict[str, object]:
    if options is NO_OPTIONS:
        return {}
    given = {"timeout": options.timeout, "max_retries": options.max_retries, "queue": options.queue}
    return {name: value for name, value in given.items() if value is not None}


def child_options(options: StartOptions, durable: bool, now: int) -> dict[str, object]:
    if options.if_exists != "return":
        raise WrongContextError(
            f"if_exists={options.if_exists!r} is for runs that are started from outside; a workflow that is replayed can't "
            "look whether a run exists, so do it in a step"
        )
    chosen: dict[str, object] = {"durable": durable}
    if options.id is not None:
        chosen["id"] = options.id
    if options.delay is not None:
        chosen["delay"] = to_us(options.delay, "delay")
    if options.at is not None:
        chosen["delay"] = max(0, to_epoch(options.at) - now)
    if options.priority:
        chosen["priority"] = options.priority
    if options.timeout is not None:
        chosen["timeout"] = to_us(options.timeout, "timeout")
    if options.max_retries is not None:
        chosen["max_retries"] = options.max_retries
    return chosen


def _mark_async(function: Any) -> None:
    """Let those who ask whether it is a coroutine function see one, though it is an object."""
    if sys.version_info >= (3, 12):
        inspect.markcoroutinefunction(function)
    else:
        function._is_coroutine = asyncio.coroutines._is_coroutine  # type: ignore[attr-defined]


def _is_empty(links: object) -> bool:
    return isinstance(links, tuple | list) and not links


def is_decorated(function: object) -> bool:
    return isinstance(function, _Function)


@overload
async def start_child_workflow(
    workflow: Workflow[..., R], /, *args: Any, wait_for_completion: Literal[True] = True, **kwargs: Any
) -> R: ...
@overload
async def start_child_workflow(
    workflow: Workflow[..., R], /, *args: Any, wait_for_completion: Literal[False], **kwargs: Any
) -> ChildRun[R] | Run[R]: ...
@overload
async def start_child_workflow(
    workflow: Workflow[..., R], /, *args: Any, wait_for_completion: bool, **kwargs: Any
) -> R | ChildRun[R] | Run[R]: ...
async def start_child_workflow(
    workflow: Workflow[..., Any], /, *args: Any, wait_for_completion: bool = True, **kwargs: Any
) -> Any:
    """Start a child from a workflow or a step: its result, or with `wait_for_completion=False` a handle.

    In a workflow waiting holds nothing. In a step it holds the step's worker for as long as the child takes.
    """
    if not isinstance(workflow, Workflow):
        raise ArgumentError(f"start_child_workflow({show(workflow)}): give a function decorated with @app.workflow")
    execution = workflow._execution()
    if execution is not None:
        child = workflow._child(execution, workflow._encode(args, kwargs), NO_OPTIONS, waited=wait_for_completion)
        return await child if wait_for_completion else child
    if current_step.get() is None:
        raise WrongContextError(
            "start_child_workflow() works in workflows and steps; elsewhere use workflow.start(...)"
        )
    run = await CallOptions(workflow, NO_OPTIONS).astart(*args, **kwargs)
    return await run.aresult() if wait_for_completion else run
