"""What is kept of the events of one step, run or worker, and the state that follows from it.

Each part is kept by a rule that gives the same whatever comes first and however often: the newest, or the newest so
many. So a state is a function of the set of events, and adding what is kept to an empty record gives it back.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from holdfast.telemetry.events import SENT, Key, Seen
from holdfast.telemetry.states import RETRIED, Rules

LASTING = ("name", "args", "kwargs", "parent_id", "root_id", "run_id", "queue")
"""What holds for a step or run as a whole: the newest event that says it counts, whichever attempt it belongs to."""
MAX_SLOTS = 128
"""Kinds of events, of numbered attempts and of others, that are kept of one step or run."""
MAX_LOOSE = 32
MAX_RETRIED = 256
"""Events of one kind without an attempt that are kept: any of them may be the newest of an attempt, depending on
`retried` events that are yet to come."""
MAX_HEARTBEATS = 60
BEAT = 2.0
MISSED_BEATS = 5


def _by_key(seen: Seen) -> Key:
    return seen.key


def _add(events: list[Seen], seen: Seen, limit: int) -> bool:
    """Keep the newest `limit` events, in order; whether anything has changed."""
    at = bisect.bisect_left(events, seen.key, key=_by_key)
    if at < len(events) and events[at].key == seen.key:
        return False
    if len(events) >= limit:
        if at == 0:
            return False
        del events[0]
        at -= 1
    events.insert(at, seen)
    return True


@dataclass(frozen=True, slots=True)
class AttemptState:
    """One attempt of a step or run, as far as events tell. `times` are the senders' times by kind of event, `fields`
    what the events that led to its state say."""

    number: int
    state: str
    worker: str | None
    clock: int
    timestamp: float
    times: dict[str, float]
    fields: dict[str, Any]

    @property
    def result(self) -> Any:
        """What it returned, if it did and the event says so."""
        return self.fields.get("result")

    @property
    def exception(self) -> Any:
        """What it failed with."""
        return self.fields.get("exception")


@dataclass(frozen=True, slots=True)
class Subject:
    """A step or run, as far as events tell. `clock`, `timestamp`, `worker` and `fields` are those of the events that
    led to its state; `name`, `args`, `parent` and the like of the newest event that says them."""

    id: str
    state: str
    ready: bool
    name: str | None
    args: Any
    kwargs: Any
    queue: str | None
    parent: str | None
    root: str | None
    worker: str | None
    attempt: int
    clock: int
    timestamp: float
    fields: dict[str, Any]
    attempts: tuple[AttemptState, ...]
    run_id: str | None = None
    children: tuple[str, ...] = ()

    @property
    def result(self) -> Any:
        """What it returned, if it did and the event says so."""
        return self.fields.get("result")

    @property
    def exception(self) -> Any:
        """What its newest attempt failed with."""
        return self.fields.get("exception")

    @property
    def times(self) -> dict[str, float]:
        """When it was sent, received, started and so on: the senders' times by kind of event, of all its attempts the
        newest that tells."""
        return {kind: time for attempt in self.attempts for kind, time in attempt.times.items()}


class StepInfo(Subject):
    """A step, as far as events tell."""

    __slots__ = ()


class RunInfo(Subject):
    """A run, as far as events tell."""

    __slots__ = ()


class Record:
    """The events of one step or run that matter. `age` is its place among others, for who is forgotten first."""

    __slots__ = ("_loose", "_newest", "_numbered", "_said", "_view", "age", "id", "is_followed", "rules")

    def __init__(self, id: str, rules: Rules) -> None:
        self.id = id
        self.rules = rules
        self.age: Key | None = None
        self.is_followed = False  # by anything but `sent`
        self._numbered: dict[tuple[int, str], Seen] = {}
        self._loose: dict[str, list[Seen]] = {}
        self._said: dict[str, Seen] = {}
        self._newest: Seen | None = None
        self._view: tuple[AttemptState, ...] | None = None

    @property
    def key(self) -> Key:
        """The place in the order: that of the newest event, a client's only if there is no other."""
        assert self._newest is not None
        return self._newest.key

    def add(self, seen: Seen) -> bool:
        """Take in an event; whether it says anything new."""
        changed = self._slot(seen)
        for name in LASTING:
            if seen.fields.get(name) is not None and _outranks(seen, self._said.get(name)):
                self._said[name], changed = seen, True
        if _outranks(seen, self._newest):
            self._newest, changed = seen, True
        self.is_followed = self.is_followed or seen.kind != SENT
        if changed:
            self._view = None
        return changed

    def _slot(self, seen: Seen) -> bool:
        if seen.attempt is None:
            events = self._loose.setdefault(seen.kind, [])
            changed = _add(events, seen, MAX_RETRIED if seen.kind == RETRIED else MAX_LOOSE)
            if len(self._loose) > MAX_SLOTS:
                del self._loose[min(self._loose, key=lambda kind: self._loose[kind][-1].key)]
            return changed and seen.kind in self._loose
        slot = (seen.attempt, seen.kind)
        known = self._numbered.get(slot)
        if known is not None and known.key >= seen.key:
            return False
        self._numbered[slot] = seen
        if len(self._numbered) > MAX_SLOTS:
            del self._numbered[min(self._numbered, key=lambda each: (each[0], self._numbered[each].key))]
        return slot in self._numbered

    def kept(self) -> list[Seen]:
        """Every event that is kept, in order."""
        events = {id(seen): seen for seen in (*self._all(), *self._said.values(), self._newest) if seen is not None}
        return sorted(events.values(), key=_by_key)

    def _all(self) -> Iterator[Seen]:
        yield from self._numbered.values()
        for events in self._loose.values():
            yield from events

    def said(self, name: str) -> Any:
        """What the newest event that says it says."""
        seen = self._said.get(name)
        return None if seen is None else seen.fields[name]

    def text(self, name: str) -> str | None:
        said = self.said(name)
        return said if said is None or isinstance(said, str) else repr(said)

    @property
    def state(self) -> str:
        return self.attempts()[-1].state

    def attempts(self) -> tuple[AttemptState, ...]:
        """The attempts, in order of their numbers. Worked out when it is asked for."""
        if self._view is None:
            events, opened = self._by_attempt()
            numbers = sorted({*events, *opened})
            self._view = tuple(self._judge(number, events.get(number, []), opened.get(number)) for number in numbers)
        return self._view

    def _by_attempt(self) -> tuple[dict[int, list[Seen]], dict[int, Seen]]:
        """The events of each attempt, in order, and the `retried` events that opened one. What doesn't say its attempt
        belongs to the one that was under way by then; a `retried` event whose own attempt went on opened nothing."""
        events: dict[int, list[Seen]] = {}
        opened: dict[int, Seen] = {}
        current = 1
        in_order = sorted(self._all(), key=_by_key)
        for seen in in_order:
            if seen.kind != SENT:
                number = current if seen.attempt is None else seen.attempt
                events.setdefault(number, []).append(seen)
                opened.pop(number + 1, None)
                current = max(current, number)
                if seen.kind == RETRIED:
                    opened[number + 1] = seen
                    current = max(current, number + 1)
        first = min(events, default=1)
        for seen in reversed(in_order):
            if seen.kind == SENT:
                events.setdefault(first if seen.attempt is None else seen.attempt, []).insert(0, seen)
        return events, opened

    def _judge(self, number: int, events: list[Seen], opened_by: Seen | None) -> AttemptState:
        state, led = self._lead(events)
        if events and events[-1].kind == RETRIED and state not in self.rules.ready:
            state, led = "RETRY", events[-1:]
        fields: dict[str, Any] = {}
        for seen in led:
            fields.update((name, value) for name, value in seen.fields.items() if value is not None)
        last = led[-1] if led else opened_by
        assert last is not None
        return AttemptState(
            number=number, state=state, worker=_worker(led, events), clock=last.clock,
            timestamp=last.timestamp, times={seen.kind: seen.timestamp for seen in events}, fields=fields,
        )  # fmt: skip

    def _lead(self, events: list[Seen]) -> tuple[str, list[Seen]]:
        """The state of an attempt, and the events that lead to it."""
        rules = self.rules
        states = [(rules.state_of(seen.kind), seen) for seen in events if seen.kind != RETRIED]
        if not states:
            return rules.opened, []
        best = min(rules.rank_of(state) for state, _ in states)
        state = [state for state, _ in states if rules.rank_of(state) == best][-1]
        return state, [seen for each, seen in states if each == state]


def _outranks(seen: Seen, known: Seen | None) -> bool:
    """Whether an event is newer than what is known. A client's `sent` is older than anything else: its clock is its own."""
    if known is None or (seen.kind == SENT) != (known.kind == SENT):
        return known is None or known.kind == SENT
    return seen.key > known.key


def _worker(led: list[Seen], events: list[Seen]) -> str | None:
    """Who executes an attempt: as its events say, those that led to its state first; else who sent them. Cancelling,
    and trying again, is others' work."""
    best_last = [*events, *led]
    named = [seen.fields["worker"] for seen in best_last if isinstance(seen.fields.get("worker"), str)]
    senders = [seen for seen in best_last if seen.kind != SENT and seen.origin]
    executing = [seen.origin for seen in senders if seen.kind not in ("cancelled", RETRIED)]
    found = named or executing or [seen.origin for seen in senders]
    return found[-1] if found else None


@dataclass(frozen=True, slots=True)
class WorkerInfo:
    """A worker, as far as events tell. `heartbeats` are its own times of the newest ones; `drift` is how far its clock
    was behind ours when we heard from it last, in seconds, delivery included."""

    origin: str
    alive: bool
    online: bool
    heartbeats: tuple[float, ...]
    drift: float
    received_at: float
    clock: int
    timestamp: float
    fields: dict[str, Any] = field(default_factory=dict)


class WorkerRecord:
    """The events of one worker that matter."""

    __slots__ = ("_beats", "_newest", "_said", "age", "id")

    def __init__(self, id: str) -> None:
        self.id = id
        self.age: Key | None = None
        self._beats: list[Seen] = []
        self._said: dict[str, Seen] = {}
        self._newest: Seen | None = None

    @property
    def key(self) -> Key:
        assert self._newest is not None
        return self._newest.key

    def add(self, seen: Seen) -> bool:
        """Take in an event; whether it says anything new. One that is known, or older, is no sign of life."""
        changed = seen.kind == "heartbeat" and _add(self._beats, seen, MAX_HEARTBEATS)
        for name, value in seen.fields.items():
            known = self._said.get(name)
            if value is not None and (known is None or seen.key > known.key):
                self._said[name], changed = seen, True
        if len(self._said) > MAX_SLOTS:
            for name in sorted(self._said, key=lambda name: (self._said[name].key, name))[:-MAX_SLOTS]:
                del self._said[name]
        if self._newest is None or seen.key > self._newest.key:
            self._newest, changed = seen, True
        return changed

    def kept(self) -> list[Seen]:
        """Every event that is kept, in order."""
        events = {id(seen): seen for seen in (*self._beats, *self._said.values(), self._newest) if seen is not None}
        return sorted(events.values(), key=_by_key)

    def view(self, now: float) -> WorkerInfo:
        newest = self._newest
        assert newest is not None
        received_at = newest.received_at or 0.0
        fields = {name: self._said[name].fields[name] for name in sorted(self._said)}
        beat = fields.get("freq")
        beat = beat if isinstance(beat, int | float) and not isinstance(beat, bool) and 0 < beat < 3600 else BEAT
        online = newest.kind != "offline"
        return WorkerInfo(
            origin=self.id, alive=online and now - received_at <= beat * MISSED_BEATS, online=online,
            heartbeats=tuple(seen.timestamp for seen in self._beats), drift=received_at - newest.timestamp,
            received_at=received_at, clock=newest.clock, timestamp=newest.timestamp, fields=fields,
        )  # fmt: skip
