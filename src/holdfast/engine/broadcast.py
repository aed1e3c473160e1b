"""What an engine tells those who watch its store: which events it has committed, so that they read them there, and the
little that no history says. Without watchers, nothing is gathered and nothing is written.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.core.reports import step_id
from holdfast.engine.identity import Identity
from holdfast.errors import StoreError
from holdfast.ports import Attempt, Backlog, Change, Claimed, Notes, RunNote, Status, TelemetryStore
from holdfast.telemetry.instruments import WorkerReport

if TYPE_CHECKING:
    from holdfast.engine.run import LiveRun
    from holdfast.telemetry.dispatcher import EventDispatcher

logger = logging.getLogger("holdfast.telemetry")
INTERVAL = 0.1
"""Seconds between two rows for those who watch."""
LOOK_AGAIN = 2.0
"""Seconds after which it is asked again whether there are watchers."""
MOST = 10_000
"""How much waits to be written while the store doesn't take it; what comes on top is dropped."""
COUNTED = 10_000
WORKER_EVENTS = {"worker_started": "online", "worker_beat": "heartbeat", "worker_stopped": "offline"}


class Broadcast:
    """Gathers on the engine's thread, and writes on one of its own, which there is as long as there are watchers."""

    def __init__(
        self, store: TelemetryStore, me: Identity, exchange: Callable[[], EventDispatcher | None] = lambda: None
    ) -> None:
        self.is_on = False
        self._store = store
        self._me = me
        self._exchange = exchange
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._is_ending = threading.Event()
        self._notes = Notes(worker="")
        self._progress: dict[tuple[str, int], dict[str, Any]] = {}  # the events of these notes that tell of some

    # -- on and off

    def wake(self, hello: Callable[[], None]) -> None:
        """There may be watchers: find out, on a thread. `hello` is called once it is known that there are."""
        with self._lock:
            if self._thread is None and not self._is_ending.is_set():
                self._thread = threading.Thread(
                    target=self._carry, args=(hello,), name="holdfast-telemetry", daemon=True
                )
                self._thread.start()

    def look(self, hello: Callable[[], None]) -> None:
        """With each heartbeat: whether a watcher has come."""
        if not self.is_on and self._is_watched():
            self.wake(hello)

    def _carry(self, hello: Callable[[], None]) -> None:
        try:
            looked = float("-inf")
            while not self._is_ending.wait(INTERVAL if self.is_on else 0):
                if time.monotonic() - looked >= LOOK_AGAIN:
                    looked = time.monotonic()
                    was_on, self.is_on = self.is_on, self._is_watched()
                    if not self.is_on:
                        return
                    if not was_on:
                        hello()
                self.flush()
            self.flush()  # what was told last
        finally:
            self.is_on = False
            with self._lock:
                self._thread = None
                self._notes = Notes(worker="")

    def _is_watched(self) -> bool:
        try:
            return self._store.is_watched()
        except StoreError:
            return self.is_on

    def flush(self) -> None:
        """Write what was gathered. If that fails it is lost: nothing waits for telemetry."""
        with self._lock:
            notes, self._notes = self._notes, Notes(worker="")
            self._progress.clear()
        if notes.size():
            notes.worker = self._me.worker
            if notes.events and (exchange := self._exchange()) is not None:
                for event in notes.events:  # it has bounds and a thread of its own: no broker is waited for
                    exchange.send(**event)
            try:
                self._store.publish(notes)
            except StoreError as error:
                logger.debug("telemetry could not be written: %s", error)

    def close(self) -> None:
        """Write what is left, and end."""
        self._is_ending.set()
        thread = self._thread
        if thread is not None:
            thread.join(1)

    # -- what is told

    def committed(self, changes: Sequence[tuple[LiveRun, Change]], claimed: Sequence[Claimed]) -> None:
        with self._lock:
            if self._notes.size() <= MOST:
                self._note(self._notes, changes, claimed)

    def _note(self, notes: Notes, changes: Sequence[tuple[LiveRun, Change]], claimed: Sequence[Claimed]) -> None:
        forward, now = self._store.logical_clock.forward, self._store.now()
        for live, change in changes:
            no = live.row.no
            if change.records:
                known = notes.recorded.get(no)
                first = change.records[0].seq if known is None else known[0]
                notes.recorded[no] = (first, change.records[-1].seq)
            for new in change.attempts:
                sent = {
                    "type": "step-sent", "id": step_id(live.row.id, new.cmd), "run_id": live.row.id, "name": new.step,
                    "workflow": live.row.workflow, "root_id": live.row.root_id or live.row.id, "queue": new.queue,
                    "attempt": new.number, "origin": self._me.worker, "timestamp": now / 1_000_000, "clock": forward(),
                }  # fmt: skip
                notes.events.append(sent)
            for child in change.children:
                if child.no is not None:
                    notes.recorded[child.no] = (1, 1)
            if live.state.released and change.columns.get("status") == Status.WAITING:
                notes.runs.append(
                    RunNote(no, "waiting", now, forward(), live.row.attempt, change.columns.get("reason", ""))
                )
        for one in claimed:
            no = one.row.no
            if one.row.status == Status.RUNNING:
                if one.is_first:
                    notes.recorded.setdefault(no, (1, 1))
                notes.runs.append(
                    RunNote(no, "started" if one.is_first else "resumed", now, forward(), one.row.attempt)
                )

    def progressed(self, attempt: Attempt, began: int, said: dict[str, Any]) -> None:
        """`began` is when the attempt did."""
        about = self._about(attempt)
        event = self._complete({"type": "step-progress", **about, **said})
        key = (about["id"], attempt.number)
        with self._lock:
            if key in self._progress:  # a step may say so as often as it likes: the last of each row is told
                self._progress[key].update(event)
                return
        self.began(attempt, began)  # nothing else may have told that yet
        with self._lock:
            event["clock"] = self._store.logical_clock.forward()
            self._progress[key] = event
            self._notes.events.append(event)

    def began(self, attempt: Attempt, at: int) -> None:
        self._send({"type": "step-started", **self._about(attempt), "timestamp": at / 1_000_000})

    def received(self, attempts: Sequence[Attempt]) -> None:
        for attempt in attempts:
            self._send({"type": "step-received", **self._about(attempt)})

    def _about(self, attempt: Attempt) -> dict[str, Any]:
        return {
            "id": step_id(attempt.run_id, attempt.cmd), "run_id": attempt.run_id, "name": attempt.step,
            "workflow": attempt.workflow, "parent_id": attempt.run_id, "root_id": attempt.root_id,
            "attempt": attempt.number, "worker": self._me.worker,
        }  # fmt: skip

    def worker(self, what: str, report: WorkerReport) -> None:
        said = msgspec.to_builtins(report)
        del said["id"]
        self._send(
            {
                "type": f"worker-{WORKER_EVENTS[what]}", "hostname": said.pop("host"), "freq": said.pop("beat"), **said,
                "origin": report.id,
            }
        )  # fmt: skip

    def _send(self, event: dict[str, Any]) -> None:
        event = self._complete(event)
        with self._lock:
            if self._notes.size() <= MOST:
                self._notes.events.append(event)

    def _complete(self, event: dict[str, Any]) -> dict[str, Any]:
        event = {"origin": self._me.worker, "timestamp": self._store.now() / 1_000_000, **event}
        event["clock"] = self._store.logical_clock.forward()
        return event

    def backlog(self) -> Backlog:
        """What waits in the store, for reports of this worker."""
        try:
            return self._store.backlog(COUNTED)
        except StoreError:
            return Backlog()
