"""Requests: somebody asks a run, and its workflow answers or refuses."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, overload

from msgspec import Raw

from holdfast.api.calls import Call
from holdfast.api.checks import check_hook, check_id, check_model, check_text, duration_of
from holdfast.api.hooks import run_that_waits
from holdfast.api.models import Models, TypeForm, encode_checked, title_of
from holdfast.codec import Codec
from holdfast.core import events as ev
from holdfast.core.execution import Execution
from holdfast.core.loop import Future
from holdfast.durations import Duration, in_words, to_wait
from holdfast.errors import (
    ArgumentError,
    ContinueAsNew,
    DecodeError,
    DefinitionError,
    RequestPayloadError,
    RequestRefusedError,
    WrongContextError,
)
from holdfast.printing import show

M = TypeVar("M")
A = TypeVar("A")
H = TypeVar("H", bound=Callable[..., Any])
REQUESTS = Models("request")


class Request(Generic[M, A]):
    """Something that a run was asked: answer it, or refuse. `id` is the same however often it was asked."""

    def __init__(self, execution: Execution, event: ev.RequestReceived, payload: M) -> None:
        self._execution = execution
        self._event = event
        self.payload = payload

    @property
    def id(self) -> str:
        """The id that it was asked with."""
        return self._event.request

    def answer(self, value: A) -> None:
        """What whoever has asked gets."""
        codec = self._execution.codec
        self._execution.requests.answer(
            self._event, Raw(codec.encode(value, f"the answer to request {self._event.name!r}"))
        )

    def refuse(self, reason: str | BaseException) -> None:
        """Whoever has asked gets a RequestRefusedError with this reason."""
        error = reason if isinstance(reason, BaseException) else RequestRefusedError(reason)
        self._execution.requests.answer(self._event, ev.NULL, Raw(self._execution.codec.encode_error(error)))

    def __repr__(self) -> str:
        return f"<request {self._event.name!r} {self.id!r}>"


@dataclass(frozen=True, slots=True)
class Ask(Generic[A]):
    """A request with its payload, to be asked of a run that is started: `fn.start_and_ask(request.of(payload), ...)`."""

    request: RequestDefinition[Any, A]
    payload: Any
    id: str | None
    timeout: Duration | None


class RequestDefinition(Generic[M, A]):
    """A request with a name, a type of payload and a type of answer. Workflow code takes requests with
    `async for request in definition`, one at a time with `await definition.next()`, or lets a handler answer them beside
    the main flow with `definition.handle(function)`."""

    def __init__(self, name: str, payload: Any, answer: Any, data: str | None) -> None:
        self.name = name
        self.payload = payload
        self.answer = answer
        self.data = data

    def __repr__(self) -> str:
        takes, answers = (title_of(model) for model in (self.payload, self.answer))
        return f"<request {self.name!r} of {takes}, answered with {answers}>"

    def of(self, payload: M, *, id: str | None = None, timeout: Duration | None = None) -> Ask[A]:
        """This request with a payload, for `start_and_ask`."""
        return Ask(self, payload, id, timeout)

    def __aiter__(self) -> RequestDefinition[M, A]:
        return self

    def __anext__(self) -> Coroutine[None, None, Request[M, A]]:
        return self.next()

    def next(self, *, timeout: Duration | None = None) -> Coroutine[None, None, Request[M, A]]:
        """Wait for the next request; TimeoutError in the workflow if none comes in that time."""
        execution = self._here()
        us = None if timeout is None else to_wait(timeout, "timeout")
        return Call(execution, lambda: self._listen(execution, us), f"request {self.name!r}")

    def _here(self) -> Execution:
        """The run whose code takes requests; what they consist of may be recorded from now on."""
        execution = run_that_waits(f"request {self.name!r}", "request")
        self.learn(execution.codec)
        return execution

    def learn(self, codec: Codec) -> None:
        """Let the classes of payload and answer be recorded."""
        codec.types.learn_hint(self.payload)
        codec.types.learn_hint(self.answer)

    def _listen(self, execution: Execution, timeout: int | None) -> Future[Any]:
        loop = execution.loop
        found: Future[Request[M, A]] = Future(loop)
        timer: asyncio.TimerHandle | None = None
        waiting: Future[ev.RequestReceived]

        def listen() -> None:
            nonlocal waiting
            waiting = execution.requests.next(self.name)
            waiting.add_done_callback(arrived)

        def arrived(event: Any) -> None:
            if event.cancelled():
                return
            if found.done():
                execution.requests.put_back(event.result())
                return
            request = self._read(execution, event.result())
            if request is None:
                listen()
                return
            if timer is not None:
                timer.cancel()
            found.set_result(request)

        def expire() -> None:
            if not found.done():
                waiting.cancel()
                found.set_exception(TimeoutError(f"nobody asked {self.name!r} within {in_words(timeout or 0)}"))

        def dropped() -> None:
            waiting.cancel()
            if timer is not None:
                timer.cancel()

        found.on_cancel = dropped
        if timeout is not None:
            timer = loop.call_later(timeout / 1_000_000, expire)
        listen()
        return found

    def _read(self, execution: Execution, event: ev.RequestReceived) -> Request[M, A] | None:
        """The request as code sees it. One whose payload doesn't fit is refused: it was asked without its definition."""
        request: Request[M, A] = Request(execution, event, None)  # type: ignore[arg-type]
        try:
            request.payload = execution.codec.decode(event.payload, self.payload if self.payload is not None else Any)
        except DecodeError as error:
            request.refuse(RequestPayloadError(f"request {self.name!r}: {error}"))
            return None
        return request

    def handle(self, handler: H, /) -> H:
        """Let a function of the workflow answer every request from now on, beside the main flow: it is given the payload,
        and what it returns is the answer. What it raises is the refusal; the run goes on. Async handlers run side by side,
        plain ones in order. Those that are not done when the workflow ends have no answer."""
        execution = self._here()
        if not callable(handler):
            raise DefinitionError(f"request {self.name!r}: {show(handler)} is no function that could answer it")
        context = contextvars.copy_context()

        async def handle(event: ev.RequestReceived) -> None:
            request = self._read(execution, event)
            if request is None:
                return
            try:
                answer = handler() if self.payload is None else handler(request.payload)
                if inspect.isawaitable(answer):
                    answer = await answer
                request.answer(answer)
            except (Exception, ContinueAsNew) as error:
                if not execution.requests.is_unanswered(event):
                    raise
                if isinstance(error, ContinueAsNew):
                    error = WrongContextError(
                        f"the handler of request {self.name!r} can't continue as new, as it runs beside the main flow; let it "
                        "wake the main flow, with an asyncio.Event for example, which continues then"
                    )
                request.refuse(error)

        def begin(event: ev.RequestReceived) -> None:
            execution.loop.create_task(handle(event), name=f"request {self.name}", context=context)

        execution.requests.handle(self.name, begin)
        return handler


@overload
def define_request(
    name: str, payload: type[M], answer: type[A], *, data: str | None = None
) -> RequestDefinition[M, A]: ...
@overload
def define_request(
    name: str, payload: None, answer: type[A], *, data: str | None = None
) -> RequestDefinition[None, A]: ...
@overload
def define_request(name: str, payload: type[M], answer: None = None) -> RequestDefinition[M, None]: ...
@overload
def define_request(name: str, payload: None = None, answer: None = None) -> RequestDefinition[None, None]: ...
@overload
def define_request(
    name: str, payload: TypeForm, answer: TypeForm, *, data: str | None = None
) -> RequestDefinition[Any, Any]: ...
@overload
def define_request(
    name: str, payload: None, answer: TypeForm, *, data: str | None = None
) -> RequestDefinition[None, Any]: ...
@overload
def define_request(name: str, payload: TypeForm, answer: None = None) -> RequestDefinition[Any, None]: ...
def define_request(name: str, payload: Any = None, answer: Any = None, *, data: str | None = None) -> Any:
    """Something that runs can be asked, by whatever app of this process: `run.ask(request, payload)` gives the answer, or
    raises RequestRefusedError. Payloads are checked against their type when they are sent. With `data`, the answer is what
    the run has published under that key with `wf.set_data`, if anything: then the run is not even woken."""
    return make_request(REQUESTS, name, payload, answer, data)


def make_request(models: Models, name: Any, payload: Any, answer: Any, data: Any) -> RequestDefinition[Any, Any]:
    check_hook(name, kind=DefinitionError, what="define_request")
    for what, model in (("payload", payload), ("answer", answer)):
        if model is not None:
            check_model(what, model)
    if data is not None:
        check_text("define_request: data", data, kind=DefinitionError)
        if payload is not None:
            raise DefinitionError(
                f"define_request({name!r}, ..., data={data!r}): what is published is read as it is, so there is no payload; "
                "give None"
            )
    definition: RequestDefinition[Any, Any] = RequestDefinition(name, payload, answer, data)
    models.add(name, definition)
    return definition


def encode_request(codec: Codec, definition: RequestDefinition[Any, Any] | None, name: str, payload: object) -> bytes:
    if definition is not None and definition.payload is None and payload is not None:
        raise RequestPayloadError(f"request {name!r} takes no payload, but {show(payload)} was given")
    model = None
    if definition is not None:
        definition.learn(codec)
        model = definition.payload
    return encode_checked(codec, payload, model, f"request {name!r}", RequestPayloadError)


def check_request(request: Any, id: Any, timeout: Any) -> int | None:
    """What is given to `ask`; the timeout in microseconds."""
    if not isinstance(request, RequestDefinition):
        if type(request) is not str:
            raise ArgumentError(f"ask({show(request)}): give what define_request has made, or its name")
        check_hook(request, what="ask")
    if id is not None:
        check_id(id)
    return None if timeout is None else duration_of("timeout", timeout, ArgumentError)
