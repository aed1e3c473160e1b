"""On replay, code that waits for one step after the other gets recorded results at once: nothing else is different."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import sys
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import Any

import pytest
from core_code import a, b, deploy, kid, p, q, world
from core_world import SECOND, World, fresh, state

from holdfast import App, DecodeError, NondeterminismError, WrongContextError, sleep, wf
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


class Later:
    """Begins where it is made, and is waited for where it is awaited."""

    def __init__(self, call: Any) -> None:
        self._waiting = call.__await__()
        self._first = next(self._waiting)

    def __await__(self) -> Generator[Any, Any, Any]:
        try:
            sent = yield self._first
            while True:
                sent = yield self._waiting.send(sent)
        except StopIteration as end:
            return end.value


def test_what_is_begun_before_it_is_waited_for_belongs_to_the_same_event() -> None:
    async def two() -> Any:
        first, second = Later(a(1)), Later(b(2))
        return [await first, await second]

    run = world(two)
    run.complete(run.step("a"), "a")
    replayed_as_it_was(run)
    run.complete(run.step("b"), "b")
    assert run.result() == ["a", "b"]

    async def timed() -> Any:
        first = Later(a(1))
        async with asyncio.timeout(60):
            return [await first, await b(2)]

    run = world(timed)
    run.now += 30 * SECOND
    run.complete(run.step("a"), "a")
    replayed_as_it_was(run)
    run.complete(run.step("b"), "b")
    assert run.result() == ["a", "b"]


def test_time_passes_while_code_waits() -> None:
    class Timed:
        def __init__(self, call: Any) -> None:
            self._call = call
            self.spent = 0.0

        def __await__(self) -> Generator[Any, Any, Any]:
            waiting, loop, sent = self._call.__await__(), asyncio.get_running_loop(), None
            while True:
                try:
                    future = waiting.send(sent)
                except StopIteration as end:
                    return end.value
                begun = loop.time()
                sent = yield future
                self.spent += loop.time() - begun

    async def flow() -> Any:
        timed = Timed(a(1))
        await timed
        return await b(timed.spent)

    run = world(flow)
    run.now += 5 * SECOND
    run.complete(run.step("a"))
    replayed_as_it_was(run)
    assert run.argument(run.wake().steps.pending[run.step("b")].args) == 5.0


def test_tasks_that_are_not_of_the_loop_s_own_making_wait_as_they_do_live() -> None:
    async def flow() -> Any:
        async def driven() -> Any:
            return p(1)

        async def bare() -> Any:
            try:
                return ["plain", p(1)]
            except WrongContextError:
                return ["driven", await asyncio.create_task(driven())]

        found = await asyncio.Task(bare(), loop=asyncio.get_running_loop())
        return await b(found)

    run = world(flow)
    run.complete(run.step("p"), 1)
    replayed_as_it_was(run)
    assert run.argument(run.wake().steps.pending[run.step("b")].args) == ["driven", 1]


@pytest.mark.skipif(sys.version_info < (3, 12), reason="there are no eager tasks")
def test_whoever_makes_an_eager_task_goes_on_before_its_step_has_a_result() -> None:
    async def flow() -> Any:
        order = []

        async def worker() -> None:
            order.append("worker")
            await a(1)
            order.append("result")

        task = asyncio.Task(worker(), loop=asyncio.get_running_loop(), eager_start=True)  # type: ignore[call-arg]
        order.append("main")
        await task
        return await b(order)

    run = world(flow)
    run.complete(run.step("a"))
    replayed_as_it_was(run)
    assert run.argument(run.wake().steps.pending[run.step("b")].args) == ["worker", "main", "result"]


@dataclass
class Order:
    id: int
    trace: str = field(default_factory=lambda: str(wf.uuid()))  # not of the workflow, which takes no part in making it


def test_results_are_made_outside_of_the_workflow() -> None:
    app = App("orders")

    @app.step
    async def order() -> Order: ...  # type: ignore[empty-body]

    @app.step
    async def last(uuid: str) -> None: ...

    @app.workflow
    async def flow() -> None:
        await order()
        await last(str(wf.uuid()))

    run = World(app, "flow")
    run.complete(run.step("order"), {"id": 5})
    replayed_as_it_was(run)


def test_code_near_the_end_of_its_stack_is_replayed_as_it_was() -> None:
    def flow() -> Any:
        def down(k: int) -> Any:
            return down(k - 1) if k else p([1])

        found = "nothing"
        for depth in range(sys.getrecursionlimit() - 100, 0, -1):
            with contextlib.suppress(RecursionError):
                found = down(depth)
                break
        return q(found)

    run = world(flow)
    run.complete(run.step("p"), "p")
    replayed_as_it_was(run)
    run.complete(run.step("q"), "q")
    assert run.result() == "q"


def test_a_clock_that_was_set_back_counts() -> None:
    async def flow() -> Any:
        for n in range(3):
            await a(n)
        await sleep("1h")

    run = world(flow)
    run.complete(run.step("a"))
    run.note(ev.ClockSetBack(by=5 * SECOND))
    run.complete(run.step("a"))
    run.now += SECOND
    run.complete(run.step("a"))
    replayed_as_it_was(run)


def test_what_became_of_another_step_counts() -> None:
    async def flow() -> Any:
        other = b.submit(1)
        for n in range(3):
            await a(n)
        await other

    run = world(flow)
    run.complete(run.step("a"))
    run.note(ev.StepStarted(**run._about(run.step("b"))))
    run.complete(run.step("a"))
    replayed_as_it_was(run)


def test_a_second_attempt_is_replayed_as_it_was() -> None:
    async def flow() -> Any:
        for _ in range(4):
            await a(1)

    run = world(flow, max_retries=1)
    run.complete(run.step("a"))
    run.fail(run.step("a"), RuntimeError("no"))
    run.wake()
    run.complete(run.step("a"))
    replayed_as_it_was(run)


def test_children_that_are_alike_keep_their_places() -> None:
    async def flow() -> Any:
        zero = kid.submit(0)
        await a(1)
        one, two = kid.submit(1), kid.submit(1)
        return [await one, await two, await zero]

    run = world(flow)
    run.complete(run.step("a"))
    live = [child.child_id for child in run.wake().children.pending.values()]
    replayed_as_it_was(run)
    assert [child.child_id for child in run.wake().children.pending.values()] == live


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


def test_what_the_code_no_longer_asks_for_beside_a_step_is_told() -> None:
    async def flow() -> Any:
        wf.set_data("beside", 1)
        await a(1)
        await sleep("1h")

    async def other() -> Any:
        await a(1)
        await sleep("1h")

    run = world(flow)
    run.complete(run.step("a"))
    deploy(run, other)
    with pytest.raises(NondeterminismError, match="the history has set_data 'beside'"):
        run.replay()
