"""A run that this engine owns, as the reactor sees it: what is under way, and what is to be committed."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from enum import Enum

import msgspec
from msgspec import Raw

from holdfast.codec import Codec
from holdfast.core import commands as co
from holdfast.core import events as ev
from holdfast.core.definitions import WorkflowOptions
from holdfast.core.execution import Execution
from holdfast.core.loop import Greenlets
from holdfast.core.registry import Definitions
from holdfast.engine.guard import Guard
from holdfast.engine.records import RunOptions, to_record
from holdfast.ports import Attempt, Change, Claimed, Clock, Letter, Outcome, RunRow, Status

HELD = (Status.PAUSED, Status.STUCK)
Delivery = Outcome | Letter


class Identity(msgspec.Struct):
    """Who owns the run: a worker's id and build, the other workers that lived when it last looked and their builds, how
    often it has looked, and whether suspects get a process of their own."""

    worker: str
    build: str
    secret: bytes = b""
    others: set[str] = set()
    peers: frozenset[str] = frozenset()
    looks: int = 0
    isolates: bool = True


class Probe(Enum):
    """Where a run that has lost its worker stands: whether its code may be activated. One at a time is announced."""

    NONE = "none"
    WANTED = "wanted"
    ANNOUNCED = "announced"


def read_options(row: RunRow) -> tuple[RunOptions, str]:
    """The options of a run, and what is wrong with them."""
    try:
        return msgspec.json.decode(row.options, type=RunOptions), ""
    except msgspec.DecodeError as error:
        return RunOptions(), f"the options of run {row.id} in the store can't be read: {error}"


class OwnedRun:
    """Keeps the change that the next commit will write for a run."""

    def __init__(
        self, claimed: Claimed, app: Definitions, greenlets: Greenlets, guard: Guard, me: Identity, clock: Clock
    ) -> None:
        self.row = claimed.row
        self.me = me
        self.clock = clock
        self.app = app
        self.codec: Codec = app.codec
        self.greenlets = greenlets
        self.guard = guard
        self.options, self.damage = read_options(claimed.row)
        self.payloads = claimed.payloads
        self.execution: Execution | None = None
        self.deliveries: deque[Delivery] = deque(claimed.letters)
        self.seen: set[int] = {letter.id for letter in claimed.letters}
        self.inflight: dict[str, Attempt] = {}
        self.retries: list[tuple[int, str]] = []
        self.unconfirmed: list[Outcome] = []
        self.cautious = claimed.row.losses > 0
        self.shown: str = claimed.row.status
        self.replay_seconds = 0.0
        self.claimed_at_look = me.looks
        self.probe = Probe.NONE
        self.blame = 0  # how many workers were lost right after its code was announced to go on
        self.released = False
        self.broken = False
        self.resumed = len(claimed.payloads) > 1
        self.is_new = claimed.is_first
        self.checkpoints: dict[str, bytes] | None = None
        self.streamed: dict[str, int] | None = None
        self._reported: set[tuple[str, str]] = set()
        self.to_schedule: dict[str, co.ScheduleStep] = {}
        self.to_cancel: list[Attempt] = []
        self._change = Change(no=self.row.no)
        self._replay: Iterator[None] | None = None
        self._history: list[ev.AnyEvent] = []
        self._last_committed = claimed.row.base_seq + len(claimed.payloads) - 1
        self._unrecorded: dict[str, int] = {}
        self._announced: dict[str, str] = {}
        self._announced_here: dict[str, co.ScheduleStep] = {}
        self._outcomes_at_hand: set[str] = set()
        self._not_handed_over: set[str] = set()  # of those whose start this worker has announced
        self._spared: dict[str, int] = {}
        self._orders: list[int] = []
        self._cancel: Letter | None = None  # was read, and is not committed yet
        self._timeout: int | None = None
        self._retain = WorkflowOptions().retain
        self._refused = False

    @property
    def log_fields(self) -> dict[str, str]:
        """What the engine's own records about this run carry."""
        return {"run_id": self.row.id, "workflow": self.row.workflow}

    def next_due(self) -> int | None:
        """When time alone will bring this run forward."""
        if self.execution is None:
            return None
        due = self.execution.next_due()
        dues = [due] if due is not None else []
        if self.retries:
            dues.append(self.retries[0][0])
        if self._timeout is not None and self.execution.cancelling is None:
            dues.append(self.execution.started_at + self._timeout)
        return min(dues, default=None)

    def is_idle(self) -> bool:
        return not self.inflight and not self.deliveries and self._replay is None and not self.to_schedule

    def show_status(self, reason: str) -> None:
        status = Status.WAITING if reason else Status.RUNNING
        if (self.shown, self.row.reason) != (status, reason):
            self.shown, self.row.reason = status, reason
            self._change.columns |= {"status": status, "reason": reason}

    def has_change(self) -> bool:
        change = self._change
        return bool(
            change.records or change.columns or change.consumed or change.messages or change.attributes or change.children
            or change.dropped_attributes or change.streamed or change.signals or change.news
        )  # fmt: skip

    def take_change(self) -> Change:
        change, self._change = self._change, Change(no=self.row.no)
        if change.records and self.row.build != self.me.build:
            change.columns["build"] = self.row.build = self.me.build
        return change

    def _append_record(self, event: ev.Event) -> None:
        """Append to the history behind all that is to be committed, whether the code is in memory or not."""
        records = self._change.records
        event.seq = (records[-1].seq if records else self._last_committed) + 1
        records.append(to_record(event))

    def confirmed(self, change: Change) -> None:
        """The change is committed: outcomes in it are safe."""
        self.unconfirmed.clear()
        self._orders.clear()
        self._cancel = None
        if change.records:
            self._last_committed = change.records[-1].seq

    def new_records(self) -> int:
        return len(self._change.records)

    def kept_outcomes(self) -> list[Outcome]:
        """Outcomes of executed steps that are not known to be committed."""
        waiting = [
            d for d in self.deliveries if isinstance(d, Outcome) and self.inflight.get(d.attempt.cmd) is d.attempt
        ]
        return [outcome for outcome in self.unconfirmed + waiting if not outcome.cancelled and not outcome.lost]

    def unsure(self, change: Change) -> None:
        """Nobody knows whether the change was committed; this run must not go on before that is known."""
        self.broken = True
        self._change = change

    def carry_over(self, earlier: OwnedRun) -> None:
        """Go on from what an earlier self had in hand when it had to be read again. Only the owner writes a history,
        so if it has grown then all that was not confirmed is in it."""
        self.inflight = earlier.inflight
        self._not_handed_over = earlier._not_handed_over | set(earlier.to_schedule)
        self.deliveries.extend(arrival for arrival in earlier.deliveries if isinstance(arrival, Outcome))
        if self._last_committed > earlier._last_committed:
            self.to_cancel = earlier.to_cancel
        else:
            self.deliveries.extendleft(reversed(earlier.unconfirmed))
            again = [outcome.attempt for outcome in earlier.unconfirmed] + earlier.to_cancel
            self.inflight |= {attempt.cmd: attempt for attempt in again}
            self._change.streamed = [item for item in earlier._change.streamed if item[0] in self.inflight]
        for kind, cmd, body in earlier._change.attributes:
            if kind in ("checkpoint", "progress") and cmd in self.inflight:
                self.report(kind, cmd, body)

    def idempotency_key(self, command: co.ScheduleStep) -> str:
        """The same for every attempt of a step, also if the whole workflow is retried, and for no other step."""
        assert self.execution is not None
        return f"{self.row.id}:{command.origin}:{self.execution.mark}"

    def stream(self, cmd: str, attempt: int, now: int, item: bytes) -> None:
        self._change.streamed.append((cmd, attempt, now, item))

    def report(self, kind: str, cmd: str, body: bytes) -> None:
        """Keep what a step says on its way: its checkpoint, its progress."""
        if kind == "checkpoint":
            self.checkpoints = {**(self.checkpoints or {}), cmd: body}
        self._reported.add((kind, cmd))
        self._change.attributes = [a for a in self._change.attributes if a[:2] != (kind, cmd)]
        self._change.attributes.append((kind, cmd, body))

    def _publish_key(self, key: str) -> None:
        """Let the run be found by the key of hooks that it waits for, as long as it waits for any."""
        assert self.execution is not None
        names = {hook.name for hook in self.execution.hooks.values() if hook.key == key}
        entry = ("hook", key)
        self._change.attributes = [a for a in self._change.attributes if a[:2] != entry]
        if names:
            self._change.attributes.append((*entry, msgspec.json.encode(sorted(names))))
        else:
            self._change.dropped_attributes.append(entry)

    def _publish(self, key: str, value: Raw) -> None:
        name = f"data.{key}"
        self._change.attributes = [a for a in self._change.attributes if a[0] != name]
        self._change.attributes.append((name, bytes(value).decode(errors="replace"), bytes(value)))
