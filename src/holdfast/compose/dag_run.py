"""A run of a DAG. Each step is a future with a counter of what it still waits for, so that ten thousand of them cost no more
than their edges. What a step sees is what it comes after, never what merely happened to end before: neither timing nor a
retry changes it."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Raw

from holdfast.codec import digest
from holdfast.compose.canvas import WINDOW
from holdfast.compose.composition import Context, digest_of, encode_context, split_list
from holdfast.compose.handlers import Scope
from holdfast.compose.progress import Progress
from holdfast.core.execution import Execution
from holdfast.core.loop import Future
from holdfast.core.plans import Plan, PlannedStep, member_key
from holdfast.ports import StepState

if TYPE_CHECKING:
    from holdfast.compose.dag import Dag

WHOLES = 32
"""So many contexts are kept in one piece, for those who come next."""


class DagRun:
    """One run of a DAG: what is under way, and what has become of the rest."""

    def __init__(self, dag: Dag, execution: Execution, plan: Plan, context: Context) -> None:
        self._dag = dag
        self._execution = execution
        self._progress = Progress(plan)
        self._values = DagValues(dag, execution, self._progress, context)
        self._failed: dict[str, BaseException] = {}
        self._members: dict[str, list[Future[Raw]]] = {}
        self._members_left: dict[str, int] = {}
        self._members_to_come: deque[tuple[PlannedStep, Iterator[tuple[int, bytes]]]] = deque()
        self._under_way = 0
        self._ended: deque[tuple[PlannedStep, Future[Raw]]] = deque()
        self._woken: asyncio.Future[None] | None = None

    async def until_done(self) -> Raw:
        progress = self._progress
        while True:
            self._begin_some()
            if progress.is_over:
                break
            if not self._ended:
                self._woken = self._execution.loop.create_future()
                await self._woken
            while self._ended:
                self._end(*self._ended.popleft())
        if self._failed:
            failed = {name: self._failed[name] for name in progress.steps if name in self._failed}
            raise self._dag._failure(failed, progress.skipped(), self._values.decoded(progress.steps))
        return Raw(self._values.joined(progress.steps))

    # -- beginning

    def _begin_some(self) -> None:
        """Begin what can begin, as far as the window allows."""
        while self._under_way < WINDOW:
            if self._members_to_come:
                step, elements = self._members_to_come[0]
                for index, element in elements:
                    self._begin_member(step, index, element)
                    break
                else:
                    self._members_to_come.popleft()
            elif (ready := self._progress.next_ready()) is not None:
                self._begin(ready)
            else:
                return

    def _begin(self, step: PlannedStep) -> None:
        """Ask for a step whose turn has come, or settle it."""
        handler = self._dag._handler(self._execution, step.name, step.runs, step.is_workflow)
        try:
            reason = self._progress.reason_to_skip(step)
            if not reason and step.has_condition:
                reason = self._dag._unwanted(step, self._values.seen(step))
            if reason:
                self._execution.outputs.skip_step(step.name, step.runs, reason)
                self._settle(step, StepState.SKIPPED)
            elif step.map_over:
                handler.check(self._values.recorded, handler.element)
                self._map(step)
            else:
                self._follow(step, handler.ask(self._execution, step.name, self._values.scope(step)))
        except Exception as error:
            self._execution.outputs.refuse_step(step.name, step.runs, error)
            self._fail(step, error)

    def _map(self, step: PlannedStep) -> None:
        value = self._values.recorded.get(step.map_over, b"")
        elements = split_list(self._execution, value) if value else None
        if elements is None:
            found = {step.map_over: self._execution.codec.decode(value)} if value else {}
            raise self._dag._not_a_list(step.name, step.map_over, found)
        self._execution.outputs.plan(step.name, Raw(b"%d" % len(elements)), key=step.name)
        self._members[step.name] = []
        self._members_left[step.name] = len(elements)
        if elements:
            self._members_to_come.append((step, iter(enumerate(elements))))
        else:
            self._succeed(step, b"[]")

    def _begin_member(self, step: PlannedStep, index: int, element: bytes) -> None:
        handler = self._dag._handler(self._execution, step.name, step.runs, step.is_workflow)
        given = {handler.element: (element, f"element {index} of {step.map_over}")}
        asked = handler.ask(self._execution, member_key(step.name, index), self._values.scope(step), given)
        self._members[step.name].append(asked)
        self._follow(step, asked)

    def _follow(self, step: PlannedStep, future: Future[Raw]) -> None:
        def ended(_: object) -> None:
            self._ended.append((step, future))
            if self._woken is not None and not self._woken.done():
                self._woken.set_result(None)

        self._under_way += 1
        future.add_done_callback(ended)

    # -- ending

    def _end(self, step: PlannedStep, future: Future[Raw]) -> None:
        self._under_way -= 1
        if not step.map_over:
            error = future.exception()
            if error is None:
                self._succeed(step, bytes(future.result()))
            else:
                self._fail(step, error)
            return
        self._members_left[step.name] -= 1
        if self._members_left[step.name]:
            return
        members = self._members.pop(step.name)
        errors = [error for member in members if (error := member.exception()) is not None]
        if errors:
            self._fail(step, errors[0])
        else:
            self._succeed(step, self._execution.codec.join_list(bytes(member.result()) for member in members))

    def _succeed(self, step: PlannedStep, result: bytes) -> None:
        self._values.add(step, result)
        self._settle(step, StepState.SUCCESS)

    def _fail(self, step: PlannedStep, error: BaseException) -> None:
        self._failed[step.name] = error
        self._settle(step, StepState.FAILURE)

    def _settle(self, step: PlannedStep, state: StepState) -> None:
        self._values.settle(step)
        self._progress.settle(step, state)


class DagValues:
    """The values of a run of a DAG as they are recorded, and what each step sees of them."""

    def __init__(self, dag: Dag, execution: Execution, progress: Progress, context: Context) -> None:
        self._dag = dag
        self._codec = execution.codec
        self._progress = progress
        self._context = context
        self._initial = encode_context(execution, context)
        self._start = digest_of(self._initial)
        self.recorded = dict(self._initial)
        self._results: dict[str, bytes] = {}
        self._known: Context = {}
        self._parts: dict[str, bytes] = {}
        self._wholes: dict[str, bytes] = {}
        self._versions: dict[str, bytes] = {}

    def add(self, step: PlannedStep, result: bytes) -> None:
        self._results[step.name] = self.recorded[step.name] = result
        self._parts[step.name] = self._part(step.name, result)

    def settle(self, step: PlannedStep) -> None:
        """Nothing more is added by this step."""
        before = (self._versions[name] for name in step.depends_on)
        self._versions[step.name] = digest(step.name.encode(), self._results.get(step.name, b""), *before)

    def scope(self, step: PlannedStep) -> Scope:
        version = [self._start, *(self._versions[name] for name in step.depends_on)]
        after = ", ".join(step.depends_on[:5]) + (", …" if len(step.depends_on) > 5 else "")
        what = f"the context after {after}" if after else "the initial context"
        return Scope(self.recorded, lambda: self._whole(step), version, what)

    def _whole(self, step: PlannedStep) -> bytes:
        """The context of a step, as one dict. In a chain it is that of the step before with one more result: to put it
        together from all its parts each time would make a long chain slow."""
        if "$" in self._initial:  # no plain JSON object has this key
            return self.joined(self._progress.before(step))
        above = self._wholes.get(step.depends_on[0]) if len(step.depends_on) == 1 else None
        if above is None:
            parts = [self._part(name, value) for name, value in self._initial.items()]
            parts += [self._parts[name] for name in self._progress.before(step) if name in self._parts]
        else:
            parts = [above] if above else []
            parts += [self._parts[name] for name in step.depends_on if name in self._parts]
        whole = self._wholes[step.name] = b",".join(parts)
        if len(self._wholes) > WHOLES:
            del self._wholes[next(iter(self._wholes))]
        return b"{" + whole + b"}"

    @staticmethod
    def _part(name: str, value: bytes) -> bytes:
        return msgspec.json.encode(name) + b":" + value

    def seen(self, step: PlannedStep) -> Context:
        """The context of a condition."""
        return {**self._context, **self.decoded(self._progress.before(step))}

    def decoded(self, names: Iterable[str]) -> Context:
        """The results among these, as Python objects."""
        return {name: self._decode(name) for name in names if name in self._results}

    def joined(self, names: Iterable[str]) -> bytes:
        """The initial context and the results among these, as one dict."""
        results = {name: self._results[name] for name in names if name in self._results}
        return self._codec.join_dict({**self._initial, **results})

    def _decode(self, name: str) -> Any:
        if name not in self._known:
            self._known[name] = self._dag._decoded(self._progress.steps[name], self._results[name])
        return self._known[name]
