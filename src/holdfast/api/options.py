"""Options as people give them, checked where they are written: of a step, of a workflow, of one call."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Literal

from holdfast.core.context import current_step
from holdfast.core.definitions import (
    Backoff,
    Errors,
    StepDefinition,
    StepOptions,
    WorkflowDefinition,
    WorkflowOptions,
)
from holdfast.durations import Duration, to_us
from holdfast.errors import ArgumentError, DefinitionError

IfExists = Literal["return", "error", "restart"]
OnParentClose = Literal["cancel", "abandon"]

NAME_LIMIT = 200
SCHEDULING = ("schedule", "tz")  # options of decorators that are not of the function itself


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
        _priority(self.priority)
        _timeout("timeout", self.timeout)
        if self.max_retries is not None:
            _count("max_retries", self.max_retries)
        if self.queue is not None:
            _queue(self.queue)
        one_of("if_exists", self.if_exists, ("return", "error", "restart"))
        one_of("on_parent_close", self.on_parent_close, ("cancel", "abandon"))

    def with_id_in_step(self, name: str) -> StartOptions:
        """In a step, what it starts gets an id that its next attempt will find again."""
        context = current_step.get()
        if context is None or self.id is not None:
            return self
        return replace(self, id=context.next_child_id(name), again=True)


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
    if _yes_or_no("at_most_once", options.pop("at_most_once", False)):
        said = [name for name in ("max_retries", "max_losses") if name in given]
        if said:
            raise DefinitionError(f"at_most_once=True means max_retries=0 and max_losses=1; leave out {said[0]}=")
        options |= {"max_retries": 0, "max_losses": 1}
    backoff = _backoff(options.pop("retry_delay"), options.pop("retry_jitter"), options.pop("retry_max_delay"))
    _refuse_unknown(
        options, StepOptions, ("retry_delay", "retry_jitter", "retry_max_delay", "at_most_once", *SCHEDULING)
    )
    return StepOptions(
        max_retries=_count("max_retries", options.pop("max_retries", 3)),
        backoff=backoff,
        timeout=_timeout("timeout", options.pop("timeout")),
        stall_timeout=_timeout("stall_timeout", options.pop("stall_timeout", None)),
        retry_for=_errors("retry_for", options.pop("retry_for", None)),
        no_retry_for=_errors("no_retry_for", options.pop("no_retry_for", ())) or (),
        pool=one_of("pool", options.pop("pool", "thread"), ("thread", "process")),
        force_local=_yes_or_no("force_local", options.pop("force_local", False)),
        max_losses=_count("max_losses", options.pop("max_losses", 3)),
        queue=_queue(options.pop("queue", "")),
        **options,
    )


def workflow_options(given: dict[str, Any]) -> WorkflowOptions:
    options = {"retry_delay": 0, "retain": "30d", **given}
    delay, retain = options.pop("retry_delay"), options.pop("retain")
    _refuse_unknown(options, WorkflowOptions, ("retry_delay", *SCHEDULING))
    return WorkflowOptions(
        max_retries=_count("max_retries", options.pop("max_retries", 0)),
        backoff=_backoff(delay),
        retry_for=_errors("retry_for", options.pop("retry_for", None)),
        timeout=_timeout("timeout", options.pop("timeout", None)),
        durable=_yes_or_no("durable", options.pop("durable", True)),
        retain=None if retain is None else duration_of("retain", retain),
    )


def check_name(what: str, name: Any) -> None:
    """A name is part of the ids of children, and is shown in lists."""
    if type(name) is not str or not name or len(name) > NAME_LIMIT or not name.isprintable() or " " in name:
        raise DefinitionError(
            f"{what} name={name!r}: a name is a text of 1 to {NAME_LIMIT} printable characters without spaces"
        )


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


def check_id(run_id: Any) -> None:
    if type(run_id) is not str or not run_id or len(run_id) > 255 or not run_id.isprintable() or " " in run_id:
        raise ArgumentError(f"id={run_id!r}: an id is a text of 1 to 255 printable characters without spaces")


def to_epoch(moment: Any, what: str = "at") -> int:
    """Microseconds since the epoch."""
    if not isinstance(moment, dt.datetime):
        raise ArgumentError(f"{what}={moment!r}: give a datetime with a time zone")
    if moment.tzinfo is None:
        raise ArgumentError(f"{what}={moment!r} has no time zone; give e.g. datetime(..., tzinfo=timezone.utc)")
    return (moment - dt.datetime(1970, 1, 1, tzinfo=dt.UTC)) // dt.timedelta(microseconds=1)


def _refuse_unknown(options: dict[str, Any], kind: type[Any], more: tuple[str, ...]) -> None:
    known = {field.name for field in fields(kind)} - {"backoff"} | {"name", *more}
    unknown = [name for name in options if name not in known]
    if unknown:
        raise DefinitionError(f"there is no option {unknown[0]!r}; known: {', '.join(sorted(known))}")


def _backoff(delay: Any, jitter: Any = 0.0, cap: Any = None) -> Backoff:
    try:
        return Backoff.read(delay, jitter, cap)
    except (TypeError, ValueError) as error:
        raise DefinitionError(str(error)) from None


def duration_of(what: str, value: Any) -> int:
    try:
        return to_us(value, what)
    except (TypeError, ValueError) as error:
        raise DefinitionError(str(error)) from None


def _timeout(what: str, value: Any) -> int | None:
    if value is None:
        return None
    us = duration_of(what, value)
    if us == 0:
        raise DefinitionError(f"{what}={value!r} leaves no time at all; give more, or None for no limit")
    return us


def _count(what: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise DefinitionError(f"{what}={value!r}: give a number of 0 or more")
    return value


def _priority(value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= 1_000_000:
        raise DefinitionError(
            f"priority={value!r}: give a whole number from 0, which is the default; higher goes first"
        )


def _queue(value: Any) -> str:
    if type(value) is not str or not value.isprintable() or " " in value:
        raise DefinitionError(f"queue={value!r}: give a name, as a text without spaces; '' is the default queue")
    return value


def _yes_or_no(what: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise DefinitionError(f"{what}={value!r}: give True or False")
    return value


def one_of(what: str, value: Any, choices: tuple[str, ...]) -> Any:
    if value not in choices:
        *first, last = map(repr, choices)
        raise DefinitionError(f"{what}={value!r}: give {', '.join(first)} or {last}")
    return value


def _errors(what: str, value: Any) -> Errors | None:
    if value is None:
        return None
    if not isinstance(value, type | Iterable):
        raise DefinitionError(f"{what}={value!r}: give an exception class, or a list of them")
    classes = (value,) if isinstance(value, type) else tuple(value)
    for cls in classes:
        if not (isinstance(cls, type) and issubclass(cls, BaseException)):
            raise DefinitionError(f"{what}: {cls!r} is not an exception class")
    return classes


NO_OPTIONS = StartOptions()
