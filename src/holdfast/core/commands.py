"""What workflow code asks for, as data. The engine acts on it once the events that led there are committed."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import msgspec
from msgspec import Raw

from holdfast.core.domain_events import Scalar
from holdfast.core.events import NO_ARGS


class Command(msgspec.Struct, kw_only=True, gc=False):
    cmd: str


class ScheduleStep(Command, kw_only=True, gc=False):
    """A step, from when code asks for it until it has an outcome, which the code gets as it is recorded if it is `raw`. It
    has its `cmd` and its `cause` once all that one event led to is known.

    An attempt of it is to be executed at `not_before`, or as soon as possible. `origin` is the same for a step that an
    earlier attempt of the run has tried before. `worker` is where it has `started`, `began` is when its first attempt
    did. `resolve` gives the arguments where `args` are only references. One that is `handed_over` ends elsewhere, `until`
    or `limit` at the latest."""

    kind: ClassVar[str] = "s"
    cmd: str = ""
    cause: int = 0
    name: str
    args: Raw = NO_ARGS
    key: str = ""
    line: str = ""
    raw: bool = False
    origin: str = ""
    attempt: int = 1
    losses: int = 0
    not_before: int = 0
    started: bool = False
    began: int = 0
    worker: str = ""
    handed_over: bool = False
    until: int = 0
    limit: int = 0
    undoes: str = ""
    options: dict[str, object] = {}
    data: dict[str, Raw] = {}
    resolve: Callable[[], bytes] | None = None

    def next_look(self) -> int:
        """When it is to be tried again, or may have taken too long elsewhere; 0 if that is now, or never."""
        if self.handed_over:
            return min([time for time in (self.until, self.limit) if time], default=0)
        return self.not_before

    def set_back(self, by: int) -> None:
        """The database's clock was set back by so much."""
        self.not_before = max(0, self.not_before - by)
        self.until = max(1, self.until - by) if self.until else 0
        self.limit = max(1, self.limit - by) if self.limit else 0


class CancelStep(Command, kw_only=True, gc=False):
    """Interrupt the attempt that executes, if any; its outcome no longer counts."""


class StartChild(Command, kw_only=True, gc=False):
    """Create a child run, or retry it if it is there already (`again`)."""

    name: str
    args: Raw
    child_id: str
    again: bool = False
    waited: bool = True
    options: dict[str, object] = {}


class WatchChild(Command, kw_only=True, gc=False):
    """Ask a child that the code has not waited for to tell its outcome."""

    child_id: str


class CancelChild(Command, kw_only=True, gc=False):
    child_id: str
    reason: str = ""


class OpenHook(Command, kw_only=True, gc=False):
    """Make a hook's key known to others, until it is answered or dropped. With `where` it waits for a domain event."""

    name: str
    key: str
    where: dict[str, Scalar] | None = None


class CloseHook(Command, kw_only=True, gc=False):
    name: str
    key: str
    where: dict[str, Scalar] | None = None


class EmitEvent(Command, kw_only=True, gc=False):
    """Tell a domain event to all who listen. The same key again is the same event."""

    name: str
    key: str
    payload: Raw


class GiveAnswer(Command, kw_only=True, gc=False):
    """Let whoever has asked find the answer to a request, or the error that says why there is none."""

    request: str
    seq: int
    answer: Raw
    error: Raw


class SendHook(Command, kw_only=True, gc=False):
    """Send a payload to a hook of another run."""

    run_id: str
    name: str
    key: str
    payload: Raw


class PublishData(Command, kw_only=True, gc=False):
    """Make a datum of the run searchable."""

    key: str
    value: Raw


class StreamItem(Command, kw_only=True, gc=False):
    """Give an item to those who watch the run."""

    item: Raw
