"""What a step returns is compared with its annotation: a worker warns, a test fails."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from holdfast import App, EncodeError
from holdfast.testing import TestApp


def make_app(path: Any = ":memory:") -> App:
    app = App("results", str(path), include=[])

    @app.step
    def count(text: Any) -> int:
        return text  # type: ignore[no-any-return]

    @app.step
    async def pairs(text: Any) -> list[tuple[str, int]]:
        return text  # type: ignore[no-any-return]

    @app.step
    def anything(value: Any):  # type: ignore[no-untyped-def]
        return value

    return app


@pytest.mark.parametrize(
    ("step", "value", "words"),
    [
        ("count", "two", "the result of step 'count': expected int, got 'two' of type str"),
        ("pairs", [["a", 1], ["b", "x"]], "the result of step 'pairs': [1][1]: expected int"),
    ],
)
def test_in_a_test_a_result_that_is_not_what_the_annotation_says_is_a_failure(
    step: str, value: object, words: str
) -> None:
    app = make_app()
    with TestApp(app), pytest.raises(EncodeError) as raised:
        app.start(step, value).result()
    assert words in str(raised.value)
    assert "return what the annotation says, or correct it" in str(raised.value)


@pytest.mark.parametrize(
    ("step", "value"),
    [("count", 2), ("count", True), ("pairs", [("a", 1)]), ("pairs", [["a", 1]]), ("anything", {"x": 1})],
)
def test_a_result_that_can_be_made_what_the_annotation_says_is_one(step: str, value: Any) -> None:
    app = make_app()
    with TestApp(app):
        assert app.start(step, value).result() is not None


def test_a_worker_warns_of_it_and_keeps_the_warning_with_the_run(tmp_path: Any, caplog: Any) -> None:
    app = make_app(tmp_path / "results.db")
    with app.worker(), caplog.at_level(logging.WARNING, "holdfast.step"):
        run = app.start("count", "two")
        assert run.result(timeout=20) == "two"
    (warning,) = [record for record in caplog.records if record.name == "holdfast.step"]
    assert "the result of step 'count': expected int, got 'two'" in warning.getMessage()
    (kept,) = run.logs()
    assert ["expected int, got 'two'" in line.message for line in kept.lines] == [True]
