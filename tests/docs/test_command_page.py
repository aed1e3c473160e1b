"""docs/command.md is what the command says of itself. After a change: HOLDFAST_UPDATE=1 pytest tests/docs"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import click

from holdfast.cli.main import PYPROJECT_KEYS, main
from holdfast.cli.worker import worker

PAGE = Path(__file__).parents[2] / "docs" / "command.md"
MARK = "<!-- from here on it is written by tests/docs/test_command_page.py -->\n"


def commands(group: click.Group, context: click.Context) -> Iterator[tuple[click.Context, click.Command]]:
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        inner = click.Context(command, info_name=name, parent=context)
        if isinstance(command, click.Group):
            yield from commands(command, inner)
        else:
            yield inner, command


def cell(text: str) -> str:
    return " ".join(text.split()).replace("|", " / ")


def options(context: click.Context, command: click.Command) -> list[str]:
    rows = [
        record
        for parameter in command.params
        if isinstance(parameter, click.Option) and (record := parameter.get_help_record(context)) is not None
    ]
    if not rows:
        return []
    return ["", "| option | |", "|---|---|", *(f"| `{cell(names)}` | {cell(text)} |" for names, text in rows)]


def render() -> str:
    root = click.Context(main, info_name="holdfast")
    lines = ["## For every command", "", "```console", "$ holdfast [OPTIONS] COMMAND [ARGS]...", "```"]
    lines += options(root, main)
    for context, command in commands(main, root):
        usage = " ".join([context.command_path, *command.collect_usage_pieces(context)])
        title = context.command_path.removeprefix("holdfast ")
        lines += ["", f"## {title}", "", " ".join((command.help or "").split()), "", "```console", f"$ {usage}", "```"]
        lines += options(context, command)
    return "\n".join(lines) + "\n"


def test_the_page_says_what_the_command_says() -> None:
    by_hand, _, told = PAGE.read_text().partition(MARK)
    if os.environ.get("HOLDFAST_UPDATE"):
        told = render()
        PAGE.write_text(by_hand + MARK + told)
    assert told == render(), "the command has changed; run HOLDFAST_UPDATE=1 pytest tests/docs and look at the diff"


def test_the_page_of_settings_names_each_of_them() -> None:
    page = (PAGE.parent / "configuration.md").read_text()
    words = [word for option in (*main.params, *worker.params) for word in (option.envvar, option.opts[0]) if word]
    missing = [word for word in (*PYPROJECT_KEYS, *words) if f"`{word}`" not in page and word != "--version"]
    assert missing == []
