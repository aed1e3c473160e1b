"""The same program asks in the same order, wherever its objects lie in memory."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from core_code import a, b, world

from holdfast.core.greenlets import Greenlets
from holdfast.core.loop import WorkflowLoop

HERE = Path(__file__).parent


def start(junk: int) -> subprocess.Popen[str]:
    path = os.pathsep.join([str(HERE), *filter(None, sys.path)])
    environment = {**os.environ, "PYTHONHASHSEED": str(junk), "PYTHONPATH": path}
    command = [sys.executable, str(HERE / "core_order.py"), str(junk * 1009)]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)


@pytest.mark.parametrize("count", [4, pytest.param(20, marks=pytest.mark.torture)])
def test_processes_with_other_hashes_and_addresses_ask_in_the_same_order(count: int) -> None:
    outputs = set()
    for batch in range(count // 4):
        processes = [start(4 * batch + n) for n in range(4)]
        for process in processes:
            outputs.add(process.communicate()[0])
            assert process.returncode == 0
    assert len(outputs) == 1
    assert "completing a0 a1" in outputs.pop()


def test_tasks_and_futures_are_hashed_by_their_number() -> None:
    loop = WorkflowLoop(Greenlets())  # type: ignore[abstract]

    async def nothing() -> None: ...

    tasks = [loop.create_task(nothing()) for _ in range(5)]
    futures = [loop.create_future() for _ in range(5)]
    assert [hash(each) for each in tasks + futures] == list(range(1, 11))
    assert [task.get_name() for task in tasks] == [f"Task-{n}" for n in range(1, 6)]
    loop.evict()


def test_tasks_are_held_by_their_run_alone() -> None:
    async def flow() -> Any:
        asyncio.ensure_future(a())
        await b()

    run = world(flow)
    before = set(asyncio.tasks._all_tasks) if sys.version_info < (3, 12) else set()  # those of a browser, for example
    assert len(run.wake().loop.tasks) == 2
    assert not set(asyncio.tasks._all_tasks) - before if sys.version_info < (3, 12) else True
    run.crash()


def test_unknown_keywords_of_create_task_are_accepted_and_no_task_starts_early() -> None:
    async def flow() -> Any:
        begun = []

        async def note() -> None:
            begun.append("task")

        task = asyncio.get_running_loop().create_task(note(), eager_start=True, something="else")
        begun.append("caller")
        await task
        return begun

    run = world(flow)
    run.wake()
    assert run.result() == ["caller", "task"]


def test_gather_keeps_the_order_of_its_arguments_whatever_completes_first() -> None:
    async def flow() -> Any:
        return await asyncio.gather(*(a(n) for n in range(4)))

    results = set()
    for seed in range(30):
        run = world(flow, seed=seed).run()
        results.add(tuple(run.argument(event.args) for event in run.history if event.kind == "StepCompleted"))
        assert run.result() == [0, 1, 2, 3]
    assert len(results) > 10
