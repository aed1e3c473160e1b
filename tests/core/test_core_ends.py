"""No silent ends: what a run ends with, and what becomes of everything that is still under way."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

import pytest
from core_code import Broken, a, b, c, kid, p, world
from core_world import CANCELLED

from holdfast import DeadlockError, EncodeError, NeverAwaitedError, WorkflowTimeoutError, hook, shield, sleep
from holdfast.core import commands as co
from holdfast.core import events as ev


def test_a_run_that_waits_for_nothing_fails_with_the_stack_of_each_task() -> None:
    async def stuck() -> None:
        await asyncio.Event().wait()  # the deep line

    async def flow() -> Any:
        await a()
        await asyncio.gather(stuck(), asyncio.get_running_loop().create_future())

    run = world(flow)
    run.complete(run.step("a"))
    error = run.result()
    assert isinstance(error, DeadlockError)
    deep, shallow = stuck.__code__.co_firstlineno + 1, flow.__code__.co_firstlineno + 2
    assert f"{__file__}:{deep} in stuck" in str(error)
    assert f"{__file__}:{shallow} in flow" in str(error)
    assert "flow:" in str(error)


def test_a_deadlock_in_plain_calls_shows_their_stack_too() -> None:
    def waits(event: asyncio.Event) -> None:
        from holdfast import wf

        wf.wait(event.wait())  # the line

    async def flow() -> Any:
        waits(asyncio.Event())

    run = world(flow)
    run.wake()
    error = run.result()
    assert isinstance(error, DeadlockError)
    assert f"{__file__}:{waits.__code__.co_firstlineno + 3} in waits" in str(error)


@pytest.mark.parametrize("what", ["step", "sleep", "hook", "child"])
def test_what_is_created_and_never_awaited_fails_the_run_with_the_line(what: str) -> None:
    async def flow() -> Any:
        _ = a(1) if what == "step" else sleep(1) if what == "sleep" else hook("h") if what == "hook" else kid(1)
        return await b()

    run = world(flow)
    run.complete(run.step("b"))
    error = run.result()
    assert isinstance(error, NeverAwaitedError)
    named = {"step": "step 'a'", "sleep": "sleep", "hook": "hook 'h'", "child": "workflow 'kid'"}[what]
    assert f"{named} at {__file__}:{flow.__code__.co_firstlineno + 1} in flow" in str(error)
    assert not [effect for effect in run.effects if effect[1] == "a"]


def test_what_is_closed_or_cancelled_before_it_began_counts_as_dealt_with() -> None:
    async def flow() -> Any:
        a(1).close()
        task = asyncio.ensure_future(a(2))
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return "fine"

    run = world(flow)
    run.wake()
    assert run.result() == "fine"


def test_what_is_under_way_when_the_workflow_returns_is_cancelled_in_the_same_commit() -> None:
    async def flow() -> Any:
        a.submit(1)
        asyncio.ensure_future(p_in_task())
        kid.submit(2)
        left_alone: Any = kid.start(3)
        kid.options(on_parent_close="abandon").submit(4)
        asyncio.ensure_future(hook("h", key="k"))
        asyncio.ensure_future(sleep(5))
        await b()
        return left_alone.child_run_id

    async def p_in_task() -> None:
        p()

    run = world(flow, strict=True)
    before = run.wake().children.pending
    ids = {cmd: child.child_id for cmd, child in before.items()}
    run.complete(run.step("b"))
    assert run.kinds()[-5:] == ["StepCancelled", "StepCancelled", "ChildDropped", "ChildDropped", "RunCompleted"]
    assert run.commits[-2] == len(run.committed) - 6
    asked = run.commands[-4:]
    assert [command.cmd for command in asked if isinstance(command, co.CancelStep)] == ["1s0", "1s2"]
    assert [command.child_id for command in asked if isinstance(command, co.CancelChild)] == [ids["1c0"]]
    assert [command.key for command in asked if isinstance(command, co.CloseHook)] == ["k"]
    run.crash()
    assert run.wake().journal.take() == ([], [])


def test_a_cancelled_run_may_clean_up_with_steps_and_ends_cancelled() -> None:
    async def flow() -> Any:
        try:
            await asyncio.gather(a(), kid())
        finally:
            await b()
            p()

    run = world(flow, strict=True)
    run.wake()
    run.cancel("no longer wanted")
    assert sorted(run.pending().values()) == ["b"]
    run.crash()
    run.complete(run.step("b"))
    run.complete(run.step("p"))
    assert run.result() is CANCELLED
    assert run.history[-1].reason == "no longer wanted"  # type: ignore[union-attr]
    assert {event.kind for event in run.history} >= {"StepCancelled", "ChildDropped", "CancelRequested"}


def test_a_workflow_that_swallows_its_cancellation_and_returns_is_a_success() -> None:
    async def flow() -> Any:
        try:
            await a()
        except asyncio.CancelledError:
            return await b()

    run = world(flow, strict=True)
    run.wake()
    run.cancel()
    run.complete(run.step("b"), "went on")
    assert run.result() == "went on"


def test_a_workflow_that_fails_while_it_is_cancelled_is_not_retried() -> None:
    async def flow() -> Any:
        try:
            await a()
        finally:
            raise Broken("in cleanup")

    run = world(flow, max_retries=3)
    run.wake()
    run.cancel()
    assert isinstance(run.result(), Broken)


def test_a_run_that_took_too_long_fails_with_its_own_error() -> None:
    async def flow() -> Any:
        await a()

    run = world(flow, max_retries=3)
    run.wake()
    run.deliver(ev.CancelRequested(reason="took longer than 5 s", timed_out=True))
    error = run.result()
    assert isinstance(error, WorkflowTimeoutError)
    assert "took longer than 5 s" in str(error)


def test_a_result_that_cannot_be_recorded_fails_the_run() -> None:
    async def flow() -> Any:
        await a()
        return object()

    run = world(flow)
    run.complete(run.step("a"))
    error = run.result()
    assert isinstance(error, EncodeError)
    assert "the result of workflow 'flow'" in str(error)


@pytest.mark.parametrize("kind", [SystemExit, GeneratorExit, BaseException])
def test_an_exception_that_is_no_exception_fails_the_run_and_not_the_worker(kind: type[BaseException]) -> None:
    async def flow() -> Any:
        await a()
        raise kind("stop")

    run = world(flow, max_retries=2)
    run.complete(run.step("a"))
    assert run.kinds()[-1] == "RunFailed"


def test_a_cancellation_during_a_shielded_clean_up_waits_for_it() -> None:
    async def flow() -> Any:
        try:
            await a()
        except Broken:
            async with shield():
                await b()
            await c()

    run = world(flow, strict=True)
    run.fail(run.step("a"), Broken())
    run.cancel()
    run.crash()
    run.complete(run.step("b"))
    assert run.result() is CANCELLED


def test_an_error_in_a_task_nobody_awaits_is_told_once_and_not_on_replay() -> None:
    async def flow() -> Any:
        async def fails() -> None:
            raise Broken("alone")

        asyncio.ensure_future(fails())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        gc.collect()
        await a()
        await b()

    run = world(flow)
    run.wake()
    assert run.heard == ["Task exception was never retrieved"]
    run.complete(run.step("a"))
    run.crash()
    run.complete(run.step("b"))
    assert len(run.heard) == 1
