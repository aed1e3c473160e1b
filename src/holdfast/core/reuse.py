"""What earlier attempts of a run have achieved, so that a retry repeats only what failed.

An outcome is found by kind, name, arguments and occurrence. Occurrence is the order in which an attempt asked
for commands that look alike; of sleeps and hooks only the outcomes are recorded, so they are handed out in that
order. What a compensation has undone is never reused, and neither are compensations.
"""

from __future__ import annotations

import bisect
import heapq
from collections.abc import Iterable
from typing import TypeVar

from holdfast.core import events as ev
from holdfast.core.loop import WorkflowLoop

Key = tuple[str, str, str, bytes]
T = TypeVar("T")


class Child:
    """A child run of an earlier attempt: reusable if it completed, retried under its id if it failed."""

    __slots__ = ("child_id", "failed")

    def __init__(self, child_id: str) -> None:
        self.child_id = child_id
        self.failed = False


class EarlierOutcomes:
    """Hands out each reusable outcome once, in order of occurrence."""

    def __init__(self, history: Iterable[ev.Event]) -> None:
        self._outcomes: dict[Key, list[ev.Event | None]] = {}
        self._children: dict[Key, list[Child | None]] = {}
        self._origins: dict[Key, list[str | None]] = {}
        self._queues: dict[Key, list[ev.Event]] = {}
        self._asked: dict[Key, int] = {}
        attempt: list[ev.Event] = []
        by_seq: dict[int, ev.Event] = {}
        for event in history:
            by_seq[event.seq] = event
            if isinstance(event, ev.AttemptStarted):
                self._add(attempt, by_seq)
                attempt = []
            attempt.append(event)
        self._add(attempt, by_seq)
        for looks in [looks for looks in self._outcomes if looks[0] == "t"]:
            self._queues[looks] = [outcome for outcome in self._outcomes.pop(looks) if outcome is not None]

    @property
    def completed(self) -> int:
        """How many steps and children a retry would not do again."""
        return sum(outcome is not None for outcomes in self._outcomes.values() for outcome in outcomes)

    def claim(self, kind: str, name: str, args: bytes, key: str = "") -> tuple[ev.Event | None, Child | None]:
        """The outcome, or the child, that an earlier attempt has for the next command that looks like this."""
        looks = (kind, key, name, args)
        if kind in "th":
            queue = self._queues.get(looks)
            return queue.pop(0) if queue else None, None
        occurrence = self._asked.get(looks, 0)
        self._asked[looks] = occurrence + 1
        outcomes, children = self._outcomes.get(looks, ()), self._children.get(looks, ())
        return (
            outcomes[occurrence] if occurrence < len(outcomes) else None,
            children[occurrence] if occurrence < len(children) else None,
        )

    def origin(self, name: str, args: bytes, key: str = "") -> str:
        """The name by which an earlier attempt executed the step that is claimed next, "" if none did. What was
        undone begins anew, under a name of its own."""
        looks = ("s", key, name, args)
        origins, occurrence = self._origins.get(looks, ()), self._asked.get(looks, 0)
        return (origins[occurrence] if occurrence < len(origins) else None) or ""

    def give_back(self, outcome: ev.Event) -> None:
        """A sleep or a hook was dropped before its outcome was delivered. (Others are found by occurrence.)"""
        if isinstance(outcome, ev.TimerFired | ev.HookReceived):
            bisect.insort(self._queues.setdefault(_looks_of(outcome), []), outcome, key=lambda event: event.seq)

    def unread(self) -> list[ev.HookReceived]:
        """Payloads that the code has not asked for yet."""
        return [event for queue in self._queues.values() for event in queue if isinstance(event, ev.HookReceived)]

    def _add(self, attempt: list[ev.Event], by_seq: dict[int, ev.Event]) -> None:
        """Take in one attempt: it overrides earlier ones where it achieved or undid something."""
        commands: dict[str, Key] = {}
        places: dict[str, tuple[int, int]] = {}
        outcomes: dict[str, ev.Event] = {}
        children: dict[str, Child] = {}
        undone: set[str] = set()
        for event in attempt:
            if isinstance(event, ev.HookReceived):
                self._queues.setdefault(_looks_of(event), []).append(event)
            if not isinstance(event, ev.Commanded):
                continue
            cmd = event.cmd
            undoes = getattr(event, "undoes", "")
            if undoes:
                undone |= {undoes, cmd}
            if cmd not in commands:
                looks = _looks_of(event)
                if looks[0] not in "sct":
                    continue
                commands[cmd] = looks
                places[cmd] = _place(event)
            if isinstance(event, ev.ChildStarted):
                children[cmd] = Child(event.child_id)
            elif isinstance(event, ev.ChildFailed | ev.ChildCancelled | ev.ChildDropped):
                children[cmd].failed = True
            elif isinstance(event, ev.StepCompleted | ev.ChildCompleted) or (
                isinstance(event, ev.TimerFired) and event.sleep
            ):
                outcomes[cmd] = event
            elif isinstance(event, ev.OutcomeReused):
                outcomes[cmd] = by_seq[event.source]
        number = next((event.attempt for event in attempt if isinstance(event, ev.AttemptStarted)), 1)
        occurrences: dict[Key, int] = {}
        for cmd in sorted(commands, key=places.__getitem__):
            looks = commands[cmd]
            occurrence = occurrences[looks] = occurrences.get(looks, -1) + 1
            if cmd in undone:
                _put(self._outcomes, looks, occurrence, None)
                _put(self._children, looks, occurrence, None)
                _put(self._origins, looks, occurrence, None)
                continue
            origins = self._origins.get(looks, [])
            if occurrence >= len(origins) or origins[occurrence] is None:
                _put(self._origins, looks, occurrence, origin_of(cmd, number))
            if cmd in outcomes:
                _put(self._outcomes, looks, occurrence, outcomes[cmd])
            if cmd in children:
                _put(self._children, looks, occurrence, children[cmd])


class Reuse:
    """Which commands of this attempt get an outcome of an earlier one: it is `promised` to them, and delivered when its
    turn comes. `earlier` is None in the first attempt."""

    __slots__ = ("earlier", "promised", "turns")

    def __init__(self) -> None:
        self.earlier: EarlierOutcomes | None = None
        self.promised: dict[str, ev.Event] = {}
        self.turns: list[tuple[int, str]] = []

    def claim(self, kind: str, name: str, args: bytes, cmd: str, key: str = "") -> Child | None:
        """Look for what an earlier attempt has: an outcome, or a child that may have failed."""
        if self.earlier is None:
            return None
        outcome, child = self.earlier.claim(kind, name, args, key)
        if outcome is not None:
            self.promised[cmd] = outcome
            heapq.heappush(self.turns, (outcome.seq, cmd))
        return child

    def give_back(self, cmd: str) -> None:
        """Whatever was to get an earlier outcome is gone before it came; the next that looks alike gets it."""
        outcome = self.promised.pop(cmd, None)
        if outcome is not None and self.earlier is not None:
            self.earlier.give_back(outcome)

    def claim_sleeps(self, loop: WorkflowLoop) -> None:
        promised, timers = self.promised, loop.timers.by_id
        for cmd in [c for c, outcome in promised.items() if isinstance(outcome, ev.TimerFired) and c not in timers]:
            self.give_back(cmd)
        for timer in timers.values():
            if timer.sleep and timer.id not in promised:
                self.claim("t", "", b"%d" % timer.delay, timer.id)

    def next_turn(self) -> tuple[int, str] | None:
        """The command that is next to get its outcome, lowest recorded number first, with that number."""
        while self.turns:
            seq, cmd = heapq.heappop(self.turns)
            if cmd in self.promised:
                return seq, cmd
        return None


def origin_of(cmd: str, attempt: int) -> str:
    """A name for a command that no other of the run has: a command with a key has the same id in every attempt."""
    return f"{cmd}:{attempt}" if ":" in cmd and attempt > 1 else cmd


def _looks_of(event: ev.Event) -> Key:
    if isinstance(event, ev.HookReceived):
        return ("h", "", event.name, event.key.encode())
    if isinstance(event, ev.TimerFired):
        return ("t", "", "", b"%d" % event.delay)
    assert isinstance(event, ev.Commanded)
    message = event.cmd.lstrip("0123456789")[0]
    return (message, event.cmd.partition(":")[2], event.name, bytes(event.args))


def _place(event: ev.Commanded) -> tuple[int, int]:
    tail = event.cmd.lstrip("0123456789")[1:]
    return event.cause, int(tail) if tail.isdigit() else 0


def _put(table: dict[Key, list[T | None]], looks: Key, occurrence: int, entry: T | None) -> None:
    entries = table.setdefault(looks, [])
    entries.extend([None] * (occurrence + 1 - len(entries)))
    entries[occurrence] = entry
