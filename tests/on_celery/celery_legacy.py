"""A Celery app that was there before, whose tasks are made durable."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from celery import Celery, Task

from holdfast import App
from holdfast.executors.celery import carrier

LEDGER = Path(os.environ.get("LEDGER", "ledger"))
carrier.SWEEP = float(os.environ.get("SWEEP", carrier.SWEEP))
carrier.CLAIMED_WITHIN = float(os.environ.get("PATIENCE", carrier.CLAIMED_WITHIN))
broker = os.environ.get("BROKER", "redis://127.0.0.1:1/0")
celery = Celery("legacy", broker=broker, backend=broker)
celery.conf.task_acks_late = True
celery.conf.task_default_queue = "legacy"


def note(text: str) -> None:
    with LEDGER.open("a") as ledger:
        ledger.write(f"{text}\n")


class Prepared(Task):  # type: ignore[misc]
    """As those that enter the context of a web framework do."""

    ready = False

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.ready = True
        try:
            return self.run(*args, **kwargs)
        finally:
            self.ready = False


@celery.task(bind=True, base=Prepared)
def charge(self: Any, order: str, amount: int = 1) -> str:
    note(f"charge {order} {self.request.retries} {self.ready}")
    return f"{order}:{amount}:{self.request.id}"


@celery.task(bind=True, max_retries=3, default_retry_delay=0)
def stubborn(self: Any, fails: int) -> int:
    note(f"stubborn {self.request.id} {self.request.retries}")
    if self.request.retries < fails:
        raise self.retry(exc=ConnectionError("again"), countdown=0.01)
    return int(self.request.retries)


@celery.task(autoretry_for=(ConnectionError,), retry_kwargs={"max_retries": 2, "countdown": 0})
def moody(kind: str) -> None:
    note(f"moody {kind}")
    raise ConnectionError("down") if kind == "passing" else ValueError("wrong")


@celery.task(bind=True)
def changing(self: Any, x: int) -> None:
    self.retry(args=(x + 1,), countdown=0)


app = App("shop", celery=celery)
charged = app.step(charge)
tried = app.step(stubborn)
mood = app.step(moody)
changed = app.step(changing)


@app.workflow
def order(name: str) -> str:
    return f"{charged(name, amount=3)} after {tried(2)}"
