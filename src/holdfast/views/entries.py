"""What a `Run` shows of itself, with values as Python objects."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, SupportsIndex, overload

import msgspec

from holdfast.codec import Codec
from holdfast.core import events as ev
from holdfast.ports import AttemptRow, RunRow, Status, StepState, StreamRow
from holdfast.views.statuses import statuses_of
from holdfast.views.steps import StepView, steps_of, with_attempts
from holdfast.views.times import moment
from holdfast.views.values import PythonReader, detail_of


@dataclass(frozen=True, slots=True)
class RunEvent:
    """One event of a run's history, decoded. `detail` holds what is particular to its kind. `clock` is the logical clock
    of the process that wrote it; 0 if an older version did."""

    seq: int
    kind: str
    at: dt.datetime
    name: str
    cmd: str
    cause: int
    attempt: int
    detail: dict[str, Any]
    clock: int = 0


@dataclass(frozen=True, slots=True)
class RunStep:
    """A step or child of a run. `key` is its name in a DAG or saga, `undoes` the command that it compensates, and
    `reason` tells why it was skipped."""

    name: str
    state: StepState
    attempts: int
    cmd: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    result: Any
    error: BaseException | None
    started_at: dt.datetime | None
    ended_at: dt.datetime | None
    retry_at: dt.datetime | None
    worker: str
    child_run_id: str
    reused: bool
    progress: dict[str, Any] | None
    key: str = ""
    undoes: str = ""
    reason: str = ""

    @property
    def status(self) -> StepState:
        """The same as `state`."""
        return self.state


class RunSteps(list[RunStep]):
    """The steps and children of a run. Besides its number, a step is found by its name: the one it has in a DAG or
    saga, or else its own, of several the last."""

    @overload
    def __getitem__(self, which: SupportsIndex | str, /) -> RunStep: ...
    @overload
    def __getitem__(self, which: slice, /) -> list[RunStep]: ...
    def __getitem__(self, which: SupportsIndex | slice | str, /) -> RunStep | list[RunStep]:
        if not isinstance(which, str):
            return super().__getitem__(which)
        found = [step for step in self if step.key == which] or [step for step in self if step.name == which]
        if not found:
            known = ", ".join(dict.fromkeys(step.key or step.name for step in self)) or "none"
            raise KeyError(f"no step {which!r} in this run; known: {known}")
        return found[-1]


@dataclass(frozen=True, slots=True)
class StatusEntry:
    """One status that a run went through: since when, and why."""

    status: Status
    at: dt.datetime
    error: BaseException | None
    reason: str


@dataclass(frozen=True, slots=True)
class StreamedItem:
    """An item that a step or workflow has streamed. `number` resumes a stream; `attempt` tells a retry's items apart."""

    number: int
    item: Any
    cmd: str
    attempt: int
    at: dt.datetime


@dataclass(frozen=True, slots=True)
class LogLine:
    """A log record, as it was kept. A traceback is part of the message."""

    at: dt.datetime
    level: str
    logger: str
    message: str


@dataclass(frozen=True, slots=True)
class StepLogs:
    """What one attempt of a step has logged: the last of it, after `dropped` earlier lines that were not kept. `cmd`
    is that of the step in `run.steps`."""

    step: str
    cmd: str
    attempt: int
    dropped: int
    lines: list[LogLine]


@dataclass(frozen=True, slots=True)
class Sent:
    """What became of something that was sent to a run. `awaited` is whether the run waited for it, None if that can't
    be told: it was at work. `note` is for a person: empty, or that it is kept, and what the run waits for instead."""

    awaited: bool | None
    note: str = ""


class Entries:
    """Makes them, with an app's codec."""

    def __init__(self, codec: Codec) -> None:
        self._codec = codec
        self._reader = PythonReader(codec)

    def event(self, event: ev.AnyEvent, clock: int = 0) -> RunEvent:
        fields = {field: getattr(event, field) for field in event.__struct_fields__}
        return RunEvent(
            seq=event.seq,
            kind=event.kind,
            at=moment(event.ts),
            name=fields.get("name", ""),
            cmd=fields.get("cmd", ""),
            cause=fields.get("cause", 0),
            attempt=fields.get("attempt", 0),
            detail=detail_of(fields, self._reader),
            clock=clock,
        )

    def steps(
        self, history: Iterable[ev.Event], progress: Mapping[str, bytes], attempts: Iterable[AttemptRow] = ()
    ) -> RunSteps:
        return RunSteps(self._step(view, progress.get(view.cmd)) for view in with_attempts(steps_of(history), attempts))

    def _step(self, view: StepView, progress: bytes | None) -> RunStep:
        args, kwargs = self._reader.arguments(view.args)
        return RunStep(
            name=view.name, state=view.state, attempts=view.attempts, cmd=view.cmd, args=args, kwargs=kwargs,
            result=self._reader.value(view.result), error=self._reader.error(view.error),
            started_at=moment(view.started_at), ended_at=moment(view.ended_at), retry_at=moment(view.retry_at),
            worker=view.worker, child_run_id=view.child_id, reused=view.reused,
            progress=None if progress is None else msgspec.json.decode(progress), key=view.key, undoes=view.undoes,
            reason=view.reason,
        )  # fmt: skip

    def statuses(self, history: Iterable[ev.Event], row: RunRow) -> list[StatusEntry]:
        return [
            StatusEntry(change.status, moment(change.at), self._reader.error(change.error), change.reason)
            for change in statuses_of(history, row)
        ]

    def logs(self, recorded: Iterable[bytes]) -> list[StepLogs]:
        found = []
        for body in recorded:
            kept = self._codec.decode(body)
            kept["lines"] = [LogLine(moment(at), *rest) for at, *rest in kept["lines"]]
            found.append(StepLogs(**kept))
        return sorted(found, key=lambda kept: kept.lines[0].at)

    def streamed(self, row: StreamRow) -> StreamedItem:
        return StreamedItem(row.number, self._codec.decode_loosely(row.item), row.cmd, row.attempt, moment(row.ts))
