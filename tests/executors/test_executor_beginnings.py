"""What has not begun can be taken back, and what begins asks whether it is still wanted."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest
from executor_bench import Bench, open_bench

POOLS = [
    pytest.param("waits", "plain", "thread", {"threads": 1}, id="thread"),
    pytest.param("awaits", "on_loop", "thread", {"tasks": 1}, id="loop"),
    pytest.param("waits", "plain", "process", {"processes": 1}, id="process"),
]


@pytest.mark.parametrize(("holds", "step", "pool", "one"), POOLS)
def test_what_waits_for_its_turn_is_taken_back_for_good(
    tmp_path: Path, holds: str, step: str, pool: str, one: dict[str, int]
) -> None:
    with open_bench(tmp_path, **one) as bench:
        first, never = bench.gate(), bench.gate()
        executing = bench.submit(holds, first.path, pool=pool)
        first.until_begun()
        waiting = [bench.submit(holds, never.path, pool=pool) for _ in range(20)]
        kept = bench.submit(step, 1, pool=pool)
        assert bench.executor.withdraw([executing, *waiting, 10_000]) == set(waiting)
        assert bench.executor.withdraw(waiting) == set()
        first.open()
        assert bench.result(executing) == "done"
        assert bench.result(kept) == 2, "they were behind each other"
        assert never.began() == []
        assert not any(token in bench.outcomes for token in waiting)


def test_a_process_step_is_taken_back_also_while_its_process_starts(tmp_path: Path) -> None:
    with open_bench(tmp_path, processes=1) as bench:
        gate = bench.gate()
        token = bench.submit("waits", gate.path, pool="process")
        bench.until(lambda: bench.executor._processes._busy, what="a process that starts")
        assert bench.executor.withdraw([token]) == {token}
        assert bench.result(bench.submit("plain", 1, pool="process")) == 2
        assert gate.began() == []
        assert token not in bench.outcomes


@pytest.mark.parametrize("step", ["plain", "on_loop"])
def test_an_attempt_is_taken_back_or_begins_and_never_both(tmp_path: Path, step: str) -> None:
    begun: set[int] = set()

    with open_bench(tmp_path, may_begin=lambda: True) as bench:
        run = bench.executor.runner
        _note_what_begins(run, begun)
        taken: set[int] = set()
        for size in range(1, 120):
            attempts = [bench.attempt(step, 1) for _ in range(size)]
            tokens = [attempt.token for attempt in attempts]
            bench.executor.submit(attempts)
            if size % 3:
                time.sleep(0.0001 * (size % 7))
            taken |= bench.executor.withdraw(tokens)
        last = next(bench._tokens)
        bench.until(lambda: len(bench.outcomes) + len(taken) == last - 1, what="an end of each attempt")
        assert not taken & begun
        assert begun == set(bench.outcomes)
        assert taken, "else nothing was tried"
        assert begun, "else nothing was tried"


def _note_what_begins(runner: Any, begun: set[int]) -> None:
    run, arun = runner.run, runner.arun

    def noting(definition: Any, context: Any) -> Any:
        begun.add(context.attempt.token)
        return run(definition, context)

    async def anoting(definition: Any, context: Any) -> Any:
        begun.add(context.attempt.token)
        return await arun(definition, context)

    runner.run, runner.arun = noting, anoting


@pytest.mark.parametrize(("holds", "step", "pool", "one"), POOLS)
def test_what_is_no_longer_wanted_when_it_would_begin_does_not(
    tmp_path: Path, holds: str, step: str, pool: str, one: dict[str, int]
) -> None:
    wanted = threading.Event()
    wanted.set()
    with open_bench(tmp_path, may_begin=wanted.is_set, **one) as bench:
        first, never = bench.gate(), bench.gate()
        executing = bench.submit(holds, first.path, pool=pool)
        first.until_begun()
        waiting = [bench.submit(holds, never.path, pool=pool) for _ in range(5)]
        wanted.clear()
        first.open()
        assert bench.result(executing) == "done", "it had begun"
        assert all(bench.outcome(token).cancelled for token in waiting)
        assert never.began() == []
        wanted.set()
        assert bench.result(bench.submit(step, 1, pool=pool)) == 2


def test_what_is_taken_back_while_it_asks_whether_it_is_wanted_does_not_begin(tmp_path: Path) -> None:
    """A worker that was frozen past its lease thaws: one thread asks the store, others wait for its answer. Meanwhile the
    engine lets go of all runs and begins again as a new worker, and the answer for that one is yes."""
    asked, answer = threading.Event(), threading.Event()

    def may_begin() -> bool:
        asked.set()
        return answer.wait(10)

    with open_bench(tmp_path, may_begin=may_begin) as bench:
        gate = bench.gate()
        gate.open()
        token = bench.submit("waits", gate.path)
        asked.wait(10)
        taken = bench.executor.withdraw([token])
        answer.set()
        assert bench.result(bench.submit("plain", 1)) == 2
        assert taken == {token}
        assert gate.began() == []


@pytest.mark.parametrize(("holds", "step", "pool", "one"), POOLS)
def test_what_waits_is_cancelled_at_once_and_does_not_begin(
    tmp_path: Path, holds: str, step: str, pool: str, one: dict[str, int]
) -> None:
    with open_bench(tmp_path, **one) as bench:
        first, never = bench.gate(), bench.gate()
        executing = bench.submit(holds, first.path, pool=pool)
        first.until_begun()
        waiting = bench.submit(holds, never.path, pool=pool)
        assert bench.executor.started_at(executing) is not None
        assert bench.executor.started_at(waiting) is None
        bench.executor.cancel(waiting)
        assert bench.outcomes[waiting][0].cancelled
        first.open()
        assert bench.result(bench.submit(step, 1, pool=pool)) == 2
        assert never.began() == []


# -- many plain steps


def test_a_plain_step_that_waits_does_not_hold_up_those_behind_it(tmp_path: Path) -> None:
    """One thread takes them in a row, and the next one goes on as soon as the first has to wait."""
    with open_bench(tmp_path, threads=4) as bench:
        gates = [bench.gate() for _ in range(3)]
        attempts = [bench.attempt("waits", gate.path) for gate in gates] + [
            bench.attempt("plain", 1) for _ in range(500)
        ]
        bench.executor.submit(attempts)
        for attempt in attempts[3:]:
            assert bench.result(attempt.token) == 2
        for gate in gates:
            gate.until_begun()
            gate.open()
        for attempt in attempts[:3]:
            assert bench.result(attempt.token) == "done"


def test_no_more_threads_execute_than_there_may_be(tmp_path: Path) -> None:
    with open_bench(tmp_path, threads=3) as bench:
        gates = [bench.gate() for _ in range(6)]
        for gate in gates:
            bench.submit("waits", gate.path)
        bench.until(lambda: _begun(bench, gates) == 3)
        time.sleep(0.05)
        assert _begun(bench, gates) == 3
        for n, gate in enumerate(gates):
            gate.open()
            bench.until(lambda n=n: _begun(bench, gates) == min(6, 4 + n))


def _begun(bench: Bench, gates: list[Any]) -> int:
    return sum(bool(gate.began()) for gate in gates)


@pytest.mark.parametrize("step", ["plain", "on_loop"])
def test_attempts_from_several_threads_all_end(tmp_path: Path, step: str) -> None:
    with open_bench(tmp_path, threads=3) as bench:

        def submit() -> None:
            for n in range(300):
                bench.submit(step, n)

        threads = [threading.Thread(target=submit) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        bench.until(lambda: len(bench.outcomes) == 1_200, what="all outcomes")
