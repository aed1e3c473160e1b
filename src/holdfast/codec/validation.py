"""Pydantic's validation errors, which only pydantic can make: what they say is recorded, and said again."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

_HOME = "pydantic_core._pydantic_core"


def is_validation_error(cls: type) -> bool:
    """Whether it is that class itself. Pydantic is never imported for this."""
    home = sys.modules.get(_HOME)
    return home is not None and cls is getattr(home, "ValidationError", None)


def facts_of(error: Any, part: Callable[[object], Any]) -> dict[str, Any]:
    """What it consists of; `part` makes the values that were refused something that can be recorded."""
    details = error.errors(include_url=False, include_context=False)
    return {
        "title": error.title,
        "errors": [
            {"type": each["type"], "loc": list(each["loc"]), "msg": each["msg"], "input": part(each["input"])}
            for each in details
        ],
    }


def rebuild(cls: Any, facts: dict[str, Any]) -> BaseException:
    custom = sys.modules[_HOME].PydanticCustomError
    details = [
        {"type": custom(each["type"], each["msg"]), "loc": tuple(each["loc"]), "input": each["input"]}
        for each in facts["errors"]
    ]
    made: BaseException = cls.from_exception_data(facts["title"], details)
    return made
