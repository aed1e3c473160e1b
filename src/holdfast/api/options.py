"""Options as people give them, checked where they are written: of a step, of a workflow, of one call."""

from __future__ import annotations

import datetime as dt
import functools
import inspect
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, TypedDict, TypeVar, cast

from holdfast.api.checks import (
    check_data,
    check_flag,
    check_id,
    check_number,
    check_priority,
    check_queue,
    duration_of,
    error_classes,
    one_of,
    refuse_local_errors,
    timeout_of,
    to_epoch,
)
from holdfast.api.others_words import hint_at
from holdfast.core.context import current_step
from holdfast.core.definitions import (
    Backoff,
    StepDefinition,
    StepOptions,
    WorkflowDefinition,
    WorkflowOptions,
)
from holdfast.core.limits import Limit
from holdfast.durations import Duration
from holdfast.errors import ArgumentError, DefinitionError, WrongContextError
from holdfast.printing import show
from holdfast.telemetry.instruments import is_traceparent

IfExists = Literal["return", "error", "restart"]
OnParentClose = Literal["cancel", "abandon"]

F = TypeVar("F", bound=Callable[..., Any])

SCHEDULING = ("schedule", "tz")  # options of decorators that are not of the function itself
LIMITING = ("concurrency", "rate_limit", "burst", "key")  # one limit, said without its class


@dataclass(frozen=True, slots=True)
class StartOptions:
    """What is said about one call, beside its arguments. Wrong values are refused when it is made."""

    id: str | None = None
    delay: Duration | None = None
    at: dt.datetime | None = None
    priority: int = 0
    timeout: Duration | None = None
    max_retries: int | None = None
    queue: str | None = None
    if_exists: IfExists = "return"
    on_parent_close: OnParentClose = "cancel"
    data: Mapping[str, Any] | None = None
    expires: Duration | dt.datetime | None = None
    debounce: Duration | None = None
    at_most: Duration | None = None
    traceparent: str | None = None
    connection: object = None
    again: bool = False  # an earlier attempt of the step that starts it may have done so

    def __post_init__(self) -> None:
        if self.id is not None:
            check_id(self.id)
        if self.delay is not None:
            if self.at is not None:
                raise DefinitionError("delay= and at= both say when to begin; give one of them")
            duration_of("delay", self.delay)
        if self.at is not None:
            to_epoch(self.at, "at")
        check_priority(self.priority)
        timeout_of("timeout", self.timeout)
        if self.max_retries is not None:
            _count("max_retries", self.max_retries)
        if self.queue is not None:
            check_queue(self.queue)
        one_of("if_exists", self.if_exists, ("return", "error", "restart"))
        one_of("on_parent_close", self.on_parent_close, ("cancel", "abandon"))
        if self.data is not None:
            check_data("data", self.data)
        if self.traceparent is not None and not is_traceparent(self.traceparent):
            raise DefinitionError(
                f"traceparent={show(self.traceparent)}: give the header of that name as it came, 00-<32 digits>-<16 digits>-01"
            )
        if isinstance(self.expires, dt.datetime):
            to_epoch(self.expires, "expires")
        else:
            timeout_of("expires", self.expires)
        self._check_debounce()

    def _check_debounce(self) -> None:
        quiet, longest = timeout_of("debounce", self.debounce), timeout_of("at_most", self.at_most)
        if quiet is None:
            if longest is not None:
                raise DefinitionError("at_most= says how long debounce= may put a run off; give debounce= too")
            return
        if self.id is None:
            raise DefinitionError("debounce= puts off the run that waits with the same id; give id= too")
        if self.delay is not None or self.at is not None or self.if_exists != "return":
            raise DefinitionError(
                "debounce= says itself when to begin, and what if there is one; leave out delay=, at=, if_exists="
            )
        if longest is not None and longest < quiet:
            raise DefinitionError("at_most= is shorter than debounce=; give more")

    def with_id_in_step(self, name: str) -> StartOptions:
        """In a step, what it starts gets an id that its next attempt will find again."""
        context = current_step.get()
        if context is None or self.id is not None:
            return self
        return replace(self, id=context.next_child_id(name), again=True)


class RunWords(TypedDict, total=False):
    """What `options(...)` of a canvas takes: all about the run that it will be."""

    id: str | None
    delay: Duration | None
    at: dt.datetime | None
    priority: int
    timeout: Duration | None
    max_retries: int | None
    if_exists: IfExists
    expires: Duration | dt.datetime | None
    connection: object


class StartWords(RunWords, total=False):
    """What `options(...)` takes of what is started by its name."""

    queue: str | None
    data: Mapping[str, Any] | None
    debounce: Duration | None
    at_most: Duration | None
    traceparent: str | None


class CallWords(StartWords, total=False):
    """What `options(...)` of a step or workflow takes, which may also be called in a workflow."""

    on_parent_close: OnParentClose


_STARTING: dict[str, Any] = {field.name: field.default for field in fields(StartOptions)}


def takes(words: type[Any], defaults: Mapping[str, Any] = _STARTING) -> Callable[[F], F]:
    """Let a method with `**words` be seen with those words in its signature, and refuse others."""
    known = [name for name in defaults if name in words.__optional_keys__]

    def decorate(function: F) -> F:
        shown = inspect.signature(function)
        own = [each for each in shown.parameters.values() if each.kind is not inspect.Parameter.VAR_KEYWORD]
        takes = {*known, *(each.name for each in own[1:])}

        @functools.wraps(function)
        def refusing(self: Any, **given: Any) -> Any:
            unknown = next((name for name in given if name not in takes), None)
            if unknown is not None:
                raise TypeError(
                    f"{self!r}.{function.__name__}() got an unexpected keyword argument {unknown!r}; known: {', '.join(known)}"
                )
            return function(self, **given)

        said = [
            inspect.Parameter(
                name, inspect.Parameter.KEYWORD_ONLY, default=defaults[name],
                annotation=words.__annotations__[name].__forward_arg__,
            )
            for name in known
        ]  # fmt: skip
        refusing.__signature__ = shown.replace(parameters=[own[0], *said, *own[1:]])  # type: ignore[attr-defined]
        return cast("F", refusing)

    return decorate


def refuse_connection(options: StartOptions) -> None:
    if options.connection is not None:
        raise WrongContextError(
            "connection= is for what is started from outside, or in a step: a workflow is replayed, and its children are "
            "committed with its history"
        )


def calls_of(name: str, calls: Iterable[Any]) -> list[tuple[Any, ...]]:
    """The arguments of many calls: a tuple is those of one call, anything else its only argument."""
    if isinstance(calls, str | bytes | Mapping) or not isinstance(calls, Iterable):
        raise ArgumentError(f"{name}.start_many({show(calls)}): give a list with the arguments of each call")
    return [call if type(call) is tuple else (call,) for call in calls]


def options_of_many(name: str, number: int, options: StartOptions, ids: Iterable[str] | None) -> list[StartOptions]:
    """The options of each of many calls."""
    if options.if_exists == "restart":
        raise ArgumentError(
            f"{name}.start_many(): if_exists='restart' deletes runs, and is for one at a time; use .start() for those"
        )
    if options.debounce is not None:
        raise ArgumentError(f"{name}.start_many(): debounce= is for one run at a time; use .start()")
    if ids is None:
        if options.id is not None and number > 1:
            raise ArgumentError(
                f"{name}.start_many(): {number} runs can't all have the id {options.id!r}; give ids=[...]"
            )
        return [options] * number
    if isinstance(ids, str) or not isinstance(ids, Iterable):
        raise ArgumentError(f"{name}.start_many(ids={show(ids)}): give a list with an id for each call")
    given = list(ids)
    if len(given) != number:
        raise ArgumentError(f"{name}.start_many(): {number} calls, but {len(given)} ids; give one for each")
    chosen = [replace(options, id=id) for id in given]
    twice = next((id for id, times in Counter(given).items() if times > 1), None)
    if twice is not None:
        raise ArgumentError(f"{name}.start_many(): the id {twice!r} is given twice; give each run its own")
    return chosen


def start_options_of(what: str, given: dict[str, Any]) -> StartOptions:
    """Options as Celery's `apply_async` takes them: `countdown`, `eta`, `task_id` mean delay, at, id."""
    renames = {"countdown": "delay", "eta": "at", "task_id": "id"}
    known = [field.name for field in fields(StartOptions) if field.name != "again"]
    named = {renames.get(name, name): value for name, value in given.items()}
    unknown = [name for name in named if name not in known]
    if unknown:
        raise ArgumentError(f"{what} has no option {unknown[0]!r}; known: {', '.join([*known, *renames])}")
    return StartOptions(**named)


def step_options(given: dict[str, Any]) -> StepOptions:
    options = {"retry_delay": "fixed", "retry_jitter": 0.0, "retry_max_delay": None, "timeout": "60s", **given}
    if check_flag("at_most_once", options.pop("at_most_once", False)):
        said = [name for name in ("max_retries", "max_losses") if name in given]
        if said:
            raise DefinitionError(f"at_most_once=True means max_retries=0 and max_losses=1; leave out {said[0]}=")
        options |= {"max_retries": 0, "max_losses": 1}
    backoff = _backoff(options.pop("retry_delay"), options.pop("retry_jitter"), options.pop("retry_max_delay"))
    limits = _limits(options, LIMITING)
    if any(limit.when_full != "queue" for limit in limits):
        raise DefinitionError("when_full= is for workflows: a step always waits for its turn; leave it out")
    _refuse_unknown(
        options, StepOptions, ("retry_delay", "retry_jitter", "retry_max_delay", "at_most_once", *SCHEDULING, *LIMITING)
    )
    made = StepOptions(
        max_retries=_retries(options.pop("max_retries", 3)),
        retry_within=timeout_of("retry_within", options.pop("retry_within", None)),
        backoff=backoff,
        timeout=timeout_of("timeout", options.pop("timeout")),
        stall_timeout=timeout_of("stall_timeout", options.pop("stall_timeout", None)),
        retry_for=error_classes("retry_for", options.pop("retry_for", None)),
        no_retry_for=error_classes("no_retry_for", options.pop("no_retry_for", ())) or (),
        pool=one_of("pool", options.pop("pool", "thread"), ("thread", "process")),
        force_local=check_flag("force_local", options.pop("force_local", False)),
        max_losses=_count("max_losses", options.pop("max_losses", 3)),
        queue=check_queue(options.pop("queue", "")),
        limits=limits,
        transaction=check_flag("transaction", options.pop("transaction", False)),
        **options,
    )
    if made.transaction:
        _check_transaction(made)
    if made.pool == "process":
        refuse_local_errors("retry_for", made.retry_for)
        refuse_local_errors("no_retry_for", made.no_retry_for)
    return made


def _check_transaction(options: StepOptions) -> None:
    if options.at_most_once:
        raise DefinitionError(
            "transaction=True makes a step's writes happen exactly once, also if it is executed again; leave out at_most_once="
        )
    if options.pool == "process":
        raise DefinitionError("transaction=True is for steps on threads: leave out pool='process'")


def workflow_options(given: dict[str, Any]) -> WorkflowOptions:
    options = {"retry_delay": 0, "retain": "30d", **given}
    delay, retain = options.pop("retry_delay"), options.pop("retain")
    generations = options.get("keep_generations")
    limits = _limits(options, (*LIMITING, "when_full"))
    _refuse_unknown(options, WorkflowOptions, ("retry_delay", *SCHEDULING, *LIMITING, "when_full"))
    return WorkflowOptions(
        max_retries=_retries(options.pop("max_retries", 0)),
        backoff=_backoff(delay),
        retry_for=error_classes("retry_for", options.pop("retry_for", None)),
        retry_within=timeout_of("retry_within", options.pop("retry_within", None)),
        timeout=timeout_of("timeout", options.pop("timeout", None)),
        durable=check_flag("durable", options.pop("durable", True)),
        retain=None if retain is None else duration_of("retain", retain),
        keep_generations=None if generations is None else _count("keep_generations", generations),
        limits=limits,
    )


def _limits(options: dict[str, Any], words: tuple[str, ...]) -> tuple[Limit, ...]:
    """What `limits=` says, or the one limit that the words beside it make. They are taken out of the options."""
    said = {word: options.pop(word) for word in words if word in options}
    given = options.pop("limits", None)
    if given is None:
        return (Limit(**said),) if any(value is not None for value in said.values()) else ()
    if said:
        raise DefinitionError(
            f"limits= says all limits there are; put {next(iter(said))}= into one of them: Limit(...)"
        )
    if not isinstance(given, list | tuple) or not all(isinstance(limit, Limit) for limit in given):
        raise DefinitionError(f"limits={show(given)}: give a list of limits, such as [Limit(concurrency=5)]")
    return tuple(given)


def check_call(
    what: str, definition: StepDefinition | WorkflowDefinition, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments as they are recorded: the same for the same call, however it is spelled. Wrong ones are refused."""
    try:
        bound = definition.signature.bind(*args, **kwargs)
    except TypeError as error:
        raise wrong_call(what, definition, error) from None
    return bound.args, bound.kwargs


def check_input(
    definition: StepDefinition | WorkflowDefinition, args: Iterable[Any], kwargs: Mapping[str, Any]
) -> None:
    """Let what has rules of its own refuse the values that it is to be started with."""
    if isinstance(definition, WorkflowDefinition) and definition.check is not None:
        definition.check(*args, **kwargs)


def wrong_call(what: str, definition: StepDefinition | WorkflowDefinition, error: TypeError) -> ArgumentError:
    names = ", ".join(getattr(definition, "resources", ()))
    remedy = f"; the worker gives it {names}, so leave that out" if names else ""
    return ArgumentError(f"{what}{definition.signature}: {error}{remedy}")


def _refuse_unknown(options: dict[str, Any], kind: type[Any], more: tuple[str, ...]) -> None:
    known = {field.name for field in fields(kind)} - {"backoff"} | {"name", *more}
    unknown = [name for name in options if name not in known]
    if unknown:
        hint = hint_at(unknown[0], known) or f"; known: {', '.join(sorted(known))}"
        raise DefinitionError(f"there is no option {unknown[0]!r}{hint}")


def _backoff(delay: Any, jitter: Any = 0.0, cap: Any = None) -> Backoff:
    try:
        return Backoff.read(delay, jitter, cap)
    except (TypeError, ValueError) as error:
        raise DefinitionError(str(error)) from None


def _count(what: str, value: Any) -> int:
    return check_number(what, value, kind=DefinitionError)


def _retries(value: Any) -> int | None:
    """None is without end."""
    return None if value is None else _count("max_retries", value)


NO_OPTIONS = StartOptions()
