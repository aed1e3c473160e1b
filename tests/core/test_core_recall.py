"""On replay, code that waits for one step after the other gets recorded results at once: nothing else is different."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Generator
from typing import Any

import pytest
from core_code import a, b, deploy, p, world
from core_world import SECOND, World, fresh, state

from holdfast import DecodeError, sleep, wf
from holdfast.core import events as ev


def deliveries(run: World, has_time: Callable[[], bool]) -> int:
    """How often whoever replays the run can do something else."""
    execution = fresh(run.app, run.workflow, run.run_id, run.greenlets, strict=True)
    count = sum(1 for _ in execution.replay(run.history, has_time=has_time))
    execution.evict()
    return count


async def with_async_steps(n: int) -> Any:
    total = 0
    for i in range(n):
        total += await a(i)
    await sleep("1h")
    return total


def with_plain_steps(n: int) -> Any:
    total = 0
    for i in range(n):
        total += p(i)
    wf.sleep("1h")
    return total


@pytest.mark.parametrize("flow", [with_async_steps, with_plain_steps])
def test_replay_goes_on_at_once_as_long_as_it_has_time(flow: Any) -> None:
    run = world(flow, 40)
    for i in range(40):
        (cmd,) = run.pending()
        run.complete(cmd, i)
    live = state(run.wake())
    run.crash()
    assert deliveries(run, lambda: True) == 1
    assert deliveries(run, lambda: False) == 41
    answers = itertools.cycle([True] * 9 + [False])
    assert deliveries(run, lambda: next(answers)) == 5, "the beginning, and each tenth"
    assert state(run.wake()) == live
    run.fire()
    assert run.result() == sum(range(40))


def replayed_as_it_was(run: World) -> None:
    live = state(run.wake())
    run.crash()
    assert state(run.wake()) == live


def test_a_task_that_was_cancelled_meanwhile_is_not_given_a_result() -> None:
    async def flow() -> Any:
        await a("first")
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        try:
            found = await b(1)
        except asyncio.CancelledError:
            task.uncancel()
            found = ["again", await b(1)]
        await sleep("1h")
        return found

    run = world(flow)
    run.complete(run.step("a"))
    run.complete(run.step("b"), "b")
    replayed_as_it_was(run)
    run.fire()
    assert run.result() == ["again", "b"]


def test_what_is_asked_for_beside_a_step_belongs_to_the_same_event() -> None:
    class Together:
        """Asks for a step, and for something else before it waits."""

        def __await__(self) -> Generator[Any, Any, Any]:
            waiting = a(1).__await__()
            future = next(waiting)
            wf.set_data("beside", 1)
            yield future
            return future.result()

    async def flow() -> Any:
        found = await Together()
        await sleep("1h")
        return found

    run = world(flow)
    run.complete(run.step("a"), "a")
    replayed_as_it_was(run)
    run.fire()
    assert run.result() == "a"


def test_a_task_that_can_go_on_too_comes_first() -> None:
    async def flow() -> Any:
        order: list[str] = []

        async def other() -> None:
            order.append("other")
            await sleep("1h")

        await a("first")
        task = asyncio.create_task(other())
        await b(1)
        order.append("b")
        await b(list(order))
        await task
        return order

    run = world(flow)
    run.complete(run.step("a"))
    run.complete(run.step("b"))
    run.complete(run.step("b"))
    replayed_as_it_was(run)
    assert run.argument(run.of(ev.StepCompleted)[-1].args) == ["other", "b"]
    run.fire()
    assert run.result() == ["other", "b"]


@pytest.mark.parametrize("kind", [ev.StepStarted, ev.StepRetrying, ev.StepLost])
def test_what_became_of_an_attempt_before_its_result_counts(kind: Any) -> None:
    async def flow() -> Any:
        await a("first")
        found = await b("second")
        await a("third")
        return found

    run = world(flow)
    run.complete(run.step("a"))
    more = {"retry_at": run.now + SECOND} if kind is ev.StepRetrying else {}
    run.note(kind(**run._about(run.step("b")), **more))
    run.complete(run.step("b"), "b")
    live, put_off = state(run.wake()), run.wake().time.put_off_at
    run.crash()
    assert state(run.wake()) == live
    assert run.wake().time.put_off_at == put_off
    run.complete(run.step("a"))
    assert run.result() == "b"


def test_a_result_that_can_t_be_read_is_not_told_to_the_code() -> None:
    async def flow() -> Any:
        await a("first")
        try:
            return await b("second")
        except Exception as error:
            return repr(error)

    run = world(flow)
    run.complete(run.step("a"))
    run.complete(run.step("b"), 1)
    run.crash()
    run.committed = run.committed[:3]
    run.committed[2] = run.committed[2].replace(b'"result":1', b'"result":{"$":"nobody knows","v":1}')
    assert b"nobody knows" in run.committed[2]
    with pytest.raises(DecodeError, match=r"result of step 'b' \(event 3\)"):
        run.replay()


def test_other_code_is_told_what_the_history_has_instead() -> None:
    async def flow() -> Any:
        await a("first")
        await b("second")
        await a("third")

    async def other() -> Any:
        await a("first")
        await b("second")
        await b("third")

    run = world(flow)
    for name in ("a", "b", "a"):
        run.complete(run.step(name))
    deploy(run, other)
    with pytest.raises(Exception, match="after event 3 the history has step 'a'"):
        run.replay(run.history[:-1])
