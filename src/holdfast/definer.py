"""What users write with an app: decorators, hooks, requests, subscriptions. What they define is kept in a `Registry`."""

from __future__ import annotations

import abc
import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping, Sequence
from typing import Any, Literal, ParamSpec, TypeVar, overload

from holdfast.api.checks import check_name
from holdfast.api.defining import (
    add_around,
    check_generator,
    is_celery_task,
    step_of,
    with_task_options,
    workflow_of,
)
from holdfast.api.functions import (
    AsyncStep,
    AsyncWorkflow,
    CallableClass,
    Step,
    SyncStep,
    SyncWorkflow,
    Workflow,
)
from holdfast.api.hooks import HookDefinition, make_hook
from holdfast.api.models import TypeForm
from holdfast.api.options import step_options, workflow_options
from holdfast.api.owner import Owner
from holdfast.api.recurrence import Schedule, When, to_schedules
from holdfast.api.requests import RequestDefinition, make_request
from holdfast.api.schedules import Schedules
from holdfast.core.context import StartCall, StepAttempt, WorkflowAttempt
from holdfast.core.definitions import RetryDelay, StepOptions, WorkflowOptions
from holdfast.core.domain_events import Where, check_event_name, check_where
from holdfast.core.execution import Execution
from holdfast.core.limits import Key, Limit, WhenFull
from holdfast.core.resources import Resource
from holdfast.durations import Duration
from holdfast.errors import ArgumentError, DefinitionError
from holdfast.printing import show
from holdfast.registry import Registry

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
M = TypeVar("M")
A = TypeVar("A")
W = TypeVar("W", bound=Callable[[StepAttempt], Iterator[None]] | Callable[[StepAttempt], AsyncIterator[None]])
V = TypeVar("V", bound=Callable[[WorkflowAttempt], Iterator[None]])
U = TypeVar("U", bound=Callable[[StartCall], Iterator[None]])
F = TypeVar("F", bound=Step[..., Any] | Workflow[..., Any])
Pool = Literal["thread", "process"]
ErrorClasses = type[BaseException] | Sequence[type[BaseException]]


class Definer(Owner, abc.ABC):
    """What an app is to the code that it is written with."""

    definitions: Registry

    @property
    @abc.abstractmethod
    def schedules(self) -> Schedules: ...

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
            return self.define_step(function, None, step_options(with_task_options(function, options)))
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
        that continues as new; None: all. `concurrency`, `rate_limit`, `burst`, `key`, `limits`: how many at once and how often.
        `schedule`, `tz`: when the clock starts it.
        """
        if function is not None:
            return self.define_workflow(function, None, workflow_options(options))
        name, schedules = options.pop("name", None), _schedules(options)
        return WorkflowDecorator(self, _checked_name("workflow", name), workflow_options(options), schedules)

    def define_step(self, function: Any, name: str | None, options: StepOptions, place: str = "") -> Any:
        if is_celery_task(function):
            from holdfast.executors.celery.durable import to_function  # Celery is there if it has a task

            function = to_function(function)
        definition = self.definitions.add_step(step_of(self.codec, function, name, options, place))
        return (AsyncStep if definition.is_async else SyncStep)(self, definition, function)

    def define_workflow(
        self,
        function: Any,
        name: str | None,
        options: WorkflowOptions,
        place: str = "",
        check: Callable[..., None] | None = None,
    ) -> Any:
        definition = self.definitions.add_workflow(workflow_of(self.codec, function, name, options, place, check))
        return (AsyncWorkflow if definition.is_async else SyncWorkflow)(self, definition, function)

    def run_canvas(self, execution: Execution, node: bytes) -> asyncio.Future[Any]:
        from holdfast.compose.canvas import begin  # not at the top: few need it

        return begin(execution, node)

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

    @overload
    def resource(self, function: Callable[..., AsyncIterator[T]], /) -> Resource[T]: ...
    @overload
    def resource(self, function: Callable[..., Iterator[T]], /) -> Resource[T]: ...
    def resource(self, function: Any, /) -> Any:
        """Make a generator function a resource: what it yields is shared by the steps of a worker that take it with
        `use`, from the first of them to the worker's end."""
        check_generator(function, "resource")
        return Resource(function.__name__, function)

    def around_step(self, function: W, /) -> W:
        """Let a generator function wrap each attempt of each step: it is given the attempt, and yields once.

        Those defined first are the outermost. A plain one wraps every step, on the thread that executes it, which for
        async steps is the event loop's. An async one wraps async steps only.
        """
        add_around(self.definitions.arounds, function, "around_step", "a StepAttempt")
        return function

    def around_workflow(self, function: V, /) -> V:
        """Let a plain generator function wrap the code of each workflow, whenever it is executed, replays included: it is
        given a WorkflowAttempt, and yields once. It is workflow code, so it has to be deterministic and do no I/O."""
        add_around(self.definitions.workflow_arounds, function, "around_workflow", "a WorkflowAttempt", plain=True)
        return function

    def around_start(self, function: U, /) -> U:
        """Let a plain generator function wrap each start of a run by this app, from outside or by a step: it is given a
        StartCall, and yields once, when the run is made durable. What it puts into `call.headers` comes along: to
        `around_workflow` and `around_step`, and to the runs that the run starts."""
        add_around(self.definitions.start_arounds, function, "around_start", "a StartCall", plain=True)
        return function

    # -- hooks and requests

    @overload
    def define_hook(self, name: str, payload: type[M]) -> HookDefinition[M]: ...
    @overload
    def define_hook(self, name: str, payload: TypeForm) -> HookDefinition[Any]: ...
    def define_hook(self, name: str, payload: Any) -> HookDefinition[Any]:
        """A hook with a type of payload, for this app alone; `holdfast.define_hook` is for all apps of the process."""
        self.codec.types.learn_hint(payload)
        return make_hook(self.definitions.hook_models, name, payload)

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
    @overload
    def define_request(
        self, name: str, payload: TypeForm, answer: TypeForm, *, data: str | None = None
    ) -> RequestDefinition[Any, Any]: ...
    @overload
    def define_request(
        self, name: str, payload: None, answer: TypeForm, *, data: str | None = None
    ) -> RequestDefinition[None, Any]: ...
    @overload
    def define_request(self, name: str, payload: TypeForm, answer: None = None) -> RequestDefinition[Any, None]: ...
    def define_request(self, name: str, payload: Any = None, answer: Any = None, *, data: str | None = None) -> Any:
        """A request with types of payload and answer, for this app alone; `holdfast.define_request` is for all apps of the
        process."""
        made = make_request(self.definitions.request_models, name, payload, answer, data)
        made.learn(self.codec)
        return made

    # -- domain events

    def on(self, event: str, *, where: Where | None = None) -> Callable[[F], F]:
        """Start the workflow or step below for each domain event of that name (that has these values), once, with the
        payload as its argument. Goes above `@app.workflow` or `@app.step`, as often as needed."""
        check_event_name(event)
        condition = check_where(event, where)

        def subscribe(function: F) -> F:
            self.definitions.subscribe(event, condition, function, f"@app.on({event!r})")
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
                self.definitions.subscribe(event, condition, function, "@app.on_failure")
            return function

        return subscribe


class StepDecorator:
    """`@app.step(...)`, waiting for its function."""

    def __init__(
        self,
        app: Definer,
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
            options = step_options(with_task_options(function, self._given))
        return self._app._scheduled(self._app.define_step(function, self._name, options), self._schedules)


class WorkflowDecorator:
    """`@app.workflow(...)`, waiting for its function."""

    def __init__(self, app: Definer, name: str | None, options: WorkflowOptions, schedules: list[Schedule]) -> None:
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


def _schedules(options: dict[str, Any]) -> list[Schedule]:
    given, tz = options.pop("schedule", None), options.pop("tz", None)
    if given is None:
        if tz is not None:
            raise DefinitionError(f"tz={show(tz)} is the time zone of a schedule; add schedule='...', or take it away")
        return []
    return to_schedules(given, tz)


def _checked_name(what: str, name: Any) -> str | None:
    if name is not None:
        check_name(what, name)
    return name  # type: ignore[no-any-return]
