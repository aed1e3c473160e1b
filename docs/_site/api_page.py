"""The page of all public names, from their docstrings."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import holdfast
import holdfast.testing
from holdfast.api.functions import AsyncStep, AsyncWorkflow, CallOptions

INTRODUCTION = """# All names

Every public name with what its docstring says, made from the code. The [reference](reference.md) has the same by subject,
with tables of options. Twins for async code (`astart`, `aresult`, ...) have the parameters of the methods they are named
after, and are left out here.
"""
REACHED = {
    "Step": AsyncStep,
    "Workflow": AsyncWorkflow,
    "Step.options(...)": CallOptions,
    "wf": type(holdfast.wf),
    "this_step": type(holdfast.this_step),
}
"""What users hold without naming its class."""


def page() -> str:
    return "\n".join([INTRODUCTION, *(line for title, found in entries() for line in _entry(title, found))]) + "\n"


def entries() -> Iterator[tuple[str, Any]]:
    for name in sorted(holdfast.__all__, key=str.lower):
        yield name, REACHED.get(name) or getattr(holdfast, name)
    yield "Step.options(...)", CallOptions
    for name in sorted(holdfast.testing.__all__, key=str.lower):
        yield f"testing.{name}", getattr(holdfast.testing, name)


def _entry(title: str, found: Any) -> Iterator[str]:
    yield f"## `{title}` {{ #{_anchor(title)} }}\n"
    is_made = inspect.isclass(found) and title not in REACHED and not issubclass(found, BaseException)
    if (is_made or inspect.isroutine(found)) and (form := _form(found, title)):
        yield f"```python\n{form}\n```\n"
    yield _text(found) + "\n"
    if not inspect.isclass(found) or issubclass(found, BaseException):
        return
    for name, member in inspect.getmembers(found):
        of_base = any(name in vars(base) for base in (object, tuple, list, str, dict, Exception))
        if name.startswith("_") or of_base or (name[0] == "a" and hasattr(found, name[1:])):
            continue
        if isinstance(member, property):
            yield f"- **`{name}`**: {_text(member)}"
        elif inspect.isroutine(member) and (form := _form(member, name)):
            yield f"- **`{form}`**  \n  {_text(member)}"
    yield ""


def _form(found: Any, name: str) -> str:
    try:
        signature = inspect.signature(found)
    except (TypeError, ValueError):
        return ""
    kept = [parameter for parameter in signature.parameters.values() if parameter.name not in ("self", "cls")]
    text = str(signature.replace(parameters=kept)).replace("'", "")
    return f"{name.rpartition('.')[2] or name}{text}"


def _text(found: Any) -> str:
    return " ".join((inspect.getdoc(found) or "").split()).replace("<", "&lt;")


def _anchor(title: str) -> str:
    return "".join(c if c.isalnum() or c == "_" else "-" for c in title).strip("-")
