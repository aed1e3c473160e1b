"""Lists of steps that are resumed by id."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from holdfast import App, ArgumentError, Checkpointed, DefinitionError, RunExistsError
from holdfast.testing import TestApp

pytestmark = pytest.mark.parametrize("app", ["sqlite"], indirect=True)


def job_of(app: App, broken: list[str], done: list[str], id: str = "import-1") -> Checkpointed:
    def work(name: str) -> Any:
        def execute(ctx: dict[str, Any]) -> str:
            if name in broken:
                raise ValueError(f"{name} is broken")
            done.append(name)
            return f"{name} after {', '.join(ctx)}"

        return execute

    steps = [(name, app.step(name=f"{id}-{name}", max_retries=0)(work(name))) for name in ("fetch", "clean", "load")]
    return Checkpointed(id, steps, app=app)


def test_it_goes_on_where_it_stopped(app: App) -> None:
    broken, done = ["load"], []  # type: list[str], list[str]
    job = job_of(app, broken, done)
    with TestApp(app) as world:
        assert job.checkpoint is None
        run = job.start({"month": "May"})
        with pytest.raises(ValueError, match="load is broken"):
            run.result()
        assert run.id == "import-1"
        checkpoint = job.checkpoint
        assert checkpoint is not None
        assert checkpoint.step == "clean"
        assert checkpoint.context == {
            "month": "May",
            "fetch": "fetch after month",
            "clean": "clean after month, fetch",
        }
        assert checkpoint.time <= world.now
        broken.clear()
        again = job.start({"month": "June"})
        assert again == run
        assert again.result()["load"] == "load after month, fetch, clean"
        assert job.start().result()["month"] == "May", "the context is that of the first start"
        assert asyncio.run(job.acheckpoint()) == job.checkpoint
    assert done == ["fetch", "clean", "load"]


def test_several_ids_share_a_name(app: App) -> None:
    def double(n: int) -> int:
        return 2 * n

    step = app.step(double)
    jobs = [Checkpointed(f"double-{n}", [("double", step)], app=app, name="doubles") for n in (1, 2)]
    with TestApp(app):
        assert [job.start({"n": n}).result()["double"] for n, job in enumerate(jobs)] == [0, 2]
        assert {run.workflow for run in app.runs()} == {"doubles"}


def test_it_has_its_id_however_it_is_started(app: App) -> None:
    broken = ["load"]
    job = job_of(app, broken, [])
    with TestApp(app):
        run = job.apply_async(({"a": 1},))
        assert isinstance(run.result(propagate=False), ValueError)
        broken.clear()
        assert job.apply_async(({"a": 1},)).result()["a"] == 1
        again = [job.options(priority=3).start({"a": 1}), job.apply_async(({"a": 1},), priority=3), job.delay({"a": 1})]
        assert {each.id for each in again} == {job.id} == {run.id}
        assert job.apply_async(({"a": 1},), task_id="other").id == "other"


def test_outside_a_run_it_is_a_plain_call(app: App) -> None:
    done: list[str] = []
    assert asyncio.run(job_of(app, [], done)({"a": 1}))["load"].endswith("clean")


def test_what_cannot_work_is_refused(app: App) -> None:
    with pytest.raises(ArgumentError, match="an id is a text"):
        Checkpointed("no id", [], app=app)
    with pytest.raises(DefinitionError, match="a pair of its name and its handler"):
        Checkpointed("job", ["fetch"], app=app)  # type: ignore[list-item]
    job = Checkpointed("load-1", [("load", lambda rows: len(rows))], app=app)
    other = Checkpointed("load-1", [("count", lambda ctx: 1)], app=app, name="other")
    with TestApp(app):
        with pytest.raises(ArgumentError, match="'load' takes 'rows'"):
            job.start({})
        job.start({"rows": []}).result()
        with pytest.raises(RunExistsError, match="a run 'load-1' of 'load-1', and not of 'other'"):
            other.start({})


SCRIPT = """
import os, signal, sys
from holdfast import App, Checkpointed

app = App("jobs", "jobs.db")

def fetch(ctx):
    print("fetch", flush=True)
    return 1

def load(ctx):
    print("load", flush=True)
    if "die" in sys.argv:
        os.kill(os.getpid(), signal.SIGKILL)
    return ctx["fetch"] + 1

job = Checkpointed("import-1", [("fetch", fetch), ("load", load)], app=app)
if __name__ == "__main__":
    with app.worker():
        print(job.start({"a": 0}).result(timeout=60))
"""


def test_it_is_resumed_after_the_process_was_killed(app: App, tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text(SCRIPT)

    def script(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "job.py", *arguments], cwd=tmp_path, capture_output=True, text=True, timeout=100
        )

    killed = script("die")
    assert (killed.returncode, killed.stdout.split()) == (-9, ["fetch", "load"])
    resumed = script()
    assert resumed.stdout.splitlines()[-1] == "{'a': 0, 'fetch': 1, 'load': 2}", resumed.stderr
    assert "fetch" not in resumed.stdout.split()
