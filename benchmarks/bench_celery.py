"""`make bench-celery`: steps in the pool of a Celery worker, and in an executor of our own, beside plain Celery with the same
pool, on the same Redis. Holdfast's store is a PostgreSQL that syncs every commit; plain Celery syncs nothing.

The ways take turns, so that what else the machine does concerns all of them; the best round of each counts. CPU time is that
of all processes together: of the worker, the engine, the servers and this one.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "tests"))

from celery import chain, chord  # noqa: E402

import on_celery  # noqa: E402
import postgres_server  # noqa: E402
import redis_server  # noqa: E402

Work = dict[str, Callable[[], Any]]
WAYS: dict[str, list[list[str]]] = {
    "plain Celery": [["celery", "-A", "on_celery:plain", "worker", "-c", "2", "-l", "ERROR", "-n", "plain@bench"]],
    "on Celery": [["celery", "-A", "on_celery:celery", "worker", "-c", "2", "-l", "ERROR", "-n", "ours@bench"]],
    "own executor": [
        ["holdfast", "-A", "on_celery:app", "worker", "--engine-only", "--log-level", "error"],
        ["holdfast", "-A", "on_celery:app", "worker", "--executor-only", "--concurrency", "2", "--log-level", "error"],
    ],
}


@contextlib.contextmanager
def synced_postgres() -> Iterator[tuple[str, int]]:
    server = postgres_server.Server(Path(tempfile.mkdtemp(prefix="hf-bench-pg-")))
    try:
        server.make()
        with (server.data / "postgresql.conf").open("a") as file:
            file.write("fsync = on\nfull_page_writes = on\nshared_buffers = '128MB'\n")
        server.start()
        yield server.url, int((server.data / "postmaster.pid").read_text().split()[0])
    finally:
        with contextlib.suppress(RuntimeError):
            server.stop("immediate")
        shutil.rmtree(server.folder, ignore_errors=True)


@contextlib.contextmanager
def workers(way: str, environment: dict[str, str]) -> Iterator[None]:
    if way == "on Celery":
        environment = {**environment, "HOLDFAST_BROKER": f"{environment['BENCH_REDIS']}/1"}
    started = [
        subprocess.Popen(
            [sys.executable, "-m", *command],
            cwd=HERE,
            env={**os.environ, **environment},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for command in WAYS[way]
    ]
    try:
        yield
    finally:
        for process in started:
            process.terminate()
        for process in started:
            process.wait(60)


TICK = os.sysconf("SC_CLK_TCK")


def cpu_of_all(postmaster: int) -> float:
    """Seconds of CPU that this process, those that it has started, and the database have taken so far."""
    stats: dict[int, list[str]] = {}
    for place in Path("/proc").iterdir():
        if place.name.isdigit():
            with contextlib.suppress(OSError):
                stats[int(place.name)] = (place / "stat").read_text().rpartition(")")[2].split()
    ours = {os.getpid(), postmaster}
    total, grown = 0.0, True
    while grown:
        grown = False
        for pid, fields in stats.items():
            if pid not in ours and int(fields[1]) in ours:
                ours.add(pid)
                grown = True
    for pid in ours & stats.keys():
        total += sum(map(int, stats[pid][11:15]))  # its own, and that of children that have ended
    return total / TICK


def celery_work(size: int) -> Work:

    work = on_celery

    def many() -> None:
        started = [chain(*[work.plain_step.si(i) for i in range(5)]).apply_async() for _ in range(size)]
        for one in started:
            one.get(timeout=600)

    return {
        "warm up": lambda: [work.plain_step.delay(1).get(timeout=60) for _ in range(20)],
        "× 5 steps": many,
        "chain": lambda: chain(*[work.plain_step.si(i) for i in range(size)]).apply_async().get(timeout=600),
        "chord": lambda: chord([work.plain_step.s(i) for i in range(size)])(work.plain_join.s()).get(timeout=600),
    }


def holdfast_work(size: int) -> Work:
    work = on_celery

    def many() -> None:
        for run in [work.in_sequence.start(5) for _ in range(size)]:
            run.result(timeout=600)

    return {
        "warm up": lambda: [work.in_sequence.start(5).result(timeout=60) for _ in range(4)],
        "× 5 steps": many,
        "chain": lambda: work.in_sequence.start(size).result(timeout=600),
        "chord": lambda: work.fan.start(size).result(timeout=600),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--size", type=int, default=1_000, help="runs, links of the chain, members of the chord")
    parser.add_argument("--way", action="append", choices=list(WAYS), help="only these, beside plain Celery")
    options = parser.parse_args()
    ways = [way for way in WAYS if way == "plain Celery" or not options.way or way in options.way]
    sys.setrecursionlimit(20_000)  # for plain Celery's chain
    took: dict[tuple[str, str], list[tuple[float, float]]] = {}
    with redis_server.own_server() as redis, synced_postgres() as (store, postmaster):
        environment = {"BENCH_REDIS": redis.url, "HOLDFAST_STORE": store}
        os.environ["HOLDFAST_STORE"] = store
        on_celery.plain.conf.update(broker_url=f"{redis.url}/2", result_backend=f"{redis.url}/3")
        for _ in range(options.rounds):
            for way in ways:
                work = celery_work(options.size) if way == "plain Celery" else holdfast_work(options.size)
                with workers(way, environment):
                    work.pop("warm up")()
                    for name, action in work.items():
                        began, cpu = time.perf_counter(), cpu_of_all(postmaster)
                        action()
                        both = (time.perf_counter() - began, cpu_of_all(postmaster) - cpu)
                        took.setdefault((name, way), []).append(both)
        on_celery.app.close()
    print(f"| {options.size:,} | " + " | ".join(ways) + " |\n|---|" + "---|" * len(ways))
    for name in ("× 5 steps", "chain", "chord"):
        plain = min(took[name, "plain Celery"])[0]
        steps = options.size * (5 if "×" in name else 1)
        cells = []
        for way in ways:
            seconds, cpu = min(took[name, way])
            cells.append(f"{seconds:.2f} s ({plain / seconds:.1f} ×), {cpu / steps * 1_000:.1f} ms CPU a step")
        print(f"| {name} | " + " | ".join(cells) + " |")
    print("\nload", *os.getloadavg())


if __name__ == "__main__":
    main()
