"""What a fork does to a store: nothing, as nothing of a store is open while its process forks.

SQLite keeps what it knows of its locks in memory. A forked child inherits that knowledge but not the locks, so what it
did with the same file would be protected by nothing. Therefore a fork waits until no thread uses a file, everything is
closed, and parent and child open it again when they need it. A file that a thread doesn't let go of in time stays open
in the parent and is refused in the child.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
import weakref
from collections.abc import Iterable, Iterator
from typing import Protocol

from holdfast.errors import StoreUnavailableError

THREADS_LEAVE_WITHIN = 5.0
"""How long a fork waits for threads that use a file, in seconds."""


class Attendant(Protocol):
    """Something that has files open."""

    def before_fork(self, busy: set[str]) -> None:
        """Close what is open of all files that aren't `busy`. No other thread uses those until the fork is over."""

    def after_fork(self) -> Iterable[str]:
        """In the child: let go of what belongs to the parent, without harm to it. The files that were still open."""


class ForkGate:
    """Knows which threads use which files, keeps them out while the process forks, and knows what is refused since."""

    def __init__(self) -> None:
        self._attendants: set[weakref.ref[Attendant]] = set()
        self._refused: dict[str, str] = {}
        self._begin()
        os.register_at_fork(before=self._before, after_in_parent=self._after_in_parent, after_in_child=self._in_child)

    def _begin(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.RLock()  # a signal's handler may come here while its thread is here already
        self._changed = threading.Condition(self._lock)
        self._inside: dict[int, list[str]] = {}
        self._forking = 0
        self._busy: dict[int, set[str]] = {}

    def attend(self, attendant: Attendant) -> None:
        self._attendants.add(weakref.ref(attendant, self._attendants.discard))

    def attendants(self) -> list[Attendant]:
        return [attendant for ref in list(self._attendants) if (attendant := ref()) is not None]

    @contextlib.contextmanager
    def using(self, path: str) -> Iterator[None]:
        """This thread uses a file; not while the process forks, and not in a child for which it is refused."""
        if self._pid != os.getpid():  # forked by something that doesn't tell Python
            self._in_child()
        if path in self._refused:
            raise StoreUnavailableError(self._refused[path])
        me, inside = threading.get_ident(), self._inside
        with self._lock:
            while self._forking and me not in self._inside:
                self._changed.wait()
            inside.setdefault(me, []).append(path)
        try:
            yield
        finally:
            if inside is self._inside:  # else this is a child that forked in here
                with self._lock:
                    inside[me].remove(path)
                    if not inside[me]:
                        del inside[me]
                    if self._forking:
                        self._changed.notify_all()

    # -- around a fork

    def _before(self) -> None:
        me, deadline = threading.get_ident(), time.monotonic() + THREADS_LEAVE_WITHIN
        with self._lock:
            self._forking += 1
            # Whoever forks while it uses a file itself would wait for those that wait for it.
            while self._inside and me not in self._inside:
                left = deadline - time.monotonic()
                if left <= 0:
                    break
                self._changed.wait(left)
            busy = self._busy[me] = {path for paths in self._inside.values() for path in paths}
        for attendant in self.attendants():
            attendant.before_fork(busy)

    def _after_in_parent(self) -> None:
        with self._lock:
            self._busy.pop(threading.get_ident(), None)
            self._forking -= 1
            self._changed.notify_all()

    def _in_child(self) -> None:
        parent = self._pid
        still_open = self._busy.get(threading.get_ident(), set())
        self._begin()
        for attendant in self.attendants():
            still_open.update(attendant.after_fork())
        for path in still_open:
            self._refused[path] = (
                f"{path} can't be used in process {self._pid}: it was forked from process {parent} in the middle of a "
                "transaction, and SQLite's locks don't survive that; fork while no thread uses the store, or start the "
                'process afresh (multiprocessing.get_context("spawn"), subprocess)'
            )


gate = ForkGate()
