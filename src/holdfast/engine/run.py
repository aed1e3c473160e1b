"""One run in memory: what arrives for it becomes events, what its code asks for becomes a change to commit.

Nothing here touches the store or the executor; the engine does, with what `LiveRun` says.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
import logging
from collections import deque
from collections.abc import Iterator
from enum import Enum
from typing import Any

import msgspec
from msgspec import Raw

from holdfast.core import commands as co
from holdfast.core import events as ev
from holdfast.core.definitions import WorkflowOptions
from holdfast.core.execution import Execution
from holdfast.core.loop import Greenlets
from holdfast.core.pending import FLAGS
from holdfast.core.registry import Definitions
from holdfast.durations import in_words
from holdfast.engine import failures
from holdfast.engine.change import PendingChange
from holdfast.engine.domain_events import emission_of, news_of, wait_of
from holdfast.engine.guard import Guard
from holdfast.engine.identity import Identity
from holdfast.engine.limits import Slots
from holdfast.engine.programs import program_for
from holdfast.engine.records import (
    LETTERS,
    PRIORITY_HEAD_START,
    AnswerBody,
    AskLetter,
    BeatLetter,
    ChildLetter,
    ControlLetter,
    HookLetter,
    OutcomeLetter,
    RunOptions,
    SlotLetter,
    StreamLetter,
    UndeliveredLetter,
    ask_child,
    child_message,
    control,
    correlation_of,
    data_attribute,
    fingerprint,
    not_a_child,
    outcome_message,
    sent_hook,
    status_of,
    to_record,
)
from holdfast.engine.reporting import Reporter
from holdfast.engine.steps import StepBook
from holdfast.engine.termination import children_left, hooks_left
from holdfast.errors import (
    DamagedHistoryError,
    DecodeError,
    NondeterminismError,
    Suspended,
    UnknownNameError,
    WorkerLostError,
    WorkflowBlocked,
)
from holdfast.ports import (
    AHEAD,
    Answer,
    Change,
    Claimed,
    Clock,
    Letter,
    Message,
    NewRun,
    Outcome,
    RunRow,
    Status,
    Unsubscription,
)
from holdfast.printing import printable, text_of

logger = logging.getLogger("holdfast.engine")


A_MOMENT = 1_000_000
"""A run that has waited longer for its first worker records when its time begins."""

BEFORE_THE_CODE = (ev.RunStarted, ev.RunTakenUp, ev.RunProbed, ev.MessageDropped, ev.RunPaused, ev.RunResumed)

MAX_PROBES = 2
"""Code that has taken so many workers down after the first is not activated again before a person has looked."""

HELD = (Status.PAUSED, Status.STUCK)
Delivery = Outcome | Letter


class Home(msgspec.Struct, frozen=True, gc=False):
    """What all runs in one engine share."""

    app: Definitions
    greenlets: Greenlets
    guard: Guard
    me: Identity
    clock: Clock
    reporter: Reporter


class Probe(Enum):
    """Where a run that has lost its worker stands: whether its code may be activated. One at a time is announced."""

    NONE = "none"
    WANTED = "wanted"
    ANNOUNCED = "announced"


def read_options(row: RunRow) -> tuple[RunOptions, str]:
    """The options of a run, and what is wrong with them."""
    try:
        return msgspec.json.decode(row.options, type=RunOptions), ""
    except msgspec.DecodeError as error:
        return RunOptions(), f"the options of run {row.id} in the store can't be read: {error}"


class LiveRun:
    """A run this engine owns. `advance` brings it forward, `take_change` says what to commit."""

    def __init__(self, claimed: Claimed, home: Home) -> None:
        row = claimed.row
        self.row = row
        self.home = home
        self.options, self.damage = read_options(row)
        self.change = PendingChange(row.no, max(row.base_seq + len(claimed.payloads) - 1, row.end_seq))
        slots = Slots(row, claimed.slots, home.me, home.app.codec, self.change)
        self.steps = StepBook(row, home.app, home.me, home.clock, self.change, slots, claimed.attempts)
        self.execution: Execution | None = None
        self.deliveries: deque[Delivery] = deque(claimed.letters)
        self.shown: str = row.status
        self.replay_seconds = 0.0
        self.probe = Probe.NONE
        self.blame = 0  # how many workers were lost right after its code was announced to go on
        self.released = False
        self.broken = False
        self.resumed = len(claimed.payloads) > 1
        self._is_new = claimed.is_first
        self._payloads = claimed.payloads
        self._seen: set[int] = {letter.id for letter in claimed.letters}
        self._replay: Iterator[None] | None = None
        self._history: list[ev.AnyEvent] = []
        self._orders: list[int] = []
        self._termination = next((letter for letter in claimed.letters if letter.kind == "terminate"), None)
        self._cancel: Letter | None = None  # was read, and is not committed yet
        self._timeout: int | None = None
        self._retain = WorkflowOptions().retain
        self._keep_generations: int | None = None
        self._attempts: int | None = 1
        self._refused = False

    @property
    def log_fields(self) -> dict[str, str]:
        """What the engine's own records about this run carry."""
        return {"run_id": self.row.id, "workflow": self.row.workflow}

    def next_due(self) -> int | None:
        """When time alone will bring this run forward."""
        if self.execution is None:
            return None
        due = self.execution.next_due()
        if not self.steps.retries and self._timeout is None:
            return due
        dues = [due] if due is not None else []
        if self.steps.retries:
            dues.append(self.steps.retries[0][0])
        if self._timeout is not None and self.execution.cancelling is None:
            dues.append(self.execution.started_at + self._timeout)
        return min(dues, default=None)

    def is_idle(self) -> bool:
        """Whether it only waits, be it for steps elsewhere."""
        steps = self.steps
        return not (steps.inflight or self.deliveries or steps.to_schedule or steps.to_ask) and self._replay is None

    def show_status(self, reason: str) -> None:
        status = Status.WAITING if reason else Status.RUNNING
        if (self.shown, self.row.reason) != (status, reason):
            self.shown, self.row.reason = status, reason
            self.change.columns |= {"status": status, "reason": reason}

    def evict(self) -> None:
        """Take its code out of memory."""
        if self.execution is not None:
            self.execution.evict()

    # -- committing

    def take_change(self) -> Change:
        change, row = self.change.take(), self.row
        if change.records and row.build != self.home.me.build:
            change.columns["build"] = row.build = self.home.me.build
        if change.columns and row.durable:  # as the row is written anyway, it says where the history ends
            change.columns.setdefault(
                "end_seq", change.records[-1].seq if change.records else self.change.last_committed
            )
        return change

    def confirmed(self, change: Change) -> None:
        """The change is committed: outcomes in it are safe."""
        if self.steps.unconfirmed:
            self.steps.unconfirmed.clear()
        if self._orders:
            self._orders.clear()
        self._cancel = None
        if change.records:
            self.change.last_committed = change.records[-1].seq

    def unsure(self, change: Change) -> None:
        """Nobody knows whether the change was committed; this run must not go on before that is known."""
        self.broken = True
        self.change.put_back(change)

    def carry_over(self, earlier: LiveRun) -> None:
        """Go on from what an earlier self had in hand when it had to be read again. Only the owner writes a history,
        so if it has grown then all that was not confirmed is in it."""
        steps, before = self.steps, earlier.steps
        steps.inflight = before.inflight
        steps.not_handed_over = before.not_handed_over | set(before.to_schedule)
        self.deliveries.extend(arrival for arrival in earlier.deliveries if isinstance(arrival, Outcome))
        if self.change.last_committed > earlier.change.last_committed:
            steps.to_cancel = before.to_cancel
        else:
            self.deliveries.extendleft(reversed(before.unconfirmed))
            again = [outcome.attempt for outcome in before.unconfirmed] + before.to_cancel
            steps.inflight |= {attempt.cmd: attempt for attempt in again}
            self.change.streamed = [item for item in earlier.change.streamed if item[0] in steps.inflight]
        for kind, cmd, body in earlier.change.attributes:
            if kind in ("checkpoint", "progress") and cmd in steps.inflight:
                steps.report(kind, cmd, body)

    def idempotency_key(self, command: co.ScheduleStep) -> str:
        """The same for every attempt of a step, also if the whole workflow is retried, and for no other step."""
        assert self.execution is not None
        return f"{self.row.id}:{command.origin}:{self.execution.mark}"

    def stream(self, cmd: str, attempt: int, now: int, item: bytes) -> None:
        self.change.streamed.append((cmd, attempt, now, item))

    def has_items_waiting(self) -> bool:
        """Whether something that a step has streamed is in its inbox yet."""
        return any(isinstance(each, Letter) and each.kind == "stream" for each in self.deliveries)

    def note_started(self, cmd: str, started: int) -> None:
        """A step that takes its time is shown as started."""
        step = self.execution.steps.get(cmd) if self.execution is not None else None
        if step is not None:
            self._take_all(self.steps.started(step.command, started), started)

    # -- going forward

    def advance(self, now: int, budget: float) -> bool:
        """Deliver what has arrived, for at most `budget` seconds; whether there is more to do."""
        end = self.home.clock.monotonic() + budget
        try:
            if self.released or (self._termination is not None and self._is_terminated(now)):
                return False
            if (self.steps.cautious or self.probe is not Probe.NONE) and self._waits_for_probe(now):
                return False
            if self.execution is None and not self._open(now):
                return False
            if self._replay is not None and not self._caught_up(now, end):
                return not self.released
            more = self._deliver_arrivals(now, end)
            if not (more or self.released):
                more = self._fire_timers(now, end)
            # A run that continued as new has stopped taking what arrived: there may be more.
            if self._replay is not None and not self._caught_up(now, end):
                more = True
            more = (more or bool(self.deliveries)) and not self.released
        except (NondeterminismError, DecodeError) as error:
            self._set_aside(now, error, "diverged")
            return bool(self.deliveries)
        except DamagedHistoryError as error:
            self._set_aside(now, error, "damaged")
            return bool(self.deliveries)
        except WorkflowBlocked as error:
            self._set_aside(now, error, "blocked")
            return bool(self.deliveries)
        except Exception as error:  # whatever it is, it must not end the worker, and then the next one
            logger.exception("run %s can't go on", self.row.id, extra=self.log_fields)
            self._set_aside(now, error, "diverged")
            return bool(self.deliveries)
        except (GeneratorExit, Suspended) as error:  # our own words, in the mouth of somebody else's code
            self._set_aside(now, error, "diverged")
            return bool(self.deliveries)
        return more

    def _caught_up(self, now: int, end: float) -> bool:
        """Whether the code is where its history ends; a run that continues as new begins again here."""
        while self._replay is not None and not self.released:
            if self.home.clock.monotonic() > end or not self._catch_up(now, end):
                return False
        return not self.released

    def _open(self, now: int) -> bool:
        """Decide what a run that was just claimed needs: nothing, an answer, or its code."""
        if self.probe is Probe.ANNOUNCED:
            self._start_execution()
            return True
        self._read_history()
        gap = self._find_gap()
        if (self.row.status in HELD or Status(self.row.status).is_final) and not self._handle_at_the_door(now):
            self.release(now)
            return False
        if gap is not None:
            raise gap
        last = next(e for e in reversed(self._history) if isinstance(e, ev.Beginning | ev.AttemptFailed))
        begins_at = self._begins_at(last)
        if begins_at > now:
            self._wait_to_begin(now, begins_at, last)
            return False
        if not self._has_turn(now, last):
            return False
        if not self.row.durable:  # it begins anew, and asks for its steps again
            self.steps.drop_elsewhere()
        if self._has_expired(now):
            self._end_unbegun(now, "it expired before a worker began it")
            return False
        if isinstance(last, ev.AttemptFailed):
            self._begin_attempt(now)
        elif self._waited_for_a_worker(now, last):
            self._append_outside(ev.RunTakenUp(ts=now))
        elif not self.row.durable and self.row.losses and not self._begin_anew_after_loss(now):
            return False
        if self.steps.cautious and self.row.durable:
            if not self._is_killer(now):
                self.probe = Probe.WANTED
            return False
        self._start_execution()
        return True

    def _read_history(self) -> None:
        if self.damage:
            raise DecodeError(self.damage)
        try:
            self._history = [ev.from_json(payload) for payload in self._payloads]
        except msgspec.DecodeError as error:
            raise DecodeError(
                f"an event in the history of run {self.row.id} can't be read: {error}; cancel the run, or restore the store "
                "from a backup and resume it"
            ) from error
        self._payloads = []

    def _find_gap(self) -> DamagedHistoryError | None:
        """What is missing from the history: numbers have no gaps, and the run's row says up to where there were some."""
        history, first = self._history, self.row.base_seq
        self.change.last_committed = max(history[-1].seq if history else first, self.row.end_seq)
        if not self.row.durable or self.change.last_committed == first + len(history) - 1:
            return None
        there = {event.seq for event in history}
        missing = [seq for seq in range(first, self.change.last_committed + 1) if seq not in there]
        few = ", ".join(map(str, missing[:5])) + (f" and {len(missing) - 5} more" if len(missing) > 5 else "")
        return DamagedHistoryError(
            f"the store has lost {'event' if len(missing) == 1 else 'events'} {few} of run {self.row.id}, without which its code "
            "would do things again that were done; bring the store back from a backup, or cancel or delete the run"
        )

    # -- code that may have taken its worker down

    def _waits_for_probe(self, now: int) -> bool:
        """Whether the code would go on only after that was announced: until it has made progress, whatever reaches it
        may be what made it take a worker down."""
        if self.probe is Probe.NONE and self.steps.cautious and self.execution is not None and self.row.durable:
            due = self.next_due()
            if self.deliveries or (due is not None and due <= now):
                self.probe = Probe.WANTED
        return self.probe is Probe.WANTED

    def _is_killer(self, now: int) -> bool:
        """Whether its code has taken down enough workers; then it is set aside."""
        announced = itertools.takewhile(lambda event: isinstance(event, ev.RunProbed), reversed(self._history))
        # The first loss of a row came unannounced, and a worker that stops in peace counts none.
        self.blame = min(sum(1 for _ in announced), self.row.losses - 1)
        if self.blame < MAX_PROBES:
            return False
        error = WorkerLostError(
            f"the code of workflow {self.row.workflow!r} took its worker down {self.row.losses} times, each time before "
            "anything more was recorded; look at what it does to its process (memory, native code, os._exit), move that into "
            "a step, then resume the run"
        )
        self._set_aside(now, error, "lost")
        return True

    def announce_probe(self, now: int) -> None:
        """From the commit of this on, the run's code may be activated. Outcomes that it is to see are safe by then."""
        self.probe = Probe.ANNOUNCED
        self._keep_outcomes(self.steps.kept(self.deliveries))
        event = ev.RunProbed(ts=now, worker=self.home.me.worker)
        if self.execution is None:
            self._append_outside(event)
        else:
            self._note(event)

    def probe_is_over(self) -> None:
        """Its code has gone as far as it can, and the worker lives."""
        self.probe = Probe.NONE
        nothing_begins = not (self.steps.to_schedule or self.steps.inflight)  # of its steps, which may be what kills
        if self.execution is not None and nothing_begins and not self.released:
            self.steps.progressed()

    def _begins_at(self, last: ev.Event) -> int:
        """When the run, or its next attempt, is to begin; 0 if it has begun."""
        if isinstance(last, ev.AttemptFailed):
            return last.retry_at
        return 0 if self._has_begun() else last.ts

    def _has_begun(self) -> bool:
        return any(not isinstance(e, BEFORE_THE_CODE) for e in self._history)

    def _has_expired(self, now: int) -> bool:
        """Whether it is too late to begin. One that another worker has had may have begun."""
        expires = self.options.expires
        return expires is not None and now >= expires and self._is_new and not self._has_begun()

    def _end_unbegun(self, now: int, reason: str) -> None:
        self._retain = self._retain_of_code()
        end = ev.RunCancelled(ts=now, reason=reason)
        if self.row.durable:
            self.change.append(end)
        self._end(end, now)

    def _waited_for_a_worker(self, now: int, last: ev.Event) -> bool:
        """Whether nobody has executed its code before, and it was to begin some time ago."""
        return self._is_new and self.row.durable and not self._has_begun() and now - last.ts > A_MOMENT

    def _has_turn(self, now: int, last: ev.Event) -> bool:
        """Whether a run that is to begin has the slots of its workflow's limits; if not it waits in their lines."""
        slots = self.steps.slots
        if self._has_begun_attempt():
            return True
        try:
            definition = self.home.app.find_workflow(self.row.workflow)
        except UnknownNameError:  # a single step, or nobody's: that is found out later
            return True
        if not definition.limits and "" not in slots:
            return True
        for letter in [each for each in self.deliveries if isinstance(each, Letter) and each.kind == "slot"]:
            self.deliveries.remove(letter)
            self.change.consumed.append(letter.id)
            told = self._read_letter(letter, now)
            if isinstance(told, SlotLetter) and told.refused:
                self._end_outside(ev.RunCancelled(ts=now, reason=told.refused), now)
                return False
        if slots.has("", definition, last.input if isinstance(last, ev.RunStarted) else self._input):
            return True
        self._wait_to_begin(now, None, last)
        return False

    def _input(self) -> Raw:
        return next(e.input for e in reversed(self._history) if isinstance(e, ev.RunStarted | ev.ContinuedAsNew))

    def _has_begun_attempt(self) -> bool:
        for event in reversed(self._history):
            if isinstance(event, ev.RunStarted | ev.AttemptStarted | ev.AttemptFailed):
                return False
            if not isinstance(event, BEFORE_THE_CODE):
                return True
        return False

    def _wait_to_begin(self, now: int, begins_at: int | None, last: ev.Event) -> None:
        """Somebody ordered something of a run whose time has not come, or whose turn (then nobody knows when that is). All
        else stays in its inbox until then."""
        untouched: dict[str, Any] = {} if isinstance(last, ev.AttemptFailed) else {"started_at": None}
        for letter in self.deliveries:
            if not isinstance(letter, Letter) or LETTERS.get(letter.kind, ControlLetter) is not ControlLetter:
                continue
            self.change.consumed.append(letter.id)
            body = self._read_letter(letter, now)
            if body is None:
                continue
            if letter.kind == "cancel":
                self._end_outside(ev.RunCancelled(ts=now, reason=body.reason, by=body.by), now)
                return
            if letter.kind == "pause":
                self._append_outside(ev.RunPaused(ts=now, reason=body.reason, by=body.by))
                self._leave({"status": Status.PAUSED, "held": 1, "reason": body.reason, "wake_at": None, **untouched})
                self.steps.slots.give_others_back(())
                return
            self._notify_later(body)
        status = Status.PENDING if untouched else Status.RETRY
        if begins_at is None:
            untouched["reason"] = self.steps.slots.waiting().get("", "")
        self._leave({"status": status, "wake_at": begins_at, **untouched})

    def _begin_attempt(self, now: int, by: str = "") -> None:
        """Begin again, with everything earlier attempts have achieved at hand."""
        self.row.attempt += 1
        self._append_outside(ev.AttemptStarted(ts=now, attempt=self.row.attempt, by=by))
        self.change.columns["attempt"] = self.row.attempt

    def _begin_anew_after_loss(self, now: int) -> bool:
        """A run without a history can only begin anew, if it may be retried at all."""
        error = WorkerLostError(f"the worker of run {self.row.id} was lost, and with durable=False nothing was kept")
        if program_for(self.home.app, self.row.workflow, self.options).retry_delay(error, self.row.attempt) is None:
            self._end_outside(ev.RunFailed(ts=now, error=Raw(self.home.app.codec.encode_error(error))), now)
            return False
        self._begin_attempt(now)
        self.steps.slots.give_others_back([""])
        self.change.columns["losses"] = self.row.losses = 0
        return True

    def _start_execution(self) -> None:
        program = program_for(self.home.app, self.row.workflow, self.options)
        self._timeout = program.timeout
        self._retain = program.settings.retain
        self._keep_generations = program.settings.keep_generations
        retries = self.options.max_retries if self.options.max_retries is not None else program.settings.max_retries
        self._attempts = None if retries is None else retries + 1
        self.execution = Execution(self.row.id, program, self.home.app.codec, self.home.greenlets)
        self.execution.on_background_error = self._background_error
        self.execution.app = self.row.app
        self.execution.parent_id = self.row.parent_id
        self.execution.root_id = self.row.root_id or self.row.id
        self.execution.secret = self.home.me.secret
        self.execution.run_no = self.row.no
        self.execution.durable = self.row.durable
        if self.row.build and not any(isinstance(event, ev.RunStuck) for event in self._history):
            self.execution.same_build = self.row.build == self.home.me.build  # who sets a run aside signs it, too
        # What was committed when this run was claimed is what its code has seen; a new run's has seen nothing.
        passed = 0 if self._is_new and not self._has_begun() else self.change.last_committed
        self._replay = self.execution.replay(self._history, passed)

    def _handle_at_the_door(self, now: int) -> bool:
        """Letters to a run that is held or has ended; whether its code is needed now."""
        opened = False
        kept: deque[Delivery] = deque()
        for letter in self.deliveries:
            if opened or not isinstance(letter, Letter) or LETTERS.get(letter.kind, ControlLetter) is not ControlLetter:
                if not Status(self.row.status).is_final or opened:
                    kept.append(letter)
                elif isinstance(letter, Letter):
                    self.change.consumed.append(letter.id)
                continue
            self.change.consumed.append(letter.id)
            self._orders.append(letter.id)
            body = self._read_letter(letter, now)
            if body is None or not self._notify_later(body):
                continue
            if letter.kind == "watch":
                if Status(self.row.status).is_final:
                    self.change.messages.append(child_message(self.row, self._history[-1]))
            elif letter.kind == "retry" and self.row.status in (Status.FAILURE, Status.CANCELLED):
                self._reopen(now, body.by)
                opened = True
            elif letter.kind == "retry" and Status(self.row.status).is_final:  # it has succeeded meanwhile
                self.change.messages.append(child_message(self.row, self._history[-1]))
            elif letter.kind == "cancel" and self.row.stuck == "lost":  # not even its clean-up may run
                self._end_outside(ev.RunCancelled(ts=now, reason=body.reason, by=body.by), now)
                break
            elif self.row.status == Status.PAUSED and letter.kind == "pause" and body.children:
                self._tell_children(None, "pause", body.reason, body.by)
            elif self.row.status in HELD and letter.kind in ("resume", "retry", "cancel"):
                if body.children:
                    self._tell_children(None, letter.kind, "", body.by)
                self._append_outside(ev.RunResumed(ts=now, by=body.by))
                self._unhold()
                opened = True
                if letter.kind == "cancel":
                    kept.append(letter)
        self.deliveries = kept
        return opened

    def _tell_children(self, there: Execution | None, kind: str, reason: str, by: str) -> None:
        """Pause or resume, with a run, the children that it waits for, and theirs."""
        why = f"its parent {self.row.id} was paused" + (f": {reason}" if reason else "") if kind == "pause" else ""
        for child_id in children_left(there, self._history):
            self.change.messages.append(control(child_id, kind, why, by=by, child_of=self.row.id, children=True))

    def _notify_later(self, body: ControlLetter) -> bool:
        """Tell the parent of the outcome, when there is one; False if it is not the parent who asks."""
        if not body.parent_cmd:
            return True
        if body.parent_id != self.row.parent_id:
            self.change.messages.append(not_a_child(self.home.app.codec, self.row.id, body.parent_id, body.parent_cmd))
            return False
        self.row.parent_cmd = body.parent_cmd
        self.options.notify = True
        self.change.columns |= {"parent_cmd": body.parent_cmd, "options": self.options.to_json()}
        return True

    def _unhold(self) -> None:
        self.row.status = Status.RUNNING
        self.shown = Status.RUNNING
        self.change.columns |= {"status": Status.RUNNING, "held": 0, "reason": "", "stuck": ""}

    def _reopen(self, now: int, by: str) -> None:
        """A new attempt of a run that had failed or was cancelled."""
        self._begin_attempt(now, by)
        self._unhold()
        self.change.columns |= {"finished_at": None, "expires_at": None, "end_seq": 0}

    def _append_outside(self, event: Any) -> None:
        """Append to a history whose code is not in memory."""
        event.seq = (self._history[-1].seq if self._history else self.change.last_committed) + 1
        self._history.append(event)
        self.change.records.append(to_record(event))

    def _catch_up(self, now: int, end: float) -> bool:
        """Replay, a slice at a time; whether the end of history is reached."""
        assert self.execution is not None
        assert self._replay is not None
        started = self.home.clock.monotonic()
        self.home.guard.enter(self.execution)
        try:
            for _ in self._replay:
                if self.home.clock.monotonic() > end:
                    return False
        finally:
            self.home.guard.leave()
            self.replay_seconds += self.home.clock.monotonic() - started
        self._replay = None
        self._weigh_losses()
        self._history = []
        self.steps.at_hand = set(map(self._outcome_of, self.deliveries))
        self._settle(now)
        if self.steps.elsewhere and not self.released:
            self.steps.drop_unasked({cmd: step.command for cmd, step in self.execution.steps.items()})
        return True

    def _outcome_of(self, arrival: Delivery) -> str:
        """The step whose outcome waits to be delivered, empty if it is something else."""
        if isinstance(arrival, Outcome):
            return arrival.attempt.cmd
        if arrival.kind != "outcome":
            return ""
        try:
            body: OutcomeLetter = msgspec.json.decode(arrival.body, type=OutcomeLetter)
        except msgspec.DecodeError:
            return ""
        return body.cmd if body.run_no == self.row.no else ""

    def _weigh_losses(self) -> None:
        assert self.execution is not None
        suspects = [s.command for s in self.execution.steps.values() if self.steps.is_suspect(s.command)]
        if suspects:
            # What is executed elsewhere has nothing to do with the workers that the run has lost.
            here = [command for command in suspects if self.steps.queue_elsewhere(command) is None]
            self.steps.suspicion.weigh(self._history if self.home.me.isolates else (), here, self.row.losses)

    def _deliver_arrivals(self, now: int, end: float) -> bool:
        while self.deliveries:
            arrival = self.deliveries.popleft()
            if isinstance(arrival, Letter):
                self._open_letter(arrival, now)
            else:
                self._take_outcome(arrival, now)
            if self.released or self._replay is not None:
                return False
            if self.home.clock.monotonic() > end:
                return bool(self.deliveries)
        return False

    def is_ahead(self, now: int) -> bool:
        """Whether the clock was set back since its code has seen the time, or a step of it was put off."""
        execution = self.execution
        return execution is not None and execution.latest - now - execution.ahead > AHEAD and self.row.durable

    def _fire_timers(self, now: int, end: float) -> bool:
        assert self.execution is not None
        execution = self.execution
        if self.is_ahead(now):
            self._note(ev.ClockSetBack(ts=now, by=execution.latest - now))
            self.steps.retries = [
                (execution.steps[cmd].command.not_before, cmd)
                for _, cmd in self.steps.retries
                if cmd in execution.steps
            ]
            heapq.heapify(self.steps.retries)
        if self._timeout is not None and now >= execution.started_at + self._timeout and not execution.cancelling:
            reason = f"run {self.row.id} took longer than its timeout of {in_words(self._timeout)}"
            self._deliver(ev.CancelRequested(ts=now, reason=reason, timed_out=True), now)
        while self._replay is None and not self.released:
            due = execution.next_due()
            if due is None or due > now:
                break
            if self.home.clock.monotonic() > end:
                return True
            timer = execution.next_timer()
            assert timer is not None
            timer.ts = now
            self._deliver(timer, now)
        while not self.released and self._replay is None and (cmd := self.steps.pop_due(now)):
            step = execution.steps.get(cmd)
            if step is not None and step.command.handed_over:
                self._take_all(self.steps.look_for_end(step.command, now), now)
            elif step is not None:
                step.command.not_before = 0
                self._schedule(step.command, now)
        return False

    def _deliver(self, event: ev.Event, now: int) -> None:
        """Let the code see an event, and take note of all it asks for."""
        assert self.execution is not None
        self.home.guard.enter(self.execution)
        try:
            self.execution.deliver(event)
            self.execution.settle(now)
        finally:
            self.home.guard.leave()
        self._collect_all(now)

    def _schedule(self, command: co.ScheduleStep, now: int) -> None:
        if not self.steps.schedule_at_once(command):
            self._take_all(self.steps.schedule(command, now), now)

    def _take_outcome(self, outcome: Outcome, now: int) -> None:
        assert self.execution is not None
        step = self.execution.steps.get(outcome.attempt.cmd)
        if step is not None and (completed := self.steps.take_success(outcome, step.command, now)) is not None:
            self._deliver(completed, now)
        else:
            self._take_all(self.steps.take(outcome, None if step is None else step.command, now), now)

    def _take_all(self, events: Iterator[ev.StepOutcome], now: int) -> None:
        """What happens to a step: the code sees it, or it is only noted."""
        for event in events:
            if event.delivered:
                self._deliver(event, now)
            else:
                self._note(event)

    def _note(self, event: ev.Event) -> None:
        assert self.execution is not None
        self.execution.note(event)
        self._collect()

    def _settle(self, now: int) -> None:
        assert self.execution is not None
        self.home.guard.enter(self.execution)
        try:
            self.execution.settle(now)
        finally:
            self.home.guard.leave()
        self._collect_all(now)

    def _collect_all(self, now: int) -> None:
        execution = self.execution
        assert execution is not None
        if execution.blocked_by:
            raise WorkflowBlocked(execution.blocked_by)
        self._collect(now)
        if execution.ended is not None:
            self._end(execution.ended, now)

    def _collect(self, now: int = 0) -> None:
        """Turn new events and commands into the change that will be committed."""
        assert self.execution is not None
        events, commands = self.execution.take()
        if self.row.durable:
            self.change.records += [to_record(event) for event in events]
        elif self.home.reporter.is_on:
            self.home.reporter.unrecorded(self.row, self.options, events)
        for event in events:
            if isinstance(event, ev.StepCompleted):
                if event.data:
                    for key, value in event.data.items():
                        self.change.publish(key, bytes(value))
                for one in event.emitted:
                    self._emit(one.name, one.key, one.payload, event.cmd, event.ts)
            elif isinstance(event, ev.StepFailed | ev.StepRefused):
                self._tell(event)
                if isinstance(event, ev.StepRefused):
                    failures.step_failed(self.row, self.home.app.codec, event)
        for command in commands:
            if not self.released:
                self._carry_out(command, now)

    def _carry_out(self, command: co.Command, now: int) -> None:
        change = self.change
        if isinstance(command, co.ScheduleStep):
            if command.handed_over:
                self.steps.await_end(command)
            elif command.not_before > now or command.started:
                # One that had started may turn out to be lost: its failure, and all that the code asks for then, has to
                # come after the commands that are carried out now.
                self.steps.schedule_later(command, now)
            else:
                self._schedule(command, now)
        elif isinstance(command, co.CancelStep):
            self.steps.drop(command.cmd)
        elif isinstance(command, co.StartChild):
            change.children.append(self._child(command, now))
            if command.again:
                change.messages.append(
                    ask_child(self.home.app.codec, command.child_id, "retry", self.row.id, command.cmd)
                )
        elif isinstance(command, co.WatchChild):
            change.messages.append(ask_child(self.home.app.codec, command.child_id, "watch", self.row.id, command.cmd))
        elif isinstance(command, co.CancelChild):
            change.messages.append(control(command.child_id, "cancel", command.reason, child_of=self.row.id))
        elif isinstance(command, co.OpenHook | co.CloseHook):
            if command.where is not None:
                opened = isinstance(command, co.OpenHook)
                change.signals.append(wait_of(command) if opened else Unsubscription(cmd=command.cmd))
            elif command.key:
                self.change.publish_hook_key(command.key, self._hooks_with(command.key))
        elif isinstance(command, co.EmitEvent):
            self._emit(command.name, command.key, command.payload, command.cmd, now)
        elif isinstance(command, co.StreamItem):
            self.stream(command.cmd, self.row.attempt, now, bytes(command.item))
        elif isinstance(command, co.PublishData):
            self.change.publish(command.key, bytes(command.value))
        elif isinstance(command, co.GiveAnswer):
            body = msgspec.json.encode(AnswerBody(answer=command.answer, error=command.error))
            change.answers.append(Answer(command.request, command.seq, body))
        elif isinstance(command, co.SendHook):
            change.messages.append(sent_hook(self.row.id, command.run_id, command.name, command.key, command.payload))

    def _hooks_with(self, key: str) -> list[str]:
        assert self.execution is not None
        return [hook.name for hook in self.execution.hooks.values() if hook.key == key]

    def _emit(self, name: str, key: str, payload: Raw, cmd: str, now: int) -> None:
        self.change.signals.append(emission_of(self.row, self.options, name, key, bytes(payload), cmd, now))

    def _tell(self, event: ev.Event) -> None:
        self.change.news += news_of(self.row, self.options, event, self.home.app.codec)

    def _child(self, command: co.StartChild, now: int) -> NewRun:
        options = RunOptions(
            timeout=command.options.get("timeout"),  # type: ignore[arg-type]
            max_retries=command.options.get("max_retries"),  # type: ignore[arg-type]
            notify=command.waited,
            trace=self.options.trace,
            quiet=self.options.quiet,
            headers=self.options.headers,
        )
        priority = int(command.options.get("priority", self.row.priority))  # type: ignore[call-overload]
        delay = int(command.options.get("delay", 0))  # type: ignore[call-overload]
        data: dict[str, Raw] = command.options.get("data", {})  # type: ignore[assignment]
        started = ev.RunStarted(
            seq=1,
            ts=now + delay,
            workflow=command.name,
            input=command.args,
            seed=int(self.home.clock.random() * 2**53),
            flags=FLAGS,
            data=data,
        )
        head_start = 0 if delay else priority * PRIORITY_HEAD_START  # it must not begin a delayed run early
        return NewRun(
            id=command.child_id, workflow=command.name, records=[to_record(started)],
            wake_at=now + delay - head_start, created_at=now, fingerprint=fingerprint(command.name, bytes(command.args)),
            priority=priority, parent_id=self.row.id, parent_cmd=command.cmd, root_id=self.row.root_id or self.row.id,
            correlation=correlation_of(self.row), options=options.to_json(), durable=bool(command.options.get("durable", True)),
            attributes=[data_attribute(key, bytes(value)) for key, value in data.items()],
            if_taken=self._refusal(command) if "id" in command.options and not command.again else None,
        )  # fmt: skip

    def _refusal(self, command: co.StartChild) -> Message:
        return not_a_child(self.home.app.codec, command.child_id, self.row.id, command.cmd)

    # -- letters

    def add_letter(self, letter: Letter) -> bool:
        if letter.id in self._seen:
            return False
        self._seen.add(letter.id)
        self.deliveries.append(letter)
        if letter.kind == "terminate":
            self._termination = letter
        return True

    def _open_letter(self, letter: Letter, now: int) -> None:
        assert self.execution is not None
        self.change.consumed.append(letter.id)
        body = self._read_letter(letter, now)
        if body is None:
            return
        if isinstance(body, HookLetter):
            if not (body.token and self.execution.was_answered(body.token)):
                self._deliver(
                    ev.HookReceived(
                        ts=now,
                        name=body.name,
                        key=body.key,
                        payload=body.payload,
                        token=body.token,
                        event=body.event,
                        by=body.by,
                    ),
                    now,
                )
        elif isinstance(body, AskLetter):
            self._deliver(ev.RequestReceived(ts=now, name=body.name, request=body.request, payload=body.payload), now)
        elif isinstance(body, UndeliveredLetter):
            logger.warning(
                "run %s: %s was not delivered: %s", self.row.id, body.message, body.reason, extra=self.log_fields
            )
            self._note(ev.MessageDropped(ts=now, message=body.message, reason=body.reason))
        elif isinstance(body, ChildLetter):
            self._open_child_letter(body, now)
        elif isinstance(body, OutcomeLetter):
            self._open_outcome_letter(body, now)
        elif isinstance(body, SlotLetter):
            step = self.execution.steps.get(body.cmd)
            if self.steps.slots.granted(body) and step is not None:
                self._schedule(step.command, now)
        elif isinstance(body, BeatLetter):
            step = self.execution.steps.get(body.cmd)
            if step is not None and body.run_no == self.row.no:
                self._take_all(self.steps.beat(body, step.command, now), now)
        elif isinstance(body, StreamLetter):
            if body.run_no == self.row.no:
                self.stream(body.cmd, body.attempt, body.ts, bytes(body.item))
        elif letter.kind == "cancel":
            self._cancel = letter
            if self.execution.cancelling is None:
                self._deliver(ev.CancelRequested(ts=now, reason=body.reason, by=body.by), now)
        elif letter.kind == "pause":
            if body.children:
                self._tell_children(self.execution, "pause", body.reason, body.by)
            self._hold(now, ev.RunPaused(ts=now, reason=body.reason, by=body.by), Status.PAUSED, body.reason, "")
        elif letter.kind in ("retry", "watch"):
            self._notify_later(body)

    def _read_letter(self, letter: Letter, now: int) -> Any:
        """What a message says; None if nobody can read it, which is recorded, so that it troubles nobody again."""
        try:
            return msgspec.json.decode(letter.body, type=LETTERS[letter.kind])
        except (msgspec.DecodeError, KeyError) as error:
            logger.warning("run %s: a message can't be read: %s", self.row.id, error, extra=self.log_fields)
            event = ev.MessageDropped(ts=now, message=printable(letter.kind), reason=printable(text_of(error)))
            if self.execution is None:
                self._append_outside(event)
            else:
                self._note(event)
            return None

    def _open_child_letter(self, body: ChildLetter, now: int) -> None:
        assert self.execution is not None
        child = self.execution.children.get(body.cmd)
        if child is None or child.child_id != body.child_id:
            return
        common: dict[str, Any] = {
            "ts": now, "cmd": child.cmd, "cause": child.cause, "name": child.name, "args": child.args,
            "child_id": child.child_id,
        }  # fmt: skip
        if body.status == Status.SUCCESS:
            self._deliver(ev.ChildCompleted(**common, result=body.result), now)
        elif body.status == Status.FAILURE:
            self._deliver(ev.ChildFailed(**common, error=body.error), now)
        else:
            self._deliver(ev.ChildCancelled(**common, reason=body.reason), now)

    def _open_outcome_letter(self, body: OutcomeLetter, now: int) -> None:
        """An outcome from the inbox: its engine had lost the run when it arrived."""
        assert self.execution is not None
        step = self.execution.steps.get(body.cmd)
        if step is not None and body.run_no == self.row.no:  # an earlier run may have had the same id
            self._take_all(self.steps.take_message(body, step.command, self.home.app.codec, now), now)

    # -- leaving

    def _end(self, end: ev.Event, now: int) -> None:
        if isinstance(end, ev.ContinuedAsNew):
            assert self.execution is not None
            self.steps.drop_elsewhere()
            self._history = [end]
            if self.row.durable:
                self._drop_generations(end.seq)
                self.change.columns["base_seq"] = self.row.base_seq = end.seq
            self.execution.evict()
            self.execution = None
            if not self._obey_at_last(now):
                self._start_execution()
            return
        if not self.row.durable:
            self._append_last(end)
        failures.run_failed(self.row, self.home.app.codec, end, self._attempts, self.change.records)
        self.steps.slots.give_others_back(())
        if isinstance(end, ev.AttemptFailed):
            self._leave({"status": Status.RETRY, "reason": "", "wake_at": end.retry_at, "attempt": end.attempt})
            return
        status = status_of(end)
        retain = self._retain
        if self.row.parent_id and self.options.notify:
            self.change.messages.append(child_message(self.row, end))
        self._tell(end)
        self._leave(
            {
                "status": status, "reason": getattr(end, "reason", ""), "wake_at": None, "finished_at": now,
                "end_seq": end.seq, "losses": 0,
                "expires_at": None if retain is None else now + retain,
            }
        )  # fmt: skip

    def _drop_generations(self, begins: int) -> None:
        """A new generation of the history begins: those that are too old are deleted with the same commit."""
        keep = self._keep_generations
        if keep is None:
            return
        earlier = [*self.options.generations, self.row.base_seq]
        self.options.generations = earlier[-keep:] if keep else []
        self.change.columns["options"] = self.options.to_json()
        self.change.forget_before = (self.options.generations or [begins])[0]

    def _obey_at_last(self, now: int) -> bool:
        """Cancel or pause a run that continues as new: code that does nothing else never comes to another moment."""
        for letter in self.deliveries:
            if isinstance(letter, Letter) and letter.kind in ("cancel", "pause"):
                self.deliveries.remove(letter)
                self.change.consumed.append(letter.id)
                body = self._read_letter(letter, now)
                if body is None:
                    return False
                if letter.kind == "cancel":
                    self._end_outside(ev.RunCancelled(ts=now, reason=body.reason, by=body.by), now)
                else:
                    self._append_outside(ev.RunPaused(ts=now, reason=body.reason, by=body.by))
                    self._leave({"status": Status.PAUSED, "held": 1, "reason": body.reason, "wake_at": None})
                return True
        return False

    def _append_last(self, end: ev.Event) -> None:
        """How an attempt ended is kept even without a history."""
        kept = self.change.records
        end.seq = (kept[-1].seq if kept else self.change.last_committed) + 1
        kept.append(to_record(end))

    def _end_outside(self, end: ev.Event, now: int) -> None:
        """End a run whose code is not in memory."""
        self._retain = program_for(self.home.app, self.row.workflow, self.options).settings.retain
        if self.row.durable:
            self._append_outside(end)
        self._end(end, now)

    def _is_terminated(self, now: int) -> bool:
        """End it, if somebody wants that, whatever its code is like: nothing of it runs, not even its clean-up."""
        letter = self._termination
        if letter is None or Status(self.row.status).is_final:
            return False
        self._termination = None
        self.deliveries.remove(letter)
        self.change.consumed.append(letter.id)
        try:
            body = msgspec.json.decode(letter.body, type=ControlLetter)
        except msgspec.DecodeError as error:
            body = ControlLetter(reason=printable(text_of(error)))
        reason = body.reason
        if self.execution is None:
            with contextlib.suppress(DecodeError):  # damaged: the run ends all the same
                self._read_history()
        there = self.execution if self._replay is None else None
        for child_id in children_left(there, self._history):
            why = f"its parent {self.row.id} was terminated: {reason}"
            self.change.messages.append(control(child_id, "terminate", why, child_of=self.row.id))
        for hook in hooks_left(there, self._history):
            if hook.where is not None:
                self.change.signals.append(Unsubscription(cmd=hook.cmd))
            elif hook.key:
                self.change.drop_attribute("hook", hook.key)
        for cmd in list(self.steps.inflight):
            self.steps.drop(cmd)
        self.steps.forget_unscheduled()
        self._retain = self._retain_of_code()
        end = ev.RunCancelled(ts=now, reason=reason, terminated=True, by=body.by)
        if self.row.durable:
            self.change.append(end)
        self._end(end, now)
        self.change.columns |= {"held": 0, "stuck": ""}
        return True

    def _retain_of_code(self) -> int | None:
        try:
            return program_for(self.home.app, self.row.workflow, self.options).settings.retain
        except UnknownNameError:
            return self._retain

    def _set_aside(self, now: int, error: BaseException, stuck: str) -> None:
        """The code can't go on: take back what isn't committed, keep every outcome, and say why. Nothing here depends on
        what the run's code, values or rows are like: a run that can't be set aside would end every worker in turn."""
        if self.execution is not None:
            self.execution.take()
        reason = printable(text_of(error))
        letters = [d for d in self.deliveries if isinstance(d, Letter)]
        cancel = next((letter for letter in letters if letter.kind == "cancel"), self._cancel)
        outcomes = self.steps.kept(self.deliveries)
        self.deliveries.clear()
        self.steps.forget_unscheduled()
        self.change.clear()
        self.change.consumed = self._orders
        self._keep_outcomes(outcomes)
        if self.execution is None:
            self._answer_orders(letters)
        if cancel is not None:
            self._history = []
            end = ev.RunCancelled(ts=now, reason=f"cancelled while its code could not go on: {reason}")
            self.change.consumed.append(cancel.id)
            self.change.append(end)
            self._end(end, now)
        elif stuck == "diverged" and self.row.build != self.home.me.build and self.row.build in self.home.me.others:
            # Another worker still has the code that made this history.
            self._leave({"status": Status.PENDING, "wake_at": now + 1_000_000})
        else:
            event = ev.RunStuck(ts=now, reason=reason, error=self._encoded(error))
            self.change.append(event)
            self._tell(event)
            logger.error("run %s is set aside: %s", self.row.id, reason, extra=self.log_fields)
            self._leave(
                {"status": Status.STUCK, "held": 1, "reason": reason, "stuck": stuck, "wake_at": None, "losses": 0}
            )

    def _keep_outcomes(self, outcomes: list[Outcome]) -> None:
        for outcome in outcomes:
            try:
                self.change.messages.append(outcome_message(self.row.id, outcome, self.home.me.worker))
            except Exception:
                logger.exception(
                    "the outcome of step %r of run %s can't be kept, so the step will be executed again",
                    outcome.attempt.step, self.row.id, extra=self.log_fields,
                )  # fmt: skip

    def _answer_orders(self, letters: list[Letter]) -> None:
        """Its code was not even begun, so nobody will read these: left where they are they would wake it for ever."""
        for letter in letters:
            if letter.kind == "cancel" or LETTERS.get(letter.kind, ControlLetter) is not ControlLetter:
                continue
            self.change.consumed.append(letter.id)
            with contextlib.suppress(msgspec.DecodeError, KeyError):
                self._notify_later(msgspec.json.decode(letter.body, type=LETTERS[letter.kind]))

    def _encoded(self, error: BaseException) -> Raw:
        try:
            return Raw(self.home.app.codec.encode_error(error))
        except BaseException as why:  # a transform of the codec fails, or the error itself; the reason is told in words
            logger.error(
                "the error of run %s can't be encoded: %s", self.row.id, printable(text_of(why)), extra=self.log_fields
            )
            return ev.NULL

    def refuse(self, now: int, error: BaseException) -> None:
        """What it has come to can't be written: nobody can go on with it until its code is corrected."""
        self.released = False
        self._set_aside(now, error, "diverged")
        if self._refused:  # nor can this be: then the least is written, which can
            columns = self.change.columns
            self.change.clear()
            self.change.columns = columns
            self.change.append(ev.RunStuck(ts=now, reason=printable(text_of(error))))
        self._refused = True

    def _hold(self, now: int, event: ev.Event, status: str, reason: str, stuck: str) -> None:
        self._note(event)
        self._leave({"status": status, "held": 1, "reason": reason, "stuck": stuck, "wake_at": None})

    def release(self, now: int) -> None:
        """Let go of a run that only waits, or that needs nothing."""
        if self.execution is None or self.row.status in HELD or Status(self.row.status).is_final:
            self._leave({})
            return
        self._leave({"status": Status.WAITING, "reason": self.waiting_for(), "wake_at": self.next_due()})

    def waiting_for(self) -> str:
        """Why nothing happens here, in words; empty while a step is to be executed now."""
        assert self.execution is not None
        steps = self.steps
        in_line = steps.slots.waiting() if steps.slots else {}
        return self.execution.waiting_for({cmd: row.queue for cmd, row in steps.elsewhere.items()}, in_line)

    def _leave(self, columns: dict[str, Any]) -> None:
        status = columns.get("status")
        if self.steps.elsewhere and status is not None:
            if status == Status.RETRY or Status(status).is_final:
                self.steps.drop_elsewhere()
            elif status in HELD:
                self.steps.withdraw_elsewhere()
        self.change.columns |= {"owner": None, **columns}
        if "status" in columns:
            self.row.status = self.shown = columns["status"]
        self.released = True
        if self.execution is not None:
            self.execution.evict()

    def cannot_schedule(self, command: co.ScheduleStep, now: int, error: BaseException) -> None:
        """This worker's code lacks the step."""
        self._set_aside(now, error, "diverged")

    def _background_error(self, context: dict[str, Any]) -> None:
        logger.warning(
            "run %s: %s",
            self.row.id,
            context.get("message", "an error nobody handled"),
            exc_info=context.get("exception"),
            extra=self.log_fields,
        )
