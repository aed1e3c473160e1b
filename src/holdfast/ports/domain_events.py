"""Domain events, and who is told of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec

from holdfast.ports.database import Database
from holdfast.ports.messages import Message
from holdfast.ports.runs import NewRun, RunRow


class Emission(msgspec.Struct, kw_only=True, gc=False):
    """A domain event to be emitted. `run_id` and `cmd` say by what. Nothing that a `quiet` one sets in motion is news."""

    id: str
    name: str
    key: str
    payload: bytes
    correlation: str
    ts: int
    run_id: str | None = None
    cmd: str = ""
    quiet: bool = False


class Subscription(msgspec.Struct, kw_only=True, gc=False):
    """What listens to the domain events of one name: a `target` that each of them starts, or the command `cmd` of a
    run, which waits for one. `spec` is for whoever delivers. Those with the same `path` compare the same place of the
    payload, and are found by their `lookup`, which tells the value; both are empty for those that are always asked."""

    event: str
    target: str = ""
    cmd: str = ""
    spec: bytes = b"{}"
    path: str = ""
    lookup: str = ""


class Unsubscription(msgspec.Struct, kw_only=True, gc=False):
    """The command `cmd` of a run no longer waits for an event."""

    cmd: str


class DomainEventRow(msgspec.Struct, kw_only=True, gc=False):
    """A domain event as it was emitted."""

    no: int
    app: str
    id: str
    name: str
    key: str
    payload: bytes
    correlation: str
    run_id: str | None
    cmd: str
    quiet: bool
    ts: int


class Arrival(msgspec.Struct, kw_only=True, gc=False):
    """A domain event that subscriptions of this app, up to the number `upto`, have yet to get: those after `after`.
    `paths` are the places of the payload that they compare."""

    id: int
    event: DomainEventRow
    after: int
    upto: int
    paths: list[str]


class Listener(msgspec.Struct, kw_only=True, gc=False):
    """A subscription, with its number. `run_id` is the run that waits."""

    no: int
    target: str
    run_id: str | None
    cmd: str
    spec: bytes


class Delivery(msgspec.Struct, kw_only=True):
    """What an arrival leads to: runs to start, messages to subscriptions by number, each of which ends with it. Those
    up to `reached` have then got it; None if all have."""

    arrival: Arrival
    reached: int | None
    runs: list[NewRun] = []
    messages: list[tuple[int, Message]] = []


class Reach(msgspec.Struct, kw_only=True, gc=False):
    """Whom the emission of that `name` before it reaches in the same commit: subscriptions of this app up to the number
    `upto`, with what a `Delivery` to them leads to. Later ones, and those of other apps, are told as usual; and so are all,
    if an older event is still on its way to any of this app, or if `functions` are no longer the numbers and specs of those
    subscriptions that start something."""

    name: str
    upto: int
    functions: list[tuple[int, bytes]]
    runs: list[NewRun]
    messages: list[tuple[int, Message]]


Signal = Emission | Reach | Subscription | Unsubscription
"""What a run does to domain events."""


class EventQuery(Database, Protocol):
    """What people read of domain events."""

    def domain_event(self, id: str) -> DomainEventRow | None: ...

    def trace(self, correlation: str, limit: int) -> tuple[list[RunRow], list[DomainEventRow]]:
        """What belongs to one process, of all apps, oldest first: up to `limit` runs with that correlation, or with
        that id in this app, and up to as many domain events."""


class EventStore(EventQuery, Protocol):
    """Domain events on their way to those who listen."""

    def emit(self, emission: Emission, subscriptions: Sequence[Subscription] = ()) -> bool:
        """Record a domain event for all subscriptions there are, of all apps, as `commit` does with those of a change.
        False if there is an event of that id already; then nothing happens.

        The `subscriptions` that the emitter's code declares hold from now on if there are none such, unless a worker
        knows the target: it has said what it listens to."""

    def listening(self, name: str) -> tuple[int, list[str]] | None:
        """The highest number of a subscription, and the places of the payload that those of this app to events of that name
        compare: for a `Reach`. None where a subscription may come that has a lower number."""

    def arrivals(self, limit: int) -> list[Arrival]:
        """Domain events that subscriptions of this app have yet to get, oldest first."""

    def listeners(self, arrival: Arrival, lookups: Sequence[str], limit: int) -> list[Listener]:
        """Subscriptions that have yet to get an event, by number, of those with one of these lookups."""

    def deliver(self, deliveries: Sequence[Delivery]) -> None:
        """Carry out each delivery whose arrival is still as it was read; the others are somebody else's. A run whose id
        is taken is left alone, and so is a subscription that has ended."""
