"""Hints between processes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from enum import StrEnum
from typing import Protocol


class Topic(StrEnum):
    """What a hint is about, so that a worker asks only for that: runs to be claimed, messages to runs, domain events,
    schedules, attempts to be claimed, attempts that are not wanted any more, those who watch."""

    EVERYTHING = "*"
    RUNS = "runs"
    INBOX = "inbox"
    EVENTS = "events"
    SCHEDULES = "schedules"
    ATTEMPTS = "attempts"
    DROPPED = "dropped"
    WATCHERS = "watchers"


FOR_EXECUTORS = frozenset({Topic.ATTEMPTS, Topic.DROPPED})
"""What concerns only those who execute attempts of others."""
FOR_ALL = frozenset({Topic.EVERYTHING, Topic.WATCHERS})
"""What concerns every worker; all else is for engines."""

OnRing = Callable[[Topic], None]
OnTold = Callable[[str, Sequence[int]], None]


class Notifier(Protocol):
    """Push between processes: hints only. A lost hint costs a moment, a needless one costs a look."""

    def listen(self, topics: Collection[Topic], on_ring: OnRing, on_told: OnTold) -> str:
        """Call `on_ring` from some thread whenever one should look who cares for these topics (and perhaps for others),
        `on_told` if it was told which runs to look at; the address others ring at."""

    def ring(self, topic: Topic, everyone: bool = False) -> None:
        """Something was put where an engine should look: one of this app, or of any."""

    def tell(self, owner: str, runs: Sequence[int]) -> None:
        """Messages were put into the inboxes of these runs, which that worker of this app owned: nobody else has to
        look, and it has to look at nothing else."""
        self.ring(Topic.INBOX)

    def announce(self, run_ids: Iterable[str]) -> None:
        """These runs have changed in a way that somebody may wait for."""

    def watch(self, run_id: str) -> Watch:
        """Be told when `announce` names the run."""

    can_watch_many: bool = False
    """Whether there is `watch_many`."""

    def watch_many(self) -> Watches:
        """Be told when `announce` names one of any number of runs, none at first. It may take a while, and is for one thread:
        nothing but `wake` is called by others."""
        raise AssertionError(f"{self!r} can't watch many")

    def close(self) -> None: ...


class Watch(Protocol):
    def wait(self, timeout: float) -> Collection[str]:
        """Block until a run was announced, or the time is over; the runs that were. It may be woken for nothing."""

    def close(self) -> None: ...


class Watches(Watch, Protocol):
    def add(self, run_ids: Collection[str]) -> None:
        """Whatever is announced of these runs from now on ends a `wait`."""

    def drop(self, run_id: str) -> None:
        """Nobody waits for it any more."""

    def wake(self) -> None:
        """End a `wait` of another thread."""
