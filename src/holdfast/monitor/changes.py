"""What has changed: for each thing that is looked at the store is asked in one place, however many look.

What a page shows has a version, a digest of its state. A stream says when that is another one than the page has seen, so
that one that comes back after a break misses nothing, and nobody has to keep what happened meanwhile.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import msgspec
from msgspec.structs import replace
from starlette.concurrency import run_in_threadpool

from holdfast.errors import HoldfastError, StoreError, StoreLostError
from holdfast.monitor.source import COUNTED, HOOKS_SHOWN, Source
from holdfast.ports import FINAL, RunQuery, RunRow, Status

logger = logging.getLogger("holdfast.monitor")
INTERVAL = 0.7
REST = 5
"""So many times as long as a look took the store is left alone, where that is longer."""
STILL_THERE = 15.0
"""Seconds after which a silent stream says that it is one."""
REMEMBERED = 1_000
PLACES = 100


def _state(row: RunRow) -> tuple[Any, ...]:
    return (row.no, row.status, row.reason, row.attempt, row.owner, row.wake_at, row.started_at, row.finished_at)


class Versions:
    """The version of everything that can be looked at."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._last: dict[int, int] = {}

    def of(self, what: str, filter: str = "", after: int | None = None, limit: int = 50) -> str:
        """`what` is a list, or `run:` and an id."""
        state = self._run(what[4:]) if what.startswith("run:") else self._list(what, filter, after, limit)
        return hashlib.sha256(repr(state).encode()).hexdigest()[:24]

    def _list(self, what: str, filter: str, after: int | None, limit: int) -> Any:
        store = self._source.store
        if what == "workers":
            now = store.now()
            workers = [(worker.id, worker.lease_until >= now) for worker in store.workers()]
            queues = [(row.queue, row.waiting, row.claimed) for row in store.queues()]
            return workers, queues, store.counts(RunQuery(statuses=[Status.RUNNING]), COUNTED)
        if what == "schedules":
            return [(row.name, row.revision, row.is_active, row.next_at) for row in store.schedules()]
        if what == "hooks":
            return [_state(row) for row in self._source.that_may_ask(after, HOOKS_SHOWN)]
        query = self._source.query_of(filter)
        query.since, query.until = None, None  # they move with the clock, and only the runs matter
        rows = store.runs(replace(query, after=after, limit=limit))
        return [_state(row) for row in rows], store.counts(replace(query, statuses=()), COUNTED)

    def _run(self, run_id: str) -> Any:
        store = self._source.store
        row = self._source.row(run_id)
        children = store.runs(RunQuery(parent=run_id, limit=100))
        last = self._last_event(row)
        beside = [store.attributes(run_id, key) for key in ("progress", "logs")]
        told = [_state(each) for each in (row, *children)]
        return told, last, beside, store.orders(run_id), self._around(row)

    def _around(self, row: RunRow) -> Any:
        """What else makes a run wait: who is alive, where its steps are, its places in lines, and that it is due."""
        if row.status in FINAL:
            return None
        store, now = self._source.store, self._source.store.now()
        alive = sorted(worker.id for worker in store.workers() if worker.lease_until >= now)
        elsewhere = [(each.cmd, each.number, each.worker) for each in store.attempts(row.id)]
        places = [(each.limit, each.key, each.place) for each in store.places(row.id, PLACES)] if row.limited else []
        return alive, elsewhere, places, row.wake_at is not None and row.wake_at <= now

    def _last_event(self, row: RunRow) -> int:
        """Its number. Histories only grow, so no more is read than came since the last time."""
        known = max(self._last.get(row.no, 0), row.end_seq)
        new = self._source.store.payloads(row.id, known)
        if new:
            known = msgspec.json.decode(new[-1], type=_Numbered).seq
        if len(self._last) > REMEMBERED:
            self._last.clear()
        self._last[row.no] = known
        return known


class _Numbered(msgspec.Struct):
    seq: int


def pause_after(took: float) -> float:
    """How many seconds to wait after a look that took so many: among very many runs one may take long."""
    return max(INTERVAL, REST * took)


class Topic:
    """One thing that is looked at, and its version."""

    def __init__(self, ask: Callable[[], str], failed: Callable[[StoreError], None]) -> None:
        self._ask = ask
        self._failed = failed
        self.version = ""
        self.listeners = 0
        self.over = False
        self.task: asyncio.Task[None] | None = None
        self._moved = asyncio.Event()

    async def poll(self) -> None:
        while True:
            begun = time.monotonic()
            try:
                version = await run_in_threadpool(self._ask)
            except StoreError as error:
                logger.warning("the store can't be read: %s", error)
                self._failed(error)
                version = "unreachable"
            except HoldfastError:  # the run was deleted
                version = "gone"
            if version != self.version:
                self.version = version
                self._moved.set()
                self._moved = asyncio.Event()
            await asyncio.sleep(pause_after(time.monotonic() - begun))

    async def after(self, seen: str) -> str:
        """The version, once it is another one than `seen`; nothing if nobody will tell any more."""
        while self.version in ("", seen):
            if self.over:
                return ""
            await self._moved.wait()
        return self.version

    def end(self) -> None:
        self.over = True
        self._moved.set()


class Changes:
    """Streams of versions. `lost` is why the store can't be read ever again by this process."""

    def __init__(self, source: Source) -> None:
        self.versions = Versions(source)
        self.lost: StoreLostError | None = None
        self._topics: dict[tuple[Any, ...], Topic] = {}

    async def follow(self, key: tuple[Any, ...], seen: str) -> AsyncIterator[str | None]:
        """Each version after `seen`; None if there was none for a while."""
        topic = self._topics.get(key)
        if topic is None:
            topic = self._topics[key] = Topic(lambda: self.versions.of(*key), self.failed)
            topic.task = asyncio.create_task(topic.poll())
        topic.listeners += 1
        try:
            while True:
                try:
                    async with asyncio.timeout(STILL_THERE):
                        seen = await topic.after(seen)
                except TimeoutError:
                    yield None
                    continue
                if not seen:
                    return
                yield seen
        finally:
            topic.listeners -= 1
            if topic.listeners == 0 and topic.task is not None:
                topic.task.cancel()
                self._topics.pop(key, None)

    def failed(self, error: Exception) -> None:
        """The store could not be read, here or elsewhere."""
        if isinstance(error, StoreLostError):
            self.lost = error

    def end(self) -> None:
        """Let all streams end, so that a server that stops has nothing to wait for. Browsers come back by themselves."""
        for topic in self._topics.values():
            topic.end()


def as_event(version: str | None) -> str:
    """In the form that browsers read."""
    return ": still there\n\n" if version is None else f"id: {version}\nevent: change\ndata: {{}}\n\n"
