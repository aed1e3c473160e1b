"""The steps of a run in memory: when each is handed over, and what becomes of its attempts.

What happens to a step is told as events, one at a time: whoever asks appends each, or delivers it to the code, before it
asks for the next, as what comes next may depend on that.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec
from msgspec import Raw

from holdfast.codec import Codec
from holdfast.core import commands as co
from holdfast.core import events as ev
from holdfast.core.definitions import StepOptions
from holdfast.core.registry import Definitions
from holdfast.durations import in_words
from holdfast.engine import failures
from holdfast.engine.change import PendingChange
from holdfast.engine.identity import Identity
from holdfast.engine.limits import Slots
from holdfast.engine.records import BeatMessage, OutcomeMessage, emitted_by
from holdfast.errors import StepTimeoutError, TransformError, UnknownNameError, ValueCodecError, WorkerLostError
from holdfast.ports import Attempt, AttemptRow, Clock, Outcome, RunRow

SPARED = 10
"""So many lost workers of a step in a process of its own count as one that it took down."""

COMPANIES = (1_000, 15, 0)
"""How many others a suspect may share its process with, the first time, the second, and from then on."""

AGAIN = 500_000
"""Microseconds until an attempt that was not allowed to begin is handed over once more."""


class Ended(msgspec.Struct, kw_only=True):
    """How an attempt ended, wherever it was executed."""

    number: int
    worker: str
    started: int
    result: Raw = ev.NULL
    error: BaseException | None = None
    encoded_error: Raw = ev.NULL
    retry_after: int | None = None
    data: dict[str, Raw] = {}
    emitted: tuple[ev.Emitted, ...] = ()
    logs: bytes | None = None
    lost: bool = False
    handed_over: bool = False
    company: int = 0
    thread: str = ""


def ended_here(outcome: Outcome, worker: str) -> Ended:
    return Ended(
        number=outcome.attempt.number, worker=worker, started=outcome.started,
        result=ev.NULL if outcome.result is None else Raw(outcome.result), error=outcome.error,
        encoded_error=Raw(outcome.encoded_error or b"null"), retry_after=outcome.retry_after,
        data={key: Raw(value) for key, value in outcome.data.items()} if outcome.data else {},
        emitted=emitted_by(outcome) if outcome.emitted else (), logs=outcome.logs, lost=outcome.lost,
        company=outcome.company, handed_over=outcome.handed_over, thread=outcome.thread,
    )  # fmt: skip


def ended_elsewhere(body: OutcomeMessage, codec: Codec) -> Ended:
    failed = bytes(body.error) != b"null"
    return Ended(
        number=body.attempt, worker=body.worker, started=body.started, result=body.result,
        error=codec.decode_error(body.error) if failed else None, encoded_error=body.error, data=body.data,
        emitted=body.emitted, logs=None if body.logs == ev.NULL else bytes(body.logs), retry_after=body.retry_after,
        lost=body.lost, company=body.company, handed_over=body.handed_over, thread=body.thread,
    )  # fmt: skip


def _silent_until(options: StepOptions, now: int) -> int:
    """When a step that was handed over has to be heard of. Half as long again, so that not every sign of life has to be
    recorded."""
    return 0 if options.stall_timeout is None else now + options.stall_timeout * 3 // 2


class Suspicion:
    """Which steps may have taken workers down, from what was announced and lost.

    A run with a loss announces what it starts, so only the first start of a row of losses may not have been recorded. A
    step whose start was announced had a process beside the worker, or still waited for it, and is hardly to blame."""

    def __init__(self) -> None:
        self._announced: dict[str, str] = {}  # in the history: the worker that did
        self._spared: dict[str, int] = {}
        self._unrecorded: dict[str, int] = {}
        self._company: dict[str, int] = {}
        self.announced_here: dict[str, co.ScheduleStep] = {}

    def weigh(self, history: Iterable[ev.Event], suspects: Iterable[co.ScheduleStep], losses: int) -> None:
        """See what the history knows of losses."""
        for event in history:
            if isinstance(event, ev.StepStarted):
                if event.started:
                    self._announced.pop(event.cmd, None)
                else:
                    self._announced[event.cmd] = event.worker
            elif isinstance(event, ev.StepLost) and (
                event.company or self._announced.get(event.cmd, event.worker) != event.worker
            ):
                self.spare(event.cmd)
        for command in suspects:
            self._unrecorded[command.cmd] = int(losses > command.losses + int(command.started))

    def spare(self, cmd: str) -> None:
        self._spared[cmd] = self._spared.get(cmd, 0) + 1

    def was_announced(self, cmd: str) -> bool:
        return cmd in self._announced

    def lost_in_company(self, cmd: str, company: int) -> None:
        """One of them has killed their process."""
        self._company[cmd] = next(few for few in COMPANIES if few < company)
        self.spare(cmd)

    def company(self, cmd: str) -> int:
        """How many others may share its process: all, until that has died; then few, then none."""
        return self._company.get(cmd, COMPANIES[0])

    def blame(self, command: co.ScheduleStep) -> int:
        """How many workers it has taken down."""
        spared = self._spared.get(command.cmd, 0)
        return command.losses - spared + spared // SPARED + self._unrecorded.get(command.cmd, 0)


class StepBook:
    """What is under way, waits to be handed over, or to be tried again.

    An attempt `elsewhere` has a row in the store, which is the truth about it: it is there, or its outcome is in the
    run's inbox. The run may be let go meanwhile, and its worker may be lost, which means nothing to the attempt."""

    def __init__(
        self,
        row: RunRow,
        app: Definitions,
        me: Identity,
        clock: Clock,
        change: PendingChange,
        slots: Slots,
        elsewhere: Iterable[AttemptRow] = (),
    ) -> None:
        self.slots = slots
        self._row = row
        self._app = app
        self._me = me
        self._clock = clock
        self._change = change
        self._claimed_at_look = me.looks
        self._reported: set[tuple[str, str]] = set()
        self.cautious = row.losses > 0
        self.suspicion = Suspicion()
        self.inflight: dict[str, Attempt] = {}
        self.elsewhere: dict[str, AttemptRow] = {attempt.cmd: attempt for attempt in elsewhere}
        self.retries: list[tuple[int, str]] = []
        self.to_schedule: dict[str, co.ScheduleStep] = {}
        self.to_ask: dict[str, co.ScheduleStep] = {}  # for workers elsewhere
        self.to_cancel: list[Attempt] = []
        self.unconfirmed: list[Outcome] = []
        self.not_handed_over: set[str] = set()  # of those whose start this worker has announced
        self.at_hand: set[str] = set()  # steps whose outcome has arrived, and is yet to be delivered
        self.checkpoints: dict[str, bytes] | None = None
        self.streamed: dict[str, int] | None = None

    def options(self, command: co.ScheduleStep) -> StepOptions:
        options = self._app.find_step(command.name).options
        return options.override(command.options) if command.options else options

    def queue_elsewhere(self, command: co.ScheduleStep) -> str | None:
        """The queue of a step that this worker leaves to others; None if it executes it itself."""
        try:
            options = self.options(command)
        except UnknownNameError:  # whoever hands it over finds that out, and sets the run aside
            return None
        here = self._me.queues
        return None if options.force_local or here is None or options.queue in here else options.queue

    def is_suspect(self, command: co.ScheduleStep) -> bool:
        """Whether the step may be what took a worker down: then it says so before it starts, and runs apart."""
        return command.losses > 0 or (self.cautious and self.queue_elsewhere(command) is None)

    # -- from the code to the executor

    def schedule_at_once(self, command: co.ScheduleStep) -> bool:
        """The short way of nearly every step: nothing is known of it, and nothing has to be recorded or asked for before it
        is handed over. False if it has to take the long one."""
        cmd = command.cmd
        if (
            self.cautious or command.losses or command.started or command.options or self.at_hand or self.elsewhere
            or cmd in self.inflight or self.slots
        ):  # fmt: skip
            return False
        try:
            definition = self._app.find_step(command.name)
        except UnknownNameError:
            return False
        options, here = definition.options, self._me.queues
        if definition.limits or options.at_most_once or not (here is None or options.queue in here):
            return False
        self.to_schedule[cmd] = command
        return True

    def schedule(self, command: co.ScheduleStep, now: int) -> Iterator[ev.StepOutcome]:
        under_way = self.inflight.get(command.cmd)
        if under_way is not None:  # it was handed over before this run had to be read again
            if under_way.number == command.attempt:
                return
            self.drop(command.cmd)
        if command.cmd in self.at_hand:
            return
        asked_for = self.elsewhere.get(command.cmd)
        if asked_for is not None:
            if asked_for.number == command.attempt:
                return
            self.drop(command.cmd)
        is_here = self.queue_elsewhere(command) is None
        is_announced = self._row.durable and (self.is_suspect(command) or self._is_at_most_once(command))
        if is_announced:
            if command.started and command.cmd in self.not_handed_over:
                # That was committed, and nobody knew: the commit seemed to have failed.
                yield ev.StepWithdrawn(**self._about(command, now))
            self.not_handed_over.discard(command.cmd)
            if command.started and self._may_still_end(command):
                heapq.heappush(self.retries, (now + AGAIN, command.cmd))
                return
            if command.started:  # it had started on a worker that is gone
                if self.suspicion.was_announced(command.cmd):
                    self.suspicion.spare(command.cmd)
                yield from self._count_loss(command, now, 0)
                return
        if not self._may_begin(command):
            return
        if is_here and is_announced:  # else whoever claims it says so
            yield ev.StepStarted(**self._about(command, now))
            self.suspicion.announced_here[command.cmd] = command
        (self.to_schedule if is_here else self.to_ask)[command.cmd] = command

    def _may_begin(self, command: co.ScheduleStep) -> bool:
        """Whether it has the slots of its limits, if it is under any; else it waits for them, and nothing is in memory."""
        try:
            definition = self._app.find_step(command.name)
        except UnknownNameError:  # whoever hands it over finds that out, and sets the run aside
            return True
        if not definition.limits and command.cmd not in self.slots:
            return True
        slot = self.slots.get(command.cmd)
        if (
            slot is not None
            and slot.is_from_before
            and self.cautious
            and any(each.limit.rate for each in definition.limits)
        ):
            self.slots.give_back(command.cmd)  # it may have begun already: once more counts once more
        return self.slots.has(command.cmd, definition, command.args if command.resolve is None else command.resolve)

    def schedule_later(self, command: co.ScheduleStep, now: int) -> None:
        heapq.heappush(self.retries, (max(command.not_before, now), command.cmd))

    def pop_due(self, now: int) -> str:
        """The next step that is to be tried now, if there is one."""
        while self.retries and self.retries[0][0] <= now:
            cmd = heapq.heappop(self.retries)[1]
            if cmd not in self.inflight:
                return cmd
        return ""

    def _is_at_most_once(self, command: co.ScheduleStep) -> bool:
        try:
            return self.options(command).at_most_once
        except UnknownNameError:  # whoever hands it over finds that out, and sets the run aside
            return False

    def _may_still_end(self, command: co.ScheduleStep) -> bool:
        """Whether it executes elsewhere: its run was let go meanwhile, and its outcome will come. What may be executed
        more than once doesn't wait for that."""
        me = self._me
        if not self._is_at_most_once(command):
            return False
        return command.worker == me.worker or command.worker in me.peers or me.looks == self._claimed_at_look

    def drop(self, cmd: str) -> None:
        """Nobody wants its outcome any more."""
        self.to_schedule.pop(cmd, None)
        if self.slots:
            self.slots.give_back(cmd)
        self.to_ask.pop(cmd, None)
        attempt = self.inflight.pop(cmd, None)
        if attempt is not None:
            self.to_cancel.append(attempt)
        row = self.elsewhere.pop(cmd, None)
        if row is not None:
            self._change.dropped_attempts.append(row.token)

    def drop_elsewhere(self) -> None:
        """The run has ended, and nobody wants any of them."""
        for cmd in list(self.elsewhere):
            self.drop(cmd)

    def withdraw_elsewhere(self) -> None:
        """The run is held: what nobody has begun will not begin. What somebody has goes on to its end."""
        self._change.withdrawn_attempts += [row.token for row in self.elsewhere.values()]

    def drop_unasked(self, commands: Mapping[str, co.ScheduleStep]) -> None:
        """What an earlier owner has asked for, and the code does no longer."""
        for cmd, row in list(self.elsewhere.items()):
            command = commands.get(cmd)
            if command is None or command.attempt != row.number:
                self.drop(cmd)

    def withdrawn(self, cmd: str, now: int) -> None:
        """An attempt of a run that is let go was taken back before it began. If its start was announced, whoever
        schedules the step next has to know that it never did."""
        del self.inflight[cmd]
        command = self.suspicion.announced_here.pop(cmd, None)
        if command is not None:
            self._change.append(ev.StepWithdrawn(**self._about(command, now)))

    def will_not_be_handed_over(self, now: int) -> None:
        """The run is let go with the very commit that was to announce these."""
        for cmd in self.to_schedule:
            command = self.suspicion.announced_here.pop(cmd, None)
            if command is not None:
                self._change.append(ev.StepWithdrawn(**self._about(command, now)))
        self.forget_unscheduled()

    def forget_unscheduled(self) -> None:
        self.to_schedule.clear()
        self.to_ask.clear()

    def started(self, command: co.ScheduleStep, started: int) -> Iterator[ev.StepOutcome]:
        """A step that takes its time is shown as started."""
        if not command.started and self._row.durable:
            yield ev.StepStarted(**self._about(command, started), started=started)

    # -- from the executor to the code

    def take_success(self, outcome: Outcome, command: co.ScheduleStep, now: int) -> ev.StepCompleted | None:
        """The short way of nearly every outcome: a result, and nothing to be done beside it. None if there is more to it."""
        attempt = outcome.attempt
        cmd = attempt.cmd
        if (
            outcome.result is None or outcome.error is not None or outcome.cancelled or outcome.lost
            or outcome.handed_over or outcome.data or outcome.emitted or outcome.logs is not None
            or self.cautious or self._reported or self.at_hand or self.slots
            or self.suspicion.announced_here or self.inflight.get(cmd) is not attempt
        ):  # fmt: skip
            return None
        del self.inflight[cmd]
        self.unconfirmed.append(outcome)
        command.attempt = attempt.number
        return ev.StepCompleted(
            ts=now, cmd=cmd, cause=command.cause, name=command.name, args=command.args, attempt=attempt.number,
            worker=self._me.worker, started=outcome.started, undoes=command.undoes, result=Raw(outcome.result),
            thread=outcome.thread,
        )  # fmt: skip

    def take(self, outcome: Outcome, command: co.ScheduleStep | None, now: int) -> Iterator[ev.StepOutcome]:
        """An outcome from the executor of this process; `command` is what asked for it, if anything still does."""
        cmd = outcome.attempt.cmd
        was_at_hand = cmd in self.at_hand
        self.at_hand.discard(cmd)
        if self.inflight.get(cmd) is not outcome.attempt:  # another one was asked for since
            if was_at_hand and command is not None and cmd not in self.inflight and command.not_before <= now:
                yield from self.schedule(command, now)  # which had been left until this was here
            return
        del self.inflight[cmd]
        announced = self.suspicion.announced_here.pop(cmd, None)
        if command is None:
            return
        if outcome.cancelled:  # it was not begun: this worker could not tell whether the others think it alive
            if announced is not None:
                yield ev.StepWithdrawn(**self._about(announced, now))
            heapq.heappush(self.retries, (now + AGAIN, cmd))
            return
        self.unconfirmed.append(outcome)
        yield from self.end(command, ended_here(outcome, self._me.worker), now)

    def take_message(
        self, body: OutcomeMessage, command: co.ScheduleStep, codec: Codec, now: int
    ) -> Iterator[ev.StepOutcome]:
        """An outcome from the inbox: its engine had lost the run when it arrived."""
        was_at_hand = body.cmd in self.at_hand
        self.at_hand.discard(body.cmd)
        row = self.elsewhere.get(body.cmd)
        if row is not None and row.token == body.token:
            del self.elsewhere[body.cmd]  # its row went when the outcome came
        is_over = bytes(body.error) != b"null" or body.lost or body.handed_over
        is_tried_again = body.cmd in self.inflight or body.cmd in self.elsewhere
        if is_over and (body.attempt != command.attempt or is_tried_again):
            if was_at_hand:
                yield from self.schedule(command, now)
            return  # this failure is history
        self.drop(body.cmd)
        if body.token:  # what it has said on its way is in the store, and not known here
            self._reported |= {("progress", body.cmd), ("checkpoint", body.cmd)}
        yield from self.end(command, ended_elsewhere(body, codec), now)

    def end(self, command: co.ScheduleStep, ended: Ended, now: int) -> Iterator[ev.StepOutcome]:
        """What an attempt's end means for its step."""
        if ended.logs is not None and self._row.durable:  # beside the history, for nothing of it is replayed
            self._change.attributes.append(("logs", f"{ended.number}:{command.cmd}", ended.logs))
        if self._reported:
            self._forget_reports(command.cmd, has_ended=ended.error is None and not ended.lost)
        command.attempt = ended.number
        if self.slots and not (ended.lost or ended.handed_over):
            self.slots.give_back(command.cmd)
        if ended.lost:
            if ended.company:
                self.suspicion.lost_in_company(command.cmd, ended.company)
            yield from self._count_loss(command, now, ended.started, ended.company, ended.worker)
        elif ended.error is not None:
            yield from self._failed(command, ended, ended.error, now)
        elif ended.handed_over:
            yield from self._hand_over(command, ended, now)
        else:
            self.progressed()
            yield ev.StepCompleted(
                ts=now, cmd=command.cmd, cause=command.cause, name=command.name, args=command.args,
                attempt=command.attempt, worker=ended.worker, started=ended.started, undoes=command.undoes,
                result=ended.result, data=ended.data, emitted=ended.emitted, thread=ended.thread,
            )  # fmt: skip

    # -- steps that were handed over

    def _hand_over(self, command: co.ScheduleStep, ended: Ended, now: int) -> Iterator[ev.StepOutcome]:
        options = self.options(command)
        limit = 0 if options.timeout is None else ended.started + options.timeout
        self.progressed()
        yield ev.StepHandedOver(
            **self._about(command, now), started=ended.started, until=_silent_until(options, now), limit=limit
        )
        self.await_end(command)

    def await_end(self, command: co.ScheduleStep) -> None:
        """Look at it when its time may be over."""
        times = [time for time in (command.until, command.limit) if time]
        if times:
            heapq.heappush(self.retries, (min(times), command.cmd))

    def look_for_end(self, command: co.ScheduleStep, now: int) -> Iterator[ev.StepOutcome]:
        """Whether a step that was handed over has taken too long."""
        times = [time for time in (command.until, command.limit) if time]
        if not times or min(times) > now:
            self.await_end(command)
            return
        options = self.options(command)
        if command.limit and command.limit <= now:
            what = f"took longer than its timeout of {in_words(options.timeout or 0)}, elsewhere"
        else:
            what = f"gave no sign of life for {in_words(options.stall_timeout or 0)}, elsewhere"
        error = StepTimeoutError(f"step {command.name!r} of run {self._row.id} {what}")
        encoded = Raw(self._app.codec.encode_error(error))
        ended = Ended(number=command.attempt, worker="", started=command.began, error=error, encoded_error=encoded)
        yield from self.end(command, ended, now)

    def beat(self, body: BeatMessage, command: co.ScheduleStep, now: int) -> Iterator[ev.StepOutcome]:
        """It lives, elsewhere. That is recorded now and then: often enough that whoever reads it waits long enough."""
        if bytes(body.progress) != b"null":
            self.report("progress", body.cmd, bytes(body.progress))
        options = self.options(command)
        if not command.handed_over or command.attempt != body.attempt or options.stall_timeout is None:
            return
        if now + options.stall_timeout > command.until:
            yield ev.StepHandedOver(
                **self._about(command, now),
                started=command.began,
                until=_silent_until(options, now),
                limit=command.limit,
            )
            self.await_end(command)

    def _failed(
        self, command: co.ScheduleStep, ended: Ended, error: BaseException, now: int
    ) -> Iterator[ev.StepOutcome]:
        delay = None
        if not isinstance(error, ValueCodecError) or isinstance(error, TransformError):
            delay = self.options(command).retry_delay(error, command.attempt, self._clock.random())
        if delay is not None and ended.retry_after is not None:
            delay = ended.retry_after
        if delay is None or self._is_too_late(command, now + delay, ended.started):
            self.progressed()
            yield self._failure(command, now, ended.started, ended.encoded_error, error, ended.worker, ended.thread)
            return
        retrying = ev.StepRetrying(
            **self._about(command, now, ended.worker), started=ended.started, error=ended.encoded_error,
            retry_at=now + delay, thread=ended.thread,
        )  # fmt: skip
        yield retrying
        retries = self.options(command).max_retries
        failures.step_retried(self._row, self._app.codec, retrying, None if retries is None else retries + 1)
        heapq.heappush(self.retries, (retrying.retry_at, command.cmd))

    def _is_too_late(self, command: co.ScheduleStep, again: int, started: int) -> bool:
        within = self.options(command).retry_within
        return within is not None and again > (command.began or started) + within

    def _failure(
        self,
        command: co.ScheduleStep,
        now: int,
        started: int,
        encoded: Raw,
        error: BaseException,
        worker: str = "",
        thread: str = "",
    ) -> ev.StepFailed:
        failed = ev.StepFailed(**self._about(command, now, worker), started=started, error=encoded, thread=thread)
        failures.step_failed(self._row, self._app.codec, failed, error)
        return failed

    def _count_loss(
        self, command: co.ScheduleStep, now: int, started: int, company: int = 0, worker: str = ""
    ) -> Iterator[ev.StepOutcome]:
        yield ev.StepLost(**self._about(command, now, worker), started=started, company=company)
        problem = self._why_not_again(command)
        if problem:
            if self.slots:
                self.slots.give_back(command.cmd)
            error = WorkerLostError(f"step {command.name!r} of run {self._row.id} {problem}")
            yield self._failure(command, now, started, Raw(self._app.codec.encode_error(error)), error)
        else:
            failures.step_lost(self._row, command)
            yield from self.schedule(command, now)

    def _why_not_again(self, command: co.ScheduleStep) -> str:
        """Why a step whose worker was lost is not executed again; empty if it is."""
        options = self.options(command)
        if options.at_most_once:
            return (
                "had begun when its worker was lost, and is executed at most once; find out what it has done, then retry "
                "the run, or go on without it"
            )
        if self.suspicion.blame(command) < options.max_losses:
            return ""
        return (
            f"took its worker down {options.max_losses} times; look at what it does to its process (memory, native code, "
            "os._exit), or raise max_losses"
        )

    def _about(self, command: co.ScheduleStep, now: int, worker: str = "") -> dict[str, Any]:
        """`worker` is who has executed it, if that is another one."""
        return {
            "ts": now, "cmd": command.cmd, "cause": command.cause, "name": command.name, "args": command.args,
            "attempt": command.attempt, "worker": worker or self._me.worker, "undoes": command.undoes,
        }  # fmt: skip

    def progressed(self) -> None:
        """The run goes on: nothing of it is suspected of the workers that it has lost."""
        if self.cautious:
            self.cautious = False
            self._change.columns["losses"] = self._row.losses = 0

    # -- what is not committed yet

    def kept(self, arrivals: Iterable[object]) -> list[Outcome]:
        """Outcomes of executed steps that are not known to be committed."""
        waiting = [
            each
            for each in arrivals
            if isinstance(each, Outcome) and self.inflight.get(each.attempt.cmd) is each.attempt
        ]
        return [outcome for outcome in self.unconfirmed + waiting if not outcome.cancelled and not outcome.lost]

    # -- what steps say on their way

    def report(self, kind: str, cmd: str, body: bytes) -> None:
        """Keep its checkpoint, its progress."""
        if kind == "checkpoint":
            self.checkpoints = {**(self.checkpoints or {}), cmd: body}
        self._reported.add((kind, cmd))
        self._change.set_attribute(kind, cmd, body)

    def _forget_reports(self, cmd: str, has_ended: bool) -> None:
        """A checkpoint is kept over attempts, until the step has ended."""
        for kind in ("progress", "checkpoint"):
            if (kind, cmd) in self._reported and (kind == "progress" or has_ended):
                self._reported.discard((kind, cmd))
                self._change.drop_attribute(kind, cmd)
