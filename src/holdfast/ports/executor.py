"""Where steps execute."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

import msgspec


class Attempt(msgspec.Struct, kw_only=True, gc=False):
    """One try of a step, as an executor gets it. If it gets a process, up to `share_with` others may share that. `trace` is
    the `traceparent` that its run goes on from; `sent_at` is set if an observer wants to know how long it waits. The number
    `streams_as` tells what it streams from what other executions of the step do; so many items it has `said`, counted
    where it executes. `since` is the event that the attempt of its run began with: in each, commands may have the same
    ids."""

    token: int
    run_no: int
    run_id: str
    app: str = ""
    workflow: str
    root_id: str
    parent_id: str | None
    cmd: str
    step: str
    args: Any
    number: int
    idempotency_key: str
    timeout: int | None
    stall_timeout: int | None
    pool: str
    data: dict[str, Any]
    correlation: str = ""
    quiet: bool = False
    headers: dict[str, str] = {}
    checkpoint: bytes | None = None
    streams_as: int = 0
    said: int = 0
    share_with: int = 0
    at_most_once: bool = False
    trace: str = ""
    sent_at: int = 0
    since: int = 0


class Outcome(msgspec.Struct, kw_only=True):
    """What became of an attempt: a result or an error, encoded. `lost` means its process died with it, and with
    `lost_with` others. `handed_over` means that it will be told from elsewhere. `logs` is what is to be kept of what it has
    logged, encoded. `thread` is where it was executed; "" is the event loop."""

    attempt: Attempt
    started: int
    result: Any = None
    error: BaseException | None = None
    encoded_error: bytes | None = None
    cancelled: bool = False
    lost: bool = False
    handed_over: bool = False
    lost_with: int = 0
    data: dict[str, Any] = {}
    emitted: list[tuple[str, str, bytes]] = []
    retry_after: int | None = None
    logs: bytes | None = None
    thread: str = ""


class Executor(Protocol):
    """Where steps execute."""

    def start(
        self,
        on_outcome: Callable[[Outcome], None],
        on_report: Callable[[Attempt, str, Any], None],
        may_begin: Callable[[], bool],
    ) -> None:
        """Begin to accept attempts. `on_outcome` is called once per attempt, `on_report` for what a step says on
        its way. `may_begin` is asked right before an attempt begins to execute: if the answer is no it doesn't, and its
        outcome is that it was cancelled. All are called from any thread, cost next to nothing and raise nothing."""

    def submit(self, attempts: Sequence[Attempt]) -> None:
        """Execute attempts. Never blocks, never raises for what the steps do. An attempt's `timeout` and `stall_timeout`
        count from its beginning, and decide its outcome at that time whatever its code does."""

    def withdraw(self, tokens: Iterable[int]) -> set[int]:
        """Take back those of these attempts that have not begun to execute, and say which. They will not begin, and no
        outcome arrives for them. Not to be called from several threads at a time, nor beside `cancel`."""

    def started_at(self, token: int) -> int | None:
        """When an attempt began to execute; None if it still waits for its turn."""

    def cancel(self, token: int) -> None:
        """End an attempt, whether it has begun or not: its outcome arrives at once, marked cancelled, unless it has one.
        Its code is interrupted if it can be."""

    def stop(self, grace: float) -> None:
        """Accept nothing more, wait up to `grace` seconds for what executes, then interrupt it. Code that doesn't end
        within a moment after that is left behind."""

    def close(self) -> None:
        """After `stop`: close what the steps have shared. The code of users decides how long that takes, so by now
        nobody depends on this worker any more."""
