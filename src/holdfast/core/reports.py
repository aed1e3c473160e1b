"""Attempts of steps as observers are told of them."""

from __future__ import annotations

from holdfast.ports import Attempt
from holdfast.telemetry.instruments import StepReport


def step_id(run_id: str, cmd: str) -> str:
    """What names a step, for all its attempts, among the steps of all runs."""
    return f"{run_id}:{cmd}"


def attempt_report(
    attempt: Attempt, state: str, *, waited: float | None = None, done: float | None = None, total: float | None = None,
    note: str = "",
) -> StepReport:  # fmt: skip
    """An attempt that has no outcome yet."""
    return StepReport(
        id=step_id(attempt.run_id, attempt.cmd), run_id=attempt.run_id, name=attempt.step, workflow=attempt.workflow,
        state=state, attempt=attempt.number, parent_id=attempt.run_id, root_id=attempt.root_id,
        waited=waited, done=done, total=total, note=note, trace=attempt.trace or None,
    )  # fmt: skip


def started_report(attempt: Attempt, started: int) -> StepReport:
    """An attempt that begins now."""
    waited = max(0.0, (started - attempt.sent_at) / 1_000_000) if attempt.sent_at else None
    return attempt_report(attempt, "STARTED", waited=waited)
