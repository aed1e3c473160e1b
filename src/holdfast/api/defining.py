"""From what users decorate to definitions: what is called, under which name, where it is written."""

from __future__ import annotations

import functools
import inspect
import os
import sys
from collections.abc import Callable
from types import CodeType
from typing import Any, get_type_hints

from holdfast.api.functions import is_decorated
from holdfast.codec import Codec
from holdfast.core.definitions import (
    Around,
    StepDefinition,
    StepOptions,
    WorkflowDefinition,
    WorkflowOptions,
)
from holdfast.core.resources import resources_of
from holdfast.errors import DefinitionError
from holdfast.printing import show


def step_of(codec: Codec, function: Any, name: str | None, options: StepOptions, place: str = "") -> StepDefinition:
    call, is_async = _callable(function, "step")
    if options.transaction and is_async:
        raise DefinitionError(
            "transaction=True is for steps made from `def`, as their connection is one that blocks; leave out `async`"
        )
    chosen = _name_of(function) if name is None else name
    resources = resources_of(call, f"step {chosen!r}", is_async)
    hints = codec.hints_for(call, resources)
    return StepDefinition(
        chosen, call, is_async, options, hints, _result_type(call), place or _place(function), resources,
        defined_by=_module_code(),
    )  # fmt: skip


def workflow_of(
    codec: Codec,
    function: Any,
    name: str | None,
    options: WorkflowOptions,
    place: str = "",
    check: Callable[..., None] | None = None,
) -> WorkflowDefinition:
    call, is_async = _callable(function, "workflow")
    chosen = _name_of(function) if name is None else name
    for parameter in resources_of(call, f"workflow {chosen!r}", is_async=True):
        raise DefinitionError(
            f"workflow {chosen!r} takes the resource {parameter!r}, but a workflow is replayed and does no I/O of its own; "
            "let a step take it"
        )
    return WorkflowDefinition(
        chosen, call, is_async, options, codec.hints_for(call), _result_type(call), place or _place(function), check=check,
        defined_by=_module_code(),
    )  # fmt: skip


def _callable(function: Any, what: str) -> tuple[Callable[..., Any], bool]:
    """What to call, and whether it is async. A class is made anew for each call."""
    if is_decorated(function):
        raise DefinitionError(f"{function!r} can't be made a {what} too; decorate a function once")
    if isinstance(function, type):
        return _class_call(function, what)
    if not callable(function):
        raise DefinitionError(f"{what}: {show(function)} is not a function or a class")
    if inspect.isasyncgenfunction(function) or inspect.isgeneratorfunction(function):
        raise DefinitionError(
            f"{what} {function.__qualname__}: a generator can't be one; return a list, or stream items"
        )
    is_async = inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)
    return function, is_async


def _class_call(cls: Any, what: str) -> tuple[Callable[..., Any], bool]:
    method = next((vars(base)["__call__"] for base in cls.__mro__ if "__call__" in vars(base)), None)
    if method is None:
        raise DefinitionError(f"{what} {cls.__qualname__}: a class needs a __call__ method")
    try:
        inspect.signature(cls).bind()
    except TypeError as error:
        raise DefinitionError(
            f"{what} {cls.__qualname__}: workers make it without arguments, but {cls.__qualname__}.__init__ is {error}; "
            f"give defaults, or decorate an instance: app.{what}({cls.__name__}(...))"
        ) from None

    def call(*args: Any, **kwargs: Any) -> Any:
        return cls()(*args, **kwargs)

    signature = inspect.signature(method)
    parameters = list(signature.parameters.values())[1:]
    call.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    call.__annotations__ = get_type_hints(method)
    call.__name__, call.__qualname__, call.__module__ = cls.__name__, cls.__qualname__, cls.__module__
    return call, inspect.iscoroutinefunction(method)


def _name_of(function: Any) -> str:
    name = getattr(function, "__name__", None) or type(function).__name__
    if name == "<lambda>" or isinstance(function, functools.partial):
        raise DefinitionError(f"a {name.strip('<>')} has no name of its own; give name='...'")
    return str(name)


def _result_type(function: Callable[..., Any]) -> Any:
    try:
        return get_type_hints(function).get("return", Any)
    except Exception:  # an annotation that can't be evaluated here says nothing about the result
        return Any


def _place(function: Any) -> str:
    try:
        return f"{inspect.getsourcefile(function)}:{inspect.getsourcelines(function)[1]}"
    except (OSError, TypeError):
        return f"{getattr(function, '__module__', '?')}.{getattr(function, '__qualname__', function)}"


Definition = StepDefinition | WorkflowDefinition | Around


def same_code(one: Definition, other: Definition) -> bool:
    """A module that runs as `__main__` and is imported by its name defines everything twice; so does a reload, and who
    edits a cell of a notebook. A function that defines a step each time it is called does not: those are two steps."""
    if type(one) is not type(other) or "<locals>" in getattr(other.function, "__qualname__", ""):
        return False
    return (one.place == other.place and ":" in one.place) or _is_redefined(one, other)


def _is_redefined(one: Definition, other: Definition) -> bool:
    """Whether the same name of the same module is defined by code that is executed later: that of a file that was edited
    and reloaded, of another line of a console, of another cell. Two functions of one file are defined by the same code."""
    before, now = one.defined_by, other.defined_by
    if before is None or now is None or before is now or _full_name(one.function) != _full_name(other.function):
        return False
    return before.co_filename == now.co_filename or not os.path.exists(now.co_filename)


def _full_name(function: Any) -> tuple[str, str]:
    return getattr(function, "__module__", ""), getattr(function, "__qualname__", repr(function))


def _module_code() -> CodeType | None:
    """The code at the top of the module, console or cell that is being executed, if any is."""
    frame = inspect.currentframe()
    while frame is not None and frame.f_code.co_name != "<module>":
        frame = frame.f_back
    return None if frame is None else frame.f_code


# -- generators that wrap something


def add_around(known: list[Around], function: Any, what: str, given: str, plain: bool = False) -> None:
    check_generator(function, what)
    name = function.__name__
    if plain and inspect.isasyncgenfunction(function):
        raise DefinitionError(f"{what} {name!r} is an async generator; give a plain one, as it must not wait")
    try:
        inspect.signature(function).bind(None)
    except TypeError as error:
        raise DefinitionError(f"{what} {name!r} is given one argument, {given}: {error}") from None
    around = Around(name, function, inspect.isasyncgenfunction(function), _place(function), _module_code())
    same = [i for i, other in enumerate(known) if same_code(other, around)]
    if same:
        known[same[0]] = around
    else:
        known.append(around)


def check_generator(function: Any, what: str) -> None:
    if not (inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function)):
        name = function.__qualname__ if inspect.isroutine(function) else show(function)
        raise DefinitionError(
            f"{what} {name}: give a generator function, which yields once, as `@contextlib.contextmanager` takes it (but "
            "without that decorator)"
        )


# -- tasks of Celery


def is_celery_task(function: Any) -> bool:
    """Whether it is a task of Celery's, which nobody has if Celery was not imported. Until it is used a task is a stand-in,
    and its class may not be imported yet."""
    if "celery" not in sys.modules or inspect.isroutine(function) or isinstance(function, type):
        return False
    from holdfast.executors.celery.durable import is_task  # Celery is there

    return is_task(function)


def with_task_options(function: Any, given: dict[str, Any]) -> dict[str, Any]:
    """The options of a step that is made of a task: what it has as a task counts, unless something else is said."""
    if not is_celery_task(function):
        return given
    from holdfast.executors.celery.durable import OPTIONS  # Celery is there if it has a task

    return {**OPTIONS, **given}
