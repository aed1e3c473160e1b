"""Workers that are stopped (SIGSTOP) and go on later (SIGCONT): the frozen can't write, and harm nobody."""

from __future__ import annotations

import signal
import time

import effects
import pytest
from world import World

from holdfast.app import SystemClock
from holdfast.core import events as ev
from holdfast.engine.settings import Settings
from holdfast.errors import StoreBusyError
from holdfast.stores.sqlite import SqliteStore

SHORT = {"lease": 1.0, "beat": 0.1, "sweep": 0.1, "started_after": 0.05}


def test_a_worker_frozen_past_its_lease_goes_on_as_a_new_one_and_its_outcome_counts_once(world: World) -> None:
    frozen = world.engine(SHORT)
    run = effects.gated.options(id="gated").start("go")
    world.until(lambda: world.ledger("wait_at_gate"))
    (old,) = world.workers()
    world.freeze(frozen)
    other = world.engine(SHORT)
    world.until(lambda: old not in world.workers(), what="a takeover")
    world.until(lambda: len(world.ledger("wait_at_gate")) == 2, what="the step on the other worker")
    frozen.send_signal(signal.SIGCONT)
    world.until(lambda: len(world.workers()) == 2, what="the zombie to register anew")
    world.open_gate("go")
    assert run.result(timeout=20) == "go"
    world.check_histories()
    assert [e.kind for e in world.events(run.id)].count("StepCompleted") == 2
    assert old not in world.workers()
    runs = [effects.sequence.start(3) for _ in range(20)]
    assert [r.result(timeout=20) for r in runs] == [3] * 20
    assert world.stop(frozen) == 0, "it is a worker like any other"
    assert world.stop(other) == 0


def test_the_outcome_of_a_zombie_wins_if_it_comes_first(world: World) -> None:
    """The zombie's step ends while the other worker still executes the same one."""
    frozen = world.engine(SHORT)
    run = effects.race.options(id="race").start()
    world.until(lambda: world.ledger("first_is_fast"))
    world.freeze(frozen)
    world.engine(SHORT)
    world.until(lambda: len(world.ledger("first_is_fast")) == 2, what="the step on the other worker")
    world.open_gate("first")
    frozen.send_signal(signal.SIGCONT)
    assert run.result(timeout=20) == f"by {frozen.pid}"
    world.check_histories()
    assert [e.kind for e in world.events(run.id)].count("StepCompleted") == 1
    time_of_end = len(world.events(run.id))
    world.open_gate("second")  # the one that lost ends too, and changes nothing
    effects.sequence.start(3).result(timeout=20)
    assert len(world.events(run.id)) == time_of_end


def test_a_failure_that_comes_late_does_not_end_the_attempt_that_is_under_way(world: World) -> None:
    frozen = world.engine(SHORT)
    run = effects.late_failure.options(id="late").start()
    world.until(lambda: world.ledger("first_fails"))
    world.freeze(frozen)
    world.engine(SHORT)
    world.until(lambda: len(world.ledger("first_fails")) == 2, what="the step on the other worker")
    world.open_gate("first")
    frozen.send_signal(signal.SIGCONT)
    world.until(lambda: len(world.workers()) == 2)
    world.until(lambda: "inbox is read" if is_read(world, run.id) else "", what="the late failure to be read")
    world.open_gate("second")
    result = run.result(timeout=20)
    assert result != f"by {frozen.pid}"
    assert not [e for e in world.events(run.id) if isinstance(e, ev.StepRetrying)]
    world.check_histories()


def is_read(world: World, run_id: str) -> bool:
    """Whether the zombie has posted (its bell is registered) and the owner has taken it out of the inbox."""
    row = world.app.store.get(run_id)
    assert row is not None
    assert isinstance(world.app.store, SqliteStore)
    with world.app.store.read() as db:
        posted = db.execute("SELECT seq FROM sqlite_sequence WHERE name = 'inbox'").fetchone()
        left = db.execute("SELECT count(*) FROM inbox WHERE run = ?", (row.no,)).fetchone()[0]
    return posted is not None and not left


def test_a_worker_stopped_inside_a_transaction_holds_up_writers_until_it_goes_on(world: World) -> None:
    worker = world.engine(SHORT, "commit.before_commit:3:stop")
    run = effects.sequence.start(5)
    world.until(lambda: is_stopped(worker.pid), what="a worker that stands still")
    impatient = SqliteStore(world.app.name, str(world.database), world.app.storage.clock, timeout=0.3)
    with pytest.raises(
        StoreBusyError, match=rf"locked for 0.3 s by process {worker.pid}, which is stopped.*kill -CONT"
    ):
        impatient.collect(1)
    impatient.close()
    assert world.app.get_run(run.id).status == "RUNNING", "reading goes on"
    worker.send_signal(signal.SIGCONT)
    world.app.store.collect(1)
    assert run.result(timeout=20) == 10
    world.check_histories()


def test_a_worker_killed_inside_a_transaction_holds_up_nobody(world: World) -> None:
    worker = world.engine(SHORT, "commit.before_commit:3:stop")
    run = effects.sequence.start(5)
    world.until(lambda: is_stopped(worker.pid), what="a worker that stands still")
    world.kill(worker)
    begin = time.monotonic()
    world.app.store.collect(1)
    assert time.monotonic() - begin < 1
    world.engine(SHORT)
    assert run.result(timeout=20) == 10
    world.check_histories()


def test_workers_kept_from_the_store_do_not_take_each_other_for_dead(world: World) -> None:
    """One is stopped in a transaction for longer than a lease: nobody can renew theirs, and nobody is dead."""
    steps = [effects.gated.start("go") for _ in range(2)]
    healthy = [world.engine(SHORT) for _ in range(2)]
    world.until(lambda: len(world.ledger("wait_at_gate")) == 2)
    stopped = world.engine(SHORT, "beat.before_commit:2:stop")
    world.until(lambda: is_stopped(stopped.pid), what="a worker that stands still")
    before = set(world.workers())
    hold = time.monotonic() + 2 * SHORT["lease"]
    world.until(lambda: time.monotonic() > hold)
    stopped.send_signal(signal.SIGCONT)
    effects.sequence.start(3).result(timeout=20)
    world.until(lambda: all(w.lease_until > world.app.store.now() for w in world.app.store.workers()), what="renewals")
    assert set(world.workers()) == before
    world.open_gate("go")
    assert [step.result(timeout=20) for step in steps] == ["go"] * 2
    assert len(world.ledger("wait_at_gate")) == 2
    assert all(process.poll() is None for process in healthy)


class JumpingClock(SystemClock):
    """The machine's time, as a person or a resumed laptop may set it."""

    offset = 0

    def now(self) -> int:
        return super().now() + self.offset


def test_a_clock_that_is_set_forward_kills_nobody(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = JumpingClock()
    monkeypatch.setattr(world.app.storage, "clock", clock)
    settings = Settings(**SHORT)
    with world.app.worker(settings=settings), world.app.worker(settings=settings):
        run = effects.gated.start("go")
        world.until(lambda: world.ledger("wait_at_gate") and len(world.workers()) == 2)
        before = set(world.workers())
        clock.offset = 3_600 * 1_000_000
        world.until(lambda: all(w.lease_until > clock.now() for w in world.app.store.workers()), what="renewals")
        assert set(world.workers()) == before
        world.open_gate("go")
        assert run.result(timeout=20) == "go"
    assert len(world.ledger("wait_at_gate")) == 1


def is_stopped(pid: int) -> bool:
    with open(f"/proc/{pid}/stat") as file:
        return file.read().rpartition(")")[2].split()[0] == "T"
