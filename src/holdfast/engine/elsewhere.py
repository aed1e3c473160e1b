"""The steps of a run that workers elsewhere execute.

An attempt elsewhere has a row in the store, which is the truth about it: it is there, or its outcome is in the run's
inbox. The run may be let go meanwhile, and its worker may be lost, which means nothing to the attempt.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from holdfast.core import commands as co
from holdfast.engine.change import PendingChange
from holdfast.ports import AttemptRow


class Elsewhere:
    """`rows` are those that were asked for, by command, `to_ask` those that the next commit asks for."""

    __slots__ = ("_change", "rows", "to_ask")

    def __init__(self, rows: Iterable[AttemptRow], change: PendingChange) -> None:
        self._change = change
        self.rows = {row.cmd: row for row in rows}
        self.to_ask: dict[str, co.ScheduleStep] = {}

    def __bool__(self) -> bool:
        return bool(self.rows)

    def queues(self) -> dict[str, str]:
        """By command."""
        return {cmd: row.queue for cmd, row in self.rows.items()}

    def begun(self) -> list[tuple[str, str]]:
        """Commands, and the steps, that workers have claimed."""
        return [(cmd, row.step) for cmd, row in self.rows.items() if row.worker is not None]

    def ended(self, cmd: str, token: str) -> None:
        """An outcome came, and with it the row of its attempt went."""
        row = self.rows.get(cmd)
        if row is not None and row.token == token:
            del self.rows[cmd]

    def drop(self, cmd: str) -> None:
        """Its outcome is not wanted any more."""
        self.to_ask.pop(cmd, None)
        row = self.rows.pop(cmd, None)
        if row is not None:
            self._change.dropped_attempts.append(row.token)

    def drop_all(self) -> None:
        for cmd in list(self.rows):
            self.drop(cmd)

    def drop_unasked(self, pending: Mapping[str, co.ScheduleStep]) -> None:
        """What an earlier owner has asked for, and the code does no longer."""
        for cmd, row in list(self.rows.items()):
            command = pending.get(cmd)
            if command is None or command.attempt != row.number:
                self.drop(cmd)

    def withdraw_all(self) -> None:
        """The run is held: what has not begun will not begin. What has goes on to its end."""
        self._change.withdrawn_attempts += [row.token for row in self.rows.values()]
