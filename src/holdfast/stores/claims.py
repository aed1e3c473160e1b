"""Runs that nobody owns: when they are due, who gets them, and what comes with them. In every SQL store the same way."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from holdfast.ports import Claimed, Emission, InboxRow, RunRow
from holdfast.stores.database import Tables
from holdfast.stores.domain_events import DomainEvents
from holdfast.stores.limits import Limits
from holdfast.stores.queries import attempt_row, run_row


@dataclass(eq=False)
class Claims(Tables):
    """Claims runs for workers."""

    events: DomainEvents
    limits: Limits

    def claim(self, db: Any, worker_id: str, limit: int, names: Sequence[str]) -> list[Claimed]:
        now = self.database.now()
        parameters = {
            "worker": worker_id, "app": self.database.app, "now": now, "limit": limit, "names": self._array(names)
        }  # fmt: skip
        rows = [run_row(row) for row in db.execute(self._q["claim"], parameters).fetchall()]
        return self.read(db, rows, now) if rows else []

    def read(self, db: Any, rows: Sequence[RunRow], now: int) -> list[Claimed]:
        """What belongs to runs that were claimed at that time."""
        rows = sorted(rows, key=lambda row: (-row.priority, row.no))  # RETURNING knows no order
        claimed = {row.no: Claimed(row, [], [], is_first=row.started_at == now) for row in rows}
        new = [no for no, one in claimed.items() if one.is_first]
        if new:
            self._read_new(db, new, claimed)
        if len(new) < len(claimed):
            self._read_begun(db, [no for no, one in claimed.items() if not one.is_first], claimed)
        limited = [row.no for row in rows if row.limited]
        for no, slots in self.limits.read_slots(db, limited).items() if limited else ():
            claimed[no].slots = slots
        return list(claimed.values())

    def _read_new(self, db: Any, nos: Sequence[int], claimed: dict[int, Claimed]) -> None:
        found = db.execute(self._q["beginnings"], {"nos": self._array(nos)}).fetchall()
        if found and found[0][0] < 0:  # claimed before, at the same microsecond
            self._read_begun(db, nos, claimed)
            return
        for number, no, kind, body, ts, clock in found:
            if number:
                claimed[no].messages.append(InboxRow(number, no, kind, body, ts, clock))
            else:
                claimed[no].payloads.append(body)
        self.database.stamps.heard(row[5] for row in found)

    def _read_begun(self, db: Any, nos: Sequence[int], claimed: dict[int, Claimed]) -> None:
        numbers = {"nos": self._array(nos)}
        clocks = []
        for no, payload, clock in db.execute(self._q["history_from_base"], numbers):
            claimed[no].payloads.append(payload)
            clocks.append(clock)
        # Before the messages: one that ends in between is then found as both, and never as neither.
        for row in db.execute(self._q["attempts_of_runs"], numbers):
            claimed[row[1]].attempts.append(attempt_row(row))
        for message in db.execute(self._q["inbox_of_runs"], numbers):
            claimed[message[1]].messages.append(InboxRow(*message))
            clocks.append(message[5])
        self.database.stamps.heard(clocks)

    def next_wake(self, names: Sequence[str]) -> int | None:
        parameters = {"app": self.database.app, "names": self._array(names), "now": self.database.now()}
        asked = f"SELECT EXISTS ({self._q['message_waits']}), ({self._q['next_wake']})"
        with self.database.read() as db:
            waits, wake = db.execute(asked, parameters).fetchone()
        return 0 if waits else wake

    def orphans(self, before: int) -> list[RunRow]:
        return [run_row(row) for row in self._ask("orphans", before=before)]

    def set_aside(self, no: int, reason: str, stuck: str, news: Emission | None = None) -> bool:
        with self.database.write("set_aside") as db:
            done = bool(db.execute(self._q["set_aside"], {"reason": reason, "stuck": stuck, "no": no}).rowcount)
            if done and news is not None:
                self.events.emit_if_heard(db, [news])
            return done

    def reset_times(self, ahead: int) -> int:
        with self.database.write("reset_times") as db:
            now = self.database.now()
            parameters = {"app": self.database.app, "now": now, "ahead": now + ahead}
            return int(db.execute(self._q["reset_times"], parameters).rowcount)
