"""`App`: the composition root. It makes store, notifier, executor and engine from a URL when they are first needed, and
starts, finds and serves runs with them."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import functools
import hashlib
import inspect
import logging
import os
import random
import re
import sys
import threading
import time
import weakref
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

from holdfast import failpoints
from holdfast.api.checks import check_number, check_queue, check_text, duration_of, to_epoch
from holdfast.api.client import Client
from holdfast.api.domain_events import emit_now
from holdfast.api.handles import Run, RunPage
from holdfast.api.options import (
    NO_OPTIONS,
    StartOptions,
    check_call,
    check_input,
)
from holdfast.api.remote import Remote
from holdfast.api.schedules import Schedules
from holdfast.api.search import conditions_of
from holdfast.api.selection import Selection
from holdfast.api.telemetry import StoreTransport
from holdfast.blocking import twin
from holdfast.codec import Codec
from holdfast.codec.blobs import store_mark, sweep
from holdfast.core.definitions import DEFAULT_QUEUE, StepDefinition, WorkflowDefinition
from holdfast.core.loop import running
from holdfast.core.registry import add_app, refuse_while_importing
from holdfast.durations import Duration
from holdfast.errors import (
    ArgumentError,
    DefinitionError,
    UnknownNameError,
    WrongContextError,
)
from holdfast.ports import Clock, Notifier, RunQuery, Status, Store
from holdfast.printing import show
from holdfast.registry import Registry
from holdfast.stores.forks import gate
from holdfast.telemetry.clock import LamportClock
from holdfast.telemetry.instruments import Instrument
from holdfast.views.trace import TraceNode

if TYPE_CHECKING:
    from holdfast.engine.host import Host
    from holdfast.engine.settings import Settings
    from holdfast.executors.celery.attachment import Attachment
    from holdfast.telemetry.dispatcher import EventDispatcher


_STEADY: int = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class SystemClock:
    """The machine's time."""

    def now(self) -> int:
        return time.time_ns() // 1_000

    monotonic = staticmethod(functools.partial(time.clock_gettime, _STEADY))

    def random(self) -> float:
        return random.random()


def without_password(url: str) -> str:
    """A store's address as it may be shown."""
    return re.sub(r"(://[^/@:]*):[^@/]*@", r"\1:***@", url)


class App(Registry):
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
        super().__init__(name, codec or Codec(), tuple(include))
        self.version = os.environ.get("HOLDFAST_VERSION") or version
        self.keep_logs = _log_level(keep_logs)
        if not isinstance(instruments, list | tuple):
            raise DefinitionError(f"instruments={show(instruments)}: give a list of instruments")
        for instrument in instruments:
            self.instruments.add(instrument)
        self.clock: Clock = SystemClock()
        self.logical_clock = LamportClock()
        self._url = store
        self._chosen_url: str | None = None
        self._store: Store | None = None
        self._notifier: Notifier | None = None
        self._lock = threading.RLock()
        if broker is not None and celery is not None:
            raise DefinitionError("broker= and celery= both say where steps execute; a Celery app has its own broker")
        self._broker = broker
        self._attachment: Attachment | None = None
        _apps.add(self)
        add_app(self)
        if celery is not None:
            self._attach(celery)

    def __repr__(self) -> str:
        return f"<App {self.name!r} on {without_password(self.store_url)}>"

    # -- parts

    @property
    def store_url(self) -> str:
        """Where the store is: what `use_store` named, HOLDFAST_STORE, what the app was made with, or `./<name>.db`."""
        return self._chosen_url or os.environ.get("HOLDFAST_STORE") or self._url or f"{self.name}.db"

    def use_store(self, url: str) -> None:
        """Use another store than the one named so far; before anything was done with that."""
        check_text("url", url)
        with self._lock:
            self.close()
            self._chosen_url = url

    @property
    def store(self) -> Store:
        with self._lock:
            if self._store is None:
                # A child forked during an import would wait for it for ever.
                with gate.using(f"the store of app {self.name!r}"):
                    from holdfast.wiring import open_store  # not at the top: see wiring.py

                    self._store, self._notifier = open_store(self.name, self.store_url, self.clock, self.logical_clock)
            return self._store

    @property
    def notifier(self) -> Notifier:
        _ = self.store
        assert self._notifier is not None
        return self._notifier

    @property
    def on_celery(self) -> bool:
        """Whether steps execute in the pools of Celery workers."""
        return self._attachment is not None or bool(self._broker_url)

    @property
    def _broker_url(self) -> str | None:
        return os.environ.get("HOLDFAST_BROKER") or self._broker

    @property
    def celery(self) -> Any:
        """The Celery app whose workers execute the steps: `celery = app.celery` at the end of a module, and
        `celery -A module:celery worker` runs everything."""
        if self._attachment is None:
            if not self._broker_url:
                raise DefinitionError(
                    f"app {self.name!r} has no Celery app; make it with App(..., broker='redis://...') or "
                    "App(..., celery=...), or set HOLDFAST_BROKER"
                )
            self._attach(_celery_parts().make_celery(self.name, self._broker_url))
        assert self._attachment is not None
        return self._attachment.celery

    def _attach(self, celery: Any) -> None:
        self._attachment = _celery_parts().Attachment(
            self.name, celery, list(self._steps.values()), make_host=self._make_carried, load=self._load_for_pool,
            describe=self._describe_engine,
        )  # fmt: skip

    def _step_defined(self, definition: StepDefinition) -> None:
        if self._attachment is not None:
            self._attachment.add(definition)

    def _load_for_pool(self) -> None:
        """Import what the processes of a pool need before they are forked, so that none of them has to. Nothing is opened."""
        from holdfast.wiring import import_store  # not at the top: see wiring.py

        self.load()
        import_store(self.store_url)

    def _make_carried(self, is_apart: bool, is_ending: Callable[[], bool]) -> Any:
        """What executes attempts in a process of a Celery worker's pool."""
        from holdfast.wiring import build_carried  # not at the top: see wiring.py

        host = build_carried(
            self, *self._parts_for_work(1, None), build=self.build, queues=self._carried_queues(), is_apart=is_apart,
            is_ending=is_ending, settings=None, description=self._describe_for_processes(),
        )  # fmt: skip
        host.begin()
        return host

    def _carried_queues(self) -> list[str]:
        """What is shown of a worker: the queues of its broker that it takes messages from."""
        amqp = self.celery.amqp
        names = {"" if name == self.celery.conf.task_default_queue else name for name in amqp.queues.consume_from}
        return sorted(names)

    def _describe_engine(self) -> dict[str, Any]:
        """How the process of an engine finds this app."""
        description = self._describe_for_processes()
        if description is None:
            raise DefinitionError(
                f"app {self.name!r} is defined where no other process can import it; define it in a module"
            )
        return description

    @property
    def client(self) -> Client:
        if running() is not None:
            raise WrongContextError(
                f"app {self.name!r} was asked for something in workflow code, which is replayed; ask in a step"
            )
        return Client(self, self.store, self.notifier)

    def close(self) -> None:
        """Let go of the store. It is opened again when it is needed."""
        with self._lock:
            if self._notifier is not None:
                self._notifier.close()
            if self._store is not None:
                self._store.close()
            self._store = self._notifier = None

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
        self.load()
        definition = self._workflows.get(name) or self._steps.get(name)
        if definition is None:
            known = ", ".join(sorted(self.startable_names())) or "none"
            raise UnknownNameError(f"no workflow or step named {name!r} in app {self.name!r}; known: {known}")
        args, kwargs = check_call(name, definition, args, kwargs)
        check_input(definition, args, kwargs)
        what = f"the arguments of {name!r}"
        call = self.codec.encode_call(args, kwargs, what, definition.hints)
        self.codec.check_call(args, kwargs, what, definition.hints)
        return call

    def start_run(self, name: str, call: bytes, options: StartOptions) -> Run[Any]:
        return self.client.start(name, call, options)

    def get_run(self, run_id: str) -> Run[Any]:
        """The run of that id; RunNotFoundError if there is none."""
        return self.client.get(run_id)

    aget_run = twin(get_run)

    def runs(
        self,
        *,
        status: Status | str | Sequence[Status | str] | None = None,
        workflow: str | None = None,
        parent: str | None = None,
        since: dt.datetime | None = None,
        until: dt.datetime | None = None,
        data: dict[str, Any] | None = None,
        schedule: str | None = None,
        after: int | None = None,
        limit: int = 100,
    ) -> RunPage:
        """A page of runs, newest first. `page.cursor` given as `after` asks for the next. `data` are values that runs have
        published with `wf.set_data`, or a `Range` or `Prefix` of them."""
        check_number("limit", limit, 1)
        if after is not None and not (type(after) is int and 0 <= after < 2**63):
            raise ArgumentError(f"after={show(after)}: give the cursor of a page")
        query = self._query(status, workflow, parent, since, until, data, schedule)
        query.after, query.limit = after, limit
        return self.client.runs(query)

    aruns = twin(runs)

    def select(
        self,
        *,
        status: Status | str | Sequence[Status | str] | None = None,
        workflow: str | None = None,
        parent: str | None = None,
        since: dt.datetime | None = None,
        until: dt.datetime | None = None,
        older_than: Duration | None = None,
        data: dict[str, Any] | None = None,
        schedule: str | None = None,
    ) -> Selection:
        """All runs like that, to count and to act on at once: `app.select(workflow="order", status="WAITING",
        older_than="2d").cancel("too old")`. A `workflow` that ends in `*` is the beginning of a name; `since`, `until` and
        `older_than` are about when a run was created. Without any, it is every run of the app."""
        query = self._query(status, workflow, parent, since, until, data, schedule)
        if older_than is not None:
            if until is not None:
                raise ArgumentError(
                    "until= and older_than= both say when the last of them was created; give one of them"
                )
            query.until = self.store.now() - duration_of("older_than", older_than, ArgumentError)
        return Selection(self.client, query)

    def count(
        self,
        *,
        status: Status | str | Sequence[Status | str] | None = None,
        workflow: str | None = None,
        parent: str | None = None,
        since: dt.datetime | None = None,
        until: dt.datetime | None = None,
        older_than: Duration | None = None,
        data: dict[str, Any] | None = None,
        schedule: str | None = None,
    ) -> int:
        """How many runs like that there are."""
        return self.select(
            status=status, workflow=workflow, parent=parent, since=since, until=until, older_than=older_than, data=data,
            schedule=schedule,
        ).count()  # fmt: skip

    acount = twin(count)

    def _query(
        self,
        status: Status | str | Sequence[Status | str] | None,
        workflow: str | None,
        parent: str | None,
        since: dt.datetime | None,
        until: dt.datetime | None,
        data: dict[str, Any] | None,
        schedule: str | None,
    ) -> RunQuery:
        statuses = [] if status is None else [status] if isinstance(status, str) else status
        if not isinstance(statuses, list | tuple | set | frozenset):
            raise ArgumentError(f"status={show(status)}: give one of {', '.join(Status)}, or a list of them")
        for one in statuses:
            if not isinstance(one, str) or one not in Status.__members__:
                raise ArgumentError(f"status={show(one)}: give one of {', '.join(Status)}")
        for what, given in (("workflow", workflow), ("parent", parent), ("schedule", schedule)):
            if given is not None:
                check_text(what, given)
        if data is not None and not isinstance(data, dict):
            raise ArgumentError(f"data={show(data)}: give a dict of what runs have kept with wf.set_data")
        equal, spans = conditions_of(data or {}, self.codec)
        return RunQuery(
            statuses=[str(s) for s in statuses], workflow=workflow, parent=parent, schedule=schedule,
            since=None if since is None else to_epoch(since, "since"),
            until=None if until is None else to_epoch(until, "until"),
            data=equal, spans=spans,
        )  # fmt: skip

    def send_hook(
        self, token: str | None = None, payload: object = None, *, key: str | None = None, name: str | None = None
    ) -> None:
        """Answer a hook by the token of a link, or by the key that the workflow gave it (and by its name, if hooks of
        several names wait with that key)."""
        self.client.send_hook(token, payload, key, name)

    asend_hook = twin(send_hook)

    # -- steps that end elsewhere

    def finish_step(self, token: str, result: object = None) -> None:
        """End a step that was handed over, with its result. `token` is what `this_step.hand_over()` has made. Once it is
        ended, StepTokenError."""
        self.client.finish_step(token, result)

    def fail_step(self, token: str, error: BaseException | str) -> None:
        """Let the attempt of a step that was handed over fail: it is retried as the step's options say."""
        self.client.fail_step(token, error)

    def beat_step(self, token: str, done: float | None = None, total: float | None = None, note: str = "") -> None:
        """A sign of life of a step that was handed over, for its `stall_timeout`; perhaps with how far it is."""
        self.client.beat_step(token, done, total, note)

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
            return self.client.joined(connection).emit(name, payload, key)
        if loop is None:
            return self.client.emit(name, payload, key)
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
        return self.client.trace(id)

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
        if not self.on_celery:
            return None
        _ = self.celery
        assert self._attachment is not None
        return self._attachment.event_exchange(self.logical_clock)

    # -- working

    @property
    def build(self) -> str:
        """What names the code of this process: `version`, or a digest of the modules that define the app."""
        if self.version is not None:
            return self.version
        self.load()
        defined: list[StepDefinition | WorkflowDefinition] = [*self._workflows.values()]
        defined = defined or [*self._steps.values()]
        files = {inspect.getsourcefile(inspect.unwrap(d.function)) for d in defined}
        files |= {d.place.rpartition(":")[0] for d in defined}  # of a composition: where it is made
        digest = hashlib.sha256()
        for file in sorted(f for f in files if f and Path(f).is_file()):
            digest.update(Path(file).read_bytes())
        return digest.hexdigest()[:12]

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
        from holdfast.wiring import build_engine  # not at the top: see wiring.py

        is_carried = self.on_celery and queues is not None
        served = [] if is_carried else None if queues is None else _check_queues(queues)
        carrier = None
        if is_carried:
            _ = self.celery
            assert self._attachment is not None
            carrier = self._attachment.carrier()
        return build_engine(
            self, *self._parts_for_work(concurrency, processes), build=self.build, concurrency=concurrency,
            processes=processes, settings=settings, description=self._describe_for_processes(), queues=served,
            carrier=carrier,
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
        from holdfast.wiring import build_puller  # not at the top: see wiring.py

        served = _check_queues(queues)
        if not served:
            raise ArgumentError("queues=[]: name at least one queue; 'default' is that of steps that name none")
        return build_puller(
            self, *self._parts_for_work(concurrency, processes), build=self.build, queues=served,
            concurrency=concurrency, processes=processes, settings=settings, description=self._describe_for_processes(),
        )  # fmt: skip

    def _parts_for_work(self, concurrency: int, processes: int | None) -> tuple[Store, Notifier]:
        from holdfast.wiring import open_store  # not at the top: see wiring.py

        refuse_while_importing("a worker is started")
        _check_count("concurrency", concurrency)
        if processes is not None:
            _check_count("processes", processes)
        failpoints.arm_from_environment()
        self.load()
        if not self._own_parts():
            return self.store, self.notifier
        return open_store(self.name, self.store_url, self.clock, self.logical_clock)

    def _own_parts(self) -> bool:
        """An engine listens at a bell of its own; a store in memory is shared by all."""
        return self.store_url != ":memory:"

    def _describe_for_processes(self) -> dict[str, Any] | None:
        """How a process of its own finds this app; None if it can't."""
        functions: list[Any] = [d.function for d in self._steps.values()]
        functions += [d.function for d in self._workflows.values()]
        wrappers = [around.function.__module__ for around in (*self.arounds, *self.start_arounds)]
        modules = {str(getattr(f, "func", f).__module__) for f in functions} | {*self.include, *wrappers}
        main_file = ""
        if "__main__" in modules:
            main = sys.modules["__main__"]
            spec = getattr(main, "__spec__", None)
            if spec is not None:  # python -m package.module
                modules.add(spec.name)
            else:
                main_file = getattr(main, "__file__", None) or ""
                if not main_file:
                    return None
        first = list(dict.fromkeys(wrappers))  # what surrounds the others may have to be there before them
        return {
            "app": self.name,
            "modules": [m for m in [*first, *sorted(modules - {*first})] if m != "__main__"],
            "main_file": main_file,
            "store": self._address(),
        }

    def _address(self) -> str:
        """The store as a process in another folder names it; nothing if none can reach it."""
        if not self._own_parts():
            return ""
        if self.store_url.startswith(("postgresql://", "postgres://")):
            return self.store_url
        return str(Path(self.store.url).absolute())

    @contextlib.contextmanager
    def worker(
        self,
        *,
        concurrency: int = 16,
        settings: Settings | None = None,
        grace: float = 5.0,
        queues: Sequence[str] = (DEFAULT_QUEUE,),
    ) -> Iterator[Host]:
        """Run an engine in this process, on threads of its own, until the block ends. Steps of other `queues` are left to
        other workers."""
        duration_of("grace", grace, ArgumentError)
        with self._working(
            self.make_engine(concurrency=concurrency, settings=settings, queues=queues), grace
        ) as engine:
            yield engine

    @contextlib.contextmanager
    def executor(
        self, queues: Sequence[str], *, concurrency: int = 16, settings: Settings | None = None, grace: float = 5.0
    ) -> Iterator[Host]:
        """Execute steps of these `queues` for engines elsewhere, on threads of this process, until the block ends."""
        duration_of("grace", grace, ArgumentError)
        with self._working(self.make_executor(queues, concurrency=concurrency, settings=settings), grace) as executor:
            yield executor

    @contextlib.contextmanager
    def _working(self, engine: Host, grace: float) -> Iterator[Host]:
        engine.start()
        thread = threading.Thread(target=engine.run, name="holdfast-engine", daemon=True)
        thread.start()
        try:
            yield engine
        finally:
            engine.stop(grace)
            thread.join(grace + 10)
            if engine.store is not self._store:
                engine.store.close()

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

        _check_count("concurrency", concurrency)
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


_apps: weakref.WeakSet[App] = weakref.WeakSet()


def _after_fork() -> None:
    """A thread that doesn't exist in the child may have held these."""
    for app in _apps:
        app._lock = threading.RLock()


os.register_at_fork(after_in_child=_after_fork)


def _celery_parts() -> Any:
    try:
        from holdfast.executors.celery import attachment  # not at the top: few need Celery
    except ImportError as error:
        raise DefinitionError(
            f"steps on Celery need Celery ({error}); install it with: pip install 'holdfast[celery]'"
        ) from error
    return attachment


def _check_queues(queues: Any) -> list[str]:
    if not isinstance(queues, list | tuple | set | frozenset):
        raise ArgumentError(
            f"queues={show(queues)}: give a list of names; 'default' is the queue of steps that name none"
        )
    return sorted({check_queue(queue) for queue in queues})


def _check_count(what: str, value: Any) -> None:
    check_number(what, value, 1, why="; without any its steps would wait for ever")


def _log_level(level: str | int | None) -> int | None:
    known = logging.getLevelNamesMapping()
    if isinstance(level, str) and level.upper() in known:
        return known[level.upper()]
    if level is None or type(level) is int:
        return level
    raise DefinitionError(
        f"keep_logs={show(level)}: give a level such as 'INFO' or logging.WARNING, or None to keep nothing"
    )
