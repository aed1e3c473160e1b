"""The same work on plain Celery and on Holdfast: `celery -A on_celery:plain worker`, `celery -A on_celery:celery worker`."""

from __future__ import annotations

import os

from celery import Celery

from holdfast import App

REDIS = os.environ.get("BENCH_REDIS", "redis://127.0.0.1:6379")
app = App("on_celery")


@app.step
def step(x: int = 0) -> int:
    return 1


@app.step
def join(xs: list[int]) -> int:
    return len(xs)


@app.workflow
def in_sequence(n: int) -> int:
    return sum(step(i) for i in range(n))


@app.workflow
async def fan(n: int) -> int:
    members = [step.submit(i) for i in range(n)]
    return join([await member for member in members])


plain = Celery("plain", broker=f"{REDIS}/2", backend=f"{REDIS}/3")
plain.conf.update(broker_connection_retry_on_startup=True)


@plain.task(name="plain.step")  # type: ignore[untyped-decorator]
def plain_step(x: int = 0) -> int:
    return 1


@plain.task(name="plain.join")  # type: ignore[untyped-decorator]
def plain_join(xs: list[int]) -> int:
    return len(xs)


if app.on_celery:
    celery = app.celery
