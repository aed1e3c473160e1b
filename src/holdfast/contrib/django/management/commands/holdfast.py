"""`manage.py holdfast ...`: the `holdfast` command, for the app that the settings name."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
from django.core.management.base import BaseCommand, CommandError

from holdfast.cli import main
from holdfast.cli.main import defaults_from_pyproject
from holdfast.contrib.django.configuration import read_configuration

_OF_DJANGO = ("--settings", "--pythonpath")


class Command(BaseCommand):
    help = "Start, run, look at, act on and mend runs: what the `holdfast` command does, for this project's app."
    requires_system_checks: Sequence[str] = []

    def run_from_argv(self, argv: list[str]) -> None:
        """From a shell: every word is the command's own, but for those that Django has read already."""
        _run(_without_django_options(argv[2:]), f"{Path(argv[0]).name} {argv[1]}")

    def print_help(self, prog_name: str, subcommand: str) -> None:
        _run(["--help"], f"{Path(prog_name).name} {subcommand}")

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("words", nargs=argparse.REMAINDER)

    def handle(self, *args: Any, words: list[str], **options: Any) -> None:
        """From code: call_command("holdfast", "runs", "list")."""
        try:
            code = _run(words, "manage.py holdfast", standalone_mode=False)
        except click.ClickException as error:
            raise CommandError(error.format_message(), returncode=error.exit_code) from error
        if code:
            raise CommandError(f"manage.py holdfast {' '.join(words)} ended with {code}", returncode=code)


def _run(words: Sequence[str], program: str, standalone_mode: bool = True) -> Any:
    defaults = defaults_from_pyproject() | {"target": read_configuration().target}
    origins = {"target": 'settings HOLDFAST["APP"]'}
    return main.main(words, program, standalone_mode=standalone_mode, default_map=defaults, obj=origins)


def _without_django_options(words: Sequence[str]) -> list[str]:
    kept: list[str] = []
    rest = iter(words)
    for word in rest:
        if word in _OF_DJANGO:
            next(rest, None)
        elif not re.match(rf"({'|'.join(_OF_DJANGO)})=", word):
            kept.append(word)
    return kept
