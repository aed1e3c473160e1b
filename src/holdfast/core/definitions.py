"""Steps, workflows and what wraps them, as the engine sees them: a name, a function, and options already checked."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import CodeType
from typing import Any, Literal

from holdfast.core.limits import BoundLimit, Limit
from holdfast.core.resources import Resource, recorded_signature
from holdfast.durations import LONGEST, SECOND, Duration, to_us
from holdfast.errors import DefinitionError, FatalError, NeverAwaitedError, RetryableError, StepTimeoutError
from holdfast.printing import show

DEFAULT_APP = "holdfast"
"""The name of the app that is there without being made: a program has no variable for it."""
DEFAULT_QUEUE = "default"
"""What people call the queue of steps that name none, which is recorded as an empty text."""
Errors = tuple[type[BaseException], ...]
RetryDelay = Literal["fixed", "linear", "exponential"] | Duration | Sequence[Duration]


@dataclass(frozen=True, slots=True)
class Backoff:
    """How long to wait before each retry, in microseconds."""

    shape: Literal["fixed", "exponential", "linear", "listed"] = "fixed"
    delays: tuple[int, ...] = (SECOND,)
    jitter: float = 0.0
    cap: int | None = None

    @classmethod
    def read(cls, delay: RetryDelay, jitter: float | bool = 0.0, cap: Duration | None = None) -> Backoff:
        share: Any = 0.5 if jitter is True else jitter
        if not isinstance(share, int | float) or not 0 <= share <= 1:
            raise DefinitionError(f"retry_jitter={show(jitter)}: give a share of the delay between 0 and 1, or True")
        limit = None if cap is None else to_us(cap, "retry_max_delay")
        if isinstance(delay, str) and delay in ("fixed", "linear", "exponential"):
            return cls(delay, (SECOND,), share, limit)  # type: ignore[arg-type]
        try:
            if isinstance(delay, list | tuple):
                if not delay:
                    raise DefinitionError("retry_delay=[]: give at least one delay")
                return cls("listed", tuple(to_us(d, "retry_delay") for d in delay), share, limit)
            return cls("fixed", (to_us(delay, "retry_delay"),), share, limit)  # type: ignore[arg-type]
        except (TypeError, ValueError) as error:
            raise DefinitionError(f"{error}; or 'fixed', 'linear', 'exponential', or a list of delays") from None

    def delay(self, retry: int, chance: float) -> int:
        """Microseconds before retry number `retry` (1 is the first). `chance` in [0, 1) places the jitter."""
        first = self.delays[0]
        if self.shape == "exponential":
            base = first << min(retry - 1, 40)
        elif self.shape == "linear":
            base = first * retry
        elif self.shape == "listed":
            base = self.delays[min(retry, len(self.delays)) - 1]
        else:
            base = first
        base = min(base, LONGEST if self.cap is None else self.cap)
        return round(base * (1 - self.jitter * chance))


@dataclass(frozen=True, slots=True)
class StepOptions:
    """`max_retries` of None is without end; `retry_within` bounds the time from the first attempt's start to the start of
    the last."""

    max_retries: int | None = 3
    backoff: Backoff = field(default_factory=Backoff)
    timeout: int | None = 60 * SECOND
    stall_timeout: int | None = None
    retry_for: Errors | None = None
    no_retry_for: Errors = ()
    force_local: bool = False
    pool: Literal["thread", "process"] = "thread"
    max_losses: int = 3
    queue: str = ""
    retry_within: int | None = None
    limits: tuple[Limit, ...] = ()
    transaction: bool = False

    @property
    def at_most_once(self) -> bool:
        """Whether twice is worse than not at all: then its start is committed before it is handed over."""
        return self.max_retries == 0 and self.max_losses <= 1

    def retry_delay(self, error: BaseException, attempt: int, chance: float) -> int | None:
        """Microseconds until the next attempt, or None: the failure is final."""
        if (
            (self.max_retries is not None and attempt > self.max_retries)
            or isinstance(error, FatalError | NeverAwaitedError)
            or not isinstance(error, Exception)
        ):
            return None
        if isinstance(error, self.no_retry_for):
            return None
        if isinstance(error, RetryableError):
            if error.retry_after_us is not None:
                return error.retry_after_us
        elif self.retry_for is not None and not isinstance(error, (*self.retry_for, StepTimeoutError)):
            return None
        return self.backoff.delay(attempt, chance)

    def override(self, options: dict[str, object]) -> StepOptions:
        """These options with those of one call laid over them."""
        return replace(self, **_step_fields(options)) if options else self


def _step_fields(given: dict[str, object]) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for name, value in given.items():
        if name == "timeout":
            fields[name] = None if value is None else to_us(value, "timeout")  # type: ignore[arg-type]
        elif name == "retry_delay":
            fields["backoff"] = Backoff.read(value)  # type: ignore[arg-type]
        elif name in ("max_retries", "force_local", "pool", "max_losses"):
            fields[name] = value
        elif name == "queue":
            fields[name] = "" if value == DEFAULT_QUEUE else value
        elif name == "stall_timeout":
            fields[name] = None if value is None else to_us(value, "stall_timeout")  # type: ignore[arg-type]
    return fields


@dataclass(frozen=True, slots=True)
class WorkflowOptions:
    """`retry_within` bounds the time from the start of the run to the start of its last attempt."""

    max_retries: int | None = 0
    backoff: Backoff = field(default_factory=lambda: Backoff("fixed", (0,)))
    retry_for: Errors | None = None
    timeout: int | None = None
    durable: bool = True
    retain: int | None = 30 * 86_400 * SECOND
    keep_generations: int | None = None
    limits: tuple[Limit, ...] = ()
    retry_within: int | None = None

    def retry_delay(self, error: BaseException, attempt: int, max_retries: int | None = None) -> int | None:
        allowed = self.max_retries if max_retries is None else max_retries
        if (
            (allowed is not None and attempt > allowed)
            or not isinstance(error, Exception)
            or isinstance(error, FatalError)
        ):
            return None
        if self.retry_for is not None and not isinstance(error, self.retry_for):
            return None
        if isinstance(error, RetryableError) and error.retry_after_us is not None:
            return error.retry_after_us
        return self.backoff.delay(attempt, 0.0)


@dataclass(frozen=True, slots=True)
class StepDefinition:
    """`signature` and `hints` are those of the recorded arguments, so `resources` are no part of them. `arity` is how many
    arguments fit for sure if all are given by position. `defined_by` is the code of the module that was being executed."""

    name: str
    function: Callable[..., Any]
    is_async: bool
    options: StepOptions
    hints: Any
    result_type: Any
    place: str
    resources: Mapping[str, Resource[Any]] = field(default_factory=dict)
    limits: tuple[BoundLimit, ...] = ()
    defined_by: CodeType | None = field(default=None, compare=False, repr=False)
    signature: inspect.Signature = field(init=False)
    arity: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "signature", recorded_signature(self.function, self.resources))
        object.__setattr__(self, "arity", _arity(self.signature))


@dataclass(frozen=True, slots=True)
class WorkflowDefinition:
    """`raw`: the function takes its input as it is recorded, and may return a result in that form. `check` is called
    with the arguments before a run is started, and refuses those that can't work."""

    name: str
    function: Callable[..., Any]
    is_async: bool
    options: WorkflowOptions
    hints: Any
    result_type: Any
    place: str
    raw: bool = False
    check: Callable[..., None] | None = None
    limits: tuple[BoundLimit, ...] = ()
    defined_by: CodeType | None = field(default=None, compare=False, repr=False)
    signature: inspect.Signature = field(init=False)
    arity: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "signature", inspect.signature(self.function))
        object.__setattr__(self, "arity", _arity(self.signature))


def _arity(signature: inspect.Signature) -> int:
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    parameters = signature.parameters.values()
    return len(parameters) if all(parameter.kind in positional for parameter in parameters) else -1


@dataclass(frozen=True, slots=True)
class Around:
    """What wraps every attempt: a generator function that is given the attempt and yields once."""

    name: str
    function: Callable[..., Any]
    is_async: bool
    place: str
    defined_by: CodeType | None = field(default=None, compare=False, repr=False)
