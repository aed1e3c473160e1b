"""What the code of a workflow calls, seen from its run: what it asks for is matched with the history, or recorded as new.

What is recorded at once (data, children, hooks, times) is an answer, and has to be there on replay. A step is
recorded only when something becomes of it, so all steps of one cause are matched together when the loop is dry.
"""

from __future__ import annotations

import hashlib
import heapq
import random
import uuid
from collections import deque
from collections.abc import Callable
from typing import Any, NoReturn

import msgspec
from msgspec import Raw

from holdfast.codec import Codec
from holdfast.core import commands as co
from holdfast.core import events as ev
from holdfast.core.divergence import advice, code_side, history_side, renamed
from holdfast.core.domain_events import Scalar, event_id
from holdfast.core.ids import child_run_id
from holdfast.core.loop import Future, Greenlets, Task, WorkflowLoop, running
from holdfast.core.matching import Asked, Ledger, Match, Recorded, command_id, describe, match_all, match_one
from holdfast.core.pending import PendingChild, PendingHook, PendingStep, Program, StepCall
from holdfast.core.reuse import Child, EarlierOutcomes, origin_of
from holdfast.core.run_info import RunInfo
from holdfast.core.source_lines import SourceLine, code_line, task_lines
from holdfast.errors import DefinitionError, NondeterminismError, WrongContextError


class Calls:
    """The state of a run in memory, and everything its code can ask for."""

    def __init__(self, info: RunInfo, program: Program, codec: Codec, greenlets: Greenlets) -> None:
        self.info = info
        self.run_id = info.run_id
        self.mark = ""
        """Tells this run from an earlier one of its id that was deleted or restarted. It is part of the ids that
        derive from the run's, so that it doesn't find the earlier one's children."""
        self.program = program
        self.codec = codec
        self.greenlets = greenlets
        self.calls = 0
        self.last_seq = 0
        self.attempt = 1
        self.scheduled_at: int | None = None
        self.scheduled_offset = 0  # seconds east of UTC, where the schedule lives
        self.data: dict[str, Raw] = {}
        self.steps: dict[str, PendingStep] = {}
        self.children: dict[str, PendingChild] = {}
        self.hooks: dict[str, PendingHook] = {}
        self.listening: dict[str, deque[Future[ev.RequestReceived]]] = {}
        """Who waits for the next request of a name."""
        self.handlers: dict[str, Callable[[ev.RequestReceived], None]] = {}
        """Who is told of every request of a name, beside the main flow."""
        self.ended: ev.Event | None = None
        self.cancelling: ev.CancelRequested | None = None
        self.new_events: list[ev.Event] = []
        self.new_commands: list[co.Command] = []
        self.unawaited: dict[int, tuple[str, SourceLine | None]] = {}
        self.blocked_by: str = ""
        self.on_background_error: Callable[[dict[str, Any]], None] = lambda context: None
        self._edge = 0
        self._is_live = False
        self._was_over = False
        self._passed = 0
        self._divergence: NondeterminismError | None = None
        self._loop: WorkflowLoop | None = None
        self._main: Task[Any] | None = None
        self._ledger = Ledger(())
        self._earlier: EarlierOutcomes | None = None
        self._reusable: list[tuple[int, str]] = []
        self._reused: dict[str, ev.Event] = {}
        self._asked: list[StepCall] = []
        self._new: list[Asked] = []  # at the edge of history, asked for and not recorded
        self._keys: set[str] = set()
        self._places: dict[str, int] = {}
        self._cancelled: set[str] = set()
        self._warned: set[tuple[str, bytes]] = set()
        self._mailbox: dict[tuple[str, str], deque[ev.HookReceived]] = {}
        self._answered: set[str] = set()
        self._unread: dict[str, deque[ev.RequestReceived]] = {}
        self._unanswered: dict[str, ev.RequestReceived] = {}
        self._sent: dict[tuple[str, bytes], int] = {}  # by earlier attempts, as often
        self._emissions: dict[tuple[str, bytes], int] = {}
        self._patches: dict[str, bool] = {}
        self._seed = 0
        self._random: random.Random | None = None
        self._times: deque[int] = deque()
        self._beginning: ev.RunStarted | ev.ContinuedAsNew | None = None
        self._last_ts = 0
        self._taken_up = 0
        self.ahead = 0
        """How far the code's time is ahead of the database's, since that was set back."""
        self.noted_at = 0
        """When a step was last put off, in the code's time: the code itself has not seen that."""
        self.started_at = 0

    @property
    def loop(self) -> WorkflowLoop:
        assert self._loop is not None
        return self._loop

    @property
    def history_length(self) -> int:
        """From the beginning of this history to the event that is delivered."""
        return self.loop.cause - (self._beginning.seq if self._beginning is not None else 1) + 1

    @property
    def is_repeating(self) -> bool:
        """Whether the code goes where it has been before: what it says there was heard then."""
        return self.loop.cause <= self._passed

    def _append(self, event: ev.Event) -> None:
        self.last_seq += 1
        event.seq = self.last_seq
        self.new_events.append(event)

    # -- outcomes of earlier attempts

    def _claim(self, kind: str, name: str, args: bytes, cmd: str, key: str = "") -> Child | None:
        """Look for what an earlier attempt has: an outcome, or a child that may have failed."""
        if self._earlier is None:
            return None
        outcome, child = self._earlier.claim(kind, name, args, key)
        if outcome is not None:
            self._reused[cmd] = outcome
            heapq.heappush(self._reusable, (outcome.seq, cmd))
        return child

    def _give_back(self, cmd: str) -> None:
        """Whatever was to get an earlier outcome is gone before it came; the next that looks alike gets it."""
        outcome = self._reused.pop(cmd, None)
        if outcome is not None and self._earlier is not None:
            self._earlier.give_back(outcome)

    def _claim_sleeps(self) -> None:
        for cmd in [c for c, o in self._reused.items() if isinstance(o, ev.TimerFired) and c not in self.loop.timers]:
            self._give_back(cmd)
        for timer in self.loop.timers.values():
            if timer.sleep and timer.id not in self._reused:
                self._claim("t", "", b"%d" % timer.delay, timer.id)

    # -- steps

    def _refuse_if_evicted(self) -> None:
        if self.loop.closed:
            self.loop.refuse()

    def _closed(self, hook: PendingHook) -> None:
        """Nobody is to answer it any more. On replay that has been said, unless it was opened only now."""
        others = hook.where is None and any(
            (other.name, other.key) == (hook.name, hook.key) for other in self.hooks.values()
        )
        if (self._is_live or hook.is_new) and not (hook.key and others):
            self.new_commands.append(co.CloseHook(cmd=hook.cmd, name=hook.name, key=hook.key, where=hook.where))

    def ask_step(
        self,
        name: str,
        args: Raw,
        *,
        options: dict[str, object] | None = None,
        key: str = "",
        undoes: str = "",
        line: str = "",
        resolve: Callable[[], bytes] | None = None,
        raw: bool = False,
    ) -> Future[Any]:
        """Ask for a step; the future has its result, or its exception.

        With `resolve`, `args` are recorded as references, and `resolve` gives the arguments themselves when the step
        is handed over. With `raw`, the result is given as it is recorded.
        """
        loop = self._loop
        assert loop is not None
        if loop.closed:
            loop.refuse()
        if key:
            self._check_key("s", key)
        future: Future[Any] = Future(loop)
        call = StepCall(
            kind="s", name=name, args=bytes(args), key=key, line=line,
            options=options or {}, undoes=undoes, data=self.data, future=future, resolve=resolve, raw=raw,
        )  # fmt: skip
        future.on_cancel = call.drop
        self._asked.append(call)
        return future

    def _settle_commands(self, cause: int) -> None:
        """Give the steps that were asked for their ids, and see that everything recorded was asked for."""
        asked, ledger = self._asked, self._ledger
        is_new = ledger.is_new(cause)
        new, self._new = self._new, []
        if asked:
            self._asked = []
            asked = [call for call in asked if not call.dropped]
            if is_new:
                place = 0
                for call in asked:
                    self._schedule(call, command_id("s", cause, place, call.key), None, cause)
                    place += not call.key
            else:
                for found in match_all(ledger, cause, "s", asked):
                    self._compare(found, cause)
                    self._schedule(found.asked, found.cmd, found.recorded, cause)
                    if found.recorded is None:
                        new.append(found.asked)
        if self._earlier is not None:
            self._claim_sleeps()
        if not is_new:
            for left in ledger.left_over(cause):
                self._left_over(left, new)

    def _left_over(self, left: Recorded, new: list[Asked]) -> None:
        # A patch that the code no longer mentions has become the only way.
        if left.kind != "p":
            asked = ", ".join(map(str, new[:3]))
            self._diverged(describe(left.kind, left.name, left.args), asked, hint=renamed([left], new))

    def _schedule(self, call: StepCall, cmd: str, recorded: Recorded | None, cause: int) -> None:
        args = Raw(call.args if recorded is None else recorded.args)
        command = co.ScheduleStep(
            cmd=cmd,
            cause=cause,
            name=call.name,
            args=args,
            options=call.options,
            undoes=call.undoes,
            data=call.data,
            resolve=call.resolve,
        )
        self.steps[cmd] = PendingStep(command, call.future, call.raw)
        call.future.cmd = cmd
        call.future.on_cancel = lambda: self._cancel_step(cmd)
        if self._earlier is not None and not call.undoes:
            command.origin = self._earlier.origin(call.name, bytes(args), call.key)
            self._claim("s", call.name, bytes(args), cmd, call.key)
        command.origin = command.origin or origin_of(cmd, self.attempt)
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
        self,
        name: str,
        args: Raw,
        *,
        options: dict[str, object],
        waited: bool,
        abandon: bool,
        key: str = "",
        undoes: str = "",
        resolve: Callable[[], bytes] | None = None,
        raw: bool = False,
    ) -> PendingChild:
        """Start a child run. Its id derives from the command's, unless `options` names one. `undoes`, `resolve` and
        `raw` are as for steps."""
        self._refuse_if_evicted()
        self._check_key("c", key)
        cause = self.loop.cause
        found = self._answer_to("c", name, bytes(args), key)
        cmd = found.cmd
        if found.recorded is not None:
            args = Raw(found.recorded.args)
        earlier = None if undoes else self._claim("c", name, bytes(args), cmd, key)
        reused = cmd in self._reused
        recorded = found.recorded.event if found.recorded is not None else None
        child_id = recorded.child_id if isinstance(recorded, ev.ChildStarted) else ""
        is_new = not child_id
        if is_new:
            again = earlier is not None and recorded is None
            if earlier is not None and again:
                child_id = earlier.child_id
            else:
                # An id of its own belongs to the child of the run that this one was forked from.
                own = None if recorded is not None else options.get("id")
                child_id = str(own or child_run_id(self.run_id, name, cmd, self.attempt, self.mark))
            self._append(
                ev.ChildStarted(
                    ts=max(self.loop.now, self._last_ts), cmd=cmd, cause=cause, name=name, args=args,
                    child_id=child_id, waited=waited, abandon=abandon, again=again, undoes=undoes,
                )
            )  # fmt: skip
            if not reused and (waited or not again or (earlier is not None and earlier.failed)):
                self.new_commands.append(
                    co.StartChild(
                        cmd=cmd,
                        name=name,
                        args=args if resolve is None else Raw(resolve()),
                        child_id=child_id,
                        again=again,
                        waited=waited,
                        options=options,
                    )
                )
        future: Future[Any] = Future(self.loop, lambda: self._drop_child(cmd))
        future.cmd = cmd
        child = PendingChild(cmd, child_id, name, args, cause, waited, abandon, future, is_new, raw)
        if waited or reused:
            self.children[cmd] = child
        return child

    def await_child(self, child: PendingChild) -> Future[Any]:
        """The future of a child that was started without waiting for it."""
        self._refuse_if_evicted()
        if child.cmd not in self.children and not child.future.done():
            started_by = msgspec.json.encode(child.cmd)
            found = self._answer_to("w", child.name, started_by, "")
            if found.recorded is None:
                self._append(
                    ev.ChildAwaited(
                        ts=self.loop.now,
                        cmd=found.cmd,
                        cause=self.loop.cause,
                        name=child.name,
                        args=Raw(started_by),
                        child_id=child.child_id,
                    )
                )
            if found.recorded is None or child.is_new:
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

    def ask_hook(self, name: str, key: str, expires: int | None, where: dict[str, Scalar] | None = None) -> PendingHook:
        """Wait for a payload; one that came early is there at once. With `where`, for that of a domain event."""
        self._refuse_if_evicted()
        address = msgspec.json.encode(key) if key else b"{}"
        found = self._answer_to("h", name, address, "")
        cmd, bound = found.cmd, True
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
                    where=where,
                    bound=True,
                )
            )
            self.new_commands.append(co.OpenHook(cmd=cmd, name=name, key=key, where=where))
        elif isinstance(found.recorded.event, ev.HookOpened):  # others know it as it was when it was opened
            opened = found.recorded.event
            key, where, bound = opened.key, opened.where, opened.bound
        future: Future[Raw] = Future(self.loop, lambda: self._close_hook(cmd))
        hook = PendingHook(cmd, name, key, future, expires, found.recorded is None, where, bound)
        self.hooks[cmd] = hook
        # In order of arrival: what came before this history, what earlier attempts received, what came since.
        waiting = self._mailbox.get((name, key))
        if not (waiting and waiting[0].seq == 0):
            self._claim("h", name, key.encode(), cmd)
        if waiting and cmd not in self._reused:
            self._answer(hook, waiting.popleft())
        return hook

    def _close_hook(self, cmd: str) -> None:
        hook = self.hooks.pop(cmd, None)
        if hook is not None and not self.loop.closed:
            self._give_back(cmd)
            for other in self.hooks.values():
                if (other.name, other.key) == (hook.name, hook.key) and other.cmd not in self._reused:
                    self._claim("h", other.name, other.key.encode(), other.cmd)
            self._closed(hook)

    # -- requests

    def next_request(self, name: str) -> Future[ev.RequestReceived]:
        """The next request of that name, once there is one."""
        self._refuse_if_evicted()
        waiting = self.listening.setdefault(name, deque())
        future: Future[ev.RequestReceived] = Future(self.loop)
        future.on_cancel = lambda: waiting.remove(future) if future in waiting else None
        if unread := self._unread.get(name):
            future.set_result(self._take_request(unread.popleft()))
        else:
            waiting.append(future)
        return future

    def handle_requests(self, name: str, handler: Callable[[ev.RequestReceived], None]) -> None:
        """Give every request of that name to `handler`, those that came early first."""
        self._refuse_if_evicted()
        if name in self.handlers:
            raise DefinitionError(f"request {name!r} has a handler in run {self.run_id} already; one is enough")
        self.handlers[name] = handler
        unread = self._unread.pop(name, ())
        for event in unread:
            handler(self._take_request(event))

    def _take_request(self, event: ev.RequestReceived) -> ev.RequestReceived:
        self._unanswered[event.request] = event
        return event

    def return_request(self, event: ev.RequestReceived) -> None:
        """Whoever waited for it is gone: the next one gets it."""
        del self._unanswered[event.request]
        self._unread.setdefault(event.name, deque()).appendleft(event)

    def is_unanswered(self, event: ev.RequestReceived) -> bool:
        return event.request in self._unanswered

    def answer_request(self, event: ev.RequestReceived, answer: Raw, error: Raw = ev.NULL) -> None:
        """Answer it, or refuse with an `error`; once, however often this is replayed."""
        self._refuse_if_evicted()
        if self._unanswered.pop(event.request, None) is None:
            raise WrongContextError(f"request {event.name!r} ({event.request}) was answered already; answer it once")
        found = self._answer_to("a", event.name, bytes(answer), "")
        if found.recorded is None:
            self._append(
                ev.RequestAnswered(
                    ts=self.loop.now, cmd=found.cmd, cause=self.loop.cause, name=event.name, args=answer,
                    request=event.request, error=error,
                )
            )  # fmt: skip
            self.new_commands.append(
                co.GiveAnswer(cmd=found.cmd, request=event.request, seq=self.last_seq, answer=answer, error=error)
            )

    def send(self, run_id: str, name: str, key: str, payload: Raw) -> None:
        """Send to a hook of another run; once, however often this is replayed, and in all attempts of the run that send
        the same as often."""
        self._refuse_if_evicted()
        found = self._answer_to("m", name, msgspec.json.encode([run_id, key, payload]), "")
        look = (name, bytes(found.recorded.args) if found.recorded is not None else found.asked.args)
        again = self._sent.get(look, 0) > 0
        if again:
            self._sent[look] -= 1
        if found.recorded is None:
            self._append(
                ev.HookSent(
                    ts=self.loop.now, cmd=found.cmd, cause=self.loop.cause, name=name, args=Raw(found.asked.args),
                    run_id=run_id, key=key, again=again,
                )
            )  # fmt: skip
            if not again:
                self.new_commands.append(co.SendHook(cmd=found.cmd, run_id=run_id, name=name, key=key, payload=payload))

    def set_data(self, key: str, value: Raw) -> None:
        self._refuse_if_evicted()
        found = self._answer_to("d", key, bytes(value), "")
        if found.recorded is None:
            self._append(ev.DataSet(ts=self.loop.now, cmd=found.cmd, cause=self.loop.cause, name=key, args=value))
            self.new_commands.append(co.PublishData(cmd=found.cmd, key=key, value=value))
        self.data = {**self.data, key: Raw(found.recorded.args) if found.recorded is not None else value}

    def stream(self, item: Raw) -> None:
        """Give an item to those who watch; once, however often this is replayed."""
        self._refuse_if_evicted()
        found = self._answer_to("o", "", bytes(item), "")
        if found.recorded is None:
            self._append(ev.Streamed(ts=self.loop.now, cmd=found.cmd, cause=self.loop.cause, args=item))
            self.new_commands.append(co.StreamItem(cmd=found.cmd, item=item))

    def emit(self, name: str, payload: Raw, key: str | None) -> str:
        """Emit a domain event; its id. Without a key of its own it is the same event in every attempt of the run that
        emits the same payload as often."""
        self._refuse_if_evicted()
        found = self._answer_to("e", name, bytes(payload), "")
        if found.recorded is not None:
            payload = Raw(found.recorded.args)
        look = (name, bytes(payload))
        nth = self._emissions[look] = self._emissions.get(look, 0) + 1
        if found.recorded is not None and isinstance(found.recorded.event, ev.EventEmitted):
            return found.recorded.event.event
        if key is None:
            assert self._beginning is not None
            digest = hashlib.sha256(payload).hexdigest()[:16]
            key = f"{self.run_id}:{self.mark}:{self._beginning.seq}:{digest}:{nth}"
        event = event_id(self.info.app, name, key)
        self._append(
            ev.EventEmitted(
                ts=self.loop.now, cmd=found.cmd, cause=self.loop.cause, name=name, args=payload, key=key, event=event
            )
        )
        self.new_commands.append(co.EmitEvent(cmd=found.cmd, name=name, key=key, payload=payload))
        return event

    # -- what a composition decides

    def plan(self, name: str, shape: Raw, key: str = "", check: Callable[[], None] | None = None) -> Raw:
        """Record what a composition is made of, or one of its steps (`key`). On replay it is what it was made of when
        the attempt began. `check` may refuse what is new, by raising."""
        self._refuse_if_evicted()
        self._check_key("g", key)
        found = self._answer_to("g", name, bytes(shape), key)
        if found.recorded is not None:
            return Raw(found.recorded.args)
        if check is not None:
            check()
        self._append(ev.Planned(ts=self.loop.now, cmd=found.cmd, cause=self.loop.cause, name=name, args=shape))
        return shape

    def skip_step(self, key: str, name: str, reason: str) -> None:
        """Record that a step of a composition is not executed."""
        self._refuse_if_evicted()
        found = self._answer_to("k", name, b"{}", key)
        if found.recorded is None:
            cause = self.loop.cause
            self._append(ev.StepSkipped(ts=self.loop.now, cmd=found.cmd, cause=cause, name=name, reason=reason))

    def refuse_step(self, key: str, name: str, error: BaseException) -> None:
        """Record that a step of a composition has failed before it could be executed."""
        self._refuse_if_evicted()
        found = self._answer_to("x", name, b"{}", key)
        if found.recorded is None:
            encoded = Raw(self.codec.encode_error(error))
            cause = self.loop.cause
            self._append(ev.StepRefused(ts=self.loop.now, cmd=found.cmd, cause=cause, name=name, error=encoded))

    def diverge(self, recorded: str, asked: str) -> NoReturn:
        """Set the run aside: its history can't go on with this code."""
        self._diverged(recorded, asked)

    # -- values that repeat

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

    def _numbers(self) -> random.Random:
        """Seeded by the run, from the beginning of each attempt; made when first used, as seeding takes long."""
        if self._random is None:
            self._random = random.Random(self._seed)
        return self._random

    def random(self) -> float:
        self._refuse_if_evicted()
        return self._numbers().random()

    def uuid(self) -> uuid.UUID:
        self._refuse_if_evicted()
        return uuid.UUID(int=self._numbers().getrandbits(128), version=4)

    def patched(self, change: str) -> bool:
        """Whether this run goes the new way: yes if it went so before, or has not been here before."""
        self._refuse_if_evicted()
        known = self._patches.get(change)
        cause = self.loop.cause
        if known is None:
            # An attempt that has ended was past everything, though nothing may be recorded after its last event.
            been_here = cause < self._edge or (cause == self._edge and (self._ledger.knows(cause) or self._was_over))
            known = self._patches[change] = not been_here
            if known:
                self._append(ev.Patched(ts=self.loop.now, cmd=f"{cause}p{change}", cause=cause, name=change))
        elif known:
            self._ledger.open(cause).pop(f"{cause}p{change}", None)
        return known

    def _answer_to(self, kind: str, name: str, args: bytes, key: str) -> Match[Asked]:
        """Match a command that is recorded at once. On replay it has to be there."""
        cause = self.loop.cause
        place = self._places[kind] = self._places.get(kind, -1) + 1
        asked = Asked(kind, name, args, key, "")
        found = match_one(self._ledger, cause, kind, asked, place)
        if found.recorded is None:
            if cause < self._edge:
                there = self._ledger.recorded_under(cause)
                self._diverged(history_side(kind, there), str(asked), code_line(), renamed(there, [asked]))
            if cause == self._edge:
                self._new.append(asked)
        elif found.changed or found.recorded.name != name:
            asked.line = code_line()
            self._compare(found, cause)
        return found

    def _check_key(self, kind: str, key: str) -> None:
        if key:
            if (kind + key) in self._keys:
                raise DefinitionError(f"the key {key!r} is used twice in run {self.run_id}; keys are unique in a run")
            self._keys.add(kind + key)

    # -- divergence

    def _compare(self, found: Match[Any], cause: int) -> None:
        recorded, asked = found.recorded, found.asked
        if recorded is None:
            return
        if recorded.name != asked.name:  # both have the same key
            what = describe(recorded.kind, recorded.name, recorded.args)
            self._diverged(f"{what} under the key {asked.key!r}", str(asked), asked.line)
        if found.changed:
            what = describe(recorded.kind, recorded.name, recorded.args)
            self._warn_changed(found.cmd, cause, asked.name, asked.args, what, str(asked), asked.line)

    def _warn_changed(
        self, cmd: str, cause: int, name: str, args: bytes, recorded: str, asked: str, line: str = ""
    ) -> None:
        if self.info.strict:
            self._diverged(recorded, asked, line)
        if (cmd, args) not in self._warned:
            self._warned.add((cmd, args))
            now = max(self.loop.now, self._last_ts)
            self._append(ev.ArgumentsChanged(ts=now, cmd=cmd, cause=cause, name=name, args=Raw(args)))

    def _diverged(self, recorded: str, asked: str, line: str = "", hint: str = "") -> NoReturn:
        """Code and history differ. Code is stopped where it asks, in a way that it can't catch, then this is raised.
        Without `asked`, the code doesn't ask for anything instead."""
        unfit_input = False
        if not asked:
            asked, line, unfit_input = code_side(self)
        line = line or self._where_code_stands()
        where = f" at {line}" if line else ""
        self._divergence = NondeterminismError(
            f"the code of workflow {self.program.name!r} no longer fits the history of run {self.run_id}: after event "
            f"{self.loop.cause} the history has {recorded}, the code asks for {asked}{where}. "
            f"{hint}{advice(self, unfit_input)}",
            recorded=recorded,
            asked=asked,
            line=line,
            event=self.loop.cause,
        )
        self.loop.closed = True
        if running() is self.loop:
            self.loop.refuse()
        raise self._divergence

    def _where_code_stands(self) -> str:
        stacks = [line for task in self.loop.tasks.values() for line in task_lines(task, users_own=True)[-1:]]
        return "; ".join(stacks[:3])

    def _background_error(self, context: dict[str, Any]) -> None:
        if self.loop.cause >= self._edge:
            self.on_background_error(context)

    def _answer(self, hook: PendingHook, event: ev.HookReceived) -> None:
        del self.hooks[hook.cmd]
        self._closed(hook)
        hook.future.set_result(event.payload)
