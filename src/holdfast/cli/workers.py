"""`holdfast workers`: who is there, and what each of them does."""

from __future__ import annotations

import click

from holdfast.cli.output import json_option, print_json, print_table, say
from holdfast.cli.target import Target, open_target
from holdfast.core.definitions import DEFAULT_QUEUE
from holdfast.ports import WorkerRow
from holdfast.views.summaries import worker_summary
from holdfast.views.times import length

HEADS = ("WORKER", "KIND", "QUEUES", "HOST", "PID", "BUILD", "UP", "LEASE")


@click.command()
@json_option
@click.pass_context
def workers(context: click.Context, as_json: bool) -> None:
    """List workers: engines, which bring runs forward, and executors, which execute steps of others' runs; each with the
    queues whose steps it executes. A worker whose lease is over was killed or hangs; others notice by themselves."""
    target = open_target(context)
    now = target.store.now()
    found = sorted(target.store.workers(), key=lambda worker: (worker.kind, worker.started_at))
    if as_json:
        print_json([worker_summary(worker, now) for worker in found])
    elif found:
        print_table(HEADS, [_row(worker, now) for worker in found])
    else:
        _nobody(target)


def _row(worker: WorkerRow, now: int) -> list[str]:
    queues = ", ".join(queue or DEFAULT_QUEUE for queue in worker.queues) or "none"
    left = worker.lease_until - now
    return [
        worker.id, worker.kind, queues, worker.host, str(worker.pid), worker.build, length(max(0, now - worker.started_at)),
        length(left) if left >= 0 else f"over for {length(-left)}",
    ]  # fmt: skip


def _nobody(target: Target) -> None:
    say(f"no worker of app {target.app.name!r} is there; start one: {target.start_a_worker()}")
