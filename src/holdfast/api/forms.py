"""What a hook or a workflow takes, as JSON Schema: for whoever makes a form of it."""

from __future__ import annotations

from inspect import Parameter
from typing import Any

import msgspec

from holdfast.api.models import Models
from holdfast.core.definitions import StepDefinition, WorkflowDefinition

BY_NAME = (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)


def hook_schema(models: Models, name: str) -> dict[str, Any] | None:
    """None for a hook that takes anything, or a type that no schema tells."""
    model = models.find(name)
    return None if model is None else _schema_of(model)


def call_schema(definition: StepDefinition | WorkflowDefinition) -> dict[str, Any] | None:
    """All arguments as one object; what no schema tells of may be anything. None if some have no name to be given by."""
    parameters = definition.signature.parameters.values()
    if any(parameter.kind not in BY_NAME for parameter in parameters):
        return None
    properties: dict[str, Any] = {}
    shared: dict[str, Any] = {}
    for parameter in parameters:
        found = _schema_of(definition.hints.annotation(parameter.name)) or {}
        classes = found.pop("$defs", {})
        if any(shared.get(name, each) != each for name, each in classes.items()):  # two classes of one name
            found, classes = {}, {}
        shared |= classes
        properties[parameter.name] = {**found, **_default_of(parameter)}
    required = [parameter.name for parameter in parameters if parameter.default is Parameter.empty]
    return {"type": "object", "properties": properties, "required": required, "$defs": shared}


def _schema_of(model: Any) -> dict[str, Any] | None:
    own = getattr(model, "model_json_schema", None)  # pydantic
    if own is not None:
        found: dict[str, Any] = own()
        return found
    try:
        return msgspec.json.schema(model)
    except TypeError:
        return None


def _default_of(parameter: Parameter) -> dict[str, Any]:
    """As JSON, where it can be told so."""
    if parameter.default is Parameter.empty:
        return {}
    try:
        return {"default": msgspec.json.decode(msgspec.json.encode(parameter.default))}
    except (TypeError, ValueError, RecursionError):
        return {}
