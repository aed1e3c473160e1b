"""The store of an app: which one, and opened when it is first needed."""

from __future__ import annotations

import os
import threading
import weakref
from pathlib import Path

from holdfast.ports import Clock, Notifier, Query, Store
from holdfast.stores.forks import gate
from holdfast.telemetry.clock import LamportClock


class Storage:
    """A store and its notifier, by a URL that may still change before they are used."""

    def __init__(self, app: str, url: str | None, clock: Clock) -> None:
        self.clock = clock
        self.logical_clock = LamportClock()
        self.opened: tuple[Store, Notifier] | None = None
        self._app = app
        self._given_url = url
        self._chosen_url: str | None = None
        self._lock = threading.RLock()
        _storages.add(self)

    @property
    def url(self) -> str:
        return self._chosen_url or os.environ.get("HOLDFAST_STORE") or self._given_url or f"{self._app}.db"

    def use(self, url: str) -> None:
        with self._lock:
            self.close()
            self._chosen_url = url

    @property
    def store(self) -> Store:
        return self._open()[0]

    @property
    def notifier(self) -> Notifier:
        return self._open()[1]

    def _open(self) -> tuple[Store, Notifier]:
        with self._lock:
            if self.opened is None:
                # A child forked during an import would wait for it for ever.
                with gate.using(f"the store of app {self._app!r}"):
                    self.opened = self._open_another()
            return self.opened

    def _open_another(self) -> tuple[Store, Notifier]:
        from holdfast.wiring import open_store  # not at the top: see wiring.py

        return open_store(self._app, self.url, self.clock, self.logical_clock)

    def open_for_work(self) -> tuple[Store, Notifier]:
        """An engine listens at a bell of its own; a store in memory is shared by all."""
        return self._open() if self._is_in_memory else self._open_another()

    @property
    def _is_in_memory(self) -> bool:
        return self.url == ":memory:"

    @property
    def address(self) -> str:
        """The store as a process in another folder names it; nothing if none can reach it."""
        if self._is_in_memory:
            return ""
        if self.url.startswith(("postgresql://", "postgres://")):
            return self.url
        return str(Path(self.store.url).absolute())

    def close(self) -> None:
        """Let go of the store. It is opened again when it is needed."""
        with self._lock:
            if self.opened is not None:
                store, notifier = self.opened
                notifier.close()
                store.close()
            self.opened = None

    def close_unless_shared(self, store: Query) -> None:
        """After work, that of `open_for_work`."""
        if self.opened is None or self.opened[0] is not store:
            store.close()


_storages: weakref.WeakSet[Storage] = weakref.WeakSet()


def _after_fork() -> None:
    """A thread that doesn't exist in the child may have held these."""
    for storage in _storages:
        storage._lock = threading.RLock()


os.register_at_fork(after_in_child=_after_fork)
