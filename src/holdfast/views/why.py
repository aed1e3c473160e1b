"""Why a run is where it is, in one sentence: what the command and a monitor answer to "why is it not progressing?"."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Literal

import msgspec

from holdfast.core import events as ev
from holdfast.core.definitions import DEFAULT_QUEUE
from holdfast.ports import FINAL, AttemptRow, Place, RunRow, Status, WorkerKind, WorkerRow
from holdfast.views.steps import StepView
from holdfast.views.times import ago, lasting, left, until
from holdfast.views.values import PlainReader
from holdfast.views.waits import TIMEOUTS, Wait, in_line_of, waits_of

WhyKind = Literal[
    "ended", "diverged", "blocked", "crashing", "unknown_workflow", "paused", "not_yet", "retry", "no_worker", "worker_lost",
    "worker", "running", "step", "step_retry", "limit", "queue", "unserved_queue", "hook", "event", "child", "sleep",
    "timeout", "waiting",
]  # fmt: skip
NO_CODEC = PlainReader()
NAMED = 5
"""So many of the things that a run waits for are named; the others are counted."""


class Why(msgspec.Struct, frozen=True, kw_only=True):
    """`kind` is the first reason, `text` all of it in words, `since` when it began. `details` is JSON data."""

    kind: WhyKind
    text: str
    since: int | None = None
    details: dict[str, Any] = {}


def why(
    row: RunRow,
    now: int,
    history: Sequence[ev.Event] = (),
    workers: Sequence[WorkerRow] | None = None,
    max_attempts: Mapping[str, int] | None = None,
    reader: PlainReader = NO_CODEC,
    steps: Sequence[StepView] | None = None,
    attempts: Sequence[AttemptRow] = (),
    places: Sequence[Place] = (),
) -> Why:
    """Works with a row alone, and says more the more is given: the history, the workers of the app, how often each step
    may be tried, what reads errors that are encrypted, the run's attempts on other workers, and the lines of limits that it
    stands in. `steps` are those of the history, if they are known already."""
    status = Status(row.status)
    if status.is_final:
        return _ended(row, history, reader)
    if status == Status.STUCK:
        return _stuck(row, history, reader)
    if status == Status.PAUSED:
        paused = _last(history, ev.RunPaused)
        by = paused.by if paused is not None else ""
        text = row.reason or "paused; no reason was given"
        text += f" (paused by {by})" if by else ""
        return Why(
            kind="paused",
            text=text,
            since=paused and paused.ts,
            details={"reason": row.reason} | ({"by": by} if by else {}),
        )
    if status == Status.PENDING and row.started_at is None and _is_ahead(row, now):
        text = f"begins {until(row.wake_at or now, now)}"
        return Why(kind="not_yet", text=text, since=row.created_at, details={"begins_at": row.wake_at})
    nobody = _nobody(row, now, workers) or _elsewhere(now, attempts, workers)
    cancelled = _cancelled(history)
    if cancelled is not None and status in (Status.WAITING, Status.RUNNING):
        return _still_there(cancelled, nobody or _under_way(row, now, history, max_attempts or {}, steps, places), now)
    if status in (Status.PENDING, Status.RETRY) and _is_in_line(row, places):
        return nobody or _in_line(row, now, places)
    if status == Status.RETRY:
        return nobody or _between_attempts(row, now, history, reader)
    if status == Status.PENDING:
        return nobody or Why(kind="worker", text="waits for a worker", since=max(row.created_at, row.wake_at or 0))
    return nobody or _under_way(row, now, history, max_attempts or {}, steps, places)


def _is_in_line(row: RunRow, places: Sequence[Place]) -> bool:
    """Whether it has not begun because of a limit."""
    return bool(in_line_of(places)) or (row.owner is None and row.wake_at is None and row.reason.startswith("limit "))


def _in_line(row: RunRow, now: int, places: Sequence[Place]) -> Why:
    waits = in_line_of(places)
    if not waits:
        return Why(
            kind="limit", text=f"waiting to begin, for a slot of {row.reason}", details={"reasons": [row.reason]}
        )
    text = f"waiting to begin, for {', '.join(_named(wait, now, {}) for wait in waits)}"
    return Why(kind="limit", text=text, since=waits[0].since, details={"waits": [_data(wait) for wait in waits]})


def _cancelled(history: Sequence[ev.Event]) -> ev.CancelRequested | None:
    """The request to cancel an attempt that has not ended since."""
    last = _last(history, ev.CancelRequested, ev.Beginning, ev.RunEnded, ev.AttemptFailed)
    return last if isinstance(last, ev.CancelRequested) else None


def _still_there(cancelled: ev.CancelRequested, now_does: Why, now: int) -> Why:
    """A run that was to end: its clean-up takes its time, or its code has caught the cancellation."""
    what = "its timeout passed" if cancelled.timed_out else "cancel requested"
    asked = f"{what} {ago(cancelled.ts, now)}" + (
        f" ({cancelled.reason})" if cancelled.reason and not cancelled.timed_out else ""
    )
    text = f"{asked}, but its code cleans up or has caught the cancellation: {now_does.text}"
    details = {**now_does.details, "cancel_requested_at": cancelled.ts, "cancel_reason": cancelled.reason}
    return msgspec.structs.replace(now_does, text=text, details=details)


def _is_ahead(row: RunRow, now: int) -> bool:
    return row.wake_at is not None and row.wake_at > now


def _last(history: Sequence[ev.Event], *kinds: type[ev.Event]) -> Any:
    return next((event for event in reversed(history) if isinstance(event, kinds)), None)


def _ended(row: RunRow, history: Sequence[ev.Event], reader: PlainReader) -> Why:
    end = _last(history, ev.RunEnded)
    details: dict[str, Any] = {"status": row.status}
    text = {Status.SUCCESS: "succeeded", Status.FAILURE: "failed"}.get(Status(row.status), "was cancelled")
    if isinstance(end, ev.RunFailed) and (error := reader.error(end.error)) is not None:
        details["error"] = error
        text += f": {error['type']}: {error['message']}"
    elif isinstance(end, ev.RunCancelled) and end.reason:
        details["reason"] = end.reason
        if end.terminated:
            text = "was terminated"
        text += f": {end.reason}"
    return Why(kind="ended", text=text, since=row.finished_at, details=details)


def _stuck(row: RunRow, history: Sequence[ev.Event], reader: PlainReader) -> Why:
    if row.stuck == "unknown":
        return Why(
            kind="unknown_workflow", text=row.reason, since=row.wake_at,
            details={"reason": row.reason, "workflow": row.workflow},
        )  # fmt: skip
    details: dict[str, Any] = {"reason": row.reason}
    stuck = _last(history, ev.RunStuck)
    if stuck is not None:
        error = reader.value(stuck.error)
        state = error.get("state", {}) if isinstance(error, dict) else {}
        before = next((event.seq for event in reversed(history) if event.delivered and event.seq < stuck.seq), 0)
        details |= {"event": state.get("event") or before}
        details |= {name: state[name] for name in ("recorded", "asked", "line") if state.get(name)}
    kinds: dict[str, WhyKind] = {"blocked": "blocked", "lost": "crashing"}
    kind = kinds.get(row.stuck, "diverged")
    return Why(kind=kind, text=row.reason, since=stuck and stuck.ts, details=details)


def _nobody(row: RunRow, now: int, workers: Sequence[WorkerRow] | None) -> Why | None:
    """Whether a worker is missing for what the run is to do now."""
    if workers is None:
        return None
    alive = [worker for worker in workers if worker.lease_until >= now and worker.kind == WorkerKind.ENGINE]
    if row.owner is not None:
        owner = next((worker for worker in workers if worker.id == row.owner), None)
        if owner in alive:
            return None
        silent = "is gone" if owner is None else f"was last heard of {ago(owner.lease_until, now)}"
        then = "another one takes over" if alive else "no other is alive to take over; start one"
        return Why(
            kind="worker_lost", text=f"its worker {row.owner} {silent}: {then}",
            since=owner.lease_until if owner is not None else None, details={"worker": row.owner, "alive": len(alive)},
        )  # fmt: skip
    if _is_ahead(row, now) or (row.status == Status.WAITING and row.wake_at is None):
        return None  # nothing is to be done now
    since = row.wake_at or row.created_at
    if not alive:
        return Why(kind="no_worker", text="no worker is alive, so nothing goes on; start one", since=since)
    known = {name for worker in alive for name in worker.names}
    if row.workflow in known:
        return None
    text = f"no live worker knows {row.workflow!r}; start one whose code defines it"
    return Why(kind="unknown_workflow", text=text, since=since, details={"workflow": row.workflow})


def _elsewhere(now: int, attempts: Sequence[AttemptRow], workers: Sequence[WorkerRow] | None) -> Why | None:
    """What becomes of the steps that other workers execute: first those that none of them will."""
    if not attempts:
        return None
    alive = None if workers is None else [worker for worker in workers if worker.lease_until >= now]
    told = [_attempt_elsewhere(now, attempt, alive) for attempt in attempts]
    first = min(told, key=lambda why: _ELSEWHERE.index(why.kind))
    others = f" and {len(told) - 1} more" if len(told) > 1 else ""
    return msgspec.structs.replace(first, text=first.text + others)


_ELSEWHERE: tuple[WhyKind, ...] = ("unserved_queue", "step", "queue")


def _attempt_elsewhere(now: int, attempt: AttemptRow, alive: Sequence[WorkerRow] | None) -> Why:
    queue = attempt.queue or DEFAULT_QUEUE
    tried = f", attempt {attempt.number}" if attempt.number > 1 else ""
    details: dict[str, Any] = {"step": attempt.step, "queue": queue, "attempt": attempt.number}
    if attempt.worker is not None:
        since = attempt.claimed_at or now
        text = f"step {attempt.step!r} executes on {attempt.worker} for {lasting(since, now)}{tried}"
        return Why(kind="step", text=text, since=since, details={**details, "worker": attempt.worker})
    waits = f"step {attempt.step!r} waits in queue {queue!r} for {lasting(attempt.due, now)}{tried}"
    serving = None if alive is None else [worker for worker in alive if attempt.queue in worker.queues and worker.steps]
    if serving is not None and not serving:
        text = f"{waits}: no worker serves queue {queue!r}; start one: holdfast worker --executor-only --queues {queue}"
        return Why(kind="unserved_queue", text=text, since=attempt.due, details=details)
    if serving is not None and not any(attempt.step in worker.steps for worker in serving):
        text = f"{waits}: no worker that serves it knows the step; restart them with the code that defines it"
        return Why(kind="unserved_queue", text=text, since=attempt.due, details=details)
    return Why(kind="queue", text=waits, since=attempt.due, details=details)


def _between_attempts(row: RunRow, now: int, history: Sequence[ev.Event], reader: PlainReader) -> Why:
    failed = _last(history, ev.AttemptFailed)
    when = until(row.wake_at, now) if row.wake_at and _is_ahead(row, now) else "as soon as a worker is free"
    details: dict[str, Any] = {"attempt": row.attempt + 1, "begins_at": row.wake_at}
    if failed is not None and (error := reader.error(failed.error)) is not None:
        details["error"] = error
    return Why(kind="retry", text=f"next attempt {when}", since=failed and failed.ts, details=details)


def _under_way(
    row: RunRow,
    now: int,
    history: Sequence[ev.Event],
    max_attempts: Mapping[str, int],
    steps: Sequence[StepView] | None,
    places: Sequence[Place],
) -> Why:
    if row.status == Status.RUNNING and row.owner is None:  # its worker has stopped, and left it to others
        return Why(kind="worker", text="waits for a worker")
    waits = waits_of(history, row, steps, places) if history else []
    if row.status == Status.RUNNING:
        waits = [wait for wait in waits if wait.kind in ("step", "retry", "limit")] or waits
    if not waits:
        return _by_row(row, now)
    first = waits[0]
    kind: WhyKind = "step_retry" if first.kind == "retry" else first.kind
    details: dict[str, Any] = {"waits": [_data(wait) for wait in waits]}
    return Why(kind=kind, text=waiting_text(row, now, waits, max_attempts), since=first.since, details=details)


def _by_row(row: RunRow, now: int) -> Why:
    """Without a history, or where it doesn't tell: in the words of the engine that let the run wait."""
    if row.status == Status.RUNNING:
        return Why(kind="running", text=f"worker {row.owner} executes its code", details={"worker": row.owner})
    reasons = [reason for reason in row.reason.split(", ") if reason]
    others = [reason for reason in reasons if reason != "sleep" and reason not in TIMEOUTS]
    kind: WhyKind = "sleep" if reasons == ["sleep"] else "waiting"
    begun: dict[str, WhyKind] = {
        "retry of": "step_retry", "limit": "limit", "hook": "hook", "event": "event", "child": "child", "step": "step"
    }  # fmt: skip
    for word, found in begun.items():
        if others and others[0].startswith(f"{word} "):
            kind = found
    due = until(row.wake_at, now) if row.wake_at and _is_ahead(row, now) else ""
    return Why(kind=kind, text=_waiting(others, "sleep" in reasons, due), details={"reasons": reasons})


def doing(row: RunRow, now: int) -> str:
    """What a run waits for, in words, from its row alone; nothing for one that runs or has ended."""
    return "" if row.status == Status.RUNNING or row.status in FINAL else why(row, now).text


def waiting_text(
    row: RunRow, now: int, waits: Sequence[Wait], max_attempts: Mapping[str, int] = MappingProxyType({})
) -> str:
    """What a run waits for, in words; there is something."""
    if waits[0].kind == "step":
        executing = [wait for wait in waits if wait.kind == "step"]
        return _executing(executing[0], now, max_attempts) + (
            f" and {len(executing) - 1} more" if len(executing) > 1 else ""
        )
    others = [_named(wait, now, max_attempts) for wait in waits if wait.kind not in ("sleep", "timeout")]
    if len(others) > NAMED:
        others = [*others[: NAMED - 1], f"{others[NAMED - 1]} and {len(others) - NAMED} more"]
    # A run that is still in memory has no time to wake up in its row.
    times = [row.wake_at, *(wait.until for wait in waits if wait.kind != "retry")]
    said = {wait.until for wait in waits if wait.kind == "retry"}  # with the retry itself
    due = min((time for time in times if time is not None and time > now and time not in said), default=None)
    return _waiting(others, any(wait.kind == "sleep" for wait in waits), until(due, now) if due is not None else "")


def _waiting(others: Sequence[str], sleeps: bool, due: str) -> str:
    if others:
        return f"waiting for {', '.join(others)}" + (f", until {due}" if due else "")
    return ("sleeping" if sleeps else "waiting") + (f" until {due}" if due else "")


def _of(wait: Wait, max_attempts: Mapping[str, int]) -> str:
    allowed = max_attempts.get(wait.name)
    return f"attempt {wait.attempt}" + (f" of {allowed}" if allowed is not None and allowed >= wait.attempt else "")


def _executing(wait: Wait, now: int, max_attempts: Mapping[str, int]) -> str:
    tried = f", {_of(wait, max_attempts)}" if wait.attempt > 1 else ""
    lasts = lasting(wait.since, now) if wait.since is not None else "a moment"
    if wait.handed_over:
        return f"step {wait.name!r} was handed over {lasts} ago, and whoever has its token ends it{tried}"
    if not wait.worker:
        return f"step {wait.name!r} waits for a worker, for {lasts}: the last one was lost{tried}"
    return f"step {wait.name!r} executes on {wait.worker} for {lasts}{tried}"


def _named(wait: Wait, now: int, max_attempts: Mapping[str, int]) -> str:
    if wait.kind == "retry":
        begins = f", in {left(wait.until, now)}" if wait.until is not None and wait.until > now else ""
        return f"retry of step {wait.name!r} ({_of(wait, max_attempts)}{begins})"
    if wait.kind == "limit":
        key = f" (key {wait.key!r})" if wait.key else ""
        return f"a slot of limit {wait.name!r}{key}, {_place(wait.place)}"
    if wait.kind == "child":
        return f"child {wait.child_id!r}"
    if wait.kind == "event":
        return f"event {wait.name!r}" + (f" where {wait.where}" if wait.where else "")
    return f"{wait.kind} {wait.name!r}" + (f" key {wait.key!r}" if wait.key else "")


def _place(place: int) -> str:
    return "next in line" if place == 1 else f"number {place} in line"


def _data(wait: Wait) -> dict[str, Any]:
    """Without what is not known of it."""
    found: dict[str, Any] = msgspec.to_builtins(wait)
    return {name: value for name, value in found.items() if value not in ("", None, 0)}
