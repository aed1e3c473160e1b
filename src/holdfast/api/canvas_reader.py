"""Signatures from data, as `to_dict()` gives it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Raw

from holdfast.api.owner import Owner
from holdfast.api.signatures import Canvas, Signature, chain, chord, each, group, in_short
from holdfast.core.canvases import NO_OPTIONS, CanvasNode, read
from holdfast.core.definitions import StepDefinition, WorkflowDefinition
from holdfast.core.registry import find_app
from holdfast.errors import ArgumentError, UnknownNameError
from holdfast.printing import show


def signature(data: Mapping[str, Any] | Canvas, *, app: Any = None) -> Canvas:
    """A canvas from what `to_dict()` gave. `app` says where its steps are, if not in the app of the name that it tells."""
    if isinstance(data, Canvas):
        return data.clone()
    if not isinstance(data, Mapping):
        raise ArgumentError(f"signature({in_short(data)}): give what a signature's to_dict() returned")
    if app is None:
        name = data.get("app")
        app = find_app(name) if isinstance(name, str) else None
        if app is None:
            raise UnknownNameError(
                f"signature(): no app named {show(name)} in this process; import the module that defines it, or give app=..."
            )
    given = {key: value for key, value in data.items() if key != "app"}
    try:
        return _Reader(app).read(msgspec.json.encode(given), "signature")
    except TypeError:
        raise _refusal("signature", given) from None


class _Reader:
    """Data to canvases."""

    def __init__(self, app: Owner) -> None:
        self._app = app

    def read(self, data: bytes | Raw, where: str) -> Canvas:
        try:
            node = read(data)
        except msgspec.ValidationError:
            raise _refusal(where, msgspec.json.decode(data)) from None
        canvas = self._shape(node, where)
        canvas._links = self._all(node.link, f"{where}.link")
        canvas._errbacks = self._all(node.link_error, f"{where}.link_error")
        return canvas

    def _shape(self, node: CanvasNode, where: str) -> Canvas:
        if node.chain is not None:
            made = chain()
            made.tasks = self._all(node.chain, f"{where}.chain")
            return made
        if node.group is not None or node.chord is not None:
            together = group()
            kind = "group" if node.chord is None else "chord"
            together.tasks = self._all(getattr(node, kind), f"{where}.{kind}")
            if node.chord is None:
                return together
            return chord(together, self.read(node.body, f"{where}.body"), on_failure=node.on_failure)
        if bytes(node.map):
            step = self.read(node.map, f"{where}.map")
            if not isinstance(step, Signature):
                raise _refusal(where, node.title)
            return each(step, [map(self._value, call) for call in node.items], star=True)
        return self._call(node, where)

    def _call(self, node: CanvasNode, where: str) -> Signature:
        definition: StepDefinition | WorkflowDefinition
        if node.step:
            definition = self._app.definitions.find_step(node.step)
        elif node.workflow:
            definition = self._app.definitions.find_workflow(node.workflow)
        else:
            raise _refusal(where, msgspec.to_builtins(node))
        values = {name: self._value(value) for name, value in node.kwargs.items()}
        made = Signature(self._app, definition, tuple(map(self._value, node.args)), values, node.immutable)
        return made if node.options is NO_OPTIONS else made.set(**self._value(node.options))

    def _all(self, parts: list[Raw], where: str) -> list[Canvas]:
        return [self.read(part, f"{where}[{i}]") for i, part in enumerate(parts)]

    def _value(self, data: Raw) -> Any:
        return self._app.codec.decode(data)


def _refusal(where: str, data: Any) -> ArgumentError:
    return ArgumentError(
        f"{where}: {in_short(data)} is no signature; give what to_dict() returned, e.g. {{'app': ..., 'step': 'add', "
        "'args': [1, 2]}"
    )
