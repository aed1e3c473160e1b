"""`Run`: a run from the outside. Every method has a twin for async code, with an `a` before its name."""

from __future__ import annotations

import asyncio
import datetime as dt
from collections.abc import AsyncIterator, Generator, Iterator
from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

from holdfast.api.checks import check_number
from holdfast.api.reading import Which
from holdfast.api.requests import RequestDefinition
from holdfast.blocking import run_blocking, twin
from holdfast.durations import Duration
from holdfast.engine.records import correlation_of
from holdfast.errors import RunNotFoundError
from holdfast.ports import RunRow, Status
from holdfast.views.entries import RunEvent, RunSteps, Sent, StatusEntry, StepLogs, StreamedItem
from holdfast.views.times import moment
from holdfast.views.trace import TraceNode

if TYPE_CHECKING:
    from holdfast.api.client import Client

R = TypeVar("R")
M = TypeVar("M")
A = TypeVar("A")


class RunStream:
    """What a run streams, from an item on: `for item in run.stream()`, or `async for`. It ends with the run."""

    def __init__(self, client: Client, run: Which, after: int) -> None:
        self._client = client
        self._run = run
        self._after = after

    def __iter__(self) -> Iterator[StreamedItem]:
        return self._client.waiter.stream(self._run, self._after)

    async def __aiter__(self) -> AsyncIterator[StreamedItem]:
        async for item in self._client.waiter.astream(self._run, self._after):
            yield item


class Run(Generic[R]):
    """A run from the outside: ask for its result, look at it, act on it. It stands for this very run: should that be
    deleted and another one be started with its id, RunNotFoundError says so."""

    def __init__(self, client: Client, run_id: str, no: int | None = None, made: float = 0.0) -> None:
        self._client = client
        self.id = run_id
        self._which = Which(run_id, no, made)

    @property
    def child_run_id(self) -> str:
        """Its id, under the name that a parent's handle of a child has for it."""
        return self.id

    def __repr__(self) -> str:
        return f"<run {self.id!r}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Run) and other.id == self.id and other._client.app == self._client.app

    def __hash__(self) -> int:
        return hash(self.id)

    def __await__(self) -> Generator[Any, Any, R]:
        __tracebackhide__ = True
        return self.aresult().__await__()

    def result(self, timeout: Duration | None = None, *, propagate: bool = True) -> R:
        """Wait for the result; raises the run's own exception if it failed, WaitTimeoutError if it takes too
        long.

        With `propagate=False` the exception is given, not raised; of a group that failed, the values and exceptions
        of its members, in place.
        """
        __tracebackhide__ = True  # of pytest, which else shows this source above the user's own error
        return self._client.waiter.result(self._which, timeout, propagate=propagate)  # type: ignore[no-any-return]

    def get(self, timeout: Duration | None = None, propagate: bool = True) -> R:
        """Celery's spelling of `result`."""
        __tracebackhide__ = True
        return self.result(timeout, propagate=propagate)

    def ready(self) -> bool:
        """Whether it has ended."""
        return self.status.is_final

    def successful(self) -> bool:
        """Whether it has ended well."""
        return self.status == Status.SUCCESS

    def failed(self) -> bool:
        """Whether it has failed."""
        return self.status == Status.FAILURE

    @property
    def workflow(self) -> str:
        """The name of the workflow, or of the step, that it runs."""
        return self._fetch().workflow

    @property
    def status(self) -> Status:
        """What it is doing now, as the store knows it."""
        return Status(self._fetch().status)

    @property
    def reason(self) -> str:
        """Why it is WAITING, PAUSED or STUCK, in words."""
        return self._fetch().reason

    @property
    def parent_id(self) -> str | None:
        """The id of the run that started it, if one did."""
        return self._fetch().parent_id

    @property
    def created_at(self) -> dt.datetime:
        """When `start` was called."""
        return moment(self._fetch().created_at)

    @property
    def started_at(self) -> dt.datetime | None:
        """When a worker first took it up."""
        return moment(self._fetch().started_at)

    @property
    def finished_at(self) -> dt.datetime | None:
        """When it ended."""
        return moment(self._fetch().finished_at)

    @property
    def data(self) -> dict[str, Any]:
        """What the workflow has kept with `wf.set_data`."""
        return self._client.reader.data(self._which)

    @property
    def steps(self) -> RunSteps:
        """Its steps and children, in the order they became known: `run.steps[0]`, or by name, `run.steps["charge"]`."""
        return self._client.reader.steps(self._which)

    def history(self) -> list[RunEvent]:
        """Everything that happened, in order."""
        return self._client.reader.history(self._which)

    def logs(self) -> list[StepLogs]:
        """What its steps have logged, attempt by attempt."""
        return self._client.reader.logs(self._which)

    def status_history(self) -> list[StatusEntry]:
        """The statuses it went through, with times and the exceptions that caused them."""
        return self._client.reader.status_history(self._which)

    def stream(self, after: int = 0) -> RunStream:
        """What the run streams, after item number `after`, as it comes."""
        check_number("after", after)
        return RunStream(self._client, self._which, after)

    def children(self) -> list[Run[Any]]:
        """The runs that it has started, oldest first."""
        return [Run(self._client, row.id, row.no) for row in self._client.reader.children(self._which)]

    @property
    def correlation(self) -> str:
        """The process that it belongs to: the same for all that led to it by children and domain events."""
        return correlation_of(self._fetch())

    def trace(self) -> TraceNode:
        """The process that it belongs to, as a tree: runs, the domain events they emit, the runs those start."""
        self._fetch()
        return self._client.reader.trace(self.id)

    def send(self, name: str, payload: object = None, *, key: str | None = None, connection: object = None) -> Sent:
        """Answer a hook. A payload that comes before the workflow asks is kept, in order; what is returned says whether
        the run waited for it. A run that waits for another hook is a warning: a name or key may be wrong. With the
        `connection` of an open transaction it is sent once that is committed."""
        return self._client.inside(connection).hooks.send(self._which, name, payload, key)

    @overload
    def ask(
        self, request: RequestDefinition[None, A], *, id: str | None = None, timeout: Duration | None = None
    ) -> A: ...
    @overload
    def ask(
        self, request: RequestDefinition[M, A], payload: M, *, id: str | None = None, timeout: Duration | None = None
    ) -> A: ...
    @overload
    def ask(
        self, request: str, payload: object = None, *, id: str | None = None, timeout: Duration | None = None
    ) -> Any: ...
    def ask(
        self,
        request: RequestDefinition[Any, Any] | str,
        payload: Any = None,
        *,
        id: str | None = None,
        timeout: Duration | None = None,
    ) -> Any:
        """Ask the run something and wait for its answer. RequestRefusedError if it refuses, WaitTimeoutError if it takes
        too long, RunFinishedError if it ends without an answer. The same `id` again is the same request: it is asked once,
        and gets the same answer. In a step the id is made from the step, so that a retry asks the same."""
        asker = self._client.asker
        return asker.answer(asker.asked(self._which, request, payload, id, timeout))

    def wait_data(self, key: str, timeout: Duration | None = None) -> Any:
        """What the workflow has kept under `key` with `wf.set_data`, as soon as it has; WaitTimeoutError if that takes too
        long, RunFinishedError if the run ends without."""
        return self._client.waiter.data(self._which, key, timeout)

    def cancel(self, reason: str = "") -> None:
        """Raise CancelledError where the workflow waits; its clean-up may still run steps."""
        self._client.inbox.cancel(self._which, reason)

    def terminate(self, reason: str) -> None:
        """End it without asking its code, for one that catches its cancellation or can't go on: nothing of it runs, not
        even its clean-up, and the children it waits for end likewise. It counts as cancelled, with the reason."""
        self._client.inbox.terminate(self._which, reason)

    def pause(self, reason: str = "", *, children: bool = False) -> None:
        """Let nothing new begin; what executes ends and is kept. Its children go on, unless `children` says that those it
        waits for, and theirs, are paused too."""
        self._client.inbox.pause(self._which, reason, children)

    def resume(self, *, children: bool = False) -> None:
        """Go on after `pause`, or after the cause of STUCK was removed; with `children`, those it waits for too."""
        self._client.inbox.resume(self._which, children)

    def retry(self) -> None:
        """Try a failed or cancelled run again; what it had completed is kept."""
        self._client.inbox.retry(self._which)

    def fork(
        self,
        at: int,
        *,
        replace: dict[int, object] | None = None,
        input: tuple[Any, ...] | None = None,
        id: str | None = None,
    ) -> Run[R]:
        """A new run that shares this one's history up to event `at`, with recorded results or the input replaced.

        Steps under way at that point run anew: `fork_reruns` names them.
        """
        return Run(self._client, *self._client.forker.fork(self._which, at, replace, input, id))

    def fork_reruns(self, at: int) -> list[str]:
        """The steps and children that a fork at event `at` would execute anew."""
        return self._client.forker.reruns(self._which, at)

    def delete(self) -> None:
        """Forget a run that has ended or is held, with its history."""
        self._client.deleter.delete(self._which)

    def _fetch(self) -> RunRow:
        return self._client.reader.row(self._which)

    # -- the async edge: the same methods, off the caller's loop

    async def aresult(self, timeout: Duration | None = None, *, propagate: bool = True) -> R:
        __tracebackhide__ = True
        return await self._client.waiter.aresult(self._which, timeout, propagate=propagate)  # type: ignore[no-any-return]

    @overload
    async def aask(
        self, request: RequestDefinition[None, A], *, id: str | None = None, timeout: Duration | None = None
    ) -> A: ...
    @overload
    async def aask(
        self, request: RequestDefinition[M, A], payload: M, *, id: str | None = None, timeout: Duration | None = None
    ) -> A: ...
    @overload
    async def aask(
        self, request: str, payload: object = None, *, id: str | None = None, timeout: Duration | None = None
    ) -> Any: ...
    async def aask(
        self,
        request: RequestDefinition[Any, Any] | str,
        payload: Any = None,
        *,
        id: str | None = None,
        timeout: Duration | None = None,
    ) -> Any:
        """`ask` for async code."""
        asker = self._client.asker
        asked = await run_blocking(lambda given_up: asker.asked(self._which, request, payload, id, timeout))
        return await asker.aanswer(asked)

    async def await_data(self, key: str, timeout: Duration | None = None) -> Any:
        """`wait_data` for async code."""
        return await self._client.waiter.adata(self._which, key, timeout)

    async def astatus(self) -> Status:
        return await asyncio.to_thread(lambda: self.status)

    async def adata(self) -> dict[str, Any]:
        return await asyncio.to_thread(lambda: self.data)

    async def asteps(self) -> RunSteps:
        return await asyncio.to_thread(lambda: self.steps)

    ahistory = twin(history)
    alogs = twin(logs)
    astatus_history = twin(status_history)
    achildren = twin(children)
    atrace = twin(trace)
    asend = twin(send)
    acancel = twin(cancel)
    aterminate = twin(terminate)
    apause = twin(pause)
    aresume = twin(resume)
    aretry = twin(retry)
    afork = twin(fork)
    afork_reruns = twin(fork_reruns)
    adelete = twin(delete)


class NoRun(Run[list[Any]]):
    """What an empty group of no app gives when it is started: there is nothing to run, and the result is `[]`."""

    def __init__(self) -> None:
        self.id = ""

    def __repr__(self) -> str:
        return "<no run: an empty group>"

    def __getattr__(self, name: str) -> Any:
        if name in ("_client", "_which"):
            raise RunNotFoundError("an empty group has no run, only a result: []", run_id="")
        raise AttributeError(name)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, NoRun)

    def __hash__(self) -> int:
        return hash(NoRun)

    def result(self, timeout: Duration | None = None, *, propagate: bool = True) -> list[Any]:
        return []

    async def aresult(self, timeout: Duration | None = None, *, propagate: bool = True) -> list[Any]:
        return []

    @property
    def status(self) -> Status:
        return Status.SUCCESS


class RunPage(list[Run[Any]]):
    """A page of runs, newest first; `cursor` asks for the next one, None at the end."""

    cursor: int | None = None
