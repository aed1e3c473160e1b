"""New runs, and the beginnings of their histories, in every SQL store the same way."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from msgspec.structs import asdict, astuple

from holdfast.codec.blobs import MARK, keys_in
from holdfast.ports import FINAL, Collision, NewRun, Record, RunRow
from holdfast.stores.database import Tables
from holdfast.stores.messages import Messages
from holdfast.stores.queries import refuse_nul, run_row
from holdfast.stores.search import VALUE_LIMIT

HISTORY = ("run", "seq", "kind", "name", "cmd", "cause", "attempt", "worker", "ts", "payload", "clock")
PARTS = ("blobs", "history", "inbox", "attempts", "attributes", "streams", "subscriptions", "requests", "slots")
"""Tables of what belongs to a run."""
LAST_TIME = 2**63 - 1


def last_time(value: int | None) -> int | None:
    """A time, or the last one that a database can hold."""
    return value if value is None else min(value, LAST_TIME)


def columns_of(run: NewRun) -> dict[str, Any]:
    """What of a new run is in its row, among other things."""
    return {
        **asdict(run), "status": str(run.status), "wake_at": last_time(run.wake_at), "durable": int(run.durable)
    }  # fmt: skip


@dataclass(eq=False)
class Runs(Tables):
    """Creates runs, and takes away what is no longer one."""

    messages: Messages

    def create(self, run: NewRun, replace: bool = False) -> RunRow | None:
        with self.database.write("create") as db:
            while self.insert(db, run) is None:
                found = db.execute(
                    self._q["lock_run" if replace else "select_run"], {"app": self.database.app, "id": run.id}
                ).fetchone()
                if found is None:
                    continue  # it was deleted in between
                taken = run_row(found)
                if not (replace and taken.status in FINAL and taken.owner is None):
                    return taken
                self.remove(db, [taken.no])
            return None

    def create_all(self, runs: Sequence[NewRun], collision: Collision) -> list[RunRow | None]:
        with self.database.write("create") as db:
            self._insert_rows(db, runs)
            taken = self._taken(db, runs, collision)
            new = [(run.no, run) for run in runs if run.no is not None]
            self.insert_records(db, [(no, run.records) for no, run in new])
            for no, run in new:
                self._insert_parts(db, no, run)
            return taken

    def put_off(self, no: int, run: NewRun) -> bool:
        with self.database.write("put_off") as db:
            parameters = {
                "no": no, "app": self.database.app, "wake_at": last_time(run.wake_at), "fingerprint": run.fingerprint
            }  # fmt: skip
            if not db.execute(self._q["put_off"], parameters).rowcount:
                return False
            self._remove_parts(db, ("history", "attributes"), [no])
            self.insert_records(db, [(no, run.records)])
            self._insert_parts(db, no, run)
            return True

    def _taken(self, db: Any, runs: Sequence[NewRun], collision: Collision) -> list[RunRow | None]:
        """The runs that have the ids of those that were not created."""
        found: list[RunRow | None] = []
        for run in runs:
            row = None
            if run.no is None:
                values = db.execute(self._q["select_run"], {"app": self.database.app, "id": run.id}).fetchone()
                if values is None:
                    raise self.database.conflict(
                        f"run {run.id!r} was deleted just now; start again what was to have its id"
                    )
                row = run_row(values)
                collision(run, row)
            found.append(row)
        return found

    def insert(self, db: Any, run: NewRun) -> int | None:
        """Its number; None if its id is taken."""
        no = self._insert_row(db, run)
        if no is not None:
            self.insert_records(db, [(no, run.records)])
            self._insert_parts(db, no, run)
        return no

    def _insert_rows(self, db: Any, runs: Sequence[NewRun]) -> None:
        for run in runs:
            self._insert_row(db, run)

    def _insert_row(self, db: Any, run: NewRun) -> int | None:
        refuse_nul(run.id, run.workflow)
        parameters = {"app": self.database.app, **columns_of(run)}
        found = db.execute(self._q["insert_run"], parameters).fetchone()
        run.no = None if found is None else int(found[0])
        return run.no

    def _insert_parts(self, db: Any, no: int, run: NewRun) -> None:
        """What a new run has beside its history."""
        for key, value, body in run.attributes:
            self.set_attribute(db, no, key, value, body)
        for message in run.messages:
            self.messages.insert(db, message)

    def set_attribute(self, db: Any, no: int, key: str, value: str, body: bytes) -> None:
        refuse_nul(key, value)
        parameters = {"run": no, "key": key, "value": value[:VALUE_LIMIT], "body": body}
        db.execute(self._q["set_attribute"], parameters)

    def insert_records(self, db: Any, histories: Iterable[tuple[int, Iterable[Record]]]) -> None:
        found = [(no, record) for no, records in histories for record in records]
        if found:
            first = self.database.stamps.take(db, len(found))
            rows = [(no, *astuple(record), clock) for clock, (no, record) in enumerate(found, first)]
            for statement in self._dialect.insert("history", HISTORY, rows):
                db.execute(*statement)
            self.name_blobs(db, [(no, record.payload) for no, record in found if MARK in record.payload])

    def name_blobs(self, db: Any, payloads: Iterable[tuple[int, bytes]]) -> None:
        for no, payload in payloads:
            for key in keys_in(payload):
                db.execute(self._q["name_blob"], {"run": no, "key": key})

    def remove(self, db: Any, numbers: Sequence[int]) -> None:
        """Runs with everything that belongs to them."""
        if numbers:
            self._remove_parts(db, PARTS, numbers)
            db.execute(self._q["delete_runs"], {"nos": self._array(numbers)})

    def _remove_parts(self, db: Any, tables: Iterable[str], numbers: Sequence[int]) -> None:
        nos = {"nos": self._array(numbers)}
        for table in tables:
            db.execute(self._q["delete_parts"].replace("{table}", table), nos)
