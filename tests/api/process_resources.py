"""Resources and wrappers of steps in processes of their own, which have to find them by importing this module."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

from holdfast import App, StepAttempt, use

app = App("process_resources", ":memory:")


def note(line: str) -> None:
    with Path(os.environ["DIARY"]).open("a") as diary:
        diary.write(line + "\n")


@app.resource
def pool() -> Iterator[int]:
    note("open pool")
    yield os.getpid()
    note("close pool")


@app.resource
async def client() -> AsyncIterator[str]:
    note("open client")
    yield "client"
    note("close client")


@app.around_step
def noted(attempt: StepAttempt) -> Iterator[None]:
    yield
    note(f"{attempt.step} {attempt.number}")


@app.around_step
async def noted_async(attempt: StepAttempt) -> AsyncIterator[None]:
    yield
    note(f"{attempt.step} {attempt.number} async")


@app.step(pool="process")
def load(pid: int = use(pool)) -> int:
    return pid


@app.step(pool="process")
async def fetch(pid: int = use(pool), http: str = use(client)) -> list[object]:
    return [pid, http]
