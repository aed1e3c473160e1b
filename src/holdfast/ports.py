"""Every interface between the engine and the world. The docstrings are the contract: whoever writes a new
store, executor, notifier or clock needs to read only this.

Times are integer microseconds since the epoch, on the store's clock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Any, Protocol

import msgspec

from holdfast.telemetry.clock import LamportClock


class Status(StrEnum):
    """What a run is doing."""

    PENDING = "PENDING"
    RUNNING = "RUNNING"
    WAITING = "WAITING"
    RETRY = "RETRY"
    PAUSED = "PAUSED"
    STUCK = "STUCK"
    SUCCESS = "SUCCESS"
    FAILURE = "FAILURE"
    CANCELLED = "CANCELLED"

    @property
    def is_final(self) -> bool:
        """Whether the run has ended: SUCCESS, FAILURE or CANCELLED."""
        return self in FINAL


FINAL = frozenset({Status.SUCCESS, Status.FAILURE, Status.CANCELLED})


class StepState(StrEnum):
    """What a step of a run is doing, or what became of it."""

    PENDING = "PENDING"
    RECEIVED = "RECEIVED"
    STARTED = "STARTED"
    RETRY = "RETRY"
    SUCCESS = "SUCCESS"
    FAILURE = "FAILURE"
    SKIPPED = "SKIPPED"
    CANCELLED = "CANCELLED"


class RunRow(msgspec.Struct, kw_only=True, gc=False):
    """A run without its history. `no` is the store's own number for it. `end_seq` is that of the event that ended it; of a
    run that goes on, that of the last event when its row was written, or 0. One that is `limited` may have slots."""

    no: int
    app: str
    id: str
    workflow: str
    status: str
    reason: str = ""
    stuck: str = ""
    owner: str | None = None
    wake_at: int | None = None
    attempt: int = 1
    losses: int = 0
    base_seq: int = 1
    end_seq: int = 0
    priority: int = 0
    parent_id: str | None = None
    parent_cmd: str | None = None
    root_id: str | None = None
    correlation: str | None = None
    build: str = ""
    durable: bool = True
    options: bytes = b"{}"
    fingerprint: bytes = b""
    created_at: int = 0
    started_at: int | None = None
    finished_at: int | None = None
    expires_at: int | None = None
    limited: bool = False


class Record(msgspec.Struct, gc=False):
    """An event as it is stored: columns for people and queries, the payload for the core."""

    seq: int
    kind: str
    name: str
    cmd: str
    cause: int
    attempt: int
    worker: str
    ts: int
    payload: bytes


class NewRun(msgspec.Struct, kw_only=True):
    """A run to be created, with the beginning of its history. `messages` are in its inbox from the beginning. If
    the id of a child is taken, `if_taken` is posted. The store sets `no` once it is created."""

    id: str
    workflow: str
    records: list[Record]
    wake_at: int
    created_at: int
    fingerprint: bytes
    no: int | None = None
    correlation: str | None = None
    status: str = Status.PENDING
    priority: int = 0
    parent_id: str | None = None
    parent_cmd: str | None = None
    root_id: str | None = None
    durable: bool = True
    options: bytes = b"{}"
    base_seq: int = 1
    attributes: list[tuple[str, str, bytes]] = []
    messages: list[Message] = []
    if_taken: Message | None = None


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


class Letter(msgspec.Struct, gc=False):
    """A message as its run's owner reads it. `clock` is the logical clock of who sent it, at the time `ts`."""

    id: int
    run_no: int
    kind: str
    body: bytes
    ts: int = 0
    clock: int = 0


Collision = Callable[["NewRun", RunRow], None]
"""What is said of a new run whose id another one has: it raises if that must not be."""

Farewell = Callable[[RunRow, list[Letter]], list[Message]]
"""Who is told what of a run that is deleted, with these messages unread."""


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
    in one after the other, each a limit, a key, and by what those that wait in it take turns. `letter` is what the run is
    told when it has them all, as a message of the kind "slot" (a `control` one if so). If none is free the run is told the
    `refusal`, if there is one, and it is over; with an `eviction` the oldest in that line are told that, as "cancel"."""

    cmd: str
    token: str
    lines: Sequence[tuple[str, str, str]]
    letter: bytes
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
    """What came of serving a limit: letters for runs of the worker that did (the others have them in their inboxes, if any
    were `posted`), limits whose lines have got somebody new, the keys in whose lines something `moved`, and when lines can
    move next because of time."""

    letters: list[tuple[int, bytes]] = []
    posted: bool = False
    onward: list[str] = []
    moved: set[str] = set()
    due: dict[str, int] = {}


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
    streamed: Sequence[tuple[str, int, int, bytes]] = ()
    signals: Sequence[Emission | Subscription | Unsubscription] = ()
    news: Sequence[Emission] = ()
    asks: Sequence[Ask] = ()
    gives_back: Sequence[str] = ()
    keeps: Sequence[str] | None = None
    answers: Sequence[Answer] = ()
    forget_before: int = 0
    attempts: Sequence[NewAttempt] = ()
    dropped_attempts: Sequence[str] = ()
    withdrawn_attempts: Sequence[str] = ()


class NewAttempt(msgspec.Struct, kw_only=True, gc=False):
    """An attempt that a worker elsewhere is to execute: whoever serves its `queue`, those that are due first before the
    others. `body` is all that the worker needs to know of it, which no store reads."""

    token: str
    cmd: str
    step: str
    number: int
    queue: str
    due: int
    body: bytes


class AttemptRow(msgspec.Struct, kw_only=True, gc=False):
    """An attempt that waits since `due` for a worker, or that `worker` has claimed."""

    token: str
    run_no: int
    cmd: str
    step: str
    number: int
    queue: str
    due: int
    worker: str | None = None
    claimed_at: int | None = None


class ClaimedAttempt(msgspec.Struct, gc=False):
    """An attempt that now belongs to the worker that claimed it."""

    token: str
    body: bytes


class EndedAttempt(msgspec.Struct, gc=False):
    """An attempt with its outcome, as a message to its run."""

    token: str
    message: Message


class AttemptReport(msgspec.Struct, gc=False):
    """What an attempt says on its way: its `checkpoint`, its `progress`."""

    token: str
    kind: str
    body: bytes


class QueueRow(msgspec.Struct, kw_only=True):
    """How many attempts wait in a queue, and since when the first of them does; how many are claimed."""

    queue: str
    waiting: int
    since: int | None
    claimed: int


class Emission(msgspec.Struct, kw_only=True, gc=False):
    """A domain event to be emitted. `run_id` and `cmd` say by what. Nothing that a `quiet` one sets in motion is news."""

    id: str
    name: str
    key: str
    payload: bytes
    correlation: str
    ts: int
    run_id: str | None = None
    cmd: str = ""
    quiet: bool = False


class Subscription(msgspec.Struct, kw_only=True, gc=False):
    """What listens to the domain events of one name: a `target` that each of them starts, or the command `cmd` of a
    run, which waits for one. `spec` is for whoever delivers. Those with the same `path` compare the same place of the
    payload, and are found by their `lookup`, which tells the value; both are empty for those that are always asked."""

    event: str
    target: str = ""
    cmd: str = ""
    spec: bytes = b"{}"
    path: str = ""
    lookup: str = ""


class Unsubscription(msgspec.Struct, kw_only=True, gc=False):
    """The command `cmd` of a run no longer waits for an event."""

    cmd: str


class DomainEventRow(msgspec.Struct, kw_only=True, gc=False):
    """A domain event as it was emitted."""

    no: int
    app: str
    id: str
    name: str
    key: str
    payload: bytes
    correlation: str
    run_id: str | None
    cmd: str
    quiet: bool
    ts: int


class Arrival(msgspec.Struct, kw_only=True, gc=False):
    """A domain event that subscriptions of this app, up to the number `upto`, have yet to get: those after `after`.
    `paths` are the places of the payload that they compare."""

    id: int
    event: DomainEventRow
    after: int
    upto: int
    paths: list[str]


class Listener(msgspec.Struct, kw_only=True, gc=False):
    """A subscription, with its number. `run_id` is the run that waits."""

    no: int
    target: str
    run_id: str | None
    cmd: str
    spec: bytes


class Delivery(msgspec.Struct, kw_only=True):
    """What an arrival leads to: runs to start, letters to subscriptions by number, each of which ends with it. Those
    up to `reached` have then got it; None if all have."""

    arrival: Arrival
    reached: int | None
    runs: list[NewRun] = []
    letters: list[tuple[int, Message]] = []


class StreamRow(msgspec.Struct, gc=False):
    """An item that a step or workflow has streamed."""

    number: int
    cmd: str
    attempt: int
    ts: int
    item: bytes


class Collected(msgspec.Struct, kw_only=True):
    """How many runs and domain events were deleted because of their age."""

    runs: int
    events: int


class Claimed(msgspec.Struct):
    """A run that now belongs to the worker that claimed it, with its history from `base_seq` on. `is_first` says that
    no worker had it before. Each of its attempts elsewhere is in `attempts`, or its outcome in `letters`, or in both. Slots
    are those of a run that is `limited`."""

    row: RunRow
    payloads: list[bytes]
    letters: list[Letter]
    is_first: bool = False
    attempts: list[AttemptRow] = []
    slots: list[SlotRow] = []


class Committed(msgspec.Struct):
    """What a commit has led to beside itself: runs that were claimed, whether any news were recorded, so that those
    who listen should look, and lines of limits in which a slot is free now."""

    claimed: list[Claimed]
    emitted: bool = False
    freed: list[Line] = []


class WorkerKind(StrEnum):
    """What a worker does: own runs and bring them forward, or only execute attempts of others' runs."""

    ENGINE = "engine"
    EXECUTOR = "executor"


class WorkerRow(msgspec.Struct, kw_only=True):
    """A worker: what its code knows by `names`, the schedules that its code declares, and the `queues` whose attempts it
    executes, of these `steps`. `clock` is its logical clock at its last heartbeat. `damage` says what of it could not be
    read."""

    id: str
    app: str
    host: str
    pid: int
    build: str
    names: list[str]
    kind: str = WorkerKind.ENGINE
    queues: list[str] = []
    steps: list[str] = []
    schedules: list[str] = []
    address: str = ""
    started_at: int = 0
    lease_until: int = 0
    clock: int = 0
    damage: str = ""


class Backlog(msgspec.Struct, kw_only=True, gc=False):
    """What waits, counted up to a bound: runs outside of memory, runs that are due and nobody has claimed, since when
    the first of them is, and messages in inboxes."""

    parked: int = 0
    due: int = 0
    due_since: int | None = None
    inbox: int = 0


class RunNote(msgspec.Struct, array_like=True, gc=False):
    """Something about a run that its history doesn't say: it was claimed, or let go."""

    no: int
    kind: str
    ts: int
    clock: int
    attempt: int
    reason: str = ""


class Notes(msgspec.Struct, gc=False):
    """What one worker tells those who watch, at one time: events that it has committed, from number to number by run,
    and what no history says."""

    worker: str
    recorded: dict[int, tuple[int, int]] = {}
    runs: list[RunNote] = []
    events: list[dict[str, Any]] = []

    def size(self) -> int:
        return len(self.recorded) + len(self.runs) + len(self.events)


class RecordedEvent(msgspec.Struct, gc=False):
    """An event as it is stored, for those who watch."""

    no: int
    seq: int
    worker: str
    ts: int
    clock: int
    payload: bytes


class DataSpan(msgspec.Struct, kw_only=True, frozen=True):
    """Runs whose data under `key` lies between two values, as `codec.ordering` writes them: from `low` on (`above`: not that
    one itself), to before `high` (`upto`: that one included). One of `others` is as good."""

    key: str
    low: str
    high: str
    above: bool = False
    upto: bool = False
    others: tuple[DataSpan, ...] = ()


class RunQuery(msgspec.Struct, kw_only=True):
    """A page of runs, newest first. `after` is the `no` of the last one of the page before. A `workflow` that ends in
    `*` is the beginning of a name; `since` and `until` are about when a run was created.
    Of `data` runs have published what equals these encoded values, and what lies in `spans`."""

    statuses: Sequence[str] = ()
    workflow: str | None = None
    parent: str | None = None
    since: int | None = None
    until: int | None = None
    data: dict[str, str] = {}
    spans: Sequence[DataSpan] = ()
    prefix: str | None = None
    owner: str | None = None
    schedule: str | None = None
    forked_from: str | None = None
    after: int | None = None
    limit: int = 100


class ScheduleRow(msgspec.Struct, kw_only=True):
    """What starts runs of `workflow` by the clock. `active` is the run that it started last, and `is_active` whether
    that run goes on; ticks that are `queued` wait for its end. Each change makes a new `revision`. `damage` says what of
    it could not be read."""

    name: str
    workflow: str
    spec: bytes
    declared: bool = False
    paused: bool = False
    reason: str = ""
    next_at: int | None = None
    last_at: int | None = None
    active: str | None = None
    is_active: bool = False
    queued: list[int] = []
    revision: int = 0
    damage: str = ""


class ScheduleChange(msgspec.Struct, kw_only=True):
    """What to make of a schedule that was read as `row.revision` (0: there was none), the runs it starts, and what others
    are told."""

    row: ScheduleRow
    runs: list[NewRun] = []
    messages: list[Message] = []
    delete: bool = False


class Query(Protocol):
    """What people and monitors read of a store. Nothing here writes, and lists never read payloads. `url` is for people:
    no password is in it. `clock` is the store's time, to wait by. `logical_clock` is that of this process: it goes past
    those of all messages, histories and heartbeats that are read for a worker."""

    app: str
    url: str
    clock: Clock
    logical_clock: LamportClock

    def now(self) -> int:
        """The store's time. All workers on one store agree on it."""

    def secret(self) -> bytes:
        """A random key made once per store, for signing tokens."""

    def close(self) -> None:
        """Let go of every connection. Nothing is lost."""

    # -- who and what is there

    def workers(self) -> list[WorkerRow]: ...

    def apps(self) -> list[str]:
        """The apps that have runs, workers or schedules here, by name; for whoever looks at a store without an app's code."""

    def backlog(self, most: int) -> Backlog:
        """What waits, each counted up to `most`."""

    # -- telemetry

    def is_watched(self) -> bool:
        """Whether anybody wants to be told what the workers of this app do."""

    def newest_notes(self) -> int:
        """The number of the last notes that were published."""

    def notes(self, after: int, limit: int) -> list[tuple[int, Notes]]:
        """What was published after that number, with its numbers; those of other apps, and what can't be read, are empty."""

    def rows(self, numbers: Sequence[int]) -> list[RunRow]:
        """Runs of the app by their numbers."""

    def recorded(self, ranges: Mapping[int, tuple[int, int]]) -> list[RecordedEvent]:
        """The events of runs, from number to number."""

    # -- runs

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

    def attempts(self, run_id: str) -> list[AttemptRow]:
        """The attempts of a run that workers elsewhere execute, or are to."""

    def queues(self) -> list[QueueRow]:
        """What there is in the queues of the app, by name."""

    # -- limits

    def limits(self, lines: int) -> list[LimitUse]:
        """The limits of the app by name, each with up to `lines` of its lines."""

    def places(self, run_id: str, limit: int) -> list[Place]:
        """The slots that a run waits for, and then those that it has, up to `limit` of them."""

    # -- schedules and domain events

    def schedules(self, name: str | None = None) -> list[ScheduleRow]:
        """The schedules of the app by name, or the one of that name."""

    def domain_event(self, id: str) -> DomainEventRow | None: ...

    def trace(self, correlation: str, limit: int) -> tuple[list[RunRow], list[DomainEventRow]]:
        """What belongs to one process, of all apps, oldest first: up to `limit` runs with that correlation, or with
        that id in this app, and up to as many domain events."""


class Store(Query, Protocol):
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

    def check(self) -> None:
        """Find out whether what the store stands on is still there; StoreLostError if it was deleted or replaced, and
        from then on from every method. A life lock that others no longer find is taken again. Cheap: engines ask once a
        second."""

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

    # -- workers

    def register(self, worker: WorkerRow, lease: int, subscriptions: Sequence[Subscription] = ()) -> None:
        """Make a worker known, hold its life lock, and give back runs that were set aside because nobody knew
        their code, or diverged on another build, if this worker's code may do better.

        The subscriptions that its code declares hold from now on, as this worker says. One that no live worker declares
        ends with the next worker that comes or goes, if a live one knows its target, or if none has known it for a day.
        As long as no worker of the app lives all of them stay."""

    def learn(self, worker: WorkerRow, subscriptions: Sequence[Subscription] = ()) -> None:
        """A registered worker's code defines more than it did (or less): as if it had registered with that. Raises
        Fenced if it has been declared dead."""

    def beat(self, worker_id: str, lease: int) -> bool:
        """Renew a lease; False if the worker has been declared dead."""

    def let_go(self, worker_id: str) -> None:
        """Give up the life lock of a worker of this process that was declared dead."""

    def unregister(self, worker_id: str) -> None:
        """Release every run of a worker without counting a loss, and let go of its life lock."""

    def bury(self, me: str, by_lease: bool = True) -> list[str]:
        """Declare dead each worker whose life lock is free or whose lease has run out: its row is deleted (so
        that it can't write any more), its runs can be claimed at once, and each counts a loss. Whoever was kept
        from the store itself says `by_lease=False`: the others may not have been able to renew theirs either."""

    def addresses(self, everyone: bool = False) -> list[str]:
        """Where the engines of live workers can be rung: those of the app, or of all apps."""

    # -- telemetry

    def watch(self, watcher: str, until: int) -> None:
        """Say that somebody wants to be told what the workers of this app do, until then; or no more, if that is now."""

    def publish(self, notes: Notes) -> None:
        """Tell those who watch. It is kept for a moment, and may be lost."""

    # -- runs

    def create(self, run: NewRun, replace: bool = False) -> RunRow | None:
        """Create a run. If its id is taken nothing happens and the run that has it is returned, unless it has
        ended and `replace` says to delete it first."""

    def create_all(self, runs: Sequence[NewRun], collision: Collision) -> list[RunRow | None]:
        """Create runs, all or none; for each None, or the run that has its id already and stays as it is. Of those
        `collision` is told first: if it raises nothing is created. It must do nothing else."""

    def put_off(self, no: int, run: NewRun) -> bool:
        """Give a run that nobody has taken up the input and the time of `run`; False, with nothing done, if somebody has,
        or if it is held or gone."""

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

    def letters(self, worker_id: str) -> list[Letter]:
        """The inboxes of all runs the worker owns, oldest first. Reading doesn't consume; `commit` does."""

    def post(self, message: Message) -> Posted:
        """Put a message into a run's inbox. Nothing is put into the inbox of a run that has ended, unless the message is
        `late`, nor a copy of one with the same `dedupe`."""

    def post_all(self, messages: Sequence[Message]) -> list[Posted]:
        """`post` for each of them, all or none."""

    def streamed(self, run_id: str) -> dict[str, int]:
        """The last attempt of which something was streamed, by command."""

    def delete(self, run_id: str, no: int | None = None, farewell: Farewell | None = None) -> str | None:
        """Delete a run that has ended or is held, with everything that belongs to it. Returns the status it had,
        None if there is no such run (of the number `no`, if that is given); a run with any other status is not deleted.
        `farewell` says what is posted to others in the same transaction, and must do nothing else."""

    def delete_all(self, runs: Sequence[tuple[str, int]], farewell: Farewell | None = None) -> int:
        """`delete` for each id and number, in one transaction; how many are gone by it."""

    def collect(self, limit: int) -> Collected:
        """Delete runs whose time of retention has passed, and domain events that are too old: up to `limit` of each. A
        run with a control message in its inbox stays until somebody has dealt with it."""

    def named_blobs(self, keys: Sequence[str]) -> set[str]:
        """Those of these blobs (and perhaps others) that anything in the store names, of whichever app."""

    def reset_times(self, ahead: int) -> int:
        """The clock was set back. Runs that wait for a time, and whose last event is further in the future than `ahead`,
        can be claimed at once: their owner will tell anew when they are due. How many there were."""

    def next_wake(self, names: Sequence[str]) -> int | None:
        """When the next unowned run of these workflows is due; 0 if a message waits for one."""

    def orphans(self, before: int) -> list[RunRow]:
        """Runs due before `before` that nobody owns and whose workflow no live worker knows."""

    def set_aside(self, no: int, reason: str, stuck: str, news: Emission | None = None) -> bool:
        """Mark an unowned run STUCK, if it is still unowned."""

    # -- attempts elsewhere

    def claim_attempts(
        self, worker_id: str, queues: Sequence[str], steps: Sequence[str], limit: int
    ) -> list[ClaimedAttempt]:
        """Make up to `limit` attempts of these steps in these queues the worker's own. Each belongs to one worker at a
        time. It survives the machine: nobody else executes what is claimed. Raises Fenced if the worker has been
        declared dead."""

    def claim_attempt(self, worker_id: str, token: str) -> ClaimedAttempt | None:
        """The same for one that somebody was told of; None if it is gone, or claimed already."""

    def end_attempts(self, worker_id: str, ended: Sequence[EndedAttempt]) -> set[str]:
        """Of each attempt that belongs to that worker, delete the row and put the message into its run's inbox; those
        for which that was done. An attempt has one outcome: it was cancelled, or others have taken it over, if it is
        not among them. Nothing is put into the inbox of a run that has ended. The worker itself may be gone."""

    def release_attempts(self, worker_id: str, tokens: Sequence[str]) -> None:
        """Give back attempts that were claimed and have not begun: others may claim them."""

    def report_attempts(self, worker_id: str, reports: Sequence[AttemptReport]) -> None:
        """Keep what attempts of that worker say on their way as attributes of their runs, under the command of each. Of
        those that it no longer has nothing is kept."""

    def held_attempts(self, worker_id: str) -> set[str]:
        """The attempts that belong to the worker. One that it had, and which is not among them, is not wanted."""

    def lost_attempts(self, limit: int) -> list[AttemptRow]:
        """Attempts whose worker is gone, by token."""

    def unclaimed(self, queues: Sequence[str], before: int, limit: int) -> list[AttemptRow]:
        """Attempts in these queues that nobody has claimed although they were due before `before`, oldest first."""

    # -- limits

    def declare_limits(self, limits: Sequence[LimitRow]) -> list[str]:
        """These hold from now on, for those who wait already too. The names of those that are new or have changed."""

    def slots(self, nos: Sequence[int]) -> dict[int, list[SlotRow]]:
        """The slots that runs of these numbers have or wait for."""

    def serve(self, worker_id: str, name: str, keys: Sequence[str] | None) -> Served:
        """Give the free slots of a limit to those who wait, in turn: in the lines of these keys (None: in all) and in
        those that somebody has come to since the last time. Never more than the limit allows, whoever else does the same.

        A run that has all its slots is told with its letter: by the answer if the worker owns it, else in its inbox.
        Raises Fenced, with nothing done, if the worker has been declared dead. Slots of runs that have ended are no
        longer there once all lines were served."""

    # -- schedules

    def due_schedules(self, names: Sequence[str], limit: int) -> list[ScheduleRow]:
        """Schedules of these workflows that are not paused and have something to do: their next tick has come, or a
        tick is queued and their last run has ended."""

    def next_tick(self, names: Sequence[str]) -> int | None:
        """When the next schedule of these workflows has something to do; 0 if one has now, from its queue."""

    def save_schedules(self, changes: Sequence[ScheduleChange]) -> list[str]:
        """Write schedules, create their runs and post their messages. A schedule that somebody else has changed since it
        was read stays as it is, none of its runs is created and no message posted; a run whose id is taken is left alone.
        The names of those that were written."""

    # -- domain events

    def emit(self, emission: Emission, subscriptions: Sequence[Subscription] = ()) -> bool:
        """Record a domain event for all subscriptions there are, of all apps, as `commit` does with those of a change.
        False if there is an event of that id already; then nothing happens.

        The `subscriptions` that the emitter's code declares hold from now on if there are none such, unless a worker
        knows the target: it has said what it listens to."""

    def arrivals(self, limit: int) -> list[Arrival]:
        """Domain events that subscriptions of this app have yet to get, oldest first."""

    def listeners(self, arrival: Arrival, lookups: Sequence[str], limit: int) -> list[Listener]:
        """Subscriptions that have yet to get an event, by number, of those with one of these lookups."""

    def deliver(self, deliveries: Sequence[Delivery]) -> None:
        """Carry out each delivery whose arrival is still as it was read; the others are somebody else's. A run whose id
        is taken is left alone, and so is a subscription that has ended."""


class Topic(StrEnum):
    """What a hint is about, so that a worker asks only for that: runs to be claimed, messages to runs, domain events,
    schedules, attempts to be claimed, attempts that are not wanted any more, those who watch."""

    EVERYTHING = "*"
    RUNS = "runs"
    INBOX = "inbox"
    EVENTS = "events"
    SCHEDULES = "schedules"
    ATTEMPTS = "attempts"
    DROPPED = "dropped"
    WATCHERS = "watchers"


class Notifier(Protocol):
    """Push between processes: hints only. A lost hint costs a moment, a needless one costs a look."""

    def listen(self, on_ring: Callable[[Topic], None]) -> str:
        """Call `on_ring` from some thread whenever an engine should look; the address others ring at."""

    def ring(self, topic: Topic, everyone: bool = False) -> None:
        """Something was put where an engine should look: one of this app, or of any."""

    def announce(self, run_ids: Iterable[str]) -> None:
        """These runs have changed in a way that somebody may wait for."""

    def watch(self, run_id: str) -> Watch:
        """Be told when `announce` names the run."""

    def close(self) -> None: ...


class Watch(Protocol):
    def wait(self, timeout: float) -> bool:
        """Block until the run was announced, or the time is over."""

    def close(self) -> None: ...


class Attempt(msgspec.Struct, kw_only=True, gc=False):
    """One try of a step, as an executor gets it. If it gets a process, up to `company` others may share that. `trace` is
    the `traceparent` that its run goes on from; `sent_at` is set if somebody wants to know how long it waits."""

    token: int
    run_no: int
    run_id: str
    app: str = ""
    workflow: str
    root_id: str
    parent_id: str | None
    cmd: str
    step: str
    args: Any
    number: int
    idempotency_key: str
    timeout: int | None
    stall_timeout: int | None
    pool: str
    data: dict[str, Any]
    correlation: str = ""
    quiet: bool = False
    headers: dict[str, str] = {}
    checkpoint: bytes | None = None
    streams_as: int = 0
    company: int = 0
    at_most_once: bool = False
    trace: str = ""
    sent_at: int = 0


class Outcome(msgspec.Struct, kw_only=True):
    """What became of an attempt: a result or an error, encoded. `lost` means its process died with it, and with `company`
    others. `handed_over` means that somebody else will tell it. `logs` is what is to be kept of what it has logged,
    encoded. `thread` is where it was executed; "" is the event loop."""

    attempt: Attempt
    started: int
    result: Any = None
    error: BaseException | None = None
    encoded_error: bytes | None = None
    cancelled: bool = False
    lost: bool = False
    handed_over: bool = False
    company: int = 0
    data: dict[str, Any] = {}
    emitted: list[tuple[str, str, bytes]] = []
    retry_after: int | None = None
    logs: bytes | None = None
    thread: str = ""


class StepTransaction(Protocol):
    """What a step writes itself, committed together with its outcome. Of all attempts of one step, wherever and whenever
    they execute, one commits."""

    @property
    def connection(self) -> Any:
        """The driver's connection to the store's database, inside the transaction, which begins when this is first asked
        for. Whoever gets it must not end the transaction."""

    @property
    def has_begun(self) -> bool: ...

    def recorded(self) -> bytes | None:
        """The outcome that an attempt of this step has committed, if one has."""

    def commit(self, body: bytes) -> bytes | None:
        """Commit what was written, with `body` as the outcome. What is given is what counts: `body`, or what another
        attempt has recorded, and then nothing of this one is kept; None if the run is gone, and nothing is kept either. A
        StoreError means that nothing happened: a commit in doubt is waited for."""

    def rollback(self) -> None:
        """Keep nothing. It never fails."""


class Executor(Protocol):
    """Where steps execute."""

    def start(
        self,
        on_outcome: Callable[[Outcome], None],
        on_report: Callable[[Attempt, str, Any], None],
        may_begin: Callable[[], bool],
    ) -> None:
        """Begin to accept attempts. `on_outcome` is called once per attempt, `on_report` for what a step says on
        its way. `may_begin` is asked right before an attempt begins to execute: if the answer is no it doesn't, and its
        outcome is that it was cancelled. All are called from any thread, cost next to nothing and raise nothing."""

    def submit(self, attempts: Sequence[Attempt]) -> None:
        """Execute attempts. Never blocks, never raises for what the steps do. An attempt's `timeout` and `stall_timeout`
        count from its beginning, and decide its outcome at that time whatever its code does."""

    def withdraw(self, tokens: Iterable[int]) -> set[int]:
        """Take back those of these attempts that have not begun to execute, and say which. They will not begin, and no
        outcome arrives for them. Not to be called from several threads at a time, nor beside `cancel`."""

    def started_at(self, token: int) -> int | None:
        """When an attempt began to execute; None if it still waits for its turn."""

    def cancel(self, token: int) -> None:
        """End an attempt, whether it has begun or not: its outcome arrives at once, marked cancelled, unless it has one.
        Its code is interrupted if it can be."""

    def stop(self, grace: float) -> None:
        """Accept nothing more, wait up to `grace` seconds for what executes, then interrupt it. Code that doesn't end
        within a moment after that is left behind."""

    def close(self) -> None:
        """After `stop`: close what the steps have shared. The code of users decides how long that takes, so by now
        nobody depends on this worker any more."""


class Carrier(Protocol):
    """Tells workers elsewhere of attempts that wait for them, through a broker. The rows are the truth: what a carrier
    loses it tells again, and what it tells twice is executed once."""

    def start(self, store: Store) -> None:
        """Begin. Attempts in `store` that nobody claims are told again."""

    def carry(self, attempts: Sequence[NewAttempt]) -> None:
        """Tell of attempts whose rows are committed. Never blocks, never raises: whether there is a broker is not the
        engine's concern."""

    def stop(self) -> None:
        """Tell what is to be told, if that takes no longer than a moment, and end."""


AHEAD = 60 * 1_000_000
"""Clocks of machines differ by less: what is further in the future was told by a clock that was wrong."""


class Clock(Protocol):
    """Time and chance, as something that a test can move."""

    def now(self) -> int:
        """Microseconds since the epoch."""

    def monotonic(self) -> float:
        """Seconds, on a clock that is never set, and goes on while the machine sleeps."""

    def random(self) -> float:
        """A number in [0, 1)."""
