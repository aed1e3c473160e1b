"""What an attempt's end means for its step: it is completed, has failed, is tried again, or goes on elsewhere.

As in `steps.py`, that is told as events, one at a time.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Raw

from holdfast.codec import Codec
from holdfast.core import commands as co
from holdfast.core import events as ev
from holdfast.core.definitions import StepOptions
from holdfast.durations import in_words
from holdfast.engine import failures
from holdfast.engine.records import BeatMessage, OutcomeMessage, outcome_body
from holdfast.engine.steps import AGAIN, StepBook
from holdfast.errors import StepTimeoutError, TransformError, ValueCodecError
from holdfast.ports import Clock, Outcome


def _silent_until(options: StepOptions, now: int) -> int:
    """When a step that was handed over has to be heard of. Half as long again, so that not every sign of life has to be
    recorded."""
    return 0 if options.stall_timeout is None else now + options.stall_timeout * 3 // 2


class StepEnds:
    """How the steps in a run's book end, from the executor of this process or from elsewhere."""

    __slots__ = ("_book", "_clock", "_codec")

    def __init__(self, book: StepBook, codec: Codec, clock: Clock) -> None:
        self._book = book
        self._codec = codec
        self._clock = clock

    def take_success(self, outcome: Outcome, command: co.ScheduleStep, now: int) -> ev.StepCompleted | None:
        """The short way of nearly every outcome: a result, and nothing to be done beside it. None if there is more to it."""
        book = self._book
        attempt = outcome.attempt
        cmd = attempt.cmd
        if (
            outcome.result is None or outcome.error is not None or outcome.cancelled or outcome.lost
            or outcome.handed_over or outcome.data or outcome.emitted or outcome.logs is not None
            or book.suspicion.cautious or book.suspicion.announced_here or book.reports.kept or book.at_hand or book.slots
            or book.inflight.get(cmd) is not attempt
        ):  # fmt: skip
            return None
        del book.inflight[cmd]
        book.unconfirmed.append(outcome)
        command.attempt = attempt.number
        return ev.StepCompleted(
            ts=now, cmd=cmd, cause=command.cause, name=command.name, args=command.args, attempt=attempt.number,
            worker=book.me.worker, started=outcome.started, undoes=command.undoes, result=Raw(outcome.result),
            thread=outcome.thread,
        )  # fmt: skip

    def take(self, outcome: Outcome, command: co.ScheduleStep | None, now: int) -> Iterator[ev.StepOutcome]:
        """An outcome from the executor of this process; `command` is what asked for it, if anything still does."""
        book = self._book
        cmd = outcome.attempt.cmd
        was_at_hand = cmd in book.at_hand
        book.at_hand.discard(cmd)
        if book.inflight.get(cmd) is not outcome.attempt:  # another one was asked for since
            if was_at_hand and command is not None and cmd not in book.inflight and command.not_before <= now:
                yield from book.schedule(command, now)  # which had been left until this was here
            return
        del book.inflight[cmd]
        announced = book.suspicion.announced_here.pop(cmd, None)
        if command is None:
            return
        if outcome.cancelled:  # it was not begun: this worker could not tell whether the others think it alive
            if announced is not None:
                yield ev.StepWithdrawn(**book.about(announced, now))
            book.look_again(cmd, now + AGAIN)
            return
        book.unconfirmed.append(outcome)
        yield from self._end(command, outcome_body(outcome, book.me.worker), outcome.error, now)

    def take_message(
        self, body: OutcomeMessage, command: co.ScheduleStep, is_wanted: bool, now: int
    ) -> Iterator[ev.StepOutcome]:
        """An outcome from the inbox: its engine had lost the run when it arrived. One that is not `wanted` is of another
        attempt of the run."""
        book = self._book
        cmd = body.cmd
        was_at_hand = cmd in book.at_hand
        book.at_hand.discard(cmd)
        book.elsewhere.ended(cmd, body.token)
        has_failed = bytes(body.error) != b"null"
        # Who has its token may be faster than the function that gave it away.
        is_tried_again = not body.outside and (cmd in book.inflight or cmd in book.elsewhere.rows)
        is_over = body.attempt != command.attempt or is_tried_again
        if not is_wanted or ((has_failed or body.lost or body.handed_over) and is_over):
            if was_at_hand:
                yield from book.schedule(command, now)
            return  # this failure is history
        book.drop(cmd)
        if body.token:
            book.reports.are_in_store(cmd)
        yield from self._end(command, body, self._codec.decode_error(body.error) if has_failed else None, now)

    def _end(
        self, command: co.ScheduleStep, told: OutcomeMessage, error: BaseException | None, now: int
    ) -> Iterator[ev.StepOutcome]:
        """What an attempt's end means for its step. `error` is the one that it failed with."""
        book = self._book
        if told.logs != ev.NULL and book.row.durable:  # beside the history, for nothing of it is replayed
            book.change.attributes.append(("logs", f"{told.attempt}:{command.cmd}", bytes(told.logs)))
        if book.reports.kept:
            book.reports.forget(command.cmd, has_ended=error is None and not told.lost)
        command.attempt = told.attempt
        if book.slots and not (told.lost or told.handed_over):
            book.slots.give_back(command.cmd)
        if told.lost:
            if told.lost_with:
                book.suspicion.lost_with_others(command.cmd, told.lost_with)
            yield from book.count_loss(command, now, told.started, told.lost_with, told.worker)
        elif error is not None:
            yield from self._failed(command, told, error, now)
        elif told.handed_over:
            yield from self._handed_over(command, told, now)
        else:
            book.suspicion.progressed()
            yield ev.StepCompleted(
                ts=now, cmd=command.cmd, cause=command.cause, name=command.name, args=command.args,
                attempt=command.attempt, worker=told.worker, started=told.started, undoes=command.undoes,
                result=told.result, data=told.data, emitted=told.emitted, thread=told.thread,
            )  # fmt: skip

    def _failed(
        self, command: co.ScheduleStep, told: OutcomeMessage, error: BaseException, now: int
    ) -> Iterator[ev.StepOutcome]:
        book = self._book
        options = book.rules.options(command)
        delay = None
        if not isinstance(error, ValueCodecError) or isinstance(error, TransformError):
            delay = options.retry_delay(error, command.attempt, self._clock.random())
        if delay is not None and told.retry_after is not None:
            delay = told.retry_after
        within, began = options.retry_within, command.began or told.started
        if delay is None or (within is not None and now + delay > began + within):
            book.suspicion.progressed()
            yield book.failure(command, now, told.started, told.error, error, told.worker, told.thread)
            return
        retrying = ev.StepRetrying(
            **book.about(command, now, told.worker), started=told.started, error=told.error, retry_at=now + delay,
            thread=told.thread,
        )  # fmt: skip
        yield retrying
        attempts = None if options.max_retries is None else options.max_retries + 1
        failures.step_retried(book.row, self._codec, retrying, attempts)
        book.look_again(command.cmd, retrying.retry_at)

    # -- steps that were handed over

    def _handed_over(self, command: co.ScheduleStep, told: OutcomeMessage, now: int) -> Iterator[ev.StepOutcome]:
        book = self._book
        options = book.rules.options(command)
        limit = 0 if options.timeout is None else told.started + options.timeout
        book.suspicion.progressed()
        yield ev.StepHandedOver(
            **book.about(command, now), started=told.started, until=_silent_until(options, now), limit=limit
        )
        self.await_end(command)

    def await_end(self, command: co.ScheduleStep) -> None:
        """Look at it when its time may be over."""
        book = self._book
        due = command.next_look()
        if due:
            book.look_again(command.cmd, due)

    def look_for_end(self, command: co.ScheduleStep, now: int) -> Iterator[ev.StepOutcome]:
        """Whether a step that was handed over has taken too long."""
        book = self._book
        due = command.next_look()
        if not due or due > now:
            self.await_end(command)
            return
        options = book.rules.options(command)
        if command.limit and command.limit <= now:
            what = f"took longer than its timeout of {in_words(options.timeout or 0)}, elsewhere"
        else:
            what = f"gave no sign of life for {in_words(options.stall_timeout or 0)}, elsewhere"
        error = StepTimeoutError(f"step {command.name!r} of run {book.row.id} {what}")
        told = OutcomeMessage(
            run_no=book.row.no, cmd=command.cmd, attempt=command.attempt, worker="", started=command.began,
            error=Raw(self._codec.encode_error(error)),
        )  # fmt: skip
        yield from self._end(command, told, error, now)

    def beat(self, body: BeatMessage, command: co.ScheduleStep, now: int) -> Iterator[ev.StepOutcome]:
        """It lives, elsewhere. That is recorded now and then: often enough that whoever reads it waits long enough."""
        book = self._book
        if bytes(body.progress) != b"null":
            book.reports.keep("progress", body.cmd, bytes(body.progress))
        options = book.rules.options(command)
        if not command.handed_over or command.attempt != body.attempt or options.stall_timeout is None:
            return
        if now + options.stall_timeout > command.until:
            until = _silent_until(options, now)
            yield ev.StepHandedOver(**book.about(command, now), started=command.began, until=until, limit=command.limit)
            self.await_end(command)
