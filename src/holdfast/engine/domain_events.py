"""Domain events on their way: what runs emit and wait for, what becomes of runs, and who gets an event."""

from __future__ import annotations

import logging
import random
from collections.abc import Iterable
from typing import Any

import msgspec
from msgspec import Raw
from msgspec.structs import asdict

from holdfast.codec import Codec
from holdfast.core import commands as co
from holdfast.core import events as ev
from holdfast.core.domain_events import Scalar, Subscriber, address, event_id, lookup, lookups, matches, started_run_id
from holdfast.core.pending import FLAGS
from holdfast.engine.failures import TEXT_LIMIT, error_text
from holdfast.engine.records import HookMessage, RunOptions, correlation_of, fingerprint, to_record
from holdfast.errors import ValueCodecError
from holdfast.ports import (
    Arrival,
    Change,
    Delivery,
    DomainEventRow,
    Emission,
    EventStore,
    Listener,
    Message,
    NewRun,
    Reach,
    RunRow,
    Signal,
    Status,
    StepState,
    Subscription,
    Topic,
)

logger = logging.getLogger("holdfast.engine")
AT_ONCE = 16
"""So many events of a commit, with fewer subscriptions each, reach these in it. All others need transactions of their own."""


class Spec(msgspec.Struct, kw_only=True, omit_defaults=True):
    """What a subscription says to whoever delivers: an event has to fulfil one of these conditions."""

    where: list[dict[str, Scalar]]
    takes_payload: bool = True
    durable: bool = True


def subscription_of(subscriber: Subscriber) -> Subscription:
    """A function that events start."""
    spec = Spec(where=subscriber.where, takes_payload=subscriber.takes_payload, durable=subscriber.durable)
    return Subscription(event=subscriber.event, target=subscriber.target, spec=msgspec.json.encode(spec))


def wait_of(command: co.OpenHook | co.CloseHook) -> Subscription:
    """A command of a run that waits for an event. It is found by the first of its conditions."""
    where = command.where or {}
    path, value = next(iter(where.items()), ("", None))
    return Subscription(
        event=command.name, cmd=command.cmd, spec=msgspec.json.encode(Spec(where=[where])), path=path,
        lookup=lookup(path, value),
    )  # fmt: skip


def emission_of(row: RunRow, options: RunOptions, name: str, key: str, payload: bytes, cmd: str, now: int) -> Emission:
    """What a run, or a step of it, emits."""
    return Emission(
        id=event_id(row.app, name, key), name=name, key=key, payload=payload, correlation=correlation_of(row), ts=now,
        run_id=row.id, cmd=cmd, quiet=options.quiet,
    )  # fmt: skip


# -- what becomes of runs


def _happening(name: str, row: RunRow, event: ev.Event, codec: Codec) -> Emission:
    """The end or trouble of a run, or of a step."""
    key = f"{row.no}:{event.seq}"  # not the run's id: one of the same may have been here before
    payload = codec.encode(_facts(name, row, event, codec), f"the payload of event {name!r}")
    return emission_of(row, RunOptions(quiet=True), name, key, payload, "", event.ts)


def _facts(name: str, row: RunRow, event: ev.Event, codec: Codec) -> dict[str, Any]:
    error = getattr(event, "error", ev.NULL)
    facts = {
        "run_id": row.id,
        "workflow": row.workflow,
        "app": row.app,
        "status": str(_STATUSES[name]),
        "reason": getattr(event, "reason", "")[:TEXT_LIMIT],
        "error": "" if bytes(error) == b"null" else error_text(error, codec),
        "correlation": correlation_of(row),
    }
    if isinstance(event, ev.StepFailed | ev.StepRefused):
        facts |= {"step": event.name, "attempt": getattr(event, "attempt", 1)}
    return facts


_STATUSES = {
    "run.succeeded": Status.SUCCESS, "run.failed": Status.FAILURE, "run.cancelled": Status.CANCELLED,
    "run.stuck": Status.STUCK, "step.failed": StepState.FAILURE,
}  # fmt: skip
_NAMES: dict[type[ev.Event], str] = {
    ev.RunCompleted: "run.succeeded", ev.RunFailed: "run.failed", ev.RunCancelled: "run.cancelled",
    ev.RunStuck: "run.stuck", ev.StepFailed: "step.failed", ev.StepRefused: "step.failed",
}  # fmt: skip


def news_of(row: RunRow, options: RunOptions, event: ev.Event, codec: Codec) -> list[Emission]:
    """What others may want to know of an event. What such an event has set in motion is no news itself, else a
    handler that fails would be handled for ever."""
    name = _NAMES.get(type(event))
    if name is None or options.quiet:
        return []
    try:
        return [_happening(name, row, event, codec)]
    except ValueCodecError as error:  # a transform that fails for a while must not keep a run from being set aside
        logger.error("event %s of run %s is not emitted: %s", name, row.id, error)
        return []


# -- delivering


class EventDelivery:
    """Brings domain events to the subscriptions of one app, `batch` at a time, so that no transaction is long. `stale`
    says that some may have come."""

    def __init__(self, store: EventStore, codec: Codec, batch: int = 200) -> None:
        self._store = store
        self._codec = codec
        self._batch = batch
        self.stale = True

    def deliver(self) -> Topic | None:
        """Deliver a batch; what it has led to, for those who care. Where no more has come than what fits into one, there is
        nothing left until the next hint."""
        deliveries = []
        left = self._batch
        arrivals = self._store.arrivals(self._batch)
        for arrival in arrivals:
            payload = self._read(arrival.event)
            listeners = self._store.listeners(arrival, lookups(arrival.paths, payload), left)
            delivery = self._delivery(arrival, payload, listeners)
            if len(listeners) == left:
                delivery.reached = listeners[-1].no
            deliveries.append(delivery)
            left -= max(1, len(listeners))
            if left <= 0:
                break
        if deliveries:
            self._store.deliver(deliveries)
        self.stale = left <= 0 or len(arrivals) == self._batch
        if any(delivery.messages for delivery in deliveries):
            return Topic.INBOX
        return Topic.RUNS if any(delivery.runs for delivery in deliveries) else None

    def reach(self, changes: Iterable[Change]) -> bool:
        """Let what these emit reach those of this app who listen in the same commit, where they are few; whether anything
        comes of it."""
        does_reach = False
        left = AT_ONCE
        for change in changes:
            if not any(isinstance(signal, Emission) for signal in change.signals):
                continue
            signals: list[Signal] = []
            for signal in change.signals:
                if isinstance(signal, Reach):  # of a commit that has failed
                    continue
                signals.append(signal)
                if isinstance(signal, Emission) and left > 0:
                    left -= 1
                    reach = self._reach(signal)
                    if reach is not None:
                        signals.append(reach)
                        does_reach = does_reach or bool(reach.runs or reach.messages)
            change.signals = signals
        return does_reach

    def _reach(self, emission: Emission) -> Reach | None:
        listening = self._store.listening(emission.name)
        if listening is None or not listening[1]:
            return None
        upto, paths = listening
        event = DomainEventRow(no=0, app=self._store.app, **asdict(emission))
        arrival = Arrival(id=0, event=event, after=0, upto=upto, paths=paths)
        payload = self._read(event)
        listeners = self._store.listeners(arrival, lookups(paths, payload), AT_ONCE)
        if len(listeners) == AT_ONCE:
            return None
        delivery = self._delivery(arrival, payload, listeners)
        functions = [(listener.no, listener.spec) for listener in listeners if listener.target]
        return Reach(name=emission.name, upto=upto, functions=functions, runs=delivery.runs, messages=delivery.messages)

    def _delivery(self, arrival: Arrival, payload: Any, listeners: Iterable[Listener]) -> Delivery:
        event, now = arrival.event, self._store.now()
        delivery = Delivery(arrival=arrival, reached=None)
        for listener in listeners:
            try:
                spec = msgspec.json.decode(listener.spec, type=Spec)
            except msgspec.DecodeError as error:
                logger.error(
                    "subscription %d to event %r is damaged, and gets none: start a worker whose code declares it, or restart "
                    "the run that waits: %s",
                    listener.no, event.name, error,
                )  # fmt: skip
                continue
            if not any(matches(where, payload) for where in spec.where):
                continue
            if listener.run_id is not None:
                delivery.messages.append((listener.no, _message(event, listener, listener.run_id, spec)))
            elif listener.target:
                delivery.runs.append(self._run(event, listener.target, spec, now))
        return delivery

    def _read(self, event: DomainEventRow) -> Any:
        try:
            return self._codec.plain(event.payload)
        except ValueCodecError as error:
            logger.error("event %s (%s) reaches only those who compare nothing in it: %s", event.name, event.id, error)
            return None

    def _run(self, event: DomainEventRow, target: str, spec: Spec, now: int) -> NewRun:
        call = self._codec.join_call([event.payload] if spec.takes_payload else [], {})
        started = ev.RunStarted(
            seq=1, ts=now, workflow=target, input=Raw(call), seed=random.getrandbits(63), flags=FLAGS
        )
        options = RunOptions(event=event.id, quiet=event.quiet)
        return NewRun(
            id=started_run_id(target, event.id), workflow=target, records=[to_record(started)], wake_at=now,
            created_at=now, fingerprint=fingerprint(target, call), correlation=event.correlation,
            options=options.to_json(), durable=spec.durable,
        )  # fmt: skip


def _message(event: DomainEventRow, listener: Listener, run_id: str, spec: Spec) -> Message:
    body = HookMessage(
        name=event.name, key=address(spec.where[0]), payload=Raw(event.payload), token=listener.cmd, event=event.id
    )
    return Message(run_id=run_id, kind="hook", body=msgspec.json.encode(body), dedupe=f"hook:{listener.cmd}")
