"""A pure engine for one run: it feeds `Execution` the way an engine would, with no thread, clock or database.

Everything that is outstanding is kept in a fixed order and a seeded generator picks what happens next, so that
two worlds with the same seed do the same, however often one of them crashes.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, ClassVar

import msgspec
from msgspec import Raw

from holdfast import App
from holdfast.core import commands as co
from holdfast.core import events as ev
from holdfast.core.execution import Execution
from holdfast.core.greenlets import Greenlets
from holdfast.core.run_info import RunInfo
from holdfast.engine.programs import program_for
from holdfast.engine.records import RunOptions

START = 1_900_000_000_000_000
SECOND = 1_000_000
MOST_EVENTS = 600

Reply = Callable[[str, Any, int], Any]
"""What a step or child gives: from its name, its first argument and the run's attempt. Failures are exceptions."""


def echo(name: str, argument: Any, attempt: int) -> Any:
    return argument


class World:
    """One run and its committed history. `execution` is what is in memory, None after a crash."""

    alive: ClassVar[list[World]] = []

    def __init__(
        self,
        app: App,
        workflow: str,
        *args: Any,
        seed: int = 0,
        reply: Reply = echo,
        run_id: str = "run",
        strict: bool = True,
    ) -> None:
        self.app = app
        self.workflow = workflow
        self.reply = reply
        self.run_id = run_id
        self.strict = strict
        self.greenlets = Greenlets()
        self.choices = random.Random(seed)
        self.now = START
        self.commits: list[int] = []
        self.ended_steps: set[str] = set()
        self.effects: list[tuple[str, str, bytes]] = []
        self.commands: list[co.Command] = []
        self.heard: list[str] = []
        self.said: list[Any] = []
        self.passed = 0
        self.execution: Execution | None = None
        call = Raw(app.codec.encode_call(args, {}))
        self.committed: list[bytes] = []
        self._commit([ev.RunStarted(seq=1, ts=START, workflow=workflow, input=call, seed=seed)])

    # -- history

    @property
    def history(self) -> list[ev.AnyEvent]:
        return [ev.from_json(line) for line in self.committed]

    def kinds(self) -> list[str]:
        return [event.kind for event in self.history]

    def of(self, kind: type[Any]) -> list[Any]:
        return [event for event in self.history if isinstance(event, kind)]

    def _commit(self, events: list[Any]) -> None:
        for event in events:
            assert event.seq == len(self.committed) + 1, "events are numbered from 1 without gaps"
            self.committed.append(ev.to_json(event))
            if isinstance(event, ev.StepCompleted | ev.StepFailed | ev.StepCancelled):
                self.ended_steps.add(event.cmd)
            elif isinstance(event, ev.Beginning):
                self.ended_steps.clear()

    # -- the code in memory

    def replay(
        self,
        history: list[ev.AnyEvent] | None = None,
        strict: bool | None = None,
        passed: int | None = None,
        is_new: bool = False,
    ) -> Execution:
        """A fresh execution, brought to the end of a history and settled."""
        is_strict = self.strict if strict is None else strict
        execution = fresh(self.app, self.workflow, self.run_id, self.greenlets, is_strict, is_new)
        execution.said = self.said  # type: ignore[attr-defined]
        execution.on_background_error = lambda context: self.heard.append(context["message"])
        past = self.history if history is None else history
        try:
            for _ in execution.replay(past, passed):
                pass
            execution.settle(max(self.now, past[-1].ts))
        except BaseException:
            execution.evict()
            raise
        return execution

    def wake(self) -> Execution:
        """The execution, replayed if it isn't in memory; what it asks for is committed and acted on."""
        while self.execution is None:
            if isinstance(self.history[-1], ev.AttemptFailed):
                attempt = 1 + sum(isinstance(e, ev.AttemptStarted | ev.RunStarted) for e in self.history)
                self.now = max(self.now, self.history[-1].retry_at)
                self._commit([ev.AttemptStarted(seq=len(self.committed) + 1, ts=self.now, attempt=attempt)])
            World.alive.append(self)
            self.execution = self.replay(passed=self.passed)
            self.commit()
        return self.execution

    def commit(self) -> None:
        """Everything of one `take` is written at once, then acted on."""
        assert self.execution is not None
        events, commands = self.execution.journal.take()
        self._commit(events)
        self.passed = len(self.committed)
        if isinstance(self.execution.ended, ev.ContinuedAsNew):
            self.passed -= 1  # its code begins in the next execution
        else:  # what follows it is committed with it
            self.commits.append(len(self.committed))
        dropped = {command.cmd for command in commands if isinstance(command, co.CancelStep)}
        for command in commands:
            if isinstance(command, co.ScheduleStep) and command.cmd not in dropped:
                assert command.cmd not in self.ended_steps, f"{command.cmd} has its outcome, and is asked again"
                self.effects.append((command.cmd, command.name, bytes(command.args)))
        self.commands += commands
        if isinstance(self.execution.ended, ev.ContinuedAsNew | ev.AttemptFailed):
            self.crash()

    def crash(self) -> None:
        """Nothing in memory is left; what was not committed has not happened."""
        if self.execution is not None:
            self.execution.evict()
            self.execution = None
            World.alive = [world for world in World.alive if world is not self]

    # -- what happens

    def deliver(self, event: ev.Event) -> None:
        """An event arrives, and is committed with everything it leads to."""
        execution = self.wake()
        self.now = event.ts = max(event.ts, self.now)
        execution.deliver(event)
        execution.settle(self.now)
        self.commit()

    def note(self, event: ev.Event) -> None:
        execution = self.wake()
        event.ts = self.now
        execution.note(event)
        self.commit()

    def complete(self, cmd: str, result: Any = None, **data: Any) -> None:
        self.deliver(self.completed(cmd, result, data))

    def completed(self, cmd: str, result: Any = None, data: dict[str, Any] | None = None) -> ev.StepCompleted:
        encode = self.app.codec.encode
        writes = {key: Raw(encode(value)) for key, value in (data or {}).items()}
        return ev.StepCompleted(**self._about(cmd), result=Raw(encode(result)), data=writes)

    def fail(self, cmd: str, error: BaseException) -> None:
        self.deliver(ev.StepFailed(**self._about(cmd), error=Raw(self.app.codec.encode_error(error))))

    def fire(self) -> None:
        timer, due = self.wake().next_timer(), self.wake().time.next_due()
        assert timer is not None
        assert due is not None
        timer.ts = due
        self.deliver(timer)

    def send(self, name: str, payload: Any = None, key: str = "") -> None:
        self.deliver(ev.HookReceived(name=name, key=key, payload=Raw(self.app.codec.encode(payload))))

    def cancel(self, reason: str = "enough") -> None:
        self.deliver(ev.CancelRequested(reason=reason))

    def child(self, cmd: str, outcome: Any = None) -> None:
        self.deliver(self.child_outcome(cmd, outcome))

    def child_outcome(self, cmd: str, outcome: Any) -> ev.Event:
        child = self.wake().children.pending[cmd]
        about: dict[str, Any] = {
            "cmd": cmd, "cause": child.cause, "name": child.name, "args": child.args, "child_id": child.child_id
        }  # fmt: skip
        if outcome is CANCELLED:
            return ev.ChildCancelled(**about, reason="somebody stopped it")
        if isinstance(outcome, BaseException):
            return ev.ChildFailed(**about, error=Raw(self.app.codec.encode_error(outcome)))
        return ev.ChildCompleted(**about, result=Raw(self.app.codec.encode(outcome)))

    def _about(self, cmd: str) -> dict[str, Any]:
        command = self.wake().steps.pending[cmd]
        return {
            "cmd": cmd, "cause": command.cause, "name": command.name, "args": command.args,
            "attempt": command.attempt, "undoes": command.undoes, "worker": "w1", "started": self.now,
        }  # fmt: skip

    # -- by itself

    def pending(self) -> dict[str, str]:
        """Steps that are outstanding, by name: `{cmd: name}`."""
        return {cmd: step.name for cmd, step in self.wake().steps.pending.items()}

    def step(self, name: str, nth: int = 0) -> str:
        """The command of the `nth` outstanding step of that name."""
        return [cmd for cmd, each in self.pending().items() if each == name][nth]

    def argument(self, args: Raw) -> Any:
        given, _ = self.app.codec.decode_call(args)
        return given[0] if given else None

    def choose(self, hooks: tuple[str, ...] = (), cancel: bool = False, notes: bool = False) -> Callable[[], ev.Event]:
        """Pick one of all the things that may happen now. What is picked depends only on what is outstanding."""
        execution = self.wake()
        options: list[Callable[[], ev.Event]] = []
        for cmd in sorted(execution.steps.pending):
            options += 3 * [lambda cmd=cmd: self._outcome_of_step(cmd)]
            if notes:
                options.append(lambda cmd=cmd: self._note_on_step(cmd))
        for cmd, child in sorted(execution.children.pending.items()):
            if child.waited:
                options += 3 * [lambda cmd=cmd: self._outcome_of_child(cmd)]
        for cmd, hook in sorted(execution.hooks.pending.items()):
            options += 2 * [lambda cmd=cmd, name=hook.name, key=hook.key: self._payload(name, key)]
        if execution.next_timer() is not None:
            options += 3 * [self._timer]
        if not options:
            raise AssertionError(f"nothing is outstanding, and the run has not ended: {self.kinds()}")
        options += [lambda name=name: self._payload(name, "") for name in hooks]
        if cancel and self.choices.random() < 0.04 and execution.code.cancelling is None:
            return lambda: ev.CancelRequested(reason="enough")
        return self.choices.choice(options)

    def _outcome_of_step(self, cmd: str) -> ev.Event:
        command = self.wake().steps.pending[cmd]
        argument = self.argument(command.args)
        result = self.reply(command.name, argument, self.wake().journal.attempt)
        if isinstance(result, BaseException):
            return ev.StepFailed(**self._about(cmd), error=Raw(self.app.codec.encode_error(result)))
        writes = argument.get("writes", {}) if isinstance(argument, dict) else {}
        return self.completed(cmd, result, writes)

    def _note_on_step(self, cmd: str) -> ev.Event:
        command = self.wake().steps.pending[cmd]
        kind = (ev.StepStarted, ev.StepLost, ev.StepRetrying)[self.choices.randrange(3)]
        about = self._about(cmd)
        return (
            kind(**about, retry_at=self.now + SECOND) if kind is ev.StepRetrying else kind(**about) if command else None
        )

    def _outcome_of_child(self, cmd: str) -> ev.Event:
        child = self.wake().children.pending[cmd]
        return self.child_outcome(cmd, self.reply(child.name, self.argument(child.args), self.wake().journal.attempt))

    def _payload(self, name: str, key: str) -> ev.Event:
        return ev.HookReceived(name=name, key=key, payload=Raw(b"%d" % len(self.committed)))

    def _timer(self) -> ev.Event:
        timer, due = self.wake().next_timer(), self.wake().time.next_due()
        assert timer is not None
        assert due is not None
        timer.ts = due
        return timer

    def turn(
        self,
        hooks: tuple[str, ...] = (),
        cancel: bool = False,
        notes: bool = False,
        crash_before_commit: bool = False,
    ) -> None:
        """One thing happens. If the process dies before the commit, the same thing happens again afterwards."""
        event = self.choose(hooks, cancel, notes)()
        self.now += self.choices.choice((0, 1_000, SECOND))
        self.now = max(self.now, event.ts)
        if crash_before_commit:
            self._apply(msgspec.structs.replace(event))
            self.crash()
        self._apply(event)
        self.commit()

    def _apply(self, event: ev.Event) -> None:
        execution = self.wake()
        event.ts = self.now
        if event.delivered:
            execution.deliver(event)
            execution.settle(self.now)
        else:
            execution.note(event)

    def is_over(self) -> bool:
        self.wake()
        return isinstance(self.history[-1], ev.RunEnded)

    def run(self, on_turn: Callable[[World], None] = lambda world: None, **options: Any) -> World:
        """Let things happen until the run has ended."""
        while not self.is_over():
            on_turn(self)
            if self.is_over():
                break
            self.turn(**options)
            assert len(self.committed) < MOST_EVENTS, "this program is too long for a test"
        self.crash()
        return self

    def result(self) -> Any:
        """What the run returned, or the exception it failed with."""
        end = self.history[-1]
        if isinstance(end, ev.RunCompleted):
            return self.app.codec.decode(end.result)
        if isinstance(end, ev.RunFailed):
            return self.app.codec.decode_error(end.error)
        assert isinstance(end, ev.RunCancelled), f"not ended: {end}"
        return CANCELLED


CANCELLED = object()


def fresh(
    app: App, workflow: str, run_id: str, greenlets: Greenlets, strict: bool = False, is_new: bool = False
) -> Execution:
    info = RunInfo(run_id=run_id, app=app.name, strict=strict, is_new=is_new)
    execution = Execution(info, program_for(app.definitions, workflow, RunOptions()), app.codec, greenlets)
    execution.trace = []  # type: ignore[attr-defined]
    return execution


def state(execution: Execution) -> dict[str, Any]:
    """Everything of an execution that an engine, or the code itself, could ever notice."""
    encode = msgspec.json.encode
    loop = execution.loop
    return {
        "last_seq": execution.journal.last_seq,
        "attempt": execution.journal.attempt,
        "data": {key: bytes(value) for key, value in sorted(execution.journal.data.items())},
        "steps": {cmd: encode(step) for cmd, step in execution.steps.pending.items()},
        "children": {
            cmd: (c.child_id, c.name, bytes(c.args), c.cause, c.waited, c.abandon)
            for cmd, c in execution.children.pending.items()
        },
        "hooks": {cmd: (h.name, h.key, h.expires) for cmd, h in execution.hooks.pending.items()},
        "timers": {timer.id: (timer.due, timer.delay, timer.sleep) for timer in loop.timers.by_id.values()},
        "next timer": execution.next_timer(),
        "cancelling": execution.code.cancelling,
        "ended": execution.ended,
        "waiting for": execution.waiting_for(),
        "tasks": sorted((number, task.get_name()) for number, task in loop.tasks.items()),
        "now": loop.now,
        "trace": list(execution.trace),  # type: ignore[attr-defined]
        "numbers": execution.values.numbers().getstate(),
    }
