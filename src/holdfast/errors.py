"""Every error that Holdfast raises, and the two that users raise.

    HoldfastError
    ├── RetryableError            raised by a step: try again, perhaps after `retry_after`
    │   ├── ResourceError         a resource that a step takes could not be opened
    │   └── TransformError        (EncodeError, DecodeError) a transform of the codec failed
    ├── FatalError                raised by a step: don't try again
    ├── StepError                 stands for an exception that can't be rebuilt here
    ├── StepTokenError            the token of a step that was handed over is of no use
    ├── StepTimeoutError          (TimeoutError) an attempt took longer than `timeout` or stalled
    ├── WorkflowTimeoutError      (TimeoutError) a run took longer than its workflow's `timeout`
    ├── WorkerLostError           an attempt took its worker down, again and again
    ├── MemberError               a member of a composition failed
    │   ├── GroupError
    │   └── ChordError
    ├── DagFailed                 steps of a DAG failed
    ├── SagaFailed                a saga failed, and was compensated as far as that could be done
    ├── DefinitionError           a step, workflow or app was defined wrongly
    │   └── DuplicateNameError
    ├── UnknownNameError          (LookupError) no step or workflow of that name
    ├── ArgumentError             (TypeError) a call doesn't fit the function's signature
    ├── WrongContextError         (RuntimeError) called from a place where it can't work
    ├── RunError
    │   ├── RunNotFoundError      (LookupError)
    │   ├── RunExistsError
    │   ├── RunFinishedError
    │   ├── RunCancelledError     the result of a cancelled run was asked for
    │   ├── RunStuckError         the result of a run that needs a person was asked for
    │   └── WaitTimeoutError      (TimeoutError) a run didn't come within the time that somebody waited for it
    ├── ScheduleError
    │   └── ScheduleNotFoundError (LookupError)
    ├── HookError
    │   ├── HookNotFoundError     (LookupError)
    │   ├── HookTokenError
    │   └── HookPayloadError      (ValueError)
    ├── RequestError
    │   ├── RequestRefusedError   a run was asked, and refused
    │   └── RequestPayloadError   (ValueError)
    ├── WorkflowCodeError         the run is set aside or failed because of how the workflow is written
    │   ├── NondeterminismError
    │   ├── DeadlockError
    │   └── NeverAwaitedError
    ├── ValueCodecError           (ValueError)
    │   ├── EncodeError
    │   ├── DecodeError
    │   └── PayloadTooLargeError
    └── StoreError
        ├── StoreUnavailableError
        │   ├── StoreLostError    the database was deleted or replaced under this process
        │   └── StoreMovedError   its runs go on in another database
        ├── StoreBusyError
        ├── StoreFullError
        ├── StoreReadOnlyError
        ├── StoreSchemaError
        └── DamagedHistoryError   events of a run are missing

Control flow derives from BaseException, so that a user's `except Exception` can't swallow it: Suspended,
ContinueAsNew, WorkflowBlocked, Fenced.

Fields are plain attributes and messages are plain text, so each error survives being recorded and rebuilt.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from holdfast.durations import Duration, to_us
from holdfast.printing import text_of


class HoldfastError(Exception):
    """The root of everything below."""


class RetryableError(HoldfastError):
    """Raised by a step whose failure may pass. `retry_after` sets this retry's own delay."""

    retry_after_us: int | None = None  # of a subclass whose own __init__ doesn't call this one, too

    def __init__(self, message: str = "", *, retry_after: Duration | None = None) -> None:
        super().__init__(message)
        self.retry_after_us = None if retry_after is None else to_us(retry_after, "retry_after")


class ResourceError(RetryableError):
    """A resource could not be opened. The attempt that needed it fails; the next one tries to open it again."""


class FatalError(HoldfastError):
    """Raised by a step whose failure won't pass: no retry, whatever the options say."""


class StepError(HoldfastError):
    """Stands for an exception whose class can't be rebuilt in this process; its text is kept."""

    def __init__(self, message: str = "", *, type_name: str = "", traceback: str = "") -> None:
        super().__init__(message)
        self.type_name = type_name
        self.traceback = traceback

    def __str__(self) -> str:
        kind = self.type_name.rpartition(":")[2].rpartition(".")[2]
        return f"{kind}: {super().__str__()}".removesuffix(": ") if kind else super().__str__()


def in_words(error: BaseException) -> str:
    """An exception in messages: its type and its text, if it has one. A stand-in goes by what it stands for."""
    if isinstance(error, StepError) and error.type_name:
        return text_of(error)
    return f"{type(error).__name__}: {text_of(error)}".removesuffix(": ")


class StepTimeoutError(HoldfastError, TimeoutError):
    """An attempt took longer than its step's `timeout`, or made no progress for `stall_timeout`."""


class StepTokenError(HoldfastError):
    """The token of a step that was handed over was altered, or was used before."""


class WorkflowTimeoutError(HoldfastError, TimeoutError):
    """A run took longer than its workflow's `timeout`."""


class WorkerLostError(HoldfastError):
    """Attempts of one step took their worker down `max_losses` times, so it isn't tried again."""


class MemberError(HoldfastError):
    """A member of a group, or of a chord's header, failed. `member` and `index` tell which one was the first; its own
    exception is the cause."""

    def __init__(self, message: str = "", *, member: str = "", index: int = 0, others: Sequence[Any] = ()) -> None:
        super().__init__(message)
        self.member = member
        self.index = index
        self.others = list(others)

    @property
    def results(self) -> list[Any]:
        """The values and exceptions of all members, in place; None for one that was cancelled."""
        return [*self.others[: self.index], self.__cause__, *self.others[self.index :]]


class GroupError(MemberError):
    """A member of a group failed, so the group did."""


class ChordError(MemberError):
    """A member of a chord's header failed, so its body did not run."""


class DagFailed(HoldfastError):
    """Steps of a DAG failed. `failed` has their exceptions by name, `skipped` the names of those that were not
    executed, `results` the results of the others."""

    def __init__(
        self,
        message: str = "",
        *,
        failed: dict[str, BaseException] | None = None,
        skipped: list[str] | None = None,
        results: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(message)
        self.failed = failed or {}
        self.skipped = skipped or []
        self.results = results or {}


class SagaFailed(HoldfastError):
    """A saga failed at `step` ("" if it was no step of it) because of `cause`. `compensated` names the steps that were
    undone, last one first; `not_compensated` has those whose compensation failed, with its exception."""

    def __init__(
        self,
        message: str = "",
        *,
        step: str = "",
        compensated: list[str] | None = None,
        not_compensated: dict[str, BaseException] | None = None,
    ) -> None:
        super().__init__(message)
        self.step = step
        self.compensated = compensated or []
        self.not_compensated = not_compensated or {}

    @property
    def cause(self) -> BaseException | None:
        """Why it failed."""
        return self.__cause__


class DefinitionError(HoldfastError):
    """A step, a workflow, an option or an app was defined wrongly."""


class DuplicateNameError(DefinitionError):
    """Two functions of one app claim the same name."""


class UnknownNameError(HoldfastError, LookupError):
    """No step or workflow of that name is known here."""


class ArgumentError(HoldfastError, TypeError):
    """The arguments don't fit the function's signature."""


class WrongContextError(HoldfastError, RuntimeError):
    """Something was called from a place where it can't work."""


class RunError(HoldfastError):
    """Something about one run."""

    def __init__(self, message: str = "", *, run_id: str = "") -> None:
        super().__init__(message)
        self.run_id = run_id


class RunNotFoundError(RunError, LookupError):
    """The store knows no run of that id."""


class RunExistsError(RunError):
    """The id is taken by a run that is not the one asked for."""


class RunFinishedError(RunError):
    """The run has ended, so this can't be done to it."""


class RunCancelledError(RunError):
    """The run was cancelled, so it has no result."""


class RunStuckError(RunError):
    """The run needs a person before it can go on; `reason` says why."""

    def __init__(self, message: str = "", *, run_id: str = "", reason: str = "") -> None:
        super().__init__(message, run_id=run_id)
        self.reason = reason


class WaitTimeoutError(RunError, TimeoutError):
    """Somebody waited for a result, an answer or data of run `run_id`, and it didn't come within the given time. The run
    itself has not failed."""


class ScheduleError(HoldfastError):
    """Something about one schedule."""

    def __init__(self, message: str = "", *, name: str = "") -> None:
        super().__init__(message)
        self.name = name


class ScheduleNotFoundError(ScheduleError, LookupError):
    """The store knows no schedule of that name."""


class HookError(HoldfastError):
    """Something about a hook."""


class HookNotFoundError(HookError, LookupError):
    """No run waits for that hook."""


class HookTokenError(HookError):
    """The token was altered, has expired, or was made for another app."""


class HookPayloadError(HookError, ValueError):
    """The payload doesn't fit the hook's model."""


class RequestError(HoldfastError):
    """Something about what a run was asked."""


class RequestRefusedError(RequestError):
    """The run refused what it was asked. A handler of the workflow raises it with the reason; whoever asked gets it."""


class RequestPayloadError(RequestError, ValueError):
    """The payload doesn't fit the request's model."""


class WorkflowCodeError(HoldfastError):
    """Something about how workflow code is written."""


class NondeterminismError(WorkflowCodeError):
    """Replay asked for something else than the history holds, after the event of that number. Both sides are kept."""

    def __init__(
        self, message: str = "", *, recorded: str = "", asked: str = "", line: str = "", event: int = 0
    ) -> None:
        super().__init__(message)
        self.event = event
        self.recorded = recorded
        self.asked = asked
        self.line = line


class DeadlockError(WorkflowCodeError):
    """Nothing is ready, nothing is outstanding, and the workflow hasn't returned."""


class NeverAwaitedError(WorkflowCodeError):
    """A step, sleep, hook, event or child was created and never awaited, by a workflow or a step. A step that does so
    is not tried again."""


class ValueCodecError(HoldfastError, ValueError):
    """A value can't be written or read."""


class EncodeError(ValueCodecError):
    """A value can't be recorded; the message says which one, and where in the whole."""


class DecodeError(ValueCodecError):
    """A recorded value can't be rebuilt."""


class TransformError(RetryableError, EncodeError, DecodeError):
    """A transform of the codec (encryption, compression) failed. That may pass, so a step whose arguments or result were
    not to be had is tried again, and a workflow is set aside until it is resumed."""


class PayloadTooLargeError(ValueCodecError):
    """A value is larger than the store's limit."""


class StoreError(HoldfastError):
    """Something about the database."""


class StoreUnavailableError(StoreError):
    """The database can't be reached or opened."""


class StoreLostError(StoreUnavailableError):
    """The database was deleted or replaced while this process had it open. Nothing that it writes would last."""


class StoreMovedError(StoreUnavailableError):
    """The runs of this database were moved to another one by `holdfast db copy`, or are being moved here."""


class StoreBusyError(StoreError):
    """Another process held the database for too long."""


class StoreFullError(StoreError):
    """There is no room left where the database lives."""


class StoreReadOnlyError(StoreError):
    """The database can't be written."""


class StoreSchemaError(StoreError):
    """The database was made by another version of Holdfast."""


class DamagedHistoryError(StoreError):
    """Events of a run are missing from the store; the run is set aside."""


class Suspended(BaseException):
    """Thrown into a run's code when the run leaves memory. Nothing it does on the way out has an effect."""


class WorkflowBlocked(BaseException):
    """Thrown into workflow code that does I/O or doesn't yield; the run is set aside."""


class Fenced(BaseException):
    """This worker was declared dead; its commit was refused and nothing of it was written."""


class ContinueAsNew(BaseException):
    """Raised by `wf.continue_as_new`: end this history and go on with a fresh one under the same id."""

    def __init__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        super().__init__()
        self.call_args = args
        self.call_kwargs = kwargs
