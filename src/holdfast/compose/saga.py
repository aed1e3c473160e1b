"""Sagas: when a step fails, or the run is cancelled, what was done before is undone, last one first.

An action that is under way when the saga fails may finish, and is then undone: to interrupt it would leave nobody
knowing whether it was done. Each compensation is a step of its own, retried like any other; the history has it with
the command that it undoes, and a retry of the run never reuses what was undone.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable, Coroutine
from types import TracebackType
from typing import Any, TypeVar, cast, overload

from msgspec import Raw

from holdfast.api.calls import Call, wait
from holdfast.api.checks import check_text
from holdfast.api.functions import CallOptions, Step, Workflow, child_options
from holdfast.api.options import NO_OPTIONS, StartOptions
from holdfast.api.owner import Owner
from holdfast.api.signatures import Canvas
from holdfast.api.waiting import shield
from holdfast.compose.composition import Composition, Context, StepValues
from holdfast.compose.handlers import is_async
from holdfast.core.execution import Execution
from holdfast.core.greenlets import wait_plainly
from holdfast.core.loop import Future
from holdfast.core.plans import Plan, PlannedStep, undo_key
from holdfast.errors import ArgumentError, SagaFailed, in_words
from holdfast.printing import show

R = TypeVar("R")
Undo = Callable[[str, Any], Awaitable[Any]]
"""Undoes an action, from its command and its result."""


class saga:
    """A block whose steps are undone if it fails or is cancelled: `async with saga() as s:`, or `with` in plain code.

        async with saga() as s:
            payment = await s.step(charge, order, compensate=refund)
            await s.step(ship, order, payment, compensate=recall)

    `refund` is called with what `charge` gave. Steps may be under way side by side: they are undone in the reverse of
    the order in which they ended.
    """

    def __init__(self, name: str = "") -> None:
        check_text("saga: name", name, empty=True)
        self._title = f"saga {name!r}" if name else "saga"
        self._under_way: dict[asyncio.Future[Any], str] = {}
        self._done: list[tuple[str, Callable[[], Awaitable[Any]]]] = []
        self._failures: list[tuple[str, BaseException]] = []
        self._labels: dict[str, int] = {}

    # -- the block

    async def __aenter__(self) -> saga:
        return self

    def __enter__(self) -> saga:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        if isinstance(error, Exception | asyncio.CancelledError):
            with shield():
                failed = await self._roll_back(error)
            if failed is not None:
                raise failed

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if isinstance(error, Exception | asyncio.CancelledError):
            with shield():
                failed = wait(self._roll_back(error))
            if failed is not None:
                raise failed

    # -- steps

    @overload
    def step(
        self,
        action: CallOptions[..., Any, Any],
        /,
        *args: Any,
        compensate: Callable[..., Any] | None = None,
        **kwargs: Any,
    ) -> Any: ...
    @overload
    def step(
        self, action: Callable[..., R], /, *args: Any, compensate: Callable[..., Any] | None = None, **kwargs: Any
    ) -> R: ...
    def step(
        self,
        action: Callable[..., R] | CallOptions[..., Any, Any],
        /,
        *args: Any,
        compensate: Callable[..., Any] | None = None,
        **kwargs: Any,
    ) -> R:
        """Call a step or workflow as ever, and have `compensate` undo it should the block fail. That is a step or a
        workflow too; it is called with the action's result."""
        function, options = (
            (action._function, action._options) if isinstance(action, CallOptions) else (action, NO_OPTIONS)
        )
        if not isinstance(function, Step | Workflow):
            given: object = action
            remedy = "await it in a workflow" if isinstance(given, Canvas) else "make it one with @app.step"
            raise ArgumentError(f"s.step({show(action)}): give a step or a workflow; {remedy}")
        label = self._label(function.name)
        undo = None if compensate is None else _undo_with(compensate, f"s.step({function.name}, compensate=...)")
        execution = function._execution()
        if execution is None:
            return cast("R", self._plainly(label, function, args, kwargs, undo))
        call = function._encode(args, kwargs)

        def begin() -> asyncio.Future[Any]:
            return self._begin(label, lambda: _ask(function, execution, call, options), undo)

        if is_async(function):
            return cast("R", Call(execution, begin, f"step {label!r} of a saga"))
        return cast("R", wait_plainly(begin()))

    def _begin(self, label: str, ask: Callable[[], Future[Any]], undo: Undo | None) -> asyncio.Future[Any]:
        """Ask for an action. It goes on even if whoever waits for it is cancelled."""
        inner = ask()
        outer: asyncio.Future[Any] = inner.get_loop().create_future()
        self._under_way[inner] = label

        def ended(future: asyncio.Future[Any]) -> None:
            del self._under_way[inner]
            if inner.cancelled():
                outer.cancel()
                return
            error = inner.exception()
            if error is not None:
                self._failures.append((label, error))
                if not outer.done():
                    outer.set_exception(error)
                return
            if undo is not None:
                self._done.append((label, lambda: undo(inner.cmd, inner.result())))
            if not outer.done():
                outer.set_result(inner.result())

        inner.add_done_callback(ended)
        return outer

    def _failed_at(self, label: str, error: BaseException) -> None:
        """An action has failed before it could be asked for."""
        self._failures.append((label, error))

    def _label(self, name: str) -> str:
        """Steps of one name are told apart by number."""
        count = self._labels[name] = self._labels.get(name, 0) + 1
        return name if count == 1 else f"{name}#{count}"

    def _plainly(self, label: str, function: Any, args: Any, kwargs: Any, undo: Undo | None) -> Any:
        """Outside a run, where calls are plain calls."""

        def done(result: Any) -> Any:
            if undo is not None:
                self._done.append((label, lambda: undo("", result)))
            return result

        async def until_done() -> Any:
            try:
                return done(await function(*args, **kwargs))
            except Exception as error:
                self._failed_at(label, error)
                raise

        if is_async(function):
            return until_done()
        try:
            return done(function(*args, **kwargs))
        except Exception as error:
            self._failed_at(label, error)
            raise

    # -- back

    async def _roll_back(self, error: BaseException) -> SagaFailed | None:
        """Undo what was done. None if the block was cancelled, and nothing is left to tell."""
        while self._under_way:
            await asyncio.wait(list(self._under_way))
        compensated: list[str] = []
        not_compensated: dict[str, BaseException] = {}
        for label, undo in reversed(self._done):
            try:
                await undo()
            except Exception as why:
                not_compensated[label] = why
            else:
                compensated.append(label)
        self._done.clear()
        if isinstance(error, asyncio.CancelledError) and not not_compensated:
            return None
        step = next((label for label, raised in self._failures if _is_part(raised, error)), "")
        cause = next((raised for label, raised in self._failures if label == step), error)
        text = self._tell(step, cause, compensated, not_compensated)
        failed = SagaFailed(text, step=step, compensated=compensated, not_compensated=not_compensated)
        failed.__cause__ = cause
        return failed

    def _tell(
        self, step: str, cause: BaseException, compensated: list[str], not_compensated: dict[str, BaseException]
    ) -> str:
        text = f"{self._title} failed{f' at {step!r}' if step else ''}: {in_words(cause)}. "
        if not compensated and not not_compensated:
            return text + "There was nothing to compensate"
        text += f"Compensated: {', '.join(compensated) or 'nothing'}"
        if not_compensated:
            left = ", ".join(f"{label} ({in_words(why)})" for label, why in not_compensated.items())
            text += f". Not compensated, to be undone by hand: {left}"
        return text


def _is_part(raised: BaseException, error: BaseException) -> bool:
    if isinstance(error, BaseExceptionGroup):
        return any(_is_part(raised, each) for each in error.exceptions)
    return raised is error


def _ask(
    function: Step[..., Any] | Workflow[..., Any], execution: Execution, call: Raw, options: StartOptions
) -> Future[Any]:
    if isinstance(function, Step):
        return cast("Future[Any]", function._ask(execution, call, options))
    return cast("Future[Any]", function._child(execution, call, options, waited=True)._wait())


def _undo_with(compensate: Callable[..., Any], what: str) -> Undo:
    """From a step, a workflow or a partial of one: it takes the action's result after what the partial gives."""
    before: tuple[Any, ...] = ()
    named: dict[str, Any] = {}
    function: Any = compensate
    if isinstance(compensate, functools.partial):
        function, before, named = compensate.func, compensate.args, compensate.keywords
    if not isinstance(function, Step | Workflow):
        raise ArgumentError(f"{what}: {show(compensate)} is no step or workflow; make it one with @app.step")
    signature = function._definition.signature
    try:
        signature.bind(*before, None, **named)
    except TypeError as error:
        raise ArgumentError(
            f"{what}: {function.name}{signature} is called with the action's result, and can't be: {error}"
        ) from None

    async def plainly(result: Any) -> None:
        found = cast("Any", function)(*before, result, **named)
        if is_async(function):
            await found

    def undo(cmd: str, result: Any) -> Awaitable[Any]:
        execution = function._execution()
        if execution is None:
            return plainly(result)
        call = function._encode((*before, result), named)
        if isinstance(function, Step):
            return execution.steps.ask(function.name, call, undoes=cmd)
        options = child_options(NO_OPTIONS, function._definition.options.durable, execution.loop.now)
        return execution.children.ask(
            function.name, call, options=options, waited=True, abandon=False, undoes=cmd
        ).future  # fmt: skip

    return undo


class Saga(Composition):
    """A saga of named steps, one after the other over one context, defined once and known by its name.

    trip = Saga("book-trip", app=app)
    trip.add_step("flight", book_flight, cancel_flight)
    trip.add_step("hotel", book_hotel, compensate=lambda ctx: release(ctx["hotel"]))
    run = trip.start({"customer": 42})
    """

    _what = "saga"

    def __init__(self, name: str, *, app: Owner, **options: Any) -> None:
        """`options` are those of a workflow."""
        super().__init__(name, app, options)
        self._steps: list[str] = []

    def add_step(self, name: str, action: Any, compensate: Any = None, **options: Any) -> Saga:
        """Add a step, after those there are. `action` and `compensate` are steps, workflows, functions or lambdas: their
        parameters take values of the context by name, `ctx` all of it, and `result` what the action gave. `options`
        are those of the action."""
        self._add_handler(name, action, options, "step")
        if compensate is not None:
            self._add_handler(undo_key(name), compensate, {}, "the compensation of step")
        self._steps.append(name)
        return self

    def _plan(self) -> Plan:
        return Plan("saga", tuple(self._planned(name) for name in self._steps))

    def _planned(self, name: str) -> PlannedStep:
        action, undo = self._handlers[name], self._handlers.get(undo_key(name))
        return PlannedStep(
            name, action.name, action.is_workflow, undo=undo.name if undo is not None else "",
            undo_is_workflow=undo is not None and undo.is_workflow,
        )  # fmt: skip

    def _check_names(self, context: Context) -> None:
        known = dict(context)
        for name in self._steps:
            self._check_need(name, self._handlers[name], known)
            known[name] = None
            if undo_key(name) in self._handlers:
                self._check_need(undo_key(name), self._handlers[undo_key(name)], known, ("result",))

    async def _carry_out(self, execution: Execution, plan: Plan, context: Context) -> Raw:
        values = StepValues(execution, context)
        async with saga(self.name) as s:
            for step in plan.steps:
                handler = self._handler(execution, step.name, step.runs, step.is_workflow)
                undo = None if not step.undo else self._undo(execution, step, values)
                try:
                    action = s._begin(step.name, lambda: handler.ask(execution, step.name, values.scope()), undo)  # noqa: B023
                except ArgumentError as error:
                    execution.outputs.refuse_step(step.name, step.runs, error)
                    s._failed_at(step.name, error)
                    raise
                values.add(step.name, await action)
        return Raw(values.whole())

    def _undo(self, execution: Execution, step: PlannedStep, values: StepValues) -> Undo:
        handler = self._handler(execution, undo_key(step.name), step.undo, step.undo_is_workflow)

        async def undo(cmd: str, result: Any) -> None:
            given = {"result": (bytes(result), f"result of {step.name}")}
            try:
                asked = handler.ask(execution, undo_key(step.name), values.scope(), given, undoes=cmd)
            except ArgumentError as error:
                execution.outputs.refuse_step(undo_key(step.name), step.undo, error)
                raise
            await asked

        return undo

    async def _follow_directly(self, context: Context) -> Context:
        async with saga(self.name) as s:
            for name in self._steps:
                try:
                    context[name] = await self._call_directly(name, context)
                except Exception as error:
                    s._failed_at(name, error)
                    raise
                if undo_key(name) in self._handlers:
                    s._done.append((name, self._undo_plainly(name, context)))
        return context

    def _undo_plainly(self, name: str, context: Context) -> Callable[[], Coroutine[Any, Any, Any]]:
        return lambda: self._call_directly(undo_key(name), {**context, "result": context[name]})
