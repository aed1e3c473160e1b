"""Signatures from data, as `to_dict()` gives it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NoReturn

import msgspec

from holdfast.api.signatures import Canvas, Signature, Starter, chain, chord, each, group, in_short
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
    return _Reader(app).read({key: value for key, value in data.items() if key != "app"}, "signature")


class _Reader:
    """Data to canvases."""

    def __init__(self, app: Starter) -> None:
        self._app = app

    def read(self, data: Any, where: str) -> Canvas:
        if not isinstance(data, Mapping):
            self._refuse(where, data)
        canvas = self._shape(data, where)
        canvas._links = self._all(data.get("link", ()), f"{where}.link")
        canvas._errbacks = self._all(data.get("link_error", ()), f"{where}.link_error")
        return canvas

    def _shape(self, data: Mapping[str, Any], where: str) -> Canvas:
        if "chain" in data:
            made = chain()
            made.tasks = self._all(data["chain"], f"{where}.chain")
            return made
        if "group" in data:
            together = group()
            together.tasks = self._all(data["group"], f"{where}.group")
            return together
        if "chord" in data:
            header = group()
            header.tasks = self._all(data["chord"], f"{where}.chord")
            body = self.read(data.get("body"), f"{where}.body")
            return chord(header, body, on_failure=data.get("on_failure", "finish"))
        if "map" in data:
            step = self.read(data["map"], f"{where}.map")
            if not isinstance(step, Signature) or not isinstance(data.get("items"), list):
                self._refuse(where, data)
            return each(step, self._value(data["items"]), star=True)
        return self._call(data, where)

    def _call(self, data: Mapping[str, Any], where: str) -> Signature:
        args, kwargs = data.get("args", []), data.get("kwargs", {})
        if not isinstance(args, list) or not isinstance(kwargs, Mapping):
            self._refuse(where, data)
        definition: StepDefinition | WorkflowDefinition
        if isinstance(data.get("step"), str):
            definition = self._app.find_step(data["step"])
        elif isinstance(data.get("workflow"), str):
            definition = self._app.find_workflow(data["workflow"])
        else:
            self._refuse(where, data)
        values = {name: self._value(value) for name, value in kwargs.items()}
        immutable = bool(data.get("immutable"))
        made = Signature(self._app, definition, tuple(map(self._value, args)), values, immutable)
        return made.set(**self._value(data["options"])) if "options" in data else made

    def _all(self, data: Any, where: str) -> list[Canvas]:
        return [self.read(each, f"{where}[{i}]") for i, each in enumerate(data)]

    def _value(self, data: Any) -> Any:
        return self._app.codec.decode(msgspec.json.encode(data))

    def _refuse(self, where: str, data: Any) -> NoReturn:
        raise ArgumentError(
            f"{where}: {in_short(data)} is no signature; give what to_dict() returned, e.g. {{'app': ..., 'step': 'add', "
            "'args': [1, 2]}"
        )
