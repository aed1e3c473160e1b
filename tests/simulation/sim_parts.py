"""What an engine of the simulation stands on: a clock, a store, a notifier and an executor, each of which lets the world
decide at every call what happens there."""

from __future__ import annotations

import contextvars
import inspect
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from holdfast.engine.arrivals import Hint, InboxHint
from holdfast.errors import StepTimeoutError
from holdfast.executors.runner import LoggedContext, Runner
from holdfast.executors.surroundings import Surroundings
from holdfast.ports import Attempt, Clock, Executor, Notifier, OnRing, OnTold, Outcome, Store, Topic, Watch

if TYPE_CHECKING:
    from sim_world import Host, World

START = 1_900_000_000_000_000
ASKS_NO_DATABASE = ("close", "release_lock", "now")


class SimulatedClock(Clock):
    """Moves when the world says so, and by `tick` whenever it is looked at, so that slices of time end."""

    def __init__(self, random: Callable[[], float], tick: float) -> None:
        self._random = random
        self._tick = tick
        self._set_by = 0
        self._seconds = 1_000.0

    def now(self) -> int:
        return START + self._set_by + round(self._seconds * 1_000_000)

    def monotonic(self) -> float:
        self._seconds += self._tick
        return self._seconds

    def random(self) -> float:
        return self._random()

    def pass_time(self, seconds: float) -> None:
        self._seconds += seconds

    def set_by(self, seconds: float) -> None:
        """Somebody sets the clock, ahead or back."""
        self._set_by += round(seconds * 1_000_000)


def _at_seam(name: str) -> Callable[..., Any]:
    def call(self: SeamStore, *args: Any, **kwargs: Any) -> Any:
        return self.world.at_store(self.host, name, args, lambda: getattr(self.inner, name)(*args, **kwargs))

    return call


class SeamStore:
    """The store as one engine sees it. All methods of the port that ask a database may fail, before or after they took
    effect; they are generated from the port, so that a new one can't be forgotten."""

    def __init__(self, world: World, host: Host) -> None:
        self.world = world
        self.host = host
        self.inner = world.store
        self.app, self.url, self.clock = self.inner.app, self.inner.url, self.inner.clock
        self.now, self.release_lock, self.close = self.inner.now, self.inner.release_lock, self.inner.close


for _name, _ in inspect.getmembers(Store, inspect.isfunction):
    if not _name.startswith("_") and _name not in ASKS_NO_DATABASE:
        setattr(SeamStore, _name, _at_seam(_name))


class SimulatedNotifier(Notifier):
    """Hints come at once, late, twice or not at all."""

    def __init__(self, world: World, host: Host | None) -> None:
        self._world = world
        self._host = host

    def listen(self, topics: Collection[Topic], on_ring: OnRing, on_told: OnTold) -> str:
        return ""

    def ring(self, topic: Topic, everyone: bool = False) -> None:
        self._world.at_seam(self._host, "ring")
        self._world.hint(Hint(topic))

    def tell(self, owner: str, runs: Sequence[int]) -> None:
        self._world.at_seam(self._host, "tell")
        self._world.hint(InboxHint(owner, runs))

    def announce(self, run_ids: Iterable[str]) -> None:
        self._world.at_seam(self._host, "announce")

    def watch(self, run_id: str) -> Watch:
        raise NotImplementedError("nobody waits in the simulation")

    def close(self) -> None:
        return None


class Execution:
    """An attempt that has begun, and takes so many seconds unless its time is over before."""

    def __init__(self, attempt: Attempt, started: int, now: float, seconds: float) -> None:
        self.attempt = attempt
        self.started = started
        longest = float("inf") if attempt.timeout is None else attempt.timeout / 1_000_000
        self.takes_too_long = seconds > longest
        self.ends_at = now + min(seconds, longest)


class SimulatedExecutor(Executor):
    """Attempts begin and end when the world says so."""

    def __init__(self, world: World, host: Host) -> None:
        self._world = world
        self._host = host
        self._app = host.app
        self._runner = Runner(self._app.codec, Surroundings())
        self.waiting: dict[int, Attempt] = {}
        self.executing: dict[int, Execution] = {}
        self._on_outcome: Callable[[Outcome], None] = lambda outcome: None
        self._on_report: Callable[[Attempt, str, Any], None] = lambda attempt, kind, value: None
        self._may_begin: Callable[[], bool] = lambda: True

    # -- what the engine asks for

    def start(
        self,
        on_outcome: Callable[[Outcome], None],
        on_report: Callable[[Attempt, str, Any], None],
        may_begin: Callable[[], bool],
    ) -> None:
        self._on_outcome, self._on_report, self._may_begin = on_outcome, on_report, may_begin

    def submit(self, attempts: Sequence[Attempt]) -> None:
        self._world.at_seam(self._host, "submit")
        self.waiting |= {attempt.token: attempt for attempt in attempts}
        self._world.at_seam(self._host, "submitted")

    def withdraw(self, tokens: Iterable[int]) -> set[int]:
        self._world.at_seam(self._host, "withdraw")
        return {token for token in list(tokens) if self.waiting.pop(token, None) is not None}

    def started_at(self, token: int) -> int | None:
        execution = self.executing.get(token)
        return None if execution is None else execution.started

    def cancel(self, token: int) -> None:
        self._world.at_seam(self._host, "cancel")
        attempt = self.waiting.pop(token, None)
        execution = self.executing.pop(token, None)
        if execution is not None:
            attempt = execution.attempt
            self._world.ledger.ended(self._host, attempt, "cancelled")
        if attempt is not None:
            self._on_outcome(Outcome(attempt=attempt, started=0, cancelled=True))

    def stop(self, grace: float) -> None:
        for token in list(self.executing):
            self._world.ledger.ended(self._host, self.executing.pop(token).attempt, "interrupted")
        self.waiting.clear()

    def close(self) -> None:
        return None

    # -- what the world lets happen

    def begin(self, token: int, seconds: float) -> bool:
        attempt = self.waiting[token]
        is_wanted = self._may_begin()
        if self.waiting.pop(token, None) is None:  # it was withdrawn, or cancelled, while that was asked
            return False
        if not is_wanted:
            self._on_outcome(Outcome(attempt=attempt, started=0, cancelled=True))
            return False
        self._world.ledger.begins(self._host, attempt)
        clock = self._world.clock
        self.executing[token] = Execution(attempt, clock.now(), clock.monotonic(), seconds)
        return True

    def finish(self, token: int) -> Outcome:
        execution = self.executing.pop(token)
        attempt = execution.attempt
        definition = self._app.definitions.find_step(attempt.step)
        context = LoggedContext(attempt, self._app.codec, self._on_report, None)
        context.started = execution.started
        if execution.takes_too_long:
            outcome = self._runner.failed(context, StepTimeoutError("its time is over"))
        elif definition.is_async:
            outcome = contextvars.Context().run(_drive, self._runner.arun(definition, context))
        else:
            outcome = contextvars.Context().run(self._runner.run, definition, context)
        self._world.ledger.ended(self._host, attempt, "finished")
        self._on_outcome(outcome)
        return outcome

    def lose(self, token: int) -> None:
        """The process that executed it has died, and the worker lives."""
        execution = self.executing.pop(token)
        self._world.ledger.ended(self._host, execution.attempt, "lost")
        self._on_outcome(Outcome(attempt=execution.attempt, started=execution.started, lost=True))


def _drive(coroutine: Any) -> Any:
    """The steps of the simulation wait for nothing, so one push brings an async one to its end."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        return end.value
    raise AssertionError("a step of the simulation waits for something")
