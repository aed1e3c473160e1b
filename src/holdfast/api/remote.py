"""`app.remote("fulfil")`: a workflow or step by its name alone, for programs that don't have the workers' code."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Unpack

from holdfast.api.checks import check_arguments, check_text
from holdfast.api.handles import Run
from holdfast.api.options import (
    NO_OPTIONS,
    StartOptions,
    StartWords,
    calls_of,
    options_of_many,
    start_options_of,
    takes,
)
from holdfast.blocking import twin
from holdfast.core.registry import is_own
from holdfast.errors import ArgumentError

if TYPE_CHECKING:
    from holdfast.api.owner import Owner


class Remote:
    """A workflow or step by name. Its arguments are recorded as plain data, and checked by the worker that takes the run
    up: if they don't fit, the run fails with an ArgumentError. Results of classes that aren't known here are plain data."""

    def __init__(self, app: Owner, name: str, options: StartOptions = NO_OPTIONS) -> None:
        check_text("name", name)
        if is_own(name):
            raise ArgumentError(f"{name!r} is Holdfast's own, and not started by name; use chain, group or chord")
        self._app = app
        self._options = options
        self.name = name

    def __repr__(self) -> str:
        return f"<{self.name!r} of app {self._app.name!r}, by name>"

    def start(self, *args: Any, **kwargs: Any) -> Run[Any]:
        """Start a run. It is durable when this returns, whether or not a worker knows the name by now."""
        return self._app.start_run(self.name, self._encode(args, kwargs), self._options)

    async def astart(self, *args: Any, **kwargs: Any) -> Run[Any]:
        """`start` for async code."""
        if self._options.connection is not None:  # which is this thread's
            return self.start(*args, **kwargs)
        return await asyncio.to_thread(self.start, *args, **kwargs)

    def start_many(self, calls: Iterable[Any], *, ids: Iterable[str] | None = None) -> list[Run[Any]]:
        """Start a run for each call, all in one commit: either all are durable when this returns, or none was started.
        A tuple is the arguments of a call; anything else is its only argument. `ids` are those of the runs, in the same
        order."""
        encoded = [self._encode(args, {}) for args in calls_of(self.name, calls)]
        chosen = options_of_many(self.name, len(encoded), self._options, ids)
        return self._app.client.start_many([(self.name, *each) for each in zip(encoded, chosen, strict=True)])

    astart_many = twin(start_many)

    def delay(self, *args: Any, **kwargs: Any) -> Run[Any]:
        """Celery's spelling of `start`."""
        return self.start(*args, **kwargs)

    def apply_async(self, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None, **options: Any) -> Run[Any]:
        """Celery's spelling of `options(...).start(...)`: `countdown`, `eta`, `task_id` mean delay, at, id."""
        chosen = start_options_of(f"{self!r}.apply_async()", options)
        given, named = check_arguments(args, kwargs)
        return Remote(self._app, self.name, chosen).start(*given, **named)

    @takes(StartWords)
    def options(self, **words: Unpack[StartWords]) -> Remote:
        """Say more about the runs that this starts: `app.remote("fulfil").options(id="order-17").start(...)`."""
        return Remote(self._app, self.name, StartOptions(**words))

    def _encode(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bytes:
        if self._app.definitions.knows(self.name):
            return self._app.encode_by_name(self.name, args, kwargs)
        return self._app.codec.encode_call(args, kwargs, f"the arguments of {self.name!r}")
