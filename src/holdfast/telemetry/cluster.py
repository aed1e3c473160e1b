"""What a cluster is doing, told by its telemetry events: fed in any order, with duplicates and gaps, they give the
same state.

Bounds are kept by forgetting what is oldest in the order of events. As long as nothing had to be forgotten the state
depends on nothing but the set of events; after that, still, which steps are known does.
"""

from __future__ import annotations

import functools
import itertools
import os
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Generic, TypeVar

import msgspec

from holdfast.errors import DecodeError
from holdfast.telemetry.events import SENT, Seen, read
from holdfast.telemetry.population import Population
from holdfast.telemetry.records import Record, RunInfo, StepInfo, Subject, WorkerInfo, WorkerRecord
from holdfast.telemetry.states import RUN_RULES, STEP_RULES, Rules

FORMAT = "holdfast cluster state"
VERSION = 1
S = TypeVar("S", bound=Subject)


class Subjects(Mapping[str, S], Generic[S]):
    """Steps or runs by id, oldest first: a live view, whose values are what is known at the moment they are asked for.
    Other threads may go on feeding the state; iterate over `ClusterState.newest()` then, or over a copy of the ids."""

    def __init__(self, limit: int, rules: Rules, view: type[S], lock: threading.RLock) -> None:
        self._population = Population(limit, functools.partial(Record, rules=rules))
        self._view = view
        self._lock = lock
        self._children: dict[str, set[str]] = {}
        self._highest = 0  # the highest clock of all that have come, clients' apart

    def __getitem__(self, id: str) -> S:
        with self._lock:
            return self._show(self._population.records[id])

    def __iter__(self) -> Iterator[str]:
        with self._lock:
            return iter([record.id for record in self._newest()][::-1])

    def __len__(self) -> int:
        return len(self._population.records)

    def __contains__(self, id: object) -> bool:
        return isinstance(id, str) and id in self._population.records

    def _add(self, seen: Seen, age: int | None = None) -> bool:
        population = self._population
        if seen.kind == SENT and seen.id not in population.records and seen.id in population.forgotten:
            return False  # what came of it has been and gone
        record = population.get(seen.id)
        before = record.text("parent_id")
        changed = record.add(seen)
        self._link(record.id, before, record.text("parent_id"))
        if record.is_followed:
            self._highest = max(self._highest, record.key[0])
            place = record.key
        else:  # its own clock is that of a client: it is as old as what had come before it
            place = record.age or (self._highest if age is None else age, *record.key[1:])
        for gone in population.place(record, place):
            self._link(gone.id, gone.text("parent_id"), None)
            changed = changed and gone is not record
        return changed

    def _link(self, child: str, before: str | None, now: str | None) -> None:
        if before == now:
            return
        if before is not None and (children := self._children.get(before)) is not None:
            children.discard(child)
            if not children:
                del self._children[before]
        if now is not None:
            self._children.setdefault(now, set()).add(child)

    def _newest(self, limit: int | None = None) -> Iterator[Record]:
        """Newest first. What has only been sent has no place by its clock, and gets one by its time."""
        records = self._population.records.values()
        followed = sorted((each for each in records if each.is_followed), key=_place, reverse=True)
        waiting = sorted((each for each in records if not each.is_followed), key=_time, reverse=True)
        return itertools.islice(_merge(followed, waiting), limit)

    def _show(self, record: Record) -> S:
        attempts = record.attempts()
        last = attempts[-1]
        records = self._population.records
        children = sorted(self._children.get(record.id, ()), key=lambda id: (records[id].key, id))
        return self._view(
            id=record.id, state=last.state, ready=last.state in record.rules.ready, name=record.text("name"),
            args=record.said("args"), kwargs=record.said("kwargs"), queue=record.text("queue"),
            parent=record.text("parent_id"), root=record.text("root_id"), run_id=record.text("run_id"),
            worker=last.worker, attempt=last.number, clock=last.clock, timestamp=last.timestamp, fields=last.fields,
            attempts=attempts, children=tuple(children),
        )  # fmt: skip

    def _states(self) -> Counter[str]:
        return Counter(record.state for record in self._population.records.values())


def _place(record: Record) -> Any:
    return record.key, record.id


def _time(record: Record) -> Any:
    return record.key[1:], record.id


def _merge(followed: list[Record], waiting: list[Record]) -> Iterator[Record]:
    rest = iter(waiting)
    next_waiting = next(rest, None)
    for record in followed:
        while next_waiting is not None and next_waiting.key[1] >= record.key[1]:
            yield next_waiting
            next_waiting = next(rest, None)
        yield record
    if next_waiting is not None:
        yield next_waiting
    yield from rest


class Workers(Mapping[str, WorkerInfo]):
    """Workers by origin: a live view."""

    def __init__(self, limit: int, now: Callable[[], float], lock: threading.RLock) -> None:
        self._population = Population(limit, WorkerRecord)
        self._now = now
        self._lock = lock

    def __getitem__(self, origin: str) -> WorkerInfo:
        with self._lock:
            return self._population.records[origin].view(self._now())

    def __iter__(self) -> Iterator[str]:
        with self._lock:
            return iter(sorted(self._population.records))

    def __len__(self) -> int:
        return len(self._population.records)

    def _add(self, seen: Seen) -> bool:
        now = self._now()
        received_at = now if seen.received_at is None else min(seen.received_at, now)
        record = self._population.get(seen.id)
        changed = record.add(msgspec.structs.replace(seen, received_at=received_at))
        return record not in self._population.place(record, record.key) and changed


class ClusterState:
    """Steps, runs and workers as telemetry events tell of them. Safe to use from any thread.

    A step's highest attempt counts, and in it the state that is strongest in `STEP_PRECEDENCE`. A late event never
    moves a state back and never overwrites what newer events say; it fills in what was missing. `now` is the local
    clock by which workers are alive: they are while we have heard from them within five heartbeats.
    """

    def __init__(
        self,
        *,
        max_steps: int = 10_000,
        max_workers: int = 1_000,
        max_runs: int = 10_000,
        now: Callable[[], float] = time.time,
    ) -> None:
        limits: dict[str, object] = {"max_steps": max_steps, "max_workers": max_workers, "max_runs": max_runs}
        for name, limit in limits.items():
            if not isinstance(limit, int) or isinstance(limit, bool) or limit < 1:
                raise ValueError(f"{name} is {limit!r}; it takes a whole number from 1 on")
        self._lock = threading.RLock()
        self.steps = Subjects(max_steps, STEP_RULES, StepInfo, self._lock)
        self.runs = Subjects(max_runs, RUN_RULES, RunInfo, self._lock)
        self.workers = Workers(max_workers, now, self._lock)

    def apply(self, event: object) -> bool:
        """Take in one event; whether it says anything new. What is no telemetry event changes nothing."""
        seen = read(event)
        if seen is None:
            return False
        with self._lock:
            return self._add(seen)

    def apply_many(self, events: Iterable[object]) -> int:
        """Take in events; how many of them say anything new."""
        return sum(self.apply(event) for event in events)

    def _add(self, seen: Seen) -> bool:
        if seen.family == "worker":
            return self.workers._add(seen)
        return (self.steps if seen.family == "step" else self.runs)._add(seen)

    @property
    def counts(self) -> Counter[str]:
        """How many of the known steps are in each state."""
        with self._lock:
            return self.steps._states()

    @property
    def run_counts(self) -> Counter[str]:
        """How many of the known runs are in each state."""
        with self._lock:
            return self.runs._states()

    def newest(self, limit: int | None = None) -> list[StepInfo]:
        """The newest steps, all or as many as `limit` says, newest first: by the place of their last event in the
        order. Steps of which only `step-sent` is known are placed among them by their time."""
        with self._lock:
            return [self.steps._show(record) for record in self.steps._newest(limit)]

    def newest_runs(self, limit: int | None = None) -> list[RunInfo]:
        """The newest runs, newest first."""
        with self._lock:
            return [self.runs._show(record) for record in self.runs._newest(limit)]

    # -- keeping it

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the state to a file, which is replaced as a whole: a crash leaves the old one or the new one."""
        target = Path(path)
        lines = self._lines()
        handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(msgspec.json.Encoder().encode_lines(lines))
                file.flush()
                os.fsync(file.fileno())
            os.replace(name, target)
        except BaseException:
            os.unlink(name)
            raise

    def _lines(self) -> list[dict[str, Any]]:
        """A header, then what is kept of each step, run and worker."""
        with self._lock:
            families: dict[str, Subjects[Any]] = {"step": self.steps, "run": self.runs}
            lines: list[dict[str, Any]] = [
                {"age": record.age and record.age[0], "events": [seen.to_event() for seen in record.kept()]}
                for family in families.values()
                for record in family._population.records.values()
            ]
            lines += [
                {"events": [seen.to_event() for seen in worker.kept()]}
                for worker in self.workers._population.records.values()
            ]
            header = {
                "format": FORMAT, "version": VERSION, "records": len(lines),
                "max_steps": self.steps._population.limit, "max_runs": self.runs._population.limit,
                "max_workers": self.workers._population.limit,
                "forgotten": {name: list(family._population.forgotten) for name, family in families.items()},
            }  # fmt: skip
        return [header, *lines]

    @classmethod
    def load(cls, path: str | os.PathLike[str], *, now: Callable[[], float] = time.time) -> ClusterState:
        """The state that was saved, with its bounds. DecodeError if the file is damaged or something else."""
        try:
            header, *lines = msgspec.json.Decoder().decode_lines(Path(path).read_bytes())
            if header["format"] != FORMAT or header["version"] != VERSION or header["records"] != len(lines):
                raise ValueError("another format, or cut short")
            bounds = {name: header[name] for name in ("max_steps", "max_runs", "max_workers")}
            state = cls(**bounds, now=now)
            for line in lines:
                state._restore(line["events"], line.get("age"))
            families: dict[str, Subjects[Any]] = {"step": state.steps, "run": state.runs}
            for name, family in families.items():
                family._population.forgotten.update(dict.fromkeys(header["forgotten"][name]))
        except (msgspec.MsgspecError, ValueError, TypeError, LookupError, AttributeError) as error:
            raise DecodeError(
                f"{os.fspath(path)} is no cluster state that this version has saved ({error}); "
                "delete it, and begin with an empty ClusterState()"
            ) from error
        return state

    def _restore(self, events: list[object], age: int | None) -> None:
        for event in events:
            seen = read(event)
            if seen is None:
                raise ValueError(f"no event: {event!r}"[:200])
            if seen.family == "worker":
                self.workers._add(seen)
            else:
                (self.steps if seen.family == "step" else self.runs)._add(seen, age)
