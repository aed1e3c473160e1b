"""The same on PostgreSQL, on a server of the benchmark's own, with fsync, beside a bare commit there and beside SQLite. With
one, two and four engines it is what docs/capacity.md is checked against."""

from __future__ import annotations

import datetime as dt
import os
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Protocol

import psycopg
from workflows import app, in_sequence

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from postgres_server import Server, own_server

RUNS, STEPS = 1_000, 5
Row = Callable[..., None]


class Engine(Protocol):
    process: Any

    def stop(self) -> None: ...


def bare_commit_ms(url: str, commits: int = 300) -> float:
    """A row of a history, committed by itself."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(
            "CREATE TABLE IF NOT EXISTS floor (run BIGINT, seq BIGINT, kind TEXT, name TEXT, cmd TEXT, cause BIGINT, "
            "attempt BIGINT, worker TEXT, ts BIGINT, payload BYTEA, PRIMARY KEY (run, seq))"
        )
        (first,) = connection.execute("SELECT coalesce(max(seq), 0) + 1 FROM floor").fetchone() or (1,)
        started = time.perf_counter()
        for i in range(first, first + commits):
            values = (1, i, "StepCompleted", "step", f"{i}s0", i, 1, "1234-abcdef01", i, b"x" * 200)
            connection.execute("INSERT INTO floor VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s)", values)
        return (time.perf_counter() - started) / commits * 1e3


def cpu_seconds(pids: Iterable[int]) -> float:
    ticks = 0
    for pid in pids:
        try:
            stat = Path(f"/proc/{pid}/stat").read_text()
        except OSError:
            continue  # it has ended, and what it used is not counted
        ticks += sum(map(int, stat.rpartition(")")[2].split()[11:13]))
    return ticks / os.sysconf("SC_CLK_TCK")


def backends(server: Server) -> list[int]:
    """The processes of the server."""
    postmaster = (server.data / "postmaster.pid").read_text().split()[0]
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                parent = (folder / "stat").read_text().rpartition(")")[2].split()[1]
            except OSError:
                continue
            if parent == postmaster:
                found.append(int(folder.name))
    return [int(postmaster), *found]


def many(engines: list[Engine], server: Server | None) -> tuple[float, float, float]:
    """Steps per second of all engines together, for runs that are due at one moment; CPU of engines and of the server,
    in µs a step."""
    started = time.perf_counter()
    trial = [in_sequence.start(1) for _ in range(50)]
    ready = 1 + 2 * (time.perf_counter() - started) * RUNS / 50
    for run in trial:
        run.result()
    moment = dt.datetime.now(dt.UTC) + dt.timedelta(seconds=ready)
    runs = [in_sequence.options(at=moment).start(STEPS) for _ in range(RUNS)]
    assert dt.datetime.now(dt.UTC) < moment, "this machine is too slow to have all runs ready in time"
    pids, serving = [engine.process.pid for engine in engines], backends(server) if server else []
    before = cpu_seconds(pids), cpu_seconds(serving)
    for run in runs:
        run.result()
    last = max(run._fetch().finished_at or 0 for run in runs) / 1e6
    steps = RUNS * STEPS
    used = [(cpu_seconds(found) - was) / steps * 1e6 for found, was in zip((pids, serving), before, strict=True)]
    return steps / (last - moment.timestamp()), used[0], used[1]


def sequential(times: int = 3) -> float:
    """Milliseconds for a step after the other."""
    with app.worker():
        in_sequence.start(50).result()
        took = []
        for _ in range(times):
            started = time.perf_counter()
            in_sequence.start(1_000).result()
            took.append(time.perf_counter() - started)
    return min(took)


def measure(row: Row, make_engine: Callable[[], Engine], most: int = 4) -> None:
    """The store that the app has now is SQLite's; it has it again at the end."""
    file = app.store_url
    engine = make_engine()
    in_sequence.start(1).result()
    sqlite, _, _ = max(many([engine], None) for _ in range(2))
    engine.stop()
    with own_server({"fsync": "on", "full_page_writes": "on"}) as server:
        app.use_store(server.url)
        _ = app.store
        floors = [bare_commit_ms(server.url)]
        step = sequential()
        floors.append(bare_commit_ms(server.url))
        row("floor: a bare commit of one row on PostgreSQL", min(floors), "ms", note=f"and {max(floors):.2f}")
        row("sequential step on PostgreSQL", step, "ms", min(floors))
        alone = 0.0
        for number in [n for n in (1, 2, 4) if n <= most]:
            engines = [make_engine() for _ in range(number)]
            in_sequence.start(1).result()
            rate, client, serving = max(many(engines, server) for _ in range(2))
            for engine in engines:
                engine.stop()
            alone = alone or rate
            what = f"{number} engine{'s' if number > 1 else ''}"
            against = (
                f"{rate / sqlite:.2f} × SQLite's {sqlite:.0f}" if number == 1 else f"{rate / alone:.2f} × one engine"
            )
            cpu = f"CPU a step: engines {client:.0f} µs, server {serving:.0f} µs"
            row(f"1,000 workflows × 5 steps on PostgreSQL, {what}", rate, "steps/s", note=f"{against}; {cpu}")
        app.close()
    app.use_store(file)
