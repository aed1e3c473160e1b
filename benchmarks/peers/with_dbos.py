"""DBOS: workflows in this process, on SQLite as shipped; `BENCH_POSTGRES` gives it a PostgreSQL instead."""

from __future__ import annotations

import asyncio
import os

import measure
from dbos import DBOS

DBOS(
    config={
        "name": "peers",
        "system_database_url": os.environ.get("BENCH_POSTGRES") or "sqlite:///peers.sqlite",
        "log_level": "ERROR",
    }
)


@DBOS.step()
async def step(i: int) -> int:
    return i + 1


@DBOS.step()
def plain_step(i: int) -> int:
    return i + 1


@DBOS.workflow()
def one(i: int) -> int:
    return plain_step(i)


@DBOS.workflow()
def in_sequence(n: int) -> int:
    total = 0
    for _ in range(n):
        total = plain_step(total)
    return total


@DBOS.workflow()
async def side_by_side(n: int) -> int:
    return sum(await asyncio.gather(*[step(i) for i in range(n)]))


def many(workflows: int, steps: int) -> None:
    handles = [DBOS.start_workflow(in_sequence, steps) for _ in range(workflows)]
    for handle in handles:
        measure.check(handle.get_result(), steps)


def main() -> None:
    DBOS.launch()
    loop = asyncio.new_event_loop()
    try:
        measure.run(
            round_trip=lambda: measure.check(DBOS.start_workflow(one, 1).get_result(), 2),
            sequential=lambda n: measure.check(in_sequence(n), n),
            fan_out=lambda n: measure.check(loop.run_until_complete(side_by_side(n)), n * (n + 1) // 2),
            many=many,
            note="the workflow is in the client's own process",
        )
    finally:
        DBOS.destroy()
