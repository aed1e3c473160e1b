"""One live run: a history is fed to the workflow's function, commands come out.

`deliver` is the only door: live and on replay, each event is appended, delivered, and the loop run dry before
the next. Nothing here reads a clock or the disk; time is the time of the event that is delivered.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any

import msgspec
from msgspec import Raw

from holdfast.core import commands as co
from holdfast.core import events as ev
from holdfast.core.calls import Calls
from holdfast.core.definitions import DEFAULT_QUEUE
from holdfast.core.loop import Task, WorkflowLoop
from holdfast.core.matching import Ledger
from holdfast.core.pending import FLAGS, PendingChild, PendingHook, PendingStep, Recorded
from holdfast.core.reuse import EarlierOutcomes
from holdfast.core.source_lines import task_lines
from holdfast.errors import (
    ContinueAsNew,
    DeadlockError,
    DecodeError,
    NeverAwaitedError,
    NondeterminismError,
    RunCancelledError,
    Suspended,
    TransformError,
    WorkflowBlocked,
    WorkflowTimeoutError,
)


def drop_tracebacks(error: BaseException | None) -> None:
    """Let go of the frames that an exception came through, which hold it in turn."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        error.__traceback__ = None
        error = error.__cause__ or error.__context__


NOBODY: Mapping[str, str] = MappingProxyType({})


def _nothing(context: dict[str, Any]) -> None:
    """Nobody hears of a run that has left."""


class Execution(Calls):
    """The workflow's function, brought to where its history ends, and ready for the next event."""

    # -- replay

    def replay(self, history: list[ev.AnyEvent], passed: int | None = None) -> Iterator[None]:
        """Feed a history, with a pause after each delivery so that the caller can share its time. `passed` is the
        last event whose delivery the code has seen before, somewhere: all of them, if it isn't said."""
        self._passed = history[-1].seq if passed is None else passed
        start = next(i for i in reversed(range(len(history))) if isinstance(history[i], ev.Beginning))
        base = next(i for i in reversed(range(start + 1)) if isinstance(history[i], ev.RunStarted | ev.ContinuedAsNew))
        first, earlier, current = history[base], history[base:start], history[start:]
        assert isinstance(first, ev.RunStarted | ev.ContinuedAsNew)
        self._prepare(first, earlier, current)
        self.last_seq, self._last_ts = history[-1].seq, history[-1].ts
        for event in current:
            if event.delivered:
                self._deliver(event)
                yield
            else:
                self._note(event)
        for left in self._ledger.keys_left_over():
            self._left_over(left, [])

    def _prepare(
        self,
        first: ev.RunStarted | ev.ContinuedAsNew,
        earlier: list[ev.AnyEvent],
        current: list[ev.AnyEvent],
    ) -> None:
        unknown = [flag for flag in first.flags if flag not in FLAGS]
        if unknown:
            raise NondeterminismError(
                f"run {self.run_id} was made by a newer version of Holdfast (it uses {', '.join(unknown)}); "
                "upgrade this worker"
            )
        self._beginning = first
        self.scheduled_at, self.scheduled_offset = first.scheduled_at, first.scheduled_offset
        self._seed = first.seed
        self.mark = f"{first.seed & 0xFFFFFF:06x}"
        self.started_at = first.ts
        self.data = dict(first.data)
        if isinstance(first, ev.ContinuedAsNew):
            self._answered.update(received.token for received in first.hooks)
        if earlier:
            self._look_back(earlier, current[0])
            self._earlier = EarlierOutcomes(earlier)
        self._edge = current[0].seq
        if len(current) > 1:
            self._look_ahead(current)

    def _look_back(self, earlier: list[ev.AnyEvent], beginning: ev.AnyEvent) -> None:
        """What earlier attempts leave to this one."""
        times: list[int] = []
        sent: dict[tuple[str, bytes], int] = {}
        nth = 0
        has_ended = False
        for event in (*earlier, beginning):
            if isinstance(event, ev.Beginning):
                nth = 0
                if has_ended:  # somebody asked for another attempt: its time begins anew
                    self.started_at, has_ended = event.ts, False
            elif isinstance(event, ev.RunEnded):
                has_ended = True
            elif isinstance(event, ev.HookReceived):
                self._answered.add(event.token)
            elif isinstance(event, ev.RequestReceived):  # what it led to has to be done again; its answer stands
                self._unread.setdefault(event.name, deque()).append(event)
            elif isinstance(event, ev.HookSent):
                look = (event.name, bytes(event.args))
                sent[look] = sent.get(look, 0) + (not event.again)
            elif isinstance(event, ev.DataSet):
                self.data = {**self.data, event.name: event.args}
            elif isinstance(event, ev.StepCompleted) and event.data:
                self.data = {**self.data, **event.data}
            elif isinstance(event, ev.TimeRead):
                times[nth : nth + 1] = [event.value]
                nth += 1
        self._times = deque(times)
        self._sent = sent

    def _look_ahead(self, current: list[ev.AnyEvent]) -> None:
        """What the history of this attempt has to be known for before it is replayed."""
        self._ledger = Ledger(current)
        for event in current:
            if event.delivered:
                self._edge = event.seq
            elif isinstance(event, ev.StepCancelled | ev.ChildDropped):
                self._cancelled.add(event.cmd)
            elif isinstance(event, ev.Patched):
                self._patches[event.name] = True
            elif isinstance(event, ev.ArgumentsChanged):
                self._warned.add((event.cmd, bytes(event.args)))
            elif isinstance(event, ev.RunEnded | ev.AttemptFailed):
                self._was_over = True
            elif isinstance(event, ev.RunTakenUp):
                self._taken_up = self._taken_up or event.ts

    # -- live

    def deliver(self, event: ev.Event) -> None:
        """Append an event and let the code go on until nothing is ready."""
        self._append(event)
        self._deliver(event)
        if self._reusable:
            self._reuse()

    def note(self, event: ev.Event) -> None:
        """Append an event that doesn't reach the code."""
        self._append(event)
        self._note(event)

    def settle(self, now: int) -> None:
        """At the edge of history: deliver what earlier attempts have, then end the attempt if it has ended."""
        if not self._is_live:
            self._is_live = True
            if self.ended is None and self._main is not None and not self._main.done():
                self._take_up()
        if self._reusable:
            self._reuse()
        if self.ended is not None:
            return
        if self._main is not None and self._main.done():
            self._end(self._main, now)
        elif not self.steps and not self._outstanding():
            self._end_with(self._deadlock(), now)

    def _take_up(self) -> None:
        """Ask again for what is under way: whoever was at it is gone."""
        self.new_commands += [s.command for cmd, s in self.steps.items() if cmd not in self._reused]
        if self._beginning is not None and self._beginning.forked_from:  # another run has opened these hooks
            self.new_commands += [
                co.OpenHook(cmd=h.cmd, name=h.name, key=h.key, where=h.where) for h in self.hooks.values()
            ]

    def take(self) -> tuple[list[ev.Event], list[co.Command]]:
        """What is new since the last call: events to commit, then commands to act on."""
        events, commands = self.new_events, self.new_commands
        self.new_events, self.new_commands = [], []
        return events, commands

    def next_timer(self) -> ev.TimerFired | None:
        """The timer that is due first, as the event it will be."""
        timer = self._loop.next_due() if self._loop is not None else None
        if timer is None:
            return None
        return ev.TimerFired(cmd=timer.id, cause=timer.cause, due=timer.due, delay=timer.delay, sleep=timer.sleep)

    @property
    def time(self) -> int:
        """The code's own time; 0 before it has begun."""
        return self._loop.now if self._loop is not None else 0

    @property
    def latest(self) -> int:
        """The latest time that it waits from, be it one that the code has not seen."""
        return max(self.time, self.noted_at)

    def next_due(self) -> int | None:
        """When the first timer is due, by the database's clock."""
        loop = self._loop
        timer = loop.next_due() if loop is not None and loop.timers else None
        return None if timer is None else timer.due - self.ahead

    def waiting_for(
        self, elsewhere: Mapping[str, str] = MappingProxyType({}), in_line: Mapping[str, str] = MappingProxyType({})
    ) -> str:
        """Why nothing happens, in words; empty while a step is to be executed now. Steps that others execute are
        `elsewhere`, by command, with their queues; `in_line` are those that wait for slots of limits, with which."""
        steps = [(cmd, step) for cmd, step in self.steps.items() if cmd not in in_line]
        if any(not (s.command.not_before or s.command.handed_over or cmd in elsewhere) for cmd, s in steps):
            return ""
        reasons = [
            f"step {step.command.name!r}, which was handed over"
            if step.command.handed_over
            else f"step {step.command.name!r} in queue {elsewhere[cmd] or DEFAULT_QUEUE!r}"
            if cmd in elsewhere
            else f"retry of step {step.command.name!r} (attempt {step.command.attempt})"
            for cmd, step in steps
        ]
        reasons += dict.fromkeys(in_line[cmd] for cmd in self.steps if cmd in in_line)
        reasons += map(str, self.hooks.values())
        heard = [*self.handlers, *(name for name, waiting in self.listening.items() if waiting)]
        reasons += [f"request {name!r}" for name in dict.fromkeys(heard)]
        reasons += [f"child {child.child_id!r}" for child in self.children.values() if child.waited]
        if self._loop is not None and (timer := self._loop.next_due()) is not None:
            reasons.append("sleep" if timer.sleep else "timeout")
        return ", ".join(reasons[:5]) + (f" and {len(reasons) - 5} more" if len(reasons) > 5 else "")

    def evict(self) -> None:
        """Leave memory. The code's own clean-up runs into refusals, and nothing it does counts."""
        if self._loop is not None:
            self._loop.evict()
            pending: list[Any] = [*self.steps.values(), *self.children.values(), *self.hooks.values()]
            self._loop.forget(each.future for each in pending)
            self._loop.forget(future for waiting in self.listening.values() for future in waiting)
        self._main = None
        self.on_background_error = _nothing  # else it and whoever owns it would keep each other in memory
        self.steps.clear()
        self.children.clear()
        self.hooks.clear()
        self.listening.clear()
        self.handlers.clear()
        self.take()

    # -- delivering

    def _deliver(self, event: ev.Event) -> None:
        if type(event) is ev.StepCompleted:  # most are
            now = event.ts + self.ahead
        else:
            now = self._time_of(event)
            if isinstance(event, ev.Beginning):
                self._begin(event)
        loop = self._loop
        assert loop is not None
        loop.begin(event.seq, now)
        if self._places:
            self._places.clear()
        self._hand_over(event)
        loop.run_dry()
        if self._divergence is not None:
            raise self._divergence
        self._settle_commands(event.seq)
        if self.blocked_by:
            raise WorkflowBlocked(self.blocked_by)

    def _begin(self, event: ev.Beginning) -> None:
        """Call the workflow's function, for this attempt."""
        assert self._beginning is not None
        if isinstance(event, ev.AttemptStarted):
            self.attempt = event.attempt
        first = self._beginning
        self._random = None
        self._emissions.clear()
        loop = self._loop = WorkflowLoop(self.greenlets, self._time_of(event))  # type: ignore[abstract]
        loop.execution = self
        loop.on_error = self._background_error
        loop.begin(event.seq, self._time_of(event))
        if isinstance(first, ev.ContinuedAsNew):
            for received in first.hooks:
                self._mailbox.setdefault((received.name, received.key), deque()).append(received)
            for request in reversed(first.requests):  # before those of earlier attempts of this history
                self._unread.setdefault(request.name, deque()).appendleft(request)
        self._main = loop.create_task(self.program.call(first.input), name=self.program.name)

    def _time_of(self, event: ev.Event) -> int:
        """When the code sees the event. Timers must not count the time that a run waited for its first worker."""
        return max(event.ts, self._taken_up) if isinstance(event, ev.RunStarted) else event.ts + self.ahead

    def _hand_over(self, event: ev.Event) -> None:
        """Resolve whatever the event resolves; the code goes on when the loop runs."""
        if isinstance(event, ev.StepCompleted):
            if event.data:
                self.data = {**self.data, **event.data}
            step = self._expected(self.steps, event)
            step.future.set_result(self._result("s", event, step.raw))
        elif isinstance(event, ev.OutcomeReused):
            self._hand_over_reused(event)
        elif isinstance(event, ev.TimerFired):
            self._fire(event)
        elif isinstance(event, ev.StepFailed):
            self._expected(self.steps, event).future.set_exception(self.codec.decode_error(event.error))
        elif isinstance(event, ev.ChildCompleted):
            child = self._expected(self.children, event)
            child.future.set_result(self._result("c", event, child.raw))
        elif isinstance(event, ev.ChildFailed):
            self._expected(self.children, event).future.set_exception(self.codec.decode_error(event.error))
        elif isinstance(event, ev.ChildCancelled):
            text = f"child run {event.child_id} was cancelled" + (f": {event.reason}" if event.reason else "")
            error = RunCancelledError(text, run_id=event.child_id)
            self._expected(self.children, event).future.set_exception(error)
        elif isinstance(event, ev.HookReceived):
            self._receive(event)
        elif isinstance(event, ev.RequestReceived):
            self._receive_request(event)
        elif isinstance(event, ev.CancelRequested):
            self.cancelling = event
            assert self._main is not None
            self._main.cancel(event.reason or "cancelled")

    def _result(self, kind: str, event: ev.StepCompleted | ev.ChildCompleted, raw: bool) -> Any:
        """The recorded result. One that isn't what the annotation says is given as it is, as Python would."""
        if raw:
            return event.result
        try:
            return self.codec.decode(event.result, self.program.result_type(kind, event.name))
        except DecodeError:
            pass
        try:
            return self.codec.decode(event.result)
        except DecodeError as error:
            what = f"the recorded result of {'step' if kind == 's' else 'workflow'} {event.name!r} (event {event.seq})"
            raise DecodeError(f"{what} can't be read here: {error}") from error

    def _expected(self, pending: dict[str, Any], event: ev.Commanded) -> Any:
        found = pending.pop(event.cmd, None)
        if found is None:
            recorded = f"{event.kind} of {event.name!r} (event {event.seq})"
            self._diverged(recorded, "")
        return found

    def _fire(self, event: ev.TimerFired) -> None:
        """Fire the timer of that id, or else one of its cause: due at the same time if there is one, then in order."""
        timer = self.loop.timers.get(event.cmd)
        if timer is None or timer.due != event.due:
            alike = [t for t in self.loop.timers.values() if t.cause == event.cause and t.sleep == event.sleep]
            alike.sort(key=lambda t: (t.due != event.due, t.id != event.cmd))
            timer = alike[0] if alike else None
        recorded = f"a timer of {event.delay / 1e6:g} s (event {event.seq})"
        if timer is None:
            self._diverged(recorded, "")
        if timer.due != event.due:
            asked = f"a timer of {timer.delay / 1e6:g} s"
            self._warn_changed(event.cmd, event.cause, "", b"%d" % timer.delay, recorded, asked)
        self.loop.fire(timer)

    def _receive(self, event: ev.HookReceived) -> None:
        if event.token:
            self._answered.add(event.token)
        # A token is for one hook; once the run has been retried, for whichever asks for the same.
        own = self.hooks.get(event.token)
        for hook in [own] if own is not None else self.hooks.values():
            if (hook.name, hook.key) == (event.name, event.key) and hook.cmd not in self._reused:
                self._answer(hook, event)
                return
        self._mailbox.setdefault((event.name, event.key), deque()).append(event)

    def _receive_request(self, event: ev.RequestReceived) -> None:
        waiting = self.listening.get(event.name)
        if waiting:
            waiting.popleft().set_result(self._take_request(event))
        elif event.name in self.handlers:
            self.handlers[event.name](self._take_request(event))
        else:
            self._unread.setdefault(event.name, deque()).append(event)

    def was_answered(self, token: str) -> bool:
        """Whether the one payload that this token allows has arrived."""
        return token in self._answered

    # -- outcomes of earlier attempts

    def _reuse(self) -> None:
        """Deliver outcomes of earlier attempts, lowest recorded number first, each when the loop is dry."""
        while self._reusable and self._main is not None and not self._main.done():
            seq, cmd = heapq.heappop(self._reusable)
            if cmd not in self._reused:
                continue
            waiting: Any = (
                self.steps.get(cmd) or self.children.get(cmd) or self.hooks.get(cmd) or self.loop.timers.get(cmd)
            )
            if waiting is None:
                continue
            name, args = "", ev.NO_ARGS
            if isinstance(waiting, PendingStep):
                name, args, cause = waiting.command.name, waiting.command.args, waiting.command.cause
            elif isinstance(waiting, PendingChild):
                name, args, cause = waiting.name, waiting.args, waiting.cause
            elif isinstance(waiting, PendingHook):
                name, cause = waiting.name, int(cmd.partition("h")[0] or 0)
            else:
                args, cause = Raw(b"%d" % waiting.delay), waiting.cause
            event = ev.OutcomeReused(ts=self.loop.now, cmd=cmd, cause=cause, name=name, args=args, source=seq)
            self._append(event)
            self._deliver(event)

    def _hand_over_reused(self, event: ev.OutcomeReused) -> None:
        source = self._reused.pop(event.cmd, None)
        if source is None or source.seq != event.source:
            self._diverged(f"{event.name!r}, reused from event {event.source}", "something else")
        if isinstance(source, ev.StepCompleted):
            step = self._expected(self.steps, event)
            step.future.set_result(self._result("s", source, step.raw))
        elif isinstance(source, ev.ChildCompleted):
            child = self._expected(self.children, event)
            child.future.set_result(self._result("c", source, child.raw))
        elif isinstance(source, ev.HookReceived):
            self._answer(self.hooks[event.cmd], source)
        else:
            self.loop.fire(self.loop.timers[event.cmd])

    # -- notes: what becomes of a step on its way

    def _note(self, event: ev.Event) -> None:
        if isinstance(event, ev.StepOutcome):
            step = self.steps.get(event.cmd)
            if step is None:
                return
            command = step.command
            command.began = command.began or event.started or event.ts
            command.handed_over = isinstance(event, ev.StepHandedOver)
            if isinstance(event, ev.StepHandedOver):
                command.attempt, command.until, command.limit = event.attempt, event.until, event.limit
                command.not_before, command.started = 0, False
            elif isinstance(event, ev.StepStarted):
                command.started, command.worker = True, event.worker
                command.attempt = event.attempt
                command.not_before = 0
            elif isinstance(event, ev.StepRetrying):
                command.started = False
                command.attempt = event.attempt + 1
                command.not_before = event.retry_at
                self.noted_at = max(self.noted_at, event.ts + self.ahead)
            elif isinstance(event, ev.StepWithdrawn):
                command.started = False
            elif isinstance(event, ev.StepLost):
                command.started = False
                command.losses += 1
        elif isinstance(event, ev.ClockSetBack):
            self.started_at = min(self.started_at, event.ts)
            for step in self.steps.values():
                step.command.not_before = max(0, step.command.not_before - (event.by - self.ahead))
            self.ahead = event.by
        elif isinstance(event, ev.RunEnded | ev.AttemptFailed):
            self.ended = event

    # -- the end of an attempt

    def _outstanding(self) -> bool:
        return bool(
            self.steps or self.hooks or self.loop.timers or any(child.waited for child in self.children.values())
            or self.handlers or any(self.listening.values())
        )  # fmt: skip

    def _deadlock(self) -> DeadlockError:
        stacks = [f"  {task.get_name()}: {' < '.join(reversed(task_lines(task)))}" for task in self.loop.tasks.values()]
        return DeadlockError(
            f"run {self.run_id} waits for nothing that can happen: no step, timer, hook, request or child is outstanding.\n"
            + "\n".join(stacks)
        )

    def _end(self, main: Task[Any], now: int) -> None:
        if main.cancelled():
            self._close_outstanding(now)
            if self.cancelling is not None and self.cancelling.timed_out:
                self._fail(WorkflowTimeoutError(self.cancelling.reason), now, retry=False)
            else:
                reason = self.cancelling.reason if self.cancelling else "the workflow raised CancelledError"
                self._finish(ev.RunCancelled(ts=now, reason=reason))
            return
        error = main.exception()
        if isinstance(error, ContinueAsNew):
            self._continue(error, now)
        elif error is not None and ((isinstance(error, Suspended) and self.loop.closed) or _may_pass(error)):
            raise error
        elif error is None and self.unawaited:
            lines = ", ".join(f"{what} at {place}" for what, place in self.unawaited.values())
            self._end_with(NeverAwaitedError(f"created and never awaited: {lines}; await it, or don't create it"), now)
        elif error is None:
            result = main.result()
            try:
                if type(result) is Recorded:
                    result = result.data
                else:
                    result = Raw(self.codec.encode(result, f"the result of workflow {self.program.name!r}", apart=True))
            except Exception as unfit:
                if _may_pass(unfit):
                    raise
                self._end_with(unfit, now)
                return
            self._close_outstanding(now)
            self._finish(ev.RunCompleted(ts=now, result=result))
        else:
            if isinstance(error, TypeError | AttributeError):
                self._note_mixed_up_awaits(error)
            self._end_with(error, now)

    def _note_mixed_up_awaits(self, error: TypeError | AttributeError) -> None:
        """Python's own words for a forgotten await, or for one too many, name neither the step nor the rule."""
        for what, place in self.unawaited.values():
            error.add_note(f"{what} at {place} was never awaited: what it gives is there only after `await`")
        if isinstance(error, TypeError) and "await" in str(error):
            error.add_note("what is made from `def` is called, and what is made from `async def` is awaited")

    def _end_with(self, error: BaseException, now: int) -> None:
        self._close_outstanding(now)
        self._fail(error, now, retry=self.cancelling is None)

    def _fail(self, error: BaseException, now: int, retry: bool) -> None:
        encoded = Raw(self.codec.encode_error(error))
        drop_tracebacks(error)
        delay = self.program.retry_delay(error, self.attempt) if retry else None
        within, begun = self.program.retry_within, self._beginning.ts if self._beginning is not None else now
        if delay is not None and (within is None or now + delay <= begun + within):
            self._finish(ev.AttemptFailed(ts=now, attempt=self.attempt, error=encoded, retry_at=now + delay))
        else:
            self._finish(ev.RunFailed(ts=now, error=encoded))

    def _finish(self, event: ev.Event) -> None:
        self._append(event)
        self.ended = event

    def _close_outstanding(self, now: int) -> None:
        """What is still under way when the function has ended is cancelled with it."""
        self.loop.now = max(self.loop.now, now)
        for cmd in list(self.steps):
            self._cancel_step(cmd)
        for cmd, child in list(self.children.items()):
            if child.waited:
                self._drop_child(cmd)
        for cmd in list(self.hooks):
            self._close_hook(cmd)

    def _continue(self, request: ContinueAsNew, now: int) -> None:
        assert self._beginning is not None
        try:
            call = Raw(self.codec.encode_call(request.call_args, request.call_kwargs))
        except Exception as unfit:
            if _may_pass(unfit):
                raise
            self._end_with(unfit, now)
            return
        self._close_outstanding(now)
        unread = [received for box in self._mailbox.values() for received in box]
        if self._earlier is not None:
            unread += self._earlier.unread()
        unread.sort(key=lambda received: received.seq)
        requests = [*self._unanswered.values(), *(request for box in self._unread.values() for request in box)]
        requests.sort(key=lambda received: received.seq)
        self._finish(
            ev.ContinuedAsNew(
                ts=now, workflow=self._beginning.workflow, input=call, seed=self._numbers().getrandbits(63),
                flags=FLAGS, scheduled_at=self.scheduled_at, scheduled_offset=self.scheduled_offset, data=self.data,
                hooks=tuple(msgspec.structs.replace(received, seq=0) for received in unread),
                requests=tuple(msgspec.structs.replace(received, seq=0) for received in requests),
            )
        )  # fmt: skip


def _may_pass(error: BaseException) -> bool:
    """Whether a value could not be written or read here for now, which is no failure of the workflow. One that a step or
    a child has failed with is."""
    return isinstance(error, TransformError) and "__holdfast_traceback__" not in vars(error)
