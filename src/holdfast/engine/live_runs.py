"""The runs in memory: how they come, which of them are ready to go on, which only wait, and how they leave."""

from __future__ import annotations

import itertools
from collections import OrderedDict

from holdfast.engine.agenda import Agenda
from holdfast.engine.environment import Environment
from holdfast.engine.inflight import InFlight
from holdfast.engine.outbox import Outbox
from holdfast.engine.records import item_message
from holdfast.engine.run import LiveRun
from holdfast.engine.run_state import Shared
from holdfast.ports import Claimed, InboxRow, Store

LONGER_FOR_OTHERS = 10
"""How many times longer a run stays in memory that waits for steps elsewhere: with a line of a few seconds before the
executors each step would cost a claim and a replay, too. Where memory is short those that wait longest leave at once."""
SHOW_ELSEWHERE = 0.5
"""Seconds until it is shown that a run waits for steps elsewhere: with many of them most wait for a moment."""


class LiveRuns:
    """All of them are in `by_no`, by their number. `touched` are those that may have something to commit; `due` says when
    time alone brings one forward, by the store's clock."""

    def __init__(self, env: Environment[Store], shared: Shared, inflight: InFlight, outbox: Outbox) -> None:
        self._store = env.store
        self._executor = env.executor
        self._settings = env.settings
        self._agenda = env.agenda
        self._inflight = inflight
        self._outbox = outbox
        self.shared = shared
        self.by_no: dict[int, LiveRun] = {}
        self.ready: OrderedDict[int, LiveRun] = OrderedDict()
        self.idle: OrderedDict[int, LiveRun] = OrderedDict()
        self.touched: dict[int, LiveRun] = {}
        self.due = Agenda()

    # -- coming

    def take_over(self, claimed: Claimed) -> None:
        no = claimed.row.no
        earlier = self.by_no.get(no)
        if earlier is not None:  # it had been let go by a commit whose fate was not known yet
            self.drop(earlier)
        live = LiveRun(claimed, self.shared)
        # Steps may still execute here from before it was paused or lost: they are not handed over again.
        live.steps.inflight = self._inflight.take_up(no)
        self.by_no[no] = live
        self.make_ready(live)
        if self.shared.reporter.is_on:
            self.shared.reporter.taken_over(live, claimed, self._store.now())

    def replace(self, live: LiveRun, claimed: Claimed) -> LiveRun:
        """A run was read again: it goes on from there, with what its earlier self had in hand."""
        live.code.evict()
        fresh = LiveRun(claimed, self.shared)
        fresh.carry_over(live)
        self.by_no[live.row.no] = fresh
        return fresh

    # -- going on, or waiting

    def make_ready(self, live: LiveRun) -> None:
        no = live.row.no
        self.ready[no] = live
        if self.idle.pop(no, None) is not None:
            self._agenda.drop(("park", no))

    def hand_in(self, no: int, kind: str, body: bytes) -> None:
        """A message that never was in the store."""
        live = self.by_no.get(no)
        if live is not None:  # else it was claimed by a commit of unknown fate, and all that is for it is read with it
            live.deliveries.append(InboxRow(0, no, kind, body))
            self.make_ready(live)

    def waits(self, live: LiveRun) -> None:
        """It only waits now: what for is shown after a moment, and after a while it is parked."""
        no, mono, settings = live.row.no, self.shared.clock.monotonic(), self._settings
        show_after = settings.show_after if not live.steps.elsewhere else max(settings.show_after, SHOW_ELSEWHERE)
        self._agenda.set(("show", no), mono + show_after)
        if live.row.durable:  # the others are nowhere but in memory
            self.idle[no] = live
            self.idle.move_to_end(no)
            wait = max(settings.park_after, settings.park_factor * live.code.replay_seconds)
            if live.steps.elsewhere:
                wait *= LONGER_FOR_OTHERS
            self._agenda.set(("park", no), mono + wait)

    def show(self, no: int) -> None:
        """What a run waits for, once it has waited for a moment."""
        live = self.by_no.get(no)
        if live is not None and not live.state.released and not live.broken:
            live.state.show_status(
                live.code.waiting_for() if live.is_idle() and live.code.execution is not None else ""
            )
            self.touched[no] = live

    def park(self, no: int, now: int, grants_are_unknown: bool) -> None:
        """Let go of a run that has only waited for a while."""
        live = self.idle.pop(no, None)
        if live is None or self.by_no.get(no) is not live:
            return
        if grants_are_unknown and live.steps.slots:  # no other engine would ever tell it
            self.waits(live)
            return
        if live.code.is_ahead(now):  # it waits for a time that is too late, and first has to know
            self.make_ready(live)
            return
        live.release(now)
        self.touched[no] = live

    def park_longest(self, surplus: int, now: int, grants_are_unknown: bool) -> None:
        """So many of those that have waited longest leave at once."""
        for no in list(itertools.islice(self.idle, surplus)):
            self._agenda.drop(("park", no))
            self.park(no, now, grants_are_unknown)

    def take_touched(self) -> dict[int, LiveRun]:
        touched, self.touched = self.touched, {}
        return touched

    def distrust_all(self) -> None:
        """Whatever is in memory is read again before it goes on."""
        self.touched.clear()
        for live in self.by_no.values():
            live.broken = True
            self.make_ready(live)

    # -- leaving

    def forget(self, live: LiveRun) -> None:
        """A run leaves memory. What still executes for it will be posted to whoever owns it then, or is found here
        if that is us again."""
        no = live.row.no
        for table in (self.by_no, self.ready, self.idle, self.touched):
            if table.get(no) is live:
                del table[no]
        self.due.drop(no)
        self._agenda.drop(("show", no))
        self._agenda.drop(("park", no))
        if live.steps.inflight:
            under_way = {cmd: attempt for cmd, attempt in live.steps.inflight.items() if attempt in self._inflight}
            for token in self._executor.withdraw([attempt.token for attempt in under_way.values()]):
                del under_way[self._inflight.pop(token).cmd]  # type: ignore[union-attr]
            self._inflight.leave_behind(no, under_way)
        for item in live.change.streamed:
            if item.place >= 0:  # of a step; some may be in the store, and their places tell
                self._outbox.say(item_message(live.row.id, no, item))
        for outcome in live.steps.kept(live.deliveries):
            self._outbox.post(outcome)

    def drop(self, live: LiveRun) -> None:
        """A run that is no longer ours."""
        live.code.evict()
        self.forget(live)

    def drop_all(self) -> None:
        for live in list(self.by_no.values()):
            self.drop(live)
        self.touched.clear()

    def clear(self) -> None:
        """The engine ends. No other worker is told, and what executes is not waited for."""
        for live in self.by_no.values():
            live.code.evict()
        for table in (self.by_no, self.ready, self.idle, self.touched):
            table.clear()
        self.shared.greenlets.close()
