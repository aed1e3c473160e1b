"""Push between processes that share a SQLite file: Unix datagram sockets beside it.

An engine listens at `<file>-bell-<number>`; others find it in the workers' table. Whoever waits for runs has a
bell of its own and tells it to all engines, which ring it when one of them changes. Every ring is a hint: a lost one
costs the second until the sweep looks anyway, and so does a file system that has no sockets.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import socket
import sys
import threading
import time
import weakref
from collections import OrderedDict
from collections.abc import Collection, Iterable, Iterator, Sequence

from holdfast.errors import StoreError
from holdfast.ports import FOR_ALL, FOR_EXECUTORS, Notifier, OnRing, OnTold, Store, Topic, Watch, Watches, WorkerKind
from holdfast.stores.forks import gate

logger = logging.getLogger("holdfast")

_PATH_LIMIT = 100  # the system's own limit for socket paths is 104 to 108 bytes
_NAME_LIMIT = 48  # of the database's own name in that of a bell
_WATCH_SECONDS = 5.0
_RECENT = 512
_AT_ONCE = 2048  # bytes of a message
_WATCHERS = 10_000
"""With more of them than that those who have not said for long that they wait are forgotten."""
_RENEWED = 1.0  # seconds after which those who wait say so again: there may be other engines by then
_CLEAR_EVERY = 60.0
_PROBES = 200
"""How many bells of others are tried at a time, in case their processes have died."""
_SPARE = 2
"""How many bells are kept for those who wait next. More would be left behind by processes that are killed."""
_KNOWN_FOR = 0.05
"""Seconds for which the engines that were rung are told more without being looked up: whoever starts a run mostly waits for
it at once."""


_TOLD, _NOBODY, _NO_ROOM = "told", "nobody is there", "no room"
"""What comes of sending something."""
_TOPICS = {topic.encode(): topic for topic in Topic}


class Bell:
    """A socket beside the file. In a process that was forked from the one that has hung it, it is the parent's."""

    __slots__ = ("_path", "_pid", "name", "socket")

    def __init__(self, folder: str, name: str) -> None:
        self.name = name
        self._path = os.path.join(folder, name)
        self._pid = os.getpid()
        self.socket = _socket()
        try:
            with _reachable(folder, name) as address:
                self.socket.bind(address)
        except BaseException:
            self.socket.close()
            raise

    def is_ours(self) -> bool:
        return self._pid == os.getpid()

    def can_be_rung(self) -> bool:
        """Whether nobody has removed its file."""
        return os.path.exists(self._path)

    def drain(self) -> None:
        """Forget what it was rung for."""
        self.socket.settimeout(0)
        with contextlib.suppress(BlockingIOError):
            while self.socket.recv(64):
                pass

    def take_down(self) -> None:
        self.socket.close()
        if self.is_ours():
            with contextlib.suppress(OSError):
                os.unlink(self._path)


class Doorbell(Notifier):
    """Rings between the processes of one file."""

    can_watch_many = True

    def __init__(self, store: Store, path: str) -> None:
        self._store = store
        self._folder, name = os.path.split(path)
        self._prefix = f"{os.fsdecode(os.fsencode(name)[:_NAME_LIMIT])}-bell-"
        self._out: socket.socket | None = None
        self._is_closed = False
        self._next_clearing = 0.0
        self._in: Bell | None = None
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self._watchers: dict[str, dict[str, float]] = {}
        self._next_forgetting = 0.0
        self._recent: OrderedDict[str, int] = OrderedDict()
        self._spare: list[Bell] = []
        self._lent: list[Bell] = []
        self._known: tuple[float, list[str]] = (0.0, [])
        weakref.finalize(self, _take_down_all, self._spare)
        weakref.finalize(self, _take_down_all, self._lent)  # to threads that end with the process
        gate.attend(self)

    # -- forks

    def before_fork(self, busy: set[str]) -> None:
        pass

    def after_fork(self) -> list[str]:
        """The bell is the parent's, and so is the thread that listens to it."""
        for inherited in (self._out, None if self._in is None else self._in.socket):
            if inherited is not None:
                inherited.close()
        _take_down_all(self._spare)
        self._lent.clear()
        self._out = self._in = self._thread = None
        self._lock = threading.Lock()
        self._watchers.clear()
        return []

    # -- an engine's side

    def listen(self, topics: Collection[Topic], on_ring: OnRing, on_told: OnTold) -> str:
        self.clear_stale()
        try:
            self._in = self.hang()
        except OSError as error:
            logger.warning("no bell can be hung in %s (%s): starts are found by the sweep", self._folder, error)
            return ""
        self._thread = threading.Thread(
            target=self._receive, args=(self._in.socket, topics, on_ring, on_told), name="holdfast-bell", daemon=True
        )
        self._thread.start()
        return self._in.name

    def hang(self) -> Bell:
        """A bell of one's own."""
        return Bell(self._folder, self._prefix + secrets.token_hex(4))

    def borrow(self) -> Bell:
        """A bell for somebody who waits."""
        bell = self._take_spare() or self.hang()
        self._lent.append(bell)
        return bell

    def _take_spare(self) -> Bell | None:
        with contextlib.suppress(IndexError):
            while True:
                bell = self._spare.pop()
                if bell.can_be_rung():
                    bell.drain()
                    return bell
                bell.take_down()
        return None

    def give_back(self, bell: Bell) -> None:
        """Keep it for the next who waits, unless it could be left behind: children of multiprocessing end all of a sudden."""
        with contextlib.suppress(ValueError):
            self._lent.remove(bell)
        if len(self._spare) >= _SPARE or not bell.is_ours() or _is_child_of_multiprocessing():
            bell.take_down()
            return
        self._spare.append(bell)
        if self._is_closed:  # before that, or right now
            _take_down_all(self._spare)

    def clear_stale(self) -> None:
        """Remove the bells of processes that died: by whoever comes next, now and then, and some at a time."""
        now = time.monotonic()
        if now < self._next_clearing:
            return
        self._next_clearing = now + _CLEAR_EVERY
        with contextlib.suppress(OSError):
            bells = [name for name in os.listdir(self._folder) if name.startswith(self._prefix)]
            for name in secrets.SystemRandom().sample(bells, min(len(bells), _PROBES)):
                if not self._is_answered(name):
                    os.unlink(os.path.join(self._folder, name))

    def _is_answered(self, name: str) -> bool:
        with _socket() as probe, _reachable(self._folder, name) as address:
            try:
                probe.connect(address)
            except ConnectionRefusedError:
                return False
            except OSError:
                return True
        return True

    def _receive(self, bell: socket.socket, topics: Collection[Topic], on_ring: OnRing, on_told: OnTold) -> None:
        while True:
            try:
                data = bell.recv(_AT_ONCE)
            except OSError:
                return
            if data == b"stop":
                return
            match data.split(b"\0"):
                case [b"watch", name, since, *run_ids] if since.isdigit():
                    runs = [run_id.decode(errors="replace") for run_id in run_ids]
                    self._add_watcher(os.fsdecode(name), int(since), runs)
                case [b"ring", topic] if topic in _TOPICS:
                    if _TOPICS[topic] in topics:
                        on_ring(_TOPICS[topic])
                case [b"told", owner, *runs] if all(map(bytes.isdigit, runs)):
                    on_told(owner.decode(errors="replace"), [int(no) for no in runs])
                case _:
                    on_ring(Topic.EVERYTHING)

    def _add_watcher(self, name: str, since: int, run_ids: Iterable[str]) -> None:
        until = time.monotonic() + _WATCH_SECONDS
        with self._lock:
            for run_id in run_ids:
                self._watchers.setdefault(run_id, {})[name] = until
            changed = [run_id for run_id in run_ids if self._recent.get(run_id, 0) >= since]  # while this was under way
        self._ring_watcher(name, changed)

    def announce(self, run_ids: Iterable[str]) -> None:
        rung: dict[str, list[str]] = {}
        with self._lock:
            for run_id in run_ids:
                for name in self._watchers.pop(run_id, ()):
                    rung.setdefault(name, []).append(run_id)
                self._recent[run_id] = time.monotonic_ns()
                self._recent.move_to_end(run_id)
            while len(self._recent) > _RECENT:
                self._recent.popitem(last=False)
            if len(self._watchers) > _WATCHERS:
                self._forget_watchers(time.monotonic())
        for name, changed in rung.items():
            self._ring_watcher(name, changed)

    def _forget_watchers(self, now: float) -> None:
        if now >= self._next_forgetting:
            self._next_forgetting = now + _WATCH_SECONDS
            self._watchers = {
                run_id: left
                for run_id, names in self._watchers.items()
                if (left := {name: until for name, until in names.items() if until > now})
            }

    def _ring_watcher(self, name: str, run_ids: Iterable[str]) -> None:
        for message, _ in _messages(b"ring", run_ids):
            self._send(name, message)

    # -- anybody's side

    def ring(self, topic: Topic, everyone: bool = False) -> None:
        kind = WorkerKind.EXECUTOR if topic in FOR_EXECUTORS else WorkerKind.ENGINE
        self._tell_workers(b"ring\0" + topic.encode(), everyone, "" if topic in FOR_ALL else kind)

    def tell(self, owner: str, runs: Sequence[int]) -> None:
        for message, _ in _messages(b"told\0" + owner.encode(), map(str, runs)):
            self.tell_engines(message)

    def tell_engines(self, data: bytes) -> bool:
        """Whether there is an engine to tell."""
        return self._tell_workers(data, False, WorkerKind.ENGINE)

    def _tell_workers(self, data: bytes, everyone: bool, kind: str) -> bool:
        """Whether there was somebody to tell, and nobody had no room for it."""
        is_usual, now = kind == WorkerKind.ENGINE and not everyone, time.monotonic()
        until, names = self._known
        if is_usual and now < until and {self._send(name, data) for name in names} == {_TOLD}:
            return True
        try:
            names = self._store.addresses(everyone, kind)
        except StoreError:  # the sweep will find what this ring would have told
            return False
        if is_usual:
            self._known = (now + _KNOWN_FOR if names else 0.0, names)
        told = [self._send(name, data) for name in names]
        return bool(told) and _NO_ROOM not in told

    def _send(self, name: str, data: bytes) -> str:
        try:
            with _reachable(self._folder, name) as address:
                with self._lock:
                    if self._out is None:
                        if self._is_closed:
                            return _NOBODY
                        self._out = _socket()
                    out = self._out
                out.sendto(data, socket.MSG_DONTWAIT, address)
        except BlockingIOError:
            return _NO_ROOM
        except OSError:
            return _NOBODY
        return _TOLD

    def watch(self, run_id: str) -> Watch:
        watch = self.watch_many()
        watch.add([run_id])
        return watch

    def watch_many(self) -> Watches:
        return _SocketWatch(self)

    def wake(self, bell: Bell) -> None:
        self._send(bell.name, b"wake")

    def close(self) -> None:
        if self._in is not None:
            self._send(self._in.name, b"stop")
            if self._thread is not None:
                self._thread.join(1)
            self._in.take_down()
            self._in = None
        with self._lock:
            self._is_closed = True
            out, self._out = self._out, None
        if out is not None:
            out.close()
        _take_down_all(self._spare)


class _SocketWatch(Watches):
    """Who waits for runs, with a bell. Without one, it looks more often."""

    def __init__(self, doorbell: Doorbell) -> None:
        self._doorbell = doorbell
        self._runs: set[str] = set()
        self._untold: dict[str, int] = {}  # runs that engines are still to be told of, and since when a change counts
        self._renew_at = time.monotonic() + _RENEWED
        self._bell: Bell | None = None
        doorbell.clear_stale()
        self._take_bell()

    def _take_bell(self) -> None:
        with contextlib.suppress(OSError):
            self._bell = self._doorbell.borrow()

    def add(self, run_ids: Collection[str]) -> None:
        self._runs.update(run_ids)
        self._ask_for(run_ids)
        self._tell()

    def drop(self, run_id: str) -> None:
        self._runs.discard(run_id)
        self._untold.pop(run_id, None)

    def wake(self) -> None:
        if (bell := self._bell) is not None:
            self._doorbell.wake(bell)

    def _ask_for(self, run_ids: Iterable[str]) -> None:
        """Rings for what is announced from now on: the clock is one for all processes."""
        now = time.monotonic_ns()
        for run_id in run_ids:
            self._untold.setdefault(run_id, now)

    def _tell(self) -> None:
        """Ask the engines to ring. What they have not heard they are told again."""
        if self._bell is None or not self._untold:
            return
        since = min(self._untold.values())
        head = b"\0".join((b"watch", os.fsencode(self._bell.name), str(since).encode()))
        for message, run_ids in _messages(head, list(self._untold)):
            if not self._doorbell.tell_engines(message):
                return
            for run_id in run_ids:
                del self._untold[run_id]

    def wait(self, timeout: float) -> Collection[str]:
        if time.monotonic() >= self._renew_at:
            self._renew()
        self._tell()
        # While there is no engine yet, or it has not heard of this, nobody will ring.
        timeout = max(min(timeout, 0.05) if self._untold or self._bell is None else timeout, 0.001)
        if self._bell is None:
            time.sleep(timeout)
            return ()
        try:
            rung = self._receive(self._bell.socket, timeout)
        except OSError:
            return ()
        # A ring has ended the watch. Most who are rung need no other, so it is asked for only if they wait again.
        self._ask_for(rung)
        return rung

    def _renew(self) -> None:
        """Tell everybody again, with another bell if this one can't be rung any more."""
        self._renew_at = time.monotonic() + _RENEWED
        self._ask_for(self._runs)
        bell = self._bell
        if bell is not None and not bell.can_be_rung():
            self._bell = None
            self._doorbell.give_back(bell)
        if self._bell is None:
            self._take_bell()

    def _receive(self, bell: socket.socket, timeout: float) -> set[str]:
        bell.settimeout(timeout)
        received = [bell.recv(_AT_ONCE)]
        if len(self._runs) > 1:  # there may be more
            bell.settimeout(0)
            with contextlib.suppress(BlockingIOError):
                while True:
                    received.append(bell.recv(_AT_ONCE))
        named = {id.decode(errors="replace") for each in received for id in each.split(b"\0")[1:]}
        return named & self._runs

    def close(self) -> None:
        if self._bell is not None:
            self._doorbell.give_back(self._bell)


def _messages(head: bytes, words: Iterable[str]) -> Iterator[tuple[bytes, list[str]]]:
    """As few messages as hold all these words, each with its own."""
    told: list[str] = []
    parts, size = [head], len(head)
    for word in words:
        part = word.encode(errors="replace")
        if told and size + 1 + len(part) > _AT_ONCE:
            yield b"\0".join(parts), told
            told, parts, size = [], [head], len(head)
        told.append(word)
        parts.append(part)
        size += 1 + len(part)
    if told:
        yield b"\0".join(parts), told


def _take_down_all(bells: list[Bell]) -> None:
    while bells:
        with contextlib.suppress(IndexError):  # another thread was faster
            bells.pop().take_down()


def _is_child_of_multiprocessing() -> bool:
    found = sys.modules.get("multiprocessing")
    return found is not None and found.parent_process() is not None


def _socket() -> socket.socket:
    return socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | getattr(socket, "SOCK_CLOEXEC", 0))


@contextlib.contextmanager
def _reachable(folder: str, name: str) -> Iterator[str]:
    """A path short enough for the socket interface, also where the folder's own path is not."""
    path = os.path.join(folder, name)
    if len(os.fsencode(path)) <= _PATH_LIMIT:
        yield path
        return
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{fd}/{name}"
    finally:
        os.close(fd)
