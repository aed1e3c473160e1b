"""The Store port over a database that speaks SQL: tables by concern, put together."""

from __future__ import annotations

import functools
import random
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Concatenate, ParamSpec, TypeVar

from holdfast.ports import Clock, Notifier, StepTransaction, Store
from holdfast.stores.attempts import Attempts
from holdfast.stores.claims import Claims
from holdfast.stores.commits import Commits
from holdfast.stores.database import SqlDatabase, Tables
from holdfast.stores.deletion import Deletion
from holdfast.stores.domain_events import DomainEvents
from holdfast.stores.limits import Limits
from holdfast.stores.messages import Messages
from holdfast.stores.reading import Reading
from holdfast.stores.runs import Runs
from holdfast.stores.schedules import Schedules
from holdfast.stores.schema import Schema
from holdfast.stores.telemetry import Telemetry
from holdfast.stores.transactions import SqlTransaction
from holdfast.stores.workers import Workers
from holdfast.telemetry.clock import LamportClock

P = ParamSpec("P")
R = TypeVar("R")
Method = Callable[Concatenate[Any, P], R]


def of(method: Method[P, R]) -> Method[P, R]:
    """A method of one of the store's tables, as one of the store's own."""
    concern, _, name = method.__qualname__.partition(".")

    @functools.wraps(method)
    def call(store: SqlStore, /, *args: P.args, **kwargs: P.kwargs) -> R:
        found: R = getattr(store.tables[concern], name)(*args, **kwargs)
        return found

    return call


def again(method: Method[P, R]) -> Method[P, R]:
    """The same of one that is a whole transaction: carried out again if the database refused it because of another one."""
    concern, _, name = method.__qualname__.partition(".")

    @functools.wraps(method)
    def call(store: SqlStore, /, *args: P.args, **kwargs: P.kwargs) -> R:
        carry_out: Callable[P, R] = getattr(store.tables[concern], name)
        for pause in store.database.pauses:
            try:
                return carry_out(*args, **kwargs)
            except store.database.conflict:
                time.sleep(pause * random.uniform(0.5, 1.5))
        return carry_out(*args, **kwargs)

    return call


class SqlStore(Store):
    """What a store can do, by concern. A backend gives the database, and tables of its own where it has better words for
    what they do."""

    runs_type: type[Runs] = Runs
    attempts_type: type[Attempts] = Attempts
    workers_type: type[Workers] = Workers
    commits_type: type[Commits] = Commits

    def __init__(self, database: SqlDatabase, *, as_it_is: bool = False) -> None:
        """With `as_it_is` nothing is upgraded or refused: for whoever looks at a store, or moves it."""
        self.database = database
        self.url = database.url
        limits = Limits(database)
        messages = Messages(database, limits)
        runs = self.runs_type(database, messages)
        attempts = self.attempts_type(database)
        events = DomainEvents(database, runs, messages)
        claims = Claims(database, events, limits)
        commits = self.commits_type(database, runs, messages, attempts, events, limits, claims)
        self.tables: dict[str, Tables] = {
            "Schema": Schema(database),
            "Workers": self.workers_type(database, events),
            "Runs": runs,
            "Reading": Reading(database),
            "Claims": claims,
            "Commits": commits,
            "Messages": messages,
            "Deletion": Deletion(database, runs, messages, events),
            "Schedules": Schedules(database, runs, messages),
            "Attempts": attempts,
            "DomainEvents": events,
            "Limits": limits,
            "Telemetry": Telemetry(database),
        }
        if not as_it_is:
            self.upgrade()

    # -- what it stands on

    @property
    def app(self) -> str:
        return self.database.app

    @app.setter
    def app(self, app: str) -> None:
        self.database.app = app

    @property
    def clock(self) -> Clock:
        return self.database.clock

    @clock.setter
    def clock(self, clock: Clock) -> None:
        self.database.clock = clock

    @property
    def logical_clock(self) -> LamportClock:
        return self.database.stamps.clock

    @logical_clock.setter
    def logical_clock(self, clock: LamportClock) -> None:
        self.database.stamps.clock = clock

    def now(self) -> int:
        return self.database.clock.now()

    def secret(self) -> bytes:
        return self.database.secret()

    def read(self) -> AbstractContextManager[Any]:
        return self.database.read()

    def write(self, name: str, lasting: bool = True) -> AbstractContextManager[Any]:
        return self.database.write(name, lasting)

    def check(self) -> None:
        self.database.check()

    def strain(self) -> str:
        return self.database.strain()

    def close(self) -> None:
        self.database.close()

    def join(self, connection: object) -> tuple[Store, Notifier]:
        return self.database.join(connection)

    def transaction(self, run_no: int | None, key: str) -> StepTransaction:
        return SqlTransaction(self.database, run_no, key)

    schema_versions = of(Schema.versions)
    upgrade = of(Schema.upgrade)

    # -- workers

    workers = again(Workers.workers)
    apps = again(Workers.apps)
    addresses = again(Workers.addresses)
    register = again(Workers.register)
    update_worker = again(Workers.update_worker)
    beat = of(Workers.beat)
    unregister = again(Workers.unregister)
    release_lock = of(Workers.release_lock)
    declare_dead = again(Workers.declare_dead)

    # -- runs, as people read them

    get = again(Reading.get)
    rows = again(Reading.rows)
    runs = again(Reading.runs)
    counts = again(Reading.counts)
    counts_over_time = again(Reading.counts_over_time)
    find_hook = again(Reading.find_hook)
    histories = again(Reading.histories)
    payloads = again(Reading.payloads)
    clocks = again(Reading.clocks)
    data = again(Reading.data)
    data_of = again(Reading.data_of)
    attributes = again(Reading.attributes)
    answer = again(Reading.answer)
    stream = again(Reading.stream)
    streamed = again(Reading.streamed)

    # -- runs, from the beginning to the end

    create = again(Runs.create)
    create_all = again(Runs.create_all)
    put_off = again(Runs.put_off)
    commit = again(Commits.commit)
    settle = of(Commits.settle)
    next_wake = again(Claims.next_wake)
    orphans = again(Claims.orphans)
    set_aside = again(Claims.set_aside)
    reset_times = of(Claims.reset_times)
    inbox = again(Messages.inbox)
    orders = again(Messages.orders)
    post = again(Messages.post)
    post_all = again(Messages.post_all)
    delete = again(Deletion.delete)
    delete_all = again(Deletion.delete_all)
    collect = again(Deletion.collect)
    named_blobs = again(Deletion.named_blobs)

    # -- schedules

    schedules = again(Schedules.schedules)
    due_schedules = again(Schedules.due_schedules)
    next_tick = again(Schedules.next_tick)
    save_schedules = again(Schedules.save_schedules)

    # -- attempts that others execute

    attempts = again(Attempts.attempts)
    queues = again(Attempts.queues)
    claim_attempts = again(Attempts.claim_attempts)
    claim_attempt = again(Attempts.claim_attempt)
    end_attempts = again(Attempts.end_attempts)
    release_attempts = again(Attempts.release_attempts)
    report_attempts = again(Attempts.report_attempts)
    held_attempts = again(Attempts.held_attempts)
    lost_attempts = again(Attempts.lost_attempts)
    unclaimed = again(Attempts.unclaimed)

    # -- domain events

    domain_event = again(DomainEvents.domain_event)
    trace = again(DomainEvents.trace)
    emit = again(DomainEvents.emit)
    listening = again(DomainEvents.listening)
    arrivals = again(DomainEvents.arrivals)
    listeners = again(DomainEvents.listeners)
    deliver = again(DomainEvents.deliver)

    # -- limits

    limits = again(Limits.limits)
    places = again(Limits.places)
    slots = again(Limits.slots)
    declare_limits = again(Limits.declare_limits)
    serve = again(Limits.serve)

    # -- telemetry

    is_watched = again(Telemetry.is_watched)
    newest_notes = again(Telemetry.newest_notes)
    notes = again(Telemetry.notes)
    recorded = again(Telemetry.recorded)
    backlog = again(Telemetry.backlog)
    saved_views = again(Telemetry.saved_views)
    watch = of(Telemetry.watch)
    publish = of(Telemetry.publish)
    save_view = again(Telemetry.save_view)
