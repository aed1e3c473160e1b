"""Durable workflows in plain Python.

Every public name is here; `holdfast.testing` is for tests. What other modules hold may change without notice.
"""

from __future__ import annotations

from holdfast.api.calls import ChildRun, StepFuture
from holdfast.api.context import WorkflowIdentity, this_step, wf
from holdfast.api.functions import Step, Workflow, start_child_workflow
from holdfast.api.handles import Run, RunEvent, RunPage, RunStep, StatusEntry, StreamedItem
from holdfast.api.hooks import HookCall, HookDefinition, define_hook, hook
from holdfast.api.waiting import shield, sleep
from holdfast.app import App
from holdfast.codec import Codec
from holdfast.default_app import step, workflow
from holdfast.errors import (
    ArgumentError,
    BlockingCallError,
    DeadlockError,
    DecodeError,
    DefinitionError,
    DuplicateNameError,
    EncodeError,
    FatalError,
    HoldfastError,
    HookError,
    HookNotFoundError,
    HookPayloadError,
    HookTokenError,
    NeverAwaitedError,
    NondeterminismError,
    PayloadTooLargeError,
    RetryableError,
    RunCancelledError,
    RunError,
    RunExistsError,
    RunFinishedError,
    RunNotFoundError,
    RunStuckError,
    StepError,
    StepTimeoutError,
    StoreBusyError,
    StoreError,
    StoreFullError,
    StoreReadOnlyError,
    StoreSchemaError,
    StoreUnavailableError,
    UnknownNameError,
    ValueCodecError,
    WorkerLostError,
    WorkflowCodeError,
    WorkflowTimeoutError,
    WrongContextError,
)
from holdfast.ports import Status, StepState

__version__ = "0.1.0"

__all__ = [
    "App",
    "ArgumentError",
    "BlockingCallError",
    "ChildRun",
    "Codec",
    "DeadlockError",
    "DecodeError",
    "DefinitionError",
    "DuplicateNameError",
    "EncodeError",
    "FatalError",
    "HoldfastError",
    "HookCall",
    "HookDefinition",
    "HookError",
    "HookNotFoundError",
    "HookPayloadError",
    "HookTokenError",
    "NeverAwaitedError",
    "NondeterminismError",
    "PayloadTooLargeError",
    "RetryableError",
    "Run",
    "RunCancelledError",
    "RunError",
    "RunEvent",
    "RunExistsError",
    "RunFinishedError",
    "RunNotFoundError",
    "RunPage",
    "RunStep",
    "RunStuckError",
    "Status",
    "StatusEntry",
    "Step",
    "StepError",
    "StepFuture",
    "StepState",
    "StepTimeoutError",
    "StoreBusyError",
    "StoreError",
    "StoreFullError",
    "StoreReadOnlyError",
    "StoreSchemaError",
    "StoreUnavailableError",
    "StreamedItem",
    "UnknownNameError",
    "ValueCodecError",
    "WorkerLostError",
    "Workflow",
    "WorkflowCodeError",
    "WorkflowIdentity",
    "WorkflowTimeoutError",
    "WrongContextError",
    "define_hook",
    "hook",
    "shield",
    "sleep",
    "start_child_workflow",
    "step",
    "this_step",
    "wf",
    "workflow",
]
