"""What a hook takes, as JSON Schema: for whoever makes a form of it."""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.api.models import Models


def hook_schema(models: Models, name: str) -> dict[str, Any] | None:
    """None for a hook that takes anything, or a type that no schema tells."""
    model = models.find(name)
    if model is None:
        return None
    own = getattr(model, "model_json_schema", None)  # pydantic
    if own is not None:
        found: dict[str, Any] = own()
        return found
    try:
        return msgspec.json.schema(model)
    except TypeError:
        return None
