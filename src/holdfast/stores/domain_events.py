"""Domain events and those who listen, in every SQL store the same way."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from msgspec.structs import asdict

from holdfast.durations import SECOND
from holdfast.ports import (
    Arrival,
    Change,
    Delivery,
    DomainEventRow,
    Emission,
    Listener,
    RunRow,
    Subscription,
    Unsubscription,
    WorkerRow,
)
from holdfast.stores.database import Tables
from holdfast.stores.messages import Messages
from holdfast.stores.queries import event_row, list_in, refuse_nul, run_row
from holdfast.stores.runs import Runs

DAY = 86_400 * SECOND
RETENTION = 30 * DAY
"""How long an event is kept: as long its key stands for it, and an app that is away will still get it."""


@dataclass(eq=False)
class DomainEvents(Tables):
    """Emitted, listened to, delivered."""

    runs: Runs
    messages: Messages

    def emit(self, emission: Emission, subscriptions: Sequence[Subscription] = ()) -> bool:
        with self.database.write("emit") as db:
            for subscription in subscriptions:
                self._subscribe(db, subscription, None, "subscribe_for_now")
            return self._emit(db, emission)

    def _emit(self, db: Any, emission: Emission) -> bool:
        refuse_nul(emission.id, emission.name, emission.key)
        parameters = {**asdict(emission), "app": self.database.app, "quiet": int(emission.quiet)}
        found = db.execute(self._q["insert_domain_event"], parameters).fetchone()
        if found is None:
            return False
        db.execute(self._q["spread"], {"no": found[0], "name": emission.name})
        return True

    def signal(self, db: Any, change: Change) -> None:
        """What a change does to domain events, in its order: a wait gets what is emitted after it, not before."""
        for signal in change.signals:
            if isinstance(signal, Emission):
                self._emit(db, signal)
            elif isinstance(signal, Unsubscription):
                db.execute(self._q["unsubscribe"], {"run": change.no, "cmd": signal.cmd})
            else:
                self._subscribe(db, signal, change.no)

    def emit_if_heard(self, db: Any, emissions: Sequence[Emission]) -> bool:
        """Emit those whose name somebody listens to; whether there were any."""
        heard = {
            name: db.execute(self._q["anybody_listens"], {"name": name}).fetchone() is not None
            for name in {emission.name for emission in emissions}
        }
        for emission in emissions:
            if heard[emission.name]:
                self._emit(db, emission)
        return any(heard.values())

    # -- listening

    def _subscribe(self, db: Any, subscription: Subscription, run: int | None, how: str = "subscribe") -> None:
        refuse_nul(subscription.event, subscription.target, subscription.cmd, subscription.lookup)
        parameters = {**asdict(subscription), "app": self.database.app, "run": run, "now": self.database.now()}
        db.execute(self._q[how], parameters)

    def declare(self, db: Any, worker: WorkerRow, subscriptions: Sequence[Subscription]) -> None:
        """What a worker's code listens to, in place of what nobody does any more."""
        for subscription in sorted(subscriptions, key=lambda s: (s.event, s.target)):  # one order for all workers
            self._subscribe(db, subscription, None)
        listens = json.dumps([f"{subscription.event} {subscription.target}" for subscription in subscriptions])
        db.execute(self._q["set_listens"], {"listens": listens, "worker": worker.id})
        self._end_undeclared(db)

    def dismiss(self, db: Any, listens: str) -> None:
        """A worker has left, and with it what it alone has declared, if others know better."""
        declared = self._array(list_in(listens, str))
        parameters = {"app": self.database.app, "listens": declared, "now": self.database.now()}
        db.execute(self._q["declared_until_now"], parameters)
        self._end_undeclared(db)

    def _end_undeclared(self, db: Any) -> None:
        db.execute(self._q["end_undeclared"], {"app": self.database.app, "long_ago": self.database.now() - DAY})

    # -- delivering

    def arrivals(self, limit: int) -> list[Arrival]:
        found = [
            Arrival(id=r[0], after=r[1], upto=r[2], event=event_row(r[3:]), paths=[])
            for r in self._ask("arrivals", limit=limit)
        ]
        paths = {
            name: [path for (path,) in self._ask("paths", name=name)] for name in {each.event.name for each in found}
        }
        for arrival in found:
            arrival.paths = paths[arrival.event.name]
        return found

    def listeners(self, arrival: Arrival, lookups: Sequence[str], limit: int) -> list[Listener]:
        about = {"name": arrival.event.name, "after": arrival.after, "upto": arrival.upto, "limit": limit}
        rows = sorted(row for lookup in set(lookups) for row in self._ask("listeners", lookup=lookup, **about))
        return [Listener(no=r[0], target=r[1], run_id=r[2], cmd=r[3], spec=r[4]) for r in rows[:limit]]

    def deliver(self, deliveries: Sequence[Delivery]) -> None:
        with self.database.write("deliver") as db:
            for delivery in deliveries:
                action = "end_delivery" if delivery.reached is None else "advance_delivery"
                arrival = delivery.arrival
                parameters = {"id": arrival.id, "after": arrival.after, "reached": delivery.reached}
                if not db.execute(self._q[action], parameters).rowcount:
                    continue  # another worker of this app was faster
                for run in delivery.runs:
                    self.runs.insert(db, run)
                for number, message in delivery.messages:
                    if db.execute(self._q["end_subscription"], {"id": number}).rowcount:
                        self.messages.insert(db, message)

    def forget(self, db: Any, limit: int) -> int:
        parameters = {"limit": limit, "before": self.database.now() - RETENTION}
        db.execute(self._q["forget_deliveries"], parameters)
        forgotten: int = db.execute(self._q["forget_events"], parameters).rowcount
        return forgotten

    # -- looking

    def domain_event(self, id: str) -> DomainEventRow | None:
        rows = self._ask("domain_event", id=id)
        return event_row(rows[0]) if rows else None

    def trace(self, correlation: str, limit: int) -> tuple[list[RunRow], list[DomainEventRow]]:
        root_app, _, root_id = correlation.partition(":")
        parameters = {"correlation": correlation, "root_app": root_app, "root_id": root_id, "limit": limit}
        runs, events = self._ask("runs_of_process", **parameters), self._ask("events_of_process", **parameters)
        return [run_row(row) for row in runs], [event_row(row) for row in events]
