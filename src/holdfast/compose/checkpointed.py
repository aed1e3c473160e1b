"""Code that is a list of steps over a context, resumable by an id."""

from __future__ import annotations

import asyncio
import datetime as dt
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from msgspec import Raw

from holdfast.api.calls import ChildRun
from holdfast.api.checks import check_arguments, check_id
from holdfast.api.functions import AsyncCallOptions
from holdfast.api.handles import Run
from holdfast.api.owner import Owner
from holdfast.compose.composition import Composition, Context, StepValues
from holdfast.core import events as ev
from holdfast.core.execution import Execution
from holdfast.core.plans import Plan, PlannedStep
from holdfast.errors import ArgumentError, DefinitionError, RunExistsError, RunNotFoundError
from holdfast.ports import Status, StepState
from holdfast.printing import show


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """How far a list of steps has come: the step that ended last, the context with its result, and when that was."""

    step: str
    context: dict[str, Any]
    time: dt.datetime


class Checkpointed(Composition):
    """Steps one after the other over one context, under an id: started again, it goes on where it stopped.

        job = Checkpointed("import-2026-01", [("fetch", fetch), ("load", load)], app=app)
        job.start({"month": "2026-01"}).result()

    Workers have to know it as they know any workflow. Where ids are made at run time, give all of them one `name`.
    """

    _what = "checkpointed"

    def __init__(
        self, id: str, steps: Iterable[tuple[str, Any]], *, app: Owner, name: str | None = None, **options: Any
    ) -> None:
        """`options` are those of a workflow."""
        check_id(id)
        self.id = id
        super().__init__(id if name is None else name, app, options)
        for pair in steps:
            self._add_pair(pair)

    def _add_pair(self, pair: Any) -> None:
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            raise DefinitionError(f"{self!r}: a step is a pair of its name and its handler, not {show(pair)}")
        name, handler = pair
        self._add_handler(name, handler, {}, "step")

    def start(self, *args: Any, **kwargs: Any) -> Run[Context]:
        """Start it, or go on: a run of its id that failed or was cancelled is tried again from where it stopped, and
        any other is left as it is. The context is that of the first start."""
        try:
            run = self._home.get_run(self.id)
        except RunNotFoundError:
            return self.options().start(*args, **kwargs)
        if run.workflow != self.name:
            raise RunExistsError(
                f"there is a run {self.id!r} of {run.workflow!r}, and not of {self.name!r}; choose another id",
                run_id=self.id,
            )
        if run.status in (Status.FAILURE, Status.CANCELLED):
            run.retry()
        return run

    async def astart(self, *args: Any, **kwargs: Any) -> Run[Context]:
        """`start` for async code."""
        return await asyncio.to_thread(self.start, *args, **kwargs)

    def options(self, **options: Any) -> AsyncCallOptions[..., Context, ChildRun[Context]]:
        """Say more about the run. It has the id of this, unless another is given."""
        return super().options(**{"id": self.id, **options})

    def apply_async(
        self, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None, **options: Any
    ) -> Run[Context]:
        """Celery's spelling of `start`, or with options that of `options(...).start(...)`."""
        args, kwargs = check_arguments(args, kwargs)
        if not options:
            return self.start(*args, **kwargs)
        own = {} if options.keys() & {"task_id", "link", "link_error"} else {"id": self.id}
        return super().apply_async(args, kwargs, **{**own, **options})

    @property
    def checkpoint(self) -> Checkpoint | None:
        """How far it has come; None before the first step has ended."""
        try:
            run = self._home.get_run(self.id)
        except RunNotFoundError:
            return None
        done = [step for step in run.steps if step.state == StepState.SUCCESS]
        if not done or done[-1].ended_at is None:
            return None
        results = {step.key: step.result for step in done}
        return Checkpoint(done[-1].key, {**self._initial(run), **results}, done[-1].ended_at)

    def _initial(self, run: Run[Any]) -> Context:
        started = run._client.reader.events(run._which)[0]
        assert isinstance(started, ev.RunStarted)
        args, kwargs = self._home.codec.decode_call(started.input)
        return next(iter((*args, *kwargs.values())), None) or {}

    async def acheckpoint(self) -> Checkpoint | None:
        """`checkpoint` for async code."""
        return await asyncio.to_thread(lambda: self.checkpoint)

    # -- as a composition

    def _plan(self) -> Plan:
        return Plan(
            "checkpointed",
            tuple(PlannedStep(name, handler.name, handler.is_workflow) for name, handler in self._handlers.items()),
        )

    def _check_names(self, context: Context) -> None:
        known = dict(context)
        for name, handler in self._handlers.items():
            self._check_need(name, handler, known)
            known[name] = None

    async def _carry_out(self, execution: Execution, plan: Plan, context: Context) -> Raw:
        values = StepValues(execution, context)
        for step in plan.steps:
            handler = self._handler(execution, step.name, step.runs, step.is_workflow)
            try:
                asked = handler.ask(execution, step.name, values.scope())
            except ArgumentError as error:
                execution.outputs.refuse_step(step.name, step.runs, error)
                raise
            values.add(step.name, await asked)
        return Raw(values.whole())

    async def _follow_directly(self, context: Context) -> Context:
        for name in self._handlers:
            context[name] = await self._call_directly(name, context)
        return context
