"""`App`: the composition root. It has what it defines, where that is stored and what works on it, and starts, finds and
serves runs with them."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import os
import random
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Unpack, overload

from holdfast.api.checks import check_number, check_text, duration_of
from holdfast.api.client import Client
from holdfast.api.domain_events import emit_now
from holdfast.api.handles import Run, RunPage
from holdfast.api.options import NO_OPTIONS, StartOptions, check_call, check_input, takes
from holdfast.api.remote import Remote
from holdfast.api.schedules import Schedules
from holdfast.api.search import ALL_RUNS, PageFilter, RunFilter, query_of
from holdfast.api.selection import Selection
from holdfast.api.telemetry import StoreTransport
from holdfast.blocking import opened, twin
from holdfast.codec import Codec
from holdfast.codec.blobs import store_mark, sweep
from holdfast.core.definitions import DEFAULT_QUEUE
from holdfast.core.loop import running
from holdfast.core.registry import add_app, refuse_while_importing
from holdfast.definer import Definer
from holdfast.errors import ArgumentError, DefinitionError, WrongContextError
from holdfast.on_celery import OnCelery, not_of_celery
from holdfast.ports import Notifier, Store
from holdfast.printing import show, without_password
from holdfast.registry import Registry
from holdfast.storage import Storage
from holdfast.telemetry.instruments import Instrument
from holdfast.views.trace import TraceNode
from holdfast.workers import Workers, check_count, digest_of

if TYPE_CHECKING:
    from holdfast.engine.host import Host
    from holdfast.engine.settings import Settings
    from holdfast.telemetry.dispatcher import EventDispatcher


_STEADY: int = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class SystemClock:
    """The machine's time."""

    def now(self) -> int:
        return time.time_ns() // 1_000

    monotonic = staticmethod(functools.partial(time.clock_gettime, _STEADY))

    def random(self) -> float:
        return random.random()


class App(Definer):
    """An app: a name, a store, and the steps and workflows defined on it.

    `store` is a path, a URL or None for `./<name>.db`; HOLDFAST_STORE overrides it. `include` names modules that
    define more of the app. `version` names the build of its code, which is a digest of the code if nothing is said;
    HOLDFAST_VERSION overrides it. What steps log at the level `keep_logs` or above is kept with their runs; None
    keeps nothing. `instruments` are told what happens in this process; `app.instruments.add` adds more. With a `broker`, or
    a `celery` app, steps execute in the pools of Celery workers; HOLDFAST_BROKER overrides it.
    """

    def __init__(
        self,
        name: str,
        store: str | None = None,
        *,
        include: Sequence[str] = (),
        version: str | None = None,
        codec: Codec | None = None,
        keep_logs: str | int | None = "INFO",
        instruments: Sequence[Instrument] = (),
        broker: str | None = None,
        celery: Any = None,
    ) -> None:
        if type(name) is not str or not name.replace("-", "_").replace(".", "_").isidentifier():
            raise DefinitionError(f"App({show(name)}): a name is made of letters, digits, '-', '_' and '.'")
        if not isinstance(include, list | tuple) or not all(type(module) is str for module in include):
            raise DefinitionError(f"include={show(include)}: give a list of module names")
        for what, given in (("store", store), ("version", version), ("broker", broker)):
            if given is not None:
                check_text(what, given, kind=DefinitionError)
        if codec is not None and not isinstance(codec, Codec):
            raise DefinitionError(f"codec={show(codec)}: give a Codec(...)")
        self.name = name
        self.codec = codec or Codec()
        self.definitions = Registry(name, self.codec, tuple(include), _log_level(keep_logs))
        self.version = os.environ.get("HOLDFAST_VERSION") or version
        self.instruments = self.definitions.instruments
        if not isinstance(instruments, list | tuple):
            raise DefinitionError(f"instruments={show(instruments)}: give a list of instruments")
        for instrument in instruments:
            self.instruments.add(instrument)
        self.storage = Storage(name, store, SystemClock())
        self.logical_clock = self.storage.logical_clock
        self._workers = Workers(self.definitions, self.storage, lambda: self.build, lambda: self.event_exchange)
        self._on_celery = OnCelery(self.definitions, self._workers, broker, celery)
        self._client: Client | None = None  # of the store that is open
        add_app(self)

    def __repr__(self) -> str:
        return f"<App {self.name!r} on {without_password(self.store_url)}>"

    if not TYPE_CHECKING:  # a type checker would take any name for one of an app's

        def __getattr__(self, name: str) -> Any:
            if name == "user_options":  # `celery -A orders` takes whatever is called `app` there, and asks it for these
                raise AttributeError(not_of_celery(self))
            return super().__getattribute__(name)  # which says in its own words why there is none

    # -- parts

    @property
    def store_url(self) -> str:
        """Where the store is: what `use_store` named, HOLDFAST_STORE, what the app was made with, or `./<name>.db`."""
        return self.storage.url

    def use_store(self, url: str) -> None:
        """Use another store than the one named so far; before anything was done with that."""
        check_text("url", url)
        self.storage.use(url)

    @property
    def store(self) -> Store:
        return self.storage.store

    @property
    def notifier(self) -> Notifier:
        return self.storage.notifier

    @property
    def on_celery(self) -> bool:
        """Whether steps execute in the pools of Celery workers."""
        return self._on_celery.is_used

    @property
    def broker_url(self) -> str | None:
        """The broker whose Celery workers execute the steps: that of HOLDFAST_BROKER, or what the app was made with."""
        return self._on_celery.broker_url

    @property
    def celery(self) -> Any:
        """The Celery app whose workers execute the steps: `celery = app.celery` at the end of a module, and
        `celery -A module:celery worker` runs everything."""
        return self._on_celery.attachment.celery

    def load(self) -> None:
        """Import the modules named in `include`."""
        self.definitions.load()

    @property
    def client(self) -> Client:
        if running() is not None:
            raise WrongContextError(
                f"app {self.name!r} was asked for something in workflow code, which is replayed; ask in a step"
            )
        if self._client is None or self._client.store is not self.store:
            self._client = Client(self.definitions, self.store, self.notifier)
        return self._client

    def close(self) -> None:
        """Let go of the store. It is opened again when it is needed."""
        self.storage.close()

    # -- runs

    def start(self, name: str, /, *args: Any, **kwargs: Any) -> Run[Any]:
        """Start a workflow or a step by name."""
        return self.start_run(name, self.encode_by_name(name, args, kwargs), NO_OPTIONS.with_id_in_step(name))

    async def astart(self, name: str, /, *args: Any, **kwargs: Any) -> Run[Any]:
        """`start` for async code."""
        call, options = self.encode_by_name(name, args, kwargs), NO_OPTIONS.with_id_in_step(name)
        return await asyncio.to_thread(self.start_run, name, call, options)

    def remote(self, name: str) -> Remote:
        """A workflow or step by name, also one whose code this program doesn't have: `app.remote("fulfil").start(...)`.
        The worker that takes the run up checks the arguments; results of classes unknown here are plain data."""
        return Remote(self, name)

    def send_task(
        self, name: str, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None, **options: Any
    ) -> Run[Any]:
        """Celery's spelling of `app.remote(name).options(...).start(...)`."""
        return self.remote(name).apply_async(args, kwargs, **options)

    def encode_by_name(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bytes:
        check_text("name", name)
        definition = self.definitions.find_startable(name)
        args, kwargs = check_call(name, definition, args, kwargs)
        check_input(definition, args, kwargs)
        what = f"the arguments of {name!r}"
        call = self.codec.encode_call(args, kwargs, what, definition.hints)
        self.codec.check_call(args, kwargs, what, definition.hints)
        return call

    def start_run(self, name: str, call: bytes, options: StartOptions) -> Run[Any]:
        refuse_while_importing(f"a run of {name!r} is started")  # before a store is made for it
        return self.client.start(name, call, options)

    def get_run(self, run_id: str) -> Run[Any]:
        """The run of that id; RunNotFoundError if there is none."""
        return self.client.get(run_id)

    aget_run = twin(get_run)

    @takes(PageFilter, ALL_RUNS)
    def runs(self, *, after: int | None = None, limit: int = 100, **filter: Unpack[PageFilter]) -> RunPage:
        """A page of runs, newest first. `page.cursor` given as `after` asks for the next. `data` are values that runs have
        published with `wf.set_data`, or a `Range` or `Prefix` of them."""
        check_number("limit", limit, 1)
        if after is not None and not (type(after) is int and 0 <= after < 2**63):
            raise ArgumentError(f"after={show(after)}: give the cursor of a page")
        query = query_of(filter, self.codec)
        query.after, query.limit = after, limit
        return self.client.runs(query)

    aruns = twin(runs)

    @takes(RunFilter, ALL_RUNS)
    def select(self, **filter: Unpack[RunFilter]) -> Selection:
        """All runs like that, to count and to act on at once: `app.select(workflow="order", status="WAITING",
        older_than="2d").cancel("too old")`. A `workflow` that ends in `*` is the beginning of a name; `since`, `until` and
        `older_than` are about when a run was created. Without any, it is every run of the app."""
        query = query_of(filter, self.codec)
        older_than = filter.get("older_than")
        if older_than is not None:
            if query.until is not None:
                raise ArgumentError(
                    "until= and older_than= both say when the last of them was created; give one of them"
                )
            query.until = self.store.now() - duration_of("older_than", older_than, ArgumentError)
        return Selection(self.client, query)

    @takes(RunFilter, ALL_RUNS)
    def count(self, **filter: Unpack[RunFilter]) -> int:
        """How many runs like that there are."""
        return self.select(**filter).count()

    acount = twin(count)

    def send_hook(
        self, token: str | None = None, payload: object = None, *, key: str | None = None, name: str | None = None
    ) -> None:
        """Answer a hook by the token of a link, or by the key that the workflow gave it (and by its name, if hooks of
        several names wait with that key)."""
        self.client.hooks.send_by(token, payload, key, name)

    asend_hook = twin(send_hook)

    # -- steps that end elsewhere

    def finish_step(self, token: str, result: object = None) -> None:
        """End a step that was handed over, with its result. `token` is what `this_step.hand_over()` has made. Once it is
        ended, StepTokenError."""
        self.client.handed_over.finish(token, result)

    def fail_step(self, token: str, error: BaseException | str) -> None:
        """Let the attempt of a step that was handed over fail: it is retried as the step's options say."""
        self.client.handed_over.fail(token, error)

    def beat_step(self, token: str, done: float | None = None, total: float | None = None, note: str = "") -> None:
        """A sign of life of a step that was handed over, for its `stall_timeout`; perhaps with how far it is."""
        self.client.handed_over.beat(token, done, total, note)

    afinish_step = twin(finish_step)
    afail_step = twin(fail_step)
    abeat_step = twin(beat_step)

    # -- domain events, schedules

    @property
    def schedules(self) -> Schedules:
        """Its schedules: to look at, to change, and to declare."""
        return Schedules(self)

    def emit(self, name: str, payload: object = None, *, key: str | None = None, connection: object = None) -> str:
        """Emit a domain event; its id. The same name and `key` again is the same event. With the `connection` of an open
        transaction it is emitted once that is committed."""
        loop = running()
        if connection is not None:
            return self.client.inside(connection).emitter.emit(name, payload, key)
        if loop is None:
            return self.client.emitter.emit(name, payload, key)
        if loop.execution.info.app != self.name:
            raise WrongContextError(
                f"event {name!r}: this run belongs to app {loop.execution.info.app!r}; use `await emit(...)`, or a step"
            )
        return emit_now(name, payload, key)

    async def aemit(
        self, name: str, payload: object = None, *, key: str | None = None, connection: object = None
    ) -> str:
        """`emit` for async code."""
        if running() is not None or connection is not None:
            return self.emit(name, payload, key=key, connection=connection)
        return await asyncio.to_thread(lambda: self.emit(name, payload, key=key))

    def trace(self, id: str) -> TraceNode:
        """The process that a run, or a domain event, belongs to, as a tree."""
        return self.client.reader.trace(id)

    atrace = twin(trace)

    def gc(self, batch: int = 500) -> int:
        """Delete runs whose time of retention has passed, in batches, and blobs that no run has named for a day; how many
        runs there were."""
        check_number("batch", batch, 1)
        total = 0
        while (gone := self.store.collect(batch)).runs or gone.events:
            total += gone.runs
        if self.codec.blobs is not None:
            sweep(self.codec.blobs, store_mark(self.store.secret()), self.store.named_blobs)
        return total

    agc = twin(gc)

    @property
    def telemetry(self) -> StoreTransport:
        """Carries telemetry events between all processes of the store, and on Celery also through its broker:
        `EventReceiver(app.telemetry)` hears what workers do, `EventDispatcher(app.telemetry, app.logical_clock)` sends
        events of one's own."""
        return StoreTransport(self.store, self.notifier, self.codec, self.event_exchange)

    @property
    def event_exchange(self) -> EventDispatcher | None:
        """What sends telemetry events through the broker of Celery, to all who listen there; None without one."""
        return self._on_celery.attachment.event_exchange(self.logical_clock) if self.on_celery else None

    # -- working

    @property
    def build(self) -> str:
        """What names the code of this process: `version`, or a digest of the modules that define the app."""
        return self.version if self.version is not None else digest_of(self.definitions)

    def make_engine(
        self,
        *,
        concurrency: int = 16,
        processes: int | None = None,
        settings: Settings | None = None,
        queues: Sequence[str] | None = (DEFAULT_QUEUE,),
    ) -> Host:
        """An engine with an executor of its own, not started yet. Steps of other `queues` are left to other workers; with
        None it executes those of all queues itself."""
        is_carried = self.on_celery and queues is not None
        return self._workers.engine(
            concurrency, processes, settings, [] if is_carried else queues,
            self._on_celery.attachment.carrier() if is_carried else None,
        )  # fmt: skip

    def make_executor(
        self,
        queues: Sequence[str],
        *,
        concurrency: int = 16,
        processes: int | None = None,
        settings: Settings | None = None,
    ) -> Host:
        """What executes steps of these `queues` for engines elsewhere, up to `concurrency` at a time; not started yet."""
        return self._workers.executor(queues, concurrency, processes, settings)

    @opened
    def worker(
        self,
        *,
        concurrency: int = 16,
        settings: Settings | None = None,
        grace: float = 5.0,
        queues: Sequence[str] = (DEFAULT_QUEUE,),
    ) -> Iterator[Host]:
        """Run an engine in this process, on threads of its own, until the block ends: `with`, or `async with`. Steps of
        other `queues` are left to other workers."""
        duration_of("grace", grace, ArgumentError)
        engine = self.make_engine(concurrency=concurrency, settings=settings, queues=queues)
        with self._workers.running(engine, grace) as host:
            yield host

    @opened
    def executor(
        self, queues: Sequence[str], *, concurrency: int = 16, settings: Settings | None = None, grace: float = 5.0
    ) -> Iterator[Host]:
        """Execute steps of these `queues` for engines elsewhere, on threads of this process, until the block ends."""
        duration_of("grace", grace, ArgumentError)
        executor = self.make_executor(queues, concurrency=concurrency, settings=settings)
        with self._workers.running(executor, grace) as host:
            yield host

    @overload
    def lifespan(self, web: object, /) -> contextlib.AbstractAsyncContextManager[None]: ...
    @overload
    def lifespan(
        self, /, *, worker: bool = True, concurrency: int = 16, grace: float = 5.0
    ) -> Callable[[object], contextlib.AbstractAsyncContextManager[None]]: ...
    def lifespan(self, web: object = None, /, *, worker: bool = True, concurrency: int = 16, grace: float = 5.0) -> Any:
        """For web frameworks that speak ASGI: `FastAPI(lifespan=app.lifespan)` runs an engine in the web process, on
        threads of its own, and drains it at shutdown. With `app.lifespan(worker=False)` workers live elsewhere, and
        the web process only opens the store, so that one that can't be reached keeps it from starting."""

        check_count("concurrency", concurrency)
        duration_of("grace", grace, ArgumentError)

        @contextlib.asynccontextmanager
        async def around(web: object) -> AsyncIterator[None]:
            work = self.worker(concurrency=concurrency, grace=grace) if worker else self._opened()
            await asyncio.to_thread(work.__enter__)
            try:
                yield
            finally:
                await asyncio.to_thread(work.__exit__, None, None, None)
                await asyncio.to_thread(self.close)

        return around if web is None else around(web)

    @contextlib.contextmanager
    def _opened(self) -> Iterator[None]:
        _ = self.store
        yield


def _log_level(level: str | int | None) -> int | None:
    known = logging.getLevelNamesMapping()
    if isinstance(level, str) and level.upper() in known:
        return known[level.upper()]
    if level is None or type(level) is int:
        return level
    raise DefinitionError(
        f"keep_logs={show(level)}: give a level such as 'INFO' or logging.WARNING, or None to keep nothing"
    )
