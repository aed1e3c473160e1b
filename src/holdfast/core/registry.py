"""Which apps exist in this process, and what they define: so that a process of its own can find a step by name."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any, Protocol

from holdfast.codec import Codec
from holdfast.core.definitions import Around, StepDefinition, WorkflowDefinition
from holdfast.core.domain_events import Subscriber
from holdfast.core.resources import Resource
from holdfast.errors import WrongContextError
from holdfast.ports import LimitRow, ScheduleRow, Store
from holdfast.telemetry.instruments import Instruments


class Definitions(Protocol):
    """What an app defines, by name."""

    name: str
    codec: Codec
    keep_logs: int | None
    arounds: list[Around]
    workflow_arounds: list[Around]
    start_arounds: list[Around]
    replaced: Mapping[Resource[Any], Any]
    mocked: Mapping[str, StepDefinition]  # by tests: runs of these names are single steps
    instruments: Instruments
    hook_models: Any
    request_models: Any
    is_strict: bool  # in tests: a workflow's result that isn't what its annotation says is a failure
    revision: int  # changes whenever something is defined

    def find_step(self, name: str) -> StepDefinition: ...

    def find_workflow(self, name: str) -> WorkflowDefinition: ...

    def knows(self, name: str) -> bool:
        """Whether it defines a workflow or step of that name."""

    def known_names(self) -> list[str]: ...

    def step_names(self) -> list[str]: ...

    def declared_schedules(self) -> list[ScheduleRow]: ...

    def subscribers(self) -> list[Subscriber]:
        """What domain events start."""

    def declared_limits(self) -> list[LimitRow]: ...

    def declare_schedule(self, row: ScheduleRow) -> None: ...


class DefinedApp(Protocol):
    """An app, as a process finds it that has imported it."""

    name: str

    @property
    def definitions(self) -> Definitions: ...

    @property
    def store(self) -> Store: ...

    def use_store(self, url: str) -> None: ...


OWN_PREFIX = "holdfast."


def is_own(name: str) -> bool:
    """Whether it is the name of a workflow that comes with Holdfast."""
    return name.startswith(OWN_PREFIX)


_apps: dict[str, DefinedApp] = {}


def add_app(app: DefinedApp) -> None:
    _apps[app.name] = app


def find_app(name: str) -> DefinedApp | None:
    return _apps.get(name)


_importing = ""


def importing_for_steps(sources: str) -> contextlib.AbstractContextManager[None]:
    """Here a process that only executes steps imports what defines them."""
    return _importing_by(f"a process for steps imports {sources}, which would do it in each such process again")


def importing_for_a_command(module: str) -> contextlib.AbstractContextManager[None]:
    """Here a command imports an app's code, perhaps only to look at its runs."""
    return _importing_by(f"a command imports {module!r}, which would do it with each command again")


@contextlib.contextmanager
def _importing_by(whom: str) -> Iterator[None]:
    global _importing
    _importing = whom
    try:
        yield
    finally:
        _importing = ""


def refuse_while_importing(what: str) -> None:
    """A script that starts something when it is imported would do so in each process for its steps, without end, and with
    each command that only looks."""
    if _importing:
        raise WrongContextError(f"{what} while {_importing}; put it under `if __name__ == '__main__':`")
