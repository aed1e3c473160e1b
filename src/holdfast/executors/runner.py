"""From an attempt to its outcome: call the step, and encode what it gives or raises. There is this one way, for threads,
the event loop, processes, and workers elsewhere.

Whatever the code of users does is an outcome: nothing that it raises, nor that looking at what it raised raises, gets
out of here.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from typing import Any

import msgspec

from holdfast.codec import Codec
from holdfast.codec.exceptions import check_harmless, message_of, type_name
from holdfast.core.context import StepContext, under_way
from holdfast.core.definitions import StepDefinition
from holdfast.errors import EncodeError, FatalError, RetryableError, StepError, WrongContextError
from holdfast.executors.surroundings import Surroundings
from holdfast.logs import KeptLogs
from holdfast.ports import Attempt, Outcome, StepTransaction

logger = logging.getLogger("holdfast.step")
Transact = Callable[[int, str], StepTransaction]
"""Makes the transaction of a step, from its run's number and its key."""


class LoggedContext(StepContext):
    """An attempt that keeps what it logs from `keep_level` on."""

    __slots__ = ("_keep_level", "_logs")

    def __init__(self, attempt: Attempt, codec: Codec, report: Any, keep_level: int | None) -> None:
        super().__init__(attempt, codec, report)
        self._keep_level = keep_level
        self._logs: KeptLogs | None = None

    def hear(self, record: logging.LogRecord) -> bool:
        if self._keep_level is not None and record.levelno >= self._keep_level:
            if self._logs is None:
                self._logs = KeptLogs()
            self._logs.add(record)
        return False

    def kept_logs(self) -> bytes | None:
        return None if self._logs is None else self._logs.encode(self.attempt, self.codec)


class Runner:
    """Executes attempts one by one. It raises nothing, and holds nothing between them but their surroundings."""

    def __init__(
        self, codec: Codec, surroundings: Surroundings, transact: Transact | None = None, is_strict: bool = False
    ) -> None:
        self._codec = codec
        self._is_strict = is_strict  # a result that isn't what the step's annotation says is a failure
        self._surroundings = surroundings
        self._transact = transact

    def run(self, definition: StepDefinition, context: StepContext) -> Outcome:
        """Execute an attempt of a plain step on this thread, in the current context."""
        perform = self._run_in_transaction if definition.options.transaction else self._run
        outcome = perform(definition, context)
        outcome.thread = threading.current_thread().name
        return outcome

    def _run_in_transaction(self, definition: StepDefinition, context: StepContext) -> Outcome:
        """What the step writes and its outcome are committed together. An outcome that an earlier attempt has committed
        is the outcome, and the step is not executed again."""
        attempt = context.attempt
        if self._transact is None:
            return self.failed(context, WrongContextError(f"there is no store for the transaction of {attempt.step!r}"))
        transaction = self._transact(attempt.run_no, attempt.idempotency_key.removeprefix(f"{attempt.run_id}:"))
        try:
            recorded = transaction.recorded()
            if recorded is None:
                context.transaction = transaction
                outcome = self._run(definition, context)
                if outcome.error is not None or outcome.cancelled or not transaction.has_begun or not context.seal():
                    return outcome
                body = msgspec.msgpack.encode(to_frame(outcome))
                recorded = transaction.commit(body)
                if recorded is body:
                    return outcome
            if recorded is None:
                return cancelled(context)  # its run was deleted
            return from_frame(context, msgspec.msgpack.decode(recorded))
        except BaseException as error:
            return self.failed(context, error)
        finally:
            context.transaction = None
            transaction.rollback()

    def _run(self, definition: StepDefinition, context: StepContext) -> Outcome:
        under_way.add(context)
        try:
            result = self._surroundings.execute(definition, context)
        except BaseException as error:  # whatever a step raises is its outcome, and never the worker's
            return self.failed(context, error)
        finally:
            under_way.discard(context)
        return self.succeeded(definition, context, result)

    async def arun(self, definition: StepDefinition, context: StepContext) -> Outcome:
        """Execute an attempt of an async step on the running loop, in the current context."""
        under_way.add(context)
        try:
            result = await self._surroundings.aexecute(definition, context)
        except BaseException as error:
            return self.failed(context, error)
        finally:
            under_way.discard(context)
        return self.succeeded(definition, context, result)

    def succeeded(self, definition: StepDefinition, context: StepContext, result: Any) -> Outcome:
        attempt = context.attempt
        if context.unawaited:
            return self.failed(context, context.unawaited.error())
        if context.handed_over:
            return self._handed_over(context)
        try:
            unfit = self._codec.misfit(result, definition.result_type, f"the result of step {attempt.step!r}")
            if unfit and self._is_strict:
                raise EncodeError(f"{unfit}; return what the annotation says, or correct it (a worker only warns)")
            if unfit:
                logger.warning("%s; return what the annotation says, or correct it", unfit)
            encoded = self._codec.encode(result, f"the result of step {attempt.step!r}", apart=True)
        except BaseException as error:  # the code of a value's own class, or a transform of the app's codec
            return self.failed(context, error)
        return Outcome(
            attempt=attempt, started=context.started, result=encoded, data=context.writes, emitted=context.emitted,
            logs=context.kept_logs(),
        )  # fmt: skip

    def _handed_over(self, context: StepContext) -> Outcome:
        """What it returns is nobody's: its result comes from elsewhere."""
        if context.writes or context.emitted:
            what = "set data" if context.writes else "emitted an event"
            return self.failed(
                context,
                WrongContextError(
                    f"step {context.attempt.step!r} {what} and then handed over; that arrives with a step's outcome, which is "
                    "made elsewhere, so do it in the workflow"
                ),
            )
        return Outcome(attempt=context.attempt, started=context.started, handed_over=True, logs=context.kept_logs())

    def failed(self, context: StepContext, error: BaseException) -> Outcome:
        if context.cancelled and issubclass(type(error), asyncio.CancelledError):
            return cancelled(context)
        encoded = self._codec.encode_error(error)
        harmless, retry_after = _harmless(error)
        return Outcome(
            attempt=context.attempt, started=context.started, error=harmless, encoded_error=encoded,
            retry_after=retry_after, logs=context.kept_logs(),
        )  # fmt: skip


def cancelled(context: StepContext) -> Outcome:
    return Outcome(attempt=context.attempt, started=context.started, cancelled=True)


def _harmless(error: BaseException) -> tuple[BaseException, int | None]:
    """What the engine decides by, and the delay that the step asks for: the exception itself, or where looking at it
    raises, one that stands for it."""
    try:
        check_harmless(error)
        after = error.retry_after_us if isinstance(error, RetryableError) else None
        if after is None or (type(after) is int and after >= 0):
            return error, after
    except BaseException:
        pass
    for kind in (FatalError, RetryableError):
        if issubclass(type(error), kind):
            return kind(message_of(error)), None
    return StepError(message_of(error), type_name=type_name(error)), None


# -- from process to process


def to_frame(outcome: Outcome) -> dict[str, Any]:
    """An outcome as plain data. Whoever receives it knows the attempt, and when it has begun."""
    return {
        "result": outcome.result, "error": outcome.encoded_error, "retry_after": outcome.retry_after,
        "data": {key: bytes(value) for key, value in outcome.data.items()}, "emitted": outcome.emitted,
        "handed_over": outcome.handed_over,
    }  # fmt: skip


def from_frame(context: StepContext, frame: dict[str, Any]) -> Outcome:
    """The outcome that another process has made."""
    encoded = frame["error"]
    return Outcome(
        attempt=context.attempt, started=context.started, result=frame["result"], encoded_error=encoded,
        error=None if encoded is None else _rebuilt(context.codec, encoded), retry_after=frame["retry_after"],
        data=frame["data"], emitted=frame["emitted"], handed_over=frame["handed_over"], logs=context.kept_logs(),
        thread=frame.get("thread", ""),
    )  # fmt: skip


def _rebuilt(codec: Codec, encoded: bytes) -> BaseException:
    try:
        return _harmless(codec.decode_error(encoded))[0]
    except BaseException as error:  # the app's transforms; that the step has failed is known
        return StepError(f"the error of the step can't be read here: {message_of(error)}", type_name=type_name(error))
