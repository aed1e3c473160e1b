"""Resources as they are defined: which function makes one, from which others. Who opens and closes them is the
executors' business (`executors/surroundings.py`)."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, Generic, NoReturn, TypeVar

from holdfast.errors import DefinitionError
from holdfast.printing import show

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

_BY_NAME = inspect.Parameter.KEYWORD_ONLY
_EITHER = inspect.Parameter.POSITIONAL_OR_KEYWORD
_NAMED_REST = inspect.Parameter.VAR_KEYWORD


class Resource(Generic[T_co]):
    """Something that a worker opens once and its steps share: a pool, a client. Made by `@app.resource`."""

    __slots__ = ("function", "is_async", "name", "needs")

    def __init__(self, name: str, function: Callable[..., Any]) -> None:
        self.name = name
        self.function = function
        self.is_async = inspect.isasyncgenfunction(function)
        self.needs = resources_of(function, f"resource {name!r}", self.is_async)
        free = [p.name for p in recorded_signature(function, self.needs).parameters.values() if _is_required(p)]
        if free:
            raise DefinitionError(
                f"resource {name!r}: workers open it without arguments, so nothing gives {free[0]!r}; give it a default, or "
                "another resource: use(...)"
            )

    def __repr__(self) -> str:
        return f"<resource {self.name!r}>"

    def __getattr__(self, attribute: str) -> NoReturn:
        raise AttributeError(
            f"{attribute!r} was asked of {self!r} itself; its value is given to the parameters of steps and resources that "
            "say `= use(...)`, so take it there and pass it on"
        )


def use(resource: Resource[T]) -> T:
    """The default of a step's parameter that is given a resource: `def load(x: int, db: Pool = use(pool))`."""
    given: Any = resource
    if not isinstance(given, Resource):
        name = given.__name__ if inspect.isfunction(given) or inspect.isclass(given) else show(given)
        raise DefinitionError(f"use({name}): give a generator function that is decorated with @app.resource")
    return given  # type: ignore[return-value]  # it stands for the value until a worker gives that


def resources_of(function: Callable[..., Any], what: str, is_async: bool) -> dict[str, Resource[Any]]:
    """The resources that a function takes, by parameter."""
    parameters = list(inspect.signature(function).parameters.values())
    found = {p.name: p.default for p in parameters if isinstance(p.default, Resource)}
    for index, parameter in enumerate(parameters):
        if parameter.name not in found or parameter.kind is _BY_NAME:
            continue
        others = [p for p in parameters[index + 1 :] if p.name not in found and p.kind not in (_BY_NAME, _NAMED_REST)]
        if others or parameter.kind is not _EITHER:
            raise DefinitionError(
                f"{what}: {parameter.name!r} is a resource, which no caller counts among the arguments; put it last, or "
                f"after a `*`"
            )
    for name, resource in found.items():
        if resource.is_async and not is_async:
            raise DefinitionError(
                f"{what}: {name!r} is resource {resource.name!r}, which lives on the worker's event loop, where a plain "
                f"function can't reach it; make this one `async def`, or {resource.name!r} a plain generator"
            )
    return found


def recorded_signature(function: Callable[..., Any], resources: Mapping[str, Any]) -> inspect.Signature:
    """A function's signature as callers in runs see it: without its resources."""
    signature = inspect.signature(function)
    if not resources:
        return signature
    return signature.replace(parameters=[p for p in signature.parameters.values() if p.name not in resources])


def _is_required(parameter: inspect.Parameter) -> bool:
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return parameter.default is inspect.Parameter.empty and parameter.kind not in variadic
