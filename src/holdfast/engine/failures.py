"""What fails is told through `logging`, where people and their tools look: a warning for what will be tried again, an error
with the traceback for what has failed for good.

What is told comes from the error as it is recorded: the text of an exception is made by its class, which may do anything.
"""

from __future__ import annotations

import logging
import traceback
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from msgspec import Raw

from holdfast.codec import Codec
from holdfast.core import commands as co
from holdfast.core import events as ev
from holdfast.durations import in_words
from holdfast.errors import StepError
from holdfast.ports import Record, RunRow
from holdfast.printing import printable, text_of

logger = logging.getLogger("holdfast.engine")

OWN_FILES = str(Path(__file__).parent.parent)
TEXT_LIMIT = 2_000
NAMED = 5


def error_text(error: Raw, codec: Codec) -> str:
    """A recorded error in words: the exception's name and message."""
    try:
        return printable(codec.error_text(error))[:TEXT_LIMIT]
    except Exception as unreadable:  # a transform of the app's codec, which may raise anything
        return printable(text_of(unreadable))[:TEXT_LIMIT]


def step_retried(row: RunRow, codec: Codec, event: ev.StepRetrying, attempts: int | None) -> None:
    _tell(
        logging.WARNING,
        f"step {event.name!r} of run {row.id} failed at {_attempt(event.attempt, attempts)}, again in "
        f"{_delay(event.retry_at - event.ts)}: {error_text(event.error, codec)}",
        _fields(row, event.name, event.attempt),
    )


def step_lost(row: RunRow, command: co.ScheduleStep) -> None:
    _tell(
        logging.WARNING,
        f"step {command.name!r} of run {row.id} lost its worker at attempt {command.attempt}, and is executed again",
        _fields(row, command.name, command.attempt),
    )


def step_failed(
    row: RunRow, codec: Codec, event: ev.StepFailed | ev.StepRefused, error: BaseException | None = None
) -> None:
    """`error` is the exception itself, where it is at hand."""
    attempt = event.attempt if isinstance(event, ev.StepFailed) else 1
    _tell(
        logging.ERROR,
        f"step {event.name!r} of run {row.id} failed for good at attempt {attempt}: {error_text(event.error, codec)}",
        _fields(row, event.name, attempt),
        _exc_info(error, event.error, codec),
    )


def run_failed(row: RunRow, codec: Codec, event: ev.Event, attempts: int | None, records: Sequence[Record]) -> None:
    """How an attempt of a run ended. `records` are the last ones: a run that is nothing but a step says no more than the
    step did."""
    if isinstance(event, ev.AttemptFailed):
        _tell(
            logging.WARNING,
            f"run {row.id} of {row.workflow!r} failed at {_attempt(event.attempt, attempts)}, again in "
            f"{_delay(event.retry_at - event.ts)}: {error_text(event.error, codec)}",
            _fields(row, "", event.attempt),
        )
    elif isinstance(event, ev.RunFailed):
        if any(record.kind == "StepFailed" and record.name == row.workflow for record in records[-2:]):
            return
        _tell(
            logging.ERROR,
            f"run {row.id} of {row.workflow!r} failed for good: {error_text(event.error, codec)}",
            _fields(row, "", row.attempt),
            _exc_info(None, event.error, codec),
        )


def left_behind(row: RunRow, what: Sequence[str]) -> None:
    """A run has succeeded, and what it had begun and not waited for was cancelled: nobody would see that otherwise."""
    names = Counter(what)
    shown = [name if count == 1 else f"{name} ({count} times)" for name, count in names.items()]
    more = f" and {len(shown) - NAMED} more" if len(shown) > NAMED else ""
    _tell(
        logging.WARNING,
        f"run {row.id} of {row.workflow!r} returned before {', '.join(shown[:NAMED])}{more} had ended, which ends with it: "
        "await what .submit() gives (in `def` code: .result()), or cancel it, before you return",
        _fields(row, "", row.attempt),
    )


def _attempt(attempt: int, attempts: int | None) -> str:
    return f"attempt {attempt}" if attempts is None else f"attempt {attempt} of {attempts}"


def _delay(us: int) -> str:
    """Milliseconds are enough for people."""
    return in_words(us if us < 1_000 else us - us % 1_000)


def _fields(row: RunRow, step: str, attempt: int) -> dict[str, Any]:
    return {"run_id": row.id, "workflow": row.workflow, "step": step, "attempt": attempt}


def _exc_info(error: BaseException | None, encoded: Raw, codec: Codec) -> BaseException | tuple[Any, Any, Any]:
    """What a handler is to print: the exception with the user's own frames, or the one that stands for it where its own
    class would break whoever prints it."""
    if error is not None and error.__traceback__ is not None:
        try:
            own = type(error), error, _own_frames(error.__traceback__)
            traceback.format_exception(*own)
            return own
        except BaseException:  # the recorded text is what is left of it
            pass
    try:
        return codec.decode_error(encoded)
    except Exception:
        return StepError(error_text(encoded, codec))


def _own_frames(frames: TracebackType) -> TracebackType:
    """Without the lines of this library that led to the user's; all of them, if there are no others."""
    rest: TracebackType | None = frames
    while rest is not None and rest.tb_frame.f_code.co_filename.startswith(OWN_FILES):
        rest = rest.tb_next
    return rest or frames


def _tell(level: int, message: str, fields: dict[str, Any], exc_info: Any = None) -> None:
    try:
        logger.log(level, "%s", message, exc_info=exc_info, extra=fields)
    except BaseException:  # a handler of the user's: it must not decide what becomes of the run
        traceback.print_exc()
