"""`make bench`: what Holdfast costs here and now, beside the floor that the disk sets in the same run.

Every row is measured in this run; ratios to the floor are what can be compared between machines.
"""

from __future__ import annotations

import argparse
import asyncio
import datetime as dt
import json
import os
import platform
import resource
import signal
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import cpu
import lists
import on_postgres
from floor import floor_ms
from workflows import (
    LENGTH,
    WIDTH,
    app,
    async_step,
    by_events,
    count,
    fan,
    far_step,
    gathered,
    gathered_under_limits,
    in_a_line,
    in_sequence,
    in_sequence_far,
    in_sequence_local,
    in_sequence_plain,
    in_sequence_volatile,
    plain_step,
    sleeper,
    sleeper_until,
    then_wait,
)

from holdfast import chain, chord
from holdfast.ports import RunQuery

ROWS: list[dict[str, Any]] = []


def row(what: str, value: float, unit: str, floor: float | None = None, note: str = "") -> None:
    ROWS.append({"what": what, "value": value, "unit": unit, "ratio": value / floor if floor else None, "note": note})
    ratio = f"{value / floor:6.2f} × floor" if floor else ""
    print(f"{what:58s} {value:12.3f} {unit:10s} {ratio:16s} {note}", flush=True)


def seconds(action: Callable[[], Any]) -> float:
    started = time.perf_counter()
    action()
    return time.perf_counter() - started


def best(times: int, action: Callable[[], Any]) -> float:
    return min(seconds(action) for _ in range(times))


class Worker:
    def __init__(self, *options: str) -> None:
        command = [sys.executable, "-m", "holdfast", "-A", "workflows", "worker", "--log-level", "error", *options]
        self.process = subprocess.Popen(
            command, cwd=Path(__file__).parent, env={**os.environ, "HOLDFAST_STORE": app.store_url}
        )
        deadline = time.monotonic() + 20
        while not any(w.pid == self.process.pid for w in app.store.workers()):
            assert time.monotonic() < deadline, "the worker did not start"
            time.sleep(0.005)

    def memory(self) -> int:
        """What it holds now, in bytes."""
        pages = int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1])
        return pages * resource.getpagesize()

    def until_parked(self) -> None:
        """Wait until every run has been looked at and let go."""
        while app.runs(status=["PENDING", "RUNNING"], limit=1) or app.store.runs(RunQuery(owner=self.id(), limit=1)):
            time.sleep(0.1)

    def id(self) -> str:
        (row,) = [row for row in app.store.workers() if row.pid == self.process.pid]
        return row.id

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait()


def in_process(floor: float) -> None:
    with app.worker():
        in_sequence.start(50).result()
        for title, workflow in (
            ("async", in_sequence),
            ("plain", in_sequence_plain),
            ("force_local", in_sequence_local),
            ("durable=False", in_sequence_volatile),
        ):
            took = best(3, lambda workflow=workflow: workflow.start(1_000).result())  # type: ignore[misc]
            row(f"sequential step, {title}", took, "ms", None if "False" in title else floor)
        small = best(3, lambda: in_sequence.start(100).result()) / 100 * 1e3
        large = seconds(lambda: in_sequence.start(10_000).result()) / 10_000 * 1e3
        row("cost per step at 10,000 against 100", large / small, "×", note=f"{small:.3f} and {large:.3f} ms")
        for n in (1_000, 10_000):
            row(f"gather of {n:,}", best(2, lambda n=n: gathered.start(n).result()), "s")  # type: ignore[misc]
        row(f"DAG of {WIDTH:,}, a fan", best(3, lambda: fan.start({}).result()), "s")


def limited() -> None:
    """What a limit adds to a step, in batches: with room for all, with a key, and with a line of those who wait."""
    n = 2_000
    with app.worker():
        gathered.start(n).result()
        without = best(3, lambda: gathered.start(n).result())
        for how, title in (
            ("limited", "a limit with room"),
            ("keyed", "a limit per key"),
            ("scarce", "20 slots for all"),
        ):
            took = best(3, lambda how=how: gathered_under_limits.start(n, how).result())  # type: ignore[misc]
            row(f"{title} adds, a step", (took - without) / n * 1e3, "ms", note=f"gather of {n:,}: {took:.2f} s")


def normalised() -> None:
    for workload in ("many", "many-plain", "resume"):
        title, _ = cpu.WORKLOADS[workload]
        row(f"normalised CPU: {title}", min(cpu.measure(workload)[0] for _ in range(3)), "µs", note=cpu.UNIT)
    telemetry()


def telemetry() -> None:
    """What those who listen cost a step, against nobody, in turns."""
    listening = ("many-metrics", "many-watched", "many-told")
    costs = {name: [0.0] * 5 for name in ("many", *listening)}
    for i in range(5):
        for name, found in costs.items():
            found[i] = cpu.measure(name)[0]
    nobody = statistics.median(costs["many"])
    for name in listening:
        row(f"telemetry: {cpu.WORKLOADS[name][0]}", statistics.median(costs[name]) / nobody, "× nobody")


def composed(floor: float) -> None:
    """Chains and chords: what a member costs must not depend on how many there are."""
    worker = Worker()
    chain(async_step.s(0), async_step.s()).start().result()
    for n, times in ((100, 3), (1_000, 2), (10_000, 1)):
        links = chain(async_step.s(0), *[async_step.s()] * (n - 1))
        row(f"chain of {n:,}, a step", best(times, lambda c=links: c.start().result()) / n * 1e3, "ms", floor)  # type: ignore[misc]
    for n, times in ((1_000, 3), (10_000, 2), (100_000, 1)):
        joined = chord([async_step.s(i) for i in range(n)], count.s())
        took = best(times, lambda c=joined: c.start().result())  # type: ignore[misc]
        row(f"chord of {n:,}", took, "s", note=f"{took / n * 1e6:.0f} µs a member")
    worker.stop()


def throughput() -> None:
    one, worker = _many(1)
    row("1,000 workflows × 5 steps", one, "steps/s", note=f"{5_000 / one:.2f} s, one worker process")
    before, more = worker.memory(), 5_000
    for run in [async_step.start(0) for _ in range(more)]:
        run.result()
    row(f"memory that {more:,} more runs leave behind", (worker.memory() - before) / more, "bytes each")
    worker.stop()
    two, worker = _many(2)
    worker.stop()
    row("the same, two worker processes on one file", two, "steps/s", note=f"{two / one:.2f} × one")


def _many(count: int) -> tuple[float, Worker]:
    """Steps a second of so many workers that are there when the runs are, and the first of them; the others have ended."""
    workers = [Worker() for _ in range(count)]
    async_step.start(0).result()
    runs = in_sequence.start_many([5] * 1_000)
    for run in runs:
        run.result()
    rows = [run._fetch() for run in runs]
    took = (max(r.finished_at or 0 for r in rows) - min(r.started_at or 0 for r in rows)) / 1e6
    for other in workers[1:]:
        other.stop()
    return 5_000 / took, workers[0]


def elsewhere(floor: float) -> None:
    """Steps that another process executes, which pulls them from the store: one for runs, one for steps."""
    runs = [in_sequence_far.start(5) for _ in range(1_000)]
    executor = Worker("--executor-only", "--queues", "far")
    worker = Worker()
    for run in runs:
        run.result()
    rows = [found for run in runs if (found := app.store.get(run.id)) is not None]
    took = (max(r.finished_at or 0 for r in rows) - min(r.started_at or 0 for r in rows)) / 1e6
    row("1,000 × 5 steps in an executor", 5_000 / took, "steps/s", note=f"{took:.2f} s, one engine, one executor")
    links = chain(far_step.s(0), *[far_step.s()] * 999)
    took = best(2, lambda: links.start().result())
    row("chain of 1,000 in an executor, a step", took, "ms", floor)
    joined = chord([far_step.s(i) for i in range(1_000)], count.s())
    took = best(3, lambda: joined.start().result())
    row("chord of 1,000 in an executor", took, "s", note=f"{took * 1e3:.0f} µs a member")
    executor.stop()
    worker.stop()


def across_processes() -> None:
    worker = Worker()
    async_step.start(0).result()
    times = [seconds(lambda: async_step.start(1).result()) * 1e3 for _ in range(200)]
    row(
        "start to result, worker in another process, p50",
        statistics.median(times),
        "ms",
        note=f"p99 {sorted(times)[-2]:.2f}",
    )
    usage = Path(f"/proc/{worker.process.pid}/stat")
    ticks = lambda: sum(map(int, usage.read_text().rpartition(")")[2].split()[11:13]))
    before = ticks()
    time.sleep(5)
    row("CPU of an idle worker", (ticks() - before) / os.sysconf("SC_CLK_TCK") / 5 * 100, "%")
    others = [Worker(), Worker()]
    busy = [in_sequence.start(100_000) for _ in range(4)]
    times = [seconds(lambda: sleeper.start(0)) * 1e3 for _ in range(100)]
    row("a client's start beside three busy engines, p50", statistics.median(times), "ms", note=f"max {max(times):.1f}")
    for run in busy:
        run.cancel()
    for each in others:
        each.stop()
    victim = in_sequence.start(100_000)
    while not victim.history()[1:]:
        time.sleep(0.01)
    other = Worker()
    worker.kill()
    killed = time.perf_counter()
    known = len(victim.history())
    while len(victim.history()) == known:
        time.sleep(0.002)
    row("kill -9 to progress elsewhere", time.perf_counter() - killed, "s")
    victim.cancel()
    other.stop()


def waiting(count: int = 1_000) -> None:
    """Coroutines that wait for runs of another process, as a web server's do."""

    async def measure() -> tuple[float, float]:
        runs = sleeper.start_many([86_400.0] * count)
        waits = [asyncio.ensure_future(run.aresult()) for run in runs]
        await asyncio.sleep(5)
        used, begun = time.process_time(), time.perf_counter()
        await asyncio.sleep(3)
        idle = (time.process_time() - used) / (time.perf_counter() - begun)
        begun = time.perf_counter()
        for run in runs:
            await run.aterminate("measured")
        await asyncio.gather(*waits, return_exceptions=True)
        return idle, time.perf_counter() - begun

    worker = Worker()
    idle, ended = asyncio.run(measure())
    worker.stop()
    row(f"{count:,} coroutines await runs: CPU while nothing happens", idle * 100, "% of 1")
    row("  a message to each, and its outcome awaited", ended / count * 1_000, "ms")


def resuming() -> None:
    for n in (1_000, 50_000):
        with app.worker():
            run = then_wait.start(n)
            while run.reason != "sleep":
                time.sleep(0.01)
        code = f"import cpu;from workflows import app\nprint(cpu.resume({run.id!r})[1])"
        out = subprocess.run(
            [sys.executable, "-c", code], cwd=Path(__file__).parent, env={**os.environ, "HOLDFAST_STORE": app.store_url},
            stdout=subprocess.PIPE, text=True, check=True,
        )  # fmt: skip
        row(f"resume of {n:,} completed steps, fresh process", float(out.stdout) * 1e3, "ms")
        run.cancel()


def sleeping(n: int) -> None:
    """Runs that wait cost a worker nothing: not to hold, not to start beside them; and they wake in time."""
    worker = Worker()
    async_step.start(0).result()
    before = worker.memory()
    started = time.perf_counter()
    for _ in range(n):
        sleeper.start(3_600.0)
    row(f"start {n:,} runs one by one", n / (time.perf_counter() - started), "starts/s")
    worker.until_parked()
    parked = worker.memory() - before
    row(f"memory of a worker for {n:,} sleeping runs", parked / n, "bytes each", note=f"{parked / 2**20:.0f} MB in all")
    worker.stop()
    row("start of a worker beside them", seconds(lambda: Worker().stop()), "s", note="and its end")
    many = min(n, 5_000)
    moment = time.time() + 5 + many / 300
    runs = [sleeper_until.start(moment) for _ in range(many)]
    worker = Worker()
    async_step.start(0).result()
    worker.until_parked()
    for run in runs:
        run.result()
    last = max(run._fetch().finished_at or 0 for run in runs) / 1e6
    row(f"wake {many:,} parked runs, due at the same moment", many / (last - moment), "runs/s")
    worker.stop()


def looking(folder: Path, runs: int) -> None:
    """What the monitor's server takes to find runs among many, and to show one that is large."""
    with on_postgres.own_server() as server:
        for where, url in (("", str(folder / "lists.db")), (" on PostgreSQL", server.url)):
            found = lists.measure(url, runs)
            pages = {name: ms for name, ms in found.items() if "page" in name}
            for what, times in (
                ("page of runs", pages),
                ("count of runs", {n: ms for n, ms in found.items() if n not in pages}),
            ):
                slowest = max(times, key=lambda name: times[name])
                row(f"slowest {what} among {runs:,}{where}, of {len(times)}", times[slowest], "ms", note=slowest)
    first, again = lists.read_large_run(str(folder / "large.db"), 50_000)
    row("a run of 50,000 steps, for its page", first, "ms", note=f"{again:.0f} ms when it is read again")


def importing() -> None:
    code = "import time;t=time.perf_counter();import holdfast;print(time.perf_counter()-t)"
    cached = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    times = [float(subprocess.check_output([sys.executable, "-c", code], env=cached)) for _ in range(5)]
    row("import holdfast", min(times) * 1e3, "ms")


def step_overhead(floor: Callable[[], float]) -> list[dict[str, Any]]:
    """What it costs to do one thing after another, by pattern, beside what is usually said of that pattern."""

    def plain(i: int) -> int:
        return i

    async def awaited(i: int) -> int:
        return i

    def calls(function: Callable[[int], Any], n: int) -> None:
        for i in range(n):
            function(i)

    async def awaits(n: int) -> None:
        for i in range(n):
            await awaited(i)

    rows: list[dict[str, Any]] = []
    print(f"\n{'pattern':50s} {'usually':12s} {'here':>14s} {'':16s} resumable")

    def add(pattern: str, usually: str, n: int, action: Callable[[], Any], durable: bool = False) -> None:
        us = best(3, action) / n * 1e6
        ratio = us / 1e3 / floor() if durable else None
        here = f"{us:.3g} µs" if us < 100 else f"{us / 1e3:.3g} ms"
        resumable = "yes" if durable else "no"
        rows.append({"pattern": pattern, "usually": usually, "here": here, "ratio": ratio, "resumable": resumable})
        against = f"{ratio:.2f} × floor" if ratio else ""
        print(f"{pattern:50s} {usually:12s} {here:>14s} {against:16s} {resumable}", flush=True)

    add("function call", "microseconds", 100_000, lambda: calls(plain, 100_000))
    add("asyncio call", "microseconds", 100_000, lambda: asyncio.run(awaits(100_000)))
    add("a step called outside of a run", "", 10_000, lambda: calls(plain_step, 10_000))
    with app.worker():
        in_sequence.start(50).result()
        add("a step of a run with durable=False", "", 1_000, lambda: in_sequence_volatile.start(1_000).result())
        add("a step of a durable run", "", 1_000, lambda: in_sequence.start(1_000).result(), durable=True)
        links = [async_step.s(0), *[async_step.s()] * (LENGTH - 1)]
        add("chain", "10-100 ms", LENGTH, lambda: chain(*links).start().result(), durable=True)
        add("DAG", "1-10 ms", LENGTH, lambda: in_a_line.start({}).result(), durable=True)
        add("event-driven", "10-100 ms", LENGTH, lambda: by_events.start(LENGTH).result(), durable=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, help="also write the rows to this file")
    parser.add_argument("--overhead", action="store_true", help="only the table of what one step costs")
    parser.add_argument("--elsewhere", action="store_true", help="only steps that another process executes")
    parser.add_argument("--store", help="on this store, instead of a new SQLite file")
    parser.add_argument("--sleepers", type=int, default=100_000)
    parser.add_argument("--postgres", action="store_true", help="only the rows of PostgreSQL")
    parser.add_argument("--listed", type=int, default=1_000_000, help="runs that the monitor finds others among")
    options = parser.parse_args()
    print(
        f"{platform.python_version()} on {platform.machine()}, {os.cpu_count()} cores, SQLite {sqlite3.sqlite_version}"
    )
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        app.use_store(options.store or str(folder / "bench.db"))
        if options.elsewhere:
            elsewhere(floor_ms(folder, "FULL"))
            return
        if options.overhead:
            step_overhead(lambda: floor_ms(folder, "FULL"))
            return
        if options.postgres:
            on_postgres.measure(row, Worker)
            return
        floor = floor_ms(folder, "FULL")
        row("floor: a bare commit of one row, FULL", floor, "ms")
        row("floor: the same, NORMAL", floor_ms(folder, "NORMAL"), "ms")
        importing()
        in_process(floor)
        composed(floor)
        limited()
        row("floor once more", floor_ms(folder, "FULL"), "ms")
        normalised()
        throughput()
        elsewhere(floor)
        across_processes()
        waiting()
        resuming()
        sleeping(options.sleepers)
        on_postgres.measure(row, Worker)
        looking(folder, options.listed)
        overhead = step_overhead(lambda: floor_ms(folder, "FULL"))
    if options.json:
        facts = {
            "date": dt.datetime.now(dt.UTC).date().isoformat(),
            "python": platform.python_version(),
            "machine": f"{platform.machine()}, {os.cpu_count()} cores",
            "sqlite": sqlite3.sqlite_version,
        }
        options.json.write_text(json.dumps({**facts, "rows": ROWS, "overhead": overhead}, indent=2) + "\n")


if __name__ == "__main__":
    main()
