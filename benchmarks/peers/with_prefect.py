"""Prefect: flows and tasks in this process, recorded by a local server on SQLite that Prefect starts itself.

Its server takes in what happened in the background, after the flow has returned; each row waits until the server
knows of every task run.
"""

from __future__ import annotations

import time

import measure
from prefect import flow, task
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import (
    FlowRunFilter,
    FlowRunFilterId,
    TaskRunFilter,
    TaskRunFilterState,
    TaskRunFilterStateType,
)
from prefect.client.schemas.objects import StateType
from prefect.context import get_run_context


@task
def step(i: int) -> int:
    return i + 1


@flow(log_prints=False)
def in_sequence(n: int) -> str:
    total = 0
    for _ in range(n):
        total = step(total)
    measure.check(total, n)
    return str(get_run_context().flow_run.id)


@flow(log_prints=False)
def side_by_side(n: int) -> str:
    futures = [step.submit(i) for i in range(n)]
    measure.check(sum(future.result() for future in futures), n * (n + 1) // 2)
    return str(get_run_context().flow_run.id)


def until_recorded(flow_run: str, n: int) -> None:
    done = TaskRunFilter(state=TaskRunFilterState(type=TaskRunFilterStateType(any_=[StateType.COMPLETED])))
    with get_client(sync_client=True) as client:
        while True:
            found = client.read_task_runs(
                flow_run_filter=FlowRunFilter(id=FlowRunFilterId(any_=[flow_run])), task_run_filter=done, limit=200
            )
            if len(found) >= min(n, 200):
                return
            time.sleep(0.05)


def main() -> None:
    measure.run(
        round_trip=lambda: until_recorded(in_sequence(1), 1),
        sequential=lambda n: until_recorded(in_sequence(n), n),
        fan_out=lambda n: until_recorded(side_by_side(n), n),
        scale=0.1,
        many=None,
        note="the flow is in the client's own process",
    )
