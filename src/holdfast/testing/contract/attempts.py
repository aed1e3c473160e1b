"""Attempts that workers elsewhere execute."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from holdfast.errors import Fenced
from holdfast.ports import (
    AttemptReport,
    Change,
    EndedAttempt,
    Message,
    NewAttempt,
    RunRow,
    Status,
    Store,
    WorkerKind,
    WorkerRow,
)
from holdfast.testing.contract.arranging import LEASE, NAMES, SECOND, Arranged, raised


class AttemptContract(Arranged):
    """Tests of what the ports say of it."""

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
        assert set(store.end_attempts("x1", [self.ended("t1", b"42")])) == {"t1"}
        (message,) = store.inbox("w1")
        assert (message.run_no, message.kind, message.body) == (row.no, "outcome", b"42")
        assert store.held_attempts("x1") == {"t2"}
        assert set(store.end_attempts("x1", [self.ended("t1"), self.ended("t2")])) == {"t2"}, "an attempt ends once"

    def test_only_who_has_claimed_an_attempt_can_end_it(self, store: Store) -> None:
        self.asking(store, self.asked("t1"), self.asked("t2"))
        self.executor(store)
        self.executor(store, "x2")
        assert self.claimed(store, limit=1) == ["t1"]
        assert set(store.end_attempts("x2", [self.ended("t1"), self.ended("t2")])) == set()
        assert store.inbox("w1") == []

    def test_an_outcome_wakes_a_run_that_waits(self, store: Store) -> None:
        row = self.asking(store, self.asked("t1"))
        self.leave(store, row, Status.WAITING)
        self.executor(store)
        self.claimed(store)
        assert self.claim(store) == []
        store.end_attempts("x1", [self.ended("t1")])
        (claimed,) = self.claim(store)
        assert [message.kind for message in claimed.messages] == ["outcome"]

    def test_the_outcome_for_a_run_that_has_ended_goes_nowhere(self, store: Store) -> None:
        row = self.asking(store, self.asked("t1"))
        self.executor(store)
        self.claimed(store)
        self.leave(store, row, Status.SUCCESS)
        assert set(store.end_attempts("x1", [self.ended("t1")])) == {"t1"}
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
        assert set(store.end_attempts("x1", [self.ended("t1")])) == set()
        assert self.claimed(store) == ["t3"]

    def test_only_what_nobody_has_claimed_is_withdrawn(self, store: Store) -> None:
        row = self.asking(store, self.asked("t1"), self.asked("t2"))
        self.executor(store)
        self.claimed(store, limit=1)
        self.change(store, row, withdrawn_attempts=["t1", "t2"])
        assert [one.token for one in store.attempts("r")] == ["t1"]
        assert set(store.end_attempts("x1", [self.ended("t1")])) == {"t1"}

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
        assert set(store.end_attempts("x1", [self.ended("t1")])) == set()

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
        store.release_lock("x1")
        self.clock.move(LEASE + 1)
        store.beat("w1", LEASE)
        assert store.declare_dead("w1") == ["x1"]
        lost = store.lost_attempts(10)
        assert [(one.token, one.worker) for one in lost] == [("t1", "x1"), ("t2", "x1")]
        assert len(store.lost_attempts(1)) == 1
        assert set(store.end_attempts("x1", [self.ended("t1")])) == {"t1"}, "an engine ends it in its name"
        assert [one.token for one in store.lost_attempts(10)] == ["t2"]
        assert set(store.end_attempts("x1", [self.ended("t1")])) == set(), "the worker itself comes too late"

    def test_what_nobody_claims_is_told(self, store: Store) -> None:
        now = self.clock.now()
        self.asking(store, self.asked("t1", due=now - 2), self.asked("t2", due=now - 1), self.asked("t3", queue="cpu"))
        assert [one.token for one in store.unclaimed(["gpu"], now, 10)] == ["t1", "t2"]
        assert [one.token for one in store.unclaimed(["gpu"], now - 1, 10)] == ["t1"]
        assert [one.token for one in store.unclaimed(["gpu", "cpu"], now + 1, 1)] == ["t1", "t3"], "of each queue"
        self.executor(store)
        self.claimed(store, limit=1)
        gpu = next(row for row in store.queues() if row.queue == "gpu")
        assert (gpu.waiting, gpu.since, gpu.claimed) == (1, now - 1, 1)
        assert [row.queue for row in store.queues()] == ["cpu", "gpu"]

    def test_what_nobody_claims_is_told_of_each_step(self, store: Store) -> None:
        """Where a queue goes may depend on the step: Celery has routes."""
        now = self.clock.now()
        asked = [self.asked(f"t{i}", due=now - 9 + i) for i in range(3)]
        self.asking(store, *asked, self.asked("other", step="test", due=now - 1))
        assert [one.token for one in store.unclaimed(["gpu"], now, 2)] == ["t0", "t1", "other"]

    def test_attempts_go_with_their_run(self, store: Store) -> None:
        row = self.asking(store, self.asked("t1"))
        self.leave(store, row, Status.PAUSED)
        store.delete("r")
        self.executor(store)
        assert self.claimed(store) == []
        assert store.queues() == []
