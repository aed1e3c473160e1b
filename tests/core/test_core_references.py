"""Arguments that are results of other steps: the history keeps a reference, the step gets the value."""

from __future__ import annotations

from typing import Any

from core_code import world
from msgspec import Raw

from holdfast.codec import Reference, refer_to
from holdfast.core import commands as co
from holdfast.core import events as ev
from holdfast.core.loop import running
from holdfast.core.pending import Recorded


async def sum_of_many() -> Any:
    """Asks for step `b` with two raw results of `a`, by reference."""
    loop = running()
    assert loop is not None
    execution = loop.execution
    first = await execution.steps.ask("a", Raw(b'{"args":[1]}'), raw=True)
    second = await execution.steps.ask("a", Raw(b'{"args":[2]}'), raw=True)
    reference = refer_to([first, second], "2 results")
    call = execution.codec.join_call([execution.codec.join_list([first, second])], {})
    return Recorded(
        await execution.steps.ask("b", Raw(execution.codec.join_call([reference], {})), resolve=lambda: call, raw=True)
    )


def test_a_raw_result_is_what_was_recorded_and_a_reference_is_resolved_at_hand_over() -> None:
    run = world(sum_of_many, strict=True)
    run.complete(run.step("a"), "ä")
    run.complete(run.step("a"), (1, 2))
    handed_over = next(c for c in run.commands if isinstance(c, co.ScheduleStep) and c.name == "b")
    assert handed_over.resolve is not None
    assert run.app.codec.decode_call(handed_over.resolve()) == ((["ä", (1, 2)],), {})
    run.crash()
    run.complete(run.step("b"), {"sum": 3})
    assert run.result() == {"sum": 3}
    (args, _) = run.app.codec.decode_call(run.of(ev.StepCompleted)[-1].args)
    assert [type(arg) for arg in args] == [Reference]
    assert repr(args[0]) == "<2 results>"


def test_the_same_values_have_the_same_reference() -> None:
    assert refer_to([b"1", b"23"], "x") == refer_to([b"1", b"23"], "x")
    assert refer_to([b"1", b"23"], "x") != refer_to([b"12", b"3"], "x")


def test_a_child_gets_the_value_and_its_parent_records_the_reference() -> None:
    async def flow() -> Any:
        loop = running()
        assert loop is not None
        reference = loop.execution.codec.join_call([refer_to([b'"big"'], "a result")], {})
        child = loop.execution.children.ask(
            "kid", Raw(reference), options={}, waited=True, abandon=False, key="k",
            resolve=lambda: b'{"args":["big"]}', raw=True,
        )  # fmt: skip
        return await child.future

    run = world(flow, strict=True)
    run.wake()
    (started,) = [c for c in run.commands if isinstance(c, co.StartChild)]
    assert bytes(started.args) == b'{"args":["big"]}'
    assert b'"$":"ref"' in bytes(run.of(ev.ChildStarted)[0].args)
