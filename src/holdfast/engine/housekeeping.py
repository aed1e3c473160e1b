"""What is looked after now and then, although nothing has arrived: workers that are gone, what has expired, runs that no
worker knows, blobs that nothing names."""

from __future__ import annotations

import logging
import threading

from holdfast import failpoints
from holdfast.codec.blobs import store_mark, sweep
from holdfast.core import events as ev
from holdfast.core.registry import is_own
from holdfast.engine.announcer import Announcer
from holdfast.engine.attempts import lost_outcome
from holdfast.engine.domain_events import news_of
from holdfast.engine.environment import Environment
from holdfast.engine.live_runs import LiveRuns
from holdfast.engine.run_state import read_options
from holdfast.engine.sources import Sources
from holdfast.errors import StoreError, StoreLostError
from holdfast.ports import AHEAD, AttemptRow, Store, Topic

logger = logging.getLogger("holdfast.engine")
BATCH = 100
"""How many runs, and domain events, are deleted at a time."""
LOST = 1_000
"""How many attempts of workers that are gone are ended at a time."""
COLLECT_AGAIN = 0.05
SWEEP_BLOBS_EVERY = 3_600.0


class Housekeeping:
    """The agenda says when. `strain` is what weighs on the store without stopping it."""

    def __init__(self, env: Environment[Store], sources: Sources, announcer: Announcer, live_runs: LiveRuns) -> None:
        self._app = env.app
        self._store = env.store
        self._clock = env.clock
        self._settings = env.settings
        self._agenda = env.agenda
        self._membership = env.membership
        self._backoff = env.backoff
        self._sources = sources
        self._announcer = announcer
        self._live_runs = live_runs
        self._sweep_blobs_at = 0.0
        self.strain = ""

    def sweep(self, mono: float) -> None:
        """The safety net: once a second, look for all that a lost hint would have told."""
        self._agenda.set("sweep", mono + self._settings.sweep)
        self._sources.look_at(Topic.EVERYTHING)
        try:
            self._membership.gaps.swept()
            self._store.check()
            for worker_id in self._membership.look_at_others():
                logger.warning("worker %s is gone; its runs go on here or elsewhere", worker_id)
                self._sources.lines.look_at_all()
            self._end_lost()
            if self._membership.gaps.clock_was_set_back:
                self._store.reset_times(AHEAD)
                self._membership.gaps.clock_was_set_back = False
                for live in self._live_runs.by_no.values():
                    self._live_runs.make_ready(live)
            self._set_aside_unknown()
            self._note_strain(self._store.strain())
        except StoreLostError as error:
            self._backoff.lost = error
        except StoreError as error:
            logger.warning("sweep failed, trying again: %s", error)

    def _end_lost(self) -> None:
        """What workers that are gone had claimed: their runs hear that it is lost, and how many were lost together."""
        lost: dict[str, list[AttemptRow]] = {}
        for row in self._store.lost_attempts(LOST):
            lost.setdefault(row.worker or "", []).append(row)
        for worker_id, rows in lost.items():
            failpoints.hit("engine.before_post")
            self._store.end_attempts(worker_id, [lost_outcome(row, len(rows) - 1) for row in rows])
            self._announcer.posted()

    def _note_strain(self, strain: str) -> None:
        if strain and not self.strain:
            logger.warning("%s", strain)
        elif self.strain and not strain:
            logger.info("what weighed on %s is over", self._store.url)
        self.strain = strain

    def _set_aside_unknown(self) -> None:
        before = self._store.now() - round(self._settings.unknown_after * 1_000_000)
        for row in self._store.orphans(before):
            known = sorted({name for worker in self._store.workers() for name in worker.names if not is_own(name)})
            reason = (
                f"no live worker of app {self._app.name!r} knows {row.workflow!r}; known: {', '.join(known)}. Start a worker "
                "whose code defines it, and the run goes on by itself"
            )
            options, _ = read_options(row)
            stuck = ev.RunStuck(seq=self._store.now(), ts=self._store.now(), reason=reason)
            (news,) = news_of(row, options, stuck, self._app.codec) or (None,)
            if self._store.set_aside(row.no, reason, "unknown", news):
                logger.error("run %s is set aside: %s", row.id, reason)
                self._announcer.announce([row.id])

    def collect(self) -> None:
        """Delete what has expired, for a share of the time: as fast as others start runs, and no turn waits for long."""
        clock = self._clock.monotonic
        end = clock() + self._settings.collect_for
        while True:
            gone = self._backoff.ask("deleting what has expired", lambda: self._store.collect(BATCH))
            has_more = gone is not None and max(gone.runs, gone.events) >= BATCH
            if not has_more or clock() >= end:
                break
        self._agenda.set("collect", clock() + (COLLECT_AGAIN if has_more else self._settings.collect_every))
        if self._app.codec.blobs is not None and clock() >= self._sweep_blobs_at:
            self._sweep_blobs_at = clock() + SWEEP_BLOBS_EVERY
            threading.Thread(target=self._sweep_blobs, name="holdfast-blobs", daemon=True).start()

    def _sweep_blobs(self) -> None:
        """On a thread of its own: there may be many, and they may be far away."""
        blobs = self._app.codec.blobs
        assert blobs is not None
        try:
            sweep(blobs, store_mark(self._store.secret()), self._store.named_blobs)
        except Exception as error:  # they are found the next time
            logger.warning("blobs that nobody names could not be deleted: %s: %s", type(error).__name__, error)
