"""Workers: their lives, and what the dead can not do."""

from __future__ import annotations

from holdfast.errors import Fenced
from holdfast.ports import Change, Status, Store, WorkerKind, WorkerRow
from holdfast.testing.contract.arranging import LEASE, NAMES, Arranged, raised, record


class WorkerContract(Arranged):
    """Tests of what the ports say of it."""

    # -- workers

    def test_a_worker_is_known_until_it_says_goodbye(self, store: Store) -> None:
        self.worker(store)
        (row,) = store.workers()
        assert (row.id, row.app, row.build, row.names) == ("w1", "orders", "1", list(NAMES))
        assert (row.started_at, row.lease_until) == (self.clock.now(), self.clock.now() + LEASE)
        assert store.addresses() == store.addresses(kind=WorkerKind.ENGINE) == ["w1-bell"]
        assert store.addresses(kind=WorkerKind.EXECUTOR) == []
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

    def test_a_worker_whose_lock_is_free_is_declared_dead_at_once(self, store: Store) -> None:
        running = self.owned(store, "running")
        waiting, ended = self.owned(store, "waiting"), self.owned(store, "ended")
        self.leave(store, waiting, Status.WAITING)
        self.leave(store, ended, Status.SUCCESS)
        self.worker(store, "w2")
        assert store.declare_dead("w2") == []
        store.release_lock("w1")
        assert store.declare_dead("w2", by_lease=False) == ["w1"]
        assert [worker.id for worker in store.workers()] == ["w2"]
        row = self.row(store, running.id)
        assert (row.owner, row.status, row.losses) == (None, Status.PENDING, 1)
        assert [self.row(store, run_id).losses for run_id in ("waiting", "ended")] == [0, 0]
        (claimed,) = self.claim(store, "w2")
        assert claimed.row.losses == 1
        assert store.declare_dead("w2") == [], "one is declared dead once"

    def test_a_worker_whose_lease_has_run_out_is_declared_dead(self, store: Store) -> None:
        self.owned(store)
        self.worker(store, "w2")
        self.clock.move(LEASE // 2)
        assert store.beat("w2", LEASE)
        self.clock.move(LEASE // 2 + 1)
        assert store.declare_dead("w2", by_lease=False) == []
        assert store.declare_dead("w2") == ["w1"]
        assert self.row(store).losses == 1
        assert not store.beat("w1", LEASE)
        store.release_lock("w1")

    def test_a_lease_that_was_renewed_holds(self, store: Store) -> None:
        self.owned(store)
        self.worker(store, "w2")
        for _ in range(5):
            self.clock.move(LEASE // 2)
            assert store.beat("w1", LEASE)
            assert store.beat("w2", LEASE)
            assert store.declare_dead("w2") == []

    def test_nobody_declares_itself_dead(self, store: Store) -> None:
        self.worker(store)
        self.clock.move(2 * LEASE)
        assert store.declare_dead("w1") == []
        assert store.beat("w1", LEASE)

    def test_a_run_without_a_history_counts_a_loss_either_way(self, store: Store) -> None:
        self.owned(store, durable=False)
        store.unregister("w1")
        assert self.row(store).losses == 1

    # -- fencing

    def test_who_was_declared_dead_can_not_write(self, store: Store) -> None:
        row = self.owned(store)
        self.worker(store, "w2")
        store.create(self.new("waiting"))
        store.release_lock("w1")
        assert store.declare_dead("w2") == ["w1"]
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
        store.release_lock("w1")
        store.declare_dead("w2")
        assert raised(
            Fenced, store.update_worker, WorkerRow(id="w1", app=store.app, host="h", pid=1, build="b", names=["more"])
        )
        assert [worker.id for worker in store.workers()] == ["w2"]

    def test_a_worker_that_learns_takes_up_what_nobody_knew(self, store: Store) -> None:
        self.worker(store)
        store.create(self.new("late", workflow="late"))
        assert store.set_aside(self.row(store, "late").no, "nobody knows it", "unknown")
        store.update_worker(
            WorkerRow(id="w1", app=store.app, host="h", pid=1, build="b", names=[*NAMES, "late"], schedules=["nightly"])
        )
        (worker,) = store.workers()
        assert (worker.names, worker.schedules) == ([*NAMES, "late"], ["nightly"])
        (claimed,) = store.commit("w1", [], 10, worker.names).claimed
        assert claimed.row.id == "late"

    def test_who_never_registered_can_not_write(self, store: Store) -> None:
        store.create(self.new())
        assert raised(Fenced, store.commit, "stranger", [], 10, NAMES)
