"""What a composition is made of, as a run records it: names and edges, never code."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import msgspec
from msgspec import Raw

RunIf = Literal["all_success", "all_done", "any_success", "none_failed"]


class PlannedStep(msgspec.Struct, frozen=True, omit_defaults=True):
    """A step of a composition: `runs` names what it executes in the app, `undo` what compensates it."""

    name: str
    runs: str
    is_workflow: bool = False
    depends_on: tuple[str, ...] = ()
    run_if: RunIf = "all_success"
    has_condition: bool = False
    map_over: str = ""
    undo: str = ""
    undo_is_workflow: bool = False

    @property
    def cmd(self) -> str:
        """The command that executes it."""
        return f"{'c' if self.is_workflow else 's'}:{self.name}"


class Plan(msgspec.Struct, frozen=True):
    """The shape of a composition when a run of it began."""

    shape: Literal["dag", "saga", "checkpointed"]
    steps: tuple[PlannedStep, ...]

    def followers(self) -> dict[str, list[PlannedStep]]:
        """The steps that depend on each, by its name."""
        found: dict[str, list[PlannedStep]] = {step.name: [] for step in self.steps}
        for step in self.steps:
            for name in step.depends_on:
                found[name].append(step)
        return found

    def to_json(self) -> Raw:
        return Raw(msgspec.json.encode(self))


_decoder = msgspec.json.Decoder(Plan)


def read_plan(recorded: Raw) -> Plan:
    return _decoder.decode(recorded)


def member_key(name: str, index: int) -> str:
    """The key of one execution of a step that is executed for each element of something."""
    return f"{name}[{index}]"


def undo_key(name: str) -> str:
    """The key of what compensates the step `name`."""
    return f"{name}.undo"


def member_keys(name: str, count: int) -> Iterator[str]:
    return (member_key(name, index) for index in range(count))
