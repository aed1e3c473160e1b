"""What a step costs in CPU time, in units of a fixed piece of Python work: `python benchmarks/cpu.py WORKLOAD`.

On a machine that others use too, seconds can't be compared, and CPU seconds hardly: its speed changes by the minute. So
the same work is timed right before and after, and what is told is as if that had taken 20 ms.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from workflows import app, async_step, count, in_sequence, in_sequence_plain, in_sequence_volatile, then_wait

from holdfast import chord
from holdfast.engine.settings import Settings

HERE = Path(__file__).parent
UNIT = "where the fixed work takes 20 ms"
Cost = tuple[float, float]
"""Normalised CPU, and by the clock."""


def fixed_work() -> float:
    started, total = time.thread_time(), 0
    for i in range(300_000):
        total += i * i % 7
    return time.thread_time() - started


def normalised(action: Callable[[], Any], clock: Callable[[], float] = time.process_time) -> Cost:
    before, cpu, started = fixed_work(), clock(), time.perf_counter()
    action()
    wall, cpu = time.perf_counter() - started, clock() - cpu
    return cpu * 0.020 / ((before + fixed_work()) / 2), wall


def each(cost: Cost, n: int) -> Cost:
    return cost[0] / n, cost[1] / n


def many(workflow: Any, runs: int = 1_000) -> Cost:
    """Runs of 5 steps that are all there when the worker starts."""
    url = app.store_url
    app.use_store(f"{url}?sync=normal")  # what is not measured may be faster
    for _ in range(runs):
        workflow.start(5)
    app.use_store(url)

    def drain() -> None:
        with app.worker():
            while app.runs(status=["PENDING", "RUNNING", "WAITING"], limit=1):
                time.sleep(0.05)

    return each(normalised(drain), runs * 5)


def told(metrics: bool = False, watched: bool = False) -> Cost:
    """The same with those who listen: metrics in the process, and somebody who receives telemetry events elsewhere."""
    from holdfast.telemetry.metrics import Metrics

    if metrics:
        app.instruments.add(Metrics())
    if watched:
        app.store.watch("the benchmark", app.store.now() + 600_000_000)
    return many(in_sequence)


def alone(workflow: Any, n: int = 1_000) -> Cost:
    with app.worker():
        workflow.start(50).result()
        return each(normalised(lambda: workflow.start(n).result()), n)


def joined(n: int = 1_000) -> Cost:
    canvas = chord([async_step.s(i) for i in range(n)], count.s())
    with app.worker():
        in_sequence.start(50).result()
        return each(normalised(lambda: canvas.start().result()), n)


def resumed(n: int = 5_000) -> Cost:
    """A run that has done so many steps comes back into memory."""
    with app.worker():
        run = then_wait.start(n)
        while run.reason != "sleep":
            time.sleep(0.01)
    return each(resume(run.id), n)


def resume(run_id: str) -> Cost:
    host = app.make_engine(settings=Settings(park_after=600))
    host.start()
    app.get_run(run_id).send("wake up", None)
    engine = host.engine

    def is_idle(live: Any) -> bool:
        code = getattr(live, "code", live)  # commits before the run had its code apart are measured, too
        return live.row.id == run_id and code.execution is not None and live.is_idle()

    def until_idle() -> None:
        while not any(map(is_idle, engine.runs.values())):
            engine.turn([])

    cost = normalised(until_idle)
    host.stop(0)
    host.run()
    return cost


def across(n: int = 300) -> Cost:
    """From start to result, the worker in another process; the CPU of both."""
    command = [sys.executable, "-m", "holdfast", "-A", "workflows", "worker", "--log-level", "error"]
    worker = subprocess.Popen(command, cwd=HERE, env={**os.environ, "HOLDFAST_STORE": app.store_url})
    usage = Path(f"/proc/{worker.pid}/stat")
    tick = os.sysconf("SC_CLK_TCK")

    def cpu() -> float:
        return time.process_time() + sum(map(int, usage.read_text().rpartition(")")[2].split()[11:13])) / tick

    def begin_and_end() -> None:
        for i in range(n):
            async_step.start(i).result()

    try:
        async_step.start(0).result()
        return each(normalised(begin_and_end, cpu), n)
    finally:
        worker.send_signal(signal.SIGTERM)
        worker.wait()


WORKLOADS: dict[str, tuple[str, Callable[[], Cost]]] = {
    "many": ("1,000 runs × 5 async steps, a step", lambda: many(in_sequence)),
    "many-plain": ("1,000 runs × 5 plain steps, a step", lambda: many(in_sequence_plain)),
    "many-metrics": ("the same, with metrics", lambda: told(metrics=True)),
    "many-watched": ("the same, with a receiver elsewhere", lambda: told(watched=True)),
    "many-told": ("the same, with both", lambda: told(metrics=True, watched=True)),
    "alone": ("sequential async step", lambda: alone(in_sequence)),
    "alone-plain": ("sequential plain step", lambda: alone(in_sequence_plain)),
    "volatile": ("step with durable=False", lambda: alone(in_sequence_volatile)),
    "chord": ("chord of 1,000, a member", joined),
    "resume": ("resume of 5,000 steps, a step", resumed),
    "across": ("start to result, two processes", across),
}


def measure(workload: str, source: Path = HERE.parent / "src") -> Cost:
    """In a process of its own, with the code at `source`."""
    out = subprocess.run(
        [sys.executable, __file__, workload],
        env={**os.environ, "PYTHONPATH": str(source)},
        stdout=subprocess.PIPE,
        check=True,
    ).stdout
    cpu, wall = json.loads(out)
    return cpu, wall


def main() -> None:
    gc.freeze()  # these three as `holdfast worker` does
    gc.set_threshold(20_000, 20, 50)
    sys.setswitchinterval(0.0005)
    with tempfile.TemporaryDirectory() as folder:
        app.use_store(f"{folder}/bench.db")
        print(json.dumps([seconds * 1e6 for seconds in WORKLOADS[sys.argv[1]][1]()]))
        app.close()


if __name__ == "__main__":
    main()
