"""Steps for `pool="process"`: a process of its own has to find them by importing this module."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from pathlib import Path

from holdfast import App, FatalError, RetryableError, this_step, wf

app = App("process_steps", ":memory:")
log = logging.getLogger("shop.process")


class OddError(Exception):
    def __init__(self, code: int, *, hint: str) -> None:
        super().__init__(f"odd {code}")
        self.code = code
        self.hint = hint


@app.step(pool="process")
def pid_of() -> int:
    return os.getpid()


@app.step(pool="process")
async def async_pid_of() -> int:
    await asyncio.sleep(0)
    return os.getpid()


@app.step(pool="process", max_retries=0, timeout="300ms")
def hang(mark: str) -> None:
    Path(mark).write_text(str(os.getpid()))
    time.sleep(60)


@app.step(pool="process", max_retries=0, timeout="60s", stall_timeout="400ms")
def stall(signs: int) -> None:
    for n in range(signs):
        this_step.progress(n, signs)
        time.sleep(0.05)
    time.sleep(60)


@app.step(pool="process", max_retries=1, retry_delay="10ms")
def fails_oddly() -> None:
    raise OddError(this_step.attempt, hint="try harder")


@app.step(pool="process", max_retries=1)
def rate_limited() -> int:
    if this_step.attempt == 1:
        raise RetryableError("slow down", retry_after="20ms")
    return this_step.attempt


@app.step(pool="process")
def fatal() -> None:
    raise FatalError("no use")


@app.step(pool="process", max_retries=1, retry_delay="10ms")
def remembers() -> list[object]:
    before = this_step.last_checkpoint
    this_step.checkpoint({"seen": this_step.attempt})
    wf.set_data("from_process", this_step.attempt)
    if this_step.attempt == 1:
        raise ValueError("again")
    return [before, wf.get_data("given"), this_step.idempotency_key, wf.identity.workflow_id]


@app.step(pool="process")
def unserialisable() -> object:
    return {"rows": [1, object()]}


@app.step(pool="process")
def talks(word: str) -> int:
    log.debug("not loud enough for the engine's process")
    log.info("%s from %d", word, this_step.attempt, extra={"order": 17, "thing": object()})
    try:
        _ = 1 / 0
    except ZeroDivisionError:
        log.exception("it went wrong")
    return os.getpid()


@app.step(pool="process", max_losses=1)
def dies_talking() -> None:
    log.info("last words")
    os._exit(1)


@app.workflow
def call(name: str, *args: str | int) -> object:
    wf.set_data("given", "by the workflow")
    step = STEPS[name]
    return wf.wait(step(*args)) if name.startswith("async") else step(*args)


STEPS = {
    step.name: step
    for step in (
        pid_of, async_pid_of, hang, stall, fails_oddly, rate_limited, fatal, remembers, unserialisable,
        talks, dies_talking,
    )
}  # fmt: skip
