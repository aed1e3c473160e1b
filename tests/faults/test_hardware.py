"""The power fails, the disk fails: nothing that was said is lost."""

from __future__ import annotations

import os
import random
import sqlite3
import subprocess
import sys
from pathlib import Path

import disk
import hardware
import pytest

SEED = int(os.environ.get("HOLDFAST_SEED", "2026"))


@pytest.fixture(scope="module")
def shim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    try:
        return disk.build(tmp_path_factory.mktemp("shim"))
    except FileNotFoundError as error:
        pytest.skip(str(error))


@pytest.mark.timeout(120)
def test_a_power_cut_loses_nothing_that_was_said(tmp_path: Path, shim: Path) -> None:
    figures, faults = hardware.cut_power(tmp_path, shim, SEED, seconds=1, images=16, go_on=17)
    assert not faults, f"seed {SEED}: {faults[:10]}"
    assert figures["acknowledgements"] > 100, figures


@pytest.mark.torture
@pytest.mark.timeout(900)
@pytest.mark.parametrize("number", range(4))
def test_many_power_cuts_lose_nothing_that_was_said(tmp_path: Path, shim: Path, number: int) -> None:
    figures, faults = hardware.cut_power(tmp_path, shim, SEED + number, seconds=8, images=60, go_on=10)
    print(f"seed {SEED + number}: {dict(figures)}")
    assert not faults, f"seed {SEED + number}: {faults[:10]}"


@pytest.mark.parametrize("name", [random.Random(SEED).choice(list(hardware.FAULTS))])
def test_a_disk_that_fails_for_a_while_loses_nothing(tmp_path: Path, shim: Path, name: str) -> None:
    figures, faults = hardware.fail_disk(tmp_path, shim, SEED, name)
    assert not faults, f"seed {SEED}: {faults[:10]}"
    assert figures["acknowledged starts"] == 25
    assert figures["failed calls"] > 0, "nothing was tried"


@pytest.mark.torture
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", hardware.FAULTS)
def test_disks_that_fail_anywhere_lose_nothing(tmp_path: Path, shim: Path, name: str) -> None:
    for seed in range(SEED, SEED + 12):
        here = tmp_path / str(seed)
        here.mkdir()
        figures, faults = hardware.fail_disk(here, shim, seed, name)
        print(f"seed {seed}: {dict(figures)}")
        assert not faults, f"seed {seed}: {faults[:10]}"


# -- the instrument itself

WRITE = """
import sqlite3, sys
db = sqlite3.connect(sys.argv[1])
db.execute("PRAGMA journal_mode = WAL")
db.execute("PRAGMA synchronous = " + sys.argv[2])
db.execute("CREATE TABLE t (n)")
for n in range(50):
    db.execute("INSERT INTO t VALUES (?)", (n,))
    db.commit()
    if "SHIM_LOG" in __import__("os").environ:
        import disk, os
        disk.acknowledge(os.environ["SHIM_LOG"], b"%d" % n)
"""


@pytest.mark.parametrize(("sync", "is_kept"), [("FULL", True), ("NORMAL", False)])
def test_the_simulated_power_cut_knows_what_was_synced(tmp_path: Path, shim: Path, sync: str, is_kept: bool) -> None:
    """Without a sync at each commit, commits are lost: an instrument that can't see that would prove nothing."""
    database, log = tmp_path / "x.db", tmp_path / "log"
    environment = {**os.environ, "LD_PRELOAD": str(shim), "SHIM_STORE": str(database), "SHIM_LOG": str(log)}
    subprocess.run(
        [sys.executable, "-c", WRITE, str(database), sync], env=environment, check=True, cwd=Path(__file__).parent
    )
    simulated, lost = disk.Disk(), 0
    for number, record in enumerate(disk.read(log)):
        simulated.take(record)
        if record.op == "a":
            image = tmp_path / f"image-{number}"
            simulated.cut(image, random.Random(number), torn=False)
            if not image.exists():
                lost += 1
                continue
            with sqlite3.connect(image) as db:
                try:
                    (found,) = db.execute("SELECT count(*) FROM t").fetchone()
                except sqlite3.OperationalError:
                    found = 0
            db.close()
            lost += found < int(record.data) + 1
    assert (lost == 0) == is_kept
