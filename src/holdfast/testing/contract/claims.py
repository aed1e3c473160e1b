"""Which runs are claimed by whom, and which by nobody."""

from __future__ import annotations

from holdfast.ports import (
    Change,
    Message,
    Status,
    Store,
)
from holdfast.testing.contract.arranging import NAMES, SECOND, Arranged, record


class ClaimContract(Arranged):
    """Tests of what the ports say of it."""

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
        assert [message.body for message in claimed.messages] == [b'{"n":1}', b'{"n":2}']
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
            assert [message.kind for message in claimed.messages] == ["hook", "resume"]

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
        assert (claimed.row.status, [message.kind for message in claimed.messages]) == (Status.FAILURE, ["retry"])

    def test_a_run_released_in_a_commit_may_be_claimed_in_it(self, store: Store) -> None:
        row = self.owned(store)
        columns = {"owner": None, "status": Status.RETRY, "wake_at": self.clock.now()}
        change = Change(no=row.no, records=[record(2)], columns=columns)
        (claimed,) = store.commit("w1", [change], 10, NAMES).claimed
        assert (claimed.row.owner, len(claimed.payloads)) == ("w1", 2)

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

    def test_a_run_that_waits_is_an_orphan_once_it_was_told_something(self, store: Store) -> None:
        self.leave(store, self.owned(store), Status.WAITING)
        store.unregister("w1")
        self.worker(store, "w2", names=["another"])
        assert store.orphans(self.clock.now() + 1) == []
        store.post(Message(run_id="r", kind="hook", body=b"{}"))
        assert [run.id for run in store.orphans(self.clock.now())] == ["r"]

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
