"""What a worker gives up it does not begin any more: runs that are paused, taken over, cancelled, ended."""

from __future__ import annotations

import signal
from collections import Counter

import effects
import pytest
from world import World

from holdfast.core import events as ev

SHORT = {"lease": 1.0, "beat": 0.1, "sweep": 0.1}
STEPS = 60


def begun(world: World) -> int:
    return len(world.ledger("wait_at_gate"))


def open_all_gates(world: World) -> None:
    for i in range(STEPS):
        world.open_gate(f"queued-{i}")


def check_begun_once(world: World) -> None:
    counts = Counter(entry.note for entry in world.ledger("wait_at_gate"))
    assert len(counts) == STEPS
    assert not {note: count for note, count in counts.items() if count > 1}


def test_a_paused_run_begins_nothing_more(world: World) -> None:
    world.engine(SHORT)
    run = effects.queued.start(STEPS)
    world.until(lambda: begun(world) >= 16, what="a full pool of threads")
    run.pause("for a while")
    world.until(lambda: run.status == "PAUSED")
    before = begun(world)
    open_all_gates(world)
    # What executed is posted to the run's inbox as it ends: by then its thread would have begun the next.
    world.until(
        lambda: len(world.app.store.orders(run.id)) == 0 and posted(world, run.id) == before, what="the outcomes"
    )
    assert effects.sequence.start(2).result(timeout=20) == 1
    assert begun(world) == before
    run.resume()
    assert run.result(timeout=30) == STEPS
    check_begun_once(world)
    world.check_histories()


def posted(world: World, run_id: str) -> int:
    with world.app.store.read() as db:  # type: ignore[attr-defined]
        return int(db.execute("SELECT count(*) FROM inbox WHERE kind = 'outcome'").fetchone()[0])


def test_no_queued_step_is_executed_twice_when_a_run_goes_back_and_forth_between_workers(world: World) -> None:
    for _ in range(2):
        world.engine(SHORT)
    run = effects.queued.start(STEPS)
    for _ in range(6):
        world.until(lambda: begun(world) >= 1)
        run.pause()
        world.until(lambda: run.status == "PAUSED")
        run.resume()
        world.until(lambda: run.status != "PAUSED")
    open_all_gates(world)
    assert run.result(timeout=40) == STEPS
    counts = Counter(entry.note for entry in world.ledger("wait_at_gate"))
    # Steps that execute while the run changes hands may be executed by both: a thread can't be taken back. All that
    # waited for one is begun once.
    executing = 2 * 16
    assert sum(count - 1 for count in counts.values()) <= executing
    world.check_histories()


def test_steps_of_a_cancelled_run_that_have_not_begun_never_do(world: World) -> None:
    world.engine(SHORT)
    run = effects.queued.start(STEPS)
    world.until(lambda: begun(world) >= 16, what="a full pool of threads")
    run.cancel("not wanted")
    world.until(lambda: run.status == "CANCELLED")
    before = begun(world)
    open_all_gates(world)
    assert effects.plain.start(2).result(timeout=20) == 8, "a thread is free, so whatever waited before it had its turn"
    assert begun(world) == before


def test_a_worker_that_thaws_begins_nothing_of_what_others_took_over(world: World) -> None:
    frozen = world.engine(SHORT)
    run = effects.queued.start(STEPS)
    world.until(lambda: begun(world) >= 16, what="a full pool of threads")
    (old,) = world.workers()
    world.freeze(frozen)
    open_all_gates(world)  # the frozen one's threads would begin the next ones as soon as it thaws
    world.engine(SHORT)
    assert run.result(timeout=40) == STEPS
    assert old not in world.workers()
    by_frozen = len([e for e in world.ledger("wait_at_gate") if e.pid == frozen.pid])
    frozen.send_signal(signal.SIGCONT)
    world.until(lambda: frozen.pid in world.pids(), what="the thawed worker as a new one")
    runs = [effects.plain.start(2) for _ in range(20)]
    assert [r.result(timeout=20) for r in runs] == [8] * 20
    assert len([e for e in world.ledger("wait_at_gate") if e.pid == frozen.pid]) == by_frozen
    world.check_histories()


# -- at most once


@pytest.mark.parametrize("lead", [0.0, 0.3])
def test_a_step_at_most_once_is_begun_once_although_its_worker_is_killed(world: World, lead: float) -> None:
    run = effects.only_once.start("never")
    worker = world.worker()
    world.until(lambda: world.ledger("once"))
    if lead:
        world.until(lambda: run.steps[0].state == "STARTED")
    world.kill(worker)
    world.worker()
    with pytest.raises(effects.WorkerLostError):
        run.result(timeout=20)
    assert len(world.ledger("once")) == 1
    world.check_histories()


def test_a_step_at_most_once_that_kills_its_worker_at_once_is_not_begun_again(world: World) -> None:
    run = effects.once_and_dead.start()
    world.worker()
    world.until(lambda: world.ledger("once_deadly"))
    world.worker()
    assert "at most once" in run.result(timeout=20)
    assert len(world.ledger("once_deadly")) == 1


def test_a_step_at_most_once_is_not_begun_again_after_a_stop_that_could_not_wait_for_it(world: World) -> None:
    run = effects.only_once.start("never")
    worker = world.engine({"grace": 0.1})
    world.until(lambda: world.ledger("once"))
    world.stop(worker)
    world.worker()
    with pytest.raises(effects.WorkerLostError):
        run.result(timeout=20)
    assert len(world.ledger("once")) == 1


@pytest.mark.parametrize("how", ["pause", "stop"])
def test_a_step_at_most_once_that_had_not_begun_is_executed_after_all(world: World, how: str) -> None:
    """Its start was announced, then it was taken back, and that is recorded."""
    worker = world.engine({**SHORT, "grace": 0.1})
    run = effects.once_each.start(40)
    world.until(lambda: len(world.ledger("once")) >= 16, what="a full pool of threads")
    before = {entry.note for entry in world.ledger("once")}
    if how == "pause":
        run.pause()
        world.until(lambda: run.status == "PAUSED")
    else:
        world.stop(worker)
    for i in range(40):
        world.open_gate(f"once-{i}")
    if how == "stop":
        world.engine(SHORT)
        with pytest.raises(effects.WorkerLostError):
            run.result(timeout=20)
    else:
        run.resume()
        assert run.result(timeout=20) == 40
    counts = Counter(entry.note for entry in world.ledger("once"))
    assert set(counts.values()) == {1}, "never twice"
    withdrawn = [e.cmd for e in world.events(run.id) if isinstance(e, ev.StepWithdrawn)]
    assert len(withdrawn) == 40 - len(before)
    world.check_histories()
