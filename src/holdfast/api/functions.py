"""`Step[P, R]` and `Workflow[P, R]`: decorated functions that are called exactly as before.

In a workflow a call is recorded and may wait; anywhere else it is a plain call.
"""

from __future__ import annotations

import abc
import asyncio
import functools
import inspect
import sys
from collections.abc import Callable, Coroutine, Iterable, Mapping
from typing import Any, Generic, Literal, ParamSpec, Protocol, TypeVar, Unpack, cast, overload

from msgspec import Raw

from holdfast.api.asking import Asked
from holdfast.api.calls import Call, ChildRun, StepCall, StepFuture
from holdfast.api.checks import check_arguments, to_epoch
from holdfast.api.client import Client
from holdfast.api.direct_calls import call_directly, call_in_transaction
from holdfast.api.handles import Run
from holdfast.api.options import (
    NO_OPTIONS,
    CallWords,
    StartOptions,
    calls_of,
    check_call,
    check_input,
    options_of_many,
    refuse_connection,
    start_options_of,
    takes,
)
from holdfast.api.owner import Owner
from holdfast.api.reading import Which
from holdfast.api.requests import Ask, check_request
from holdfast.api.scratch import in_scratch
from holdfast.api.signatures import Canvas, Signature, chunks, each, group
from holdfast.blocking import twin
from holdfast.core.context import current_step
from holdfast.core.definitions import StepDefinition, WorkflowDefinition
from holdfast.core.execution import Execution
from holdfast.core.greenlets import wait_plainly
from holdfast.core.loop import Future, running
from holdfast.durations import to_us
from holdfast.errors import ArgumentError, DefinitionError, WrongContextError
from holdfast.printing import show

P = ParamSpec("P")
R = TypeVar("R")
A = TypeVar("A")
R_co = TypeVar("R_co", covariant=True)
F = TypeVar("F", bound=StepFuture[Any])  # what `submit` gives: a StepFuture[R] or a ChildRun[R]


class _HasCall(Protocol[P, R_co]):
    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R_co: ...


CallableClass = type[_HasCall[P, R]]
"""A class whose instances are called: as a step or workflow it is called like its `__call__`."""


class _Startable(abc.ABC, Generic[P, R, F]):
    """A function, or one with more said about the next call."""

    _options: StartOptions = NO_OPTIONS

    @property
    @abc.abstractmethod
    def _function(self) -> _Function[P, R, F]: ...

    def start(self, *args: P.args, **kwargs: P.kwargs) -> Run[R]:
        """Start a run. It is durable when this returns."""
        return cast("Run[R]", self._prepare(args, kwargs)())

    async def astart(self, *args: P.args, **kwargs: P.kwargs) -> Run[R]:
        """`start` for async code."""
        start = self._prepare(args, kwargs)
        stays = running() is not None or self._options.connection is not None  # which is this thread's
        return cast("Run[R]", start() if stays else await asyncio.to_thread(start))

    def start_and_ask(self, ask: Ask[A], /, *args: P.args, **kwargs: P.kwargs) -> tuple[Run[R], A]:
        """Start a run and ask it something, in one commit; the run and its answer. If a run of that id is there already,
        that one is asked."""
        client, run, asked = self._start_asking(ask, args, kwargs)
        return Run(client, *run), client.asker.answer(asked)

    async def astart_and_ask(self, ask: Ask[A], /, *args: P.args, **kwargs: P.kwargs) -> tuple[Run[R], A]:
        """`start_and_ask` for async code."""
        client, run, asked = await asyncio.to_thread(self._start_asking, ask, args, kwargs)
        return Run(client, *run), await client.asker.aanswer(asked)

    def _start_asking(self, ask: Ask[A], args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Client, Which, Asked]:
        function = self._function
        if not isinstance(ask, Ask):
            raise ArgumentError(
                f"start_and_ask({show(ask)}): give a request with its payload first: request.of(payload)"
            )
        check_request(ask.request, ask.id, ask.timeout)
        if self._options.connection is not None:
            raise WrongContextError(
                f"{function!r}.start_and_ask(): there is no answer before your transaction is committed; use .start(), commit, "
                "and ask the run"
            )
        if not isinstance(function, Workflow):
            raise WrongContextError(f"{function!r}.start_and_ask(): a step answers nothing; start a workflow")
        if self._options.debounce is not None:
            raise ArgumentError(
                "start_and_ask with debounce=: the run may begin much later, and its answer is waited for; start it, and ask "
                "it then"
            )
        if not function._definition.options.durable:
            raise WrongContextError(f"{function!r} has durable=False, and a run without a history can't be asked")
        call = function._encode(args, kwargs)
        function._app.codec.check_call(args, kwargs, function._arguments, function._definition.hints)
        client = function._app.client
        return client, *client.asker.start_and_ask(function.name, bytes(call), self._options, ask)

    def delay(self, *args: P.args, **kwargs: P.kwargs) -> Run[R]:
        """Celery's spelling of `start`."""
        return self.start(*args, **kwargs)

    def start_many(self, calls: Iterable[Any], *, ids: Iterable[str] | None = None) -> list[Run[R]]:
        """Start a run for each call, all in one commit: either all are durable when this returns, or none was started.
        A tuple is the arguments of a call; anything else is its only argument. `ids` are those of the runs, in the same
        order."""
        function, options = self._function, self._options
        if function._execution() is not None:
            raise WrongContextError(f"{function!r}.start_many() in a workflow: use .submit() for each, or a group")
        given = calls_of(function.name, calls)
        encoded = []
        for args in given:
            encoded.append((function.name, bytes(function._encode(args, {}))))
            function._app.codec.check_call(args, {}, function._arguments, function._definition.hints)
            check_input(function._definition, args, {})
        chosen = options_of_many(function.name, len(given), options, ids)
        started = function._app.client.start_many([(*call, each) for call, each in zip(encoded, chosen, strict=True)])
        return cast("list[Run[R]]", started)

    astart_many = twin(start_many)

    def submit(self, *args: P.args, **kwargs: P.kwargs) -> F:
        """Start it from a workflow without waiting: await what this gives, or call its `.result()`."""
        function = self._function
        execution = function._execution()
        if execution is None:
            raise WrongContextError(f"{function!r}.submit() works in a workflow; elsewhere use .start()")
        refuse_connection(self._options)
        submitted: F = function._submit(execution, function._encode(args, kwargs), self._options)
        return submitted

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


class _Function(_Startable[P, R, F]):
    """What steps and workflows have in common."""

    _what: str

    def __init__(self, app: Owner, definition: StepDefinition | WorkflowDefinition, original: Any) -> None:
        self._app = app
        self._definition = definition
        functools.update_wrapper(cast("Any", self), original, updated=())
        self.__signature__ = inspect.signature(definition.function)  # a class would show its constructor's
        self._described = f"{self._what} {definition.name!r}"
        self._arguments = f"the arguments of {self._described}"
        if definition.is_async:
            _mark_async(self)

    @property
    def _function(self) -> _Function[P, R, F]:
        return self

    @property
    def name(self) -> str:
        """What it is called in its app, in histories and by `app.start`."""
        return self._definition.name

    def __repr__(self) -> str:
        return f"<{self._what} {self.name!r} of app {self._app.name!r}>"

    def __reduce__(self) -> str:
        """Pickled by where it is found, as functions are, so that `pool.map(step, ...)` works. A copy is itself."""
        return str(getattr(self, "__qualname__", self.name))

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        raise DefinitionError(
            f"{self._what} {self.name!r} is defined in a class; define it at the top of a module, so that a worker finds it"
        )

    def _encode(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Raw:
        """The arguments as they are recorded; wrong ones are refused here, where the call is."""
        if kwargs or len(args) != self._definition.arity:
            args, kwargs = check_call(f"{self._what} {self.name}", self._definition, args, kwargs)
        return Raw(self._app.codec.encode_call(args, kwargs, self._arguments, self._definition.hints))

    def _execution(self) -> Execution | None:
        """The run whose code calls, if any does."""
        loop = running()
        if loop is None:
            return None
        execution: Execution = loop.execution
        if execution.info.app != self._app.name:
            raise WrongContextError(
                f"{self._what} {self.name!r} belongs to app {self._app.name!r}, but this run to {execution.info.app!r}; define "
                "both in one app, or start it from a step"
            )
        return execution

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
        return cast("Run[R]", CallOptions(self, chosen)._prepare(*check_arguments(args, kwargs))())

    def s(self, *args: Any, **kwargs: Any) -> Signature:
        """A signature: a call that has not been made, to be put together with others. What comes before it in a chain
        gives its first argument."""
        return Signature(self._app, self._definition, args, kwargs)

    def si(self, *args: Any, **kwargs: Any) -> Signature:
        """An immutable signature: it ignores what comes before it."""
        return Signature(self._app, self._definition, args, kwargs, immutable=True)

    def signature(
        self,
        args: Iterable[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        *,
        immutable: bool = False,
        **options: Any,
    ) -> Signature:
        """Celery's spelling of `s(...)` and `si(...)`, with options as `set(...)` takes them."""
        given, named = check_arguments(args, kwargs)
        made = Signature(self._app, self._definition, given, named)
        return made.set(immutable=immutable, **options)

    @takes(CallWords)
    def options(self, **words: Unpack[CallWords]) -> CallOptions[P, R, F]:
        """Say more about one call: `fn.options(id="order-17").start(order)`.

        `id`: of the run; the same id again is the same run. `delay`, `at`: when it begins. `expires`: a run that no worker
        has begun by then is cancelled. `debounce`: it begins once nobody has started it again for so long, with what was
        given last, `at_most` so long after the first. `priority`: higher goes first. `timeout`, `max_retries`, `queue`: in
        place of those it was defined with. `if_exists`: what to do with a run that has the id ("return", "error",
        "restart"). `on_parent_close`: what becomes of a child when its parent ends ("cancel", "abandon"). `data`: published
        from the beginning, as if the workflow had begun with `wf.set_data`. `connection`: of an open transaction on the
        store's database (psycopg, sqlite3, SQLAlchemy, Django); the run exists once that is committed.
        """
        return CallOptions(self, StartOptions(**words))

    @abc.abstractmethod
    def _submit(self, execution: Execution, call: Raw, options: StartOptions) -> F:
        """Ask for it, from a workflow's code."""


class _Plain(_Function[P, R, F]):
    """A function made from `def`."""

    @abc.abstractmethod
    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R: ...

    @takes(CallWords)
    def options(self, **words: Unpack[CallWords]) -> PlainCallOptions[P, R, F]:
        return PlainCallOptions(self, StartOptions(**words))


class _Async(_Function[P, R, F]):
    """A function made from `async def`."""

    @abc.abstractmethod
    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Coroutine[None, None, R]: ...

    @takes(CallWords)
    def options(self, **words: Unpack[CallWords]) -> AsyncCallOptions[P, R, F]:
        return AsyncCallOptions(self, StartOptions(**words))


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
        return execution.steps.ask(self.name, call, options=step_overrides(options))

    def _submit(self, execution: Execution, call: Raw, options: StartOptions) -> StepFuture[R]:
        return StepFuture(self._ask(execution, call, options))


class SyncStep(_Plain[P, R, StepFuture[R]], Step[P, R]):
    """A step made from `def`."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        execution = self._execution()
        if execution is None:
            definition, app = self._definition, self._app
            if not definition.options.transaction:
                return cast("R", call_directly(definition, args, kwargs, app.definitions.replaced))
            call = functools.partial(call_directly, definition, args, kwargs, app.definitions.replaced)
            return cast("R", call_in_transaction(call, lambda: app.client.store.transaction(None, "")))
        found: R = wait_plainly(execution.steps.ask(self._definition.name, self._encode(args, kwargs)))
        return found


class AsyncStep(_Async[P, R, StepFuture[R]], Step[P, R]):
    """A step made from `async def`."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Coroutine[None, None, R]:
        execution = self._execution()
        if execution is None:
            return cast(
                "Coroutine[None, None, R]",
                call_directly(self._definition, args, kwargs, self._app.definitions.replaced),
            )
        call = self._encode(args, kwargs)
        return Call(execution, lambda: execution.steps.ask(self._definition.name, call), self._described)


class Workflow(_Function[P, R, ChildRun[R]]):
    """A function that coordinates steps: replayed, so it must be deterministic."""

    _what = "workflow"
    _definition: WorkflowDefinition

    def _child(self, execution: Execution, call: Raw, options: StartOptions, waited: bool) -> ChildRun[R]:
        child = execution.children.ask(
            self.name, call, options=self._child_options(execution, options), waited=waited,
            abandon=options.on_parent_close == "abandon",
        )  # fmt: skip
        return ChildRun(execution, child)

    def _child_options(self, execution: Execution, options: StartOptions) -> dict[str, object]:
        chosen = child_options(options, self._definition.options.durable, execution.loop.now)
        if options.data:
            codec = execution.codec
            chosen["data"] = {key: Raw(codec.encode(value, f"data {key!r}")) for key, value in options.data.items()}
        return chosen

    def _submit(self, execution: Execution, call: Raw, options: StartOptions) -> ChildRun[R]:
        return self._child(execution, call, options, waited=True)

    def _call_plainly(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if current_step.get() is not None:
            raise WrongContextError(
                f"workflow {self.name!r} is called in a step; a step starts a workflow with "
                f"await start_child_workflow({self.name}, ...), or if it is made from `def` with {self.name}.start(...).result()"
            )
        definition = self._definition
        return in_scratch(lambda: definition.function(*args, **kwargs), definition.is_async)


class SyncWorkflow(_Plain[P, R, ChildRun[R]], Workflow[P, R]):
    """A workflow made from `def`."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        execution = self._execution()
        if execution is None:
            return cast("R", self._call_plainly(args, kwargs))
        return self._child(execution, self._encode(args, kwargs), NO_OPTIONS, waited=True).result()


class AsyncWorkflow(_Async[P, R, ChildRun[R]], Workflow[P, R]):
    """A workflow made from `async def`."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Coroutine[None, None, R]:
        execution = self._execution()
        if execution is None:
            return cast("Coroutine[None, None, R]", self._call_plainly(args, kwargs))
        call = self._encode(args, kwargs)
        return Call(
            execution,
            lambda: self._child(execution, call, NO_OPTIONS, waited=True)._wait(),
            f"workflow {self.name!r}",
        )


class CallOptions(_Startable[P, R, F]):
    """A function with more said about the next call."""

    def __init__(self, function: _Function[P, R, F], options: StartOptions) -> None:
        self._called = function
        self._options = options

    @property
    def _function(self) -> _Function[P, R, F]:
        return self._called


class PlainCallOptions(CallOptions[P, R, F]):
    """Of a function made from `def`: it is called as the function is."""

    _called: _Plain[P, R, F]

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        if self._called._execution() is None:
            return cast("R", self._called(*args, **kwargs))
        found: R = self.submit(*args, **kwargs).result()
        return found


class AsyncCallOptions(CallOptions[P, R, F]):
    """Of a function made from `async def`: it is called as the function is."""

    _called: _Async[P, R, F]

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Coroutine[None, None, R]:
        function, options = self._called, self._options
        execution = function._execution()
        if execution is None:
            return cast("Coroutine[None, None, R]", function(*args, **kwargs))
        refuse_connection(options)
        call = function._encode(args, kwargs)
        return Call(execution, lambda: function._submit(execution, call, options)._wait(), function._described)


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
    if options.traceparent is not None:
        raise WrongContextError(
            "traceparent= is for runs that are started from outside; a child is in its parent's trace"
        )
    if options.expires is not None or options.debounce is not None:
        raise WrongContextError("expires= and debounce= are for runs that are started from outside, or from a step")
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
def start_child_workflow(
    workflow: Workflow[..., R], /, *args: Any, wait_for_completion: Literal[True] = True, **kwargs: Any
) -> Coroutine[None, None, R]: ...
@overload
def start_child_workflow(
    workflow: Workflow[..., R], /, *args: Any, wait_for_completion: Literal[False], **kwargs: Any
) -> Coroutine[None, None, ChildRun[R] | Run[R]]: ...
@overload
def start_child_workflow(
    workflow: Workflow[..., R], /, *args: Any, wait_for_completion: bool, **kwargs: Any
) -> Coroutine[None, None, R | ChildRun[R] | Run[R]]: ...
def start_child_workflow(
    workflow: Workflow[..., Any], /, *args: Any, wait_for_completion: bool = True, **kwargs: Any
) -> Coroutine[None, None, Any]:
    """Start a child from a workflow or a step: its result, or with `wait_for_completion=False` a handle.

    In a workflow waiting holds nothing. In a step it holds the step's worker for as long as the child takes.
    """
    if not isinstance(workflow, Workflow):
        raise ArgumentError(f"start_child_workflow({show(workflow)}): give a function decorated with @app.workflow")
    execution, step = workflow._execution(), current_step.get()
    what = f"start_child_workflow({workflow.name})"
    if execution is not None:
        call = workflow._encode(args, kwargs)
        return Call(execution, lambda: _begin_child(workflow, execution, call, wait_for_completion), what)
    if step is None:
        raise WrongContextError(
            "start_child_workflow() works in workflows and steps; elsewhere use workflow.start(...)"
        )
    return StepCall(step, lambda: _start_in_step(workflow, args, kwargs, wait_for_completion), what)


def _begin_child(workflow: Workflow[..., Any], execution: Execution, call: Raw, waited: bool) -> asyncio.Future[Any]:
    """A future of the child's result, or of its handle."""
    child = workflow._child(execution, call, NO_OPTIONS, waited=waited)
    if waited:
        return child._wait()
    handle: Future[Any] = Future(execution.loop)
    handle.set_result(child)
    return handle


async def _start_in_step(
    workflow: Workflow[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], waited: bool
) -> Any:
    run = await CallOptions(workflow, NO_OPTIONS).astart(*args, **kwargs)
    return await run.aresult() if waited else run
