"""What an app defines, by name: steps, workflows, schedules, subscriptions, limits, and what wraps them."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, TypeVar

from holdfast.api.defining import same_code
from holdfast.api.functions import is_decorated
from holdfast.api.hooks import HOOKS
from holdfast.api.models import Models
from holdfast.api.requests import REQUESTS
from holdfast.codec import Codec
from holdfast.core.definitions import Around, StepDefinition, WorkflowDefinition
from holdfast.core.domain_events import Scalar, Subscriber
from holdfast.core.limits import BoundLimit, bind
from holdfast.core.registry import OWN_PREFIX, Definitions, is_own
from holdfast.core.resources import Resource
from holdfast.errors import DefinitionError, DuplicateNameError, UnknownNameError
from holdfast.ports import LimitRow, ScheduleRow
from holdfast.printing import show
from holdfast.telemetry.instruments import Instruments

D = TypeVar("D", StepDefinition, WorkflowDefinition)


class Registry(Definitions):
    """The definitions of one app. `include` names modules that define more, and are imported when they are needed."""

    def __init__(self, name: str, codec: Codec, include: tuple[str, ...], keep_logs: int | None) -> None:
        self.name = name
        self.codec = codec
        self.include = include
        self.keep_logs = keep_logs
        self.arounds: list[Around] = []
        self.workflow_arounds: list[Around] = []
        self.start_arounds: list[Around] = []
        self.instruments = Instruments()
        self.replaced: Mapping[Resource[Any], Any] = {}
        self.hook_models = Models("hook", HOOKS)
        self.request_models = Models("request", REQUESTS)
        self.steps: dict[str, StepDefinition] = {}
        self.workflows: dict[str, WorkflowDefinition] = {}
        self.mocked: Mapping[str, StepDefinition] = {}
        self._schedules: dict[str, ScheduleRow] = {}
        self._may_change: set[str] = set()  # schedules of functions that were defined again
        self._subscribers: dict[tuple[str, str], Subscriber] = {}
        self._limits: dict[str, dict[str, LimitRow]] = {}  # by name, then by who is under it
        self._included = False
        self.is_strict = False
        self.revision = 0
        self.on_step: Callable[[StepDefinition], None] | None = None  # for whoever has to know at once

    # -- adding

    def add_step(self, definition: StepDefinition) -> StepDefinition:
        """As it is known from now on."""
        definition = self._under_limits(definition, "step")
        self._add(self.steps, definition)
        if self.on_step is not None:
            self.on_step(definition)
        return definition

    def add_workflow(self, definition: WorkflowDefinition) -> WorkflowDefinition:
        """As it is known from now on."""
        definition = self._under_limits(definition, "workflow")
        self._add(self.workflows, definition)
        return definition

    def _under_limits(self, definition: D, what: str) -> D:
        """The definition with its limits. Those that share a name have to be the same limit."""
        limits = bind(what, definition.name, definition.options.limits, definition.signature)
        for limit in limits:
            row = _row_of(limit, of_runs=what == "workflow")
            users = self._limits.setdefault(limit.name, {})
            for other, theirs in users.items():
                if other != definition.name and theirs != row:
                    raise DefinitionError(
                        f"limit {limit.name!r} of {what} {definition.name!r} {_unlike(row, theirs, other)}"
                    )
            users[definition.name] = row
        return replace(definition, limits=limits) if limits else definition

    def _add(self, table: dict[str, Any], definition: StepDefinition | WorkflowDefinition) -> None:
        if is_own(definition.name):
            raise DefinitionError(f"{definition.name!r}: names that begin with {OWN_PREFIX!r} are Holdfast's own")
        other = self.steps.get(definition.name) or self.workflows.get(definition.name)
        if other is not None and not same_code(other, definition):
            what, new = ("step" if isinstance(one, StepDefinition) else "workflow" for one in (other, definition))
            another = "another one" if what == new else f"a {new} of that name"
            places = f"at {other.place}, and {another} at {definition.place}; give one of them name='...'"
            if other.place == definition.place:
                places = f"at {other.place} already, where it is defined once more; give each its own name='...'"
            raise DuplicateNameError(f"app {self.name!r} has a {what} {definition.name!r} {places}")
        if other is not None:
            schedules = self._schedules.values()
            self._may_change |= {row.name for row in schedules if row.workflow == definition.name}
        table[definition.name] = definition
        self.revision += 1

    def declare_schedule(self, row: ScheduleRow) -> None:
        known = self._schedules.get(row.name)
        if known is not None and known != row and row.name not in self._may_change:
            raise DuplicateNameError(
                f"app {self.name!r} declares two schedules named {row.name!r}; give each its own: Schedule(..., name='...')"
            )
        self._may_change.discard(row.name)
        self._schedules[row.name] = row
        self.revision += 1

    def subscribe(self, event: str, where: dict[str, Scalar], function: Any, what: str) -> None:
        """Let an event start what a decorated function defines. `what` is how the user has said so."""
        if not is_decorated(function):
            raise DefinitionError(f"{what} goes above @app.workflow or @app.step, not on {show(function)}")
        definition: StepDefinition | WorkflowDefinition = function._definition
        if function._app.definitions is not self:
            raise DefinitionError(
                f"{what}: {function!r} belongs to app {function._app.name!r}; use that of its own app"
            )
        signature = definition.signature
        takes_payload = next((n == 1 for n in (1, 0) if _can_take(signature, n)), None)
        if takes_payload is None:
            raise DefinitionError(
                f"{what}: {definition.name}{signature} can't be called with one argument, the event's payload"
            )
        known = self._subscribers.get((event, definition.name))
        wheres = [each for each in (known.where if known is not None else ()) if each != where]
        self._subscribers[event, definition.name] = Subscriber(
            event, definition.name, [*wheres, where], takes_payload,
            getattr(definition.options, "durable", True),
        )  # fmt: skip
        self.revision += 1

    def load(self) -> None:
        """Import the modules named in `include`."""
        if not self._included:
            self._included = True  # before: the modules may ask for names themselves
            try:
                for module in self.include:
                    importlib.import_module(module)
            except BaseException:
                self._included = False
                raise

    # -- finding

    def find_step(self, name: str) -> StepDefinition:
        found = self.steps.get(name) if self._included else None
        found = found if found is not None else self.mocked.get(name)
        return found if found is not None else self._find(self.steps, "step", name)

    def find_workflow(self, name: str) -> WorkflowDefinition:
        if is_own(name) and name in _built_ins():
            return _built_ins()[name]
        return self._find(self.workflows, "workflow", name)

    def _find(self, table: dict[str, D], what: str, name: str) -> D:
        self.load()
        found = table.get(name)
        if found is None:
            raise UnknownNameError(
                f"no {what} named {name!r} in app {self.name!r}; known: {', '.join(sorted(table)) or 'none'}"
            )
        return found

    def find_startable(self, name: str) -> StepDefinition | WorkflowDefinition:
        """What is started by that name."""
        self.load()
        found = self.workflows.get(name) or self.steps.get(name)
        if found is None:
            known = ", ".join(sorted(self.startable_names())) or "none"
            raise UnknownNameError(f"no workflow or step named {name!r} in app {self.name!r}; known: {known}")
        return found

    def knows(self, name: str) -> bool:
        self.load()
        return name in self.workflows or name in self.steps

    def startable_names(self) -> list[str]:
        """What can be started by name."""
        self.load()
        return [*self.workflows, *self.steps]

    def known_names(self) -> list[str]:
        """What a worker of this app can carry out: what can be started by name, and the workflows that canvases are."""
        elsewhere = self.mocked.keys() - self.workflows.keys()
        return [*self.startable_names(), *elsewhere, *_built_ins()]

    def step_names(self) -> list[str]:
        """What a worker of this app can execute for others."""
        return sorted(self.steps)

    def max_attempts(self) -> dict[str, int]:
        """How often each step may be tried."""
        self.load()
        retries = {name: definition.options.max_retries for name, definition in self.steps.items()}
        return {name: number + 1 for name, number in retries.items() if number is not None}

    def declared_schedules(self) -> list[ScheduleRow]:
        self.load()
        return list(self._schedules.values())

    def declared_limits(self) -> list[LimitRow]:
        self.load()
        return [row for users in self._limits.values() for row in list(users.values())[-1:]]

    def subscribers(self) -> list[Subscriber]:
        self.load()
        return list(self._subscribers.values())


def _row_of(bound: BoundLimit, of_runs: bool) -> LimitRow:
    limit, rate = bound.limit, bound.limit.rate
    return LimitRow(
        name=bound.name, keyed=bound.is_keyed, of_runs=of_runs, concurrency=limit.concurrency or 0,
        rate=rate.count if rate is not None else 0, period=rate.period if rate is not None else 0, burst=limit.burst,
    )  # fmt: skip


def _unlike(row: LimitRow, theirs: LimitRow, other: str) -> str:
    if row.of_runs != theirs.of_runs:
        return (
            f"is that of {other!r} too: a run that has a slot would wait for itself when a step of it asks for another; give "
            "runs and steps limits of different names"
        )
    if row.keyed != theirs.keyed:
        return f"has a key in one place and none in the other, {other!r}; give it one in both, or two names"
    return f"says something else than that of {other!r}; share one Limit(...) object, or give them different names"


def _built_ins() -> dict[str, WorkflowDefinition]:
    from holdfast.compose.canvas import DEFINITIONS  # not at the top: only workers need it

    return DEFINITIONS


def _can_take(signature: inspect.Signature, arguments: int) -> bool:
    try:
        signature.bind(*range(arguments))
    except TypeError:
        return False
    return True
