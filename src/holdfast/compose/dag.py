"""DAGs: named steps that begin as soon as what they depend on has ended.

In a run each step is a future with a counter of what it still waits for, so that ten thousand of them cost no more than
their edges. What a step sees is what it comes after, never what merely happened to end before: neither timing nor a
retry changes it.
"""

from __future__ import annotations

import asyncio
import inspect
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar, get_args, overload

import msgspec
from msgspec import Raw

from holdfast.api.checks import check_name, check_text, one_of
from holdfast.api.functions import Step, Workflow
from holdfast.api.owner import Owner
from holdfast.codec import digest
from holdfast.compose.canvas import WINDOW
from holdfast.compose.composition import Composition, Context, digest_of, encode_context, split_list
from holdfast.compose.drawing import to_mermaid, to_svg
from holdfast.compose.handlers import Scope
from holdfast.core.execution import Execution
from holdfast.core.loop import Future
from holdfast.core.plans import Plan, PlannedStep, RunIf, member_key
from holdfast.errors import ArgumentError, DagFailed, DefinitionError, in_words
from holdfast.ports import StepState
from holdfast.printing import show

WHOLES = 32
"""So many contexts are kept in one piece, for those who come next."""

Condition = Callable[[Context], object]
F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class DagStep:
    """A step as it is defined."""

    name: str
    depends_on: tuple[str, ...]
    run_if: RunIf
    condition: Condition | None
    map_over: str


class Dag(Composition):
    """Steps that depend on each other, defined once and known by their DAG's name.

        dag = Dag("order-processing", app=app)
        dag.add_step("validate", validate)
        dag.add_step("charge", charge, depends_on=["validate"], max_retries=2)
        dag.add_step("notify", lambda ctx: mail(ctx["order"]), depends_on=["charge"])
        run = dag.start({"order": order})

    The result is the context: the initial values, and what each step gave.
    """

    _what = "dag"

    def __init__(self, name: str, *, app: Owner, **options: Any) -> None:
        """`options` are those of a workflow."""
        self._nodes: dict[str, DagStep] = {}
        self._checked: Plan | None = None
        super().__init__(name, app, options)

    # -- building

    def add_step(
        self,
        name: str,
        handler: Any,
        depends_on: Iterable[str] = (),
        *,
        condition: Condition | None = None,
        run_if: RunIf = "all_success",
        map_over: str = "",
        **options: Any,
    ) -> Dag:
        """Add a step.

        `handler` is a step, a workflow (a DAG too), a function or a lambda; a function becomes the step `<dag>.<name>`
        with these `options`. Its parameters take values of the context by name, `ctx` all of it. `condition(context)`
        is workflow code: if it gives something false, the step is skipped. `run_if` says what has to have become of
        what it depends on. With `map_over` it is executed for each element of that value, its first parameter.
        """
        check_name("step", name)
        depends_on = _names(depends_on, name)
        one_of(f"step {name!r}: run_if", run_if, get_args(RunIf))
        check_text(f"step {name!r}: map_over", map_over, empty=True, kind=DefinitionError)
        if condition is not None and not _is_condition(condition):
            raise DefinitionError(f"step {name!r}: condition={show(condition)}: give a plain function of the context")
        added = self._add_handler(name, handler, options, "step")
        if map_over and not added.element:
            raise DefinitionError(
                f"step {name!r}: map_over={map_over!r}, but {added.name} has no parameter for the element; its first one that "
                "isn't `ctx` or `context` takes it. For a DAG or a saga, add a workflow that takes the element and awaits it"
            )
        self._nodes[name] = DagStep(name, tuple(dict.fromkeys(depends_on)), run_if, condition, map_over)
        self._checked = None
        return self

    @overload
    def step(self, function: F, /) -> F: ...
    @overload
    def step(
        self,
        function: None = None,
        /,
        *,
        name: str | None = None,
        depends_on: Iterable[str] = (),
        condition: Condition | None = None,
        run_if: RunIf = "all_success",
        map_over: str = "",
        **options: Any,
    ) -> Callable[[F], F]: ...
    def step(
        self,
        function: Any = None,
        /,
        *,
        name: str | None = None,
        depends_on: Iterable[str] = (),
        condition: Condition | None = None,
        run_if: RunIf = "all_success",
        map_over: str = "",
        **options: Any,
    ) -> Any:
        """`add_step` as a decorator: `@dag.step(depends_on=["validate"])`, or `@dag.step` alone. The function stays as it
        is, and its name is the step's."""

        def add(function: F) -> F:
            chosen = name or getattr(function, "name", "") or getattr(function, "__name__", "")
            self.add_step(
                str(chosen), function, depends_on, condition=condition, run_if=run_if, map_over=map_over, **options
            )
            return function

        return add if function is None else add(function)

    def to_mermaid(self) -> str:
        """The DAG as a Mermaid flowchart, which GitHub and many editors draw."""
        return to_mermaid(self._plan())

    def to_svg(self) -> str:
        """The DAG as a picture."""
        return to_svg(self._plan())

    # -- checking

    def _plan(self) -> Plan:
        if self._checked is None:
            plan = Plan("dag", tuple(self._planned(node) for node in self._nodes.values()))
            self._check_shape(plan)
            self._checked = plan
        return self._checked

    def _planned(self, node: DagStep) -> PlannedStep:
        handler = self._handlers[node.name]
        depends_on = node.depends_on
        if node.map_over in self._nodes and node.map_over not in (*depends_on, node.name):
            depends_on = (*depends_on, node.map_over)
        return PlannedStep(
            node.name, handler.name, handler.is_workflow, depends_on, node.run_if, node.condition is not None, node.map_over
        )  # fmt: skip

    def _check_shape(self, plan: Plan) -> None:
        steps = {step.name: step for step in plan.steps}
        for step in plan.steps:
            for name in step.depends_on:
                if name not in steps:
                    raise DefinitionError(
                        f"{self!r}: step {step.name!r} depends on {name!r}, which is no step of it; known: {', '.join(steps)}"
                    )
        cycle = find_cycle(steps)
        if cycle:
            raise DefinitionError(f"{self!r} has a cycle: {' → '.join(cycle)}; leave out one of these edges")
        for step in plan.steps:
            given = (self._handlers[step.name].element,) if step.map_over else ()
            # Its own name is that of an initial value: it can't come after itself.
            taken = [name for name in self._handlers[step.name].takes(given) if name in steps and name != step.name]
            if not taken:
                continue
            before = None
            for name in taken:
                if name in step.depends_on:
                    continue
                before = set(ancestors(steps, step)) if before is None else before
                if name not in before:
                    raise DefinitionError(
                        f"{self!r}: step {step.name!r} takes the result of {name!r}, but doesn't come after it; add "
                        f"{name!r} to its depends_on"
                    )

    def _check_names(self, context: Context) -> None:
        known: Context = {**context, **self._nodes}
        for name, node in self._nodes.items():
            if name not in context:
                del known[name]  # it doesn't come after itself
            handler = self._handlers[name]
            self._check_need(name, handler, known, (handler.element,) if node.map_over else ())
            if node.map_over and node.map_over not in known:
                raise ArgumentError(
                    f"{self!r}: step {name!r} is mapped over {node.map_over!r}, which is neither in the context nor a step; "
                    f"known: {', '.join(known)}"
                )
            is_initial = node.map_over in context and (node.map_over not in self._nodes or node.map_over == name)
            if is_initial and not isinstance(context[node.map_over], list | tuple):
                raise self._not_a_list(name, node.map_over, context)
            known[name] = None

    def _not_a_list(self, step: str, mapped: str, context: Context) -> ArgumentError:
        value = context.get(mapped)
        found = f"is {type(value).__name__}: {value!r:.100}" if mapped in context else "was skipped"
        return ArgumentError(
            f"{self!r}: step {step!r} is mapped over {mapped!r}, which has to be a list or a tuple, and {found}"
        )

    # -- running

    async def _carry_out(self, execution: Execution, plan: Plan, context: Context) -> Raw:
        return await _DagRun(self, execution, plan, context).until_done()

    async def _follow_directly(self, context: Context) -> Context:
        """In order, one after the other."""
        progress = Progress(self._plan())
        results: Context = {}
        failed: dict[str, BaseException] = {}
        while (step := progress.next_ready()) is not None:
            seen = {**context, **{name: results[name] for name in progress.before(step) if name in results}}
            try:
                reason = progress.reason_to_skip(step) or self._unwanted(step, seen)
                if reason:
                    progress.settle(step, StepState.SKIPPED)
                    continue
                results[step.name] = await self._execute_plainly(step, seen)
            except Exception as error:
                failed[step.name] = error
                progress.settle(step, StepState.FAILURE)
            else:
                progress.settle(step, StepState.SUCCESS)
        if failed:
            raise self._failure(failed, progress.skipped(), results)
        return {**context, **{step.name: results[step.name] for step in self._plan().steps if step.name in results}}

    async def _execute_plainly(self, step: PlannedStep, seen: Context) -> Any:
        if not step.map_over:
            return await self._call_directly(step.name, seen)
        parameter = self._handlers[step.name].element
        elements = seen.get(step.map_over)
        if not isinstance(elements, list | tuple):
            raise self._not_a_list(step.name, step.map_over, seen)
        return [await self._call_directly(step.name, {**seen, parameter: element}) for element in elements]

    def _unwanted(self, step: PlannedStep, context: Context) -> str:
        """Why the step's own condition keeps it from running, "" if it doesn't."""
        node = self._nodes.get(step.name)
        if node is None or node.condition is None or node.condition(context):
            return ""
        return "its condition is not met"

    def _failure(self, failed: dict[str, BaseException], skipped: list[str], results: Context) -> DagFailed:
        told = "; ".join(f"{name} ({in_words(error)})" for name, error in list(failed.items())[:3])
        more = f" and {len(failed) - 3} more" if len(failed) > 3 else ""
        text = f"dag {self.name!r} failed at {told}{more}"
        if skipped:
            text += f"; skipped: {', '.join(skipped[:10])}" + (", …" if len(skipped) > 10 else "")
        text += "; run.retry() executes what failed and was skipped, and keeps the rest"
        return DagFailed(text, failed=failed, skipped=skipped, results=results)


class Progress:
    """How far the steps of a plan are: which are ready, and which are skipped because of others."""

    def __init__(self, plan: Plan) -> None:
        self.steps = {step.name: step for step in plan.steps}
        self.states: dict[str, StepState] = {}
        self._tainted: set[str] = set()  # failed, or skipped because something failed
        self._places = {name: place for place, name in enumerate(self.steps)}
        self._left = {step.name: len(step.depends_on) for step in plan.steps}
        self._followers = plan.followers()
        self._ready = deque(step for step in plan.steps if not step.depends_on)

    def next_ready(self) -> PlannedStep | None:
        """One that waits for nothing any more; each is given once."""
        return self._ready.popleft() if self._ready else None

    @property
    def is_over(self) -> bool:
        return len(self.states) == len(self.steps)

    def settle(self, step: PlannedStep, state: StepState) -> None:
        self.states[step.name] = state
        if state == StepState.FAILURE or (
            state == StepState.SKIPPED and any(name in self._tainted for name in step.depends_on)
        ):
            self._tainted.add(step.name)
        for follower in self._followers[step.name]:
            self._left[follower.name] -= 1
            if not self._left[follower.name]:
                self._ready.append(follower)

    def reason_to_skip(self, step: PlannedStep) -> str:
        """Why it isn't executed, of what it depends on; "" if nothing keeps it."""
        if step.run_if == "all_done" or not step.depends_on:
            return ""
        states = {name: self.states[name] for name in step.depends_on}
        if step.run_if == "none_failed":
            blamed = next((name for name in states if name in self._tainted), "")
            return f"{blamed!r} did not succeed" if blamed else ""
        if step.run_if == "any_success":
            return "" if StepState.SUCCESS in states.values() else "nothing that it depends on succeeded"
        blamed = next((name for name, state in states.items() if state != StepState.SUCCESS), "")
        return f"{blamed!r} {'failed' if states[blamed] == StepState.FAILURE else 'was skipped'}" if blamed else ""

    def before(self, step: PlannedStep) -> list[str]:
        """All steps that it comes after: those of a chain one after the other, what is above in the order in which it
        was defined."""
        chain: list[str] = []
        while len(step.depends_on) == 1:
            chain.append(step.depends_on[0])
            step = self.steps[step.depends_on[0]]
        return sorted(ancestors(self.steps, step), key=self._places.__getitem__) + chain[::-1]

    def skipped(self) -> list[str]:
        return [name for name in self.steps if self.states.get(name) == StepState.SKIPPED]


class _DagRun:
    """One run of a DAG: its plan, and the values it has so far, as they are recorded."""

    def __init__(self, dag: Dag, execution: Execution, plan: Plan, context: Context) -> None:
        self._dag = dag
        self._execution = execution
        self._progress = Progress(plan)
        self._initial = encode_context(execution, context)
        self._context = context
        self._results: dict[str, bytes] = {}
        self._decoded: Context = {}
        self._parts: dict[str, bytes] = {}
        self._wholes: dict[str, bytes] = {}
        self._values = dict(self._initial)
        self._failed: dict[str, BaseException] = {}
        self._start = digest_of(self._initial)
        self._versions: dict[str, bytes] = {}
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
            results = {name: self._decode(name) for name in progress.steps if name in self._results}
            failed = {name: self._failed[name] for name in progress.steps if name in self._failed}
            raise self._dag._failure(failed, progress.skipped(), results)
        results = {name: self._results[name] for name in progress.steps if name in self._results}
        return Raw(self._execution.codec.join_dict({**self._initial, **results}))

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
                reason = self._dag._unwanted(step, self._seen(step))
            if reason:
                self._execution.skip_step(step.name, step.runs, reason)
                self._settle(step, StepState.SKIPPED)
            elif step.map_over:
                handler.check(self._values, handler.element)
                self._map(step)
            else:
                self._follow(step, handler.ask(self._execution, step.name, self._scope(step)))
        except Exception as error:
            self._execution.refuse_step(step.name, step.runs, error)
            self._fail(step, error)

    def _map(self, step: PlannedStep) -> None:
        value = self._values.get(step.map_over, b"")
        elements = split_list(self._execution, value) if value else None
        if elements is None:
            found = {step.map_over: self._execution.codec.decode(value)} if value else {}
            raise self._dag._not_a_list(step.name, step.map_over, found)
        self._execution.plan(step.name, Raw(b"%d" % len(elements)), key=step.name)
        self._members[step.name] = []
        self._members_left[step.name] = len(elements)
        if elements:
            self._members_to_come.append((step, iter(enumerate(elements))))
        else:
            self._succeed(step, b"[]")

    def _begin_member(self, step: PlannedStep, index: int, element: bytes) -> None:
        handler = self._dag._handler(self._execution, step.name, step.runs, step.is_workflow)
        given = {handler.element: (element, f"element {index} of {step.map_over}")}
        asked = handler.ask(self._execution, member_key(step.name, index), self._scope(step), given)
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
        self._results[step.name] = self._values[step.name] = result
        self._parts[step.name] = self._part(step.name, result)
        self._settle(step, StepState.SUCCESS)

    def _fail(self, step: PlannedStep, error: BaseException) -> None:
        self._failed[step.name] = error
        self._settle(step, StepState.FAILURE)

    def _settle(self, step: PlannedStep, state: StepState) -> None:
        before = (self._versions[name] for name in step.depends_on)
        self._versions[step.name] = digest(step.name.encode(), self._results.get(step.name, b""), *before)
        self._progress.settle(step, state)

    # -- what a step sees

    def _scope(self, step: PlannedStep) -> Scope:
        version = [self._start, *(self._versions[name] for name in step.depends_on)]
        after = ", ".join(step.depends_on[:5]) + (", …" if len(step.depends_on) > 5 else "")
        what = f"the context after {after}" if after else "the initial context"
        return Scope(self._values, lambda: self._whole(step), version, what)

    def _whole(self, step: PlannedStep) -> bytes:
        """The context of a step, as one dict. In a chain it is that of the step before with one more result: to put it
        together from all its parts each time would make a long chain slow."""
        if "$" in self._initial:  # no plain JSON object has this key
            results = {name: self._results[name] for name in self._progress.before(step) if name in self._results}
            return self._execution.codec.join_dict({**self._initial, **results})
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

    def _seen(self, step: PlannedStep) -> Context:
        """The context of a condition."""
        before = self._progress.before(step)
        return {**self._context, **{name: self._decode(name) for name in before if name in self._results}}

    def _decode(self, name: str) -> Any:
        if name not in self._decoded:
            self._decoded[name] = self._dag._decoded(self._progress.steps[name], self._results[name])
        return self._decoded[name]


def _names(given: Any, step: str) -> tuple[str, ...]:
    if not isinstance(given, Iterable) or isinstance(given, str | bytes):
        raise DefinitionError(f"step {step!r}: depends_on={show(given)}: give a list of names")
    names = tuple(given)
    for name in names:
        check_name(f"step {step!r}: depends_on:", name)
    return names


def _is_condition(given: Any) -> bool:
    if not callable(given) or isinstance(given, Step | Workflow) or inspect.iscoroutinefunction(given):
        return False
    try:
        inspect.signature(given).bind({})
    except TypeError:
        return False
    except ValueError:  # of a built-in function that doesn't tell
        pass
    return True


def ancestors(steps: Mapping[str, PlannedStep], step: PlannedStep) -> Iterator[str]:
    """All steps that it comes after, directly or not."""
    found: set[str] = set()
    left = list(step.depends_on)
    while left:
        name = left.pop()
        if name not in found:
            found.add(name)
            yield name
            left.extend(steps[name].depends_on)


def find_cycle(steps: Mapping[str, PlannedStep]) -> list[str]:
    """Names that depend on each other in a circle, in the order of execution that they ask for; empty if none do."""
    done: set[str] = set()
    for start in steps:
        path = {start: iter(steps[start].depends_on)} if start not in done else {}  # a stack: dicts keep their order
        while path:
            name = next(reversed(path))
            following = next(path[name], None)
            if following is None:
                done.add(name)
                del path[name]
            elif following in path:
                names = list(path)
                return [following, *reversed(names[names.index(following) :])]
            elif following not in done:
                path[following] = iter(steps[following].depends_on)
    return []
