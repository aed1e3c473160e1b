"""A loop that is lent a thread from time to time: who runs it, and what becomes of what waits for it."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from executor_bench import open_bench

from holdfast.executors.loop_thread import LoopThread

PATIENCE = 20.0


def nothing() -> None: ...


@pytest.fixture
def thread() -> Iterator[LoopThread]:
    thread = LoopThread("loop", lambda: False, lambda: False)
    yield thread
    thread.call(thread.end)
    thread.run_apart()
    assert thread.has_left(PATIENCE)


def test_a_loop_that_answers_too_late_keeps_its_thread(thread: LoopThread) -> None:
    is_held, goes_on, answered = threading.Event(), threading.Event(), threading.Event()

    def hold() -> None:
        is_held.set()
        assert goes_on.wait(PATIENCE)

    thread.run_apart()
    thread.call(hold)
    assert is_held.wait(PATIENCE)
    assert not thread.come_back(0.01)
    goes_on.set()
    thread.call(nothing)
    thread.call(answered.set)
    assert answered.wait(PATIENCE)
    time.sleep(0.02)  # a loop that leaves does so at once
    answered.clear()
    thread.call(answered.set)
    assert answered.wait(PATIENCE)


def test_a_loop_that_another_thread_runs_is_not_lent_one(thread: LoopThread) -> None:
    answered = threading.Event()
    thread.run_apart()
    thread.call(answered.set)
    assert answered.wait(PATIENCE)
    assert not thread.run_for(PATIENCE, nothing)


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt])
def test_a_thread_that_is_wanted_back_comes_back_whatever_is_raised_then(
    thread: LoopThread, error: type[BaseException]
) -> None:
    def fail() -> None:
        raise error

    def first() -> None:
        thread.loop.call_soon(thread.stop)
        thread.loop.call_soon(fail)

    began = time.monotonic()
    assert thread.run_for(PATIENCE, first)
    assert time.monotonic() - began < PATIENCE / 2


def test_what_is_ready_is_run_as_a_running_loop_does(thread: LoopThread) -> None:
    found: list[object] = []

    async def look() -> None:
        found.extend([asyncio.get_running_loop(), asyncio.current_task(), thread.loop.is_running()])
        thread.loop.stop()

    task = thread.loop.create_task(look())
    assert thread.run_for(PATIENCE, nothing)
    assert found == [thread.loop, task, True]
    assert not thread.loop.is_running()
    with pytest.raises(RuntimeError):
        asyncio.get_running_loop()


def test_a_plain_step_for_a_thread_that_is_no_longer_lent_gets_another_one(tmp_path: Path) -> None:
    with open_bench(tmp_path) as bench:
        bench.executor._brief.took("plain", 0.0)
        bench.executor.offer(lambda steps: True)  # it says so, and is released before the step is put aside
        assert bench.result(bench.submit("plain", 1)) == 2
