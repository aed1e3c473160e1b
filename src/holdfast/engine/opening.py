"""What a run that was just claimed needs: nothing, an answer to those who have ordered something of it, or its code."""

from __future__ import annotations

from enum import Enum
from typing import Any

import msgspec
from msgspec import Raw

from holdfast.core import events as ev
from holdfast.core.execution import Execution
from holdfast.core.run_info import RunInfo
from holdfast.engine.records import SlotMessage, child_message
from holdfast.engine.run_inbox import Delivery, is_order
from holdfast.engine.run_state import HELD, RunState, terms_of
from holdfast.errors import DamagedHistoryError, DecodeError, UnknownNameError, WorkerLostError
from holdfast.ports import AHEAD, Claimed, InboxRow, Status

A_MOMENT = 1_000_000
"""A run that has waited longer for its first worker records when its time begins."""

BEFORE_THE_CODE = (ev.RunStarted, ev.RunTakenUp, ev.RunProbed, ev.MessageDropped, ev.RunPaused, ev.RunResumed)

MAX_PROBES = 2
"""Code that has taken so many workers down after the first is not activated again before a person has looked."""


class Needs(Enum):
    """What comes of opening a run."""

    NOTHING = "nothing"  # it is let go again
    PROBE = "probe"  # its code may have taken a worker down: that it goes on is announced first
    CODE = "code"


class Opening:
    """`blame` is how many workers were lost right after its code was announced to go on. Damage that nothing can be done
    about is raised."""

    __slots__ = ("_damage", "_is_new", "_payloads", "_state", "blame", "resumed")

    def __init__(self, claimed: Claimed, damage: str, state: RunState) -> None:
        self._state = state
        self._damage = damage
        self._is_new = claimed.is_first
        self._payloads = claimed.payloads
        self.resumed = len(claimed.payloads) > 1
        self.blame = 0

    def open(self, now: int) -> Needs:
        state = self._state
        self.read_history()
        gap = self._find_gap()
        if (state.row.status in HELD or state.is_final()) and not self._handle_while_held(now):
            state.leave({})
            return Needs.NOTHING
        if gap is not None:
            raise gap
        last = next(e for e in reversed(state.history) if isinstance(e, ev.Beginning | ev.AttemptFailed))
        begins_at = self._begins_at(last, now)
        if begins_at > now:
            self._wait_to_begin(now, begins_at, last)
            return Needs.NOTHING
        if not self._has_turn(now, last):
            return Needs.NOTHING
        if not state.row.durable:  # it begins anew, and asks for its steps again
            state.steps.elsewhere.drop_all()
        if self._has_expired(now):
            self._end_unbegun(now, "it expired before a worker began it")
            return Needs.NOTHING
        if isinstance(last, ev.AttemptFailed):
            state.begin_attempt(now)
        elif self._waited_for_a_worker(now, last):
            state.append(ev.RunTakenUp(ts=now))
        elif not state.row.durable and state.row.losses and not self._begin_anew_after_loss(now):
            return Needs.NOTHING
        if state.steps.suspicion.cautious and state.row.durable:
            self._weigh_probes()
            return Needs.PROBE
        return Needs.CODE

    def read_history(self) -> None:
        if self._damage:
            raise DecodeError(self._damage)
        try:
            self._state.history = [ev.from_json(payload) for payload in self._payloads]
        except msgspec.DecodeError as error:
            raise DecodeError(
                f"an event in the history of run {self._state.row.id} can't be read: {error}; cancel the run, or restore the "
                "store from a backup and resume it"
            ) from error
        self._payloads = []

    def _find_gap(self) -> DamagedHistoryError | None:
        """What is missing from the history: numbers have no gaps, and the run's row says up to where there were some."""
        state = self._state
        history, first = state.history, state.row.base_seq
        state.change.last_committed = max(history[-1].seq if history else first, state.row.end_seq)
        if not state.row.durable or state.change.last_committed == first + len(history) - 1:
            return None
        there = {event.seq for event in history}
        missing = [seq for seq in range(first, state.change.last_committed + 1) if seq not in there]
        few = ", ".join(map(str, missing[:5])) + (f" and {len(missing) - 5} more" if len(missing) > 5 else "")
        return DamagedHistoryError(
            f"the store has lost {'event' if len(missing) == 1 else 'events'} {few} of run {state.row.id}, without which its "
            "code would do things again that were done; bring the store back from a backup, or cancel or delete the run"
        )

    def _weigh_probes(self) -> None:
        """Whether its code has taken down enough workers; then it is not activated again."""
        row = self._state.row
        announced = set()  # a worker that had no answer to its commit has announced twice
        for event in reversed(self._state.history):
            if not isinstance(event, ev.RunProbed):
                break
            announced.add(event.worker)
        # The first loss of a row came unannounced, and a worker that stops in peace counts none.
        self.blame = min(len(announced), row.losses - 1)
        if self.blame >= MAX_PROBES:
            raise WorkerLostError(
                f"the code of workflow {row.workflow!r} took its worker down {row.losses} times, each time before "
                "anything more was recorded; look at what it does to its process (memory, native code, os._exit), move that "
                "into a step, then resume the run"
            )

    def start_code(self) -> Execution:
        """The run's code, at the beginning of its history."""
        state, row, shared = self._state, self._state.row, self._state.shared
        program = state.program()
        state.terms = terms_of(program, state.options)
        same_build = None
        if row.build and not any(isinstance(event, ev.RunStuck) for event in state.history):
            same_build = row.build == shared.me.build  # who sets a run aside signs it, too
        info = RunInfo(
            run_id=row.id, run_no=row.no, app=row.app, parent_id=row.parent_id, root_id=row.root_id or row.id,
            secret=shared.me.secret, durable=row.durable, same_build=same_build,
            is_new=self._is_new,
        )  # fmt: skip
        return Execution(info, program, shared.app.codec, shared.greenlets)

    def seen(self) -> int:
        """Up to which event its code has seen its history: what was committed when the run was claimed. A new run's has seen
        nothing."""
        return 0 if self._is_new and not self._has_begun() else self._state.change.last_committed

    # -- whether its time has come

    def _begins_at(self, last: ev.Event, now: int) -> int:
        """When the run, or its next attempt, is to begin; 0 if it has begun."""
        if isinstance(last, ev.AttemptFailed):
            return last.retry_at - self._set_back_since(last, now)
        return 0 if self._has_begun() else last.ts

    def _set_back_since(self, failed: ev.AttemptFailed, now: int) -> int:
        """By how much the clock was set back since an attempt has failed. Once that is noted, its delay counts from then."""
        state = self._state
        by = sum(event.by for event in state.history if isinstance(event, ev.ClockSetBack) and event.seq > failed.seq)
        more = failed.ts - by - now
        if more <= AHEAD:
            return by
        if state.row.durable:
            state.append(ev.ClockSetBack(ts=now, by=more))
        return by + more

    def _has_begun(self) -> bool:
        return any(not isinstance(e, BEFORE_THE_CODE) for e in self._state.history)

    def _has_begun_attempt(self) -> bool:
        for event in reversed(self._state.history):
            if isinstance(event, ev.RunStarted | ev.AttemptStarted | ev.AttemptFailed):
                return False
            if not isinstance(event, BEFORE_THE_CODE):
                return True
        return False

    def _has_expired(self, now: int) -> bool:
        """Whether it is too late to begin. One that another worker has had may have begun."""
        expires = self._state.options.expires
        return expires is not None and now >= expires and self._is_new and not self._has_begun()

    def _end_unbegun(self, now: int, reason: str) -> None:
        state = self._state
        state.read_terms()
        end = ev.RunCancelled(ts=now, reason=reason)
        if state.row.durable:
            state.change.append(end)
        state.end(end, now)

    def _waited_for_a_worker(self, now: int, last: ev.Event) -> bool:
        """Whether its code was not executed before, and it was to begin some time ago."""
        return self._is_new and self._state.row.durable and not self._has_begun() and now - last.ts > A_MOMENT

    def _has_turn(self, now: int, last: ev.Event) -> bool:
        """Whether a run that is to begin has the slots of its workflow's limits; if not it waits in their lines."""
        state = self._state
        slots = state.steps.slots
        if self._has_begun_attempt():
            return True
        try:
            definition = state.shared.app.find_workflow(state.row.workflow)
        except UnknownNameError:  # a single step, or unknown here: that is found out later
            return True
        if not definition.limits and "" not in slots:
            return True
        for message in state.inbox.messages("slot"):
            state.inbox.deliveries.remove(message)
            state.change.consumed.append(message.id)
            told = state.read(message, state.append, now)
            if isinstance(told, SlotMessage) and told.refused:
                state.end_outside(ev.RunCancelled(ts=now, reason=told.refused), now)
                return False
        if slots.has("", definition, last.input if isinstance(last, ev.RunStarted) else self._input):
            return True
        self._wait_to_begin(now, None, last)
        return False

    def _input(self) -> Raw:
        return next(e.input for e in reversed(self._state.history) if isinstance(e, ev.RunStarted | ev.ContinuedAsNew))

    def _wait_to_begin(self, now: int, begins_at: int | None, last: ev.Event) -> None:
        """Something was ordered of a run whose time has not come, or whose turn (when that is, is not known). All
        else stays in its inbox until then."""
        state = self._state
        untouched: dict[str, Any] = {} if isinstance(last, ev.AttemptFailed) else {"started_at": None}
        for message in state.inbox.deliveries:
            if not isinstance(message, InboxRow) or not is_order(message):
                continue
            state.change.consumed.append(message.id)
            body = state.read(message, state.append, now)
            if body is None:
                continue
            if message.kind == "cancel":
                state.end_outside(ev.RunCancelled(ts=now, reason=body.reason, by=body.by), now)
                return
            if message.kind == "pause":
                state.append(ev.RunPaused(ts=now, reason=body.reason, by=body.by))
                state.leave({"status": Status.PAUSED, "held": 1, "reason": body.reason, "wake_at": None, **untouched})
                state.steps.slots.give_others_back(())
                return
            state.notify_later(body)
        status = Status.PENDING if untouched else Status.RETRY
        if begins_at is None:
            untouched["reason"] = state.steps.slots.waiting().get("", "")
        state.leave({"status": status, "wake_at": begins_at, **untouched})

    def _begin_anew_after_loss(self, now: int) -> bool:
        """A run without a history can only begin anew, if it may be retried at all."""
        state = self._state
        error = WorkerLostError(f"the worker of run {state.row.id} was lost, and with durable=False nothing was kept")
        if state.program().retry_delay(error, state.row.attempt) is None:
            state.end_outside(ev.RunFailed(ts=now, error=Raw(state.shared.app.codec.encode_error(error))), now)
            return False
        state.begin_attempt(now)
        state.steps.slots.give_others_back([""])
        state.change.columns["losses"] = state.row.losses = 0
        return True

    # -- orders, while it is held or has ended

    def _handle_while_held(self, now: int) -> bool:
        """Messages to a run that is held or has ended; whether its code is needed now."""
        state = self._state
        opened = False
        kept: list[Delivery] = []
        for message in state.inbox.deliveries:
            if opened or not isinstance(message, InboxRow) or not is_order(message):
                if not state.is_final() or opened:
                    kept.append(message)
                elif isinstance(message, InboxRow):
                    state.change.consumed.append(message.id)
                continue
            state.change.consumed.append(message.id)
            state.inbox.orders.append(message.id)
            body = state.read(message, state.append, now)
            if body is None or not state.notify_later(body):
                continue
            if message.kind == "watch":
                if state.is_final():
                    state.change.messages.append(child_message(state.row, state.history[-1]))
            elif message.kind == "retry" and state.row.status in (Status.FAILURE, Status.CANCELLED):
                self._reopen(now, body.by)
                opened = True
            elif message.kind == "retry" and state.is_final():  # it has succeeded meanwhile
                state.change.messages.append(child_message(state.row, state.history[-1]))
            elif message.kind == "cancel" and state.row.stuck == "lost":  # not even its clean-up may run
                state.end_outside(ev.RunCancelled(ts=now, reason=body.reason, by=body.by), now)
                break
            elif state.row.status == Status.PAUSED and message.kind == "pause" and body.children:
                state.tell_children(None, "pause", body.reason, body.by)
            elif state.row.status in HELD and message.kind in ("resume", "retry", "cancel"):
                if body.children:
                    state.tell_children(None, message.kind, "", body.by)
                state.append(ev.RunResumed(ts=now, by=body.by))
                state.unhold()
                opened = True
                if message.kind == "cancel":
                    kept.append(message)
        state.inbox.deliveries.clear()
        state.inbox.deliveries.extend(kept)
        return opened

    def _reopen(self, now: int, by: str) -> None:
        """A new attempt of a run that had failed or was cancelled."""
        state = self._state
        state.begin_attempt(now, by)
        state.unhold()
        state.change.columns |= {"finished_at": None, "expires_at": None, "end_seq": 0}
