"""One run in memory: what arrives for it becomes events, what its code asks for becomes a change to commit.

Nothing here touches the store or the executor; the engine does, with what `LiveRun` says. What of it needs no code is in
`run_state.py`; how it begins in `opening.py`, how it leaves before its end in `leaving.py`.
"""

from __future__ import annotations

import contextlib
import heapq
import logging
from collections.abc import Iterator
from enum import Enum
from typing import Any

from holdfast.core import commands as co
from holdfast.core import events as ev
from holdfast.core.execution import Execution
from holdfast.durations import in_words
from holdfast.engine import effects, failures, leaving, run_messages
from holdfast.engine.opening import Needs, Opening
from holdfast.engine.records import to_record
from holdfast.engine.run_state import HELD, RunState, Shared, read_options
from holdfast.errors import (
    DamagedHistoryError,
    DecodeError,
    NondeterminismError,
    Suspended,
    WorkerLostError,
    WorkflowBlocked,
)
from holdfast.ports import AHEAD, Change, Claimed, InboxRow, Outcome, Status

logger = logging.getLogger("holdfast.engine")


class Probe(Enum):
    """Where a run that has lost its worker stands: whether its code may be activated. One at a time is announced."""

    NONE = "none"
    WANTED = "wanted"
    ANNOUNCED = "announced"


class LiveRun:
    """A run this engine owns. `advance` brings it forward; what is to be committed gathers in `change`."""

    def __init__(self, claimed: Claimed, shared: Shared) -> None:
        options, damage = read_options(claimed.row)
        self.state = state = RunState(claimed, options, shared)
        self.row = state.row
        self.options = options
        self.change = state.change
        self.steps = state.steps
        self.deliveries = state.inbox.deliveries
        self.opening = Opening(claimed, damage, state)
        self.execution: Execution | None = None
        self.replay_seconds = 0.0
        self.probe = Probe.NONE
        self.broken = False
        self._shared = shared
        self._replay: Iterator[None] | None = None
        self._was_refused = False

    def next_due(self) -> int | None:
        """When time alone will bring this run forward."""
        if self.execution is None:
            return None
        due = self.execution.next_due()
        if not self.steps.retries and self.state.terms.timeout is None:
            return due
        dues = [due] if due is not None else []
        if self.steps.retries:
            dues.append(self.steps.retries[0][0])
        if self.state.terms.timeout is not None and self.execution.cancelling is None:
            dues.append(self.execution.started_at + self.state.terms.timeout)
        return min(dues, default=None)

    def is_idle(self) -> bool:
        """Whether it only waits, be it for steps elsewhere."""
        steps = self.steps
        return not (steps.inflight or self.deliveries or steps.to_schedule or steps.to_ask) and self._replay is None

    def waiting_for(self) -> str:
        """Why nothing happens here, in words; empty while a step is to be executed now."""
        assert self.execution is not None
        steps = self.steps
        in_line = steps.slots.waiting() if steps.slots else {}
        return self.execution.waiting_for({cmd: row.queue for cmd, row in steps.elsewhere.items()}, in_line)

    def evict(self) -> None:
        """Take its code out of memory."""
        if self.execution is not None:
            self.execution.evict()

    # -- committing

    def confirmed(self, change: Change) -> None:
        """The change is committed: outcomes in it are safe."""
        if self.steps.unconfirmed:
            self.steps.unconfirmed.clear()
        inbox = self.state.inbox
        if inbox.orders:
            inbox.orders.clear()
        inbox.cancel = None
        if change.records:
            self.change.last_committed = change.records[-1].seq

    def unsure(self, change: Change) -> None:
        """Nobody knows whether the change was committed; this run must not go on before that is known."""
        self.broken = True
        self.change.put_back(change)

    def carry_over(self, earlier: LiveRun) -> None:
        """Go on from what an earlier self had in hand when it had to be read again. Only the owner writes a history,
        so if it has grown then all that was not confirmed is in it."""
        steps, before = self.steps, earlier.steps
        steps.inflight = before.inflight
        steps.not_handed_over = before.not_handed_over | set(before.to_schedule)
        self.deliveries.extend(arrival for arrival in earlier.deliveries if isinstance(arrival, Outcome))
        if self.change.last_committed > earlier.change.last_committed:
            steps.to_cancel = before.to_cancel
        else:
            self.deliveries.extendleft(reversed(before.unconfirmed))
            again = [outcome.attempt for outcome in before.unconfirmed] + before.to_cancel
            steps.inflight |= {attempt.cmd: attempt for attempt in again}
            self.change.streamed = [item for item in earlier.change.streamed if item[0] in steps.inflight]
        for kind, cmd, body in earlier.change.attributes:
            if kind in ("checkpoint", "progress") and cmd in steps.inflight:
                steps.report(kind, cmd, body)

    def idempotency_key(self, command: co.ScheduleStep) -> str:
        """The same for every attempt of a step, also if the whole workflow is retried, and for no other step."""
        assert self.execution is not None
        return f"{self.row.id}:{command.origin}:{self.execution.mark}"

    def note_started(self, cmd: str, started: int) -> None:
        """A step that takes its time is shown as started."""
        step = self.execution.steps.get(cmd) if self.execution is not None else None
        if step is not None:
            self._take_all(self.steps.started(step.command, started), started)

    # -- going forward

    def advance(self, now: int, budget: float) -> bool:
        """Deliver what has arrived, for at most `budget` seconds; whether there is more to do."""
        end = self._shared.clock.monotonic() + budget
        try:
            if self.state.released or (self.state.inbox.termination is not None and self._is_terminated(now)):
                return False
            if (self.steps.cautious or self.probe is not Probe.NONE) and self._waits_for_probe(now):
                return False
            if self.execution is None and not self._open(now):
                return False
            if self._replay is not None and not self._caught_up(now, end):
                return not self.state.released
            more = self._deliver_arrivals(now, end)
            if not (more or self.state.released):
                more = self._fire_timers(now, end)
            # A run that continued as new has stopped taking what arrived: there may be more.
            if self._replay is not None and not self._caught_up(now, end):
                more = True
            more = (more or bool(self.deliveries)) and not self.state.released
        except (NondeterminismError, DecodeError) as error:
            self._set_aside(now, error, "diverged")
            return bool(self.deliveries)
        except DamagedHistoryError as error:
            self._set_aside(now, error, "damaged")
            return bool(self.deliveries)
        except WorkflowBlocked as error:
            self._set_aside(now, error, "blocked")
            return bool(self.deliveries)
        except Exception as error:  # whatever it is, it must not end the worker, and then the next one
            logger.exception("run %s can't go on", self.row.id, extra=self.state.log_fields)
            self._set_aside(now, error, "diverged")
            return bool(self.deliveries)
        except (GeneratorExit, Suspended) as error:  # our own words, in the mouth of somebody else's code
            self._set_aside(now, error, "diverged")
            return bool(self.deliveries)
        return more

    def _caught_up(self, now: int, end: float) -> bool:
        """Whether the code is where its history ends; a run that continues as new begins again here."""
        while self._replay is not None and not self.state.released:
            if self._shared.clock.monotonic() > end or not self._catch_up(now, end):
                return False
        return not self.state.released

    def _open(self, now: int) -> bool:
        """Whether its code is in memory now."""
        if self.probe is not Probe.ANNOUNCED:
            try:
                needs = self.opening.open(now)
            except WorkerLostError as error:
                self._set_aside(now, error, "lost")
                return False
            if needs is Needs.PROBE:
                self.probe = Probe.WANTED
            if needs is not Needs.CODE:
                return False
        self._start_code()
        return True

    def _start_code(self) -> None:
        self.execution = self.opening.start_code()
        self.execution.on_background_error = self._background_error
        self._replay = self.execution.replay(self.state.history, self.opening.seen())

    def _catch_up(self, now: int, end: float) -> bool:
        """Replay, a slice at a time; whether the end of history is reached."""
        assert self.execution is not None
        assert self._replay is not None
        started = self._shared.clock.monotonic()
        self._shared.guard.enter(self.execution)
        try:
            for _ in self._replay:
                if self._shared.clock.monotonic() > end:
                    return False
        finally:
            self._shared.guard.leave()
            self.replay_seconds += self._shared.clock.monotonic() - started
        self._replay = None
        self._weigh_losses()
        self.state.history = []
        self.steps.at_hand = self.state.inbox.steps_at_hand(self.row.no)
        self._settle(now)
        if self.steps.elsewhere and not self.state.released:
            self.steps.drop_unasked({cmd: step.command for cmd, step in self.execution.steps.items()})
        return True

    def _weigh_losses(self) -> None:
        assert self.execution is not None
        suspects = [s.command for s in self.execution.steps.values() if self.steps.is_suspect(s.command)]
        if suspects:
            # What is executed elsewhere has nothing to do with the workers that the run has lost.
            here = [command for command in suspects if self.steps.queue_elsewhere(command) is None]
            self.steps.suspicion.weigh(self.state.history if self._shared.me.isolates else (), here, self.row.losses)

    def _deliver_arrivals(self, now: int, end: float) -> bool:
        while self.deliveries:
            arrival = self.deliveries.popleft()
            if isinstance(arrival, InboxRow):
                self._take_message(arrival, now)
            else:
                self._take_outcome(arrival, now)
            if self.state.released or self._replay is not None:
                return False
            if self._shared.clock.monotonic() > end:
                return bool(self.deliveries)
        return False

    def _take_message(self, message: InboxRow, now: int) -> None:
        assert self.execution is not None
        state = self.state
        state.change.consumed.append(message.id)
        body = state.read(message, self._note, now)
        if body is None:
            return
        if message.kind == "cancel":
            state.inbox.cancel = message
            if self.execution.cancelling is None:
                self._deliver(ev.CancelRequested(ts=now, reason=body.reason, by=body.by), now)
        elif message.kind == "pause":
            if body.children:
                state.tell_children(self.execution, "pause", body.reason, body.by)
            self._note(ev.RunPaused(ts=now, reason=body.reason, by=body.by))
            self._leave({"status": Status.PAUSED, "held": 1, "reason": body.reason, "stuck": "", "wake_at": None})
        elif message.kind in ("retry", "watch"):
            state.notify_later(body)
        else:
            self._take_all(run_messages.events_of(body, state, self.execution, now), now)

    def is_ahead(self, now: int) -> bool:
        """Whether the clock was set back since its code has seen the time, or a step of it was put off."""
        execution = self.execution
        return execution is not None and execution.latest - now - execution.ahead > AHEAD and self.row.durable

    def _fire_timers(self, now: int, end: float) -> bool:
        assert self.execution is not None
        execution = self.execution
        if self.is_ahead(now):
            self._note(ev.ClockSetBack(ts=now, by=execution.latest - now))
            self.steps.retries = [
                (execution.steps[cmd].command.not_before, cmd)
                for _, cmd in self.steps.retries
                if cmd in execution.steps
            ]
            heapq.heapify(self.steps.retries)
        if (
            self.state.terms.timeout is not None
            and now >= execution.started_at + self.state.terms.timeout
            and not execution.cancelling
        ):
            reason = f"run {self.row.id} took longer than its timeout of {in_words(self.state.terms.timeout)}"
            self._deliver(ev.CancelRequested(ts=now, reason=reason, timed_out=True), now)
        while self._replay is None and not self.state.released:
            due = execution.next_due()
            if due is None or due > now:
                break
            if self._shared.clock.monotonic() > end:
                return True
            timer = execution.next_timer()
            assert timer is not None
            timer.ts = now
            self._deliver(timer, now)
        while not self.state.released and self._replay is None and (cmd := self.steps.pop_due(now)):
            step = execution.steps.get(cmd)
            if step is not None and step.command.handed_over:
                self._take_all(self.steps.look_for_end(step.command, now), now)
            elif step is not None:
                step.command.not_before = 0
                self._schedule(step.command, now)
        return False

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

    def _schedule(self, command: co.ScheduleStep, now: int) -> None:
        if not self.steps.schedule_at_once(command):
            self._take_all(self.steps.schedule(command, now), now)

    def _take_outcome(self, outcome: Outcome, now: int) -> None:
        assert self.execution is not None
        step = self.execution.steps.get(outcome.attempt.cmd)
        if step is not None and (completed := self.steps.take_success(outcome, step.command, now)) is not None:
            self._deliver(completed, now)
        else:
            self._take_all(self.steps.take(outcome, None if step is None else step.command, now), now)

    def _take_all(self, events: Iterator[ev.Event], now: int) -> None:
        """What happens to a step, or to the run: the code sees it, or it is only noted."""
        for event in events:
            if event.delivered:
                self._deliver(event, now)
            else:
                self._note(event)

    def _note(self, event: ev.Event) -> None:
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
        events, commands = self.execution.take()
        if self.row.durable:
            self.change.records += [to_record(event) for event in events]
        elif self._shared.reporter.is_on:
            self._shared.reporter.unrecorded(self.row, self.options, events)
        for event in events:
            if isinstance(event, ev.StepCompleted):
                if event.data:
                    for key, value in event.data.items():
                        self.change.publish(key, bytes(value))
                for one in event.emitted:
                    self.state.emit(one.name, one.key, one.payload, event.cmd, event.ts)
            elif isinstance(event, ev.StepFailed | ev.StepRefused):
                self.state.tell(event)
                if isinstance(event, ev.StepRefused):
                    failures.step_failed(self.row, self._shared.app.codec, event)
        for command in commands:
            if not self.state.released:
                self._carry_out(command, now)

    def _carry_out(self, command: co.Command, now: int) -> None:
        if isinstance(command, co.ScheduleStep):
            if command.handed_over:
                self.steps.await_end(command)
            elif command.not_before > now or command.started:
                # One that had started may turn out to be lost: its failure, and all that the code asks for then, has to
                # come after the commands that are carried out now.
                self.steps.schedule_later(command, now)
            else:
                self._schedule(command, now)
        elif isinstance(command, co.CancelStep):
            self.steps.drop(command.cmd)
        else:
            assert self.execution is not None
            effects.carry_out(self.state, self.execution, command, now)

    # -- code that may have taken its worker down

    def _waits_for_probe(self, now: int) -> bool:
        """Whether the code would go on only after that was announced: until it has made progress, whatever reaches it
        may be what made it take a worker down."""
        if self.probe is Probe.NONE and self.steps.cautious and self.execution is not None and self.row.durable:
            due = self.next_due()
            if self.deliveries or (due is not None and due <= now):
                self.probe = Probe.WANTED
        return self.probe is Probe.WANTED

    def announce_probe(self, now: int) -> None:
        """From the commit of this on, the run's code may be activated. Outcomes that it is to see are safe by then."""
        self.probe = Probe.ANNOUNCED
        self.state.keep_outcomes(self.steps.kept(self.deliveries))
        event = ev.RunProbed(ts=now, worker=self._shared.me.worker)
        if self.execution is None:
            self.state.append(event)
        else:
            self._note(event)

    def probe_is_over(self) -> None:
        """Its code has gone as far as it can, and the worker lives."""
        self.probe = Probe.NONE
        nothing_begins = not (self.steps.to_schedule or self.steps.inflight)  # of its steps, which may be what kills
        if self.execution is not None and nothing_begins and not self.state.released:
            self.steps.progressed()

    # -- leaving

    def release(self, now: int) -> None:
        """Let go of a run that only waits, or that needs nothing."""
        if self.execution is None or self.row.status in HELD or self.state.is_final():
            self._leave({})
            return
        self._leave({"status": Status.WAITING, "reason": self.waiting_for(), "wake_at": self.next_due()})

    def refuse(self, now: int, error: BaseException) -> None:
        """What it has come to can't be written, or can't be executed: nobody can go on with it until its code is
        corrected."""
        self.state.released = False
        self._set_aside(now, error, "diverged")
        if self._was_refused:
            leaving.write_the_least(self.state, now, error)
        self._was_refused = True

    def cannot_schedule(self, now: int, error: BaseException) -> None:
        """This worker's code lacks a step."""
        self._set_aside(now, error, "diverged")

    def _leave(self, columns: dict[str, Any]) -> None:
        self.state.leave(columns)
        self.evict()

    def _end(self, end: ev.Event, now: int) -> None:
        if isinstance(end, ev.ContinuedAsNew):
            self._continue_as_new(end, now)
        else:
            self.state.end(end, now)
            self.evict()

    def _continue_as_new(self, end: ev.ContinuedAsNew, now: int) -> None:
        assert self.execution is not None
        self.steps.drop_elsewhere()
        self.state.begin_generation(end)
        self.execution.evict()
        self.execution = None
        if not leaving.obey(self.state, now):
            self._start_code()

    def _is_terminated(self, now: int) -> bool:
        """End it, if somebody wants that."""
        message = self.state.inbox.termination
        if message is None or self.state.is_final():
            return False
        if self.execution is None:
            with contextlib.suppress(DecodeError):  # damaged: the run ends all the same
                self.opening.read_history()
        leaving.terminate(self.state, message, self.execution if self._replay is None else None, now)
        self.evict()
        return True

    def _set_aside(self, now: int, error: BaseException, stuck: str) -> None:
        if self.execution is not None:
            self.execution.take()
        leaving.set_aside(self.state, now, error, stuck, has_code=self.execution is not None)
        self.evict()

    def _background_error(self, context: dict[str, Any]) -> None:
        logger.warning(
            "run %s: %s",
            self.row.id,
            context.get("message", "an error nobody handled"),
            exc_info=context.get("exception"),
            extra=self.state.log_fields,
        )
