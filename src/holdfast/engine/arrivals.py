"""What a host brings to an engine, or to an executor of attempts of others, and what it is told in return."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from holdfast.ports import Attempt, Outcome, Topic


class Report(msgspec.Struct):
    """What a step says on its way."""

    attempt: Attempt
    kind: str
    value: Any


class Hint(msgspec.Struct, frozen=True):
    """Others have put something where an engine should look."""

    topic: Topic


class Stop(msgspec.Struct):
    """Stop claiming, let steps finish for `grace` seconds, then release every run."""

    grace: float


class DeclaredDead(msgspec.Struct):
    """Others took a worker for dead."""

    worker: str


class InboxHint(msgspec.Struct, frozen=True):
    """Messages were put into the inboxes of these runs, which that worker owned."""

    owner: str
    runs: Sequence[int]


Arrival = Outcome | Report | Hint | InboxHint | Stop | DeclaredDead


class Wake(msgspec.Struct):
    """When to turn the engine again if nothing arrives: at once, when the store's clock shows `due`, or `tick` (the next
    tick of a schedule), or after `seconds`. `busy` steps are under way. Outcomes of steps elsewhere may `gather` for so many
    seconds."""

    due: int | None
    tick: int | None
    seconds: float
    busy: int
    at_once: bool = False
    gather: float = 0.0
