"""What happens in a run, as data. An event is append-only, numbered from 1 without gaps, and never changes.

Three families:

* *Delivered* events reach workflow code, one at a time, and may make it ask for something: they are causes.
* *Answers* record at once what code asked for (data set, child started, hook opened...); replay checks them.
* *Notes* tell what became of a step on its way, or of the run, and never reach the code.

`by` is who asked for it, where a person or program did, and has said who it is.

Payloads that belong to users (`msgspec.Raw`) are the codec's JSON and are decoded where they are needed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import ClassVar, TypeAlias, TypeVar

import msgspec
from msgspec import Raw

from holdfast.core.domain_events import Scalar

NULL = Raw(b"null")
NO_ARGS = Raw(b"{}")


class Event(msgspec.Struct, kw_only=True, omit_defaults=True, tag_field="kind", tag=True, gc=False):
    """`seq` is 0 until the event is appended; `ts` is the database's time in microseconds."""

    delivered: ClassVar[bool] = False
    seq: int = 0
    ts: int = 0

    @property
    def kind(self) -> str:
        return type(self).__name__


class Commanded(Event, kw_only=True, omit_defaults=True, tag=True, gc=False):
    """An event that belongs to a command: `cmd` names it in the run, `cause` is the event that led to it."""

    cmd: str
    cause: int
    name: str = ""
    args: Raw = NO_ARGS


# -- the beginning of an attempt


class Beginning(Event, kw_only=True, omit_defaults=True, tag=True, gc=False):
    """The workflow's function is called: with it, replay begins."""

    delivered: ClassVar[bool] = True


class RunStarted(Beginning, kw_only=True, omit_defaults=True, tag=True, gc=False):
    """`data` is what was published of it from the beginning."""

    workflow: str
    input: Raw = NO_ARGS
    seed: int = 0
    flags: tuple[str, ...] = ()
    scheduled_at: int | None = None
    scheduled_offset: int = 0
    forked_from: str | None = None
    data: dict[str, Raw] = {}
    by: str = ""


class ContinuedAsNew(Beginning, kw_only=True, omit_defaults=True, tag=True, gc=False):
    """A fresh start under the same id: data and unread hook payloads come along, the history before doesn't."""

    workflow: str
    input: Raw = NO_ARGS
    seed: int = 0
    flags: tuple[str, ...] = ()
    scheduled_at: int | None = None
    scheduled_offset: int = 0
    forked_from: str | None = None
    by: str = ""
    data: dict[str, Raw] = {}
    hooks: tuple[HookReceived, ...] = ()
    requests: tuple[RequestReceived, ...] = ()


class AttemptStarted(Beginning, kw_only=True, omit_defaults=True, tag=True, gc=False):
    """A workflow-level retry: the function is called anew, with the outcomes of earlier attempts at hand."""

    attempt: int
    by: str = ""


# -- outcomes, delivered


class StepOutcome(Commanded, kw_only=True, omit_defaults=True, tag=True, gc=False):
    """`thread` is where in its worker the attempt was executed; "" is the event loop, or a version that didn't say."""

    attempt: int = 1
    worker: str = ""
    started: int = 0
    undoes: str = ""
    thread: str = ""


class Emitted(msgspec.Struct, kw_only=True, gc=False):
    """A domain event that a step has emitted."""

    name: str
    key: str
    payload: Raw


class StepCompleted(StepOutcome, kw_only=True, omit_defaults=True, tag=True, gc=False):
    delivered: ClassVar[bool] = True
    result: Raw = NULL
    data: dict[str, Raw] = {}
    emitted: tuple[Emitted, ...] = ()


class StepFailed(StepOutcome, kw_only=True, omit_defaults=True, tag=True, gc=False):
    delivered: ClassVar[bool] = True
    error: Raw = NULL


class OutcomeReused(Commanded, kw_only=True, omit_defaults=True, tag=True, gc=False):
    """An outcome of an earlier attempt, delivered again: the one recorded as number `source`."""

    delivered: ClassVar[bool] = True
    source: int


class TimerFired(Commanded, kw_only=True, omit_defaults=True, tag=True, gc=False):
    delivered: ClassVar[bool] = True
    due: int
    delay: int = 0
    sleep: bool = False


class ChildOutcome(Commanded, kw_only=True, omit_defaults=True, tag=True, gc=False):
    delivered: ClassVar[bool] = True
    child_id: str


class ChildCompleted(ChildOutcome, kw_only=True, omit_defaults=True, tag=True, gc=False):
    result: Raw = NULL


class ChildFailed(ChildOutcome, kw_only=True, omit_defaults=True, tag=True, gc=False):
    error: Raw = NULL


class ChildCancelled(ChildOutcome, kw_only=True, omit_defaults=True, tag=True, gc=False):
    reason: str = ""


class HookReceived(Event, kw_only=True, omit_defaults=True, tag=True, gc=False):
    """A payload for the hook `name` (and `key`), kept in order until the workflow asks. `event` is the domain event
    that it comes from, if the hook waits for one."""

    delivered: ClassVar[bool] = True
    name: str
    key: str = ""
    payload: Raw = NULL
    token: str = ""
    event: str = ""
    by: str = ""


class RequestReceived(Event, kw_only=True, omit_defaults=True, tag=True, gc=False):
    """A client asks the run something and waits for the answer, kept in order until the workflow takes it. `request` is
    the id under which the answer is kept."""

    delivered: ClassVar[bool] = True
    name: str
    request: str
    payload: Raw = NULL


class CancelRequested(Event, kw_only=True, omit_defaults=True, tag=True, gc=False):
    delivered: ClassVar[bool] = True
    reason: str = ""
    timed_out: bool = False
    by: str = ""


# -- answers


class ChildStarted(Commanded, kw_only=True, omit_defaults=True, tag=True, gc=False):
    """Without `child_id` it is yet to be started: a fork was made while it was under way. Once it is, a second event
    of the same command tells its id."""

    child_id: str
    waited: bool = True
    abandon: bool = False
    again: bool = False
    undoes: str = ""


class ChildAwaited(Commanded, kw_only=True, omit_defaults=True, tag=True, gc=False):
    """The workflow asks for the result of a child it had not waited for; `args` is the command that started it."""

    child_id: str


class HookOpened(Commanded, kw_only=True, omit_defaults=True, tag=True, gc=False):
    """With `where` it is answered by the first domain event of its name that has these values. If it is `bound`, its
    token tells the run's number; those of older versions don't, and have to be the same on replay."""

    key: str = ""
    expires: int | None = None
    where: dict[str, Scalar] | None = None
    bound: bool = False


class DataSet(Commanded, kw_only=True, omit_defaults=True, tag=True, gc=False):
    """`name` is the key and `args` the value."""


class TimeRead(Commanded, kw_only=True, omit_defaults=True, tag=True, gc=False):
    value: int


class Patched(Commanded, kw_only=True, omit_defaults=True, tag=True, gc=False):
    pass


class Planned(Commanded, kw_only=True, omit_defaults=True, tag=True, gc=False):
    """What a composition is made of, or how many times one of its steps is executed, was settled: `args` tells."""


class StepSkipped(Commanded, kw_only=True, omit_defaults=True, tag=True, gc=False):
    """A step of a composition is not executed in this run, and nothing is wrong with that."""

    reason: str = ""


class StepRefused(Commanded, kw_only=True, omit_defaults=True, tag=True, gc=False):
    """A step of a composition has failed before it could be executed."""

    error: Raw = NULL


class Streamed(Commanded, kw_only=True, omit_defaults=True, tag=True, gc=False):
    """The workflow gave an item, `args`, to those who watch."""


class RequestAnswered(Commanded, kw_only=True, omit_defaults=True, tag=True, gc=False):
    """The workflow answered a request; `args` is the answer. With an `error` it refused."""

    request: str
    error: Raw = NULL


class HookSent(Commanded, kw_only=True, omit_defaults=True, tag=True, gc=False):
    """The workflow sent a payload, `args`, to a hook of another run. It was not sent `again` if an earlier attempt of this
    run had done so."""

    run_id: str
    key: str = ""
    again: bool = False


class EventEmitted(Commanded, kw_only=True, omit_defaults=True, tag=True, gc=False):
    """The workflow emitted a domain event of that name; `args` is its payload and `event` its id."""

    key: str
    event: str


# -- notes


class StepStarted(StepOutcome, kw_only=True, omit_defaults=True, tag=True, gc=False):
    pass


class StepRetrying(StepOutcome, kw_only=True, omit_defaults=True, tag=True, gc=False):
    error: Raw = NULL
    retry_at: int = 0


class StepLost(StepOutcome, kw_only=True, omit_defaults=True, tag=True, gc=False):
    """The worker of this attempt went down with it, or its process with `company` others. Losses are counted apart from
    retries."""

    company: int = 0


class StepHandedOver(StepOutcome, kw_only=True, omit_defaults=True, tag=True, gc=False):
    """The attempt ends elsewhere: whoever has its token says how. `until` is when that is not waited for any more, `limit`
    when it has to be over whatever is heard of it; 0 is never."""

    until: int = 0
    limit: int = 0


class StepCancelled(StepOutcome, kw_only=True, omit_defaults=True, tag=True, gc=False):
    pass


class StepWithdrawn(StepOutcome, kw_only=True, omit_defaults=True, tag=True, gc=False):
    """The start of this attempt was announced, but it was taken back before it began."""


class ChildDropped(Commanded, kw_only=True, omit_defaults=True, tag=True, gc=False):
    """The workflow stopped waiting for a child, which is told to stop unless it may outlive its parent."""

    child_id: str


class ArgumentsChanged(Commanded, kw_only=True, omit_defaults=True, tag=True, gc=False):
    """Replay asked for a recorded command with other arguments; the recorded outcome stands."""


class RunTakenUp(Event, kw_only=True, omit_defaults=True, tag=True, gc=False):
    """The run had waited for a worker: its code's time begins here, not when it was started."""


class RunProbed(Event, kw_only=True, omit_defaults=True, tag=True, gc=False):
    """The run had lost its worker. Its code is activated after this is committed, and no other suspect beside it: if the
    worker is lost again before anything more is recorded, this code is what took it down."""

    worker: str = ""


class ClockSetBack(Event, kw_only=True, omit_defaults=True, tag=True, gc=False):
    """The database's clock had been ahead, `by` microseconds in all, and was set back. The code's own time goes on as
    it was, and what it waits for comes as much earlier."""

    by: int


class MessageDropped(Event, kw_only=True, omit_defaults=True, tag=True, gc=False):
    """A message to the run that can't be read was taken out of its inbox."""

    message: str
    reason: str = ""


class RunPaused(Event, kw_only=True, omit_defaults=True, tag=True, gc=False):
    reason: str = ""
    by: str = ""


class RunResumed(Event, kw_only=True, omit_defaults=True, tag=True, gc=False):
    by: str = ""


class RunStuck(Event, kw_only=True, omit_defaults=True, tag=True, gc=False):
    reason: str
    error: Raw = NULL


class AttemptFailed(Event, kw_only=True, omit_defaults=True, tag=True, gc=False):
    attempt: int
    error: Raw = NULL
    retry_at: int = 0


class RunEnded(Event, kw_only=True, omit_defaults=True, tag=True, gc=False):
    """The last event of a run, unless it is retried."""


class RunCompleted(RunEnded, kw_only=True, omit_defaults=True, tag=True, gc=False):
    result: Raw = NULL


class RunFailed(RunEnded, kw_only=True, omit_defaults=True, tag=True, gc=False):
    error: Raw = NULL


class RunCancelled(RunEnded, kw_only=True, omit_defaults=True, tag=True, gc=False):
    """With `terminated`, its code was not asked, and its clean-up has not run."""

    reason: str = ""
    terminated: bool = False
    by: str = ""


AnyEvent: TypeAlias = (
    RunStarted
    | ContinuedAsNew
    | AttemptStarted
    | StepCompleted
    | StepFailed
    | OutcomeReused
    | TimerFired
    | ChildCompleted
    | ChildFailed
    | ChildCancelled
    | HookReceived
    | RequestReceived
    | CancelRequested
    | ChildStarted
    | ChildAwaited
    | HookOpened
    | DataSet
    | TimeRead
    | Patched
    | Streamed
    | Planned
    | StepSkipped
    | StepRefused
    | RequestAnswered
    | HookSent
    | EventEmitted
    | StepStarted
    | StepRetrying
    | StepLost
    | StepHandedOver
    | StepCancelled
    | StepWithdrawn
    | ChildDropped
    | ArgumentsChanged
    | RunTakenUp
    | RunProbed
    | ClockSetBack
    | MessageDropped
    | RunPaused
    | RunResumed
    | RunStuck
    | AttemptFailed
    | RunCompleted
    | RunFailed
    | RunCancelled
)

E = TypeVar("E", bound=Event)


def unnumbered(events: Iterable[E]) -> tuple[E, ...]:
    """In order, and without their numbers: as they are brought over into a new history."""
    return tuple(msgspec.structs.replace(event, seq=0) for event in sorted(events, key=lambda event: event.seq))


def published(history: Iterable[Event]) -> dict[str, bytes]:
    """What a run was started with, or has kept with `wf.set_data`, by key."""
    data: dict[str, bytes] = {}
    for event in history:
        if isinstance(event, DataSet):
            data[event.name] = bytes(event.args)
        elif isinstance(event, RunStarted | ContinuedAsNew | StepCompleted):
            data |= {key: bytes(value) for key, value in event.data.items()}
    return data


encode: msgspec.json.Encoder = msgspec.json.Encoder()
_decoder: msgspec.json.Decoder[AnyEvent] = msgspec.json.Decoder(AnyEvent)


to_json: Callable[[Event], bytes] = encode.encode
"""The event as JSON, whole: a history can be exported, kept as a golden file and read by people."""

from_json: Callable[[bytes], AnyEvent] = _decoder.decode
