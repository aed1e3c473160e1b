"""A run as it is written: its row, its options, and the change that the next commit makes to them.

Whether its code is in memory makes no difference here.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from typing import Any

import msgspec
from msgspec import Raw

from holdfast.core import events as ev
from holdfast.core.definitions import WorkflowOptions
from holdfast.core.execution import Execution
from holdfast.core.greenlets import Greenlets
from holdfast.core.registry import Definitions
from holdfast.engine import failures
from holdfast.engine.change import PendingChange
from holdfast.engine.domain_events import emission_of, news_of
from holdfast.engine.guard import Guard
from holdfast.engine.identity import Identity
from holdfast.engine.limits import Slots
from holdfast.engine.programs import Program, program_for
from holdfast.engine.records import (
    MESSAGES,
    ControlMessage,
    RunOptions,
    child_message,
    control,
    not_a_child,
    outcome_message,
    status_of,
    to_record,
)
from holdfast.engine.reporting import Reporter
from holdfast.engine.run_inbox import RunInbox
from holdfast.engine.step_ends import StepEnds
from holdfast.engine.steps import StepBook
from holdfast.engine.termination import children_left
from holdfast.errors import UnknownNameError
from holdfast.ports import Change, Claimed, Clock, InboxRow, Outcome, RunRow, Status
from holdfast.printing import printable, text_of

logger = logging.getLogger("holdfast.engine")
HELD = (Status.PAUSED, Status.STUCK)


class Shared(msgspec.Struct, frozen=True, gc=False):
    """What all runs in one engine share."""

    app: Definitions
    greenlets: Greenlets
    guard: Guard
    me: Identity
    clock: Clock
    reporter: Reporter


class Terms(msgspec.Struct, frozen=True, gc=False):
    """What its code says of a run as a whole: how long it may take, how long it is kept, and how often it is tried."""

    timeout: int | None = None
    retain: int | None = WorkflowOptions().retain
    keep_generations: int | None = None
    attempts: int | None = 1


NO_TERMS = Terms()
"""As long as its code is not known."""


def terms_of(program: Program, options: RunOptions) -> Terms:
    retries = options.max_retries if options.max_retries is not None else program.settings.max_retries
    return Terms(
        program.timeout,
        program.settings.retain,
        program.settings.keep_generations,
        None if retries is None else retries + 1,
    )


def read_options(row: RunRow) -> tuple[RunOptions, str]:
    """The options of a run, and what is wrong with them."""
    try:
        return msgspec.json.decode(row.options, type=RunOptions), ""
    except msgspec.DecodeError as error:
        return RunOptions(), f"the options of run {row.id} in the store can't be read: {error}"


class RunState:
    """`history` are the events that its code has yet to see; `released` says that this engine lets go of the run with the
    change that is to be committed."""

    __slots__ = (
        "change", "ends", "history", "inbox", "options", "released", "row", "shared", "shown", "steps", "terms",
    )  # fmt: skip

    def __init__(self, claimed: Claimed, options: RunOptions, shared: Shared) -> None:
        row = claimed.row
        self.row = row
        self.shared = shared
        self.options = options
        self.change = PendingChange(row.no, max(row.base_seq + len(claimed.payloads) - 1, row.end_seq))
        slots = Slots(row, claimed.slots, shared.me, shared.app.codec, self.change)
        self.steps = StepBook(row, shared.app, shared.me, self.change, slots, claimed.attempts)
        self.ends = StepEnds(self.steps, shared.app.codec, shared.clock)
        self.inbox = RunInbox(claimed.messages)
        self.history: list[ev.AnyEvent] = []
        self.shown: str = row.status
        self.terms = NO_TERMS
        self.released = False

    @property
    def log_fields(self) -> dict[str, str]:
        """What the engine's own records about this run carry."""
        return {"run_id": self.row.id, "workflow": self.row.workflow}

    def program(self) -> Program:
        return program_for(self.shared.app, self.row.workflow, self.options)

    def is_final(self) -> bool:
        return Status(self.row.status).is_final

    # -- what is written

    def take_change(self) -> Change:
        change, row = self.change.take(), self.row
        if change.records and row.build != self.shared.me.build:
            change.columns["build"] = row.build = self.shared.me.build
        if change.columns and row.durable:  # as the row is written anyway, it says where the history ends
            change.columns.setdefault(
                "end_seq", change.records[-1].seq if change.records else self.change.last_committed
            )
        return change

    def show_status(self, reason: str) -> None:
        status = Status.WAITING if reason else Status.RUNNING
        if (self.shown, self.row.reason) != (status, reason):
            self.shown, self.row.reason = status, reason
            self.change.columns |= {"status": status, "reason": reason}

    def append(self, event: Any) -> None:
        """Append to a history whose code is not in memory."""
        event.seq = (self.history[-1].seq if self.history else self.change.last_committed) + 1
        self.history.append(event)
        self.change.records.append(to_record(event))

    def _append_last(self, end: ev.Event) -> None:
        """How an attempt ended is kept even without a history."""
        kept = self.change.records
        end.seq = (kept[-1].seq if kept else self.change.last_committed) + 1
        kept.append(to_record(end))

    def tell(self, event: ev.Event) -> None:
        self.change.news += news_of(self.row, self.options, event, self.shared.app.codec)

    def emit(self, name: str, key: str, payload: Raw, cmd: str, now: int) -> None:
        self.change.signals.append(emission_of(self.row, self.options, name, key, bytes(payload), cmd, now))

    def begin_attempt(self, now: int, by: str = "") -> None:
        """Begin again, with everything earlier attempts have achieved at hand."""
        self.row.attempt += 1
        self.append(ev.AttemptStarted(ts=now, attempt=self.row.attempt, by=by))
        self.change.columns["attempt"] = self.row.attempt

    def unhold(self) -> None:
        self.row.status = Status.RUNNING
        self.shown = Status.RUNNING
        self.change.columns |= {"status": Status.RUNNING, "held": 0, "reason": "", "stuck": ""}

    def begin_generation(self, begins: ev.ContinuedAsNew) -> None:
        """A new generation of the history begins: those that are too old are deleted with the same commit."""
        self.history = [begins]
        if not self.row.durable:
            return
        keep = self.terms.keep_generations
        if keep is not None:
            earlier = [*self.options.generations, self.row.base_seq]
            self.options.generations = earlier[-keep:] if keep else []
            self.change.columns["options"] = self.options.to_json()
            self.change.forget_before = (self.options.generations or [begins.seq])[0]
        self.change.columns["base_seq"] = self.row.base_seq = begins.seq

    # -- what is read

    def read(self, message: InboxRow, note: Callable[[ev.Event], None], now: int) -> Any:
        """What a message says; None if it can't be read, which is recorded, so that it is not read again."""
        try:
            return msgspec.json.decode(message.body, type=MESSAGES[message.kind])
        except (msgspec.DecodeError, KeyError) as error:
            logger.warning("run %s: a message can't be read: %s", self.row.id, error, extra=self.log_fields)
            note(ev.MessageDropped(ts=now, message=printable(message.kind), reason=printable(text_of(error))))
            return None

    def notify_later(self, body: ControlMessage) -> bool:
        """Tell the parent of the outcome, when there is one; False if it is not the parent who asks."""
        if not body.parent_cmd:
            return True
        if body.parent_id != self.row.parent_id:
            self.change.messages.append(
                not_a_child(self.shared.app.codec, self.row.id, body.parent_id, body.parent_cmd)
            )
            return False
        self.row.parent_cmd = body.parent_cmd
        self.options.notify = True
        self.change.columns |= {"parent_cmd": body.parent_cmd, "options": self.options.to_json()}
        return True

    def tell_children(self, there: Execution | None, kind: str, reason: str, by: str) -> None:
        """Pause or resume, with a run, the children that it waits for, and theirs."""
        why = f"its parent {self.row.id} was paused" + (f": {reason}" if reason else "") if kind == "pause" else ""
        for child_id in children_left(there, self.history):
            self.change.messages.append(control(child_id, kind, why, by=by, child_of=self.row.id, children=True))

    # -- the end, and leaving

    def end(self, end: ev.Event, now: int) -> None:
        """The run, or this attempt of it, is over."""
        if not self.row.durable:
            self._append_last(end)
        failures.run_failed(self.row, self.shared.app.codec, end, self.terms.attempts, self.change.records)
        self.steps.slots.give_others_back(())
        if isinstance(end, ev.AttemptFailed):
            self.leave({"status": Status.RETRY, "reason": "", "wake_at": end.retry_at, "attempt": end.attempt})
            return
        retain = self.terms.retain
        if self.row.parent_id and self.options.notify:
            self.change.messages.append(child_message(self.row, end))
        self.tell(end)
        self.leave(
            {
                "status": status_of(end), "reason": getattr(end, "reason", ""), "wake_at": None, "finished_at": now,
                "end_seq": end.seq, "losses": 0,
                "expires_at": None if retain is None else now + retain,
            }
        )  # fmt: skip

    def end_outside(self, end: ev.Event, now: int) -> None:
        """End a run whose code is not in memory."""
        self.terms = terms_of(self.program(), self.options)
        if self.row.durable:
            self.append(end)
        self.end(end, now)

    def read_terms(self) -> None:
        """What its code says of it, if this worker has that."""
        with contextlib.suppress(UnknownNameError):
            self.terms = terms_of(self.program(), self.options)

    def keep_outcomes(self, outcomes: list[Outcome]) -> None:
        for outcome in outcomes:
            try:
                self.change.messages.append(outcome_message(self.row.id, outcome, self.shared.me.worker))
            except Exception:
                logger.exception(
                    "the outcome of step %r of run %s can't be kept, so the step will be executed again",
                    outcome.attempt.step, self.row.id, extra=self.log_fields,
                )  # fmt: skip

    def leave(self, columns: dict[str, Any]) -> None:
        status = columns.get("status")
        if self.steps.elsewhere and status is not None:
            if status == Status.RETRY or Status(status).is_final:
                self.steps.elsewhere.drop_all()
            elif status in HELD:
                self.steps.elsewhere.withdraw_all()
        self.change.columns |= {"owner": None, **columns}
        if "status" in columns:
            self.row.status = self.shown = columns["status"]
        self.released = True
