"""Commands match the recorded ones of their cause: by name and arguments first, then in order."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import pytest
from core_code import Broken, a, b, c, code, deploy, kid, p, world
from core_world import World
from msgspec import Raw

from holdfast import NondeterminismError, hook, sleep, wf
from holdfast.core import events as ev
from holdfast.core.loop import running
from holdfast.errors import DefinitionError


def ask(name: str, argument: Any, key: str = "") -> Any:
    """A step asked for the way compositions do, with a key of its own."""
    loop = running()
    assert loop is not None
    call = Raw(loop.execution.codec.encode_call((argument,), {}))
    return loop.execution.steps.ask(name, call, key=key)


def diverges(run: World) -> NondeterminismError:
    with pytest.raises(NondeterminismError) as raised:
        run.wake()
    return raised.value


def test_of_identical_calls_the_one_whose_outcome_is_recorded_gets_it() -> None:
    async def flow() -> Any:
        return await asyncio.gather(a(1), a(1), a(1))

    run = world(flow)
    run.complete("1s2", "third")
    run.crash()
    assert list(run.pending()) == ["1s0", "1s1"]
    run.complete("1s0", "first")
    run.crash()
    run.complete("1s1", "second")
    assert run.result() == ["first", "second", "third"]


def test_keyed_calls_take_no_place_among_identical_calls() -> None:
    async def flow() -> Any:
        return await asyncio.gather(ask("a", 1, key="mine"), a(1), a(1), a(1))

    run = world(flow)
    assert list(run.pending()) == ["s:mine", "1s0", "1s1", "1s2"]
    run.complete("1s2", "third")
    run.crash()
    assert list(run.pending()) == ["s:mine", "1s0", "1s1"]
    run.complete("1s0", "first")
    run.complete("1s1", "second")
    run.complete("s:mine", "keyed")
    assert run.result() == ["keyed", "first", "second", "third"]


def test_reordered_commands_of_one_cause_keep_their_outcomes() -> None:
    async def before() -> Any:
        return await asyncio.gather(a(1), b(2), c(3))

    async def after() -> Any:
        return (await asyncio.gather(c(3), a(1), b(2)))[::-1]

    run = world(before, strict=True)
    run.complete("1s1", "b")
    run.complete("1s2", "c")
    deploy(run, after)
    run.complete("1s0", "a")
    assert run.result() == ["b", "a", "c"]


def test_reordered_calls_of_one_step_match_by_their_arguments() -> None:
    async def before() -> Any:
        return await asyncio.gather(a(1), a(2), a(3))

    async def after() -> Any:
        return await asyncio.gather(a(3), a(1), a(2))

    run = world(before, strict=True)
    run.complete("1s1", "two")
    run.complete("1s2", "three")
    deploy(run, after)
    assert [run.argument(step.args) for step in run.wake().steps.pending.values()] == [1]
    run.complete("1s0", "one")
    assert run.result() == ["three", "one", "two"]


def test_reordered_children_data_and_hooks_of_one_cause_keep_their_answers() -> None:
    async def before() -> Any:
        wf.set_data("x", 1)
        wf.set_data("y", 2)
        return await asyncio.gather(kid(1), kid(2), hook("left"), hook("right"))

    async def after() -> Any:
        wf.set_data("y", 2)
        wf.set_data("x", 1)
        found = await asyncio.gather(kid(2), hook("right"), kid(1), hook("left"))
        return found[2], found[0], found[3], found[1]

    run = world(before, strict=True)
    ids = {bytes(child.args): child.child_id for child in run.wake().children.pending.values()}
    run.send("right", "r")
    deploy(run, after)
    assert {bytes(child.args): child.child_id for child in run.wake().children.pending.values()} == ids
    for cmd, child in list(run.wake().children.pending.items()):
        run.child(cmd, run.argument(child.args) * 10)
    run.send("left", "l")
    assert run.result() == (10, 20, "l", "r")


def test_reordered_reused_outcomes_of_an_attempt_keep_their_commands() -> None:
    async def before() -> Any:
        found = await asyncio.gather(a(1), b(2))
        return found, await c(wf.attempt)

    async def after() -> Any:
        two, one = await asyncio.gather(b(2), a(1))
        return [one, two], await c(wf.attempt)

    run = world(before, max_retries=1, strict=True)
    run.complete(run.step("b"), "b")
    run.complete(run.step("a"), "a")
    run.fail(run.step("c"), ValueError("no"))
    assert [event.name for event in (run.wake(), run.of(ev.OutcomeReused))[1]] == ["b", "a"]
    deploy(run, after, max_retries=1)
    run.complete(run.step("c"), "c")
    assert run.result() == (["a", "b"], "c")


def test_changed_arguments_keep_the_outcome_and_are_recorded_once() -> None:
    async def before() -> Any:
        return [await a("old"), await b("old")]

    async def after() -> Any:
        return [await a("new"), await b("old")]

    run = world(before)
    run.complete(run.step("a"), 1)
    deploy(run, after)
    run.wake()
    run.crash()
    run.wake()
    changed = run.of(ev.ArgumentsChanged)
    assert [(event.cmd, run.argument(event.args)) for event in changed] == [("1s0", "new")]
    run.complete(run.step("b"), 2)
    assert run.result() == [1, 2]


def test_a_step_in_flight_whose_arguments_changed_is_executed_with_the_recorded_ones() -> None:
    async def before() -> Any:
        return await a("old")

    async def after() -> Any:
        return await a("new")

    run = world(before)
    run.note(ev.StepStarted(**run._about(run.step("a"))))
    deploy(run, after)
    assert run.argument(run.wake().steps.pending["1s0"].args) == "old"
    assert len(run.of(ev.ArgumentsChanged)) == 1


def test_changed_arguments_are_an_error_where_replay_is_strict() -> None:
    async def before() -> Any:
        return [await a("old"), await b()]

    async def after() -> Any:
        return [await a("new"), await b()]

    run = world(before, strict=True)
    run.complete(run.step("a"), 1)
    error = diverges(deploy(run, after))
    assert "'a'" in error.recorded
    assert "old" in error.recorded
    assert "new" in error.asked


def test_a_changed_delay_of_a_timer_that_has_fired_is_a_recorded_warning() -> None:
    async def before() -> Any:
        await sleep("1d")
        return await a()

    async def after() -> Any:
        await sleep("2d")
        return await a()

    run = world(before)
    run.fire()
    deploy(run, after)
    assert run.pending() == {"2s0": "a"}
    assert [event.cmd for event in run.of(ev.ArgumentsChanged)] == ["1t0"]

    strict = world(before, strict=True)
    strict.fire()
    error = diverges(deploy(strict, after))
    assert "86400" in error.recorded
    assert "172800" in error.asked


def test_a_recorded_command_that_is_left_over_shows_both_sides_and_the_line() -> None:
    async def before() -> Any:
        await a("x")
        return await b()

    async def after() -> Any:
        return await c("y")  # the line

    run = world(before)
    run.complete(run.step("a"))
    error = diverges(deploy(run, after))
    line = after.__code__.co_firstlineno + 1
    assert "step 'a'" in error.recorded
    assert '"x"' in error.recorded
    assert "step 'c'" in error.asked
    assert f"{__file__}:{line} in after" in error.line
    for said in (error.recorded, error.asked, error.line, "resume"):
        assert said in str(error)


@pytest.mark.parametrize("what", ["child", "data", "hook", "time"])
def test_a_command_that_the_history_lacks_shows_both_sides_and_the_line(what: str) -> None:
    async def before() -> Any:
        await a()
        return await b()

    async def after() -> Any:
        if what == "child":
            kid.submit(1)
        elif what == "data":
            wf.set_data("k", 1)
        elif what == "hook":
            asyncio.ensure_future(hook("h"))
            await asyncio.sleep(0)
        else:
            wf.utc_now()
        await a()
        return await b()

    run = world(before)
    run.complete(run.step("a"))
    error = diverges(deploy(run, after))
    assert error.recorded == "no such thing, but step 'a'"
    assert error.asked.startswith(
        {"child": "child 'kid'", "data": "set_data 'k'", "hook": "hook 'h'", "time": "utc_now"}[what]
    )
    assert __file__ in error.line


def test_code_that_catches_everything_cannot_hide_a_divergence() -> None:
    async def before() -> Any:
        await a()
        return await b()

    async def after() -> Any:
        while True:
            with contextlib.suppress(Exception):
                wf.set_data("k", 1)
                await a()
                return await b()

    run = world(before)
    run.complete(run.step("a"))
    assert "set_data" in diverges(deploy(run, after)).asked

    async def stubborn() -> Any:
        while True:
            with contextlib.suppress(BaseException):
                kid.submit()
                return await b()

    assert "child" in diverges(deploy(run, stubborn)).asked


def test_a_key_that_is_used_for_something_else_cannot_be_hidden_either() -> None:
    def started(name: str) -> Any:
        async def flow() -> Any:
            loop = running()
            assert loop is not None
            call = Raw(loop.execution.codec.encode_call((), {}))
            with contextlib.suppress(Exception):
                loop.execution.children.ask(name, call, options={}, waited=False, abandon=False, key="k")
            return await a()

        return flow

    run = world(started("kid"))
    run.wake()
    error = diverges(deploy(run, started("other")))
    assert "kid" in error.recorded
    assert "other" in error.asked


def test_a_keyed_command_matches_wherever_it_is_asked_for() -> None:
    async def before() -> Any:
        first = ask("a", 1, key="node")
        await b()
        return await first

    async def after() -> Any:
        await b()
        return await ask("a", 1, key="node")

    run = world(before, strict=True)
    run.complete("1s0")
    run.note(ev.StepStarted(**run._about("s:node")))
    deploy(run, after)
    run.complete("s:node", "found")
    assert run.result() == "found"


def test_a_keyed_command_that_is_left_over_is_a_divergence() -> None:
    async def before() -> Any:
        first = ask("a", 1, key="node")
        await b()
        return await first

    async def after() -> Any:
        await b()
        return await c()

    run = world(before)
    run.note(ev.StepStarted(**run._about("s:node")))
    run.complete("1s0")
    assert "step 'a'" in diverges(deploy(run, after)).recorded


def test_a_key_is_used_once_in_a_run() -> None:
    async def flow() -> Any:
        await ask("a", 1, key="node")
        await ask("a", 2, key="node")

    run = world(flow)
    run.complete("s:node")
    error = run.result()
    assert isinstance(error, DefinitionError)
    assert "'node'" in str(error)


def test_an_outcome_nobody_waits_for_is_a_divergence() -> None:
    async def before() -> Any:
        return await kid(1)

    async def after() -> Any:
        kid.start(1)
        return await sleep(1)

    run = world(before)
    run.wake()
    (cmd,) = run.wake().children.pending
    outcome = run.child_outcome(cmd, "done")
    deploy(run, after)
    run.wake()
    with pytest.raises(NondeterminismError, match="ChildCompleted of 'kid'"):
        run.deliver(outcome)


def test_a_plain_call_and_an_awaited_one_match_alike() -> None:
    async def before() -> Any:
        return [p(1), p(2)]

    def after() -> Any:
        return [p(1), p(2)]

    run = world(before, strict=True)
    run.complete(run.step("p"), "one")
    deploy(run, after)
    run.complete(run.step("p"), "two")
    assert run.result() == ["one", "two"]


def test_the_code_of_a_finished_run_must_return_as_before() -> None:
    async def flow() -> Any:
        return await a()

    run = world(flow)
    run.complete(run.step("a"), 5)
    run.crash()
    execution = run.wake()
    assert execution.ended is not None
    assert execution.journal.take() == ([], [])
    assert code(flow).definitions.find_workflow("flow").name == "flow"


# -- what a divergence says


@pytest.mark.parametrize(
    ("ends", "says"),
    [("raises", "nothing more: it raised Broken: new check"), ("returns", "nothing more: it has returned")],
)
def test_code_that_ends_before_what_is_recorded_shows_how(ends: str, says: str) -> None:
    async def before() -> Any:
        await sleep(5)
        return await b()

    async def after() -> Any:
        if ends == "raises":
            raise Broken("new check")  # here

    run = world(before)
    run.fire()
    error = diverges(deploy(run, after))
    assert error.recorded == "a timer of 5 s (event 2)"
    assert error.asked == says
    assert (__file__ in error.line) == (ends == "raises")


def test_a_step_that_is_gone_shows_what_the_code_waits_for_instead() -> None:
    async def before() -> Any:
        await a()
        return await hook("go")

    async def after() -> Any:
        return await hook("go")

    run = world(before)
    run.complete(run.step("a"))
    error = diverges(deploy(run, after))
    assert error.recorded == "no such thing, but step 'a'"
    assert error.asked == "hook 'go'"


@pytest.mark.parametrize("later", [False, True])
def test_a_hook_with_a_new_name_is_shown_beside_the_old_one(later: bool) -> None:
    async def before() -> Any:
        await hook("go")
        return await b()

    async def after() -> Any:
        await hook("start")
        return await b()

    run = world(before)
    run.wake()
    if later:
        run.send("go")
    error = diverges(deploy(run, after))
    assert error.recorded == "hook 'go'"
    assert error.asked == "hook 'start'"
    assert "If 'start' is 'go' under a new name, keep the old one. Deploy the code" in str(error)


def test_a_step_with_a_new_name_is_told_how_to_keep_the_old_one() -> None:
    async def before() -> Any:
        return await a(7)

    async def after() -> Any:
        return await b(7)

    run = world(before)
    run.complete(run.step("a"))
    assert "If 'b' is 'a' under a new name, keep the old one: name='a'. " in str(diverges(deploy(run, after)))


def test_an_input_that_does_not_fit_the_code_any_more_is_told() -> None:
    async def before() -> Any:
        return await a()

    async def after(more: int) -> Any:
        return await a(more)

    run = world(before)
    run.complete(run.step("a"))
    error = diverges(deploy(run, after))
    assert "nothing: its input doesn't fit it (ArgumentError: " in error.asked
    assert "missing a required argument: 'more'" in error.asked
    assert "Give new parameters a default" in str(error)
    assert "wf.patched" not in str(error)
