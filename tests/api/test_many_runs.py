"""Many runs at once: started with one commit, counted, and acted on by a filter."""

from __future__ import annotations

import asyncio
import datetime as dt
from pathlib import Path

import pytest

from holdfast import App, ArgumentError, RunExistsError, WrongContextError, hook, sleep
from holdfast.testing import TestApp


def test_many_runs_are_started_with_one_commit_in_the_order_given(app: App) -> None:
    @app.workflow
    async def add(a: int, b: int = 10) -> int:
        return a + b

    with TestApp(app) as world:
        commits: list[int] = []
        create_all = app.store.create_all
        app.store.create_all = lambda runs, collision: commits.append(len(runs)) or create_all(runs, collision)
        runs = add.start_many([1, (2, 3), (4,)], ids=["x", "y", "z"])
        assert commits == [3]
        world.settle()
        assert [run.id for run in runs] == ["x", "y", "z"]
        assert [run.result() for run in runs] == [11, 5, 14]
        assert [run.result() for run in add.options(priority=3).start_many(range(100))] == [n + 10 for n in range(100)]
        assert add.start_many([]) == []


def test_thousands_of_runs_are_started_in_a_moment(app: App) -> None:
    @app.workflow
    async def nothing(number: int) -> int:
        return number

    runs = nothing.start_many(range(2_000))
    assert app.count() == app.count(workflow="nothing", status="PENDING") == 2_000
    with app.worker():
        assert runs[1_999].result(timeout=60) == 1_999


def test_either_all_are_started_or_none(app: App) -> None:
    @app.workflow
    async def count(number: int) -> int:
        return number

    with TestApp(app):
        count.options(id="b").start(5)
        with pytest.raises(RunExistsError, match="run 'b' exists with other arguments"):
            count.start_many([1, 2, 3], ids=["a", "b", "c"])
        assert [run.id for run in app.runs()] == ["b"]
        with pytest.raises(ArgumentError, match="number: expected int, got 'two'"):
            count.start_many([1, "two"])
        assert app.count() == 1
        assert [run.result() for run in count.start_many([1, 5], ids=["a", "b"])] == [1, 5]
        assert app.count() == 2
        with pytest.raises(RunExistsError, match="there is a run 'b' already"):
            count.options(if_exists="error").start_many([5, 6], ids=["b", "d"])
        assert app.count() == 2


@pytest.mark.parametrize(
    ("calls", "ids", "message"),
    [
        (5, None, "give a list with the arguments of each call"),
        ("abc", None, "give a list with the arguments of each call"),
        ([1, 2], ["a"], "2 calls, but 1 ids"),
        ([1, 2], ["a", "a"], "the id 'a' is given twice"),
        ([1], "a", "give a list with an id for each call"),
        ([1], [[]], "id=\\[\\]"),
        ([(1, 2, 3)], None, "too many positional arguments"),
    ],
)
def test_what_is_wrong_is_refused_before_anything_is_written(
    app: App, calls: object, ids: object, message: str
) -> None:
    @app.workflow
    async def count(number: int) -> int:
        return number

    with pytest.raises(Exception, match=message):
        count.start_many(calls, ids=ids)
    with pytest.raises(ArgumentError, match="can't all have the id 'x'"):
        count.options(id="x").start_many([1, 2])
    with pytest.raises(ArgumentError, match="is for one at a time"):
        count.options(if_exists="restart").start_many([1])
    assert app.count() == 0


def test_a_step_starts_many_children_once_however_often_it_is_tried(app: App) -> None:
    tried: list[int] = []

    @app.workflow
    async def child(number: int) -> int:
        return number

    @app.step(retry_delay=0)
    def spread() -> list[str]:
        runs = child.start_many(range(3))
        tried.append(1)
        if len(tried) == 1:
            raise ValueError("once more")
        return [run.id for run in runs]

    @app.workflow
    async def parent() -> list[str]:
        return spread()

    @app.workflow
    async def wrong() -> None:
        child.start_many([1])

    with TestApp(app):
        run = parent.start()
        started = run.result()
        assert [each.id for each in run.children()] == started
        assert len(tried) == 2
        with pytest.raises(WrongContextError, match=r"use \.submit"):
            wrong.start().result()


def test_runs_are_counted_and_acted_on_by_a_filter(app: App) -> None:
    @app.workflow
    async def waits(number: int) -> object:
        return await hook("never")

    @app.workflow
    async def fails() -> None:
        raise ValueError("no")

    with TestApp(app) as world:
        old = waits.start_many(range(3))
        world.advance("3d")
        young = waits.start_many(range(2))
        failed = fails.start_many([()] * 4)
        world.settle()
        assert app.count(status="WAITING") == 5
        assert app.count(status=["WAITING", "FAILURE"]) == 9
        assert app.count(workflow="wai*", older_than="2d") == 3
        before = app.store.now() - 86_400_000_000
        assert len(app.runs(until=dt.datetime.fromtimestamp(before / 1e6, dt.UTC))) == 3

        chosen = app.select(older_than="2d")
        assert chosen.counts() == {"WAITING": 3}
        assert (chosen.count("cancel"), chosen.count("retry"), chosen.count("delete")) == (3, 0, 0)
        assert chosen.cancel("too old") == (3, 0)
        world.settle()
        assert {(run.status, run.reason) for run in old} == {("CANCELLED", "too old")}
        assert {run.status for run in young} == {"WAITING"}

        assert app.select(workflow="fails").delete() == (4, 0)
        assert app.count(workflow="fails") == 0
        assert all(run.id not in {each.id for each in app.select()} for run in failed)

        everything = app.select()
        assert everything.pause("stop") == (2, 0)
        world.settle()
        assert {run.status for run in young} == {"PAUSED"}
        assert everything.pause() == (0, 0), "a paused run is left as it is"
        assert everything.resume() == (2, 0)
        world.settle()
        assert everything.terminate("enough").done == 2
        world.settle()
        assert {run.status for run in young} == {"CANCELLED"}
        assert everything.retry() == (5, 0)
        world.settle()
        assert app.select(status="WAITING").count() == 5
        assert app.select(status="SUCCESS").cancel() == (0, 0)
        assert asyncio.run(app.select(status="WAITING").acancel()) == (5, 0)


def test_an_action_reaches_runs_beyond_one_page(app: App) -> None:
    @app.workflow
    async def naps(number: int) -> None:
        await sleep("1d")

    naps.start_many(range(1_203))
    assert app.select(workflow="naps").cancel().done == 1_203


def test_what_can_not_be_a_filter_is_refused(app: App, tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="give one of them"):
        app.select(until=dt.datetime.now(dt.UTC), older_than="2d")
    with pytest.raises(ArgumentError, match="older_than"):
        app.count(older_than="soon")
    with pytest.raises(ArgumentError, match="status="):
        app.select(status="LATE")
    with pytest.raises(ArgumentError, match="action="):
        app.select().count("forget")
    with pytest.raises(ArgumentError, match="reason"):
        app.select().terminate("")
