"""What turns an engine, or an executor of attempts of others: its queue, its threads, and the only place that waits."""

from __future__ import annotations

import functools
import logging
import threading
import time
from collections.abc import Callable, Sequence
from queue import Empty, SimpleQueue
from typing import Any, Protocol

from holdfast.engine.arrivals import Arrival, DeclaredDead, Hint, InboxHint, Report, Stop, Wake
from holdfast.engine.engine import Engine
from holdfast.engine.health import Health, Pulse
from holdfast.engine.puller import Puller
from holdfast.errors import StoreError, StoreLostError
from holdfast.logs import install
from holdfast.ports import Attempt, Clock, Query, Topic

logger = logging.getLogger("holdfast.engine")


class Waiter(Protocol):
    """How a host waits: a test lets time skip meanwhile."""

    def wait(self, get: Callable[[float], Any], wake: Wake) -> Any:
        """Block in `get(seconds)` until something arrives, and return it, or until the time `wake` has come; then it
        raises queue.Empty."""


class RealTime(Waiter):
    """Waits as long as it takes."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def wait(self, get: Callable[[float], Any], wake: Wake) -> Any:
        seconds = wake.seconds
        for moment in (wake.due, wake.tick):
            if moment is not None:
                seconds = min(seconds, (moment - self._clock.now()) / 1_000_000)
        if seconds <= 0:
            raise Empty
        return get(seconds)


class Host:
    """Runs an engine, on a thread of its own; `stop` ends it after draining."""

    def __init__(self, engine: Engine | Puller, waiter: Waiter | None = None) -> None:
        self.engine = engine
        self.failure: BaseException | None = None
        self._waiter = waiter or RealTime(engine.env.clock)
        self._arrivals: SimpleQueue[Arrival] = SimpleQueue()
        self._pulse = Pulse(engine.env.clock.monotonic())
        self._heart: threading.Thread | None = None
        self._is_ending = threading.Event()
        self._is_over = threading.Event()
        self._broken_turns = 0

    @property
    def store(self) -> Query:
        return self.engine.env.store

    @property
    def worker_id(self) -> str:
        return self.engine.me.worker

    # -- life

    def start(self) -> None:
        """Register, and begin to listen; then `run` may be called on a thread."""
        engine = self.engine
        install()
        address = self._listen()
        try:
            engine.start(address)
        except BaseException:
            engine.env.notifier.close()
            raise
        engine.guard.start()
        engine.env.executor.start(
            self.put, self._report, functools.partial(engine.env.membership.may_begin, self._declared_dead)
        )
        self._report_worker("worker_started")
        engine.env.reporter.broadcast.look(self._say_hello)
        self._heart = threading.Thread(target=self._beat, name="holdfast-heartbeat", daemon=True)
        self._heart.start()

    def _listen(self) -> str:
        """Where others ring."""
        return self.engine.env.notifier.listen({*self.engine.heeds, Topic.WATCHERS}, self.hint, self.told)

    def run(self) -> None:
        """Turn until stopped, or until the store is lost: then `failure` says so."""
        self.launch()
        self.wait()
        if self.failure is not None and not isinstance(self.failure, StoreLostError):
            raise self.failure

    def launch(self) -> None:
        """Begin to turn, on a thread of its own."""
        threading.Thread(target=self._go_on, name="holdfast-engine", daemon=True).start()

    def wait(self, seconds: float | None = None) -> bool:
        """Wait until it has ended; False if it hasn't within so many seconds."""
        return self._is_over.wait(seconds)

    def _go_on(self) -> None:
        """Turn the engine on this thread until it ends."""
        try:
            self.engine.enter_thread()
            wake = self._turn([])
            while wake is not None:
                wake = self._turn(self._arrived(wake))
        except StoreLostError as error:
            self.failure = error
            logger.critical("worker %s ends, as there is nothing that it can do any more: %s", self.worker_id, error)
        except BaseException as error:
            self.failure = error
            logger.critical(
                "the engine of app %r ends because of an error in it", self.engine.env.app.name, exc_info=True
            )
        try:
            self._close()
        except BaseException as error:
            self.failure = self.failure or error
            logger.critical("the engine of app %r could not end", self.engine.env.app.name, exc_info=True)
        finally:
            self._is_over.set()

    def stop(self, grace: float | None = None) -> None:
        """Stop claiming, let steps finish for `grace` seconds, then release every run."""
        self.put(Stop(self.engine.env.settings.grace if grace is None else grace))

    def put(self, arrival: Any) -> None:
        """Give the engine something to take in its next turn."""
        self._arrivals.put(arrival)

    def wake(self) -> None:
        """Let the engine look at everything."""
        self.hint(Topic.EVERYTHING)

    def hint(self, topic: Topic) -> None:
        if topic is Topic.WATCHERS:
            self.engine.env.reporter.broadcast.wake(self._say_hello)
        elif topic in self.engine.heeds:
            self.put(_HINTS[topic])

    def told(self, owner: str, runs: Sequence[int]) -> None:
        if Topic.INBOX in self.engine.heeds:
            self.put(InboxHint(owner, runs))

    def health(self) -> Health:
        """How it is doing. May be asked from any thread, and asks the store nothing itself."""
        engine, pulse, now = self.engine, self._pulse, self.engine.env.clock.monotonic()
        problem = pulse.problem(now, engine.env.settings.lease)
        lost = engine.env.backoff.lost or (self.failure if isinstance(self.failure, StoreLostError) else None)
        if lost is not None:
            problem = str(lost)
        elif self.failure is not None:
            problem = f"the engine has ended because of an error in it: {self.failure!r}"
        return Health(
            ok=not problem, problem=problem, worker=engine.me.worker, app=engine.env.app.name, build=engine.me.build,
            store_reachable=not (pulse.trouble or lost), heartbeat_age=round(now - pulse.heartbeat, 3),
            turn_age=round(now - pulse.turn, 3),
            commit_age=None if engine.last_commit is None else round(now - engine.last_commit, 3),
            runs=len(engine.runs), steps=len(engine.inflight), stopping=engine.stopping, note=engine.strain,
        )  # fmt: skip

    # -- turning

    def _turn(self, arrivals: list[Arrival]) -> Wake | None:
        """A turn that fails in a way nobody thought of is not the end."""
        engine = self.engine
        self._pulse.turn = engine.env.clock.monotonic()
        try:
            wake = engine.turn(arrivals)
        except Exception as error:
            self._broken_turns += 1
            if self._broken_turns > engine.env.settings.broken_turns:
                raise
            logger.critical("a turn of the engine of app %r failed, trying again", engine.env.app.name, exc_info=True)
            engine.env.backoff.failed("a turn", error)
            engine.start_over()
            return Wake(None, None, engine.env.backoff.until - engine.env.clock.monotonic(), 0)
        self._broken_turns = 0
        if engine.env.backoff.lost is not None:
            raise engine.env.backoff.lost
        return wake

    def _arrived(self, wake: Wake) -> list[Arrival]:
        """All that has arrived; wait for it if nothing is to be done before."""
        queue = self._arrivals
        found: list[Arrival] = []
        try:
            if not wake.at_once and queue.empty():
                found.append(self._waiter.wait(lambda seconds: queue.get(timeout=seconds), wake))
                if wake.gather and isinstance(found[0], InboxHint):
                    time.sleep(wake.gather)
            while True:
                found.append(queue.get_nowait())
        except Empty:
            return found

    def _report(self, attempt: Attempt, kind: str, value: Any) -> None:
        self.put(Report(attempt, kind, value))

    def _declared_dead(self, worker_id: str) -> None:
        self.put(DeclaredDead(worker_id))

    # -- threads

    def _beat(self) -> None:
        """The heartbeat has a thread of its own: a busy engine is not a dead one."""
        membership, settings = self.engine.env.membership, self.engine.env.settings
        last = self.store.now()
        while not self._is_ending.wait(settings.beat):
            worker_id = membership.me.worker
            try:
                if not membership.beat():
                    self._declared_dead(worker_id)
                self._pulse.beaten(self.engine.env.clock.monotonic())
                self._report_worker("worker_beat")
                self.engine.env.reporter.broadcast.look(self._say_hello)
            except StoreError as error:
                self._pulse.trouble = str(error)
                logger.warning("heartbeat failed, trying again: %s", error)
            last = membership.gaps.check(last, settings.beat)

    def _say_hello(self) -> None:
        """Somebody has begun to watch: this worker is here."""
        self._report_worker("worker_started")

    def _report_worker(self, what: str) -> None:
        engine = self.engine
        if engine.env.reporter.is_on:
            engine.env.reporter.worker(what, len(engine.runs), len(engine.inflight), engine.env.settings.beat)

    def _close(self) -> None:
        self._is_ending.set()
        if self._heart is not None:
            self._heart.join(1)
        self._report_worker("worker_stopped")
        self.engine.env.reporter.broadcast.close()
        self.engine.guard.stop()
        self.engine.close()
        self.engine.env.notifier.close()
        self.engine.env.executor.close()


_HINTS = {topic: Hint(topic) for topic in Topic}
