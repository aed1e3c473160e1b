"""The app of the campaign (campaign.py): everything that Holdfast can do, with results that are known beforehand.

Its ledger is outside the store: one appended line when a step begins and one when it ends, one when a start or a message
was acknowledged. What the store says later is held against it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import disk

from holdfast import (
    App,
    Dag,
    FatalError,
    HoldfastError,
    RetryableError,
    Run,
    StoreError,
    chain,
    chord,
    emit,
    hook,
    saga,
    this_step,
    wf,
)

app = App("everything", version=os.environ.get("EVERYTHING_BUILD", "1"))
OFTEN = 1_000_000
"""As many losses as a campaign likes: being killed often is no fault of these steps."""


def note(*facts: object) -> None:
    """One line of the ledger: when, by whom, what. A line is one write, so lines of several processes don't mix."""
    line = json.dumps([time.time_ns() // 1_000, os.getpid(), *facts]).encode() + b"\n"
    fd = os.open(os.environ["EFFECTS_LEDGER"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
    try:
        os.write(fd, line)
    finally:
        os.close(fd)
    if "SHIM_LOG" in os.environ:
        disk.acknowledge(os.environ["SHIM_LOG"], line)


@contextlib.contextmanager
def noted(step: str, what: object = None) -> Iterator[None]:
    run, key = wf.identity.workflow_id, this_step.idempotency_key
    note("begin", run, key, step, what)
    yield
    note("end", run, key, step, what)


# -- steps


@app.step(max_losses=OFTEN)
async def add(a: int, b: int) -> int:
    with noted("add"):
        return a + b


@app.step(max_losses=OFTEN)
def double(n: int) -> int:
    with noted("double"):
        return 2 * n


@app.step(pool="process", max_losses=OFTEN)
def square(n: int) -> int:
    with noted("square"):
        return n * n


@app.step(max_losses=OFTEN)
def work(n: int) -> int:
    """Long enough to be met by a signal, on a thread, so that others queue behind it."""
    with noted("work"):
        time.sleep(0.02)
        return n


@app.step(max_losses=OFTEN, max_retries=3, retry_delay=0.05)
async def flaky(n: int) -> int:
    with noted("flaky"):
        if this_step.attempt == 1:
            raise RetryableError("the first attempt fails")
        return n


@app.step(max_losses=OFTEN)
def total(numbers: list[int]) -> int:
    with noted("total", numbers):
        return sum(numbers)


@app.step(max_losses=OFTEN)
async def say(words: int) -> int:
    with noted("say"):
        for word in range(words):
            this_step.stream(word)
            await asyncio.sleep(0.002)
        return words


@app.step(max_losses=OFTEN)
def act(name: str) -> str:
    with noted("act", name):
        return f"the {name}"


@app.step(max_losses=OFTEN)
def undo(result: str) -> None:
    with noted("undo", result):
        pass


@app.step(max_losses=OFTEN, max_retries=0)
def refuse() -> None:
    with noted("refuse"):
        raise FatalError("no")


@app.step(max_losses=OFTEN, max_retries=0)
def pass_if_open(name: str) -> str:
    with noted("pass_if_open"):
        if not gate(name).exists():
            raise FatalError("not open yet")
        return name


def gate(name: str) -> Path:
    return Path(os.environ["EFFECTS_LEDGER"]).with_name(f"gate-{name}")


# -- workflows; each says what it gives


@app.workflow
async def mixed(n: int) -> int:
    """(2n + 1) + n² + n."""
    one = await add(double(n), 1)
    return one + square(n) + await flaky(n)


@app.workflow
async def fan(n: int) -> list[int]:
    """0, 1, 2... up to n."""
    return list(await asyncio.gather(*(add(i, 0) for i in range(n))))


@app.workflow
async def queue(n: int) -> int:
    """More steps than there are threads: 0 + 1 + ... + n - 1."""
    waiting = [work.submit(i) for i in range(n)]
    return sum([await each for each in waiting])


@app.workflow
async def family(n: int) -> list[int]:
    """0 + 1, 1 + 1, ... by children."""
    return list(await asyncio.gather(*(child(i) for i in range(n))))


@app.workflow
async def child(n: int) -> int:
    return await add(n, 1)


@app.workflow
async def steady(n: int) -> int:
    """0 + 1 + ... + n - 1, one after the other: pauses and cancels meet it on its way."""
    found = 0
    for i in range(n):
        found = await add(found, work(i))
    return found


@app.workflow
async def rounds(left: int, found: int) -> int:
    """left + (left - 1) + ... + found, each in a history of its own."""
    found = await add(found, left)
    if left:
        wf.continue_as_new(left - 1, found)
    return found


@app.workflow
async def listens(left: int, heard: list[list[int]]) -> list[list[int]]:
    """What was sent, in the order it came. Every tenth word begins a new history, and unread ones come along."""
    for _ in range(min(left, 10)):
        heard.append(await hook("word"))
        left -= 1
    await add(len(heard), 0)
    if left:
        wf.continue_as_new(left, heard)
    return heard


@app.workflow
async def shut(name: str) -> str:
    """Fails until its gate is open: somebody retries it then."""
    await add(1, 1)
    return pass_if_open(name)


@app.workflow
async def makes(n: int) -> int:
    await emit("Made", {"n": n, "by": wf.identity.workflow_id})
    return await add(n, 0)


@app.on("Made")
@app.workflow
async def on_made(payload: dict[str, Any]) -> str:
    await add(payload["n"], 1)
    return str(payload["by"])


@app.workflow
async def talks(words: int) -> int:
    return await say(words)


@app.workflow
async def trip() -> None:
    async with saga() as s:
        for name in ("flight", "hotel", "car"):
            s.step(act, name, compensate=undo)
        s.step(refuse)


@app.workflow
async def tick() -> str:
    await add(0, 0)
    return str(wf.scheduled_at)


errands = Dag("errands", app=app)
errands.add_step("first", lambda ctx: act("first"))
errands.add_step("each", lambda name, first: act(name), depends_on=["first"], map_over="names")
errands.add_step("last", lambda ctx: len(ctx["each"]), depends_on=["each"])

UNDONE = ["the car", "the hotel", "the flight"]


def start(kind: str, run_id: str, n: int) -> Any:
    """Start one, and give what it has to come to, as JSON knows it."""
    if kind == "mixed":
        mixed.options(id=run_id).start(n)
        return 2 * n + 1 + n * n + n
    if kind == "fan":
        fan.options(id=run_id).start(n)
        return list(range(n))
    if kind in ("queue", "steady"):
        (queue if kind == "queue" else steady).options(id=run_id).start(n)
        return sum(range(n))
    if kind == "family":
        family.options(id=run_id).start(n % 4 + 1)
        return [i + 1 for i in range(n % 4 + 1)]
    if kind == "rounds":
        rounds.options(id=run_id).start(n % 5, 0)
        return sum(range(n % 5 + 1))
    if kind == "shut":
        shut.options(id=run_id).start(run_id)
        return run_id
    if kind == "makes":
        makes.options(id=run_id).start(n)
        return n
    if kind == "talks":
        talks.options(id=run_id).start(n)
        return n
    if kind == "trip":
        trip.options(id=run_id).start()
        return "SagaFailed"
    if kind == "errands":
        errands.options(id=run_id).start({"names": [f"n{i}" for i in range(n % 4 + 1)]})
        return n % 4 + 1
    assert kind == "chord"
    header = [chain(double.s(i), add.s(i)) for i in range(n)]
    chord(header, total.s()).options(id=run_id).start()
    return sum(3 * i for i in range(n))


KINDS = ["mixed", "fan", "queue", "steady", "family", "rounds", "shut", "makes", "talks", "trip", "errands", "chord"]


OPEN = ["PENDING", "RUNNING", "WAITING", "RETRY", "PAUSED"]


# -- clients, each in a process of its own


def play(seed: int, seconds: float) -> None:
    """Start runs of all kinds, and note each that was acknowledged."""
    chance = random.Random(f"play {seed}")
    until, number = time.monotonic() + seconds, 0
    while time.monotonic() < until:
        kind = KINDS[number] if number < len(KINDS) else chance.choice(KINDS)
        run_id = f"{kind}-{seed}-{number}"
        note("started", run_id, kind, start(kind, run_id, chance.randint(2, 12)))
        number += 1
        time.sleep(chance.uniform(0.0, 0.12))


def ask(seed: int, seconds: float) -> None:
    """Wait for results, and note each that was shown."""
    until, number = time.monotonic() + seconds, 0
    while time.monotonic() < until:
        run_id = f"child-{seed}-{number}"
        run = child.options(id=run_id).start(number)
        note("started", run_id, "child", number + 1)
        with contextlib.suppress(TimeoutError):
            note("result", run_id, run.result(timeout=1))
        number += 1


def insist(runs: int) -> None:
    """Start runs on a disk that may fail, each again until it is acknowledged."""
    kinds = ("steady", "fan", "mixed", "rounds", "chord")
    for number in range(runs):
        kind = kinds[number % len(kinds)]
        run_id = f"{kind}-{number}"
        for _ in range(20):
            with contextlib.suppress(StoreError):
                note("started", run_id, kind, start(kind, run_id, number % 7 + 2))
                break


def send(sender: int, run_ids: list[str], words: int, seconds: float) -> None:
    """Send numbered words, which have to arrive once and in this order."""
    for number in range(words):
        for run_id in run_ids:
            app.get_run(run_id).send("word", [sender, number])
            note("sent", run_id, sender, number)
        time.sleep(seconds / words)


def meddle(seed: int, seconds: float) -> None:
    """Pause, resume, cancel, retry, fork whatever there is, at random moments. What was asked for is noted before it
    is asked, as nobody knows what became of a call that was cut short."""
    chance = random.Random(f"meddle {seed}")
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        time.sleep(chance.uniform(0.02, 0.15))
        runs = app.runs(limit=200, status=OPEN) if chance.random() < 0.8 else app.runs(limit=200)
        if not runs:
            continue
        run = chance.choice(runs)
        with contextlib.suppress(HoldfastError):  # it may just have ended, or been paused by another
            _meddle_with(run, chance)


def _meddle_with(run: Run[Any], chance: random.Random) -> None:
    kind = run.id.partition("-")[0]
    if run.status == "PAUSED":
        run.resume()
        note("resumed", run.id)
    elif run.status == "FAILURE" and kind == "shut":
        gate(run.id).touch()
        run.retry()
        note("retried", run.id)
    elif run.status.is_final:
        if kind in ("mixed", "fan", "steady", "chord", "errands") and run.status == "SUCCESS" and "-fork" not in run.id:
            at = chance.randint(1, len(run.history()) - 1)
            new_id = f"{run.id}-fork{chance.randrange(10**9)}"
            run.fork(at, id=new_id)
            note("forked", new_id, run.id)
    elif kind == "steady" and chance.random() < 0.3:
        note("cancelling", run.id)
        run.cancel("by chance")
    elif kind != "tick" and "@" not in run.id:
        run.pause("by chance")
        note("paused", run.id)
