"""Celery: chains and chords, two prefork processes, Redis as broker and as result backend; all else as shipped."""

from __future__ import annotations

import os
import sys

import measure
from celery import Celery, chain, chord

URL = os.environ["BENCH_REDIS"]
app = Celery("with_celery", broker=URL, backend=URL)


@app.task(name="step")
def step(i: int) -> int:
    return i + 1


@app.task(name="total")
def total(results: list[int]) -> int:
    return sum(results)


def in_sequence(n: int) -> object:
    return chain(step.s(0), *[step.s() for _ in range(n - 1)])()


def many(workflows: int, steps: int) -> None:
    results = [in_sequence(steps) for _ in range(workflows)]
    for result in results:
        measure.check(result.get(), steps)


def main() -> None:
    command = (sys.executable, "-m", "celery", "-A", "with_celery", "worker", "-c", "2", "-l", "ERROR")
    with measure.process(*command):
        measure.run(
            round_trip=lambda: measure.check(step.delay(1).get(), 2),
            sequential=lambda n: measure.check(in_sequence(n).get(), n),
            fan_out=lambda n: measure.check(chord([step.s(i) for i in range(n)])(total.s()).get(), n * (n + 1) // 2),
            many=many,
        )
