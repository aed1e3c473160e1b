"""What starts runs by the clock, in every SQL store the same way."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from msgspec.structs import asdict

from holdfast.ports import ScheduleChange, ScheduleRow
from holdfast.stores.database import Tables
from holdfast.stores.messages import Messages
from holdfast.stores.queries import damage_of, list_in, refuse_nul
from holdfast.stores.runs import Runs, last_time


@dataclass(eq=False)
class Schedules(Tables):
    """Schedules, and what they start."""

    runs: Runs
    messages: Messages

    def schedules(self, name: str | None = None) -> list[ScheduleRow]:
        return self._find("select_schedules" if name is None else "select_schedule", name=name)

    def due_schedules(self, names: Sequence[str], limit: int) -> list[ScheduleRow]:
        return self._find("due_schedules", names=self._array(names), now=self.database.now(), limit=limit)

    def _find(self, query: str, **parameters: Any) -> list[ScheduleRow]:
        return [
            ScheduleRow(
                name=r[0], workflow=r[1], spec=r[2], declared=bool(r[3]), paused=bool(r[4]), reason=r[5], next_at=r[6],
                last_at=r[7], active=r[8], is_active=bool(r[9]), queued=list_in(r[10], int), revision=r[11],
                damage=damage_of(queued=(r[10], int)),
            )
            for r in self._ask(query, **parameters)
        ]  # fmt: skip

    def next_tick(self, names: Sequence[str]) -> int | None:
        ((found,),) = self._ask("next_tick", names=self._array(names))
        return found if found is None else int(found)

    def save_schedules(self, changes: Sequence[ScheduleChange]) -> list[str]:
        saved = []
        with self.database.write("schedule") as db:
            for change in sorted(changes, key=lambda change: change.row.name):  # one order for all workers
                row = change.row
                refuse_nul(row.name)
                action = (
                    "delete_schedule" if change.delete else "update_schedule" if row.revision else "insert_schedule"
                )
                parameters = {
                    **asdict(row), "declared": int(row.declared), "paused": int(row.paused),
                    "next_at": last_time(row.next_at), "queued": json.dumps(row.queued), "app": self.database.app,
                    "now": self.database.now(),
                }  # fmt: skip
                if not db.execute(self._q[action], parameters).rowcount:
                    continue
                saved.append(row.name)
                for run in change.runs:
                    self.runs.insert(db, run)
                for message in change.messages:
                    self.messages.insert(db, message)
        return saved
