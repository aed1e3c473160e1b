"""Outcomes of steps whose runs are no longer here, and what they say."""

from __future__ import annotations

import logging

from holdfast.engine.announcer import Announcer
from holdfast.engine.environment import Environment
from holdfast.engine.inflight import InFlight
from holdfast.engine.records import outcome_message
from holdfast.errors import StoreError
from holdfast.ports import Message, Outcome, Store

logger = logging.getLogger("holdfast.engine")
AGAIN = 1.0
"""Seconds until an outcome that could not be posted is posted again."""


class Outbox:
    """They are posted to whoever owns their runs now. Outcomes are kept until the store takes them."""

    def __init__(self, env: Environment[Store], announcer: Announcer, inflight: InFlight) -> None:
        self._me = env.membership.me
        self._agenda = env.agenda
        self._backoff = env.backoff
        self._clock = env.clock
        self._announcer = announcer
        self._inflight = inflight
        self._kept: list[Outcome] = []

    def say(self, item: Message) -> None:
        """What a step has streamed."""
        self._backoff.ask("keeping what a step says", lambda: self._announcer.post(item))

    def post(self, outcome: Outcome) -> None:
        try:
            self._announcer.post(outcome_message(outcome.attempt.run_id, outcome, self._me.worker))
        except StoreError as error:
            logger.warning("outcome of step %r is kept until the store answers: %s", outcome.attempt.step, error)
            self._inflight.put_back(outcome.attempt)
            self._kept.append(outcome)
            self._agenda.set("kept outcomes", self._clock.monotonic() + AGAIN)

    def take_kept(self) -> list[Outcome]:
        kept, self._kept = self._kept, []
        return kept
