"""Steps that do all that steps can do, for an app of each way to execute them: a worker process finds it by importing
`behaviours_<way>`."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from holdfast import App, FatalError, RetryableError, start_child_workflow, this_step, use, wf

log = logging.getLogger("behaviours")


class OddError(Exception):
    def __init__(self, code: int) -> None:
        super().__init__(f"odd {code}")
        self.code = code


def note(ledger: str, *what: Any) -> None:
    """An effect outside the system."""
    with open(ledger, "a") as file:
        print(*what, file=file, flush=True)


# -- what fails


def flaky(ledger: str, failures: int) -> list[Any]:
    note(ledger, this_step.attempt, this_step.idempotency_key)
    if this_step.attempt <= failures:
        raise OddError(this_step.attempt)
    return [this_step.attempt, this_step.idempotency_key]


def busy(ledger: str) -> int:
    note(ledger, time.time())
    if this_step.attempt == 1:
        raise RetryableError("slow down", retry_after="300ms")
    return this_step.attempt


def hopeless(ledger: str) -> None:
    note(ledger, "once")
    raise FatalError("no use")


def odd(ledger: str) -> None:
    note(ledger, "once")
    raise OddError(7)


def unencodable() -> Any:
    return object()


def hangs(ledger: str) -> None:
    note(ledger, "begun")
    time.sleep(60)


async def hangs_async(ledger: str) -> None:
    try:
        await asyncio.sleep(60)
    except asyncio.CancelledError:  # not at its own end, which comes while tests still wait
        note(ledger, "interrupted")
        raise


async def hangs_long(ledger: str) -> None:
    note(ledger, "begun")
    await hangs_async(ledger)


def stalls(signs: int) -> None:
    for done in range(signs):
        this_step.progress(done, signs)
        time.sleep(0.05)
    time.sleep(60)


# -- what they say on their way


def in_pieces(pieces: int) -> list[int]:
    done = this_step.last_checkpoint or []
    done = [*done, len(done)]
    this_step.checkpoint(done)
    if len(done) < pieces:
        raise RetryableError("more to do", retry_after=0)
    return list(done)


def shows_progress(go_on: str) -> str:
    this_step.progress(3, 4, "nearly")
    while not Path(go_on).exists():
        time.sleep(0.01)
    return "done"


def streams(items: int) -> int:
    for n in range(items):
        this_step.stream(f"{this_step.attempt}.{n}")
    if this_step.attempt == 1:
        raise RetryableError("again", retry_after=0)
    return items


def reads_and_writes(key: str) -> Any:
    seen = wf.get_data(key)
    wf.set_data("tried", this_step.attempt)
    if this_step.attempt == 1:
        wf.set_data("dropped", True)
        raise RetryableError("again", retry_after=0)
    wf.set_data("seen", seen)
    return seen


def talks(word: str) -> int:
    log.info("says %s in attempt %s", word, this_step.attempt)
    if this_step.attempt == 1:
        raise RetryableError("again", retry_after=0)
    return os.getpid()


def hands_over(ledger: str) -> None:
    note(ledger, this_step.hand_over())


# -- what they use


def takes_resource(resource: Any) -> list[Any]:
    return [resource["pid"], resource["uses"]]


async def greets(name: str) -> str:
    await asyncio.sleep(0.01)
    return f"hello {name}"


def echo(value: Any) -> Any:
    return value


def kills_its_process(ledger: str) -> None:
    note(ledger, os.getpid())
    os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(60)


def patient(ledger: str) -> str:
    """Beside a killer, until that has struck."""
    note(ledger, "patient")
    time.sleep(0.5)
    return "patient"


def make_app(way: str, how: dict[str, Any]) -> SimpleNamespace:
    """An app whose steps are executed in one way, and what it defines by name."""
    app = App(f"behaviours-{way}", ":memory:", include=[f"behaviours_{way}"])

    def step(function: Any, **options: Any) -> Any:
        return app.step(**{"max_retries": 0, "retry_delay": "10ms", **how, **options})(function)

    @app.resource
    def pool() -> Iterator[dict[str, int]]:
        yield {"pid": os.getpid(), "uses": 0}

    def use_pool(resource: dict[str, int] = use(pool)) -> list[int]:
        resource["uses"] += 1
        return [resource["pid"], resource["uses"]]

    made = SimpleNamespace(
        app=app,
        flaky=step(flaky, max_retries=3),
        busy=step(busy, max_retries=1),
        hopeless=step(hopeless, max_retries=5),
        odd=step(odd, max_retries=5, no_retry_for=OddError),
        unencodable=step(unencodable, max_retries=3),
        hangs=step(hangs, timeout="300ms"),
        hangs_async=step(hangs_async, timeout="300ms"),
        hangs_long=step(hangs_long, timeout=None),
        stalls=step(stalls, timeout=None, stall_timeout="500ms"),
        in_pieces=step(in_pieces, max_retries=9),
        shows_progress=step(shows_progress, timeout=None),
        streams=step(streams, max_retries=1),
        reads_and_writes=step(reads_and_writes, max_retries=1),
        talks=step(talks, max_retries=1),
        hands_over=step(hands_over, timeout=None),
        use_pool=step(use_pool),
        greets=step(greets),
        echo=step(echo),
        kills=step(kills_its_process, max_losses=3, timeout=None),
        once=step(kills_its_process, name="once", max_losses=1, timeout=None),
        patient=step(patient, timeout=None),
    )

    async def child(n: int) -> int:
        return int(made.echo(n)) * 2

    made.child = app.workflow(child)

    async def starts_child(n: int) -> int:
        return int(await start_child_workflow(made.child, n)) + 1

    made.starts_child = step(starts_child, timeout=None)

    async def with_data() -> Any:
        wf.set_data("color", "blue")
        return made.reads_and_writes("color")

    async def many(names: list[str]) -> list[str]:
        return list(await asyncio.gather(*map(made.greets, names)))

    async def killer_in_company(ledger: str) -> list[str]:
        others = [made.patient.submit(ledger) for _ in range(3)]
        try:
            await made.kills.submit(ledger)
        except Exception as error:
            return [type(error).__name__, *[await other for other in others]]
        return []

    made.with_data, made.many = app.workflow(with_data), app.workflow(many)
    made.killer_in_company = app.workflow(killer_in_company)
    return made
