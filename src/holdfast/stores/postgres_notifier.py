"""Push between processes that share a PostgreSQL database: LISTEN and NOTIFY, outside of all write transactions.

One connection listens per process, one channel serves a schema. What is to be told while something is being told goes
together with the next. Every ring is a hint: a lost one costs the second until the sweep looks anyway.
"""

from __future__ import annotations

import contextlib
import json
import logging
import secrets
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import psycopg

from holdfast.errors import StoreError
from holdfast.ports import Notifier, Topic, Watch
from holdfast.stores.postgres import PostgresStore
from holdfast.stores.postgres_sql import channel_of, notify, ring_of

logger = logging.getLogger("holdfast")
PAYLOAD = 7_000  # the server's own limit is 8,000 bytes
LISTENING_WITHIN = 5.0


class PostgresNotifier(Notifier):
    """Rings between the processes of one schema."""

    def __init__(self, store: PostgresStore) -> None:
        self._store = store
        self._channel = channel_of(store.schema)
        self._name = secrets.token_hex(4)
        self._lock = threading.Lock()
        self._sending = threading.Lock()
        self._rings: set[tuple[str, Topic]] = set()
        self._runs: dict[str, None] = {}
        self._on_ring: Callable[[Topic], None] | None = None
        self._watches: dict[str, set[_Watch]] = {}
        self._is_listening = threading.Event()
        self._is_closed = threading.Event()
        self._is_wanted = threading.Event()
        self._listener: threading.Thread | None = None
        self._sender: threading.Thread | None = None

    # -- telling

    def ring(self, topic: Topic, everyone: bool = False) -> None:
        if self._on_ring is not None:
            self._on_ring(topic)
        with self._lock:
            self._rings.add(("*" if everyone else self._store.app, topic))
        self._tell()

    def announce(self, run_ids: Iterable[str]) -> None:
        told = list(run_ids)
        self._wake(told)
        with self._lock:
            self._runs |= dict.fromkeys(told)
        self._tell()

    def _tell(self) -> None:
        """An engine has a thread for it, whoever only starts something tells it itself: it may end right after."""
        if self._sender is not None:
            self._is_wanted.set()
        elif self._sending.acquire(blocking=False):
            try:
                self._send()
            finally:
                self._sending.release()

    def _send(self) -> None:
        while True:
            with self._lock:
                rings, runs = self._rings, self._runs
                self._rings, self._runs = set(), {}
            if not rings and not runs:
                return
            payloads = [ring_of(self._name, app, topic) for app, topic in sorted(rings)]
            payloads += [json.dumps([self._name, "runs", self._store.app, *ids]) for ids in _portions(list(runs))]
            with contextlib.suppress(StoreError), self._store.read() as db:
                db.execute(*notify(self._store.schema, payloads))

    def _keep_sending(self) -> None:
        while not self._is_closed.is_set():
            self._is_wanted.wait()
            self._is_wanted.clear()
            self._send()

    # -- hearing

    def listen(self, on_ring: Callable[[Topic], None]) -> str:
        self._on_ring = on_ring
        self._sender = threading.Thread(target=self._keep_sending, name="holdfast-tell", daemon=True)
        self._sender.start()
        self._start_listening()
        return self._channel

    def watch(self, run_id: str) -> Watch:
        self._start_listening()
        return _Watch(self, self._watches, self._lock, run_id)

    def _start_listening(self) -> None:
        with self._lock:
            if not self._store.hears:
                self._is_listening.set()  # whoever waits looks once a second
            elif self._listener is None:
                self._listener = threading.Thread(target=self._keep_listening, name="holdfast-listen", daemon=True)
                self._listener.start()
        self._is_listening.wait(LISTENING_WITHIN)

    def _keep_listening(self) -> None:
        while not self._is_closed.is_set():
            try:
                with contextlib.closing(self._store.connect()) as connection:
                    connection.execute(f'LISTEN "{self._channel}"')
                    if self._is_listening.is_set() and self._on_ring is not None:
                        self._on_ring(Topic.EVERYTHING)  # something may have been told while this was not listening
                    self._is_listening.set()
                    self._hear(connection)
            except (StoreError, psycopg.Error) as error:
                if not self._is_closed.is_set():
                    logger.warning("nothing is heard from %s for now, the sweep finds it: %s", self._store.url, error)
                    self._is_closed.wait(1.0)

    def _hear(self, connection: psycopg.Connection[Any]) -> None:
        while not self._is_closed.is_set():
            for note in connection.notifies(timeout=0.5, stop_after=1):
                self._heard(note.payload)

    def _heard(self, payload: str) -> None:
        match json.loads(payload):
            case [self._name, *_]:
                return  # was told here directly
            case [str(), "ring", app, topic] if app in ("*", self._store.app) and self._on_ring is not None:
                self._on_ring(Topic(topic) if topic in set(Topic) else Topic.EVERYTHING)
            case [str(), "runs", self._store.app, *run_ids]:
                self._wake(run_ids)

    def _wake(self, run_ids: Iterable[Any]) -> None:
        with self._lock:
            for run_id in run_ids:
                for watch in self._watches.get(run_id, ()):
                    watch.rung.set()

    def close(self) -> None:
        self._is_closed.set()
        self._is_wanted.set()
        for thread in (self._sender, self._listener):
            if thread is not None and thread is not threading.current_thread():
                thread.join(2)
        self._send()


class _Watch(Watch):
    def __init__(
        self, notifier: PostgresNotifier, watches: dict[str, set[_Watch]], lock: threading.Lock, run_id: str
    ) -> None:
        self._watches, self._lock, self._run_id = watches, lock, run_id
        self.rung = threading.Event()
        with lock:
            watches.setdefault(run_id, set()).add(self)

    def wait(self, timeout: float) -> bool:
        rung = self.rung.wait(timeout)
        self.rung.clear()
        return rung

    def close(self) -> None:
        with self._lock:
            left = self._watches.get(self._run_id, set())
            left.discard(self)
            if not left:
                self._watches.pop(self._run_id, None)


def _portions(run_ids: Sequence[str]) -> Iterator[list[str]]:
    """Ids that fit into one notification together."""
    portion: list[str] = []
    size = 0
    for run_id in run_ids:
        length = len(json.dumps(run_id)) + 2
        if portion and size + length > PAYLOAD:
            yield portion
            portion, size = [], 0
        portion.append(run_id)
        size += length
    if portion:
        yield portion
