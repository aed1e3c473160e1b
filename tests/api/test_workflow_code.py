"""What workflow code may do: plain Python, asyncio, durable time, deterministic values."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import datetime as dt
import threading
import time
import uuid
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from waiting import wait_until

from holdfast import (
    App,
    ArgumentError,
    RunCancelledError,
    Status,
    WorkflowTimeoutError,
    WrongContextError,
    define_request,
    hook,
    shield,
    sleep,
    this_step,
    wait_for_event,
    wf,
)
from holdfast.engine.settings import Settings
from holdfast.testing import TestApp

tenant: contextvars.ContextVar[str] = contextvars.ContextVar("tenant", default="nobody")


# -- plain Python


def test_loops_conditionals_and_try_except_finally_are_plain_python(app: App) -> None:
    @app.step(max_retries=0)
    def check(n: int) -> int:
        if n == 2:
            raise ValueError(f"no {n}")
        return n * 10

    @app.workflow
    def flow(count: int) -> list[Any]:
        out: list[Any] = []
        for n in range(count):
            try:
                value = check(n)
            except ValueError as error:
                out.append(str(error))
                continue
            else:
                out.append(value)
            finally:
                out.append("-")
            if value == 30:
                break
        return out

    with TestApp(app):
        assert flow.start(9).result() == [0, "-", 10, "-", "no 2", "-", 30, "-"]


def test_with_blocks_and_helpers_work_around_steps(app: App) -> None:
    log: list[str] = []

    class Section:
        def __enter__(self) -> None:
            log.append("in")

        def __exit__(self, *error: object) -> None:
            log.append("out")

    @app.step
    def work() -> str:
        return "work"

    def helper() -> str:
        with Section():
            return work() + work()

    @app.workflow
    async def flow() -> str:
        return helper()

    with TestApp(app, check_replay=False):
        assert flow.start().result() == "workwork"
    assert log == ["in", "out"]


def test_a_sync_step_may_be_called_in_a_comprehension_and_deep_in_plain_code(app: App) -> None:
    @app.step
    def double(n: int) -> int:
        return n * 2

    class Node:
        def __init__(self, value: int, children: list[Node]) -> None:
            self.value, self.children = value, children

        def total(self) -> int:
            return double(self.value) + sum(child.total() for child in self.children)

    @app.workflow
    def flow() -> tuple[list[int], int, list[int]]:
        tree = Node(1, [Node(2, []), Node(3, [Node(4, [])])])
        return [double(n) for n in range(3)], tree.total(), sorted([3, 1, 2], key=double)

    with TestApp(app):
        assert flow.start().result() == ([0, 2, 4], 20, [1, 2, 3])


def test_recursion_goes_through_children(app: App) -> None:
    @app.workflow
    async def factorial(n: int) -> int:
        return 1 if n == 0 else n * await factorial(n - 1)

    @app.workflow
    def fibonacci(n: int) -> int:
        return n if n < 2 else fibonacci(n - 1) + fibonacci(n - 2)

    with TestApp(app):
        run = factorial.start(6)
        assert run.result() == 720
        assert len(app.runs(workflow="factorial")) == 7
        assert fibonacci.start(6).result() == 8


def test_a_result_is_a_copy_that_nobody_shares(app: App) -> None:
    kept: list[dict[str, list[int]]] = []

    @app.step
    def rows() -> dict[str, list[int]]:
        kept.append({"rows": [1]})
        return kept[-1]

    @app.workflow
    def flow() -> dict[str, list[int]]:
        found = rows()
        found["rows"].append(2)
        return found

    with TestApp(app):
        assert flow.start().result() == {"rows": [1, 2]}
    assert kept == [{"rows": [1]}]


def test_context_variables_follow_tasks_and_plain_calls(app: App) -> None:
    @app.step
    def work(n: int) -> int:
        return n

    @app.workflow
    async def flow() -> list[str]:
        async def branch(name: str) -> str:
            tenant.set(name)
            work(1)
            await sleep(1)
            work(2)
            return tenant.get()

        tenant.set("parent")
        found = await asyncio.gather(branch("a"), branch("b"))
        return [*found, tenant.get()]

    with TestApp(app):
        assert flow.start().result() == ["a", "b", "parent"]
    assert tenant.get() == "nobody"


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt, GeneratorExit, StopIteration])
def test_what_is_no_ordinary_exception_fails_the_run_and_never_the_worker(app: App, error: type[BaseException]) -> None:
    @app.workflow
    async def flow() -> None:
        raise error("odd")

    @app.workflow
    def plain() -> None:
        raise error("odd")

    @app.workflow
    async def bystander() -> str:
        return "fine"

    with TestApp(app):
        for workflow in (flow, plain):
            run = workflow.start()
            with pytest.raises(Exception):
                run.result()
            assert run.status == "FAILURE"
        assert bystander.start().result() == "fine"


def test_async_generators_nested_groups_and_context_managers_are_plain_python(app: App) -> None:
    @app.step
    async def fetch(n: int) -> int:
        return n

    @app.step
    def work(n: int) -> int:
        return n

    @contextlib.contextmanager
    def section() -> Iterator[int]:
        yield work(1)
        work(2)

    @app.workflow
    async def flow() -> list[Any]:
        async def numbers() -> AsyncIterator[int]:
            for n in range(3):
                yield await fetch(n)

        out: list[Any] = [[n async for n in numbers()], list(map(work, range(3)))]
        async with asyncio.TaskGroup() as outer:

            async def inner(n: int) -> None:
                async with asyncio.TaskGroup() as group:
                    task = group.create_task(fetch(n))
                out.append(task.result())

            for n in (10, 20):
                outer.create_task(inner(n))
        with section() as found:
            out.append(found)
        return out

    with TestApp(app):
        assert flow.start().result() == [[0, 1, 2], [0, 1, 2], 10, 20, 1]


# -- asyncio


def test_gather_keeps_the_order_and_runs_in_parallel(app: App) -> None:
    executing: list[int] = []

    @app.step(max_retries=0)
    async def slow(n: int) -> int:
        executing.append(n)
        async with asyncio.timeout(5):
            while len(executing) < 3:
                await asyncio.sleep(0.001)
        return n * 10

    @app.workflow
    async def flow() -> list[int]:
        return list(await asyncio.gather(slow(1), slow(2), slow(3)))

    with TestApp(app):
        assert flow.start().result() == [10, 20, 30]


def test_gather_can_return_exceptions(app: App) -> None:
    @app.step(max_retries=0)
    async def maybe(n: int) -> int:
        if n % 2:
            raise ValueError(str(n))
        return n

    @app.workflow
    async def flow() -> list[Any]:
        found = await asyncio.gather(*(maybe(n) for n in range(4)), return_exceptions=True)
        return [str(f) if isinstance(f, Exception) else f for f in found]

    with TestApp(app):
        assert flow.start().result() == [0, "1", 2, "3"]


def test_plain_calls_of_sync_steps_run_in_parallel_branches(app: App) -> None:
    barrier = threading.Barrier(2)

    @app.step(max_retries=0)
    def meet(name: str) -> str:
        barrier.wait(5)
        return name

    @app.workflow
    async def flow() -> list[str]:
        async def branch(name: str) -> str:
            return meet(name) + meet(name)

        return list(await asyncio.gather(branch("a"), branch("b")))

    with TestApp(app):
        assert flow.start().result() == ["aa", "bb"]


def test_a_task_group_cancels_its_siblings_when_one_fails(app: App) -> None:
    cancelled: list[str] = []

    @app.step(max_retries=0)
    async def fails() -> None:
        raise ValueError("broken")

    @app.step(max_retries=0)
    async def long() -> None:
        try:
            await asyncio.sleep(30)
        except asyncio.CancelledError:
            cancelled.append("long")
            raise

    @app.workflow
    async def flow() -> list[str]:
        async def branch() -> None:
            await long()

        caught: list[str] = []
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(branch())
                group.create_task(fails())
        except* ValueError as errors:
            caught += [str(error) for error in errors.exceptions]
        return caught

    with TestApp(app) as world:
        run = flow.start()
        assert run.result() == ["broken"]
        assert "StepCancelled" in world.kinds(run)
        world.settle()
    assert cancelled == ["long"]


def test_a_task_group_gives_the_results_of_its_tasks(app: App) -> None:
    @app.step
    async def double(n: int) -> int:
        return n * 2

    @app.workflow
    async def flow() -> list[int]:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(double(n)) for n in range(5)]
        return [task.result() for task in tasks]

    with TestApp(app):
        assert flow.start().result() == [0, 2, 4, 6, 8]


@pytest.mark.parametrize("when", [asyncio.FIRST_COMPLETED, asyncio.ALL_COMPLETED])
def test_wait_sees_the_first_or_all(app: App, when: str) -> None:
    @app.workflow
    async def flow() -> tuple[list[str], int]:
        async def after(seconds: int, name: str) -> str:
            await sleep(seconds)
            return name

        tasks = [asyncio.create_task(after(n, f"t{n}"), name=f"t{n}") for n in (30, 10, 20)]
        done, pending = await asyncio.wait(tasks, return_when=when)
        for task in pending:
            task.cancel()
        return sorted(task.result() for task in done), len(pending)

    with TestApp(app) as world:
        begin = world.now
        first = when == asyncio.FIRST_COMPLETED
        assert flow.start().result() == ((["t10"], 2) if first else (["t10", "t20", "t30"], 0))
        assert (world.now - begin).total_seconds() == (10 if first else 30)


def test_wait_with_a_timeout_returns_what_is_done(app: App) -> None:
    @app.workflow
    async def flow() -> list[int]:
        tasks = [asyncio.create_task(asyncio.sleep(n, n)) for n in (1, 5, 60)]
        done, pending = await asyncio.wait(tasks, timeout=10)
        for task in pending:
            task.cancel()
        return sorted(task.result() for task in done)

    with TestApp(app):
        assert flow.start().result() == [1, 5]


def test_as_completed_gives_the_order_of_completion(app: App) -> None:
    @app.workflow
    async def flow() -> list[int]:
        async def after(seconds: int) -> int:
            await asyncio.sleep(seconds)
            return seconds

        return [await done for done in asyncio.as_completed([after(30), after(10), after(20)])]

    with TestApp(app):
        assert flow.start().result() == [10, 20, 30]


def test_as_completed_works_on_steps_and_submitted_futures(app: App) -> None:
    @app.step
    async def double(n: int) -> int:
        return n * 2

    @app.workflow
    async def flow() -> list[int]:
        steps = [await done for done in asyncio.as_completed([double(n) for n in range(4)])]
        submitted = [await future for future in [double.submit(n) for n in range(3)]]
        return sorted(steps) + submitted

    with TestApp(app):
        assert flow.start().result() == [0, 2, 4, 6, 0, 2, 4]


def test_a_timeout_block_is_durable_and_waits_no_longer(app: App) -> None:
    @app.workflow
    async def flow() -> str:
        try:
            async with asyncio.timeout(3600):
                await hook("never")
        except TimeoutError:
            return "timed out"
        return "no"

    with TestApp(app) as world:
        begin = world.now
        run = flow.start()
        world.settle()
        assert (run.status, run.reason) == ("WAITING", "hook 'never', or a timeout")
        assert run.result() == "timed out"
        assert world.now - begin == dt.timedelta(hours=1)


def test_a_timeout_block_cancels_the_step_in_it(app: App) -> None:
    cancelled = threading.Event()

    @app.step(max_retries=0)
    async def slow() -> None:
        try:
            await asyncio.sleep(30)
        except asyncio.CancelledError:
            cancelled.set()
            raise

    @app.workflow
    async def flow() -> str:
        try:
            async with asyncio.timeout(0.5):
                await slow()
        except TimeoutError:
            return "timed out"
        return "no"

    with app.worker():
        run = flow.start()
        assert run.result(timeout=10) == "timed out"
        assert run.steps[0].state == "CANCELLED"
        assert cancelled.wait(5)


def test_wait_for_raises_timeout_error(app: App) -> None:
    @app.workflow
    async def flow() -> str:
        try:
            return str(await asyncio.wait_for(hook("approval"), timeout=60))
        except TimeoutError:
            return "nobody came"

    with TestApp(app):
        assert flow.start().result() == "nobody came"
        run = flow.start()
        run.send("approval", "me")
        assert run.result() == "me"


def test_a_queue_connects_tasks(app: App) -> None:
    @app.step
    async def fetch(n: int) -> int:
        return n * 2

    @app.workflow
    async def flow() -> list[int]:
        queue: asyncio.Queue[int | None] = asyncio.Queue(maxsize=2)
        out: list[int] = []

        async def produce() -> None:
            for n in range(5):
                await queue.put(await fetch(n))
            await queue.put(None)

        async def consume() -> None:
            while (item := await queue.get()) is not None:
                await sleep("1h")
                out.append(item)

        await asyncio.gather(produce(), consume())
        return out

    with TestApp(app) as world:
        begin = world.now
        assert flow.start().result() == [0, 2, 4, 6, 8]
        assert (world.now - begin) == dt.timedelta(hours=5)


def test_locks_events_conditions_semaphores_and_barriers_work(app: App) -> None:
    @app.step
    async def note(text: str) -> str:
        return text

    @app.workflow
    async def flow() -> list[str]:
        lock, event, limit = asyncio.Lock(), asyncio.Event(), asyncio.Semaphore(1)
        out: list[str] = []

        async def first() -> None:
            async with lock:
                out.append(await note("first"))
            event.set()

        async def second() -> None:
            await event.wait()
            async with limit, lock:
                out.append(await note("second"))

        async with asyncio.TaskGroup() as group:
            group.create_task(second())
            group.create_task(first())
        return out

    with TestApp(app):
        assert flow.start().result() == ["first", "second"]


@pytest.mark.parametrize("how", ["asyncio", "holdfast", "plain"])
def test_all_sleeps_are_durable_and_skipped(app: App, how: str) -> None:
    @app.workflow
    async def flow(how: str) -> None:
        if how == "asyncio":
            await asyncio.sleep(7 * 86_400)
        elif how == "holdfast":
            await sleep("1w")
        else:
            wf.sleep("7d")

    with TestApp(app) as world:
        begin = world.now
        run = flow.start(how)
        world.settle()
        assert (run.status, run.reason) == (Status.WAITING, "sleep")
        run.result()
        assert world.now - begin == dt.timedelta(days=7)
        fired = next(event for event in run.history() if event.kind == "TimerFired")
        assert fired.detail["due"] == begin + dt.timedelta(days=7)


def test_a_sleep_until_a_moment_ends_then_and_at_once_if_it_has_passed(app: App) -> None:
    @app.workflow
    async def reminds(at: dt.datetime) -> float:
        begun = wf.utc_now()
        await sleep(at)
        await sleep(at - wf.utc_now())
        await sleep(at - dt.timedelta(days=1))
        return (wf.utc_now() - begun).total_seconds()

    @app.workflow
    def reminds_plainly(at: dt.datetime) -> float:
        begun = wf.utc_now()
        wf.sleep(at)
        wf.sleep(begun - at)
        return (wf.utc_now() - begun).total_seconds()

    for workflow in (reminds, reminds_plainly):
        with TestApp(app) as world:
            at = world.now + dt.timedelta(days=3)
            assert workflow.start(at).result() == 3 * 86_400
            assert workflow.start(at).result() == 0
            assert world.now == at


def test_a_sleep_until_a_moment_needs_to_know_where(app: App) -> None:
    @app.workflow
    async def reminds() -> None:
        await sleep(dt.datetime(2030, 1, 1))

    with TestApp(app), pytest.raises(ArgumentError, match="has no time zone; give "):
        reminds.start().result()


def test_what_is_waited_for_until_a_time_that_has_passed_times_out_at_once(app: App) -> None:
    question = define_request("question", str, answer=str)

    @app.workflow
    async def waits(how: str) -> str:
        over = dt.timedelta(seconds=-5)
        if how == "hook":
            return str(await hook("approval", timeout=over))
        if how == "event":
            return str(await wait_for_event("Approved", timeout=over))
        return (await question.next(timeout=over)).payload

    with TestApp(app):
        for how in ("hook", "event", "request"):
            with pytest.raises(TimeoutError):
                waits.start(how).result()


def test_a_sleep_of_nothing_still_lets_others_go_first(app: App) -> None:
    @app.workflow
    async def flow() -> list[str]:
        out: list[str] = []

        async def other() -> None:
            out.append("other")

        task = asyncio.create_task(other())
        await asyncio.sleep(0)
        out.append("main")
        await sleep(0)
        await task
        return out

    with TestApp(app):
        assert flow.start().result() == ["other", "main"]


def test_background_tasks_that_outlive_the_workflow_are_cancelled_with_it(app: App) -> None:
    @app.step(max_retries=0)
    async def endless() -> None:
        await asyncio.sleep(30)

    @app.workflow
    async def flow() -> str:
        async def background() -> None:
            await endless()

        task = asyncio.create_task(background())
        await sleep(0)
        return f"left {not task.done()}"

    with TestApp(app) as world:
        run = flow.start()
        assert run.result() == "left True"
        assert world.kinds(run)[-2:] == ["StepCancelled", "RunCompleted"]


def test_what_was_submitted_has_celerys_word_for_its_result(app: App) -> None:
    @app.step
    def double(n: int) -> int:
        return n * 2

    @app.workflow
    def flow() -> int:
        return double.submit(4).get()

    with TestApp(app):
        assert flow.start().result() == 8


def test_submit_starts_without_waiting_and_gives_a_future(app: App) -> None:
    @app.step
    def double(n: int) -> int:
        return n * 2

    @app.workflow
    def flow() -> tuple[int, bool, int]:
        one, two = double.submit(1), double.submit(2)
        first = one.result()
        return first, one.done(), two.result()

    with TestApp(app):
        assert flow.start().result() == (2, True, 4)


def test_a_submitted_step_can_be_cancelled(app: App) -> None:
    @app.step(max_retries=0)
    async def endless() -> None:
        await asyncio.sleep(30)

    @app.workflow
    async def flow() -> str:
        future = endless.submit()
        await sleep("1ms")
        future.cancel()
        try:
            await future
        except asyncio.CancelledError:
            return "cancelled"
        return "no"

    with app.worker():
        run = flow.start()
        assert run.result(timeout=10) == "cancelled"
        assert run.steps[0].state == "CANCELLED"


def test_submit_works_with_gather_and_wait(app: App) -> None:
    @app.step
    async def double(n: int) -> int:
        return n * 2

    @app.workflow
    async def flow() -> list[int]:
        return list(await asyncio.gather(*[double.submit(n) for n in range(3)]))

    with TestApp(app):
        assert flow.start().result() == [0, 2, 4]


def test_submitted_steps_and_children_can_be_waited_for_together(app: App) -> None:
    @app.step
    async def double(n: int) -> int:
        return n * 2

    @app.workflow
    async def slow(n: int) -> int:
        await sleep("1h")
        return n * 100

    @app.workflow
    async def flow() -> list[Any]:
        quick, child, started = double.submit(1), slow.submit(2), slow.start(3)
        done, pending = await asyncio.wait([quick, child, started], return_when=asyncio.FIRST_COMPLETED)
        first = [future.result() for future in done]
        done, left = await asyncio.wait(pending)
        return [first, [future.result() for future in done], len(left), quick.exception(), child.cancelled()]

    with TestApp(app) as world:
        begin = world.now
        assert flow.start().result() == [[2], [200, 300], 0, None, False]
        assert world.now - begin == dt.timedelta(hours=1)


# -- plain-call forms


def test_def_workflows_wait_in_plain_calls(app: App) -> None:
    @app.step
    async def awaited(n: int) -> int:
        return n * 2

    @app.workflow
    def flow() -> list[Any]:
        wf.sleep("1d")
        answer = wf.hook("approval", timeout="2d")

        async def both() -> list[int]:
            return list(await asyncio.gather(awaited(1), awaited(2)))

        return [answer, wf.wait(awaited(5)), wf.wait(both()), wf.wait(awaited.submit(7))]

    with TestApp(app) as world:
        run = flow.start()
        world.advance("1d")
        run.send("approval", "yes")
        assert run.result() == ["yes", 10, [2, 4], 14]


def test_outside_a_run_wait_waits_unless_a_loop_runs_here(app: App) -> None:
    @app.step
    async def awaited(n: int) -> int:
        return n * 2

    @app.workflow
    def flow(n: int) -> int:
        return wf.wait(awaited(n))

    assert flow(2) == 4

    async def in_async_code() -> None:
        wf.wait(awaited(2))

    with pytest.raises(WrongContextError, match=r"wf.wait\(\) would block the event loop that runs here; await it"):
        asyncio.run(in_async_code())


# -- deterministic values


def test_identity_names_run_type_parent_and_root(app: App) -> None:
    @app.step
    def inside() -> list[str | None]:
        me = wf.identity
        return [me.workflow_id, me.workflow_type, me.parent_workflow_id, me.root_workflow_id]

    @app.workflow
    def leaf() -> list[list[str | None]]:
        me = wf.identity
        return [[me.workflow_id, me.workflow_type, me.parent_workflow_id, me.root_workflow_id], inside()]

    @app.workflow
    def middle() -> list[list[str | None]]:
        return leaf()

    @app.workflow
    def root() -> list[list[str | None]]:
        return middle()

    with TestApp(app):
        run = root.start()
        in_workflow, in_step = run.result()
        assert in_workflow == in_step
        workflow_id, workflow_type, parent, root_id = in_workflow
        assert workflow_type == "leaf"
        assert root_id == run.id
        assert app.get_run(str(parent)).workflow == "middle"
        assert app.get_run(str(workflow_id)).parent_id == parent


def test_uuid_random_and_utc_now_are_the_same_on_replay(app: App) -> None:
    seen: list[tuple[uuid.UUID, float, dt.datetime]] = []

    @app.step
    def work() -> None: ...

    @app.workflow
    def flow() -> tuple[uuid.UUID, float, dt.datetime]:
        values = (wf.uuid(), wf.random(), wf.utc_now())
        work()
        seen.append(values)
        return values

    with TestApp(app) as world:
        run = flow.start()
        first = run.result()
        world.replay(run)
        other = flow.start().result()
        assert seen[0] == seen[1] == first
        assert first[0] != other[0]
        assert first[0].version == 4
        assert 0 <= first[1] < 1
        assert first[2] == dt.datetime(2030, 1, 1, tzinfo=dt.UTC)


def test_utc_now_moves_with_the_events_of_the_run(app: App) -> None:
    @app.workflow
    async def flow() -> dt.timedelta:
        before = wf.utc_now()
        assert wf.utc_now() == before
        await sleep("90m")
        return wf.utc_now() - before

    with TestApp(app):
        assert flow.start().result() == dt.timedelta(minutes=90)


def test_workflow_attempt_is_one_at_first(app: App) -> None:
    @app.workflow
    def flow() -> tuple[int, dt.datetime | None]:
        return wf.attempt, wf.scheduled_at

    with TestApp(app):
        assert flow.start().result() == (1, None)


@pytest.mark.parametrize("name", ["uuid()", "random()", "utc_now()", "attempt", "patched('x')", "scheduled_at"])
def test_what_is_for_workflow_code_is_refused_in_a_step(app: App, name: str) -> None:
    @app.step(max_retries=0)
    def work() -> None:
        eval(f"wf.{name}", {"wf": wf})

    with TestApp(app):
        with pytest.raises(WrongContextError, match=r"is for workflow code, which is replayed; in a step use the"):
            work.start().result()


def test_wf_works_on_a_throw_away_context_in_unit_tests(app: App) -> None:
    @app.step
    def double(n: int) -> int:
        wf.set_data("seen", n)
        this_step.progress(1, 2)
        this_step.checkpoint(n)
        assert this_step.last_checkpoint == n
        assert this_step.attempt == 1
        assert this_step.idempotency_key
        return n * 2

    @app.workflow
    async def flow(n: int) -> list[Any]:
        wf.set_data("status", "started")
        key, when = wf.uuid(), wf.utc_now()
        await sleep(0)
        wf.sleep(0)
        assert wf.patched("anything")
        me = wf.identity
        return [double(n), wf.get_data("status"), wf.get_data("seen"), wf.get_data("nothing", 7), wf.attempt,
                0 <= wf.random() < 1, isinstance(key, uuid.UUID), when.tzinfo is dt.UTC, me.parent_workflow_id]  # fmt: skip

    def run() -> list[Any]:
        return asyncio.run(flow(4))

    context = contextvars.copy_context()
    assert context.run(run) == [8, "started", 4, 7, 1, True, True, True, None]
    assert contextvars.Context().run(wf.get_data, "status") is None


# -- continue as new


def test_continue_as_new_keeps_the_id_and_starts_a_fresh_history(app: App) -> None:
    @app.step
    def work(n: int) -> int:
        return n

    @app.workflow
    def poll(page: int, total: int = 0) -> int:
        total += work(page)
        wf.set_data("page", page)
        if page < 4:
            wf.continue_as_new(page + 1, total=total)
        return total

    with TestApp(app) as world:
        run = poll.start(1)
        assert run.result() == 10
        assert run.data == {"page": 4}
        assert world.kinds(run).count("ContinuedAsNew") == 3
        assert len(app.runs()) == 1


def test_unread_hooks_are_carried_over_a_continue_as_new(app: App) -> None:
    @app.workflow
    async def inbox(seen: list[str]) -> list[str]:
        seen = [*seen, await hook("letter")]
        if len(seen) < 3:
            wf.continue_as_new(seen)
        return seen

    with TestApp(app):
        run = inbox.start([])
        for letter in ("a", "b", "c"):
            run.send("letter", letter)
        assert run.result() == ["a", "b", "c"]


def test_continue_as_new_refuses_arguments_that_do_not_fit(app: App) -> None:
    @app.workflow
    def poll(page: int) -> None:
        wf.continue_as_new(page, 2, 3)

    with TestApp(app) as world:
        run = poll.start(1)
        with pytest.raises(ArgumentError, match=r"continue_as_new: poll\(page.*too many positional arguments"):
            run.result()
        assert "ContinuedAsNew" not in world.kinds(run)


def test_continue_as_new_outside_a_workflow_is_refused(app: App) -> None:
    with pytest.raises(WrongContextError, match=r"continue_as_new\(\) is for workflow code in a run"):
        wf.continue_as_new(1)


# -- workflow options


def test_a_run_that_takes_longer_than_its_workflows_timeout_fails(app: App) -> None:
    @app.workflow(timeout="1h")
    async def flow() -> None:
        await hook("never")

    with TestApp(app) as world:
        run = flow.start()
        begin = world.now
        with pytest.raises(WorkflowTimeoutError, match=r"took longer than its timeout of 1h"):
            run.result()
        assert run.status == "FAILURE"
        assert world.now - begin == dt.timedelta(hours=1)
        shorter = flow.options(timeout="10m").start()
        with pytest.raises(WorkflowTimeoutError, match="10m"):
            shorter.result()


def test_cleanup_may_run_steps_after_a_workflow_timeout(app: App) -> None:
    @app.step
    def release(what: str) -> str:
        return what

    @app.workflow(timeout="1h")
    async def flow() -> None:
        try:
            await sleep("2h")
        finally:
            release("stock")

    with TestApp(app) as world:
        with pytest.raises(WorkflowTimeoutError):
            flow.start().result()
        assert world.calls(release) == [("stock",)]


def test_a_shield_lets_cleanup_finish_before_the_cancellation(app: App) -> None:
    done: list[str] = []

    @app.step
    def note(text: str) -> None:
        done.append(text)

    @app.workflow
    async def flow() -> None:
        async with shield():
            await sleep("1h")
            note("finished")
        await sleep("1h")
        note("not reached")

    @app.workflow
    def plain() -> None:
        with shield():
            wf.sleep("1h")
            note("plain")
        wf.sleep("1h")
        note("not reached")

    with TestApp(app) as world:
        for workflow in (flow, plain):
            run = workflow.start()
            world.settle()
            run.cancel()
            world.settle()
            assert run.status == "WAITING"
            with pytest.raises(RunCancelledError):
                run.result()
    assert done == ["finished", "plain"]


def test_asyncio_shield_keeps_a_task_alive(app: App) -> None:
    @app.workflow
    async def flow() -> str:
        async def answer() -> str:
            return str(await hook("answer"))

        inner = asyncio.ensure_future(answer())
        try:
            async with asyncio.timeout(60):
                await asyncio.shield(inner)
        except TimeoutError:
            return "late: " + await inner
        return "in time"

    with TestApp(app) as world:
        run = flow.start()
        world.advance("2m")
        run.send("answer", "yes")
        assert run.result() == "late: yes"


# -- what parking changes: nothing


def test_leaving_memory_at_every_wait_changes_nothing(app: App) -> None:
    cleanups: list[str] = []

    @app.step
    def work(n: int) -> int:
        return n

    @app.workflow
    async def flow() -> list[int]:
        out: list[int] = []
        try:
            for n in range(4):
                out.append(work(n))
                await sleep("60ms")
        finally:
            cleanups.append("end")
        return out

    with app.worker(settings=Settings(park_after=0.0, park_factor=0.0, show_after=0.0)):
        run = flow.start()
        assert run.result(timeout=10) == [0, 1, 2, 3]
    assert len(cleanups) > 2, "it has left memory, and was brought back"
    kinds = [event.kind for event in run.history()]
    assert kinds == ["RunStarted", *["StepCompleted", "TimerFired"] * 4, "RunCompleted"]
    assert len([step for step in run.steps if step.attempts == 1]) == 4


def test_a_run_with_a_timeout_continues_as_new_when_something_arrives(app: App) -> None:
    @app.workflow(timeout="1h")
    async def entity(n: int = 0) -> int:
        await hook("next")
        if n < 2:
            wf.continue_as_new(n + 1)
        return n

    with TestApp(app) as world:
        run = entity.start()
        for _ in range(3):
            world.settle()
            run.send("next")
        assert run.result() == 2


@pytest.mark.parametrize("how", ["loop", "sleep", "file"])
def test_clean_up_of_a_run_that_is_parked_is_watched_as_its_code_is(tmp_path: Path, how: str) -> None:
    app = App("parked", str(tmp_path / "parked.db"))
    written = tmp_path / "written"

    @app.step
    async def hello() -> str:
        return "hello"

    @app.workflow
    async def naps() -> None:
        try:
            await sleep("1h")
        finally:
            if how == "loop":
                while True:
                    pass
            elif how == "sleep":
                time.sleep(60)
            else:
                written.write_text("x")

    with app.worker(settings=Settings(park_after=0.05, blocked_after=0.4)) as worker:
        run = naps.start()
        wait_until(lambda: run.status == "WAITING")
        wait_until(lambda: not worker.engine.runs)
        assert hello.start().result(timeout=20) == "hello"
        assert run.status == "WAITING"
    assert not written.exists()
    app.close()


def test_a_payload_that_did_not_reach_the_code_is_for_the_next_that_asks(app: App) -> None:
    @app.workflow
    async def reader() -> list[Any]:
        await hook("begin")
        found: list[Any] = []
        for _ in range(2):
            try:
                async with asyncio.timeout(0):
                    found.append(await hook("word"))
            except TimeoutError:
                found.append("nothing yet")
        return [*found, await hook("word"), await hook("word")]

    with TestApp(app):
        run = reader.start()
        for word in ("one", "two"):
            run.send("word", word)
        run.send("begin")
        assert run.result() == ["nothing yet", "nothing yet", "one", "two"]


def test_it_is_for_one_that_waits_already(app: App) -> None:
    @app.workflow
    async def reader() -> Any:
        await hook("begin")
        first, second = (asyncio.create_task(_word()) for _ in range(2))
        await asyncio.sleep(0)
        first.cancel()
        return await second

    async def _word() -> Any:
        return await hook("word")

    with TestApp(app):
        run = reader.start()
        run.send("word", "one")
        run.send("begin")
        assert run.result() == "one"
