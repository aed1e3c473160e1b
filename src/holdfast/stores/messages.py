"""Inboxes of runs, in every SQL store the same way."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from msgspec.structs import asdict

from holdfast.ports import FINAL, InboxRow, Message, Posted, Status
from holdfast.stores.database import Tables
from holdfast.stores.limits import Limits
from holdfast.stores.queries import refuse_nul


@dataclass(eq=False)
class Messages(Tables):
    """Anyone puts something in; the owner of a run reads it."""

    limits: Limits

    def inbox(self, worker_id: str, runs: Sequence[int] | None = None) -> list[InboxRow]:
        query, parameters = "inbox_of_worker", {"worker": worker_id}
        if runs is not None:
            query, parameters = "inbox_for_runs", {"worker": worker_id, "nos": self._array(runs)}
        with self.database.read() as db:
            messages = [InboxRow(*row) for row in db.execute(self._q[query], parameters)]
        if messages:
            self.database.stamps.heard(message.clock for message in messages)
        return messages

    def orders(self, run_id: str) -> list[str]:
        return [kind for (kind,) in self._ask_of(run_id, "orders")]

    def post(self, message: Message) -> Posted:
        return self.post_all([message])[0]

    def post_all(self, messages: Sequence[Message]) -> list[Posted]:
        with self.database.write("post") as db:
            posted = []
            for message in messages:
                kept = self.insert(db, message)
                row = self._addressed(db, message)
                held = bool(message.frees) and row is not None and row[1] in (Status.PAUSED, Status.STUCK)
                freed = self.limits.free(db, row[0], message.frees) if held else []
                posted.append(Posted(row[1] if row is not None else None, kept, freed))
            return posted

    def insert(self, db: Any, message: Message) -> bool:
        """Whether it was put into the inbox."""
        refuse_nul(message.kind, message.dedupe or "")
        parameters = {
            **asdict(message), "control": int(message.control), "late": int(message.late), "app": self.database.app,
            "now": self.database.now(), "clock": self.database.stamps.take(db, 1),
        }  # fmt: skip
        kept = db.execute(self._q["post"], parameters).fetchone()
        if kept is None:
            if message.if_gone is not None:
                row = self._addressed(db, message)
                if row is None or (message.or_ended and row[1] in FINAL):
                    self.insert(db, message.if_gone)
            return False
        if self._is_first(db, kept[1], message):
            return True
        db.execute(self._q["consume"], {"ids": self._array([kept[0]])})
        return False

    def _is_first(self, db: Any, run: int, message: Message) -> bool:
        """Whether a message that may come once has not been there before."""
        if message.once and not db.execute(self._q["take_once"], {"run": run, "value": message.dedupe}).rowcount:
            return False
        asked = {"run": run, "id": message.request}
        return not message.request or bool(db.execute(self._q["add_request"], asked).rowcount)

    def _addressed(self, db: Any, message: Message) -> Any:
        """The number and status of the run that a message is for."""
        return db.execute(self._q["addressed"], {"app": self.database.app, **asdict(message)}).fetchone()
