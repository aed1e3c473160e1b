"""Code changes while runs live: `wf.patched`, and flags for changes of the core's own."""

from __future__ import annotations

from typing import Any

import pytest
from core_code import Broken, a, b, c, code, deploy, world

from holdfast import NondeterminismError, sleep, wf
from holdfast.core import events as ev


async def old() -> Any:
    await a()
    return await b()


async def new() -> Any:
    await a()
    if wf.patched("c instead of b"):
        return await c()
    return await b()


async def newest() -> Any:
    await a()
    return await c()


def test_a_run_that_was_past_the_change_goes_the_old_way_for_ever() -> None:
    run = world(old, strict=True)
    run.complete(run.step("a"))
    run.note(ev.StepStarted(**run._about(run.step("b"))))
    deploy(run, new)
    assert list(run.pending().values()) == ["b"]
    run.crash()
    run.complete(run.step("b"), "old")
    assert run.result() == "old"
    assert run.of(ev.Patched) == []


def test_a_run_that_comes_to_the_change_later_goes_the_new_way_for_ever() -> None:
    run = world(old, strict=True)
    run.wake()
    deploy(run, new)
    run.complete(run.step("a"))
    assert [event.name for event in run.of(ev.Patched)] == ["c instead of b"]
    run.crash()
    assert list(run.pending().values()) == ["c"]
    run.complete(run.step("c"), "new")
    assert run.result() == "new"


def test_a_patch_that_code_no_longer_mentions_has_become_the_only_way() -> None:
    run = world(new, strict=True)
    run.complete(run.step("a"))
    deploy(run, newest)
    run.complete(run.step("c"), "new")
    assert run.result() == "new"


def test_a_change_in_a_loop_goes_one_way_for_the_whole_run() -> None:
    async def before() -> Any:
        return [await a(n) for n in range(3)]

    async def after() -> Any:
        return [await (b(n) if wf.patched("b") else a(n)) for n in range(3)]

    run = world(before, strict=True)
    run.complete(run.step("a"), 0)
    deploy(run, after)
    run.complete(run.step("a"), 1)
    run.crash()
    run.complete(run.step("a"), 2)
    assert run.result() == [0, 1, 2]


def test_asking_twice_records_once_and_says_the_same() -> None:
    async def flow() -> Any:
        first = wf.patched("x")
        await a()
        return first, wf.patched("x"), wf.patched("y")

    run = world(flow, strict=True)
    run.complete(run.step("a"))
    assert run.result() == (True, True, True)
    assert [event.name for event in run.of(ev.Patched)] == ["x", "y"]


def test_a_retry_goes_the_new_way() -> None:
    run = world(old, strict=True, max_retries=1)
    run.complete(run.step("a"))
    run.fail(run.step("b"), Broken())
    deploy(run, new, max_retries=1)
    assert list(run.pending().values()) == ["c"]


def test_a_run_made_by_a_newer_version_is_refused_with_the_remedy() -> None:
    async def flow() -> Any:
        return await a()

    run = world(flow)
    history = run.history
    history[0].flags = ("from the future",)  # type: ignore[union-attr]
    with pytest.raises(NondeterminismError, match=r"from the future.*upgrade this worker"):
        run.replay(history)


def test_a_run_whose_step_is_under_way_was_past_the_change_though_nothing_is_recorded_of_it() -> None:
    run = world(old, strict=True)
    run.complete(run.step("a"))
    deploy(run, new)
    assert list(run.pending().values()) == ["b"]
    run.complete(run.step("b"), "old")
    assert run.result() == "old"


def test_a_run_that_sleeps_was_past_a_change_before_the_sleep() -> None:
    async def before() -> Any:
        await sleep(5)
        return "old"

    async def after() -> Any:
        way = await a() if wf.patched("a first") else "old"
        await sleep(5)
        return way

    run = world(before, strict=True)
    run.wake()
    deploy(run, after)
    assert list(run.pending().values()) == []
    run.fire()
    assert run.result() == "old"


def test_a_fork_goes_the_new_way_where_nothing_of_its_own_is_under_way() -> None:
    run = world(old, strict=True)
    run.complete(run.step("a"))
    run.app = code(new)
    fork = run.replay(run.history, is_new=True)
    assert [event.name for event in fork.journal.new_events] == ["c instead of b"]
    fork.evict()
