"""Steps that are called outside of a run, or by another step: plain calls of their functions. Resources that the caller
doesn't pass are the worker's if a step calls; else they are opened for this call."""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from typing import Any

from holdfast.api.scratch import in_scratch
from holdfast.core.context import current_step
from holdfast.core.definitions import StepDefinition
from holdfast.core.resources import Resource
from holdfast.executors.surroundings import Surroundings
from holdfast.ports import StepTransaction

Replaced = Mapping[Resource[Any], Any]
plain_transaction: ContextVar[StepTransaction | None] = ContextVar("holdfast_plain_transaction", default=None)
"""Of a step with transaction=True that is called plainly."""


def call_in_transaction(call: Callable[[], Any], begin: Callable[[], StepTransaction]) -> Any:
    """What a step with transaction=True gives, and writes: in the transaction of the step that calls it, if that has one;
    else in one of its own, which is committed unless it raises."""
    step = current_step.get()
    if (step is not None and step.transaction is not None) or plain_transaction.get() is not None:
        return call()
    transaction = begin()
    token = plain_transaction.set(transaction)
    try:
        result = call()
        if transaction.has_begun:
            transaction.commit(b"")
        return result
    finally:
        plain_transaction.reset(token)
        transaction.rollback()


def call_directly(definition: StepDefinition, args: tuple[Any, ...], kwargs: dict[str, Any], replaced: Replaced) -> Any:
    """What the function gives: a result, or of an async step a coroutine."""
    return in_scratch(lambda: _call_as_it_is(definition, args, kwargs, replaced), definition.is_async)


def _call_as_it_is(
    definition: StepDefinition, args: tuple[Any, ...], kwargs: dict[str, Any], replaced: Replaced
) -> Any:
    missing = _missing(definition, args, kwargs) if definition.resources else None
    if not missing:
        return definition.function(*args, **kwargs)
    call = functools.partial(definition.function, *args, **kwargs)
    return (_acall if definition.is_async else _call)(call, missing, replaced)


def _missing(
    definition: StepDefinition, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> dict[str, Resource[Any]] | None:
    """The resources that the caller has not given. Other mistakes are the function's to tell."""
    try:
        given = inspect.signature(definition.function).bind(*args, **kwargs).arguments
    except TypeError:
        return None
    return {name: resource for name, resource in definition.resources.items() if name not in given}


def _call(call: Callable[..., Any], missing: dict[str, Resource[Any]], replaced: Replaced) -> Any:
    step = current_step.get()
    surroundings = Surroundings((), replaced) if step is None else step.surroundings
    try:
        return call(**surroundings.take(missing))
    finally:
        if step is None:
            surroundings.close()


async def _acall(call: Callable[..., Any], missing: dict[str, Resource[Any]], replaced: Replaced) -> Any:
    """A step that has made a loop of its own can't reach what lives on the worker's."""
    step = current_step.get()
    is_at_home = step is not None and asyncio.get_running_loop() in step.surroundings.loops
    surroundings = step.surroundings if step is not None and is_at_home else Surroundings((), replaced)
    try:
        return await call(**await surroundings.atake(missing))
    finally:
        if not is_at_home:
            await asyncio.to_thread(surroundings.close)
