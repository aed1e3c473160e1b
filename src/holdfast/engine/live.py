"""One run in memory: what arrives for it becomes events, what its code asks for becomes a change to commit.

Nothing here touches the store or the executor; the reactor does, with what `LiveRun` says.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
import logging
from collections import deque
from typing import Any

import msgspec
from msgspec import Raw

from holdfast.core import commands as co
from holdfast.core import events as ev
from holdfast.core.execution import Execution
from holdfast.core.pending import FLAGS
from holdfast.durations import in_words
from holdfast.engine.attempts import RunWithSteps
from holdfast.engine.clocks import AHEAD
from holdfast.engine.domain_events import emission_of, news_of, wait_of
from holdfast.engine.owned import HELD, Delivery, Probe
from holdfast.engine.programs import program_for
from holdfast.engine.records import (
    LETTERS,
    PRIORITY_HEAD_START,
    ChildLetter,
    ControlLetter,
    HookLetter,
    OutcomeLetter,
    RunOptions,
    ask_child,
    child_message,
    control,
    correlation_of,
    fingerprint,
    not_a_child,
    outcome_message,
    printable,
    status_of,
    to_record,
)
from holdfast.errors import (
    DecodeError,
    NondeterminismError,
    Suspended,
    WorkerLostError,
    WorkflowBlocked,
)
from holdfast.ports import Change, Letter, Message, NewRun, Outcome, Status, Unsubscription

logger = logging.getLogger("holdfast.engine")


A_MOMENT = 1_000_000
"""A run that has waited longer for its first worker records when its time begins."""

BEFORE_THE_CODE = (ev.RunStarted, ev.RunTakenUp, ev.RunProbed, ev.MessageDropped, ev.RunPaused, ev.RunResumed)

MAX_PROBES = 2
"""Code that has taken so many workers down after the first is not activated again before a person has looked."""


class LiveRun(RunWithSteps):
    """A run this engine owns. `advance` brings it forward, `take_change` says what to commit."""

    # -- going forward

    def advance(self, now: int, budget: float) -> bool:
        """Deliver what has arrived, for at most `budget` seconds; whether there is more to do."""
        end = self.clock.monotonic() + budget
        try:
            if self._gone() or self._waits_for_probe(now):
                return False
            if self.execution is None and not self._open(now):
                return False
            if not self._caught_up(now, end):
                return not self.released
            more = self._deliver_arrivals(now, end)
            if not more and not self._gone():
                more = self._fire_timers(now, end)
            # A run that continued as new has stopped taking what arrived: there may be more.
            more = (not self._caught_up(now, end) or more or bool(self.deliveries)) and not self._gone()
        except (NondeterminismError, DecodeError) as error:
            self._set_aside(now, error, "diverged")
            return bool(self.deliveries)
        except WorkflowBlocked as error:
            self._set_aside(now, error, "blocked")
            return bool(self.deliveries)
        except Exception as error:  # whatever it is, it must not end the worker, and then the next one
            logger.exception("run %s can't go on", self.row.id, extra=self.log_fields)
            self._set_aside(now, error, "diverged")
            return bool(self.deliveries)
        except (GeneratorExit, Suspended) as error:  # our own words, in the mouth of somebody else's code
            self._set_aside(now, error, "diverged")
            return bool(self.deliveries)
        return more

    def _gone(self) -> bool:
        return self.released

    def _caught_up(self, now: int, end: float) -> bool:
        """Whether the code is where its history ends; a run that continues as new begins again here."""
        while self._replay is not None and not self.released:
            if self.clock.monotonic() > end or not self._catch_up(now, end):
                return False
        return not self.released

    def _open(self, now: int) -> bool:
        """Decide what a run that was just claimed needs: nothing, an answer, or its code."""
        if self.probe is Probe.ANNOUNCED:
            self._start_execution()
            return True
        self._read_history()
        if (self.row.status in HELD or Status(self.row.status).is_final) and not self._handle_at_the_door(now):
            self.release(now)
            return False
        last = next(e for e in reversed(self._history) if isinstance(e, ev.Beginning | ev.AttemptFailed))
        begins_at = self._begins_at(last)
        if begins_at > now:
            self._wait_to_begin(now, begins_at, last)
            return False
        if isinstance(last, ev.AttemptFailed):
            self._begin_attempt(now)
        elif self._waited_for_a_worker(now, last):
            self._append_outside(ev.RunTakenUp(ts=now))
        elif not self.row.durable and self.row.losses and not self._begin_anew_after_loss(now):
            return False
        if self.cautious and self.row.durable:
            if not self._is_killer(now):
                self.probe = Probe.WANTED
            return False
        self._start_execution()
        return True

    def _read_history(self) -> None:
        if self.damage:
            raise DecodeError(self.damage)
        try:
            self._history = [ev.from_json(payload) for payload in self.payloads]
        except msgspec.DecodeError as error:
            raise DecodeError(
                f"an event in the history of run {self.row.id} can't be read: {error}; cancel the run, or restore the store "
                "from a backup and resume it"
            ) from error
        self.payloads = []

    # -- code that may have taken its worker down

    def _waits_for_probe(self, now: int) -> bool:
        """Whether the code would go on only after that was announced: until it has made progress, whatever reaches it
        may be what made it take a worker down."""
        if self.probe is Probe.NONE and self.cautious and self.execution is not None and self.row.durable:
            due = self.next_due()
            if self.deliveries or (due is not None and due <= now):
                self.probe = Probe.WANTED
        return self.probe is Probe.WANTED

    def _is_killer(self, now: int) -> bool:
        """Whether its code has taken down enough workers; then it is set aside."""
        announced = itertools.takewhile(lambda event: isinstance(event, ev.RunProbed), reversed(self._history))
        # The first loss of a row came unannounced, and a worker that stops in peace counts none.
        self.blame = min(sum(1 for _ in announced), self.row.losses - 1)
        if self.blame < MAX_PROBES:
            return False
        error = WorkerLostError(
            f"the code of workflow {self.row.workflow!r} took its worker down {self.row.losses} times, each time before "
            "anything more was recorded; look at what it does to its process (memory, native code, os._exit), move that into "
            "a step, then resume the run"
        )
        self._set_aside(now, error, "lost")
        return True

    def announce_probe(self, now: int) -> None:
        """From the commit of this on, the run's code may be activated. Outcomes that it is to see are safe by then."""
        self.probe = Probe.ANNOUNCED
        self._keep_outcomes(self.kept_outcomes())
        event = ev.RunProbed(ts=now, worker=self.me.worker)
        if self.execution is None:
            self._append_outside(event)
        else:
            self._note(event)

    def probe_is_over(self) -> None:
        """Its code has gone as far as it can, and the worker lives."""
        self.probe = Probe.NONE
        if self.execution is not None and not self.execution.steps and not self.released:
            self._progressed()

    def _begins_at(self, last: ev.Event) -> int:
        """When the run, or its next attempt, is to begin; 0 if it has begun."""
        if isinstance(last, ev.AttemptFailed):
            return last.retry_at
        return 0 if self._has_begun() else last.ts

    def _has_begun(self) -> bool:
        return any(not isinstance(e, BEFORE_THE_CODE) for e in self._history)

    def _waited_for_a_worker(self, now: int, last: ev.Event) -> bool:
        """Whether nobody has executed its code before, and it was to begin some time ago."""
        return self.is_new and self.row.durable and not self._has_begun() and now - last.ts > A_MOMENT

    def _wait_to_begin(self, now: int, begins_at: int, last: ev.Event) -> None:
        """Somebody ordered something of a run whose time has not come. All else stays in its inbox until then."""
        untouched: dict[str, Any] = {} if isinstance(last, ev.AttemptFailed) else {"started_at": None}
        for letter in self.deliveries:
            if not isinstance(letter, Letter) or LETTERS.get(letter.kind, ControlLetter) is not ControlLetter:
                continue
            self._change.consumed.append(letter.id)
            body = self._read_letter(letter, now)
            if body is None:
                continue
            if letter.kind == "cancel":
                self._end_outside(ev.RunCancelled(ts=now, reason=body.reason), now)
                return
            if letter.kind == "pause":
                self._append_outside(ev.RunPaused(ts=now, reason=body.reason))
                self._leave({"status": Status.PAUSED, "held": 1, "reason": body.reason, "wake_at": None, **untouched})
                return
            self._notify_later(body)
        status = Status.PENDING if untouched else Status.RETRY
        self._leave({"status": status, "wake_at": begins_at, **untouched})

    def _begin_attempt(self, now: int) -> None:
        """Begin again, with everything earlier attempts have achieved at hand."""
        self.row.attempt += 1
        self._append_outside(ev.AttemptStarted(ts=now, attempt=self.row.attempt))
        self._change.columns["attempt"] = self.row.attempt

    def _begin_anew_after_loss(self, now: int) -> bool:
        """A run without a history can only begin anew, if it may be retried at all."""
        error = WorkerLostError(f"the worker of run {self.row.id} was lost, and with durable=False nothing was kept")
        if program_for(self.app, self.row.workflow, self.options).retry_delay(error, self.row.attempt) is None:
            self._end_outside(ev.RunFailed(ts=now, error=Raw(self.codec.encode_error(error))), now)
            return False
        self._begin_attempt(now)
        self._change.columns["losses"] = self.row.losses = 0
        return True

    def _start_execution(self) -> None:
        program = program_for(self.app, self.row.workflow, self.options)
        self._timeout = program.timeout
        self._retain = program.settings.retain
        self.execution = Execution(self.row.id, program, self.codec, self.greenlets)
        self.execution.on_background_error = self._background_error
        self.execution.app = self.row.app
        self.execution.parent_id = self.row.parent_id
        self.execution.root_id = self.row.root_id or self.row.id
        self.execution.secret = self.me.secret
        self.execution.durable = self.row.durable
        # What was committed when this run was claimed is what its code has seen; a new run's has seen nothing.
        passed = 0 if self.is_new and not self._has_begun() else self._last_committed
        self._replay = self.execution.replay(self._history, passed)

    def _handle_at_the_door(self, now: int) -> bool:
        """Letters to a run that is held or has ended; whether its code is needed now."""
        opened = False
        kept: deque[Delivery] = deque()
        for letter in self.deliveries:
            if opened or not isinstance(letter, Letter) or LETTERS.get(letter.kind, ControlLetter) is not ControlLetter:
                if not Status(self.row.status).is_final or opened:
                    kept.append(letter)
                elif isinstance(letter, Letter):
                    self._change.consumed.append(letter.id)
                continue
            self._change.consumed.append(letter.id)
            self._orders.append(letter.id)
            body = self._read_letter(letter, now)
            if body is None or not self._notify_later(body):
                continue
            if letter.kind == "watch":
                if Status(self.row.status).is_final:
                    self._change.messages.append(child_message(self.row, self._history[-1]))
            elif letter.kind == "retry" and self.row.status in (Status.FAILURE, Status.CANCELLED):
                self._reopen(now)
                opened = True
            elif letter.kind == "retry" and Status(self.row.status).is_final:  # it has succeeded meanwhile
                self._change.messages.append(child_message(self.row, self._history[-1]))
            elif letter.kind == "cancel" and self.row.stuck == "lost":  # not even its clean-up may run
                self._end_outside(ev.RunCancelled(ts=now, reason=body.reason), now)
                break
            elif self.row.status in HELD and letter.kind in ("resume", "retry", "cancel"):
                self._append_outside(ev.RunResumed(ts=now))
                self._unhold()
                opened = True
                if letter.kind == "cancel":
                    kept.append(letter)
        self.deliveries = kept
        return opened

    def _notify_later(self, body: ControlLetter) -> bool:
        """Tell the parent of the outcome, when there is one; False if it is not the parent who asks."""
        if not body.parent_cmd:
            return True
        if body.parent_id != self.row.parent_id:
            self._change.messages.append(not_a_child(self.codec, self.row.id, body.parent_id, body.parent_cmd))
            return False
        self.row.parent_cmd = body.parent_cmd
        self.options.notify = True
        self._change.columns |= {"parent_cmd": body.parent_cmd, "options": self.options.to_json()}
        return True

    def _unhold(self) -> None:
        self.row.status = Status.RUNNING
        self.shown = Status.RUNNING
        self._change.columns |= {"status": Status.RUNNING, "held": 0, "reason": "", "stuck": ""}

    def _reopen(self, now: int) -> None:
        """A new attempt of a run that had failed or was cancelled."""
        self._begin_attempt(now)
        self._unhold()
        self._change.columns |= {"finished_at": None, "expires_at": None, "end_seq": 0}

    def _append_outside(self, event: Any) -> None:
        """Append to a history whose code is not in memory."""
        event.seq = self._history[-1].seq + 1
        self._history.append(event)
        self._change.records.append(to_record(event))

    def _catch_up(self, now: int, end: float) -> bool:
        """Replay, a slice at a time; whether the end of history is reached."""
        assert self.execution is not None
        assert self._replay is not None
        started = self.clock.monotonic()
        self.guard.enter(self.execution)
        try:
            for _ in self._replay:
                if self.clock.monotonic() > end:
                    return False
        finally:
            self.guard.leave()
            self.replay_seconds += self.clock.monotonic() - started
        self._replay = None
        self._weigh_losses()
        self._history = []
        self._outcomes_at_hand = set(map(self._outcome_of, self.deliveries))
        self._settle(now)
        return True

    def _outcome_of(self, arrival: Delivery) -> str:
        """The step whose outcome waits to be delivered, empty if it is something else."""
        if isinstance(arrival, Outcome):
            return arrival.attempt.cmd
        if arrival.kind != "outcome":
            return ""
        try:
            body: OutcomeLetter = msgspec.json.decode(arrival.body, type=OutcomeLetter)
        except msgspec.DecodeError:
            return ""
        return body.cmd if body.run_no == self.row.no else ""

    def _weigh_losses(self) -> None:
        """See what the history knows of losses. Only the first start of a row of losses may not have been recorded,
        for a run with a loss announces what it starts. A step whose start was announced had a process of its own, or
        still waited for it, and is hardly to blame."""
        assert self.execution is not None
        suspects = {cmd: step.command for cmd, step in self.execution.steps.items() if self.is_suspect(step.command)}
        for event in self._history if suspects and self.me.isolates else ():
            if isinstance(event, ev.StepStarted) and not event.started:
                self._announced[event.cmd] = event.worker
            elif isinstance(event, ev.StepStarted):
                self._announced.pop(event.cmd, None)
            elif isinstance(event, ev.StepLost) and self._announced.get(event.cmd, event.worker) != event.worker:
                self._spared[event.cmd] = self._spared.get(event.cmd, 0) + 1
        for cmd, command in suspects.items():
            self._unrecorded[cmd] = int(self.row.losses > command.losses + int(command.started))

    def _deliver_arrivals(self, now: int, end: float) -> bool:
        while self.deliveries:
            arrival = self.deliveries.popleft()
            if isinstance(arrival, Letter):
                self._open_letter(arrival, now)
            else:
                self._take_outcome(arrival, now)
            if self.released or self._replay is not None:
                return False
            if self.clock.monotonic() > end:
                return bool(self.deliveries)
        return False

    def _fire_timers(self, now: int, end: float) -> bool:
        assert self.execution is not None
        execution = self.execution
        by = execution.time - now
        if by - execution.ahead > AHEAD and self.row.durable:
            self._note(ev.ClockSetBack(ts=now, by=by))
            self.retries = [
                (execution.steps[cmd].command.not_before, cmd) for _, cmd in self.retries if cmd in execution.steps
            ]
            heapq.heapify(self.retries)
        if self._timeout is not None and now >= execution.started_at + self._timeout and not execution.cancelling:
            reason = f"run {self.row.id} took longer than its timeout of {in_words(self._timeout)}"
            self._deliver(ev.CancelRequested(ts=now, reason=reason, timed_out=True), now)
        while self._replay is None and not self.released:
            due = execution.next_due()
            if due is None or due > now:
                break
            if self.clock.monotonic() > end:
                return True
            timer = execution.next_timer()
            assert timer is not None
            timer.ts = now
            self._deliver(timer, now)
        while self.retries and self.retries[0][0] <= now and self._replay is None and not self.released:
            _, cmd = heapq.heappop(self.retries)
            step = execution.steps.get(cmd)
            if step is not None and cmd not in self.inflight:
                step.command.not_before = 0
                self._schedule(step.command, now)
        return False

    def _deliver(self, event: ev.Event, now: int) -> None:
        """Let the code see an event, and take note of all it asks for."""
        assert self.execution is not None
        self.guard.enter(self.execution)
        try:
            self.execution.deliver(event)
            self.execution.settle(now)
        finally:
            self.guard.leave()
        self._collect_all(now)

    def _note(self, event: ev.Event) -> None:
        assert self.execution is not None
        self.execution.note(event)
        self._collect()

    def _settle(self, now: int) -> None:
        assert self.execution is not None
        self.guard.enter(self.execution)
        try:
            self.execution.settle(now)
        finally:
            self.guard.leave()
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
            self._change.records += [to_record(event) for event in events]
        for event in events:
            if isinstance(event, ev.StepCompleted):
                for key, value in event.data.items():
                    self._publish(key, value)
                for one in event.emitted:
                    self._emit(one.name, one.key, one.payload, event.cmd, event.ts)
            elif isinstance(event, ev.StepFailed | ev.StepRefused):
                self._tell(event)
        for command in commands:
            if not self.released:
                self._carry_out(command, now)

    def _carry_out(self, command: co.Command, now: int) -> None:
        change = self._change
        if isinstance(command, co.ScheduleStep):
            if command.not_before > now or command.started:
                # One that had started may turn out to be lost: its failure, and all that the code asks for then, has to
                # come after the commands that are carried out now.
                heapq.heappush(self.retries, (max(command.not_before, now), command.cmd))
            else:
                self._schedule(command, now)
        elif isinstance(command, co.CancelStep):
            self._drop_attempt(command.cmd)
        elif isinstance(command, co.StartChild):
            change.children.append(self._child(command, now))
            if command.again:
                change.messages.append(ask_child(command.child_id, "retry", self.row.id, command.cmd))
        elif isinstance(command, co.WatchChild):
            change.messages.append(ask_child(command.child_id, "watch", self.row.id, command.cmd))
        elif isinstance(command, co.CancelChild):
            change.messages.append(control(command.child_id, "cancel", command.reason))
        elif isinstance(command, co.OpenHook | co.CloseHook):
            if command.where is not None:
                opened = isinstance(command, co.OpenHook)
                change.signals.append(wait_of(command) if opened else Unsubscription(cmd=command.cmd))
            elif command.key:
                self._publish_key(command.key)
        elif isinstance(command, co.EmitEvent):
            self._emit(command.name, command.key, command.payload, command.cmd, now)
        elif isinstance(command, co.StreamItem):
            self.stream(command.cmd, self.row.attempt, now, bytes(command.item))
        elif isinstance(command, co.PublishData):
            self._publish(command.key, command.value)

    def _emit(self, name: str, key: str, payload: Raw, cmd: str, now: int) -> None:
        self._change.signals.append(emission_of(self.row, self.options, name, key, bytes(payload), cmd, now))

    def _tell(self, event: ev.Event) -> None:
        self._change.news += news_of(self.row, self.options, event, self.codec)

    def _child(self, command: co.StartChild, now: int) -> NewRun:
        options = RunOptions(
            timeout=command.options.get("timeout"),  # type: ignore[arg-type]
            max_retries=command.options.get("max_retries"),  # type: ignore[arg-type]
            notify=command.waited,
            quiet=self.options.quiet,
        )
        priority = int(command.options.get("priority", self.row.priority))  # type: ignore[call-overload]
        delay = int(command.options.get("delay", 0))  # type: ignore[call-overload]
        started = ev.RunStarted(
            seq=1,
            ts=now + delay,
            workflow=command.name,
            input=command.args,
            seed=int(self.clock.random() * 2**53),
            flags=FLAGS,
        )
        head_start = 0 if delay else priority * PRIORITY_HEAD_START  # it must not begin a delayed run early
        return NewRun(
            id=command.child_id, workflow=command.name, records=[to_record(started)],
            wake_at=now + delay - head_start, created_at=now, fingerprint=fingerprint(command.name, bytes(command.args)),
            priority=priority, parent_id=self.row.id, parent_cmd=command.cmd, root_id=self.row.root_id or self.row.id,
            correlation=correlation_of(self.row), options=options.to_json(), durable=bool(command.options.get("durable", True)),
            if_taken=self._refusal(command) if "id" in command.options and not command.again else None,
        )  # fmt: skip

    def _refusal(self, command: co.StartChild) -> Message:
        return not_a_child(self.codec, command.child_id, self.row.id, command.cmd)

    # -- letters

    def add_letter(self, letter: Letter) -> bool:
        if letter.id in self.seen:
            return False
        self.seen.add(letter.id)
        self.deliveries.append(letter)
        return True

    def _open_letter(self, letter: Letter, now: int) -> None:
        assert self.execution is not None
        self._change.consumed.append(letter.id)
        body = self._read_letter(letter, now)
        if body is None:
            return
        if isinstance(body, HookLetter):
            if not (body.token and self.execution.was_answered(body.token)):
                self._deliver(
                    ev.HookReceived(
                        ts=now, name=body.name, key=body.key, payload=body.payload, token=body.token, event=body.event
                    ),
                    now,
                )
        elif isinstance(body, ChildLetter):
            self._open_child_letter(body, now)
        elif isinstance(body, OutcomeLetter):
            self._open_outcome_letter(body, now)
        elif letter.kind == "cancel":
            self._cancel = letter
            if self.execution.cancelling is None:
                self._deliver(ev.CancelRequested(ts=now, reason=body.reason), now)
        elif letter.kind == "pause":
            self._hold(now, ev.RunPaused(ts=now, reason=body.reason), Status.PAUSED, body.reason, "")
        elif letter.kind in ("retry", "watch"):
            self._notify_later(body)

    def _read_letter(self, letter: Letter, now: int) -> Any:
        """What a message says; None if nobody can read it, which is recorded, so that it troubles nobody again."""
        try:
            return msgspec.json.decode(letter.body, type=LETTERS[letter.kind])
        except (msgspec.DecodeError, KeyError) as error:
            logger.warning("run %s: a message can't be read: %s", self.row.id, error, extra=self.log_fields)
            event = ev.MessageDropped(ts=now, message=printable(letter.kind), reason=printable(error))
            if self.execution is None:
                self._append_outside(event)
            else:
                self._note(event)
            return None

    def _open_child_letter(self, body: ChildLetter, now: int) -> None:
        assert self.execution is not None
        child = self.execution.children.get(body.cmd)
        if child is None or child.child_id != body.child_id:
            return
        common: dict[str, Any] = {
            "ts": now, "cmd": child.cmd, "cause": child.cause, "name": child.name, "args": child.args,
            "child_id": child.child_id,
        }  # fmt: skip
        if body.status == Status.SUCCESS:
            self._deliver(ev.ChildCompleted(**common, result=body.result), now)
        elif body.status == Status.FAILURE:
            self._deliver(ev.ChildFailed(**common, error=body.error), now)
        else:
            self._deliver(ev.ChildCancelled(**common, reason=body.reason), now)

    def _open_outcome_letter(self, body: OutcomeLetter, now: int) -> None:
        """An outcome that took the long way: its engine had lost the run when it arrived."""
        assert self.execution is not None
        step = self.execution.steps.get(body.cmd)
        if step is None or body.run_no != self.row.no:  # an earlier run may have had the same id
            return
        command = step.command
        failed = bytes(body.error) != b"null"
        was_awaited = body.cmd in self._outcomes_at_hand
        self._outcomes_at_hand.discard(body.cmd)
        if failed and (body.attempt != command.attempt or body.cmd in self.inflight):
            if was_awaited:
                self._schedule(command, now)
            return  # the step is being tried again: this failure is history
        self._drop_attempt(body.cmd)
        self._keep_logs(body.cmd, body.attempt, None if body.logs == ev.NULL else bytes(body.logs))
        command.attempt = body.attempt
        if failed:
            self._take_failure(command, now, body.started, self.codec.decode_error(body.error), body.error, None)
            return
        self._progressed()
        self._deliver(
            ev.StepCompleted(
                ts=now, cmd=command.cmd, cause=command.cause, name=command.name, args=command.args,
                attempt=body.attempt, worker=body.worker, started=body.started, undoes=command.undoes,
                result=body.result, data=body.data, emitted=body.emitted,
            ),
            now,
        )  # fmt: skip

    # -- leaving

    def _end(self, end: ev.Event, now: int) -> None:
        if isinstance(end, ev.ContinuedAsNew):
            assert self.execution is not None
            self._history = [end]
            if self.row.durable:
                self._change.columns["base_seq"] = self.row.base_seq = end.seq
            self.execution.evict()
            self._start_execution()
            return
        if not self.row.durable:
            self._append_last(end)
        if isinstance(end, ev.AttemptFailed):
            self._leave({"status": Status.RETRY, "reason": "", "wake_at": end.retry_at, "attempt": end.attempt})
            return
        status = status_of(end)
        retain = self._retain
        if self.row.parent_id and self.options.notify:
            self._change.messages.append(child_message(self.row, end))
        self._tell(end)
        self._leave(
            {
                "status": status, "reason": "", "wake_at": None, "finished_at": now, "end_seq": end.seq, "losses": 0,
                "expires_at": None if retain is None else now + retain,
            }
        )  # fmt: skip

    def _append_last(self, end: ev.Event) -> None:
        """How an attempt ended is kept even without a history."""
        kept = self._change.records
        end.seq = (kept[-1].seq if kept else self._last_committed) + 1
        kept.append(to_record(end))

    def _end_outside(self, end: ev.Event, now: int) -> None:
        """End a run whose code is not in memory."""
        self._retain = program_for(self.app, self.row.workflow, self.options).settings.retain
        if self.row.durable:
            self._append_outside(end)
        self._end(end, now)

    def _set_aside(self, now: int, error: BaseException, stuck: str) -> None:
        """The code can't go on: take back what isn't committed, keep every outcome, and say why. Nothing here depends on
        what the run's code, values or rows are like: a run that can't be set aside would end every worker in turn."""
        if self.execution is not None:
            self.execution.take()
        reason = printable(error)
        letters = [d for d in self.deliveries if isinstance(d, Letter)]
        cancel = next((letter for letter in letters if letter.kind == "cancel"), self._cancel)
        outcomes = self.kept_outcomes()
        self.deliveries.clear()
        self.to_schedule.clear()
        self._change = Change(no=self.row.no, consumed=self._orders)
        self._keep_outcomes(outcomes)
        if self.execution is None:
            self._answer_orders(letters)
        if cancel is not None:
            self._history = []
            end = ev.RunCancelled(ts=now, reason=f"cancelled while its code could not go on: {reason}")
            self._change.consumed.append(cancel.id)
            self._append_record(end)
            self._end(end, now)
        elif stuck == "diverged" and self.row.build != self.me.build and self.row.build in self.me.others:
            # Another worker still has the code that made this history.
            self._leave({"status": Status.PENDING, "wake_at": now + 1_000_000})
        else:
            event = ev.RunStuck(ts=now, reason=reason, error=self._encoded(error))
            self._append_record(event)
            self._tell(event)
            logger.error("run %s is set aside: %s", self.row.id, reason, extra=self.log_fields)
            self._leave(
                {"status": Status.STUCK, "held": 1, "reason": reason, "stuck": stuck, "wake_at": None, "losses": 0}
            )

    def _keep_outcomes(self, outcomes: list[Outcome]) -> None:
        for outcome in outcomes:
            try:
                self._change.messages.append(outcome_message(self.row.id, outcome, self.me.worker))
            except Exception:
                logger.exception(
                    "the outcome of step %r of run %s can't be kept, so the step will be executed again",
                    outcome.attempt.step, self.row.id, extra=self.log_fields,
                )  # fmt: skip

    def _answer_orders(self, letters: list[Letter]) -> None:
        """Its code was not even begun, so nobody will read these: left where they are they would wake it for ever."""
        for letter in letters:
            if letter.kind == "cancel" or LETTERS.get(letter.kind, ControlLetter) is not ControlLetter:
                continue
            self._change.consumed.append(letter.id)
            with contextlib.suppress(msgspec.DecodeError, KeyError):
                self._notify_later(msgspec.json.decode(letter.body, type=LETTERS[letter.kind]))

    def _encoded(self, error: BaseException) -> Raw:
        try:
            return Raw(self.codec.encode_error(error))
        except BaseException as why:  # a transform of the codec fails, or the error itself; the reason is told in words
            logger.error("the error of run %s can't be encoded: %s", self.row.id, printable(why), extra=self.log_fields)
            return ev.NULL

    def refuse(self, now: int, error: BaseException) -> None:
        """What it has come to can't be written: nobody can go on with it until its code is corrected."""
        self.released = False
        self._set_aside(now, error, "diverged")
        if self._refused:  # nor can this be: then the least is written, which can
            self._change = Change(no=self.row.no, columns=self._change.columns)
            self._append_record(ev.RunStuck(ts=now, reason=printable(error)))
        self._refused = True

    def _hold(self, now: int, event: ev.Event, status: str, reason: str, stuck: str) -> None:
        self._note(event)
        self._leave({"status": status, "held": 1, "reason": reason, "stuck": stuck, "wake_at": None})

    def release(self, now: int) -> None:
        """Let go of a run that only waits, or that needs nothing."""
        if self.execution is None or self.row.status in HELD or Status(self.row.status).is_final:
            self._leave({})
            return
        self._leave({"status": Status.WAITING, "reason": self.execution.waiting_for(), "wake_at": self.next_due()})

    def _leave(self, columns: dict[str, Any]) -> None:
        self._change.columns |= {"owner": None, **columns}
        if "status" in columns:
            self.row.status = self.shown = columns["status"]
        self.released = True
        if self.execution is not None:
            self.execution.evict()

    def cannot_schedule(self, command: co.ScheduleStep, now: int, error: BaseException) -> None:
        """This worker's code lacks the step."""
        self._set_aside(now, error, "diverged")

    def _background_error(self, context: dict[str, Any]) -> None:
        logger.warning(
            "run %s: %s",
            self.row.id,
            context.get("message", "an error nobody handled"),
            exc_info=context.get("exception"),
            extra=self.log_fields,
        )
