"""Attempts that workers elsewhere execute, in every SQL store the same way.

Locks are taken in the order of tokens, after those of runs.
"""

from __future__ import annotations

import abc
import random
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

from holdfast.errors import Fenced
from holdfast.ports import AttemptReport, AttemptRow, Change, ClaimedAttempt, EndedAttempt
from holdfast.stores.queries import SqlQuery

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


class AttemptTables(SqlQuery):
    """The part of `SqlStore` that is about attempts."""

    @abc.abstractmethod
    def write(self, name: str, lasting: bool = True) -> AbstractContextManager[Any]: ...

    @abc.abstractmethod
    def _stamp(self, db: Any, count: int) -> int: ...

    def _apply_attempts(self, db: Any, changes: Sequence[Change]) -> None:
        """What changes do to attempts, those of all runs together."""
        dropped = sorted(token for change in changes for token in change.dropped_attempts)
        if dropped:
            db.execute(self._q["drop_attempts"], {"tokens": self.dialect.array(dropped)})
        withdrawn = sorted(token for change in changes for token in change.withdrawn_attempts)
        if withdrawn:
            db.execute(self._q["withdraw_attempts"], {"tokens": self.dialect.array(withdrawn)})
        if any(change.attempts for change in changes):
            rows = attempts_in(self.app, changes, self._stamp(db, 1))
            for statement in self.dialect.insert("attempts", ATTEMPT, rows):
                db.execute(*statement)

    def claim_attempts(
        self, worker_id: str, queues: Sequence[str], steps: Sequence[str], limit: int
    ) -> list[ClaimedAttempt]:
        rows: list[Any] = []
        with self.write("claim_attempts") as db:
            self._check_alive(db, worker_id)
            parameters = {
                "worker": worker_id, "app": self.app, "now": self.now(), "steps": self.dialect.array(steps)
            }  # fmt: skip
            for queue in in_turn(queues):
                if len(rows) < limit:
                    asked = {**parameters, "queue": queue, "limit": limit - len(rows)}
                    rows += db.execute(self._q["claim_attempts"], asked).fetchall()
        self._heard(row[3] for row in rows)
        return [ClaimedAttempt(token, body) for token, body, *_ in sorted(rows, key=lambda row: row[2])]

    def claim_attempt(self, worker_id: str, token: str) -> ClaimedAttempt | None:
        with self.write("claim_attempt") as db:
            self._check_alive(db, worker_id)
            parameters = {"worker": worker_id, "app": self.app, "now": self.now(), "token": token}
            row = db.execute(self._q["claim_attempt"], parameters).fetchone()
        if row is None:
            return None
        self._heard([row[2]])
        return ClaimedAttempt(*row[:2])

    def _check_alive(self, db: Any, worker_id: str) -> None:
        if db.execute(self._q["am_i_alive"], {"worker": worker_id}).fetchone() is None:
            raise Fenced(worker_id)

    def end_attempts(self, worker_id: str, ended: Sequence[EndedAttempt]) -> dict[str, str | None]:
        runs: dict[str, int] = {}
        with self.write("end_attempts") as db:
            for one in sorted(ended, key=lambda one: one.token):
                found = db.execute(self._q["end_attempt"], {"token": one.token, "worker": worker_id}).fetchone()
                if found is None:
                    continue
                message = one.message
                parameters = {
                    "run": found[0], "kind": message.kind, "dedupe": message.dedupe, "body": message.body,
                    "now": self.now(), "clock": self._stamp(db, 1),
                }  # fmt: skip
                db.execute(self._q["post_outcome"], parameters)
                runs[one.token] = found[0]
            owners = dict(db.execute(self._q["owners"], {"nos": self.dialect.array(runs.values())})) if runs else {}
        return {token: owners.get(run) for token, run in runs.items()}

    def release_attempts(self, worker_id: str, tokens: Sequence[str]) -> None:
        with self.write("release_attempts") as db:
            parameters = {"worker": worker_id, "tokens": self.dialect.array(sorted(tokens))}
            db.execute(self._q["release_attempts"], parameters)

    def report_attempts(self, worker_id: str, reports: Sequence[AttemptReport]) -> None:
        with self.write("report_attempts") as db:
            for report in sorted(reports, key=lambda report: report.token):
                parameters = {"worker": worker_id, "token": report.token, "key": report.kind, "body": report.body}
                db.execute(self._q["report_attempt"], parameters)

    def held_attempts(self, worker_id: str) -> set[str]:
        with self.read() as db:
            return {token for (token,) in db.execute(self._q["held_attempts"], {"worker": worker_id})}

    def lost_attempts(self, limit: int) -> list[AttemptRow]:
        rows = self._attempts("lost_attempts", {"app": self.app, "limit": limit})
        return sorted(rows, key=lambda row: row.token)

    def unclaimed(self, queues: Sequence[str], before: int, limit: int) -> list[AttemptRow]:
        parameters = {"app": self.app, "queues": self.dialect.array(queues), "before": before, "limit": limit}
        return self._attempts("unclaimed", parameters)

    def _attempts(self, query: str, parameters: dict[str, Any]) -> list[AttemptRow]:
        with self.read() as db:
            return [self._attempt(row) for row in db.execute(self._q[query], parameters)]
