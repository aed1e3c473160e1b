"""The public surface as text: each public name, with the signatures of functions and of classes' public members."""

from __future__ import annotations

import dataclasses
import enum
import inspect
import typing
from collections.abc import Iterator
from typing import Any

import holdfast
import holdfast.telemetry
import holdfast.testing
from holdfast import App, Codec, HookCall, Resource, Schedule, shield
from holdfast.api.functions import (
    AsyncCallOptions,
    AsyncStep,
    AsyncWorkflow,
    CallOptions,
    PlainCallOptions,
    SyncStep,
    SyncWorkflow,
)
from holdfast.definer import StepDecorator, WorkflowDecorator
from holdfast.telemetry import (
    ClusterState,
    EventDispatcher,
    EventReceiver,
    InMemoryTransport,
    Instruments,
    LamportClock,
    TelemetryInstrument,
)
from holdfast.telemetry.metrics import Metrics
from holdfast.telemetry.otel import OpenTelemetryInstrument
from holdfast.testing import TestApp

# What users hold in their hands without importing it by name.
REACHED = (
    AsyncCallOptions, AsyncStep, AsyncWorkflow, CallOptions, PlainCallOptions, StepDecorator, SyncStep, SyncWorkflow,
    WorkflowDecorator,
    type(holdfast.this_step), type(holdfast.wf),
)  # fmt: skip
# What users make by calling the class; of all others only members are promised.
MADE_BY_USERS = (
    App, BaseException, ClusterState, Codec, EventDispatcher, EventReceiver, InMemoryTransport, Instruments, LamportClock,
    Metrics, OpenTelemetryInstrument, Schedule, TelemetryInstrument, TestApp, shield,
)  # fmt: skip
# What other layers of Holdfast, or the interpreter, call. It may change without notice.
CONTRACT = {"MovableClock", "RaceContract", "StoreContract"}
INTERNAL = {
    App: {
        "client", "define_step", "define_workflow", "definitions", "encode_by_name", "make_engine", "make_executor",
        "notifier", "run_canvas", "start_run", "store",
    },
    Codec: {"encode_error_value", "error_text", "join_call", "join_list", "plain"},
    HookCall: {"begin", "close", "send", "throw"},
    Resource: {"function", "is_async", "needs"},
}  # fmt: skip
PUBLIC_DUNDERS = ("__call__", "__await__", "__enter__", "__aenter__")


class Bare:
    """An annotation without the quotes that postponed ones have."""

    def __init__(self, text: object) -> None:
        self.text = text

    def __repr__(self) -> str:
        return self.text if isinstance(self.text, str) else inspect.formatannotation(self.text)


def public_objects() -> Iterator[tuple[str, Any]]:
    """Every object that is promised to stay, by name."""
    for name in holdfast.__all__:
        yield f"holdfast.{name}", getattr(holdfast, name)
    for name in holdfast.testing.__all__:
        if name not in CONTRACT:
            yield f"holdfast.testing.{name}", getattr(holdfast.testing, name)
    for name in holdfast.telemetry.__all__:
        yield f"holdfast.telemetry.{name}", getattr(holdfast.telemetry, name)
    yield "holdfast.telemetry.metrics.Metrics", Metrics
    yield "holdfast.telemetry.otel.OpenTelemetryInstrument", OpenTelemetryInstrument
    # A backend subclasses the contract: the tests in it are what it promises, and they are not called by name.
    for cls in REACHED:
        yield f"({cls.__name__})", cls


PUBLIC_CLASSES = {found for _, found in public_objects() if inspect.isclass(found)}


def public_members(cls: type) -> list[tuple[str, Any]]:
    """What a class or a base of it that isn't public itself defines under public names."""
    found: dict[str, Any] = {}
    elsewhere = {base for public in PUBLIC_CLASSES & {*cls.__mro__[1:]} for base in public.__mro__}
    for base in cls.__mro__:
        if not base.__module__.startswith("holdfast") or base in elsewhere:
            continue
        for name, member in vars(base).items():
            if name not in INTERNAL.get(cls, ()) and (not name.startswith("_") or name in PUBLIC_DUNDERS):
                found.setdefault(name, member)
    return sorted(found.items())


def describe() -> str:
    lines = []
    for name, found in public_objects():
        if not inspect.isclass(found):
            lines += _function(name, found) if inspect.isroutine(found) else [f"{name}: {type(found).__name__}"]
            continue
        bases = ", ".join(base.__name__ for base in found.__bases__ if base is not object)
        lines.append(f"class {name}({bases})")
        lines += [f"    {line}" for line in _constructor(found)]
        lines += [f"    {line}" for key, member in public_members(found) for line in _member(found, key, member)]
    return "\n".join(lines) + "\n"


def _constructor(cls: type) -> list[str]:
    if issubclass(cls, MADE_BY_USERS) and "__init__" in vars(cls):
        return _function("__init__", vars(cls)["__init__"])
    return []


def _member(cls: type, name: str, member: Any) -> list[str]:
    if isinstance(member, enum.Enum):
        return [f"{name} = {member.value!r}"]
    if isinstance(member, property):
        assert member.fget is not None
        return [f"{name}: {inspect.signature(member.fget).return_annotation}"]
    if isinstance(member, classmethod):
        return [f"@classmethod {line}" for line in _function(name, member.__func__)]
    if inspect.isroutine(member):
        return _function(name, member)
    annotations = {field.name: field.type for field in dataclasses.fields(cls)} if dataclasses.is_dataclass(cls) else {}
    return [f"{name}: {Bare(annotations.get(name, cls.__annotations__.get(name, '?')))}"]


def _function(name: str, function: Any) -> list[str]:
    """One line, or one per overload."""
    if inspect.ismethod(function):
        return [f"{name} = {function.__func__.__qualname__} of App({function.__self__.name!r})"]
    kind = "async def" if inspect.iscoroutinefunction(function) else "def"
    overloads = typing.get_overloads(function)
    if not overloads:
        return [f"{kind} {name}{_signature(function)}"]
    return [f"@overload {kind} {name}{_signature(each)}" for each in overloads]


def _signature(function: Any) -> inspect.Signature:
    signature = inspect.signature(function)
    parameters = [
        p if p.annotation is p.empty else p.replace(annotation=Bare(p.annotation))
        for p in signature.parameters.values()
    ]
    returned = signature.return_annotation
    return signature.replace(
        parameters=parameters, return_annotation=returned if returned is signature.empty else Bare(returned)
    )
