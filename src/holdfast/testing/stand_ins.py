"""What stands in for the parts of an app inside a `TestApp`: its store, and what would work on it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from holdfast.app import App
from holdfast.engine.host import Host
from holdfast.engine.settings import Settings
from holdfast.ports import Clock, Notifier, Store
from holdfast.storage import Storage
from holdfast.wiring import WorkerParts
from holdfast.workers import Workers


class WorldStorage(Storage):
    """The store of a world, shared by all in it. Whoever closes it, or names another, changes nothing: programs do so
    when they begin and end, and the test goes on."""

    def __init__(self, app: App, store: Store, notifier: Notifier, clock: Clock) -> None:
        super().__init__(app.name, None, clock)
        self.opened = store, notifier
        self._chosen_url = app.store_url  # as it is shown; nothing is opened there

    @property
    def _is_in_memory(self) -> bool:
        return True

    def close(self) -> None: ...


class WorldWorkers(Workers):
    """The engine of a world works already. A program that starts one, or an executor, is given that: another would not
    know that time skips."""

    def __init__(self, app: App, storage: Storage, host: Host) -> None:
        super().__init__(app.definitions, storage, lambda: app.build, lambda: None)
        self._host = host

    def _made(self, settings: Settings | None, make: Callable[[WorkerParts], Host]) -> Host:
        return self._host

    @contextlib.contextmanager
    def running(self, host: Host, grace: float) -> Iterator[Host]:
        yield host
