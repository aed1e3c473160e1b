"""Celery's own words, as its guide writes them."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast import App, RunNotFoundError, WrongContextError, chord, group


@pytest.fixture
def add(app: App) -> Any:
    @app.task
    def add(x: int, y: int) -> int:
        return x + y

    return add


def test_handles_have_celerys_words(app: App, add: Any) -> None:
    @app.task(max_retries=0)
    def fail() -> None:
        raise ValueError("no")

    run = add.delay(1, 2)
    assert not run.ready()
    with app.worker():
        assert run.get(timeout=20) == 3
        failed = fail.apply_async()
        with pytest.raises(ValueError, match="no"):
            failed.get(timeout=20)
        assert str(failed.get(propagate=False)) == "no"
    assert (run.ready(), run.successful(), run.failed()) == (True, True, False)
    assert (failed.ready(), failed.successful(), failed.failed()) == (True, False, True)


def test_signatures_are_made_and_called_as_in_celery(app: App, add: Any) -> None:
    @app.task
    def total(numbers: list[int]) -> int:
        return sum(numbers)

    with app.worker():
        assert ~add.s(2, 2) == 4
        assert ~add.signature((2, 3)) == 5
        assert ~add.signature((2,), {"y": 5}, countdown=0) == 7
        assert ~(add.s(1, 1) | add.signature((10, 10), immutable=True)) == 20
        assert ~(add.s(1, 1) | add.s(4, 4).set(immutable=True)) == 8
        assert ~chord([add.s(1, 1), add.s(2, 2)], total.s()) == 6
        assert ~(add.s(1, 1) | group(add.s(1, 2), add.s(3, 4)).set(immutable=True)) == [3, 7]

    @app.workflow
    async def wrong() -> object:
        return ~add.s(1, 1)

    with app.worker(), pytest.raises(WrongContextError, match="await it"):
        wrong.start().result(timeout=20)


def test_an_empty_group_gives_an_empty_result(app: App) -> None:
    for run in (group([])(), group().delay(), group([]).apply_async(), group([]).options(id="x").start()):
        assert run.get() == run.result(timeout=1) == []
        assert run.ready()
        assert run.successful()
        with pytest.raises(RunNotFoundError, match="an empty group has no run"):
            run.history()

    @app.workflow
    async def inside() -> object:
        return await group([])

    with app.worker():
        assert inside.start().result(timeout=20) == []
