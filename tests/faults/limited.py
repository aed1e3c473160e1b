"""The app of the tests that kill workers under limits. Who is under way is told by locks of the operating system, which
are gone with a process that is killed: a ledger that no crash can make wrong."""

from __future__ import annotations

import asyncio
import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from holdfast import App, Limit, this_step

ALL, EACH = 3, 2
app = App("limited")


def folder() -> Path:
    return Path(os.environ["EFFECTS_LEDGER"]).parent


@contextmanager
def alone() -> Iterator[None]:
    """One at a time, in all processes."""
    with (folder() / "mutex").open("a") as mutex:
        fcntl.flock(mutex, fcntl.LOCK_EX)
        yield


def under_way(group: str) -> int:
    found = 0
    for file in folder().glob(f"under-way-{group}-*"):
        with file.open() as other:
            try:
                fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                found += 1
    return found


@contextmanager
def measured(*groups: str) -> Iterator[None]:
    """Tell the ledger how many of each group are under way, this one included."""
    own = this_step.idempotency_key.replace("/", "_")
    with alone():
        locks = [(folder() / f"under-way-{group}-{own}-{os.getpid()}").open("w") for group in groups]
        for lock in locks:
            fcntl.flock(lock, fcntl.LOCK_EX)
        lines = [f"{group} {under_way(group)} {this_step.idempotency_key}\n" for group in groups]
        with (folder() / "counts").open("a") as counts:
            counts.writelines(lines)
    try:
        yield
    finally:
        with alone():
            for lock in locks:
                lock.close()
                os.unlink(lock.name)


@app.step(max_losses=100, limits=[Limit(concurrency=ALL), Limit(concurrency=EACH, key="customer")])
def charge(customer: str, number: int) -> int:
    with measured("all", f"each.{customer}"):
        time.sleep(0.01)
    return number


@app.workflow
async def pay(customer: str, count: int) -> int:
    return sum(await asyncio.gather(*(charge.submit(customer, i) for i in range(count))))


@app.step(max_losses=100)
def post(account: str) -> None:
    with measured(f"account.{account}"):
        time.sleep(0.01)


@app.workflow(concurrency=1, key="account")
async def book(account: str) -> str:
    for _ in range(3):
        post(account)
    return account
