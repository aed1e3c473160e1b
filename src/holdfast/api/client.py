"""What can be done to runs from outside: over a store and a notifier, with no engine in this process."""

from __future__ import annotations

import hashlib
import logging
import random
import time
import uuid
from typing import Any

import msgspec
from msgspec import Raw

from holdfast.api.functions import StartOptions, to_epoch
from holdfast.api.handles import Run, RunEvent, RunPage, RunStep, StatusEntry, moment
from holdfast.api.hooks import encode_payload, read_token
from holdfast.codec import Codec
from holdfast.core import events as ev
from holdfast.core.context import current_step
from holdfast.core.execution import FLAGS, child_run_id
from holdfast.core.forking import Fork, fork
from holdfast.core.registry import Definitions
from holdfast.core.views import statuses_of, steps_of
from holdfast.durations import to_us
from holdfast.engine.live import PRIORITY_HEAD_START
from holdfast.engine.records import HookLetter, RunOptions, control, to_record
from holdfast.errors import (
    ArgumentError,
    HookNotFoundError,
    RunCancelledError,
    RunError,
    RunExistsError,
    RunFinishedError,
    RunNotFoundError,
    RunStuckError,
    UnknownNameError,
)
from holdfast.ports import FINAL, Message, NewRun, Notifier, RunQuery, RunRow, Status, Store

logger = logging.getLogger("holdfast")
PATIENCE = 2.0


class Client:
    """Starts runs, waits for them, and sends them messages."""

    def __init__(self, definitions: Definitions, store: Store, notifier: Notifier) -> None:
        self.app = definitions.name
        self._definitions = definitions
        self.store = store
        self.notifier = notifier
        self.codec: Codec = definitions.codec

    # -- starting

    def start(self, name: str, call: bytes, options: StartOptions) -> Run[Any]:
        return self._create(name, call, options, options.id or str(uuid.uuid4()), None, None, None)

    def start_from_step(self, name: str, call: bytes, options: StartOptions) -> Run[Any]:
        """A child of the run whose step calls. A retried step finds the child it has started before."""
        context = current_step.get()
        assert context is not None
        context.touch()
        context.children += 1
        attempt = context.attempt
        run_id = options.id or child_run_id(attempt.run_id, name, f"{attempt.cmd}-{context.children}", 1)
        return self._create(name, call, options, run_id, attempt.run_id, attempt.cmd, attempt.root_id)

    def _create(
        self,
        name: str,
        call: bytes,
        options: StartOptions,
        run_id: str,
        parent: str | None,
        cmd: str | None,
        root: str | None,
    ) -> Run[Any]:
        check_id(run_id)
        now = self.store.now()
        begin_at = now
        if options.delay is not None:
            begin_at += to_us(options.delay, "delay")
        if options.at is not None:
            begin_at = max(now, to_epoch(options.at))
        started = ev.RunStarted(seq=1, ts=now, workflow=name, input=Raw(call), seed=random.getrandbits(63), flags=FLAGS)
        chosen = RunOptions(
            timeout=None if options.timeout is None else to_us(options.timeout, "timeout"),
            max_retries=options.max_retries,
            queue=options.queue or "",
        )
        new = NewRun(
            id=run_id, workflow=name, records=[to_record(started)], wake_at=begin_at - options.priority * PRIORITY_HEAD_START,
            created_at=now, fingerprint=fingerprint(name, call), priority=options.priority, parent_id=parent,
            parent_cmd=cmd, root_id=root, options=chosen.to_json(), durable=self._is_durable(name),
        )  # fmt: skip
        if begin_at > now:
            new.wake_at = begin_at  # a head start must not begin a delayed run early
        taken = self.store.create(new, replace=options.if_exists == "restart")
        if taken is not None:
            self._check_same(taken, new, options)
        self.notifier.ring()
        return Run(self, run_id)

    def _is_durable(self, name: str) -> bool:
        try:
            return self._definitions.find_workflow(name).options.durable
        except UnknownNameError:
            return True

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

    # -- waiting

    def result(self, run_id: str, timeout: float | None) -> Any:
        deadline = None if timeout is None else time.monotonic() + timeout
        row = self.row(run_id)
        if not self._is_over(row):
            row = self._wait(run_id, deadline, timeout)
        return self._outcome(row)

    def _is_over(self, row: RunRow) -> bool:
        return row.status in FINAL or row.status == Status.STUCK

    def _wait(self, run_id: str, deadline: float | None, timeout: float | None) -> RunRow:
        warn_at: float | None = time.monotonic() + PATIENCE
        watch = self.notifier.watch(run_id)
        try:
            while not self._is_over(row := self.row(run_id)):
                now = time.monotonic()
                if deadline is not None and now >= deadline:
                    waits = f" ({row.reason})" if row.reason else ""
                    raise TimeoutError(
                        f"run {run_id} is {row.status}{waits} after {timeout:g} s; it goes on, ask again later"
                    )
                if warn_at is not None and now >= warn_at:
                    warn_at = None
                    self._warn_if_nobody_works()
                watch.wait(min(1.0, deadline - now if deadline is not None else 1.0))
        finally:
            watch.close()
        return row

    def _warn_if_nobody_works(self) -> None:
        if not self.store.workers():
            logger.warning(
                "no worker of app %r is alive on %s; start one with `holdfast -A <module> worker`, or `with app.worker():`",
                self.app,
                self.store.url,
            )

    def _outcome(self, row: RunRow) -> Any:
        if row.status == Status.STUCK:
            raise RunStuckError(f"run {row.id} is stuck: {row.reason}", run_id=row.id, reason=row.reason)
        payloads = self.store.payloads(row.id, row.end_seq - 1)
        end = ev.from_json(payloads[-1])
        if isinstance(end, ev.RunCompleted):
            return self.codec.decode(end.result, self._result_type(row.workflow))
        if isinstance(end, ev.RunFailed):
            raise self.codec.decode_error(end.error)
        reason = f": {end.reason}" if isinstance(end, ev.RunCancelled) and end.reason else ""
        raise RunCancelledError(f"run {row.id} was cancelled{reason}", run_id=row.id)

    def _result_type(self, name: str) -> Any:
        for find in (self._definitions.find_workflow, self._definitions.find_step):
            try:
                return find(name).result_type
            except UnknownNameError:
                continue
        return Any

    # -- looking

    def row(self, run_id: str) -> RunRow:
        row = self.store.get(run_id)
        if row is None:
            raise RunNotFoundError(f"no run {run_id!r} in app {self.app!r} on {self.store.url}", run_id=run_id)
        return row

    def get(self, run_id: str) -> Run[Any]:
        return Run(self, run_id, self.row(run_id))

    def runs(self, query: RunQuery) -> RunPage:
        rows = self.store.runs(query)
        page = RunPage(Run(self, row.id, row) for row in rows)
        page.cursor = rows[-1].no if len(rows) == query.limit else None
        return page

    def children(self, run_id: str) -> list[Run[Any]]:
        rows = self.store.runs(RunQuery(parent=run_id, limit=100_000))
        return [Run(self, row.id, row) for row in reversed(rows)]

    def events(self, run_id: str) -> list[ev.AnyEvent]:
        self.row(run_id)
        return [ev.from_json(payload) for payload in self.store.payloads(run_id)]

    def data(self, run_id: str) -> dict[str, Any]:
        self.row(run_id)
        return {key: self.codec.decode(value) for key, value in self.store.data(run_id).items()}

    def history(self, run_id: str) -> list[RunEvent]:
        return [self._describe(event) for event in self.events(run_id)]

    def _describe(self, event: ev.AnyEvent) -> RunEvent:
        at = moment(event.ts)
        assert at is not None
        shown = ("seq", "ts", "name", "cmd", "cause", "attempt")
        fields = [field for field in event.__struct_fields__ if field not in shown]
        return RunEvent(
            seq=event.seq,
            kind=event.kind,
            at=at,
            name=getattr(event, "name", ""),
            cmd=getattr(event, "cmd", ""),
            cause=getattr(event, "cause", 0),
            attempt=getattr(event, "attempt", 0),
            detail={field: self._decoded(field, getattr(event, field)) for field in fields},
        )

    def _decoded(self, field: str, value: Any) -> Any:
        if field == "error" and isinstance(value, Raw):
            return None if bytes(value) == b"null" else self.codec.decode_error(value)
        if field in ("args", "input"):
            args, kwargs = self._call(value)
            return (*args, kwargs) if kwargs else args
        if isinstance(value, Raw):
            return self.codec.decode(value)
        if isinstance(value, dict):
            return {key: self._decoded("", each) for key, each in value.items()}
        return value

    def _call(self, raw: Raw) -> tuple[tuple[Any, ...], dict[str, Any]]:
        found = msgspec.json.decode(raw)
        if isinstance(found, dict) and set(found) <= {"args", "kwargs"}:
            return self.codec.decode_call(raw)
        return (self.codec.decode(raw),), {}

    def steps(self, run_id: str) -> list[RunStep]:
        progress = self.store.attributes(run_id, "progress")
        out = []
        for view in steps_of(self.events(run_id)):
            args, kwargs = self._call(view.args)
            error = None if view.error is None else self.codec.decode_error(view.error)
            result = None if view.result is None else self.codec.decode(view.result)
            shown = progress.get(view.cmd)
            out.append(
                RunStep(
                    name=view.name, state=view.state, attempts=view.attempts, cmd=view.cmd, args=args, kwargs=kwargs,
                    result=result, error=error, started_at=moment(view.started_at), ended_at=moment(view.ended_at),
                    retry_at=moment(view.retry_at), worker=view.worker, child_run_id=view.child_id, reused=view.reused,
                    progress=None if shown is None else msgspec.json.decode(shown),
                )
            )  # fmt: skip
        return out

    def status_history(self, run_id: str) -> list[StatusEntry]:
        row = self.row(run_id)
        entries = []
        for change in statuses_of(self.events(run_id), row):
            at = moment(change.at)
            assert at is not None
            error = None if change.error is None else self.codec.decode_error(change.error)
            entries.append(StatusEntry(change.status, at, error, change.reason))
        return entries

    # -- acting

    def send(self, run_id: str, name: str, payload: object, key: str = "", token: str = "") -> None:
        letter = HookLetter(name=name, key=key, payload=Raw(encode_payload(self.codec, name, payload)), token=token)
        message = Message(
            run_id=run_id,
            kind="hook",
            body=msgspec.json.encode(letter),
            dedupe=f"hook:{token}" if token else None,
        )
        self._post(message, f"hook {name!r} can't be sent")

    def send_hook(self, token: str | None, payload: object, key: str | None) -> None:
        if (token is None) == (key is None):
            raise ArgumentError("send_hook takes a token or a key, and not both")
        if token is not None:
            found = read_token(self.store.secret(), token, self.app, self.store.now())
            self.send(found.run_id, found.name, payload, found.key, token=found.cmd)
            return
        assert key is not None
        waiting = self.store.find_hook(key)
        if not waiting:
            raise HookNotFoundError(f"no run of app {self.app!r} waits for a hook with key {key!r}")
        for run_id, name in waiting:
            self.send(run_id, name, payload, key)

    def control(self, run_id: str, kind: str, reason: str = "") -> None:
        self._post(control(run_id, kind, reason), f"can't {kind} it")

    def resume(self, run_id: str) -> None:
        row = self.row(run_id)
        if row.status not in (Status.PAUSED, Status.STUCK):
            raise RunError(f"run {run_id} is {row.status}; only PAUSED and STUCK runs can be resumed", run_id=run_id)
        self._post(control(run_id, "resume"), "can't resume it")

    def retry(self, run_id: str) -> None:
        row = self.row(run_id)
        if row.status not in (Status.FAILURE, Status.CANCELLED, Status.STUCK):
            raise RunError(
                f"run {run_id} is {row.status}; only a run that has failed or was cancelled can be retried",
                run_id=run_id,
            )
        self._post(control(run_id, "retry", late=True), "can't retry it")

    def _post(self, message: Message, failure: str) -> None:
        status = self.store.post(message)
        if status is None:
            raise RunNotFoundError(f"{failure}: no run {message.run_id!r} in app {self.app!r}", run_id=message.run_id)
        if status in FINAL and not message.late:
            raise RunFinishedError(f"{failure}: run {message.run_id} has ended ({status})", run_id=message.run_id)
        self.notifier.ring()

    def _plan_fork(self, run_id: str, at: int, replace: dict[int, Raw], input: Raw | None) -> Fork:
        return fork(self.events(run_id), run_id, at, replace, input)

    def fork_reruns(self, run_id: str, at: int) -> list[str]:
        return self._plan_fork(run_id, at, {}, None).reruns

    def fork(
        self,
        run_id: str,
        at: int,
        replace: dict[int, object],
        input: tuple[Any, ...] | None,
        new_id: str | None,
    ) -> Run[Any]:
        row = self.row(run_id)
        results = {seq: Raw(self.codec.encode(value, f"the result at event {seq}")) for seq, value in replace.items()}
        call = None if input is None else Raw(self.codec.encode_call(input, {}))
        plan = self._plan_fork(run_id, at, results, call)
        new_id = new_id or f"{run_id}-fork-{uuid.uuid4().hex[:8]}"
        check_id(new_id)
        now = self.store.now()
        data = {}
        for event in plan.events:
            if isinstance(event, ev.DataSet):
                data[event.name] = bytes(event.args)
            elif isinstance(event, ev.StepCompleted):
                data |= {key: bytes(value) for key, value in event.data.items()}
        if plan.reruns:
            logger.warning(
                "fork of run %s at %d: these were under way and run anew: %s",
                run_id,
                at,
                ", ".join(plan.reruns),
            )
        first = plan.events[0]
        assert isinstance(first, ev.RunStarted | ev.ContinuedAsNew)
        new = NewRun(
            id=new_id, workflow=row.workflow, records=[to_record(event) for event in plan.events], wake_at=now, created_at=now,
            fingerprint=fingerprint(row.workflow, bytes(first.input)), priority=row.priority, options=row.options,
            attributes=[(f"data.{key}", value.decode(errors="replace"), value) for key, value in data.items()],
        )  # fmt: skip
        if self.store.create(new) is not None:
            raise RunExistsError(f"there is a run {new_id!r} already; choose another id", run_id=new_id)
        self.notifier.ring()
        return Run(self, new_id)

    def delete(self, run_id: str) -> None:
        status = self.store.delete(run_id)
        if status is None:
            raise RunNotFoundError(f"no run {run_id!r} in app {self.app!r}", run_id=run_id)
        if status not in (*FINAL, Status.PAUSED, Status.STUCK):
            raise RunError(f"run {run_id} is {status}; cancel or pause it before it is deleted", run_id=run_id)


def fingerprint(name: str, call: bytes) -> bytes:
    """The same for the same workflow with the same arguments."""
    return hashlib.sha256(name.encode() + b"\0" + call).digest()


def check_id(run_id: str) -> None:
    if type(run_id) is not str or not run_id or len(run_id) > 255 or not run_id.isprintable() or " " in run_id:
        raise ArgumentError(f"id={run_id!r}: an id is a text of 1 to 255 printable characters without spaces")
