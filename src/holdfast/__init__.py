"""Durable workflows in plain Python.

Every public name is here; `holdfast.testing` is for tests. What other modules hold may change without notice.
A name is imported when it is first used, so that `import holdfast` and `holdfast --help` cost next to nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from holdfast.api.calls import ChildRun, StepFuture
    from holdfast.api.canvas_reader import signature
    from holdfast.api.context import WorkflowIdentity, this_step, transaction, wf
    from holdfast.api.domain_events import emit, wait_for_event
    from holdfast.api.functions import Step, Workflow, start_child_workflow
    from holdfast.api.handles import Run, RunPage
    from holdfast.api.hooks import HookCall, HookDefinition, define_hook, hook
    from holdfast.api.recurrence import Every, Schedule, every
    from holdfast.api.remote import Remote
    from holdfast.api.requests import Ask, Request, RequestDefinition, define_request
    from holdfast.api.schedules import ScheduleInfo, Schedules
    from holdfast.api.search import Prefix, Range
    from holdfast.api.selection import Acted, Selection
    from holdfast.api.signatures import Canvas, Signature, chain, chord, group
    from holdfast.api.waiting import shield, sleep
    from holdfast.app import App
    from holdfast.codec import Blobs, Codec, Directory
    from holdfast.compose.checkpointed import Checkpoint, Checkpointed
    from holdfast.compose.dag import Dag
    from holdfast.compose.saga import Saga, saga
    from holdfast.core.context import StartCall, StepAttempt, WorkflowAttempt
    from holdfast.core.limits import Limit
    from holdfast.core.resources import Resource, use
    from holdfast.default_app import step, workflow
    from holdfast.errors import (
        ArgumentError,
        ChordError,
        DagFailed,
        DamagedHistoryError,
        DeadlockError,
        DecodeError,
        DefinitionError,
        DuplicateNameError,
        EncodeError,
        FatalError,
        GroupError,
        HoldfastError,
        HookError,
        HookNotFoundError,
        HookPayloadError,
        HookTokenError,
        MemberError,
        NeverAwaitedError,
        NondeterminismError,
        PayloadTooLargeError,
        RequestError,
        RequestPayloadError,
        RequestRefusedError,
        ResourceError,
        RetryableError,
        RunCancelledError,
        RunError,
        RunExistsError,
        RunFinishedError,
        RunNotFoundError,
        RunStuckError,
        SagaFailed,
        ScheduleError,
        ScheduleNotFoundError,
        StepError,
        StepTimeoutError,
        StepTokenError,
        StoreBusyError,
        StoreError,
        StoreFullError,
        StoreLostError,
        StoreMovedError,
        StoreReadOnlyError,
        StoreSchemaError,
        StoreUnavailableError,
        TransformError,
        UnknownNameError,
        ValueCodecError,
        WaitTimeoutError,
        WorkerLostError,
        WorkflowCodeError,
        WorkflowTimeoutError,
        WrongContextError,
    )
    from holdfast.logs import RunFields
    from holdfast.ports import Status, StepState
    from holdfast.views.entries import (
        LogLine,
        RunEvent,
        RunStep,
        RunSteps,
        Sent,
        StatusEntry,
        StepLogs,
        StreamedItem,
    )
    from holdfast.views.trace import TraceNode

__version__ = "0.1.0"

__all__ = [
    "Acted",
    "App",
    "ArgumentError",
    "Ask",
    "Blobs",
    "Canvas",
    "Checkpoint",
    "Checkpointed",
    "ChildRun",
    "ChordError",
    "Codec",
    "Dag",
    "DagFailed",
    "DamagedHistoryError",
    "DeadlockError",
    "DecodeError",
    "DefinitionError",
    "Directory",
    "DuplicateNameError",
    "EncodeError",
    "Every",
    "FatalError",
    "GroupError",
    "HoldfastError",
    "HookCall",
    "HookDefinition",
    "HookError",
    "HookNotFoundError",
    "HookPayloadError",
    "HookTokenError",
    "Limit",
    "LogLine",
    "MemberError",
    "NeverAwaitedError",
    "NondeterminismError",
    "PayloadTooLargeError",
    "Prefix",
    "Range",
    "Remote",
    "Request",
    "RequestDefinition",
    "RequestError",
    "RequestPayloadError",
    "RequestRefusedError",
    "Resource",
    "ResourceError",
    "RetryableError",
    "Run",
    "RunCancelledError",
    "RunError",
    "RunEvent",
    "RunExistsError",
    "RunFields",
    "RunFinishedError",
    "RunNotFoundError",
    "RunPage",
    "RunStep",
    "RunSteps",
    "RunStuckError",
    "Saga",
    "SagaFailed",
    "Schedule",
    "ScheduleError",
    "ScheduleInfo",
    "ScheduleNotFoundError",
    "Schedules",
    "Selection",
    "Sent",
    "Signature",
    "StartCall",
    "Status",
    "StatusEntry",
    "Step",
    "StepAttempt",
    "StepError",
    "StepFuture",
    "StepLogs",
    "StepState",
    "StepTimeoutError",
    "StepTokenError",
    "StoreBusyError",
    "StoreError",
    "StoreFullError",
    "StoreLostError",
    "StoreMovedError",
    "StoreReadOnlyError",
    "StoreSchemaError",
    "StoreUnavailableError",
    "StreamedItem",
    "TraceNode",
    "TransformError",
    "UnknownNameError",
    "ValueCodecError",
    "WaitTimeoutError",
    "WorkerLostError",
    "Workflow",
    "WorkflowAttempt",
    "WorkflowCodeError",
    "WorkflowIdentity",
    "WorkflowTimeoutError",
    "WrongContextError",
    "chain",
    "chord",
    "define_hook",
    "define_request",
    "emit",
    "every",
    "group",
    "hook",
    "saga",
    "shield",
    "signature",
    "sleep",
    "start_child_workflow",
    "step",
    "this_step",
    "transaction",
    "use",
    "wait_for_event",
    "wf",
    "workflow",
]

_HOMES = {
    "holdfast.api.calls": ["ChildRun", "StepFuture"],
    "holdfast.api.canvas_reader": ["signature"],
    "holdfast.api.context": ["WorkflowIdentity", "this_step", "transaction", "wf"],
    "holdfast.api.domain_events": ["emit", "wait_for_event"],
    "holdfast.api.functions": ["Step", "Workflow", "start_child_workflow"],
    "holdfast.api.handles": ["Run", "RunPage"],
    "holdfast.api.hooks": ["HookCall", "HookDefinition", "define_hook", "hook"],
    "holdfast.api.recurrence": ["Every", "Schedule", "every"],
    "holdfast.api.remote": ["Remote"],
    "holdfast.api.requests": ["Ask", "Request", "RequestDefinition", "define_request"],
    "holdfast.api.schedules": ["ScheduleInfo", "Schedules"],
    "holdfast.api.search": ["Prefix", "Range"],
    "holdfast.api.selection": ["Acted", "Selection"],
    "holdfast.api.signatures": ["Canvas", "Signature", "chain", "chord", "group"],
    "holdfast.api.waiting": ["shield", "sleep"],
    "holdfast.app": ["App"],
    "holdfast.codec": ["Blobs", "Codec", "Directory"],
    "holdfast.core.context": ["StartCall", "StepAttempt", "WorkflowAttempt"],
    "holdfast.core.limits": ["Limit"],
    "holdfast.core.resources": ["Resource", "use"],
    "holdfast.compose.saga": ["Saga", "saga"],
    "holdfast.compose.dag": ["Dag"],
    "holdfast.compose.checkpointed": ["Checkpoint", "Checkpointed"],
    "holdfast.default_app": ["step", "workflow"],
    "holdfast.errors": [name for name in __all__ if name.endswith(("Error", "Failed"))],
    "holdfast.logs": ["RunFields"],
    "holdfast.ports": ["Status", "StepState"],
    "holdfast.views.entries": [
        "LogLine",
        "RunEvent",
        "RunStep",
        "RunSteps",
        "StatusEntry",
        "Sent",
        "StepLogs",
        "StreamedItem",
    ],
    "holdfast.views.trace": ["TraceNode"],
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}


if not TYPE_CHECKING:  # a checker that sees it would let every name pass

    def __getattr__(name: str) -> object:
        if name not in _HOME_OF:
            raise AttributeError(f"module 'holdfast' has no attribute {name!r}")
        found = globals()[name] = getattr(importlib.import_module(_HOME_OF[name]), name)
        return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
