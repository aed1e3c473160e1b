"""Standard `logging` in runs: records say which run they were made in, workflow code is not heard twice, and what a
step logs is kept with it.

There is one hook, `Logger.callHandlers`: every record of every logger passes there, after levels and filters and
whether it propagates or not. A record factory could not hold a record back, and its fields would forbid the same
names in anybody's `extra`.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from typing import Any

from holdfast.codec import Codec
from holdfast.codec.exceptions import clip, message_of
from holdfast.core.context import StepContext, current_step
from holdfast.core.loop import WorkflowLoop, running
from holdfast.ports import Attempt
from holdfast.printing import printable, show

KEPT_LINES = 200
KEPT_BYTES = 64 * 1024
LINE_LIMIT = 8 * 1024
OUTSIDE = {"run_id": "", "workflow": "", "step": "", "attempt": 0}
"""The fields of a record, as they are outside of a run."""

logger = logging.getLogger("holdfast.executor")
_tracebacks = logging.Formatter()
_installing = threading.Lock()
_installed = False


def install() -> None:
    """Hook into `logging`: once per process, and for good, for whoever hooks in later calls us."""
    global _installed
    with _installing:
        if _installed:
            return
        _installed = True
        call_handlers = logging.Logger.callHandlers

        def callHandlers(self: logging.Logger, record: logging.LogRecord) -> None:
            if not _is_taken(record):
                call_handlers(self, record)

        logging.Logger.callHandlers = callHandlers  # type: ignore[method-assign]


def _is_taken(record: logging.LogRecord) -> bool:
    """Whether nobody else is to see the record."""
    loop, context = running(), current_step.get()
    if loop is not None and (loop.closed or loop.execution.journal.is_repeating):
        return True
    _mark(record, loop, context)
    return loop is None and context is not None and context.hear(record)


def _mark(record: logging.LogRecord, loop: WorkflowLoop | None, context: StepContext | None) -> None:
    """Say which run a record was made in. What `extra` or another process has said stays."""
    fields: dict[str, Any] = OUTSIDE
    if loop is not None and (execution := loop.execution) is not None:
        fields = {
            "run_id": execution.info.run_id, "workflow": execution.program.name, "step": "", "attempt": execution.journal.attempt,
        }  # fmt: skip
    elif context is not None:
        attempt = context.attempt
        fields = {
            "run_id": attempt.run_id, "workflow": attempt.workflow, "step": attempt.step, "attempt": attempt.number,
        }  # fmt: skip
    for name, value in fields.items():
        record.__dict__.setdefault(name, value)


class RunFields(logging.Filter):
    """A filter for handlers whose format names `run_id`, `workflow`, `step` or `attempt`: records that are made
    outside of a run, or before a worker has started, get empty ones."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Let every record pass, with these fields."""
        _mark(record, running(), current_step.get())
        return True


# -- what is kept with a step


class KeptLogs:
    """The last of what an attempt has logged."""

    def __init__(self) -> None:
        self._lines: deque[tuple[int, list[Any]]] = deque()
        self._bytes = 0
        self._dropped = 0
        self._lock = threading.Lock()  # a step may have threads of its own

    def add(self, record: logging.LogRecord) -> None:
        text = clip(printable(text_of(record)), LINE_LIMIT)
        size = len(text.encode())
        names = printable(str(record.levelname)), printable(str(record.name))
        line = [round(record.created * 1_000_000), *names, text]
        with self._lock:
            self._lines.append((size, line))
            self._bytes += size
            while len(self._lines) > KEPT_LINES or self._bytes > KEPT_BYTES:
                self._bytes -= self._lines.popleft()[0]
                self._dropped += 1

    def encode(self, attempt: Attempt, codec: Codec) -> bytes | None:
        """All of it as the codec writes values, so that what is sealed elsewhere is sealed here."""
        with self._lock:
            lines = [line for _, line in self._lines]
            kept = {
                "cmd": attempt.cmd, "step": attempt.step, "attempt": attempt.number, "dropped": self._dropped, "lines": lines,
            }  # fmt: skip
        try:
            return codec.encode(kept, f"the logs of step {attempt.step!r}")
        except BaseException as error:  # what the codec of an app raises must not cost the step its outcome
            why = f"{type(error).__name__}: {message_of(error)}"
            logger.warning("the logs of step %r of run %s are not kept: %s", attempt.step, attempt.run_id, why)
            return None


def text_of(record: logging.LogRecord) -> str:
    """The message, with the traceback if there is one."""
    return "\n".join(filter(None, [_message(record), _traceback(record), record.stack_info]))


def _message(record: logging.LogRecord) -> str:
    try:
        return record.getMessage()
    except BaseException:  # arguments that don't fit: the handlers complain, and the step must not notice
        return f"{show(record.msg)} {show(record.args)}"


def _traceback(record: logging.LogRecord) -> str:
    if record.exc_text or not record.exc_info:
        return record.exc_text or ""
    try:
        return _tracebacks.formatException(record.exc_info)
    except BaseException as error:  # a class that breaks the traceback module
        return f"(the traceback can't be shown: {type(error).__name__})"


# -- from process to process


def levels() -> dict[str, int]:
    """The levels that loggers of this process were given, by name; the root's is under ''."""
    found = {
        name: each.level
        for name, each in logging.root.manager.loggerDict.copy().items()
        if isinstance(each, logging.Logger)
    }
    return {"": logging.root.level} | {name: level for name, level in found.items() if level}


def set_levels(levels: dict[str, int]) -> None:
    """Make loggers here let the same records pass as those of another process."""
    for name, level in levels.items():
        logging.getLogger(name or None).setLevel(level)


def to_frame(record: logging.LogRecord) -> dict[str, Any]:
    """A record as plain data: with its message made, and without what can't travel."""
    frame = {key: value for key, value in vars(record).items() if _travels(value)}
    return frame | {
        "msg": printable(_message(record)),
        "args": None,
        "exc_text": printable(_traceback(record)) or None,
    }


def _travels(value: object) -> bool:
    if type(value) is str:
        return printable(value) == value
    return type(value) in (bool, float, type(None)) or (type(value) is int and abs(value) < 2**63)


def handle_frame(frame: dict[str, Any]) -> None:
    """Log here what was logged in another process."""
    record = logging.makeLogRecord(frame)
    target = logging.getLogger(record.name)
    if target.isEnabledFor(record.levelno):
        target.handle(record)
