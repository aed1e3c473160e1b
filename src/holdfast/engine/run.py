"""One run in memory, from its claim until it is let go.

Nothing here touches the store or the executor; the engine does, with what `LiveRun` says. Its code is in `run_code.py`, and
what of it needs no code in `run_state.py`; how it begins in `opening.py`, how it leaves before its end in `leaving.py`.
"""

from __future__ import annotations

import contextlib
import logging
from enum import Enum

from holdfast.core import commands as co
from holdfast.core import events as ev
from holdfast.engine import leaving
from holdfast.engine.opening import Needs, Opening
from holdfast.engine.run_code import RunCode
from holdfast.engine.run_state import HELD, RunState, Shared, read_options
from holdfast.errors import (
    DamagedHistoryError,
    DecodeError,
    NondeterminismError,
    Suspended,
    WorkerLostError,
    WorkflowBlocked,
)
from holdfast.ports import Change, Claimed, Outcome, Status

logger = logging.getLogger("holdfast.engine")
OUR_WORDS = (GeneratorExit, Suspended)
"""What is raised in code to make it leave, where that code has raised it itself."""


class Probe(Enum):
    """Where a run that has lost its worker stands: whether its code may be activated. One at a time is announced."""

    NONE = "none"
    WANTED = "wanted"
    ANNOUNCED = "announced"


class LiveRun:
    """A run this engine owns. `advance` brings it forward; what is to be committed gathers in `change`."""

    def __init__(self, claimed: Claimed, shared: Shared) -> None:
        options, damage = read_options(claimed.row)
        self.state = state = RunState(claimed, options, shared)
        self.row = state.row
        self.options = options
        self.change = state.change
        self.steps = state.steps
        self.deliveries = state.inbox.deliveries
        self.opening = Opening(claimed, damage, state)
        self.code = RunCode(state, self.opening)
        self.probe = Probe.NONE
        self.broken = False
        self._shared = shared
        self._was_refused = False

    def is_idle(self) -> bool:
        """Whether it only waits, be it for steps elsewhere."""
        steps = self.steps
        is_any_here = steps.inflight or steps.to_schedule or steps.elsewhere.to_ask
        return self.code.replay is None and not self.deliveries and not is_any_here

    # -- committing

    def confirmed(self, change: Change) -> None:
        """The change is committed: outcomes in it are safe."""
        if self.steps.unconfirmed:
            self.steps.unconfirmed.clear()
        inbox = self.state.inbox
        if inbox.orders:
            inbox.orders.clear()
        inbox.cancel = None
        if change.records:
            self.change.last_committed = change.records[-1].seq

    def unsure(self, change: Change) -> None:
        """Whether the change was committed is not known; this run must not go on before that is known."""
        self.broken = True
        self.steps.reports.streamed = None
        self.change.put_back(change)

    def carry_over(self, earlier: LiveRun) -> None:
        """Go on from what an earlier self had in hand when it had to be read again. Only the owner writes a history,
        so if it has grown then all that was not confirmed is in it."""
        steps, was_committed = self.steps, self.change.last_committed > earlier.change.last_committed
        steps.carry_over(earlier.steps, was_committed)
        self.deliveries.extend(arrival for arrival in earlier.deliveries if isinstance(arrival, Outcome))
        if not was_committed:
            self.deliveries.extendleft(reversed(earlier.steps.unconfirmed))
        # Some may be in the store: their places tell.
        self.change.streamed = [item for item in earlier.change.streamed if item.place >= 0]
        for kind, cmd, body in earlier.change.attributes:
            if kind in ("checkpoint", "progress") and cmd in steps.inflight:
                steps.reports.keep(kind, cmd, body)

    @property
    def since(self) -> int:
        """The event that the attempt of its code began with."""
        return 0 if self.code.execution is None else self.code.execution.journal.since

    def idempotency_key(self, command: co.ScheduleStep) -> str:
        """The same for every attempt of a step, also if the whole workflow is retried, and for no other step."""
        assert self.code.execution is not None
        return f"{self.row.id}:{command.origin}:{self.code.execution.journal.mark}"

    def note_started(self, cmd: str, started: int) -> None:
        """A step that takes its time is shown as started."""
        step = self.code.execution.steps.pending.get(cmd) if self.code.execution is not None else None
        if step is not None:
            self.code.take_all(self.steps.started(step, started), started)

    # -- going forward

    def advance(self, now: int, budget: float) -> bool:
        """Deliver what has arrived, for at most `budget` seconds; whether there is more to do."""
        end = self._shared.clock.monotonic() + budget
        try:
            if self.state.released or (self.state.inbox.termination is not None and self._is_terminated(now)):
                return False
            if (self.steps.suspicion.cautious or self.probe is not Probe.NONE) and self._waits_for_probe(now):
                return False
            if self.code.execution is None and not self._open(now):
                return False
            if self.code.replay is not None and not self.code.catch_up(now, end):
                return not self.state.released
            more = self.code.deliver_arrivals(now, end)
            if not (more or self.state.released) and self.code.replay is None:
                more = self.code.fire_timers(now, end)
            # A run that continued as new has stopped taking what arrived: there may be more.
            if self.code.replay is not None and not self.code.catch_up(now, end):
                more = True
            more = (more or bool(self.deliveries)) and not self.state.released
        except DamagedHistoryError as error:
            return self._set_aside(now, error, "damaged")
        except WorkflowBlocked as error:
            return self._set_aside(now, error, "blocked")
        except (NondeterminismError, DecodeError, *OUR_WORDS) as error:
            return self._set_aside(now, error, "diverged")
        except Exception as error:  # whatever it is, it must not end the worker, and then the next one
            logger.exception("run %s can't go on", self.row.id, extra=self.state.log_fields)
            return self._set_aside(now, error, "diverged")
        return more

    def _open(self, now: int) -> bool:
        """Whether its code is in memory now."""
        if self.probe is not Probe.ANNOUNCED:
            try:
                needs = self.opening.open(now)
            except WorkerLostError as error:
                self._set_aside(now, error, "lost")
                return False
            if needs is Needs.PROBE:
                self.probe = Probe.WANTED
            if needs is not Needs.CODE:
                return False
        self.code.start()
        return True

    # -- code that may have taken its worker down

    def _waits_for_probe(self, now: int) -> bool:
        """Whether the code would go on only after that was announced: until it has made progress, whatever reaches it
        may be what made it take a worker down."""
        if (
            self.probe is Probe.NONE
            and self.steps.suspicion.cautious
            and self.code.execution is not None
            and self.row.durable
        ):
            due = self.code.next_due()
            if self.deliveries or (due is not None and due <= now):
                self.probe = Probe.WANTED
        return self.probe is Probe.WANTED

    def announce_probe(self, now: int) -> None:
        """From the commit of this on, the run's code may be activated. Outcomes that it is to see are safe by then."""
        self.probe = Probe.ANNOUNCED
        self.state.keep_outcomes(self.steps.kept(self.deliveries))
        event = ev.RunProbed(ts=now, worker=self._shared.me.worker)
        if self.code.execution is None:
            self.state.append(event)
        else:
            self.code.note(event)

    def probe_is_over(self) -> None:
        """Its code has gone as far as it can, and the worker lives."""
        self.probe = Probe.NONE
        nothing_begins = not (self.steps.to_schedule or self.steps.inflight)  # of its steps, which may be what kills
        if self.code.execution is not None and nothing_begins and not self.state.released:
            self.steps.suspicion.progressed()

    # -- leaving

    def release(self, now: int) -> None:
        """Let go of a run that only waits, or that needs nothing."""
        if self.code.execution is None or self.row.status in HELD or self.state.is_final():
            self.code.leave({})
            return
        self.code.leave({"status": Status.WAITING, "reason": self.code.waiting_for(), "wake_at": self.code.next_due()})

    def refuse(self, now: int, error: BaseException) -> None:
        """What it has come to can't be written, or can't be executed: no worker can go on with it until its code is
        corrected."""
        self.state.released = False
        self._set_aside(now, error, "diverged")
        if self._was_refused:
            leaving.write_the_least(self.state, now, error)
        self._was_refused = True

    def cannot_schedule(self, now: int, error: BaseException) -> None:
        """This worker's code lacks a step."""
        self._set_aside(now, error, "diverged")

    def _is_terminated(self, now: int) -> bool:
        """End it, if that was ordered."""
        message = self.state.inbox.termination
        if message is None or self.state.is_final():
            return False
        if self.code.execution is None:
            with contextlib.suppress(DecodeError):  # damaged: the run ends all the same
                self.opening.read_history()
        leaving.terminate(self.state, message, self.code.execution if self.code.replay is None else None, now)
        self.code.evict()
        return True

    def _set_aside(self, now: int, error: BaseException, stuck: str) -> bool:
        """Whether there is more to do."""
        if self.code.execution is not None:
            self.code.execution.journal.take()
        leaving.set_aside(self.state, now, error, stuck, has_code=self.code.execution is not None)
        self.code.evict()
        return bool(self.deliveries)
