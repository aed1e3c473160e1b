"""`make bench-ab REF=<commit>`: this tree against another commit, turn by turn, so that both meet the same machine.

A ratio below 1 means that this tree is faster. `ONLY="many chord"` names workloads, `ROUNDS=5` says how often.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import tempfile
from pathlib import Path

import cpu

ROOT = cpu.HERE.parent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("ref")
    parser.add_argument("workloads", nargs="*", choices=[*cpu.WORKLOADS, []])
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        archive = subprocess.run(["git", "archive", options.ref, "src"], cwd=ROOT, stdout=subprocess.PIPE, check=True)
        subprocess.run(["tar", "-x", "-C", folder], input=archive.stdout, check=True)
        print(
            f"µs, median of {options.rounds}; load {os.getloadavg()[0]:.1f}\n{'':38s}{'normalised CPU':>24s}{'by the clock':>30s}"
        )
        for name in options.workloads or cpu.WORKLOADS:
            compare(name, Path(folder, "src"), options.rounds)


def compare(name: str, other: Path, rounds: int) -> None:
    pairs = [(cpu.measure(name, other), cpu.measure(name)) for _ in range(rounds)]
    line = f"{cpu.WORKLOADS[name][0]:38s}"
    for index in (0, 1):
        before, now = (statistics.median(pair[side][index] for pair in pairs) for side in (0, 1))
        line += f"{before:9.1f} →{now:8.1f} {now / before:5.2f} ×   "
    print(line, flush=True)


if __name__ == "__main__":
    main()
