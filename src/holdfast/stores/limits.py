"""Limits, in every SQL store the same way: who has a slot, who waits, and whose turn it is.

A slot belongs to a step of a run (or to a run), never to a worker, and slots in use are counted: there is no counter that
could be wrong after a crash. Commits only put rows in and take rows out. Slots are granted by `serve` alone, under the
lock of the limit's row, in statements that come after that lock: only then is what they count still true.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import msgspec

from holdfast.ports import Change, LimitRow, LimitUse, Line, LineUse, Place, Served, SlotRow
from holdfast.stores.database import SqlDatabase, Tables
from holdfast.stores.queries import refuse_nul

NEWCOMERS = 2_000
"""So many get their place in the lines of a limit at a time."""
SLOT = (
    "app", "lim", "key", "fair", "run", "cmd", "holder", "token", "rest", "letter", "refusal", "eviction", "control",
    "asked_at",
)  # fmt: skip
INBOX = ("run", "kind", "control", "body", "ts")
NO_MORE_LINES = json.dumps([])
"""The `rest` of whoever stands in its last line."""


class Waiting(msgspec.Struct, gc=False):
    """Somebody in a line. `owner` is the worker that has its run."""

    no: int
    key: str
    fair: str
    run: int
    cmd: str
    holder: str
    token: str
    rest: str
    message: bytes
    refusal: bytes | None
    eviction: bytes | None
    control: int
    asked_at: int
    owner: str | None


class Pace:
    """When the next one of a line may begin: a generic cell rate algorithm, which needs one number for each line. `next` is
    when it could if there were no burst."""

    def __init__(self, limit: LimitRow, next: int | None, now: int) -> None:
        self._now = now
        self._interval = -(-limit.period // limit.rate)  # rounded up: a little slower is within the limit
        self._ahead = (limit.burst - 1) * self._interval
        # A clock that was set back must not keep a line waiting for longer than what was begun lately can explain.
        latest = now + limit.burst * self._interval
        self.is_corrected = next is not None and next > latest
        self.next = now if next is None else max(now, min(next, latest))

    def allows(self) -> int:
        """How many may begin now."""
        return max(0, (self._now + self._ahead - self.next) // self._interval + 1)

    def begin(self, count: int) -> None:
        self.next += count * self._interval

    @property
    def due(self) -> int:
        """When the next one may begin."""
        return self.next - self._ahead


class LineState:
    """One line while it is served: how many slots are free, and how they are given."""

    def __init__(self, limit: LimitRow, key: str, in_use: int, head: int | None, next: int | None, now: int) -> None:
        self.key = key
        self.head = head
        self.pace = Pace(limit, next, now) if limit.rate else None
        self._free = max(0, limit.concurrency - in_use) if limit.concurrency else None
        self.given = 0

    def room(self) -> int:
        allowed = self.pace.allows() if self.pace is not None else None
        return min(each for each in (self._free, allowed, NEWCOMERS) if each is not None)

    def give(self, count: int) -> None:
        self.given += count
        if self._free is not None:
            self._free -= count
        if self.pace is not None:
            self.pace.begin(count)

    def due(self) -> int | None:
        """When time alone lets somebody begin, if that is what is waited for."""
        return self.pace.due if self.pace is not None and self._free != 0 and not self.pace.allows() else None

    def admit(self, newcomers: Sequence[Waiting]) -> tuple[list[Waiting], list[Waiting], list[Waiting]]:
        """Who of those that have come gets a slot at once, has to queue, and is refused. Nobody overtakes those who wait."""
        at_once: list[Waiting] = []
        queue: list[Waiting] = []
        refused: list[Waiting] = []
        room = self.room() if self.head is None else 0
        for each in newcomers:
            if not queue and len(at_once) < room:
                at_once.append(each)
            elif each.refusal is not None:
                refused.append(each)
            else:
                queue.append(each)
        self.give(len(at_once))
        return at_once, queue, refused


def turns(queue: Sequence[Waiting], head: int | None, last: dict[str, int]) -> list[tuple[int, int]]:
    """The turns of those who join a line, by the number of their slot. Each takes the turn after the last one of its own
    part of the line, and not before the one after that which is served now: so parts are served in turn, nobody waits for
    more than one of each part before its own, and those who come later never go before the first."""
    first = 1 if head is None else head + 1
    given = []
    for each in queue:
        turn = last[each.fair] = max(first, last.get(each.fair, 0) + 1)
        given.append((each.no, turn))
    return given


class Limits(Tables):
    """Limits as they were declared, and slots that are asked for, granted and given back."""

    def declare_limits(self, limits: Sequence[LimitRow]) -> list[str]:
        changed = []
        with self.database.write("declare_limits") as db:
            for limit in sorted(limits, key=lambda limit: limit.name):  # one order for all workers
                refuse_nul(limit.name)
                parameters = {
                    "app": self.database.app,
                    **{k: int(v) for k, v in msgspec.structs.asdict(limit).items() if k != "name"},
                }
                if db.execute(self._q["declare_limit"], {**parameters, "name": limit.name}).fetchone() is not None:
                    changed.append(limit.name)
        return changed

    # -- what commits do

    def change(self, db: Any, changes: Sequence[Change]) -> list[Line]:
        """Give slots back, then ask for others. The lines in which some are free now."""
        freed: list[Line] = []
        holders = [holder(change.no, cmd) for change in changes for cmd in change.gives_back]
        if holders:
            freed += self._take_out(db, "give_back", holders=self._array(holders))
        over = [change.no for change in changes if change.keeps is not None and not change.keeps]
        if over:
            freed += self._take_out(db, "give_all_back", nos=self._array(over))
        for change in changes:
            if change.keeps:
                freed += self._take_out(db, "give_others_back", run=change.no, kept=self._array(change.keeps))
        app, now, rows = self.database.app, self.database.now(), []
        for change in changes:
            for ask in change.asks:
                (lim, key, fair), *rest = ask.lines
                rows.append(
                    (app, lim, key, fair, change.no, ask.cmd, holder(change.no, ask.cmd), ask.token, json.dumps(rest),
                     ask.message, ask.refusal, ask.eviction, int(ask.control), now)
                )  # fmt: skip
        for sql, values in self._dialect.insert("slots", SLOT, rows):
            db.execute(f"{sql} ON CONFLICT DO NOTHING", values)  # nobody may know that it was asked for already
        return freed

    def free(self, db: Any, no: int, cmd: str) -> list[Line]:
        return self._take_out(db, "give_back", holders=self._array([holder(no, cmd)]))

    def _take_out(self, db: Any, query: str, **parameters: Any) -> list[Line]:
        """Where another transaction has just let one of these go on to its next line, the statement waits for it, and takes
        out the row that it knew. Only the next statement sees the one in the next line."""
        freed: list[Line] = []
        may_be_more = True
        while may_be_more:
            found = db.execute(self._q[query], parameters).fetchall()
            freed += [(lim, key) for lim, key, _ in found]
            may_be_more = any(rest != NO_MORE_LINES for *_, rest in found)
        return freed

    # -- whose turn it is

    def serve(self, worker_id: str, name: str, keys: Sequence[str] | None) -> Served:
        with self.database.write("serve", lasting=False) as db:
            self._check_alive(db, worker_id)
            return Round(self.database, db, worker_id, name).serve(keys)

    # -- looking

    def slots(self, nos: Sequence[int]) -> dict[int, list[SlotRow]]:
        with self.database.read() as db:
            return self.read_slots(db, nos)

    def read_slots(self, db: Any, nos: Sequence[int]) -> dict[int, list[SlotRow]]:
        found: dict[tuple[int, str], SlotRow] = {}
        for no, cmd, token, granted, lim, rest in db.execute(self._q["slots_of_runs"], {"nos": self._array(nos)}):
            left = [line[0] for line in json.loads(rest)]
            slot = found.get((no, cmd))
            if slot is None:
                found[no, cmd] = SlotRow(cmd=cmd, token=token, granted=False, limits=[lim, *left])
            found[no, cmd].granted = bool(granted) and not left
        by_run: dict[int, list[SlotRow]] = {}
        for (no, _), slot in found.items():
            by_run.setdefault(no, []).append(slot)
        return by_run

    def places(self, run_id: str, limit: int) -> list[Place]:
        now = self.database.now()
        found = []
        for cmd, key, asked_at, granted, place, in_use, next, *columns in self._ask_of(run_id, "places", limit=limit):
            line = LineState(_limit(columns), key, in_use, None, next, now)
            next_at = None if granted else line.due()
            found.append(
                Place(
                    cmd=cmd, limit=columns[0], key=key, asked_at=asked_at, place=place, in_use=in_use, next_at=next_at
                )
            )
        return found

    def limits(self, lines: int) -> list[LimitUse]:
        found = []
        with self.database.read() as db:
            for row in db.execute(self._q["select_limits"], {"app": self.database.app}).fetchall():
                limit = _limit(row)
                busiest = self._busiest(db, limit, lines)
                found.append(LimitUse(limit=limit, in_use=row[7], waiting=row[8], keys=row[9], lines=busiest))
        return found

    def _busiest(self, db: Any, limit: LimitRow, most: int) -> list[LineUse]:
        parameters = {"app": self.database.app, "name": limit.name, "limit": most}
        now, found = self.database.now(), []
        for key, in_use, waiting, next in db.execute(self._q["busiest_lines"], parameters).fetchall():
            due = LineState(limit, key, int(in_use), None, next, now).due() if waiting else None
            found.append(LineUse(key=key, in_use=int(in_use), waiting=int(waiting), next_at=due))
        return found


class Round:
    """One transaction in which a limit is served."""

    def __init__(self, database: SqlDatabase, db: Any, worker_id: str, name: str) -> None:
        self._q, self._dialect, self._app = database.q, database.dialect, database.app
        self._db = db
        self._worker = worker_id
        self._about = {"app": database.app, "name": name}
        found = self._ask("lock_limit").fetchone()
        self._limit = _limit(found) if found is not None else LimitRow(name=name)
        self._now = database.now()
        self._served = Served(messages=[], onward=[], moved=set(), due={})
        self._granted: list[Waiting] = []
        self._told: list[tuple[Any, ...]] = []

    def _ask(self, query: str, **parameters: Any) -> Any:
        return self._db.execute(self._q[query], {**self._about, **parameters})

    def serve(self, keys: Sequence[str] | None) -> Served:
        if keys is None:
            self._ask("forget_ended")
            self._ask("forget_lines", now=self._now)
            keys = [key for (key,) in self._ask("waiting_keys").fetchall()]
        came: dict[str, list[Waiting]] = {key: [] for key in keys}
        newcomers = [Waiting(*row) for row in self._ask("newcomers", limit=NEWCOMERS).fetchall()]
        for each in newcomers:
            came.setdefault(each.key, []).append(each)
        if not came:
            return self._served
        if len(newcomers) == NEWCOMERS:
            self._served.onward.append(self._limit.name)
        lines = {
            key: LineState(self._limit, key, in_use, head, next, self._now)
            for key, in_use, head, next in self._ask("lines", keys=self._dialect.array(came)).fetchall()
        }
        refused: list[Waiting] = []
        queues: dict[str, list[Waiting]] = {}
        for key, line in lines.items():
            at_once, queue, turned_away = line.admit(came[key])
            self._granted += at_once
            refused += turned_away
            if queue:
                queues[key] = queue
        self._let_queue(lines, queues)
        for key, line in lines.items():
            if any(each.eviction is not None for each in came[key]):
                self._evict(key, came[key])
            self._move_on(line, bool(queues.get(key)))
        self._grant()
        self._refuse(refused)
        for statement in self._dialect.insert("inbox", INBOX, self._told):
            self._db.execute(*statement)
        self._served.posted = bool(self._told)
        return self._served

    def _let_queue(self, lines: dict[str, LineState], queues: dict[str, list[Waiting]]) -> None:
        """Those who have to wait get their turns, by what each line's own have already."""
        keyed = self._limit.keyed
        parts = {key if keyed else each.fair for key, queue in queues.items() for each in queue}
        if not parts:
            return
        last = {part: turn or 0 for part, turn in self._ask(
            "last_turns", keyed=int(keyed), keys=self._dialect.array(sorted(parts))
        ).fetchall()}  # fmt: skip
        given = []
        for key, queue in queues.items():
            given += turns(queue, lines[key].head, {"": last[key]} if keyed else last)
        for statement in self._dialect.update("slots", ("no", "turn"), given):
            self._db.execute(*statement)

    def _move_on(self, line: LineState, has_queue: bool) -> None:
        """The first of those who waited get what is free."""
        if line.head is not None and (room := line.room()):
            first = [Waiting(*row) for row in self._ask("heads", key=line.key, limit=room).fetchall()]
            line.give(len(first))
            self._granted += first
        if line.given:
            self._served.moved.add(line.key)
        if line.pace is not None and (line.given or line.pace.is_corrected):
            self._ask("set_next", key=line.key, next=line.pace.next)
        due = line.due() if line.head is not None or has_queue else None
        if due is not None:
            self._served.due[line.key] = due

    def _evict(self, key: str, came: Sequence[Waiting]) -> None:
        """The newest take the place of the oldest, who are told to end."""
        if not self._limit.concurrency:
            return
        body = next(each.eviction for each in reversed(came) if each.eviction is not None)
        surplus = self._ask("surplus", key=key, kept=self._limit.concurrency).fetchall()
        if surplus:
            self._ask("evict", nos=self._dialect.array([no for no, _ in surplus]))
            self._told += [(run, "cancel", 1, body, self._now) for _, run in surplus]

    def _grant(self) -> None:
        if not self._granted:
            return
        self._ask("grant", nos=self._dialect.array([each.no for each in self._granted]), now=self._now)
        onward = []
        for each in self._granted:
            (lim, key, fair), *rest = json.loads(each.rest) or [("", "", "")]
            if lim:
                onward.append(
                    (self._app, lim, key, fair, each.run, each.cmd, each.holder, each.token, json.dumps(rest), each.message,
                     each.refusal, each.eviction, each.control, each.asked_at)
                )  # fmt: skip
                self._served.onward.append(lim)
            else:
                self._tell(each, each.message)
        for statement in self._dialect.insert("slots", SLOT, onward):
            self._db.execute(*statement)

    def _refuse(self, refused: Sequence[Waiting]) -> None:
        if refused:
            self._ask("refuse", nos=self._dialect.array([each.no for each in refused]))
            for each in refused:
                self._tell(each, each.refusal or b"{}")

    def _tell(self, each: Waiting, message: bytes) -> None:
        if each.owner == self._worker:
            self._served.messages.append((each.run, message))
        else:
            self._told.append((each.run, "slot", each.control, message, self._now))


def holder(no: int, cmd: str) -> str:
    """A command of a run, as one text."""
    return f"{no}:{cmd}"


def _limit(row: Sequence[Any]) -> LimitRow:
    name, keyed, of_runs, concurrency, rate, period, burst = row[:7]
    return LimitRow(
        name=name, keyed=bool(keyed), of_runs=bool(of_runs), concurrency=concurrency, rate=rate, period=period, burst=burst
    )  # fmt: skip
