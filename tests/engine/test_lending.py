"""The engine's thread is lent to steps while the engine waits. Whatever they do with it, others go on."""

from __future__ import annotations

import asyncio
import collections
import functools
import itertools
import os
import random
import signal
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast import App, Run, Workflow, sleep, use
from holdfast.engine import lending
from holdfast.engine.host import Host
from holdfast.errors import StepTimeoutError
from holdfast.executors import in_place

TURNER = "holdfast-engine"
PATIENCE = 20.0

app = App("lending")
gates: collections.defaultdict[str, threading.Event] = collections.defaultdict(threading.Event)
threads: list[str] = []
children: list[int] = []
numbers = itertools.count()


def note() -> None:
    threads.append(threading.current_thread().name)


def pass_gate(name: str) -> None:
    """Wait at a gate, if one is named."""
    note()
    if not name:
        return
    gates[name + " reached"].set()
    assert gates[name].wait(PATIENCE)


@app.step
async def awaits() -> None:
    note()
    await asyncio.sleep(0)


@app.step
async def blocks(gate: str) -> str:
    pass_gate(gate)
    return threading.current_thread().name


@app.step(timeout=0.1, max_retries=0)
async def blocks_too_long(gate: str) -> None:
    pass_gate(gate)


@app.step
def brief(gate: str = "") -> None:
    pass_gate(gate)


@app.step
async def lingers(gate: str) -> str:
    """Brief, or under way for as long as a gate is shut."""
    note()
    if gate:
        gates[gate + " reached"].set()
    while gate and not gates[gate].is_set():
        await asyncio.sleep(0.001)
    return threading.current_thread().name


@app.workflow
async def does(times: int) -> None:
    for _ in range(times):
        await awaits()


@app.workflow
def does_plainly(times: int, gate: str = "") -> int:
    for _ in range(times):
        brief(gate)
    return times


@app.workflow
async def is_held_up(gate: str) -> str:
    return await blocks(gate)


@app.workflow
async def times_out(gate: str) -> None:
    await blocks_too_long(gate)


@app.workflow
async def goes_with(gate: str) -> str:
    return await lingers(gate)


@app.workflow(durable=False)
def waits_in_a_plain_call(gate: str) -> None:
    holds(gate)


@app.step
def holds(gate: str) -> None:
    pass_gate(gate)


@app.step
async def dawdles(number: int, seconds: float) -> int:
    note()
    time.sleep(seconds)
    await asyncio.sleep(seconds / 2)
    return number


@app.step
def dawdles_plainly(number: int, seconds: float) -> int:
    note()
    time.sleep(seconds)
    return number


@app.workflow
async def goes_through(pauses: list[float]) -> list[int]:
    return [await dawdles(number, seconds) for number, seconds in enumerate(pauses)]


@app.workflow
def goes_through_plainly(pauses: list[float]) -> list[int]:
    return [dawdles_plainly(number, seconds) for number, seconds in enumerate(pauses)]


class Pulse:
    beats = 0


pulse = Pulse()


@app.resource
async def beating() -> AsyncIterator[Pulse]:
    loop = asyncio.get_running_loop()

    def beat() -> None:
        nonlocal timer
        pulse.beats += 1
        timer = loop.call_later(0.001, beat)

    timer = loop.call_later(0.001, beat)
    yield pulse
    timer.cancel()


@app.step
async def take_pulse(heart: Pulse = use(beating)) -> int:
    note()
    return heart.beats


@app.workflow
async def takes_a_pulse() -> int:
    return await take_pulse()


@app.workflow
async def takes_pulses(times: int) -> None:
    for _ in range(times):
        await take_pulse()


@app.step(max_retries=0)
def forks_a_child(really: bool) -> int:
    note()
    if really:
        children.append(os.fork())
        if not children[-1]:
            raise ValueError("the child has forgotten to end")
    return os.getpid()


@app.workflow
def forks(really: bool) -> int:
    return forks_a_child(really)


@app.workflow
async def sleeps() -> None:
    await sleep(0.2)


@pytest.fixture(autouse=True)
def fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(lending, "PAUSE", 0.05)
    monkeypatch.setattr(lending, "PAUSES", (0.05, 0.05))  # a busy machine may look like a step that blocks
    app.use_store(f"{tmp_path}/lending.db?sync=normal")
    threads.clear()
    gates.clear()
    yield
    for gate in list(gates.values()):  # nothing is left standing, whatever a test did
        gate.set()
    app.close()


def eventually(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def moves(host: Host) -> int:
    assert host._lending is not None
    return host._lending.turner


def lent(workflow: Callable[[], object]) -> None:
    """Until steps execute on the engine's thread: on a slow machine a long turn sends them to one of their own for a
    while."""

    def is_lent() -> bool:
        threads.clear()
        workflow()
        return set(threads) == {TURNER}

    eventually(is_lent)


def held_up(workflow: Callable[[str], Run[Any]]) -> tuple[Run[Any], threading.Event]:
    """A run with a step that blocks the engine's thread, for once, until the event is set."""
    for gate in map(str, itertools.islice(numbers, 100)):
        lent(lambda: workflow("").result(PATIENCE))
        threads.clear()
        run = workflow(gate)
        reached(gate)
        if threads[-1] == TURNER:
            return run, gates[gate]
        gates[gate].set()
        run.result(PATIENCE)
    raise AssertionError("the thread is never lent")


def reached(name: str) -> None:
    assert gates[f"{name} reached"].wait(PATIENCE)


def test_async_steps_execute_on_the_thread_that_waits_for_them() -> None:
    with app.worker():
        lent(lambda: does.start(3).result(PATIENCE))


def test_plain_steps_that_are_known_to_be_brief_do_so_too() -> None:
    with app.worker():
        does_plainly.start(1).result(PATIENCE)
        assert threads[0].startswith("holdfast-step")
        lent(lambda: does_plainly.start(3).result(PATIENCE))


def test_a_step_that_blocks_the_thread_holds_up_no_other_run_and_ends_as_usual() -> None:
    with app.worker() as host:
        held, gate = held_up(is_held_up.start)
        assert does_plainly.start(2).result(PATIENCE) == 2
        sleeps.start().result(PATIENCE)  # time alone brings it forward
        gate.set()
        assert held.result(PATIENCE)
        assert moves(host) >= 1


def test_a_brief_step_that_takes_long_for_once_holds_up_no_other_run_and_gets_a_thread_after_that() -> None:
    with app.worker() as host:
        held, gate = held_up(lambda gate: does_plainly.start(1, gate))
        does_plainly.start(2).result(PATIENCE)
        gate.set()
        held.result(PATIENCE)
        assert moves(host) >= 1
        threads.clear()
        does_plainly.start(1).result(PATIENCE)
        assert TURNER not in threads


def test_after_a_while_steps_are_on_the_engines_thread_again() -> None:
    with app.worker() as host:
        for _ in range(2):
            before = moves(host)
            held, gate = held_up(is_held_up.start)
            while moves(host) == before:
                does_plainly.start(1).result(PATIENCE)
            gate.set()
            held.result(PATIENCE)
        lent(lambda: does.start(3).result(PATIENCE))


def test_a_step_that_blocks_the_thread_is_held_to_its_timeout() -> None:
    with app.worker():
        held, _ = held_up(times_out.start)
        with pytest.raises(StepTimeoutError):
            held.result(PATIENCE)


def test_a_worker_ends_while_a_step_blocks_its_thread() -> None:
    with app.worker(grace=0.1) as host:
        held, gate = held_up(is_held_up.start)
    assert host.wait(0)
    gate.set()
    eventually(lambda: "holdfast-async" not in [thread.name for thread in threading.enumerate()])
    with app.worker():
        held.result(PATIENCE)


def test_a_step_that_awaits_something_keeps_its_thread_to_the_end_and_the_engine_goes_on_without_it() -> None:
    with app.worker() as host:
        held, gate = held_up(goes_with.start)
        does_plainly.start(1).result(PATIENCE)
        assert moves(host) >= 1
        gate.set()
        assert held.result(PATIENCE) == "holdfast-async"  # which is what the thread is called since then


def test_what_lives_on_the_loop_goes_on_during_a_long_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    with app.worker() as host:
        lent(lambda: takes_a_pulse.start().result(PATIENCE))
        commit, is_slow, beats = host.engine.env.store.commit, threading.Event(), pulse.beats

        def slow(*args: Any) -> Any:
            before = pulse.beats
            is_slow.set()
            eventually(lambda: pulse.beats > before + 3)
            return commit(*args)

        monkeypatch.setattr(host.engine.env.store, "commit", slow)
        takes_a_pulse.start().result(PATIENCE)
        assert is_slow.is_set()
        assert pulse.beats > beats


def test_while_a_run_without_history_waits_in_a_plain_call_steps_have_threads_of_their_own() -> None:
    with app.worker():
        lent(lambda: does.start(3).result(PATIENCE))
        waiting = waits_in_a_plain_call.start("one")
        reached("one")
        threads.clear()
        does.start(3).result(PATIENCE)
        assert TURNER not in threads
        gates["one"].set()
        waiting.result(PATIENCE)
        lent(lambda: does.start(3).result(PATIENCE))


class Keeper:
    """An executor whose step needs the thread that is lent, and says so when the engine has gone on without it already."""

    def __init__(self) -> None:
        self.keeps: Callable[[], bool] = lambda: False
        self.has_moved = threading.Event()
        self.raises: BaseException | None = None

    def borrow(self, within: float, keeps: Callable[[], bool]) -> bool:
        self.keeps = keeps
        return True

    def lend(self, seconds: float) -> bool:
        assert self.has_moved.wait(PATIENCE)
        if self.raises is not None:
            raise self.raises
        assert self.keeps()
        return True

    def borrows(self) -> bool:
        return False

    def is_busy(self) -> bool:
        return False

    def holds_thread(self) -> bool:
        return True

    def offer(self, is_open: Callable[[int], bool]) -> None: ...

    def recall(self) -> None: ...

    def release(self) -> None: ...


class Moved:
    def may_move(self) -> bool:
        return True

    def leave_thread(self) -> Callable[[], None]:
        return lambda: None


@pytest.mark.parametrize("raises", [None, ValueError("whatever it is")])
def test_the_engine_goes_on_with_one_thread_whatever_the_one_that_it_has_left_does(raises: Exception | None) -> None:
    keeper, went_on = Keeper(), []
    keeper.raises = raises
    loan = lending.Lending(keeper, Moved(), lambda: went_on.append(threading.get_ident()))

    def turn() -> None:
        assert loan.is_open(0)
        with pytest.raises(lending.Replaced):
            loan.lend(PATIENCE, lambda: False)

    loan.start()
    thread = threading.Thread(target=turn)
    thread.start()
    eventually(lambda: loan.turner == 0 and loan._lent_by == thread.ident)
    loan.want()  # and nobody comes back in time
    eventually(lambda: loan.turner == 1)
    keeper.has_moved.set()
    thread.join(PATIENCE)
    loan.end()
    assert loan.turner == 1
    assert len(went_on) == 1


def test_a_thread_that_raises_while_it_is_lent_is_not_taken_for_one_that_is_stuck() -> None:
    keeper, went_on = Keeper(), []
    keeper.raises = ValueError("whatever it is")
    keeper.has_moved.set()
    loan = lending.Lending(keeper, Moved(), lambda: went_on.append(threading.get_ident()))
    loan.start()
    assert loan.is_open(0)
    with pytest.raises(ValueError, match="whatever it is"):
        loan.lend(PATIENCE, lambda: False)
    loan.want()
    time.sleep(3 * lending.LATE)  # a thread that is stuck is left after that
    loan.end()
    assert loan.turner == 0
    assert went_on == []


def has_ended(child: int) -> bool:
    return os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def test_a_child_that_a_step_has_forked_and_returned_in_does_nothing_more() -> None:
    with app.worker():
        forks.start(False).result(PATIENCE)
        for _ in range(50):
            threads.clear()
            result = forks.start(True).result(PATIENCE)
            child = children.pop()
            if threads != [TURNER]:
                os.kill(child, signal.SIGKILL)
            try:
                eventually(functools.partial(has_ended, child))
            finally:
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
            assert result == os.getpid()
            if threads == [TURNER]:
                return
    raise AssertionError("the thread is never lent")


def test_what_lives_on_the_loop_goes_on_while_brief_steps_follow_one_another() -> None:
    with app.worker():
        for _ in range(20):
            threads.clear()
            takes_a_pulse.start().result(PATIENCE)
            before, began = pulse.beats, time.monotonic()
            while time.monotonic() - began < 0.2:
                takes_pulses.start(50).result(PATIENCE)
            if set(threads) == {TURNER}:
                assert pulse.beats - before > 20, "it would beat 200 times"
                return
    raise AssertionError("the thread is never lent")


@pytest.mark.parametrize("workflow", [goes_through, goes_through_plainly])
def test_the_thread_may_change_again_and_again(
    workflow: Workflow[[list[float]], list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Steps are lent the thread, keep it too long, and others go on meanwhile: each executes once."""
    for name, value in {"PAUSE": 0.0, "PAUSES": (0.0, 0.0), "LATE": 0.001, "LOOK": 0.001}.items():
        monkeypatch.setattr(lending, name, value)
    monkeypatch.setattr(in_place, "BRIEF", 1.0)
    chances = random.Random(7)
    pairs = 0
    with app.worker() as host:
        while pairs < 5 or (moves(host) < 2 and pairs < 300):
            pairs += 1
            pauses = [[chances.choice((0, 0, 0, 0.004)) for _ in range(10)] for _ in range(2)]
            for run in [workflow.start(some) for some in pauses]:
                assert run.result(60) == list(range(10))
        assert moves(host) >= 2
    assert len(threads) == pairs * 2 * 10
