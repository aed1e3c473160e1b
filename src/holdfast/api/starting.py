"""Starting runs from outside, or from a step: one, many in one commit, or put off while they are started again."""

from __future__ import annotations

import contextlib
import datetime as dt
import hashlib
import itertools
import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import msgspec
from msgspec import Raw

from holdfast.api.checks import ID_LIMIT, check_headers, check_id, to_epoch
from holdfast.api.inbox import Inbox
from holdfast.api.options import StartOptions
from holdfast.api.reading import Which
from holdfast.core import events as ev
from holdfast.core.context import StartCall, current_step
from holdfast.core.pending import FLAGS
from holdfast.core.registry import Definitions, refuse_while_importing
from holdfast.core.spans import Span
from holdfast.durations import to_us
from holdfast.engine.programs import is_durable
from holdfast.engine.records import PRIORITY_HEAD_START, RunOptions, data_attribute, fingerprint, to_record
from holdfast.errors import RunExistsError
from holdfast.ports import Attempt, Message, NewRun, Notifier, RunQuery, RunRow, Status, Store, Topic
from holdfast.telemetry.instruments import Instruments, RunReport


@dataclass(slots=True)
class Starter:
    """Starts runs. What it is given are encoded calls, which were checked."""

    definitions: Definitions
    store: Store
    notifier: Notifier
    inbox: Inbox
    by: str = ""

    def start(self, name: str, call: bytes, options: StartOptions, messages: Sequence[Message] = ()) -> Which:
        """A run of its own, or a child of the run whose step calls. `messages` are for it, whether it is new or not."""
        with self._wrapped(name, options.with_id_in_step(name)) as (options, headers):
            if options.debounce is not None:
                return self._start_later(name, call, options, headers)
            new = self._new(name, call, options, headers, self.store.now())
            new.messages = list(messages)
            taken = self.store.create(new, replace=options.if_exists == "restart")
            if taken is not None:
                _check_same(taken, new, options)
            run = self._started(new, taken, options)
        if taken is not None:
            for message in messages:
                if self.store.answer(taken.id, message.request) is None:
                    self.inbox.post(message, "it can't be asked")
        self.notifier.ring(Topic.RUNS)
        return run

    @contextlib.contextmanager
    def _wrapped(self, name: str, options: StartOptions) -> Iterator[tuple[StartOptions, dict[str, str]]]:
        """What wraps starts has its say about this one: the options, and the headers that come along."""
        step = current_step.get()
        headers = {} if step is None else dict(step.attempt.headers)
        arounds = self.definitions.start_arounds
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

    def _start_later(self, name: str, call: bytes, options: StartOptions, headers: dict[str, str]) -> Which:
        """Put off the run that waits under this key, with this call in place of its own, or make one that waits. They are
        numbered: key@1, key@2."""
        assert options.id is not None
        quiet, key = to_us(options.debounce or 0, "debounce"), _short(options.id) + "@"
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
                tell_submitted(self.definitions.instruments, new)
                break  # else somebody else was faster
        self.notifier.ring(Topic.RUNS)
        return Which(new.id, new.no)

    def start_many(self, calls: Sequence[tuple[str, bytes, StartOptions]]) -> list[Which]:
        """One commit for all of them: either all are started or none is."""
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
            taken = self.store.create_all(new, lambda run, row: _check_same(row, run, options_of[id(run)]))
        self.notifier.ring(Topic.RUNS)
        return [self._started(run, row, options_of[id(run)]) for run, row in zip(new, taken, strict=True)]

    def _started(self, new: NewRun, taken: RunRow | None, options: StartOptions) -> Which:
        if taken is None:
            tell_submitted(self.definitions.instruments, new)
            return Which(new.id, new.no, time.monotonic())
        run = Which(taken.id, taken.no)
        if options.again and taken.status in (Status.FAILURE, Status.CANCELLED):
            self.inbox.retry(run)
        return run

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
        codec, instruments = self.definitions.codec, self.definitions.instruments
        data = {key: codec.encode(value, f"data {key!r}") for key, value in (options.data or {}).items()}
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
            by=self.by,
        )
        chosen = RunOptions(
            timeout=None if options.timeout is None else to_us(options.timeout, "timeout"),
            max_retries=options.max_retries,
            queue=options.queue or "",
            trace=options.traceparent or (instruments.current_trace() if origin is None else origin.trace),
            quiet=origin is not None and origin.quiet,
            headers=headers,
            expires=expires,
        )
        new = NewRun(
            id=run_id, workflow=name, records=[to_record(started)], wake_at=begin_at - options.priority * PRIORITY_HEAD_START,
            created_at=now, fingerprint=fingerprint(name, call), priority=options.priority,
            options=chosen.to_json(), durable=is_durable(self.definitions, name),
            attributes=[data_attribute(key, value) for key, value in data.items()],
        )  # fmt: skip
        if origin is not None:
            new.parent_id, new.parent_cmd, new.root_id = origin.run_id, origin.cmd, origin.root_id
            new.correlation = origin.correlation
        if begin_at > now:
            new.wake_at = begin_at  # a head start must not begin a delayed run early
        return new


def tell_submitted(instruments: Instruments, new: NewRun) -> None:
    if (tell := instruments.run_submitted) is not None:
        options = msgspec.json.decode(new.options, type=RunOptions)
        tell(
            RunReport(
                id=new.id, workflow=new.workflow, status=Status.PENDING, parent_id=new.parent_id,
                root_id=new.root_id or new.id, trace=options.trace or None,
            )
        )  # fmt: skip


def _check_same(taken: RunRow, new: NewRun, options: StartOptions) -> None:
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
        if taken.workflow == new.workflow:
            differs = "with other arguments; choose another id, or give the same arguments"
        else:
            differs = f"of another workflow, {taken.workflow!r} and not {new.workflow!r}; choose another id"
        raise RunExistsError(f"run {taken.id!r} exists {differs}", run_id=taken.id)


def _short(text: str) -> str:
    """With room for a number behind it, and unlike any other."""
    most = ID_LIMIT - 20
    if len(text) <= most:
        return text
    digest = hashlib.blake2s(text.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
    return f"{text[: most - len(digest) - 1]}~{digest}"


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit()
