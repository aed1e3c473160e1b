"""Messages to runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec

from holdfast.ports.database import Database
from holdfast.ports.limits import Line


class Message(msgspec.Struct, kw_only=True, gc=False):
    """Something for a run's inbox. A run that is held (PAUSED, STUCK) is woken only by `control` messages;
    a run that has ended takes only those marked `late`. Of several with the same `dedupe` one is kept, as long as that
    is in the inbox; with `once`, as long as the run is there. With `run_no` or `child_of` it is only for the run of that
    number, or for a child of that run: an id may have been given to another run. If there is no such run, or with
    `or_ended` if it takes nothing any more, `if_gone` is posted instead. A `request` is asked once, as long as its answer
    is kept. It `frees` the slots of that command if its run is held: nobody else will until that goes on."""

    run_id: str
    kind: str
    body: bytes = b"{}"
    control: bool = False
    late: bool = False
    dedupe: str | None = None
    once: bool = False
    run_no: int | None = None
    child_of: str | None = None
    if_gone: Message | None = None
    or_ended: bool = False
    request: str = ""
    frees: str = ""


class Posted(msgspec.Struct, gc=False):
    """What became of a message: the status of its run, None if there is none, and whether it was put into the inbox. In
    the lines `freed`, by limit and key, somebody else may have a turn."""

    status: str | None
    kept: bool
    freed: list[Line] = []


class InboxRow(msgspec.Struct, gc=False):
    """A message as its run's owner reads it. `clock` is the logical clock of who sent it, at the time `ts`."""

    id: int
    run_no: int
    kind: str
    body: bytes
    ts: int = 0
    clock: int = 0


class MessageStore(Database, Protocol):
    """Inboxes of runs, as anyone may put something into them."""

    def post(self, message: Message) -> Posted:
        """Put a message into a run's inbox. Nothing is put into the inbox of a run that has ended, unless the message is
        `late`, nor a copy of one with the same `dedupe`."""

    def post_all(self, messages: Sequence[Message]) -> list[Posted]:
        """`post` for each of them, all or none."""
