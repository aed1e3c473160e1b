"""What the disk allows: the time of a bare commit."""

from __future__ import annotations

import sqlite3
import time
from pathlib import Path


def floor_ms(folder: Path, sync: str, commits: int = 300) -> float:
    """A bare commit of one history row."""
    db = sqlite3.connect(folder / f"floor-{sync}.db", isolation_level=None)
    db.execute("PRAGMA journal_mode = WAL")
    db.execute(f"PRAGMA synchronous = {sync}")
    db.execute(
        "CREATE TABLE IF NOT EXISTS history (run INTEGER, seq INTEGER, kind TEXT, name TEXT, cmd TEXT, cause INTEGER, "
        "attempt INTEGER, worker TEXT, ts INTEGER, payload BLOB, PRIMARY KEY (run, seq)) WITHOUT ROWID"
    )
    first = db.execute("SELECT ifnull(max(seq), 0) FROM history").fetchone()[0] + 1
    started = time.perf_counter()
    for i in range(first, first + commits):
        db.execute("BEGIN IMMEDIATE")
        values = (1, i, "StepCompleted", "step", f"{i}s0", i, 1, "1234-abcdef01", i, b"x" * 200)
        db.execute("INSERT INTO history VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", values)
        db.execute("COMMIT")
    elapsed = time.perf_counter() - started
    db.close()
    return elapsed / commits * 1e3
