"""The parts an app is put together from, by URL: store, notifier, executor, engine.

Apart from `app.py` because programs that only define or start things should not pay for importing an engine.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from holdfast.codec import Codec
from holdfast.core.definitions import StepDefinition
from holdfast.core.registry import Definitions
from holdfast.engine.carried import Carried, CarriedHost, Silent
from holdfast.engine.engine import Engine
from holdfast.engine.environment import Environment
from holdfast.engine.host import Host
from holdfast.engine.identity import Identity
from holdfast.engine.puller import Puller
from holdfast.engine.settings import Settings
from holdfast.errors import StoreUnavailableError
from holdfast.executors.lent import LentThreads
from holdfast.executors.local import LocalExecutor
from holdfast.executors.surroundings import Surroundings
from holdfast.ports import Carrier, Clock, Executor, Notifier, Store, WorkerKind
from holdfast.stores.doorbell import Doorbell, Intercom
from holdfast.stores.shared import SqlStore
from holdfast.stores.sqlite import SqliteStore
from holdfast.telemetry.clock import LamportClock

if TYPE_CHECKING:
    from holdfast.stores.postgres import PostgresStore
    from holdfast.stores.postgres_notifier import PostgresNotifier

POSTGRES = ("postgresql", "postgres")

MANY = 1_000_000
"""How many attempts those who tell of them may have executed at a time is theirs to say."""


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
    return store, Intercom() if store.in_memory else Doorbell(store, store.path)


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
    return store, notifier_class(store)


def _import_postgres() -> tuple[type[PostgresStore], type[PostgresNotifier]]:
    try:
        from holdfast.stores.postgres import PostgresStore
        from holdfast.stores.postgres_notifier import PostgresNotifier
    except ImportError as error:
        raise StoreUnavailableError(
            f"a store on PostgreSQL needs a driver ({error}); install it with: pip install 'holdfast[postgres]'"
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


def build_engine(
    app: Definitions,
    store: Store,
    notifier: Notifier,
    *,
    build: str,
    concurrency: int,
    processes: int | None,
    settings: Settings | None,
    description: dict[str, Any] | None,
    queues: Sequence[str] | None = ("",),
    carrier: Carrier | None = None,
) -> Host:
    """An engine with an executor of its own. `description` tells a process of its own how to find the app."""
    executor = build_local_executor(app, store, concurrency, processes, description)
    served = None if queues is None else frozenset(queues)
    me = Identity("", build, isolates=description is not None, queues=served)
    return Host(Engine(Environment(app, store, executor, notifier, store.clock, me, settings), carrier))


def build_puller(
    app: Definitions,
    store: Store,
    notifier: Notifier,
    *,
    build: str,
    queues: Sequence[str],
    concurrency: int,
    processes: int | None,
    settings: Settings | None,
    description: dict[str, Any] | None,
) -> Host:
    """A worker that executes attempts of other workers' runs."""
    executor = build_local_executor(app, store, concurrency, processes, description)
    return Host(Puller(_executors_environment(app, store, executor, notifier, build, queues, settings), concurrency))


def build_carried(
    app: Definitions,
    store: Store,
    notifier: Notifier,
    *,
    build: str,
    queues: Sequence[str],
    is_apart: bool,
    is_ending: Callable[[], bool],
    settings: Settings | None,
    description: dict[str, Any] | None,
) -> CarriedHost:
    """A worker that executes attempts that it is told of, on the threads of those who tell it."""
    executor = LentThreads(
        *_where_steps_execute(app, store),
        is_apart=is_apart,
        is_ending=is_ending,
        **_how_steps_execute(app, store, description),
    )
    env = _executors_environment(app, store, executor, Silent(notifier), build, queues, settings)
    return CarriedHost(Carried(env, executor, MANY))


def _executors_environment(
    app: Definitions,
    store: Store,
    executor: Executor,
    notifier: Notifier,
    build: str,
    queues: Sequence[str],
    settings: Settings | None,
) -> Environment[Store]:
    me = Identity("", build, queues=frozenset(queues))
    return Environment(app, store, executor, notifier, store.clock, me, settings, kind=WorkerKind.EXECUTOR)


def build_local_executor(
    app: Definitions, store: Store, concurrency: int, processes: int | None, description: dict[str, Any] | None
) -> LocalExecutor:
    return LocalExecutor(
        *_where_steps_execute(app, store), threads=concurrency, processes=processes or os.cpu_count() or 2,
        **_how_steps_execute(app, store, description),
    )  # fmt: skip


def _where_steps_execute(app: Definitions, store: Store) -> tuple[Callable[[str], StepDefinition], Codec, Clock]:
    return app.find_step, app.codec, store.clock  # the database's time, if that has one of its own


def _how_steps_execute(app: Definitions, store: Store, description: dict[str, Any] | None) -> dict[str, Any]:
    describe: Callable[[], dict[str, Any]] | None = None if description is None else lambda: description
    return {
        "child_command": describe, "keep_logs": app.keep_logs, "instruments": app.instruments,
        "surroundings": Surroundings(app.arounds, app.replaced, store.secret, app.instruments),
        "transact": store.transaction,
    }  # fmt: skip
