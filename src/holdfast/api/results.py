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
from holdfast.core.registry import Definitions
from holdfast.durations import Duration, in_words
from holdfast.errors import ArgumentError, MemberError, RunFinishedError, RunStuckError
from holdfast.ports import FINAL, Notifier, Query, RunRow, Status, WorkerKind
from holdfast.views.entries import StreamedItem

logger = logging.getLogger("holdfast")
T = TypeVar("T")
WARN_AFTER = 2.0  # seconds without a worker


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
        limit = None if timeout is None else duration_of("timeout", timeout, ArgumentError)

        def late(state: str, passed: str, nobody: str) -> str:
            return f"run {run.id} is {state} after {passed}; {nobody or 'it goes on, ask again later'}"

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

        def late(state: str, passed: str, nobody: str) -> str:
            return f"run {run.id} {not_yet} within {passed}; it is {state}; {nobody or outlook}"

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
        a TimeoutError, with the state of the run, the time that has passed, and that no worker is alive."""
        begun = time.monotonic()
        deadline = begun + (float("inf") if limit is None else limit / 1_000_000)
        warn_at = begun + WARN_AFTER
        found = look(self.reader.row(run))
        if found is not None:
            return found
        watch = self.notifier.watch(run.id)
        try:
            while True:
                row = self.reader.row(run)
                found = look(row)
                if found is not None:
                    return found
                now = time.monotonic()
                if now >= deadline or (given_up is not None and given_up.is_set()):
                    state = f"{row.status} ({row.reason})" if row.reason else row.status
                    raise TimeoutError(late(state, in_words(limit or 0), self._nobody_works()))
                if now >= warn_at:
                    warn_at = float("inf")
                    if nobody := self._nobody_works():
                        logger.warning(nobody)
                watch.wait(min(1.0, deadline - now))
        finally:
            watch.close()

    def _nobody_works(self) -> str:
        """If no worker is alive: that, and what to do about it."""
        now = self.store.now()
        if any(worker.lease_until > now and worker.kind == WorkerKind.ENGINE for worker in self.store.workers()):
            return ""
        return (
            f"no worker of app {self.definitions.name!r} is alive on {self.store.url}; start one with `holdfast -A <module> "
            "worker`, or `with app.worker():`"
        )

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
