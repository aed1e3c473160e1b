"""Random nested canvases against a plain evaluator, in random orders of outcomes, with crashes at any moment.

HOLDFAST_EXAMPLES says how many canvases each law is tried on.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from typing import Any

import pytest
from core_world import World
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast import App, ChordError, GroupError, MemberError, chain, chord, group
from holdfast.api.signatures import Canvas, Signature, each
from holdfast.compose import canvas as machinery
from holdfast.core import events as ev

EXAMPLES = int(os.environ.get("HOLDFAST_EXAMPLES", "60"))
laws = settings(
    max_examples=EXAMPLES, derandomize=True, deadline=None, database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
)  # fmt: skip

app = App("canvas-laws", ":memory:")


class Broken(Exception):
    pass


def note(*args: Any) -> Any:
    """What every step does: tell what it was called with; some can't."""
    if args and args[-1] == "broken":
        return Broken(json.dumps(args, default=repr))
    return ["noted", *args]


@app.step(name="note")
def note_step(*args: Any) -> Any: ...


@app.step(name="errback")
def errback_step(error: Any, *args: Any) -> Any: ...


@app.workflow(name="child")
async def child(*args: Any) -> Any: ...


@pytest.fixture(autouse=True)
def _no_run_is_left_in_memory() -> Iterator[None]:
    yield
    while World.alive:
        World.alive.pop().crash()


class CanvasWorld(World):
    """Steps answer with what they were called with."""

    def argument(self, args: Any) -> Any:
        return self.app.codec.decode_call(args)[0]


def reply(name: str, args: tuple[Any, ...], attempt: int) -> Any:
    return note(*args)


def start(canvas: Canvas, seed: int) -> CanvasWorld:
    return CanvasWorld(app, canvas._run_name, json.loads(canvas._encoded((), {})), seed=seed, reply=reply)


# -- the reference: what it should give, by calling functions


def evaluate(canvas: Canvas, *previous: Any) -> Any:
    """The value, or the exception. `previous` is the result before, if there is one."""
    if isinstance(canvas, Signature):
        return note(*(() if canvas.immutable else previous), *canvas.args)
    if isinstance(canvas, chain):
        for task in canvas.tasks:
            previous = (evaluate(task, *previous),)
            if isinstance(previous[0], Exception):
                break
        return previous[0]
    if isinstance(canvas, each):
        results = []
        for item in canvas.items:
            results.append(note(*item))
            if isinstance(results[-1], Exception):
                return results[-1]
        return results
    assert isinstance(canvas, group | chord)
    found = [evaluate(task, *previous) for task in canvas.tasks]
    failed = [each for each in found if isinstance(each, Exception)]
    if isinstance(canvas, group):
        return GroupError("", others=found) if failed else found
    if failed and canvas.on_failure != "collect":
        return ChordError("", others=found)
    assert canvas.body is not None
    return evaluate(canvas.body, found)


def alike(value: Any) -> Any:
    """A result in a form that can be compared: exceptions by what they say."""
    if isinstance(value, MemberError):
        return type(value).__name__
    if isinstance(value, Exception):
        return f"{type(value).__name__}"
    return [alike(item) for item in value] if isinstance(value, list | tuple) else value


# -- random canvases

words = st.sampled_from(["a", "b", 1])
calls = st.builds(
    lambda args, kind, immutable: (note_step if kind else child).si(*args) if immutable
    else (note_step if kind else child).s(*args),
    st.lists(words, max_size=2), st.booleans() | st.just(True), st.booleans(),
)  # fmt: skip
broken = st.builds(lambda args: note_step.s(*args, "broken"), st.lists(words, max_size=1))
maps = st.builds(lambda items: note_step.starmap([(item,) for item in items]), st.lists(words, max_size=3))


def composed(parts: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    some = st.lists(parts, min_size=1, max_size=3)
    return st.one_of(
        st.builds(lambda tasks: chain(*tasks), some),
        st.builds(lambda tasks: group(*tasks), some),
        st.builds(
            lambda tasks, body, how: chord(tasks, body, on_failure=how),
            st.lists(parts, max_size=3), parts, st.sampled_from(["finish", "collect"]),
        ),
    )  # fmt: skip


def shapes(leaves: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.recursive(leaves, composed, max_leaves=10).filter(
        lambda canvas: isinstance(canvas, chain | group | chord)
    )


sound = shapes(st.one_of(calls, calls, maps))
any_canvas = shapes(st.one_of(calls, calls, maps, broken))
seeds = st.integers(0, 2**16)


@laws
@given(any_canvas, seeds)
def test_a_canvas_gives_what_plain_python_gives(canvas: Canvas, seed: int) -> None:
    run = start(canvas, seed).run()
    assert alike(run.result()) == alike(evaluate(canvas))


@laws
@given(any_canvas, seeds, st.integers(1, 3))
def test_it_gives_the_same_with_crashes_and_little_room(canvas: Canvas, seed: int, window: int) -> None:
    """A crash before any commit and after it; every step is recorded once."""
    usual, machinery.WINDOW = machinery.WINDOW, window
    try:
        run = start(canvas, seed)
        run.run(lambda world: world.crash(), crash_before_commit=True)
    finally:
        machinery.WINDOW = usual
    assert alike(run.result()) == alike(evaluate(canvas))
    outcomes = [e.cmd for e in run.history if isinstance(e, ev.StepCompleted | ev.StepFailed | ev.ChildOutcome)]
    assert len(outcomes) == len(set(outcomes))


@laws
@given(any_canvas, seeds)
def test_through_json_it_is_the_same_canvas(canvas: Canvas, seed: int) -> None:
    from holdfast import signature

    data = json.loads(json.dumps(canvas.to_dict()))
    again = signature(data)
    assert again.to_dict() == data
    assert alike(evaluate(again)) == alike(evaluate(canvas))


@laws
@given(any_canvas, seeds)
def test_errbacks_run_once_if_it_fails_and_callbacks_once_if_it_does_not(canvas: Canvas, seed: int) -> None:
    marked = canvas.clone()
    marked.link(note_step.si("linked"))
    marked.link_error(errback_step.s())
    run = start(marked, seed).run()
    failed = isinstance(run.result(), Exception)
    executed = [(e.name, e.cmd) for e in run.history if isinstance(e, ev.StepCompleted | ev.StepFailed)]
    assert len([cmd for name, cmd in executed if cmd.endswith(".error0")]) == int(failed)
    assert len([cmd for name, cmd in executed if cmd.endswith(".link0")]) == int(not failed)


@laws
@given(sound, seeds, st.integers(0, 12))
def test_a_cancelled_canvas_ends(canvas: Canvas, seed: int, after: int) -> None:
    run = start(canvas, seed)
    for _ in range(after):
        if run.is_over():
            break
        run.turn()
    if not run.is_over():
        run.cancel()
    assert run.is_over()
    run.crash()
