"""Workflow code that takes its worker down: a bounded number of times, and alone."""

from __future__ import annotations

import signal
import time

import effects
import pytest
from world import World

from holdfast import RunStuckError
from holdfast.core import events as ev
from warm_python import Process


def keep_workers(world: World, workers: list[Process], count: int) -> int:
    """As a supervisor would: start another for each that is gone. How many are gone so far."""
    alive = [worker for worker in workers if worker.poll() is None]
    workers += [world.worker() for _ in range(count - len(alive))]
    return len(workers) - count


@pytest.mark.parametrize("how", ["exit", "segfault", "kill"])
def test_code_that_kills_its_worker_is_set_aside_and_others_go_on(world: World, how: str) -> None:
    innocent = [effects.sequence.options(id=f"s-{i}").start(10) for i in range(20)]
    innocent += [effects.nap.options(id=f"n-{i}").start(1) for i in range(10)]
    asking = effects.question.options(id="asking").start()
    bad = effects.killer.options(id="bad").start(how)
    workers: list[Process] = []

    def over() -> bool:
        keep_workers(world, workers, 2)
        return bad.status == "STUCK" and all(run.status.is_final for run in innocent)

    world.until(over, 30)
    lost = keep_workers(world, workers, 2)
    assert lost == 3, f"{lost} workers were lost"
    assert {run.status for run in innocent} == {"SUCCESS"}
    with pytest.raises(RunStuckError, match=r"'killer' took its worker down 3 times"):
        bad.result(timeout=1)
    kinds = [e.kind for e in world.events("bad")]
    assert kinds[-3:] == ["RunProbed", "RunProbed", "RunStuck"]
    for answer in ("yes", "no"):
        asking.send("answer", answer)
    assert asking.result(timeout=20) == "yes no", "a run that only waits is blamed for nothing"
    world.check_histories()
    bad.cancel()
    world.until(lambda: bad.status == "CANCELLED")
    bad.delete()


def test_a_run_that_waits_is_not_blamed_for_workers_that_are_killed_from_outside(world: World) -> None:
    run = effects.question.start()
    for _ in range(6):
        worker = world.worker()
        world.until(lambda pid=worker.pid: run.status == "WAITING" and pid in world.pids())
        world.until(lambda: world.app.store.get(run.id).owner in (*world.workers(), None))  # type: ignore[union-attr]
        world.kill(worker)
    world.worker()
    run.send("answer", "a")
    run.send("answer", "b")
    assert run.result(timeout=20) == "a b"
    assert not [e for e in world.events(run.id) if isinstance(e, ev.RunStuck)]


def test_a_run_whose_killing_code_was_corrected_goes_on(world: World) -> None:
    run = effects.killer.options(id="bad").start("exit")
    workers: list[Process] = []

    def is_stuck() -> bool:
        keep_workers(world, workers, 1)
        return run.status == "STUCK"

    world.until(is_stuck, 30)
    for worker in workers:
        if worker.poll() is None:
            world.stop(worker)
    world.worker(EFFECTS_TAMED="1")
    run.resume()
    assert run.result(timeout=20) is None
    world.check_histories()


IMPATIENT = "import holdfast.cli.worker as w; w.FROZEN = 1.0; from holdfast.cli import main; main()"


def test_a_worker_whose_interpreter_is_held_by_native_code_ends_itself_and_says_where(world: World) -> None:
    """Nothing in it can run any more, not even its watchdog: whoever supervises it starts another one."""
    run = effects.killer.options(id="bad").start("freeze")
    worker = world.python("-c", IMPATIENT, "-A", "effects", "worker")
    assert worker.wait(60) == -signal.SIGVTALRM
    assert "effects.py" in world.log()
    assert "in killer" in world.log()
    innocent = effects.sequence.start(3)
    world.worker()
    assert innocent.result(timeout=20) == 3, "the killer comes last, and innocents go on"
    assert not run.status.is_final


def test_a_worker_that_was_stopped_for_longer_is_not_taken_for_frozen(world: World) -> None:
    worker = world.python("-c", IMPATIENT, "-A", "effects", "worker")
    world.until(lambda: worker.pid in world.pids())
    worker.send_signal(signal.SIGSTOP)
    time.sleep(1.5)  # longer than it may be frozen, in real time
    worker.send_signal(signal.SIGCONT)
    assert effects.sequence.start(3).result(timeout=20) == 3
    assert worker.poll() is None
