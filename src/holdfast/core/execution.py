"""One live run: a history is fed to the workflow's function, commands come out.

`deliver` is the only door: live and on replay, each event is appended, delivered, and the loop run dry before
the next. Nothing here reads a clock or the disk; time is the time of the event that is delivered.
"""

from __future__ import annotations

import heapq
import random
import sys
import traceback
import uuid
from collections import deque
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, NoReturn, Protocol

import msgspec
from msgspec import Raw

from holdfast.codec import Codec
from holdfast.core import commands as co
from holdfast.core import events as ev
from holdfast.core.loop import Future, Greenlets, Task, WorkflowLoop
from holdfast.core.matching import Asked, Ledger, Match, describe, match_all, match_one
from holdfast.core.memo import Memo
from holdfast.errors import (
    ContinueAsNew,
    DeadlockError,
    DefinitionError,
    NeverAwaitedError,
    NondeterminismError,
    RunCancelledError,
    Suspended,
    WorkflowBlocked,
    WorkflowTimeoutError,
)

FLAGS: tuple[str, ...] = ()
"""Changes of the core's own behaviour, recorded in each run, so that older histories replay as they were made."""


class Program(Protocol):
    """What the core needs to know of a workflow's code."""

    name: str

    def call(self, input: Raw) -> Coroutine[Any, Any, Any]:
        """A coroutine of the workflow's function, called with the recorded input."""

    def result_type(self, kind: str, name: str) -> Any:
        """The annotated result of the step ("s") or workflow ("c") `name`."""

    def retry_delay(self, error: BaseException, attempt: int) -> int | None:
        """Microseconds until the run is tried again after attempt `attempt` failed, None if it is not."""


class StepCall(Asked, kw_only=True):
    """A step as code asks for it."""

    options: dict[str, object]
    undoes: str
    data: dict[str, Raw]
    future: Future[Any]
    dropped: bool = False


class PendingStep(msgspec.Struct):
    command: co.ScheduleStep
    future: Future[Any]


class PendingChild(msgspec.Struct):
    cmd: str
    child_id: str
    name: str
    args: Raw
    cause: int
    waited: bool
    abandon: bool
    future: Future[Any]


class PendingHook(msgspec.Struct):
    cmd: str
    name: str
    key: str
    future: Future[Raw]
    expires: int | None


class Execution:
    """The workflow's function, brought to where its history ends, and ready for the next event."""

    def __init__(self, run_id: str, program: Program, codec: Codec, greenlets: Greenlets) -> None:
        self.run_id = run_id
        self.program = program
        self.codec = codec
        self.greenlets = greenlets
        self.app = ""
        self.parent_id: str | None = None
        self.root_id = run_id
        self.secret = b""
        self.durable = True
        self.strict = False
        self.calls = 0
        self.last_seq = 0
        self.attempt = 1
        self.scheduled_at: int | None = None
        self.data: dict[str, Raw] = {}
        self.steps: dict[str, PendingStep] = {}
        self.children: dict[str, PendingChild] = {}
        self.hooks: dict[str, PendingHook] = {}
        self.ended: ev.Event | None = None
        self.cancelling: ev.CancelRequested | None = None
        self.new_events: list[ev.Event] = []
        self.new_commands: list[co.Command] = []
        self.unawaited: dict[int, str] = {}
        self.blocked_by: str = ""
        self.on_background_error: Callable[[dict[str, Any]], None] = lambda context: None
        self._edge = 0
        self._is_live = False
        self._divergence: NondeterminismError | None = None
        self._loop: WorkflowLoop | None = None
        self._main: Task[Any] | None = None
        self._ledger = Ledger(())
        self._memo: Memo | None = None
        self._reusable: list[tuple[int, str]] = []
        self._reused: dict[str, ev.Event] = {}
        self._asked: list[StepCall] = []
        self._keys: set[str] = set()
        self._places: dict[str, int] = {}
        self._cancelled: set[str] = set()
        self._mailbox: dict[tuple[str, str], deque[ev.HookReceived]] = {}
        self._answered: set[str] = set()
        self._patches: dict[str, bool] = {}
        self._seed = 0
        self._random = random.Random(0)
        self._times: deque[int] = deque()
        self._beginning: ev.RunStarted | ev.ContinuedAsNew | None = None

    # -- replay

    def replay(self, history: list[ev.AnyEvent]) -> Iterator[None]:
        """Feed a history, with a pause after each delivery so that the caller can share its time."""
        base = max(i for i, e in enumerate(history) if isinstance(e, ev.RunStarted | ev.ContinuedAsNew))
        start = max(i for i, e in enumerate(history) if isinstance(e, ev.Beginning))
        first, earlier, current = history[base], history[base:start], history[start:]
        assert isinstance(first, ev.RunStarted | ev.ContinuedAsNew)
        self._prepare(first, earlier, current)
        self.last_seq = history[-1].seq
        for event in current:
            if event.delivered:
                self._deliver(event)
                yield
            else:
                self._note(event)

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
        self.scheduled_at = first.scheduled_at
        self._seed = first.seed
        if isinstance(first, ev.ContinuedAsNew):
            self.data = dict(first.data)
        times: list[int] = []
        nth = 0
        for event in earlier:
            if isinstance(event, ev.Beginning):
                nth = 0
            elif isinstance(event, ev.DataSet):
                self.data = {**self.data, event.name: event.args}
            elif isinstance(event, ev.StepCompleted) and event.data:
                self.data = {**self.data, **event.data}
            elif isinstance(event, ev.TimeRead):
                times[nth : nth + 1] = [event.value]
                nth += 1
        self._times = deque(times)
        if earlier:
            self._memo = Memo(earlier)
        self._ledger = Ledger(current)
        self._edge = max((e.seq for e in current if e.delivered), default=0)
        self._cancelled = {e.cmd for e in current if isinstance(e, ev.StepCancelled | ev.ChildDropped)}
        for event in current:
            if isinstance(event, ev.Patched):
                self._patches[event.name] = True

    # -- live

    def deliver(self, event: ev.Event) -> None:
        """Append an event and let the code go on until nothing is ready."""
        self._append(event)
        self._deliver(event)
        self._reuse()

    def note(self, event: ev.Event) -> None:
        """Append an event that doesn't reach the code."""
        self._append(event)
        self._note(event)

    def settle(self, now: int) -> None:
        """At the edge of history: deliver what earlier attempts have, then end the attempt if it has ended."""
        if not self._is_live:
            self._is_live = True
            self.new_commands += [s.command for cmd, s in self.steps.items() if cmd not in self._reused]
        self._reuse()
        if self._main is not None and self._main.done() and self.ended is None:
            self._end(self._main, now)
        elif self.ended is None and not self._outstanding():
            self._end_with(self._deadlock(), now)

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
    def loop(self) -> WorkflowLoop:
        assert self._loop is not None
        return self._loop

    @property
    def started_at(self) -> int:
        return self._beginning.ts if self._beginning is not None else 0

    def waiting_for(self) -> str:
        """Why nothing happens, in words; empty while a step is to be executed now."""
        if any(not step.command.not_before for step in self.steps.values()):
            return ""
        reasons = [
            f"retry of step {step.command.name!r} (attempt {step.command.attempt})" for step in self.steps.values()
        ]
        reasons += [f"hook {hook.name!r}" + (f" key {hook.key!r}" if hook.key else "") for hook in self.hooks.values()]
        reasons += [f"child {child.child_id!r}" for child in self.children.values() if child.waited]
        if self._loop is not None and (timer := self._loop.next_due()) is not None:
            reasons.append("sleep" if timer.sleep else "timeout")
        return ", ".join(reasons[:5]) + (f" and {len(reasons) - 5} more" if len(reasons) > 5 else "")

    def evict(self) -> None:
        """Leave memory. The code's own clean-up runs into refusals, and nothing it does counts."""
        if self._loop is not None:
            self._loop.evict()
        self._main = None
        self.steps.clear()
        self.children.clear()
        self.hooks.clear()

    # -- delivering

    def _append(self, event: ev.Event) -> None:
        self.last_seq += 1
        event.seq = self.last_seq
        self.new_events.append(event)

    def _deliver(self, event: ev.Event) -> None:
        if isinstance(event, ev.Beginning):
            self._begin(event)
        loop = self.loop
        loop.begin(event.seq, event.ts)
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
        self._random = random.Random(self._seed)
        loop = self._loop = WorkflowLoop(self.greenlets, event.ts)  # type: ignore[abstract]
        loop.execution = self
        loop.on_error = self._background_error
        loop.begin(event.seq, event.ts)
        if isinstance(event, ev.ContinuedAsNew):
            for received in event.hooks:
                self._mailbox.setdefault((received.name, received.key), deque()).append(received)
        self._main = loop.create_task(self.program.call(first.input), name=self.program.name)

    def _hand_over(self, event: ev.Event) -> None:
        """Resolve whatever the event resolves; the code goes on when the loop runs."""
        if isinstance(event, ev.OutcomeReused):
            self._hand_over_reused(event)
        elif isinstance(event, ev.TimerFired):
            self._fire(event)
        elif isinstance(event, ev.StepCompleted):
            if event.data:
                self.data = {**self.data, **event.data}
            step = self._expected(self.steps, event)
            step.future.set_result(self.codec.decode(event.result, self.program.result_type("s", event.name)))
        elif isinstance(event, ev.StepFailed):
            self._expected(self.steps, event).future.set_exception(self.codec.decode_error(event.error))
        elif isinstance(event, ev.ChildCompleted):
            child = self._expected(self.children, event)
            child.future.set_result(self.codec.decode(event.result, self.program.result_type("c", event.name)))
        elif isinstance(event, ev.ChildFailed):
            self._expected(self.children, event).future.set_exception(self.codec.decode_error(event.error))
        elif isinstance(event, ev.ChildCancelled):
            text = f"child run {event.child_id} was cancelled" + (f": {event.reason}" if event.reason else "")
            error = RunCancelledError(text, run_id=event.child_id)
            self._expected(self.children, event).future.set_exception(error)
        elif isinstance(event, ev.HookReceived):
            self._receive(event)
        elif isinstance(event, ev.CancelRequested):
            self.cancelling = event
            assert self._main is not None
            self._main.cancel(event.reason or "cancelled")

    def _expected(self, pending: dict[str, Any], event: ev.Commanded) -> Any:
        found = pending.pop(event.cmd, None)
        if found is None:
            self._diverged(f"{event.kind} of {event.name!r} (event {event.seq})", "nothing that waits for it", "")
        return found

    def _fire(self, event: ev.TimerFired) -> None:
        timer = self.loop.timers.get(event.cmd)
        if timer is None or timer.due != event.due:
            same = [t for t in self.loop.timers.values() if t.cause == event.cause and t.due == event.due]
            timer = same[0] if same else None
        if timer is None:
            self._diverged(f"a timer of {event.delay / 1e6:g} s (event {event.seq})", "no such timer", "")
        else:
            self.loop.fire(timer)

    def _receive(self, event: ev.HookReceived) -> None:
        if event.token:
            self._answered.add(event.token)
        for hook in self.hooks.values():
            if (hook.name, hook.key) == (event.name, event.key) and hook.cmd not in self._reused:
                self._answer(hook, event)
                return
        self._mailbox.setdefault((event.name, event.key), deque()).append(event)

    def _answer(self, hook: PendingHook, event: ev.HookReceived) -> None:
        del self.hooks[hook.cmd]
        self._emit(co.CloseHook(cmd=hook.cmd, name=hook.name, key=hook.key))
        hook.future.set_result(event.payload)

    def was_answered(self, token: str) -> bool:
        """Whether the one payload that this token allows has arrived."""
        return token in self._answered

    # -- outcomes of earlier attempts

    def _claim(self, kind: str, name: str, args: bytes, cmd: str, key: str = "") -> str:
        """Look for what an earlier attempt has; the id of its child, if it is one."""
        if self._memo is None:
            return ""
        outcome, child = self._memo.claim(kind, name, args, key)
        if outcome is not None:
            self._reused[cmd] = outcome
            heapq.heappush(self._reusable, (outcome.seq, cmd))
        return child.child_id if child is not None else ""

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
            self._diverged(f"{event.name!r}, reused from event {event.source}", "something else", "")
        if isinstance(source, ev.StepCompleted):
            step = self._expected(self.steps, event)
            step.future.set_result(self.codec.decode(source.result, self.program.result_type("s", source.name)))
        elif isinstance(source, ev.ChildCompleted):
            child = self._expected(self.children, event)
            child.future.set_result(self.codec.decode(source.result, self.program.result_type("c", source.name)))
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
            if isinstance(event, ev.StepStarted):
                command.started = True
                command.attempt = event.attempt
            elif isinstance(event, ev.StepRetrying):
                command.started = False
                command.attempt = event.attempt + 1
                command.not_before = event.retry_at
            elif isinstance(event, ev.StepLost):
                command.started = False
                command.losses += 1
        elif isinstance(event, ev.RunEnded | ev.AttemptFailed):
            self.ended = event

    # -- asking: called by workflow code through the api

    def _refuse_if_evicted(self) -> None:
        if self._loop is None or self._loop.closed:
            raise Suspended

    def _emit(self, command: co.Command) -> None:
        """Ask the engine to act, unless this is replay and it has."""
        if self.loop.cause >= self._edge:
            self.new_commands.append(command)

    def ask_step(
        self,
        name: str,
        args: Raw,
        *,
        options: dict[str, object] | None = None,
        key: str = "",
        undoes: str = "",
        line: str = "",
    ) -> Future[Any]:
        """Ask for a step; the future has its result, or its exception."""
        self._refuse_if_evicted()
        self._check_key("s", key)
        future: Future[Any] = Future(self.loop)
        call = StepCall(
            kind="s", name=name, args=bytes(args), key=key, line=line or code_line(),
            options=options or {}, undoes=undoes, data=self.data, future=future,
        )  # fmt: skip
        future.on_cancel = lambda: setattr(call, "dropped", True)
        self._asked.append(call)
        return future

    def _settle_commands(self, cause: int) -> None:
        """Give the steps that were asked for their ids, and see that everything recorded was asked for."""
        if self._asked:
            asked, self._asked = [call for call in self._asked if not call.dropped], []
            for found in match_all(self._ledger, cause, "s", asked):
                self._schedule(found, cause)
        if self._memo is not None:
            for timer in self.loop.timers.values():
                if timer.sleep and timer.cause == cause:
                    self._claim("t", "", b"%d" % timer.delay, timer.id)
        for left in self._ledger.left_over(cause):
            self._diverged(describe(left.kind, left.name, left.args), "no such thing", self._where_code_stands())

    def _schedule(self, found: Match[StepCall], cause: int) -> None:
        call, cmd = found.asked, found.cmd
        if found.changed:
            self._warn_changed(found, cause)
        args = Raw(found.recorded.args) if found.recorded is not None else Raw(call.args)
        command = co.ScheduleStep(
            cmd=cmd,
            cause=cause,
            name=call.name,
            args=args,
            options=call.options,
            undoes=call.undoes,
            data=call.data,
        )
        self.steps[cmd] = PendingStep(command, call.future)
        call.future.on_cancel = lambda: self._cancel_step(cmd)
        if not call.undoes:
            self._claim("s", call.name, call.args, cmd, call.key)
        if self._is_live and cmd not in self._reused:
            self.new_commands.append(command)

    def _cancel_step(self, cmd: str) -> None:
        step = self.steps.pop(cmd, None)
        if step is None or self.loop.closed:
            return
        self._reused.pop(cmd, None)
        if cmd in self._cancelled:
            return
        command = step.command
        self._append(
            ev.StepCancelled(
                ts=self.loop.now, cmd=cmd, cause=command.cause, name=command.name, args=command.args,
                attempt=command.attempt, undoes=command.undoes,
            )
        )  # fmt: skip
        self.new_commands.append(co.CancelStep(cmd=cmd))

    def ask_child(
        self, name: str, args: Raw, *, options: dict[str, object], waited: bool, abandon: bool, key: str = ""
    ) -> PendingChild:
        """Start a child run. Its id derives from the command's, unless `options` names one."""
        self._refuse_if_evicted()
        self._check_key("c", key)
        cause = self.loop.cause
        found = self._answer_to("c", name, bytes(args), key)
        cmd = found.cmd
        earlier = self._claim("c", name, bytes(args), cmd, key)
        reused = cmd in self._reused
        if found.recorded is not None:
            recorded = found.recorded.event
            assert isinstance(recorded, ev.ChildStarted)
            child_id = recorded.child_id
        else:
            child_id = earlier or str(options.get("id") or child_run_id(self.run_id, name, cmd, self.attempt))
            again = bool(earlier)
            self._append(
                ev.ChildStarted(
                    ts=self.loop.now, cmd=cmd, cause=cause, name=name, args=args,
                    child_id=child_id, waited=waited, abandon=abandon, again=again,
                )
            )  # fmt: skip
            if not reused and not (again and not waited):
                self.new_commands.append(
                    co.StartChild(
                        cmd=cmd,
                        name=name,
                        args=args,
                        child_id=child_id,
                        again=again,
                        waited=waited,
                        options=options,
                    )
                )
        future: Future[Any] = Future(self.loop, lambda: self._drop_child(cmd))
        child = PendingChild(cmd, child_id, name, args, cause, waited, abandon, future)
        if waited or reused:
            self.children[cmd] = child
        return child

    def await_child(self, child: PendingChild) -> Future[Any]:
        """The future of a child that was started without waiting for it."""
        self._refuse_if_evicted()
        if child.cmd not in self.children and not child.future.done():
            found = self._answer_to("w", child.child_id, b"{}", "")
            if found.recorded is None:
                self._append(
                    ev.ChildAwaited(
                        ts=self.loop.now,
                        cmd=found.cmd,
                        cause=self.loop.cause,
                        name=child.child_id,
                        child_id=child.child_id,
                    )
                )
                self.new_commands.append(co.WatchChild(cmd=child.cmd, child_id=child.child_id))
            child.waited = True
            self.children[child.cmd] = child
        return child.future

    def _drop_child(self, cmd: str) -> None:
        child = self.children.pop(cmd, None)
        if child is None or self.loop.closed:
            return
        self._reused.pop(cmd, None)
        if cmd in self._cancelled:
            return
        self._append(
            ev.ChildDropped(ts=self.loop.now, cmd=cmd, cause=self.loop.cause, name=child.name, child_id=child.child_id)
        )
        if not child.abandon:
            reason = f"run {self.run_id} no longer waits for it"
            self.new_commands.append(co.CancelChild(cmd=cmd, child_id=child.child_id, reason=reason))

    def ask_hook(self, name: str, key: str, expires: int | None) -> PendingHook:
        """Wait for a payload; one that came early is there at once."""
        self._refuse_if_evicted()
        address = msgspec.json.encode(key) if key else b"{}"
        found = self._answer_to("h", name, address, "")
        cmd = found.cmd
        if found.recorded is None:
            self._append(
                ev.HookOpened(
                    ts=self.loop.now,
                    cmd=cmd,
                    cause=self.loop.cause,
                    name=name,
                    key=key,
                    args=Raw(address),
                    expires=expires,
                )
            )
            self.new_commands.append(co.OpenHook(cmd=cmd, name=name, key=key))
        hook = PendingHook(cmd, name, key, Future(self.loop, lambda: self._close_hook(cmd)), expires)
        self.hooks[cmd] = hook
        self._claim("h", name, key.encode(), cmd)
        waiting = self._mailbox.get((name, key))
        if waiting and cmd not in self._reused:
            self._answer(hook, waiting.popleft())
        return hook

    def _close_hook(self, cmd: str) -> None:
        hook = self.hooks.pop(cmd, None)
        if hook is not None and not self.loop.closed:
            self._reused.pop(cmd, None)
            self._emit(co.CloseHook(cmd=cmd, name=hook.name, key=hook.key))

    def set_data(self, key: str, value: Raw) -> None:
        self._refuse_if_evicted()
        found = self._answer_to("d", key, bytes(value), "")
        if found.recorded is None:
            self._append(ev.DataSet(ts=self.loop.now, cmd=found.cmd, cause=self.loop.cause, name=key, args=value))
            self.new_commands.append(co.PublishData(cmd=found.cmd, key=key, value=value))
        self.data = {**self.data, key: Raw(found.recorded.args) if found.recorded is not None else value}

    def read_time(self) -> int:
        """The time of the event that is delivered; recorded, so that a retried attempt reads the same."""
        self._refuse_if_evicted()
        found = self._answer_to("n", "", b"{}", "")
        value = self._times.popleft() if self._times else self.loop.now
        if found.recorded is not None:
            assert isinstance(found.recorded.event, ev.TimeRead)
            return found.recorded.event.value
        self._append(ev.TimeRead(ts=self.loop.now, cmd=found.cmd, cause=self.loop.cause, value=value))
        return value

    def random(self) -> float:
        self._refuse_if_evicted()
        return self._random.random()

    def uuid(self) -> uuid.UUID:
        self._refuse_if_evicted()
        return uuid.UUID(int=self._random.getrandbits(128), version=4)

    def patched(self, change: str) -> bool:
        """Whether this run goes the new way: yes if it went so before, or has not been here before."""
        self._refuse_if_evicted()
        known = self._patches.get(change)
        cause = self.loop.cause
        if known is None:
            been_here = cause < self._edge or (cause == self._edge and self._ledger.knows(cause))
            known = self._patches[change] = not been_here
            if known:
                self._append(ev.Patched(ts=self.loop.now, cmd=f"{cause}p{change}", cause=cause, name=change))
        elif known:
            self._ledger.open(cause, "p").pop(f"{cause}p{change}", None)
        return known

    def _answer_to(self, kind: str, name: str, args: bytes, key: str) -> Match[Asked]:
        """Match a command that is recorded at once. On replay it has to be there."""
        cause = self.loop.cause
        place = self._places[kind] = self._places.get(kind, -1) + 1
        asked = Asked(kind, name, args, key, "")
        found = match_one(self._ledger, cause, kind, asked, place)
        if found.recorded is None:
            if cause < self._edge:
                self._diverged("no such thing", str(asked), code_line())
        elif found.changed:
            self._warn_changed(found, cause)
        return found

    def _check_key(self, kind: str, key: str) -> None:
        if key:
            if (kind + key) in self._keys:
                raise DefinitionError(f"the key {key!r} is used twice in run {self.run_id}; keys are unique in a run")
            self._keys.add(kind + key)

    # -- divergence

    def _warn_changed(self, found: Match[Any], cause: int) -> None:
        if self.strict and found.recorded is not None:
            recorded = found.recorded
            self._diverged(describe(recorded.kind, recorded.name, recorded.args), str(found.asked), found.asked.line)
        if self.loop.cause >= self._edge:
            self._append(
                ev.ArgumentsChanged(
                    ts=self.loop.now,
                    cmd=found.cmd,
                    cause=cause,
                    name=found.asked.name,
                    args=Raw(found.asked.args),
                )
            )

    def _diverged(self, recorded: str, asked: str, line: str) -> NoReturn:
        """Code and history differ. Raised here, and once more when the code is through: it may have caught it."""
        where = f" at {line}" if line else ""
        self._divergence = NondeterminismError(
            f"the code of workflow {self.program.name!r} no longer fits the history of run {self.run_id}: after event "
            f"{self.loop.cause} the history has {recorded}, the code asks for {asked}{where}. Deploy the code that "
            "made this history, or guard the change with wf.patched('...'), then resume the run",
            recorded=recorded,
            asked=asked,
            line=line,
        )
        raise self._divergence

    def _where_code_stands(self) -> str:
        stacks = [line for task in self.loop.tasks.values() for line in task_lines(task)[-1:]]
        return "; ".join(stacks[:3])

    def _background_error(self, context: dict[str, Any]) -> None:
        if self.loop.cause >= self._edge:
            self.on_background_error(context)

    # -- the end of an attempt

    def _outstanding(self) -> bool:
        return bool(
            self.steps or self.hooks or self.loop.timers or any(child.waited for child in self.children.values())
        )

    def _deadlock(self) -> DeadlockError:
        stacks = [f"  {task.get_name()}: {' < '.join(reversed(task_lines(task)))}" for task in self.loop.tasks.values()]
        return DeadlockError(
            f"run {self.run_id} waits for nothing that can happen: no step, timer, hook or child is outstanding.\n"
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
        elif isinstance(error, Suspended):
            raise error
        elif error is None and self.unawaited:
            lines = ", ".join(self.unawaited.values())
            self._end_with(NeverAwaitedError(f"created and never awaited: {lines}; await it, or don't create it"), now)
        elif error is None:
            try:
                result = Raw(self.codec.encode(main.result(), f"the result of workflow {self.program.name!r}"))
            except Exception as unfit:
                self._end_with(unfit, now)
                return
            self._close_outstanding(now)
            self._finish(ev.RunCompleted(ts=now, result=result))
        else:
            self._end_with(error, now)

    def _end_with(self, error: BaseException, now: int) -> None:
        self._close_outstanding(now)
        self._fail(error, now, retry=self.cancelling is None)

    def _fail(self, error: BaseException, now: int, retry: bool) -> None:
        encoded = Raw(self.codec.encode_error(error))
        delay = self.program.retry_delay(error, self.attempt) if retry else None
        if delay is not None:
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
            self._end_with(unfit, now)
            return
        self._close_outstanding(now)
        unread = tuple(received for box in self._mailbox.values() for received in box)
        self._finish(
            ev.ContinuedAsNew(
                ts=now, workflow=self._beginning.workflow, input=call, seed=self._random.getrandbits(63),
                flags=FLAGS, scheduled_at=self.scheduled_at, data=self.data,
                hooks=tuple(sorted(unread, key=lambda received: received.seq)),
            )
        )  # fmt: skip


def child_run_id(parent_id: str, name: str, cmd: str, attempt: int) -> str:
    """A child's id: readable, and the same whenever the same command is asked for."""
    place = cmd.replace(":", "-") + (f"-{attempt}" if ":" in cmd and attempt > 1 else "")
    text = f"{parent_id}.{name}.{place}"
    if len(text) <= 200:
        return text
    return f"{name[:80]}.{uuid.uuid5(uuid.NAMESPACE_OID, text).hex}"


def code_line() -> str:
    """The nearest line of code that is not Holdfast's or asyncio's."""
    frame = sys._getframe(1)
    while frame.f_back is not None:
        module = frame.f_globals.get("__name__", "")
        if not module.startswith(("holdfast.", "asyncio.")):
            break
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_name}"


def task_lines(task: Task[Any]) -> list[str]:
    """Where a suspended task stands, outermost first."""
    driver: Any = task.get_coro()
    lines = []
    if driver is not None and driver.runner is not None:
        frame = driver.runner.gr_frame
        summary = [(f.f_code.co_filename, n, f.f_code.co_name) for f, n in traceback.walk_stack(frame)]
        lines = [f"{file}:{n} in {name}" for file, n, name in reversed(summary) if "/holdfast/core/" not in file]
    coro: Any = driver.coro if driver is not None else None
    inner = []
    while coro is not None and getattr(coro, "cr_frame", None) is not None:
        frame = coro.cr_frame
        inner.append(f"{frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_name}")
        coro = coro.cr_await
    return lines or inner
