"""What a step knows about itself while it executes. Executors set it, the api reads it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from logging import LogRecord
from typing import Any

from msgspec import Raw

from holdfast.codec import Codec
from holdfast.core.ids import child_run_id
from holdfast.core.unawaited import Unawaited
from holdfast.ports import Attempt, StepTransaction


@dataclass(frozen=True, slots=True)
class StepAttempt:
    """What `@app.around_step` is told about the attempt that it wraps. `wf` and `this_step` work there too."""

    step: str
    run_id: str
    workflow: str
    number: int
    idempotency_key: str
    is_async: bool
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class WorkflowAttempt:
    """What `@app.around_workflow` is told about the run whose code it wraps. `headers` are those that it was started
    with."""

    workflow: str
    run_id: str
    number: int
    headers: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class StartCall:
    """What `@app.around_start` is told about a run that is to be started. What it puts into `headers` comes along: to the
    workflow, its steps, and the runs that those start."""

    name: str
    run_id: str
    headers: dict[str, str]


class StepContext:
    """One attempt from the inside, and what its outcome is made of."""

    __slots__ = (
        "_report",
        "attempt",
        "cancelled",
        "checkpoint",
        "children",
        "codec",
        "data",
        "emitted",
        "handed_over",
        "kill",
        "started",
        "surroundings",
        "transaction",
        "unawaited",
        "writes",
    )

    def __init__(self, attempt: Attempt, codec: Codec, report: Callable[[Attempt, str, Any], None]) -> None:
        self._report = report
        self.attempt = attempt
        self.codec = codec
        self.started = 0
        self.data: dict[str, Raw] = attempt.data
        self.writes: dict[str, Raw] = {}
        self.emitted: list[tuple[str, str, bytes]] = []
        self.checkpoint: bytes | None = attempt.checkpoint
        self.cancelled = False
        self.kill: Callable[[], None] | None = None  # interrupts its code, if that can be interrupted
        self.handed_over = False
        self.children: dict[str, int] = {}
        self.transaction: StepTransaction | None = None
        self.unawaited = Unawaited()
        self.surroundings: Any = None  # the executor's: where a step that is called plainly gets its resources

    def report(self, kind: str, value: Any) -> None:
        """Carry a checkpoint, progress or a stream item to the engine."""
        self._report(self.attempt, kind, value)

    def hear(self, record: LogRecord) -> bool:
        """A record was logged by the step; True if no other handler is to see it."""
        return False

    def kept_logs(self) -> bytes | None:
        """What is to be kept of what it has logged, encoded."""
        return None

    def seal(self) -> bool:
        """From now on nothing but its own outcome ends it: it is about to commit. False if it has ended already."""
        return True

    def sign_of_life(self) -> None:
        """It reports something, so it has not stalled."""

    def next_child_id(self, workflow: str) -> str:
        """The id for the next child that this attempt starts. It derives from the idempotency key, so that a retried
        step finds the child that an earlier attempt has started."""
        self.children[workflow] = self.children.get(workflow, 0) + 1
        key = self.attempt.idempotency_key.removeprefix(f"{self.attempt.run_id}:")
        return child_run_id(self.attempt.run_id, workflow, key, 1, str(self.children[workflow]))

    def emit(self, name: str, payload: bytes, key: str | None) -> str:
        """Hold a domain event until this attempt has succeeded; its key."""
        key = key or f"{self.attempt.idempotency_key}:{len(self.emitted) + 1}"
        self.emitted.append((name, key, payload))
        return key

    def touch(self) -> None:
        """A sign of life: where a plain step learns that it was cancelled, and stops being stalled."""
        if self.cancelled:
            raise asyncio.CancelledError(f"step {self.attempt.step!r} of run {self.attempt.run_id} was cancelled")
        self.sign_of_life()


current_step: ContextVar[StepContext | None] = ContextVar("holdfast_step", default=None)
under_way: set[StepContext] = set()
"""The attempts that execute in this process."""
