"""Holdfast: a worker process, SQLite, every commit synced."""

from __future__ import annotations

import asyncio
import sys

import measure

from holdfast import App

app = App("peers", "peers.db")


@app.step
async def step(i: int) -> int:
    return i + 1


@app.workflow
async def in_sequence(n: int) -> int:
    total = 0
    for _ in range(n):
        total = await step(total)
    return total


@app.workflow
async def side_by_side(n: int) -> int:
    return sum(await asyncio.gather(*[step(i) for i in range(n)]))


def many(workflows: int, steps: int) -> None:
    runs = [in_sequence.start(steps) for _ in range(workflows)]
    for run in runs:
        measure.check(run.result(), steps)


def main() -> None:
    with measure.process(sys.executable, "-m", "holdfast", "-A", "with_holdfast", "worker", "--log-level", "error"):
        measure.run(
            round_trip=lambda: measure.check(step.start(1).result(), 2),
            sequential=lambda n: measure.check(in_sequence.start(n).result(), n),
            fan_out=lambda n: measure.check(side_by_side.start(n).result(), n * (n + 1) // 2),
            many=many,
        )
