"""What workers that are killed execute: each step tells a ledger outside that it was executed."""

from __future__ import annotations

import asyncio
import os
import time

from holdfast import App, this_step, wf

app = App("far", ":memory:")


def note(what: str) -> None:
    with open(os.environ["FAR_LEDGER"], "a") as file:
        print(what, os.getpid(), file=file, flush=True)


@app.step(queue="far", retry_delay="10ms", max_losses=20)
def work(run: str, n: int) -> int:
    note(f"{run}.{n}")
    if n == 2 and this_step.attempt == 1:
        this_step.checkpoint(n)
        raise ValueError("the first attempt fails")
    this_step.progress(n, 5)
    this_step.stream(n)
    return n


@app.step(queue="far", retry_delay="10ms", max_losses=20)
async def pause(run: str, n: int) -> int:
    note(f"{run}.{n}")
    await asyncio.sleep(0.02)
    return n


@app.step(queue="far", timeout=None, max_losses=20)
def slow(run: str, seconds: float) -> int:
    note(run)
    time.sleep(seconds)
    note(f"{run} done")
    return os.getpid()


@app.step
def near(run: str, n: int) -> int:
    note(f"{run}.{n}")
    return n


@app.workflow
async def journey(run: str) -> list[int]:
    first = [work(run, n) for n in range(3)]
    wf.set_data("half", True)
    rest = await asyncio.gather(pause(run, 3), work.submit(run, 4), near.submit(run, 5), pause(run, 6))
    return [*first, *rest, work(run, 7)]
