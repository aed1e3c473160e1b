"""What the owners of runs write, in every SQL store the same way."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from holdfast.ports import Change, Committed
from holdfast.stores.attempts import Attempts
from holdfast.stores.claims import Claims
from holdfast.stores.database import Tables
from holdfast.stores.domain_events import DomainEvents
from holdfast.stores.limits import Limits
from holdfast.stores.messages import Messages
from holdfast.stores.runs import Runs, last_time

TIMES = ("wake_at", "expires_at")


@dataclass(eq=False)
class Commits(Tables):
    """Applies changes of runs to all tables that they concern, then claims more runs."""

    runs: Runs
    messages: Messages
    attempts: Attempts
    events: DomainEvents
    limits: Limits
    claims: Claims

    def commit(self, worker_id: str, changes: Sequence[Change], claim: int, names: Sequence[str]) -> Committed:
        with self.database.write("commit", lasting=bool(changes)) as db:
            self._check_alive(db, worker_id)
            self.runs.insert_records(db, [(change.no, change.records) for change in changes])
            for columns, rows in updates_of(changes):
                for statement in self._dialect.update("runs", columns, rows):
                    db.execute(*statement)
            others = [change for change in changes if not change.is_plain]
            rich = [change for change in others if has_more_than_history(change)]
            if rich:
                self.attempts.apply(db, rich)
            emitted = any([self._apply(db, change) for change in rich])
            freed = self.limits.change(db, others) if any(map(is_about_limits, others)) else []
            emitted |= self.events.emit_if_heard(db, [emission for change in changes for emission in change.news])
            return Committed(self.claims.claim(db, worker_id, claim, names) if claim else [], emitted, freed)

    def settle(self, worker_id: str) -> None:
        if settle := self._q.get("settle"):  # where a transaction of another connection can outlive that connection
            with self.database.read() as db:
                db.execute(settle, {"worker": worker_id})

    def _apply(self, db: Any, change: Change) -> bool:
        """Whether any app has to be told of a domain event."""
        if change.consumed:
            db.execute(self._q["consume"], {"ids": self._array(change.consumed)})
        for child in change.children:
            if self.runs.insert(db, child) is None and child.if_taken is not None:
                self.messages.insert(db, child.if_taken)
        for message in change.messages:
            self.messages.insert(db, message)
        to_tell = bool(change.signals) and self.events.signal(db, change)
        for key, value in change.dropped_attributes:
            db.execute(self._q["drop_attribute"], {"run": change.no, "key": key, "value": value})
        for key, value, body in change.attributes:
            if key.startswith("data."):
                db.execute(self._q["clear_attribute"], {"run": change.no, "key": key})
            self.runs.set_attribute(db, change.no, key, value, body)
        if change.streamed:
            self._stream(db, change)
        self._answer(db, change)
        return to_tell

    def _answer(self, db: Any, change: Change) -> None:
        for answer in change.answers:
            parameters = {"run": change.no, "id": answer.request, "seq": answer.seq, "body": answer.body}
            db.execute(self._q["answer_request"], parameters)
        if change.forget_before:
            for table in ("history", "requests"):
                db.execute(self._q[f"forget_{table}"], {"run": change.no, "before": change.forget_before})

    def _stream(self, db: Any, change: Change) -> None:
        for new in change.streamed:
            parameters = {"run": change.no, "cmd": new.cmd, "attempt": new.attempt, "ts": new.ts, "item": new.item}
            db.execute(self._q["append_stream"], parameters)


def has_more_than_history(change: Change) -> bool:
    """Whether there is anything beside events and columns of the run's row: mostly there is not."""
    return bool(
        change.consumed or change.children or change.messages or change.signals or change.dropped_attributes
        or change.attributes or change.streamed or change.answers or change.forget_before or change.attempts
        or change.dropped_attempts or change.withdrawn_attempts
    )  # fmt: skip


def is_about_limits(change: Change) -> bool:
    return bool(change.asks or change.gives_back) or change.keeps is not None


def updates_of(changes: Sequence[Change]) -> list[tuple[tuple[str, ...], list[tuple[Any, ...]]]]:
    """What changes do to the columns of runs: columns, of which the first is the run's number, and their values. Those
    that set the same columns go together."""
    alike: dict[tuple[str, ...], list[tuple[Any, ...]]] = {}
    for change in changes:
        if change.columns:
            values = [last_time(value) if name in TIMES else value for name, value in change.columns.items()]
            alike.setdefault(("no", *change.columns), []).append((change.no, *values))
    return list(alike.items())
