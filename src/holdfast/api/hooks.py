"""Hooks: a workflow waits, someone outside answers."""

from __future__ import annotations

import asyncio
from typing import Any, Generic, TypeVar, overload

from holdfast.api.calls import Call
from holdfast.api.checks import check_hook, check_model
from holdfast.api.models import Models, TypeForm, encode_checked
from holdfast.api.tokens import TOKEN_LIFETIME, HookToken
from holdfast.codec import Codec
from holdfast.core.context import current_step
from holdfast.core.domain_events import Scalar
from holdfast.core.execution import Execution
from holdfast.core.loop import Future, running
from holdfast.core.pending import PendingHook
from holdfast.durations import Duration, in_words, to_wait
from holdfast.errors import DecodeError, DefinitionError, HookPayloadError, WrongContextError
from holdfast.printing import show

M = TypeVar("M")
HOOKS = Models("hook")


class Answer(Call[M]):
    """Something from outside that was asked for: await it for the payload."""

    __slots__ = ("_hook", "_key", "_model", "_name", "_timeout", "_where")
    _nobody = "nobody answered hook"

    def __init__(
        self,
        execution: Execution,
        name: str,
        timeout: int | None,
        key: str,
        model: Any,
        where: dict[str, Scalar] | None = None,
    ) -> None:
        super().__init__(execution, self._open, f"{'hook' if where is None else 'wait_for_event'} {name!r}")
        self._name = name
        self._timeout = timeout
        self._key = key
        self._model = model
        self._where = where
        self._hook: PendingHook | None = None

    def _ask(self) -> PendingHook:
        if self._hook is None:
            expires = None if self._timeout is None else self._execution.loop.now + self._timeout
            self._hook = self._execution.hooks.ask(self._name, self._key, expires, self._where)
        return self._hook

    def _open(self) -> Future[Any]:
        """A future of the decoded payload, or of TimeoutError."""
        loop, hook = self._execution.loop, self._ask()
        waiting = hook.future
        answer: Future[Any] = Future(loop)
        timer: asyncio.TimerHandle | None = None

        def expire() -> None:
            if not answer.done():
                waiting.cancel()
                what = f"{self._nobody} {self._name!r} within {in_words(self._timeout or 0)}"
                answer.set_exception(TimeoutError(what))

        def arrived(payload: Any) -> None:
            if timer is not None:
                timer.cancel()
            if answer.done() or payload.cancelled():
                return
            try:
                answer.set_result(self._execution.codec.decode(payload.result(), self._model or Any))
            except DecodeError as error:
                answer.set_exception(error)

        def dropped() -> None:
            if not waiting.cancel():
                self._execution.hooks.put_back(hook)
            if timer is not None:
                timer.cancel()

        answer.on_cancel = dropped
        if self._timeout is not None and not waiting.done():
            timer = loop.call_later(self._timeout / 1_000_000, expire)
        waiting.add_done_callback(arrived)
        return answer


class HookCall(Answer[M]):
    """A hook that was asked for: await it for the payload. `token` is what a link to answer it carries."""

    __slots__ = ()

    @property
    def token(self) -> str:
        """Signed, for this hook alone, good for one answer and until the hook's timeout (else 30 days)."""
        hook = self._ask()
        info = self._execution.info
        expires = self._execution.loop.now + (self._timeout or TOKEN_LIFETIME)
        run_no = info.run_no if hook.bound else 0
        token = HookToken(info.app, info.run_id, self._name, self._key, hook.cmd, expires, run_no)
        return token.write(info.secret)


def run_that_waits(what: str, word: str) -> Execution:
    """The run whose code asks for something from outside; steps and runs without a history can't."""
    loop = running()
    if loop is None:
        if current_step.get() is not None:
            raise WrongContextError(
                f"{what} in a step: a step can't wait for an answer; move the {word} to the workflow and pass the payload to "
                "the step"
            )
        raise WrongContextError(f"{what} works in a run; in a test, use holdfast.testing.TestApp")
    execution: Execution = loop.execution
    if not execution.info.durable:
        raise WrongContextError(f"{what} needs a history, and this workflow has durable=False; make it durable=True")
    return execution


def ask_hook(name: str, timeout: Duration | None, key: str | None, model: Any) -> HookCall[Any]:
    execution = run_that_waits(f"hook({show(name)})", "hook")
    check_hook(name, key, DefinitionError)
    us = None if timeout is None else to_wait(timeout, "timeout")
    return HookCall(execution, name, us, key or "", model)


def hook(name: str, *, timeout: Duration | None = None, key: str | None = None) -> HookCall[Any]:
    """Wait until someone sends a payload: `run.send(name, payload)`, `app.send_hook(token, payload)`, or by `key`.

    Raises TimeoutError in the workflow if nobody does within `timeout`.
    """
    return ask_hook(name, timeout, key, None)


class HookDefinition(Generic[M]):
    """A hook with a name and a type of payload: `await approval(timeout="2d")`."""

    def __init__(self, name: str, payload: type[M]) -> None:
        self.name = name
        self.payload = payload

    def __call__(self, *, timeout: Duration | None = None, key: str | None = None) -> HookCall[M]:
        return ask_hook(self.name, timeout, key, self.payload)

    def __repr__(self) -> str:
        return f"<hook {self.name!r} of {self.payload!r}>"


@overload
def define_hook(name: str, payload: type[M]) -> HookDefinition[M]: ...
@overload
def define_hook(name: str, payload: TypeForm) -> HookDefinition[Any]: ...
def define_hook(name: str, payload: Any) -> HookDefinition[Any]:
    """A hook whose payloads are checked against a model when they are sent, by whatever app of this process."""
    return make_hook(HOOKS, name, payload)


def make_hook(models: Models, name: Any, payload: Any) -> HookDefinition[Any]:
    check_hook(name, kind=DefinitionError, what="define_hook")
    check_model("payload", payload)
    models.add(name, payload)
    return HookDefinition(name, payload)


def encode_payload(codec: Codec, models: Models, name: str, payload: object) -> bytes:
    """A payload as it is recorded, checked against the hook's model if it has one."""
    return encode_checked(codec, payload, models.find(name), f"hook {name!r}", HookPayloadError)
