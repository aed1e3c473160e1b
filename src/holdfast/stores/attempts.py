"""Attempts that workers elsewhere execute, in every SQL store the same way.

Locks are taken in the order of tokens, after those of runs.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from holdfast.ports import AttemptReport, AttemptRow, Change, ClaimedAttempt, EndedAttempt, QueueRow
from holdfast.stores.database import Tables
from holdfast.stores.queries import attempt_row

ATTEMPT = ("token", "app", "run", "cmd", "step", "number", "state", "queue", "not_before", "body", "clock")


def attempts_in(app: str, changes: Sequence[Change], clock: int) -> list[tuple[Any, ...]]:
    """The rows of new attempts, in the order of `ATTEMPT`. All have one number of the logical clock."""
    return [
        (new.token, app, change.no, new.cmd, new.step, new.number, "READY", new.queue, new.due, new.body, clock)
        for change in changes
        for new in change.attempts
    ]


def in_turn(queues: Sequence[str]) -> list[str]:
    """Each of them is the first one now and then, so that none has to wait for the end of another."""
    return random.sample(queues, len(queues))


class Attempts(Tables):
    """Asked for by commits, claimed and ended by those who execute them."""

    def apply(self, db: Any, changes: Sequence[Change]) -> None:
        """What changes do to attempts, those of all runs together."""
        dropped = sorted(token for change in changes for token in change.dropped_attempts)
        if dropped:
            db.execute(self._q["drop_attempts"], {"tokens": self._array(dropped)})
        withdrawn = sorted(token for change in changes for token in change.withdrawn_attempts)
        if withdrawn:
            db.execute(self._q["withdraw_attempts"], {"tokens": self._array(withdrawn)})
        if any(change.attempts for change in changes):
            rows = attempts_in(self.database.app, changes, self.database.stamps.take(db, 1))
            for statement in self._dialect.insert("attempts", ATTEMPT, rows):
                db.execute(*statement)

    def claim_attempts(
        self, worker_id: str, queues: Sequence[str], steps: Sequence[str], limit: int
    ) -> list[ClaimedAttempt]:
        rows: list[Any] = []
        with self.database.write("claim_attempts") as db:
            self._check_alive(db, worker_id)
            parameters = {
                "worker": worker_id, "app": self.database.app, "now": self.database.now(), "steps": self._array(steps)
            }  # fmt: skip
            for queue in in_turn(queues):
                if len(rows) < limit:
                    asked = {**parameters, "queue": queue, "limit": limit - len(rows)}
                    rows += db.execute(self._q["claim_attempts"], asked).fetchall()
        self.database.stamps.heard(row[3] for row in rows)
        return [ClaimedAttempt(token, body) for token, body, *_ in sorted(rows, key=lambda row: row[2])]

    def claim_attempt(self, worker_id: str, token: str) -> ClaimedAttempt | None:
        with self.database.write("claim_attempt") as db:
            self._check_alive(db, worker_id)
            parameters = {"worker": worker_id, "app": self.database.app, "now": self.database.now(), "token": token}
            row = db.execute(self._q["claim_attempt"], parameters).fetchone()
        if row is None:
            return None
        self.database.stamps.heard([row[2]])
        return ClaimedAttempt(*row[:2])

    def end_attempts(self, worker_id: str, ended: Sequence[EndedAttempt]) -> dict[str, str | None]:
        runs: dict[str, int] = {}
        with self.database.write("end_attempts") as db:
            for one in sorted(ended, key=lambda one: one.token):
                found = db.execute(self._q["end_attempt"], {"token": one.token, "worker": worker_id}).fetchone()
                if found is None:
                    continue
                message = one.message
                parameters = {
                    "run": found[0], "kind": message.kind, "dedupe": message.dedupe, "body": message.body,
                    "now": self.database.now(), "clock": self.database.stamps.take(db, 1),
                }  # fmt: skip
                db.execute(self._q["post_outcome"], parameters)
                runs[one.token] = found[0]
            owners = dict(db.execute(self._q["owners"], {"nos": self._array(runs.values())})) if runs else {}
        return {token: owners.get(run) for token, run in runs.items()}

    def release_attempts(self, worker_id: str, tokens: Sequence[str]) -> None:
        with self.database.write("release_attempts") as db:
            parameters = {"worker": worker_id, "tokens": self._array(sorted(tokens))}
            db.execute(self._q["release_attempts"], parameters)

    def report_attempts(self, worker_id: str, reports: Sequence[AttemptReport]) -> None:
        with self.database.write("report_attempts") as db:
            for report in sorted(reports, key=lambda report: report.token):
                parameters = {"worker": worker_id, "token": report.token, "key": report.kind, "body": report.body}
                db.execute(self._q["report_attempt"], parameters)

    def held_attempts(self, worker_id: str) -> set[str]:
        return {token for (token,) in self._ask("held_attempts", worker=worker_id)}

    def lost_attempts(self, limit: int) -> list[AttemptRow]:
        return sorted(map(attempt_row, self._ask("lost_attempts", limit=limit)), key=lambda row: row.token)

    def unclaimed(self, queues: Sequence[str], before: int, limit: int) -> list[AttemptRow]:
        rows = self._ask("unclaimed", queues=self._array(queues), before=before, limit=limit)
        return [attempt_row(row) for row in rows]

    def attempts(self, run_id: str) -> list[AttemptRow]:
        return [attempt_row(row) for row in self._ask_of(run_id, "attempts_of_run")]

    def queues(self) -> list[QueueRow]:
        rows = self._ask("queues")
        return [QueueRow(queue=r[0], waiting=int(r[1]), since=r[2], claimed=int(r[3])) for r in rows]
