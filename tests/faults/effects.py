"""The app that the fault tests run in real processes. Each step leaves a line in a ledger outside the store, so that
what was executed can be compared with what was recorded."""

from __future__ import annotations

import asyncio
import builtins
import contextlib
import ctypes
import datetime as dt
import json
import logging
import os
import re
import signal
import time
from pathlib import Path

from holdfast import (
    App,
    Dag,
    FatalError,
    Limit,
    RetryableError,
    RunError,
    Saga,
    Schedule,
    WorkerLostError,
    chain,
    chord,
    emit,
    every,
    group,
    hook,
    saga,
    sleep,
    this_step,
    transaction,
    wait_for_event,
    wf,
)
from holdfast.core import events as ev
from holdfast.engine.records import to_record
from holdfast.errors import Suspended
from holdfast.ports import NewRun

BUILD = os.environ.get("EFFECTS_BUILD", "1")
app = App("effects", version=BUILD)
log = logging.getLogger("effects")


def effect(step: str, note: object = None) -> None:
    """One line per execution: run, step, idempotency key, attempt, pid."""
    line = [wf.identity.workflow_id, step, this_step.idempotency_key, this_step.attempt, os.getpid(), note]
    fd = os.open(os.environ["EFFECTS_LEDGER"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
    try:
        os.write(fd, json.dumps(line).encode() + b"\n")
    finally:
        os.close(fd)


def gate(name: str) -> Path:
    """A file that a test makes when a step may go on."""
    return Path(os.environ["EFFECTS_LEDGER"]).with_name(f"gate-{name}")


# -- steps


@app.step(max_losses=100)  # on a busy machine it may be there whenever a worker is killed
async def add(a: int, b: int) -> int:
    effect("add", [a, b])
    return a + b


@app.step(max_losses=100, limits=[Limit("scarce", concurrency=1), Limit(rate_limit="1000/s", key="n")])
def scarce(n: int) -> int:
    effect("scarce", n)
    return n


@app.step
def double(n: int) -> int:
    effect("double", n)
    return 2 * n


@app.step
async def say_at_gate(name: str) -> str:
    for word in ("one", "two"):
        this_step.stream(word)
    while not gate(name).exists():
        await asyncio.sleep(0.01)
    return name


@app.step
async def say_until_gate(name: str) -> str:
    this_step.stream("before")
    while not gate(name).exists():
        await asyncio.sleep(0.01)
    this_step.stream("after")
    return name


@app.step
def total(numbers: list[int]) -> int:
    effect("total", numbers)
    return sum(numbers)


@app.step
async def slow(seconds: float) -> str:
    effect("slow")
    await asyncio.sleep(seconds)
    return "done"


@app.step(max_retries=3, retry_delay=0.05)
async def flaky(fails: int) -> int:
    effect("flaky")
    if this_step.attempt <= fails:
        raise RetryableError(f"attempt {this_step.attempt} fails")
    return this_step.attempt


@app.step(max_retries=0)
async def refuse() -> None:
    effect("refuse")
    raise FatalError("no")


@app.step
async def remember(key: str, value: int) -> int:
    effect("remember", key)
    wf.set_data(key, value)
    return value


@app.step
async def pull_the_plug() -> str:
    effect("pull_the_plug")
    await app.get_run(wf.identity.workflow_id).acancel("pulled")
    return "pulled"


@app.step
async def pause_me() -> str:
    """Ends while its run is paused, so that its outcome takes the long way."""
    effect("pause_me")
    run = app.get_run(wf.identity.workflow_id)
    while await run.astatus() != "PAUSED":
        await run.apause("for a while")  # and again, if it was resumed before this was seen
        await asyncio.sleep(0.005)
    return "paused"


@app.step
async def resume_other(run_id: str) -> str:
    effect("resume_other")
    run = app.get_run(run_id)
    while not (status := await run.astatus()).is_final:
        await asyncio.sleep(0.1)  # long enough for the other step to end while its run is paused
        if status == "PAUSED":
            with contextlib.suppress(RunError):  # it may go on already
                await run.aresume()
    return str(status)


@app.step
def wait_at_gate(name: str) -> str:
    """Executes until the test opens the gate."""
    log.info("at gate %s", name)  # first: whoever sees the effect may kill this process at once
    effect("wait_at_gate", name)
    while not gate(name).exists():
        time.sleep(0.005)
        this_step.progress(1)
    return name


@app.step(max_losses=100)
def endure(name: str) -> str:
    """The same, whatever happens to its workers."""
    effect("endure", name)
    while not gate(name).exists():
        time.sleep(0.005)
    return name


@app.step(max_retries=0)
def fail_at_gate(name: str) -> None:
    effect("fail_at_gate", name)
    while not gate(name).exists():
        time.sleep(0.005)
    raise ValueError("at the gate")


def leave_in_turn(step: str) -> int:
    """The first execution goes when gate `first` opens, the others at `second`; which one this is."""
    effect(step)
    lines = Path(os.environ["EFFECTS_LEDGER"]).read_text().splitlines()
    number = [json.loads(line)[4] for line in lines if json.loads(line)[1] == step].index(os.getpid())
    while not gate("second" if number else "first").exists():
        time.sleep(0.005)
    return number


@app.step
def first_is_fast() -> str:
    leave_in_turn("first_is_fast")
    return f"by {os.getpid()}"


@app.step(max_retries=3, retry_delay=0.01)
def first_fails() -> str:
    if leave_in_turn("first_fails") == 0:
        raise RetryableError("the first one fails")
    return f"by {os.getpid()}"


@app.step(pool="process", timeout=None)
def wait_in_process(name: str) -> str:
    effect("wait_in_process", name)
    while not gate(name).exists():
        time.sleep(0.005)
    return name


@app.step(max_retries=0, timeout=None)
def poison() -> None:
    effect("poison")
    os.kill(os.getpid(), signal.SIGKILL)


@app.step(max_retries=0, pool="process")
def die_in_process() -> None:
    effect("die_in_process")
    os.kill(os.getpid(), signal.SIGKILL)


@app.step(pool="process")
def live_in_process(n: int) -> int:
    effect("live_in_process", n)
    return n + 1


@app.step(at_most_once=True, timeout=None)
def once(name: str) -> str:
    effect("once", name)
    while not gate(name).exists():
        time.sleep(0.005)
    return name


@app.step(at_most_once=True)
def once_deadly() -> None:
    effect("once_deadly")
    os.kill(os.getpid(), signal.SIGKILL)


@app.step(transaction=True, max_losses=100)
def deposit(n: int) -> int:
    """Writes into a table of its own, in the transaction that records its outcome."""
    effect("deposit", n)
    transaction().execute(f"INSERT INTO {os.environ['EFFECTS_TABLE']} VALUES ({n}, {os.getpid()})")
    return n


@app.step(transaction=True, max_losses=100, timeout=None)
def deposit_in_turn() -> int:
    transaction().execute(f"INSERT INTO {os.environ['EFFECTS_TABLE']} VALUES (1, {os.getpid()})")
    leave_in_turn("deposit_in_turn")
    return os.getpid()


# -- workflows


@app.workflow
async def bank(n: int) -> int:
    total = 0
    for i in range(n):
        total += deposit(i)
    return total


@app.workflow
async def sequence(n: int) -> int:
    total = 0
    for i in range(n):
        total = await add(total, i)
    return total


@app.workflow(retain="1d")
async def brief(n: int) -> int:
    """Forgotten some time after its end."""
    wf.set_data("n", n)
    return await add(n, 1)


@app.workflow
def plain(n: int) -> int:
    for _ in range(n):
        n = double(n)
    return n


@app.workflow
async def fan(n: int) -> list[int]:
    return list(await asyncio.gather(*(add(i, i) for i in range(n))))


@app.workflow
async def stubborn(fails: int) -> int:
    return await flaky(fails)


@app.workflow
async def nap(seconds: float) -> int:
    one = await add(1, 1)
    await sleep(seconds)
    return await add(one, 1)


@app.workflow
async def family(n: int) -> list[int]:
    totals = await asyncio.gather(*(sequence(i + 1) for i in range(n)))
    return [await add(total, 100) for total in totals]


@app.workflow
async def question() -> str:
    first = await hook("answer")
    await add(1, 2)
    second = await hook("answer")
    return f"{first} {second}"


@app.workflow
async def diary() -> int:
    wf.set_data("chapter", 1)
    await remember("seen", 7)
    wf.set_data("chapter", 2)
    return await add(wf.get_data("seen"), wf.get_data("chapter"))


@app.workflow(max_retries=1)
async def second_try() -> int:
    one = await add(1, 1)
    if wf.attempt == 1:
        raise RuntimeError("the first attempt fails")
    return await add(one, 10)


@app.workflow
async def unwound() -> str:
    try:
        await pull_the_plug()
        await sleep(60)
    finally:
        await add(0, 0)
        await add(0, 1)
    return "not cancelled"


@app.workflow
async def rounds(left: int, total: int) -> int:
    total = await add(total, left)
    if left:
        wf.continue_as_new(left - 1, total)
    return total


@app.workflow
async def caught() -> str:
    try:
        await refuse()
    except FatalError as error:
        await add(9, 9)
        return str(error)
    return "nothing was raised"


@app.workflow
async def long(seconds: float) -> str:
    return await slow(seconds)


@app.workflow
async def paused() -> str:
    return await pause_me()


@app.workflow
async def resumes(run_id: str) -> str:
    return await resume_other(run_id)


@app.workflow(durable=False)
async def fleeting(n: int) -> int:
    total = 0
    for i in range(n):
        total = await add(total, i)
        await asyncio.sleep(0.02)
    return total


@app.workflow(durable=False)
async def fleeting_gate(name: str) -> str:
    return wait_at_gate(name)


@app.workflow(durable=False)
async def fleeting_nap(seconds: float) -> None:
    await asyncio.sleep(seconds)


@app.workflow
async def gated(name: str) -> str:
    passed = wait_at_gate(name)
    await add(1, 1)
    return passed


@app.workflow
async def talks(*gates: str) -> None:
    log.info("begin")
    for name in gates:
        wait_at_gate(name)
        log.info("after gate %s", name)


@app.workflow
async def endures(name: str) -> str:
    return endure(name)


@app.workflow
async def fails_at_gate(name: str) -> str:
    try:
        fail_at_gate(name)
    except ValueError as error:
        return f"it failed: {error}"
    return "nothing was raised"


@app.workflow
async def race() -> str:
    return first_is_fast()


@app.workflow
async def late_failure() -> str:
    return first_fails()


@app.workflow
async def queued(n: int) -> int:
    """More plain steps than there are threads."""
    return len(await asyncio.gather(*(wait_at_gate.submit(f"queued-{i}") for i in range(n))))


@app.workflow
async def only_once(name: str) -> str:
    return once(name)


@app.workflow
async def once_each(n: int) -> int:
    return len(await asyncio.gather(*(once.submit(f"once-{i}") for i in range(n))))


@app.workflow
async def once_and_dead() -> str:
    try:
        once_deadly()
    except WorkerLostError as error:
        return str(error)
    return "nothing was raised"


@app.workflow
async def raises(name: str) -> None:
    await add(1, 1)
    raise Suspended if name == "Suspended" else getattr(builtins, name)


@app.step(timeout=None)
async def slow_or_deadly(n: int, deadly: int) -> int:
    effect("slow_or_deadly", n)
    await asyncio.sleep(1)
    if n == deadly:
        os.kill(os.getpid(), signal.SIGKILL)
    return n


@app.workflow
async def wide(n: int, deadly: int) -> int:
    found = await asyncio.gather(*(slow_or_deadly(i, deadly) for i in range(n)), return_exceptions=True)
    return sum(isinstance(one, int) for one in found)


@app.workflow
async def killer(how: str) -> None:
    """Its own code takes the worker down, wherever it is executed."""
    await add(1, 1)
    if "EFFECTS_TAMED" in os.environ:
        return
    if how == "exit":
        os._exit(7)
    elif how == "segfault":
        ctypes.string_at(0)
    elif how == "freeze":
        re.match(r"(a+)+$", "a" * 40 + "b")  # native code that holds the interpreter, for longer than anybody waits
    else:
        os.kill(os.getpid(), signal.SIGKILL)


@app.workflow
async def gated_process(name: str) -> str:
    return wait_in_process(name)


@app.workflow
async def poisoned() -> None:
    poison()


@app.workflow
async def beside_poison(n: int) -> str:
    """Poison, and good work beside it in the same run."""

    async def good() -> int:
        total = 0
        for i in range(n):
            total = await add(total, i)
        return total

    async def bad() -> str:
        try:
            poison()
        except Exception as error:
            return type(error).__name__
        return "nothing was raised"

    total, fate = await asyncio.gather(good(), bad())
    return f"{total} {fate}"


@app.workflow
async def dies_in_process() -> str:
    try:
        die_in_process()
    except Exception as error:
        return type(error).__name__
    return "nothing was raised"


@app.workflow
async def in_process(n: int) -> int:
    return live_in_process(n)


@app.workflow
async def changed() -> str:
    """The second build asks another question."""
    answer = await hook("go on" if BUILD == "1" else "carry on")
    return f"{answer} {await add(1, 2)}"


@app.step
async def announce(n: int) -> int:
    effect("announce", n)
    await emit("Announced", {"n": n})
    return n


@app.step(pool="process")
def announce_in_process(n: int) -> int:
    effect("announce_in_process", n)
    app.emit("Announced", {"n": n})
    return n


@app.step
async def tell_emitter() -> None:
    """The run `emitter` may go on: whoever executes this has committed that it listens."""
    effect("tell_emitter")
    with contextlib.suppress(RunError):  # an earlier execution may have told it, and it has ended
        await app.get_run("emitter").asend("ready")


@app.workflow
async def emitter() -> int:
    await hook("ready")
    await emit("Begun", 1)
    return await announce(3)


@app.workflow
async def announcer(n: int) -> int:
    return announce_in_process(n)


@app.on("Begun")
@app.workflow
async def on_begun(n: int) -> int:
    return await add(n, 10)


@app.on("Announced", where={"n": 3})
@app.workflow
async def on_announced(payload: dict[str, int]) -> int:
    return await add(payload["n"], 20)


@app.on("run.failed")
@app.workflow
async def on_failure(facts: dict[str, str]) -> str:
    await add(0, 0)
    raise FatalError(f"run {facts['run_id']} has failed, and so has its handler")


@app.workflow
async def listener() -> int:
    waiting = asyncio.ensure_future(wait_for_event("Announced", where={"n": 3}))
    await tell_emitter()
    return int((await waiting)["n"])


@app.workflow
async def failing() -> None:
    await refuse()


@app.workflow(concurrency=1)
async def in_line() -> int:
    return sum(await asyncio.gather(*(scarce.submit(n % 2) for n in range(3))))


if "EFFECTS_SCHEDULE" in os.environ:
    app.schedules.declare(os.environ["EFFECTS_SCHEDULE"], sequence, 1)

SCENARIO = {
    "sequence": (sequence, (4,)),
    "plain": (plain, (3,)),
    "fan": (fan, (5,)),
    "stubborn": (stubborn, (2,)),
    "nap": (nap, (0.05,)),
    "family": (family, (2,)),
    "question": (question, ()),
    "diary": (diary, ()),
    "second_try": (second_try, ()),
    "unwound": (unwound, ()),
    "rounds": (rounds, (2, 0)),
    "caught": (caught, ()),
    "long": (long, (0.15,)),
    "emitter": (emitter, ()),
    "listener": (listener, ()),
    "failing": (failing, ()),
    "paused": (paused, ()),
    "resumes": (resumes, ("paused",)),
    "in_line": (in_line, ()),
    "in_line_too": (in_line, ()),
}
"""Every way a run can go, by id."""


def start_scenario() -> None:
    for run_id, (workflow, args) in SCENARIO.items():
        workflow.options(id=run_id).start(*args)  # type: ignore[attr-defined]
    header = [add.s(1, 2), chain(double.s(3), add.s(4)), group(double.s(5), remember.s("canvas", 6)), sequence.s(2)]
    canvas = chord(header, total.s()).on_error(refuse.si()) | double.s()
    canvas.options(id="canvas").start()
    for answer in ("yes", "no"):
        app.get_run("question").send("answer", answer)
    start_stranger()
    app.schedules.put(Schedule(every("5000d"), name="past", overlap="queue"), sequence, 2)
    app.schedules.backfill("past", dt.datetime(1990, 1, 1, tzinfo=dt.UTC), dt.datetime(2025, 1, 1, tzinfo=dt.UTC))


# -- compositions


@app.step
def act(name: str) -> str:
    effect("act", name)
    return f"the {name}"


@app.step
def undo(result: str) -> None:
    effect("undo", result)


@app.workflow
async def trip() -> None:
    async with saga() as s:
        s.step(act, "flight", compensate=undo)
        s.step(act, "hotel", compensate=undo)
        await s.step(refuse)


named_trip = Saga("named-trip", app=app)
for _name in ("flight", "hotel"):
    named_trip.add_step(_name, lambda ctx, name=_name: act(name), undo)
named_trip.add_step("pay", refuse)


errands = Dag("errands", app=app)
errands.add_step("first", lambda ctx: act("first"))
errands.add_step("each", lambda name, first: act(name), depends_on=["first"], map_over="names")
errands.add_step("never", lambda: act("never"), depends_on=["first"], condition=lambda ctx: not ctx["first"])
errands.add_step("last", lambda ctx: len(ctx), depends_on=["each", "never"], run_if="none_failed")


def start_stranger() -> None:
    """A run whose workflow no worker knows."""
    now = app.store.now()
    started = ev.RunStarted(seq=1, ts=now, workflow="stranger", seed=1)
    app.store.create(
        NewRun(
            id="stranger",
            workflow="stranger",
            records=[to_record(started)],
            wake_at=now,
            created_at=now,
            fingerprint=b"",
        )
    )
