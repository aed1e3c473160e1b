"""What happens in a cluster, as it happens: logical clocks, telemetry events in causal order, the state they tell of,
and the seam for observers.

Telemetry is for people and their tools. It may be lost, doubled or late, and nothing that is promised depends on it:
the truth about a run is in its history.
"""

from __future__ import annotations

from holdfast.telemetry.clock import MAX_CLOCK, LamportClock
from holdfast.telemetry.cluster import ClusterState
from holdfast.telemetry.dispatcher import EventDispatcher
from holdfast.telemetry.events import CLIENT_CLOCK_SKEW, Event, in_order, order_key
from holdfast.telemetry.instruments import (
    ClaimReport,
    CommitReport,
    Instrument,
    Instruments,
    MessageReport,
    RunReport,
    StepReport,
    WorkerReport,
)
from holdfast.telemetry.receiver import EventReceiver
from holdfast.telemetry.records import AttemptState, RunInfo, StepInfo, WorkerInfo
from holdfast.telemetry.reporting import TelemetryInstrument
from holdfast.telemetry.states import STEP_PRECEDENCE
from holdfast.telemetry.transport import InMemoryTransport, Subscription, Transport

__all__ = [
    "CLIENT_CLOCK_SKEW",
    "MAX_CLOCK",
    "STEP_PRECEDENCE",
    "AttemptState",
    "ClaimReport",
    "ClusterState",
    "CommitReport",
    "Event",
    "EventDispatcher",
    "EventReceiver",
    "InMemoryTransport",
    "Instrument",
    "Instruments",
    "LamportClock",
    "MessageReport",
    "RunInfo",
    "RunReport",
    "StepInfo",
    "StepReport",
    "Subscription",
    "TelemetryInstrument",
    "Transport",
    "WorkerInfo",
    "WorkerReport",
    "in_order",
    "order_key",
]
