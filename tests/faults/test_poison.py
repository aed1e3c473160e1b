"""Steps that kill their worker."""

from __future__ import annotations

import effects
import pytest
from world import World

from holdfast import WorkerLostError
from holdfast.core import events as ev


def test_a_step_that_kills_its_worker_ends_in_an_error_and_its_neighbours_finish(world: World) -> None:
    neighbours = [effects.long.options(id=f"long-{i}").start(0.3) for i in range(3)]
    neighbours += [effects.sequence.options(id=f"sequence-{i}").start(20) for i in range(3)]
    waiting = effects.nap.options(id="waiting").start(0.5)
    first, second = world.worker(), world.worker()
    world.until(lambda: len(world.workers()) == 2)
    world.until(lambda: len(world.ledger("slow")) == 3)
    run = effects.poisoned.start()
    with pytest.raises(WorkerLostError, match=r"took its worker down 3 times.*max_losses"):
        run.result(timeout=30)
    assert len(world.ledger("poison")) == 3, "as often as max_losses allows"
    assert [neighbour.result(timeout=20) for neighbour in neighbours] == ["done"] * 3 + [190] * 3
    assert waiting.result(timeout=20) == 3
    dead = [worker for worker in (first, second) if worker.poll() is not None]
    assert len(dead) == 1, "after the first loss the suspect has a process of its own"
    world.check_histories()
    for neighbour in neighbours:
        lost = [event for event in world.events(neighbour.id) if isinstance(event, ev.StepLost)]
        assert len(lost) <= 1, f"{neighbour.id} is blamed: {lost}"


def test_good_work_beside_poison_in_the_same_run_is_kept(world: World) -> None:
    """Each outcome beside it makes the run unsuspicious again, but not the step."""
    run = effects.beside_poison.start(200)
    workers = [world.worker() for _ in range(2)]
    assert run.result(timeout=40) == "19900 WorkerLostError"
    assert len([worker for worker in workers if worker.poll() is not None]) == 1
    assert len(world.ledger("poison")) <= 4
    world.check_histories()


def test_three_lost_workers_are_needed_also_where_the_start_was_recorded(world: World) -> None:
    """A long step whose workers are killed from outside: two are not enough."""
    run = effects.gated.start("late")
    for _ in range(2):
        worker = world.worker()
        number = len(world.ledger("wait_at_gate"))
        world.until(lambda number=number: len(world.ledger("wait_at_gate")) > number)
        world.until(lambda: world.events(run.id)[-1].kind == "StepStarted", what="a recorded start")
        world.kill(worker)
    world.worker()
    world.until(lambda: len(world.ledger("wait_at_gate")) == 3)
    world.open_gate("late")
    assert run.result(timeout=20) == "late"
    assert [e.kind for e in world.events(run.id)].count("StepLost") == 2
    world.check_histories()


def test_a_process_that_dies_takes_nothing_with_it(world: World) -> None:
    worker = world.worker()
    fine = effects.in_process.start(1)
    assert fine.result(timeout=30) == 2
    run = effects.dies_in_process.start()
    assert run.result(timeout=30) == "WorkerLostError"
    assert len(world.ledger("die_in_process")) == 3
    assert effects.in_process.start(2).result(timeout=30) == 3
    assert worker.poll() is None, "the worker survives"
    world.check_histories()


def test_the_processes_of_a_killed_worker_die_with_it(world: World) -> None:
    worker = world.worker()
    effects.gated_process.options(id="stuck").start("never")
    entry = world.until(lambda: world.ledger("wait_in_process"))[0]
    assert entry.pid != worker.pid
    world.kill(worker)
    world.until(lambda: not is_running(entry.pid), 5, "the end of its process")


def is_running(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


def test_a_lost_worker_does_not_make_a_fan_out_slow(world: World) -> None:
    """All of it is suspected, and shares one process."""
    run = effects.wide.start(200, -1)
    worker = world.worker()
    world.until(lambda: len(world.ledger("slow_or_deadly")) == 200)
    world.until(lambda: [e.kind for e in world.events(run.id)].count("StepStarted") == 200, what="recorded starts")
    world.kill(worker)
    world.worker()
    assert run.result(timeout=60) == 200
    pids = {entry.pid for entry in world.ledger("slow_or_deadly")[200:]}
    assert len(pids) == 1, "and that is not the worker's"
    assert pids != {worker.pid}
    world.check_histories()


def test_one_that_kills_among_many_is_found_and_the_others_are_not_blamed(world: World) -> None:
    run = effects.wide.start(40, 7)
    workers = [world.worker() for _ in range(2)]
    assert run.result(timeout=60) == 39
    assert sum(worker.poll() is not None for worker in workers) == 1, "after the first loss it has processes to kill"
    failed = [e for e in world.events(run.id) if isinstance(e, ev.StepFailed)]
    assert len(failed) == 1
    world.check_histories()
