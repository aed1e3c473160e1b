"""The code of a run, as long as it is in memory: events are delivered to it, what it asks for becomes a change to commit."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

from holdfast.core import commands as co
from holdfast.core import events as ev
from holdfast.core.execution import Execution
from holdfast.durations import in_words
from holdfast.engine import effects, failures, leaving, run_messages
from holdfast.engine.opening import Opening
from holdfast.engine.records import to_record
from holdfast.engine.run_state import RunState
from holdfast.errors import WorkflowBlocked
from holdfast.ports import AHEAD, InboxRow, Outcome, Status

logger = logging.getLogger("holdfast.engine")


class RunCode:
    """`execution` is None until the code is needed. As long as there is a `replay`, the code is not where its history
    ends."""

    def __init__(self, state: RunState, opening: Opening) -> None:
        self._state = state
        self._row = state.row
        self._change = state.change
        self._steps = state.steps
        self._ends = state.ends
        self._shared = state.shared
        self._deliveries = state.inbox.deliveries
        self._opening = opening
        self.execution: Execution | None = None
        self.replay: Iterator[None] | None = None
        self.replay_seconds = 0.0
        self._replay_until = 0.0

    def start(self) -> None:
        """Begin to replay its history."""
        self.execution = self._opening.start_code()
        self.execution.on_background_error = self._background_error
        self.replay = self.execution.replay(self._state.history, self._opening.seen(), self._has_time)

    def evict(self) -> None:
        """Take its code out of memory. Its clean-up may neither wait nor hold up others; nothing it does counts."""
        if self.execution is None:
            return
        guard = self._shared.guard
        guard.enter(self.execution)
        try:
            while True:
                try:
                    self.execution.evict()
                    break
                except WorkflowBlocked:  # thrown by the watchdog, and it arrived here instead of in the code
                    continue
        finally:
            guard.leave()

    def catch_up(self, now: int, end: float) -> bool:
        """Whether the code is where its history ends; a run that continues as new begins again here."""
        while self.replay is not None and not self._state.released:
            if self._shared.clock.monotonic() > end or not self._replay_slice(now, end):
                return False
        return not self._state.released

    def _replay_slice(self, now: int, end: float) -> bool:
        """Replay, a slice at a time; whether the end of history is reached."""
        assert self.execution is not None
        assert self.replay is not None
        started = self._shared.clock.monotonic()
        self._replay_until = end
        self._shared.guard.enter(self.execution)
        try:
            for _ in self.replay:
                if not self._has_time():
                    return False
        finally:
            self._shared.guard.leave()
            self.replay_seconds += self._shared.clock.monotonic() - started
        self.replay = None
        self._steps.suspicion.weigh(self._state.history, self.execution.steps.pending.values())
        self._state.history = []
        self._steps.at_hand = self._state.inbox.steps_at_hand(self._row.no)
        elsewhere, pending = self._steps.elsewhere, self.execution.steps.pending
        for cmd, name in elsewhere.begun():
            if cmd in pending and pending[cmd].name != name:
                self.execution.begun_as_another(pending[cmd], name)
        self._settle(now)
        if elsewhere and not self._state.released:
            elsewhere.drop_unasked(pending)
        return True

    def _has_time(self) -> bool:
        """To replay more, before others go on."""
        return self._shared.clock.monotonic() <= self._replay_until

    # -- what has arrived

    def deliver_arrivals(self, now: int, end: float) -> bool:
        """Whether there is more of it than there was time for."""
        while self._deliveries:
            arrival = self._deliveries.popleft()
            if isinstance(arrival, InboxRow):
                self._take_message(arrival, now)
            else:
                self._take_outcome(arrival, now)
            if self._state.released or self.replay is not None:
                return False
            if self._shared.clock.monotonic() > end:
                return bool(self._deliveries)
        return False

    def _take_message(self, message: InboxRow, now: int) -> None:
        assert self.execution is not None
        state = self._state
        state.change.consumed.append(message.id)
        body = state.read(message, self.note, now)
        if body is None:
            return
        if message.kind == "cancel":
            state.inbox.cancel = message
            if self.execution.code.cancelling is None:
                self._deliver(ev.CancelRequested(ts=now, reason=body.reason, by=body.by), now)
        elif message.kind == "pause":
            if body.children:
                state.tell_children(self.execution, "pause", body.reason, body.by)
            self.note(ev.RunPaused(ts=now, reason=body.reason, by=body.by))
            self.leave({"status": Status.PAUSED, "held": 1, "reason": body.reason, "stuck": "", "wake_at": None})
        elif message.kind in ("retry", "watch"):
            state.notify_later(body)
        else:
            self.take_all(run_messages.events_of(body, state, self.execution, now), now)

    def _take_outcome(self, outcome: Outcome, now: int) -> None:
        assert self.execution is not None
        step = self.execution.steps.pending.get(outcome.attempt.cmd)
        if step is not None and (completed := self._ends.take_success(outcome, step, now)) is not None:
            self._deliver(completed, now)
        else:
            self.take_all(self._ends.take(outcome, step, now), now)

    def take_all(self, events: Iterator[ev.Event], now: int) -> None:
        """What happens to a step, or to the run: the code sees it, or it is only noted."""
        for event in events:
            if event.delivered:
                self._deliver(event, now)
            else:
                self.note(event)

    # -- time

    def next_due(self) -> int | None:
        """When time alone will bring this run forward."""
        if self.execution is None:
            return None
        due = self.execution.time.next_due()
        later, timeout = self._steps.later, self._state.terms.timeout
        if later and (due is None or later[0][0] < due):
            due = later[0][0]
        if timeout is not None and self.execution.code.cancelling is None:
            ends = self.execution.time.started_at + timeout
            due = ends if due is None else min(due, ends)
        return due

    def is_ahead(self, now: int) -> bool:
        """Whether the clock was set back since its code has seen the time, or a step of it was put off."""
        time = None if self.execution is None else self.execution.time
        return time is not None and time.latest - now - time.ahead > AHEAD and self._row.durable

    def fire_timers(self, now: int, end: float) -> bool:
        """What time alone brings; whether there is more than there was time for."""
        assert self.execution is not None
        execution = self.execution
        if self.is_ahead(now):
            self.note(ev.ClockSetBack(ts=now, by=execution.time.latest - now))
            self._steps.clock_was_set_back(execution.steps.pending)
        timeout = self._state.terms.timeout
        if timeout is not None and now >= execution.time.started_at + timeout and not execution.code.cancelling:
            reason = f"run {self._row.id} took longer than its timeout of {in_words(timeout)}"
            self._deliver(ev.CancelRequested(ts=now, reason=reason, timed_out=True), now)
        while self.replay is None and not self._state.released:
            due = execution.time.next_due()
            if due is None or due > now:
                break
            if self._shared.clock.monotonic() > end:
                return True
            timer = execution.next_timer()
            assert timer is not None
            timer.ts = now
            self._deliver(timer, now)
        while not self._state.released and self.replay is None and (cmd := self._steps.pop_due(now)):
            step = execution.steps.pending.get(cmd)
            if step is not None and step.handed_over:
                self.take_all(self._ends.look_for_end(step, now), now)
            elif step is not None:
                step.not_before = 0
                self._schedule(step, now)
        return False

    # -- from events to the change

    def _deliver(self, event: ev.Event, now: int) -> None:
        """Let the code see an event, and take note of all it asks for."""
        assert self.execution is not None
        self._shared.guard.enter(self.execution)
        try:
            self.execution.deliver(event)
            self.execution.settle(now)
        finally:
            self._shared.guard.leave()
        self._collect_all(now)

    def note(self, event: ev.Event) -> None:
        assert self.execution is not None
        self.execution.note(event)
        self._collect()

    def _settle(self, now: int) -> None:
        assert self.execution is not None
        self._shared.guard.enter(self.execution)
        try:
            self.execution.settle(now)
        finally:
            self._shared.guard.leave()
        self._collect_all(now)

    def _collect_all(self, now: int) -> None:
        execution = self.execution
        assert execution is not None
        if execution.blocked_by:
            raise WorkflowBlocked(execution.blocked_by)
        self._collect(now)
        if execution.ended is not None:
            self._end(execution.ended, now)

    def _collect(self, now: int = 0) -> None:
        """Turn new events and commands into the change that will be committed."""
        assert self.execution is not None
        events, commands = self.execution.journal.take()
        if self._row.durable:
            self._change.records += [to_record(event) for event in events]
        elif self._shared.reporter.is_on:
            self._shared.reporter.unrecorded(self._row, self._state.options, events)
        for event in events:
            if isinstance(event, ev.StepCompleted):
                if event.data:
                    for key, value in event.data.items():
                        self._change.publish(key, bytes(value))
                for one in event.emitted:
                    self._state.emit(one.name, one.key, one.payload, event.cmd, event.ts)
            elif isinstance(event, ev.StepFailed | ev.StepRefused):
                self._state.tell(event)
                if isinstance(event, ev.StepRefused):
                    failures.step_failed(self._row, self._shared.app.codec, event)
        for command in commands:
            if not self._state.released:
                self._carry_out(command, now)

    def _carry_out(self, command: co.Command, now: int) -> None:
        if isinstance(command, co.ScheduleStep):
            if command.handed_over:
                self._steps.drop_outdated(command)
                self._ends.await_end(command)
            elif command.not_before > now or command.started:
                # One that had started may turn out to be lost: its failure, and all that the code asks for then, has to
                # come after the commands that are carried out now.
                self._steps.drop_outdated(command)
                self._steps.look_again(command.cmd, max(command.not_before, now))
            else:
                self._schedule(command, now)
        elif isinstance(command, co.CancelStep):
            self._steps.drop(command.cmd)
        else:
            assert self.execution is not None
            effects.carry_out(self._state, self.execution, command, now)

    def _schedule(self, command: co.ScheduleStep, now: int) -> None:
        if not self._steps.schedule_at_once(command):
            self.take_all(self._steps.schedule(command, now), now)

    # -- waiting, and leaving

    def waiting_for(self) -> str:
        """Why nothing happens here, in words; empty while a step is to be executed now."""
        assert self.execution is not None
        steps = self._steps
        in_line = steps.slots.waiting() if steps.slots else {}
        return self.execution.waiting_for(steps.elsewhere.queues(), in_line)

    def leave(self, columns: dict[str, Any]) -> None:
        self._state.leave(columns)
        self.evict()

    def _end(self, end: ev.Event, now: int) -> None:
        if isinstance(end, ev.ContinuedAsNew):
            self._continue_as_new(end, now)
        else:
            assert self.execution is not None
            if self.execution.left_behind:
                failures.left_behind(self._row, self.execution.left_behind)
            self._state.end(end, now)
            self.evict()

    def _continue_as_new(self, end: ev.ContinuedAsNew, now: int) -> None:
        assert self.execution is not None
        self._steps.elsewhere.drop_all()
        self._state.begin_generation(end)
        self.evict()
        self.execution = None
        if not leaving.obey(self._state, now):
            self.start()

    def _background_error(self, context: dict[str, Any]) -> None:
        message, error = context.get("message", "an error nobody handled"), context.get("exception")
        logger.warning("run %s: %s", self._row.id, message, exc_info=error, extra=self._state.log_fields)
