"""Steps of several runs side by side: by worker over time, and as a grid of steps and runs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from holdfast.ports import RunRow, StepState
from holdfast.views.steps import StepView
from holdfast.views.times import iso

Histories = Iterable[tuple[RunRow, Sequence[StepView]]]
SPANS_SHOWN = 20_000


def worker_lanes(histories: Histories, since: int, until: int) -> dict[str, Any]:
    """What each worker has executed between two times, attempt by attempt: in microseconds after `since`."""
    lanes: dict[str, list[dict[str, Any]]] = {}
    shown = left_out = 0
    for row, steps in histories:
        for step in steps:
            for attempt in step.tries:
                end = attempt.ended_at
                if not attempt.worker or attempt.started_at >= until or (end is not None and end <= since):
                    continue
                if shown == SPANS_SHOWN:
                    left_out += 1
                    continue
                shown += 1
                lanes.setdefault(attempt.worker, []).append(
                    {
                        "run": row.id, "cmd": step.cmd, "name": step.key or step.name, "attempt": attempt.number,
                        "state": "LOST" if attempt.state == StepState.PENDING else str(attempt.state),
                        "start": max(attempt.started_at, since) - since,
                        "end": None if end is None else min(end, until) - since,
                    }
                )  # fmt: skip
    for spans in lanes.values():
        spans.sort(key=lambda span: (span["start"], span["end"] or math.inf))
    return {"lanes": [{"worker": worker, "spans": lanes[worker]} for worker in sorted(lanes)], "left_out": left_out}


def step_grid(histories: Sequence[tuple[RunRow, Sequence[StepView]]]) -> dict[str, Any]:
    """Steps by name against runs, the newest first. Of several executions in one run the worst counts."""
    names: dict[str, dict[int, list[StepView]]] = {}
    for row, steps in histories:
        for step in steps:
            if not step.undoes and not step.part_of:
                names.setdefault(step.key or step.name, {}).setdefault(row.no, []).append(step)
    runs = [
        {"id": row.id, "status": row.status, "created_at": iso(row.created_at), "attempt": row.attempt}
        for row, _ in histories
    ]
    order = [row.no for row, _ in histories]
    return {"runs": runs, "steps": [_line(name, by_run, order) for name, by_run in names.items()]}


_WORST = ("FAILURE", "RETRY", "STARTED", "PENDING", "RECEIVED", "CANCELLED", "SUCCESS", "SKIPPED")


def _line(name: str, by_run: dict[int, list[StepView]], order: Sequence[int]) -> dict[str, Any]:
    cells = [_cell(by_run[no]) if no in by_run else None for no in order]
    steps = [step for found in by_run.values() for step in found]
    ended = [step for step in steps if step.state in (StepState.SUCCESS, StepState.FAILURE)]
    took = sorted(
        (step.ended_at - step.started_at) / 1_000_000
        for step in ended
        if step.ended_at is not None and step.started_at is not None and not step.reused
    )
    return {
        "name": name,
        "cells": cells,
        "success_rate": sum(step.state == StepState.SUCCESS for step in ended) / len(ended) if ended else None,
        "retried": sum(step.attempts > 1 for step in steps),
        "count": len(steps),
        "p50": quantile(took, 0.5),
        "p95": quantile(took, 0.95),
    }


def _cell(steps: Sequence[StepView]) -> dict[str, Any]:
    worst = min(steps, key=lambda step: _WORST.index(step.state))
    return {
        "state": str(worst.state), "attempts": max(step.attempts for step in steps), "count": len(steps),
        "cmd": worst.cmd,
    }  # fmt: skip


def quantile(values: Sequence[float], part: float) -> float | None:
    """Of values in order."""
    return values[min(len(values) - 1, math.floor(part * len(values)))] if values else None
