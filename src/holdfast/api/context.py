"""`wf` and `this_step`: the running workflow and the running step, as their own code sees them."""

from __future__ import annotations

import datetime as dt
import random
import time
import uuid
from collections.abc import Awaitable, Coroutine
from dataclasses import dataclass
from typing import Any, NoReturn, TypeVar

from msgspec import Raw

from holdfast.api import calls
from holdfast.api.checks import check_hook, check_id, check_text, progress_of
from holdfast.api.direct_calls import plain_transaction
from holdfast.api.domain_events import emit_now, wait_for_event
from holdfast.api.hooks import ask_hook, encode_payload
from holdfast.api.scratch import Scratch, scratch
from holdfast.api.tokens import StepToken
from holdfast.api.waiting import sleep_us
from holdfast.core.context import StepContext, current_step
from holdfast.core.domain_events import Where
from holdfast.core.execution import Execution
from holdfast.core.greenlets import wait_plainly
from holdfast.core.loop import Future, running
from holdfast.durations import Duration
from holdfast.errors import ContinueAsNew, WrongContextError

T = TypeVar("T")
CONTINUE_AFTER = 5_000
"""Events. It must never change: replay would take another way."""
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


@dataclass(frozen=True, slots=True)
class WorkflowIdentity:
    """Which run this is: its id, its workflow's name, and where it comes from."""

    workflow_id: str
    workflow_type: str
    parent_workflow_id: str | None
    root_workflow_id: str


def current_execution() -> Execution | None:
    loop = running()
    return None if loop is None else loop.execution


def _here() -> Execution | StepContext | None:
    """What `wf` refers to."""
    return current_execution() or current_step.get()


def _in_workflow(name: str) -> Execution | None:
    """What `wf.name` refers to, which is for workflow code alone."""
    here = _here()
    if isinstance(here, StepContext):
        raise WrongContextError(
            f"wf.{name} is for workflow code, which is replayed; in a step use the ordinary Python way, or pass the value in"
        )
    return here


class WorkflowContext:
    """The running workflow. In a step, `identity`, `set_data`, `get_data` and `emit` work; outside a run everything works
    on a context that lasts for one plain call."""

    @property
    def identity(self) -> WorkflowIdentity:
        """Which run this is."""
        here = _here()
        if isinstance(here, StepContext):
            a = here.attempt
            return WorkflowIdentity(a.run_id, a.workflow, a.parent_id, a.root_id)
        if here is None:
            id = scratch("wf.identity").id
            return WorkflowIdentity(id, "", None, id)
        info = here.info
        return WorkflowIdentity(info.run_id, here.program.name, info.parent_id, info.root_id or info.run_id)

    def set_data(self, key: str, value: object) -> None:
        """Keep a value with the run. In a step it arrives with the step's outcome."""
        here = _here()
        check_text("wf.set_data: key", key)
        if here is None:
            scratch("wf.set_data()").data[key] = value
        elif isinstance(here, StepContext):
            here.touch()
            here.writes[key] = Raw(here.codec.encode(value, f"data {key!r}", apart=True))
        else:
            here.outputs.set_data(key, Raw(here.codec.encode(value, f"data {key!r}", apart=True)))

    def get_data(self, key: str, default: Any = None) -> Any:
        """What was kept under `key` up to this point."""
        here = _here()
        check_text("wf.get_data: key", key)
        if here is None:
            return scratch("wf.get_data()").data.get(key, default)
        data = here.data | here.writes if isinstance(here, StepContext) else here.journal.data
        raw = data.get(key)
        return default if raw is None else here.codec.decode(raw)

    def stream(self, item: object) -> None:
        """Give an item to those who watch the run: `for item in run.stream()`."""
        here = _here()
        if isinstance(here, StepContext):
            this_step.stream(item)
        elif here is None:
            scratch("wf.stream()")
        else:
            here.outputs.stream(Raw(here.codec.encode(item, "a streamed item")))

    def uuid(self) -> uuid.UUID:
        """A random UUID that is the same on every replay."""
        here = _in_workflow("uuid()")
        return uuid.uuid4() if here is None else here.values.uuid()

    def random(self) -> float:
        """A random number in [0, 1) that is the same on every replay."""
        here = _in_workflow("random()")
        return random.random() if here is None else here.values.random()

    def utc_now(self) -> dt.datetime:
        """The time, the same on every replay."""
        here = _in_workflow("utc_now()")
        if here is None:
            return dt.datetime.now(dt.UTC)
        return _EPOCH + dt.timedelta(microseconds=here.values.read_time())

    @property
    def attempt(self) -> int:
        """Which attempt of the whole workflow this is, from 1."""
        here = _in_workflow("attempt")
        return 1 if here is None else here.journal.attempt

    @property
    def scheduled_at(self) -> dt.datetime | None:
        """The tick that started this run, in its schedule's time zone; None if no schedule did."""
        here = _in_workflow("scheduled_at")
        beginning = None if here is None else here.journal.beginning
        if beginning is None or beginning.scheduled_at is None:
            return None
        zone = dt.timezone(dt.timedelta(seconds=beginning.scheduled_offset))
        return (_EPOCH + dt.timedelta(microseconds=beginning.scheduled_at)).astimezone(zone)

    @property
    def history_length(self) -> int:
        """How many events this run's history has up to here, since it last continued as new; the same on every replay."""
        here = _in_workflow("history_length")
        return 1 if here is None else here.journal.history_length

    @property
    def should_continue(self) -> bool:
        """Whether it is time for `wf.continue_as_new`: the history is so long (5,000 events) that to replay it takes a
        while. A suggestion; a run may go on as long as it likes."""
        return self.history_length >= CONTINUE_AFTER

    def patched(self, change: str) -> bool:
        """Whether this run goes the new way of a changed workflow: runs that were past this point do not."""
        check_text("wf.patched: change", change)
        here = _in_workflow("patched()")
        return True if here is None else here.values.patched(change)

    def continue_as_new(self, *args: Any, **kwargs: Any) -> NoReturn:
        """End this history and begin again under the same id, with these arguments."""
        here = _here()
        if not isinstance(here, Execution):
            raise WrongContextError("wf.continue_as_new() is for workflow code in a run; here, call the function again")
        if not here.info.durable:
            raise WrongContextError(
                "wf.continue_as_new() needs a history, and this workflow has durable=False; use a loop"
            )
        here.program.check_call(args, kwargs)
        raise ContinueAsNew(args, kwargs)

    def sleep(self, duration: Duration | dt.datetime) -> None:
        """The plain-call form of `await sleep(...)`."""
        here = _here()
        if isinstance(here, Execution):
            wait_plainly(here.loop.sleep(sleep_us(duration, here.loop.now)))
        else:
            time.sleep(sleep_us(duration, time.time_ns() // 1_000) / 1_000_000)

    def hook(self, name: str, *, timeout: Duration | None = None, key: str | None = None) -> Any:
        """The plain-call form of `await hook(...)`."""
        return calls.wait(ask_hook(name, timeout, key, None))

    def wait_for_event(
        self, name: str, *, where: Where | None = None, timeout: Duration | None = None, payload: Any = None
    ) -> Any:
        """The plain-call form of `await wait_for_event(...)`."""
        return calls.wait(wait_for_event(name, where=where, timeout=timeout, payload=payload))

    def emit(self, name: str, payload: object = None, *, key: str | None = None) -> str:
        """The plain-call form of `await emit(...)`."""
        return emit_now(name, payload, key)

    def send(
        self, run_id: str, name: str, payload: object = None, *, key: str | None = None
    ) -> Coroutine[None, None, None]:
        """Send a payload to a hook of another run of the app, once: `await wf.send(run_id, "approval", payload)`. It leaves
        with the next commit. If there is no such run, or it has ended, this run's history and log say so."""
        here = _here()
        if isinstance(here, StepContext):
            raise WrongContextError(
                "wf.send() in a step: a step sends with app.get_run(run_id).send(name, payload); wf.send is for workflow code"
            )
        if here is None:
            raise WrongContextError("wf.send() works in a run; elsewhere use app.get_run(run_id).send(name, payload)")
        if not here.info.durable:
            raise WrongContextError(
                "wf.send() needs a history, and this workflow has durable=False; make it durable=True"
            )
        check_id(run_id, "wf.send: run_id")
        check_hook(name, key, what="wf.send")
        encoded = Raw(encode_payload(here.codec, here.program.hook_models, name, payload))

        def begin() -> Future[None]:
            here.outputs.send(run_id, name, key or "", encoded)
            done: Future[None] = Future(here.loop)
            done.set_result(None)
            return done

        return calls.Call(here, begin, f"wf.send to {run_id!r}")

    def wait(self, awaitable: Awaitable[T]) -> T:
        """Wait in a plain call for anything that can be awaited."""
        found: T = calls.wait(awaitable)
        return found


class RunningStep:
    """The running step. Outside a run everything works on a context that lasts for one plain call."""

    @property
    def attempt(self) -> int:
        """Which attempt this is, from 1."""
        context = _step("attempt")
        return 1 if isinstance(context, Scratch) else context.attempt.number

    @property
    def idempotency_key(self) -> str:
        """The same for every attempt of this step, and for no other step: give it to whoever you call."""
        context = _step("idempotency_key")
        return context.id if isinstance(context, Scratch) else context.attempt.idempotency_key

    def checkpoint(self, value: object) -> None:
        """Keep a value for the next attempt, should this one fail or its worker die."""
        context = _step("checkpoint")
        if isinstance(context, Scratch):
            context.checkpoint = value
            return
        context.touch()
        encoded = context.codec.encode(value, f"the checkpoint of step {context.attempt.step!r}")
        context.checkpoint = encoded
        context.report("checkpoint", encoded)

    @property
    def last_checkpoint(self) -> Any:
        """What the last attempt kept, None if nothing."""
        context = _step("last_checkpoint")
        if isinstance(context, Scratch):
            return context.checkpoint
        return None if context.checkpoint is None else context.codec.decode(context.checkpoint)

    def progress(self, done: float, total: float | None = None, note: str = "") -> None:
        """Show how far it is. Also a sign of life for `stall_timeout`, and where a plain step is cancelled."""
        context = _step("progress")
        encoded = progress_of("this_step.progress", done, total, note)
        if isinstance(context, Scratch):
            return
        context.touch()
        context.report("progress", encoded)

    def hand_over(self) -> str:
        """Let this attempt end elsewhere: a token for whoever does the work, who calls `app.finish_step(token, result)` or
        `app.fail_step(token, error)`. What the step itself returns then means nothing. Its `timeout` counts on until the
        step is finished, and `app.beat_step(token)` is the sign of life for its `stall_timeout`."""
        context = _step("hand_over")
        if isinstance(context, Scratch):
            return context.id
        context.touch()
        context.handed_over = True
        a = context.attempt
        token = StepToken(a.app, a.run_id, a.run_no, a.cmd, a.step, a.number, context.started, a.since)
        return token.write(context.surroundings.secret())

    def stream(self, item: object) -> None:
        """Give an item to those who watch the run, as soon as it is there: tokens, rows, lines."""
        context = _step("stream")
        if isinstance(context, Scratch):
            return
        context.touch()
        context.report("stream", context.codec.encode(item, f"an item streamed by step {context.attempt.step!r}"))


def _step(name: str) -> StepContext | Scratch:
    """What `this_step.name` refers to here."""
    if running() is not None:
        raise WrongContextError(
            f"this_step.{name} is for the code of a step, and this is workflow code; use it in a step"
        )
    return current_step.get() or scratch(f"this_step.{name}")


def transaction() -> Any:
    """In a step with `transaction=True`: a connection to the store's database, in a transaction that is committed together
    with the step's outcome. What is written with it happens exactly once, whatever crashes.

    It begins with the first call. On PostgreSQL it is a `psycopg.Connection`, on SQLite a `sqlite3.Connection`; neither can
    be told to commit or to roll back.
    """
    if running() is not None:
        raise WrongContextError("transaction() is for the code of a step, and this is workflow code; use it in a step")
    step = current_step.get()
    found = plain_transaction.get() if step is None or step.transaction is None else step.transaction
    if found is not None:
        return found.connection
    if step is None:
        raise WrongContextError("transaction() works in a step with @app.step(transaction=True), and no step is here")
    raise WrongContextError(
        f"step {step.attempt.step!r} has no transaction; write @app.step(transaction=True) above it"
    )


wf = WorkflowContext()
this_step = RunningStep()
