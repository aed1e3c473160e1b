"""The steps of a run in memory: when each is handed over, and what becomes of its attempts.

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
from holdfast.core.definitions import StepOptions
from holdfast.core.registry import Definitions
from holdfast.durations import in_words
from holdfast.engine import failures
from holdfast.engine.change import PendingChange
from holdfast.engine.elsewhere import Elsewhere
from holdfast.engine.identity import Identity
from holdfast.engine.limits import Slots
from holdfast.engine.records import BeatMessage, OutcomeMessage, outcome_body
from holdfast.engine.step_reports import StepReports
from holdfast.engine.step_rules import StepRules
from holdfast.engine.suspicion import Suspicion
from holdfast.errors import StepTimeoutError, TransformError, UnknownNameError, ValueCodecError, WorkerLostError
from holdfast.ports import Attempt, AttemptRow, Clock, Outcome, RunRow

AGAIN = 500_000
"""Microseconds until an attempt that was not allowed to begin is handed over once more."""


def _silent_until(options: StepOptions, now: int) -> int:
    """When a step that was handed over has to be heard of. Half as long again, so that not every sign of life has to be
    recorded."""
    return 0 if options.stall_timeout is None else now + options.stall_timeout * 3 // 2


class StepBook:
    """What is under way (`inflight`), to be handed over once that is committed, or to be looked at again `later`, the first
    on top. Outcomes are `at_hand` until they are delivered, and `unconfirmed` until they are committed."""

    def __init__(
        self,
        row: RunRow,
        app: Definitions,
        me: Identity,
        clock: Clock,
        change: PendingChange,
        slots: Slots,
        elsewhere: Iterable[AttemptRow] = (),
    ) -> None:
        self._row = row
        self._app = app
        self._codec = app.codec
        self._me = me
        self._clock = clock
        self._change = change
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
        options, here = definition.options, self._me.queues
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
            if asked_for.number == command.attempt:
                return
            self.drop(cmd)
        is_here = self.rules.queue_elsewhere(command) is None
        is_announced = suspicion.has_to_be_announced(command)
        if is_announced:
            if command.started and cmd in suspicion.not_handed_over:
                # That was committed, and not known: the commit seemed to have failed.
                yield ev.StepWithdrawn(**self._about(command, now))
            suspicion.not_handed_over.discard(cmd)
            if command.started and suspicion.may_still_end(command):
                self.look_again(cmd, now + AGAIN)
                return
            if command.started:
                suspicion.lost_with_worker(cmd)
                yield from self._count_loss(command, now, 0)
                return
        if not self._may_begin(command):
            return
        if is_here and is_announced:  # else whoever claims it says so
            yield ev.StepStarted(**self._about(command, now))
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
            self._change.append(ev.StepWithdrawn(**self._about(command, now)))

    def forget_unscheduled(self) -> None:
        self.to_schedule.clear()
        self.elsewhere.to_ask.clear()

    def started(self, command: co.ScheduleStep, started: int) -> Iterator[ev.StepOutcome]:
        """A step that takes its time is shown as started."""
        if not command.started and self._row.durable:
            yield ev.StepStarted(**self._about(command, started), started=started)

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
        self.later = [(pending[cmd].not_before, cmd) for _, cmd in self.later if cmd in pending]
        heapq.heapify(self.later)

    # -- from the executor to the code

    def take_success(self, outcome: Outcome, command: co.ScheduleStep, now: int) -> ev.StepCompleted | None:
        """The short way of nearly every outcome: a result, and nothing to be done beside it. None if there is more to it."""
        attempt = outcome.attempt
        cmd = attempt.cmd
        if (
            outcome.result is None or outcome.error is not None or outcome.cancelled or outcome.lost
            or outcome.handed_over or outcome.data or outcome.emitted or outcome.logs is not None
            or self.suspicion.cautious or self.suspicion.announced_here or self.reports.kept or self.at_hand or self.slots
            or self.inflight.get(cmd) is not attempt
        ):  # fmt: skip
            return None
        del self.inflight[cmd]
        self.unconfirmed.append(outcome)
        command.attempt = attempt.number
        return ev.StepCompleted(
            ts=now, cmd=cmd, cause=command.cause, name=command.name, args=command.args, attempt=attempt.number,
            worker=self._me.worker, started=outcome.started, undoes=command.undoes, result=Raw(outcome.result),
            thread=outcome.thread,
        )  # fmt: skip

    def take(self, outcome: Outcome, command: co.ScheduleStep | None, now: int) -> Iterator[ev.StepOutcome]:
        """An outcome from the executor of this process; `command` is what asked for it, if anything still does."""
        cmd = outcome.attempt.cmd
        was_at_hand = cmd in self.at_hand
        self.at_hand.discard(cmd)
        if self.inflight.get(cmd) is not outcome.attempt:  # another one was asked for since
            if was_at_hand and command is not None and cmd not in self.inflight and command.not_before <= now:
                yield from self.schedule(command, now)  # which had been left until this was here
            return
        del self.inflight[cmd]
        announced = self.suspicion.announced_here.pop(cmd, None)
        if command is None:
            return
        if outcome.cancelled:  # it was not begun: this worker could not tell whether the others think it alive
            if announced is not None:
                yield ev.StepWithdrawn(**self._about(announced, now))
            self.look_again(cmd, now + AGAIN)
            return
        self.unconfirmed.append(outcome)
        yield from self._end(command, outcome_body(outcome, self._me.worker), outcome.error, now)

    def take_message(self, body: OutcomeMessage, command: co.ScheduleStep, now: int) -> Iterator[ev.StepOutcome]:
        """An outcome from the inbox: its engine had lost the run when it arrived."""
        cmd = body.cmd
        was_at_hand = cmd in self.at_hand
        self.at_hand.discard(cmd)
        self.elsewhere.ended(cmd, body.token)
        has_failed = bytes(body.error) != b"null"
        is_tried_again = cmd in self.inflight or cmd in self.elsewhere.rows
        if (has_failed or body.lost or body.handed_over) and (body.attempt != command.attempt or is_tried_again):
            if was_at_hand:
                yield from self.schedule(command, now)
            return  # this failure is history
        self.drop(cmd)
        if body.token:
            self.reports.are_in_store(cmd)
        yield from self._end(command, body, self._codec.decode_error(body.error) if has_failed else None, now)

    def _end(
        self, command: co.ScheduleStep, told: OutcomeMessage, error: BaseException | None, now: int
    ) -> Iterator[ev.StepOutcome]:
        """What an attempt's end means for its step. `error` is the one that it failed with."""
        if told.logs != ev.NULL and self._row.durable:  # beside the history, for nothing of it is replayed
            self._change.attributes.append(("logs", f"{told.attempt}:{command.cmd}", bytes(told.logs)))
        if self.reports.kept:
            self.reports.forget(command.cmd, has_ended=error is None and not told.lost)
        command.attempt = told.attempt
        if self.slots and not (told.lost or told.handed_over):
            self.slots.give_back(command.cmd)
        if told.lost:
            if told.lost_with:
                self.suspicion.lost_with_others(command.cmd, told.lost_with)
            yield from self._count_loss(command, now, told.started, told.lost_with, told.worker)
        elif error is not None:
            yield from self._failed(command, told, error, now)
        elif told.handed_over:
            yield from self._handed_over(command, told, now)
        else:
            self.suspicion.progressed()
            yield ev.StepCompleted(
                ts=now, cmd=command.cmd, cause=command.cause, name=command.name, args=command.args,
                attempt=command.attempt, worker=told.worker, started=told.started, undoes=command.undoes,
                result=told.result, data=told.data, emitted=told.emitted, thread=told.thread,
            )  # fmt: skip

    def _failed(
        self, command: co.ScheduleStep, told: OutcomeMessage, error: BaseException, now: int
    ) -> Iterator[ev.StepOutcome]:
        options = self.rules.options(command)
        delay = None
        if not isinstance(error, ValueCodecError) or isinstance(error, TransformError):
            delay = options.retry_delay(error, command.attempt, self._clock.random())
        if delay is not None and told.retry_after is not None:
            delay = told.retry_after
        within, began = options.retry_within, command.began or told.started
        if delay is None or (within is not None and now + delay > began + within):
            self.suspicion.progressed()
            yield self._failure(command, now, told.started, told.error, error, told.worker, told.thread)
            return
        retrying = ev.StepRetrying(
            **self._about(command, now, told.worker), started=told.started, error=told.error, retry_at=now + delay,
            thread=told.thread,
        )  # fmt: skip
        yield retrying
        attempts = None if options.max_retries is None else options.max_retries + 1
        failures.step_retried(self._row, self._codec, retrying, attempts)
        self.look_again(command.cmd, retrying.retry_at)

    def _failure(
        self,
        command: co.ScheduleStep,
        now: int,
        started: int,
        encoded: Raw,
        error: BaseException,
        worker: str = "",
        thread: str = "",
    ) -> ev.StepFailed:
        failed = ev.StepFailed(**self._about(command, now, worker), started=started, error=encoded, thread=thread)
        failures.step_failed(self._row, self._codec, failed, error)
        return failed

    def _count_loss(
        self, command: co.ScheduleStep, now: int, started: int, others: int = 0, worker: str = ""
    ) -> Iterator[ev.StepOutcome]:
        yield ev.StepLost(**self._about(command, now, worker), started=started, company=others)
        problem = self.suspicion.why_not_again(command)
        if problem:
            if self.slots:
                self.slots.give_back(command.cmd)
            error = WorkerLostError(f"step {command.name!r} of run {self._row.id} {problem}")
            yield self._failure(command, now, started, Raw(self._codec.encode_error(error)), error)
        else:
            failures.step_lost(self._row, command)
            yield from self.schedule(command, now)

    def _about(self, command: co.ScheduleStep, now: int, worker: str = "") -> dict[str, Any]:
        """`worker` is who has executed it, if that is another one."""
        return {
            "ts": now, "cmd": command.cmd, "cause": command.cause, "name": command.name, "args": command.args,
            "attempt": command.attempt, "worker": worker or self._me.worker, "undoes": command.undoes,
        }  # fmt: skip

    # -- steps that were handed over

    def _handed_over(self, command: co.ScheduleStep, told: OutcomeMessage, now: int) -> Iterator[ev.StepOutcome]:
        options = self.rules.options(command)
        limit = 0 if options.timeout is None else told.started + options.timeout
        self.suspicion.progressed()
        yield ev.StepHandedOver(
            **self._about(command, now), started=told.started, until=_silent_until(options, now), limit=limit
        )
        self.await_end(command)

    def await_end(self, command: co.ScheduleStep) -> None:
        """Look at it when its time may be over."""
        times = [time for time in (command.until, command.limit) if time]
        if times:
            self.look_again(command.cmd, min(times))

    def look_for_end(self, command: co.ScheduleStep, now: int) -> Iterator[ev.StepOutcome]:
        """Whether a step that was handed over has taken too long."""
        times = [time for time in (command.until, command.limit) if time]
        if not times or min(times) > now:
            self.await_end(command)
            return
        options = self.rules.options(command)
        if command.limit and command.limit <= now:
            what = f"took longer than its timeout of {in_words(options.timeout or 0)}, elsewhere"
        else:
            what = f"gave no sign of life for {in_words(options.stall_timeout or 0)}, elsewhere"
        error = StepTimeoutError(f"step {command.name!r} of run {self._row.id} {what}")
        told = OutcomeMessage(
            run_no=self._row.no, cmd=command.cmd, attempt=command.attempt, worker="", started=command.began,
            error=Raw(self._codec.encode_error(error)),
        )  # fmt: skip
        yield from self._end(command, told, error, now)

    def beat(self, body: BeatMessage, command: co.ScheduleStep, now: int) -> Iterator[ev.StepOutcome]:
        """It lives, elsewhere. That is recorded now and then: often enough that whoever reads it waits long enough."""
        if bytes(body.progress) != b"null":
            self.reports.keep("progress", body.cmd, bytes(body.progress))
        options = self.rules.options(command)
        if not command.handed_over or command.attempt != body.attempt or options.stall_timeout is None:
            return
        if now + options.stall_timeout > command.until:
            until = _silent_until(options, now)
            yield ev.StepHandedOver(
                **self._about(command, now), started=command.began, until=until, limit=command.limit
            )
            self.await_end(command)

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
