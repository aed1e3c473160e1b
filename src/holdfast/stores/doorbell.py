"""Push between processes that share a SQLite file: Unix datagram sockets beside it.

An engine listens at `<file>-bell-<number>`; others find it in the workers' table. Whoever waits for a run has a
bell of its own and tells it to all engines, which ring it when the run changes. Every ring is a hint: a lost one
costs the second until the sweep looks anyway.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator

from holdfast.errors import StoreError
from holdfast.ports import Notifier, Store, Watch

_PATH_LIMIT = 100  # the system's own limit for socket paths is 104 to 108 bytes
_WATCH_SECONDS = 5.0
_RECENT = 512


class Doorbell(Notifier):
    """Rings between the processes of one file."""

    def __init__(self, store: Store, path: str) -> None:
        self._store = store
        self._path = path
        self._folder = os.path.dirname(path)
        self._out = _socket()
        self._in: socket.socket | None = None
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self._watchers: dict[str, dict[str, float]] = {}
        self._recent: OrderedDict[str, None] = OrderedDict()

    # -- an engine's side

    def listen(self, on_ring: Callable[[], None]) -> str:
        self._in = _socket()
        name = f"{os.path.basename(self._path)}-bell-{secrets.token_hex(4)}"
        with _reachable(self._folder, name) as address:
            self._in.bind(address)
        self._name = name
        self._thread = threading.Thread(
            target=self._receive, args=(self._in, on_ring), name="holdfast-bell", daemon=True
        )
        self._thread.start()
        return name

    def _receive(self, bell: socket.socket, on_ring: Callable[[], None]) -> None:
        while True:
            try:
                data = bell.recv(2048)
            except OSError:
                return
            if data == b"stop":
                return
            if data.startswith(b"watch "):
                _, run_id, name = data.decode().split(" ", 2)
                self._add_watcher(run_id, name)
            else:
                on_ring()

    def _add_watcher(self, run_id: str, name: str) -> None:
        with self._lock:
            if run_id not in self._recent:
                self._watchers.setdefault(run_id, {})[name] = time.monotonic() + _WATCH_SECONDS
                return
        self._send(name, b"ring")

    def announce(self, run_ids: Iterable[str]) -> None:
        names: set[str] = set()
        with self._lock:
            for run_id in run_ids:
                names.update(self._watchers.pop(run_id, ()))
                self._recent[run_id] = None
                self._recent.move_to_end(run_id)
            while len(self._recent) > _RECENT:
                self._recent.popitem(last=False)
            if len(self._watchers) > 10_000:
                now = time.monotonic()
                self._watchers = {
                    run: left
                    for run, names_of in self._watchers.items()
                    if (left := {n: t for n, t in names_of.items() if t > now})
                }
        for name in names:
            self._send(name, b"ring")

    # -- anybody's side

    def ring(self) -> None:
        self.tell_engines(b"ring")

    def tell_engines(self, data: bytes) -> None:
        try:
            names = [worker.address for worker in self._store.workers()]
        except StoreError:  # the sweep will find what this ring would have told
            return
        for name in names:
            if name:
                self._send(name, data)

    def _send(self, name: str, data: bytes) -> None:
        with contextlib.suppress(OSError), _reachable(self._folder, name) as address:
            self._out.sendto(data, socket.MSG_DONTWAIT, address)

    def watch(self, run_id: str) -> Watch:
        return _SocketWatch(self, self._path, run_id)

    def close(self) -> None:
        if self._in is not None:
            self._send(self._name, b"stop")
            if self._thread is not None:
                self._thread.join(1)
            self._in.close()
            self._in = None
            with contextlib.suppress(OSError):
                os.unlink(os.path.join(self._folder, self._name))
        self._out.close()


class _SocketWatch(Watch):
    def __init__(self, bell: Doorbell, path: str, run_id: str) -> None:
        self._bell = bell
        self._folder = os.path.dirname(path)
        self._name = f"{os.path.basename(path)}-bell-{secrets.token_hex(4)}"
        self._message = f"watch {run_id} {self._name}".encode()
        self._in = _socket()
        with _reachable(self._folder, self._name) as address:
            self._in.bind(address)
        self._bell.tell_engines(self._message)

    def wait(self, timeout: float) -> bool:
        self._in.settimeout(max(timeout, 0.001))
        try:
            self._in.recv(64)
        except TimeoutError:
            self._bell.tell_engines(self._message)  # there may be other engines by now
            return False
        except OSError:
            return False
        return True

    def close(self) -> None:
        self._in.close()
        with contextlib.suppress(OSError):
            os.unlink(os.path.join(self._folder, self._name))


class Intercom(Notifier):
    """The same within one process, for a store in memory."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._listeners: list[Callable[[], None]] = []
        self._announced = 0
        self._runs: dict[str, int] = {}

    def listen(self, on_ring: Callable[[], None]) -> str:
        self._listeners.append(on_ring)
        return ""

    def ring(self) -> None:
        for on_ring in self._listeners:
            on_ring()

    def announce(self, run_ids: Iterable[str]) -> None:
        with self._changed:
            self._announced += 1
            for run_id in run_ids:
                self._runs[run_id] = self._announced
            self._changed.notify_all()

    def watch(self, run_id: str) -> Watch:
        return _IntercomWatch(self, run_id)

    def close(self) -> None:
        self._listeners.clear()


class _IntercomWatch(Watch):
    def __init__(self, intercom: Intercom, run_id: str) -> None:
        self._intercom = intercom
        self._run_id = run_id
        self._seen = intercom._runs.get(run_id, 0)

    def wait(self, timeout: float) -> bool:
        intercom = self._intercom
        with intercom._changed:
            changed = intercom._changed.wait_for(lambda: intercom._runs.get(self._run_id, 0) > self._seen, timeout)
            self._seen = intercom._runs.get(self._run_id, 0)
        return changed

    def close(self) -> None:
        return None


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
