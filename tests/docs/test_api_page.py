"""The page of all names is made of docstrings: each name is there, with its text."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

import holdfast

PAGE = Path(__file__).parents[2] / "docs" / "_site" / "api_page.py"


@pytest.fixture(scope="module")
def made() -> ModuleType:
    spec = importlib.util.spec_from_file_location("api_page", PAGE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_public_name_is_on_the_page_with_what_it_is(made: ModuleType) -> None:
    page = made.page()
    sections = {part.split("`")[1]: part for part in page.split("\n## ")[1:]}
    assert set(holdfast.__all__) <= set(sections)
    short = [name for name, text in sections.items() if len(text) < 40]
    assert short == [], "a name whose docstring says nothing"


def test_the_options_of_a_step_are_in_its_docstring() -> None:
    import inspect

    from holdfast.core.definitions import StepOptions, WorkflowOptions

    app = holdfast.App
    for method, options in ((app.step, StepOptions), (app.workflow, WorkflowOptions)):
        text = inspect.getdoc(method) or ""
        names = {field.replace("backoff", "retry_delay") for field in options.__dataclass_fields__}
        assert {name for name in names if f"`{name}`" not in text} == set()
