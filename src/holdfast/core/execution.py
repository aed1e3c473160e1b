"""One live run: a history is fed to the workflow's function, commands come out.

`deliver` is the only door: live and on replay, each event is appended, delivered, and the loop run dry before
the next. Nothing here reads a clock or the disk; time is the time of the event that is delivered.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, NoReturn

from msgspec import Raw

import holdfast.core.asyncio_functions  # noqa: F401  (replaces them)
from holdfast.codec import Codec
from holdfast.core import commands as co
from holdfast.core import events as ev
from holdfast.core.children import Children
from holdfast.core.code import Code
from holdfast.core.code_time import CodeTime
from holdfast.core.comparison import Comparison
from holdfast.core.definitions import DEFAULT_QUEUE
from holdfast.core.divergence import code_side, renamed
from holdfast.core.greenlets import Greenlets
from holdfast.core.hooks import Hooks
from holdfast.core.journal import Journal
from holdfast.core.loop import WorkflowLoop
from holdfast.core.matching import Ask, describe, words_of
from holdfast.core.matching import Recorded as RecordedCommand
from holdfast.core.outputs import Outputs
from holdfast.core.past import Past, prepare
from holdfast.core.pending import PendingChild, PendingHook, Program
from holdfast.core.requests import Requests
from holdfast.core.reuse import Reuse
from holdfast.core.run_info import RunInfo
from holdfast.core.source_lines import line_of_caller
from holdfast.core.steps import Steps
from holdfast.core.values import Values
from holdfast.errors import DecodeError, RunCancelledError, WorkflowBlocked

_NONE: Mapping[str, str] = MappingProxyType({})


def _nothing(context: dict[str, Any]) -> None:
    """A run that has left tells no one of errors."""


class Execution:
    """The workflow's function, brought to where its history ends, and ready for the next event.

    It has a part for each kind of thing that code asks for, and gives each event to the part that it concerns. The parts
    share the journal, the comparison with what is recorded, and what earlier attempts leave behind."""

    def __init__(self, info: RunInfo, program: Program, codec: Codec, greenlets: Greenlets) -> None:
        self.info = info
        self.program = program
        self.codec = codec
        self.loop = loop = WorkflowLoop(greenlets)  # type: ignore[abstract]
        self.journal = journal = Journal(info, loop)
        self.comparison = comparison = Comparison(journal, program.name)
        self.reuse = reuse = Reuse()
        self.code = Code(journal, program, codec)
        self.time = CodeTime(loop)
        self.steps = Steps(journal, comparison, reuse)
        self.children = Children(journal, comparison, reuse)
        self.hooks = Hooks(journal, comparison, reuse)
        self.requests = Requests(journal, comparison)
        self.outputs = Outputs(journal, comparison, codec)
        self.values = Values(journal, comparison)
        self.ended: ev.Event | None = None
        self.left_behind: list[str] = []  # what a function that has returned did not wait for, in words
        self.blocked_by = ""
        self.on_background_error: Callable[[dict[str, Any]], None] = _nothing

    # -- replay

    def replay(
        self, history: list[ev.AnyEvent], passed: int | None = None, has_time: Callable[[], bool] = lambda: True
    ) -> Iterator[None]:
        """Feed a history, with a pause after each delivery so that the caller can share its time; while it `has_time`, there
        may be none between steps that wait for each other. `passed` is the last event whose delivery the code has seen
        before, somewhere: all of them, if it isn't said."""
        last = history[-1]
        start = next(i for i in reversed(range(len(history))) if isinstance(history[i], ev.Beginning))
        base = next(i for i in reversed(range(start + 1)) if isinstance(history[i], ev.RunStarted | ev.ContinuedAsNew))
        first, current = history[base], history[start:]
        assert isinstance(first, ev.RunStarted | ev.ContinuedAsNew)
        journal = self.journal
        journal.passed = last.seq if passed is None else passed
        prepare(self, first, history[base:start], current)
        journal.last_seq, journal.recorded_until = last.seq, last.ts
        past = Past(current, has_time)
        self.loop.gives = functools.partial(self._give, past)
        while (event := past.next()) is not None:
            if event.delivered:
                self._deliver(event)
                yield
            else:
                self._note(event)
        self.loop.gives = None
        for left in self.comparison.ledger.keys_left_over():
            self._left_over(left, [])

    # -- live

    def deliver(self, event: ev.Event) -> None:
        """Append an event and let the code go on until nothing is ready."""
        self.journal.append(event)
        self._deliver(event)
        if self.reuse.turns:
            self._reuse_outcomes()

    def note(self, event: ev.Event) -> None:
        """Append an event that doesn't reach the code."""
        self.journal.append(event)
        self._note(event)

    def settle(self, now: int) -> None:
        """At the edge of history: deliver what earlier attempts have, then end the attempt if it has ended."""
        if not self.journal.is_live:
            self.journal.is_live = True
            if self.ended is None and self.code.is_under_way():
                self.steps.take_up()
                if self.journal.beginning.forked_from:
                    self.hooks.take_up()
        if self.reuse.turns:
            self._reuse_outcomes()
        if self.ended is not None:
            return
        task = self.code.task
        if task is not None and task.done():
            self._end(self.code.end(now), now)
        elif not self.steps.pending and not self._is_anything_outstanding():
            self._end(self.code.deadlock(now), now)

    def next_timer(self) -> ev.TimerFired | None:
        """The timer that is due first, as the event it will be."""
        timer = self.loop.timers.next_due()
        if timer is None:
            return None
        return ev.TimerFired(cmd=timer.id, cause=timer.cause, due=timer.due, delay=timer.delay, sleep=timer.sleep)

    def waiting_for(self, elsewhere: Mapping[str, str] = _NONE, in_line: Mapping[str, str] = _NONE) -> str:
        """Why nothing happens, in words; empty while a step is to be executed now. Steps that others execute are
        `elsewhere`, by command, with their queues; `in_line` are those that wait for slots of limits, with which."""
        pending = self.steps.pending
        steps = [step for cmd, step in pending.items() if cmd not in in_line]
        if any(not (step.not_before or step.handed_over or step.cmd in elsewhere) for step in steps):
            return ""
        reasons = [
            f"step {step.name!r}, which was handed over"
            if step.handed_over
            else f"step {step.name!r} in queue {elsewhere[step.cmd] or DEFAULT_QUEUE!r}"
            if step.cmd in elsewhere
            else f"retry of step {step.name!r} (attempt {step.attempt})"
            for step in steps
        ]
        reasons += dict.fromkeys(in_line[cmd] for cmd in pending if cmd in in_line)
        reasons += map(str, self.hooks.pending.values())
        reasons += [f"request {name!r}" for name in self.requests.expected()]
        reasons += [f"child {child.child_id!r}" for child in self.children.pending.values() if child.waited]
        if (timer := self.loop.timers.next_due()) is not None:
            reasons.append("sleep" if timer.sleep else "or a timeout" if reasons else "timeout")
        return ", ".join(reasons[:5]) + (f" and {len(reasons) - 5} more" if len(reasons) > 5 else "")

    def evict(self) -> None:
        """Leave memory. The code's own clean-up runs into refusals, and nothing it does counts."""
        steps, children, hooks = self.steps, self.children.pending, self.hooks.pending
        self.loop.evict()
        self.loop.forget(future for _, future in steps.asked)
        self.loop.forget(steps.futures.values())
        self.loop.forget(child.future for child in children.values())
        self.loop.forget(hook.future for hook in hooks.values())
        self.loop.forget(future for waiting in self.requests.listening.values() for future in waiting)
        self.code.task = None
        self.on_background_error = _nothing  # else it and whoever owns it would keep each other in memory
        steps.clear()
        children.clear()
        hooks.clear()
        self.requests.clear()
        self.journal.take()

    def block(self, what: str, line: str = "") -> WorkflowBlocked:
        """The code does something that it must not do: the run will be set aside. To be raised in the code."""
        line = line or line_of_caller(("asyncio",))
        self.blocked_by = (
            f"workflow code {what} at {line}: it is replayed, so move this into a step, then resume the run"
        )
        return WorkflowBlocked(self.blocked_by)

    # -- delivering

    def _deliver(self, event: ev.Event) -> None:
        if type(event) is ev.StepCompleted:  # most are
            now = event.ts + self.time.ahead
        else:
            now = self.time.of(event)
            if isinstance(event, ev.Beginning):
                self._begin(event)
        loop, comparison = self.loop, self.comparison
        loop.begin(event.seq, now)
        comparison.begin()
        self._hand_over(event)
        loop.run_dry()
        if comparison.divergence is not None:
            raise comparison.divergence
        if self.blocked_by:
            raise WorkflowBlocked(self.blocked_by)
        cause = loop.cause  # of which there may have been several: see `_give`
        is_new = comparison.ledger.is_new(cause)
        if self.steps.asked:
            self.steps.settle(cause, is_new)
        if self.reuse.earlier is not None:
            self.reuse.claim_sleeps(loop)
        if not is_new:
            for left in comparison.ledger.left_over(cause):
                self._left_over(left, comparison.unrecorded)

    def _give(self, past: Past, future: asyncio.Future[Any]) -> bool:
        """A short way on replay. A task is about to wait for this: if nothing else can go on, its step is all that is asked
        for, and the result is what is recorded next, then that would be delivered now, and the task would go on."""
        loop, asked, ledger = self.loop, self.steps.asked, self.comparison.ledger
        if loop.ready or len(asked) != 1 or self.reuse.earlier is not None or self.blocked_by or loop.closed:
            return False
        step, waited = asked[0]
        if waited is not future or step.key or future._callbacks:
            return False
        cmd = ledger.sole_step(loop.cause, step.name, step.args)
        event = past.see_result(cmd) if cmd else None
        task = asyncio.current_task(loop)
        if event is None or task is None or task._must_cancel or not past.has_time():  # type: ignore[attr-defined]
            return False
        asyncio._set_running_loop(None)  # what users' classes do when they are made is not done by the workflow
        try:
            result = self._result("s", event, step.raw)
        except Exception:  # which is told when it is delivered
            return False
        finally:
            asyncio._set_running_loop(loop)
        asked.clear()
        ledger.forget(loop.cause)
        past.pass_by()
        loop.begin(event.seq, event.ts + self.time.ahead)
        self.comparison.begin()
        if event.data:
            self.journal.data = {**self.journal.data, **event.data}
        waited.cmd = cmd
        waited.set_result(result)
        return True

    def _begin(self, event: ev.Beginning) -> None:
        """Call the workflow's function, for this attempt."""
        first, loop = self.journal.beginning, self.loop
        if isinstance(event, ev.AttemptStarted):
            self.journal.attempt = event.attempt
        self.journal.since = event.seq
        loop.origin = loop.now = self.time.of(event)
        loop.execution = self
        loop.on_error = self._background_error
        loop.begin(event.seq, loop.now)
        if isinstance(first, ev.ContinuedAsNew):
            self.hooks.bring_over(first.hooks)
            self.requests.bring_over(first.requests)
        self.code.begin()

    def _background_error(self, context: dict[str, Any]) -> None:
        if self.loop.cause >= self.comparison.edge:
            self.on_background_error(context)

    def _hand_over(self, event: ev.Event) -> None:
        """Resolve whatever the event resolves; the code goes on when the loop runs."""
        if isinstance(event, ev.StepCompleted):
            if event.data:
                self.journal.data = {**self.journal.data, **event.data}
            step = self._expected(self.steps.pending, event)
            self.steps.futures.pop(event.cmd).set_result(self._result("s", event, step.raw))
        elif isinstance(event, ev.OutcomeReused):
            self._hand_over_reused(event)
        elif isinstance(event, ev.TimerFired):
            self._fire(event)
        elif isinstance(event, ev.StepFailed):
            self._expected(self.steps.pending, event)
            self.steps.futures.pop(event.cmd).set_exception(self.codec.decode_error(event.error))
        elif isinstance(event, ev.ChildCompleted):
            child = self._expected(self.children.pending, event)
            child.future.set_result(self._result("c", event, child.raw))
        elif isinstance(event, ev.ChildFailed):
            self._expected(self.children.pending, event).future.set_exception(self.codec.decode_error(event.error))
        elif isinstance(event, ev.ChildCancelled):
            text = f"child run {event.child_id} was cancelled" + (f": {event.reason}" if event.reason else "")
            error = RunCancelledError(text, run_id=event.child_id)
            self._expected(self.children.pending, event).future.set_exception(error)
        elif isinstance(event, ev.HookReceived):
            self.hooks.receive(event)
        elif isinstance(event, ev.RequestReceived):
            self.requests.receive(event)
        elif isinstance(event, ev.CancelRequested):
            self.code.cancel(event)

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
            self._does_otherwise(f"{event.kind} of {event.name!r} (event {event.seq})")
        return found

    def _fire(self, event: ev.TimerFired) -> None:
        """Fire the timer of that id, or else one of its cause: due at the same time if there is one, then in order."""
        timer = self.loop.timers.by_id.get(event.cmd)
        if timer is None or timer.due != event.due:
            alike = [t for t in self.loop.timers.by_id.values() if t.cause == event.cause and t.sleep == event.sleep]
            alike.sort(key=lambda t: (t.due != event.due, t.id != event.cmd))
            timer = alike[0] if alike else None
        recorded = f"a timer of {event.delay / 1e6:g} s (event {event.seq})"
        if timer is None:
            self._does_otherwise(recorded)
        if timer.due != event.due:
            asked = f"a timer of {timer.delay / 1e6:g} s"
            self.comparison.warn_changed(event.cmd, event.cause, "", Raw(b"%d" % timer.delay), recorded, asked)
        self.loop.fire(timer)

    def _left_over(self, left: RecordedCommand, new: list[Ask]) -> None:
        if left.kind == "p":  # a patch that the code no longer mentions has become the only way
            return
        recorded, hint = describe(left.kind, left.name, left.args), renamed([left], new)
        if not new:
            self._does_otherwise(recorded, hint)
        self.comparison.diverged(recorded, ", ".join(map(words_of, new[:3])), hint=hint)

    def _does_otherwise(self, recorded: str, hint: str = "") -> NoReturn:
        """The code asks for nothing that could be what is recorded."""
        asked, line, unfit_input = code_side(self)
        self.comparison.diverged(recorded, asked, line, hint, unfit_input)

    def begun_as_another(self, step: co.ScheduleStep, name: str) -> NoReturn:
        """Another step has begun, or has ended, in the place of this one, by other code."""
        self.comparison.diverged(f"step {name!r}, which has begun", words_of(step), step.line)

    # -- outcomes of earlier attempts

    def _reuse_outcomes(self) -> None:
        """Deliver outcomes of earlier attempts, lowest recorded number first, each when the loop is dry."""
        while self.code.is_under_way() and (turn := self.reuse.next_turn()) is not None:
            source, cmd = turn
            waiting: Any = (
                self.steps.pending.get(cmd)
                or self.children.pending.get(cmd)
                or self.hooks.pending.get(cmd)
                or self.loop.timers.by_id.get(cmd)
            )
            if waiting is None:
                continue
            name, args = "", ev.NO_ARGS
            if isinstance(waiting, co.ScheduleStep | PendingChild):
                name, args, cause = waiting.name, waiting.args, waiting.cause
            elif isinstance(waiting, PendingHook):
                name, cause = waiting.name, int(cmd.partition("h")[0] or 0)
            else:
                args, cause = Raw(b"%d" % waiting.delay), waiting.cause
            event = ev.OutcomeReused(ts=self.loop.now, cmd=cmd, cause=cause, name=name, args=args, source=source)
            self.journal.append(event)
            self._deliver(event)

    def _hand_over_reused(self, event: ev.OutcomeReused) -> None:
        source = self.reuse.promised.pop(event.cmd, None)
        if source is None or source.seq != event.source:
            self.comparison.diverged(f"{event.name!r}, reused from event {event.source}", "something else")
        if isinstance(source, ev.StepCompleted):
            step = self._expected(self.steps.pending, event)
            self.steps.futures.pop(event.cmd).set_result(self._result("s", source, step.raw))
        elif isinstance(source, ev.ChildCompleted):
            child = self._expected(self.children.pending, event)
            child.future.set_result(self._result("c", source, child.raw))
        elif isinstance(source, ev.HookReceived):
            self.hooks.answer(self.hooks.pending[event.cmd], source)
        else:
            self.loop.fire(self.loop.timers.by_id[event.cmd])

    # -- notes: what becomes of a step on its way, and of the run

    def _note(self, event: ev.Event) -> None:
        if isinstance(event, ev.StepOutcome):
            if event.cmd in self.steps.pending:
                self.steps.note(event)
                if isinstance(event, ev.StepRetrying):
                    self.time.put_off(event)
        elif isinstance(event, ev.ClockSetBack):
            by = self.time.set_back(event)
            for step in self.steps.pending.values():
                step.set_back(by)
        elif isinstance(event, ev.RunEnded | ev.AttemptFailed):
            self.ended = event

    # -- the end of an attempt

    def _is_anything_outstanding(self) -> bool:
        return bool(
            self.steps.pending or self.hooks.pending or self.loop.timers.by_id
            or any(child.waited for child in self.children.pending.values()) or self.requests.expected()
        )  # fmt: skip

    def _end(self, end: ev.Event, now: int) -> None:
        """What is still under way when the function has ended is cancelled with it."""
        self.loop.now = max(self.loop.now, now)
        if isinstance(end, ev.RunCompleted):
            children = [child for child in self.children.pending.values() if child.waited and not child.abandon]
            self.left_behind = [f"step {step.name!r}" for step in self.steps.pending.values()]
            self.left_behind += [f"child {child.name!r}" for child in children]
        for cmd in list(self.steps.pending):
            self.steps.cancel(cmd)
        for cmd, child in list(self.children.pending.items()):
            if child.waited:
                self.children.drop(cmd)
        for cmd in list(self.hooks.pending):
            self.hooks.close(cmd)
        if isinstance(end, ev.ContinuedAsNew):
            end.seed = self.values.numbers().getrandbits(63)
            end.hooks, end.requests = self.hooks.unread(), self.requests.left()
        self.journal.append(end)
        self.ended = end
