"""What earlier attempts of a run have achieved, so that a retry repeats only what failed.

An outcome is found by kind, name, arguments and occurrence. Occurrence is the order in which an attempt asked
for commands that look alike. What a compensation has undone is never reused, and neither are compensations.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

from holdfast.core import events as ev

Key = tuple[str, str, bytes]
T = TypeVar("T")


class Child:
    """A child run of an earlier attempt: reusable if it completed, retried under its id if it did not."""

    __slots__ = ("child_id", "waited")

    def __init__(self, child_id: str, waited: bool) -> None:
        self.child_id = child_id
        self.waited = waited


class Memo:
    """Hands out each reusable outcome once, in order of occurrence."""

    def __init__(self, history: Iterable[ev.Event]) -> None:
        self._outcomes: dict[Key, list[ev.Event | None]] = {}
        self._children: dict[Key, list[Child | None]] = {}
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

    def claim(self, kind: str, name: str, args: bytes, key: str = "") -> tuple[ev.Event | None, Child | None]:
        """The outcome, or the child, that an earlier attempt has for the next command that looks like this."""
        looks = _looks(kind, name, args, key)
        occurrence = self._asked.get(looks, 0)
        self._asked[looks] = occurrence + 1
        outcomes, children = self._outcomes.get(looks, ()), self._children.get(looks, ())
        return (
            outcomes[occurrence] if occurrence < len(outcomes) else None,
            children[occurrence] if occurrence < len(children) else None,
        )

    def _add(self, attempt: list[ev.Event], by_seq: dict[int, ev.Event]) -> None:
        """Take in one attempt: it overrides earlier ones where it achieved or undid something."""
        commands: dict[str, Key] = {}
        places: dict[str, tuple[int, int]] = {}
        outcomes: dict[str, ev.Event] = {}
        children: dict[str, Child] = {}
        undone: set[str] = set()
        received: dict[Key, list[ev.Event]] = {}
        for event in attempt:
            if isinstance(event, ev.HookReceived):
                received.setdefault(_looks("h", event.name, event.key.encode(), ""), []).append(event)
            if not isinstance(event, ev.Commanded):
                continue
            cmd = event.cmd
            undoes = getattr(event, "undoes", "")
            if undoes:
                undone |= {undoes, cmd}
            if cmd not in commands:
                looks = _looks_of(event)
                if looks is None:
                    continue
                commands[cmd] = looks
                places[cmd] = _place(event)
            if isinstance(event, ev.ChildStarted):
                children[cmd] = Child(event.child_id, event.waited)
            elif isinstance(event, ev.StepCompleted | ev.ChildCompleted) or (
                isinstance(event, ev.TimerFired) and event.sleep
            ):
                outcomes[cmd] = event
            elif isinstance(event, ev.OutcomeReused):
                outcomes[cmd] = by_seq[event.source]
        occurrences: dict[Key, int] = {}
        for cmd in sorted(commands, key=places.__getitem__):
            looks = commands[cmd]
            occurrence = occurrences[looks] = occurrences.get(looks, -1) + 1
            if cmd in undone:
                _put(self._outcomes, looks, occurrence, None)
                _put(self._children, looks, occurrence, None)
                continue
            if cmd in outcomes:
                _put(self._outcomes, looks, occurrence, outcomes[cmd])
            if cmd in children:
                _put(self._children, looks, occurrence, children[cmd])
        for looks, payloads in received.items():
            self._outcomes.setdefault(looks, []).extend(payloads)


def _looks(kind: str, name: str, args: bytes, key: str) -> Key:
    return (kind, f"key {key}", b"") if key else (kind, name, args)


def _looks_of(event: ev.Commanded) -> Key | None:
    if isinstance(event, ev.TimerFired):
        return ("t", "", b"%d" % event.delay)
    letter = event.cmd.lstrip("0123456789")[0]
    if letter not in "sct":
        return None
    _, keyed, key = event.cmd.partition(":")
    return _looks(letter, event.name, bytes(event.args), key if keyed else "")


def _place(event: ev.Commanded) -> tuple[int, int]:
    tail = event.cmd.lstrip("0123456789")[1:]
    return event.cause, int(tail) if tail.isdigit() else 0


def _put(table: dict[Key, list[T | None]], looks: Key, occurrence: int, entry: T | None) -> None:
    entries = table.setdefault(looks, [])
    entries.extend([None] * (occurrence + 1 - len(entries)))
    entries[occurrence] = entry
