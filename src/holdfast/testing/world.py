"""`TestApp`: an app in a world of its own, in memory, where time is skipped and steps can be replaced."""

from __future__ import annotations

import asyncio
import datetime as dt
import inspect
import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any

from holdfast.api.checks import to_epoch
from holdfast.api.handles import Run
from holdfast.api.reading import RunReader, Which
from holdfast.app import App
from holdfast.core.context import current_step
from holdfast.core.resources import Resource
from holdfast.durations import Duration, to_us
from holdfast.engine.engine import Engine
from holdfast.engine.environment import Environment
from holdfast.engine.host import Host
from holdfast.engine.identity import Identity
from holdfast.engine.settings import Settings
from holdfast.errors import ArgumentError, WaitTimeoutError
from holdfast.executors.local import LocalExecutor
from holdfast.executors.surroundings import Surroundings
from holdfast.ports import Attempt, RunRow, Watch
from holdfast.stores.intercom import Intercom
from holdfast.stores.sqlite import SqliteStore
from holdfast.testing.clock import SkippingClock
from holdfast.testing.mocks import Call, Mockable, Mocks
from holdfast.testing.replaying import replay
from holdfast.testing.stand_ins import WorldStorage, WorldWorkers

_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


class TestApp:
    """Runs an app's workflows in memory, with time that skips.

        with TestApp(app) as world:
            world.mock(charge, lambda order: Payment("ok"))
            run = fulfil.start(order)
            world.advance("2d")
            assert run.result() == ...

    Inside the block the app itself lives in this world. Waiting for a result skips time; otherwise time stands still
    until `advance`. Schedules tick as time passes, unless `schedules=False`. When the block ends, every run is replayed
    to see that its code is deterministic.

    `resources` replaces what steps take with `use`: by a value, or by a generator function that is opened and closed
    like the resource itself.
    """

    __test__ = False

    def __init__(
        self,
        app: App,
        *,
        start: dt.datetime | None = None,
        check_replay: bool = True,
        resources: Mapping[Resource[Any], Any] | None = None,
        schedules: bool = True,
    ) -> None:
        self.app = app
        self._resources = {resource: _stand_in(resource, given) for resource, given in (resources or {}).items()}
        self.clock = SkippingClock(to_epoch(start or dt.datetime(2030, 1, 1, tzinfo=dt.UTC), "start"))
        self._check_replay = check_replay
        self._schedules = schedules
        self._mocks = Mocks(app.definitions)
        self._inside = False

    # -- the block

    def __enter__(self) -> TestApp:
        app = self.app
        app.load()
        known = app.definitions
        self._before = (app.storage, app._workers, known.replaced, known.mocked, known.is_strict)
        self.store = SqliteStore(app.name, ":memory:", self.clock)
        self.notifier = _SkippingIntercom(self)
        known.replaced, known.mocked = {**known.replaced, **self._resources}, self._mocks.stand_ins
        known.is_strict = True
        surroundings = Surroundings(known.arounds, known.replaced, self.store.secret, app.instruments)
        executor = _InProcessExecutor(
            self._mocks.find,
            app.codec,
            self.clock,
            surroundings=surroundings,
            keep_logs=known.keep_logs,
            transact=self.store.transaction,
            instruments=app.instruments,
            is_strict=True,
        )
        settings = Settings(grace=1, show_after=0, schedules=self._schedules, broken_turns=0)
        me = Identity("", app.build, isolates=False, queues=None)
        self.engine = Engine(Environment(known, self.store, executor, self.notifier, self.clock, me, settings))
        self._host = Host(self.engine, self.clock)
        app.storage = WorldStorage(app, self.store, self.notifier, self.clock)
        app._workers = WorldWorkers(app, app.storage, self._host)
        self.clock.wake = self._host.wake
        self.clock.has_failed = lambda: self._host.failure is not None
        self._host.start()
        self._host.launch()
        self._inside = True
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        try:
            if kind is None and self._check_replay:
                self._replay_all()
        finally:
            self._inside = False
            self._host.stop(0)
            self._host.wait(10)
            app, known = self.app, self.app.definitions
            app.storage, app._workers, known.replaced, known.mocked, known.is_strict = self._before
            self.store.close()

    async def __aenter__(self) -> TestApp:
        return await asyncio.to_thread(self.__enter__)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self.__exit__, kind, error, tb)

    # -- time

    @property
    def now(self) -> dt.datetime:
        """The time in this world."""
        return _EPOCH + dt.timedelta(microseconds=self.clock.now())

    def advance(self, by: Duration) -> None:
        """Let time pass. Timers, retries and timeouts that fall due happen in order."""
        self.clock.advance(to_us(by, "advance"))
        self._check_engine()

    def settle(self) -> None:
        """Wait until everything that can happen without time passing has happened."""
        self.clock.settle()
        self._check_engine()

    def _check_engine(self) -> None:
        """An engine that broke is an error of the test, instead of a wait for ever."""
        if self._host.failure is not None:
            raise RuntimeError("the engine of this TestApp has failed; its own error is the cause of this one") from (
                self._host.failure
            )

    async def aadvance(self, by: Duration) -> None:
        await asyncio.to_thread(self.advance, by)

    async def asettle(self) -> None:
        await asyncio.to_thread(self.settle)

    # -- steps and workflows

    def mock(self, step: Mockable, replacement: Any) -> None:
        """Execute `replacement` (a function, or a value to return) in place of a step or workflow. A function that is a step of a
        DAG or a saga is given as it is. What is elsewhere, and started by name, is mocked with `app.remote("name")`."""
        self._mocks.replace(step, replacement, self._has_runs)

    def _has_runs(self, name: str) -> bool:
        return self._inside and bool(self.app.runs(workflow=name, limit=1))

    def fail(self, step: Mockable, error: BaseException, *, call: int = 1) -> None:
        """Let the `call`-th execution of a step, or of what is mocked, counted from now, raise `error`."""
        self._mocks.fail(step, error, call)

    def calls(self, step: Mockable) -> list[Call]:
        """The arguments of each execution of a step, or of what is mocked, attempts included: tuples, with those that were
        given by name as `kwargs`."""
        return self._mocks.calls(step)

    # -- histories

    def kinds(self, run: Run[Any] | str) -> list[str]:
        """What happened in a run, as the kinds of its events."""
        found = self.app.get_run(run) if isinstance(run, str) else run
        return [event.kind for event in found.history()]

    def replay(self, run: Run[Any] | str) -> None:
        """Replay a run's history against the code as it is now; NondeterminismError if they differ, in arguments too."""
        reader = RunReader(self.app.definitions, self.store)
        which = Which(run) if isinstance(run, str) else run._which
        row = reader.row(which)
        if not row.durable:
            return
        replay(self.app.definitions, row, reader.events(which), self.store.secret())

    def _replay_all(self) -> None:
        for run in self.app.runs(limit=10_000):
            if self._has_code(run.workflow):
                self.replay(run)

    def _has_code(self, name: str) -> bool:
        """Whether runs of that name are executed here. What was started with `app.remote` may not be."""
        return name in self.app.definitions.known_names()

    def _outlook(self, row: RunRow) -> str:
        """Why a run does not go on in this test, and what to do about it."""
        state = f"run {row.id} is {row.status}"
        if not self._has_code(row.workflow):
            return (
                f"{state}, and app {self.app.name!r} has no workflow or step named {row.workflow!r} in this test; import the "
                f"module that defines it, or world.mock(app.remote({row.workflow!r}), ...)"
            )
        return (
            f"{state} ({row.reason or 'nothing is due'}) and nothing more will happen in this test; send the hook it waits "
            "for, or resume it"
        )


def _stand_in(resource: Resource[Any], given: Any) -> Any:
    """What is used instead of a resource: a value, or a resource."""
    if not isinstance(resource, Resource):
        raise ArgumentError(f"resources={{{resource!r}: ...}}: give resources of the app, made with @app.resource")
    if inspect.isgeneratorfunction(given) or inspect.isasyncgenfunction(given):
        given = Resource(given.__name__, given)
    if isinstance(given, Resource) and given.is_async and not resource.is_async:
        raise ArgumentError(
            f"{resource!r} is taken by plain steps too, so an async generator can't replace it; give a plain one, or a value"
        )
    return given


class _InProcessExecutor(LocalExecutor):
    """Steps of all pools run in this process, where they can be replaced and counted."""

    def submit(self, attempts: Sequence[Attempt]) -> None:
        for attempt in attempts:
            attempt.pool = "thread"
        super().submit(attempts)


class _SkippingIntercom(Intercom):
    """Whoever waits for a run lets time skip, and is told if nothing can happen any more: each for itself."""

    can_watch_many = False

    def __init__(self, world: TestApp) -> None:
        super().__init__()
        self._world = world
        self._watches: list[_SkippingWatch] = []

    def watch(self, run_id: str) -> Watch:
        watch = _SkippingWatch(self._world, super().watch(run_id), run_id, self._watches.remove)
        self._watches.append(watch)
        return watch

    def announce(self, run_ids: Iterable[str]) -> None:
        """Whoever is told something looks at it first, and time stands still meanwhile: what it waits for may be over."""
        told = set(run_ids)
        for watch in list(self._watches):
            if watch.run_id in told:
                watch.count(False)
        super().announce(told)


class _SkippingWatch(Watch):
    def __init__(self, world: TestApp, inner: Watch, run_id: str, on_close: Callable[[_SkippingWatch], None]) -> None:
        self.run_id = run_id
        self._world = world
        self._inner = inner
        self._on_close = on_close
        self._in_step = current_step.get() is not None
        self._counts = False
        self._lock = threading.Lock()
        self.count(True)

    def count(self, counts: bool) -> None:
        """Whether time may skip for this one."""
        with self._lock:
            if counts != self._counts:
                self._counts = counts
                self._world.clock.waiting(1 if counts else -1, in_step=self._in_step)

    def wait(self, timeout: float) -> Collection[str]:
        __tracebackhide__ = True
        if rung := self._inner.wait(0):
            return rung
        self.count(True)
        if rung := self._inner.wait(min(timeout, 0.02)):
            return rung
        self._world._check_engine()
        if self._world.clock.stalls > 3 and not self._in_step:
            row = self._world.store.get(self.run_id)
            if row is not None and row.status not in ("SUCCESS", "FAILURE", "CANCELLED", "STUCK"):
                raise WaitTimeoutError(self._world._outlook(row), run_id=self.run_id)
        return ()

    def close(self) -> None:
        self._on_close(self)
        self.count(False)
        self._inner.close()
