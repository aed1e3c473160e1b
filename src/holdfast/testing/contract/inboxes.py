"""Inboxes of runs."""

from __future__ import annotations

from holdfast.ports import Message, Posted, Status, Store
from holdfast.testing.contract.arranging import Arranged


class InboxContract(Arranged):
    """Tests of what the ports say of it."""

    def test_messages_are_those_of_ones_own_runs_oldest_first(self, store: Store) -> None:
        self.worker(store)
        self.worker(store, "w2")
        store.create(self.new("one"))
        self.claim(store)
        store.create(self.new("two"))
        self.claim(store, "w2")
        for run_id, kind in (("one", "a"), ("two", "b"), ("one", "c")):
            assert store.post(Message(run_id=run_id, kind=kind)).status == Status.RUNNING
        mine = store.inbox("w1")
        assert [message.kind for message in mine] == ["a", "c"]
        assert [message.kind for message in store.inbox("w1")] == ["a", "c"], "reading doesn't consume"
        assert mine[0].run_no == self.row(store, "one").no
        self.change(store, self.row(store, "one"), consumed=[mine[0].id])
        assert [message.kind for message in store.inbox("w1")] == ["c"]
        assert [message.kind for message in store.inbox("w2")] == ["b"]

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
        assert [(message.run_no, message.body) for message in store.inbox("w1")] == [(row.no, b"1"), (other.no, b"3")]

    def test_who_posts_is_told_whether_it_was_kept(self, store: Store) -> None:
        self.owned(store)
        message = Message(run_id="r", kind="hook", dedupe="token")
        assert store.post(message) == Posted(Status.RUNNING, kept=True)
        assert store.post(message) == Posted(Status.RUNNING, kept=False)

    def test_what_is_good_once_is_not_kept_again_after_it_was_read(self, store: Store) -> None:
        row = self.owned(store)
        message = Message(run_id="r", kind="hook", dedupe="token", once=True)
        assert store.post(message).kept
        self.change(store, row, consumed=[message.id for message in store.inbox("w1")])
        assert not store.post(message).kept
        assert store.inbox("w1") == []

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
        assert [message.kind for message in store.inbox("w1")] == ["child", "hook"]

    def test_orders_are_the_control_messages_that_wait(self, store: Store) -> None:
        self.owned(store)
        store.post(Message(run_id="r", kind="hook"))
        store.post(Message(run_id="r", kind="pause", control=True))
        assert store.orders("r") == ["pause"]
        assert store.orders("nobody") == []
