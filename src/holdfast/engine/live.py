"""One run in memory: what arrives for it becomes events, what its code asks for becomes a change to commit.

Nothing here touches the store or the executor; the reactor does, with what `LiveRun` says.
"""

from __future__ import annotations

import heapq
import logging
import random
import time
from collections import deque
from collections.abc import Iterator
from typing import Any

import msgspec
from msgspec import Raw

from holdfast.codec import Codec
from holdfast.core import commands as co
from holdfast.core import events as ev
from holdfast.core.definitions import StepOptions
from holdfast.core.execution import FLAGS, Execution
from holdfast.core.loop import Greenlets
from holdfast.core.registry import Definitions
from holdfast.durations import in_words
from holdfast.engine.guard import Guard
from holdfast.engine.programs import program_for
from holdfast.engine.records import (
    LETTERS,
    ChildLetter,
    ControlLetter,
    HookLetter,
    OutcomeLetter,
    RunOptions,
    child_message,
    control,
    status_of,
    to_record,
)
from holdfast.errors import (
    DecodeError,
    NondeterminismError,
    ValueCodecError,
    WorkerLostError,
    WorkflowBlocked,
)
from holdfast.ports import Change, Claimed, Letter, Message, NewRun, Outcome, Status

logger = logging.getLogger("holdfast.engine")

HELD = (Status.PAUSED, Status.STUCK)
Delivery = Outcome | Letter


class Identity(msgspec.Struct):
    """Who owns the run: a worker's id and build, and the builds of the other workers that live."""

    worker: str
    build: str
    secret: bytes = b""
    others: set[str] = set()


class LiveRun:
    """A run this engine owns. `advance` brings it forward, `take_change` says what to commit."""

    def __init__(self, claimed: Claimed, app: Definitions, greenlets: Greenlets, guard: Guard, me: Identity) -> None:
        self.row = claimed.row
        self.me = me
        self.app = app
        self.codec: Codec = app.codec
        self.greenlets = greenlets
        self.guard = guard
        self.options = msgspec.json.decode(claimed.row.options, type=RunOptions)
        self.payloads = claimed.payloads
        self.execution: Execution | None = None
        self.deliveries: deque[Delivery] = deque(claimed.letters)
        self.seen: set[int] = {letter.id for letter in claimed.letters}
        self.inflight: dict[str, int] = {}
        self.retries: list[tuple[int, str]] = []
        self.unconfirmed: list[Outcome] = []
        self.cautious = claimed.row.losses > 0
        self.shown: str = claimed.row.status
        self.idle_since = 0.0
        self.replay_seconds = 0.0
        self.released = False
        self.broken = False
        self.scheduled_due: int | None = None
        self.resumed = len(claimed.payloads) > 1
        self.checkpoints: dict[str, bytes] | None = None
        self._reported: set[tuple[str, str]] = set()
        self.to_schedule: dict[str, co.ScheduleStep] = {}
        self.to_cancel: list[int] = []
        self._change = Change(no=self.row.no)
        self._replay: Iterator[None] | None = None
        self._history: list[ev.AnyEvent] = []
        self._last_committed = 0
        self._orders: list[int] = []
        self._timeout: int | None = None
        self._retain: int | None = None

    # -- going forward

    def advance(self, now: int, budget: float) -> bool:
        """Deliver what has arrived, for at most `budget` seconds; whether there is more to do."""
        end = time.perf_counter() + budget
        try:
            if self._gone():
                return False
            if self.execution is None and not self._open(now):
                return False
            if not self._caught_up(now, end):
                return not self.released
            more = self._deliver_arrivals(now, end)
            if not more and not self._gone():
                more = self._fire_timers(now, end)
            more = more or (not self._caught_up(now, end) and not self._gone())
        except (NondeterminismError, DecodeError) as error:
            self._set_aside(now, error, "diverged")
            return bool(self.deliveries)
        except WorkflowBlocked as error:
            self._set_aside(now, error, "blocked")
            return bool(self.deliveries)
        return more

    def _gone(self) -> bool:
        return self.released

    def _caught_up(self, now: int, end: float) -> bool:
        """Whether the code is where its history ends; a run that continues as new begins again here."""
        while self._replay is not None and not self.released:
            if time.perf_counter() > end or not self._catch_up(now, end):
                return False
        return not self.released

    def _open(self, now: int) -> bool:
        """Decide what a run that was just claimed needs: nothing, an answer, or its code."""
        self._history = [ev.from_json(payload) for payload in self.payloads]
        self.payloads = []
        self._last_committed = self._history[-1].seq
        if (self.row.status in HELD or Status(self.row.status).is_final) and not self._handle_at_the_door(now):
            self.release(now)
            return False
        last = next(e for e in reversed(self._history) if isinstance(e, ev.Beginning | ev.AttemptFailed))
        if isinstance(last, ev.AttemptFailed):
            self._begin_attempt(now)
        elif not self.row.durable and self.row.losses and not self._begin_anew_after_loss(now):
            return False
        self._start_execution()
        return True

    def _begin_attempt(self, now: int) -> None:
        """Begin again, with everything earlier attempts have achieved at hand."""
        self.row.attempt += 1
        self._append_outside(ev.AttemptStarted(ts=now, attempt=self.row.attempt))
        self._change.columns["attempt"] = self.row.attempt

    def _begin_anew_after_loss(self, now: int) -> bool:
        """A run without a history can only begin anew, if it may be retried at all."""
        error = WorkerLostError(f"the worker of run {self.row.id} was lost, and with durable=False nothing was kept")
        if program_for(self.app, self.row.workflow, self.options).retry_delay(error, self.row.attempt) is None:
            self._fail_at_once(now, error)
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
        self._replay = self.execution.replay(self._history)

    def _handle_at_the_door(self, now: int) -> bool:
        """Letters to a run that is held or has ended; whether its code is needed now."""
        opened = False
        kept: deque[Delivery] = deque()
        for letter in self.deliveries:
            if (
                opened
                or not isinstance(letter, Letter)
                or letter.kind not in ("resume", "retry", "cancel", "watch", "pause")
            ):
                if not Status(self.row.status).is_final or opened:
                    kept.append(letter)
                elif isinstance(letter, Letter):
                    self._change.consumed.append(letter.id)
                continue
            body: ControlLetter = msgspec.json.decode(letter.body, type=ControlLetter)
            self._change.consumed.append(letter.id)
            self._orders.append(letter.id)
            if letter.kind == "watch":
                self._notify_later(body)
                if Status(self.row.status).is_final:
                    self._change.messages.append(child_message(self.row, self._history[-1]))
            elif letter.kind == "retry" and self.row.status in (Status.FAILURE, Status.CANCELLED):
                self._notify_later(body)
                self._reopen(now)
                opened = True
            elif letter.kind == "retry" and Status(self.row.status).is_final:
                self._notify_later(body)  # it has succeeded meanwhile
                self._change.messages.append(child_message(self.row, self._history[-1]))
            elif self.row.status in HELD and letter.kind in ("resume", "retry", "cancel"):
                self._append_outside(ev.RunResumed(ts=now))
                self._unhold()
                opened = True
                if letter.kind == "cancel":
                    kept.append(letter)
        self.deliveries = kept
        return opened

    def _notify_later(self, body: ControlLetter) -> None:
        if body.parent_cmd:
            self.row.parent_cmd = body.parent_cmd
            self.options.notify = True
            self._change.columns |= {"parent_cmd": body.parent_cmd, "options": self.options.to_json()}

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
        started = time.perf_counter()
        self.guard.enter(self.execution)
        try:
            for _ in self._replay:
                if time.perf_counter() > end:
                    return False
        finally:
            self.guard.leave()
            self.replay_seconds += time.perf_counter() - started
        self._replay = None
        self._history = []
        self._settle(now)
        return True

    def _deliver_arrivals(self, now: int, end: float) -> bool:
        while self.deliveries:
            arrival = self.deliveries.popleft()
            if isinstance(arrival, Letter):
                self._open_letter(arrival, now)
            else:
                self._take_outcome(arrival, now)
            if self.released or self._replay is not None:
                return False
            if time.perf_counter() > end:
                return bool(self.deliveries)
        return False

    def _fire_timers(self, now: int, end: float) -> bool:
        assert self.execution is not None
        execution = self.execution
        if self._timeout is not None and now >= execution.started_at + self._timeout and not execution.cancelling:
            reason = f"run {self.row.id} took longer than its timeout of {in_words(self._timeout)}"
            self._deliver(ev.CancelRequested(ts=now, reason=reason, timed_out=True), now)
        while self._replay is None and not self.released:
            timer = execution.next_timer()
            if timer is None or timer.due > now:
                break
            if time.perf_counter() > end:
                return True
            timer.ts = now
            self._deliver(timer, now)
        while self.retries and self.retries[0][0] <= now:
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
        finally:
            self.guard.leave()
        self._settle(now)

    def _note(self, event: ev.Event) -> None:
        assert self.execution is not None
        self.execution.note(event)
        self._collect()

    def _settle(self, now: int) -> None:
        execution = self.execution
        assert execution is not None
        self.guard.enter(execution)
        try:
            execution.settle(now)
        finally:
            self.guard.leave()
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
            if isinstance(event, ev.StepCompleted) and event.data:
                for key, value in event.data.items():
                    self._publish(key, value)
        for command in commands:
            if not self.released:
                self._carry_out(command, now)

    def _carry_out(self, command: co.Command, now: int) -> None:
        change = self._change
        if isinstance(command, co.ScheduleStep):
            if command.not_before > now:
                heapq.heappush(self.retries, (command.not_before, command.cmd))
            else:
                self._schedule(command, now)
        elif isinstance(command, co.CancelStep):
            self._drop_attempt(command.cmd)
        elif isinstance(command, co.StartChild):
            change.children.append(self._child(command, now))
            if command.again:
                change.messages.append(control(command.child_id, "retry", late=True, parent_cmd=command.cmd))
        elif isinstance(command, co.WatchChild):
            change.messages.append(control(command.child_id, "watch", late=True, parent_cmd=command.cmd))
        elif isinstance(command, co.CancelChild):
            change.messages.append(control(command.child_id, "cancel", command.reason))
        elif isinstance(command, co.OpenHook):
            change.attributes.append(("hook", command.key or command.cmd, command.name.encode()))
        elif isinstance(command, co.CloseHook):
            entry = ("hook", command.key or command.cmd)
            change.attributes = [a for a in change.attributes if a[:2] != entry]
            change.dropped_attributes.append(entry)
        elif isinstance(command, co.PublishData):
            self._publish(command.key, command.value)

    def _publish(self, key: str, value: Raw) -> None:
        name = f"data.{key}"
        self._change.attributes = [a for a in self._change.attributes if a[0] != name]
        self._change.attributes.append((name, bytes(value).decode(errors="replace"), bytes(value)))

    def _child(self, command: co.StartChild, now: int) -> NewRun:
        options = RunOptions(
            timeout=command.options.get("timeout"),  # type: ignore[arg-type]
            max_retries=command.options.get("max_retries"),  # type: ignore[arg-type]
            notify=command.waited,
        )
        priority = int(command.options.get("priority", self.row.priority))  # type: ignore[call-overload]
        delay = int(command.options.get("delay", 0))  # type: ignore[call-overload]
        started = ev.RunStarted(
            seq=1, ts=now, workflow=command.name, input=command.args, seed=random.getrandbits(63), flags=FLAGS
        )
        return NewRun(
            id=command.child_id, workflow=command.name, records=[to_record(started)],
            wake_at=now + delay - priority * PRIORITY_HEAD_START, created_at=now, fingerprint=bytes(command.args),
            priority=priority, parent_id=self.row.id, parent_cmd=command.cmd, root_id=self.row.root_id or self.row.id,
            options=options.to_json(), durable=bool(command.options.get("durable", True)),
        )  # fmt: skip

    # -- steps

    def step_options(self, command: co.ScheduleStep) -> StepOptions:
        return self.app.find_step(command.name).options.override(command.options)

    def _schedule(self, command: co.ScheduleStep, now: int) -> None:
        if command.cmd in self.inflight:  # it was handed over before this run had to be reloaded
            return
        if self.cautious and self.row.durable:
            if command.started:  # it had started on a worker that is gone
                self._count_loss(command, now, 0)
                return
            # A run whose worker was lost says what it is about to do before it does it.
            self._note(
                ev.StepStarted(
                    ts=now, cmd=command.cmd, cause=command.cause, name=command.name, args=command.args,
                    attempt=command.attempt, worker=self.me.worker, undoes=command.undoes,
                )
            )  # fmt: skip
        self.to_schedule[command.cmd] = command

    def _drop_attempt(self, cmd: str) -> None:
        self.to_schedule.pop(cmd, None)
        token = self.inflight.pop(cmd, None)
        if token is not None:
            self.to_cancel.append(token)

    def _count_loss(self, command: co.ScheduleStep, now: int, started: int) -> None:
        self._note(
            ev.StepLost(
                ts=now, cmd=command.cmd, cause=command.cause, name=command.name, args=command.args,
                attempt=command.attempt, worker=self.me.worker, started=started, undoes=command.undoes,
            )
        )  # fmt: skip
        limit = self.step_options(command).max_losses
        if command.losses + int(self.cautious) >= limit:
            error = WorkerLostError(
                f"step {command.name!r} of run {self.row.id} took its worker down {limit} times; look at what it does to its "
                "process (memory, native code, os._exit), or raise max_losses"
            )
            self._deliver_failure(command, now, started, Raw(self.codec.encode_error(error)))
        else:
            self._schedule(command, now)

    def note_started(self, cmd: str, started: int) -> None:
        """A step that takes its time is shown as started."""
        step = self.execution.steps.get(cmd) if self.execution is not None else None
        if step is None or step.command.started or not self.row.durable:
            return
        command = step.command
        self._note(
            ev.StepStarted(
                ts=started, cmd=cmd, cause=command.cause, name=command.name, args=command.args,
                attempt=command.attempt, worker=self.me.worker, started=started, undoes=command.undoes,
            )
        )  # fmt: skip

    def _take_outcome(self, outcome: Outcome, now: int) -> None:
        assert self.execution is not None
        step = self.execution.steps.get(outcome.attempt.cmd)
        if step is None or outcome.cancelled:
            return
        self.unconfirmed.append(outcome)
        command = step.command
        for kind in ("progress", "checkpoint"):
            # A checkpoint is kept over attempts, until the step has ended.
            if (kind, command.cmd) in self._reported and (kind == "progress" or outcome.error is None):
                self._reported.discard((kind, command.cmd))
                self._change.attributes = [a for a in self._change.attributes if a[:2] != (kind, command.cmd)]
                self._change.dropped_attributes.append((kind, command.cmd))
        command.attempt = outcome.attempt.number
        if outcome.lost:
            self._count_loss(command, now, outcome.started)
        elif outcome.error is not None:
            encoded = Raw(outcome.encoded_error or b"null")
            self._take_failure(command, now, outcome.started, outcome.error, encoded, outcome.retry_after)
        else:
            self._progressed()
            self._deliver(
                ev.StepCompleted(
                    ts=now, cmd=command.cmd, cause=command.cause, name=command.name, args=command.args,
                    attempt=command.attempt, worker=self.me.worker, started=outcome.started, undoes=command.undoes,
                    result=Raw(outcome.result), data={k: Raw(v) for k, v in outcome.data.items()},
                ),
                now,
            )  # fmt: skip

    def _take_failure(
        self,
        command: co.ScheduleStep,
        now: int,
        started: int,
        error: BaseException,
        encoded: Raw,
        retry_after: int | None,
    ) -> None:
        delay = None
        if not isinstance(error, ValueCodecError):
            delay = self.step_options(command).retry_delay(error, command.attempt, random.random())
        if delay is not None and retry_after is not None:
            delay = retry_after
        if delay is None:
            self._progressed()
            self._deliver_failure(command, now, started, encoded)
            return
        self._note(
            ev.StepRetrying(
                ts=now, cmd=command.cmd, cause=command.cause, name=command.name, args=command.args,
                attempt=command.attempt, worker=self.me.worker, started=started, undoes=command.undoes, error=encoded,
                retry_at=now + delay,
            )
        )  # fmt: skip
        heapq.heappush(self.retries, (now + delay, command.cmd))

    def _deliver_failure(self, command: co.ScheduleStep, now: int, started: int, encoded: Raw) -> None:
        self._deliver(
            ev.StepFailed(
                ts=now, cmd=command.cmd, cause=command.cause, name=command.name, args=command.args,
                attempt=command.attempt, worker=self.me.worker, started=started, undoes=command.undoes, error=encoded,
            ),
            now,
        )  # fmt: skip

    def _progressed(self) -> None:
        if self.cautious:
            self.cautious = False
            self._change.columns["losses"] = self.row.losses = 0

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
        body: Any = msgspec.json.decode(letter.body, type=LETTERS[letter.kind])
        if isinstance(body, HookLetter):
            if not (body.token and self.execution.was_answered(body.token)):
                self._deliver(
                    ev.HookReceived(ts=now, name=body.name, key=body.key, payload=body.payload, token=body.token),
                    now,
                )
        elif isinstance(body, ChildLetter):
            self._open_child_letter(body, now)
        elif isinstance(body, OutcomeLetter):
            self._open_outcome_letter(body, now)
        elif letter.kind == "cancel":
            if self.execution.cancelling is None:
                self._deliver(ev.CancelRequested(ts=now, reason=body.reason), now)
        elif letter.kind == "pause":
            self._hold(now, ev.RunPaused(ts=now, reason=body.reason), Status.PAUSED, body.reason, "")
        elif letter.kind in ("retry", "watch"):
            self._notify_later(body)

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
        if step is None:
            return
        self._drop_attempt(body.cmd)
        command = step.command
        command.attempt = body.attempt
        if body.error is not None:
            self._take_failure(command, now, body.started, self.codec.decode_error(body.error), body.error, None)
            return
        self._progressed()
        self._deliver(
            ev.StepCompleted(
                ts=now, cmd=command.cmd, cause=command.cause, name=command.name, args=command.args,
                attempt=body.attempt, worker=body.worker, started=body.started, undoes=command.undoes,
                result=body.result, data=body.data,
            ),
            now,
        )  # fmt: skip

    # -- leaving

    def _end(self, end: ev.Event, now: int) -> None:
        if isinstance(end, ev.ContinuedAsNew):
            assert self.execution is not None
            self._history = [end]
            self._change.columns["base_seq"] = self.row.base_seq = end.seq
            self.execution.evict()
            self._start_execution()
            return
        if isinstance(end, ev.AttemptFailed):
            self._leave({"status": Status.RETRY, "reason": "", "wake_at": end.retry_at, "attempt": end.attempt})
            return
        if not self.row.durable:
            end.seq = 2
            self._change.records = [to_record(end)]
        status = status_of(end)
        retain = self._retain
        if self.row.parent_id and self.options.notify:
            self._change.messages.append(child_message(self.row, end))
        self._leave(
            {
                "status": status, "reason": "", "wake_at": None, "finished_at": now, "end_seq": end.seq, "losses": 0,
                "expires_at": None if retain is None else now + retain,
            }
        )  # fmt: skip

    def _fail_at_once(self, now: int, error: BaseException) -> None:
        end = ev.RunFailed(ts=now, error=Raw(self.codec.encode_error(error)))
        self._append_outside(end)
        if self.row.parent_id and self.options.notify:
            self._change.messages.append(child_message(self.row, end))
        self._leave({"status": Status.FAILURE, "wake_at": None, "finished_at": now, "end_seq": end.seq, "losses": 0})

    def _set_aside(self, now: int, error: BaseException, stuck: str) -> None:
        """The code can't go on: take back what isn't committed, keep every outcome, and say why."""
        if self.execution is not None:
            self.execution.take()
        cancel = next((d for d in self.deliveries if isinstance(d, Letter) and d.kind == "cancel"), None)
        outcomes = self.kept_outcomes()
        self.deliveries.clear()
        self.to_schedule.clear()
        self._change = Change(no=self.row.no, consumed=self._orders)
        self._change.messages = [outcome_message(self.row.id, o, self.me.worker) for o in outcomes if not o.lost]
        encoded = Raw(self.codec.encode_error(error))
        if cancel is not None:
            self._history = []
            end = ev.RunCancelled(
                seq=self._last_committed + 1,
                ts=now,
                reason=f"cancelled while its code could not go on: {error}",
            )
            self._change.consumed.append(cancel.id)
            self._change.records.append(to_record(end))
            self._end(end, now)
        elif stuck == "diverged" and self.row.build != self.me.build and self.row.build in self.me.others:
            # Another worker still has the code that made this history.
            self._leave({"status": Status.PENDING, "wake_at": now + 1_000_000})
        else:
            event = ev.RunStuck(seq=self._last_committed + 1, ts=now, reason=str(error), error=encoded)
            self._change.records.append(to_record(event))
            logger.error("run %s is set aside: %s", self.row.id, error)
            self._leave({"status": Status.STUCK, "held": 1, "reason": str(error), "stuck": stuck, "wake_at": None})

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

    # -- what the reactor asks

    def next_due(self) -> int | None:
        """When time alone will bring this run forward."""
        if self.execution is None:
            return None
        timer = self.execution.next_timer()
        dues = [timer.due] if timer is not None else []
        if self.retries:
            dues.append(self.retries[0][0])
        if self._timeout is not None and self.execution.cancelling is None:
            dues.append(self.execution.started_at + self._timeout)
        return min(dues, default=None)

    def is_idle(self) -> bool:
        return not self.inflight and not self.deliveries and self._replay is None and not self.to_schedule

    def show_status(self, reason: str) -> None:
        status = Status.WAITING if reason else Status.RUNNING
        if (self.shown, self.row.reason) != (status, reason):
            self.shown, self.row.reason = status, reason
            self._change.columns |= {"status": status, "reason": reason}

    def has_change(self) -> bool:
        change = self._change
        return bool(
            change.records or change.columns or change.consumed or change.messages or change.attributes or change.children
            or change.dropped_attributes
        )  # fmt: skip

    def take_change(self) -> Change:
        change, self._change = self._change, Change(no=self.row.no)
        if change.records and self.row.build != self.me.build:
            change.columns["build"] = self.row.build = self.me.build
        return change

    def confirmed(self, change: Change) -> None:
        """The change is committed: outcomes in it are safe."""
        self.unconfirmed.clear()
        self._orders.clear()
        if change.records:
            self._last_committed = change.records[-1].seq

    def new_records(self) -> int:
        return len(self._change.records)

    def kept_outcomes(self) -> list[Outcome]:
        """Outcomes of executed steps that are not known to be committed."""
        return self.unconfirmed + [arrival for arrival in self.deliveries if isinstance(arrival, Outcome)]

    def idempotency_key(self, command: co.ScheduleStep) -> str:
        """The same for every attempt of a step, and for no other step."""
        again = f":{self.row.attempt}" if ":" in command.cmd and self.row.attempt > 1 else ""
        return f"{self.row.id}:{command.cmd}{again}"

    def report(self, kind: str, cmd: str, body: bytes) -> None:
        """Keep what a step says on its way: its checkpoint, its progress."""
        if kind == "checkpoint":
            self.checkpoints = {**(self.checkpoints or {}), cmd: body}
        self._reported.add((kind, cmd))
        self._change.attributes = [a for a in self._change.attributes if a[:2] != (kind, cmd)]
        self._change.attributes.append((kind, cmd, body))

    def cannot_schedule(self, command: co.ScheduleStep, now: int, error: BaseException) -> None:
        """This worker's code lacks the step."""
        self._set_aside(now, error, "diverged")

    def _background_error(self, context: dict[str, Any]) -> None:
        logger.warning(
            "run %s: %s",
            self.row.id,
            context.get("message", "an error nobody handled"),
            exc_info=context.get("exception"),
        )


PRIORITY_HEAD_START = 60 * 1_000_000
"""Each point of priority is a head start of a minute over others that wait."""


def outcome_message(run_id: str, outcome: Outcome, worker: str) -> Message:
    """An outcome for whoever owns the run now."""
    letter = OutcomeLetter(
        cmd=outcome.attempt.cmd, attempt=outcome.attempt.number, worker=worker, started=outcome.started,
        result=Raw(outcome.result) if outcome.error is None else ev.NULL,
        error=Raw(outcome.encoded_error) if outcome.encoded_error is not None else None,
        data={key: Raw(value) for key, value in outcome.data.items()},
    )  # fmt: skip
    return Message(
        run_id=run_id, kind="outcome", body=msgspec.json.encode(letter),
        dedupe=f"outcome:{letter.cmd}:{letter.attempt}",
    )  # fmt: skip
