"""The public surface: it changes only on purpose, is the same for async code, and explains itself."""

from __future__ import annotations

import ast
import difflib
import importlib
import inspect
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import App, Remote, Run, Schedules, Selection, Step, Workflow, errors
from holdfast.api.functions import CallOptions
from holdfast.testing import TestApp
from surface import describe, public_members, public_objects

SNAPSHOT = Path(__file__).with_name("surface.txt")


def test_the_public_surface_is_the_one_checked_in() -> None:
    """After a change on purpose: `HOLDFAST_UPDATE=1 pytest tests/surface`, and an entry in CHANGELOG.md."""
    now = describe()
    if os.environ.get("HOLDFAST_UPDATE") == "1":
        SNAPSHOT.write_text(now)
    before = SNAPSHOT.read_text()
    difference = difflib.unified_diff(before.splitlines(), now.splitlines(), "checked in", "now", lineterm="", n=1)
    assert before == now, "\n".join(difference)


def test_every_public_name_is_the_one_that_type_checkers_see() -> None:
    """What `if TYPE_CHECKING` imports, what is imported when it is used, and `__all__` are the same names."""
    tree = ast.parse(Path(holdfast.__file__).read_text())
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module not in LIBRARY]
    seen = {alias.name: node.module for node in imports for alias in node.names}
    assert seen == holdfast._HOME_OF
    assert holdfast.__all__ == sorted(seen)
    for name, module in seen.items():
        assert getattr(holdfast, name) is getattr(importlib.import_module(str(module)), name)


LIBRARY = ("__future__", "typing")


def test_dir_shows_the_public_names_before_they_are_used(tmp_path: Path) -> None:
    probe = (
        "import holdfast; print(*set(holdfast.__all__) - set(dir(holdfast))); holdfast.App; from holdfast import *; wf"
    )
    ran = subprocess.run(
        [sys.executable, "-c", probe], cwd=tmp_path, env=clean_environment(), capture_output=True, text=True, check=True
    )
    assert ran.stdout.strip() == ""


def test_a_name_that_does_not_exist_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'holdfast' has no attribute 'Ap'"):
        _ = holdfast.Ap


# -- the async edge

# Methods that need no twin: they don't wait for the store, or their twin is another syntax.
NO_TWIN: dict[type, set[str]] = {
    App: {
        "on",
        "on_failure",
        "define_hook",
        "define_request",
        "step",
        "task",
        "workflow",
        "resource",
        "around_step",
        "around_workflow",
        "around_start",
        "load",
        "use_store",
        "close",
        "worker",
        "executor",
        "lifespan",
        "remote",
        "select",
        "send_task",
    },
    # What `stream` returns is for `async for` as well; the others are Celery's words for what has a twin.
    Run: {"stream", "get", "ready", "successful", "failed"},
    Step: {"options", "submit", "delay", "apply_async", "s", "si", "signature", "map", "starmap", "chunks"},
    Workflow: {"options", "submit", "delay", "apply_async", "s", "si", "signature"},
    CallOptions: {"submit", "delay"},
    Remote: {"options", "delay", "apply_async"},
    Schedules: {"declare"},
    Selection: set(),
    TestApp: {"mock", "fail", "calls", "kinds", "replay"},
}
PROPERTIES_WITH_TWIN = ["status", "data", "steps"]


def sync_methods() -> Iterator[tuple[type, str]]:
    for cls, exempt in NO_TWIN.items():
        for name, member in public_members(cls):
            is_twin = inspect.iscoroutinefunction(member)
            if inspect.isfunction(member) and not is_twin and not name.startswith("_") and name not in exempt:
                yield cls, name


@pytest.mark.parametrize(("cls", "name"), list(sync_methods()))
def test_every_method_that_may_wait_has_an_async_twin_with_the_same_parameters(cls: type, name: str) -> None:
    twin = getattr(cls, f"a{name}", None)
    assert inspect.iscoroutinefunction(twin), f"{cls.__name__}.{name} has no a{name}"
    assert inspect.signature(twin) == inspect.signature(getattr(cls, name))


@pytest.mark.parametrize("name", PROPERTIES_WITH_TWIN)
def test_what_is_read_most_of_a_run_can_be_read_from_async_code(name: str) -> None:
    twin = getattr(Run, f"a{name}")
    assert inspect.signature(twin).return_annotation == inspect.signature(vars(Run)[name].fget).return_annotation


def test_every_async_method_is_the_twin_of_a_sync_one() -> None:
    for cls in NO_TWIN:
        for name, member in public_members(cls):
            if inspect.iscoroutinefunction(member) and not name.startswith("_"):
                assert hasattr(cls, name[1:]), f"{cls.__name__}.{name}"


# -- importing

PROBE = """
import json, sys
before = set(sys.modules)
{}
print(json.dumps(sorted(set(sys.modules) - before)))
"""
UNWELCOME = {
    "aiohttp", "attr", "celery", "click", "cloudpickle", "django", "fastapi", "flask", "http", "kombu", "numpy",
    "opentelemetry", "prometheus_client",
    "psycopg", "pydantic", "redis", "requests", "rich", "starlette", "tornado", "urllib3", "uvicorn", "xmlrpc",
}  # fmt: skip


def modules_after(code: str, folder: Path) -> set[str]:
    """What an interpreter has imported once it has run `code`."""
    ran = subprocess.run(
        [sys.executable, "-c", PROBE.format(code)],
        cwd=folder,
        env=clean_environment(),
        capture_output=True,
        text=True,
        check=True,
    )
    return set(json.loads(ran.stdout))


def test_importing_all_of_holdfast_imports_no_framework_and_opens_nothing(tmp_path: Path) -> None:
    modules = modules_after("from holdfast import *", tmp_path)
    assert not UNWELCOME & {name.partition(".")[0] for name in modules}
    assert list(tmp_path.iterdir()) == []


def test_importing_holdfast_imports_nothing_that_takes_time(tmp_path: Path) -> None:
    modules = modules_after("import holdfast", tmp_path)
    assert {name for name in modules if name.startswith("holdfast")} == {"holdfast"}
    assert not {"asyncio", "logging", "msgspec", "sqlite3"} & modules


def clean_environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith(("HOLDFAST_", "COV_"))}


# -- explaining


def undocumented(name: str, found: Any) -> Iterator[str]:
    doc = (found if callable(found) else type(found)).__doc__ or ""
    if not doc or doc.startswith(f"{getattr(found, '__name__', '')}("):  # the latter is what a dataclass says of itself
        yield name
    if inspect.isclass(found):
        for key, member in public_members(found):
            is_code = isinstance(member, property) or inspect.isroutine(member)
            is_twin = inspect.iscoroutinefunction(member) and hasattr(found, key[1:])
            if is_code and not is_twin and not key.startswith("__") and not inspect.getdoc(member):
                yield f"{name}.{key}"


def test_every_public_object_has_a_docstring() -> None:
    assert [missing for name, found in public_objects() for missing in undocumented(name, found)] == []


ERRORS = {
    name: cls
    for name, cls in vars(errors).items()
    if inspect.isclass(cls) and issubclass(cls, BaseException) and cls.__module__ == errors.__name__
}


@pytest.mark.parametrize("name", ERRORS)
def test_every_error_has_a_docstring_of_its_own(name: str) -> None:
    assert ERRORS[name].__dict__.get("__doc__")


def drawn_tree() -> dict[str, str | None]:
    """Each error in the tree that the module's docstring draws, with the one it hangs on."""
    parents: dict[str, str | None] = {}
    path: list[str] = []
    for line in inspect.cleandoc(errors.__doc__ or "").splitlines():
        found = re.match(r"^ {4}((?:[│ ] {3})*)(?:[├└]── )?(\w+)(?: |$)", line)
        if found is None or found[2] not in ERRORS or (parents and "── " not in line):
            continue
        depth = len(found[1]) // 4 + ("── " in line)
        path[depth:] = [found[2]]
        parents[found[2]] = path[depth - 1] if depth else None
    return parents


def test_the_tree_of_errors_in_the_docstring_is_the_real_one() -> None:
    drawn = drawn_tree()
    regular = {name: cls for name, cls in ERRORS.items() if issubclass(cls, Exception)}
    assert drawn == {
        name: None if cls is errors.HoldfastError else cls.__bases__[0].__name__ for name, cls in regular.items()
    }


def test_the_docstring_names_the_other_bases_of_errors() -> None:
    text = errors.__doc__ or ""
    for name, cls in ERRORS.items():
        for base in cls.__bases__[1:]:
            assert re.search(rf"{name} +\([\w, ]*\b{base.__name__}\b[\w, ]*\)", text), (
                f"{name} is also a {base.__name__}"
            )


def test_control_flow_is_named_apart_from_the_errors() -> None:
    control_flow = [name for name, cls in ERRORS.items() if not issubclass(cls, Exception)]
    last = (errors.__doc__ or "").partition("Control flow")[2]
    assert control_flow
    assert all(name in last and not name.endswith("Error") for name in control_flow)


def test_every_error_that_users_meet_is_at_the_top_of_the_package() -> None:
    assert [name for name, cls in ERRORS.items() if issubclass(cls, Exception) and name not in holdfast.__all__] == []
