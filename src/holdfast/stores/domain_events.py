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
    Message,
    NewRun,
    Reach,
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
            return self._emit(db, emission)[0] is not None

    def _emit(self, db: Any, emission: Emission) -> tuple[int | None, int]:
        """Its number, if it is new, and to how many apps it goes."""
        refuse_nul(emission.id, emission.name, emission.key)
        parameters = {**asdict(emission), "app": self.database.app, "quiet": int(emission.quiet)}
        found = db.execute(self._q["insert_domain_event"], parameters).fetchone()
        if found is None:
            return None, 0
        return found[0], db.execute(self._q["spread"], {"no": found[0], "name": emission.name}).rowcount

    def signal(self, db: Any, change: Change) -> bool:
        """What a change does to domain events, in its order: a wait gets what is emitted after it, not before. Whether any
        app has to be told of one."""
        number: int | None = None
        to_tell = 0
        for signal in change.signals:
            if isinstance(signal, Emission):
                number, apps = self._emit(db, signal)
                to_tell += apps
            elif isinstance(signal, Reach):
                to_tell -= self._reach(db, number, signal)
            elif isinstance(signal, Unsubscription):
                db.execute(self._q["unsubscribe"], {"run": change.no, "cmd": signal.cmd})
            else:
                self._subscribe(db, signal, change.no)
        return to_tell > 0

    def _reach(self, db: Any, number: int | None, reach: Reach) -> bool:
        """Whether all subscriptions of this app have got the event of that number then."""
        parameters = {"app": self.database.app, "event": number, "upto": reach.upto, "name": reach.name}
        if db.execute(self._q["undelivered"], parameters).fetchone() is not None:
            return False  # it must not overtake that
        if [tuple(row) for row in db.execute(self._q["functions_listening"], parameters)] != reach.functions:
            return False  # a worker with other conditions has come meanwhile
        has_all = bool(db.execute(self._q["end_reached"], parameters).rowcount)
        if has_all or db.execute(self._q["advance_reached"], parameters).rowcount:
            self._hand_out(db, reach.runs, reach.messages)
        return has_all

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

    def listening(self, name: str) -> tuple[int, list[str]] | None:
        if not self._dialect.counts_in_order:
            return None
        rows = self._ask("listening", name=name)
        return (rows[0][0], [path for _, path in rows]) if rows else (0, [])

    def arrivals(self, limit: int) -> list[Arrival]:
        found = [
            Arrival(id=r[0], after=r[1], upto=r[2], event=event_row(r[3:]), paths=[])
            for r in self._ask("arrivals", limit=limit)
        ]
        paths = {
            name: [path for _, path in self._ask("listening", name=name)]
            for name in {each.event.name for each in found}
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
                if db.execute(self._q[action], parameters).rowcount:  # else another worker of this app was faster
                    self._hand_out(db, delivery.runs, delivery.messages)

    def _hand_out(self, db: Any, runs: Sequence[NewRun], messages: Sequence[tuple[int, Message]]) -> None:
        """Start runs, and give subscriptions their messages. One that has ended meanwhile gets none."""
        for run in runs:
            self.runs.insert(db, run)
        for number, message in messages:
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
