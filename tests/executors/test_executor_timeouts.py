"""A timeout ends its attempt at its time, whatever the code does, and costs the others nothing."""

from __future__ import annotations

import logging
import threading
from pathlib import Path

import executor_steps
import pytest
from executor_bench import Bench, is_running, open_bench

from holdfast.errors import StepTimeoutError
from holdfast.executors import loops


@pytest.fixture(autouse=True)
def _no_resource_is_open() -> None:
    executor_steps.opened.clear()


STUBBORN = [
    ("waits", "thread"),
    ("awaits", "thread"),
    ("swallows", "thread"),
    ("cleans_up_slowly", "thread"),
    ("blocks", "thread"),
    ("blocks_in_a_task", "thread"),
    ("waits", "process"),
    ("swallows", "process"),
    ("blocks", "process"),
    ("computes", "process"),
    ("computes_on_loop", "process"),
    ("forks", "process"),
    ("spawns", "process"),
]


def in_pool(wanted: str) -> list[str]:
    return [step for step, pool in STUBBORN if pool == wanted]


def end_by_timeout(bench: Bench, steps: list[str], pool: str, timeout: float) -> None:
    gates = [bench.gate() for _ in steps]
    tokens = [
        bench.submit(step, gate.path, pool=pool, timeout=timeout) for step, gate in zip(steps, gates, strict=True)
    ]
    for step, gate, token in zip(steps, gates, tokens, strict=True):
        outcome = bench.outcome(token)
        assert isinstance(outcome.error, StepTimeoutError), step
        assert outcome.encoded_error is not None
        assert gate.began(), f"{step}: it is the timeout of code that executes"


@pytest.mark.parametrize("step", in_pool("thread"))
def test_a_timeout_ends_its_attempt_while_the_code_goes_on(tmp_path: Path, step: str) -> None:
    with open_bench(tmp_path) as bench:
        end_by_timeout(bench, [step], "thread", 0.7)


def test_timeouts_end_attempts_in_processes_while_their_code_goes_on(tmp_path: Path) -> None:
    steps = in_pool("process")
    with open_bench(tmp_path, processes=len(steps)) as bench:
        end_by_timeout(bench, steps, "process", 4)


@pytest.mark.parametrize("step", ["swallows", "cleans_up_slowly", "blocks", "blocks_in_a_task"])
def test_an_async_step_that_timed_out_has_left_its_slot(tmp_path: Path, step: str) -> None:
    with open_bench(tmp_path, tasks=1) as bench:
        gate = bench.gate()
        stubborn = bench.submit(step, gate.path, timeout=0.3)
        gate.until_begun()
        following = bench.submit("on_loop", 1)
        assert isinstance(bench.outcome(stubborn).error, StepTimeoutError)
        assert bench.result(following) == 2, "though the other one still executes"


@pytest.mark.parametrize("step", ["forks", "spawns", "computes"])
def test_a_process_step_that_timed_out_has_left_its_slot_and_nothing_runs_on(tmp_path: Path, step: str) -> None:
    with open_bench(tmp_path, processes=1) as bench:
        gate = bench.gate()
        stubborn = bench.submit(step, gate.path, pool="process", timeout=3)
        pid = gate.until_begun()
        following = bench.submit("plain", 1, pool="process")
        assert isinstance(bench.outcome(stubborn).error, StepTimeoutError)
        assert bench.result(following) == 2
        bench.until(lambda: not is_running(pid), what=f"the end of {pid}, which the step has started")


@pytest.mark.parametrize("step", ["forks", "spawns"])
def test_what_a_cancelled_process_step_has_started_ends_with_it(tmp_path: Path, step: str) -> None:
    with open_bench(tmp_path, processes=1) as bench:
        gate = bench.gate()
        token = bench.submit(step, gate.path, pool="process")
        pid = gate.until_begun()
        bench.executor.cancel(token)
        assert bench.outcome(token).cancelled
        bench.until(lambda: not is_running(pid), what=f"the end of {pid}, which the step has started")
        assert bench.result(bench.submit("plain", 1, pool="process")) == 2


def test_a_process_that_died_is_lost_at_once_though_it_left_a_child_behind(tmp_path: Path) -> None:
    with open_bench(tmp_path, processes=1) as bench:
        gate = bench.gate()
        outcome = bench.outcome(bench.submit("dies_and_leaves_a_child", gate.path, pool="process"))
        assert outcome.lost
        (pid,) = gate.began()
        bench.until(lambda: not is_running(pid), what=f"the end of {pid}, which the step has started")


# -- a loop that is blocked


def test_async_steps_leave_a_blocked_loop_for_a_fresh_one_and_who_blocks_it_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with open_bench(tmp_path) as bench, caplog.at_level(logging.ERROR, "holdfast.executor"):
        old = bench.result(bench.submit("loop_thread_name"))
        gate = bench.gate()
        blocking = bench.submit("blocks", gate.path, timeout=0.2)
        gate.until_begun()
        stranded = [bench.submit("loop_thread_name") for _ in range(20)]
        assert isinstance(bench.outcome(blocking).error, StepTimeoutError)
        (fresh,) = {bench.result(token) for token in stranded}
        assert fresh != old
        (message,) = [each.getMessage() for each in caplog.records if each.name != "asyncio"]
        assert f"async step 'blocks' of run run-{blocking} blocks the event loop at " in message
        assert "executor_steps.py:" in message
        assert "in blocks" in message
        assert repr(old) in message
        assert old in [thread.name for thread in threading.enumerate()]
        gate.open()
        bench.until(
            lambda: old not in [thread.name for thread in threading.enumerate()], what="the end of the old loop"
        )
        assert bench.result(bench.submit("loop_thread_name")) == fresh


def test_a_step_without_a_timeout_that_blocks_the_loop_for_long_is_left_alone_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loops, "ANSWERS_WITHIN", 0.1)
    monkeypatch.setattr(loops, "LONGEST_BLOCK", 0.5)
    with open_bench(tmp_path) as bench:
        gate = bench.gate()
        blocking = bench.submit("blocks", gate.path)
        gate.until_begun()
        assert bench.result(bench.submit("on_loop", 1)) == 2
        gate.open()
        assert bench.result(blocking) == "done", "its outcome counts, as nothing has ended it"


def test_what_was_under_way_on_a_blocked_loop_goes_on_there_when_it_is_free(tmp_path: Path) -> None:
    with open_bench(tmp_path) as bench:
        awaited, gate = bench.gate(), bench.gate()
        under_way = bench.submit("awaits", awaited.path)
        awaited.until_begun()
        blocking = bench.submit("blocks", gate.path, timeout=0.2)
        bench.outcome(blocking)
        assert bench.result(bench.submit("on_loop", 1)) == 2
        awaited.open()
        gate.open()
        assert bench.result(under_way) == "done"
        assert len(awaited.began()) == 1, "nothing was begun twice"


def test_a_resource_of_a_blocked_loop_is_opened_anew_and_closed_when_the_loop_is_free(tmp_path: Path) -> None:
    with open_bench(tmp_path) as bench:
        gate = bench.gate()
        blocking = bench.submit("blocks_connected", gate.path, timeout=0.3)
        bench.outcome(blocking)
        line, thread = bench.result(bench.submit("connected"))
        assert line == thread, "it lives on the loop of the step that takes it"
        old = executor_steps.opened[0].removeprefix("opened on ")
        assert executor_steps.opened == [f"opened on {old}", f"opened on {thread}"]
        gate.open()
        bench.until(lambda: len(executor_steps.opened) == 3, what="the end of the old one")
        assert executor_steps.opened[2] == f"closed on {old}"
        assert bench.result(bench.submit("connected")) == [line, thread]
    assert executor_steps.opened[3:] == [f"closed on {thread}"]


def test_a_loop_that_many_steps_keep_busy_is_not_taken_for_blocked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Each piece of work is short, and a round of them takes longer than a step may block."""
    monkeypatch.setattr(loops, "ANSWERS_WITHIN", 0.1)
    monkeypatch.setattr(loops, "LONGEST_BLOCK", 0.5)
    monkeypatch.setattr(loops, "LOOK", 0.05)
    with open_bench(tmp_path) as bench, caplog.at_level(logging.ERROR, "holdfast.executor"):
        name = bench.result(bench.submit("loop_thread_name"))
        busy = [bench.submit("busy_in_pieces", 1.5) for _ in range(150)]
        for token in busy:
            bench.result(token)
        assert bench.result(bench.submit("loop_thread_name")) == name
        assert caplog.messages == []


@pytest.mark.parametrize("how", ["task", "callback", "stop"])
def test_code_on_the_loop_can_not_end_it(tmp_path: Path, how: str) -> None:
    with open_bench(tmp_path) as bench:
        for _ in range(2):
            assert bench.result(bench.submit("ends_the_loop", how)) == "done"
        assert bench.result(bench.submit("ends_the_loop", how, pool="process")) == "done"


# -- stopping


@pytest.mark.parametrize(("step", "pool"), STUBBORN)
def test_an_executor_stops_whatever_its_steps_do(tmp_path: Path, step: str, pool: str) -> None:
    with open_bench(tmp_path) as bench:
        gate = bench.gate()
        token = bench.submit(step, gate.path, pool=pool)
        gate.until_begun()
        stopping = threading.Thread(target=lambda: (bench.executor.stop(0), bench.executor.close()), daemon=True)
        stopping.start()
        stopping.join(20)
        assert not stopping.is_alive()
        assert bench.outcome(token).cancelled


def test_the_resource_of_a_loop_that_is_blocked_at_the_end_is_named_and_left(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with open_bench(tmp_path) as bench, caplog.at_level(logging.ERROR, "holdfast.executor"):
        gate = bench.gate()
        bench.submit("blocks_connected", gate.path)
        gate.until_begun()
        bench.executor.stop(0)
        bench.executor.close()
        (message,) = [each.getMessage() for each in caplog.records if each.name != "asyncio"]
        assert "async step 'blocks_connected' of run run-1 still blocks thread 'holdfast-async' at " in message
        assert message.endswith("resources on its loop are not closed: connection")
