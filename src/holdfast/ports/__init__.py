"""Every interface between the engine and the world. The docstrings are the contract: whoever writes a new store, executor,
notifier or clock needs to read only this package, `store.py` first.

Each concern has a module with its rows and with two small protocols, what people read and what workers do; `Query` and `Store`
are all of them together. Who needs one concern says so in its types.

Times are integer microseconds since the epoch, on the store's clock.
"""

from __future__ import annotations

from holdfast.ports.attempts import (
    AttemptQuery,
    AttemptReport,
    AttemptRow,
    AttemptStore,
    ClaimedAttempt,
    EndedAttempt,
    NewAttempt,
    QueueRow,
)
from holdfast.ports.carrier import Carrier
from holdfast.ports.clock import AHEAD, Clock
from holdfast.ports.database import Database
from holdfast.ports.domain_events import (
    Arrival,
    Delivery,
    DomainEventRow,
    Emission,
    EventQuery,
    EventStore,
    Listener,
    Reach,
    Signal,
    Subscription,
    Unsubscription,
)
from holdfast.ports.executor import Attempt, Executor, Outcome
from holdfast.ports.limits import Ask, LimitQuery, LimitRow, LimitStore, LimitUse, Line, LineUse, Place, Served, SlotRow
from holdfast.ports.messages import InboxRow, Message, MessageStore, Posted
from holdfast.ports.notifier import FOR_ALL, FOR_EXECUTORS, Notifier, OnRing, OnTold, Topic, Watch, Watches
from holdfast.ports.runs import (
    FINAL,
    Collision,
    DataSpan,
    Farewell,
    NewItem,
    NewRun,
    Record,
    RunQuery,
    RunRow,
    Status,
    StepState,
    StreamRow,
)
from holdfast.ports.schedules import ScheduleChange, ScheduleQuery, ScheduleRow, ScheduleStore
from holdfast.ports.store import Answer, Change, Claimed, Collected, Committed, Query, RunQueries, RunStore, Store
from holdfast.ports.telemetry import Backlog, Notes, RecordedEvent, RunNote, TelemetryQuery, TelemetryStore
from holdfast.ports.transactions import StepTransaction
from holdfast.ports.workers import WorkerKind, WorkerQuery, WorkerRow, WorkerStore

__all__ = [
    "AHEAD",
    "FINAL",
    "FOR_ALL",
    "FOR_EXECUTORS",
    "Answer",
    "Arrival",
    "Ask",
    "Attempt",
    "AttemptQuery",
    "AttemptReport",
    "AttemptRow",
    "AttemptStore",
    "Backlog",
    "Carrier",
    "Change",
    "Claimed",
    "ClaimedAttempt",
    "Clock",
    "Collected",
    "Collision",
    "Committed",
    "DataSpan",
    "Database",
    "Delivery",
    "DomainEventRow",
    "Emission",
    "EndedAttempt",
    "EventQuery",
    "EventStore",
    "Executor",
    "Farewell",
    "InboxRow",
    "LimitQuery",
    "LimitRow",
    "LimitStore",
    "LimitUse",
    "Line",
    "LineUse",
    "Listener",
    "Message",
    "MessageStore",
    "NewAttempt",
    "NewItem",
    "NewRun",
    "Notes",
    "Notifier",
    "OnRing",
    "OnTold",
    "Outcome",
    "Place",
    "Posted",
    "Query",
    "QueueRow",
    "Reach",
    "Record",
    "RecordedEvent",
    "RunNote",
    "RunQueries",
    "RunQuery",
    "RunRow",
    "RunStore",
    "ScheduleChange",
    "ScheduleQuery",
    "ScheduleRow",
    "ScheduleStore",
    "Served",
    "Signal",
    "SlotRow",
    "Status",
    "StepState",
    "StepTransaction",
    "Store",
    "StreamRow",
    "Subscription",
    "TelemetryQuery",
    "TelemetryStore",
    "Topic",
    "Unsubscription",
    "Watch",
    "Watches",
    "WorkerKind",
    "WorkerQuery",
    "WorkerRow",
    "WorkerStore",
]
