"""Attempts of steps on their way to whoever executes them, this worker's executor or others, and on their way back."""

from __future__ import annotations

import logging

import msgspec

from holdfast import failpoints
from holdfast.core import commands as co
from holdfast.engine.arrivals import Report
from holdfast.engine.attempts import encode_attempt, token_of
from holdfast.engine.environment import Environment
from holdfast.engine.inflight import InFlight
from holdfast.engine.live_runs import LiveRuns
from holdfast.engine.outbox import Outbox
from holdfast.engine.records import PRIORITY_HEAD_START, correlation_of, stream_message
from holdfast.engine.run import LiveRun
from holdfast.engine.run_state import HELD
from holdfast.errors import StoreError, UnknownNameError
from holdfast.ports import Attempt, AttemptRow, Change, InboxRow, NewAttempt, NewItem, Outcome, Status, Store

logger = logging.getLogger("holdfast.engine")


class HandOver:
    """Hands over what runs have asked for, once that is committed, and gives them what comes of it."""

    def __init__(self, env: Environment[Store], live_runs: LiveRuns, inflight: InFlight, outbox: Outbox) -> None:
        self._store = env.store
        self._executor = env.executor
        self._settings = env.settings
        self._live_runs = live_runs
        self._shared = live_runs.shared
        self._inflight = inflight
        self._outbox = outbox

    # -- before the commit

    def take_back(self, touched: dict[int, LiveRun]) -> None:
        """What a commit gives away or ends is not begun after it: others may have begun it then, or know its end."""
        for live in touched.values():
            if live.state.released and (live.steps.to_schedule or live.steps.elsewhere.to_ask):
                live.steps.will_not_be_handed_over(self._store.now())
            if not (live.steps.to_cancel or (live.state.released and live.steps.inflight)):
                continue
            given_up = {attempt.token: attempt for attempt in live.steps.to_cancel}
            if live.state.released:
                given_up |= {attempt.token: attempt for attempt in live.steps.inflight.values()}
            for token in self._executor.withdraw(given_up):
                attempt = given_up[token]
                self._inflight.pop(token)
                if live.steps.inflight.get(attempt.cmd) is attempt:
                    live.steps.withdrawn(attempt.cmd, self._store.now())
                else:
                    live.steps.to_cancel.remove(attempt)
        for live in touched.values():
            # Held for how long is not known: only what goes on has a slot until then.
            if live.state.released and live.row.limited and live.row.status in HELD and live.change.keeps is None:
                live.steps.slots.give_others_back([*live.steps.inflight, ""])

    def take_back_all(self) -> list[Change]:
        """What was announced and has not begun will begin elsewhere: say so, else it would count as begun."""
        runs = self._live_runs.by_no
        waiting = {no: live for no, live in runs.items() if live.steps.inflight and not (live.broken or live.change)}
        for live in waiting.values():
            live.state.released = True
        self.take_back(waiting)
        return [live.state.take_change() for live in waiting.values() if live.change]

    def ask_elsewhere(self, touched: dict[int, LiveRun]) -> None:
        """Steps that others are to execute get a row, in the commit of what has led to them."""
        for live in touched.values():
            elsewhere = live.steps.elsewhere
            if elsewhere.to_ask and not live.state.released and not live.broken:
                asked, elsewhere.to_ask = elsewhere.to_ask, {}
                for command in asked.values():
                    self._ask(live, command, live.steps.rules.options(command).queue)
                if live.is_idle():
                    self._live_runs.waits(live)

    def _ask(self, live: LiveRun, command: co.ScheduleStep, queue: str) -> None:
        attempt = self._describe(live, command, 0)
        if command.attempt > 1 or command.losses:
            self._add_what_was_said(live, attempt, command.losses)
        due = self._store.now() - live.row.priority * PRIORITY_HEAD_START
        asked = NewAttempt(
            token=token_of(attempt, self._shared.clock.random()), cmd=command.cmd, step=command.name, number=command.attempt,
            queue=queue, due=due, body=encode_attempt(attempt),
        )  # fmt: skip
        live.change.attempts.append(asked)
        live.steps.elsewhere.rows[command.cmd] = AttemptRow(
            token=asked.token, run_no=live.row.no, cmd=asked.cmd, step=asked.step, number=asked.number, queue=queue,
            due=due,
        )  # fmt: skip

    def _add_what_was_said(self, live: LiveRun, attempt: Attempt, losses: int) -> None:
        """The checkpoint of an earlier attempt elsewhere, which this worker has not heard of, and a number that tells items of
        this execution from those of any other: one that was lost used up no attempt, but may have streamed."""
        try:
            attempt.checkpoint = self._store.attributes(live.row.id, "checkpoint").get(attempt.cmd)
            streamed = self._store.streamed(live.row.id).get(attempt.cmd, {})
        except StoreError as error:
            logger.warning("what run %s has kept could not be read: %s", live.row.id, error)
            return
        to_come = [item.attempt for item in live.change.streamed if item.cmd == attempt.cmd]
        attempt.streams_as = max(attempt.number + losses, max([0, *streamed, *to_come]) + 1)

    # -- after the commit

    def hand_over(self, touched: dict[int, LiveRun], begins: bool) -> None:
        """Act on what is committed: cancel what is not wanted any more, let go of runs that have left, and hand over what is
        to be executed, if anything still `begins` here."""
        attempts: list[Attempt] = []
        for live in touched.values():
            if live.steps.to_cancel:
                for attempt in live.steps.to_cancel:
                    self._inflight.pop(attempt.token)
                    self._executor.cancel(attempt.token)
                live.steps.to_cancel.clear()
            if live.state.released:
                if not live.change:  # else it was set aside just now, which is still to be committed
                    self._live_runs.forget(live)
            elif live.steps.to_schedule and begins:
                scheduled, live.steps.to_schedule = live.steps.to_schedule, {}
                for command in scheduled.values():
                    if not live.state.released:
                        attempts += self._attempt(live, command)
        if attempts:
            self._inflight.add(attempts, self._shared.clock.monotonic() + self._settings.started_after)
            if self._shared.reporter.is_on:
                self._shared.reporter.handed_over(attempts, self._store.now())
            failpoints.hit("engine.before_hand_over")
            self._executor.submit(attempts)
            failpoints.hit("engine.after_hand_over")

    def _attempt(self, live: LiveRun, command: co.ScheduleStep) -> list[Attempt]:
        """What to give to the executor: nothing if this worker's code lacks the step."""
        try:
            attempt = self._describe(live, command, self._inflight.next_token())
        except UnknownNameError as error:
            live.cannot_schedule(self._store.now(), error)
            self._live_runs.make_ready(live)
            return []
        attempt.checkpoint = self._checkpoint(live, command)
        if command.losses:  # whoever was taken for dead may go on, and has yet to stream
            self._streams_as(live, attempt, command.losses)
        live.steps.inflight[command.cmd] = attempt
        return [attempt]

    def _describe(self, live: LiveRun, command: co.ScheduleStep, token: int) -> Attempt:
        row, options = live.row, live.steps.rules.options(command)
        return Attempt(
            token=token, run_no=row.no, run_id=row.id, app=row.app, workflow=row.workflow,
            root_id=row.root_id or row.id, parent_id=row.parent_id, correlation=correlation_of(row),
            quiet=live.options.quiet, headers=live.options.headers, cmd=command.cmd, step=command.name,
            args=command.args if command.resolve is None else msgspec.Raw(command.resolve()), number=command.attempt,
            idempotency_key=live.idempotency_key(command),
            timeout=options.timeout, stall_timeout=options.stall_timeout,
            pool="process" if self._shared.me.isolates and live.steps.suspicion.covers(command) else options.pool,
            share_with=live.steps.suspicion.may_share_with(command.cmd) if options.pool != "process" else 0,
            data=command.data, at_most_once=options.at_most_once, trace=live.options.trace, since=live.since,
        )  # fmt: skip

    def _checkpoint(self, live: LiveRun, command: co.ScheduleStep) -> bytes | None:
        """What an earlier attempt of the step has kept; it may have been on another worker."""
        if live.steps.reports.checkpoints is None:
            if not live.opening.resumed:
                return None
            try:
                live.steps.reports.checkpoints = self._store.attributes(live.row.id, "checkpoint")
            except StoreError as error:
                logger.warning("checkpoints of run %s could not be read: %s", live.row.id, error)
                return None
        return live.steps.reports.checkpoints.get(command.cmd)

    # -- what comes back

    def take_outcome(self, outcome: Outcome) -> None:
        attempt = self._inflight.pop(outcome.attempt.token)
        if attempt is None:
            return
        live = self._live_runs.by_no.get(attempt.run_no)
        if live is not None and live.steps.inflight.get(attempt.cmd) is attempt:
            live.deliveries.append(outcome)
            self._live_runs.make_ready(live)
            return
        self._inflight.forget_left_behind(attempt)
        if not outcome.cancelled and not outcome.lost:
            self._outbox.post(outcome)

    def take_kept(self) -> None:
        """Outcomes that could not be posted: their runs may be here again meanwhile."""
        for outcome in self._outbox.take_kept():
            self.take_outcome(outcome)

    def take_report(self, report: Report) -> None:
        attempt, place = report.attempt, report.attempt.said
        if report.kind == "stream":
            attempt.said += 1
        live = self._live_runs.by_no.get(attempt.run_no)
        if live is None or live.steps.inflight.get(attempt.cmd) is not attempt:
            if report.kind == "stream" and attempt in self._inflight:  # its run was let go meanwhile
                item = stream_message(attempt, self._store.now(), report.value, place)
                self._outbox.say(item)
            return
        if report.kind == "stream" and live.state.inbox.messages("stream"):
            # Said while its run was away, they come first: this one waits behind them.
            item = stream_message(attempt, self._store.now(), report.value, place)
            live.deliveries.append(InboxRow(0, attempt.run_no, item.kind, item.body))
        elif report.kind == "stream":
            number = self._streams_as(live, attempt)
            live.change.streamed.append(NewItem(attempt.cmd, number, self._store.now(), report.value, place))
        else:
            live.steps.reports.keep(report.kind, attempt.cmd, report.value)
            if report.kind == "progress" and self._shared.reporter.is_on:
                began = self._executor.started_at(attempt.token) or self._store.now()
                self._shared.reporter.progressed(attempt, began, report.value)
        self._live_runs.make_ready(live)

    def _streams_as(self, live: LiveRun, attempt: Attempt, losses: int = 0) -> int:
        """The number that tells items of this execution from those of any other. An execution that was cut short, by a
        lost worker or one that was stopped, used up no attempt but may have streamed."""
        if not attempt.streams_as:
            if live.steps.reports.streamed is None:
                try:
                    live.steps.reports.streamed = self._store.streamed(live.row.id)
                except StoreError as error:
                    logger.warning("what run %s has streamed could not be read: %s", live.row.id, error)
                    return attempt.number
            counts = live.steps.reports.streamed.setdefault(attempt.cmd, {})
            attempt.streams_as = max([attempt.number + losses, *(number + 1 for number in counts)])
            counts[attempt.streams_as] = 0
        return attempt.streams_as

    def show_started(self, mono: float) -> None:
        """Steps that take their time are shown as started."""
        waiting = []
        for attempt in self._inflight.to_look_at(mono):
            live = self._live_runs.by_no.get(attempt.run_no)
            if live is None or live.steps.inflight.get(attempt.cmd) is not attempt or live.state.released:
                continue
            began = self._executor.started_at(attempt.token)
            if began is None:
                waiting.append(attempt)
                continue
            live.note_started(attempt.cmd, began)
            if live.state.shown == Status.WAITING:
                live.state.show_status("")
            self._live_runs.touched[attempt.run_no] = live
        self._inflight.look_again(waiting, mono + self._settings.started_after)
