"""Push between processes that share a PostgreSQL database: LISTEN and NOTIFY, outside of all write transactions.

One connection listens per process, one channel serves a schema. Whoever tells often has a connection for that, and doesn't
wait for the server's answer. Every ring is a hint: a lost one costs the second until the sweep looks anyway.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import secrets
import select
import threading
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any

import psycopg
from psycopg import generators

from holdfast.errors import StoreError
from holdfast.ports import Notifier, OnRing, OnTold, Topic, Watch, Watches
from holdfast.stores.postgres import PostgresDatabase
from holdfast.stores.postgres_sql import ENGINES, EXECUTORS, PROGRAMS, Note, channel_of, notify, rings_of

logger = logging.getLogger("holdfast")
PAYLOAD = 7_000  # the server's own limit is 8,000 bytes
LISTENING_WITHIN = 5.0
LOOK = 500
"""Milliseconds until whoever hears nothing asks whether it is over."""
OFTEN = 5
"""Whoever tells more often gets a connection for it."""

_TOPICS = {str(topic): topic for topic in Topic}
_of_the_parent: list[Line] = []


class PostgresNotifier(Notifier):
    """Rings between the processes of one schema."""

    can_watch_many = True

    def __init__(self, database: PostgresDatabase) -> None:
        self._database = database
        self._sending = threading.Lock()
        self._line: Line | None = None
        self._times = 0
        self._is_closed = threading.Event()
        self._reset()

    def _reset(self) -> None:
        """Nobody listens here."""
        self._pid = os.getpid()
        self._name = secrets.token_hex(4)
        self._wanted: set[str] = set()  # to which of those who are told something this one belongs
        self._lock = threading.Lock()
        self._on_ring: OnRing | None = None
        self._on_told: OnTold | None = None
        self._watches: dict[str, set[_Watch]] = {}
        self._is_listening = threading.Event()
        self._has_listened = False
        self._listener: threading.Thread | None = None

    # -- telling

    def ring(self, topic: Topic, everyone: bool = False) -> None:
        if self._on_ring is not None:
            self._on_ring(topic)
        self._send(rings_of(self._name, "*" if everyone else self._database.app, topic))

    def tell(self, owner: str, runs: Sequence[int]) -> None:
        if self._on_told is not None:
            self._on_told(owner, runs)
        self._send(self._notes(ENGINES, "told", runs, owner))

    def announce(self, run_ids: Iterable[str]) -> None:
        told = list(run_ids)
        self._wake(told)
        self._send(self._notes(PROGRAMS, "runs", told))

    def _notes(self, whom: str, what: str, runs: Sequence[str | int], *before: str) -> list[Note]:
        return [(whom, json.dumps([self._name, what, self._database.app, *before, *some])) for some in _portions(runs)]

    def _send(self, notes: Sequence[Note]) -> None:
        if not notes:
            return
        with self._sending:
            self._times += 1
            if self._listener is not None or self._times > OFTEN:
                with contextlib.suppress(StoreError, psycopg.Error):
                    self._open_line().send(notes)
                    return
                self._line = None
        with contextlib.suppress(StoreError), self._database.read() as db:
            db.execute(*notify(self._database.schema, notes))

    def _open_line(self) -> Line:
        line = self._line
        if line is not None and line.pid != os.getpid():
            _of_the_parent.append(line)  # closing it would hurt the parent
            line = None
        if line is None:
            line = Line(self._database.connect(), self._database.schema)
        self._line = line
        return line

    # -- hearing

    def listen(self, topics: Collection[Topic], on_ring: OnRing, on_told: OnTold) -> str:
        self._leave_parent()
        self._on_ring, self._on_told = on_ring, on_told
        self._start_listening(EXECUTORS if Topic.ATTEMPTS in topics else ENGINES)
        return channel_of(self._database.schema, ENGINES)

    def watch(self, run_id: str) -> Watch:
        watch = self.watch_many()
        watch.add([run_id])
        return watch

    def watch_many(self) -> Watches:
        self._leave_parent()
        self._start_listening(PROGRAMS)
        return _Watch(self._watches, self._lock)

    def _leave_parent(self) -> None:
        if self._pid != os.getpid():  # the thread that listens is the parent's
            self._reset()

    def _start_listening(self, whom: str) -> None:
        with self._lock:
            if whom not in self._wanted:
                self._wanted.add(whom)
                self._is_listening.clear()
            if self._database.shares_sessions:
                self._is_listening.set()  # whoever waits looks once a second
            elif self._listener is None:
                listener = threading.Thread(target=self._keep_listening, name="holdfast-listen", daemon=True)
                listener.start()
                self._listener = listener  # begun: whoever closes this meanwhile waits for its end
        self._is_listening.wait(LISTENING_WITHIN)

    def _keep_listening(self) -> None:
        while not self._is_closed.is_set():
            try:
                with contextlib.closing(self._database.connect()) as connection:
                    self._hear(connection)
            except (StoreError, psycopg.Error) as error:
                if not self._is_closed.is_set():
                    logger.warning(
                        "nothing is heard from %s for now, the sweep finds it: %s", self._database.url, error
                    )
                    self._is_closed.wait(1.0)

    def _hear(self, connection: psycopg.Connection[Any]) -> None:
        server = connection.pgconn
        poll = select.poll()
        poll.register(server.socket, select.POLLIN)
        heard: set[str] = set()
        while not self._is_closed.is_set():
            if not self._wanted <= heard:
                self._listen_to(connection, heard)
            if poll.poll(LOOK):
                server.consume_input()
            notes = []
            while (note := server.notifies()) is not None:
                notes.append(note.extra)
            if notes:
                self._heard(notes)

    def _listen_to(self, connection: psycopg.Connection[Any], heard: set[str]) -> None:
        for whom in self._wanted - heard:
            connection.execute(f'LISTEN "{channel_of(self._database.schema, whom)}"')
            heard.add(whom)
        if self._has_listened and self._on_ring is not None:
            self._on_ring(Topic.EVERYTHING)  # something may have been told while this was not listening
        self._has_listened = True
        with self._lock:
            if self._wanted <= heard:
                self._is_listening.set()

    def _heard(self, notes: Iterable[bytes]) -> None:
        topics: dict[Topic, None] = {}
        told: dict[str, set[int]] = {}
        for note in notes:
            match _read(note):
                case [self._name, *_]:
                    pass  # was told here directly
                case [str(), "ring", app, str(topic)] if app in ("*", self._database.app):
                    topics[_TOPICS.get(topic, Topic.EVERYTHING)] = None
                case [str(), "told", self._database.app, str(owner), *runs]:
                    told.setdefault(owner, set()).update(run for run in runs if type(run) is int and 0 < run < 2**63)
                case [str(), "runs", self._database.app, *run_ids]:
                    self._wake(run_id for run_id in run_ids if isinstance(run_id, str))
        if self._on_told is not None:
            for owner, numbers in told.items():
                self._on_told(owner, sorted(numbers))
        if self._on_ring is not None:
            for topic in topics:
                self._on_ring(topic)

    def _wake(self, run_ids: Iterable[Any]) -> None:
        with self._lock:
            for run_id in run_ids:
                for watch in self._watches.get(run_id, ()):
                    watch.ring(run_id)

    def close(self) -> None:
        self._is_closed.set()
        listener = self._listener
        if listener is not None and listener is not threading.current_thread():
            listener.join(2)
        with self._sending:
            line, self._line = self._line, None
        if line is not None and line.pid == os.getpid():
            line.close()


class Line:
    """A connection to tell something without waiting for the answer: that is taken when there is more to tell."""

    def __init__(self, connection: psycopg.Connection[Any], schema: str) -> None:
        self.pid = os.getpid()
        self._connection = connection
        self._schema = schema
        self._is_waiting = False

    def send(self, notes: Sequence[Note]) -> None:
        for whom, told in notes:
            self._finish()
            channel = channel_of(self._schema, whom)
            self._connection.pgconn.send_query_params(b"SELECT pg_notify($1, $2)", [channel.encode(), told.encode()])
            self._is_waiting = True
            self._connection.pgconn.flush()

    def _finish(self) -> None:
        """See that what was told last is on its way. That it came there is nobody's concern, that there is nobody to tell
        it to is."""
        if self._is_waiting:
            self._is_waiting = False
            self._connection.wait(generators.execute(self._connection.pgconn))

    def close(self) -> None:
        with contextlib.suppress(psycopg.Error):
            self._finish()
        self._connection.close()


class _Watch(Watches):
    """Who waits for runs. `lock` guards all that is waited for in this process, and what was rung."""

    def __init__(self, watches: dict[str, set[_Watch]], lock: threading.Lock) -> None:
        self._watches, self._lock = watches, lock
        self._runs: set[str] = set()
        self._rung: set[str] = set()
        self._is_rung = threading.Event()

    def add(self, run_ids: Collection[str]) -> None:
        with self._lock:
            self._runs.update(run_ids)
            for run_id in run_ids:
                self._watches.setdefault(run_id, set()).add(self)

    def drop(self, run_id: str) -> None:
        with self._lock:
            self._runs.discard(run_id)
            self._rung.discard(run_id)
            left = self._watches.get(run_id, set())
            left.discard(self)
            if not left:
                self._watches.pop(run_id, None)

    def ring(self, run_id: str) -> None:
        """Called with the lock."""
        self._rung.add(run_id)
        self._is_rung.set()

    def wake(self) -> None:
        self._is_rung.set()

    def wait(self, timeout: float) -> Collection[str]:
        self._is_rung.wait(timeout)
        with self._lock:
            self._is_rung.clear()
            rung, self._rung = self._rung, set()
        return rung

    def close(self) -> None:
        for run_id in list(self._runs):
            self.drop(run_id)


def _read(note: bytes) -> Any:
    """What a note says; None if it isn't one of ours. Whoever may connect may send notes."""
    try:
        return json.loads(note)
    except (ValueError, RecursionError):
        logger.debug("a note that is not JSON was not heard: %r", note[:100])
        return None


def _portions(run_ids: Sequence[str | int]) -> Iterator[list[str | int]]:
    """Ids that fit into one notification together."""
    portion: list[str | int] = []
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
