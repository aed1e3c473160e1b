"""Deleting runs, so that those who wait for them are told."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from holdfast.api.reading import RunReader, Which
from holdfast.core.registry import Definitions
from holdfast.engine.records import ControlMessage, child_gone
from holdfast.errors import RunError
from holdfast.ports import FINAL, InboxRow, Message, Notifier, RunRow, Status, Store, Topic


@dataclass(slots=True)
class Deleter:
    """Deletes runs that have ended or are held."""

    definitions: Definitions
    store: Store
    notifier: Notifier
    reader: RunReader

    def delete(self, run: Which) -> None:
        status = self.store.delete(run.id, run.no, self._farewell)
        if status is None:
            raise self.reader.missing(run)
        if status not in (*FINAL, Status.PAUSED, Status.STUCK):
            raise RunError(f"run {run.id} is {status}; cancel or pause it before it is deleted", run_id=run.id)
        left = self.store.get(run.id)
        if left is not None and run.no in (None, left.no):
            raise RunError(f"a worker is busy with run {run.id}; delete it in a moment", run_id=run.id)
        self.notifier.ring(Topic.INBOX)  # its parent may have to be told

    def delete_all(self, rows: Sequence[RunRow]) -> int:
        """Delete those of these runs that are not in use; how many are gone."""
        gone = self.store.delete_all([(row.id, row.no) for row in rows], self._farewell)
        self.notifier.ring(Topic.INBOX)
        return gone

    def _farewell(self, row: RunRow, messages: list[InboxRow]) -> list[Message]:
        """What is told to the parent of a run that is deleted, if it waits for it or has just asked to be told."""
        waits = {row.parent_cmd or ""} if row.parent_id and row.status not in FINAL else set()
        for message in messages:
            if message.kind in ("watch", "retry"):
                waits.add(msgspec.json.decode(message.body, type=ControlMessage).parent_cmd)
        return [child_gone(self.definitions.codec, row.id, row.parent_id or "", cmd) for cmd in sorted(waits) if cmd]
