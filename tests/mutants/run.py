"""Breaks one rule at a time, and expects the tests that hold it to fail: `make mutants`, or `run.py NAME...` for some.

Each patch says what it breaks and names its tests, which pass without it. It is applied to a copy of the tree, never here.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parent.parent


def run_tests(tree: Path, tests: list[str]) -> subprocess.CompletedProcess[str]:
    # The package of the copy, in all processes that tests start, before the one that is installed.
    environment = {**os.environ, "PYTHONPATH": str(tree / "src"), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-m", "pytest", "-x", "-q", *tests]
    return subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True)


def copy_tree(folder: str) -> Path:
    tree = Path(folder) / "tree"
    tree.mkdir()
    shutil.copy(ROOT / "pyproject.toml", tree)
    for name in ("src", "tests"):
        shutil.copytree(ROOT / name, tree / name, ignore=shutil.ignore_patterns("__pycache__"))
    return tree


def tests_of(patch: Path) -> list[str]:
    return [line.removeprefix("Test: ") for line in patch.read_text().splitlines() if line.startswith("Test: ")]


def try_mutant(patch: Path) -> str:
    """Empty if each of its tests fails with it, else what is wrong."""
    with tempfile.TemporaryDirectory(prefix="holdfast-mutant-") as folder:
        tree = copy_tree(folder)
        applied = subprocess.run(["patch", "-p1", "--quiet", "-i", patch], cwd=tree, capture_output=True, text=True)
        if applied.returncode:
            return f"it doesn't apply any more, make it anew: {applied.stdout}{applied.stderr}"
        for test in tests_of(patch):
            found = run_tests(tree, [test])
            if found.returncode != 1:  # 1: tests were run, and some failed
                return f"{test} ended with {found.returncode}, not with a failure\n{found.stdout[-1_500:]}"
    return ""


def main() -> int:
    wanted = sys.argv[1:]
    patches = [patch for patch in sorted(HERE.glob("*.patch")) if not wanted or patch.stem in wanted]
    with tempfile.TemporaryDirectory(prefix="holdfast-mutant-") as folder:
        sound = run_tests(copy_tree(folder), sorted({test for patch in patches for test in tests_of(patch)}))
    if sound.returncode:
        print(f"the tests fail without any mutant, so their failures say nothing\n{sound.stdout[-3_000:]}")
        return 1
    survivors = 0
    for patch in patches:
        wrong = try_mutant(patch)
        survivors += bool(wrong)
        print(f"{'SURVIVED' if wrong else 'killed'}  {patch.stem}  {wrong}", flush=True)
    print(f"{len(patches) - survivors} of {len(patches)} were killed")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
