"""Histories made by older versions replay for ever, on every supported Python."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
CORE = HERE.parent / "core"
sys.path[:0] = [str(path) for path in (HERE, CORE) if str(path) not in sys.path]

from golden_replay import NAMES, read, replay_all  # noqa: E402
from golden_workflows import app  # noqa: E402

from holdfast.core import events as ev  # noqa: E402


@pytest.mark.parametrize("name", NAMES)
def test_a_golden_history_replays_strictly_from_every_prefix(name: str) -> None:
    assert replay_all(name) > 3


def test_the_golden_histories_hold_every_kind_of_event() -> None:
    kinds = {event.kind for name in NAMES for event in read(name)}
    assert kinds == {kind.__name__ for kind in get_args(ev.AnyEvent)}


def test_an_event_reads_and_writes_the_same_bytes() -> None:
    for name in NAMES:
        for line in (HERE / f"{name}.jsonl").read_bytes().splitlines():
            assert ev.to_json(ev.from_json(line)) == line


def test_each_golden_history_has_its_workflow_and_each_workflow_its_history() -> None:
    made = {read(name)[0].workflow for name in NAMES}  # type: ignore[union-attr]
    assert made == set(NAMES)
    assert {name for name in app.definitions.startable_names() if name not in made} == {
        "fetch", "reserve", "charge", "note", "shipping", "billing",
    }  # fmt: skip


# -- other Pythons

SUPPORTED = ("3.11", "3.12", "3.13", "3.14")
OTHERS = [version for version in SUPPORTED if version != f"{sys.version_info.major}.{sys.version_info.minor}"]


def find_python(version: str) -> str | None:
    """An interpreter of that version, on the PATH or under pyenv."""
    found = [path for path in (shutil.which(f"python{version}"),) if path]
    roots = [os.environ.get("PYENV_ROOT", ""), str(Path.home() / ".pyenv")]
    for root in filter(None, roots):
        found += sorted(str(path) for path in Path(root).glob(f"versions/{version}.*/bin/python"))
    for path in found:
        said = subprocess.run(
            [path, "-c", "import sys; print(sys.version)"], capture_output=True, text=True, check=False
        )
        if said.returncode == 0 and said.stdout.startswith(f"{version}."):
            return path
    return None


def make_environment(python: str, place: Path) -> None:
    """It has failed now and then, for reasons that were not kept: it is tried twice, and then says what was wrong."""
    command = [python, "-m", "venv", "--clear", "--without-pip", str(place)]
    for _ in range(2):
        made = subprocess.run(command, capture_output=True, text=True, check=False)
        if made.returncode == 0:
            return
    pytest.fail(f"{' '.join(command)} ended with {made.returncode}: {made.stdout}{made.stderr}")


def environment_of(version: str) -> Path:
    """A virtual environment of that Python with what Holdfast needs, kept for the next time."""
    python = find_python(version)
    if python is None:
        pytest.skip(f"no Python {version} on this machine")
    place = ROOT / ".venv-pythons" / version
    stamp = place / ".installed"
    requirements = re.findall(
        r'"([^"]+)"', (ROOT / "pyproject.toml").read_text().split("\ndependencies = ")[1].split("\n")[0]
    )
    if not stamp.exists() or stamp.read_text().split() != requirements:
        make_environment(python, place)
        pip = [sys.executable, "-m", "pip", "--python", str(place / "bin/python"), "--disable-pip-version-check"]
        done = subprocess.run([*pip, "install", "--quiet", *requirements], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            pytest.skip(f"Python {version}: can't install {' '.join(requirements)}: {done.stderr[-300:]}")
        stamp.write_text("\n".join(requirements))
    return place / "bin/python"


def run(python: str | Path, script: Path) -> str:
    import holdfast

    path = os.pathsep.join([str(Path(holdfast.__file__).parent.parent), str(CORE)])
    command = [str(python), "-W", "error", str(script)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, "PYTHONPATH": path})
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.timeout(600)
@pytest.mark.xdist_group("environments of other Pythons")  # which one process makes
@pytest.mark.parametrize("version", OTHERS)
def test_golden_histories_replay_on_another_python(version: str) -> None:
    said = run(environment_of(version), HERE / "golden_replay.py")
    assert said.split()[::2] == NAMES


@pytest.mark.timeout(600)
@pytest.mark.xdist_group("environments of other Pythons")  # which one process makes
@pytest.mark.parametrize("version", OTHERS)
def test_another_python_makes_the_same_histories(version: str) -> None:
    assert run(environment_of(version), CORE / "core_order.py") == run(sys.executable, CORE / "core_order.py")
