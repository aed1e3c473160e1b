"""Classes are known by their use: in data, streams, hooks and requests, without being registered."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from holdfast import App, Codec, DecodeError, EncodeError, define_hook, hook, wf
from holdfast.testing import TestApp

app = App("byuse", ":memory:")


@dataclass
class Place:
    city: str


@dataclass
class Visit:
    place: Place
    days: int


@dataclass
class Approval:
    by: str


approval = define_hook("byuse.approval", Approval)


@app.workflow
async def travels() -> object:
    wf.set_data("visit", Visit(Place("Rome"), 3))
    wf.stream(Visit(Place("Oslo"), 1))
    said = await approval()
    return [wf.get_data("visit"), said]


def test_what_is_set_streamed_and_sent_comes_back_as_what_it_was() -> None:
    with TestApp(app):
        run = travels.start()
        assert run.wait_data("visit") == Visit(Place("Rome"), 3)
        run.send("byuse.approval", Approval("ann"))
        assert run.result() == [Visit(Place("Rome"), 3), Approval("ann")]
        assert [item.item for item in run.stream()] == [Visit(Place("Oslo"), 1)]
        assert [event.detail["payload"] for event in run.history() if event.kind == "HookReceived"] == [Approval("ann")]
        assert app.runs(data={"visit": Visit(Place("Rome"), 3)}) == [run]


def test_classes_of_functions_are_known_where_their_workflow_is_defined() -> None:
    local = App("local", ":memory:")

    @dataclass
    class Local:
        n: int

    @local.workflow
    async def keeps() -> object:
        wf.set_data("it", Local(1))
        await hook("end")
        return wf.get_data("it")

    with TestApp(local):
        run = keeps.start()
        run.send("end")
        assert run.result() == Local(1)


CODE = """
from dataclasses import dataclass
from holdfast import App, hook, wf
import other

app = App("fresh", "fresh.db")

@dataclass
class Same:
    a: int

@app.workflow
async def keeps() -> object:
    wf.set_data("mine", Same(1))
    wf.set_data("other", other.Same(2))
    return None
"""


def test_a_process_that_only_reads_knows_them_too_and_tells_namesakes_apart(tmp_path: Path) -> None:
    (tmp_path / "fresh.py").write_text(CODE)
    (tmp_path / "other.py").write_text("from dataclasses import dataclass\n@dataclass\nclass Same:\n    b: int\n")
    writes = "import fresh\nwith fresh.app.worker():\n    fresh.keeps.options(id='k').start().result(timeout=20)\n"
    reads = "import fresh\nprint(fresh.app.get_run('k').data)\n"
    for code in (writes, reads):
        ran = subprocess.run(
            [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
        )
        assert ran.returncode == 0, ran.stderr
    assert ran.stdout == "{'mine': Same(a=1), 'other': Same(b=2)}\n"


def test_a_class_that_the_apps_code_does_not_know_is_refused_both_ways() -> None:
    codec = Codec()
    codec.hints_for(travels._definition.function)
    hidden = type("Hidden", (), {"__annotations__": {"n": int}})
    with pytest.raises(EncodeError, match="its class isn't known"):
        codec.encode(dataclass(hidden)(1))
    with pytest.raises(DecodeError, match="no class is known as 'Hidden'"):
        codec.decode(b'{"$":"Hidden","v":{"n":1}}')
    with pytest.raises(DecodeError, match=r"no class is known as 'subprocess\.Popen'"):
        codec.decode(b'{"$":"subprocess.Popen","v":{"args":"x"}}')
