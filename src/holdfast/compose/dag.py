"""DAGs: named steps that begin as soon as what they depend on has ended."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, TypeVar, get_args, overload

from msgspec import Raw

from holdfast.api.checks import check_name, check_text, one_of
from holdfast.api.functions import Step, Workflow
from holdfast.api.owner import Owner
from holdfast.compose.composition import Composition, Context
from holdfast.compose.dag_run import DagRun
from holdfast.compose.drawing import to_mermaid, to_svg
from holdfast.compose.progress import Progress, ancestors, find_cycle
from holdfast.core.execution import Execution
from holdfast.core.plans import Plan, PlannedStep, RunIf
from holdfast.errors import ArgumentError, DagFailed, DefinitionError, in_words
from holdfast.ports import StepState
from holdfast.printing import show

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
        depends_on: Iterable[str] | None = (),
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
        depends_on: Iterable[str] | None = (),
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
        depends_on: Iterable[str] | None = (),
        condition: Condition | None = None,
        run_if: RunIf = "all_success",
        map_over: str = "",
        **options: Any,
    ) -> Any:
        """`add_step` as a decorator: `@dag.step(depends_on=["validate"])`, or `@dag.step` alone. The function stays as it
        is, and its name is the step's."""

        def add(function: F) -> F:
            own = getattr(function, "name", None)  # of a step or a workflow
            own = own if isinstance(own, str) else getattr(function, "__name__", "")
            self.add_step(
                own if name is None else name, function, depends_on, condition=condition, run_if=run_if, map_over=map_over,
                **options,
            )  # fmt: skip
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
        return await DagRun(self, execution, plan, context).until_done()

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


def _names(given: Any, step: str) -> tuple[str, ...]:
    if given is None:  # as many write it
        return ()
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
