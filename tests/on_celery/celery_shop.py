"""An app on Celery, which workers of the tests import. Everything that its steps do is written into a ledger outside of
all stores: one line for each effect."""

from __future__ import annotations

import os
import time
from pathlib import Path

from holdfast import App, this_step
from holdfast.executors.celery import carrier

LEDGER = Path(os.environ.get("LEDGER", "ledger"))
carrier.SWEEP = float(os.environ.get("SWEEP", carrier.SWEEP))
carrier.CLAIMED_WITHIN = float(os.environ.get("PATIENCE", carrier.CLAIMED_WITHIN))
app = App("shop", broker=os.environ.get("BROKER", "redis://127.0.0.1:1/0"))


def note(text: str) -> None:
    ledger = os.open(LEDGER, os.O_APPEND | os.O_CREAT | os.O_WRONLY)
    os.write(ledger, f"{text}\n".encode())
    os.close(ledger)


@app.step(max_losses=20)
def effect(x: int, seconds: float = 0.0) -> int:
    note(f"begin {this_step.idempotency_key}")
    time.sleep(seconds)
    note(f"end {this_step.idempotency_key}")
    return x


@app.step(max_losses=20)
def twice(x: int) -> int:
    return 2 * x


@app.step
def counting(n: int) -> int:
    for i in range(n):
        this_step.progress(i + 1, n)
    return n


@app.step(force_local=True)
def where_the_engine_is() -> int:
    return os.getpid()


@app.step
def where_steps_are() -> int:
    return os.getpid()


@app.step(timeout="1h")
def endless(name: str) -> None:
    note(f"begin {name}")
    try:
        while True:
            time.sleep(60)
    except BaseException as error:
        note(f"interrupted {name} {type(error).__name__}")
        raise


@app.step(timeout=0.2, max_retries=0)
def too_slow() -> None:
    try:
        time.sleep(60)
    finally:
        note("interrupted too_slow")


@app.workflow
def five(n: int, seconds: float = 0.0) -> int:
    return sum(effect(i, seconds) for i in range(n, n + 5))


celery = app.celery
