"""Runs that live for long: their history stays short. Parents that are paused with their children."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from waiting import wait_until

from holdfast import (
    App,
    ArgumentError,
    DefinitionError,
    RunFinishedError,
    Status,
    WrongContextError,
    define_request,
    hook,
    sleep,
    wf,
)
from holdfast.api import context
from holdfast.core import events as ev
from holdfast.testing import TestApp

app = App("entities", ":memory:")
add = define_request("entity.add", int, int)


@app.step
async def one() -> int:
    return 1


@app.workflow(keep_generations=2)
async def account(total: int) -> None:
    async for request in add:
        total += request.payload
        request.answer(total)
        if wf.history_length >= 10:
            wf.continue_as_new(total)


@app.workflow
async def keeps_all(n: int) -> int:
    await one()
    if n:
        wf.continue_as_new(n - 1)
    return wf.history_length


@app.workflow
async def child(n: int) -> int:
    if n:
        return await child(n - 1)
    return int(await hook("number"))


@app.workflow
async def mother() -> int:
    return await child(1)


@pytest.fixture
def world() -> Iterator[TestApp]:
    with TestApp(app) as world:
        yield world


def test_a_run_that_lives_for_long_has_a_short_history(world: TestApp) -> None:
    run = account.start(0)
    for n in range(60):
        assert run.ask(add, 1, id=f"a{n}") == n + 1
    world.settle()
    kinds = world.kinds(run)
    assert kinds.count("ContinuedAsNew") == 3  # where the two that are kept begin, and the one it is in
    assert kinds[0] == "ContinuedAsNew"
    assert len(kinds) <= 30
    assert run.history()[-1].seq > 120
    assert [entry.status for entry in run.status_history()][:2] == ["PENDING", "RUNNING"]
    assert run.ask(add, 1, id="a59") == 60  # what was answered is kept as long
    assert run.ask(add, 0) == 60
    with world.store.read() as db:
        (kept,) = db.execute("SELECT count(*) FROM requests").fetchone()
    assert kept <= 16
    fork = run.fork(at=run.history()[-1].seq, id="fork")
    assert fork.ask(add, 5) == 65
    for each in (run, fork):
        each.cancel()
    world.settle()


def test_generations_are_all_kept_unless_told_otherwise_and_the_length_is_that_of_the_last(world: TestApp) -> None:
    run = keeps_all.start(4)
    assert run.result() == 2
    assert len(run.history()) == 11


def test_none_is_kept_if_told_so_and_a_worker_goes_on_from_there(tmp_path: Path) -> None:
    real = App("real", str(tmp_path / "real.db"))

    @real.step
    async def count(n: int) -> int:
        return n + 1

    @real.workflow(keep_generations=0)
    async def counter(n: int) -> int:
        n = await count(n)
        if n % 10 == 0:
            await hook(f"go{n}")
        if n < 40:
            wf.continue_as_new(n)
        return n

    run = counter.start(0)
    for n in (10, 20, 30, 40):  # a new worker each time, on what the one before has left
        with real.worker(grace=1):
            wait_until(lambda reason=f"hook 'go{n}'": run.reason == reason, 20)  # type: ignore[misc]
            assert len(run.history()) <= 4
        run.send(f"go{n}")
    with real.worker(grace=1):
        assert run.result(timeout=20) == 40
    assert run.history()[0].kind == "ContinuedAsNew"
    real.close()


def test_it_is_told_when_it_is_time_to_continue(monkeypatch: pytest.MonkeyPatch) -> None:
    assert context.CONTINUE_AFTER == 5_000  # histories depend on it
    monkeypatch.setattr(context, "CONTINUE_AFTER", 50)

    @app.workflow(name="long_lived", keep_generations=0)
    async def long_lived(generation: int, seen: int) -> list[int]:
        while not wf.should_continue:
            await sleep("1s")
            seen += 1
        if generation < 1:
            wf.continue_as_new(generation + 1, seen)
        return [generation, seen, wf.history_length]

    with TestApp(app):
        assert long_lived.start(0, 0).result() == [1, 2 * 49, 50]


def test_the_length_of_a_history_is_for_workflow_code(world: TestApp) -> None:
    @app.step(name="measures", max_retries=0)
    def measures() -> int:
        return wf.history_length

    with pytest.raises(WrongContextError, match="is for workflow code"):
        measures.start().result()
    assert wf.history_length == 1
    with pytest.raises(DefinitionError, match="keep_generations=-1"):
        app.workflow(keep_generations=-1)


# -- pausing


def statuses() -> list[str]:
    return [str(run.status) for run in app.runs()]


def test_children_go_on_when_their_parent_is_paused(world: TestApp) -> None:
    run = mother.start()
    world.settle()
    run.pause("lunch")
    world.settle()
    assert sorted(statuses()) == ["PAUSED", "WAITING", "WAITING"]
    run.resume()
    run.children()[0].children()[0].send("number", 3)
    assert run.result() == 3


def test_children_are_paused_and_resumed_with_their_parent_if_that_is_chosen(world: TestApp) -> None:
    run = mother.start()
    world.settle()
    run.pause("lunch", children=True)
    world.settle()
    assert statuses() == ["PAUSED"] * 3
    grandchild = run.children()[0].children()[0]
    assert grandchild.reason == f"its parent {run.children()[0].id} was paused: its parent {run.id} was paused: lunch"
    grandchild.send("number", 3)
    world.settle()
    run.resume(children=True)
    assert run.result() == 3


def test_a_paused_parent_can_have_its_children_paused_afterwards(world: TestApp) -> None:
    run = mother.start()
    world.settle()
    run.pause()
    world.settle()
    run.pause(children=True)
    world.settle()
    assert statuses() == ["PAUSED"] * 3
    run.resume()
    world.settle()
    assert sorted(statuses()) == ["PAUSED", "PAUSED", "WAITING"]
    with pytest.raises(ArgumentError, match="give True or False"):
        run.pause(children="yes")  # type: ignore[arg-type]
    for each in reversed(app.runs()):  # the mother first, which would fail if one of her children ended
        with contextlib.suppress(RunFinishedError):
            each.terminate("over")
    world.settle()
    assert all(each.status == Status.CANCELLED for each in app.runs())


def test_what_a_history_begins_with_is_read_by_older_code() -> None:
    """A run that was recorded before there were requests."""
    old = ev.from_json(b'{"kind":"ContinuedAsNew","seq":3,"ts":5,"workflow":"w"}')
    assert isinstance(old, ev.ContinuedAsNew)
    assert (old.requests, old.data) == ((), {})
