"""The history of a run whose code is in memory: where the code stands in it, and what is new since the last commit."""

from __future__ import annotations

from typing import Any

from msgspec import Raw

from holdfast.core import commands as co
from holdfast.core import events as ev
from holdfast.core.loop import WorkflowLoop
from holdfast.core.run_info import RunInfo

_NOT_BEGUN = ev.RunStarted(workflow="")


class Journal:
    """`beginning` is the event that this history begins with, `since` the one that this attempt of the run began with, and
    `passed` the last one that the code has seen before, somewhere. `data` is what the run has published up to where its
    code stands. Once the code `is_live`, what it asks for is carried out; before, that was done by whoever recorded the
    history, until `recorded_until`."""

    __slots__ = (
        "attempt", "beginning", "data", "info", "is_live", "last_seq", "loop", "mark", "new_commands", "new_events",
        "passed", "recorded_until", "since",
    )  # fmt: skip

    def __init__(self, info: RunInfo, loop: WorkflowLoop) -> None:
        self.info = info
        self.loop = loop
        self.beginning: ev.RunStarted | ev.ContinuedAsNew = _NOT_BEGUN
        self.mark = ""
        """Tells this run from an earlier one of its id that was deleted or restarted. It is part of the ids that
        derive from the run's, so that it doesn't find the earlier one's children."""
        self.attempt = 1
        self.since = 0
        self.data: dict[str, Raw] = {}
        self.passed = 0
        self.recorded_until = 0
        self.is_live = False
        self.last_seq = 0
        self.new_events: list[ev.Event] = []
        self.new_commands: list[co.Command] = []

    def begin(self, first: ev.RunStarted | ev.ContinuedAsNew) -> None:
        self.beginning = first
        self.mark = f"{first.seed & 0xFFFFFF:06x}"
        self.data = dict(first.data)

    @property
    def history_length(self) -> int:
        """From the beginning of this history to the event that is delivered."""
        return self.loop.cause - self.beginning.seq + 1

    @property
    def is_repeating(self) -> bool:
        """Whether the code goes where it has been before: what it says there was heard then."""
        return self.loop.cause <= self.passed

    def append(self, event: ev.Event) -> None:
        event.seq = self.last_seq = self.last_seq + 1
        self.new_events.append(event)

    def record(self, kind: type[ev.Commanded], cmd: str, **fields: Any) -> None:
        """What the code asks for now, which is recorded at once."""
        self.append(kind(ts=self.loop.now, cmd=cmd, cause=self.loop.cause, **fields))

    def take(self) -> tuple[list[ev.Event], list[co.Command]]:
        """What is new since the last call: events to commit, then commands to act on."""
        events, commands = self.new_events, self.new_commands
        self.new_events, self.new_commands = [], []
        return events, commands
