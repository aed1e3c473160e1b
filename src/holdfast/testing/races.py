"""What every store has to do while others do something else: pairs of operations, one of them stopped after each of its
statements while the other goes on as far as it can. A backend subclasses `RaceContract` and gives a `stores` fixture:
two stores on the same place, empty, with the clock `self.clock`.

What is stopped is what `store.database.write()` gives, so it is for stores made of SQL; a store of another kind tests itself.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import threading
import zlib
from collections.abc import Callable, Iterator
from typing import Any

from holdfast.errors import Fenced
from holdfast.ports import (
    Ask,
    Change,
    EndedAttempt,
    LimitRow,
    Message,
    NewAttempt,
    NewRun,
    RunQuery,
    Status,
    Store,
    WorkerKind,
    WorkerRow,
)
from holdfast.testing.contract import LEASE, NAMES, MovableClock, record

BLOCKED = 0.08
"""Seconds after which an operation that has not returned is taken to wait for the other one."""
LONGEST_WAIT = 30.0


class Scene:
    """Runs in every state, two workers, and the operations that may meet there. `number` keeps it apart from others. With
    `attempts` there are some of a run, and two executors; with `limits` steps wait for a slot that is free."""

    def __init__(
        self, stores: tuple[Any, Any], clock: MovableClock, number: int, attempts: bool = False, limits: bool = False
    ) -> None:
        self.one, self.two = stores
        self.clock = clock
        for store in stores:
            store.app = f"orders{number}"
        self.w1, self.w2, self.w3 = (f"w{i}-{number}" for i in (1, 2, 3))
        self.claimed: list[tuple[str, int, list[bytes]]] = []
        self._register(self.one, self.w1)
        self._register(self.two, self.w2)
        self.one.create(self.new("mine"))
        self.one.create(self.new("done"))
        self.mine, self.done = self.one.commit(self.w1, [], 10, NAMES).claimed
        ended = {"owner": None, "status": Status.SUCCESS, "finished_at": 1, "wake_at": None, "expires_at": 1}
        self.one.commit(self.w1, [Change(no=self.done.row.no, columns=ended)], 0, NAMES)
        self.one.create(self.new("free"))
        self.one.post(Message(run_id="done", kind="retry", control=True, late=True))
        self.one.post(Message(run_id="mine", kind="hook"))
        self.pulled: list[str] = []
        self.ended: list[str] = []
        self.is_dropped = self.has_given_up = False
        if attempts:
            self._ask(number)
        self.limits = limits
        if limits:
            self._limit()

    def _limit(self) -> None:
        self.one.declare_limits([LimitRow(name=LIMIT, concurrency=1), LimitRow(name=BEFORE, concurrency=9)])
        self.one.commit(self.w1, [Change(no=self.mine.row.no, asks=_asks("a", "b", "c", "d"))], 0, NAMES)
        self.one.serve(self.w1, LIMIT, None)
        in_two = Ask(cmd=IN_TWO, token=IN_TWO, lines=[(BEFORE, "", ""), (LIMIT, "", "")], message=b"{}")
        self.one.commit(self.w1, [Change(no=self.mine.row.no, gives_back=["a"], asks=[in_two])], 0, NAMES)

    def _ask(self, number: int) -> None:
        self.x1, self.x2 = f"x1-{number}", f"x2-{number}"
        self.tokens = [f"{name}-{number}" for name in "abc"]
        for store, worker in ((self.one, self.x1), (self.two, self.x2)):
            row = WorkerRow(id=worker, app=store.app, host="h", pid=1, build="1", names=[], kind=WorkerKind.EXECUTOR)
            store.register(row, LEASE)
        asked = [
            NewAttempt(token=token, cmd=token, step="train", number=1, queue="gpu", due=due, body=b"")
            for due, token in enumerate(self.tokens)
        ]
        self.one.commit(self.w1, [Change(no=self.mine.row.no, attempts=asked)], 0, NAMES)
        self._pull(self.two, self.x2, 1)

    def _pull(self, store: Store, worker: str, limit: int) -> None:
        self.pulled += [one.token for one in store.claim_attempts(worker, ["gpu"], ["train"], limit)]

    def new(self, run_id: str, **given: Any) -> NewRun:
        now = self.clock.now()
        return NewRun(
            id=run_id, workflow="ship", records=[record(1)], wake_at=now, created_at=now, fingerprint=b"f", **given
        )

    def _register(self, store: Store, worker: str) -> None:
        row = WorkerRow(id=worker, app=store.app, host="h", pid=1, build="1", names=list(NAMES))
        store.register(row, LEASE)

    def _claim(self, store: Store, worker: str) -> None:
        for claimed in store.commit(worker, [], 10, NAMES).claimed:
            self.claimed.append((claimed.row.id, claimed.row.no, claimed.payloads))

    # -- what may meet; `store` is that of whoever does it

    def claims(self, store: Store) -> None:
        self._claim(store, self.w1)

    def claims_too(self, store: Store) -> None:
        self._claim(store, self.w2)

    def commits(self, store: Store) -> None:
        children = [self.new(name) for name in ("x", "y", "z")]
        change = Change(
            no=self.mine.row.no, records=[record(2)], children=children, messages=[Message(run_id="free", kind="hook")]
        )
        store.commit(self.w1, [change], 0, NAMES)

    def starts_the_same(self, store: Store) -> None:
        changes = [Change(no=0, children=[self.new(name)]) for name in ("z", "y", "x")]
        store.commit(self.w2, changes, 0, NAMES)

    def hands_over(self, store: Store) -> None:
        """One engine lets go of a run that it has brought forward, for others."""
        columns = {"owner": None, "status": Status.PENDING, "wake_at": self.clock.now()}
        store.commit(self.w1, [Change(no=self.mine.row.no, records=[record(2)], columns=columns)], 0, NAMES)

    def expires(self, store: Store) -> None:
        self.one.release_lock(self.w1)
        store.declare_dead(self.w2)

    def leaves(self, store: Store) -> None:
        store.unregister(self.w1)

    def joins(self, store: Store) -> None:
        self._register(store, f"{self.w3}-{next(_numbers)}")

    def posts(self, store: Store) -> None:
        store.post(Message(run_id="mine", kind="hook", dedupe="once"))

    def deletes(self, store: Store) -> None:
        store.delete("done")

    def replaces(self, store: Store) -> None:
        store.create(self.new("done"), replace=True)

    def collects(self, store: Store) -> None:
        store.collect(10)

    # -- what may meet where workers elsewhere execute attempts

    def pulls(self, store: Store) -> None:
        self._pull(store, self.x1, 10)

    def takes_one(self, store: Store) -> None:
        claimed = store.claim_attempt(self.x1, self.tokens[1])
        self.pulled += [claimed.token] if claimed is not None else []

    def pulls_too(self, store: Store) -> None:
        self._pull(store, self.x2, 10)

    def ends(self, store: Store) -> None:
        self.ended += store.end_attempts(self.x2, [self._end(self.tokens[0], "done")])

    def loses(self, store: Store) -> None:
        """The executor is declared dead, and its attempt ended in its name."""
        self.two.release_lock(self.x2)
        store.declare_dead(self.w1)
        for lost in store.lost_attempts(10):
            self.ended += store.end_attempts(lost.worker or "", [self._end(lost.token, "lost")])

    def drops(self, store: Store) -> None:
        store.commit(self.w1, [Change(no=self.mine.row.no, dropped_attempts=self.tokens[::-1])], 0, NAMES)
        self.is_dropped = True

    def withdraws(self, store: Store) -> None:
        store.commit(self.w1, [Change(no=self.mine.row.no, withdrawn_attempts=self.tokens[::-1])], 0, NAMES)
        self.is_dropped = True

    def _end(self, token: str, how: str) -> EndedAttempt:
        return EndedAttempt(token, Message(run_id="mine", kind="outcome", body=how.encode(), dedupe=f"outcome:{token}"))

    # -- what may meet where something is limited

    def gives_way(self, store: Store) -> None:
        """The first no longer waits, and another comes."""
        change = Change(no=self.mine.row.no, gives_back=["b"], asks=_asks("e"))
        store.commit(self.w1, [change], 0, NAMES)

    def serves(self, store: Store) -> None:
        store.serve(self.w1, LIMIT, None)

    def serves_too(self, store: Store) -> None:
        store.serve(self.w2, LIMIT, [""])

    def lets_go_on(self, store: Store) -> None:
        """The one that stands in two lines comes into the second."""
        store.serve(self.w2, BEFORE, None)

    def gives_up(self, store: Store) -> None:
        self._give_up(store, gives_back=[IN_TWO])

    def keeps_others(self, store: Store) -> None:
        self._give_up(store, keeps=["b", "c", "d"])

    def keeps_none(self, store: Store) -> None:
        self._give_up(store, keeps=[])

    def _give_up(self, store: Store, **how: Any) -> None:
        store.commit(self.w1, [Change(no=self.mine.row.no, **how)], 0, NAMES)
        self.has_given_up = True

    # -- what holds in the end

    def check(self) -> None:
        store: Store = self.two
        workers = {worker.id for worker in store.workers()}
        rows = {row.id: row for row in store.runs(RunQuery())}
        for row in rows.values():
            assert row.owner is None or row.owner in workers, f"{row.id} belongs to {row.owner}, who is gone"
            seqs = [payload for payload in store.payloads(row.id)]
            assert seqs == [b'{"seq":%d}' % (i + 1) for i in range(len(seqs))], f"the history of {row.id} has gaps"
        if self.limits:
            self._check_limits(store)
        names = [run for run, _, _ in self.claimed]
        assert len(names) == len(set(names)), f"claimed twice: {names}"
        for run, no, payloads in self.claimed:
            assert run in rows, f"{run} was claimed, and deleted"
            assert rows[run].no == no, f"{run} was claimed, and replaced by another"
            assert payloads == store.payloads(run), f"{run} was claimed with an old history"
        assert len(self.pulled) == len(set(self.pulled)), f"attempts claimed twice: {self.pulled}"
        assert len(self.ended) == len(set(self.ended)), f"attempts ended twice: {self.ended}"
        left = {attempt.token for attempt in store.attempts("mine")}
        assert not left & set(self.ended), f"ended, and still there: {left}"
        if self.pulled and not self.is_dropped:
            assert left | set(self.ended) == set(self.tokens), f"only {left} is left, and {self.ended} ended"

    def _check_limits(self, store: Store) -> None:
        store.serve(self.w2, LIMIT, [""])
        (use,) = [use for use in store.limits(1) if use.limit.name == LIMIT]
        assert use.in_use == min(1, use.in_use + use.waiting), f"{use.in_use} have a slot, {use.waiting} wait"
        if self.has_given_up:
            left = [slot for slot in store.slots([self.mine.row.no]).get(self.mine.row.no, []) if slot.cmd == IN_TWO]
            assert not left, f"nobody has asked for it, and it is there: {left}"


Operation = Callable[[Scene, Store], None]
OPERATIONS: list[Operation] = [
    Scene.claims, Scene.claims_too, Scene.commits, Scene.starts_the_same, Scene.hands_over, Scene.expires, Scene.leaves,
    Scene.joins, Scene.posts, Scene.deletes, Scene.replaces, Scene.collects,
]  # fmt: skip
ITS_OWN = {
    Scene.claims, Scene.commits, Scene.hands_over, Scene.leaves, Scene.drops, Scene.withdraws, Scene.gives_way, Scene.serves,
    Scene.gives_up, Scene.keeps_others, Scene.keeps_none,
}  # fmt: skip
WITH_ATTEMPTS: list[Operation] = [
    Scene.pulls, Scene.takes_one, Scene.pulls_too, Scene.ends, Scene.loses, Scene.drops, Scene.withdraws,
]  # fmt: skip
FIRST_WITH_ATTEMPTS: list[Operation] = [Scene.takes_one, Scene.ends, Scene.loses, Scene.drops]
BESIDE_ATTEMPTS: list[Operation] = [Scene.hands_over, Scene.expires, Scene.leaves]
"""What else takes hold of the same rows."""
WITH_LIMITS: list[Operation] = [Scene.gives_way, Scene.serves, Scene.serves_too]
BESIDE_LIMITS: list[Operation] = [Scene.claims_too, Scene.expires, Scene.leaves]
IN_TWO_LINES: list[Operation] = [Scene.gives_up, Scene.keeps_others, Scene.keeps_none]
"""What meets one that goes on to its next line."""
LIMIT = "one-at-a-time"
BEFORE = "a-few-at-a-time"
IN_TWO = "in-two-lines"
_numbers = itertools.count(1)


def _asks(*cmds: str) -> list[Ask]:
    return [Ask(cmd=cmd, token=cmd, lines=[(LIMIT, "", "")], message=b"{}") for cmd in cmds]


def _beside(first: Operation) -> list[Operation]:
    """What may meet an operation."""
    if first is Scene.lets_go_on:
        return [*IN_TWO_LINES, *WITH_LIMITS]
    if first in WITH_LIMITS:
        return [*WITH_LIMITS, *BESIDE_LIMITS]
    return [*WITH_ATTEMPTS, *BESIDE_ATTEMPTS] if first in WITH_ATTEMPTS else OPERATIONS


class Stopped:
    """A store whose next transaction stops after its statement number `at`, until it is let go; and what is no
    transaction, where others may come `between` its statements too."""

    def __init__(self, store: Any, at: int, between: bool) -> None:
        self._database, self._at, self._between = store.database, at, between
        self._seen = 0
        self.is_there = threading.Event()
        self.go_on = threading.Event()

    @contextlib.contextmanager
    def armed(self) -> Iterator[None]:
        self._database.write = self._write
        if self._between:
            self._database.read = self._read
        try:
            yield
        finally:
            del self._database.write
            if self._between:
                del self._database.read

    @contextlib.contextmanager
    def _write(self, name: str, lasting: bool = True) -> Iterator[Any]:
        with type(self._database).write(self._database, name, lasting) as db:
            yield _Counting(db, self._statement)

    @contextlib.contextmanager
    def _read(self) -> Iterator[Any]:
        with type(self._database).read(self._database) as db:
            yield _Counting(db, self._statement)

    def _statement(self) -> None:
        self._seen += 1
        if self._seen == self._at:
            self.is_there.set()
            assert self.go_on.wait(LONGEST_WAIT)


class _Counting:
    def __init__(self, db: Any, then: Callable[[], None]) -> None:
        self._db, self._then = db, then

    def execute(self, *args: Any) -> Any:
        found = self._db.execute(*args)
        self._then()
        return found


class RaceContract:
    """Tests of the Store port between two connections."""

    statements = 12
    """Up to which statement of a transaction it is stopped. One is enough where a transaction excludes all others."""

    one_in = 1
    """Of so many places to stop at, one is tried, always the same ones: all of them take minutes on a slow store."""

    @functools.cached_property
    def clock(self) -> MovableClock:
        return MovableClock()

    def test_a_process_goes_past_the_clocks_of_what_it_reads(self, stores: tuple[Any, Any]) -> None:
        one, two = stores
        scene = Scene(stores, self.clock, next(_numbers))

        def far() -> int:
            """Where the first one is, far beyond anything the second one knows of."""
            return int(one.logical_clock.forward(100_000))

        at = far()
        one.create(scene.new("new"))
        two.commit(scene.w2, [], 10, NAMES)
        assert two.logical_clock.value > one.clocks("new")[1] > at, "a history that it claimed"
        at = far()
        one.post(Message(run_id="new", kind="hook"))
        assert two.inbox(scene.w2)[-1].clock > at
        assert two.logical_clock.value > one.inbox(scene.w2)[-1].clock, "a message"
        at = far()
        one.beat(scene.w1, LEASE)
        two.workers()
        assert two.logical_clock.value > at, "a heartbeat"
        two.post(Message(run_id="new", kind="hook"))
        assert one.inbox(scene.w2)[-1].clock > at, "and what it writes tells of that"

    def conflicts(self, stores: tuple[Any, Any]) -> int:
        """How often the database had to refuse a transaction because of another one, if it counts that."""
        return 0

    def _overtake(self, stores: tuple[Any, Any], first: Operation) -> None:
        for second in _beside(first):
            if {first, second} <= ITS_OWN:
                continue  # a worker does one thing at a time
            for at in range(1, self.statements + 1):
                if zlib.crc32(f"{first.__name__} {second.__name__} {at}".encode()) % self.one_in:
                    continue
                if not self._race(stores, first, second, at):
                    break  # it has no more statements

    def _race(
        self,
        stores: tuple[Any, Any],
        first: Operation,
        second: Operation,
        at: int,
    ) -> bool:
        limits = first in WITH_LIMITS or first is Scene.lets_go_on
        scene = Scene(stores, self.clock, next(_numbers), attempts=first in WITH_ATTEMPTS, limits=limits)
        stopped = Stopped(stores[0], at, between=self.statements > 1)
        errors: list[BaseException] = []

        def run(operation: Operation, store: Store, done: threading.Event) -> None:
            try:
                operation(scene, store)
            except Fenced:
                pass
            except BaseException as error:
                errors.append(error)
            finally:
                done.set()

        ended, overtaken = threading.Event(), threading.Event()
        one = threading.Thread(target=run, args=(first, stores[0], ended))
        two = threading.Thread(target=run, args=(second, stores[1], overtaken))
        before = self.conflicts(stores)
        with stopped.armed():
            one.start()
            while not stopped.is_there.wait(0.005) and not ended.is_set():
                pass
        two.start()
        overtaken.wait(BLOCKED)
        stopped.go_on.set()
        one.join(LONGEST_WAIT)
        two.join(LONGEST_WAIT)
        what = f"{first.__name__}, stopped after statement {at}, and {second.__name__}"
        assert not one.is_alive(), what
        assert not two.is_alive(), what
        assert not errors, f"{what}: {errors}"
        assert self.conflicts(stores) == before, f"{what}: they waited for each other"
        try:
            scene.check()
        except AssertionError as error:
            raise AssertionError(f"{what}: {error}") from error
        finally:
            for store in stores:
                for worker in store.workers():
                    store.release_lock(worker.id)
        return stopped.is_there.is_set()


def _test(first: Operation) -> Callable[[RaceContract, Any], None]:
    def test(self: RaceContract, stores: tuple[Any, Any]) -> None:
        self._overtake(stores, first)

    return test


for _operation in [*OPERATIONS, *FIRST_WITH_ATTEMPTS, *WITH_LIMITS, Scene.lets_go_on]:
    setattr(RaceContract, f"test_one_that_{_operation.__name__}_may_be_overtaken", _test(_operation))
