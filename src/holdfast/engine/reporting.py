"""What an engine tells observers: from what it has committed, so that none hears of what may yet not have happened."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.codec import Codec
from holdfast.core import events as ev
from holdfast.core.reports import attempt_report, step_id
from holdfast.engine.broadcast import Broadcast
from holdfast.engine.failures import error_text
from holdfast.engine.identity import Identity
from holdfast.engine.records import RunOptions
from holdfast.ports import FINAL, Attempt, Change, Claimed, InboxRow, NewAttempt, RunRow, Status
from holdfast.telemetry.instruments import (
    ClaimReport,
    CommitReport,
    Instruments,
    MessageReport,
    RunReport,
    StepReport,
    WorkerReport,
)

if TYPE_CHECKING:
    from holdfast.engine.run import LiveRun

STEP_ENDS = {
    "StepCompleted": Status.SUCCESS, "StepFailed": Status.FAILURE, "StepRefused": Status.FAILURE,
    "StepCancelled": Status.CANCELLED, "StepSkipped": "SKIPPED",
}  # fmt: skip


class Reporter:
    """Tells the instruments of this process, and those who watch the store. Whoever calls asks `is_on` first."""

    def __init__(self, instruments: Instruments, broadcast: Broadcast, me: Identity, codec: Codec) -> None:
        self.broadcast = broadcast
        self._instruments = instruments
        self._me = me
        self._codec = codec

    @property
    def is_on(self) -> bool:
        """Whether there is an observer."""
        return bool(self._instruments) or self.broadcast.is_on

    # -- what was committed

    def committed(self, changes: Sequence[tuple[LiveRun, Change]], claimed: Sequence[Claimed], seconds: float) -> None:
        """One commit. `seconds` is how long it took."""
        if self.broadcast.is_on:
            self.broadcast.committed(changes, claimed)
        tell = self._instruments
        if (tell_commit := tell.committed) is not None and changes:
            records = [record for _, change in changes for record in change.records]
            size = sum(len(record.payload) for record in records)
            tell_commit(CommitReport(events=len(records), seconds=seconds, runs=len(changes), size=size))
        steps = tell.step_finished is not None or tell.step_retrying is not None
        for live, change in changes:
            if steps or tell.run_started is not None:
                for record in change.records:
                    self._told(live.row, live.options, record.kind, record.payload)
            if change.attempts and (tell_sent := tell.step_scheduled) is not None:
                for new in change.attempts:
                    tell_sent(self._sent(live, new))
            if "status" in change.columns:
                self._status(live, change)
        if claimed and (tell_claims := tell.claimed) is not None:
            tell_claims(ClaimReport(count=len(claimed), worker=self._me.worker))

    def unrecorded(self, row: RunRow, options: RunOptions, events: Sequence[ev.Event]) -> None:
        """What happened in a run that has no history."""
        for event in events:
            self._told(row, options, event.kind, event)

    def _told(self, row: RunRow, options: RunOptions, kind: str, what: bytes | ev.Event) -> None:
        """`what` is the event, or its payload, which is read only if one listens."""
        if kind in STEP_ENDS:
            if (tell := self._instruments.step_finished) is not None:
                tell(self._step(row, options, _event(what), STEP_ENDS[kind]))
        elif kind == "StepRetrying":
            if (tell := self._instruments.step_retrying) is not None:
                tell(self._step(row, options, _event(what), "RETRY"))
        elif kind == "AttemptStarted" and (tell_run := self._instruments.run_started) is not None:
            tell_run(self._run(row, options, Status.RUNNING))

    def _step(self, row: RunRow, options: RunOptions, event: Any, state: str) -> StepReport:
        error = getattr(event, "error", None)
        started = getattr(event, "started", 0)
        retry_at = getattr(event, "retry_at", 0)
        return StepReport(
            id=step_id(row.id, event.cmd), run_id=row.id, name=event.name, workflow=row.workflow, state=state,
            attempt=getattr(event, "attempt", 1), parent_id=row.id, root_id=row.root_id or row.id,
            worker=getattr(event, "worker", "") or self._me.worker,
            seconds=max(0.0, (event.ts - started) / 1_000_000) if started else None,
            delay=max(0.0, (retry_at - event.ts) / 1_000_000) if retry_at else None,
            error=None if error is None else error_text(error, self._codec), trace=options.trace or None,
        )  # fmt: skip

    def _sent(self, live: LiveRun, new: NewAttempt) -> StepReport:
        """An attempt that a worker elsewhere is to execute."""
        row = live.row
        return StepReport(
            id=step_id(row.id, new.cmd), run_id=row.id, name=new.step, workflow=row.workflow, state="PENDING",
            attempt=new.number, parent_id=row.id, root_id=row.root_id or row.id, queue=new.queue or None,
            trace=live.options.trace or None,
        )  # fmt: skip

    def _status(self, live: LiveRun, change: Change) -> None:
        """What a run's new status means. One that is only shown, as it waits in memory, means nothing here."""
        status, tell, row = change.columns["status"], self._instruments, live.row
        if status in FINAL and (tell_end := tell.run_finished) is not None:
            end = ev.from_json(change.records[-1].payload) if change.records else None
            error = error_text(end.error, self._codec) if isinstance(end, ev.RunFailed) else None
            ended_at = change.columns.get("finished_at") or row.created_at
            seconds = max(0.0, (ended_at - (row.started_at or row.created_at)) / 1_000_000)
            tell_end(self._run(row, live.options, status, seconds=seconds, error=error))
        elif status in (Status.PAUSED, Status.STUCK) and (tell_held := tell.run_held) is not None:
            tell_held(self._run(row, live.options, status, reason=change.columns.get("reason", "")))
        elif status == Status.RETRY and (tell_retry := tell.run_retrying) is not None:
            failed = ev.from_json(change.records[-1].payload) if change.records else None
            error = error_text(failed.error, self._codec) if isinstance(failed, ev.AttemptFailed) else None
            tell_retry(self._run(row, live.options, status, error=error))
        elif status == Status.WAITING and live.state.released and (tell_parked := tell.run_parked) is not None:
            tell_parked(self._run(row, live.options, status, reason=change.columns.get("reason", "")))

    def _run(
        self,
        row: RunRow,
        options: RunOptions,
        status: str,
        *,
        reason: str = "",
        seconds: float | None = None,
        waited: float | None = None,
        error: str | None = None,
    ) -> RunReport:
        return RunReport(
            id=row.id, workflow=row.workflow, status=str(status), attempt=row.attempt, parent_id=row.parent_id,
            root_id=row.root_id or row.id, worker=self._me.worker, reason=reason, seconds=seconds, waited=waited,
            error=error, trace=options.trace or None,
        )  # fmt: skip

    # -- what arrived

    def taken_over(self, live: LiveRun, claimed: Claimed, now: int) -> None:
        """A run is in memory now."""
        if claimed.messages:
            self.messages(live.row, claimed.messages, now)
        if live.row.status != Status.RUNNING:
            return  # something is only asked of a run that is held or has ended
        if claimed.is_first and (tell := self._instruments.run_started) is not None:
            due = max(live.row.created_at, _begins_at(claimed.payloads))
            tell(self._run(live.row, live.options, Status.RUNNING, waited=max(0.0, (now - due) / 1_000_000)))
        elif not claimed.is_first and (tell := self._instruments.run_resumed) is not None:
            tell(self._run(live.row, live.options, Status.RUNNING))

    def messages(self, row: RunRow, messages: Sequence[InboxRow], now: int) -> None:
        if (tell := self._instruments.message_received) is not None:
            for message in messages:
                waited = max(0.0, (now - message.ts) / 1_000_000) if message.ts else None
                tell(MessageReport(run_id=row.id, kind=message.kind, clock=message.clock, waited=waited))

    # -- attempts on their way

    def handed_over(self, attempts: Sequence[Attempt], now: int) -> None:
        tell = self._instruments.step_scheduled
        for attempt in attempts:
            attempt.sent_at = now
            if tell is not None:
                tell(attempt_report(attempt, "PENDING"))

    def received(self, attempts: Sequence[Attempt], now: int) -> None:
        """Attempts of others' runs that this worker has claimed."""
        tell = self._instruments.step_received
        for attempt in attempts:
            attempt.sent_at = now
            if tell is not None:
                tell(attempt_report(attempt, "RECEIVED"))
        if (tell_claims := self._instruments.claimed) is not None:
            tell_claims(ClaimReport(count=len(attempts), worker=self._me.worker))
        if self.broadcast.is_on:
            self.broadcast.received(attempts)

    def progressed(self, attempt: Attempt, began: int, body: bytes) -> None:
        said = msgspec.json.decode(body)
        if (tell := self._instruments.step_progressed) is not None:
            tell(attempt_report(attempt, "STARTED", **said))
        if self.broadcast.is_on:
            self.broadcast.progressed(attempt, began, said)

    # -- the worker itself

    def worker(self, what: str, live: int, steps: int, beat: float) -> None:
        """`what` is `worker_started`, `worker_beat` or `worker_stopped`."""
        tell = getattr(self._instruments, what)
        if tell is None and not self.broadcast.is_on:
            return
        backlog = self.broadcast.backlog()
        report = WorkerReport(
            id=self._me.worker, host=platform.node(), pid=os.getpid(), build=self._me.build, beat=beat, live=live,
            parked=backlog.parked, steps=steps, inbox=backlog.inbox,
        )  # fmt: skip
        if tell is not None:
            tell(report)
        if self.broadcast.is_on:
            self.broadcast.worker(what, report)


def _event(what: bytes | ev.Event) -> Any:
    return ev.from_json(what) if isinstance(what, bytes) else what


def _begins_at(payloads: Sequence[bytes]) -> int:
    return ev.from_json(payloads[0]).ts if payloads else 0
