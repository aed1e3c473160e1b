"""The steps of a run that this engine owns: when they are handed over, and what becomes of each attempt."""

from __future__ import annotations

import abc
import heapq

from msgspec import Raw

from holdfast.core import commands as co
from holdfast.core import events as ev
from holdfast.core.definitions import StepOptions
from holdfast.engine.owned import OwnedRun
from holdfast.engine.records import emitted_by
from holdfast.errors import UnknownNameError, ValueCodecError, WorkerLostError
from holdfast.ports import Outcome

SPARED = 10
"""So many lost workers of a step in a process of its own count as one that it took down."""

AGAIN = 500_000
"""Microseconds until an attempt that was not allowed to begin is handed over once more."""


class RunWithSteps(OwnedRun, abc.ABC):
    """Retries, losses and outcomes. How an event reaches the code is left to `LiveRun`."""

    @abc.abstractmethod
    def _deliver(self, event: ev.Event, now: int) -> None:
        """Let the code see an event."""

    @abc.abstractmethod
    def _note(self, event: ev.Event) -> None:
        """Append an event that the code doesn't see."""

    def step_options(self, command: co.ScheduleStep) -> StepOptions:
        return self.app.find_step(command.name).options.override(command.options)

    def is_suspect(self, command: co.ScheduleStep) -> bool:
        """Whether the step may be what took a worker down: then it says so before it starts, and runs by itself."""
        return self.cautious or command.losses > 0

    def _schedule(self, command: co.ScheduleStep, now: int) -> None:
        under_way = self.inflight.get(command.cmd)
        if under_way is not None:  # it was handed over before this run had to be read again
            if under_way.number == command.attempt:
                return
            self._drop_attempt(command.cmd)
        if command.cmd in self._outcomes_at_hand:
            return
        if self.row.durable and (self.is_suspect(command) or self._is_at_most_once(command)):
            if command.started and command.cmd in self._not_handed_over:
                # That was committed, and nobody knew: the commit seemed to have failed.
                self._note(self._never_began(command, now))
            self._not_handed_over.discard(command.cmd)
            if command.started and self._may_still_end(command):
                heapq.heappush(self.retries, (now + AGAIN, command.cmd))
                return
            if command.started:  # it had started on a worker that is gone
                if command.cmd in self._announced:
                    self._spared[command.cmd] = self._spared.get(command.cmd, 0) + 1
                self._count_loss(command, now, 0)
                return
            self._note(
                ev.StepStarted(
                    ts=now, cmd=command.cmd, cause=command.cause, name=command.name, args=command.args,
                    attempt=command.attempt, worker=self.me.worker, undoes=command.undoes,
                )
            )  # fmt: skip
            self._announced_here[command.cmd] = command
        self.to_schedule[command.cmd] = command

    def _is_at_most_once(self, command: co.ScheduleStep) -> bool:
        try:
            return self.step_options(command).at_most_once
        except UnknownNameError:  # whoever hands it over finds that out, and sets the run aside
            return False

    def _may_still_end(self, command: co.ScheduleStep) -> bool:
        """Whether it executes elsewhere: its run was let go meanwhile, and its outcome will come. What may be executed
        more than once doesn't wait for that."""
        if not self._is_at_most_once(command):
            return False
        return command.worker in (self.me.worker, *self.me.peers) or self.me.looks == self.claimed_at_look

    def withdrawn(self, cmd: str, now: int) -> None:
        """An attempt of a run that is let go was taken back before it began. If its start was announced, whoever
        schedules the step next has to know that it never did."""
        del self.inflight[cmd]
        command = self._announced_here.pop(cmd, None)
        if command is not None:
            self._append_record(self._never_began(command, now))

    def will_not_be_handed_over(self, now: int) -> None:
        """The run is let go with the very commit that was to announce these."""
        for cmd in self.to_schedule:
            command = self._announced_here.pop(cmd, None)
            if command is not None:
                self._append_record(self._never_began(command, now))
        self.to_schedule.clear()

    def _never_began(self, command: co.ScheduleStep, now: int) -> ev.StepWithdrawn:
        return ev.StepWithdrawn(
            ts=now, cmd=command.cmd, cause=command.cause, name=command.name, args=command.args, attempt=command.attempt,
            worker=self.me.worker, undoes=command.undoes,
        )  # fmt: skip

    def _drop_attempt(self, cmd: str) -> None:
        self.to_schedule.pop(cmd, None)
        attempt = self.inflight.pop(cmd, None)
        if attempt is not None:
            self.to_cancel.append(attempt)

    def _count_loss(self, command: co.ScheduleStep, now: int, started: int) -> None:
        self._note(
            ev.StepLost(
                ts=now, cmd=command.cmd, cause=command.cause, name=command.name, args=command.args,
                attempt=command.attempt, worker=self.me.worker, started=started, undoes=command.undoes,
            )
        )  # fmt: skip
        problem = self._why_not_again(command)
        if problem:
            error = WorkerLostError(f"step {command.name!r} of run {self.row.id} {problem}")
            self._deliver_failure(command, now, started, Raw(self.codec.encode_error(error)))
        else:
            self._schedule(command, now)

    def _why_not_again(self, command: co.ScheduleStep) -> str:
        """Why a step whose worker was lost is not executed again; empty if it is."""
        options = self.step_options(command)
        if options.at_most_once:
            return (
                "had begun when its worker was lost, and is executed at most once; find out what it has done, then retry "
                "the run, or go on without it"
            )
        spared = self._spared.get(command.cmd, 0)
        blamed = command.losses - spared + spared // SPARED + self._unrecorded.get(command.cmd, 0)
        if blamed < options.max_losses:
            return ""
        return (
            f"took its worker down {options.max_losses} times; look at what it does to its process (memory, native code, "
            "os._exit), or raise max_losses"
        )

    def note_started(self, cmd: str, started: int) -> None:
        """A step that takes its time is shown as started."""
        step = self.execution.steps.get(cmd) if self.execution is not None else None
        if step is None or step.command.started or not self.row.durable:
            return
        command = step.command
        self._note(
            ev.StepStarted(
                ts=started, cmd=cmd, cause=command.cause, name=command.name, args=command.args,
                attempt=command.attempt, worker=self.me.worker, started=started, undoes=command.undoes,
            )
        )  # fmt: skip

    def _take_outcome(self, outcome: Outcome, now: int) -> None:
        assert self.execution is not None
        cmd = outcome.attempt.cmd
        was_awaited = cmd in self._outcomes_at_hand
        self._outcomes_at_hand.discard(cmd)
        if self.inflight.get(cmd) is not outcome.attempt:  # another one was asked for since
            waiting = self.execution.steps.get(cmd)
            if was_awaited and waiting is not None and cmd not in self.inflight and waiting.command.not_before <= now:
                self._schedule(waiting.command, now)  # which had been left until this was here
            return
        del self.inflight[cmd]
        announced = self._announced_here.pop(cmd, None)
        step = self.execution.steps.get(cmd)
        if step is None:
            return
        if outcome.cancelled:  # it was not begun: this worker could not tell whether the others think it alive
            if announced is not None:
                self._note(self._never_began(announced, now))
            heapq.heappush(self.retries, (now + AGAIN, cmd))
            return
        self.unconfirmed.append(outcome)
        command = step.command
        self._keep_logs(cmd, outcome.attempt.number, outcome.logs)
        for kind in ("progress", "checkpoint"):
            # A checkpoint is kept over attempts, until the step has ended.
            if (kind, command.cmd) in self._reported and (kind == "progress" or outcome.error is None):
                self._reported.discard((kind, command.cmd))
                self._change.attributes = [a for a in self._change.attributes if a[:2] != (kind, command.cmd)]
                self._change.dropped_attributes.append((kind, command.cmd))
        command.attempt = outcome.attempt.number
        if outcome.lost:
            self._count_loss(command, now, outcome.started)
        elif outcome.error is not None:
            encoded = Raw(outcome.encoded_error or b"null")
            self._take_failure(command, now, outcome.started, outcome.error, encoded, outcome.retry_after)
        else:
            self._progressed()
            self._deliver(
                ev.StepCompleted(
                    ts=now, cmd=command.cmd, cause=command.cause, name=command.name, args=command.args,
                    attempt=command.attempt, worker=self.me.worker, started=outcome.started, undoes=command.undoes,
                    result=Raw(outcome.result), data={k: Raw(v) for k, v in outcome.data.items()},
                    emitted=emitted_by(outcome),
                ),
                now,
            )  # fmt: skip

    def _keep_logs(self, cmd: str, attempt: int, logs: bytes | None) -> None:
        """Beside the history, for nothing of it is replayed."""
        if logs is not None and self.row.durable:
            self._change.attributes.append(("logs", f"{attempt}:{cmd}", logs))

    def _take_failure(
        self,
        command: co.ScheduleStep,
        now: int,
        started: int,
        error: BaseException,
        encoded: Raw,
        retry_after: int | None,
    ) -> None:
        delay = None
        if not isinstance(error, ValueCodecError):
            delay = self.step_options(command).retry_delay(error, command.attempt, self.clock.random())
        if delay is not None and retry_after is not None:
            delay = retry_after
        if delay is None:
            self._progressed()
            self._deliver_failure(command, now, started, encoded)
            return
        self._note(
            ev.StepRetrying(
                ts=now, cmd=command.cmd, cause=command.cause, name=command.name, args=command.args,
                attempt=command.attempt, worker=self.me.worker, started=started, undoes=command.undoes, error=encoded,
                retry_at=now + delay,
            )
        )  # fmt: skip
        heapq.heappush(self.retries, (now + delay, command.cmd))

    def _deliver_failure(self, command: co.ScheduleStep, now: int, started: int, encoded: Raw) -> None:
        self._deliver(
            ev.StepFailed(
                ts=now, cmd=command.cmd, cause=command.cause, name=command.name, args=command.args,
                attempt=command.attempt, worker=self.me.worker, started=started, undoes=command.undoes, error=encoded,
            ),
            now,
        )  # fmt: skip

    def _progressed(self) -> None:
        if self.cautious:
            self.cautious = False
            self._change.columns["losses"] = self.row.losses = 0
