"""A run that leaves memory is unwound at once, with everything refused, and nothing of it stays."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import gc
import os
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import greenlet
import pytest
from core_code import a, b, c, kid, p, q, world

from holdfast import hook, shield, sleep, wf
from holdfast.core.loop import running

HERE = Path(__file__).parent
ran: list[str] = []


@pytest.fixture(scope="module", autouse=True)
def only_what_these_tests_make_is_collected() -> None:
    """What is in the process already is much, and looking at it each time takes most of the time."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _nothing_ran() -> None:
    ran.clear()


def everything() -> None:
    """All that cleaning-up code could ask for."""
    for ask in (
        lambda: p("in cleanup"),
        lambda: wf.set_data("k", 1),
        lambda: kid.start(1),
        lambda: a.submit(1),
        lambda: wf.random(),
        lambda: wf.uuid(),
        lambda: wf.utc_now(),
        lambda: wf.patched("x"),
        lambda: wf.wait(a(1)),
    ):
        try:
            ask()
        except BaseException as refused:
            ran.append(type(refused).__name__)
            continue
        ran.append("not refused")


async def awaits_a_step() -> None:
    try:
        await a()
    finally:
        everything()
        await b("in cleanup")


async def calls_a_step() -> None:
    try:
        p()
    finally:
        everything()
        q("in cleanup")


async def sleeps() -> None:
    try:
        await sleep("30d")
    finally:
        ran.append("sleeps")
        await sleep(1)


async def sleeps_plainly() -> None:
    try:
        wf.sleep("30d")
    finally:
        ran.append("sleeps")
        wf.sleep(1)


async def waits_for_a_hook() -> None:
    try:
        await hook("h", timeout="1d")
    finally:
        await hook("again")


async def waits_for_a_child() -> None:
    try:
        await kid()
    finally:
        await kid()


async def gathers() -> None:
    try:
        await asyncio.gather(awaits_a_step(), calls_a_step(), sleeps(), return_exceptions=True)
    finally:
        await asyncio.gather(b(1), calls_a_step(), sleeps())


async def groups() -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(awaits_a_step())
        group.create_task(calls_a_step())
        await c()


async def times_out() -> None:
    try:
        async with asyncio.timeout(5):
            await asyncio.wait_for(awaits_a_step(), 4)
    finally:
        await asyncio.wait_for(awaits_a_step(), 3)
        async with asyncio.timeout(5):
            await b()


async def shields() -> None:
    async with shield():
        await asyncio.shield(awaits_a_step())


async def waits_forever() -> None:
    asyncio.ensure_future(sleeps())
    await asyncio.Event().wait()


async def catches_everything_a_while() -> None:
    for _ in range(20):
        try:
            await a()
        except BaseException as error:
            ran.append(type(error).__name__)


async def catches_everything_a_while_in_plain_calls() -> None:
    for _ in range(20):
        with contextlib.suppress(BaseException):
            p()


async def iterates() -> None:
    async def generate() -> Any:
        try:
            for n in range(3):
                yield await a(n)
        finally:
            everything()
            await b("in cleanup")

    async for _ in generate():
        await c()


async def leaves_a_generator_behind() -> None:
    async def generate() -> Any:
        try:
            yield 1
        finally:
            ran.append("generator")
            wf.set_data("k", "generator")
            await b("in cleanup")

    generator = generate()
    cycle = [generator]
    cycle.append(cycle)  # type: ignore[arg-type]
    async for _ in generator:
        break
    del generator, cycle
    await a()


def plain_workflow() -> None:
    try:
        p()
    finally:
        everything()
        q("in cleanup")


FLOWS: list[Callable[..., Any]] = [
    awaits_a_step, calls_a_step, sleeps, sleeps_plainly, waits_for_a_hook, waits_for_a_child, gathers, groups, times_out,
    shields, waits_forever, catches_everything_a_while, catches_everything_a_while_in_plain_calls, iterates,
    leaves_a_generator_behind, plain_workflow,
]  # fmt: skip


def collect() -> None:
    """What a finaliser has touched goes with the next collection."""
    for _ in range(3):
        gc.collect()


def greenlets() -> int:
    collect()
    return sum(isinstance(each, greenlet.greenlet) for each in gc.get_objects())


@pytest.mark.parametrize("flow", FLOWS, ids=lambda flow: flow.__name__)
def test_an_evicted_run_asks_for_nothing_and_leaves_nothing(flow: Any) -> None:
    run = world(flow, strict=True)
    execution = run.wake()
    if flow is iterates:
        run.complete(run.step("a"))
    committed, commands, data = list(run.committed), list(run.commands), dict(execution.journal.data)
    traces = [weakref.ref(execution), weakref.ref(execution.loop)]
    traces += [weakref.ref(task) for task in execution.loop.tasks.values()]
    execution.evict()
    assert execution.journal.take() == ([], [])
    assert execution.journal.data == data
    assert "not refused" not in ran
    assert asyncio._get_running_loop() is None
    del execution
    run.crash()
    collect()
    assert [trace() for trace in traces] == [None] * len(traces)
    assert run.committed == committed
    run.wake()
    assert [command for command in run.commands[len(commands) :] if command not in commands] == []


@pytest.mark.parametrize("flow", FLOWS, ids=lambda flow: flow.__name__)
def test_evicting_again_and_again_keeps_the_number_of_greenlets(flow: Any) -> None:
    run = world(flow, strict=True)
    for _ in range(2):
        run.wake()
        run.crash()
    before = greenlets()
    for _ in range(5):
        run.wake()
        run.crash()
    assert greenlets() == before


async def stubborn_awaits() -> None:
    while True:
        with contextlib.suppress(BaseException):
            ran.append("again")
            await a()


async def stubborn_calls() -> None:
    while True:
        with contextlib.suppress(BaseException):
            ran.append("again")
            p()


async def stubborn_reads() -> None:
    while True:
        with contextlib.suppress(BaseException):
            ran.append("again")
            await asyncio.sleep(1)
            wf.utc_now()


async def stubborn_generator() -> None:
    async def generate() -> Any:
        while True:
            with contextlib.suppress(BaseException):
                ran.append("again")
                yield await a()

    async for _ in generate():
        pass


def stubborn_plain_workflow() -> None:
    while True:
        with contextlib.suppress(BaseException):
            ran.append("again")
            p()


STUBBORN = [stubborn_awaits, stubborn_calls, stubborn_reads, stubborn_generator, stubborn_plain_workflow]


@pytest.mark.parametrize("flow", STUBBORN, ids=lambda flow: flow.__name__)
def test_code_that_catches_everything_for_ever_is_left_standing(flow: Any) -> None:
    run = world(flow, strict=True)
    execution = run.wake()
    execution.evict()
    assert len(ran) < 1000
    assert execution.journal.take() == ([], [])
    times = len(ran)
    run.execution = execution = None  # type: ignore[assignment]
    gc.collect()
    assert len(ran) == times
    run.wake()
    run.crash()


def test_code_left_standing_does_nothing_when_the_process_ends() -> None:
    script = f"""
import sys
sys.path.insert(0, {str(HERE)!r})
import test_core_eviction as t
for flow in t.STUBBORN:
    run = t.world(flow)
    run.wake()
    run.crash()
t.ran = type("Loud", (list,), {{"append": lambda self, what: print(what, flush=True)}})()
"""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, timeout=30)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_an_abandoned_generator_cleans_up_in_its_own_run() -> None:
    async def flow() -> Any:
        async def generate() -> Any:
            try:
                for n in range(3):
                    yield await a(n)
            finally:
                wf.set_data("closed", True)
                await b()

        async for _ in generate():
            break
        return await c()

    run = world(flow, strict=True)
    run.complete(run.step("a"))
    assert sorted(run.pending().values()) == ["b", "c"]
    run.crash()
    run.complete(run.step("b"))
    run.complete(run.step("c"), "end")
    assert run.result() == "end"


def test_a_generator_that_the_collector_finds_runs_nothing_in_another_run() -> None:
    async def leaves() -> Any:
        await leaves_a_generator_behind()

    async def collects() -> Any:
        gc.collect()
        await b()
        return wf.get_data("k")

    gc.disable()
    try:
        left = world(leaves)
        left.run_id = "left"
        left.wake()
        left.execution.loop  # type: ignore[union-attr]
        other = world(collects)
        other.complete(other.step("b"))
        assert other.result() is None
        assert ran == []
        left.crash()
        assert ran == ["generator"]
        assert "DataSet" not in left.kinds() + other.kinds()
    finally:
        gc.enable()


def test_what_is_not_yet_begun_when_the_run_leaves_never_begins() -> None:
    async def flow() -> Any:
        async def never() -> None:
            ran.append("begun")

        try:
            await a()
        finally:
            asyncio.get_running_loop().call_soon(ran.append, "called")
            await asyncio.gather(never(), never())

    run = world(flow)
    run.wake()
    run.crash()
    assert ran == []


def test_the_task_that_is_evicted_knows_itself() -> None:
    async def flow() -> Any:
        try:
            await a()
        finally:
            task = asyncio.current_task()
            ran.append(task.get_name() if task is not None else "none")
            loop = running()
            ran.append(str(loop is not None and loop.is_closed()))

    run = world(flow)
    run.wake()
    run.crash()
    assert ran == ["flow", "True"]
    with pytest.raises(RuntimeError):
        asyncio.current_task()


def test_a_generator_that_code_drops_while_it_is_evicted_comes_back_to_that_code() -> None:
    async def flow() -> Any:
        async def generate() -> Any:
            try:
                yield 1
            finally:
                ran.append("generator")

        generator: Any = generate()
        await anext(generator)
        try:
            await a()
        finally:
            del generator
            ran.append("code")

    run = world(flow)
    run.wake()
    for taken in [
        run.greenlets.take(greenlet.getcurrent()) for _ in range(2)
    ]:  # one is in use when the other is asked for
        run.greenlets.give_back(taken)
    run.crash()
    assert ran == ["generator", "code"]


def test_a_thread_whose_pool_is_closed_leaves_nothing_behind() -> None:
    def use() -> None:
        run.greenlets.enter_thread()
        run.wake()
        run.crash()
        run.greenlets.close()
        traces.append(weakref.ref(greenlet.getcurrent()))

    traces: list[weakref.ref[Any]] = []
    run = world(calls_a_step)
    thread = threading.Thread(target=use)
    thread.start()
    thread.join()
    assert run.execution is None
    deadline = time.monotonic() + 10
    while traces[0]() is not None and time.monotonic() < deadline:  # it is let go of a moment after the thread's end
        time.sleep(0.001)
    assert traces[0]() is None


def test_what_clean_up_sets_reaches_no_other_run() -> None:
    tenant = contextvars.ContextVar("tenant", default="nobody")
    seen: list[str] = []

    async def halves() -> Any:
        try:
            yield 1
        finally:
            tenant.set("a generator")

    async def flow() -> Any:
        tenant.set("acme")
        generator = halves()
        await anext(generator)
        try:
            await a()
        finally:
            seen.append(tenant.get())
            tenant.set("acme, leaving")

    run = world(flow)
    run.wake()
    run.crash()
    assert seen == ["acme"]
    assert tenant.get() == "nobody"
