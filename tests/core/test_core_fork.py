"""A fork is the same up to a point, renumbered, and open from there."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from core_code import Broken, a, b, c, code, kid, world
from core_world import World, state
from msgspec import Raw

from holdfast import RunError, hook, sleep, wf
from holdfast.core import commands as co
from holdfast.core import events as ev
from holdfast.core.forking import fork


def forked(
    run: World, at: int, replace: dict[int, Raw] | None = None, input: Raw | None = None
) -> tuple[World, list[str]]:
    """A run of its own that begins with a fork of this one."""
    plan = fork(run.history, run.run_id, at, replace or {}, input)
    copy = World(run.app, run.workflow, run_id="copy", reply=run.reply)
    copy.committed = []
    copy._commit(plan.events)
    copy.now = run.now
    return copy, plan.reruns


def test_a_fork_keeps_the_prefix_and_goes_on_from_there() -> None:
    async def flow() -> Any:
        wf.set_data("k", 1)
        return [await a(), wf.random(), await b(), await c()]

    run = world(flow, strict=True, seed=5)
    run.complete(run.step("a"), "a")
    run.complete(run.step("b"), "b")
    run.complete(run.step("c"), "c")
    copy, reruns = forked(run, 3)
    assert reruns == []
    assert [event.kind for event in copy.history] == ["RunStarted", "DataSet", "StepCompleted"]
    assert copy.history[0].forked_from == "run"  # type: ignore[union-attr]
    copy.complete(copy.step("b"), "other b")
    copy.complete(copy.step("c"), "other c")
    original, other = run.result(), copy.result()
    assert other == ["a", original[1], "other b", "other c"]


def test_steps_under_way_at_that_point_run_anew_and_are_named() -> None:
    async def flow() -> Any:
        return await asyncio.gather(a(1), b(2), c(3))

    run = world(flow, strict=True)
    run.note(ev.StepStarted(**run._about("1s0")))
    run.note(ev.StepRetrying(**run._about("1s1"), retry_at=run.now))
    run.complete("1s2", "c")
    run.complete("1s1", "b")
    copy, reruns = forked(run, 4)
    assert reruns == ["a", "b"]
    assert [event.seq for event in copy.history] == [1, 2]
    assert sorted(copy.pending().values()) == ["a", "b"]
    assert copy.wake().steps.pending["1s1"].attempt == 1
    copy.complete("1s0", "a")
    copy.complete("1s1", "b")
    assert copy.result() == ["a", "b", "c"]


def test_renumbering_keeps_causes_commands_and_sources_consistent() -> None:
    async def flow() -> Any:
        found = [await a(1)]
        found += await asyncio.gather(b(1), b(1))
        await sleep(5)
        wf.set_data("k", found)
        return found, await c()

    run = world(flow, strict=True, max_retries=1)
    run.note(ev.StepStarted(**run._about(run.step("a"))))
    run.note(ev.RunPaused())
    run.note(ev.RunResumed())
    run.complete(run.step("a"), 1)
    second = run.step("b", 1)
    run.note(ev.StepStarted(**run._about(second)))
    run.complete(second, 3)
    run.complete(run.step("b"), 2)
    run.fire()
    run.fail(run.step("c"), Broken())
    run.wake()
    at = len(run.committed)
    copy, reruns = forked(run, at)
    assert reruns == []
    assert [event.seq for event in copy.history] == list(range(1, len(copy.history) + 1))
    assert {event.kind for event in copy.history}.isdisjoint({"RunPaused", "RunResumed"})
    expected, found = state(run.wake()), state(copy.wake())
    assert list(found["steps"]) != list(expected["steps"])
    for part in ("data", "trace", "attempt", "numbers", "now", "tasks"):
        assert found[part] == expected[part]
    copy.complete(copy.step("c"), "c")
    assert copy.result() == ([1, 2, 3], "c")


def test_a_result_can_be_replaced() -> None:
    async def flow() -> Any:
        try:
            found = await a()
        except Broken:
            found = "failed"
        return found, await kid(), await b()

    run = world(flow, strict=True)
    run.fail(run.step("a"), Broken())
    (cmd,) = run.wake().children.pending
    run.child(cmd, Broken())
    assert isinstance(run.result(), Broken)
    replaced = {e.seq: Raw(b'"mended"') for e in run.history if isinstance(e, ev.StepFailed | ev.ChildFailed)}
    copy, _ = forked(run, max(replaced), replaced)
    copy.complete(copy.step("b"), "b")
    assert copy.result() == ("mended", "mended", "b")


def test_the_input_can_be_replaced() -> None:
    async def flow(n: int) -> Any:
        return n + await a()

    run = World(code(flow), "flow", 1)
    run.complete(run.step("a"), 10)
    copy, _ = forked(run, 2, input=Raw(run.app.codec.encode_call((100,), {})))
    copy.wake()
    assert copy.result() == 110


def test_what_has_no_result_cannot_be_replaced() -> None:
    async def flow() -> Any:
        await sleep(1)
        await a()

    run = world(flow)
    run.fire()
    with pytest.raises(RunError, match="TimerFired"):
        forked(run, 2, {2: Raw(b"1")})
    with pytest.raises(RunError, match="no outcome to replace at event 7"):
        forked(run, 2, {7: Raw(b"1")})
    with pytest.raises(RunError, match="events 1 to 2"):
        forked(run, 3)


@pytest.mark.parametrize("waited", [True, False])
def test_children_under_way_at_that_point_start_anew_under_ids_of_their_own(waited: bool) -> None:
    async def flow() -> Any:
        handles: list[Any] = [kid.submit(1) if waited else kid.start(1) for _ in range(3)]
        await a()
        found = [await handle for handle in handles]
        return found, await b()

    run = world(flow, strict=True)
    run.complete(run.step("a"))
    if waited:
        run.child("1c1", "second")
    ids = {event.child_id for event in run.of(ev.ChildStarted)}
    copy, reruns = forked(run, len(run.committed))
    assert reruns == ["kid"] * (2 if waited else 3)
    copy.wake()
    started = [command for command in copy.commands if isinstance(command, co.StartChild)]
    assert [command.cmd for command in started] == (["1c0", "1c2"] if waited else ["1c0", "1c1", "1c2"])
    assert not {command.child_id for command in started} & ids
    if not waited:
        watched = [command.child_id for command in copy.commands if isinstance(command, co.WatchChild)]
        assert watched == [started[0].child_id]
    copy.crash()
    copy.wake()
    assert len([command for command in copy.commands if isinstance(command, co.StartChild)]) == len(started)
    while copy.wake().children.pending:
        copy.child(next(iter(copy.wake().children.pending)), "anew")
    copy.crash()
    copy.complete(copy.step("b"), "b")
    assert copy.result() == (["anew", "second" if waited else "anew", "anew"], "b")


def test_a_child_that_was_dropped_before_that_point_is_not_started_again() -> None:
    async def flow() -> Any:
        try:
            await asyncio.wait_for(kid(1), 5)
        except TimeoutError:
            return await a()

    run = world(flow, strict=True)
    run.fire()
    copy, reruns = forked(run, len(run.committed))
    assert reruns == []
    copy.wake()
    assert not [command for command in copy.commands if isinstance(command, co.StartChild | co.CancelChild)]
    copy.complete(copy.step("a"), "a")
    assert copy.result() == "a"


def test_a_fork_of_a_fork_and_of_a_continued_run() -> None:
    async def flow(generation: int = 0) -> Any:
        await a(generation)
        if generation == 0:
            wf.continue_as_new(1)
        kid.start(generation)
        return await b(generation), await hook("h")

    run = world(flow, strict=True)
    run.send("h", "early")
    run.complete(run.step("a"))
    run.complete(run.step("a"))
    copy, reruns = forked(run, len(run.committed))
    assert reruns == ["kid"]
    assert copy.kinds()[0] == "ContinuedAsNew"
    copy.wake()
    again, reruns = forked(copy, len(copy.committed))
    assert reruns == ["kid"]
    again.complete(again.step("b"), "b")
    assert again.result() == ("b", "early")


def test_hooks_that_wait_in_a_fork_are_made_known_for_it() -> None:
    async def flow() -> Any:
        return await hook("h", key="k")

    run = world(flow, strict=True)
    run.wake()
    copy, _ = forked(run, len(run.committed))
    copy.wake()
    assert [(c.name, c.key) for c in copy.commands if isinstance(c, co.OpenHook)] == [("h", "k")]


def test_steps_that_were_cancelled_when_the_run_ended_stay_so_in_a_fork_of_its_end() -> None:
    async def flow() -> Any:
        a.submit()
        return await b()

    run = world(flow, strict=True)
    run.complete(run.step("b"), "b")
    copy, reruns = forked(run, len(run.committed))
    assert reruns == []
    copy.wake()
    assert copy.result() == "b"
    assert copy.effects == []
