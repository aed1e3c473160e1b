"""Domain events and those who listen, in every SQL store the same way."""

from __future__ import annotations

import abc
import json
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

from holdfast.durations import SECOND
from holdfast.ports import (
    Arrival,
    Change,
    Delivery,
    Emission,
    Listener,
    Message,
    NewRun,
    Subscription,
    Unsubscription,
    WorkerRow,
)
from holdfast.stores.queries import SqlQuery, list_in, refuse_nul

DAY = 86_400 * SECOND
RETENTION = 30 * DAY
"""How long an event is kept: as long its key stands for it, and an app that is away will still get it."""


class EventTables(SqlQuery):
    """The part of `SqlStore` that is about domain events."""

    @abc.abstractmethod
    def write(self, name: str, lasting: bool = True) -> AbstractContextManager[Any]: ...

    @abc.abstractmethod
    def _insert_run(self, db: Any, run: NewRun) -> int | None: ...

    @abc.abstractmethod
    def _insert_message(self, db: Any, message: Message) -> bool: ...

    # -- emitting

    def emit(self, emission: Emission, subscriptions: Sequence[Subscription] = ()) -> bool:
        with self.write("emit") as db:
            for subscription in subscriptions:
                self._subscribe(db, subscription, None, "subscribe_for_now")
            return self._emit(db, emission)

    def _emit(self, db: Any, emission: Emission) -> bool:
        refuse_nul(emission.id, emission.name, emission.key)
        found = db.execute(
            self._q["insert_domain_event"],
            {
                "app": self.app, "id": emission.id, "name": emission.name, "key": emission.key,
                "payload": emission.payload, "correlation": emission.correlation, "run_id": emission.run_id,
                "cmd": emission.cmd, "quiet": int(emission.quiet), "ts": emission.ts,
            },
        ).fetchone()  # fmt: skip
        if found is None:
            return False
        db.execute(self._q["spread"], {"no": found[0], "name": emission.name})
        return True

    def _signal(self, db: Any, change: Change) -> None:
        """What a change does to domain events, in its order: a wait gets what is emitted after it, not before."""
        for signal in change.signals:
            if isinstance(signal, Emission):
                self._emit(db, signal)
            elif isinstance(signal, Unsubscription):
                db.execute(self._q["unsubscribe"], {"run": change.no, "cmd": signal.cmd})
            else:
                self._subscribe(db, signal, change.no)

    def _emit_if_heard(self, db: Any, emissions: Sequence[Emission]) -> bool:
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
        db.execute(
            self._q[how],
            {
                "app": self.app, "event": subscription.event, "target": subscription.target, "run": run,
                "cmd": subscription.cmd, "path": subscription.path, "lookup": subscription.lookup,
                "spec": subscription.spec, "now": self.now(),
            },
        )  # fmt: skip

    def _declare(self, db: Any, worker: WorkerRow, subscriptions: Sequence[Subscription]) -> None:
        """What a worker's code listens to, in place of what nobody does any more."""
        for subscription in sorted(subscriptions, key=lambda s: (s.event, s.target)):  # one order for all workers
            self._subscribe(db, subscription, None)
        listens = json.dumps([f"{subscription.event} {subscription.target}" for subscription in subscriptions])
        db.execute(self._q["set_listens"], {"listens": listens, "worker": worker.id})
        self._end_undeclared(db)

    def _dismiss(self, db: Any, listens: str) -> None:
        """A worker has left, and with it what it alone has declared, if others know better."""
        declared = self.dialect.array(list_in(listens, str))
        db.execute(self._q["declared_until_now"], {"app": self.app, "listens": declared, "now": self.now()})
        self._end_undeclared(db)

    def _end_undeclared(self, db: Any) -> None:
        db.execute(self._q["end_undeclared"], {"app": self.app, "long_ago": self.now() - DAY})

    # -- delivering

    def arrivals(self, limit: int) -> list[Arrival]:
        with self.read() as db:
            rows = db.execute(self._q["arrivals"], {"app": self.app, "limit": limit}).fetchall()
            found = [Arrival(id=r[0], after=r[1], upto=r[2], event=self._event(r[3:]), paths=[]) for r in rows]
            paths: dict[str, list[str]] = {}
            for arrival in found:
                name = arrival.event.name
                if name not in paths:
                    paths[name] = [path for (path,) in db.execute(self._q["paths"], {"name": name, "app": self.app})]
                arrival.paths = paths[name]
        return found

    def listeners(self, arrival: Arrival, lookups: Sequence[str], limit: int) -> list[Listener]:
        rows: list[Any] = []
        with self.read() as db:
            for lookup in set(lookups):
                parameters = {
                    "name": arrival.event.name, "app": self.app, "lookup": lookup, "after": arrival.after,
                    "upto": arrival.upto, "limit": limit,
                }  # fmt: skip
                rows += db.execute(self._q["listeners"], parameters)
        rows.sort()
        return [Listener(no=r[0], target=r[1], run_id=r[2], cmd=r[3], spec=r[4]) for r in rows[:limit]]

    def deliver(self, deliveries: Sequence[Delivery]) -> None:
        with self.write("deliver") as db:
            for delivery in deliveries:
                action = "end_delivery" if delivery.reached is None else "advance_delivery"
                arrival = delivery.arrival
                parameters = {"id": arrival.id, "after": arrival.after, "reached": delivery.reached}
                if not db.execute(self._q[action], parameters).rowcount:
                    continue  # another worker of this app was faster
                for run in delivery.runs:
                    self._insert_run(db, run)
                for number, message in delivery.messages:
                    if db.execute(self._q["end_subscription"], {"id": number}).rowcount:
                        self._insert_message(db, message)

    def _forget_events(self, db: Any, limit: int) -> int:
        parameters = {"limit": limit, "before": self.now() - RETENTION}
        db.execute(self._q["forget_deliveries"], parameters)
        forgotten: int = db.execute(self._q["forget_events"], parameters).rowcount
        return forgotten
