"""Durable workflows in plain Python."""

from __future__ import annotations

from holdfast.api.calls import ChildRun, StepFuture
from holdfast.api.context import this_step, wf
from holdfast.api.functions import Step, Workflow, start_child_workflow
from holdfast.api.handles import Run
from holdfast.api.hooks import define_hook, hook
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
    StoreError,
    UnknownNameError,
    WorkerLostError,
    WorkflowTimeoutError,
    WrongContextError,
)
from holdfast.ports import Status, StepState

__version__ = "0.1.0"

__all__ = sorted(
    name
    for name in globals()
    if not name.startswith("_")
    and name
    not in (
        "annotations",
        "api",
        "app",
        "codec",
        "core",
        "engine",
        "executors",
        "stores",
        "default_app",
        "durations",
        "errors",
        "failpoints",
        "ports",
    )
)
