"""Annotations as types, even if some can't be resolved, or name a class that only a function's body knows."""

from __future__ import annotations

import inspect
import sys
import types
import typing
from collections.abc import Mapping
from typing import Any

Scope = Mapping[str, Any]


def resolve(owner: Any, scope: Scope) -> tuple[dict[str, Any], dict[str, str]]:
    """The annotations of a function or class, and the texts of those that can't be evaluated."""
    if isinstance(owner, type):
        nested = {name: value for name, value in vars(owner).items() if isinstance(value, type)}
        scope = {**scope, owner.__name__: owner, **nested}
    try:
        return typing.get_type_hints(owner, localns=dict(scope), include_extras=True), {}
    except Exception:  # whatever an odd annotation raises; look at each alone
        pass
    hints: dict[str, Any] = {}
    unresolved: dict[str, str] = {}
    for part in reversed(owner.__mro__) if isinstance(owner, type) else [owner]:
        module = sys.modules.get(getattr(part, "__module__", ""), types)
        names = getattr(part, "__globals__", vars(module))
        for name, hint in inspect.get_annotations(part).items():
            alone = types.SimpleNamespace(__annotations__={name: hint})
            try:
                hints.update(typing.get_type_hints(alone, names, dict(scope), include_extras=True))
            except Exception:  # this one stays unknown
                unresolved[name] = str(hint)
    return hints, unresolved


def enclosing_scope(fn: Any) -> Scope:
    """The local names where `fn` is being defined: with postponed annotations nothing else holds them."""
    code = getattr(fn, "__code__", None)
    if code is None or "<locals>" not in fn.__qualname__:
        return {}
    frame = inspect.currentframe()
    while frame is not None:
        if code in frame.f_code.co_consts:
            return dict(frame.f_locals)
        frame = frame.f_back
    return {}


def parts_of(hint: Any) -> list[Any]:
    """What an annotation is made of, one level down."""
    if isinstance(hint, list):  # the parameters of a Callable
        return hint
    if isinstance(hint, typing.TypeVar):
        return [hint.__bound__, *hint.__constraints__]
    if typing.get_origin(hint) is typing.Literal:
        return [type(value) for value in typing.get_args(hint)]
    parts = [typing.get_origin(hint), *typing.get_args(hint)]
    if not isinstance(hint, type):
        parts += [getattr(hint, "__value__", None), getattr(hint, "__supertype__", None)]  # alias, NewType
    return parts
