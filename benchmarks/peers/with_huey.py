"""Huey: pipelines and chords, four threads. `BENCH_HUEY` says on which storage."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import measure
from huey import RedisHuey, SqliteHuey
from huey.api import chord

if os.environ["BENCH_HUEY"] == "redis":
    huey = RedisHuey("peers", url=os.environ["BENCH_REDIS"], notify_result=True)
    delay = "0.1"
else:
    huey = SqliteHuey("peers", filename="peers.db", fsync=True)
    delay = "0.01"


@huey.task()
def step(i: int) -> int:
    return i + 1


@huey.task()
def total(results: list[int]) -> int:
    return sum(results)


def in_sequence(n: int) -> object:
    pipeline = step.s(0)
    for _ in range(n - 1):
        pipeline = pipeline.then(step)
    return huey.enqueue(pipeline)


def many(workflows: int, steps: int) -> None:
    results = [in_sequence(steps) for _ in range(workflows)]
    for result in results:
        measure.check(result.get(blocking=True)[-1], steps)


def fan_out(n: int) -> None:
    result = huey.enqueue(chord([step.s(i) for i in range(n)], total.s()))
    measure.check(result.callback.get(blocking=True), n * (n + 1) // 2)


def main() -> None:
    consumer = Path(sys.executable).parent / "huey_consumer"
    with measure.process(str(consumer), "with_huey.huey", "-w", "4", "-d", delay, "-q"):
        measure.run(
            round_trip=lambda: measure.check(step(1).get(blocking=True), 2),
            sequential=lambda n: measure.check(in_sequence(n).get(blocking=True)[-1], n),
            fan_out=fan_out,
            many=many,
        )
