"""Logical clocks of what is written."""

from __future__ import annotations

from holdfast.errors import Fenced
from holdfast.ports import Change, Message, Store
from holdfast.telemetry.clock import LamportClock
from holdfast.testing.contract.arranging import LEASE, NAMES, Arranged, raised, record


class ClockContract(Arranged):
    """Tests of what the ports say of it."""

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
        (message,) = store.inbox("w1")
        assert message.clock > clocks[4]
        store.post(Message(run_id="r", kind="hook"))
        assert store.inbox("w1")[1].clock > message.clock
        assert store.clocks("nobody") == {}

    def test_whoever_has_read_a_history_writes_with_a_higher_clock(self, store: Store) -> None:
        """A run that somebody starts because of what another one has come to."""
        row = self.owned(store)
        store.logical_clock.forward(100_000)
        self.change(store, row, records=[record(2)])
        reached = store.clocks("r")[2]
        for read in (store.payloads, store.clocks):
            store.logical_clock = LamportClock()  # as in another process
            read("r")
            assert store.logical_clock.value > reached

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
