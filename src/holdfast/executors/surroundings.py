"""What surrounds the attempts of one process: the resources they share, and the functions that wrap each of them.

A resource is opened by the first attempt that takes it and closed when the executor ends, last opened first. An async
one lives in a task of its own on the event loop, from its opening to its end: the attempt that opened it may be
cancelled, and what a generator enters (a task group, a cancel scope) has to be left in the same task.

It belongs to its loop. Where a step blocks the loop and others go on with a fresh one, the resource is opened anew
there; that of the old loop serves the steps that are left on it, and is closed when the last of them has ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import logging
import threading
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from typing import Any

from holdfast.blocking import run_blocking
from holdfast.core.context import StepAttempt, StepContext, current_step
from holdfast.core.definitions import Around, StepDefinition
from holdfast.core.reports import attempt_report
from holdfast.core.resources import Resource
from holdfast.core.spans import Span, never_yields, yields_again
from holdfast.errors import FatalError, ResourceError
from holdfast.telemetry.instruments import Instruments

logger = logging.getLogger("holdfast.executor")
CLOSE_TIMEOUT = 10.0


class Surroundings:
    """The resources that are open in this process, and what wraps its attempts. `replaced` are the stand-ins of a test:
    a value, or a resource to open instead. `secret` gives what tokens are signed with."""

    def __init__(
        self,
        arounds: Sequence[Around] = (),
        replaced: Mapping[Resource[Any], Any] | None = None,
        secret: Callable[[], bytes] = bytes,
        instruments: Instruments | None = None,
    ) -> None:
        self.secret = secret
        self._arounds = arounds
        self._instruments = Instruments() if instruments is None else instruments
        self._replaced = replaced or {}
        self._lock = threading.Lock()
        self._opening: dict[Resource[Any], threading.Lock] = {}
        self._values: dict[Resource[Any], Any] = {}
        self._lives: dict[tuple[asyncio.AbstractEventLoop, Resource[Any]], _Life] = {}
        self._closers: list[tuple[Resource[Any], Callable[[], None], _Life | None]] = []
        self.loops: set[asyncio.AbstractEventLoop] = set()  # where async attempts execute

    # -- attempts

    def execute(self, definition: StepDefinition, context: StepContext) -> Any:
        """Execute an attempt of a plain step on this thread."""
        self._enter(context)
        if not self._arounds:
            return self._call(definition, context)
        with contextlib.ExitStack() as stack:
            for around in self._arounds:
                if not around.is_async:
                    stack.enter_context(Span(around.function(_seen(definition, context)), _named(around)))
            return self._call(definition, context)

    def _call(self, definition: StepDefinition, context: StepContext) -> Any:
        args, kwargs = context.codec.decode_call(context.attempt.args, definition.hints, definition.name)
        if definition.resources:
            kwargs |= self.take(definition.resources)
        return definition.function(*args, **kwargs)

    async def aexecute(self, definition: StepDefinition, context: StepContext) -> Any:
        """Execute an attempt of an async step on the running loop."""
        self._enter(context)
        if not self._arounds and not definition.resources:
            args, kwargs = context.codec.decode_call(context.attempt.args, definition.hints, definition.name)
            return await definition.function(*args, **kwargs)
        async with contextlib.AsyncExitStack() as stack:
            for around in self._arounds:
                generator = around.function(_seen(definition, context))
                if around.is_async:
                    await stack.enter_async_context(_AsyncSpan(generator, _named(around)))
                else:
                    stack.enter_context(Span(generator, _named(around)))
            return await self._acall(definition, context)

    async def _acall(self, definition: StepDefinition, context: StepContext) -> Any:
        args, kwargs = context.codec.decode_call(context.attempt.args, definition.hints, definition.name)
        if definition.resources:
            kwargs |= await self.atake(definition.resources)
        return await definition.function(*args, **kwargs)

    def _enter(self, context: StepContext) -> None:
        context.surroundings = self
        current_step.set(context)
        if (tell := self._instruments.step_entered) is not None:
            tell(attempt_report(context.attempt, "STARTED"))

    # -- resources

    def take(self, resources: Mapping[str, Resource[Any]]) -> dict[str, Any]:
        """Their values, by parameter; opened if they aren't yet. No async ones: their definition refuses that."""
        return {parameter: self._value(resource) for parameter, resource in resources.items()}

    async def atake(self, resources: Mapping[str, Resource[Any]]) -> dict[str, Any]:
        """The same on the loop, where async ones live. A plain one is opened on a thread, so that nobody waits for it
        who doesn't need it."""
        return {parameter: await self._avalue(resource) for parameter, resource in resources.items()}

    def _value(self, resource: Resource[Any]) -> Any:
        if resource in self._values:
            return self._values[resource]
        with self._lock:
            opening = self._opening.setdefault(resource, threading.Lock())
        with opening:
            if resource not in self._values:
                chosen = self._replaced.get(resource, resource)
                if isinstance(chosen, Resource):
                    # Not in the context of the attempt that happens to be the first.
                    self._values[resource] = contextvars.Context().run(self._open, chosen)
                else:
                    self._values[resource] = chosen
            return self._values[resource]

    def _open(self, resource: Resource[Any]) -> Any:
        given = self.take(resource.needs)
        with _failure_told(resource):
            span = Span(resource.function(**given), _named(resource))
            value = span.__enter__()
        self._closers.append((resource, lambda: span.__exit__(None, None, None), None))
        return value

    async def _avalue(self, resource: Resource[Any]) -> Any:
        if resource in self._values:
            return self._values[resource]
        chosen = self._replaced.get(resource, resource)
        if not (isinstance(chosen, Resource) and chosen.is_async):
            return await run_blocking(lambda given_up: self._value(resource))
        place = (asyncio.get_running_loop(), resource)
        life = self._lives.get(place)
        if life is None:
            life = self._lives[place] = _Life()
            life.task = life.loop.create_task(
                self._live(resource, chosen, life), name=f"resource {chosen.name}", context=contextvars.Context()
            )
        return await asyncio.shield(life.opened)

    async def _live(self, resource: Resource[Any], chosen: Resource[Any], life: _Life) -> None:
        try:
            given = await self.atake(chosen.needs)
            with _failure_told(chosen):
                span = _AsyncSpan(chosen.function(**given), _named(chosen))
                value = await span.__aenter__()
        except BaseException as error:
            self._lives.pop((life.loop, resource), None)  # the next attempt tries again
            life.opened.set_exception(error)
            life.opened.exception()  # nobody may be waiting any more
            return
        self._closers.append((chosen, life.close, life))
        life.opened.set_result(value)
        await life.closing.wait()
        await span.__aexit__(None, None, None)

    def close(self) -> None:
        """Close what is open, the last opened first. Not to be called on the loop. One that fails or hangs is told to
        the log, and keeps no other from being closed."""
        opening: list[tuple[Resource[Any], Callable[[], None], _Life | None]] = [
            (resource, life.close, life) for (_, resource), life in list(self._lives.items()) if not life.opened.done()
        ]
        while closers := opening or self._closers:
            resource, close, _ = closers.pop()
            closing = threading.Thread(target=_close, args=(resource, close), name="holdfast-closing", daemon=True)
            closing.start()
            closing.join(CLOSE_TIMEOUT)
            if closing.is_alive():
                logger.error("resource %r has not closed within %g s; going on without", resource.name, CLOSE_TIMEOUT)
        self._values.clear()
        self._lives.clear()

    async def leave(self, loop: asyncio.AbstractEventLoop) -> None:
        """Close what lives on the running loop, which is about to end."""
        for resource, life in reversed(self.abandon(loop)):
            try:
                await asyncio.wait_for(life.end(), CLOSE_TIMEOUT)
            except BaseException:
                logger.exception("resource %r failed while it was closed", resource.name)

    def abandon(self, loop: asyncio.AbstractEventLoop) -> list[tuple[Resource[Any], _Life]]:
        """Know nothing more of what lives on a loop; what that is, in the order of opening."""
        self.loops.discard(loop)
        for place in [place for place in list(self._lives) if place[0] is loop]:
            del self._lives[place]
        found = [(r, life) for r, _, life in list(self._closers) if life is not None and life.loop is loop]
        self._closers = [closer for closer in self._closers if closer[2] is None or closer[2].loop is not loop]
        return found


class _Life:
    """An async resource from its opening to its end."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.opened: asyncio.Future[Any] = self.loop.create_future()
        self.closing = asyncio.Event()
        self.task: asyncio.Task[None] | None = None

    def close(self) -> None:
        asyncio.run_coroutine_threadsafe(self.end(), self.loop).result()

    async def end(self) -> None:
        assert self.task is not None
        self.closing.set()
        if not self.opened.done():
            self.task.cancel()
        await self.task


class _AsyncSpan(contextlib.AbstractAsyncContextManager[Any, None]):
    """`Span`, of an async generator."""

    def __init__(self, generator: AsyncGenerator[Any, None], who: str) -> None:
        self._generator = generator
        self._who = who

    async def __aenter__(self) -> Any:
        try:
            return await anext(self._generator)
        except StopAsyncIteration:
            raise never_yields(self._who) from None

    async def __aexit__(self, kind: Any, error: BaseException | None, traceback: Any) -> None:
        try:
            await (anext(self._generator) if error is None else self._generator.athrow(error))
        except StopAsyncIteration:
            return
        await self._generator.aclose()
        raise yields_again(self._who)


def _named(what: Around | Resource[Any]) -> str:
    return f"{'around_step' if isinstance(what, Around) else 'resource'} {what.name!r}"


def _seen(definition: StepDefinition, context: StepContext) -> StepAttempt:
    attempt = context.attempt
    return StepAttempt(
        attempt.step, attempt.run_id, attempt.workflow, attempt.number, attempt.idempotency_key, definition.is_async,
        attempt.headers,
    )  # fmt: skip


@contextlib.contextmanager
def _failure_told(resource: Resource[Any]) -> Iterator[None]:
    try:
        yield
    except FatalError:
        raise
    except Exception as error:
        raise ResourceError(
            f"resource {resource.name!r} could not be opened: {type(error).__name__}: {error}; the next attempt of a step "
            "that takes it tries again"
        ) from error


def _close(resource: Resource[Any], close: Callable[[], None]) -> None:
    try:
        close()
    except BaseException:
        logger.exception("resource %r failed while it was closed", resource.name)
