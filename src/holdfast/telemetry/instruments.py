"""The seam for observers: what the engine, executors and clients tell to whoever listens.

A report is a small frozen struct, so that it can say more one day without breaking those who read it. Where something
is to be told, the caller asks first whether anybody listens:

    if (tell := instruments.step_started) is not None:
        tell(StepReport(id=..., run_id=..., name=...))

so that it costs one look at an attribute if nobody does.
"""

from __future__ import annotations

import logging
import re
import threading
import weakref
from collections.abc import Callable
from typing import Any, TypeAlias

import msgspec

logger = logging.getLogger("holdfast.telemetry")
TRACEPARENT = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})(?:-.*)?")


def is_traceparent(text: object) -> bool:
    """Whether this is a `traceparent` as W3C Trace Context has it: version, trace, span, flags."""
    return isinstance(text, str) and len(text) < 200 and TRACEPARENT.fullmatch(text) is not None


class RunReport(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """Something about a run. `status` is that after it; `seconds` is how long it had taken, `waited` how long it had
    waited for a worker; `error` is what it failed with; `trace` is the `traceparent` that it was started with."""

    id: str
    workflow: str
    status: str = ""
    attempt: int = 1
    parent_id: str | None = None
    root_id: str | None = None
    worker: str | None = None
    reason: str = ""
    seconds: float | None = None
    waited: float | None = None
    error: str | None = None
    trace: str | None = None


class StepReport(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """Something about an attempt of a step. `id` is that of the step, the same for all its attempts. `state` is that
    after it; `seconds` is how long the attempt took, `waited` how long it had waited to begin, `delay` how long the
    next one waits; `parent_id` is the step or run that asked for it; `trace` is the `traceparent` it came with."""

    id: str
    run_id: str
    name: str
    workflow: str = ""
    state: str = ""
    attempt: int = 1
    parent_id: str | None = None
    root_id: str | None = None
    queue: str | None = None
    worker: str | None = None
    seconds: float | None = None
    waited: float | None = None
    delay: float | None = None
    error: str | None = None
    done: float | None = None
    total: float | None = None
    note: str = ""
    trace: str | None = None


class WorkerReport(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Something about a worker. `live` and `parked` are runs it has in memory and runs it has let go of, `steps` the
    attempts under way, `beat` the seconds between heartbeats."""

    id: str
    host: str = ""
    pid: int = 0
    build: str = ""
    beat: float | None = None
    live: int = 0
    parked: int = 0
    steps: int = 0
    inbox: int = 0


class CommitReport(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A commit of an engine: how many events of how many runs, their bytes, and how long it took."""

    events: int
    seconds: float
    runs: int = 0
    size: int = 0


class ClaimReport(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Runs, or attempts of a queue, that a worker has claimed at once."""

    count: int
    worker: str = ""
    queue: str | None = None


class MessageReport(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A message that arrived in a run's inbox. `waited` is how long it lay there."""

    run_id: str
    kind: str
    clock: int | None = None
    waited: float | None = None


class Instrument:
    """An observer. Override what you want to hear of; the rest costs nothing.

    Methods are called on the threads where things happen, often several at once, so they have to be quick and safe to
    call from any thread. One that raises is logged, and its instrument hears nothing more.
    """

    def run_submitted(self, run: RunReport) -> None:
        """This process has recorded a new run, which a worker will take."""

    def run_started(self, run: RunReport) -> None:
        """A run, or another attempt of one, begins to execute."""

    def run_finished(self, run: RunReport) -> None:
        """A run has ended: its `status` is SUCCESS, FAILURE or CANCELLED."""

    def run_retrying(self, run: RunReport) -> None:
        """An attempt of a run failed and another one follows."""

    def run_parked(self, run: RunReport) -> None:
        """A run waits, for its `reason`, and has left memory."""

    def run_resumed(self, run: RunReport) -> None:
        """A run that waited, or was held, goes on."""

    def run_held(self, run: RunReport) -> None:
        """A run is set aside: its `status` is PAUSED or STUCK, for its `reason`."""

    def step_scheduled(self, step: StepReport) -> None:
        """A step is recorded, and is about to be handed over."""

    def step_received(self, step: StepReport) -> None:
        """A worker has the attempt, and will begin when it has room."""

    def step_started(self, step: StepReport) -> None:
        """An attempt begins to execute."""

    def step_entered(self, step: StepReport) -> None:
        """The code of an attempt is about to be called, in this thread or task and in the process that executes it: what
        is set here in a context variable is seen by the step, and by nobody else."""

    def step_progressed(self, step: StepReport) -> None:
        """An attempt says how far it has come: `done`, `total`, `note`."""

    def step_retrying(self, step: StepReport) -> None:
        """An attempt failed, and another one follows after `delay`."""

    def step_finished(self, step: StepReport) -> None:
        """A step has ended: its `state` is SUCCESS, FAILURE, CANCELLED or SKIPPED."""

    def committed(self, commit: CommitReport) -> None:
        """An engine has committed what happened since its last commit."""

    def claimed(self, claim: ClaimReport) -> None:
        """A worker has claimed runs or attempts."""

    def message_sent(self, message: MessageReport) -> None:
        """This process has put a message into a run's inbox, from outside of any run."""

    def message_received(self, message: MessageReport) -> None:
        """A message in a run's inbox has been read by its engine."""

    def worker_started(self, worker: WorkerReport) -> None:
        """A worker is registered, and begins to work."""

    def worker_beat(self, worker: WorkerReport) -> None:
        """A worker has renewed its lease."""

    def worker_stopped(self, worker: WorkerReport) -> None:
        """A worker has stopped, as it was told to."""

    def current_trace(self) -> str | None:
        """The `traceparent` of what is under way in this thread or task, for a run that it starts; None if there is none."""
        return None


Tell: TypeAlias = Callable[[Any], None]
HOOKS = tuple(name for name in vars(Instrument) if not name.startswith("_") and name != "current_trace")
"""The names of everything that is told."""


class Instruments:
    """Those who listen. Each hook of `Instrument` is an attribute: None if nobody overrides it, else what to call."""

    run_submitted: Callable[[RunReport], None] | None
    run_started: Callable[[RunReport], None] | None
    run_finished: Callable[[RunReport], None] | None
    run_retrying: Callable[[RunReport], None] | None
    run_parked: Callable[[RunReport], None] | None
    run_resumed: Callable[[RunReport], None] | None
    run_held: Callable[[RunReport], None] | None
    step_scheduled: Callable[[StepReport], None] | None
    step_received: Callable[[StepReport], None] | None
    step_started: Callable[[StepReport], None] | None
    step_entered: Callable[[StepReport], None] | None
    step_progressed: Callable[[StepReport], None] | None
    step_retrying: Callable[[StepReport], None] | None
    step_finished: Callable[[StepReport], None] | None
    committed: Callable[[CommitReport], None] | None
    claimed: Callable[[ClaimReport], None] | None
    message_sent: Callable[[MessageReport], None] | None
    message_received: Callable[[MessageReport], None] | None
    worker_started: Callable[[WorkerReport], None] | None
    worker_beat: Callable[[WorkerReport], None] | None
    worker_stopped: Callable[[WorkerReport], None] | None

    __slots__ = (*HOOKS, "__weakref__", "_instruments", "_lock")

    def __init__(self, *instruments: Instrument) -> None:
        self._lock = threading.Lock()
        self._instruments: tuple[Instrument, ...] = ()
        self._arrange(())
        for instrument in instruments:
            self.add(instrument)

    def __iter__(self) -> Any:
        return iter(self._instruments)

    def __len__(self) -> int:
        return len(self._instruments)

    def add(self, instrument: Instrument) -> None:
        """Let an instrument listen from now on. One that does already is not added again."""
        if not isinstance(instrument, Instrument):
            raise TypeError(f"{instrument!r} is no Instrument; derive its class from holdfast.telemetry.Instrument")
        with self._lock:
            if not any(each is instrument for each in self._instruments):
                self._arrange((*self._instruments, instrument))

    def remove(self, instrument: Instrument) -> None:
        """Tell an instrument nothing more. It is fine if it didn't listen."""
        with self._lock:
            self._arrange(tuple(each for each in self._instruments if each is not instrument))

    def current_trace(self) -> str:
        """The first `traceparent` that any of them knows of; empty if none does."""
        for instrument in self._instruments:
            try:
                if trace := instrument.current_trace():
                    return trace
            except Exception:
                self._failed("current_trace", instrument)
        return ""

    def _arrange(self, instruments: tuple[Instrument, ...]) -> None:
        self._instruments = instruments
        for name in HOOKS:
            listening = tuple((each, getattr(each, name)) for each in instruments if _overrides(each, name))
            setattr(self, name, self._teller(name, listening) if listening else None)

    def _teller(self, name: str, listening: tuple[tuple[Instrument, Tell], ...]) -> Tell:
        owner = weakref.ref(self)  # else the two would keep each other in memory

        def tell(report: Any) -> None:
            for instrument, method in listening:
                try:
                    method(report)
                except Exception:  # whatever an observer does, those whom it observes go on
                    if (instruments := owner()) is not None:
                        instruments._failed(name, instrument)

        return tell

    def _failed(self, name: str, instrument: Instrument) -> None:
        with self._lock:
            if not any(each is instrument for each in self._instruments):
                return  # another thread has said so
            self._arrange(tuple(each for each in self._instruments if each is not instrument))
        logger.exception("%s.%s failed; this instrument hears nothing more", type(instrument).__name__, name)


def _overrides(instrument: Instrument, name: str) -> bool:
    return name in vars(instrument) or getattr(type(instrument), name) is not getattr(Instrument, name)
