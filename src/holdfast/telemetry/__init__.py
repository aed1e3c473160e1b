"""What happens in a cluster, as it happens: logical clocks, telemetry events in causal order, the state they tell of,
and the seam for observers.

Telemetry is for people and their tools. It may be lost, doubled or late, and nothing that is promised depends on it:
the truth about a run is in its history.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
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

_HOMES = {
    "clock": ["MAX_CLOCK", "LamportClock"],
    "cluster": ["ClusterState"],
    "dispatcher": ["EventDispatcher"],
    "events": ["CLIENT_CLOCK_SKEW", "Event", "in_order", "order_key"],
    "instruments": [
        "ClaimReport",
        "CommitReport",
        "Instrument",
        "Instruments",
        "MessageReport",
        "RunReport",
        "StepReport",
        "WorkerReport",
    ],
    "receiver": ["EventReceiver"],
    "records": ["AttemptState", "RunInfo", "StepInfo", "WorkerInfo"],
    "reporting": ["TelemetryInstrument"],
    "states": ["STEP_PRECEDENCE"],
    "transport": ["InMemoryTransport", "Subscription", "Transport"],
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}


if not TYPE_CHECKING:  # engines and stores need little of it, and every program pays for what they import

    def __getattr__(name: str) -> object:
        if name not in _HOME_OF:
            raise AttributeError(f"module 'holdfast.telemetry' has no attribute {name!r}")
        found = globals()[name] = getattr(importlib.import_module(f"holdfast.telemetry.{_HOME_OF[name]}"), name)
        return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
