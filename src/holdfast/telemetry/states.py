"""What the events of steps and runs mean: the states they lead to, and which of two states counts."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

RETRIED = "retried"
"""The attempt that it names is over, and the next one is open."""


class Rules(msgspec.Struct, frozen=True):
    """How events of one family are judged. `states` are those of known kinds; any other kind is a custom state, its
    own name in upper case. Of the states of one attempt the one with the lowest rank counts, and of several with the
    same rank the newest. `opened` is the state of an attempt of which nothing has been heard yet."""

    states: Mapping[str, str]
    ranks: Mapping[str, int]
    custom: int
    ready: frozenset[str]
    opened: str

    def state_of(self, kind: str) -> str:
        return self.states.get(kind) or kind.upper()

    def rank_of(self, state: str) -> int:
        return self.ranks.get(state, self.custom)


CUSTOM = None
STEP_PRECEDENCE = ("SUCCESS", "FAILURE", "CANCELLED", "REJECTED", CUSTOM, "STARTED", "RECEIVED", "PENDING")
"""Which state of a step's attempt counts if there are events for several, from the strongest on."""

STEP_RULES = Rules(
    states={
        "sent": "PENDING", "received": "RECEIVED", "started": "STARTED", "progress": "STARTED", "succeeded": "SUCCESS",
        "failed": "FAILURE", "rejected": "REJECTED", "cancelled": "CANCELLED",
    },
    ranks={state: rank for rank, state in enumerate(STEP_PRECEDENCE) if state is not None},
    custom=STEP_PRECEDENCE.index(CUSTOM),
    ready=frozenset({"SUCCESS", "FAILURE", "CANCELLED", "REJECTED", "SKIPPED"}),
    opened="PENDING",
)  # fmt: skip

# A run goes to and fro between its states until it ends, so of those before the end the newest counts.
RUN_RULES = Rules(
    states={
        "sent": "PENDING", "started": "RUNNING", "resumed": "RUNNING", "waiting": "WAITING", "paused": "PAUSED",
        "stuck": "STUCK", "succeeded": "SUCCESS", "failed": "FAILURE", "cancelled": "CANCELLED",
    },
    ranks={"SUCCESS": 0, "FAILURE": 1, "CANCELLED": 2, "PENDING": 4},
    custom=3,
    ready=frozenset({"SUCCESS", "FAILURE", "CANCELLED"}),
    opened="RETRY",
)  # fmt: skip
