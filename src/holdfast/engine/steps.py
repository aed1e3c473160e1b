"""The steps of a run in memory, and when each is handed over. What the end of an attempt means is in `step_ends.py`.

What happens to a step is told as events, one at a time: whoever asks appends each, or delivers it to the code, before it
asks for the next, as what comes next may depend on that.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from msgspec import Raw

from holdfast.core import commands as co
from holdfast.core import events as ev
from holdfast.core.registry import Definitions
from holdfast.engine import failures
from holdfast.engine.change import PendingChange
from holdfast.engine.elsewhere import Elsewhere
from holdfast.engine.identity import Identity
from holdfast.engine.limits import Slots
from holdfast.engine.step_reports import StepReports
from holdfast.engine.step_rules import StepRules
from holdfast.engine.suspicion import Suspicion
from holdfast.errors import UnknownNameError, WorkerLostError
from holdfast.ports import Attempt, AttemptRow, Outcome, RunRow

AGAIN = 500_000
"""Microseconds until an attempt that was not allowed to begin is handed over once more."""


class StepBook:
    """What is under way (`inflight`), to be handed over once that is committed, or to be looked at again `later`, the first
    on top. Outcomes are `at_hand` until they are delivered, and `unconfirmed` until they are committed."""

    def __init__(
        self,
        row: RunRow,
        app: Definitions,
        me: Identity,
        change: PendingChange,
        slots: Slots,
        elsewhere: Iterable[AttemptRow] = (),
    ) -> None:
        self.row = row
        self._app = app
        self._codec = app.codec
        self.me = me
        self.change = change
        self.rules = StepRules(app, me)
        self.slots = slots
        self.suspicion = Suspicion(row, me, self.rules, change)
        self.elsewhere = Elsewhere(elsewhere, change)
        self.reports = StepReports(change)
        self.inflight: dict[str, Attempt] = {}
        self.to_schedule: dict[str, co.ScheduleStep] = {}
        self.later: list[tuple[int, str]] = []
        self.to_cancel: list[Attempt] = []
        self.at_hand: set[str] = set()
        self.unconfirmed: list[Outcome] = []

    # -- from the code to the executor

    def schedule_at_once(self, command: co.ScheduleStep) -> bool:
        """The short way of nearly every step: nothing is known of it, and nothing has to be recorded or asked for before it
        is handed over. False if it has to take the long one."""
        cmd = command.cmd
        if (
            self.suspicion.cautious or command.losses or command.started or command.options or self.at_hand
            or self.elsewhere.rows or cmd in self.inflight or self.slots
        ):  # fmt: skip
            return False
        try:
            definition = self._app.find_step(command.name)
        except UnknownNameError:
            return False
        options, here = definition.options, self.me.queues
        if definition.limits or options.at_most_once or not (here is None or options.queue in here):
            return False
        self.to_schedule[cmd] = command
        return True

    def schedule(self, command: co.ScheduleStep, now: int) -> Iterator[ev.StepOutcome]:
        cmd, suspicion = command.cmd, self.suspicion
        self.drop_outdated(command)
        if cmd in self.inflight or cmd in self.at_hand:  # handed over before this run had to be read again
            return
        asked_for = self.elsewhere.rows.get(cmd)
        if asked_for is not None:
            if asked_for.number == command.attempt and asked_for.step == command.name:
                return
            self.drop(cmd)
        is_here = self.rules.queue_elsewhere(command) is None
        is_announced = suspicion.has_to_be_announced(command)
        if is_announced:
            if command.started and cmd in suspicion.not_handed_over:
                # That was committed, and not known: the commit seemed to have failed.
                yield ev.StepWithdrawn(**self.about(command, now))
            suspicion.not_handed_over.discard(cmd)
            if command.started and suspicion.may_still_end(command):
                self.look_again(cmd, now + AGAIN)
                return
            if command.started:
                suspicion.lost_with_worker(cmd)
                yield from self.count_loss(command, now, 0)
                return
        if not self._may_begin(command):
            return
        if is_here and is_announced:  # else whoever claims it says so
            yield ev.StepStarted(**self.about(command, now))
            suspicion.announced_here[cmd] = command
        (self.to_schedule if is_here else self.elsewhere.to_ask)[cmd] = command

    def _may_begin(self, command: co.ScheduleStep) -> bool:
        """Whether it has the slots of its limits, if it is under any; else it waits for them, and nothing is in memory."""
        cmd, definition = command.cmd, self.rules.find(command)
        if definition is None or (not definition.limits and cmd not in self.slots):
            return True
        slot = self.slots.get(cmd)
        may_have_begun = slot is not None and slot.is_from_before and self.suspicion.cautious
        if may_have_begun and any(each.limit.rate for each in definition.limits):
            self.slots.give_back(cmd)  # once more counts once more
        return self.slots.has(cmd, definition, command.args if command.resolve is None else command.resolve)

    def drop_outdated(self, command: co.ScheduleStep) -> None:
        """An attempt that still executes here, of a run that others had meanwhile: they have recorded how it ended there."""
        under_way = self.inflight.get(command.cmd)
        if under_way is not None and under_way.number != command.attempt:
            self.drop(command.cmd)

    def drop(self, cmd: str) -> None:
        """Its outcome is not wanted any more."""
        self.to_schedule.pop(cmd, None)
        if self.slots:
            self.slots.give_back(cmd)
        attempt = self.inflight.pop(cmd, None)
        if attempt is not None:
            self.to_cancel.append(attempt)
        self.elsewhere.drop(cmd)

    def withdrawn(self, cmd: str, now: int) -> None:
        """An attempt of a run that is let go was taken back before it began. If its start was announced, whoever
        schedules the step next has to know that it never did."""
        del self.inflight[cmd]
        self._take_back(cmd, now)

    def will_not_be_handed_over(self, now: int) -> None:
        """The run is let go with the very commit that was to announce these."""
        for cmd in self.to_schedule:
            self._take_back(cmd, now)
        self.forget_unscheduled()

    def _take_back(self, cmd: str, now: int) -> None:
        command = self.suspicion.announced_here.pop(cmd, None)
        if command is not None:
            self.change.append(ev.StepWithdrawn(**self.about(command, now)))

    def forget_unscheduled(self) -> None:
        self.to_schedule.clear()
        self.elsewhere.to_ask.clear()

    def started(self, command: co.ScheduleStep, started: int) -> Iterator[ev.StepOutcome]:
        """A step that takes its time is shown as started."""
        if not command.started and self.row.durable:
            yield ev.StepStarted(**self.about(command, started), started=started)

    # -- what is looked at later

    def look_again(self, cmd: str, at: int) -> None:
        """Try it again, or see whether it has taken too long."""
        heapq.heappush(self.later, (at, cmd))

    def pop_due(self, now: int) -> str:
        """The next step that is to be looked at now, if there is one."""
        while self.later and self.later[0][0] <= now:
            cmd = heapq.heappop(self.later)[1]
            if cmd not in self.inflight:
                return cmd
        return ""

    def clock_was_set_back(self, pending: Mapping[str, co.ScheduleStep]) -> None:
        self.later = [(pending[cmd].next_look(), cmd) for _, cmd in self.later if cmd in pending]
        heapq.heapify(self.later)

    # -- an attempt that has failed, or is lost

    def failure(
        self,
        command: co.ScheduleStep,
        now: int,
        started: int,
        encoded: Raw,
        error: BaseException,
        worker: str = "",
        thread: str = "",
    ) -> ev.StepFailed:
        failed = ev.StepFailed(**self.about(command, now, worker), started=started, error=encoded, thread=thread)
        failures.step_failed(self.row, self._codec, failed, error)
        return failed

    def count_loss(
        self, command: co.ScheduleStep, now: int, started: int, others: int = 0, worker: str = ""
    ) -> Iterator[ev.StepOutcome]:
        yield ev.StepLost(**self.about(command, now, worker), started=started, company=others)
        problem = self.suspicion.why_not_again(command)
        if problem:
            if self.slots:
                self.slots.give_back(command.cmd)
            error = WorkerLostError(f"step {command.name!r} of run {self.row.id} {problem}")
            yield self.failure(command, now, started, Raw(self._codec.encode_error(error)), error)
        else:
            failures.step_lost(self.row, command)
            yield from self.schedule(command, now)

    def about(self, command: co.ScheduleStep, now: int, worker: str = "") -> dict[str, Any]:
        """`worker` is who has executed it, if that is another one."""
        return {
            "ts": now, "cmd": command.cmd, "cause": command.cause, "name": command.name, "args": command.args,
            "attempt": command.attempt, "worker": worker or self.me.worker, "undoes": command.undoes,
        }  # fmt: skip

    # -- what is not committed yet

    def kept(self, arrivals: Iterable[object]) -> list[Outcome]:
        """Outcomes of executed steps that are not known to be committed."""
        waiting = [
            each
            for each in arrivals
            if isinstance(each, Outcome) and self.inflight.get(each.attempt.cmd) is each.attempt
        ]
        return [outcome for outcome in self.unconfirmed + waiting if not outcome.cancelled and not outcome.lost]

    def carry_over(self, before: StepBook, was_committed: bool) -> None:
        """Go on from what an earlier self had in hand. All that was not confirmed `was_committed`, or none of it."""
        self.inflight = before.inflight
        self.suspicion.not_handed_over = before.suspicion.not_handed_over | set(before.to_schedule)
        if was_committed:
            self.to_cancel = before.to_cancel
        else:
            again = [outcome.attempt for outcome in before.unconfirmed] + before.to_cancel
            self.inflight |= {attempt.cmd: attempt for attempt in again}
        announced = before.suspicion.announced_here
        self.suspicion.announced_here = {cmd: step for cmd, step in announced.items() if cmd in self.inflight}
        self.reports.checkpoints = before.reports.checkpoints
        for cmd in self.inflight:  # what they have said may be committed, or not
            self.reports.are_in_store(cmd)
