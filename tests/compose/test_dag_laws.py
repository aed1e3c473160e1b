"""Random DAGs against a plain evaluator, in random orders of outcomes, with crashes at any moment.

HOLDFAST_EXAMPLES says how many DAGs each law is tried on.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from core_world import World
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec import Raw

from holdfast import App, Dag, DagFailed
from holdfast.core import events as ev
from holdfast.core.definitions import StepDefinition
from holdfast.views.steps import steps_of

EXAMPLES = int(os.environ.get("HOLDFAST_EXAMPLES", "60"))
laws = settings(
    max_examples=EXAMPLES, derandomize=True, deadline=None, database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
)  # fmt: skip
seeds = st.integers(0, 2**16)


@pytest.fixture(autouse=True)
def _no_run_is_left_in_memory() -> Iterator[None]:
    yield
    while World.alive:
        World.alive.pop().crash()


# -- DAGs as data


@dataclass(frozen=True)
class Spec:
    """A step: what it depends on, by number, and how it behaves."""

    depends_on: tuple[int, ...] = ()
    run_if: str = "all_success"
    condition: str = ""
    does: str = "lists"
    mapped: int | None = None


@st.composite
def dags(draw: st.DrawFn) -> list[Spec]:
    specs: list[Spec] = []
    for number in range(draw(st.integers(1, 8))):
        earlier = st.integers(0, number - 1)
        depends_on = tuple(sorted(draw(st.sets(earlier, max_size=3)))) if number else ()
        specs.append(
            Spec(
                depends_on,
                draw(st.sampled_from(["all_success", "all_success", "all_done", "any_success", "none_failed"])),
                draw(st.sampled_from(["", "", "", "", "even", "never", "raises"])),
                draw(st.sampled_from(["lists", "lists", "lists", "fails", "fails once", "fails for some"])),
                draw(earlier) if depends_on and draw(st.integers(0, 3)) == 0 else None,
            )
        )
    return specs


class Gone(Exception):
    """How steps and conditions fail here."""


def name_of(number: int) -> str:
    return f"n{number}"


def does(spec: Spec, name: str, context: dict[str, Any], element: str, attempt: int) -> Any:
    """What the step gives: the names that it sees, and its element."""
    if spec.does == "fails" or (spec.does == "fails once" and attempt == 1):
        raise Gone(name)
    if spec.does == "fails for some" and len(element) % 2:
        raise Gone(f"{name} {element}")
    return [f"{key}/{len(context[key])}" for key in sorted(context)] + [element]


def holds(spec: Spec, context: dict[str, Any]) -> bool:
    if spec.condition == "raises":
        raise Gone("condition")
    return spec.condition != "never" and (spec.condition != "even" or len(context) % 2 == 0)


def define(specs: list[Spec], **options: Any) -> tuple[App, list[int]]:
    """The DAG of these specs. The number in the list says which attempt of the run it is."""
    app, attempt = App("laws", ":memory:"), [1]
    dag = Dag("dag", app=app, **options)
    for number, spec in enumerate(specs):

        def whole(ctx: dict[str, Any], spec: Spec = spec, number: int = number) -> Any:
            return does(spec, name_of(number), ctx, "", attempt[0])

        def each(element: str, ctx: dict[str, Any], spec: Spec = spec, number: int = number) -> Any:
            return does(spec, name_of(number), ctx, element, attempt[0])

        dag.add_step(
            name_of(number),
            app.step(name=f"step{number}")(handler(whole) if spec.mapped is None else handler_of_element(each)),
            [name_of(each) for each in spec.depends_on],
            condition=None if not spec.condition else lambda ctx, spec=spec: holds(spec, ctx),
            run_if=spec.run_if,  # type: ignore[arg-type]
            map_over="" if spec.mapped is None else name_of(spec.mapped),
        )
    return app, attempt


def handler(function: Any) -> Any:
    return lambda ctx: function(ctx)


def handler_of_element(function: Any) -> Any:
    return lambda element, ctx: function(element, ctx)


class DagWorld(World):
    """Steps are executed, with the arguments that an engine would give them."""

    attempts: list[int]

    def _outcome_of_step(self, cmd: str) -> ev.Event:
        command = self.wake().steps.pending[cmd]
        definition: StepDefinition = self.app.definitions.find_step(command.name)
        given = command.args if command.resolve is None else Raw(command.resolve())
        args, kwargs = self.app.codec.decode_call(given, definition.hints)
        self.attempts[0] = self.wake().journal.attempt
        try:
            return self.completed(cmd, definition.function(*args, **kwargs))
        except Gone as error:
            return ev.StepFailed(**self._about(cmd), error=Raw(self.app.codec.encode_error(error)))


def start(specs: list[Spec], seed: int, **options: Any) -> DagWorld:
    app, attempts = define(specs, **options)
    world = DagWorld(app, "dag", {"initial": ["i"]}, seed=seed)
    world.attempts = attempts
    return world


# -- the reference: one step after the other


def evaluate(specs: list[Spec], attempt: int = 1) -> dict[str, tuple[str, Any]]:
    """What becomes of each step: its state, and its result."""
    found: dict[str, tuple[str, Any]] = {}
    above: list[set[int]] = []
    blamed: set[int] = set()
    for number, spec in enumerate(specs):
        direct = {*spec.depends_on, *([spec.mapped] if spec.mapped is not None else [])}
        above.append(direct.union(*(above[each] for each in direct)))
        results = {
            name_of(each): found[name_of(each)][1] for each in above[number] if found[name_of(each)][0] == "SUCCESS"
        }
        context = {"initial": ["i"], **results}
        states = [found[name_of(each)][0] for each in direct]
        runs = {
            "all_success": all(state == "SUCCESS" for state in states),
            "all_done": True,
            "any_success": not states or "SUCCESS" in states,
            "none_failed": not direct & blamed,
        }[spec.run_if]
        try:
            if not runs or (spec.condition and not holds(spec, context)):
                found[name_of(number)] = ("SKIPPED", None)
                blamed |= {number} if direct & blamed else set()
                continue
            if spec.mapped is None:
                result = does(spec, name_of(number), context, "", attempt)
            else:
                result = [does(spec, name_of(number), context, e, attempt) for e in context[name_of(spec.mapped)]]
        except (Gone, KeyError, TypeError):
            found[name_of(number)] = ("FAILURE", None)
            blamed.add(number)
        else:
            found[name_of(number)] = ("SUCCESS", result)
    return found


def check(world: World, expected: dict[str, tuple[str, Any]]) -> None:
    results = {name: result for name, (state, result) in expected.items() if state == "SUCCESS"}
    failed = [name for name, (state, _) in expected.items() if state == "FAILURE"]
    skipped = [name for name, (state, _) in expected.items() if state == "SKIPPED"]
    outcome = world.result()
    if failed:
        assert isinstance(outcome, DagFailed)
        assert (list(outcome.failed), outcome.skipped, outcome.results) == (failed, skipped, results)
    else:
        assert outcome == {"initial": ["i"], **results}
    shown = {view.key: view for view in steps_of(world.history)}
    assert {name: str(shown[name].state) for name in expected} == {name: state for name, (state, _) in expected.items()}
    decode = world.app.codec.decode
    assert {name: decode(shown[name].result or b"null") for name in results} == results


def mapped_lists(specs: list[Spec]) -> list[Spec]:
    """Elements are texts: a step that is mapped over the lists of a mapped step would get lists."""
    return [
        spec if spec.mapped is None or specs[spec.mapped].mapped is None else Spec(spec.depends_on, spec.run_if)
        for spec in specs
    ]


some_dag = dags().map(mapped_lists)


@laws
@given(some_dag, seeds)
def test_a_dag_does_what_a_plain_evaluation_does(specs: list[Spec], seed: int) -> None:
    check(start(specs, seed).run(), evaluate(specs))


@laws
@given(some_dag, seeds, seeds)
def test_crashes_at_any_commit_change_nothing(specs: list[Spec], seed: int, crashes: int) -> None:
    calm = start(specs, seed).run()
    shaken = start(specs, seed)
    chance = random.Random(crashes)
    while not shaken.is_over():
        if chance.random() < 0.3:
            shaken.crash()
        shaken.turn(crash_before_commit=chance.random() < 0.3)
    shaken.crash()
    assert shaken.committed == calm.committed
    assert set(shaken.effects) == set(calm.effects)


@laws
@given(some_dag, seeds)
def test_every_prefix_of_a_history_replays_and_goes_on_as_it_did(specs: list[Spec], seed: int) -> None:
    world = start(specs, seed).run()
    history = world.history
    for length in range(1, len(history)):
        end = min(commit for commit in world.commits if commit >= length)
        world.now = history[end - 1].ts
        replayed = world.replay(history[:length])
        assert [ev.to_json(event) for event in replayed.journal.take()[0]] == world.committed[length:end]
        replayed.evict()


@laws
@given(some_dag, seeds)
def test_a_retry_keeps_what_was_finished_and_ends_as_if_nothing_had_failed_before(specs: list[Spec], seed: int) -> None:
    world = start(specs, seed, max_retries=1).run()
    first, second = evaluate(specs), evaluate(specs, attempt=2)
    if all(state != "FAILURE" for state, _ in first.values()):
        check(world, first)
        return
    check(world, second)
    executions = Counter(cmd for cmd, _, _ in world.effects)
    plan = {view.key: view.cmd for view in steps_of(world.history)}
    above: dict[int, set[int]] = {}
    for number, spec in enumerate(specs):
        direct = {*spec.depends_on, *([spec.mapped] if spec.mapped is not None else [])}
        above[number] = direct.union(*(above[each] for each in direct))
        same = all(first[name_of(each)] == second[name_of(each)] for each in (number, *above[number]))
        if first[name_of(number)][0] == "SUCCESS" and same and spec.mapped is None:
            assert executions[plan[name_of(number)]] == 1
