"""What every store has to do, as tests. A backend subclasses `StoreContract` and gives a `store` fixture:

    class TestMyStore(StoreContract):
        @pytest.fixture
        def store(self, tmp_path):
            store = MyStore("orders", tmp_path, self.clock)
            yield store
            store.close()

The fixture's store is empty, belongs to the app `orders`, and takes its time from `self.clock`. Only the port is used.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from queue import Empty
from typing import Any

import msgspec

from holdfast.errors import EncodeError, Fenced, StoreError
from holdfast.ports import (
    Answer,
    AttemptReport,
    Change,
    Claimed,
    DataSpan,
    Delivery,
    Emission,
    EndedAttempt,
    Letter,
    Message,
    NewAttempt,
    NewRun,
    Posted,
    Record,
    RunQuery,
    RunRow,
    ScheduleChange,
    ScheduleRow,
    Status,
    Store,
    Subscription,
    Unsubscription,
    WorkerKind,
    WorkerRow,
)
from holdfast.telemetry.clock import LamportClock
from holdfast.testing.limit_contract import LimitContract

SECOND = 1_000_000
LEASE = 10 * SECOND
NAMES = ("ship", "bill")


class MovableClock:
    """Stands still until it is moved."""

    def __init__(self) -> None:
        self._now = 1_900_000_000 * SECOND

    def now(self) -> int:
        return self._now

    def move(self, us: int) -> None:
        self._now += us

    def wait(
        self, get: Callable[[float], Any], due: int | None, timeout: float, busy: int, tick: int | None = None
    ) -> Any:
        raise Empty


def raised(kind: type[BaseException], function: Callable[..., Any], *args: Any) -> bool:
    """Whether a call raises an error of that kind."""
    try:
        function(*args)
    except kind:
        return True
    return False


def record(seq: int, kind: str = "Thing", payload: bytes = b"") -> Record:
    return Record(seq, kind, "", "", 0, 1, "w", seq, payload or b'{"seq":%d}' % seq)


class StoreContract(LimitContract):
    """Tests of the Store port, for every backend the same."""

    @functools.cached_property
    def clock(self) -> MovableClock:
        return MovableClock()

    # -- arranging

    def new(self, run_id: str = "r", **given: Any) -> NewRun:
        now = self.clock.now()
        run = NewRun(id=run_id, workflow="ship", records=[record(1)], wake_at=now, created_at=now, fingerprint=b"f")
        for name, value in given.items():
            setattr(run, name, value)
        return run

    def worker(self, store: Store, worker_id: str = "w1", build: str = "1", names: Sequence[str] = NAMES) -> str:
        store.register(
            WorkerRow(
                id=worker_id, app=store.app, host="h", pid=1, build=build, names=list(names), address=f"{worker_id}-bell"
            ),
            LEASE,
        )  # fmt: skip
        return worker_id

    def claim(
        self, store: Store, worker_id: str = "w1", limit: int = 10, names: Sequence[str] = NAMES
    ) -> list[Claimed]:
        return store.commit(worker_id, [], limit, names).claimed

    def owned(self, store: Store, run_id: str = "r", **given: Any) -> RunRow:
        """A run that worker w1 owns."""
        if not store.workers():
            self.worker(store)
        store.create(self.new(run_id, **given))
        (claimed,) = self.claim(store)
        return claimed.row

    def change(self, store: Store, row: RunRow, **parts: Any) -> None:
        store.commit(row.owner or "", [Change(no=row.no, **parts)], 0, NAMES)

    def leave(self, store: Store, row: RunRow, status: str, **columns: Any) -> None:
        """Let a run go with that status."""
        held = int(status in (Status.PAUSED, Status.STUCK))
        finished = self.clock.now() if Status(status).is_final else None
        columns = {"status": status, "held": held, "finished_at": finished, "wake_at": None, **columns}
        self.change(store, row, columns={"owner": None, **columns})

    def row(self, store: Store, run_id: str = "r") -> RunRow:
        row = store.get(run_id)
        assert row is not None
        return row

    # -- the store as a whole

    def test_time_is_the_clocks(self, store: Store) -> None:
        before = store.now()
        self.clock.move(SECOND)
        assert store.now() == before + SECOND

    def test_the_secret_stays_the_same(self, store: Store) -> None:
        assert len(store.secret()) >= 16
        assert store.secret() == store.secret()

    def test_an_empty_store_knows_nothing(self, store: Store) -> None:
        assert store.get("r") is None
        assert store.payloads("r") == []
        assert store.data("r") == {}
        assert store.attributes("r", "progress") == {}
        assert store.find_hook("k") == []
        assert store.runs(RunQuery()) == []
        assert store.workers() == []
        assert store.addresses() == []
        assert store.next_wake(NAMES) is None
        assert store.collect(10).runs == 0
        assert store.delete("r") is None

    # -- creating

    def test_a_created_run_is_there_with_its_history(self, store: Store) -> None:
        attributes = [("data.customer", "42", b"42")]
        run = self.new(records=[record(1), record(2)], priority=3, options=b'{"queue":"q"}', attributes=attributes)
        assert store.create(run) is None
        row = self.row(store)
        assert (row.app, row.id, row.workflow, row.status) == ("orders", "r", "ship", Status.PENDING)
        assert (row.wake_at, row.priority, row.options, row.fingerprint) == (run.wake_at, 3, b'{"queue":"q"}', b"f")
        assert (row.owner, row.attempt, row.losses, row.base_seq) == (None, 1, 0, 1)
        assert store.payloads("r") == [b'{"seq":1}', b'{"seq":2}']
        assert store.data("r") == {"customer": b"42"}
        assert store.data_of([row.no, row.no + 1], 2) == {row.no: {"customer": b"42"}}
        assert store.data_of([row.no], 1) == {}

    def test_an_id_that_is_taken_stays_as_it_is(self, store: Store) -> None:
        store.create(self.new())
        taken = store.create(self.new(workflow="bill", fingerprint=b"other", records=[record(1), record(2)]))
        assert taken is not None
        assert (taken.workflow, taken.fingerprint) == ("ship", b"f")
        assert len(store.payloads("r")) == 1
        assert store.create(self.new(workflow="bill"), replace=True) is not None, "it has not ended"
        assert self.row(store).workflow == "ship"

    def test_a_run_that_has_ended_can_be_replaced_and_nothing_of_it_is_left(self, store: Store) -> None:
        row = self.owned(store, records=[record(1), record(2)])
        self.change(store, row, attributes=[("data.x", "1", b"1")])
        self.leave(store, row, Status.SUCCESS)
        store.post(Message(run_id="r", kind="retry", control=True, late=True))
        assert store.create(self.new(workflow="bill"), replace=True) is None
        assert self.row(store).workflow == "bill"
        assert self.row(store).no != row.no, "numbers are never used again"
        assert store.payloads("r") == [b'{"seq":1}']
        assert store.data("r") == {}
        (claimed,) = self.claim(store)
        assert claimed.letters == []

    def test_many_runs_are_created_at_once_and_ids_that_are_taken_stay_as_they_are(self, store: Store) -> None:
        store.create(self.new("old", fingerprint=b"other"))
        met: list[tuple[str, str]] = []
        given = [
            self.new("b", attributes=[("data.x", "1", b"1")], records=[record(1), record(2)]), self.new("old"), self.new("a"),
            self.new("b"),
        ]  # fmt: skip
        taken = store.create_all(given, lambda new, row: met.append((new.id, row.id)))
        assert [row and row.id for row in taken] == [None, "old", None, "b"]
        assert met == [("old", "old"), ("b", "b")]
        assert [run.no for run in given] == [self.row(store, "b").no, None, self.row(store, "a").no, None]
        assert len(store.payloads("b")) == 2
        assert len(store.payloads("a")) == 1
        assert store.data("b") == {"x": b"1"}
        assert self.row(store, "old").fingerprint == b"other"
        assert store.create_all([], lambda new, row: None) == []

    def test_many_runs_are_created_all_or_none(self, store: Store) -> None:
        store.create(self.new("old"))

        def refuse(new: NewRun, row: RunRow) -> None:
            raise ValueError(new.id)

        assert raised(ValueError, store.create_all, [self.new("a"), self.new("old"), self.new("b")], refuse)
        assert [row.id for row in store.runs(RunQuery())] == ["old"]
        assert raised(EncodeError, store.create_all, [self.new("a"), self.new("b\0")], refuse)
        assert [row.id for row in store.runs(RunQuery())] == ["old"]

    def test_a_run_that_nobody_has_taken_up_can_be_put_off_and_given_another_input(self, store: Store) -> None:
        later = self.new(wake_at=self.clock.now() + SECOND)
        store.create(later)
        other = self.new(
            wake_at=self.clock.now() + 2 * SECOND, fingerprint=b"g", records=[record(1, payload=b'{"new":1}')]
        )  # fmt: skip
        assert later.no is not None
        assert store.put_off(later.no, other)
        row = self.row(store)
        assert (row.wake_at, row.fingerprint, store.payloads("r")) == (other.wake_at, b"g", [b'{"new":1}'])
        self.clock.move(2 * SECOND)
        self.worker(store)
        (claimed,) = self.claim(store)
        assert claimed.payloads == [b'{"new":1}']
        assert not store.put_off(later.no, self.new(fingerprint=b"h")), "it has begun"
        assert self.row(store).fingerprint == b"g"
        self.leave(store, claimed.row, Status.SUCCESS)
        assert not store.put_off(later.no, later), "it has ended"
        assert not store.put_off(99, later), "there is none"

    def test_blobs_are_named_by_histories_until_their_runs_are_deleted_and_by_what_waits(self, store: Store) -> None:
        one, two, three, four = (digit * 64 for digit in "abcd")

        def naming(key: str) -> bytes:
            return b'{"$":"blob","v":["%b",5]}' % key.encode()

        store.create(self.new("new", wake_at=self.clock.now() + SECOND, records=[record(1, payload=naming(one))]))
        row = self.owned(store)
        child = self.new("child", wake_at=self.clock.now() + SECOND, records=[record(1, payload=naming(three))])
        self.change(
            store, row, records=[record(2, payload=naming(two)), record(3, payload=naming(one))], children=[child]
        )
        store.post(Message(run_id="new", kind="hook", body=naming(four)))
        assert store.named_blobs([one, two, three, four, "e" * 64]) >= {one, two, three, four}
        assert "e" * 64 not in store.named_blobs(["e" * 64])
        self.leave(store, row, Status.SUCCESS)
        store.delete("r")
        found = store.named_blobs([one, two, three])
        assert (one in found, two in found, three in found) == (True, False, True)

    def test_many_messages_are_posted_at_once(self, store: Store) -> None:
        row = self.owned(store)
        self.leave(store, self.owned(store, "over"), Status.SUCCESS)
        posted = store.post_all([Message(run_id=name, kind=name) for name in ("r", "nobody", "over", "r")])
        assert posted == [
            Posted(Status.RUNNING, True), Posted(None, False), Posted(Status.SUCCESS, False), Posted(Status.RUNNING, True)
        ]  # fmt: skip
        assert [letter.run_no for letter in store.letters("w1")] == [row.no, row.no]

    def test_many_runs_are_deleted_at_once_but_for_those_that_go_on(self, store: Store) -> None:
        over, held, open_ = (self.owned(store, name) for name in ("over", "held", "open"))
        self.leave(store, over, Status.SUCCESS)
        self.leave(store, held, Status.PAUSED)
        told: list[str] = []

        def farewell(row: RunRow, letters: list[Letter]) -> list[Message]:
            told.append(row.id)
            return [Message(run_id="open", kind="child")]

        everyone = [("over", over.no), ("held", held.no), ("open", open_.no), ("nobody", 99)]
        assert store.delete_all(everyone, farewell) == 2
        assert sorted(told) == ["held", "over"]
        assert [row.id for row in store.runs(RunQuery())] == ["open"]
        assert len(store.letters("w1")) == 2
        assert store.delete_all(everyone) == 0

    def test_numbers_are_never_used_again(self, store: Store) -> None:
        row = self.owned(store)
        self.leave(store, row, Status.SUCCESS)
        store.delete("r")
        store.create(self.new())
        assert self.row(store).no != row.no

    # -- committing

    def test_a_commit_does_all_of_a_change(self, store: Store) -> None:
        row = self.owned(store)
        store.create(self.new("other", wake_at=self.clock.now() + SECOND))
        store.post(Message(run_id="r", kind="hook"))
        (letter,) = store.letters("w1")
        self.change(
            store,
            row,
            records=[record(2), record(3)],
            consumed=[letter.id],
            columns={"status": Status.WAITING, "reason": "hook 'x'", "build": "b", "losses": 2},
            children=[self.new("child", parent_id="r", parent_cmd="1c0")],
            messages=[Message(run_id="other", kind="cancel", control=True), Message(run_id="child", kind="cancel")],
            attributes=[("hook", "k", b'["x"]'), ("data.a", "1", b"1")],
        )
        after = self.row(store)
        assert (after.status, after.reason, after.build, after.losses) == (Status.WAITING, "hook 'x'", "b", 2)
        assert [seq["seq"] for seq in map(_decode, store.payloads("r"))] == [1, 2, 3]
        assert store.letters("w1") == []
        assert self.row(store, "child").parent_id == "r"
        assert store.find_hook("k") == [("r", "x")]
        claimed = {one.row.id: one for one in self.claim(store)}
        assert [letter.kind for letter in claimed["other"].letters] == ["cancel"]
        assert [letter.kind for letter in claimed["child"].letters] == ["cancel"]

    def test_a_commit_that_fails_does_nothing(self, store: Store) -> None:
        one, two = self.owned(store, "one"), self.owned(store, "two")
        store.post(Message(run_id="one", kind="hook"))
        (letter,) = store.letters("w1")
        good = Change(
            no=one.no,
            records=[record(2)],
            consumed=[letter.id],
            columns={"status": Status.WAITING},
            children=[self.new("child")],
            messages=[Message(run_id="two", kind="hook")],
            attributes=[("data.a", "1", b"1")],
        )
        bad = Change(no=two.no, records=[record(1)])  # the number is taken
        store.create(self.new("waiting"))
        assert raised(StoreError, store.commit, "w1", [good, bad], 10, NAMES)
        assert len(store.payloads("one")) == 1
        assert self.row(store, "one").status == Status.RUNNING
        assert store.get("child") is None
        assert [found.id for found in store.letters("w1")] == [letter.id]
        assert store.data("one") == {}
        assert self.row(store, "waiting").owner is None
        assert store.commit("w1", [good], 0, NAMES).claimed == [], "and can be repeated"
        assert len(store.payloads("one")) == 2

    def test_a_value_that_can_not_be_kept_is_refused_and_nothing_written(self, store: Store) -> None:
        row = self.owned(store)
        for columns in ({"reason": "\ud800"}, {"attempt": 2**70}):
            change = Change(no=row.no, records=[record(2)], columns=columns)
            assert raised(EncodeError, store.commit, "w1", [change], 0, NAMES)
        for text in ("\ud800", "a\0b"):
            assert raised(EncodeError, store.create, self.new(text))
            assert raised(EncodeError, store.emit, self.emission("Paid", text))
        assert raised(EncodeError, store.post, Message(run_id="r", kind="\ud800"))
        assert len(store.payloads("r")) == 1
        assert len(store.runs(RunQuery())) == 1

    def test_a_nul_in_an_id_a_name_or_a_key_is_refused_and_nothing_written(self, store: Store) -> None:
        """Not every database can hold it, and what works on one has to work on all."""
        row, bad = self.owned(store), "a\0b"
        news = self.emission("Paid", "k")
        news.key = bad
        changes = [
            Change(no=row.no, children=[self.new(bad)]),
            Change(no=row.no, children=[self.new("x", workflow=bad)]),
            Change(no=row.no, messages=[Message(run_id="r", kind=bad)]),
            Change(no=row.no, messages=[Message(run_id="r", kind="hook", dedupe=bad)]),
            Change(no=row.no, attributes=[(bad, "1", b"1")]),
            Change(no=row.no, attributes=[("hook", bad, b"1")]),
            Change(no=row.no, signals=[Subscription(event=bad, cmd="1")]),
            Change(no=row.no, signals=[news]),
        ]
        for change in changes:
            assert raised(EncodeError, store.commit, "w1", [change], 0, NAMES), change
        assert raised(EncodeError, store.create, self.new("x", workflow=bad))
        assert raised(EncodeError, store.create, self.new("x", attributes=[("hook", bad, b"")]))
        assert raised(EncodeError, store.post, Message(run_id="r", kind="hook", dedupe=bad))
        assert raised(EncodeError, self.worker, store, bad)
        assert raised(
            EncodeError, store.save_schedules, [ScheduleChange(row=ScheduleRow(name=bad, workflow="w", spec=b""))]
        )
        assert [found.id for found in store.runs(RunQuery())] == ["r"]
        assert store.letters("w1") == []
        assert [worker.id for worker in store.workers()] == ["w1"]

    def test_a_time_beyond_all_times_is_never(self, store: Store) -> None:
        row = self.owned(store)
        self.leave(store, row, Status.WAITING, wake_at=10**30, expires_at=10**30)
        store.create(self.new("later", wake_at=10**30))
        assert self.claim(store) == []
        assert (store.next_wake(NAMES) or 0) > self.clock.now()
        assert store.collect(10).runs == 0

    def test_a_child_whose_id_is_taken_is_left_and_its_parent_told(self, store: Store) -> None:
        row = self.owned(store)
        store.create(self.new("child", workflow="bill", wake_at=self.clock.now() + SECOND))
        told = Message(run_id="r", kind="child", body=b'{"taken":1}')
        self.change(store, row, children=[self.new("child", if_taken=told)])
        assert self.row(store, "child").workflow == "bill"
        assert [letter.body for letter in store.letters("w1")] == [b'{"taken":1}']
        self.change(store, row, children=[self.new("child")])
        assert len(store.letters("w1")) == 1

    def test_messages_to_nobody_are_dropped(self, store: Store) -> None:
        ended, row = self.owned(store, "ended"), self.owned(store)
        self.leave(store, ended, Status.FAILURE)
        messages = [
            Message(run_id="nobody", kind="cancel"),
            Message(run_id="ended", kind="cancel"),
            Message(run_id="ended", kind="watch", control=True, late=True),
        ]
        self.change(store, row, messages=messages)
        (claimed,) = self.claim(store)
        assert (claimed.row.id, [letter.kind for letter in claimed.letters]) == ("ended", ["watch"])

    # -- fencing

    def test_who_was_declared_dead_can_not_write(self, store: Store) -> None:
        row = self.owned(store)
        self.worker(store, "w2")
        store.create(self.new("waiting"))
        store.let_go("w1")
        assert store.bury("w2") == ["w1"]
        change = Change(no=row.no, records=[record(2)], columns={"status": Status.SUCCESS})
        assert raised(Fenced, store.commit, "w1", [change], 10, NAMES)
        assert raised(Fenced, store.commit, "w1", [], 10, NAMES)
        assert len(store.payloads("r")) == 1
        assert self.row(store).status == Status.PENDING
        assert self.row(store, "waiting").owner is None
        assert not store.beat("w1", LEASE)

    def test_who_was_declared_dead_learns_nothing(self, store: Store) -> None:
        self.worker(store)
        self.worker(store, "w2")
        store.let_go("w1")
        store.bury("w2")
        assert raised(
            Fenced, store.learn, WorkerRow(id="w1", app=store.app, host="h", pid=1, build="b", names=["more"])
        )
        assert [worker.id for worker in store.workers()] == ["w2"]

    def test_a_worker_that_learns_takes_up_what_nobody_knew(self, store: Store) -> None:
        self.worker(store)
        store.create(self.new("late", workflow="late"))
        assert store.set_aside(self.row(store, "late").no, "nobody knows it", "unknown")
        store.learn(
            WorkerRow(id="w1", app=store.app, host="h", pid=1, build="b", names=[*NAMES, "late"], schedules=["nightly"])
        )
        (worker,) = store.workers()
        assert (worker.names, worker.schedules) == ([*NAMES, "late"], ["nightly"])
        (claimed,) = store.commit("w1", [], 10, worker.names).claimed
        assert claimed.row.id == "late"

    def test_who_never_registered_can_not_write(self, store: Store) -> None:
        store.create(self.new())
        assert raised(Fenced, store.commit, "stranger", [], 10, NAMES)

    # -- claiming

    def test_a_run_that_is_due_is_claimed_once(self, store: Store) -> None:
        self.worker(store)
        self.worker(store, "w2")
        store.create(self.new(records=[record(1), record(2)]))
        (claimed,) = self.claim(store)
        assert claimed.payloads == [b'{"seq":1}', b'{"seq":2}']
        row = self.row(store)
        assert (row.owner, row.status, row.wake_at, row.started_at) == ("w1", Status.RUNNING, None, self.clock.now())
        assert claimed.row == row
        assert self.claim(store, "w2") == []
        assert self.claim(store) == []

    def test_the_first_claim_of_a_run_says_that_it_is(self, store: Store) -> None:
        self.worker(store)
        store.create(self.new())
        assert [claimed.is_first for claimed in self.claim(store)] == [True]
        store.unregister("w1")
        self.worker(store, "w2")
        self.clock.move(1)
        assert [claimed.is_first for claimed in self.claim(store, "w2")] == [False]

    def test_a_run_is_not_claimed_before_it_is_due(self, store: Store) -> None:
        self.worker(store)
        store.create(self.new(wake_at=self.clock.now() + SECOND))
        assert self.claim(store) == []
        self.clock.move(SECOND)
        assert len(self.claim(store)) == 1

    def test_only_workflows_that_are_known_are_claimed(self, store: Store) -> None:
        self.worker(store)
        store.create(self.new("one", workflow="other"))
        store.create(self.new("two", workflow="bill"))
        assert [claimed.row.id for claimed in self.claim(store)] == ["two"]
        assert self.claim(store, names=()) == []

    def test_no_more_are_claimed_than_asked_for_and_the_first_due_first(self, store: Store) -> None:
        self.worker(store)
        now = self.clock.now()
        for run_id, due in (("late", now), ("first", now - 60 * SECOND), ("second", now - 30 * SECOND)):
            store.create(self.new(run_id, wake_at=due))
        assert self.claim(store, limit=0) == []
        assert {claimed.row.id for claimed in self.claim(store, limit=2)} == {"first", "second"}
        assert [claimed.row.id for claimed in self.claim(store, limit=2)] == ["late"]

    def test_replay_begins_at_the_base(self, store: Store) -> None:
        row = self.owned(store)
        self.change(store, row, records=[record(2), record(3)], columns={"base_seq": 3})
        self.leave(store, row, Status.PENDING, wake_at=self.clock.now())
        (claimed,) = self.claim(store)
        assert claimed.payloads == [b'{"seq":3}']
        assert len(store.payloads("r")) == 3

    def test_a_message_makes_a_waiting_run_claimable(self, store: Store) -> None:
        row = self.owned(store)
        self.leave(store, row, Status.WAITING)
        assert self.claim(store) == []
        store.post(Message(run_id="r", kind="hook", body=b'{"n":1}'))
        store.post(Message(run_id="r", kind="hook", body=b'{"n":2}'))
        assert store.next_wake(NAMES) == 0
        (claimed,) = self.claim(store)
        assert claimed.row.status == Status.RUNNING
        assert [letter.body for letter in claimed.letters] == [b'{"n":1}', b'{"n":2}']
        assert store.next_wake(NAMES) is None

    def test_a_held_run_is_woken_by_control_messages_alone(self, store: Store) -> None:
        for status in (Status.PAUSED, Status.STUCK):
            row = self.owned(store, status)
            self.leave(store, row, status)
            store.post(Message(run_id=status, kind="hook"))
            assert self.claim(store) == []
            assert store.next_wake(NAMES) is None
            store.post(Message(run_id=status, kind="resume", control=True))
            (claimed,) = self.claim(store)
            assert claimed.row.status == status, "who claims it decides"
            assert [letter.kind for letter in claimed.letters] == ["hook", "resume"]

    def test_a_run_to_begin_later_is_woken_by_control_messages_alone(self, store: Store) -> None:
        self.worker(store)
        store.create(self.new(wake_at=self.clock.now() + SECOND))
        store.post(Message(run_id="r", kind="hook"))
        assert self.claim(store) == []
        store.post(Message(run_id="r", kind="cancel", control=True))
        assert len(self.claim(store)) == 1

    def test_a_run_that_has_ended_is_claimed_for_late_messages(self, store: Store) -> None:
        row = self.owned(store)
        self.leave(store, row, Status.FAILURE)
        assert store.post(Message(run_id="r", kind="retry", control=True, late=True)).status == Status.FAILURE
        (claimed,) = self.claim(store)
        assert (claimed.row.status, [letter.kind for letter in claimed.letters]) == (Status.FAILURE, ["retry"])

    def test_a_run_released_in_a_commit_may_be_claimed_in_it(self, store: Store) -> None:
        row = self.owned(store)
        columns = {"owner": None, "status": Status.RETRY, "wake_at": self.clock.now()}
        change = Change(no=row.no, records=[record(2)], columns=columns)
        (claimed,) = store.commit("w1", [change], 10, NAMES).claimed
        assert (claimed.row.owner, len(claimed.payloads)) == ("w1", 2)

    # -- inboxes

    def test_letters_are_those_of_ones_own_runs_oldest_first(self, store: Store) -> None:
        self.worker(store)
        self.worker(store, "w2")
        store.create(self.new("one"))
        self.claim(store)
        store.create(self.new("two"))
        self.claim(store, "w2")
        for run_id, kind in (("one", "a"), ("two", "b"), ("one", "c")):
            assert store.post(Message(run_id=run_id, kind=kind)).status == Status.RUNNING
        mine = store.letters("w1")
        assert [letter.kind for letter in mine] == ["a", "c"]
        assert [letter.kind for letter in store.letters("w1")] == ["a", "c"], "reading doesn't consume"
        assert mine[0].run_no == self.row(store, "one").no
        self.change(store, self.row(store, "one"), consumed=[mine[0].id])
        assert [letter.kind for letter in store.letters("w1")] == ["c"]
        assert [letter.kind for letter in store.letters("w2")] == ["b"]

    def test_posting_to_nobody_or_to_the_dead_says_so(self, store: Store) -> None:
        assert store.post(Message(run_id="nobody", kind="hook")) == Posted(None, kept=False)
        row = self.owned(store)
        self.leave(store, row, Status.SUCCESS)
        assert store.post(Message(run_id="r", kind="hook")) == Posted(Status.SUCCESS, kept=False)
        assert self.claim(store) == []

    def test_of_messages_that_say_the_same_one_is_kept(self, store: Store) -> None:
        row, other = self.owned(store), self.owned(store, "other")
        for body in (b"1", b"2"):
            store.post(Message(run_id="r", kind="hook", body=body, dedupe="token"))
        store.post(Message(run_id="other", kind="hook", body=b"3", dedupe="token"))
        self.change(store, other, messages=[Message(run_id="r", kind="hook", body=b"4", dedupe="token")])
        assert [(letter.run_no, letter.body) for letter in store.letters("w1")] == [(row.no, b"1"), (other.no, b"3")]

    def test_who_posts_is_told_whether_it_was_kept(self, store: Store) -> None:
        self.owned(store)
        message = Message(run_id="r", kind="hook", dedupe="token")
        assert store.post(message) == Posted(Status.RUNNING, kept=True)
        assert store.post(message) == Posted(Status.RUNNING, kept=False)

    def test_what_is_good_once_is_not_kept_again_after_it_was_read(self, store: Store) -> None:
        row = self.owned(store)
        message = Message(run_id="r", kind="hook", dedupe="token", once=True)
        assert store.post(message).kept
        self.change(store, row, consumed=[letter.id for letter in store.letters("w1")])
        assert not store.post(message).kept
        assert store.letters("w1") == []

    def test_what_an_ended_run_does_not_take_is_not_used_up(self, store: Store) -> None:
        row = self.owned(store)
        self.leave(store, row, Status.FAILURE)
        message = Message(run_id="r", kind="hook", dedupe="token", once=True)
        assert not store.post(message).kept
        message.late = True
        assert store.post(message).kept

    def test_a_message_may_be_for_one_run_of_an_id_only(self, store: Store) -> None:
        row = self.owned(store)
        self.leave(store, row, Status.SUCCESS)
        new = self.new()
        store.create(new, replace=True)
        assert new.no not in (None, row.no)
        message = Message(run_id="r", run_no=row.no, kind="hook")
        assert store.post(message) == Posted(None, kept=False)
        message.run_no = new.no
        assert store.post(message) == Posted(Status.PENDING, kept=True)

    def test_a_message_to_a_child_is_not_for_a_stranger_of_its_id(self, store: Store) -> None:
        parent = self.owned(store, "parent")
        store.create(self.new("child"))
        message = Message(run_id="child", kind="cancel", control=True, child_of="parent")
        self.change(store, parent, messages=[message])
        assert store.orders("child") == []
        store.create(self.new("own", parent_id="parent"))
        message.run_id = "own"
        self.change(store, parent, messages=[message])
        assert store.orders("own") == ["cancel"]

    def test_who_writes_to_nobody_gets_an_answer_if_it_wants_one(self, store: Store) -> None:
        row = self.owned(store)
        back = Message(run_id="r", kind="child")
        for run_id, kind in (("nobody", "watch"), ("r", "hook")):
            self.change(store, row, messages=[Message(run_id=run_id, kind=kind, if_gone=back)])
        assert [letter.kind for letter in store.letters("w1")] == ["child", "hook"]

    def test_orders_are_the_control_messages_that_wait(self, store: Store) -> None:
        self.owned(store)
        store.post(Message(run_id="r", kind="hook"))
        store.post(Message(run_id="r", kind="pause", control=True))
        assert store.orders("r") == ["pause"]
        assert store.orders("nobody") == []

    # -- what runs can be found by

    def test_a_datum_has_one_value_and_a_hook_may_have_many(self, store: Store) -> None:
        row = self.owned(store)
        self.change(store, row, attributes=[("data.a", "1", b"1"), ("hook", "k1", b'["x"]'), ("hook", "k2", b'["y"]')])
        self.change(store, row, attributes=[("data.a", "2", b"2"), ("data.b", '"t"', b'"t"')])
        assert store.data("r") == {"a": b"2", "b": b'"t"'}
        assert store.attributes("r", "hook") == {"k1": b'["x"]', "k2": b'["y"]'}
        assert store.find_hook("k2") == [("r", "y")]
        self.change(store, row, dropped_attributes=[("hook", "k2")])
        assert store.find_hook("k2") == []
        assert [found.id for found in store.runs(RunQuery(data={"a": "2"}))] == ["r"]
        assert store.runs(RunQuery(data={"a": "1"})) == []
        assert store.runs(RunQuery(data={"a": "2", "b": '"other"'})) == []

    def test_a_request_is_taken_once_and_its_first_answer_stands(self, store: Store) -> None:
        row = self.owned(store)
        asked = Message(run_id="r", kind="ask", body=b"1", request="q")
        assert store.post(asked).kept
        assert not store.post(asked).kept
        assert store.answer("r", "q") is None
        (letter,) = store.letters("w1")
        self.change(store, row, consumed=[letter.id], answers=[Answer("q", 3, b'{"answer":1}')])
        self.change(store, row, answers=[Answer("q", 4, b'{"answer":2}'), Answer("unasked", 5, b"{}")])
        assert store.answer("r", "q") == b'{"answer":1}'
        assert store.answer("r", "unasked") is None
        assert not store.post(asked).kept
        assert store.letters("w1") == []

    def test_a_run_is_created_with_messages_in_its_inbox(self, store: Store) -> None:
        asked = Message(run_id="r", kind="ask", body=b"1", request="q")
        assert store.create(self.new(messages=[asked])) is None
        assert store.create(self.new(messages=[asked])) is not None
        self.worker(store)
        (claimed,) = self.claim(store)
        assert [letter.body for letter in claimed.letters] == [b"1"]

    def test_what_is_forgotten_of_a_history_is_gone_with_its_answers(self, store: Store) -> None:
        row = self.owned(store)
        for request in ("old", "new"):
            store.post(Message(run_id="r", kind="ask", request=request))
        self.change(
            store, row, records=[record(2), record(3)], answers=[Answer("old", 2, b"1"), Answer("new", 3, b"2")]
        )
        self.change(store, row, records=[record(4)], forget_before=3, columns={"base_seq": 4})
        assert len(store.payloads("r")) == 2
        assert (store.answer("r", "old"), store.answer("r", "new")) == (None, b"2")
        assert store.post(Message(run_id="r", kind="ask", request="old")).kept

    def test_who_sends_to_a_run_that_has_ended_is_told_if_wanted(self, store: Store) -> None:
        row = self.owned(store)
        self.leave(store, self.owned(store, "ended"), Status.SUCCESS)
        back = Message(run_id="r", kind="undelivered", body=b"lost")
        for target in ("ended", "nobody"):
            told = Message(run_id=target, kind="hook", if_gone=back, or_ended=True)
            untold = Message(run_id=target, kind="hook", if_gone=None)
            self.change(store, row, messages=[told, untold])
        self.change(store, row, messages=[Message(run_id="ended", kind="hook", if_gone=back)])
        assert [letter.body for letter in store.letters("w1")] == [b"lost", b"lost"]

    def test_data_is_found_between_two_values(self, store: Store) -> None:
        for run_id, value in (("a", "N1"), ("b", "N2"), ("c", "N3"), ("d", "S2")):
            store.create(self.new(run_id, attributes=[("data.v", value, b"x")]))

        def found(**span: Any) -> list[str]:
            return sorted(row.id for row in store.runs(RunQuery(spans=[DataSpan(key="v", **span)])))

        assert found(low="N", high="O") == ["a", "b", "c"]
        assert found(low="N1", high="N3") == ["a", "b"]
        assert found(low="N1", high="N3", above=True, upto=True) == ["b", "c"]
        assert found(low="N3", high="O", others=(DataSpan(key="v", low="S", high="T"),)) == ["c", "d"]
        assert store.runs(RunQuery(spans=[DataSpan(key="w", low="N", high="O")])) == []

    def test_an_attribute_dropped_and_set_in_one_change_is_set(self, store: Store) -> None:
        row = self.owned(store)
        self.change(store, row, attributes=[("hook", "k", b'["x"]')])
        self.change(store, row, dropped_attributes=[("hook", "k")], attributes=[("hook", "k", b'["y"]')])
        assert store.find_hook("k") == [("r", "y")]

    def test_long_values_are_found_too(self, store: Store) -> None:
        row = self.owned(store)
        value = "x" * 5_000
        self.change(store, row, attributes=[("data.long", value, value.encode())])
        assert store.data("r") == {"long": value.encode()}
        assert len(store.runs(RunQuery(data={"long": value}))) == 1
        assert store.runs(RunQuery(data={"long": value + "y"})) == []

    def test_lists_are_paged_newest_first(self, store: Store) -> None:
        for number in range(7):
            store.create(self.new(f"r{number}"))
        first = store.runs(RunQuery(limit=3))
        assert [row.id for row in first] == ["r6", "r5", "r4"]
        store.create(self.new("newer"))
        second = store.runs(RunQuery(limit=3, after=first[-1].no))
        assert [row.id for row in second] == ["r3", "r2", "r1"], "a page is not moved by what came since"
        assert [row.id for row in store.runs(RunQuery(limit=3, after=second[-1].no))] == ["r0"]

    def test_lists_are_filtered(self, store: Store) -> None:
        self.worker(store)
        store.create(self.new("a-1"))
        (claimed,) = self.claim(store)
        self.leave(store, claimed.row, Status.SUCCESS)
        self.clock.move(SECOND)
        since = self.clock.now()
        store.create(self.new("a-2", workflow="bill", parent_id="a-1"))
        self.claim(store)
        store.create(self.new("b_1"))

        def ids(**given: Any) -> list[str]:
            return [row.id for row in store.runs(RunQuery(**given))]

        assert ids() == ["b_1", "a-2", "a-1"]
        assert ids(statuses=[Status.SUCCESS]) == ["a-1"]
        assert ids(statuses=[Status.SUCCESS, Status.PENDING]) == ["b_1", "a-1"]
        assert ids(workflow="bill") == ["a-2"]
        assert ids(workflow="bi*") == ["a-2"]
        assert ids(workflow="b%*") == []
        assert ids(workflow="*") == ["b_1", "a-2", "a-1"]
        assert ids(parent="a-1") == ["a-2"]
        assert ids(since=since) == ["b_1", "a-2"]
        assert ids(until=since) == ["a-1"]
        assert ids(prefix="a-") == ["a-2", "a-1"]
        assert ids(prefix="b%") == []
        assert ids(owner="w1") == ["a-2"]
        assert ids(prefix="a-", statuses=[Status.SUCCESS]) == ["a-1"]

    def test_runs_are_counted_by_status_up_to_a_limit(self, store: Store) -> None:
        self.worker(store)
        store.create(self.new("done"))
        (claimed,) = self.claim(store)
        self.leave(store, claimed.row, Status.SUCCESS)
        for number in range(4):
            store.create(self.new(f"r{number}", workflow="bill" if number else "ship"))
        counts = store.counts(RunQuery(limit=1, after=1), 3)
        assert (counts["PENDING"], counts["SUCCESS"], counts["FAILURE"]) == (3, 1, 0), (
            "a page has nothing to do with it"
        )
        assert store.counts(RunQuery(), 100)["PENDING"] == 4
        assert store.counts(RunQuery(workflow="bill"), 100)["PENDING"] == 3
        assert store.counts(RunQuery(workflow="bill"), 2)["PENDING"] == 2
        assert store.counts(RunQuery(statuses=[Status.SUCCESS]), 100) == {"SUCCESS": 1}

    def test_lists_are_filtered_by_several_things_at_once(self, store: Store) -> None:
        self.worker(store)
        for number in range(6):
            self.clock.move(SECOND)
            odd = str(number % 2)
            attributes = [("data.odd", odd, odd.encode())]
            store.create(self.new(f"r{number}", workflow=("ship", "bill", "shop")[number % 3], attributes=attributes))
        since = self.clock.now() - 3 * SECOND

        def ids(**given: Any) -> list[str]:
            return [row.id for row in store.runs(RunQuery(**given))]

        assert ids(workflow="sh*") == ["r5", "r3", "r2", "r0"]
        assert ids(workflow="sh*", limit=2) == ["r5", "r3"]
        assert ids(workflow="sh*", limit=2, after=4) == ["r2", "r0"]
        assert ids(workflow="sh*", statuses=[Status.PENDING, Status.SUCCESS], data={"odd": "1"}) == ["r5", "r3"]
        assert ids(data={"odd": "0"}, prefix="r4") == ["r4"]
        assert ids(since=since, data={"odd": "1"}) == ["r5", "r3"]
        assert ids(since=since, until=since + 2 * SECOND) == ["r3", "r2"]
        assert ids(until=since, workflow="s*", after=2) == ["r0"]
        assert store.counts(RunQuery(workflow="sh*", since=since), 100)["PENDING"] == 3

    def test_runs_are_found_by_time_although_a_clock_was_a_little_ahead(self, store: Store) -> None:
        at = self.clock.now()
        for i, created in enumerate((at + 30 * SECOND, at, at + 40 * SECOND, at + 10 * SECOND)):
            store.create(self.new(f"r{i}", created_at=created))
        found = store.runs(RunQuery(since=at + 20 * SECOND))
        assert [row.id for row in found] == ["r2", "r0"]
        assert [row.id for row in store.runs(RunQuery(until=at + 20 * SECOND))] == ["r3", "r1"]

    def test_runs_are_counted_over_time(self, store: Store) -> None:
        self.worker(store)
        for i, seconds in enumerate((0, 1, 12, 25)):
            store.create(self.new(f"r{i}", created_at=1_000 * SECOND + seconds * SECOND))
        counted = store.counts_over_time(RunQuery(), 10 * SECOND, 100)
        assert counted == [
            (1_000 * SECOND, "PENDING", 2), (1_010 * SECOND, "PENDING", 1), (1_020 * SECOND, "PENDING", 1),
        ]  # fmt: skip
        assert store.counts_over_time(RunQuery(), 10 * SECOND, 1) == [(1_020 * SECOND, "PENDING", 1)]
        assert store.counts_over_time(RunQuery(workflow="none"), 10 * SECOND, 1) == []

    def test_histories_of_several_runs_are_read_at_once(self, store: Store) -> None:
        for name in ("a", "b", "c"):
            store.create(self.new(name, records=[record(1, "A"), record(2, "B")]))
        a, c = self.row(store, "a").no, self.row(store, "c").no
        assert store.histories([a, c, 999]) == {
            a: [b'{"seq":1}', b'{"seq":2}'],
            c: [b'{"seq":1}', b'{"seq":2}'],
            999: [],
        }
        assert store.histories([a, c], ["B"]) == {a: [b'{"seq":2}'], c: [b'{"seq":2}']}
        assert store.histories([]) == {}

    def test_a_history_can_be_read_in_part(self, store: Store) -> None:
        store.create(self.new(records=[record(1, "A"), record(2, "B"), record(3, "A")]))
        assert store.payloads("r", after=1) == [b'{"seq":2}', b'{"seq":3}']
        assert store.payloads("r", kinds=["A"]) == [b'{"seq":1}', b'{"seq":3}']
        assert store.payloads("r", after=1, kinds=["A"]) == [b'{"seq":3}']
        assert store.payloads("r", after=1, until=2) == [b'{"seq":2}']

    def test_texts_and_payloads_come_back_as_they_were(self, store: Store) -> None:
        payload = bytes(range(256)) * 4_000
        name = 'naïve "名前" \\ % _ \x01 \U0001f600'
        self.worker(store)
        store.create(self.new(name, records=[record(1, payload=payload)]))
        assert store.payloads(name) == [payload]
        (claimed,) = self.claim(store)
        self.change(store, claimed.row, columns={"reason": name, "owner": None, "status": Status.WAITING})
        assert self.row(store, name).reason == name

    # -- logical clocks

    def test_what_is_written_later_has_the_higher_clock(self, store: Store) -> None:
        row = self.owned(store, records=[record(1), record(2)])
        started = store.clocks("r")
        child = self.new("child")
        self.change(
            store, row, records=[record(3), record(4)], children=[child],
            messages=[Message(run_id="r", kind="hook"), Message(run_id="child", kind="hook")],
        )  # fmt: skip
        clocks = store.clocks("r")
        assert list(clocks) == [1, 2, 3, 4]
        assert started == {1: clocks[1], 2: clocks[2]}
        assert 0 < clocks[1] < clocks[2] < clocks[3] < clocks[4] < store.clocks("child")[1]
        assert store.clocks("r", after=3) == {4: clocks[4]}
        assert store.clocks("r", after=1, until=2) == {2: clocks[2]}
        (letter,) = store.letters("w1")
        assert letter.clock > clocks[4]
        store.post(Message(run_id="r", kind="hook"))
        assert store.letters("w1")[1].clock > letter.clock
        assert store.clocks("nobody") == {}

    def test_between_two_commits_a_number_stays_free(self, store: Store) -> None:
        """For what a reader derives from an event, a step's start for example: it comes after what led to it."""
        row = self.owned(store)
        self.change(store, row, records=[record(2)])
        before = store.logical_clock.value
        self.change(store, row, records=[record(3)])
        assert store.clocks("r")[3] > before + 1

    def test_a_heartbeat_tells_the_logical_clock(self, store: Store) -> None:
        self.worker(store)
        (before,) = store.workers()
        assert before.clock > 0
        store.logical_clock.forward(1_000)
        store.beat("w1", LEASE)
        (now,) = store.workers()
        assert now.clock == store.logical_clock.value >= before.clock + 1_000

    def test_a_write_that_failed_leaves_the_clock_higher_than_all_that_is_stored(self, store: Store) -> None:
        """However far it was: that it may count so far was written down with what failed."""
        row = self.owned(store)
        store.logical_clock.forward(1_000_000)
        assert raised(Fenced, store.commit, "nobody", [Change(no=row.no, records=[record(2)])], 0, NAMES)
        self.change(store, row, records=[record(2)])
        reached = store.clocks("r")[2]
        store.logical_clock = LamportClock()  # as in another process
        self.change(store, row, records=[record(3)])
        assert store.clocks("r")[3] > reached

    # -- deleting

    def test_what_has_ended_or_is_held_can_be_deleted(self, store: Store) -> None:
        for status in (Status.SUCCESS, Status.FAILURE, Status.CANCELLED, Status.PAUSED, Status.STUCK):
            row = self.owned(store)
            self.change(store, row, attributes=[("data.x", "1", b"1"), ("hook", "k", b'["x"]')])
            self.leave(store, row, status)
            store.post(Message(run_id="r", kind="retry", control=True, late=True))
            assert store.delete("r") == status
            assert store.get("r") is None
            assert store.payloads("r") == []
            assert store.find_hook("k") == []
            assert store.next_wake(NAMES) is None

    def test_what_goes_on_is_not_deleted(self, store: Store) -> None:
        store.create(self.new(wake_at=self.clock.now() + SECOND))
        assert store.delete("r") == Status.PENDING
        self.clock.move(SECOND)
        self.worker(store)
        (claimed,) = self.claim(store)
        assert store.delete("r") == Status.RUNNING
        self.leave(store, claimed.row, Status.WAITING)
        assert store.delete("r") == Status.WAITING
        assert len(store.payloads("r")) == 1

    def test_what_is_held_by_a_worker_is_not_deleted(self, store: Store) -> None:
        row = self.owned(store)
        self.leave(store, row, Status.FAILURE)
        store.post(Message(run_id="r", kind="retry", control=True, late=True))
        self.claim(store)
        store.delete("r")
        assert store.get("r") is not None

    def test_a_run_of_another_number_is_not_deleted(self, store: Store) -> None:
        row = self.owned(store)
        self.leave(store, row, Status.SUCCESS)
        assert store.delete("r", row.no + 1) is None
        assert store.delete("r", row.no) == Status.SUCCESS

    def test_those_who_wait_for_a_run_are_told_in_the_transaction_that_deletes_it(self, store: Store) -> None:
        parent, child = self.owned(store, "parent"), self.owned(store, "child")
        self.leave(store, child, Status.PAUSED)
        store.post(Message(run_id="child", kind="watch"))
        told: list[tuple[str, list[str]]] = []

        def farewell(row: RunRow, letters: list[Letter]) -> list[Message]:
            told.append((row.id, [letter.kind for letter in letters]))
            return [Message(run_id="parent", kind="child")]

        store.delete("parent", farewell=farewell)
        assert told == [], "it goes on"
        store.delete("child", farewell=farewell)
        assert told == [("child", ["watch"])]
        assert [(letter.run_no, letter.kind) for letter in store.letters("w1")] == [(parent.no, "child")]

    def test_collect_leaves_a_run_of_which_something_was_ordered(self, store: Store) -> None:
        self.leave(store, self.owned(store), Status.SUCCESS, expires_at=self.clock.now())
        store.post(Message(run_id="r", kind="watch", control=True, late=True))
        assert store.collect(10).runs == 0
        (claimed,) = self.claim(store)
        self.change(store, claimed.row, consumed=[claimed.letters[0].id], columns={"owner": None})
        assert store.collect(10).runs == 1

    def test_collect_deletes_what_has_expired_in_batches(self, store: Store) -> None:
        now = self.clock.now()
        for number, expires in enumerate((now + SECOND, now + 2 * SECOND, now + 3 * SECOND, None)):
            self.leave(store, self.owned(store, f"r{number}"), Status.SUCCESS, expires_at=expires)
        assert store.collect(10).runs == 0
        self.clock.move(2 * SECOND)
        assert store.collect(1).runs == 1
        assert store.collect(10).runs == 1
        assert [row.id for row in store.runs(RunQuery())] == ["r3", "r2"]
        assert store.payloads("r0") == []

    # -- workers

    def test_a_worker_is_known_until_it_says_goodbye(self, store: Store) -> None:
        self.worker(store)
        (row,) = store.workers()
        assert (row.id, row.app, row.build, row.names) == ("w1", "orders", "1", list(NAMES))
        assert (row.started_at, row.lease_until) == (self.clock.now(), self.clock.now() + LEASE)
        assert store.addresses() == ["w1-bell"]
        assert store.apps() == ["orders"]
        store.unregister("w1")
        assert store.workers() == []
        assert store.addresses() == []

    def test_who_says_goodbye_releases_its_runs_and_no_loss_is_counted(self, store: Store) -> None:
        running, paused = self.owned(store, "running"), self.owned(store, "paused")
        self.change(store, paused, columns={"status": Status.PAUSED, "held": 1})
        store.unregister("w1")
        row = self.row(store, "running")
        assert (row.owner, row.status, row.losses) == (None, Status.PENDING, 0)
        assert self.row(store, "paused").status == Status.PAUSED
        self.worker(store, "w2")
        (claimed,) = self.claim(store, "w2")
        assert claimed.row.id == running.id

    def test_a_worker_whose_lock_is_free_is_buried_at_once(self, store: Store) -> None:
        running = self.owned(store, "running")
        waiting, ended = self.owned(store, "waiting"), self.owned(store, "ended")
        self.leave(store, waiting, Status.WAITING)
        self.leave(store, ended, Status.SUCCESS)
        self.worker(store, "w2")
        assert store.bury("w2") == []
        store.let_go("w1")
        assert store.bury("w2", by_lease=False) == ["w1"]
        assert [worker.id for worker in store.workers()] == ["w2"]
        row = self.row(store, running.id)
        assert (row.owner, row.status, row.losses) == (None, Status.PENDING, 1)
        assert [self.row(store, run_id).losses for run_id in ("waiting", "ended")] == [0, 0]
        (claimed,) = self.claim(store, "w2")
        assert claimed.row.losses == 1
        assert store.bury("w2") == [], "one is buried once"

    def test_a_worker_whose_lease_has_run_out_is_buried(self, store: Store) -> None:
        self.owned(store)
        self.worker(store, "w2")
        self.clock.move(LEASE // 2)
        assert store.beat("w2", LEASE)
        self.clock.move(LEASE // 2 + 1)
        assert store.bury("w2", by_lease=False) == []
        assert store.bury("w2") == ["w1"]
        assert self.row(store).losses == 1
        assert not store.beat("w1", LEASE)
        store.let_go("w1")

    def test_a_lease_that_was_renewed_holds(self, store: Store) -> None:
        self.owned(store)
        self.worker(store, "w2")
        for _ in range(5):
            self.clock.move(LEASE // 2)
            assert store.beat("w1", LEASE)
            assert store.beat("w2", LEASE)
            assert store.bury("w2") == []

    def test_nobody_buries_itself(self, store: Store) -> None:
        self.worker(store)
        self.clock.move(2 * LEASE)
        assert store.bury("w1") == []
        assert store.beat("w1", LEASE)

    def test_a_run_without_a_history_counts_a_loss_either_way(self, store: Store) -> None:
        self.owned(store, durable=False)
        store.unregister("w1")
        assert self.row(store).losses == 1

    # -- what is due, and what nobody knows

    def test_the_next_wake_is_the_first_due_of_the_workflows_named(self, store: Store) -> None:
        now = self.clock.now()
        store.create(self.new("one", wake_at=now + 2 * SECOND))
        store.create(self.new("two", wake_at=now + SECOND, workflow="other"))
        assert store.next_wake(NAMES) == now + 2 * SECOND
        assert store.next_wake(["other"]) == now + SECOND
        assert store.next_wake([]) is None
        self.worker(store)
        self.clock.move(3 * SECOND)
        self.claim(store)
        assert store.next_wake(NAMES) is None

    def test_runs_that_no_worker_knows_are_orphans_and_may_be_set_aside(self, store: Store) -> None:
        store.create(self.new(workflow="other"))
        store.create(self.new("known"))
        self.worker(store)
        now = self.clock.now()
        assert store.orphans(now - 1) == []
        (orphan,) = store.orphans(now)
        assert orphan.id == "r"
        assert store.set_aside(orphan.no, "nobody knows it", "unknown")
        row = self.row(store)
        assert (row.status, row.reason, row.stuck) == (Status.STUCK, "nobody knows it", "unknown")
        assert store.orphans(now) == []
        assert not store.set_aside(orphan.no, "again", "unknown")
        assert self.claim(store, names=["other"]) == []

    def test_what_is_owned_is_not_set_aside(self, store: Store) -> None:
        row = self.owned(store)
        assert not store.set_aside(row.no, "no", "unknown")
        assert self.row(store).status == Status.RUNNING

    def test_a_worker_that_knows_the_code_brings_back_what_was_set_aside(self, store: Store) -> None:
        store.create(self.new(workflow="other"))
        store.set_aside(self.row(store).no, "nobody knows it", "unknown")
        self.worker(store)
        assert self.row(store).status == Status.STUCK
        self.worker(store, "w2", names=["other"])
        row = self.row(store)
        assert (row.status, row.reason, row.stuck) == (Status.PENDING, "", "")
        assert len(self.claim(store, "w2", names=["other"])) == 1

    def test_only_another_build_brings_back_what_has_diverged(self, store: Store) -> None:
        row = self.owned(store)
        self.leave(store, row, Status.STUCK, stuck="diverged", reason="code and history differ", build="1")
        self.worker(store, "w2", build="1")
        assert self.row(store).status == Status.STUCK
        self.worker(store, "w3", build="2")
        assert self.row(store).status == Status.PENDING

    # -- schedules

    def schedule(self, store: Store, name: str = "s", **given: Any) -> ScheduleRow:
        """A schedule that is there, as it was read."""
        row = ScheduleRow(**{"name": name, "workflow": "ship", "spec": b"{}", "next_at": self.clock.now(), **given})
        assert store.save_schedules([ScheduleChange(row=row)]) == [name]
        (found,) = store.schedules(name)
        return found

    def test_a_schedule_is_there_as_it_was_written(self, store: Store) -> None:
        assert store.schedules() == []
        texts: dict[str, Any] = {"spec": b'{"cron":"0 2 * * *"}', "reason": "naïve", "active": "s@1"}
        row = self.schedule(store, declared=True, paused=True, next_at=None, last_at=7, queued=[1, 2], **texts)
        assert (row.name, row.workflow, row.declared, row.paused) == ("s", "ship", True, True)
        assert (row.spec, row.reason, row.active) == tuple(texts.values())
        assert (row.next_at, row.last_at, row.queued, row.is_active) == (None, 7, [1, 2], False)
        self.schedule(store, "a")
        assert store.apps() == ["orders"]
        assert [found.name for found in store.schedules()] == ["a", "s"]
        assert store.schedules("nobody") == []

    def test_a_schedule_is_changed_by_whoever_is_first_and_starts_its_runs_with_that(self, store: Store) -> None:
        row = self.schedule(store)
        moved = ScheduleChange(row=_moved(row, 10), runs=[self.new("s@1")])
        assert store.save_schedules([moved]) == ["s"]
        assert store.save_schedules([ScheduleChange(row=_moved(row, 20), runs=[self.new("s@2")])]) == []
        (after,) = store.schedules("s")
        assert after.next_at == (row.next_at or 0) + 10
        assert after.revision > row.revision
        assert [run.id for run in store.runs(RunQuery())] == ["s@1"]
        assert len(store.payloads("s@1")) == 1

    def test_of_several_schedules_those_that_are_still_the_same_are_changed(self, store: Store) -> None:
        one, two = self.schedule(store, "one"), self.schedule(store, "two")
        store.save_schedules([ScheduleChange(row=_moved(one, 10))])
        changes = [ScheduleChange(row=_moved(row, 20), runs=[self.new(f"{row.name}@1")]) for row in (one, two)]
        assert store.save_schedules(changes) == ["two"]
        assert [run.id for run in store.runs(RunQuery())] == ["two@1"]

    def test_a_run_whose_id_is_taken_is_left_alone_by_a_schedule(self, store: Store) -> None:
        store.create(self.new("s@1", workflow="bill"))
        row = self.schedule(store)
        assert store.save_schedules([ScheduleChange(row=_moved(row, 10), runs=[self.new("s@1")])]) == ["s"]
        assert self.row(store, "s@1").workflow == "bill"

    def test_schedules_are_written_all_or_none(self, store: Store) -> None:
        row = self.schedule(store)
        changes = [
            ScheduleChange(row=_moved(row, 10), runs=[self.new("s@1")]),
            ScheduleChange(row=ScheduleRow(name="bad", workflow="ship", spec=b"{}", reason="\ud800")),
        ]
        assert raised(EncodeError, store.save_schedules, changes)
        assert store.schedules() == [row]
        assert store.runs(RunQuery()) == []

    def test_a_name_that_is_taken_is_not_taken_again(self, store: Store) -> None:
        self.schedule(store)
        assert store.save_schedules([ScheduleChange(row=ScheduleRow(name="s", workflow="bill", spec=b""))]) == []
        assert store.schedules("s")[0].workflow == "ship"

    def test_a_deleted_schedule_is_gone_and_who_has_read_it_before_can_not_bring_it_back(self, store: Store) -> None:
        row = self.schedule(store)
        self.clock.move(SECOND)
        assert store.save_schedules([ScheduleChange(row=_moved(row, 10))]) == ["s"]
        assert store.save_schedules([ScheduleChange(row=row, delete=True)]) == [], "it was changed meanwhile"
        (after,) = store.schedules("s")
        assert store.save_schedules([ScheduleChange(row=after, delete=True)]) == ["s"]
        assert store.save_schedules([ScheduleChange(row=_moved(after, 10), runs=[self.new("s@1")])]) == []
        assert store.schedules() == []
        self.clock.move(SECOND)
        assert self.schedule(store).revision not in (row.revision, after.revision)

    def test_what_is_due_is_not_paused_and_of_the_workflows_named(self, store: Store) -> None:
        now = self.clock.now()
        self.schedule(store, "later", next_at=now + 2 * SECOND)
        self.schedule(store, "paused", paused=True)
        self.schedule(store, "never", next_at=None)
        self.schedule(store, "other", workflow="other", next_at=now + SECOND)
        assert store.due_schedules(NAMES, 10) == []
        assert store.next_tick(NAMES) == now + 2 * SECOND
        assert store.next_tick(["other"]) == now + SECOND
        assert store.next_tick([]) is None
        self.clock.move(2 * SECOND)
        assert [row.name for row in store.due_schedules(NAMES, 10)] == ["later"]
        self.schedule(store, "sooner", next_at=now)
        assert [row.name for row in store.due_schedules(NAMES, 10)] == ["sooner", "later"]
        assert [row.name for row in store.due_schedules(NAMES, 1)] == ["sooner"]

    def test_what_is_queued_is_due_when_the_last_run_has_ended(self, store: Store) -> None:
        run = self.owned(store, "s@1")
        later = self.clock.now() + SECOND
        self.schedule(store, next_at=later, active="s@1", queued=[5])
        self.schedule(store, "paused", paused=True, next_at=None, active="gone", queued=[5])
        assert store.schedules("s")[0].is_active
        assert store.due_schedules(NAMES, 10) == []
        assert store.next_tick(NAMES) == later
        self.leave(store, run, Status.FAILURE)
        assert not store.schedules("s")[0].is_active
        assert [row.name for row in store.due_schedules(NAMES, 10)] == ["s"]
        assert store.next_tick(NAMES) == 0
        store.delete("s@1")
        assert store.next_tick(NAMES) == 0
        assert store.next_tick(["other"]) is None

    def test_runs_are_found_by_their_schedule(self, store: Store) -> None:
        store.create(self.new("s@1", attributes=[("schedule", "s", b"null")]))
        store.create(self.new("t@1", attributes=[("schedule", "t", b"null")]))
        store.create(self.new("s"))
        assert [row.id for row in store.runs(RunQuery(schedule="s"))] == ["s@1"]

    def test_a_worker_says_which_schedules_its_code_declares(self, store: Store) -> None:
        row = WorkerRow(id="w1", app=store.app, host="h", pid=1, build="1", names=["ship"], schedules=["nightly"])
        store.register(row, LEASE)
        assert [worker.schedules for worker in store.workers()] == [["nightly"]]

    # -- domain events

    def emission(self, name: str = "Paid", key: str = "1", **given: Any) -> Emission:
        emission = Emission(
            id=f"{name}-{key}", name=name, key=key, payload=b"{}", correlation="orders:r", ts=self.clock.now()
        )
        for field, value in given.items():
            setattr(emission, field, value)
        return emission

    def listen(self, store: Store, *subscriptions: Subscription, worker_id: str = "w1", **given: Any) -> None:
        """A worker whose code declares these."""
        names = given.get("names", NAMES)
        row = WorkerRow(id=worker_id, app=store.app, host="h", pid=1, build="1", names=list(names))
        store.register(row, LEASE, subscriptions)

    def awaits(self, store: Store, run_id: str, cmd: str = "1h0", **given: Any) -> RunRow:
        """A run of worker w1 that waits for the event `Paid`."""
        row = self.owned(store, run_id)
        self.change(store, row, signals=[Subscription(event="Paid", cmd=cmd, **given)])
        return row

    def listeners(self, store: Store, *lookups: str) -> list[tuple[str, str | None]]:
        """Who has yet to get the oldest event."""
        arrivals = store.arrivals(10)
        found = store.listeners(arrivals[0], lookups or [""], 10) if arrivals else []
        return [(listener.target, listener.run_id) for listener in found]

    def test_an_event_is_recorded_once_and_kept(self, store: Store) -> None:
        assert store.domain_event("Paid-1") is None
        assert store.emit(self.emission(payload=b"1", run_id="r", cmd="1e0", quiet=True))
        assert not store.emit(self.emission(payload=b"2"))
        event = store.domain_event("Paid-1")
        assert event is not None
        assert (event.app, event.name, event.key, event.payload) == ("orders", "Paid", "1", b"1")
        assert (event.correlation, event.run_id, event.cmd, event.quiet) == ("orders:r", "r", "1e0", True)
        assert event.ts == self.clock.now()
        assert store.arrivals(10) == [], "nobody listens"

    def test_an_event_arrives_at_the_subscriptions_there_are(self, store: Store) -> None:
        self.listen(store, Subscription(event="Paid", target="ship"), Subscription(event="Packed", target="ship"))
        store.emit(self.emission())
        self.listen(store, Subscription(event="Paid", target="bill"), worker_id="w2")
        (arrival,) = store.arrivals(10)
        assert (arrival.event.id, arrival.after, arrival.paths) == ("Paid-1", 0, [""])
        assert self.listeners(store) == [("ship", None)]
        store.deliver([Delivery(arrival=arrival, reached=None)])
        assert store.arrivals(10) == []

    def test_an_event_reaches_what_its_emitter_declares_although_no_worker_was_there(self, store: Store) -> None:
        subscription = Subscription(event="Paid", target="ship", spec=b"1")
        store.emit(self.emission(), [subscription])
        assert self.listeners(store) == [("ship", None)]
        self.listen(store, msgspec.structs.replace(subscription, spec=b"2"))
        assert self.listeners(store) == [("ship", None)], "a worker has it too, and it is the same"
        (arrival,) = store.arrivals(10)
        store.emit(self.emission(key="2"), [subscription])
        assert [listener.spec for listener in store.listeners(arrival, [""], 10)] == [b"2"], "a worker knows better"

    def test_a_worker_that_knows_the_target_has_the_last_word_on_what_it_listens_to(self, store: Store) -> None:
        self.worker(store)
        store.emit(self.emission(), [Subscription(event="Paid", target="ship")])
        assert store.arrivals(10) == []
        store.emit(self.emission(key="2"), [Subscription(event="Paid", target="elsewhere")])
        assert self.listeners(store) == [("elsewhere", None)]

    def test_an_event_is_not_delivered_twice(self, store: Store) -> None:
        self.listen(store, Subscription(event="Paid", target="ship"))
        store.emit(self.emission())
        (arrival,) = store.arrivals(10)
        first = self.new("started", correlation="orders:r")
        store.deliver([Delivery(arrival=arrival, reached=None, runs=[first])])
        store.deliver([Delivery(arrival=arrival, reached=None, runs=[self.new("again")])])
        assert self.row(store, "started").correlation == "orders:r"
        assert store.get("again") is None

    def test_a_long_delivery_goes_on_where_it_was(self, store: Store) -> None:
        self.listen(store, *(Subscription(event="Paid", target=f"t{i}") for i in range(3)), names=["t0", "t1", "t2"])
        store.emit(self.emission())
        (arrival,) = store.arrivals(10)
        first, second = store.listeners(arrival, [""], 2)
        store.deliver([Delivery(arrival=arrival, reached=second.no)])
        assert first.target == "t0"
        assert self.listeners(store) == [("t2", None)]
        store.deliver([Delivery(arrival=arrival, reached=None)])
        assert self.listeners(store) == [("t2", None)], "another worker has come further"

    def test_events_arrive_in_the_order_they_were_emitted(self, store: Store) -> None:
        self.listen(store, Subscription(event="Paid", target="ship"))
        for key in "123":
            store.emit(self.emission(key=key))
        assert [arrival.event.key for arrival in store.arrivals(2)] == ["1", "2"]

    def test_a_run_waits_until_an_event_reaches_it(self, store: Store) -> None:
        row = self.awaits(store, "r", path="n", lookup="n=1")
        self.awaits(store, "other", path="n", lookup="n=2")
        store.emit(self.emission())
        (arrival,) = store.arrivals(10)
        assert arrival.paths == ["n"]
        assert self.listeners(store, "") == []
        assert self.listeners(store, "", "n=1") == [("", "r")]
        (listener,) = store.listeners(arrival, ["n=1"], 10)
        letter = Message(run_id="r", kind="hook", body=b'"paid"')
        store.deliver([Delivery(arrival=arrival, reached=None, letters=[(listener.no, letter)])])
        assert [(letter.run_no, letter.body) for letter in store.letters("w1")] == [(row.no, b'"paid"')]
        store.emit(self.emission(key="2"))
        assert self.listeners(store, "n=1") == [], "it got what it waited for"

    def test_a_wait_that_has_ended_gets_nothing(self, store: Store) -> None:
        row = self.awaits(store, "r")
        store.emit(self.emission())
        (arrival,) = store.arrivals(10)
        (listener,) = store.listeners(arrival, [""], 10)
        self.change(store, row, signals=[Unsubscription(cmd="1h0")])
        letter = Message(run_id="r", kind="hook")
        store.deliver([Delivery(arrival=arrival, reached=None, letters=[(listener.no, letter)])])
        assert store.letters("w1") == []

    def test_a_wait_is_deleted_with_its_run(self, store: Store) -> None:
        row = self.awaits(store, "r")
        self.leave(store, row, Status.PAUSED)
        store.delete("r")
        store.emit(self.emission())
        assert store.arrivals(10) == []

    def test_the_signals_of_a_change_keep_their_order(self, store: Store) -> None:
        row = self.owned(store)
        wait = Subscription(event="Paid", cmd="1h0")
        self.change(store, row, signals=[self.emission(key="before"), wait, self.emission(key="after")])
        assert [arrival.event.key for arrival in store.arrivals(10)] == ["after"]

    def test_what_a_change_emits_is_written_with_it_or_not_at_all(self, store: Store) -> None:
        row = self.owned(store)
        self.change(store, row, records=[record(2)], signals=[self.emission()])
        assert store.domain_event("Paid-1") is not None
        bad = Change(no=row.no, records=[record(2)], signals=[self.emission(key="2")])
        assert raised(StoreError, store.commit, "w1", [bad], 0, NAMES), "there is an event 2 already"
        assert store.domain_event("Paid-2") is None

    def test_news_become_events_if_somebody_listens(self, store: Store) -> None:
        news = [self.emission(name) for name in ("run.failed", "run.succeeded")]
        row = self.owned(store)
        assert not store.commit("w1", [Change(no=row.no, news=news)], 0, NAMES).emitted
        assert store.domain_event("run.failed-1") is None
        self.listen(store, Subscription(event="run.failed", target="ship"), worker_id="w2")
        assert store.commit("w1", [Change(no=row.no, news=news)], 0, NAMES).emitted
        assert store.domain_event("run.failed-1") is not None
        assert store.domain_event("run.succeeded-1") is None

    def test_a_run_set_aside_is_news(self, store: Store) -> None:
        self.listen(store, Subscription(event="run.stuck", target="ship"))
        store.create(self.new())
        no = self.row(store).no
        assert store.set_aside(no, "why", "unknown", self.emission("run.stuck"))
        assert not store.set_aside(no, "why", "unknown", self.emission("run.stuck", "2"))
        assert [arrival.event.key for arrival in store.arrivals(10)] == ["1"]

    def test_subscriptions_stay_while_no_worker_lives(self, store: Store) -> None:
        self.listen(store, Subscription(event="Paid", target="ship"))
        store.unregister("w1")
        store.emit(self.emission())
        assert self.listeners(store) == [("ship", None)]

    def test_a_subscription_ends_with_the_last_worker_that_declares_it_if_others_know_better(
        self, store: Store
    ) -> None:
        self.listen(store, Subscription(event="Paid", target="ship"))
        self.listen(store, worker_id="w2")
        store.emit(self.emission())
        assert self.listeners(store) == [("ship", None)]
        store.unregister("w1")
        assert self.listeners(store) == []

    def test_a_subscription_of_unknown_code_stays_for_a_day(self, store: Store) -> None:
        self.listen(store, Subscription(event="Paid", target="gone"), names=["gone"])
        store.emit(self.emission())
        store.unregister("w1")
        self.listen(store, worker_id="w2")
        assert self.listeners(store) == [("gone", None)]
        self.clock.move(25 * 3600 * SECOND)
        self.listen(store, worker_id="w3")
        assert self.listeners(store) == []

    def test_the_last_worker_that_came_says_how_a_subscription_is_meant(self, store: Store) -> None:
        for number, spec in enumerate((b"1", b"2")):
            self.listen(store, Subscription(event="Paid", target="ship", spec=spec), worker_id=f"w{number}")
        store.emit(self.emission())
        (arrival,) = store.arrivals(10)
        assert [listener.spec for listener in store.listeners(arrival, [""], 10)] == [b"2"]

    def test_a_process_is_found_by_its_correlation(self, store: Store) -> None:
        store.create(self.new("r"))
        store.create(self.new("child", parent_id="r", correlation="orders:r"))
        store.create(self.new("stranger", correlation="orders:x"))
        store.emit(self.emission())
        store.emit(self.emission(key="2", correlation="orders:x"))
        runs, events = store.trace("orders:r", 10)
        assert [row.id for row in runs] == ["r", "child"]
        assert [event.key for event in events] == ["1"]
        assert len(store.trace("orders:r", 1)[0]) == 1

    def test_old_events_are_forgotten(self, store: Store) -> None:
        self.listen(store, Subscription(event="Paid", target="ship"))
        store.emit(self.emission())
        self.clock.move(20 * 86_400 * SECOND)
        store.emit(self.emission(key="2"))
        assert store.collect(10).events == 0
        assert store.domain_event("Paid-1") is not None
        self.clock.move(11 * 86_400 * SECOND)
        assert store.collect(10).events == 1
        assert store.domain_event("Paid-1") is None
        assert [arrival.event.key for arrival in store.arrivals(10)] == ["2"]

    def test_old_events_are_forgotten_in_batches(self, store: Store) -> None:
        for number in range(3):
            store.emit(self.emission(key=str(number)))
        self.clock.move(31 * 86_400 * SECOND)
        assert [store.collect(2).events for _ in range(3)] == [2, 1, 0]

    # -- attempts elsewhere

    def executor(self, store: Store, worker_id: str = "x1", queues: Sequence[str] = ("gpu",)) -> str:
        row = WorkerRow(
            id=worker_id, app=store.app, host="h", pid=1, build="1", names=[], kind=WorkerKind.EXECUTOR,
            queues=list(queues), steps=["train", "test"],
        )  # fmt: skip
        store.register(row, LEASE)
        return worker_id

    def asked(self, token: str, **given: Any) -> NewAttempt:
        attempt = NewAttempt(
            token=token,
            cmd=f"s:{token}",
            step="train",
            number=1,
            queue="gpu",
            due=self.clock.now(),
            body=token.encode(),
        )
        for name, value in given.items():
            setattr(attempt, name, value)
        return attempt

    def asking(self, store: Store, *attempts: NewAttempt, run_id: str = "r") -> RunRow:
        """A run of worker w1 that has asked for attempts."""
        row = self.owned(store, run_id)
        self.change(store, row, attempts=attempts)
        return row

    def ended(self, token: str, body: bytes = b"{}") -> EndedAttempt:
        return EndedAttempt(token, Message(run_id="r", kind="outcome", body=body, dedupe=f"outcome:{token}"))

    def claimed(self, store: Store, worker_id: str = "x1", limit: int = 10) -> list[str]:
        return [one.token for one in store.claim_attempts(worker_id, ["gpu"], ["train", "test"], limit)]

    def test_a_worker_says_what_it_executes(self, store: Store) -> None:
        self.worker(store)
        self.executor(store, queues=["gpu", ""])
        engine, executor = store.workers()
        assert (engine.kind, engine.queues, engine.steps) == ("engine", [], [])
        assert (executor.kind, executor.queues, executor.steps) == ("executor", ["gpu", ""], ["train", "test"])

    def test_an_attempt_is_claimed_once_with_its_body(self, store: Store) -> None:
        self.asking(store, self.asked("t1", body=b"all of it"))
        self.executor(store)
        self.executor(store, "x2")
        (claimed,) = store.claim_attempts("x1", ["gpu"], ["train"], 10)
        assert (claimed.token, claimed.body) == ("t1", b"all of it")
        assert self.claimed(store, "x2") == []
        assert store.held_attempts("x1") == {"t1"}
        assert store.held_attempts("x2") == set()

    def test_attempts_are_claimed_in_their_order_whatever_the_clock_says_by_now(self, store: Store) -> None:
        now = self.clock.now()
        later = self.asked("t3", due=now + SECOND)
        self.asking(store, self.asked("t2", due=now - 1), self.asked("t1", due=now), later)
        self.executor(store)
        assert self.claimed(store, limit=1) == ["t2"]
        self.clock.move(-3600 * SECOND)
        assert self.claimed(store) == ["t1", "t3"]

    def test_only_known_steps_of_served_queues_of_the_own_app_are_claimed(self, store: Store) -> None:
        self.asking(store, self.asked("t1", queue="cpu"), self.asked("t2", step="paint"), self.asked("t3", queue=""))
        self.executor(store)
        assert self.claimed(store) == []
        assert {one.token for one in store.claim_attempts("x1", ["", "cpu"], ["train"], 10)} == {"t1", "t3"}
        store.app = "bills"
        assert store.claim_attempts("x1", ["gpu"], ["paint"], 10) == []
        store.app = "orders"

    def test_an_attempt_can_be_claimed_by_its_token(self, store: Store) -> None:
        self.asking(store, self.asked("t1"))
        self.executor(store)
        self.executor(store, "x2")
        assert store.claim_attempt("x1", "unknown") is None
        claimed = store.claim_attempt("x1", "t1")
        assert claimed is not None
        assert claimed.body == b"t1"
        assert store.claim_attempt("x2", "t1") is None, "a copy of the message came later"
        assert store.claim_attempt("x1", "t1") is None, "even to the same worker"

    def test_a_dead_worker_claims_nothing(self, store: Store) -> None:
        self.asking(store, self.asked("t1"))
        assert raised(Fenced, store.claim_attempts, "nobody", ["gpu"], ["train"], 10)
        assert raised(Fenced, store.claim_attempt, "nobody", "t1")
        self.executor(store)
        assert self.claimed(store) == ["t1"]

    def test_an_outcome_takes_the_row_away_and_is_in_the_inbox(self, store: Store) -> None:
        row = self.asking(store, self.asked("t1"), self.asked("t2"))
        self.executor(store)
        self.claimed(store)
        assert store.end_attempts("x1", [self.ended("t1", b"42")]) == {"t1"}
        (letter,) = store.letters("w1")
        assert (letter.run_no, letter.kind, letter.body) == (row.no, "outcome", b"42")
        assert store.held_attempts("x1") == {"t2"}
        assert store.end_attempts("x1", [self.ended("t1"), self.ended("t2")]) == {"t2"}, "an attempt ends once"

    def test_only_who_has_claimed_an_attempt_can_end_it(self, store: Store) -> None:
        self.asking(store, self.asked("t1"), self.asked("t2"))
        self.executor(store)
        self.executor(store, "x2")
        assert self.claimed(store, limit=1) == ["t1"]
        assert store.end_attempts("x2", [self.ended("t1"), self.ended("t2")]) == set()
        assert store.letters("w1") == []

    def test_an_outcome_wakes_a_run_that_waits(self, store: Store) -> None:
        row = self.asking(store, self.asked("t1"))
        self.leave(store, row, Status.WAITING)
        self.executor(store)
        self.claimed(store)
        assert self.claim(store) == []
        store.end_attempts("x1", [self.ended("t1")])
        (claimed,) = self.claim(store)
        assert [letter.kind for letter in claimed.letters] == ["outcome"]

    def test_the_outcome_for_a_run_that_has_ended_goes_nowhere(self, store: Store) -> None:
        row = self.asking(store, self.asked("t1"))
        self.executor(store)
        self.claimed(store)
        self.leave(store, row, Status.SUCCESS)
        assert store.end_attempts("x1", [self.ended("t1")]) == {"t1"}
        assert self.claim(store) == []

    def test_whoever_claims_a_run_knows_its_attempts(self, store: Store) -> None:
        row = self.asking(store, self.asked("t1"), self.asked("t2", number=3))
        self.executor(store)
        self.claimed(store, limit=1)
        self.leave(store, row, Status.PENDING, wake_at=self.clock.now())
        (claimed,) = self.claim(store)
        first, second = claimed.attempts
        assert (first.token, first.cmd, first.worker, first.claimed_at) == ("t1", "s:t1", "x1", self.clock.now())
        assert (second.token, second.number, second.queue, second.step) == ("t2", 3, "gpu", "train")
        assert (second.worker, second.claimed_at, second.run_no) == (None, None, row.no)
        assert store.attempts("r") == claimed.attempts

    def test_a_dropped_attempt_is_gone_whoever_has_it(self, store: Store) -> None:
        row = self.asking(store, self.asked("t1"), self.asked("t2"), self.asked("t3"))
        self.executor(store)
        self.claimed(store, limit=1)
        self.change(store, row, dropped_attempts=["t1", "t2"])
        assert store.held_attempts("x1") == set()
        assert store.end_attempts("x1", [self.ended("t1")]) == set()
        assert self.claimed(store) == ["t3"]

    def test_only_what_nobody_has_claimed_is_withdrawn(self, store: Store) -> None:
        row = self.asking(store, self.asked("t1"), self.asked("t2"))
        self.executor(store)
        self.claimed(store, limit=1)
        self.change(store, row, withdrawn_attempts=["t1", "t2"])
        assert [one.token for one in store.attempts("r")] == ["t1"]
        assert store.end_attempts("x1", [self.ended("t1")]) == {"t1"}

    def test_what_a_fenced_engine_asks_for_is_not_there(self, store: Store) -> None:
        row = self.owned(store)
        store.unregister("w1")
        assert raised(Fenced, store.commit, "w1", [Change(no=row.no, attempts=[self.asked("t1")])], 0, NAMES)
        assert store.attempts("r") == []

    def test_what_is_given_back_can_be_claimed_by_others(self, store: Store) -> None:
        self.asking(store, self.asked("t1"), self.asked("t2"))
        self.executor(store)
        self.executor(store, "x2")
        self.claimed(store)
        store.release_attempts("x2", ["t1"])
        assert self.claimed(store, "x2") == [], "it was not theirs to give back"
        store.release_attempts("x1", ["t1"])
        assert self.claimed(store, "x2") == ["t1"]
        assert store.end_attempts("x1", [self.ended("t1")]) == set()

    def test_what_an_attempt_says_on_its_way_is_kept_beside_its_run(self, store: Store) -> None:
        self.asking(store, self.asked("t1"), self.asked("t2"))
        self.executor(store)
        self.claimed(store, limit=1)
        reports = [AttemptReport("t2", "progress", b"9"), AttemptReport("t1", "progress", b"1")]
        store.report_attempts("x1", [*reports, AttemptReport("t1", "checkpoint", b"c")])
        store.report_attempts("x1", [AttemptReport("t1", "progress", b"2")])
        assert store.attributes("r", "progress") == {"s:t1": b"2"}, "the other one is not this worker's"
        assert store.attributes("r", "checkpoint") == {"s:t1": b"c"}
        store.end_attempts("x1", [self.ended("t1")])
        store.report_attempts("x1", [AttemptReport("t1", "progress", b"3")])
        assert store.attributes("r", "progress") == {"s:t1": b"2"}

    def test_the_attempts_of_a_worker_that_is_gone_are_lost_and_end_once(self, store: Store) -> None:
        self.asking(store, self.asked("t1"), self.asked("t2"), self.asked("t3"))
        self.executor(store)
        self.claimed(store, limit=2)
        assert store.lost_attempts(10) == []
        store.let_go("x1")
        self.clock.move(LEASE + 1)
        store.beat("w1", LEASE)
        assert store.bury("w1") == ["x1"]
        lost = store.lost_attempts(10)
        assert [(one.token, one.worker) for one in lost] == [("t1", "x1"), ("t2", "x1")]
        assert len(store.lost_attempts(1)) == 1
        assert store.end_attempts("x1", [self.ended("t1")]) == {"t1"}, "an engine ends it in its name"
        assert [one.token for one in store.lost_attempts(10)] == ["t2"]
        assert store.end_attempts("x1", [self.ended("t1")]) == set(), "the worker itself comes too late"

    def test_what_nobody_claims_is_told(self, store: Store) -> None:
        now = self.clock.now()
        self.asking(store, self.asked("t1", due=now - 2), self.asked("t2", due=now - 1), self.asked("t3", queue="cpu"))
        assert [one.token for one in store.unclaimed(["gpu"], now, 10)] == ["t1", "t2"]
        assert [one.token for one in store.unclaimed(["gpu"], now - 1, 10)] == ["t1"]
        assert [one.token for one in store.unclaimed(["gpu", "cpu"], now + 1, 2)] == ["t1", "t2"]
        self.executor(store)
        self.claimed(store, limit=1)
        gpu = next(row for row in store.queues() if row.queue == "gpu")
        assert (gpu.waiting, gpu.since, gpu.claimed) == (1, now - 1, 1)
        assert [row.queue for row in store.queues()] == ["cpu", "gpu"]

    def test_attempts_go_with_their_run(self, store: Store) -> None:
        row = self.asking(store, self.asked("t1"))
        self.leave(store, row, Status.PAUSED)
        store.delete("r")
        self.executor(store)
        assert self.claimed(store) == []
        assert store.queues() == []


def _moved(row: ScheduleRow, by: int) -> ScheduleRow:
    return msgspec.structs.replace(row, next_at=(row.next_at or 0) + by)


def _decode(payload: bytes) -> dict[str, int]:
    return {"seq": int(payload.removeprefix(b'{"seq":').removesuffix(b"}"))}


__all__ = ["MovableClock", "StoreContract"]
