"""Limits, and the lines in which slots are waited for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec

from holdfast.ports.database import Database

Line = tuple[str, str]
"""Where slots are waited for: the name of a limit, and a key ('' if it has none)."""


class LimitRow(msgspec.Struct, kw_only=True, frozen=True, gc=False):
    """A limit as code declares it: up to `concurrency` at once, `rate` in each `period` and `burst` together after a quiet
    time. 0 is no limit."""

    name: str
    keyed: bool = False
    of_runs: bool = False
    concurrency: int = 0
    rate: int = 0
    period: int = 0
    burst: int = 1


class Ask(msgspec.Struct, kw_only=True, gc=False):
    """A slot is wanted for the command `cmd` of a run, or for all of it ('') before it begins. `lines` are those to stand
    in one after the other, each a limit, a key, and by what those that wait in it take turns. `message` is what the run is
    told when it has them all, as a message of the kind "slot" (a `control` one if so). If none is free the run is told the
    `refusal`, if there is one, and it is over; with an `eviction` the oldest in that line are told that, as "cancel"."""

    cmd: str
    token: str
    lines: Sequence[tuple[str, str, str]]
    message: bytes
    control: bool = False
    refusal: bytes | None = None
    eviction: bytes | None = None


class SlotRow(msgspec.Struct, kw_only=True, gc=False):
    """Where a command of a run stands: `granted` once it has all its slots. `limits` are those it stands in or will."""

    cmd: str
    token: str
    granted: bool
    limits: list[str]


class Place(msgspec.Struct, kw_only=True, gc=False):
    """A slot that a run waits for, and how many wait in that line up to it; 0 if it has it. `next_at` is when the next of
    that line may begin, if that is a matter of time."""

    cmd: str
    limit: str
    key: str
    place: int
    asked_at: int
    in_use: int
    next_at: int | None = None


class LineUse(msgspec.Struct, kw_only=True, gc=False):
    """How much of a limit is in use under one key, and how many wait."""

    key: str
    in_use: int
    waiting: int
    next_at: int | None = None


class LimitUse(msgspec.Struct, kw_only=True, gc=False):
    """A limit, and its lines: first those in which most wait. There may be more `keys` than lines that are told."""

    limit: LimitRow
    in_use: int
    waiting: int
    keys: int
    lines: list[LineUse]


class Served(msgspec.Struct, kw_only=True):
    """What came of serving a limit: messages for runs of the worker that did (the others have them in their inboxes, if any
    were `posted`), limits whose lines have got somebody new, the keys in whose lines something `moved`, and when lines can
    move next because of time."""

    messages: list[tuple[int, bytes]] = []
    posted: bool = False
    onward: list[str] = []
    moved: set[str] = set()
    due: dict[str, int] = {}


class LimitQuery(Database, Protocol):
    """What people read of limits."""

    def limits(self, lines: int) -> list[LimitUse]:
        """The limits of the app by name, each with up to `lines` of its lines."""

    def places(self, run_id: str, limit: int) -> list[Place]:
        """The slots that a run waits for, and then those that it has, up to `limit` of them."""


class LimitStore(LimitQuery, Protocol):
    """Slots that runs ask for in their commits."""

    def declare_limits(self, limits: Sequence[LimitRow]) -> list[str]:
        """These hold from now on, for those who wait already too. The names of those that are new or have changed."""

    def slots(self, nos: Sequence[int]) -> dict[int, list[SlotRow]]:
        """The slots that runs of these numbers have or wait for."""

    def serve(self, worker_id: str, name: str, keys: Sequence[str] | None) -> Served:
        """Give the free slots of a limit to those who wait, in turn: in the lines of these keys (None: in all) and in
        those that somebody has come to since the last time. Never more than the limit allows, whoever else does the same.

        A run that has all its slots is told with its message: by the answer if the worker owns it, else in its inbox.
        Raises Fenced, with nothing done, if the worker has been declared dead. Slots of runs that have ended are no
        longer there once all lines were served."""
