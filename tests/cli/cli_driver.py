"""The command in this process, as tests drive it."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from click.testing import CliRunner

from holdfast.cli import main


@dataclass
class Said:
    """What a command said, and the code it ended with."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def lines(self) -> list[list[str]]:
        return [line.split("\t") for line in self.out.splitlines()]


class Cli:
    """`holdfast -A cli_shop --store ... ARGS`."""

    def __init__(self, store: str) -> None:
        self.store = store

    def __call__(self, *args: str, code: int = 0) -> Said:
        return self.bare("-A", "cli_shop", "--store", self.store, *args, code=code)

    def without_code(self, *args: str, code: int = 0) -> Said:
        return self.bare("--store", self.store, *args, code=code)

    def bare(self, *args: str, code: int = 0, env: dict[str, str] | None = None) -> Said:
        result = CliRunner().invoke(main, args, env=env, prog_name="holdfast")
        said = Said(result.exit_code, result.stdout, result.stderr)
        assert said.code == code, f"{args} ended with {said.code}\n{said.out}\n{said.err}"
        return said

    def status(self, run_id: str) -> str:
        return str(self("runs", "show", run_id, "--json").json["status"])

    def wait_for(self, run_id: str, *statuses: str) -> str:
        return eventually(lambda: (s := self.status(run_id)) in statuses and s)


def eventually(look: Callable[[], Any]) -> Any:
    """What `look` gives, once it gives something."""
    end = time.monotonic() + 20
    while time.monotonic() < end:
        found = look()
        if found:
            return found
        time.sleep(0.01)
    raise AssertionError("it did not happen within 20 s")
