"""Runs: created, committed to, deleted."""

from __future__ import annotations

from holdfast.errors import EncodeError, StoreError
from holdfast.ports import (
    Change,
    InboxRow,
    Message,
    NewRun,
    Posted,
    RunQuery,
    RunRow,
    ScheduleChange,
    ScheduleRow,
    Status,
    Store,
    Subscription,
)
from holdfast.testing.contract.arranging import NAMES, SECOND, Arranged, raised, record


class RunContract(Arranged):
    """Tests of what the ports say of it."""

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
        assert claimed.messages == []

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
        assert [message.run_no for message in store.inbox("w1")] == [row.no, row.no]

    def test_many_runs_are_deleted_at_once_but_for_those_that_go_on(self, store: Store) -> None:
        over, held, open_ = (self.owned(store, name) for name in ("over", "held", "open"))
        self.leave(store, over, Status.SUCCESS)
        self.leave(store, held, Status.PAUSED)
        told: list[str] = []

        def farewell(row: RunRow, messages: list[InboxRow]) -> list[Message]:
            told.append(row.id)
            return [Message(run_id="open", kind="child")]

        everyone = [("over", over.no), ("held", held.no), ("open", open_.no), ("nobody", 99)]
        assert store.delete_all(everyone, farewell) == 2
        assert sorted(told) == ["held", "over"]
        assert [row.id for row in store.runs(RunQuery())] == ["open"]
        assert len(store.inbox("w1")) == 2
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
        (message,) = store.inbox("w1")
        self.change(
            store,
            row,
            records=[record(2), record(3)],
            consumed=[message.id],
            columns={"status": Status.WAITING, "reason": "hook 'x'", "build": "b", "losses": 2},
            children=[self.new("child", parent_id="r", parent_cmd="1c0")],
            messages=[Message(run_id="other", kind="cancel", control=True), Message(run_id="child", kind="cancel")],
            attributes=[("hook", "k", b'["x"]'), ("data.a", "1", b"1")],
        )
        after = self.row(store)
        assert (after.status, after.reason, after.build, after.losses) == (Status.WAITING, "hook 'x'", "b", 2)
        assert [seq["seq"] for seq in map(_decode, store.payloads("r"))] == [1, 2, 3]
        assert store.inbox("w1") == []
        assert self.row(store, "child").parent_id == "r"
        assert store.find_hook("k") == [("r", "x")]
        claimed = {one.row.id: one for one in self.claim(store)}
        assert [message.kind for message in claimed["other"].messages] == ["cancel"]
        assert [message.kind for message in claimed["child"].messages] == ["cancel"]

    def test_a_commit_that_fails_does_nothing(self, store: Store) -> None:
        one, two = self.owned(store, "one"), self.owned(store, "two")
        store.post(Message(run_id="one", kind="hook"))
        (message,) = store.inbox("w1")
        good = Change(
            no=one.no,
            records=[record(2)],
            consumed=[message.id],
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
        assert [found.id for found in store.inbox("w1")] == [message.id]
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
        assert store.inbox("w1") == []
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
        assert [message.body for message in store.inbox("w1")] == [b'{"taken":1}']
        self.change(store, row, children=[self.new("child")])
        assert len(store.inbox("w1")) == 1

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
        assert (claimed.row.id, [message.kind for message in claimed.messages]) == ("ended", ["watch"])

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

        def farewell(row: RunRow, messages: list[InboxRow]) -> list[Message]:
            told.append((row.id, [message.kind for message in messages]))
            return [Message(run_id="parent", kind="child")]

        store.delete("parent", farewell=farewell)
        assert told == [], "it goes on"
        store.delete("child", farewell=farewell)
        assert told == [("child", ["watch"])]
        assert [(message.run_no, message.kind) for message in store.inbox("w1")] == [(parent.no, "child")]

    def test_collect_leaves_a_run_of_which_something_was_ordered(self, store: Store) -> None:
        self.leave(store, self.owned(store), Status.SUCCESS, expires_at=self.clock.now())
        store.post(Message(run_id="r", kind="watch", control=True, late=True))
        assert store.collect(10).runs == 0
        (claimed,) = self.claim(store)
        self.change(store, claimed.row, consumed=[claimed.messages[0].id], columns={"owner": None})
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


def _decode(payload: bytes) -> dict[str, int]:
    return {"seq": int(payload.removeprefix(b'{"seq":').removesuffix(b"}"))}
