"""Which recorded command is it that code asks for now?

A command belongs to its cause, the event whose delivery made the code ask. Among the commands of one cause,
position alone is not enough: `gather(wait_for(a()), b())` asks in another order on Python 3.11 than on 3.12.
So commands match by place, kind, name and arguments first, then by kind, name and arguments wherever they
stand, then by kind and name in order (the arguments changed). A recorded command that nothing matches is a
divergence. Commands with an explicit key match by that key alone.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable
from typing import Generic, Protocol, TypeVar, cast

import msgspec
from msgspec import Raw

from holdfast.core import events as ev
from holdfast.core.events import Commanded, Event


class Recorded(msgspec.Struct):
    """A command as the history knows it."""

    cmd: str
    kind: str
    name: str
    args: Raw
    cause: int
    event: Commanded


class Ask(Protocol):
    """A command as code asks for it."""

    @property
    def kind(self) -> str: ...
    @property
    def name(self) -> str: ...
    @property
    def args(self) -> Raw: ...
    @property
    def key(self) -> str: ...
    @property
    def line(self) -> str: ...


class Asked(msgspec.Struct):
    """One that is recorded at once."""

    kind: str
    name: str
    args: Raw
    key: str
    line: str = ""


KINDS: dict[type[Event], str] = {
    ev.StepStarted: "s", ev.StepRetrying: "s", ev.StepLost: "s", ev.StepCompleted: "s", ev.StepFailed: "s",
    ev.StepCancelled: "s", ev.StepWithdrawn: "s", ev.StepHandedOver: "s", ev.OutcomeReused: "r",
    ev.ChildStarted: "c", ev.ChildAwaited: "w",
    ev.HookOpened: "h", ev.DataSet: "d", ev.TimeRead: "n", ev.Patched: "p", ev.Streamed: "o", ev.Planned: "g",
    ev.StepSkipped: "k", ev.StepRefused: "x",
    ev.EventEmitted: "e", ev.RequestAnswered: "a", ev.HookSent: "m",
}  # fmt: skip
WORDS = {
    "s": "step",
    "c": "child",
    "w": "wait for child",
    "h": "hook",
    "d": "set_data",
    "n": "utc_now",
    "p": "patched",
    "o": "stream",
    "g": "plan",
    "k": "skipped step",
    "x": "refused step",
    "e": "emit",
    "a": "answer to request",
    "m": "send",
}


_STEP = re.compile(r"\d*s")


def describe(kind: str, name: str, args: Raw) -> str:
    text = bytes(args).decode(errors="replace")
    text = "" if text in ("{}", "null") else text
    return f"{WORDS[kind]} {name!r}{' ' + (text if len(text) < 200 else text[:200] + '…') if text else ''}".strip()


def words_of(asked: Ask) -> str:
    return describe(asked.kind, asked.name, asked.args)


def is_keyed(cmd: str) -> bool:
    """Whether it is a command with a key: others begin with the number of their cause."""
    return cmd[1:2] == ":"


def command_id(kind: str, cause: int, place: int, key: str) -> str:
    return f"{kind}:{key}" if key else f"{cause}{kind}{place}"


class Ledger:
    """The recorded commands of the attempt that is replayed, by cause. Matching removes from it."""

    def __init__(self, history: Iterable[Event]) -> None:
        # Most causes have one command, which stays as it is until more than a look at it is needed.
        self._sole: dict[int, Commanded] = {}
        self._open: dict[int, dict[str, Recorded]] = {}
        self._keyed: dict[str, Recorded] = {}
        seen: set[str] = set()
        for event in history:
            kind = KINDS.get(type(event))
            if kind is None:
                continue
            command = cast("Commanded", event)
            cmd, cause = command.cmd, command.cause
            if kind == "r" and not _STEP.match(
                cmd
            ):  # an outcome that was reused; others than steps were recorded before
                continue
            if cmd in seen:
                if kind == "c":  # a child that a fork had yet to start
                    known = self._keyed.get(cmd) or self.open(cause)[cmd]
                    known.event = command
                continue
            seen.add(cmd)
            if is_keyed(cmd):
                self._open.setdefault(cause, {})
                self._keyed[cmd] = _recorded(command)
            elif cause in self._sole or cause in self._open:
                self.open(cause)[cmd] = _recorded(command)
            else:
                self._sole[cause] = command

    def is_new(self, cause: int) -> bool:
        """Whether there is nothing to match what `cause` leads to with."""
        return not self.knows(cause) and not self._keyed

    def knows(self, cause: int) -> bool:
        """Whether anything was recorded under `cause`, which is being delivered."""
        return cause in self._sole or cause in self._open

    def sole_step(self, cause: int, name: str, args: Raw) -> str:
        """The id of the only command of `cause`, if it is such a step without a key; else empty."""
        command = self._sole.get(cause)
        if command is None:
            known = self._open.get(cause, _NOTHING)
            if len(known) != 1:
                return ""
            command = next(iter(known.values())).event
        is_it = command.name == name and command.args == args and command.cmd == f"{cause}s0"
        return command.cmd if is_it else ""

    def keyed(self, cmd: str) -> Recorded | None:
        return self._keyed.pop(cmd, None)

    def keys_left_over(self) -> list[Recorded]:
        """What is recorded under a key and was not asked for."""
        return list(self._keyed.values())

    def open(self, cause: int) -> dict[str, Recorded]:
        """What is recorded under `cause` and was not asked for so far, of all kinds."""
        sole = self._sole.pop(cause, None)
        if sole is not None:
            self._open[cause] = {sole.cmd: _recorded(sole)}
        return self._open.get(cause, _NOTHING)

    def recorded_under(self, cause: int) -> list[Recorded]:
        """What is recorded under `cause` and was not asked for so far."""
        return list(self.open(cause).values())

    def left_over(self, cause: int) -> Iterable[Recorded]:
        """What is recorded under `cause` and was not asked for; nothing will be matched with it any more."""
        left = self.open(cause).values()
        self._open.pop(cause, None)
        return left

    def forget(self, cause: int) -> None:
        """The only command of `cause` was asked for; nothing will be matched with it any more."""
        if self._sole.pop(cause, None) is None:
            del self._open[cause]


def _recorded(event: Commanded) -> Recorded:
    kind = KINDS[type(event)]
    return Recorded(event.cmd, "s" if kind == "r" else kind, event.name, event.args, event.cause, event)


_NOTHING: dict[str, Recorded] = {}
A = TypeVar("A", bound=Ask)


class Match(Generic[A]):
    """One asked command with the recorded one it is, if any, and its id in the run."""

    __slots__ = ("asked", "changed", "cmd", "recorded")

    def __init__(self, asked: A, cmd: str, recorded: Recorded | None, changed: bool = False) -> None:
        self.asked = asked
        self.cmd = cmd
        self.recorded = recorded
        self.changed = changed


def match_one(ledger: Ledger, cause: int, kind: str, asked: A, place: int) -> Match[A]:
    """Match a command that is recorded as soon as it is asked for: all of its cause are recorded, or none."""
    if asked.key:
        return _by_key(ledger, cause, kind, asked)
    candidates = ledger.open(cause)
    recorded = candidates.get(command_id(kind, cause, place, ""))
    if recorded is None or recorded.name != asked.name or recorded.args != asked.args:
        same_name = [r for r in candidates.values() if r.kind == kind and r.name == asked.name]
        recorded = next((r for r in same_name if r.args == asked.args), same_name[0] if same_name else None)
    if recorded is None:
        return Match(asked, command_id(kind, cause, place, ""), None)
    del candidates[recorded.cmd]
    return Match(asked, recorded.cmd, recorded, changed=recorded.args != asked.args)


def match_all(ledger: Ledger, cause: int, kind: str, asked: list[A]) -> list[Match[A]]:
    """Match commands that are recorded only when something becomes of them, all that one cause led to."""
    if len(asked) == 1:
        return [match_one(ledger, cause, kind, asked[0], 0)]
    known = ledger.open(cause)
    candidates = {cmd: recorded for cmd, recorded in known.items() if recorded.kind == kind}
    places = set(candidates)
    found: dict[int, Match[A]] = {}

    def pair(index: int, recorded: Recorded) -> None:
        changed = recorded.args != asked[index].args
        found[index] = Match(asked[index], recorded.cmd, recorded, changed)
        del candidates[recorded.cmd], known[recorded.cmd]

    place = -1
    for index, a in enumerate(asked):
        if a.key:
            found[index] = _by_key(ledger, cause, kind, a)
            continue
        place += 1
        recorded = candidates.get(command_id(kind, cause, place, ""))
        if recorded is not None and recorded.name == a.name and recorded.args == a.args:
            pair(index, recorded)
    for same_args in (True, False):
        for index, a in enumerate(asked):
            if not candidates:
                break
            if index in found:
                continue
            for recorded in list(candidates.values()):
                if recorded.name == a.name and (recorded.args == a.args or not same_args):
                    pair(index, recorded)
                    break

    free = (cmd for n in itertools.count() if (cmd := command_id(kind, cause, n, "")) not in places)
    return [found.get(index) or Match(a, next(free), None) for index, a in enumerate(asked)]


def _by_key(ledger: Ledger, cause: int, kind: str, asked: A) -> Match[A]:
    cmd = command_id(kind, cause, 0, asked.key)
    recorded = ledger.keyed(cmd)
    return Match(asked, cmd, recorded, recorded is not None and recorded.args != asked.args)
