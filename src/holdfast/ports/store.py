"""The store: what writes and drives runs, and all of it together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import msgspec

from holdfast.ports.attempts import AttemptQuery, AttemptRow, AttemptStore, NewAttempt
from holdfast.ports.database import Database
from holdfast.ports.domain_events import Emission, EventQuery, EventStore, Signal
from holdfast.ports.limits import Ask, LimitQuery, LimitStore, Line, SlotRow
from holdfast.ports.messages import InboxRow, Message, MessageStore
from holdfast.ports.notifier import Notifier
from holdfast.ports.runs import Collision, Farewell, NewItem, NewRun, Record, RunQuery, RunRow, StreamRow
from holdfast.ports.schedules import ScheduleQuery, ScheduleStore
from holdfast.ports.telemetry import TelemetryQuery, TelemetryStore
from holdfast.ports.transactions import StepTransaction
from holdfast.ports.workers import WorkerQuery, WorkerStore


class Answer(msgspec.Struct, gc=False):
    """What a run has answered to a request, by the event of that number. The first one stands."""

    request: str
    seq: int
    body: bytes


class Change(msgspec.Struct, kw_only=True, gc=False):
    """What one commit does to one run and because of it. Events before `forget_before`, and what they have answered, are
    deleted. It gives back the slots of commands in `gives_back` (and of all that are not in `keeps` and are not executed
    elsewhere, unless that is None; none are kept if it is empty), then it asks for others. One that `is_plain` is known to
    have nothing but records and columns."""

    no: int
    is_plain: bool = False
    records: Sequence[Record] = ()
    consumed: Sequence[int] = ()
    columns: dict[str, Any] = {}
    children: Sequence[NewRun] = ()
    messages: Sequence[Message] = ()
    attributes: Sequence[tuple[str, str, bytes]] = ()
    dropped_attributes: Sequence[tuple[str, str]] = ()
    streamed: Sequence[NewItem] = ()
    signals: Sequence[Signal] = ()
    news: Sequence[Emission] = ()
    asks: Sequence[Ask] = ()
    gives_back: Sequence[str] = ()
    keeps: Sequence[str] | None = None
    answers: Sequence[Answer] = ()
    forget_before: int = 0
    attempts: Sequence[NewAttempt] = ()
    dropped_attempts: Sequence[str] = ()
    withdrawn_attempts: Sequence[str] = ()


class Collected(msgspec.Struct, kw_only=True):
    """How many runs and domain events were deleted because of their age."""

    runs: int
    events: int


class Claimed(msgspec.Struct):
    """A run that now belongs to the worker that claimed it, with its history from `base_seq` on. `is_first` says that
    no worker had it before. Each of its attempts elsewhere is in `attempts`, or its outcome in `messages`, or in both. Slots
    are those of a run that is `limited`."""

    row: RunRow
    payloads: list[bytes]
    messages: list[InboxRow]
    is_first: bool = False
    attempts: list[AttemptRow] = []
    slots: list[SlotRow] = []


class Committed(msgspec.Struct):
    """What a commit has led to beside itself: runs that were claimed, whether any domain event was recorded that
    subscriptions of any app have yet to get, and lines of limits in which a slot is free now."""

    claimed: list[Claimed]
    emitted: bool = False
    freed: list[Line] = []


class RunQueries(Database, Protocol):
    """What people read of runs."""

    def get(self, run_id: str) -> RunRow | None: ...

    def runs(self, query: RunQuery) -> list[RunRow]: ...

    def counts(self, query: RunQuery, most: int) -> dict[str, int]:
        """How many runs there are of each status, whatever page a query asks for. Nobody counts all of very many: a query
        for statuses alone counts up to `most` of each, any other its newest `most` runs. Several statuses, and the workflows
        that the beginning of a name stands for, share that number evenly."""

    def counts_over_time(self, query: RunQuery, width: int, most: int) -> list[tuple[int, str, int]]:
        """Of the newest `most` runs that a query finds, how many of each status were created in each stretch of `width`
        microseconds: (its beginning, status, how many), in the order of time."""

    def histories(self, numbers: Sequence[int], kinds: Sequence[str] = ()) -> dict[int, list[bytes]]:
        """The histories of several runs, by their `no`, all of each or only the kinds given."""

    def payloads(self, run_id: str, after: int = 0, kinds: Sequence[str] = (), until: int | None = None) -> list[bytes]:
        """A run's history after event number `after`, up to and with number `until`, all of it or only the kinds given."""

    def clocks(self, run_id: str, after: int = 0, until: int | None = None) -> dict[int, int]:
        """The logical clocks of a run's events after number `after`, up to `until`, by number; 0 where an older version
        wrote them."""

    def data(self, run_id: str) -> dict[str, bytes]:
        """What the run has published of its data."""

    def data_of(self, numbers: Sequence[int], most: int) -> dict[int, dict[str, bytes]]:
        """The same for the runs of these numbers, without values of more than `most` bytes. Runs that have published
        nothing are left out."""

    def attributes(self, run_id: str, key: str) -> dict[str, bytes]:
        """What is kept beside the run's history under `key`, by value."""

    def answer(self, run_id: str, request: str) -> bytes | None:
        """What the run has answered to a request, None if nothing so far."""

    def stream(self, run_id: str, after: int, limit: int) -> list[StreamRow]:
        """What a run has streamed after item number `after`, in order."""

    def orders(self, run_id: str) -> list[str]:
        """The kinds of the control messages that wait in a run's inbox."""

    def find_hook(self, key: str) -> list[tuple[str, str]]:
        """Runs that wait for a hook of that key: (run id, hook name)."""


class RunStore(RunQueries, MessageStore, Protocol):
    """Runs, their histories and inboxes: created and written to by anyone, brought forward by the worker that owns them."""

    def create(self, run: NewRun, replace: bool = False) -> RunRow | None:
        """Create a run. If its id is taken nothing happens and the run that has it is returned, unless it has
        ended and `replace` says to delete it first."""

    def create_all(self, runs: Sequence[NewRun], collision: Collision) -> list[RunRow | None]:
        """Create runs, all or none; for each None, or the run that has its id already and stays as it is. Of those
        `collision` is told first: if it raises nothing is created. It must do nothing else."""

    def put_off(self, no: int, run: NewRun) -> bool:
        """Give a run that nobody has taken up the input and the time of `run`; False, with nothing done, if somebody has,
        or if it is held or gone."""

    def delete(self, run_id: str, no: int | None = None, farewell: Farewell | None = None) -> str | None:
        """Delete a run that has ended or is held, with everything that belongs to it. Returns the status it had,
        None if there is no such run (of the number `no`, if that is given); a run with any other status is not deleted.
        `farewell` says what is posted to others in the same transaction, and must do nothing else."""

    def delete_all(self, runs: Sequence[tuple[str, int]], farewell: Farewell | None = None) -> int:
        """`delete` for each id and number, in one transaction; how many are gone by it."""

    def commit(self, worker_id: str, changes: Sequence[Change], claim: int, names: Sequence[str]) -> Committed:
        """Apply changes to runs that the worker owns, all or none, then claim up to `claim` runs. The signals of a
        change take effect in their order; its news become domain events if there is a subscription to their name.

        Raises Fenced, with nothing written, if the worker has been declared dead. A run is claimable if nobody
        owns it, its workflow is one of `names`, and either `wake_at` is past or a message waits for it (runs that
        are held or to begin later: a control message). If the id of a child is taken, its `if_taken` is posted
        instead; messages to runs that have ended are dropped, except `late` ones, and so are those to runs that don't exist,
        except for their `if_gone`. Attempts that are `dropped` are gone, whoever has claimed them; those that are
        `withdrawn` only if nobody has."""

    def settle(self, worker_id: str) -> None:
        """After a `commit` of that worker whose fate is unknown: what is read once this has returned shows whether it
        happened. A connection may be lost while the database goes on with what it was told."""

    def inbox(self, worker_id: str, runs: Sequence[int] | None = None) -> list[InboxRow]:
        """The inboxes of all runs the worker owns, or of those of them that have these numbers, oldest first. Reading
        doesn't consume; `commit` does."""

    def streamed(self, run_id: str) -> dict[str, dict[int, int]]:
        """How many items each attempt has streamed, by command and attempt."""

    def next_wake(self, names: Sequence[str]) -> int | None:
        """When the next unowned run of these workflows is due; 0 if a message waits for one."""

    def orphans(self, before: int) -> list[RunRow]:
        """Runs due before `before` that nobody owns and whose workflow no live worker knows."""

    def set_aside(self, no: int, reason: str, stuck: str, news: Emission | None = None) -> bool:
        """Mark an unowned run STUCK, if it is still unowned."""

    def collect(self, limit: int) -> Collected:
        """Delete runs whose time of retention has passed, and domain events that are too old: up to `limit` of each. A
        run with a control message in its inbox stays until somebody has dealt with it."""

    def named_blobs(self, keys: Sequence[str]) -> set[str]:
        """Those of these blobs (and perhaps others) that anything in the store names, of whichever app."""

    def reset_times(self, ahead: int) -> int:
        """The clock was set back. Runs that wait for a time, and whose last event is further in the future than `ahead`,
        can be claimed at once: their owner will tell anew when they are due. How many there were."""


class Query(RunQueries, WorkerQuery, AttemptQuery, LimitQuery, ScheduleQuery, EventQuery, TelemetryQuery, Protocol):
    """What people and monitors read of a store. Nothing here writes, and lists never read payloads."""


class Store(
    Query, RunStore, WorkerStore, AttemptStore, LimitStore, ScheduleStore, EventStore, TelemetryStore, Protocol
):
    """Where runs, histories and inboxes live.

    Each method is one transaction: it happens whole or not at all, and once it has returned it survives the process
    and the machine (claims and heartbeats only the process: they mean nothing without the machine). Failures are
    StoreErrors. After a failure of `commit` or `create` the caller doesn't know whether it happened, and has to look
    (after a commit: once `settle` has returned). After a StoreBusyError it certainly didn't, and can be tried again.
    A value that the database can't hold is an EncodeError, and nothing has happened; a time beyond the last one it
    can hold is that last one.

    Events, messages and heartbeats are written with numbers of the logical clock: higher than those of all that this
    process has written or read before, and, after a restart, than those of all that is in the store. Within one
    transaction events come before messages, and the number before its first event is given to nobody.
    """

    def strain(self) -> str:
        """What weighs on the store without keeping it from working, and what to do about it; empty if nothing does. What
        can be done here is done."""

    def join(self, connection: object) -> tuple[Store, Notifier]:
        """This store inside the transaction that somebody else's connection to the same database has open, and a notifier
        whose hints leave with it: what `create`, `post` and `emit` do there happens when that transaction is committed,
        or not at all. An ArgumentError if it can't be joined."""

    def transaction(self, run_no: int | None, key: str) -> StepTransaction:
        """A transaction for a step of that run; `key` is the same for all attempts of the step and for no other step. Of a
        step that is called outside of a run, `run_no` is None, and nothing is recorded."""
