"""What the steps of a run say on their way, kept beside its history."""

from __future__ import annotations

from holdfast.engine.change import PendingChange


class StepReports:
    """`kept` is what is in the store, or will be, by kind and command. `checkpoints` are the last ones, and `streamed` says
    how many items there are, by the number that they are streamed as; both by command, None until they are known."""

    __slots__ = ("_change", "checkpoints", "kept", "streamed")

    def __init__(self, change: PendingChange) -> None:
        self._change = change
        self.kept: set[tuple[str, str]] = set()
        self.checkpoints: dict[str, bytes] | None = None
        self.streamed: dict[str, dict[int, int]] | None = None

    def keep(self, kind: str, cmd: str, body: bytes) -> None:
        """Its checkpoint, its progress."""
        if kind == "checkpoint":
            self.checkpoints = {**(self.checkpoints or {}), cmd: body}
        self.kept.add((kind, cmd))
        self._change.set_attribute(kind, cmd, body)

    def are_in_store(self, cmd: str) -> None:
        """It was executed elsewhere: what it has said is not known here."""
        self.kept |= {("progress", cmd), ("checkpoint", cmd)}

    def forget(self, cmd: str, has_ended: bool) -> None:
        """A checkpoint is kept over attempts, until the step has ended."""
        for kind in ("progress", "checkpoint"):
            if (kind, cmd) in self.kept and (kind == "progress" or has_ended):
                self.kept.discard((kind, cmd))
                self._change.drop_attribute(kind, cmd)
