"""What can be done to runs from outside: over a store and a notifier, with no engine in this process."""

from __future__ import annotations

import contextlib
import datetime as dt
import itertools
import logging
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import msgspec
from msgspec import Raw

from holdfast.api.checks import (
    ID_LIMIT,
    check_flag,
    check_headers,
    check_hook,
    check_id,
    check_key,
    check_number,
    check_text,
    duration_of,
    progress_of,
    to_epoch,
)
from holdfast.api.domain_events import emit_in_step, encode_event
from holdfast.api.handles import Run, RunPage, Which
from holdfast.api.hooks import Token, encode_payload, is_of_run, read_token, used_already
from holdfast.api.options import StartOptions, check_call
from holdfast.api.requests import Ask, RequestDefinition, check_request, encode_request
from holdfast.api.tokens import StepToken
from holdfast.codec import Codec
from holdfast.core import events as ev
from holdfast.core.context import StartCall, current_step
from holdfast.core.definitions import StepDefinition, WorkflowDefinition
from holdfast.core.domain_events import check_event_key, check_event_name, event_id
from holdfast.core.forking import Fork, fork
from holdfast.core.pending import FLAGS
from holdfast.core.registry import Definitions, is_own, refuse_while_importing
from holdfast.core.spans import Span
from holdfast.durations import Duration, in_words, to_us
from holdfast.engine.domain_events import subscription_of
from holdfast.engine.programs import is_durable
from holdfast.engine.records import (
    PRIORITY_HEAD_START,
    AnswerBody,
    AskMessage,
    BeatMessage,
    ControlMessage,
    HookMessage,
    OutcomeMessage,
    RunOptions,
    child_gone,
    control,
    correlation_of,
    data_attribute,
    fingerprint,
    to_record,
)
from holdfast.errors import (
    ArgumentError,
    DecodeError,
    HookError,
    HookNotFoundError,
    HookTokenError,
    MemberError,
    RequestError,
    RequestRefusedError,
    RunCancelledError,
    RunError,
    RunExistsError,
    RunFinishedError,
    RunNotFoundError,
    RunStuckError,
    StepError,
    StepTokenError,
    UnknownNameError,
    WrongContextError,
)
from holdfast.errors import in_words as in_words_of
from holdfast.ports import (
    FINAL,
    Attempt,
    Emission,
    InboxRow,
    Message,
    NewRun,
    Notifier,
    RunQuery,
    RunRow,
    Status,
    Store,
    Topic,
    WorkerKind,
)
from holdfast.printing import show
from holdfast.telemetry.instruments import MessageReport, RunReport
from holdfast.views.entries import Entries, RunEvent, RunSteps, Sent, StatusEntry, StepLogs, StreamedItem
from holdfast.views.trace import LIMIT, TraceNode, trace_of
from holdfast.views.waits import awaits

logger = logging.getLogger("holdfast")
T = TypeVar("T")
WARN_AFTER = 2.0  # seconds without a worker


class Client:
    """Starts runs, waits for them, and sends them messages. What it does to runs is recorded as done `by` somebody, if that
    is said."""

    def __init__(self, definitions: Definitions, store: Store, notifier: Notifier, by: str = "") -> None:
        check_text("by", by, empty=True)
        self.app = definitions.name
        self.by = by
        self._definitions = definitions
        self.store = store
        self.notifier = notifier
        self.codec: Codec = definitions.codec
        self._instruments = definitions.instruments
        self._entries = Entries(self.codec)

    def joined(self, connection: object) -> Client:
        """The same in a transaction of somebody else's."""
        return Client(self._definitions, *self.store.join(connection), by=self.by)

    def _outside(self, run: Run[Any]) -> Run[Any]:
        """A run that was started in a transaction, for when that is over."""
        return Run(self, run.id, run._which.no)

    # -- starting

    def start(self, name: str, call: bytes, options: StartOptions, messages: Sequence[Message] = ()) -> Run[Any]:
        """A run of its own, or a child of the run whose step calls. `messages` are for it, whether it is new or not."""
        if options.connection is not None:
            alone = replace(options, connection=None)
            return self._outside(self.joined(options.connection).start(name, call, alone, messages))
        with self._wrapped(name, options.with_id_in_step(name)) as (options, headers):
            if options.debounce is not None:
                return self._start_later(name, call, options, headers)
            new = self._new(name, call, options, headers, self.store.now())
            new.messages = list(messages)
            taken = self.store.create(new, replace=options.if_exists == "restart")
            if taken is not None:
                self._check_same(taken, new, options)
            run = self._started(new, taken, options)
        if taken is not None:
            for message in messages:
                if self.store.answer(taken.id, message.request) is None:
                    self._post(message, "it can't be asked")
        self.notifier.ring(Topic.RUNS)
        return run

    @contextlib.contextmanager
    def _wrapped(self, name: str, options: StartOptions) -> Iterator[tuple[StartOptions, dict[str, str]]]:
        """What wraps starts has its say about this one: the options, and the headers that come along."""
        step = current_step.get()
        headers = {} if step is None else dict(step.attempt.headers)
        arounds = self._definitions.start_arounds
        if not arounds:
            yield options, headers
            return
        run_id = options.id or str(uuid.uuid4())
        with contextlib.ExitStack() as stack:
            start = StartCall(name, run_id, headers)
            for around in arounds:
                stack.enter_context(Span(around.function(start), f"around_start {around.name!r}"))
            check_headers(start.headers)
            yield replace(options, id=run_id), start.headers

    def _start_later(self, name: str, call: bytes, options: StartOptions, headers: dict[str, str]) -> Run[Any]:
        """Put off the run that waits under this key, with this call in place of its own, or make one that waits. They are
        numbered: key@1, key@2."""
        assert options.id is not None
        quiet, key = to_us(options.debounce or 0, "debounce"), options.id[: ID_LIMIT - 20] + "@"
        for tries in itertools.count(1):
            now = self.store.now()
            found = [row for row in self.store.runs(RunQuery(prefix=key, limit=20)) if _is_number(row.id[len(key) :])]
            last = found[0] if found else None
            if last is not None and last.status == Status.PENDING and last.started_at is None and last.workflow == name:
                begin = now + quiet
                if options.at_most is not None:
                    begin = min(begin, last.created_at + to_us(options.at_most, "at_most"))
                new = self._new(name, call, replace(options, id=last.id), headers, now, begin)
                if self.store.put_off(last.no, new):
                    new.no = last.no
                    break
            number = max((int(row.id[len(key) :]) for row in found), default=0) + tries
            new = self._new(name, call, replace(options, id=f"{key}{number}"), headers, now, now + quiet)
            if self.store.create(new) is None:
                self._tell_submitted(new)
                break  # else somebody else was faster
        self.notifier.ring(Topic.RUNS)
        return Run(self, new.id, new.no)

    def start_many(self, calls: Sequence[tuple[str, bytes, StartOptions]]) -> list[Run[Any]]:
        """One commit for all of them: either all are started or none is."""
        connection = calls[0][2].connection if calls else None
        if connection is not None:
            alone = [(name, call, replace(options, connection=None)) for name, call, options in calls]
            return [self._outside(run) for run in self.joined(connection).start_many(alone)]
        now = self.store.now()
        with contextlib.ExitStack() as stack:
            chosen = [
                stack.enter_context(self._wrapped(name, options.with_id_in_step(name))) for name, _, options in calls
            ]
            new = [
                self._new(name, call, options, headers, now)
                for (name, call, _), (options, headers) in zip(calls, chosen, strict=True)
            ]
            options_of = {id(run): options for run, (options, _) in zip(new, chosen, strict=True)}
            taken = self.store.create_all(new, lambda run, row: self._check_same(row, run, options_of[id(run)]))
        self.notifier.ring(Topic.RUNS)
        return [self._started(run, row, options_of[id(run)]) for run, row in zip(new, taken, strict=True)]

    def _started(self, new: NewRun, taken: RunRow | None, options: StartOptions) -> Run[Any]:
        if taken is not None and options.again and taken.status in (Status.FAILURE, Status.CANCELLED):
            self.retry(Which(taken.id, taken.no))
        if taken is None:
            self._tell_submitted(new)
        return Run(self, new.id, new.no if taken is None else taken.no)

    def _tell_submitted(self, new: NewRun) -> None:
        if (tell := self._instruments.run_submitted) is not None:
            options = msgspec.json.decode(new.options, type=RunOptions)
            tell(
                RunReport(
                    id=new.id, workflow=new.workflow, status=Status.PENDING, parent_id=new.parent_id,
                    root_id=new.root_id or new.id, trace=options.trace or None,
                )
            )  # fmt: skip

    def _new(
        self,
        name: str,
        call: bytes,
        options: StartOptions,
        headers: dict[str, str],
        now: int,
        begin_at: int | None = None,
    ) -> NewRun:
        refuse_while_importing(f"a run of {name!r} is started")
        context = current_step.get()
        origin: Attempt | None = None
        if context is not None:
            context.touch()
            origin = context.attempt
        run_id = options.id or str(uuid.uuid4())
        check_id(run_id)
        if begin_at is None:
            begin_at = now if options.delay is None else now + to_us(options.delay, "delay")
        if options.at is not None:
            begin_at = max(now, to_epoch(options.at))
        data = {key: self.codec.encode(value, f"data {key!r}") for key, value in (options.data or {}).items()}
        expires = None
        if options.expires is not None:
            if isinstance(options.expires, dt.datetime):
                expires = to_epoch(options.expires)
            else:
                expires = now + to_us(options.expires, "expires")
        started = ev.RunStarted(
            seq=1,
            ts=begin_at,
            workflow=name,
            input=Raw(call),
            seed=int(self.store.clock.random() * 2**53),
            flags=FLAGS,
            data={key: Raw(value) for key, value in data.items()},
        )
        chosen = RunOptions(
            timeout=None if options.timeout is None else to_us(options.timeout, "timeout"),
            max_retries=options.max_retries,
            queue=options.queue or "",
            trace=options.traceparent or (self._instruments.current_trace() if origin is None else origin.trace),
            quiet=origin is not None and origin.quiet,
            headers=headers,
            expires=expires,
        )
        new = NewRun(
            id=run_id, workflow=name, records=[to_record(started)], wake_at=begin_at - options.priority * PRIORITY_HEAD_START,
            created_at=now, fingerprint=fingerprint(name, call), priority=options.priority,
            options=chosen.to_json(), durable=is_durable(self._definitions, name),
            attributes=[data_attribute(key, value) for key, value in data.items()],
        )  # fmt: skip
        if origin is not None:
            new.parent_id, new.parent_cmd, new.root_id = origin.run_id, origin.cmd, origin.root_id
            new.correlation = origin.correlation
        if begin_at > now:
            new.wake_at = begin_at  # a head start must not begin a delayed run early
        return new

    def _check_same(self, taken: RunRow, new: NewRun, options: StartOptions) -> None:
        if options.if_exists == "error":
            raise RunExistsError(
                f"there is a run {taken.id!r} already ({taken.status}); choose another id", run_id=taken.id
            )
        if options.if_exists == "restart":
            raise RunExistsError(
                f"run {taken.id!r} is {taken.status}, and only a run that has ended can be restarted; cancel it first",
                run_id=taken.id,
            )
        if taken.fingerprint != new.fingerprint:
            raise RunExistsError(
                f"run {taken.id!r} exists with another workflow or other arguments (workflow {taken.workflow!r}); choose "
                "another id, or give the same arguments",
                run_id=taken.id,
            )

    # -- domain events

    def emit(self, name: str, payload: object, key: str | None) -> str:
        """Emit an event that no run causes; one that a step of this app emits is held by it."""
        check_event_name(name, emitting=True)
        check_event_key(name, key)
        step = current_step.get()
        if step is not None and step.attempt.app == self.app:
            return emit_in_step(step, name, payload, key)
        key = key or (
            str(uuid.uuid4()) if step is None else step.next_child_id(name)
        )  # the next attempt finds it again
        event = event_id(self.app, name, key)
        self.store.emit(
            Emission(
                id=event, name=name, key=key, payload=encode_event(self.codec, name, payload), ts=self.store.now(),
                correlation=event if step is None else step.attempt.correlation,
            ),
            # A worker would make these known; there may not have been one yet.
            [subscription_of(each) for each in self._definitions.subscribers() if each.event == name],
        )  # fmt: skip
        self.notifier.ring(Topic.EVENTS, everyone=True)
        return event

    def trace(self, id: str) -> TraceNode:
        """All of the process that a run or a domain event belongs to."""
        check_text("id", id)
        row = self.store.get(id)
        event = self.store.domain_event(id) if row is None else None
        if row is None and event is None:
            raise RunNotFoundError(
                f"no run and no domain event {id!r} in app {self.app!r} on {self.store.url}", run_id=id
            )
        correlation = correlation_of(row) if row is not None else event.correlation if event is not None else ""
        return trace_of(correlation, *self.store.trace(correlation, LIMIT))

    # -- waiting

    def result(
        self,
        run: Which,
        timeout: Duration | None,
        given_up: threading.Event | None = None,
        *,
        propagate: bool = True,
    ) -> Any:
        limit = None if timeout is None else duration_of("timeout", timeout, ArgumentError)
        row, over = self._look(run)
        if not over:
            row = self._wait(run, limit, given_up)
        outcome, failed = self._outcome(row)
        if failed and propagate:
            raise outcome
        return outcome.results if isinstance(outcome, MemberError) else outcome

    def _look(self, run: Which) -> tuple[RunRow, bool]:
        """The run, and whether there is an outcome to show and nobody has asked for another one."""
        row = self.row(run)
        if row.status == Status.SUCCESS:
            return row, True
        if row.status != Status.STUCK and row.status not in FINAL:
            return row, False
        orders = self.store.orders(run.id)
        row = self.row(run)  # after them: an order is carried out and consumed in one commit
        if row.status == Status.STUCK:
            return row, not orders
        return row, row.status in FINAL and (row.status == Status.SUCCESS or "retry" not in orders)

    def _wait(self, run: Which, limit: int | None, given_up: threading.Event | None) -> RunRow:
        begun = time.monotonic()
        deadline = begun + (float("inf") if limit is None else limit / 1_000_000)
        warn_at = begun + WARN_AFTER
        watch = self.notifier.watch(run.id)
        try:
            while True:
                row, over = self._look(run)
                if over:
                    return row
                now = time.monotonic()
                if now >= deadline or (given_up is not None and given_up.is_set()):
                    waits = f" ({row.reason})" if row.reason else ""
                    outlook = self._nobody_works() or "it goes on, ask again later"
                    raise TimeoutError(f"run {run.id} is {row.status}{waits} after {in_words(limit or 0)}; {outlook}")
                if now >= warn_at:
                    warn_at = float("inf")
                    if nobody := self._nobody_works():
                        logger.warning(nobody)
                watch.wait(min(1.0, deadline - now))
        finally:
            watch.close()

    def _nobody_works(self) -> str:
        """If no worker is alive: that, and what to do about it."""
        now = self.store.now()
        if any(worker.lease_until > now and worker.kind == WorkerKind.ENGINE for worker in self.store.workers()):
            return ""
        return (
            f"no worker of app {self.app!r} is alive on {self.store.url}; start one with `holdfast -A <module> worker`, "
            "or `with app.worker():`"
        )

    def _outcome(self, row: RunRow) -> tuple[Any, bool]:
        """The result, or the exception and that it is one."""
        if row.status == Status.STUCK:
            raise RunStuckError(f"run {row.id} is stuck: {row.reason}", run_id=row.id, reason=row.reason)
        payloads = self.store.payloads(row.id, row.end_seq - 1)
        if not payloads:
            raise RunNotFoundError(f"run {row.id!r} was deleted before its result was read", run_id=row.id)
        end = ev.from_json(payloads[0])
        if isinstance(end, ev.RunCompleted):
            try:
                return self.codec.decode(end.result, self._result_type(row.workflow)), False
            except DecodeError:  # not what the annotation says: give it as it is, as Python would
                return self._decode(row.workflow, end.result), False
        if isinstance(end, ev.RunFailed):
            return self.codec.decode_error(end.error), True
        assert isinstance(end, ev.RunCancelled)
        reason = f": {end.reason}" if end.reason else ""
        how = "terminated" if end.terminated else "cancelled"
        return RunCancelledError(f"run {row.id} was {how}{reason}", run_id=row.id), True

    def _decode(self, workflow: str, data: bytes | Raw) -> Any:
        """A value of a run. Without the code that made it, what its classes hold is plain data."""
        is_known = self._definitions.knows(workflow) or is_own(workflow)
        return self.codec.decode(data) if is_known else self.codec.decode_loosely(data)

    def _result_type(self, name: str) -> Any:
        for find in (self._definitions.find_workflow, self._definitions.find_step):
            try:
                return find(name).result_type
            except UnknownNameError:
                continue
        return Any

    def stream(self, run: Which, after: int) -> Iterator[StreamedItem]:
        """Items as they come, until the run is over."""
        self.row(run)
        watch = self.notifier.watch(run.id)
        try:
            while True:
                _, over = self._look(run)  # looked at first: nothing is streamed after the end
                for row in self.store.stream(run.id, after, 1_000):
                    after = row.number
                    yield self._entries.streamed(row)
                if over and not self.store.stream(run.id, after, 1):
                    return
                if not over:
                    watch.wait(1.0)
        finally:
            watch.close()

    # -- looking

    def row(self, run: Which) -> RunRow:
        row = self.store.get(run.id)
        if row is None:
            raise RunNotFoundError(f"no run {run.id!r} in app {self.app!r} on {self.store.url}", run_id=run.id)
        if run.no not in (None, row.no):
            raise RunNotFoundError(
                f"run {run.id!r} was deleted, and another run has its id since; for that one, ask app.get_run({run.id!r})",
                run_id=run.id,
            )
        return row

    def _refuse_another(self, run: Which) -> None:
        """Something was not done, as there is no such run: say so if another one has its id."""
        if run.no is not None and self.store.get(run.id) is not None:
            self.row(run)

    def get(self, run_id: str) -> Run[Any]:
        check_text("run_id", run_id)
        return Run(self, run_id, self.row(Which(run_id)).no)

    def runs(self, query: RunQuery) -> RunPage:
        rows = self.store.runs(msgspec.structs.replace(query, limit=query.limit + 1))
        shown = rows[: query.limit]
        page = RunPage(Run(self, row.id, row.no) for row in shown)
        page.cursor = shown[-1].no if len(rows) > len(shown) else None
        return page

    def children(self, run: Which) -> list[Run[Any]]:
        rows = self.store.runs(RunQuery(parent=run.id, limit=100_000))
        return [Run(self, row.id, row.no) for row in reversed(rows)]

    def events(self, run: Which) -> list[ev.AnyEvent]:
        self.row(run)
        return [ev.from_json(payload) for payload in self.store.payloads(run.id)]

    def data(self, run: Which) -> dict[str, Any]:
        workflow = self.row(run).workflow
        return {key: self._decode(workflow, value) for key, value in self.store.data(run.id).items()}

    def history(self, run: Which) -> list[RunEvent]:
        events, clocks = self.events(run), self.store.clocks(run.id)
        return [self._entries.event(event, clocks.get(event.seq, 0)) for event in events]

    def steps(self, run: Which) -> RunSteps:
        events = self.events(run)
        return self._entries.steps(events, self.store.attributes(run.id, "progress"), self.store.attempts(run.id))

    def logs(self, run: Which) -> list[StepLogs]:
        self.row(run)
        return self._entries.logs(self.store.attributes(run.id, "logs").values())

    def status_history(self, run: Which) -> list[StatusEntry]:
        return self._entries.statuses(self.events(run), self.row(run))

    # -- acting

    def send(self, run: Which, name: str, payload: object, key: str | None = None) -> Sent:
        check_hook(name, key, what="send")
        met = self.store.get(run.id)  # before it is sent: afterwards the run may have gone on
        self._send(run, name, payload, key or "")
        return self._met(met, name, key or "") if met is not None else Sent(None)

    def _met(self, row: RunRow, name: str, key: str) -> Sent:
        """Whether something that was sent was waited for. It is kept in any case."""
        awaited = awaits(row, name, key)
        if awaited is not False:
            return Sent(awaited)
        what = f"hook {name!r}" + (f" key {key!r}" if key else "")
        note = f"{what} is kept until run {row.id} asks for it; now it waits for {row.reason}"
        if "hook " in row.reason:
            note += ", so look at name and key"
            logger.warning("%s", note)
        return Sent(False, note)

    def _send(self, run: Which, name: str, payload: object, key: str, token: str = "") -> None:
        encoded = Raw(encode_payload(self.codec, self._definitions.hook_models, name, payload))
        body = HookMessage(name=name, key=key, payload=encoded, token=token, by=self.by)
        message = Message(
            run_id=run.id, run_no=run.no, kind="hook", body=msgspec.json.encode(body),
            dedupe=f"hook:{token}" if token else None, once=bool(token),
        )  # fmt: skip
        if not self._post(message, f"hook {name!r} can't be sent"):
            raise used_already(name, run.id)

    # -- asking

    def ask(
        self,
        run: Which,
        request: RequestDefinition[Any, Any] | str,
        payload: object,
        id: str | None,
        timeout: Duration | None,
        given_up: threading.Event | None = None,
        *,
        plain: bool = False,
    ) -> Any:
        """Ask a run and wait for its answer; what it has published answers at once. A `plain` answer is JSON data."""
        limit = check_request(request, id, timeout)
        definition, message = self._question(run, request, payload, id)
        row = self.row(run)
        if definition is not None and definition.data is not None:
            published = self.store.data(run.id).get(definition.data)
            if published is not None:
                return self.codec.plain(published) if plain else self._decode_as(published, definition.answer)
        if self.store.answer(run.id, message.request) is None:
            self._refuse_without_history(row, "asked")
            self._post(message, f"request {_name_of(request)!r} can't be asked")
        answer = self._answer(run, _name_of(request), message.request, limit, given_up)
        return self.codec.plain(answer) if plain else self._decode_as(answer, definition and definition.answer)

    def _question(
        self, run: Which, request: RequestDefinition[Any, Any] | str, payload: object, id: str | None
    ) -> tuple[RequestDefinition[Any, Any] | None, Message]:
        name = _name_of(request)
        definition = self._definitions.request_models.find(name) if isinstance(request, str) else request
        encoded = Raw(encode_request(self.codec, definition, name, payload))
        step = current_step.get()
        # In a step the next attempt asks under the same id, and gets the same answer.
        id = id or (str(uuid.uuid4()) if step is None else step.next_child_id(name))
        body = msgspec.json.encode(AskMessage(name=name, request=id, payload=encoded))
        return definition, Message(run_id=run.id, run_no=run.no, kind="ask", body=body, request=id)

    def _answer(
        self,
        run: Which,
        name: str,
        id: str,
        limit: int | None,
        given_up: threading.Event | None,
    ) -> bytes:
        """What the run has answered, encoded, once it has."""

        def look(row: RunRow) -> bytes | None:
            found = self.store.answer(run.id, id)
            if found is None and row.status in FINAL and "retry" not in self.store.orders(run.id):
                raise RunFinishedError(
                    f"run {run.id} has ended ({row.status}) without an answer to request {name!r}", run_id=run.id
                )
            return found

        late = f"has not answered request {name!r}"
        again = f"ask again with id={id!r} to get the answer that it may still give"
        body = msgspec.json.decode(self._watch(run, look, late, again, limit, given_up), type=AnswerBody)
        if bytes(body.error) != b"null":
            error = self.codec.decode_error(body.error)
            if isinstance(error, RequestError):
                raise error
            raise RequestRefusedError(f"run {run.id} refused request {name!r}: {in_words_of(error)}") from error
        return bytes(body.answer)

    def _decode_as(self, data: bytes, model: Any) -> Any:
        try:
            return self.codec.decode(data, Any if model is None else model)
        except DecodeError:  # not what the definition says: give it as it is, as Python would
            return self.codec.decode(data)

    def wait_data(self, run: Which, key: str, timeout: Duration | None, given_up: threading.Event | None = None) -> Any:
        """What the run has published under `key`, once it has."""
        check_text("key", key)
        limit = None if timeout is None else duration_of("timeout", timeout, ArgumentError)

        def look(row: RunRow) -> bytes | None:
            found = self.store.data(run.id).get(key)
            if found is None and row.status in FINAL and "retry" not in self.store.orders(run.id):
                raise RunFinishedError(
                    f"run {run.id} has ended ({row.status}) without having published {key!r}", run_id=run.id
                )
            return found

        late = f"has not published {key!r}"
        return self.codec.decode(self._watch(run, look, late, "it goes on, wait again later", limit, given_up))

    def _watch(
        self,
        run: Which,
        look: Callable[[RunRow], T | None],
        late: str,
        outlook: str,
        limit: int | None,
        given_up: threading.Event | None,
    ) -> T:
        """Look whenever the run was announced, until there is something. What `look` is given was read before."""
        begun = time.monotonic()
        deadline = begun + (float("inf") if limit is None else limit / 1_000_000)
        warn_at = begun + WARN_AFTER
        row = self.row(run)
        found = look(row)
        if found is not None:
            return found
        watch = self.notifier.watch(run.id)
        try:
            while True:
                row = self.row(run)
                found = look(row)
                if found is not None:
                    return found
                if row.status == Status.STUCK and not self.store.orders(run.id):
                    raise RunStuckError(
                        f"run {run.id} {late}, and is stuck: {row.reason}", run_id=run.id, reason=row.reason
                    )
                now = time.monotonic()
                if now >= deadline or (given_up is not None and given_up.is_set()):
                    waits = f" ({row.reason})" if row.reason else ""
                    raise TimeoutError(
                        f"run {run.id} {late} within {in_words(limit or 0)}; it is {row.status}{waits}; "
                        f"{self._nobody_works() or outlook}"
                    )
                if now >= warn_at:
                    warn_at = float("inf")
                    if nobody := self._nobody_works():
                        logger.warning(nobody)
                watch.wait(min(1.0, deadline - now))
        finally:
            watch.close()

    def start_and_ask(self, name: str, call: bytes, options: StartOptions, ask: Ask[Any]) -> tuple[Run[Any], Message]:
        """Start a run with a question in its inbox, in one commit; if the run is there already it is asked."""
        options = options.with_id_in_step(name)
        run_id = options.id or str(uuid.uuid4())
        _, message = self._question(Which(run_id), ask.request, ask.payload, ask.id)
        run = self.start(name, call, replace(options, id=run_id), [message])
        return run, message

    def await_answer(
        self, run: Run[Any], ask: Ask[Any], message: Message, given_up: threading.Event | None = None
    ) -> Any:
        limit = check_request(ask.request, ask.id, ask.timeout)
        answer = self._answer(run._which, ask.request.name, message.request, limit, given_up)
        return self._decode_as(answer, ask.request.answer)

    def send_hook(self, token: str | None, payload: object, key: str | None, name: str | None) -> None:
        if (token is None) == (key is None):
            raise ArgumentError("send_hook takes a token or a key (with the hook's name, if need be), and not both")
        if name is not None:
            check_hook(name, what="send_hook")
        if token is not None:
            found = self.check_token(token)
            self._send(Which(found.run_id, found.run_no or None), found.name, payload, found.key, found.cmd)
            return
        check_key("key", key)
        assert key is not None
        waiting = [(run_id, hook) for run_id, hook in self.store.find_hook(key) if name in (None, hook)]
        names = sorted({hook for _, hook in waiting})
        if not waiting:
            raise HookNotFoundError(
                f"no run of app {self.app!r} waits for {f'hook {name!r}' if name else 'a hook'} with key {key!r}; send it once "
                "the workflow asks, or at any time to the run itself: run.send(name, payload, key=...)"
            )
        if len(names) > 1:
            raise HookError(f"hooks {', '.join(names)} wait with key {key!r}; say which is meant, with name=...")
        for run_id, hook in waiting:
            self._send(Which(run_id), hook, payload, key)

    def check_token(self, text: str) -> Token:
        """What a token says, if the hook that it was made for can still be answered with it."""
        if type(text) is not str:
            raise ArgumentError(f"token={show(text)}: give the text that a hook's .token was")
        token = read_token(self.store.secret(), text, self.app, self.store.now())
        row = self.store.get(token.run_id)
        if row is None:
            raise RunNotFoundError(f"the run of this token for hook {token.name!r} is gone", run_id=token.run_id)
        opened: ev.HookOpened | None = None
        for payload in self.store.payloads(token.run_id, kinds=["HookOpened", "HookReceived"]):
            event = ev.from_json(payload)
            if isinstance(event, ev.HookReceived) and event.token == token.cmd:
                raise used_already(token.name, token.run_id)
            if isinstance(event, ev.HookOpened) and event.cmd == token.cmd:
                opened = event
        if not is_of_run(token, row, opened):
            raise HookTokenError(
                f"this token for hook {token.name!r} was made for an earlier run {token.run_id!r}, which was deleted; ask for "
                "a new link"
            )
        return token

    # -- steps that end elsewhere

    def finish_step(self, token: str, result: object) -> None:
        found = self.check_step_token(token)
        encoded = self.codec.encode(result, f"the result of step {found.step!r}", apart=True)
        self._end_step(found, Raw(encoded), ev.NULL)

    def fail_step(self, token: str, error: BaseException | str) -> None:
        found = self.check_step_token(token)
        if isinstance(error, str):
            check_text("error", error)
            error = StepError(error)
        if not isinstance(error, BaseException):
            raise ArgumentError(f"error={show(error)}: give an exception, or its text")
        self._end_step(found, ev.NULL, Raw(self.codec.encode_error(error)))

    def _end_step(self, token: StepToken, result: Raw, error: Raw) -> None:
        body = OutcomeMessage(
            run_no=token.run_no, cmd=token.cmd, attempt=token.attempt, worker="", started=token.started, result=result,
            error=error,
        )  # fmt: skip
        message = Message(
            run_id=token.run_id, run_no=token.run_no, kind="outcome", body=msgspec.json.encode(body),
            dedupe=f"step:{token.cmd}:{token.attempt}", once=True,
        )  # fmt: skip
        if not self._post(message, f"step {token.step!r} can't be ended"):
            raise StepTokenError(f"step {token.step!r} of run {token.run_id} was ended with this token before")

    def beat_step(self, token: str, done: float | None, total: float | None, note: str) -> None:
        found = self.check_step_token(token)
        progress = ev.NULL if done is None else Raw(progress_of("beat_step", done, total, note))
        body = BeatMessage(run_no=found.run_no, cmd=found.cmd, attempt=found.attempt, progress=progress)
        message = Message(run_id=found.run_id, run_no=found.run_no, kind="beat", body=msgspec.json.encode(body))
        self._post(message, f"step {found.step!r} gives a sign of life in vain")

    def check_step_token(self, text: str) -> StepToken:
        """What a token says, if its run is there."""
        if type(text) is not str:
            raise ArgumentError(f"token={show(text)}: give the text that this_step.hand_over() has made")
        token = StepToken.read(self.store.secret(), text)
        if token is None:
            raise StepTokenError(
                "this token was altered, or made by another store, or is of something else than a step"
            )
        if token.app != self.app:
            raise StepTokenError(f"this token is of app {token.app!r}, not {self.app!r}")
        self.row(Which(token.run_id, token.run_no))
        return token

    def pause(self, run: Which, reason: str, children: bool = False) -> None:
        check_text("reason", reason, empty=True)
        check_flag("children", children, ArgumentError)
        self._refuse_without_history(self.row(run), "paused")
        self.control(run, "pause", reason, children)

    def _refuse_without_history(self, row: RunRow, what: str) -> None:
        if not row.durable:
            raise WrongContextError(
                f"run {row.id} can't be {what}: its workflow {row.workflow!r} has durable=False, so there is no history"
            )

    def control(self, run: Which, kind: str, reason: str = "", children: bool = False) -> None:
        check_text("reason", reason, empty=True)
        message = control(run.id, kind, reason, by=self.by, run_no=run.no, children=children)
        self._post(message, f"can't {kind} it")

    def terminate(self, run: Which, reason: str) -> None:
        check_text("reason", reason)
        self.control(run, "terminate", reason)

    def resume(self, run: Which, children: bool = False) -> None:
        check_flag("children", children, ArgumentError)
        row = self.row(run)
        if row.status not in (Status.PAUSED, Status.STUCK):
            raise RunError(f"run {run.id} is {row.status}; only PAUSED and STUCK runs can be resumed", run_id=run.id)
        self.control(run, "resume", children=children)

    def retry(self, run: Which) -> None:
        row = self.row(run)
        if row.status not in (Status.FAILURE, Status.CANCELLED, Status.STUCK):
            raise RunError(
                f"run {run.id} is {row.status}; only a run that has failed or was cancelled can be retried",
                run_id=run.id,
            )
        self._post(control(run.id, "retry", by=self.by, late=True, run_no=run.no), "can't retry it")

    def _post(self, message: Message, failure: str) -> bool:
        """Whether it was put into the run's inbox, and not a copy before it."""
        posted = self.store.post(message)
        if posted.status in FINAL and not message.late:
            # It may be about to begin again, and takes this then; or it has begun since.
            message.late = "retry" in self.store.orders(message.run_id)
            posted = self.store.post(message)
        if posted.status is None:
            self._refuse_another(Which(message.run_id, message.run_no))
            raise RunNotFoundError(f"{failure}: no run {message.run_id!r} in app {self.app!r}", run_id=message.run_id)
        if posted.status in FINAL and not message.late:
            raise RunFinishedError(
                f"{failure}: run {message.run_id} has ended ({posted.status})", run_id=message.run_id
            )
        if (tell := self._instruments.message_sent) is not None:
            tell(MessageReport(run_id=message.run_id, kind=message.kind))
        self.notifier.ring(Topic.INBOX)
        return posted.kept

    def _plan_fork(self, run: Which, at: int, replace: dict[int, Raw], input: Raw | None) -> Fork:
        check_number("at", at)
        self._refuse_without_history(self.row(run), "forked")
        return fork(self.events(run), run.id, at, replace, input)

    def fork_reruns(self, run: Which, at: int) -> list[str]:
        return self._plan_fork(run, at, {}, None).reruns

    def fork(
        self,
        run: Which,
        at: int,
        replaced: dict[int, object] | None,
        input: tuple[Any, ...] | None,
        new_id: str | None,
    ) -> Run[Any]:
        row = self.row(run)
        replaced = {} if replaced is None else replaced
        if not isinstance(replaced, dict):
            raise ArgumentError(f"replace={show(replaced)}: give a dict of results by the numbers of their events")
        for seq in replaced:
            check_number("a key of replace", seq)
        if new_id is not None:
            check_id(new_id)
        results = {seq: Raw(self.codec.encode(value, f"the result at event {seq}")) for seq, value in replaced.items()}
        call = None if input is None else self._input(row.workflow, input)
        plan = self._plan_fork(run, at, results, call)
        if new_id is None:
            suffix = f"-fork-{uuid.uuid4().hex[:8]}"
            new_id = run.id[: ID_LIMIT - len(suffix)] + suffix
        now = self.store.now()
        data: dict[str, bytes] = {}
        for event in plan.events:
            if isinstance(event, ev.RunStarted | ev.ContinuedAsNew):
                data |= {key: bytes(value) for key, value in event.data.items()}
            elif isinstance(event, ev.DataSet):
                data[event.name] = bytes(event.args)
            elif isinstance(event, ev.StepCompleted):
                data |= {key: bytes(value) for key, value in event.data.items()}
        if plan.reruns:
            logger.warning(
                "fork of run %s at %d: these were under way and run anew: %s",
                run.id,
                at,
                ", ".join(plan.reruns),
            )
        first = plan.events[0]
        assert isinstance(first, ev.RunStarted | ev.ContinuedAsNew)
        plan.events[0] = msgspec.structs.replace(first, by=self.by)
        new = NewRun(
            id=new_id, workflow=row.workflow, records=[to_record(event) for event in plan.events], wake_at=now, created_at=now,
            fingerprint=fingerprint(row.workflow, bytes(first.input)), priority=row.priority, options=self._options_of_fork(row),
            attributes=[("forked_from", run.id, b""), *(data_attribute(key, value) for key, value in data.items())],
        )  # fmt: skip
        if self.store.create(new) is not None:
            raise RunExistsError(f"there is a run {new_id!r} already; choose another id", run_id=new_id)
        self._tell_submitted(new)
        self.notifier.ring(Topic.RUNS)
        return Run(self, new_id, new.no)

    def _options_of_fork(self, row: RunRow) -> bytes:
        """Those of the run, but no domain event has started it."""
        options = msgspec.json.decode(row.options, type=RunOptions)
        options.event = ""
        return options.to_json()

    def _input(self, name: str, args: tuple[Any, ...]) -> Raw:
        if not isinstance(args, tuple):
            raise ArgumentError(f"input={show(args)}: give a tuple of arguments")
        try:
            definition: StepDefinition | WorkflowDefinition = self._definitions.find_workflow(name)
        except UnknownNameError:
            definition = self._definitions.find_step(name)
        check_call(name, definition, args, {})
        what = f"the arguments of {name!r}"
        call = self.codec.encode_call(args, {}, what, definition.hints)
        self.codec.check_call(args, {}, what, definition.hints)
        return Raw(call)

    def delete(self, run: Which) -> None:
        status = self.store.delete(run.id, run.no, self._farewell)
        if status is None:
            self._refuse_another(run)
            raise RunNotFoundError(f"no run {run.id!r} in app {self.app!r}", run_id=run.id)
        if status not in (*FINAL, Status.PAUSED, Status.STUCK):
            raise RunError(f"run {run.id} is {status}; cancel or pause it before it is deleted", run_id=run.id)
        left = self.store.get(run.id)
        if left is not None and run.no in (None, left.no):
            raise RunError(f"a worker is busy with run {run.id}; delete it in a moment", run_id=run.id)
        self.notifier.ring(Topic.INBOX)  # its parent may have to be told

    def delete_all(self, rows: Sequence[RunRow]) -> int:
        """Delete those of these runs that are not in use; how many are gone."""
        gone = self.store.delete_all([(row.id, row.no) for row in rows], self._farewell)
        self.notifier.ring(Topic.INBOX)
        return gone

    def _farewell(self, row: RunRow, messages: list[InboxRow]) -> list[Message]:
        """What is told to the parent of a run that is deleted, if it waits for it or has just asked to be told."""
        waits = {row.parent_cmd or ""} if row.parent_id and row.status not in FINAL else set()
        for message in messages:
            if message.kind in ("watch", "retry"):
                waits.add(msgspec.json.decode(message.body, type=ControlMessage).parent_cmd)
        return [child_gone(self.codec, row.id, row.parent_id or "", cmd) for cmd in sorted(waits) if cmd]


def _name_of(request: RequestDefinition[Any, Any] | str) -> str:
    return request if isinstance(request, str) else request.name


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit()
