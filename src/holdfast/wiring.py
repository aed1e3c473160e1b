"""The parts an app is put together from, by URL: store, notifier, executor, engine.

Apart from `app.py` because programs that only define or start things should not pay for importing an engine.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from holdfast.codec import Codec
from holdfast.core.definitions import StepDefinition
from holdfast.core.registry import Definitions
from holdfast.engine.carried import CarriedHost, Jobs
from holdfast.engine.engine import Engine
from holdfast.engine.environment import Environment
from holdfast.engine.host import Host
from holdfast.engine.identity import Identity
from holdfast.engine.puller import Puller
from holdfast.engine.queues import Queues
from holdfast.engine.settings import Settings
from holdfast.errors import StoreUnavailableError
from holdfast.executors.lent import LentThreads
from holdfast.executors.local import LocalExecutor
from holdfast.executors.surroundings import Surroundings
from holdfast.ports import Carrier, Clock, Executor, Notifier, Store, WorkerKind
from holdfast.stores.doorbell import Doorbell
from holdfast.stores.intercom import Intercom
from holdfast.stores.sqlite import SqliteStore
from holdfast.stores.store import SqlStore
from holdfast.telemetry.clock import LamportClock

if TYPE_CHECKING:
    from holdfast.stores.postgres import PostgresStore
    from holdfast.stores.postgres_notifier import PostgresNotifier
    from holdfast.telemetry.dispatcher import EventDispatcher

POSTGRES = ("postgresql", "postgres")


def open_store(app: str, url: str, clock: Clock, logical_clock: LamportClock | None = None) -> tuple[Store, Notifier]:
    """A store and its notifier from a URL."""
    store, notifier = _open(app, url, clock)
    if logical_clock is not None:
        store.logical_clock = logical_clock
    return store, notifier


def _open(app: str, url: str, clock: Clock) -> tuple[Store, Notifier]:
    if _scheme(url) in POSTGRES:
        return _open_postgres(app, url, clock)
    _refuse_unknown(url)
    store = SqliteStore(app, url, clock)
    database = store.database
    return store, Intercom() if database.in_memory else Doorbell(store, database.path)


def open_database(url: str, clock: Clock) -> SqlStore:
    """A store as it is: nothing is upgraded, nor refused because its runs were moved."""
    if _scheme(url) in POSTGRES:
        return _import_postgres()[0]("", url, clock, as_it_is=True)
    _refuse_unknown(url)
    return SqliteStore("", url, clock, as_it_is=True)


def import_store(url: str) -> None:
    """What opening that store would import."""
    if _scheme(url) in POSTGRES:
        _import_postgres()


def _open_postgres(app: str, url: str, clock: Clock) -> tuple[Store, Notifier]:
    store_class, notifier_class = _import_postgres()
    store = store_class(app, url, clock)
    return store, notifier_class(store.database)


def _import_postgres() -> tuple[type[PostgresStore], type[PostgresNotifier]]:
    try:
        from holdfast.stores.postgres import PostgresStore
        from holdfast.stores.postgres_notifier import PostgresNotifier
    except ImportError as error:
        raise StoreUnavailableError(
            f"a store on PostgreSQL needs a driver ({error}); install it with: pip install 'psycopg[binary]' psycopg_pool"
        ) from error
    return PostgresStore, PostgresNotifier


def _scheme(url: str) -> str:
    return url.partition("://")[0] if "://" in url else "sqlite"


def _refuse_unknown(url: str) -> None:
    scheme = _scheme(url)
    if scheme != "sqlite":
        raise StoreUnavailableError(
            f"{scheme}://... is no store: this version knows SQLite files and PostgreSQL; give a path, sqlite:///path, "
            "':memory:' or postgresql://..."
        )
    if url.startswith("sqlite://") and not url.startswith("sqlite:///"):
        path = url.removeprefix("sqlite://")
        raise StoreUnavailableError(f"{url}: a host would come after two slashes; say sqlite:///{path or 'path'}")


@dataclass(frozen=True)
class WorkerParts:
    """What every worker of an app is made of. `build` names its code, `description` tells a process of its own how to find
    it, and `exchange` is what sends telemetry events through a broker, if there is one."""

    definitions: Definitions
    store: Store
    notifier: Notifier
    build: str
    description: dict[str, Any] | None
    exchange: Callable[[], EventDispatcher | None]
    settings: Settings | None

    def engine(
        self, queues: Sequence[str] | None, concurrency: int, processes: int | None, carrier: Carrier | None
    ) -> Host:
        """An engine with an executor of its own."""
        served = None if queues is None else frozenset(queues)
        me = Identity("", self.build, isolates=self.description is not None, queues=served)
        executor = self._local_executor(concurrency, processes)
        return Host(Engine(self._environment(executor, me, WorkerKind.ENGINE), carrier))

    def puller(self, queues: Sequence[str], concurrency: int, processes: int | None) -> Host:
        """A worker that executes attempts of other workers' runs."""
        me = Identity("", self.build, queues=frozenset(queues))
        executor = self._local_executor(concurrency, processes)
        env = self._environment(executor, me, WorkerKind.EXECUTOR)
        return Host(Puller(env, Queues(env, concurrency)))

    def carried(self, queues: Sequence[str], is_apart: bool, is_ending: Callable[[], bool]) -> CarriedHost:
        """A worker that executes attempts that it is told of, on the threads of those who tell it."""
        me = Identity("", self.build, queues=frozenset(queues))
        executor = LentThreads(*self._where(), is_apart=is_apart, is_ending=is_ending, **self._how())
        env = self._environment(executor, me, WorkerKind.EXECUTOR)
        return CarriedHost(Puller(env, Jobs(env, executor)))

    def _environment(self, executor: Executor, me: Identity, kind: WorkerKind) -> Environment[Store]:
        return Environment(
            self.definitions, self.store, executor, self.notifier, self.store.clock, me, self.settings, kind=kind,
            exchange=self.exchange,
        )  # fmt: skip

    def _local_executor(self, concurrency: int, processes: int | None) -> LocalExecutor:
        return LocalExecutor(
            *self._where(), threads=concurrency, processes=processes or os.cpu_count() or 2, **self._how()
        )

    def _where(self) -> tuple[Callable[[str], StepDefinition], Codec, Clock]:
        """Where steps are found; the time is the database's, if that has one of its own."""
        return self.definitions.find_step, self.definitions.codec, self.store.clock

    def _how(self) -> dict[str, Any]:
        known, description = self.definitions, self.description
        return {
            "child_command": None if description is None else lambda: description,
            "keep_logs": known.keep_logs,
            "instruments": known.instruments,
            "surroundings": Surroundings(known.arounds, known.replaced, self.store.secret, known.instruments),
            "transact": self.store.transaction,
        }
