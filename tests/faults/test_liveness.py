"""Nobody starves, nobody polls, nobody spins; and whoever is asked to stop leaves nothing behind."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter

import effects
from world import World

from holdfast.core import events as ev
from warm_python import Process


def cpu_seconds(pid: int) -> float:
    with open(f"/proc/{pid}/stat") as file:
        fields = file.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


BUSY = """
import os, effects
count = open(os.environ["EFFECTS_LEDGER"] + f".entered-{os.getpid()}", "ab", buffering=0)
while True:
    with effects.app.store.write("commit") as db:
        count.write(b".")
        db.execute("REPLACE INTO meta VALUES ('noise', ?)", (os.urandom(20_000),))
"""


def test_a_process_that_commits_back_to_back_does_not_starve_the_start_of_another(world: World) -> None:
    """How often it writes while that waits, as time says nothing on a busy machine."""
    busy = world.python("-c", BUSY)

    def entered() -> int:
        return sum(file.stat().st_size for file in world.folder.glob("ledger.entered-*"))

    world.until(lambda: entered() > 50, what="a process that is busy")
    waited = []
    for number in range(100):
        begin = entered()
        effects.sequence.options(id=f"other-{number}", delay=3600).start(1)
        waited.append(entered() - begin)
    assert busy.poll() is None
    waited.sort()
    print(f"others that wrote during start(): median {waited[50]}, p90 {waited[90]}, most {waited[-1]}")
    assert waited[90] <= 10, "two are usual; without a turnstile it is fifty and more"


def test_a_start_wakes_a_worker_in_another_process_without_its_sweep(world: World) -> None:
    worker = world.engine({"sweep": 30.0})
    world.until(lambda: world.workers())
    effects.sequence.start(1).result(timeout=20)  # everything is imported and open
    times = []
    for _ in range(20):
        begin = time.perf_counter()
        assert effects.sequence.start(1).result(timeout=20) == 0
        times.append(time.perf_counter() - begin)
    times.sort()
    print(f"start to result across processes: median {times[10] * 1e3:.1f} ms, worst {times[-1] * 1e3:.1f} ms")
    assert times[17] < 0.5
    assert times[-1] < 5
    assert worker.poll() is None


def test_all_else_is_pushed_too(world: World) -> None:
    """Hooks, children, delayed starts, cancels: none of them waits for the sweep."""
    world.engine({"sweep": 30.0})
    world.until(lambda: world.workers())
    effects.sequence.start(1).result(timeout=20)
    begin = time.perf_counter()
    question = effects.question.start()
    question.send("answer", "yes")
    question.send("answer", "no")
    assert question.result(timeout=20) == "yes no"
    assert effects.family.start(2).result(timeout=20) == [100, 101]
    assert effects.sequence.options(delay=0.1).start(1).result(timeout=20) == 0
    assert effects.second_try.start().result(timeout=20) == 12
    assert effects.stubborn.start(2).result(timeout=20) == 3
    waiting = effects.question.start()
    world.until(lambda: waiting.status == "WAITING")
    waiting.cancel()
    world.until(lambda: waiting.status == "CANCELLED")
    assert time.perf_counter() - begin < 3


def test_a_parked_run_is_woken_by_a_message_and_by_time(world: World) -> None:
    world.engine({"sweep": 60.0, "park_after": 0.05})  # which would find both, too late
    world.until(lambda: world.workers())
    napping, asked = effects.nap.start(3), effects.question.start()
    for run in (napping, asked):
        world.until(lambda run=run: world.app.store.get(run.id).owner is None and run.status == "WAITING")  # type: ignore[union-attr]
    asked.send("answer", "yes")
    asked.send("answer", "no")
    assert asked.result(timeout=20) == "yes no"
    assert napping.result(timeout=20) == 3


def idle_share(world: World, worker: Process, seconds: float = 3.0) -> float:
    before, begin = cpu_seconds(worker.pid), time.monotonic()
    world.until(lambda: time.monotonic() - begin > seconds, seconds + 5)
    return (cpu_seconds(worker.pid) - before) / seconds


def test_an_idle_worker_costs_no_cpu(world: World) -> None:
    worker = world.worker()
    world.until(lambda: world.workers())
    asleep = [effects.nap.start(3600) for _ in range(50)] + [effects.question.start() for _ in range(50)]
    asleep += [effects.fleeting_nap.start(3600)]
    world.until(lambda: all(run.status == "WAITING" for run in asleep))
    share = idle_share(world, worker)
    print(f"an idle worker with {len(asleep)} waiting runs: {share:.1%} of a core")
    assert share < 0.05


def test_a_worker_that_is_full_does_not_spin(world: World) -> None:
    """It has all the runs it may hold, and others wait."""
    worker = world.engine({"max_live": 3, "sweep": 1.0})
    for _ in range(10):
        effects.gated.start("end")
    world.until(lambda: len(world.ledger("wait_at_gate")) == 3)
    share = idle_share(world, worker, 2.0)
    print(f"a worker with all the runs it may hold: {share:.1%} of a core")
    assert share < 0.5, "its steps look at their gate all the time; an engine that spins takes all of a core"
    assert len(world.ledger("wait_at_gate")) == 3
    world.open_gate("end")
    world.until(world.is_done)
    assert len(world.ledger("wait_at_gate")) == 10


def test_sigterm_lets_steps_finish_and_records_them(world: World) -> None:
    runs = [effects.gated.options(id=f"gated-{i}").start("end") for i in range(5)]
    runs += [effects.long.options(id="long").start(0.5)]
    first = world.worker()
    world.until(lambda: len(world.ledger("wait_at_gate")) == 5 and len(world.ledger("slow")) == 1)
    first.send_signal(signal.SIGTERM)
    late = effects.sequence.options(id="late").start(3)
    world.open_gate("end")
    assert first.wait(20) == 0
    assert not world.workers()
    for run in runs:
        ended = [e for e in world.events(run.id) if isinstance(e, ev.StepCompleted) and e.name != "add"]
        assert len(ended) == 1, f"the outcome of {run.id} is recorded before the worker leaves"
    assert late.status == "PENDING", "nothing new was begun"
    second = world.worker()
    assert [run.result(timeout=20) for run in runs] == ["end"] * 5 + ["done"]
    assert late.result(timeout=20) == 3
    counts = Counter((entry.key, entry.attempt) for entry in world.ledger())
    assert set(counts.values()) == {1}, "nothing is executed twice"
    world.stop(second)
    for run in runs:
        assert world.app.store.get(run.id).losses == 0  # type: ignore[union-attr]


def test_a_second_sigterm_does_not_wait(world: World) -> None:
    run = effects.gated.start("end")
    first = world.worker()
    world.until(lambda: world.ledger("wait_at_gate"))
    first.send_signal(signal.SIGTERM)
    begin = time.monotonic()
    world.until(lambda: first.send_signal(signal.SIGTERM) or first.poll() is not None, 8)
    assert time.monotonic() - begin < 8, "its grace is 10 s"
    assert not world.workers()
    world.open_gate("end")
    world.worker()
    assert run.result(timeout=20) == "end"


def test_what_a_stopped_worker_leaves_is_taken_over_at_once(world: World) -> None:
    """Two workers with a long sweep: the one that leaves rings the other."""
    first = world.engine({"sweep": 30.0, "grace": 0.0})
    run = effects.gated.start("end")
    world.until(lambda: world.ledger("wait_at_gate"))
    world.engine({"sweep": 30.0})
    world.until(lambda: len(world.workers()) == 2)
    world.open_gate("end")
    begin = time.monotonic()
    assert world.stop(first) == 0
    assert run.result(timeout=20) == "end"
    assert time.monotonic() - begin < 5
