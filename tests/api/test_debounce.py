"""Runs that are put off until nobody asks for them again, and runs that are not begun too late."""

from __future__ import annotations

import datetime as dt
from concurrent.futures import ThreadPoolExecutor

import pytest

from holdfast import App, ArgumentError, DefinitionError, RunCancelledError, sleep
from holdfast.testing import TestApp


def test_a_debounced_run_begins_once_it_is_quiet_with_what_was_given_last(app: App) -> None:
    seen: list[int] = []

    @app.workflow
    async def index(version: int) -> int:
        seen.append(version)
        return version

    with TestApp(app) as world:
        later = index.options(id="doc-7", debounce="5s")
        runs = []
        for version in range(4):
            runs.append(later.start(version))
            world.advance("4s")
        assert seen == []
        assert {run.id for run in runs} == {"doc-7@1"}
        world.advance("2s")
        assert seen == [3]
        assert runs[0].result() == 3
        assert later.start(9).id == "doc-7@2", "one that has begun is left alone"
        world.advance("6s")
        assert seen == [3, 9]


def test_a_debounced_run_is_put_off_at_most_so_long(app: App) -> None:
    seen: list[int] = []

    @app.step
    def index(version: int) -> None:
        seen.append(version)

    with TestApp(app) as world:
        later = app.remote("index").options(id="doc", debounce="5s", at_most="12s")
        for version in range(4):
            later.start(version)
            world.advance("4s")
        assert seen == [2], "12 s after the first"
        world.advance("12s")
        assert seen == [2, 3]
        assert [run.id for run in app.runs()] == ["doc@2", "doc@1"]


def test_keys_and_workflows_are_told_apart(app: App) -> None:
    @app.workflow
    async def one(number: int) -> int:
        return number

    @app.workflow
    async def two(number: int) -> int:
        return number

    with TestApp(app) as world:
        ids = [
            workflow.options(id=key, debounce="1s").start(1).id
            for workflow, key in ((one, "a"), (one, "a@b"), (two, "a"), (one, "a@b"))
        ]
        assert ids == ["a@1", "a@b@1", "a@2", "a@b@1"]
        world.advance("2s")
        assert app.count(status="SUCCESS") == 3


def test_however_many_debounce_at_once_there_is_one_run(app: App) -> None:
    @app.workflow
    async def index(version: int) -> int:
        return version

    def start(version: int) -> str:
        return index.options(id="doc", debounce="1h").start(version).id

    with ThreadPoolExecutor(4) as pool:
        assert {*pool.map(start, range(40))} == {"doc@1"}
    assert app.count() == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"debounce": "5s"}, "give id= too"),
        ({"id": "a", "at_most": "5s"}, "give debounce= too"),
        ({"id": "a", "debounce": "5s", "at_most": "1s"}, "shorter than debounce"),
        ({"id": "a", "debounce": "5s", "delay": "1s"}, "leave out delay="),
        ({"id": "a", "debounce": "5s", "if_exists": "error"}, "leave out delay="),
        ({"id": "a", "debounce": "soon"}, "debounce"),
        ({"expires": 0}, "leaves no time"),
        ({"expires": dt.datetime(2026, 1, 1)}, "has no time zone"),
    ],
)
def test_options_that_make_no_sense_are_refused(app: App, options: dict[str, object], message: str) -> None:
    @app.workflow
    async def index(version: int) -> None: ...

    with pytest.raises((DefinitionError, ArgumentError), match=message):
        index.options(**options)
    with pytest.raises(ArgumentError, match="is for one run at a time"):
        index.options(id="a", debounce="5s").start_many([1])


def test_a_run_that_nobody_began_in_time_is_cancelled(app: App) -> None:
    seen: list[int] = []

    @app.workflow
    async def look(number: int) -> None:
        seen.append(number)
        await sleep("1h")

    with TestApp(app) as world:
        late = look.options(delay="1m", expires="30s").start(1)
        soon = look.options(expires="30s").start(2)
        at = dt.datetime.fromtimestamp(app.store.now() / 1e6, dt.UTC) + dt.timedelta(seconds=30)
        also_late = look.apply_async((3,), countdown=60, expires=at)
        world.settle()
        world.advance("2h")
        assert seen == [2], "one that has begun goes on"
        assert soon.successful()
        for run in (late, also_late):
            with pytest.raises(RunCancelledError, match="it expired before a worker began it"):
                run.result()
        assert late.retry() is None
        world.settle()
        assert seen == [2, 1], "whoever retries it wants it even so"


def test_ids_that_differ_only_at_a_far_end_are_put_off_each_for_itself(app: App) -> None:
    @app.workflow
    async def index(name: str) -> str:
        return name

    with TestApp(app) as world:
        long = "x" * 250
        runs = [index.options(id=f"{long}{name}", debounce="5s").start(name) for name in "ab"]
        world.advance("6s")
        assert [run.result() for run in runs] == ["a", "b"]
