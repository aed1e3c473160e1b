"""Workers and who of them lives, in every SQL store the same way."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from msgspec.structs import asdict

from holdfast.errors import Fenced
from holdfast.ports import AHEAD, Subscription, WorkerRow
from holdfast.stores.database import Tables
from holdfast.stores.domain_events import DomainEvents
from holdfast.stores.queries import damage_of, list_in, refuse_nul

LET_IN_WITHIN = 100_000


@dataclass(eq=False)
class Workers(Tables):
    """Their rows, and their locks."""

    events: DomainEvents

    def register(self, worker: WorkerRow, lease: int, subscriptions: Sequence[Subscription] = ()) -> None:
        refuse_nul(worker.id, worker.host, worker.build)
        self.database.lives.take(worker.id, lease)
        try:
            with self.database.write("register") as db:
                now = self.database.now()
                self._notice_clock(db, now, lease)
                times = {"started_at": now, "lease_until": now + lease, "clock": self.database.stamps.take(db, 1)}
                db.execute(self._q["insert_worker"], asdict(worker) | _known_by(worker) | times)
                self._welcome(db, worker, subscriptions)
        except BaseException:
            self.database.lives.release(worker.id)
            raise

    def _notice_clock(self, db: Any, now: int, lease: int) -> None:
        """Whether the last workers here had a clock that was ahead; nobody else may be there to remember."""
        (leased,) = db.execute(self._q["latest_lease"], {"app": self.database.app}).fetchone()
        left = db.execute(self._q["get_meta"], {"key": "left_at"}).fetchone()
        if max((leased or 0) - lease, int(bytes(left[0])) if left else 0) > now + AHEAD:
            db.execute(self._q["reset_times"], {"app": self.database.app, "now": now, "ahead": now + AHEAD})

    def update_worker(self, worker: WorkerRow, subscriptions: Sequence[Subscription] = ()) -> None:
        with self.database.write("update_worker") as db:
            if not db.execute(self._q["learn"], {"worker": worker.id, **_known_by(worker)}).rowcount:
                raise Fenced(worker.id)
            self._welcome(db, worker, subscriptions)

    def _welcome(self, db: Any, worker: WorkerRow, subscriptions: Sequence[Subscription]) -> None:
        parameters = {
            "app": self.database.app, "now": self.database.now(), "names": self._array(worker.names),
            "build": worker.build,
        }  # fmt: skip
        db.execute(self._q["welcome"], parameters)
        self.events.declare(db, worker, subscriptions)

    def beat(self, worker_id: str, lease: int) -> bool:
        with self.database.write("beat", lasting=False) as db:
            return bool(db.execute(self._q["beat"], self._sign_of_life(worker_id, lease)).rowcount)

    def _sign_of_life(self, worker_id: str, lease: int) -> dict[str, Any]:
        return {"until": self.database.now() + lease, "worker": worker_id, "clock": self.database.stamps.clock.value}

    def unregister(self, worker_id: str) -> None:
        with self.database.write("unregister") as db:
            found = db.execute(self._q["delete_worker"], {"worker": worker_id}).fetchone()
            db.execute(self._q["release_runs"], {"loss": 0, "now": self.database.now(), "worker": worker_id})
            if found is not None:
                self.events.dismiss(db, found[0])
            db.execute(self._q["set_meta"], {"key": "left_at", "value": str(self.database.now()).encode()})
        self.database.lives.release(worker_id)

    def release_lock(self, worker_id: str) -> None:
        self.database.lives.release(worker_id)

    def declare_dead(self, me: str, by_lease: bool = True) -> list[str]:
        now = self.database.now()
        others = [worker for worker in self.workers() if worker.id != me]
        dead = self.database.lives.dead([worker.id for worker in others])
        over = [worker for worker in others if worker.id in dead or (by_lease and worker.lease_until < now)]
        declared = []
        for worker in over:
            with self.database.write("declare_dead") as db:
                if self.database.now() - now > LET_IN_WITHIN:
                    break  # this had to wait to be let in, and so may their heartbeats
                # Its row goes first: what it is about to commit is then either refused, or done before its runs are
                # released. The other way round it could claim one more, which would be nobody's for ever.
                gone = {"worker": worker.id, "lease_until": worker.lease_until}
                found = db.execute(self._q["expire_worker"], gone).fetchone()
                if found is None:
                    continue
                db.execute(self._q["release_runs"], {"loss": 1, "now": now, "worker": worker.id})
                db.execute(self._q["release_lost"], {"app": self.database.app, "now": now})
                self.events.dismiss(db, found[0])
            declared.append(worker.id)
            self.database.lives.clear(worker.id)
        return declared

    def addresses(self, everyone: bool = False, kind: str = "") -> list[str]:
        return [address for (address,) in self._ask("addresses", everyone=int(everyone), kind=kind)]

    def workers(self) -> list[WorkerRow]:
        rows = self._ask("select_workers")
        self.database.stamps.heard(row[13] for row in rows)
        return [
            WorkerRow(
                id=r[0], app=r[1], host=r[2], pid=r[3], build=r[4], names=list_in(r[5], str), address=r[6],
                started_at=r[7], lease_until=r[8], schedules=list_in(r[9], str), kind=r[10], queues=list_in(r[11], str),
                steps=list_in(r[12], str), clock=r[13],
                damage=damage_of(names=(r[5], str), schedules=(r[9], str), queues=(r[11], str), steps=(r[12], str)),
            )
            for r in rows
        ]  # fmt: skip

    def apps(self) -> list[str]:
        return [name for (name,) in self._ask("apps")]


def _known_by(worker: WorkerRow) -> dict[str, str]:
    """What its code knows, as columns."""
    return {name: json.dumps(getattr(worker, name)) for name in ("names", "schedules", "queues", "steps")}
