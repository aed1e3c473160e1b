"""What README.md and the pages in docs/ show works.

The python blocks of a page are run one after the other, in one empty folder. A block that begins with a comment
such as `# orders.py` is kept under that name, so that later blocks can import it; one named `test_*.py` is run by
pytest. An `output` block right after it holds exactly what it prints. A block marked `python no-run` is only compiled.
"""

from __future__ import annotations

import inspect
import os
import re
import subprocess
import tempfile
import typing
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import holdfast
import warm_python
from holdfast import App, Run, Status, StepState, Workflow, this_step, wf

ROOT = Path(__file__).parents[2]
DOCS = sorted((ROOT / "docs").rglob("*.md"))
PAGES = [ROOT / "README.md", *(page for page in DOCS if page.parent.name != "adr")]
TEXTS = [ROOT / "README.md", *DOCS, ROOT / "CHANGELOG.md", ROOT / "CONTRIBUTING.md"]


class Block(NamedTuple):
    line: int
    info: str
    code: str
    output: str | None


def blocks_of(page: Path) -> list[Block]:
    text = page.read_text()
    fence = re.compile(r"^```(python[^\n]*)\n(.*?)^```\n(?:\n*^```output\n(.*?)^```\n)?", re.MULTILINE | re.DOTALL)
    return [
        Block(text.count("\n", 0, found.start()) + 1, found[1], found[2], found[3]) for found in fence.finditer(text)
    ]


def named(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_the_code_of_a_page_works(page: Path, tmp_path: Path) -> None:
    for block in blocks_of(page):
        place = f"{named(page)}:{block.line}"
        words = block.info.split()[1:]
        assert words in ([], ["no-run"]), f"{place}: unknown mark {block.info!r}"
        compile(block.code, place, "exec")
        if words:
            continue
        title = re.match(r"# (\w+\.py)\n", block.code)
        file = tmp_path / (title[1] if title else f"block_at_line_{block.line}.py")
        file.write_text(block.code)
        ran = run(file)
        assert ran.returncode == 0, f"{place}\n{ran.stdout}\n{ran.stderr}"
        if block.output is not None:
            assert ran.stdout == block.output, f"{place} prints:\n{ran.stdout}\n{ran.stderr}"


def run(file: Path) -> subprocess.CompletedProcess[str]:
    command = ["-m", "pytest", "-q", "-p", "no:cacheprovider"] if file.name.startswith("test_") else ["-W", "error"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("HOLDFAST_", "PYTEST_"))}
    environment["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"  # those of our own tests take longer than a page
    with tempfile.TemporaryFile("w+") as stdout, tempfile.TemporaryFile("w+") as stderr:
        process = warm_python.start(
            [*command, file.name], cwd=file.parent, env=environment, stdout=stdout, stderr=stderr
        )
        try:
            code = process.wait(60)
        finally:
            process.kill()
            process.wait()
        for each in (stdout, stderr):
            each.seek(0)
        return subprocess.CompletedProcess(command, code, stdout.read(), stderr.read())


@pytest.mark.parametrize("page", TEXTS, ids=named)
def test_the_links_of_a_page_lead_somewhere(page: Path) -> None:
    text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", text):
        if "://" not in target:
            found = (page.parent / target).resolve()
            assert found.exists(), f"{named(page)} links to {target}"
            assert page not in DOCS or found in DOCS or found.suffix in (".svg", ".png"), (
                f"{named(page)}: {target} isn't on the site"
            )


def test_every_page_is_on_the_site() -> None:
    on_the_site = re.findall(r"^ +- .*: (\S+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    pages = [str(page.relative_to(ROOT / "docs")) for page in PAGES[1:]]
    generated = ["api.md"]  # by docs/_site/api_page.py
    assert sorted(on_the_site) == sorted(pages + generated), "give each page its place under `nav` in mkdocs.yml"


# -- the reference

REFERENCE = (ROOT / "docs" / "reference.md").read_text()


def options_of(function: Any) -> list[str]:
    """The keywords that the last overload of a decorator takes, or a function itself."""
    signature = inspect.signature([function, *typing.get_overloads(function)][-1])
    return [p.name for p in signature.parameters.values() if p.kind is p.KEYWORD_ONLY]


def members_of(name: str, cls: type) -> list[str]:
    members = [key for key, value in vars(cls).items() if key[0] != "_" and not inspect.iscoroutinefunction(value)]
    return [f"{name}.{key}" for key in members]


@pytest.mark.parametrize(
    ("title", "words"),
    [
        ("Step options", options_of(App.step)),
        ("Workflow options", options_of(App.workflow)),
        ("Call options", options_of(Workflow.options)),
        ("Run statuses", list(Status)),
        ("Step states", list(StepState)),
        ("Errors", [name for name in holdfast.__all__ if name.endswith("Error")]),
        (
            "App",
            [
                f"app.{name}"
                for name in (
                    "step",
                    "workflow",
                    "resource",
                    "around_step",
                    "worker",
                    "start",
                    "get_run",
                    "runs",
                    "send_hook",
                    "gc",
                )
            ],
        ),
        ("In a workflow", members_of("wf", type(wf))),
        ("In a step", members_of("this_step", type(this_step))),
        ("Runs", members_of("run", Run)),
    ],
)
def test_the_reference_is_complete(title: str, words: list[str]) -> None:
    section = re.split(rf"^##+ {title}$", REFERENCE, flags=re.MULTILINE)[1].split("\n## ")[0]
    assert words
    assert [word for word in words if f"`{word}" not in section] == []
