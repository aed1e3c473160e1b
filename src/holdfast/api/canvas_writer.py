"""Canvases to data, as `to_dict()` gives it and as runs record it."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Raw

from holdfast.api.options import check_call, check_input, wrong_call
from holdfast.api.owner import Owner
from holdfast.core.definitions import StepDefinition, WorkflowDefinition
from holdfast.errors import ArgumentError, WrongContextError

if TYPE_CHECKING:
    from holdfast.api.signatures import Canvas, Signature

MOST_LEVELS = 100  # of nesting


class Writer:
    """Canvases to data, checked: every call must fit its function, with what it will be given."""

    def __init__(self, app: Owner) -> None:
        self._app = app
        self._fitting: set[tuple[Any, ...]] = set()
        self._level = 0

    def write(self, canvas: Canvas, given: bool | None) -> Raw:
        if self._level > MOST_LEVELS:
            raise ArgumentError(
                f"a canvas is nested deeper than {MOST_LEVELS} levels; start a part of it from a workflow"
            )
        self._level += 1
        try:
            node = canvas._node(self, given)
            node.link = [self.write(callback, afterwards(given)) for callback in canvas._links]
            node.link_error = [self.write(errback, afterwards(given)) for errback in canvas._errbacks]
            return Raw(msgspec.json.encode(node))
        finally:
            self._level -= 1

    def check_app(self, canvas: Canvas) -> None:
        if canvas.app is not self._app:
            raise WrongContextError(
                f"{canvas!r} belongs to app {canvas.app.name!r}, the rest to {self._app.name!r}; a canvas is of one app"
            )

    def value(self, value: Any, what: str) -> Raw:
        return Raw(self._app.codec.encode(value, what))

    def check(self, call: Signature, given: bool | None) -> None:
        if given is None:
            return
        first = given and not call.immutable
        looks = (call.name, first, len(call.args), *call.kwargs)
        if looks not in self._fitting:
            args = (None, *call.args) if first else call.args
            after = " after the result of what comes before it" if first else ""
            check_call(f"{call!r}{after}: {call.name}", call.definition, args, call.kwargs)
            self._fitting.add(looks)

    def check_values(self, call: Signature, given: bool | None, what: str) -> None:
        """What is known of its arguments must be what the function's annotations ask for."""
        if given is None:
            return
        after = int(given and not call.immutable)
        self._app.codec.check_call(call.args, call.kwargs, what, call.definition.hints, after)
        if not after:
            check_input(call.definition, call.args, call.kwargs)


_fitting: dict[Any, set[tuple[Any, ...]]] = weakref.WeakKeyDictionary()  # type: ignore[assignment]


def check_partial(
    definition: StepDefinition | WorkflowDefinition, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    """Too many arguments and unknown names are wrong whatever comes before. Each form of a call is tried once."""
    forms = _fitting.setdefault(definition.function, set())
    form = (len(args), *kwargs)
    if form in forms:
        return
    try:
        definition.signature.bind_partial(*args, **kwargs)
    except TypeError as error:
        raise wrong_call(definition.name, definition, error) from None
    forms.add(form)


def afterwards(given: bool | None) -> bool | None:
    """What comes after something is given its result, unless nothing is known yet."""
    return None if given is None else True
