"""Where an executor of others' runs finds attempts by itself: in queues, of which it claims short ones ahead, so that it
need not wait for the store between two."""

from __future__ import annotations

from collections.abc import Hashable

from holdfast.engine.environment import Environment
from holdfast.engine.in_turn import SMOOTH, InTurn
from holdfast.engine.puller import Puller, Source
from holdfast.engine.telling import AttemptsOfOthers

GIVE_WAY = 0.2
"""Seconds that an attempt that was claimed ahead waits for its turn, until others may have it."""


class Queues(Source):
    """Up to `concurrency` attempts execute at a time; more are claimed if they are short."""

    def __init__(self, env: Environment[AttemptsOfOthers], concurrency: int) -> None:
        self._env = env
        self._concurrency = concurrency
        self._queues = sorted(env.membership.me.queues or ())
        self._steps = env.membership.steps
        # Not those that are executed at most once: what was claimed is lost with this worker, whether it has begun or not.
        self._to_claim_ahead = [name for name in self._steps if not env.app.find_step(name).options.at_most_once]
        env.executor = self._turns = InTurn(env.executor, concurrency, env.clock)
        self._away = 0.0  # how long it takes to tell what has ended and get more
        self._is_stale = True

    def look_again(self) -> None:
        self._is_stale = True

    def has_more(self, worker: Puller) -> bool:
        return self._is_stale and not worker.stopping and self._room(len(worker.inflight)) > 0

    def _room(self, held: int) -> int:
        """How many more to claim. Few are not worth asking the store for while others wait for their turn here."""
        ahead = self._turns.ahead(self._away) if self._to_claim_ahead else 0
        room = self._concurrency + ahead - held
        if held < self._concurrency:
            return room
        is_careful = len(self._to_claim_ahead) < len(self._steps)
        return 0 if is_careful or room <= ahead // 2 else room

    def claim(self, worker: Puller, began: float) -> None:
        if not self.has_more(worker):
            return
        me, limit = worker.me.worker, self._room(len(worker.inflight))
        is_careful = len(self._to_claim_ahead) < len(self._steps)
        free = self._concurrency - len(worker.inflight) if is_careful else limit
        claimed = self._env.store.claim_attempts(me, self._queues, self._steps, free)
        self._is_stale = len(claimed) >= free
        if self._is_stale and free < limit:
            claimed += self._env.store.claim_attempts(me, self._queues, self._to_claim_ahead, limit - free)
        self._away += (self._env.clock.monotonic() - began - self._away) * SMOOTH
        if claimed:
            worker.hand_over(claimed)
            if len(worker.inflight) > self._concurrency:
                self._env.agenda.set("give way", self._env.clock.monotonic() + GIVE_WAY)

    def due(self, worker: Puller, key: Hashable) -> None:
        """What was claimed ahead waits behind others that take long: give it back."""
        if key == "give way":
            for token in self._turns.give_way():
                worker.telling.give_back(worker.inflight.pop(token))
