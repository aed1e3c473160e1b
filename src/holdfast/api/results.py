"""Waiting for runs: for a result, for data they publish, for what they stream. Whoever waits is told, and doesn't poll."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from holdfast.api.checks import check_text, duration_of
from holdfast.api.reading import RunReader, Which
from holdfast.api.waiting_room import LOOK, WaitingRoom
from holdfast.blocking import run_blocking
from holdfast.core.definitions import DEFAULT_APP
from holdfast.core.loop import running
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
    WrongContextError,
)
from holdfast.ports import FINAL, Notifier, Query, RunRow, Status, StreamRow, WorkerKind
from holdfast.views.entries import StreamedItem
from holdfast.views.why import why

logger = logging.getLogger("holdfast")
T = TypeVar("T")
WARN_AFTER = 2.0  # seconds without a worker that could go on
TAKES_LONGER = 0.001  # seconds in which no run is over: it isn't looked at before that
STREAMED_AT_ONCE = 1_000
AT_MOST_LATER = 1.0
"""Seconds after its time is over at which a coroutine gives up, though the store doesn't answer whoever looks for it."""


@dataclass(slots=True)
class Awaited(Generic[T]):
    """What somebody waits for. `look` is given a run that was read before, and has it or not yet. `late` words a
    WaitTimeoutError, with the state of the run, the time that has passed, and what the run lacks."""

    run: Which
    look: Callable[[RunRow], T | None]
    late: Callable[[str, str, str], str]
    limit: int | None  # microseconds


@dataclass(slots=True)
class Waiter:
    """Waits for what runs come to."""

    definitions: Definitions
    store: Query
    notifier: Notifier
    reader: RunReader
    room: WaitingRoom = field(init=False)

    def __post_init__(self) -> None:
        self.room = WaitingRoom(self.notifier)

    # -- results

    def result(self, run: Which, timeout: Duration | None, *, propagate: bool = True) -> Any:
        __tracebackhide__ = True
        return self._outcome(self.wait(self._end(run, timeout)), propagate)

    async def aresult(self, run: Which, timeout: Duration | None, *, propagate: bool = True) -> Any:
        __tracebackhide__ = True
        row = await self.wait_async(self._end(run, timeout))

        def give(given_up: threading.Event) -> Any:
            __tracebackhide__ = True
            return self._outcome(row, propagate)

        return await run_blocking(give)

    def _end(self, run: Which, timeout: Duration | None) -> Awaited[RunRow]:
        def late(state: str, passed: str, lacks: str) -> str:
            return f"run {run.id} is {state} after {passed}; {lacks or 'it goes on, ask again later'}"

        return Awaited(run, self._if_over, late, _limit(timeout))

    def _outcome(self, row: RunRow, propagate: bool) -> Any:
        __tracebackhide__ = True
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

    # -- what runs leave somewhere

    def data(self, run: Which, key: str, timeout: Duration | None) -> Any:
        """What the run has published under `key`, once it has."""
        return self.definitions.codec.decode(self.wait(self._published(run, key, timeout)))

    async def adata(self, run: Which, key: str, timeout: Duration | None) -> Any:
        found = await self.wait_async(self._published(run, key, timeout))
        return await run_blocking(lambda given_up: self.definitions.codec.decode(found))

    def _published(self, run: Which, key: str, timeout: Duration | None) -> Awaited[bytes]:
        check_text("key", key)
        return self.left(
            run, lambda: self.store.data(run.id).get(key), f"having published {key!r}", f"has not published {key!r}",
            "it goes on, wait again later", _limit(timeout),
        )  # fmt: skip

    def left(
        self, run: Which, find: Callable[[], bytes | None], what: str, not_yet: str, outlook: str, limit: int | None
    ) -> Awaited[bytes]:
        """What the run leaves where `find` finds it. An error if it ends without, or is stuck."""

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

        return Awaited(run, look, late, limit)

    # -- streams

    def stream(self, run: Which, after: int) -> Iterator[StreamedItem]:
        """Items as they come, until the run is over."""
        over = False
        while not over:
            rows, over = self.wait(self._streamed(run, after))
            for row in rows:
                after = row.number
                yield self.reader.entries.streamed(row)

    async def astream(self, run: Which, after: int) -> AsyncIterator[StreamedItem]:
        over = False
        while not over:
            rows, over = await self.wait_async(self._streamed(run, after))
            items = map(self.reader.entries.streamed, rows)
            for item in await run_blocking(lambda given_up, items=items: list(items)):  # type: ignore[misc]
                after = item.number
                yield item

    def _streamed(self, run: Which, after: int) -> Awaited[tuple[list[StreamRow], bool]]:
        """The next items, and whether they are the last."""

        def look(row: RunRow) -> tuple[list[StreamRow], bool] | None:
            is_over = self._if_over(row) is not None  # looked at first: nothing is streamed after the end
            rows = self.store.stream(run.id, after, STREAMED_AT_ONCE)
            is_last = is_over and len(rows) < STREAMED_AT_ONCE
            return (rows, is_last) if rows or is_last else None

        return Awaited(run, look, lambda state, passed, lacks: "", None)

    # -- waiting

    def wait(self, awaited: Awaited[T], given_up: threading.Event | None = None) -> T:
        """Look whenever the run was announced, until there is something, or somebody has `given_up` for whom this waits."""
        __tracebackhide__ = True
        run = awaited.run
        _refuse_in_workflow(run)
        looks = self._looks(awaited)
        try:
            # Who doesn't want to wait needs no watch, nor does who wants what is there.
            if awaited.limit == 0 or time.monotonic() - run.made >= TAKES_LONGER:
                next(looks)
            with closing(self.notifier.watch(run.id)) as watch:
                while given_up is None or not given_up.is_set():
                    watch.wait(min(LOOK, next(looks)))
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
        raise WaitTimeoutError(f"run {run.id} is not waited for any more", run_id=run.id)

    async def wait_async(self, awaited: Awaited[T]) -> T:
        """The same for async code."""
        __tracebackhide__ = True
        _refuse_in_workflow(awaited.run)
        if not self.notifier.can_watch_many:
            return await run_blocking(lambda given_up: self.wait(awaited, given_up))
        limit = awaited.limit
        try:
            async with asyncio.timeout(None if limit is None else limit / 1_000_000 + AT_MOST_LATER) as guard:
                return await self.room.wait(awaited.run.id, self._looks(awaited))  # type: ignore[no-any-return]
        except TimeoutError:
            if not guard.expired():
                raise
        late = awaited.late("in a state that its store can't be asked for now", in_words(limit or 0), "")
        raise WaitTimeoutError(late, run_id=awaited.run.id)

    def _looks(self, awaited: Awaited[T]) -> Generator[float, None, T]:
        """Looks, and tells after how many seconds it wants to look again, until there is something."""
        __tracebackhide__ = True
        run, limit = awaited.run, awaited.limit
        begun = time.monotonic()
        deadline = begun + (float("inf") if limit is None else limit / 1_000_000)
        warn_at = begun + WARN_AFTER
        while True:
            try:
                row = self.reader.row(run)
                found = awaited.look(row)
            except (StoreBusyError, StoreUnavailableError) as error:
                if time.monotonic() >= deadline or isinstance(error, StoreLostError | StoreMovedError):
                    raise
                logger.warning("run %s is waited for, though its store can't be asked now: %s", run.id, error)
                yield LOOK
                continue
            if found is not None:
                return found
            now = time.monotonic()
            if now >= deadline:
                state = f"{row.status} ({row.reason})" if row.reason else row.status
                raise WaitTimeoutError(awaited.late(state, in_words(limit or 0), self._lacks(row)), run_id=run.id)
            if now >= warn_at:
                warn_at = float("inf")
                if lacks := self._lacks(row):
                    logger.warning("run %s: %s", run.id, lacks)
            yield min(deadline, warn_at) - now

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


def _limit(timeout: Duration | None) -> int | None:
    return None if timeout is None else duration_of("timeout", timeout, ArgumentError)


def _refuse_in_workflow(run: Which) -> None:
    if running() is not None:
        raise WrongContextError(
            f"run {run.id} is waited for in workflow code, which is replayed; wait for it in a step, or start it as a child: "
            "call its workflow"
        )
