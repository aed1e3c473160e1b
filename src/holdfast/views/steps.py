"""The steps and children of a run: what became of each, attempt by attempt."""

from __future__ import annotations

import bisect
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
from msgspec import Raw
from msgspec.structs import replace

from holdfast.core import events as ev
from holdfast.core.plans import PlannedStep, member_keys, read_plan
from holdfast.core.reuse import EarlierOutcomes
from holdfast.ports import AttemptRow, StepState


class AttemptView(msgspec.Struct, kw_only=True, frozen=True, gc=False):
    """One try of a step. PENDING means that its worker went down with it."""

    number: int
    state: StepState
    started_at: int
    ended_at: int | None = None
    worker: str = ""
    thread: str = ""
    error: Raw | None = None
    retry_at: int | None = None


class StepView(msgspec.Struct, kw_only=True, frozen=True, gc=False):
    """A step or child of a run, as far as it has come. In a composition its `key` is its name there, and `book#2` in a
    saga that has booked twice; one of several executions of a step is `part_of` that step's. `asked_at` is when the code
    asked for it, and `cause` the event that made it ask; a child that is not `waited` for keeps nobody waiting. One that
    was `handed_over` ends elsewhere."""

    cmd: str
    name: str
    state: StepState
    key: str = ""
    part_of: str = ""
    reason: str = ""
    attempts: int = 1
    tries: tuple[AttemptView, ...] = ()
    child_id: str = ""
    waited: bool = True
    worker: str = ""
    args: Raw = ev.NO_ARGS
    result: Raw | None = None
    error: Raw | None = None
    asked_at: int | None = None
    started_at: int | None = None
    ended_at: int | None = None
    retry_at: int | None = None
    reused: bool = False
    handed_over: bool = False
    undoes: str = ""
    cause: int = 0
    seq: int = 0

    @property
    def is_child(self) -> bool:
        return bool(self.child_id)

    @property
    def is_open(self) -> bool:
        """Whether it was begun and has no outcome yet."""
        return self.ended_at is None and self.asked_at is not None


_STATES = {
    "StepStarted": StepState.STARTED, "StepRetrying": StepState.RETRY, "StepLost": StepState.PENDING,
    "StepWithdrawn": StepState.PENDING, "StepHandedOver": StepState.STARTED,
    "StepCompleted": StepState.SUCCESS, "StepFailed": StepState.FAILURE, "StepCancelled": StepState.CANCELLED,
    "ChildStarted": StepState.STARTED, "ChildCompleted": StepState.SUCCESS, "ChildFailed": StepState.FAILURE,
    "ChildCancelled": StepState.CANCELLED, "ChildDropped": StepState.CANCELLED,
    "StepSkipped": StepState.SKIPPED, "StepRefused": StepState.FAILURE,
}  # fmt: skip
STEP_EVENTS = (
    *_STATES, "Planned", "OutcomeReused", "ChildAwaited", "RunStarted", "AttemptStarted", "ContinuedAsNew", "RunTakenUp",
    "RunCompleted", "RunFailed", "RunCancelled",
)  # fmt: skip
"""The kinds of events that tell of steps."""
_ACTION = re.compile(r"(\d+)[sc](\d+)")
_ENDINGS = ("StepCancelled", "ChildDropped", "StepSkipped", "StepRefused")


def steps_of(history: Iterable[ev.Event]) -> list[StepView]:
    """Steps and children in the order they became known, with what became of each. Those of a composition are known
    from its beginning, in its own order."""
    fold = _Fold()
    for event in history:
        fold.take(event)
    return fold.result()


def kept_by_retry(history: Sequence[ev.Event]) -> int:
    """How many steps and children another attempt would not do again, whichever attempt has done them."""
    anew = (i for i in reversed(range(len(history))) if isinstance(history[i], ev.ContinuedAsNew))
    return EarlierOutcomes(history[next(anew, 0) :]).completed


def with_attempts(views: Iterable[StepView], attempts: Iterable[AttemptRow]) -> list[StepView]:
    """The same with what executors have, of which no history knows before it has ended. One that nobody has claimed yet is
    PENDING."""
    found = {view.cmd: view for view in views}
    for row in attempts:
        view = found.get(row.cmd) or StepView(cmd=row.cmd, name=row.step, state=StepState.PENDING, asked_at=row.due)
        tries = view.tries
        if row.worker is not None:
            started = AttemptView(
                number=row.number, state=StepState.STARTED, started_at=row.claimed_at or row.due, worker=row.worker
            )
            tries = (*tries, started)
        found[row.cmd] = replace(
            view, state=StepState.PENDING if row.worker is None else StepState.STARTED, attempts=row.number, tries=tries,
            worker=row.worker or "", started_at=view.started_at or row.claimed_at, asked_at=view.asked_at or row.due,
            retry_at=None,
        )  # fmt: skip
    return list(found.values())


class _Fold:
    """A history, event by event."""

    def __init__(self) -> None:
        self.steps: dict[str, StepView] = {}
        self._by_seq: dict[int, ev.Event] = {}
        self._planned: dict[str, PlannedStep] = {}
        self._ended: ev.RunEnded | None = None
        self._taken_up = 0
        self._attempts: list[int] = []

    def take(self, event: ev.Event) -> None:
        self._by_seq[event.seq] = event
        if isinstance(event, ev.StepOutcome):  # nearly all of a long history
            self._follow(event)
        elif isinstance(event, ev.AttemptStarted | ev.ContinuedAsNew):
            self._planned, self._ended = {}, None
            self._attempts.append(event.seq)
        elif isinstance(event, ev.RunEnded):
            self._ended = event
        elif isinstance(event, ev.RunTakenUp):
            self._taken_up = event.ts
        elif isinstance(event, ev.Planned):
            self._plan(event)
        elif isinstance(event, ev.OutcomeReused):
            self._reuse(event)
        elif isinstance(event, ev.ChildAwaited):
            started_by = msgspec.json.decode(event.args, type=str)
            if started_by in self.steps:
                self.steps[started_by] = replace(self.steps[started_by], waited=True)
        elif isinstance(event, ev.Commanded) and event.kind in _STATES:
            self._follow(event)

    def result(self) -> list[StepView]:
        if self._ended is not None:
            self._leave_none_pending(self._ended)
        parts: dict[str, list[StepView]] = {step.name: [] for step in self._planned.values() if step.map_over}
        for view in self.steps.values():
            if view.part_of in parts:
                parts[view.part_of].append(view)
        for name, views in parts.items():
            cmd = self._planned[name].cmd
            self.steps[cmd] = _summed_up(self.steps[cmd], views)
        self._number_what_is_undone()
        return list(self.steps.values())

    def _asked_at(self, cause: int, default: int) -> int:
        """When the code asked for what `cause` led to: no earlier than a worker took the run up."""
        event = self._by_seq.get(cause)
        return default if event is None else min(max(event.ts, self._taken_up), default)

    def _plan(self, event: ev.Planned) -> None:
        if event.cmd.startswith("g:"):  # how often one of the steps is executed
            step = self._planned[event.name]
            letter = step.cmd[0]
            for key in member_keys(step.name, int(msgspec.json.decode(event.args))):
                self._expect(f"{letter}:{key}", key, step, event, part_of=step.name)
            whole = self.steps[step.cmd]
            self.steps[step.cmd] = replace(whole, asked_at=event.ts, started_at=event.ts, ended_at=None)
            return
        for view in [view for view in self.steps.values() if view.part_of]:  # of an earlier attempt
            del self.steps[view.cmd]
        for step in read_plan(event.args).steps:
            self._planned[step.name] = step
            self._expect(step.cmd, step.name, step, event)

    def _expect(self, cmd: str, key: str, step: PlannedStep, event: ev.Planned, part_of: str = "") -> None:
        self.steps[cmd] = StepView(
            cmd=cmd, key=key, name=step.runs, state=StepState.PENDING, seq=event.seq, attempts=0, part_of=part_of
        )

    def _reuse(self, event: ev.OutcomeReused) -> None:
        source = self._by_seq.get(event.source)
        if isinstance(source, ev.StepCompleted | ev.ChildCompleted):
            known = self.steps.get(event.cmd)
            self.steps[event.cmd] = StepView(
                cmd=event.cmd, name=event.name, state=StepState.SUCCESS, args=event.args, result=source.result,
                reused=True, asked_at=event.ts, started_at=event.ts, ended_at=event.ts, cause=event.cause, seq=event.seq,
                key=_key(event.cmd) if self._planned else "", attempts=getattr(source, "attempt", 1),
                child_id=getattr(source, "child_id", ""), part_of=known.part_of if known is not None else "",
            )  # fmt: skip

    def _follow(self, event: ev.Commanded) -> None:
        step = self._planned.get(_key(event.cmd)) if self._planned else None
        cmd = event.cmd if step is None else step.cmd
        view = self.steps.get(cmd)
        if view is None and event.__class__ is ev.StepCompleted and not self._planned:
            self.steps[cmd] = _done_at_once(event, self._asked_at(event.cause, event.ts))
            return
        if view is None:
            key = _key(cmd) if self._planned else ""
            view = StepView(cmd=cmd, key=key, name=event.name, state=StepState.PENDING, seq=event.seq)
        changes: dict[str, Any] = {
            "state": _STATES[event.kind],
            "cause": event.cause,
            "child_id": getattr(event, "child_id", ""),
            "undoes": getattr(event, "undoes", "") or view.undoes,
            "reason": getattr(event, "reason", ""),
            "handed_over": isinstance(event, ev.StepHandedOver),
            "error": getattr(event, "error", None),
            "result": getattr(event, "result", None),
            "retry_at": event.retry_at if isinstance(event, ev.StepRetrying) else None,
            "ended_at": event.ts if event.delivered or event.kind in _ENDINGS else None,
        }
        if view.asked_at is None:
            changes["asked_at"] = self._asked_at(event.cause, event.ts)
        if bytes(event.args) != bytes(ev.NO_ARGS):
            changes["args"] = event.args
        if isinstance(event, ev.StepWithdrawn):
            changes |= {"worker": "", "started_at": None, "tries": view.tries[:-1]}
        elif isinstance(event, ev.StepOutcome):
            changes |= {
                "attempts": event.attempt,
                "worker": event.worker,
                "started_at": event.started or view.started_at or event.ts,
                "tries": _tried(view.tries, event),
            }
        elif isinstance(event, ev.ChildStarted):
            changes |= {"attempts": 1, "started_at": event.ts, "waited": event.waited}
        self.steps[cmd] = replace(view, **changes)

    def _leave_none_pending(self, ended: ev.RunEnded) -> None:
        """What was planned and had not begun when its run ended never will; what was under way in one that was terminated
        has no end of its own."""
        state = StepState.CANCELLED if isinstance(ended, ev.RunCancelled) else StepState.SKIPPED
        terminated = isinstance(ended, ev.RunCancelled) and ended.terminated
        for cmd, view in self.steps.items():
            if terminated and view.is_open and view.waited and view.started_at is not None:
                self.steps[cmd] = replace(view, state=state, ended_at=ended.ts, reason="the run was terminated")
            elif view.state == StepState.PENDING and view.started_at is None:
                self.steps[cmd] = replace(view, state=state, reason="the run ended before its turn")

    def _number_what_is_undone(self) -> None:
        """Steps of one name in a saga are told apart as its SagaFailed does. No history says where a saga begins: it is
        taken to begin with the first step that was undone, in each attempt of the run."""
        undone = {view.undoes for view in self.steps.values() if view.undoes}
        if not undone:
            return
        asked = [(place, view) for view in self.steps.values() if (place := _place(view)) is not None]
        counts: dict[int, Counter[str]] = {}
        for (cause, _), view in sorted(asked, key=lambda each: each[0]):
            attempt = bisect.bisect_right(self._attempts, cause)
            if view.cmd in undone:
                counts.setdefault(attempt, Counter())
            if attempt in counts:
                counts[attempt][view.name] += 1
                if (number := counts[attempt][view.name]) > 1:
                    self.steps[view.cmd] = replace(view, key=f"{view.name}#{number}")


def _place(view: StepView) -> tuple[int, int] | None:
    """Where the code has asked for an action: after which event, and what number it was of those. None of a compensation,
    and of what has a name in a composition."""
    found = None if view.undoes else _ACTION.fullmatch(view.cmd)
    return None if found is None else (int(found[1]), int(found[2]))


def _done_at_once(event: ev.StepCompleted, asked_at: int) -> StepView:
    """A step of which nothing is known but its result: that is most of them, so it is made in one go."""
    started = event.started or event.ts
    done = AttemptView(
        number=event.attempt, state=StepState.SUCCESS, started_at=started, ended_at=event.ts, worker=event.worker,
        thread=event.thread,
    )  # fmt: skip
    return StepView(
        cmd=event.cmd, name=event.name, state=StepState.SUCCESS, attempts=event.attempt, tries=(done,),
        worker=event.worker, args=event.args, result=event.result, asked_at=asked_at, started_at=started,
        ended_at=event.ts, undoes=event.undoes, cause=event.cause, seq=event.seq,
    )  # fmt: skip


def _key(cmd: str) -> str:
    return cmd.partition(":")[2]


def _tried(tries: tuple[AttemptView, ...], event: ev.StepOutcome) -> tuple[AttemptView, ...]:
    """The attempts of a step, with what an event tells of the last one."""
    last = tries[-1] if tries and tries[-1].ended_at is None else None
    if last is None and isinstance(event, ev.StepCancelled):
        return tries  # it was never executed, as far as anybody knows
    now = AttemptView(
        number=event.attempt,
        state=_STATES[event.kind],
        started_at=event.started or (last.started_at if last is not None else event.ts),
        ended_at=None if isinstance(event, ev.StepStarted | ev.StepHandedOver) else event.ts,
        worker=event.worker or (last.worker if last is not None else ""),
        thread=event.thread,
        error=getattr(event, "error", None),
        retry_at=getattr(event, "retry_at", None),
    )
    return (*(tries if last is None else tries[:-1]), now)


def _summed_up(whole: StepView, parts: list[StepView]) -> StepView:
    """A step that is executed for each element of something, as one."""
    if whole.state != StepState.PENDING or whole.started_at is None:
        return whole
    states = {part.state for part in parts}
    changes: dict[str, Any] = {"attempts": max((part.attempts for part in parts), default=0)}
    if states <= {StepState.SUCCESS}:
        result = Raw(b"[" + b",".join(bytes(part.result or b"null") for part in parts) + b"]")
        changes |= {"state": StepState.SUCCESS, "result": result}
    elif states <= {StepState.SUCCESS, StepState.FAILURE, StepState.CANCELLED, StepState.SKIPPED}:
        changes["state"] = StepState.FAILURE if StepState.FAILURE in states else StepState.CANCELLED
        changes["error"] = next((part.error for part in parts if part.error is not None), None)
    else:
        return replace(whole, state=StepState.STARTED, **changes)
    return replace(whole, ended_at=max((part.ended_at or 0 for part in parts), default=whole.started_at), **changes)
