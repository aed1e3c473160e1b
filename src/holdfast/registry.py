"""What users write with an app: steps, workflows, resources, subscriptions, schedules, and finding them by name."""

from __future__ import annotations

import abc
import asyncio
import functools
import importlib
import inspect
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, ParamSpec, TypeVar, get_type_hints, overload

from holdfast.api.checks import check_name
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
from holdfast.api.hooks import HOOKS, HookDefinition, make_hook
from holdfast.api.models import Models
from holdfast.api.options import (
    step_options,
    workflow_options,
)
from holdfast.api.owner import Owner
from holdfast.api.requests import REQUESTS, RequestDefinition, make_request
from holdfast.api.schedules import Schedule, Schedules, When, to_schedules
from holdfast.codec import Codec
from holdfast.core.context import StartCall, StepAttempt, WorkflowAttempt
from holdfast.core.definitions import (
    Around,
    RetryDelay,
    StepDefinition,
    StepOptions,
    WorkflowDefinition,
    WorkflowOptions,
)
from holdfast.core.domain_events import Scalar, Subscriber, Where, check_event_name, check_where
from holdfast.core.execution import Execution
from holdfast.core.limits import BoundLimit, Key, Limit, WhenFull, bind
from holdfast.core.registry import OWN_PREFIX, is_own
from holdfast.core.resources import Resource, resources_of
from holdfast.durations import Duration
from holdfast.errors import (
    ArgumentError,
    DefinitionError,
    DuplicateNameError,
    UnknownNameError,
)
from holdfast.ports import LimitRow, ScheduleRow
from holdfast.printing import show
from holdfast.telemetry.instruments import Instruments

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
M = TypeVar("M")
A = TypeVar("A")
W = TypeVar("W", bound=Callable[[StepAttempt], Iterator[None]] | Callable[[StepAttempt], AsyncIterator[None]])
V = TypeVar("V", bound=Callable[[WorkflowAttempt], Iterator[None]])
U = TypeVar("U", bound=Callable[[StartCall], Iterator[None]])
F = TypeVar("F", bound=Step[..., Any] | Workflow[..., Any])
D = TypeVar("D", StepDefinition, WorkflowDefinition)
Pool = Literal["thread", "process"]
ErrorClasses = type[BaseException] | Sequence[type[BaseException]]


class Registry(Owner, abc.ABC):
    """The definitions of one app, by name."""

    def __init__(self, name: str, codec: Codec, include: tuple[str, ...]) -> None:
        self.name = name
        self.codec = codec
        self.include = include
        self.arounds: list[Around] = []
        self.workflow_arounds: list[Around] = []
        self.start_arounds: list[Around] = []
        self.instruments = Instruments()
        self.replaced: Mapping[Resource[Any], Any] = {}
        self.hook_models = Models("hook", HOOKS)
        self.request_models = Models("request", REQUESTS)
        self._steps: dict[str, StepDefinition] = {}
        self._workflows: dict[str, WorkflowDefinition] = {}
        self._schedules: dict[str, ScheduleRow] = {}
        self._subscribers: dict[tuple[str, str], Subscriber] = {}
        self._limits: dict[str, dict[str, LimitRow]] = {}  # by name, then by who is under it
        self._included = False
        self.revision = 0

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
        max_retries: int | None = 3,
        retry_delay: RetryDelay = "fixed",
        retry_jitter: float | bool = 0.0,
        retry_max_delay: Duration | None = None,
        retry_within: Duration | None = None,
        timeout: Duration | None = "60s",
        stall_timeout: Duration | None = None,
        retry_for: ErrorClasses | None = None,
        no_retry_for: ErrorClasses = (),
        force_local: bool = False,
        pool: Pool = "thread",
        max_losses: int = 3,
        at_most_once: bool = False,
        transaction: bool = False,
        queue: str = "",
        concurrency: int | None = None,
        rate_limit: str | None = None,
        burst: int = 1,
        key: Key | None = None,
        limits: Sequence[Limit] | None = None,
        schedule: When | Sequence[When] | None = None,
        tz: str | None = None,
    ) -> StepDecorator: ...
    def step(self, function: Any = None, /, **options: Any) -> Any:
        """Make a function a step: work that is retried, timed out and recorded. `@app.step`, or with options:

        `name`: unique in the app; the function's if nothing is said.
        `max_retries`: attempts after the first (3); None is without end. `retry_delay`: "30s" each time, "fixed", "linear",
        "exponential" or a list of delays. `retry_jitter`: the share of a delay that may be taken off at random.
        `retry_max_delay`: no delay is longer. `retry_within`: no attempt begins later after the first one.
        `retry_for`, `no_retry_for`: which exceptions are worth another try.
        `timeout`: for one attempt (60 s). `stall_timeout`: the longest time without a sign of life.
        `pool`: "thread", or "process" for what needs a core or has to be killed. `max_losses`: how often its worker may die
        under it. `at_most_once`: never begin it twice. `queue`, `force_local`: who executes it. `transaction`: what
        it writes is committed with its outcome.
        `concurrency`, `rate_limit`, `burst`, `key`, `limits`: how many at once and how often, over all workers.
        `schedule`, `tz`: when the clock starts it.
        """
        if function is not None:
            return self.define_step(function, None, step_options(_with_task_options(function, options)))
        name, schedules = options.pop("name", None), _schedules(options)
        return StepDecorator(self, _checked_name("step", name), step_options(options), schedules, options)

    task = step
    """Celery's word for `step`."""

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
        max_retries: int | None = 0,
        retry_delay: RetryDelay = 0,
        retry_within: Duration | None = None,
        retry_for: ErrorClasses | None = None,
        timeout: Duration | None = None,
        durable: bool = True,
        retain: Duration | None = "30d",
        keep_generations: int | None = None,
        concurrency: int | None = None,
        rate_limit: str | None = None,
        burst: int = 1,
        key: Key | None = None,
        when_full: WhenFull = "queue",
        limits: Sequence[Limit] | None = None,
        schedule: When | Sequence[When] | None = None,
        tz: str | None = None,
    ) -> WorkflowDecorator: ...
    def workflow(self, function: Any = None, /, **options: Any) -> Any:
        """Make a function a workflow: it coordinates steps, and is replayed. `@app.workflow`, or with options:

        `name`: unique in the app; the function's if nothing is said.
        `max_retries`: attempts of the whole after the first (0), which keep what had succeeded; None is without end.
        `retry_delay`: before each, as of a step. `retry_within`: no attempt begins later after the first one.
        `retry_for`: which exceptions are worth another try.
        `timeout`: for the run, from its start. `durable`: False keeps no history.
        `retain`: how long a run is kept after its end (30 days). `keep_generations`: how many earlier histories of a run
        that continues as new. `concurrency`, `rate_limit`, `burst`, `key`, `limits`: how many at once and how often.
        `schedule`, `tz`: when the clock starts it.
        `keep_generations`: of a run that continues as new, how many earlier generations of its history are kept; None: all.
        """
        if function is not None:
            return self.define_workflow(function, None, workflow_options(options))
        name, schedules = options.pop("name", None), _schedules(options)
        return WorkflowDecorator(self, _checked_name("workflow", name), workflow_options(options), schedules)

    def define_step(self, function: Any, name: str | None, options: StepOptions, place: str = "") -> Any:
        if is_celery_task(function):
            from holdfast.executors.celery.durable import to_function  # Celery is there if it has a task

            function = to_function(function)
        call, is_async = _callable(function, "step")
        if options.transaction and is_async:
            raise DefinitionError(
                "transaction=True is for steps made from `def`, as their connection is one that blocks; leave out `async`"
            )
        chosen = _name_of(function) if name is None else name
        resources = resources_of(call, f"step {chosen!r}", is_async)
        hints = self.codec.hints_for(call, resources)
        definition = StepDefinition(
            chosen, call, is_async, options, hints, _result_type(call), place or _place(function), resources
        )
        definition = self._under_limits(definition, "step")
        self._add(self._steps, definition)
        self._step_defined(definition)
        return (AsyncStep if is_async else SyncStep)(self, definition, function)

    def _step_defined(self, definition: StepDefinition) -> None:
        """For whoever has to know at once."""

    def define_workflow(
        self,
        function: Any,
        name: str | None,
        options: WorkflowOptions,
        place: str = "",
        check: Callable[..., None] | None = None,
    ) -> Any:
        call, is_async = _callable(function, "workflow")
        chosen = _name_of(function) if name is None else name
        for parameter in resources_of(call, f"workflow {chosen!r}", is_async=True):
            raise DefinitionError(
                f"workflow {chosen!r} takes the resource {parameter!r}, but a workflow is replayed and does no I/O of its own; "
                "let a step take it"
            )
        definition = WorkflowDefinition(
            chosen, call, is_async, options, self.codec.hints_for(call), _result_type(call), place or _place(function),
            check=check,
        )  # fmt: skip
        definition = self._under_limits(definition, "workflow")
        self._add(self._workflows, definition)
        return (AsyncWorkflow if is_async else SyncWorkflow)(self, definition, function)

    def _under_limits(self, definition: D, what: str) -> D:
        """The definition with its limits. Those that share a name have to be the same limit."""
        limits = bind(what, definition.name, definition.options.limits, definition.signature)
        for limit in limits:
            row = _row_of(limit, of_runs=what == "workflow")
            users = self._limits.setdefault(limit.name, {})
            for other, theirs in users.items():
                if other != definition.name and theirs != row:
                    raise DefinitionError(
                        f"limit {limit.name!r} of {what} {definition.name!r} {_unlike(row, theirs, other)}"
                    )
            users[definition.name] = row
        return replace(definition, limits=limits) if limits else definition

    def declared_limits(self) -> list[LimitRow]:
        self.load()
        return [row for users in self._limits.values() for row in list(users.values())[-1:]]

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
            what, new = ("step" if isinstance(one, StepDefinition) else "workflow" for one in (other, definition))
            another = "another one" if what == new else f"a {new} of that name"
            places = f"at {other.place}, and {another} at {definition.place}; give one of them name='...'"
            if other.place == definition.place:
                places = f"at {other.place} already, where it is defined once more; give each its own name='...'"
            raise DuplicateNameError(f"app {self.name!r} has a {what} {definition.name!r} {places}")
        table[definition.name] = definition
        self.revision += 1

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
        _add_around(self.arounds, function, "around_step", "a StepAttempt")
        return function

    def around_workflow(self, function: V, /) -> V:
        """Let a plain generator function wrap the code of each workflow, whenever it is executed, replays included: it is
        given a WorkflowAttempt, and yields once. It is workflow code, so it has to be deterministic and do no I/O."""
        _add_around(self.workflow_arounds, function, "around_workflow", "a WorkflowAttempt", plain=True)
        return function

    def around_start(self, function: U, /) -> U:
        """Let a plain generator function wrap each start of a run by this app, from outside or by a step: it is given a
        StartCall, and yields once, when the run is made durable. What it puts into `call.headers` comes along: to
        `around_workflow` and `around_step`, and to the runs that the run starts."""
        _add_around(self.start_arounds, function, "around_start", "a StartCall", plain=True)
        return function

    @property
    @abc.abstractmethod
    def schedules(self) -> Schedules: ...

    def declare_schedule(self, row: ScheduleRow) -> None:
        known = self._schedules.get(row.name)
        if known is not None and known != row:
            raise DuplicateNameError(
                f"app {self.name!r} declares two schedules named {row.name!r}; give each its own: Schedule(..., name='...')"
            )
        self._schedules[row.name] = row
        self.revision += 1

    def declared_schedules(self) -> list[ScheduleRow]:
        self.load()
        return list(self._schedules.values())

    def find_step(self, name: str) -> StepDefinition:
        found = self._steps.get(name) if self._included else None
        return found if found is not None else self._find(self._steps, "step", name)

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

    def knows(self, name: str) -> bool:
        self.load()
        return name in self._workflows or name in self._steps

    def startable_names(self) -> list[str]:
        """What can be started by name."""
        self.load()
        return [*self._workflows, *self._steps]

    def max_attempts(self) -> dict[str, int]:
        """How often each step may be tried."""
        self.load()
        retries = {name: definition.options.max_retries for name, definition in self._steps.items()}
        return {name: number + 1 for name, number in retries.items() if number is not None}

    def known_names(self) -> list[str]:
        """What a worker of this app can carry out: what can be started by name, and the workflows that canvases are."""
        return [*self.startable_names(), *_built_ins()]

    def step_names(self) -> list[str]:
        """What a worker of this app can execute for others."""
        return sorted(self._steps)

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

    def run_canvas(self, execution: Execution, node: bytes) -> asyncio.Future[Any]:
        """Carry out a canvas in the run whose code asks; for `await canvas`."""
        from holdfast.compose.canvas import begin

        return begin(execution, node)

    # -- hooks and requests

    def define_hook(self, name: str, payload: type[M]) -> HookDefinition[M]:
        """A hook with a type of payload, for this app alone; `holdfast.define_hook` is for all apps of the process."""
        self.codec.types.learn_hint(payload)
        return make_hook(self.hook_models, name, payload)

    @overload
    def define_request(
        self, name: str, payload: type[M], answer: type[A], *, data: str | None = None
    ) -> RequestDefinition[M, A]: ...
    @overload
    def define_request(
        self, name: str, payload: None, answer: type[A], *, data: str | None = None
    ) -> RequestDefinition[None, A]: ...
    @overload
    def define_request(self, name: str, payload: type[M], answer: None = None) -> RequestDefinition[M, None]: ...
    @overload
    def define_request(self, name: str, payload: None = None, answer: None = None) -> RequestDefinition[None, None]: ...
    def define_request(self, name: str, payload: Any = None, answer: Any = None, *, data: str | None = None) -> Any:
        """A request with types of payload and answer, for this app alone; `holdfast.define_request` is for all apps of the
        process."""
        made = make_request(self.request_models, name, payload, answer, data)
        made.learn(self.codec)
        return made

    # -- domain events

    def on(self, event: str, *, where: Where | None = None) -> Callable[[F], F]:
        """Start the workflow or step below for each domain event of that name (that has these values), once, with the
        payload as its argument. Goes above `@app.workflow` or `@app.step`, as often as needed."""
        check_event_name(event)
        condition = check_where(event, where)

        def subscribe(function: F) -> F:
            self._subscribe(event, condition, function, f"@app.on({event!r})")
            return function

        return subscribe

    @overload
    def on_failure(self, function: F, /) -> F: ...
    @overload
    def on_failure(self, /, *, where: Where | None = None) -> Callable[[F], F]: ...
    def on_failure(self, function: Any = None, /, *, where: Where | None = None) -> Any:
        """Start the step or workflow below for each run of this app that fails for good or needs a person (STUCK), with
        the facts as its argument: `run_id`, `workflow`, `status`, `error`, `reason`. `where={"workflow": "order"}` says
        of which. It is `@app.on("run.failed")` and `@app.on("run.stuck")` of this app in one."""
        if function is not None:
            return self.on_failure()(function)
        condition = {"app": self.name, **check_where("run.failed", where)}

        def subscribe(function: F) -> F:
            for event in ("run.failed", "run.stuck"):
                self._subscribe(event, condition, function, "@app.on_failure")
            return function

        return subscribe

    def _subscribe(self, event: str, where: dict[str, Scalar], function: Any, what: str) -> None:
        if not is_decorated(function):
            raise DefinitionError(f"{what} goes above @app.workflow or @app.step, not on {show(function)}")
        definition: StepDefinition | WorkflowDefinition = function._definition
        if function._app is not self:
            raise DefinitionError(
                f"{what}: {function!r} belongs to app {function._app.name!r}; use that of its own app"
            )
        signature = definition.signature
        takes_payload = next((n == 1 for n in (1, 0) if _can_take(signature, n)), None)
        if takes_payload is None:
            raise DefinitionError(
                f"{what}: {definition.name}{signature} can't be called with one argument, the event's payload"
            )
        known = self._subscribers.get((event, definition.name))
        wheres = [each for each in (known.where if known is not None else ()) if each != where]
        self._subscribers[event, definition.name] = Subscriber(
            event, definition.name, [*wheres, where], takes_payload,
            getattr(definition.options, "durable", True),
        )  # fmt: skip
        self.revision += 1

    def subscribers(self) -> list[Subscriber]:
        self.load()
        return list(self._subscribers.values())


class StepDecorator:
    """`@app.step(...)`, waiting for its function."""

    def __init__(
        self,
        app: Registry,
        name: str | None,
        options: StepOptions,
        schedules: list[Schedule],
        given: Mapping[str, Any],
    ) -> None:
        self._app, self._name, self._options, self._schedules, self._given = app, name, options, schedules, dict(given)

    @overload
    def __call__(self, function: CallableClass[P, Coroutine[Any, Any, R]]) -> AsyncStep[P, R]: ...  # type: ignore[overload-overlap]
    @overload
    def __call__(self, function: CallableClass[P, R]) -> SyncStep[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, Coroutine[Any, Any, R]]) -> AsyncStep[P, R]: ...  # type: ignore[overload-overlap]
    @overload
    def __call__(self, function: Callable[P, R]) -> SyncStep[P, R]: ...
    def __call__(self, function: Any) -> Any:
        options = self._options
        if is_celery_task(function):
            options = step_options(_with_task_options(function, self._given))
        return self._app._scheduled(self._app.define_step(function, self._name, options), self._schedules)


class WorkflowDecorator:
    """`@app.workflow(...)`, waiting for its function."""

    def __init__(self, app: Registry, name: str | None, options: WorkflowOptions, schedules: list[Schedule]) -> None:
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
        return self._app._scheduled(self._app.define_workflow(function, self._name, self._options), self._schedules)


def _row_of(bound: BoundLimit, of_runs: bool) -> LimitRow:
    limit, rate = bound.limit, bound.limit.rate
    return LimitRow(
        name=bound.name, keyed=bound.is_keyed, of_runs=of_runs, concurrency=limit.concurrency or 0,
        rate=rate.count if rate is not None else 0, period=rate.period if rate is not None else 0, burst=limit.burst,
    )  # fmt: skip


def _unlike(row: LimitRow, theirs: LimitRow, other: str) -> str:
    if row.of_runs != theirs.of_runs:
        return (
            f"is that of {other!r} too: a run that has a slot would wait for itself when a step of it asks for another; give "
            "runs and steps limits of different names"
        )
    if row.keyed != theirs.keyed:
        return f"has a key in one place and none in the other, {other!r}; give it one in both, or two names"
    return f"says something else than that of {other!r}; share one Limit(...) object, or give them different names"


def _schedules(options: dict[str, Any]) -> list[Schedule]:
    given, tz = options.pop("schedule", None), options.pop("tz", None)
    if given is None:
        if tz is not None:
            raise DefinitionError(f"tz={show(tz)} is the time zone of a schedule; add schedule='...', or take it away")
        return []
    return to_schedules(given, tz)


def is_celery_task(function: Any) -> bool:
    """Whether it is a task of Celery's, which nobody has if Celery was not imported. Until it is used a task is a stand-in,
    and its class may not be imported yet."""
    if "celery" not in sys.modules or inspect.isroutine(function) or isinstance(function, type):
        return False
    from holdfast.executors.celery.durable import is_task  # Celery is there

    return is_task(function)


def _with_task_options(function: Any, given: dict[str, Any]) -> dict[str, Any]:
    if not is_celery_task(function):
        return given
    from holdfast.executors.celery.durable import OPTIONS  # Celery is there if it has a task

    return {**OPTIONS, **given}


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
        raise DefinitionError(f"{what}: {show(function)} is not a function or a class")
    if inspect.isasyncgenfunction(function) or inspect.isgeneratorfunction(function):
        raise DefinitionError(
            f"{what} {function.__qualname__}: a generator can't be one; return a list, or stream items"
        )
    is_async = inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)
    return function, is_async


def _add_around(known: list[Around], function: Any, what: str, given: str, plain: bool = False) -> None:
    _check_generator(function, what)
    name = function.__name__
    if plain and inspect.isasyncgenfunction(function):
        raise DefinitionError(f"{what} {name!r} is an async generator; give a plain one, as it must not wait")
    try:
        inspect.signature(function).bind(None)
    except TypeError as error:
        raise DefinitionError(f"{what} {name!r} is given one argument, {given}: {error}") from None
    around = Around(name, function, inspect.isasyncgenfunction(function), _place(function))
    same = [i for i, other in enumerate(known) if _same_code(other, around)]
    if same:
        known[same[0]] = around
    else:
        known.append(around)


def _check_generator(function: Any, what: str) -> None:
    if not (inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function)):
        name = function.__qualname__ if inspect.isroutine(function) else show(function)
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
