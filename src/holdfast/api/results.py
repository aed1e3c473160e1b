"""Waiting for runs: for a result, for data they publish, for what they stream. Whoever waits is told, and doesn't poll."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

from holdfast.api.checks import check_text, duration_of
from holdfast.api.reading import RunReader, Which
from holdfast.core.definitions import DEFAULT_APP
from holdfast.core.registry import Definitions
from holdfast.durations import Duration, in_words
from holdfast.errors import (
    ArgumentError,
    MemberError,
    RunFinishedError,
    RunStuckError,
    StoreBusyError,
    StoreLostError,
    StoreMovedError,
    StoreUnavailableError,
    WaitTimeoutError,
)
from holdfast.ports import FINAL, Notifier, Query, RunRow, Status, WorkerKind
from holdfast.views.entries import StreamedItem
from holdfast.views.why import why

logger = logging.getLogger("holdfast")
T = TypeVar("T")
WARN_AFTER = 2.0  # seconds without a worker that could go on
TAKES_LONGER = 0.001  # seconds in which no run is over: it isn't looked at before that


@dataclass(slots=True)
class Waiter:
    """Waits for what runs come to."""

    definitions: Definitions
    store: Query
    notifier: Notifier
    reader: RunReader

    def result(
        self,
        run: Which,
        timeout: Duration | None,
        given_up: threading.Event | None = None,
        *,
        propagate: bool = True,
    ) -> Any:
        __tracebackhide__ = True
        limit = None if timeout is None else duration_of("timeout", timeout, ArgumentError)

        def late(state: str, passed: str, lacks: str) -> str:
            return f"run {run.id} is {state} after {passed}; {lacks or 'it goes on, ask again later'}"

        row = self._watch(run, self._if_over, late, limit, given_up)
        outcome, failed = self.reader.outcome(row)
        if failed and propagate:
            raise outcome
        return outcome.results if isinstance(outcome, MemberError) else outcome

    def _if_over(self, row: RunRow) -> RunRow | None:
        """The run, if there is an outcome to show and nobody has asked for another one."""
        if row.status == Status.SUCCESS:
            return row
        if row.status != Status.STUCK and row.status not in FINAL:
            return None
        orders = self.store.orders(row.id)
        row = self.reader.row(Which(row.id, row.no))  # after them: an order is carried out and consumed in one commit
        if row.status == Status.STUCK:
            return None if orders else row
        over = row.status in FINAL and (row.status == Status.SUCCESS or "retry" not in orders)
        return row if over else None

    def data(self, run: Which, key: str, timeout: Duration | None, given_up: threading.Event | None = None) -> Any:
        """What the run has published under `key`, once it has."""
        check_text("key", key)
        limit = None if timeout is None else duration_of("timeout", timeout, ArgumentError)
        found = self.found(
            run, lambda: self.store.data(run.id).get(key), f"having published {key!r}", f"has not published {key!r}",
            "it goes on, wait again later", limit, given_up,
        )  # fmt: skip
        return self.definitions.codec.decode(found)

    def found(
        self,
        run: Which,
        find: Callable[[], bytes | None],
        what: str,
        not_yet: str,
        outlook: str,
        limit: int | None,
        given_up: threading.Event | None,
    ) -> bytes:
        """What the run leaves somewhere, once it has. An error if it ends without, or is stuck."""

        def look(row: RunRow) -> bytes | None:
            over = self._if_over(row)
            left = find()  # after that: what was not left by its end never is
            if left is not None or over is None:
                return left
            if over.status == Status.STUCK:
                raise RunStuckError(
                    f"run {run.id} {not_yet}, and is stuck: {over.reason}", run_id=run.id, reason=over.reason
                )
            raise RunFinishedError(f"run {run.id} has ended ({over.status}) without {what}", run_id=run.id)

        def late(state: str, passed: str, lacks: str) -> str:
            return f"run {run.id} {not_yet} within {passed}; it is {state}; {lacks or outlook}"

        return self._watch(run, look, late, limit, given_up)

    def _watch(
        self,
        run: Which,
        look: Callable[[RunRow], T | None],
        late: Callable[[str, str, str], str],
        limit: int | None,
        given_up: threading.Event | None,
    ) -> T:
        """Look whenever the run was announced, until there is something. What `look` is given was read before. `late` words
        a WaitTimeoutError, with the state of the run, the time that has passed, and what the run lacks."""
        __tracebackhide__ = True
        begun = time.monotonic()
        deadline = begun + (float("inf") if limit is None else limit / 1_000_000)
        warn_at = begun + WARN_AFTER
        found = None if begun - run.made < TAKES_LONGER else look(self.reader.row(run))
        if found is not None:
            return found
        watch = self.notifier.watch(run.id)
        try:
            while True:
                try:
                    row = self.reader.row(run)
                    found = look(row)
                except (StoreBusyError, StoreUnavailableError) as error:
                    is_late = time.monotonic() >= deadline or (given_up is not None and given_up.is_set())
                    if is_late or isinstance(error, StoreLostError | StoreMovedError):
                        raise
                    logger.warning("run %s is waited for, though its store can't be asked now: %s", run.id, error)
                    watch.wait(1.0)
                    continue
                if found is not None:
                    return found
                now = time.monotonic()
                if now >= deadline or (given_up is not None and given_up.is_set()):
                    state = f"{row.status} ({row.reason})" if row.reason else row.status
                    raise WaitTimeoutError(late(state, in_words(limit or 0), self._lacks(row)), run_id=run.id)
                if now >= warn_at:
                    warn_at = float("inf")
                    if lacks := self._lacks(row):
                        logger.warning("run %s: %s", run.id, lacks)
                watch.wait(min(1.0, deadline - now))
        finally:
            watch.close()

    def _lacks(self, row: RunRow) -> str:
        """If the run doesn't go on before a worker is started: that, and what to do about it."""
        now, workers = self.store.now(), self.store.workers()
        if not any(worker.lease_until > now and worker.kind == WorkerKind.ENGINE for worker in workers):
            return self._nobody_works()
        reason = why(row, now, workers=workers, attempts=self.store.attempts(row.id))
        if reason.kind not in ("unknown_workflow", "unserved_queue"):
            return ""
        # What a worker knows is told with its next heartbeat.
        return reason.text if now - (reason.since or now) >= WARN_AFTER * 1_000_000 else ""

    def _nobody_works(self) -> str:
        name, here = self.definitions.name, "`with app.worker():`"
        if name == DEFAULT_APP:
            here = "`from holdfast.default_app import default_app` and `with default_app.worker():`"
        return f"no worker of app {name!r} is alive on {self.store.url}; start one with `holdfast -A <module> worker`, or {here}"

    def stream(self, run: Which, after: int) -> Iterator[StreamedItem]:
        """Items as they come, until the run is over."""
        self.reader.row(run)
        entries = self.reader.entries
        watch = self.notifier.watch(run.id)
        try:
            while True:
                over = self._if_over(self.reader.row(run))  # looked at first: nothing is streamed after the end
                for row in self.store.stream(run.id, after, 1_000):
                    after = row.number
                    yield entries.streamed(row)
                if over and not self.store.stream(run.id, after, 1):
                    return
                if not over:
                    watch.wait(1.0)
        finally:
            watch.close()
