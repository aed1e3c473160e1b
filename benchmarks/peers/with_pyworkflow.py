"""PyWorkflow: its local runtime in this process, on SQLite; its log of every step is off."""

from __future__ import annotations

import asyncio
from typing import Any

import measure
from pyworkflow import configure, configure_logging, get_workflow_run, start, step, workflow
from pyworkflow.storage.sqlite import SQLiteStorageBackend

loop = asyncio.new_event_loop()


@step()
async def add(i: int) -> int:
    return i + 1


@workflow(durable=True)
async def in_sequence(n: int) -> int:
    total = 0
    for _ in range(n):
        total = await add(total)
    return total


@workflow(durable=True)
async def side_by_side(n: int) -> int:
    return sum(await asyncio.gather(*[add(i) for i in range(n)]))


async def finish(body: Any, n: int, expected: int) -> None:
    run = await get_workflow_run(await start(body, n))
    measure.check(run.result, f"[{expected}]")


async def all_of(workflows: int, steps: int) -> None:
    await asyncio.gather(*[finish(in_sequence, steps, steps) for _ in range(workflows)])


def main() -> None:
    configure_logging(level="CRITICAL")
    storage = SQLiteStorageBackend("peers.db")
    loop.run_until_complete(storage.connect())
    configure(default_runtime="local", storage=storage)
    finished = loop.run_until_complete
    try:
        measure.run(
            round_trip=lambda: finished(finish(in_sequence, 1, 1)),
            sequential=lambda n: finished(finish(in_sequence, n, n)),
            fan_out=lambda n: finished(finish(side_by_side, n, n * (n + 1) // 2)),
            many=lambda workflows, steps: finished(all_of(workflows, steps)),
            note="the workflow is in the client's own process",
        )
    finally:
        loop.run_until_complete(storage.disconnect())
