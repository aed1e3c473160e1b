"""Runs that go, by somebody's will or because of their age, in every SQL store the same way."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from holdfast.codec.blobs import keys_in
from holdfast.ports import FINAL, Collected, Farewell, InboxRow, Status
from holdfast.stores.database import Tables
from holdfast.stores.domain_events import DomainEvents
from holdfast.stores.messages import Messages
from holdfast.stores.queries import run_row
from holdfast.stores.runs import Runs


@dataclass(eq=False)
class Deletion(Tables):
    """Deletes runs that have ended or are held."""

    runs: Runs
    messages: Messages
    events: DomainEvents

    def delete(self, run_id: str, no: int | None = None, farewell: Farewell | None = None) -> str | None:
        with self.database.write("delete") as db:
            status, _ = self._delete_one(db, run_id, no, farewell)
            return status

    def delete_all(self, runs: Sequence[tuple[str, int]], farewell: Farewell | None = None) -> int:
        with self.database.write("delete") as db:
            by_number = sorted(runs, key=lambda run: run[1])  # one order for all who lock several
            return sum(self._delete_one(db, run_id, no, farewell)[1] for run_id, no in by_number)

    def _delete_one(self, db: Any, run_id: str, no: int | None, farewell: Farewell | None) -> tuple[str | None, bool]:
        """The status that it had, and whether it is gone."""
        found = db.execute(self._q["lock_run"], {"app": self.database.app, "id": run_id}).fetchone()
        row = None if found is None else run_row(found)
        if row is None or no not in (None, row.no):
            return None, False
        if row.owner is not None or row.status not in (*FINAL, Status.PAUSED, Status.STUCK):
            return row.status, False
        messages = db.execute(self._q["inbox_of_runs"], {"nos": self._array([row.no])}).fetchall()
        self.runs.remove(db, [row.no])
        for message in farewell(row, [InboxRow(*message) for message in messages]) if farewell is not None else ():
            self.messages.insert(db, message)
        return row.status, True

    def collect(self, limit: int) -> Collected:
        parameters = {"app": self.database.app, "now": self.database.now(), "limit": limit}
        with self.database.write("collect", lasting=False) as db:  # what a power cut brings back is deleted again
            rows = db.execute(self._q["expired"], parameters).fetchall()
            self.runs.remove(db, [no for (no,) in rows])
            if dead := self._q.get("dead_messages"):  # where one may be under way to a run while that is deleted
                db.execute(dead)
            return Collected(runs=len(rows), events=self.events.forget(db, limit))

    def named_blobs(self, keys: Sequence[str]) -> set[str]:
        with self.database.read() as db:
            named = {key for (key,) in db.execute(self._q["named_blobs"], {"keys": self._array(keys)})}
            for (body,) in db.execute(self._q["bodies"]):
                named.update(keys_in(bytes(body)))
        return named
