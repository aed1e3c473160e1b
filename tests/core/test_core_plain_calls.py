"""A plain call of a step waits, and only the task that calls it waits."""

from __future__ import annotations

import asyncio
import contextvars
import functools
from typing import Any

import pytest
from core_code import Broken, a, b, kid, p, q, world

from holdfast import WrongContextError, shield, sleep, wf

place: contextvars.ContextVar[str] = contextvars.ContextVar("place", default="nowhere")


def test_plain_calls_in_parallel_branches_wait_side_by_side() -> None:
    async def flow() -> Any:
        async def branch(n: int) -> Any:
            return [p(n), q(n)]

        return await asyncio.gather(branch(1), branch(2), branch(3))

    run = world(flow, strict=True)
    assert [name for name in run.pending().values()] == ["p", "p", "p"]
    run.complete("1s2", "p3")
    assert list(run.pending().values()) == ["p", "p", "q"]
    run.crash()
    run.complete(run.step("q"), "q3")
    run.complete("1s0", "p1")
    run.complete("1s1", "p2")
    run.complete(run.step("q"), "q1")
    run.complete(run.step("q"), "q2")
    assert run.result() == [["p1", "q1"], ["p2", "q2"], ["p3", "q3"]]


def test_context_variables_survive_plain_calls_and_do_not_leak_between_branches() -> None:
    async def flow() -> Any:
        place.set("root")

        async def branch(name: str) -> Any:
            before = place.get()
            place.set(name)
            p(name)
            middle = place.get()
            await a(name)
            q(name)
            return before, middle, place.get()

        p("first")
        found = await asyncio.gather(branch("left"), branch("right"))
        return place.get(), found

    for seed in range(6):
        run = world(flow, seed=seed).run()
        assert run.result() == ("root", [("root", "left", "left"), ("root", "right", "right")])
    assert place.get() == "nowhere"


def test_pooled_greenlets_forget_the_context_of_the_run_before() -> None:
    async def sets() -> Any:
        place.set("here")
        p()

    async def reads() -> Any:
        before = place.get()
        p()
        return before, place.get()

    first, second = world(sets), world(reads)
    second.greenlets = first.greenlets
    first.complete(first.step("p"))
    first.crash()
    second.complete(second.step("p"))
    assert second.result() == ("nowhere", "nowhere")


def test_a_step_that_fails_raises_at_the_plain_call() -> None:
    def flow() -> Any:
        try:
            p()
        except Broken as error:
            return f"caught {error}"

    run = world(flow)
    run.fail(run.step("p"), Broken("it"))
    assert run.result() == "caught it"


def test_cancel_timeout_and_group_abort_reach_a_plain_call() -> None:
    async def flow() -> Any:
        seen = []
        try:
            async with asyncio.timeout(5):
                p("timeout")
        except TimeoutError:
            seen.append("timeout")
        try:
            await asyncio.wait_for(calls("wait_for"), 5)
        except TimeoutError:
            seen.append("wait_for")

        async def fails() -> None:
            await a()
            raise Broken

        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(calls("group"))
                group.create_task(fails())
        except* Broken:
            seen.append("group")
        try:
            p("cancel")
        except asyncio.CancelledError:
            seen.append("cancel")
            q("cleanup")
        return seen

    async def calls(what: str) -> None:
        p(what)

    run = world(flow, strict=True)
    run.fire()
    run.crash()
    run.fire()
    run.complete(run.step("a"))
    run.crash()
    run.cancel()
    run.complete(run.step("q"))
    assert run.result() == ["timeout", "wait_for", "group", "cancel"]
    assert [event.name for event in run.history if event.kind == "StepCancelled"] == ["p"] * 4


def test_plain_calls_work_anywhere_below_a_task() -> None:
    async def flow() -> Any:
        @functools.cache
        def cached(n: int) -> Any:
            return p(n)

        async def generate() -> Any:
            for n in range(2):
                yield p(n)

        class Lazy:
            def __getattr__(self, name: str) -> Any:
                return p(name)

        return [
            [p(n) for n in range(2)],
            sorted([2, 1], key=lambda n: -p(n)),
            [each async for each in generate()],
            Lazy().field,
            cached(7) + cached(7),
        ]

    run = world(flow, strict=True).run()
    assert run.result() == [[0, 1], [2, 1], [0, 1], "field", 14]
    assert len(run.effects) == 8


def test_children_sleeps_and_hooks_have_plain_forms() -> None:
    def flow() -> Any:
        wf.sleep(5)
        answer = wf.hook("h", timeout=60)
        waited = wf.wait(a(1))
        gathered = wf.wait(asyncio.gather(a(2), b(3)))
        handle = kid.submit(4)
        future = b.submit(5)
        return answer, waited, gathered, handle.result(), future.result()

    run = world(flow, strict=True)
    run.fire()
    run.crash()
    run.send("h", "hello")
    run.crash()
    run.run()
    assert run.result() == ("hello", 1, [2, 3], 4, 5)


def test_a_plain_call_in_a_callback_is_refused_with_the_rule() -> None:
    async def flow() -> Any:
        said: asyncio.Future[str] = asyncio.get_running_loop().create_future()

        def callback() -> None:
            try:
                p()
            except WrongContextError as error:
                said.set_result(str(error))

        asyncio.get_running_loop().call_soon(callback)
        return await said

    run = world(flow)
    run.wake()
    assert "not in a callback" in run.result()
    assert not run.effects


def test_a_shield_keeps_a_cancellation_until_its_block_has_ended() -> None:
    async def flow() -> Any:
        try:
            async with shield():
                await a()
                p()
            await b()
        except asyncio.CancelledError:
            return "after the block"

    run = world(flow, strict=True)
    run.wake()
    run.cancel()
    run.crash()
    run.complete(run.step("a"))
    run.complete(run.step("p"))
    assert run.result() == "after the block"


@pytest.mark.parametrize("flow_kind", ["await", "plain"])
def test_many_waiting_tasks_need_one_greenlet_each_at_most(flow_kind: str) -> None:
    async def flow() -> Any:
        async def branch(n: int) -> Any:
            return await a(n) if flow_kind == "await" else p(n)

        return sum(await asyncio.gather(*(branch(n) for n in range(50))))

    run = world(flow)
    run.run()
    assert run.result() == sum(range(50))
    assert len(run.greenlets.idle) == (1 if flow_kind == "await" else 50)


def test_outside_a_run_steps_are_plain_functions() -> None:
    async def main() -> Any:
        await sleep(0)
        return await a(1), p(2)

    assert asyncio.run(main()) == (None, None)


def test_a_plain_call_in_a_context_of_its_own_comes_back_to_it() -> None:
    """`Context.run` is how libraries keep variables apart; a call that waits inside it must not leave it."""

    def flow() -> Any:
        place.set("root")

        def inside() -> str:
            place.set("inside")
            p(1)
            return place.get()

        found = contextvars.copy_context().run(inside)
        q(2)
        return found, place.get()

    assert world(flow).run().result() == ("inside", "root")
