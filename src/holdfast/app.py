"""`App`: the composition root. It knows the steps and workflows by name, and makes store, notifier, executor and
engine from a URL when they are first needed."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import functools
import hashlib
import importlib
import inspect
import logging
import os
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping, Sequence
from pathlib import Path
from queue import Empty
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, TypeVar, get_type_hints, overload

from holdfast import failpoints
from holdfast.api.client import Client
from holdfast.api.domain_events import emit_now
from holdfast.api.functions import (
    AsyncStep,
    AsyncWorkflow,
    CallableClass,
    Step,
    SyncStep,
    SyncWorkflow,
    Workflow,
    is_decorated,
)
from holdfast.api.handles import Run, RunPage
from holdfast.api.options import (
    NO_OPTIONS,
    StartOptions,
    check_call,
    check_name,
    step_options,
    to_epoch,
    workflow_options,
)
from holdfast.api.schedules import Schedule, Schedules, When, to_schedules
from holdfast.api.tracing import TraceNode
from holdfast.codec import Codec
from holdfast.core.context import StepAttempt
from holdfast.core.definitions import (
    Around,
    RetryDelay,
    StepDefinition,
    StepOptions,
    WorkflowDefinition,
    WorkflowOptions,
)
from holdfast.core.domain import Scalar, Subscriber, Where, check_event_name, check_where
from holdfast.core.execution import Execution
from holdfast.core.loop import running
from holdfast.core.registry import OWN_PREFIX, add_app, is_own
from holdfast.core.resources import Resource, resources_of
from holdfast.durations import Duration
from holdfast.errors import (
    ArgumentError,
    DefinitionError,
    DuplicateNameError,
    UnknownNameError,
    WrongContextError,
)
from holdfast.ports import Clock, Notifier, RunQuery, ScheduleRow, Status, Store

if TYPE_CHECKING:
    from holdfast.engine.reactor import Engine, Settings

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
W = TypeVar("W", bound=Callable[[StepAttempt], Iterator[None]] | Callable[[StepAttempt], AsyncIterator[None]])
F = TypeVar("F", bound=Step[..., Any] | Workflow[..., Any])
D = TypeVar("D", StepDefinition, WorkflowDefinition)
Pool = Literal["thread", "process"]
ErrorClasses = type[BaseException] | Sequence[type[BaseException]]


class SystemClock:
    """The machine's time."""

    def now(self) -> int:
        return time.time_ns() // 1_000

    def wait(
        self, get: Callable[[float], Any], due: int | None, timeout: float, busy: int, tick: int | None = None
    ) -> Any:
        for moment in (due, tick):
            if moment is not None:
                timeout = min(timeout, (moment - self.now()) / 1_000_000)
        if timeout <= 0:
            raise Empty
        return get(timeout)


class App:
    """An app: a name, a store, and the steps and workflows defined on it.

    `store` is a path, a URL or None for `./<name>.db`; HOLDFAST_STORE overrides it. `include` names modules that
    define more of the app. `version` names the build of its code, which is a digest of the code if nothing is said;
    HOLDFAST_VERSION overrides it. `keep_logs` is the level from which on what steps log is kept with their runs; None
    keeps nothing.
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
    ) -> None:
        if type(name) is not str or not name.replace("-", "_").replace(".", "_").isidentifier():
            raise DefinitionError(f"App({name!r}): a name is made of letters, digits, '-', '_' and '.'")
        self.name = name
        self.codec = codec or Codec()
        if isinstance(include, str):
            raise DefinitionError(f"include={include!r}: give a list of module names")
        self.include = tuple(include)
        self.version = os.environ.get("HOLDFAST_VERSION") or version
        self.keep_logs = _log_level(keep_logs)
        self.clock: Clock = SystemClock()
        self._url = store
        self._chosen_url: str | None = None
        self._steps: dict[str, StepDefinition] = {}
        self._workflows: dict[str, WorkflowDefinition] = {}
        self.arounds: list[Around] = []
        self.replaced: Mapping[Resource[Any], Any] = {}
        self._schedules: dict[str, ScheduleRow] = {}
        self._subscribers: dict[tuple[str, str], Subscriber] = {}
        self._store: Store | None = None
        self._notifier: Notifier | None = None
        self._lock = threading.RLock()
        self._included = False
        add_app(self)

    def __repr__(self) -> str:
        return f"<App {self.name!r} on {self.store_url}>"

    # -- definitions

    @overload
    def step(self, function: CallableClass[P, Coroutine[Any, Any, R]], /) -> AsyncStep[P, R]: ...  # type: ignore[overload-overlap]
    @overload
    def step(self, function: CallableClass[P, R], /) -> SyncStep[P, R]: ...
    @overload
    def step(self, function: Callable[P, Coroutine[Any, Any, R]], /) -> AsyncStep[P, R]: ...  # type: ignore[overload-overlap]
    @overload
    def step(self, function: Callable[P, R], /) -> SyncStep[P, R]: ...
    @overload
    def step(
        self,
        /,
        *,
        name: str | None = None,
        max_retries: int = 3,
        retry_delay: RetryDelay = "fixed",
        retry_jitter: float | bool = 0.0,
        retry_max_delay: Duration | None = None,
        timeout: Duration | None = "60s",
        stall_timeout: Duration | None = None,
        retry_for: ErrorClasses | None = None,
        no_retry_for: ErrorClasses = (),
        force_local: bool = False,
        pool: Pool = "thread",
        max_losses: int = 3,
        queue: str = "",
        schedule: When | Sequence[When] | None = None,
        tz: str | None = None,
    ) -> StepDecorator: ...
    def step(self, function: Any = None, /, **options: Any) -> Any:
        """Make a function a step: work that is retried, timed out and recorded."""
        if function is not None:
            return self._define_step(function, None, step_options(options))
        name, schedules = options.pop("name", None), _schedules(options)
        return StepDecorator(self, _checked_name("step", name), step_options(options), schedules)

    @overload
    def workflow(self, function: CallableClass[P, Coroutine[Any, Any, R]], /) -> AsyncWorkflow[P, R]: ...  # type: ignore[overload-overlap]
    @overload
    def workflow(self, function: CallableClass[P, R], /) -> SyncWorkflow[P, R]: ...
    @overload
    def workflow(self, function: Callable[P, Coroutine[Any, Any, R]], /) -> AsyncWorkflow[P, R]: ...  # type: ignore[overload-overlap]
    @overload
    def workflow(self, function: Callable[P, R], /) -> SyncWorkflow[P, R]: ...
    @overload
    def workflow(
        self,
        /,
        *,
        name: str | None = None,
        max_retries: int = 0,
        retry_delay: RetryDelay = 0,
        retry_for: ErrorClasses | None = None,
        timeout: Duration | None = None,
        durable: bool = True,
        retain: Duration | None = "30d",
        schedule: When | Sequence[When] | None = None,
        tz: str | None = None,
    ) -> WorkflowDecorator: ...
    def workflow(self, function: Any = None, /, **options: Any) -> Any:
        """Make a function a workflow: it coordinates steps, and is replayed."""
        if function is not None:
            return self._define_workflow(function, None, workflow_options(options))
        name, schedules = options.pop("name", None), _schedules(options)
        return WorkflowDecorator(self, _checked_name("workflow", name), workflow_options(options), schedules)

    def _define_step(self, function: Any, name: str | None, options: StepOptions, place: str = "") -> Any:
        call, is_async = _callable(function, "step")
        chosen = _name_of(function) if name is None else name
        resources = resources_of(call, f"step {chosen!r}", is_async)
        hints = self.codec.hints_for(call, resources)
        definition = StepDefinition(
            chosen, call, is_async, options, hints, _result_type(call), place or _place(function), resources
        )
        self._add(self._steps, definition)
        return (AsyncStep if is_async else SyncStep)(self, definition, function)

    def _define_workflow(self, function: Any, name: str | None, options: WorkflowOptions, place: str = "") -> Any:
        call, is_async = _callable(function, "workflow")
        chosen = _name_of(function) if name is None else name
        for parameter in resources_of(call, f"workflow {chosen!r}", is_async=True):
            raise DefinitionError(
                f"workflow {chosen!r} takes the resource {parameter!r}, but a workflow is replayed and does no I/O of its own; "
                "let a step take it"
            )
        definition = WorkflowDefinition(
            chosen, call, is_async, options, self.codec.hints_for(call), _result_type(call), place or _place(function)
        )
        self._add(self._workflows, definition)
        return (AsyncWorkflow if is_async else SyncWorkflow)(self, definition, function)

    def _scheduled(self, function: Any, schedules: list[Schedule]) -> Any:
        for schedule in schedules:
            try:
                self.schedules.declare(schedule, function)
            except ArgumentError as error:
                raise DefinitionError(
                    f"{error}; a schedule of a decorator has no arguments: declare it after the function, with "
                    f"app.schedules.declare(Schedule(...), {function.__name__}, ...)"
                ) from None
        return function

    def _add(self, table: dict[str, Any], definition: StepDefinition | WorkflowDefinition) -> None:
        if is_own(definition.name):
            raise DefinitionError(f"{definition.name!r}: names that begin with {OWN_PREFIX!r} are Holdfast's own")
        other = self._steps.get(definition.name) or self._workflows.get(definition.name)
        if other is not None and not _same_code(other, definition):
            what = "step" if definition.name in self._steps else "workflow"
            places = f"at {other.place}, and another one at {definition.place}; give one of them name='...'"
            if other.place == definition.place:
                places = f"at {other.place} already, where it is defined once more; give each its own name='...'"
            raise DuplicateNameError(f"app {self.name!r} has a {what} {definition.name!r} {places}")
        table[definition.name] = definition

    @overload
    def resource(self, function: Callable[..., AsyncIterator[T]], /) -> Resource[T]: ...
    @overload
    def resource(self, function: Callable[..., Iterator[T]], /) -> Resource[T]: ...
    def resource(self, function: Any, /) -> Any:
        """Make a generator function a resource: what it yields is shared by the steps of a worker that take it with
        `use`, from the first of them to the worker's end."""
        _check_generator(function, "resource")
        return Resource(function.__name__, function)

    def around_step(self, function: W, /) -> W:
        """Let a generator function wrap each attempt of each step: it is given the attempt, and yields once.

        Those defined first are the outermost. A plain one wraps every step, on the thread that executes it, which for
        async steps is the event loop's. An async one wraps async steps only.
        """
        _check_generator(function, "around_step")
        name = function.__name__
        try:
            inspect.signature(function).bind(None)
        except TypeError as error:
            raise DefinitionError(f"around_step {name!r} is given one argument, a StepAttempt: {error}") from None
        around = Around(name, function, inspect.isasyncgenfunction(function), _place(function))
        same = [i for i, other in enumerate(self.arounds) if _same_code(other, around)]
        if same:
            self.arounds[same[0]] = around
        else:
            self.arounds.append(around)
        return function

    @property
    def schedules(self) -> Schedules:
        """Its schedules: to look at, to change, and to declare."""
        return Schedules(self)

    def declare_schedule(self, row: ScheduleRow) -> None:
        known = self._schedules.get(row.name)
        if known is not None and known != row:
            raise DuplicateNameError(
                f"app {self.name!r} declares two schedules named {row.name!r}; give each its own: Schedule(..., name='...')"
            )
        self._schedules[row.name] = row

    def declared_schedules(self) -> list[ScheduleRow]:
        self.load()
        return list(self._schedules.values())

    def find_step(self, name: str) -> StepDefinition:
        return self._find(self._steps, "step", name)

    def find_workflow(self, name: str) -> WorkflowDefinition:
        if is_own(name) and name in _built_ins():
            return _built_ins()[name]
        return self._find(self._workflows, "workflow", name)

    def _find(self, table: dict[str, D], what: str, name: str) -> D:
        self.load()
        found = table.get(name)
        if found is None:
            raise UnknownNameError(
                f"no {what} named {name!r} in app {self.name!r}; known: {', '.join(sorted(table)) or 'none'}"
            )
        return found

    def startable_names(self) -> list[str]:
        """What can be started by name."""
        self.load()
        return [*self._workflows, *self._steps]

    def known_names(self) -> list[str]:
        """What a worker of this app can carry out: what can be started by name, and the workflows that canvases are."""
        return [*self.startable_names(), *_built_ins()]

    def load(self) -> None:
        """Import the modules named in `include`."""
        if not self._included:
            self._included = True  # before: the modules may ask for names themselves
            try:
                for module in self.include:
                    importlib.import_module(module)
            except BaseException:
                self._included = False
                raise

    # -- parts

    @property
    def store_url(self) -> str:
        """Where the store is: what `use_store` named, HOLDFAST_STORE, what the app was made with, or `./<name>.db`."""
        return self._chosen_url or os.environ.get("HOLDFAST_STORE") or self._url or f"{self.name}.db"

    def use_store(self, url: str) -> None:
        """Use another store than the one named so far; before anything was done with that."""
        with self._lock:
            self.close()
            self._chosen_url = url

    @property
    def store(self) -> Store:
        with self._lock:
            if self._store is None:
                from holdfast.parts import open_store  # not at the top: see parts.py

                self._store, self._notifier = open_store(self.name, self.store_url, self.clock)
            return self._store

    @property
    def notifier(self) -> Notifier:
        _ = self.store
        assert self._notifier is not None
        return self._notifier

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

    def encode_by_name(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bytes:
        self.load()
        definition = self._workflows.get(name) or self._steps.get(name)
        if definition is None:
            known = ", ".join(sorted(self.startable_names())) or "none"
            raise UnknownNameError(f"no workflow or step named {name!r} in app {self.name!r}; known: {known}")
        args, kwargs = check_call(name, definition, args, kwargs)
        return self.codec.encode_call(args, kwargs, f"the arguments of {name!r}", definition.hints)

    def run_canvas(self, execution: Execution, node: bytes) -> asyncio.Future[Any]:
        """Carry out a canvas in the run whose code asks; for `await canvas`."""
        from holdfast.compose.canvas import begin

        return begin(execution, node)

    def start_run(self, name: str, call: bytes, options: StartOptions) -> Run[Any]:
        return self.client.start(name, call, options)

    def get_run(self, run_id: str) -> Run[Any]:
        """The run of that id; RunNotFoundError if there is none."""
        return self.client.get(run_id)

    async def aget_run(self, run_id: str) -> Run[Any]:
        return await asyncio.to_thread(self.get_run, run_id)

    def runs(
        self,
        *,
        status: Status | str | Sequence[Status | str] | None = None,
        workflow: str | None = None,
        parent: str | None = None,
        since: dt.datetime | None = None,
        data: dict[str, Any] | None = None,
        schedule: str | None = None,
        after: int | None = None,
        limit: int = 100,
    ) -> RunPage:
        """A page of runs, newest first. `page.cursor` given as `after` asks for the next."""
        statuses = (status,) if isinstance(status, str) else tuple(status or ())
        unknown = [s for s in statuses if s not in Status.__members__]
        if unknown:
            raise ArgumentError(f"status={unknown[0]!r}: give one of {', '.join(Status)}")
        if type(limit) is not int or limit < 1:
            raise ArgumentError(f"limit={limit!r}: give a number of 1 or more")
        if after is not None and type(after) is not int:
            raise ArgumentError(f"after={after!r}: give the cursor of a page")
        return self.client.runs(
            RunQuery(
                statuses=[str(s) for s in statuses], workflow=workflow, parent=parent, schedule=schedule, after=after,
                limit=limit,
                since=None if since is None else to_epoch(since, "since"),
                data={key: self.codec.encode(value).decode(errors="replace") for key, value in (data or {}).items()},
            )
        )  # fmt: skip

    async def aruns(
        self,
        *,
        status: Status | str | Sequence[Status | str] | None = None,
        workflow: str | None = None,
        parent: str | None = None,
        since: dt.datetime | None = None,
        data: dict[str, Any] | None = None,
        schedule: str | None = None,
        after: int | None = None,
        limit: int = 100,
    ) -> RunPage:
        """`runs` for async code."""
        return await asyncio.to_thread(
            lambda: self.runs(
                status=status,
                workflow=workflow,
                parent=parent,
                since=since,
                data=data,
                schedule=schedule,
                after=after,
                limit=limit,
            )
        )

    def send_hook(
        self, token: str | None = None, payload: object = None, *, key: str | None = None, name: str | None = None
    ) -> None:
        """Answer a hook by the token of a link, or by the key that the workflow gave it (and by its name, if hooks of
        several names wait with that key)."""
        self.client.send_hook(token, payload, key, name)

    async def asend_hook(
        self, token: str | None = None, payload: object = None, *, key: str | None = None, name: str | None = None
    ) -> None:
        """`send_hook` for async code."""
        await asyncio.to_thread(lambda: self.send_hook(token, payload, key=key, name=name))

    # -- domain events

    def on(self, event: str, *, where: Where | None = None) -> Callable[[F], F]:
        """Start the workflow or step below for each domain event of that name (that has these values), once, with the
        payload as its argument. Goes above `@app.workflow` or `@app.step`, as often as needed."""
        check_event_name(event)
        condition = check_where(event, where)

        def subscribe(function: F) -> F:
            self._subscribe(event, condition, function)
            return function

        return subscribe

    def _subscribe(self, event: str, where: dict[str, Scalar], function: Any) -> None:
        if not is_decorated(function):
            raise DefinitionError(f"@app.on({event!r}) goes above @app.workflow or @app.step, not on {function!r}")
        definition: StepDefinition | WorkflowDefinition = function._definition
        if function._app is not self:
            raise DefinitionError(
                f"@app.on({event!r}): {function!r} belongs to app {function._app.name!r}; use the `on` of that app"
            )
        signature = definition.signature
        takes_payload = next((n == 1 for n in (1, 0) if _can_take(signature, n)), None)
        if takes_payload is None:
            raise DefinitionError(
                f"@app.on({event!r}): {definition.name}{signature} can't be called with one argument, the event's payload"
            )
        known = self._subscribers.get((event, definition.name))
        wheres = [each for each in (known.where if known is not None else ()) if each != where]
        self._subscribers[event, definition.name] = Subscriber(
            event, definition.name, [*wheres, where], takes_payload,
            getattr(definition.options, "durable", True),
        )  # fmt: skip

    def subscribers(self) -> list[Subscriber]:
        self.load()
        return list(self._subscribers.values())

    def emit(self, name: str, payload: object = None, *, key: str | None = None) -> str:
        """Emit a domain event; its id. The same name and `key` again is the same event."""
        loop = running()
        if loop is None:
            return self.client.emit(name, payload, key)
        if loop.execution.app != self.name:
            raise WrongContextError(
                f"event {name!r}: this run belongs to app {loop.execution.app!r}; use `await emit(...)`, or a step"
            )
        return emit_now(name, payload, key)

    async def aemit(self, name: str, payload: object = None, *, key: str | None = None) -> str:
        """`emit` for async code."""
        if running() is not None:
            return self.emit(name, payload, key=key)
        return await asyncio.to_thread(lambda: self.emit(name, payload, key=key))

    def trace(self, id: str) -> TraceNode:
        """The process that a run, or a domain event, belongs to, as a tree."""
        return self.client.trace(id)

    async def atrace(self, id: str) -> TraceNode:
        return await asyncio.to_thread(self.trace, id)

    def gc(self, batch: int = 500) -> int:
        """Delete runs whose time of retention has passed, in batches; how many there were."""
        total = 0
        while count := self.store.collect(batch):
            total += count
        return total

    async def agc(self, batch: int = 500) -> int:
        return await asyncio.to_thread(self.gc, batch)

    # -- working

    @property
    def build(self) -> str:
        """What names the code of this process: `version`, or a digest of the modules that define the app."""
        if self.version is not None:
            return self.version
        self.load()
        files = {inspect.getsourcefile(inspect.unwrap(d.function)) for d in self._workflows.values()}
        files |= {d.place.rpartition(":")[0] for d in self._workflows.values()}  # of a composition: where it is made
        digest = hashlib.sha256()
        for file in sorted(f for f in files if f and Path(f).is_file()):
            digest.update(Path(file).read_bytes())
        return digest.hexdigest()[:12]

    def make_engine(
        self, *, concurrency: int = 16, processes: int | None = None, settings: Settings | None = None
    ) -> Engine:
        """An engine with an executor of its own, not started yet."""
        from holdfast.parts import build_engine, open_store  # not at the top: see parts.py

        failpoints.arm_from_environment()
        self.load()
        own = open_store(self.name, self.store_url, self.clock) if self._own_parts() else (self.store, self.notifier)
        return build_engine(
            self, *own, self.clock, build=self.build, concurrency=concurrency, processes=processes, settings=settings,
            description=self._describe_for_processes(),
        )  # fmt: skip

    def _own_parts(self) -> bool:
        """An engine listens at a bell of its own; a store in memory is shared by all."""
        return self.store_url != ":memory:"

    def _describe_for_processes(self) -> dict[str, Any] | None:
        """How a process of its own finds this app; None if it can't."""
        functions: list[Any] = [d.function for d in self._steps.values()]
        functions += [d.function for d in self._workflows.values()]
        wrappers = [around.function.__module__ for around in self.arounds]
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
            "store": str(Path(self.store.url).absolute()) if self._own_parts() else "",
        }

    @contextlib.contextmanager
    def worker(
        self, *, concurrency: int = 16, settings: Settings | None = None, grace: float = 5.0
    ) -> Iterator[Engine]:
        """Run an engine in this process, on threads of its own, until the block ends."""
        engine = self.make_engine(concurrency=concurrency, settings=settings)
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


class StepDecorator:
    """`@app.step(...)`, waiting for its function."""

    def __init__(self, app: App, name: str | None, options: StepOptions, schedules: list[Schedule]) -> None:
        self._app, self._name, self._options, self._schedules = app, name, options, schedules

    @overload
    def __call__(self, function: CallableClass[P, Coroutine[Any, Any, R]]) -> AsyncStep[P, R]: ...  # type: ignore[overload-overlap]
    @overload
    def __call__(self, function: CallableClass[P, R]) -> SyncStep[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, Coroutine[Any, Any, R]]) -> AsyncStep[P, R]: ...  # type: ignore[overload-overlap]
    @overload
    def __call__(self, function: Callable[P, R]) -> SyncStep[P, R]: ...
    def __call__(self, function: Any) -> Any:
        return self._app._scheduled(self._app._define_step(function, self._name, self._options), self._schedules)


class WorkflowDecorator:
    """`@app.workflow(...)`, waiting for its function."""

    def __init__(self, app: App, name: str | None, options: WorkflowOptions, schedules: list[Schedule]) -> None:
        self._app, self._name, self._options, self._schedules = app, name, options, schedules

    @overload
    def __call__(self, function: CallableClass[P, Coroutine[Any, Any, R]]) -> AsyncWorkflow[P, R]: ...  # type: ignore[overload-overlap]
    @overload
    def __call__(self, function: CallableClass[P, R]) -> SyncWorkflow[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, Coroutine[Any, Any, R]]) -> AsyncWorkflow[P, R]: ...  # type: ignore[overload-overlap]
    @overload
    def __call__(self, function: Callable[P, R]) -> SyncWorkflow[P, R]: ...
    def __call__(self, function: Any) -> Any:
        return self._app._scheduled(self._app._define_workflow(function, self._name, self._options), self._schedules)


def _schedules(options: dict[str, Any]) -> list[Schedule]:
    given, tz = options.pop("schedule", None), options.pop("tz", None)
    if given is None:
        if tz is not None:
            raise DefinitionError(f"tz={tz!r} is the time zone of a schedule; add schedule='...', or take it away")
        return []
    return to_schedules(given, tz)


def _built_ins() -> dict[str, WorkflowDefinition]:
    from holdfast.compose.canvas import DEFINITIONS  # not at the top: only workers need it

    return DEFINITIONS


def _callable(function: Any, what: str) -> tuple[Callable[..., Any], bool]:
    """What to call, and whether it is async. A class is made anew for each call."""
    if is_decorated(function):
        raise DefinitionError(f"{function!r} can't be made a {what} too; decorate a function once")
    if isinstance(function, type):
        return _class_call(function, what)
    if not callable(function):
        raise DefinitionError(f"{what}: {function!r} is not a function or a class")
    if inspect.isasyncgenfunction(function) or inspect.isgeneratorfunction(function):
        raise DefinitionError(
            f"{what} {function.__qualname__}: a generator can't be one; return a list, or stream items"
        )
    is_async = inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)
    return function, is_async


def _check_generator(function: Any, what: str) -> None:
    if not (inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function)):
        name = getattr(function, "__qualname__", repr(function))
        raise DefinitionError(
            f"{what} {name}: give a generator function, which yields once, as `@contextlib.contextmanager` takes it (but "
            "without that decorator)"
        )


def _class_call(cls: Any, what: str) -> tuple[Callable[..., Any], bool]:
    method = next((vars(base)["__call__"] for base in cls.__mro__ if "__call__" in vars(base)), None)
    if method is None:
        raise DefinitionError(f"{what} {cls.__qualname__}: a class needs a __call__ method")
    try:
        inspect.signature(cls).bind()
    except TypeError as error:
        raise DefinitionError(
            f"{what} {cls.__qualname__}: workers make it without arguments, but {cls.__qualname__}.__init__ is {error}; "
            f"give defaults, or decorate an instance: app.{what}({cls.__name__}(...))"
        ) from None

    def call(*args: Any, **kwargs: Any) -> Any:
        return cls()(*args, **kwargs)

    signature = inspect.signature(method)
    parameters = list(signature.parameters.values())[1:]
    call.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    call.__annotations__ = {k: v for k, v in get_type_hints(method).items()}
    call.__name__, call.__qualname__, call.__module__ = cls.__name__, cls.__qualname__, cls.__module__
    return call, inspect.iscoroutinefunction(method)


def _can_take(signature: inspect.Signature, arguments: int) -> bool:
    try:
        signature.bind(*range(arguments))
    except TypeError:
        return False
    return True


def _name_of(function: Any) -> str:
    name = getattr(function, "__name__", None) or type(function).__name__
    if name == "<lambda>" or isinstance(function, functools.partial):
        raise DefinitionError(f"a {name.strip('<>')} has no name of its own; give name='...'")
    return str(name)


def _log_level(level: str | int | None) -> int | None:
    known = logging.getLevelNamesMapping()
    if isinstance(level, str) and level.upper() in known:
        return known[level.upper()]
    if level is None or type(level) is int:
        return level
    raise DefinitionError(
        f"keep_logs={level!r}: give a level such as 'INFO' or logging.WARNING, or None to keep nothing"
    )


def _checked_name(what: str, name: Any) -> str | None:
    if name is not None:
        check_name(what, name)
    return name  # type: ignore[no-any-return]


def _result_type(function: Callable[..., Any]) -> Any:
    try:
        return get_type_hints(function).get("return", Any)
    except Exception:  # an annotation that can't be evaluated here says nothing about the result
        return Any


def _place(function: Any) -> str:
    try:
        return f"{inspect.getsourcefile(function)}:{inspect.getsourcelines(function)[1]}"
    except (OSError, TypeError):
        return f"{getattr(function, '__module__', '?')}.{getattr(function, '__qualname__', function)}"


def _same_code(
    one: StepDefinition | WorkflowDefinition | Around, other: StepDefinition | WorkflowDefinition | Around
) -> bool:
    """A module that runs as `__main__` and is imported by its name defines everything twice; so does a reload.
    A function that defines a step each time it is called does not: those are two steps."""
    is_local = "<locals>" in getattr(other.function, "__qualname__", "")
    return type(one) is type(other) and one.place == other.place and ":" in one.place and not is_local
