"""The workloads, and the clock on them: the same for everybody. Standard library only, for every peer imports it.

A peer gives four functions; what it can't do it leaves out. Each row is printed as a line of JSON when it is there.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import contextmanager
from typing import Any

STEPS = 200
WORKFLOWS = 1_000
STEPS_EACH = 5
MEMBERS = 1_000
ROUND_TRIPS = 100


def _say(**row: Any) -> None:
    print(json.dumps(row), flush=True)


def _seconds(action: Callable[[], object]) -> float:
    begun = time.perf_counter()
    action()
    return time.perf_counter() - begun


def _row(workload: str, unit: str, value: Callable[[], float], note: str) -> None:
    try:
        _say(workload=workload, value=value(), unit=unit, note=note)
    except Exception as error:
        traceback.print_exc()
        _say(workload=workload, value=None, unit=unit, note=f"{type(error).__name__}: {error}"[:200])


def run(
    *,
    round_trip: Callable[[], object],
    sequential: Callable[[int], object],
    fan_out: Callable[[int], object],
    many: Callable[[int, int], object] | None,
    scale: float = 1.0,
    note: str = "",
) -> None:
    """`scale` is for peers that would need hours: less work, with the same measure per step."""
    times, steps, members, workflows = (max(10, round(n * scale)) for n in (ROUND_TRIPS, STEPS, MEMBERS, WORKFLOWS))

    def of(done: int, meant: int) -> str:
        return "" if done == meant else f"{done} instead of {meant:,}"

    round_trip()  # everything is imported and connected
    median = lambda: statistics.median(_seconds(round_trip) for _ in range(times)) * 1e3
    _row("start to result", "ms", median, "; ".join(filter(None, [note, of(times, ROUND_TRIPS)])))
    per_step = lambda: min(_seconds(lambda: sequential(steps)) for _ in range(3)) / steps * 1e3
    _row("sequential step", "ms", per_step, of(steps, STEPS))
    per_thousand = lambda: min(_seconds(lambda: fan_out(members)) for _ in range(2)) / members * 1_000
    _row("fan-out and join", "s/1,000", per_thousand, of(members, MEMBERS))
    if many is None:
        _say(workload="many workflows", value=None, unit="steps/s", note="left out, it would take too long")
    else:
        rate = lambda: workflows * STEPS_EACH / _seconds(lambda: many(workflows, STEPS_EACH))
        _row("many workflows", "steps/s", rate, of(workflows, WORKFLOWS))


def check(result: object, expected: object) -> None:
    if result != expected:
        raise AssertionError(f"the result is {result!r}, expected {expected!r}")


@contextmanager
def process(*command: str) -> Any:
    """A worker, for as long as it is needed. What it says goes to standard error."""
    worker = subprocess.Popen(command, stdout=sys.stderr)
    try:
        yield worker
    finally:
        worker.terminate()
        try:
            worker.wait(10)
        except subprocess.TimeoutExpired:
            worker.kill()
            worker.wait()
