"""What a run waits for, and what the core needs to know of a workflow's code."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, Protocol

import msgspec
from msgspec import Raw

from holdfast.core.domain_events import Scalar
from holdfast.core.events import HookReceived
from holdfast.core.loop import Future

PUT_BACK = "put-back"
"""What was taken from a mailbox, and did not reach the code that asked for it, goes back."""
FLAGS: tuple[str, ...] = (PUT_BACK,)
"""Changes of the core's own behaviour, recorded in each run, so that older histories replay as they were made."""


class Program(Protocol):
    """What the core needs to know of a workflow's code."""

    name: str
    retry_within: int | None
    """No attempt of the whole begins later than so many microseconds after the run."""

    @property
    def hook_models(self) -> Any:
        """The types of payloads that hooks of its app take, by name."""

    def call(self, input: Raw) -> Coroutine[Any, Any, Any]:
        """A coroutine of the workflow's function, called with the recorded input."""

    def check_call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Raise ArgumentError if the workflow's function can't be called so."""

    def result_type(self, kind: str, name: str) -> Any:
        """The annotated result of the step ("s") or workflow ("c") `name`."""

    def retry_delay(self, error: BaseException, attempt: int) -> int | None:
        """Microseconds until the run is tried again after attempt `attempt` failed, None if it is not."""


class Recorded(msgspec.Struct, frozen=True):
    """What a composition returns: a result that is in its recorded form already. Of other code even a Raw is a value like
    any other, as it may hold anything."""

    data: Raw


class PendingChild(msgspec.Struct):
    cmd: str
    child_id: str
    name: str
    args: Raw
    cause: int
    waited: bool
    abandon: bool
    future: Future[Any]
    is_new: bool = False
    raw: bool = False


class PendingHook(msgspec.Struct):
    cmd: str
    name: str
    key: str
    future: Future[Raw]
    expires: int | None
    is_new: bool
    where: dict[str, Scalar] | None = None
    bound: bool = True
    answer: HookReceived | None = None

    def __str__(self) -> str:
        if self.where is None:
            return f"hook {self.name!r}" + (f" key {self.key!r}" if self.key else "")
        return f"event {self.name!r}" + (f" where {self.where}" if self.where else "")
