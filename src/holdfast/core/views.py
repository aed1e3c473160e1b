"""What a history says about a run, for people: its steps, and the statuses it went through."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
from msgspec import Raw

from holdfast.core import events as ev
from holdfast.core.plans import Plan, PlannedStep, member_keys, read_plan
from holdfast.ports import RunRow, Status, StepState


class StepView(msgspec.Struct, kw_only=True):
    """A step or child of a run, as far as it has come. In a composition its `key` is its name there; one of several
    executions of a step is `part_of` that step's."""

    cmd: str
    name: str
    state: StepState
    key: str = ""
    part_of: str = ""
    reason: str = ""
    attempts: int = 1
    child_id: str = ""
    worker: str = ""
    args: Raw = ev.NO_ARGS
    result: Raw | None = None
    error: Raw | None = None
    started_at: int | None = None
    ended_at: int | None = None
    retry_at: int | None = None
    reused: bool = False
    undoes: str = ""
    seq: int = 0


class StatusChange(msgspec.Struct):
    status: Status
    at: int
    error: Raw | None = None
    reason: str = ""


_STATES = {
    "StepStarted": StepState.STARTED, "StepRetrying": StepState.RETRY, "StepLost": StepState.PENDING,
    "StepWithdrawn": StepState.PENDING,
    "StepCompleted": StepState.SUCCESS, "StepFailed": StepState.FAILURE, "StepCancelled": StepState.CANCELLED,
    "ChildStarted": StepState.STARTED, "ChildCompleted": StepState.SUCCESS, "ChildFailed": StepState.FAILURE,
    "ChildCancelled": StepState.CANCELLED, "ChildDropped": StepState.CANCELLED,
    "StepSkipped": StepState.SKIPPED, "StepRefused": StepState.FAILURE,
}  # fmt: skip


def steps_of(history: Iterable[ev.Event]) -> list[StepView]:
    """Steps and children in the order they became known, with what became of each. Those of a composition are known
    from its beginning, in its own order."""
    steps: dict[str, StepView] = {}
    by_seq: dict[int, ev.Event] = {}
    planned: dict[str, PlannedStep] = {}
    ended: ev.RunEnded | None = None
    for event in history:
        by_seq[event.seq] = event
        if isinstance(event, ev.AttemptStarted | ev.ContinuedAsNew):
            planned, ended = {}, None
        elif isinstance(event, ev.RunEnded):
            ended = event
        elif isinstance(event, ev.Planned):
            _plan(event, steps, planned)
        elif isinstance(event, ev.OutcomeReused):
            source = by_seq.get(event.source)
            if isinstance(source, ev.StepCompleted | ev.ChildCompleted):
                steps[event.cmd] = StepView(
                    cmd=event.cmd, name=event.name, state=StepState.SUCCESS, args=event.args, result=source.result,
                    reused=True, started_at=event.ts, ended_at=event.ts, seq=event.seq,
                    key=_key(event.cmd) if planned else "",
                    attempts=getattr(source, "attempt", 1), child_id=getattr(source, "child_id", ""),
                    part_of=steps[event.cmd].part_of if event.cmd in steps else "",
                )  # fmt: skip
        elif isinstance(event, ev.Commanded) and event.kind in _STATES:
            _follow(event, steps, planned)
    if ended is not None:
        _leave_none_pending(ended, steps.values())
    parts: dict[str, list[StepView]] = {step.name: [] for step in planned.values() if step.map_over}
    for view in steps.values():
        if view.part_of in parts:
            parts[view.part_of].append(view)
    for name, views in parts.items():
        _sum_up(steps[planned[name].cmd], views)
    return list(steps.values())


def _key(cmd: str) -> str:
    return cmd.partition(":")[2]


def _plan(event: ev.Planned, steps: dict[str, StepView], planned: dict[str, PlannedStep]) -> None:
    if event.cmd.startswith("g:"):  # how often one of the steps is executed
        step = planned[event.name]
        whole, letter = steps[step.cmd], step.cmd[0]
        for key in member_keys(step.name, int(msgspec.json.decode(event.args))):
            cmd = f"{letter}:{key}"
            steps[cmd] = StepView(
                cmd=cmd, key=key, name=step.runs, state=StepState.PENDING, seq=event.seq, attempts=0, part_of=step.name
            )
        whole.started_at, whole.ended_at = event.ts, None
        return
    plan: Plan = read_plan(event.args)
    for view in [view for view in steps.values() if view.part_of]:  # of an earlier attempt
        del steps[view.cmd]
    for step in plan.steps:
        planned[step.name] = step
        steps[step.cmd] = StepView(
            cmd=step.cmd, key=step.name, name=step.runs, state=StepState.PENDING, seq=event.seq, attempts=0
        )


def _follow(event: ev.Commanded, steps: dict[str, StepView], planned: dict[str, PlannedStep]) -> None:
    step = planned.get(_key(event.cmd))
    cmd = event.cmd if step is None else step.cmd
    view = steps.get(cmd)
    if view is None:
        key = _key(cmd) if planned else ""
        view = steps[cmd] = StepView(cmd=cmd, key=key, name=event.name, state=StepState.PENDING, seq=event.seq)
    if bytes(event.args) != bytes(ev.NO_ARGS):
        view.args = event.args
    view.state = _STATES[event.kind]
    view.child_id = getattr(event, "child_id", "")
    view.undoes = getattr(event, "undoes", "") or view.undoes
    view.reason = getattr(event, "reason", "")
    if isinstance(event, ev.StepOutcome):
        view.attempts = event.attempt
        view.worker = event.worker
        view.started_at = event.started or view.started_at or event.ts
    elif isinstance(event, ev.ChildStarted):
        view.attempts = 1
        view.started_at = event.ts
    view.retry_at = event.retry_at if isinstance(event, ev.StepRetrying) else None
    view.error = getattr(event, "error", None)
    view.result = getattr(event, "result", None)
    if event.delivered or event.kind in ("StepCancelled", "ChildDropped", "StepSkipped", "StepRefused"):
        view.ended_at = event.ts


def _leave_none_pending(ended: ev.RunEnded, views: Iterable[StepView]) -> None:
    """What was planned and had not begun when its run ended never will."""
    for view in views:
        if view.state == StepState.PENDING and view.started_at is None:
            view.state = StepState.CANCELLED if isinstance(ended, ev.RunCancelled) else StepState.SKIPPED
            view.reason = "the run ended before its turn"


def _sum_up(whole: StepView, parts: list[StepView]) -> None:
    """A step that is executed for each element of something, as one."""
    if whole.state != StepState.PENDING or whole.started_at is None:
        return
    states = {part.state for part in parts}
    whole.attempts = max((part.attempts for part in parts), default=0)
    if states <= {StepState.SUCCESS}:
        whole.state = StepState.SUCCESS
        whole.result = Raw(b"[" + b",".join(bytes(part.result or b"null") for part in parts) + b"]")
    elif states <= {StepState.SUCCESS, StepState.FAILURE, StepState.CANCELLED, StepState.SKIPPED}:
        whole.state = StepState.FAILURE if StepState.FAILURE in states else StepState.CANCELLED
        whole.error = next((part.error for part in parts if part.error is not None), None)
    else:
        whole.state = StepState.STARTED
        return
    whole.ended_at = max((part.ended_at or 0 for part in parts), default=whole.started_at)


def statuses_of(history: Iterable[ev.Event], row: RunRow) -> list[StatusChange]:
    """The statuses a run went through, with times and causes."""
    changes: list[StatusChange] = []

    def add(status: Status, at: int, error: Raw | None = None, reason: str = "") -> None:
        changes.append(StatusChange(status, at, error, reason))

    for event in history:
        if isinstance(event, ev.RunStarted):
            add(Status.PENDING, event.ts)
            if row.started_at is not None:
                add(Status.RUNNING, row.started_at)
        elif isinstance(event, ev.AttemptFailed):
            add(Status.RETRY, event.ts, event.error)
            add(Status.PENDING, event.retry_at)
        elif isinstance(event, ev.AttemptStarted):
            if changes and changes[-1].status.is_final:
                add(Status.PENDING, event.ts)
            add(Status.RUNNING, event.ts)
        elif isinstance(event, ev.RunPaused):
            add(Status.PAUSED, event.ts, reason=event.reason)
        elif isinstance(event, ev.RunStuck):
            add(Status.STUCK, event.ts, event.error, event.reason)
        elif isinstance(event, ev.RunResumed):
            add(Status.RUNNING, event.ts)
        elif isinstance(event, ev.RunCompleted):
            add(Status.SUCCESS, event.ts)
        elif isinstance(event, ev.RunFailed):
            add(Status.FAILURE, event.ts, event.error)
        elif isinstance(event, ev.RunCancelled):
            add(Status.CANCELLED, event.ts, reason=event.reason)
    return changes
