"""Fields of pydantic models that only pydantic can write: addresses of the web, for example. It writes them as JSON, and
reads that again."""

from __future__ import annotations

import sys
from typing import Any

import msgspec


class FieldForms:
    """The fields of one model, in pydantic's own form. Its validators are not called: what was recorded is the state that
    they have left."""

    def __init__(self, cls: Any) -> None:
        self._cls = cls
        self._adapters: dict[str, Any] = {}

    def can_write(self, name: str, value: Any) -> bool:
        """Whether what it writes is read as the same again. The stars of a secret are not."""
        try:
            again = self.read(name, self.write(name, value))
            return type(again) is type(value) and bool(again == value)
        except Exception:  # of pydantic, which doesn't know the type either, or of the value's own code
            return False

    def write(self, name: str, value: Any) -> Any:
        return self._adapter(name).dump_python(value, mode="json", warnings=False)

    def read(self, name: str, data: Any) -> Any:
        return self._adapter(name).validate_json(msgspec.json.encode(data))

    def _adapter(self, name: str) -> Any:
        if name not in self._adapters:
            annotation = self._cls.model_fields[name].rebuild_annotation()
            self._adapters[name] = sys.modules["pydantic"].TypeAdapter(annotation)
        return self._adapters[name]


def is_secret(value: object) -> bool:
    """Whether it is one of pydantic's secrets, which are written as stars."""
    types = sys.modules.get("pydantic.types")
    kinds = (getattr(types, name, ()) for name in ("SecretStr", "SecretBytes", "Secret"))
    return types is not None and isinstance(value, tuple(kind for kind in kinds if kind))
