"""Pynenc: a thread runner in this process, on SQLite, with the polls that its own sample uses."""

from __future__ import annotations

import threading

import measure
from pynenc import PynencBuilder

app = (
    PynencBuilder()
    .app_id("peers")
    .sqlite("peers.db")
    .thread_runner(min_threads=1, max_threads=8)
    .runner_tuning(runner_loop_sleep_time_sec=0.02, invocation_wait_results_sleep_time_sec=0.02)
    .logging_level("error")
    .build()
)


@app.task
def step(i: int) -> int:
    return i + 1


@app.workflow
def in_sequence(n: int) -> int:
    return sum(in_sequence.wf.root.execute_task(step, i).result for i in range(n))


@app.workflow
def side_by_side(n: int) -> int:
    invocations = [side_by_side.wf.root.execute_task(step, i) for i in range(n)]
    return sum(invocation.result for invocation in invocations)


def many(workflows: int, steps: int) -> None:
    invocations = [in_sequence(steps) for _ in range(workflows)]
    for invocation in invocations:
        measure.check(invocation.result, steps * (steps + 1) // 2)


def main() -> None:
    threading.Thread(target=app.runner.run, daemon=True).start()
    measure.run(
        round_trip=lambda: measure.check(step(1).result, 2),
        sequential=lambda n: measure.check(in_sequence(n).result, n * (n + 1) // 2),
        fan_out=lambda n: measure.check(side_by_side(n).result, n * (n + 1) // 2),
        many=many,
        scale=0.05,
        note="the runner is in the client's own process",
    )
